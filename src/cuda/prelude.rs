//! Helper functions of the CUDA text: arithmetic of half types and asynchronous copies, as inline PTX. Numbers of half
//! types are held as their 16 bits, because their own types need a header.

use super::fp8;
use super::hopper::GroupHelper;
use super::instructions::WarpHelper;

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
