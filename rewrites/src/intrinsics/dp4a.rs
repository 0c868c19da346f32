//! `__dp4a`: the dot product of four 8-bit integers, added to one of 32 bits.
use super::registry::Registry;
use super::text::function;

pub(super) fn register(registry: &mut Registry) {
    let all = [
        ("dp4a_s8s8s32", "int8", "int8", "int32"),
        ("dp4a_u8s8s32", "uint8", "int8", "int32"),
        ("dp4a_s8u8s32", "int8", "uint8", "int32"),
        ("dp4a_u8u8u32", "uint8", "uint8", "uint32"),
    ];
    for (name, a, b, c) in all {
        let param = |name: &str, n: i64, dtype: &str, scope: &str| {
            format!("{name}: T.Buffer(({n},), \"{dtype}\", scope=\"{scope}\", align=4, offset_factor=1)")
        };
        let params = [param("A", 4, a, "shared"), param("B", 4, b, "shared"), param("C", 1, c, "local")];
        let (reads, writes) = ("C[0], A[0:4], B[0:4]", "C[0]");
        let description = format!(
            "for i in range(4):\n    with T.sblock(\"update\"):\n        vi = T.axis.remap(\"R\", [i])\n        \
             C[0] = C[0] + T.Cast(\"{c}\", A[vi]) * T.Cast(\"{c}\", B[vi])\n"
        );
        let zero = super::text::zero(c);
        let implementation = format!(
            "C[0] = C[0] + T.call_pure_extern(\"{c}\", \"__dp4a\", A[T.Ramp(0, 1, 4)], B[T.Ramp(0, 1, 4)], {zero})\n"
        );
        registry.add(
            name,
            function(&params, reads, writes, &description),
            function(&params, reads, writes, &implementation),
        );
    }
}
