//! Right kernels pass, and one that lacks a term does not.
use super::*;

fn of(operator: &str, cores: bool) -> f64 {
    let work = crate::source::load_work(operator).unwrap();
    let workload = work.workload();
    let block = workload.contraction().map(|c| c.block_name.clone()).filter(|_| cores);
    let all = tolerances(workload.program(), block.as_deref());
    assert!(all.iter().rev().skip(1).all(|t| *t == 0.0), "{operator}: {all:?}");
    *all.last().unwrap()
}

#[test]
fn tolerances_follow_the_coarsest_rounding() {
    let u = 2.0_f64.powi(-24);
    assert_eq!(of("gemm:8,8,4096,f32", false), 68.0 * u);
    assert_eq!(of("gemm:8,8,4096,i8,NT", true), 0.0);
    assert_eq!(of("gemm:8,8,16,f64", false), 8.0 * 2.0_f64.powi(-53));
    // Cut off by tensor cores, step by step.
    assert_eq!(of("gemm:8,8,4096,bf16", true), 512.0 * u);
    assert!(of("gemm:8,8,4096,e4m3,NT", true) > 1e-3 && of("gemm:8,8,4096,e4m3,NT", false) < 1e-5);
    // A product of tf32 passes as such and not as one of f32; results in 16 bits pass as they are rounded.
    assert!(of("gemm:8,8,4096,tf32", true) > 1e-3 && of("gemm:8,8,4096,tf32", true) < 3e-3);
    for (dtype, bits) in [("f16", 11), ("bf16", 8)] {
        let stored = of(&format!("gemm:8,8,64,{dtype},out={dtype}"), true);
        assert!(stored >= 2.0_f64.powi(-bits) && stored < 1.1 * 2.0_f64.powi(-bits), "{dtype}: {stored}");
    }
    // Nothing is rounded where elements only move, or the larger of two is taken.
    assert_eq!(of("transpose:8,8,f16", false), 0.0);
    assert_eq!(of("relu_chain:8,8,f32", false), ARITHMETIC * u);
    assert_eq!(of("relu_chain:8,8,f16", false), ARITHMETIC * 2.0_f64.powi(-11));
    assert_eq!(of("mean:8,16,f32", false), (8.0 + FUNCTION) * u);
    // The sum of the powers, each of which is off, and a division.
    let softmax = of("softmax:8,4096,f32", false);
    assert!(softmax > 64.0 * u && softmax < 200.0 * u, "{softmax}");
    assert!(of("gemm:8,8,4096,f32,bias,gelu", false) < 2e-5);
}

#[test]
fn whole_numbers_that_are_made_of_floats_may_be_others_now_and_then() {
    assert_eq!(allowed(DType::I32, 0.0, 50.0), (0.0, 0.0));
    assert_eq!(allowed(DType::F32, 1e-6, 50.0), (SINGLE * 1e-6 * 50.0, 1e-6));
    // Numbers up to 127, of floats that are off by a millionth: one in some thousands is another one, by 1.
    let mut numbers = Numbers(7);
    let floats: Vec<f64> = (0..200_000).map(|_| 127.0 * f64::from(numbers.next())).collect();
    let [wanted, got] = [0.0, 1e-6].map(|by| floats.iter().map(|x| (x * (1.0 + by)).trunc()).collect::<Vec<f64>>());
    let squares = |list: &mut dyn Iterator<Item = f64>| list.map(|x| x * x).sum::<f64>();
    let size = squares(&mut wanted.iter().copied());
    let distance = squares(&mut wanted.iter().zip(&got).map(|(x, y)| x - y));
    let root = (size / wanted.len() as f64).sqrt();
    let (single, all) = allowed(DType::I8, 1e-6, root);
    assert!(distance > 0.0 && (distance / size).sqrt() <= all && all < 1e-3 && single == 1.0, "{distance} {all}");
}

/// Uniform in [-1, 1), by splitmix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

/// Sums of products added one after the other, in f32 and exactly, and of each a term whose size is nearest to the usual.
fn sums(results: usize, terms: u64, positive: bool) -> [Vec<f64>; 3] {
    let mut numbers = Numbers(terms);
    let usual = 1.0 / 3.0;
    let mut out = [const { Vec::new() }; 3];
    for _ in 0..results {
        let (mut rounded, mut exact, mut typical) = (0.0_f32, 0.0_f64, f64::INFINITY);
        for _ in 0..terms {
            let (a, b) = (numbers.next(), numbers.next());
            let a = if positive { a.abs().copysign(b) } else { a };
            rounded = a.mul_add(b, rounded);
            let term = f64::from(a) * f64::from(b);
            exact += term;
            if (term.abs() - usual).abs() < (typical.abs() - usual).abs() {
                typical = term;
            }
        }
        for (list, value) in out.iter_mut().zip([f64::from(rounded), exact, typical]) {
            list.push(value);
        }
    }
    out
}

#[test]
fn plain_sums_pass_and_one_missing_term_does_not() {
    for (log, results) in [(4, 4096), (8, 1024), (12, 256), (16, 64), (20, 12)] {
        let terms = 1_u64 << log;
        let tolerance = of_sums(unit(DType::F32), terms as f64, true);
        let [rounded, exact, typical] = sums(results, terms, false);
        assert!(passes(&rounded, &exact, tolerance), "2^{log} terms");
        // In one result, and in all.
        for at in [0..1, 0..results] {
            let mut lacking = rounded.clone();
            at.for_each(|i| lacking[i] -= typical[i]);
            assert!(!passes(&lacking, &exact, tolerance), "2^{log} terms");
        }
    }
}

#[test]
fn sums_of_one_sign_pass_and_show_a_missing_term_as_long_as_they_can() {
    for (log, results) in [(4, 1024), (12, 256), (20, 12)] {
        let terms = 1_u64 << log;
        let tolerance = of_sums(unit(DType::F32), terms as f64, false);
        let [rounded, exact, typical] = sums(results, terms, true);
        assert!(passes(&rounded, &exact, tolerance), "2^{log} terms");
        let mut lacking = rounded.clone();
        lacking[0] -= typical[0];
        // In the longest a term is smaller than what rounding does.
        assert_eq!(passes(&lacking, &exact, tolerance), log == 20, "2^{log} terms");
    }
}

/// Steps of eight products, the sum of which is cut off to f32 towards zero.
#[test]
fn sums_that_are_cut_off_pass_as_those_of_tensor_cores() {
    let (terms, results) = (16_384_u64, 64);
    let mut numbers = Numbers(1);
    let (mut cut, mut exact, mut typical) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..results {
        let (mut sum, mut whole, mut usual) = (0.0_f32, 0.0, 0.0);
        for _ in 0..terms / 8 {
            let mut step = f64::from(sum);
            for _ in 0..8 {
                let term = f64::from(numbers.next()) * f64::from(numbers.next());
                (step, whole) = (step + term, whole + term);
                if (0.3..0.37).contains(&term.abs()) {
                    usual = term;
                }
            }
            let nearest = step as f32;
            let beyond = f64::from(nearest).abs() > step.abs();
            sum = if beyond { f32::from_bits(nearest.to_bits() - 1) } else { nearest };
        }
        cut.push(f64::from(sum));
        exact.push(whole);
        typical.push(usual);
    }
    let tolerance = on_tensor_cores(DType::BF16, terms as f64);
    assert!(passes(&cut, &exact, tolerance));
    cut[5] -= typical[5];
    assert!(!passes(&cut, &exact, tolerance));
}
