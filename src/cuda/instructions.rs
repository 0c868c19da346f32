//! Helper functions for matrix instructions of warps, as inline PTX.
use super::wmma;
use crate::kernel::Mma;
use satune_ir::term::tensor::Wmma;
use satune_ir::term::Side;
use satune_ir::DType;

/// A matrix instruction of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WarpHelper {
    /// Matrices; whether transposed.
    LoadMatrix(u32, bool),
    StoreMatrix(u32, bool),
    Mma(Mma),
    PackHalf,
    PackBf16,
    WmmaZero(DType),
    /// Whether lines run across k.
    WmmaLoad(Wmma, Side, bool),
    Wmma(Wmma, [bool; 2]),
    /// Whether to shared memory.
    WmmaStore(Wmma, bool),
}

impl From<Mma> for WarpHelper {
    fn from(op: Mma) -> WarpHelper {
        // Fragments of wmma are other arrays; what is loaded along k is usual.
        op.wmma().map_or(WarpHelper::Mma(op), |op| WarpHelper::Wmma(op, [false; 2]))
    }
}

impl WarpHelper {
    pub fn name(self) -> String {
        let transposed = |t: bool| if t { "_transposed" } else { "" };
        match self {
            WarpHelper::LoadMatrix(n, t) => format!("load_matrix_x{n}{}", transposed(t)),
            WarpHelper::StoreMatrix(n, t) => format!("store_matrix_x{n}{}", transposed(t)),
            WarpHelper::Mma(op) => op.name(),
            WarpHelper::PackHalf => "pack_half".into(),
            WarpHelper::PackBf16 => "pack_bf16".into(),
            WarpHelper::WmmaZero(dtype) => wmma::zero_name(dtype),
            WarpHelper::WmmaLoad(op, side, across) => wmma::load_name(op, side, across),
            WarpHelper::Wmma(op, across) => wmma::multiply_name(op, across),
            WarpHelper::WmmaStore(op, shared) => wmma::store_name(op, shared),
        }
    }

    /// Return type, name, parameters and body.
    pub fn text(self) -> String {
        let name = self.name();
        match self {
            WarpHelper::LoadMatrix(n, t) => {
                let (list, to) = (operands(0, n), (0..n).map(|i| format!("\"=r\"(to[{i}])")).collect::<Vec<_>>());
                let trans = if t { ".trans" } else { "" };
                format!(
                    "void {name}(unsigned int* to, const void* row)
{{
    asm volatile(\"ldmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 {{{list}}}, [%{n}];\"
                 : {}
                 : \"r\"((unsigned int)__cvta_generic_to_shared(row)) : \"memory\");
}}",
                    to.join(", ")
                )
            }
            WarpHelper::StoreMatrix(n, t) => {
                let (list, from) = (operands(1, n), (0..n).map(|i| format!("\"r\"(from[{i}])")).collect::<Vec<_>>());
                let trans = if t { ".trans" } else { "" };
                format!(
                    "void {name}(void* row, const unsigned int* from)
{{
    asm volatile(\"stmatrix.sync.aligned.m8n8.x{n}{trans}.shared.b16 [%0], {{{list}}};\"
                 :: \"r\"((unsigned int)__cvta_generic_to_shared(row)), {} : \"memory\");
}}",
                    from.join(", ")
                )
            }
            WarpHelper::Mma(op) => mma(&name, op),
            WarpHelper::PackHalf => pack(&name, "f16x2", "float_to_half"),
            WarpHelper::PackBf16 => pack(&name, "bf16x2", "float_to_bf16"),
            WarpHelper::WmmaZero(dtype) => wmma::zero(&name, dtype),
            WarpHelper::WmmaLoad(op, side, across) => wmma::load(&name, op, side, across),
            WarpHelper::Wmma(op, across) => wmma::multiply(&name, op, across),
            WarpHelper::WmmaStore(op, shared) => wmma::store(&name, op, shared),
        }
    }
}

/// `%first, ...`.
pub(crate) fn operands(first: u32, count: u32) -> String {
    (first..first + count).map(|i| format!("%{i}")).collect::<Vec<_>>().join(", ")
}

/// Of a register of sums C's type and its letter in inline PTX, two f16 being a word; and how PTX calls the type of the sums.
pub(crate) fn sums(dtype: DType) -> (&'static str, char, &'static str) {
    match dtype {
        DType::I32 => ("int", 'r', "s32"),
        DType::F16 => ("unsigned int", 'r', "f16"),
        _ => ("float", 'f', "f32"),
    }
}

fn mma(name: &str, op: Mma) -> String {
    let (sum, letter, _) = sums(op.accumulator());
    let [a, b] = op.fragment_words().map(|words| words as u32);
    let d = (0..op.sum_words()).map(|i| format!("\"+{letter}\"(d[{i}])")).collect::<Vec<_>>().join(", ");
    let words = (0..a).map(|i| ("a", i)).chain((0..b).map(|i| ("b", i)));
    let words = words.map(|(of, i)| format!("\"r\"({of}[{i}])")).collect::<Vec<_>>().join(", ");
    format!(
        "void {name}({sum}* d, const unsigned int* a, const unsigned int* b)
{{
    asm volatile(\"{}\"
                 : {d}
                 : {words});
}}",
        mma_text(op)
    )
}

/// The text of an instruction of `mma.sync` on operands `%0` and on: its sums, words of A, words of B. Where it is several of PTX, each
/// has some of the rows: neighbouring sums, and of A's words every second where there are two.
pub(crate) fn mma_text(op: Mma) -> String {
    let Ok(sync) = op.sync() else { return String::new() };
    let ([a, b], all, parts) = (op.fragment_words().map(|words| words as u32), op.sum_words() as u32, sync.parts());
    let one = |part: u32| {
        let sums = operands(all / parts * part, all / parts);
        let rows =
            (all + part..all + a).step_by(parts as usize).map(|word| operands(word, 1)).collect::<Vec<_>>().join(", ");
        let columns = operands(all + a, b);
        format!("mma.sync.aligned.{} {{{sums}}}, {{{rows}}}, {{{columns}}}, {{{sums}}};", sync.form())
    };
    (0..parts).map(one).collect::<Vec<_>>().join(" ")
}

/// `one`: the conversion of one number, where there is none of two.
fn pack(name: &str, form: &str, one: &str) -> String {
    format!(
        "unsigned int {name}(float low, float high)
{{
#if __CUDA_ARCH__ >= 800
    unsigned int pair;
    asm(\"cvt.rn.{form}.f32 %0, %1, %2;\" : \"=r\"(pair) : \"f\"(high), \"f\"(low));
    return pair;
#else
    return (unsigned int){one}(high) << 16 | {one}(low);
#endif
}}"
    )
}
