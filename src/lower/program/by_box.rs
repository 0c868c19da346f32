//! Results that go by way of shared memory box by box (`satune.tma` 2): there is room for two, where the program has all of them.
//!
//! ```text
//!   for r, c in T.grid(64, 256):                      for box in range(8):
//!       S[r, c] = f(W[..])                                for r, c in T.grid(64, 32):
//!   for r, c in T.grid(64, 256):             ->               S[r, box * 32 + c] = f(W[..])
//!       C[r, c] = S[r, c]                                 for r, c in T.grid(64, 32):
//!                                                             C[r, box * 32 + c] = S[r, box * 32 + c]
//! ```
//! Both nests have the same loops, and an instance of the second reads what the same one of the first has written.
use super::interleaved::ranges;
use super::lanes::chain;
use super::linear::{Linear, Ranges};
use super::tensor_memory::rows_of;
use satune_ir::affine::{add, int, mul};
use satune_ir::{visit, Attr, BlockRealize, Expr, For, ForKind, Program, Stmt, Var, VarId};
use satune_rewrites::keys;
use std::borrow::Cow;
use std::collections::HashMap;

/// Bytes of its rows.
const BYTES: i64 = 128;
/// Says of a loop that it goes from box to box.
pub const BOX: &str = "satune.box";

/// The statement with such copies box by box, and the program with the variables that count them.
pub fn by_box<'p>(mut program: Cow<'p, Program>, part: Cow<'p, Stmt>) -> (Cow<'p, Program>, Cow<'p, Stmt>) {
    let mut any = false;
    visit::walk_stmt(&part, &mut |s| any |= matches!(s, Stmt::Realize(r) if asks(r)));
    if !any {
        return (program, part);
    }
    let ranges = ranges(&part);
    let mut part = part.into_owned();
    visit::walk_stmt_mut(&mut part, &mut |s| {
        let Stmt::Seq(parts) = s else { return };
        while let Some(at) =
            (1..parts.len()).find(|at| Pair::of(&program, &ranges, [&parts[at - 1], &parts[*at]]).is_some())
        {
            let Some(pair) = Pair::of(&program, &ranges, [&parts[at - 1], &parts[at]]) else { break };
            let boxes = pair.boxes(program.to_mut());
            parts.splice(at - 1..=at, [boxes]);
        }
    });
    (program, Cow::Owned(part))
}

fn asks(r: &BlockRealize) -> bool {
    r.block.annotations.get(keys::TMA) == Some(&Attr::Int(2))
}

/// A nest that fills shared memory, and one that stores it.
struct Pair {
    nests: [Stmt; 2],
    /// Rows and columns of a box.
    tile: [i64; 2],
}

impl Pair {
    fn of(program: &Program, ranges: &Ranges, [first, second]: [&Stmt; 2]) -> Option<Pair> {
        let (mut filling, _, fills) = chain(first)?;
        let (mut storing, _, stores) = chain(second).filter(|(.., r)| asks(r))?;
        for loops in [&mut filling, &mut storing] {
            loops.retain(|(_, extent)| *extent > 1);
        }
        let ([(_, rows), (_, columns)], [(_, r), (_, c)]) = (filling.as_slice(), storing.as_slice()) else {
            return None;
        };
        let Stmt::Store { buffer, indices, value: filled } = fills.block.body.as_ref() else { return None };
        let Stmt::Store { value: Expr::Load(read, from), .. } = stores.block.body.as_ref() else { return None };
        let info = program.buffer(*buffer);
        let bytes = i64::from(info.dtype.bytes());
        // Rows of a box are an instruction's.
        let tile = [rows_of(program, filled), BYTES / bytes];
        let whole = rows % tile[0] == 0 && columns % tile[1] == 0 && (rows, columns) == (r, c);
        let more = [*rows, *columns] != tile;
        if read != buffer || !info.scope.starts_with("shared") || !whole || !more {
            return None;
        }
        let written = places(fills, indices, (&filling, &filling), ranges)?;
        (places(stores, from, (&storing, &filling), ranges)? == written)
            .then(|| Pair { nests: [first.clone(), second.clone()], tile })
    }

    /// Both nests, of one box after the other.
    fn boxes(self, program: &mut Program) -> Stmt {
        let [rows, columns] = self.tile;
        let loops = |nest: &Stmt| -> Vec<(For, i64)> {
            let all = chain(nest).into_iter().flat_map(|(loops, ..)| loops);
            all.filter(|(_, extent)| *extent > 1).map(|(l, extent)| (l.clone(), extent)).collect()
        };
        let outer = loops(&self.nests[0]);
        let counting: Vec<Var> =
            outer.iter().map(|(l, _)| program.fresh_var(format!("{}_box", l.var.name), l.var.dtype)).collect();
        let nests = self.nests.map(|nest| {
            let each = loops(&nest).into_iter().zip(&counting).zip([rows, columns]);
            each.fold(nest, |inner, (((l, _), number), size)| {
                let dtype = l.var.dtype;
                let first = mul(Expr::Var(Var { dtype, ..number.clone() }), int(size, dtype));
                shortened(&inner, l.var.id, size, &add(first, Expr::Var(l.var)))
            })
        });
        let body = Stmt::Seq(nests.to_vec());
        let each = outer.into_iter().zip(counting).zip([rows, columns]);
        each.rev().fold(body, |body, (((l, extent), var), size)| {
            let (min, extent) = (int(0, var.dtype), int(extent / size, var.dtype));
            let mut annotations = l.annotations.clone();
            annotations.insert(BOX.into(), Attr::Int(1));
            Stmt::For(For { var, min, extent, kind: ForKind::Serial, annotations, body: body.into() })
        })
    }
}

/// The loop of a variable with so many steps, its number being another.
pub fn shortened(stmt: &Stmt, v: VarId, extent: i64, number: &Expr) -> Stmt {
    match stmt {
        Stmt::For(l) if l.var.id == v => {
            let map = HashMap::from([(v, number.clone())]);
            let body = visit::map_stmt_exprs(&l.body, &mut |e| visit::substitute(e, &map));
            Stmt::For(For { extent: int(extent, l.var.dtype), body: body.into(), ..l.clone() })
        }
        Stmt::For(l) => Stmt::For(For { body: shortened(&l.body, v, extent, number).into(), ..l.clone() }),
        other => other.clone(),
    }
}

/// Loops with their extents.
type Loops<'l> = [(&'l For, i64)];

/// The element that a block accesses, by others' loops in place of its own.
fn places(
    r: &BlockRealize,
    at: &[Expr],
    (loops, others): (&Loops<'_>, &Loops<'_>),
    ranges: &Ranges,
) -> Option<Vec<Linear>> {
    let each = loops.iter().zip(others);
    let values = each.map(|((own, _), (other, _))| (own.var.id, Expr::Var(other.var.clone()))).collect();
    let mut iters = HashMap::new();
    for (iv, value) in r.block.iter_vars.iter().zip(&r.iter_values) {
        iters.insert(iv.var.id, visit::substitute(value, &values));
    }
    at.iter().map(|e| Linear::of_expr(&visit::substitute(e, &iters), ranges)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use satune_ir::tvmscript;

    fn changed(second: &str, tma: i64) -> String {
        let text = format!(
            "
@T.prim_func(s_tir=True)
def main(A: T.Buffer((128, 256), \"float32\"), C: T.Buffer((128, 256), \"float32\")):
    S = T.sblock_alloc_buffer((128, 256), scope=\"shared\")
    for b in T.thread_binding(2, thread=\"blockIdx.x\"):
        for x, y in T.grid(64, 256):
            with T.sblock(\"S\"):
                v0 = T.axis.spatial(128, b * 64 + x)
                v1 = T.axis.spatial(256, y)
                S[v0, v1] = A[v0, v1]
        for x, y in T.grid(64, 256):
            with T.sblock(\"C\"):
                v0 = T.axis.spatial(128, b * 64 + x)
                v1 = T.axis.spatial(256, y)
                T.sblock_attr({{\"satune.tma\": {tma}}})
                C[v0, v1] = S[{second}]
"
        );
        let program = tvmscript::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let part = program.body.block.body.as_ref();
        let (own, after) = by_box(Cow::Borrowed(&program), Cow::Borrowed(part));
        let mut whole = own.into_owned();
        *whole.body.block.body = after.into_owned();
        tvmscript::print(&whole)
    }

    #[test]
    fn boxes_are_filled_and_stored_one_by_one() {
        let text = changed("v0, v1", 2);
        for (name, boxes) in [("x", 1), ("y", 8)] {
            assert!(text.contains(&format!("for {name}_box in T.serial({boxes}, annotations")), "{text}");
        }
        assert_eq!(text.matches("in T.grid(64, 32):").count(), 2, "{text}");
        // All at once, and what is read of another box.
        for other in [changed("v0, v1", 1), changed("v0, 255 - v1", 2)] {
            assert_eq!(other.matches("in T.grid(64, 256):").count(), 2, "{other}");
        }
    }
}
