//! Helper functions for `wmma`, as inline PTX.
use super::instructions::{operands, sums};
use satune_ir::term::tensor::Wmma;
use satune_ir::term::Side;
use satune_ir::DType;

/// `m16n16k16`.
fn shape(op: Wmma) -> String {
    let [m, n, k] = op.extents();
    format!("m{m}n{n}k{k}")
}

fn operand(op: Wmma) -> &'static str {
    match op.operand {
        DType::I8 => "s8",
        DType::BF16 => "bf16",
        _ => "f16",
    }
}

fn letter(side: Side) -> char {
    match side {
        Side::A => 'a',
        Side::B => 'b',
    }
}

/// How PTX calls an order of storage: A's rows run along k, B's columns.
fn order(side: Side, across: bool) -> &'static str {
    match (side, across) {
        (Side::A, false) | (Side::B, true) => "row",
        _ => "col",
    }
}

/// 32-bit registers of an operand's fragment.
fn words(op: Wmma, side: Side) -> u32 {
    op.elements(side) * op.operand.bytes() / 4
}

/// 32-bit registers of sums.
fn sum_words(op: Wmma) -> u32 {
    op.sums() * op.accumulator().bytes() / 4
}

/// What names of functions say of sums that are not the usual.
fn halves(op: Wmma) -> &'static str {
    if op.f16_sums {
        "_f16"
    } else {
        ""
    }
}

fn registers(letter: &str, name: &str, count: u32) -> String {
    (0..count).map(|i| format!("\"{letter}\"({name}[{i}])")).collect::<Vec<_>>().join(", ")
}

pub(super) fn zero_name(dtype: DType) -> String {
    format!("wmma_zero_{}", sums(dtype).2)
}

pub(super) fn load_name(op: Wmma, side: Side, across: bool) -> String {
    format!("wmma_load_{}_{}_{}_{}", letter(side), order(side, across), shape(op), operand(op))
}

pub(super) fn multiply_name(op: Wmma, [a, b]: [bool; 2]) -> String {
    format!("wmma_{}_{}_{}_{}{}", shape(op), operand(op), order(Side::A, a), order(Side::B, b), halves(op))
}

pub(super) fn store_name(op: Wmma, shared: bool) -> String {
    let to = if shared { "shared" } else { "global" };
    format!("wmma_store_{}_{}_{to}{}", shape(op), operand(op), halves(op))
}

pub(super) fn zero(name: &str, dtype: DType) -> String {
    format!(
        "void {name}({}* d)
{{
#pragma unroll
    for (int i = 0; i < {}; ++i) d[i] = 0;
}}",
        sums(dtype).0,
        8 * dtype.bytes() / 4
    )
}

pub(super) fn load(name: &str, op: Wmma, side: Side, across: bool) -> String {
    let (count, order) = (words(op, side), order(side, across));
    let (letter, shape, operand) = (letter(side), shape(op), operand(op));
    let list = operands(0, count);
    format!(
        "void {name}(unsigned int* to, const void* from, int stride)
{{
    asm volatile(\"wmma.load.{letter}.sync.aligned.{order}.{shape}.shared.{operand} {{{list}}}, [%{count}], %{};\"
                 : {}
                 : \"r\"((unsigned int)__cvta_generic_to_shared(from)), \"r\"(stride) : \"memory\");
}}",
        count + 1,
        registers("=r", "to", count)
    )
}

pub(super) fn multiply(name: &str, op: Wmma, [a_across, b_across]: [bool; 2]) -> String {
    let (c_type, letter, sum) = sums(op.accumulator());
    let (a, b) = (words(op, Side::A), words(op, Side::B));
    // The operands' type is not spelt for f16.
    let types = match op.operand {
        DType::F16 => format!("{sum}.{sum}"),
        _ => format!("{sum}.{0}.{0}.{sum}", operand(op)),
    };
    let (rows, columns) = (order(Side::A, a_across), order(Side::B, b_across));
    let count = sum_words(op);
    let d = operands(0, count);
    format!(
        "void {name}({c_type}* d, const unsigned int* a, const unsigned int* b)
{{
    asm(\"wmma.mma.sync.aligned.{rows}.{columns}.{}.{types} {{{d}}}, \"
        \"{{{}}}, {{{}}}, {{{d}}};\"
        : {}
        : {},
          {});
}}",
        shape(op),
        operands(count, a),
        operands(count + a, b),
        registers(&format!("+{letter}"), "d", count),
        registers("r", "a", a),
        registers("r", "b", b)
    )
}

pub(super) fn store(name: &str, op: Wmma, shared: bool) -> String {
    let (c_type, letter, sum) = sums(op.accumulator());
    let (space, pointer) = match shared {
        true => ("shared", "\"r\"((unsigned int)__cvta_generic_to_shared(to))"),
        false => ("global", "\"l\"(__cvta_generic_to_global(to))"),
    };
    format!(
        "void {name}(void* to, const {c_type}* from, int stride)
{{
    asm volatile(\"wmma.store.d.sync.aligned.row.{}.{space}.{sum} [%0], {{{}}}, %1;\"
                 :: {pointer}, \"r\"(stride),
                    {} : \"memory\");
}}",
        shape(op),
        operands(2, sum_words(op)),
        registers(&letter.to_string(), "from", sum_words(op))
    )
}
