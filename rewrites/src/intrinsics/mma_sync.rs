//! `mma.sync` m16n8kK, one instruction each: 16 x K times K x 8, on registers of a warp, whose places are the
//! instruction's ([`super::fragment`]). TVM has pairs of them only, and other names.
use super::fragment;
use super::registry::Registry;
use super::text::{cast, function, in_order, short, swapped, zero};
use satune_ir::term::tensor::{Fragment, Mma, Sync};

/// The instruction's name in the registry.
pub fn name(op: Mma) -> String {
    let [operand, sums] = op.sync().map_or([""; 2], |sync| sync.ptx);
    format!("mma_m16n8k{}_{operand}{operand}{sums}", op.k())
}

/// The instruction that an intrinsic of the name is, and whether the description has B's factors first.
pub fn named(of: &str) -> Option<(Mma, bool)> {
    let all = Mma::SYNC.into_iter().flat_map(|op| [(op, false), (op, true)]);
    all.into_iter().find(|(op, first)| if *first { swapped(&name(*op)) == of } else { name(*op) == of })
}

/// The name of what clears a tile of sums.
pub fn fill_name(op: Mma) -> String {
    format!("mma_fill_m16n8_{}", short(op.accumulator().name()))
}

pub(super) fn register(registry: &mut Registry) {
    // A block is known as the first that has its instructions: the swapped ones come last.
    for swapped in [false, true] {
        for op in Mma::SYNC {
            multiply(registry, op, swapped);
        }
    }
    // The others hold sums of the same type.
    for op in [Mma::F16, Mma::F16Sums, Mma::S8] {
        fill(registry, op);
    }
}

/// A parameter: so many registers of each lane.
pub(super) fn registers(name: &str, count: i64, dtype: &str) -> String {
    format!("{name}: T.Buffer((32, {count}), \"{dtype}\", scope=\"warp\", offset_factor={count})")
}

fn multiply(registry: &mut Registry, op: Mma, is_swapped: bool) {
    let Ok(Sync { tvm: [i, o], .. }) = op.sync() else { return };
    let k = op.k();
    let (input, output) = (op.operand().name(), op.accumulator().name());
    let [a_count, b_count] = op.fragment_words().map(|words| words * i64::from(op.word()));
    let params = [registers("A", a_count, input), registers("B", b_count, input), registers("C", 4, output)];
    let operands = [format!("A[0:32, 0:{a_count}]"), format!("B[0:32, 0:{b_count}]")];
    let reads = format!("C[0:32, 0:4], {}", in_order(is_swapped, operands, ", "));
    let held = |matrix, names| fragment::held(op, matrix, names, true);
    let ([al, ar], [bl, br]) = (held(Fragment::A, ["vi", "vk"]), held(Fragment::B, ["vk", "vj"]));
    let [cl, cr] = held(Fragment::D, ["vi", "vj"]);
    let factors = [format!("A[{al}, {ar}]"), format!("B[{bl}, {br}]")].map(|x| cast(input, output, &x));
    let description = format!(
        "for i, j, k in T.grid(16, 8, {k}):\n    with T.sblock(\"C\"):\n        vi, vj, vk = T.axis.remap(\"SSR\", \
         [i, j, k])\n        C[{cl}, {cr}] = C[{cl}, {cr}] + {}\n",
        in_order(is_swapped, factors, " * ")
    );
    let implementation = format!(
        "for tx in T.thread_binding(32, thread=\"threadIdx.x\"):\n    T.ptx_legacy.mma(\"m16n8k{k}\", \"row\", \"col\", \
         \"{i}\", \"{i}\", \"{o}\", A.data, A.elem_offset + tx * {a_count}, B.data, B.elem_offset + tx * {b_count}, \
         C.data, C.elem_offset + tx * 4, T.bool(False))\n"
    );
    registry.own(
        if is_swapped { swapped(&name(op)) } else { name(op) },
        function(&params, &reads, "C[0:32, 0:4]", &description),
        function(&params, &reads, "C[0:32, 0:4]", &implementation),
    );
}

/// Registers are cleared one by one.
fn fill(registry: &mut Registry, op: Mma) {
    let output = op.accumulator().name();
    let params = [registers("C", 4, output)];
    let [lane, register] = fragment::held(op, Fragment::D, ["vi", "vj"], true);
    let description = format!(
        "for i, j in T.grid(16, 8):\n    with T.sblock(\"C_init\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        \
         C[{lane}, {register}] = {}\n",
        zero(output)
    );
    let implementation = format!(
        "for tx in T.thread_binding(32, thread=\"threadIdx.x\"):\n    for r in range(4):\n        C[tx, r] = {}\n",
        zero(output)
    );
    let writes = "C[0:32, 0:4]";
    registry.own(
        fill_name(op),
        function(&params, "", writes, &description),
        function(&params, "", writes, &implementation),
    );
}
