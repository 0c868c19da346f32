//! `normalize_prim_func`: bring every leaf block into one form, and say what is in it.
//!
//! before                                      after
//!   for i, k, j in T.grid(1, 16, 8):            for ax0, ax1 in T.grid(8, 16):
//!       with T.sblock("C"):                         with T.sblock("C"):
//!           vi, vk, vj = T.axis.remap("SRS", ...)       v0, v1 = T.axis.remap("SR", [ax0, ax1])
//!           C[vi, vj] = C[vi, vj] + A[vk, vj]           C[0, v0] = C[0, v0] + A[v1, v0]
//!
//! Iterators of one value go, data-parallel iterators come before reductions (TVM leaves them where they are), and one of one
//! value stands in front where none is left. It is a `transform_block_layout` per block; a block that this cannot transform,
//! since it shares loops with others, is left as it is. Whether a block is a reduction is asked of it as it is then: a
//! reduction over one value has lost its iterator, and is still one, by its init.
//!
//! Legal when: 1 there is a leaf block besides the root; 2 each leaf block's iterators are its loops, all of them and in
//! their order, or it has no loops; 3 these loops start with 0.
use crate::arith::constant;
use crate::index_map::IndexMap;
use crate::schedule::{Result, Schedule};
use crate::transform_block_layout::transform_block_layout;
use crate::tree::{LoopId, Node};
use crate::{scope, ScheduleError};
use satune_ir::{BlockId, DType, Expr, IterKind, IterVar};

/// A leaf block in normal form.
#[derive(Clone, Debug)]
pub struct BlockInfo {
    /// The block.
    pub block: BlockId,
    /// Its loops, outermost first.
    pub loops: Vec<LoopId>,
    /// Its iterators.
    pub iterators: Vec<IterVar>,
    /// Whether it is a reduction block of the program.
    pub is_reduction: bool,
}

impl BlockInfo {
    /// A letter per iterator, `SSR` for instance.
    pub fn kinds(&self) -> String {
        self.iterators.iter().map(|iv| iv.kind.letter()).collect()
    }
}

/// Conditions 1 to 3. Returns the leaf blocks, in program order.
pub fn legal(s: &Schedule) -> Result<Vec<BlockId>> {
    let mut leaves = Vec::new();
    leaves_of(s, s.root(), &mut leaves)?;
    if leaves == [s.root()] {
        return Err(ScheduleError::root_block(s.root()));
    }
    for &block in &leaves {
        let realize = s.realize(block)?;
        let loops = s.loops_of(block)?;
        let refused = |why: &str| {
            let name = &realize.block.name;
            ScheduleError::refused(
                "The program is not in a form that can be normalized",
                format!("The loops of block {name} are not its iterators: {why}"),
            )
            .at_block(block)
            .remedy("normalize a program before its loops are split, fused or reordered")
        };
        if loops.is_empty() {
            continue;
        }
        if loops.len() != realize.iter_values.len() {
            return Err(refused("there are more of the one than of the other"));
        }
        for (l, value) in s.get_loops(&loops)?.into_iter().zip(&realize.iter_values) {
            if !matches!(value, Expr::Var(v) if v.id == l.var.id) {
                return Err(refused("an iterator is not the loop of its place").at_loop(l.var.id));
            }
            if constant(&l.min) != Some(0) {
                return Err(refused("a loop does not start with 0").at_loop(l.var.id));
            }
        }
    }
    Ok(leaves)
}

fn leaves_of(s: &Schedule, block: BlockId, out: &mut Vec<BlockId>) -> Result<()> {
    let children = s.child_blocks(Node::Block(block))?;
    if children.is_empty() {
        out.push(block);
    }
    children.into_iter().try_for_each(|c| leaves_of(s, c, out))
}

/// The map to normal form of a block's iterators.
fn map_of(iterators: &[IterVar]) -> IndexMap {
    let mut map =
        IndexMap { params: iterators.iter().map(|iv| iv.var.name.to_string()).collect(), outputs: Vec::new() };
    let several = |(_, iv): &(usize, &IterVar)| constant(&iv.extent) != Some(1);
    let kept: Vec<(usize, &IterVar)> = iterators.iter().enumerate().filter(several).collect();
    let (spatial, other): (Vec<_>, Vec<_>) = kept.into_iter().partition(|(_, iv)| iv.kind == IterKind::Spatial);
    if spatial.is_empty() {
        map.outputs.push(Expr::Int(0, DType::I64));
    }
    for (k, _) in spatial.into_iter().chain(other) {
        map.outputs.push(Expr::Var(map.param(k)));
    }
    map
}

/// The primitive. Returns what it made of each leaf block, in program order.
pub fn normalize_prim_func(s: &mut Schedule) -> Result<Vec<BlockInfo>> {
    let within = |e: ScheduleError| e.within("normalize_prim_func");
    let leaves = legal(s).map_err(within)?;
    let mut out = Vec::with_capacity(leaves.len());
    for block in leaves {
        let map = map_of(&s.block(block).map_err(within)?.iter_vars);
        // What cannot be transformed stays.
        let _ = transform_block_layout(s, block, &map);
        out.push(info(s, block).map_err(within)?);
    }
    Ok(out)
}

fn info(s: &Schedule, block: BlockId) -> Result<BlockInfo> {
    Ok(BlockInfo {
        block,
        loops: s.loops_of(block)?,
        iterators: s.block(block)?.iter_vars.clone(),
        is_reduction: scope::is_reduction(s, block, &s.scope(s.root())?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::split;
    use crate::testing::{assert_program, chain, func, joined, loops, matmul, refusal, schedule};

    const PARAMS: &str =
        "A: T.Buffer((16, 16), \"float32\"), B: T.Buffer((16, 16), \"float32\"), C: T.Buffer((16, 16), \"float32\")";

    /// A product of matrices, its loops in the order given, with these extents.
    fn product(order: [&str; 3], extents: [i64; 3]) -> Schedule {
        let kinds: String = order.iter().map(|n| if *n == "k" { 'R' } else { 'S' }).collect();
        let [a, b, c] = order;
        let [x, y, z] = extents;
        schedule(&func(
            PARAMS,
            &format!(
                r#"
for {a}, {b}, {c} in T.grid({x}, {y}, {z}):
    with T.sblock("C"):
        v{a}, v{b}, v{c} = T.axis.remap("{kinds}", [{a}, {b}, {c}])
        with T.init():
            C[vi, vj] = T.float32(0)
        C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"#
            ),
        ))
    }

    #[test]
    fn drops_unit_iterators_and_puts_reductions_last() {
        let mut s = product(["i", "k", "j"], [1, 16, 8]);
        let infos = normalize_prim_func(&mut s).unwrap();
        assert_eq!((infos.len(), infos[0].kinds().as_str(), infos[0].is_reduction), (1, "SR", true));
        assert_eq!(infos[0].loops, loops(&s, "C"));
        assert_program(
            &s,
            &func(
                PARAMS,
                r#"
for ax0, ax1 in T.grid(8, 16):
    with T.sblock("C"):
        v0, v1 = T.axis.remap("SR", [ax0, ax1])
        with T.init():
            C[0, v0] = T.float32(0)
        C[0, v0] = C[0, v0] + A[0, v1] * B[v1, v0]
"#,
            ),
        );
    }

    #[test]
    fn a_reduction_over_one_value_stays_one() {
        let mut s = product(["i", "j", "k"], [16, 16, 1]);
        let infos = normalize_prim_func(&mut s).unwrap();
        assert_eq!((infos[0].kinds().as_str(), infos[0].is_reduction), ("SS", true));
        let mut s = chain();
        let infos = normalize_prim_func(&mut s).unwrap();
        assert_eq!(infos.iter().map(|b| b.is_reduction).collect::<Vec<_>>(), [false, false]);
    }

    #[test]
    fn one_data_parallel_iterator_stands_in_front() {
        for (extents, kinds) in [([1, 1, 16], "SR"), ([1, 1, 1], "S")] {
            let mut s = product(["i", "j", "k"], extents);
            let infos = normalize_prim_func(&mut s).unwrap();
            assert_eq!((infos[0].kinds().as_str(), infos[0].is_reduction), (kinds, true));
        }
    }

    #[test]
    fn leaves_what_shares_loops() {
        let mut s = joined();
        let before = s.program().clone();
        let infos = normalize_prim_func(&mut s).unwrap();
        assert_eq!(infos.iter().map(BlockInfo::kinds).collect::<Vec<_>>(), ["SS", "SS"]);
        assert!(satune_ir::structural::equal(&before, s.program()).is_ok());
    }

    #[test]
    fn refuses() {
        let message = "ScheduleError: The program is not in a form that can be normalized";
        let mut s = matmul();
        let i = loops(&s, "C")[0];
        split(&mut s, i, &[None, Some(4)], true, false).unwrap();
        assert_eq!(refusal(&mut s, normalize_prim_func), message);
        // Iterators in another order than their loops.
        let mut s = matmul();
        let l = loops(&s, "C");
        crate::reorder::reorder(&mut s, &[l[1], l[0]]).unwrap();
        assert_eq!(refusal(&mut s, normalize_prim_func), message);
        // A loop that starts elsewhere.
        let mut s = matmul();
        let i = loops(&s, "C")[0];
        s.update_loop(i, |l| l.min = satune_ir::Expr::Int(1, DType::I32)).unwrap();
        assert_eq!(refusal(&mut s, normalize_prim_func), message);
        // Nothing but the root.
        let mut s =
            schedule(&func("A: T.Buffer((16,), \"float32\")", "for i in range(16):\n    A[i] = T.float32(0)\n"));
        assert_eq!(
            refusal(&mut s, normalize_prim_func),
            "ScheduleError: The primitive does not operate on the root block"
        );
    }
}
