//! Inputs over the whole range of a type: extremes, denormals, infinities, NaN, and usual numbers in between.
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use satune_ir::DType;

/// Bytes of an element in memory.
pub fn size(dtype: DType) -> u64 {
    match dtype {
        DType::Bool | DType::I8 | DType::U8 | DType::F8E4M3 | DType::F8E5M2 => 1,
        DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
        DType::I32 | DType::U32 | DType::TF32 | DType::F32 => 4,
        DType::I64 | DType::U64 | DType::F64 | DType::Handle => 8,
    }
}

/// Bytes of so many elements. Integers are below a bound where one is given.
pub fn bytes(dtype: DType, elements: u64, below: Option<i64>, seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let size = size(dtype) as usize;
    let mut out = Vec::with_capacity(elements as usize * size);
    for _ in 0..elements {
        let bits = match below {
            Some(bound) => random.gen_range(0..bound) as u64,
            None => element(dtype, &mut random),
        };
        out.extend_from_slice(&bits.to_le_bytes()[..size]);
    }
    out
}

fn element(dtype: DType, random: &mut StdRng) -> u64 {
    let special = random.gen_ratio(1, 16);
    match dtype {
        DType::Bool => u64::from(random.gen::<bool>()),
        DType::F64 | DType::F32 | DType::TF32 | DType::F16 | DType::BF16 => {
            let usual = random.gen_range(-4.0..4.0);
            let specials = [
                0.0,
                -0.0,
                1.0,
                -1.0,
                f64::INFINITY,
                f64::NEG_INFINITY,
                f64::NAN,
                f64::MAX,
                f64::MIN_POSITIVE,
                1e-40,
                6e-8,
                65504.0,
            ];
            let x: f64 = if special { specials[random.gen_range(0..specials.len())] } else { usual };
            match dtype {
                DType::F64 => x.to_bits(),
                DType::F16 => u64::from(half::f16::from_f64(x).to_bits()),
                DType::BF16 => u64::from(half::bf16::from_f64(x).to_bits()),
                _ => u64::from((x as f32).to_bits()),
            }
        }
        _ => {
            let any: u64 = random.gen();
            let bits = 8 * size(dtype);
            let specials = [0, 1, u64::MAX, 1 << (bits - 1), (1 << (bits - 1)) - 1];
            if special {
                specials[random.gen_range(0..specials.len())]
            } else {
                any
            }
        }
    }
}
