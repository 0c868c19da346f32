//! Helper functions of the CUDA text: arithmetic of half types and asynchronous copies, as inline PTX. Numbers of half
//! types are held as their 16 bits, because their own types need a header.

use super::c_type;
use super::fp8;
use super::hopper::GroupHelper;
use super::instructions::WarpHelper;
use satune_ir::semantics::{bits, is_unsigned};
use satune_ir::DType;

/// A helper function; printed in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Helper {
    HalfToFloat,
    FloatToHalf,
    DoubleToHalf,
    HalfAdd,
    HalfSub,
    HalfMul,
    HalfFma,
    Bf16ToFloat,
    FloatToBf16,
    DoubleToBf16,
    Bf16Fma,
    /// From f32, rounded as `cvt.rna` does.
    FloatToTf32,
    /// Whether from f64 (else f32), to an integer type: the nearest end of the range beyond it, 0 for NaN.
    FloatToInt(bool, DType),
    /// In `int`, `unsigned int`, `long long` or `unsigned long long`.
    Whole(Whole, DType),
    /// Of e4m3; else of e5m2. The same below.
    Fp8ToFloat(bool),
    FloatToFp8(bool),
    DoubleToFp8(bool),
    /// Bytes, whether zeros are written under a condition, bytes that L2 is asked to fetch.
    CopyAsync(u32, bool, u32),
    CopyAsyncCommit,
    CopyAsyncWait,
    Warp(WarpHelper),
    Group(GroupHelper),
}

/// Integer operations that C does not define for all operands (see [`satune_ir::semantics::integers`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whole {
    /// Rounded down, or towards zero.
    Division {
        floor: bool,
        remainder: bool,
    },
    Shift {
        left: bool,
    },
    Magnitude,
}

impl Whole {
    fn name(self, dtype: DType) -> String {
        let operation = match self {
            Whole::Division { remainder, .. } if is_unsigned(dtype) => ["div", "mod"][usize::from(remainder)],
            Whole::Division { floor: true, remainder } => ["floor_div", "floor_mod"][usize::from(remainder)],
            Whole::Division { floor: false, remainder } => ["trunc_div", "trunc_mod"][usize::from(remainder)],
            Whole::Shift { left } => ["shift_right", "shift_left"][usize::from(left)],
            Whole::Magnitude => "magnitude",
        };
        format!("{operation}_{}", dtype.name())
    }

    fn text(self, dtype: DType) -> String {
        let (t, width) = (c_type(dtype), bits(dtype));
        let u = c_type(if width == 64 { DType::U64 } else { DType::U32 });
        let name = self.name(dtype);
        let head = |b: &str| format!("{t} {name}({t} a{b})\n{{\n    ");
        let two = head(&format!(", {t} b"));
        let body = match self {
            Whole::Division { remainder, .. } if is_unsigned(dtype) => {
                format!("{two}return b == 0 ? 0 : a {} b;", ["/", "%"][usize::from(remainder)])
            }
            Whole::Division { floor, remainder: false } => {
                let rounded = if floor { "a / b - (a % b != 0 && (a < 0) != (b < 0))" } else { "a / b" };
                format!(
                    "{two}// The smallest number over -1 wraps to itself.
    if (b == -1) return ({t})(0 - ({u})a);
    return b == 0 ? 0 : {rounded};"
                )
            }
            Whole::Division { floor, remainder: true } => {
                let rest = if floor {
                    format!("const {t} r = a % b;\n    return r != 0 && (r < 0) != (b < 0) ? r + b : r;")
                } else {
                    "return a % b;".to_string()
                };
                format!("{two}if (b == 0 || b == -1) return 0;\n    {rest}")
            }
            Whole::Shift { left: true } if is_unsigned(dtype) => format!("{two}return b < {width} ? a << b : 0;"),
            Whole::Shift { left: false } if is_unsigned(dtype) => format!("{two}return b < {width} ? a >> b : 0;"),
            Whole::Shift { left: true } => format!("{two}return ({u})b < {width} ? ({t})(({u})a << b) : 0;"),
            Whole::Shift { left: false } => format!("{two}return a >> (({u})b < {width} ? b : {});", width - 1),
            Whole::Magnitude => format!("{}return a < 0 ? ({t})(0 - ({u})a) : a;", head("")),
        };
        format!("{body}\n}}")
    }
}

/// A float as an integer of a type.
fn float_to_int(double: bool, to: DType) -> String {
    let (from, t, name) = (["float", "double"][usize::from(double)], c_type(to), Helper::FloatToInt(double, to).name());
    let (lo, hi) = to.int_range().unwrap_or((0, 0));
    let convert = match to {
        DType::U64 => format!("__{from}2ull_rz(f)"),
        DType::I64 => format!("__{from}2ll_rz(f)"),
        DType::U32 => format!("__{from}2uint_rz(f)"),
        DType::I32 => format!("__{from}2int_rz(f)"),
        _ => format!("min(max(__{from}2int_rz(f), {lo}), {hi})"),
    };
    // The conversion takes the nearest end of the range; of NaN it makes 0 from float to 32 bits only.
    let nan = double || bits(to) == 64;
    let value = if nan { format!("f != f ? 0 : {convert}") } else { convert };
    let value = if bits(to) < 32 && nan {
        format!("({t})({value})")
    } else if bits(to) < 32 {
        format!("({t}){value}")
    } else {
        value
    };
    format!("{t} {name}({from} f)\n{{\n    return {value};\n}}")
}

impl Helper {
    /// The helpers that its text calls.
    pub fn needs(self) -> &'static [Helper] {
        match self {
            Helper::DoubleToBf16 => &[Helper::FloatToBf16],
            Helper::DoubleToFp8(true) => &[Helper::FloatToFp8(true)],
            Helper::DoubleToFp8(false) => &[Helper::FloatToFp8(false)],
            Helper::Bf16Fma => &[Helper::Bf16ToFloat, Helper::FloatToBf16],
            Helper::Warp(WarpHelper::PackHalf) => &[Helper::FloatToHalf],
            Helper::Warp(WarpHelper::PackBf16) => &[Helper::FloatToBf16],
            _ => &[],
        }
    }

    /// Its name in the text.
    pub fn name(self) -> String {
        match self {
            Helper::HalfToFloat => "half_to_float".into(),
            Helper::FloatToHalf => "float_to_half".into(),
            Helper::DoubleToHalf => "double_to_half".into(),
            Helper::HalfAdd => "half_add".into(),
            Helper::HalfSub => "half_sub".into(),
            Helper::HalfMul => "half_mul".into(),
            Helper::HalfFma => "half_fma".into(),
            Helper::Bf16ToFloat => "bf16_to_float".into(),
            Helper::FloatToBf16 => "float_to_bf16".into(),
            Helper::DoubleToBf16 => "double_to_bf16".into(),
            Helper::Bf16Fma => "bf16_fma".into(),
            Helper::FloatToTf32 => "float_to_tf32".into(),
            Helper::FloatToInt(double, to) => format!("{}_to_{}", ["float", "double"][usize::from(double)], to.name()),
            Helper::Whole(operation, dtype) => operation.name(dtype),
            Helper::Fp8ToFloat(e4m3) => format!("{}_to_float", fp8::name(e4m3)),
            Helper::FloatToFp8(e4m3) => format!("float_to_{}", fp8::name(e4m3)),
            Helper::DoubleToFp8(e4m3) => format!("double_to_{}", fp8::name(e4m3)),
            Helper::CopyAsync(bytes, or_zero, prefetch) => {
                let or_zero = if or_zero { "_or_zero" } else { "" };
                let prefetch = if prefetch > 0 { format!("_l2_{prefetch}") } else { String::new() };
                format!("copy_async_{bytes}{or_zero}{prefetch}")
            }
            Helper::CopyAsyncCommit => "copy_async_commit".into(),
            Helper::CopyAsyncWait => "copy_async_wait".into(),
            Helper::Warp(w) => w.name(),
            Helper::Group(g) => g.name(),
        }
    }

    /// Its definition.
    pub fn text(self) -> String {
        let body = match self {
            Helper::HalfToFloat => "float half_to_float(unsigned short h)
{
    float f;
    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(f) : \"h\"(h));
    return f;
}"
            .into(),
            Helper::FloatToHalf => "unsigned short float_to_half(float f)
{
    unsigned short h;
    asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(h) : \"f\"(f));
    return h;
}"
            .into(),
            Helper::DoubleToHalf => "unsigned short double_to_half(double d)
{
    unsigned short h;
    asm(\"cvt.rn.f16.f64 %0, %1;\" : \"=h\"(h) : \"d\"(d));
    return h;
}"
            .into(),
            Helper::HalfAdd => half_operation("add"),
            Helper::HalfSub => half_operation("sub"),
            Helper::HalfMul => half_operation("mul"),
            Helper::HalfFma => "unsigned short half_fma(unsigned short a, unsigned short b, unsigned short c)
{
    unsigned short d;
    asm(\"fma.rn.f16 %0, %1, %2, %3;\" : \"=h\"(d) : \"h\"(a), \"h\"(b), \"h\"(c));
    return d;
}"
            .into(),
            Helper::Bf16ToFloat => "float bf16_to_float(unsigned short h)
{
    return __uint_as_float((unsigned int)h << 16);
}"
            .into(),
            Helper::FloatToBf16 => "unsigned short float_to_bf16(float f)
{
#if __CUDA_ARCH__ >= 800
    unsigned short h;
    asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(h) : \"f\"(f));
    return h;
#else
    // Round to nearest, ties to even; infinities and NaNs pass.
    const unsigned int u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
}"
            .into(),
            Helper::DoubleToBf16 => "unsigned short double_to_bf16(double d)
{
    // Rounding to odd on the way to float leaves one rounding in all.
    const float f = __double2float_rz(d);
    return float_to_bf16(f == d || f != f ? f : __uint_as_float(__float_as_uint(f) | 1u));
}"
            .into(),
            Helper::Bf16Fma => "unsigned short bf16_fma(unsigned short a, unsigned short b, unsigned short c)
{
#if __CUDA_ARCH__ >= 800
    unsigned short d;
    asm(\"fma.rn.bf16 %0, %1, %2, %3;\" : \"=h\"(d) : \"h\"(a), \"h\"(b), \"h\"(c));
    return d;
#else
    return float_to_bf16(fmaf(bf16_to_float(a), bf16_to_float(b), bf16_to_float(c)));
#endif
}"
            .into(),
            Helper::FloatToTf32 => "float float_to_tf32(float f)
{
    // Half a unit is added to the magnitude; infinities and NaNs pass.
    const unsigned int u = __float_as_uint(f);
    return (u & 0x7f800000u) == 0x7f800000u ? f : __uint_as_float((u + 0x1000u) & 0xffffe000u);
}"
            .into(),
            Helper::FloatToInt(double, to) => float_to_int(double, to),
            Helper::Whole(operation, dtype) => operation.text(dtype),
            Helper::Fp8ToFloat(e4m3) => fp8::to_float(e4m3),
            Helper::FloatToFp8(e4m3) => fp8::from_float(e4m3),
            Helper::DoubleToFp8(e4m3) => fp8::from_double(e4m3),
            Helper::CopyAsync(bytes, or_zero, prefetch) => copy_async(bytes, or_zero, prefetch),
            Helper::Warp(w) => w.text(),
            Helper::Group(g) => return g.text(),
            Helper::CopyAsyncCommit => "void copy_async_commit()
{
    asm volatile(\"cp.async.commit_group;\" ::: \"memory\");
}"
            .into(),
            Helper::CopyAsyncWait => {
                return "// Waits until all but the latest groups of this thread are complete.
template <int latest>
__device__ __forceinline__ void copy_async_wait()
{
    asm volatile(\"cp.async.wait_group %0;\" :: \"n\"(latest) : \"memory\");
}
"
                .into()
            }
        };
        format!("__device__ __forceinline__ {body}\n")
    }
}

fn half_operation(operation: &str) -> String {
    format!(
        "unsigned short half_{operation}(unsigned short a, unsigned short b)
{{
    unsigned short c;
    asm(\"{operation}.rn.f16 %0, %1, %2;\" : \"=h\"(c) : \"h\"(a), \"h\"(b));
    return c;
}}"
    )
}

fn copy_async(bytes: u32, or_zero: bool, prefetch: u32) -> String {
    // Only copies of 16 bytes can pass by L1.
    let cache = if bytes == 16 { "cg" } else { "ca" };
    let level = if prefetch > 0 { format!(".L2::{prefetch}B") } else { String::new() };
    let name = Helper::CopyAsync(bytes, or_zero, prefetch).name();
    let (parameter, size, operand) =
        if or_zero { (", bool read", ", %2", format!(", \"r\"(read ? {bytes} : 0)")) } else { ("", "", String::new()) };
    format!(
        "void {name}(void* to, const void* from{parameter})
{{
    asm volatile(\"cp.async.{cache}.shared.global{level} [%0], [%1], {bytes}{size};\"
                 :: \"r\"((unsigned int)__cvta_generic_to_shared(to)), \"l\"(from){operand} : \"memory\");
}}"
    )
}
