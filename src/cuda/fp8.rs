//! Helper functions for floats of 8 bits: one instruction where the architecture has it (sm_89), else bit by bit with the
//! same results: to nearest, ties to even, the largest number beyond it.

/// The format's name in PTX and in the names of helpers.
pub(super) fn name(e4m3: bool) -> &'static str {
    if e4m3 {
        "e4m3"
    } else {
        "e5m2"
    }
}

/// Both formats are the upper bits of an f16, e4m3 with another exponent of 1: as an f32 with their exponents they are 2^120 too
/// small. Without branches, so that what several products use is converted once.
pub(crate) fn to_float(e4m3: bool) -> String {
    if !e4m3 {
        return "float e5m2_to_float(unsigned char b)
{
    const unsigned short half = (unsigned short)(b << 8);
    float f;
    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(f) : \"h\"(half));
    return f;
}"
        .into();
    }
    "float e4m3_to_float(unsigned char b)
{
#if __CUDA_ARCH__ >= 890
    unsigned int pair;
    float f;
    asm(\"cvt.rn.f16x2.e4m3x2 %0, %1;\" : \"=r\"(pair) : \"h\"((unsigned short)b));
    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(f) : \"h\"((unsigned short)pair));
    return f;
#else
    const unsigned int size = b & 0x7fu;
    const float f = __uint_as_float((b & 0x80u) << 24 | size << 20) * 1.329227995784916e36f;
    return size == 0x7fu ? __uint_as_float(0x7fffffffu) : f;
#endif
}"
    .into()
}

pub(crate) fn from_float(e4m3: bool) -> String {
    // Largest number and its bits, smallest normal number, units of those below it, bits of an f32 that are cut off, and the
    // difference of the exponents of 1.
    let (largest, bits, normal, units, cut, bias) = match e4m3 {
        true => ("448.0f", "0x7e", "0.015625f", "512.0f", 20, 120 << 3),
        false => ("57344.0f", "0x7b", "6.103515625e-05f", "65536.0f", 21, 112 << 2),
    };
    let (name, below) = (name(e4m3), (1_u32 << (cut - 1)) - 1);
    format!(
        "unsigned char float_to_{name}(float f)
{{
#if __CUDA_ARCH__ >= 890
    unsigned short pair;
    asm(\"cvt.rn.satfinite.{name}x2.f32 %0, %1, %2;\" : \"=h\"(pair) : \"f\"(0.0f), \"f\"(f));
    return (unsigned char)pair;
#else
    if (f != f) return 0x7f;
    const unsigned int u = __float_as_uint(f), sign = u >> 24 & 0x80u;
    const float size = fabsf(f);
    if (size >= {largest}) return sign | {bits};
    if (size < {normal}) return sign | (unsigned int)rintf(size * {units});
    return sign | ((((u & 0x7fffffffu) + {below:#x}u + (u >> {cut} & 1u)) >> {cut}) - {bias}u);
#endif
}}"
    )
}

pub(super) fn from_double(e4m3: bool) -> String {
    let name = name(e4m3);
    format!(
        "unsigned char double_to_{name}(double d)
{{
    // Rounding to odd on the way to float leaves one rounding in all.
    const float f = __double2float_rz(d);
    return float_to_{name}(f == d || f != f ? f : __uint_as_float(__float_as_uint(f) | 1u));
}}"
    )
}
