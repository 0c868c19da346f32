//! Values of operations, from the rules of `docs/SEMANTICS.md` spelled out otherwise.
use super::*;

const INTEGERS: [DType; 8] =
    [DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64];

#[test]
fn halves_round_to_nearest_even() {
    assert_eq!(round(2049.0, DType::F16), 2048.0);
    assert_eq!(round(2051.0, DType::F16), 2052.0);
    assert_eq!(round(65520.0, DType::F16), f64::INFINITY);
    assert_eq!((round(500.0, DType::F8E4M3), round(-1e9, DType::F8E5M2)), (448.0, -57344.0));
    assert_eq!(round(257.0, DType::BF16), 256.0);
    assert_eq!(round(259.0, DType::BF16), 260.0);
    assert_eq!(round(0.1, DType::F32), f64::from(0.1f32));
    assert_eq!(round(0.1, DType::F64), 0.1);
}

#[test]
fn tf32_keeps_ten_bits_and_rounds_ties_away() {
    assert_eq!(round(1.0 + 2f64.powi(-10), DType::TF32), 1.0 + 2f64.powi(-10));
    assert_eq!(round(1.0 + 2f64.powi(-11), DType::TF32), 1.0 + 2f64.powi(-10));
    assert_eq!(round(-1.0 - 2f64.powi(-11), DType::TF32), -1.0 - 2f64.powi(-10));
    assert_eq!(round(1.0 + 2f64.powi(-12), DType::TF32), 1.0);
    assert_eq!(round(f64::INFINITY, DType::TF32), f64::INFINITY);
    assert!(round(f64::NAN, DType::TF32).is_nan());
}

#[test]
fn integers_wrap() {
    assert_eq!(wrap(128, DType::I8), -128);
    assert_eq!(wrap(-1, DType::U8), 255);
    assert_eq!(wrap(i64::from(i32::MAX) + 1, DType::I32), i64::from(i32::MIN));
    assert_eq!(wrap(7, DType::Bool), 1);
}

#[test]
fn casts_saturate_and_round_once() {
    assert_eq!(float_to_int(1e10, DType::I32), i64::from(i32::MAX));
    assert_eq!(float_to_int(-1.9, DType::I8), -1);
    assert_eq!(float_to_int(f64::NAN, DType::I64), 0);
    let large = (1i64 << 60) + (1 << 36) + 1;
    assert_eq!(int_to_float(large, DType::I64, DType::F32), f64::from(large as f32));
    assert_ne!(large as f64 as f32, large as f32);
    assert_eq!(int_to_float(-1, DType::U64, DType::F64), 18446744073709551616.0);
}

#[test]
fn every_operation_on_bytes_is_that_of_whole_numbers_modulo_256() {
    for dtype in [DType::I8, DType::U8] {
        let (lo, hi) = dtype.int_range().unwrap();
        let into = |v: i64| lo + (v - lo).rem_euclid(256);
        for a in lo..=hi {
            for b in lo..=hi {
                let floor = |a: i64, b: i64| (a as f64 / b as f64).floor() as i64;
                let by = |f: &dyn Fn() -> i64| if b == 0 { 0 } else { f() };
                let far = !(0..8).contains(&b);
                for (op, want) in [
                    (BinOp::Add, a + b),
                    (BinOp::Sub, a - b),
                    (BinOp::Mul, a * b),
                    (BinOp::FloorDiv, by(&|| floor(a, b))),
                    (BinOp::FloorMod, by(&|| a - b * floor(a, b))),
                    (BinOp::TruncDiv, by(&|| a / b)),
                    (BinOp::TruncMod, by(&|| a % b)),
                    (BinOp::Min, a.min(b)),
                    (BinOp::Max, a.max(b)),
                    (BinOp::Shl, if far { 0 } else { a * (1 << b) }),
                    (BinOp::Shr, if far { -i64::from(a < 0) } else { floor(a, 1 << b) }),
                    (BinOp::BitAnd, a & b),
                    (BinOp::BitXor, a ^ b),
                    (BinOp::Lt, i64::from(a < b)),
                ] {
                    assert_eq!(integers(op, dtype, a, b), into(want), "{a} {op:?} {b} of {dtype:?}");
                }
            }
            assert_eq!(leading_zeros(a, dtype), (a as u8).leading_zeros().into());
            assert_eq!(ones(a, dtype), (a as u8).count_ones().into());
        }
    }
}

#[test]
fn the_ends_of_each_type_are_taken() {
    for dtype in INTEGERS {
        let least = if is_unsigned(dtype) { 0 } else { -1 << (bits(dtype) - 1) };
        let all = wrap(-1, dtype);
        assert_eq!(integers(BinOp::TruncDiv, dtype, least, all), if least == 0 { 0 } else { least });
        assert_eq!(integers(BinOp::FloorMod, dtype, least, all), 0);
        assert_eq!((integers(BinOp::FloorDiv, dtype, 7, 0), integers(BinOp::TruncMod, dtype, 7, 0)), (0, 0));
        assert_eq!(integers(BinOp::Shl, dtype, 1, i64::from(bits(dtype))), 0);
        assert_eq!(integers(BinOp::Shr, dtype, least, 100), if least == 0 { 0 } else { -1 });
        assert_eq!(integers(BinOp::Lt, dtype, 1, all), i64::from(is_unsigned(dtype)));
        assert_eq!(magnitude(least, dtype), least);
        assert_eq!(unheld(held(all, dtype), dtype), all);
        assert_eq!(leading_zeros(1, dtype), i64::from(bits(dtype)) - 1);
    }
}

#[test]
fn halves_are_rounded_once() {
    // A tie but for the last bits.
    assert_eq!(round(1.0 + 2f64.powi(-11) + 2f64.powi(-40), DType::F16), 1.0 + 2f64.powi(-10));
    assert_eq!(round(-1.0 - 2f64.powi(-8) - 2f64.powi(-50), DType::BF16), -1.0 - 2f64.powi(-7));
    for (dtype, tiny) in [(DType::F16, 2f64.powi(-24)), (DType::BF16, 2f64.powi(-133))] {
        assert_eq!(
            (round(tiny * 0.5, dtype), round(tiny * 0.51, dtype), round(tiny * 1.5, dtype)),
            (0.0, tiny, 2.0 * tiny)
        );
    }
    assert_eq!(round(3.4e38, DType::BF16), f64::INFINITY);
    assert!(round(-0.0, DType::F16).is_sign_negative() && round(f64::NAN, DType::BF16).is_nan());
}

#[test]
fn bits_are_read_as_another_type() {
    let cell = |v: f64| v.to_bits();
    assert_eq!(reinterpret(cell(1.0), DType::F32, DType::I32), 0x3f80_0000);
    assert_eq!(reinterpret(-1i64 as u64, DType::I16, DType::U16), 0xffff);
    assert_eq!(reinterpret(0xc000, DType::U16, DType::F16), cell(-2.0));
    assert_eq!(reinterpret(0xbf80, DType::U16, DType::BF16), cell(-1.0));
    assert_eq!(reinterpret(cell(-2.0), DType::F64, DType::I64), cell(-2.0));
    assert_eq!(reinterpret(cell(448.0), DType::F8E4M3, DType::I8), 0x7e);
}
