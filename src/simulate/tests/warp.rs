//! Instructions of warps, against their definitions.
use super::{add, array, c, kernel, mul, t};
use crate::kernel::{Array, ArrayId, Cond, Index, Mma, Space, Stmt, Value, WarpOp};
use crate::simulate::{run, FaultKind, Options, Report};
use satune_ir::term::tensor::Fragment;
use satune_ir::DType;

fn typed(name: &str, dtype: DType, len: u64, space: Space) -> Array {
    Array { dtype, ..array(name, len, space, name == "out") }
}

fn div(a: Index, b: i64) -> Index {
    Index::Div(Box::new(a), Box::new(c(b)))
}

fn rem(a: Index, b: i64) -> Index {
    Index::Mod(Box::new(a), Box::new(c(b)))
}

fn copy(dst: u32, dst_index: Index, src: u32, src_index: Index, width: u32) -> Stmt {
    let zero_unless = Cond::True;
    Stmt::Copy { dst: ArrayId(dst), dst_index, src: ArrayId(src), src_index, width, zero_unless }
}

/// 16 x 16 numbers 0 to 255 into shared memory, `count` matrices into fragments, from there to out[lane][element].
fn loaded(count: u32, transposed: bool, row: Index) -> Result<(Vec<f64>, Report), crate::simulate::Fault> {
    let h = DType::F16;
    let arrays = vec![
        typed("in", h, 256, Space::Global),
        typed("out", h, 256, Space::Global),
        typed("tile", h, 256, Space::Shared),
        typed("fragment", h, 8, Space::Fragment),
    ];
    let (dst, src, dst_index) = (ArrayId(3), ArrayId(2), c(0));
    let mut body = vec![copy(3, c(0), 0, mul(t(), 8), 8), copy(2, mul(t(), 8), 3, c(0), 8), Stmt::Barrier];
    body.push(Stmt::Warp(WarpOp::LoadMatrix { dst, dst_index, src, src_index: row, count, transposed }));
    for word in 0..i64::from(count) {
        body.push(copy(1, add(mul(t(), 8), c(2 * word)), 3, c(2 * word), 2));
    }
    let mut args = vec![(0..256).map(f64::from).collect(), vec![0.0; 256]];
    let report = run(&kernel(32, arrays, body), &mut args, &Options::default())?;
    Ok((args.remove(1), report))
}

#[test]
fn ldmatrix_distributes_matrices_as_documented() {
    // Matrix m: rows 8 (m % 2) and on, columns 8 (m / 2) and on.
    let row = add(mul(rem(t(), 16), 16), mul(div(t(), 16), 8));
    for count in [1, 2, 4] {
        for transposed in [false, true] {
            let (out, report) = loaded(count, transposed, row.clone()).unwrap();
            for (lane, m, e) in (0..32).flat_map(|l| (0..count as usize).flat_map(move |m| [(l, m, 0), (l, m, 1)])) {
                let (mut r, mut k) = (lane / 4, 2 * (lane % 4) + e);
                if transposed {
                    (r, k) = (k, r);
                }
                let expected = (16 * (8 * (m % 2) + r) + 8 * (m / 2) + k) as f64;
                assert_eq!(out[lane * 8 + 2 * m + e], expected, "x{count} {transposed} lane {lane}");
            }
            assert_eq!(report.total.matrix_moves, 1);
            // Rows of 32 bytes: the second four meet the banks of the first four.
            let (taken, ideal) = (report.total.shared_load_wavefronts, report.total.shared_load_wavefronts_ideal);
            assert_eq!((taken, ideal), (2 * u64::from(count), u64::from(count)));
        }
    }
}

#[test]
fn rows_must_be_aligned_and_warps_whole() {
    let fault = loaded(4, false, mul(rem(t(), 16), 4)).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Misaligned { width: 8 });
    let arrays = vec![typed("pair", DType::F16, 2, Space::Fragment)];
    let zero = Value::Float(0.0, DType::F32);
    let pack = Stmt::Warp(WarpOp::Pack { dst: (ArrayId(0), c(0)), low: zero.clone(), high: zero });
    let half = Stmt::If { cond: Cond::Lt(t(), c(16)), then: vec![pack], otherwise: vec![] };
    let fault = run(&kernel(32, arrays, vec![half]), &mut [], &Options::default()).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Machine(_)), "{fault}");
}

/// One mma on fragments that are loaded element by element, by the places that are documented.
#[test]
fn mma_multiplies_all_types() {
    for op in Mma::SYNC {
        let k = op.k() as usize;
        let [in_a, in_b] = op.fragment_words().map(|words| words as u32 * op.word());
        let a: Vec<f64> = (0..16 * k).map(|i| (i * 5 % 13) as f64 - 6.0).collect();
        let b: Vec<f64> = (0..k * 8).map(|i| (i * 3 % 11) as f64 - 5.0).collect();
        // As lanes hold them: one word after the other.
        let lanes = |len: u32, f: &dyn Fn(u32, u32) -> f64| -> Vec<f64> {
            (0..32).flat_map(|lane| (0..len).map(move |i| (lane, i))).map(|(lane, i)| f(lane, i)).collect()
        };
        let at = |matrix: Fragment, lane: u32, i: u32, width: usize| {
            let places = op.places(matrix);
            let [r, q] = places[(lane as usize * places.len()) / 32 + i as usize];
            r as usize * width + q as usize
        };
        let held_a = lanes(in_a, &|lane, i| a[at(Fragment::A, lane, i, k)]);
        let held_b = lanes(in_b, &|lane, i| b[at(Fragment::B, lane, i, 8)]);
        let (x, y) = (op.operand(), op.accumulator());
        let (na, nb) = (i64::from(in_a), i64::from(in_b));
        let arrays = vec![
            typed("a", x, 32 * na as u64, Space::Global),
            typed("b", x, 32 * nb as u64, Space::Global),
            typed("out", y, 128, Space::Global),
            typed("a_fragment", x, na as u64, Space::Fragment),
            typed("b_fragment", x, nb as u64, Space::Fragment),
            typed("d", y, 4, Space::Register),
        ];
        let mut body = vec![copy(3, c(0), 0, mul(t(), na), na as u32), copy(4, c(0), 1, mul(t(), nb), nb as u32)];
        let one = if y == DType::I32 { Value::Int(1, y) } else { Value::Float(1.0, y) };
        body.extend((0..4).map(|i| Stmt::Store { array: ArrayId(5), index: c(i), value: one.clone() }));
        let place = |id: u32| (ArrayId(id), c(0));
        body.push(Stmt::Warp(WarpOp::Mma { op, d: place(5), a: place(3), b: place(4) }));
        body.push(copy(2, mul(t(), 4), 5, c(0), 4));
        let mut args = vec![held_a, held_b, vec![0.0; 128]];
        let report = run(&kernel(32, arrays, body), &mut args, &Options::default()).unwrap();
        for (lane, i) in (0..32).flat_map(|lane| (0..4).map(move |i| (lane, i))) {
            let at = at(Fragment::D, lane, i, 8);
            let (r, q) = (at / 8, at % 8);
            let sum: f64 = (0..k).map(|j| a[r * k + j] * b[j * 8 + q]).sum();
            assert_eq!(args[2][(lane * 4 + i) as usize], 1.0 + sum, "{op:?}");
        }
        assert_eq!(report.total.matrix, 1);
    }
}

/// out[t] = in[t ^ mask].
fn shuffled(
    threads: u32,
    lane_mask: u32,
    lanes: u32,
    cond: Cond,
) -> Result<(Vec<f64>, Report), crate::simulate::Fault> {
    let f = DType::F32;
    let arrays = vec![typed("in", f, 64, Space::Global), typed("out", f, 64, Space::Global)];
    let value = Value::Shuffle { value: Box::new(Value::Load(ArrayId(0), t())), lane_mask, lanes };
    let store = Stmt::Store { array: ArrayId(1), index: t(), value };
    let body = vec![Stmt::If { cond, then: vec![store], otherwise: vec![] }];
    let mut args = vec![(0..64).map(f64::from).collect(), vec![0.0; 64]];
    let report = run(&kernel(threads, arrays, body), &mut args, &Options::default())?;
    Ok((args.remove(1), report))
}

#[test]
fn shuffles_need_all_the_lanes_that_they_name() {
    for (threads, mask, lanes) in [(64, 16, 32), (64, 1, 32), (64, 4, 8), (40, 4, 8)] {
        let (out, report) = shuffled(threads, mask, lanes, Cond::True).unwrap();
        for (i, v) in out.iter().enumerate().take(threads as usize) {
            assert_eq!(*v, f64::from(i as u32 ^ mask));
        }
        assert_eq!(report.total.shuffles, 2);
    }
    let divergent = |lanes| FaultKind::DivergentShuffle { lanes };
    let half = Cond::Lt(t(), c(16));
    assert_eq!(shuffled(64, 8, 32, half.clone()).unwrap_err().kind, divergent(32), "a warp of which half is elsewhere");
    assert!(shuffled(64, 8, 16, half).is_ok(), "half a warp that names half a warp");
    assert_eq!(shuffled(40, 1, 32, Cond::True).unwrap_err().kind, divergent(32), "a warp that is not whole");
    assert_eq!(shuffled(64, 1, 8, Cond::Lt(t(), c(20))).unwrap_err().kind, divergent(8));
    assert!(matches!(shuffled(64, 8, 8, Cond::True).unwrap_err().kind, FaultKind::Machine(_)), "beyond the group");
}
