//! Helper functions of the CUDA text: conversions of half types and asynchronous copies, as inline PTX.

/// A helper function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Helper {
    HalfToFloat,
    FloatToHalf,
    Bf16ToFloat,
    FloatToBf16,
    /// Bytes; whether it may write zeros instead.
    CopyAsync(u32, bool),
}

/// Its text.
pub(super) fn text(helper: Helper) -> &'static str {
    match helper {
        Helper::HalfToFloat => {
            "__device__ __forceinline__ float half_to_float(unsigned short h)
{
    float f;
    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(f) : \"h\"(h));
    return f;
}

"
        }
        Helper::FloatToHalf => {
            "__device__ __forceinline__ unsigned short float_to_half(float f)
{
    unsigned short h;
    asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(h) : \"f\"(f));
    return h;
}

"
        }
        Helper::Bf16ToFloat => {
            "__device__ __forceinline__ float bf16_to_float(unsigned short h)
{
    return __uint_as_float((unsigned int)h << 16);
}

"
        }
        Helper::FloatToBf16 => {
            "__device__ __forceinline__ unsigned short float_to_bf16(float f)
{
    // Round to nearest, ties to even; infinities and NaNs pass.
    const unsigned int u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (unsigned short)((u >> 16) | 0x40u);
    return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

"
        }
        Helper::CopyAsync(4, false) => {
            "__device__ __forceinline__ void copy_async_4(void* to, const void* from)
{
    asm volatile(\"cp.async.ca.shared.global [%0], [%1], 4;\"
                 :: \"r\"((unsigned int)__cvta_generic_to_shared(to)), \"l\"(from) : \"memory\");
}

"
        }
        Helper::CopyAsync(8, false) => {
            "__device__ __forceinline__ void copy_async_8(void* to, const void* from)
{
    asm volatile(\"cp.async.ca.shared.global [%0], [%1], 8;\"
                 :: \"r\"((unsigned int)__cvta_generic_to_shared(to)), \"l\"(from) : \"memory\");
}

"
        }
        Helper::CopyAsync(_, false) => {
            "__device__ __forceinline__ void copy_async_16(void* to, const void* from)
{
    asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16;\"
                 :: \"r\"((unsigned int)__cvta_generic_to_shared(to)), \"l\"(from) : \"memory\");
}

"
        }
        Helper::CopyAsync(4, true) => {
            "__device__ __forceinline__ void copy_async_4_or_zero(void* to, const void* from, bool read)
{
    asm volatile(\"cp.async.ca.shared.global [%0], [%1], 4, %2;\"
                 :: \"r\"((unsigned int)__cvta_generic_to_shared(to)), \"l\"(from), \"r\"(read ? 4 : 0) : \"memory\");
}

"
        }
        Helper::CopyAsync(8, true) => {
            "__device__ __forceinline__ void copy_async_8_or_zero(void* to, const void* from, bool read)
{
    asm volatile(\"cp.async.ca.shared.global [%0], [%1], 8, %2;\"
                 :: \"r\"((unsigned int)__cvta_generic_to_shared(to)), \"l\"(from), \"r\"(read ? 8 : 0) : \"memory\");
}

"
        }
        Helper::CopyAsync(_, true) => {
            "__device__ __forceinline__ void copy_async_16_or_zero(void* to, const void* from, bool read)
{
    asm volatile(\"cp.async.cg.shared.global [%0], [%1], 16, %2;\"
                 :: \"r\"((unsigned int)__cvta_generic_to_shared(to)), \"l\"(from), \"r\"(read ? 16 : 0) : \"memory\");
}

"
        }
    }
}
