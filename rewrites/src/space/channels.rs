//! Channels side by side, for sums over windows.
//!
//! before                                                        after
//!   C[n, k, x] = C[n, k, x] + X[n, c, x + r] * F[k, c, r]         X_channels[n, x, c] = X[n, c, x]
//!                                                                 F_channels[k, r, c] = F[k, c, r]
//!                                                                 C[n, k, x] = C[n, k, x] + X_channels[n, x + r, c] * F_channels[k, r, c]
//!
//! What lies side by side along the sum is copied, and multiplied, together. Neighbours in a window are also those of the next result;
//! neighbouring channels are the sum's alone. It is `transform_layout` of what is read, and `reorder`: the channels are summed up
//! innermost. Each copy is a block of its own, which can be inlined: then elements are gathered as they were.
use super::encode::sum_of_products;
use super::nests::{allocated, block_of, nest_over, remade, replaced, uses};
use satune_ir::affine::constant;
use satune_ir::{visit, Block, BufferId, Expr, IterKind, IterVar, Program, Stmt, Var, VarId};

/// Bytes of a copy, and of what an instruction takes along a sum.
const SIDE_BY_SIDE: i64 = 16;
/// Least products: what tensor cores multiply while two kernels are launched, which the copies are (estimate: 6 us, 180 TFLOP/s).
const MANY: i64 = 1 << 29;

/// The same program, its sums over windows with channels side by side, where that is worth it.
pub(super) fn side_by_side(program: &Program) -> Program {
    of_so_many(program, MANY)
}

/// The same of sums of so many products and more.
fn of_so_many(program: &Program, least: i64) -> Program {
    remade(program, |out, part| {
        let block = block_of(out, part).ok()?.clone();
        let whole = |iv: &IterVar| constant(&iv.extent).is_some() && constant(&iv.min) == Some(0);
        if !block.iter_vars.iter().all(|iv| whole(iv) && iv.kind.any_order()) || products(&block) < least {
            return None;
        }
        let [sums, a, b] = sum_of_products(&block).ok()?;
        if a.0 == b.0 || [a, b].iter().any(|factor| factor.0 == sums.0) {
            return None;
        }
        let channel = channel(out, &block, [a, b])?;
        let (mut nests, mut body) = (Vec::new(), (*block.body).clone());
        for (buffer, at) in [a, b].into_iter().filter(|(_, at)| !beside(&block, at, channel.id)) {
            let (made, read) = copied(out, buffer, at, channel)?;
            nests.push(made);
            let element = Expr::Load(buffer, at.to_vec());
            body = visit::map_stmt_exprs(&body, &mut |e| replaced(e, &element, &read));
        }
        let (last, mut iters): (Vec<IterVar>, Vec<IterVar>) =
            block.iter_vars.iter().cloned().partition(|iv| iv.var.id == channel.id);
        iters.extend(last);
        nests.push(nest_over(out, block.name.clone(), &iters, block.init.as_deref().cloned(), body));
        Some(nests)
    })
}

/// The channels of a sum over windows, of which several are copied together: the most that an iterator has which is an index of both
/// factors. None where those lie side by side already.
fn channel<'b>(program: &Program, block: &'b Block, factors: [(BufferId, &[Expr]); 2]) -> Option<&'b Var> {
    let [(a, at_a), (b, at_b)] = factors;
    let window = |e: &Expr| {
        let of = |reduce| block.iter_vars.iter().any(|iv| is(iv, reduce) && uses(e, iv.var.id));
        of(true) && of(false)
    };
    let plain = |id: BufferId| {
        let of = program.buffer(id);
        of.extents().is_some() && of.strides.is_empty() && of.elem_offset.is_none()
    };
    if !plain(a) || !plain(b) || !at_a.iter().chain(at_b).any(window) {
        return None;
    }
    let bytes = [a, b].map(|buffer| i64::from(program.buffer(buffer).dtype.bytes()));
    let bare = |at: &[Expr], iv: &IterVar| {
        let mut of = at.iter().filter(|e| uses(e, iv.var.id));
        matches!((of.next(), of.next()), (Some(Expr::Var(_)), None))
    };
    let extent = |iv: &&IterVar| constant(&iv.extent).unwrap_or(1);
    let channels =
        block.iter_vars.iter().filter(|iv| is(iv, true) && bare(at_a, iv) && bare(at_b, iv)).max_by_key(extent)?;
    let narrow = bytes.iter().all(|bytes| *bytes <= 2 && extent(&channels) * bytes >= SIDE_BY_SIDE);
    let left = [at_a, at_b].iter().any(|at| !beside(block, at, channels.var.id));
    (narrow && left).then_some(&channels.var)
}

/// How many products a block adds up.
fn products(block: &Block) -> i64 {
    let extents = block.iter_vars.iter().filter_map(|iv| constant(&iv.extent));
    extents.fold(1, i64::saturating_mul)
}

/// Whether an iterator of several values is reduced over, or spatial.
fn is(iv: &IterVar, reduce: bool) -> bool {
    (iv.kind == IterKind::Reduce) == reduce && constant(&iv.extent) > Some(1)
}

/// Whether neighbours in memory are of neighbouring channels, or of no step of the sum.
fn beside(block: &Block, at: &[Expr], channel: VarId) -> bool {
    let steps = |e: &Expr| block.iter_vars.iter().any(|iv| is(iv, true) && uses(e, iv.var.id));
    at.last().is_none_or(|last| uses(last, channel) || !steps(last))
}

/// The copy of a buffer whose last dimension is that of the channels, and the element of it.
fn copied(out: &mut Program, buffer: BufferId, at: &[Expr], channel: &Var) -> Option<(Stmt, Expr)> {
    let dim = at.iter().position(|e| uses(e, channel.id))?;
    let order: Vec<usize> = (0..at.len()).filter(|d| *d != dim).chain([dim]).collect();
    let (name, dtype, shape) = {
        let of = out.buffer(buffer);
        (format!("{}_channels", of.name), of.dtype, of.shape.clone())
    };
    let vars: Vec<Var> = (0..at.len()).map(|d| out.fresh_var(format!("v{d}"), channel.dtype)).collect();
    let zero = satune_ir::affine::int(0, channel.dtype);
    let iters = order.iter().map(|d| IterVar {
        var: vars[*d].clone(),
        kind: IterKind::Spatial,
        min: zero.clone(),
        extent: shape[*d].clone(),
    });
    let iters: Vec<IterVar> = iters.collect();
    let of = |order: &[usize]| order.iter().map(|d| Expr::Var(vars[*d].clone())).collect::<Vec<_>>();
    let value = Expr::Load(buffer, of(&(0..at.len()).collect::<Vec<_>>()));
    let copy = allocated(out, &name, dtype, order.iter().map(|d| shape[*d].clone()).collect());
    let store = Stmt::Store { buffer: copy, indices: of(&order), value };
    let nest = nest_over(out, out.buffer(copy).name.clone(), &iters, None, store);
    Some((nest, Expr::Load(copy, order.iter().map(|d| at[*d].clone()).collect())))
}

#[cfg(test)]
mod tests {
    use super::super::nests::parts;
    use super::{of_so_many, side_by_side, MANY};
    use satune_ir::{interp, tvmscript};

    /// A sum over windows: shapes of both factors, what is read of them, the extents of n, k, x, c and r.
    fn script(dtype: &str, [x, at_x]: [&str; 2], [f, at_f]: [&str; 2], [n, k, l, c, r]: [i64; 5]) -> String {
        let sum = if dtype == "int8" { "int32" } else { "float32" };
        format!(
            "@T.prim_func(s_tir=True)\ndef main(X: T.Buffer(({x}), \"{dtype}\"), F: T.Buffer(({f}), \"{dtype}\"), C: \
             T.Buffer(({n}, {k}, {l}), \"{sum}\")):\n    for n, k, x, c, r in T.grid({n}, {k}, {l}, {c}, {r}):\n        with \
             T.sblock(\"C\"):\n            vn, vk, vx, vc, vr = T.axis.remap(\"SSSRR\", [n, k, x, c, r])\n            with \
             T.init():\n                C[vn, vk, vx] = T.{sum}(0)\n            C[vn, vk, vx] = C[vn, vk, vx] + T.Cast(\"{sum}\", \
             X[{at_x}]) * T.Cast(\"{sum}\", F[{at_f}])\n"
        )
    }

    const FILTER: [&str; 2] = ["4, 16, 3", "vk, vc, vr"];

    #[test]
    fn channels_of_windows_are_copied_side_by_side() {
        let few = [2, 4, 5, 16, 3];
        for (image, filter, nests) in [
            (["2, 16, 7", "vn, vc, vx + vr"], FILTER, 3),
            (["2, 16, 12", "vn, vc, vx * 2 + vr"], FILTER, 3),
            (["2, 16, 9", "vn, vc, vx + vr * 2"], FILTER, 3),
            (["16, 2, 7", "vc, vn, vx + vr"], ["3, 4, 16", "vr, vk, vc"], 2),
            // Neighbours are of neighbouring results.
            (["2, 16, 7", "vn, vc, vx + vr"], ["3, 16, 4", "vr, vc, vk"], 2),
            (["2, 7, 16", "vn, vx + vr, vc"], FILTER, 2),
            (["2, 7, 16", "vn, vx + vr, vc"], ["4, 3, 16", "vk, vr, vc"], 1),
            // There is no window.
            (["2, 16, 15", "vn, vc, vx * 3 + vr"], FILTER, 3),
            (["2, 16, 3, 5", "vn, vc, vr, vx"], FILTER, 1),
            (["2, 22, 5", "vn, vc + vr * 3, vx"], FILTER, 1),
        ] {
            let source = tvmscript::parse(&script("int8", image, filter, few)).unwrap();
            let made = of_so_many(&source, 1);
            let text = tvmscript::print(&made);
            assert_eq!(parts(&made).len(), nests, "{text}");
            let again = tvmscript::parse(&text).unwrap();
            for seed in 0..3 {
                interp::equal_on(&source, &again, seed).unwrap_or_else(|e| panic!("{e}\n{text}"));
            }
            assert_eq!(of_so_many(&again, 1), again, "{text}");
            assert_eq!(side_by_side(&source), source);
        }
    }

    #[test]
    fn few_or_wide_channels_stay_where_they_are() {
        let made = |dtype: &str, c: i64, least: i64| {
            let image = format!("2, {c}, 7");
            let filter = format!("4, {c}, 3");
            let of = [image.as_str(), "vn, vc, vx + vr"];
            let source = tvmscript::parse(&script(dtype, of, [&filter, FILTER[1]], [2, 4, 5, c, 3])).unwrap();
            parts(&of_so_many(&source, least)).len()
        };
        for (dtype, c, nests) in [
            ("int8", 16, 3),
            ("int8", 15, 1),
            ("float16", 8, 3),
            ("float16", 7, 1),
            ("bfloat16", 64, 3),
            ("float32", 64, 1),
        ] {
            assert_eq!(made(dtype, c, 1), nests, "{dtype} {c}");
            assert_eq!(made(dtype, c, MANY), 1, "{dtype} {c}");
        }
    }

    #[test]
    fn large_convolutions_are_explored_with_channels_side_by_side() {
        let text = script(
            "float16",
            ["32, 256, 1026", "vn, vc, vx + vr"],
            ["256, 256, 3", FILTER[1]],
            [32, 256, 1024, 256, 3],
        );
        let made = super::super::explored(&tvmscript::parse(&text).unwrap());
        let names: Vec<&str> = made.buffers.iter().map(|b| b.name.as_str()).collect();
        assert!(names.contains(&"X_channels") && names.contains(&"F_channels"), "{names:?}");
    }
}
