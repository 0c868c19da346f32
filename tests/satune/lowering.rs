//! Programs are lowered, simulated (races, bounds, unwritten reads, divergent barriers), and compared exactly.
use crate::programs::*;
use satune::kernel::Space;
use satune::lower::program::*;
use satune::simulate::{self, Report};
use satune_ir::{Annotations, DType};

/// Runs the kernels of a program on the parameters' values; written parameters are returned.
fn run(module: &Module, params: &mut [Vec<f64>]) -> Vec<Report> {
    let mut spaces: Vec<Vec<f64>> = module.workspaces.iter().map(|w| vec![0.0; w.elements as usize]).collect();
    let mut reports = Vec::new();
    for (kernel, args) in module.kernels.iter().zip(&module.args) {
        let mut values: Vec<Vec<f64>> = args
            .iter()
            .map(|a| match a {
                Argument::Param(i) => params[*i].clone(),
                Argument::Workspace(i) => spaces[*i].clone(),
            })
            .collect();
        let report = simulate::run(kernel, &mut values, &simulate::Options::default());
        reports.push(report.unwrap_or_else(|fault| panic!("{fault}\n{}", satune::cuda::print(kernel))));
        for (a, value) in args.iter().zip(values) {
            match a {
                Argument::Param(i) => params[*i] = value,
                Argument::Workspace(i) => spaces[*i] = value,
            }
        }
    }
    reports
}

fn numbers(count: i64, seed: i64) -> Vec<f64> {
    (0..count).map(|i| ((i * 7 + seed * 13 + i / 11) % 9 - 4) as f64).collect()
}

fn product((m, n, k): (i64, i64, i64), a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut out = Vec::new();
    for i in 0..m {
        for j in 0..n {
            out.push((0..k).map(|l| a[(i * k + l) as usize] * b[(l * n + j) as usize]).sum());
        }
    }
    out
}

fn check(gemm: &Gemm, options: &LowerOptions) -> (Module, Report) {
    let module = lower(&gemm.program(), options).unwrap_or_else(|e| panic!("{e}\n{gemm:?}"));
    let (m, n, k) = gemm.shape;
    let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
    let mut params = vec![a.clone(), b.clone(), vec![0.0; (m * n) as usize]];
    let report = run(&module, &mut params).remove(0);
    assert_eq!(report.unwritten, 0);
    let expected = product(gemm.shape, &a, &b);
    let wrong = params[2].iter().zip(&expected).position(|(x, y)| x != y);
    assert_eq!(wrong, None, "{gemm:?}\n{}", satune::cuda::print(&module.kernels[0]));
    (module, report)
}

fn text(module: &Module) -> String {
    module.kernels.iter().map(satune::cuda::print).collect()
}

/// The article's last stage, shrunk.
fn vectorized() -> Gemm {
    Gemm { vthreads: (2, 2), vector: 4, local_vector: 4, unroll: true, shape: (64, 96, 40), ..Gemm::default() }
}

fn pipelined(stages: &[i64], asynchronous: bool) -> Annotations {
    let mut out = Annotations::new();
    out.insert("software_pipeline_stage".into(), ints(stages));
    out.insert("software_pipeline_order".into(), ints(&[0, 1, 2]));
    if asynchronous {
        out.insert("software_pipeline_async_stages".into(), ints(&[0]));
    }
    out
}

#[test]
fn thread_tiles() {
    let (module, report) = check(&Gemm::default(), &LowerOptions::default());
    let kernel = &module.kernels[0];
    assert_eq!((kernel.grid, kernel.block, kernel.shared_bytes), ([4, 4, 1], [4, 4, 1], 2 * 16 * 8 * 4));
    // Two barriers per k tile.
    assert_eq!(report.total.barriers, 16 * 2 * 4);
    check(&Gemm { init_inside: true, ..Gemm::default() }, &LowerOptions::default());
}

#[test]
fn vthreads_are_packed() {
    let gemm = Gemm { vthreads: (2, 2), shape: (64, 96, 40), ..Gemm::default() };
    let (module, _) = check(&gemm, &LowerOptions::default());
    let registers: Vec<(&str, u64)> = module.kernels[0]
        .arrays
        .iter()
        .filter(|a| a.space == Space::Register)
        .map(|a| (a.name.as_str(), a.len))
        .collect();
    assert_eq!(registers, [("C_local", 64), ("A_local", 8), ("B_local", 8)]);
    println!("{}", text(&module));
}

#[test]
fn vectorized_stage() {
    let (module, _) = check(&vectorized(), &LowerOptions::default());
    println!("{}", text(&module));
    let (module, _) = check(&Gemm { transposed: true, ..vectorized() }, &LowerOptions::default());
    println!("{}", text(&module));
}

#[test]
fn rings_of_asynchronous_copies() {
    for stages in 2..=4 {
        for shape in [(64, 96, 40), (64, 96, 16), (64, 96, 8)] {
            let gemm = Gemm { k_annotations: pipelined(&[0, 0, stages - 1], true), shape, ..vectorized() };
            let (module, report) = check(&gemm, &LowerOptions::default());
            let kernel = &module.kernels[0];
            if shape.2 > 8 {
                assert_eq!(u64::from(kernel.shared_bytes), stages as u64 * (32 * 8 + 8 * 32) * 4);
                assert!(report.total.async_copies > 0);
                // One barrier per k tile.
                assert_eq!(report.total.barriers as i64, kernel.grid.iter().product::<u32>() as i64 * shape.2 / 8);
            }
            if stages == 3 && shape.2 == 40 {
                println!("{}", text(&module));
            }
        }
    }
}

#[test]
fn without_cp_async_the_next_tile_waits_in_registers() {
    let mut options = LowerOptions::default();
    options.target.has_cp_async = false;
    let gemm = Gemm { k_annotations: pipelined(&[0, 0, 1], true), ..vectorized() };
    let (_, report) = check(&gemm, &options);
    assert_eq!(report.total.async_copies, 0);
    let gemm = Gemm { k_annotations: pipelined(&[0, 0, 2], true), ..vectorized() };
    check(&gemm, &options);
}

#[test]
fn register_double_buffer() {
    let mut staged = Annotations::new();
    staged.insert("tir.manifest_shared_memory_local_stage".into(), satune_ir::Attr::Int(1));
    for transposed in [false, true] {
        for shape in [(64, 96, 40), (64, 96, 16), (50, 90, 37)] {
            let gemm = Gemm {
                k_annotations: pipelined(&[0, 0, 1], false),
                copy_annotations: staged.clone(),
                transposed,
                shape,
                ..vectorized()
            };
            let (module, _) = check(&gemm, &LowerOptions::default());
            if transposed && shape.0 == 64 {
                println!("{}", text(&module));
            }
        }
    }
}

#[test]
fn ragged_shapes() {
    for shape in [(30, 45, 17), (64, 45, 16), (33, 64, 9), (64, 64, 17), (31, 64, 16), (32, 44, 12)] {
        for (vthreads, vector, transposed) in
            [((1, 1), 1, false), ((2, 2), 1, false), ((2, 1), 4, true), ((1, 2), 2, false)]
        {
            for init_inside in [false, true] {
                let gemm =
                    Gemm { shape, vthreads, vector, local_vector: vector, transposed, init_inside, ..Gemm::default() };
                let (module, _) = check(&gemm, &LowerOptions::default());
                if shape == (30, 45, 17) && vthreads == (2, 2) && !init_inside {
                    println!("{}", text(&module));
                }
            }
            for (stages, asynchronous) in [(1, false), (2, true)] {
                let k_annotations = pipelined(&[0, 0, stages], asynchronous);
                let gemm = Gemm {
                    shape,
                    vthreads,
                    vector,
                    local_vector: vector,
                    transposed,
                    k_annotations,
                    ..Gemm::default()
                };
                check(&gemm, &LowerOptions::default());
            }
        }
    }
}

#[test]
fn tiles_that_the_threads_do_not_divide() {
    // 24 x 20 elements of A by 24 threads of 5, 3 pieces: the copies' last steps overshoot.
    let gemm = Gemm { shape: (48, 40, 21), threads: (6, 5), k_tile: 7, ..Gemm::default() };
    let (module, _) = check(&gemm, &LowerOptions::default());
    println!("{}", text(&module));
    let (module, _) = check(&Gemm { shape: (50, 41, 23), ..gemm }, &LowerOptions::default());
    // The guards of the copies' surplus and of the stores: none around the arithmetic.
    assert_eq!(text(&module).matches("if (").count(), 4, "{}", text(&module));
}

#[test]
fn half_inputs_are_widened() {
    let gemm = Gemm {
        input: DType::F16,
        vector: 8,
        local_vector: 4,
        vthreads: (2, 2),
        shape: (64, 64, 32),
        ..Gemm::default()
    };
    let (module, _) = check(&gemm, &LowerOptions::default());
    println!("{}", text(&module));
}

/// C = A B with one thread per element: without and with an accumulator on the chip, decomposed or not.
fn naive(shape: (i64, i64, i64), local: bool, decomposed: bool) -> satune_ir::Program {
    let (m, n, k) = shape;
    let mut b = Builder::new();
    let (a_in, b_in, out) =
        (b.param("A", &[m, k], DType::F32), b.param("B", &[k, n], DType::F32), b.param("C", &[m, n], DType::F32));
    let sum = if local { b.buffer("C_local", &[m, n], DType::F32, "local") } else { out };
    let guard = |r: &E, c: &E| {
        if m % 8 == 0 && n % 8 == 0 {
            always()
        } else {
            r.clone().lt(m) & c.clone().lt(n)
        }
    };
    let none = Annotations::new;
    let nest = b.each("i_0", (m + 7) / 8, "blockIdx.y", |b, i0| {
        b.each("j_0", (n + 7) / 8, "blockIdx.x", |b, j0| {
            b.each("i_1", 8, "threadIdx.y", |b, i1| {
                b.each("j_1", 8, "threadIdx.x", |b, j1| {
                    let (r, c) = (i0 * 8 + i1, j0 * 8 + j1);
                    let p = || guard(&r, &c);
                    let clear = |v: &[E]| store(sum, &v[..2], float(0.0, DType::F32));
                    let mut parts = Vec::new();
                    if decomposed {
                        parts.push(b.block("C_init", &[("S", m, r.clone()), ("S", n, c.clone())], p(), none(), |v| {
                            (None, clear(v))
                        }));
                    }
                    parts.push(b.each("k", k, "", |b, kk| {
                        b.block("C", &[("S", m, r.clone()), ("S", n, c.clone()), ("R", k, kk)], p(), none(), |v| {
                            let product =
                                load(a_in, &[v[0].clone(), v[2].clone()]) * load(b_in, &[v[2].clone(), v[1].clone()]);
                            let init = (!decomposed).then(|| clear(v));
                            (init, store(sum, &v[..2], load(sum, &v[..2]) + product))
                        })
                    }));
                    if local {
                        parts.push(b.block("C_out", &[("S", m, r.clone()), ("S", n, c.clone())], p(), none(), |v| {
                            (None, store(out, v, load(sum, v)))
                        }));
                    }
                    satune_ir::Stmt::seq(parts)
                })
            })
        })
    });
    b.finish(vec![nest])
}

#[test]
fn one_element_per_thread() {
    for shape in [(16, 24, 9), (13, 22, 5)] {
        for (local, decomposed) in [(false, false), (false, true), (true, false), (true, true)] {
            let module = lower(&naive(shape, local, decomposed), &LowerOptions::default()).unwrap();
            let (m, n, k) = shape;
            let (a, b) = (numbers(m * k, 3), numbers(k * n, 5));
            let mut params = vec![a.clone(), b.clone(), vec![0.0; (m * n) as usize]];
            run(&module, &mut params);
            assert_eq!(params[2], product(shape, &a, &b), "{}", text(&module));
        }
    }
}

/// D = 2 A + 1 through a buffer B of a scope: two nests, or one.
fn chain(scope: &str, one: bool, shift: i64) -> satune_ir::Program {
    let mut b = Builder::new();
    let a_in = b.param("A", &[256], DType::F32);
    let out = b.param("D", &[256], DType::F32);
    let mid = b.buffer("B", &[256], DType::F32, scope);
    let none = Annotations::new;
    let stages = |b: &mut Builder, i: E, which: &[usize]| {
        let mut parts = Vec::new();
        if which.contains(&0) {
            parts.push(b.block("B", &[("S", 256, i.clone())], always(), none(), |v| {
                (None, store(mid, v, load(a_in, v) * float(2.0, DType::F32)))
            }));
        }
        if which.contains(&1) {
            parts.push(b.block("D", &[("S", 256, i)], always(), none(), |v| {
                let from = if shift == 0 { v[0].clone() } else { v[0].clone() ^ shift };
                (None, store(out, v, load(mid, &[from]) + float(1.0, DType::F32)))
            }));
        }
        satune_ir::Stmt::seq(parts)
    };
    let nest = |b: &mut Builder, which: &'static [usize]| {
        b.each("i_0", 4, "blockIdx.x", |b, i0| b.each("i_1", 64, "threadIdx.x", |b, i1| stages(b, i0 * 64 + i1, which)))
    };
    let nests = if one { vec![nest(&mut b, &[0, 1])] } else { vec![nest(&mut b, &[0]), nest(&mut b, &[1])] };
    b.finish(nests)
}

#[test]
fn buffers_between_kernels_and_threads() {
    let run_chain = |scope: &str, one: bool, shift: i64| -> Result<(Module, Vec<f64>), LowerError> {
        let module = lower(&chain(scope, one, shift), &LowerOptions::default())?;
        let mut params = vec![numbers(256, 4), vec![0.0; 256]];
        run(&module, &mut params);
        Ok((module, params.remove(1)))
    };
    let expected = |shift: i64| -> Vec<f64> {
        let a = numbers(256, 4);
        (0..256).map(|i| a[(i ^ shift) as usize] * 2.0 + 1.0).collect()
    };
    let (module, values) = run_chain("global", false, 3).unwrap();
    assert_eq!((module.kernels.len(), values), (2, expected(3)));
    assert_eq!(module.workspaces, [Workspace { name: "B".into(), dtype: DType::F32, elements: 256 }]);
    assert_eq!(module.args[1], [Argument::Param(1), Argument::Workspace(0)]);
    // Within one kernel: by the same thread, or through shared memory with a barrier, or not at all.
    let (module, values) = run_chain("global", true, 0).unwrap();
    assert_eq!((module.workspaces.len(), values), (1, expected(0)));
    let (module, values) = run_chain("shared", true, 3).unwrap();
    assert_eq!((module.kernels[0].shared_bytes, values), (256, expected(3)));
    let (module, values) = run_chain("local", true, 0).unwrap();
    assert_eq!((module.kernels[0].shared_bytes, values), (0, expected(0)));
    let refused = |scope, one, shift| run_chain(scope, one, shift).map(|_| ()).unwrap_err().to_string();
    assert_eq!(
        refused("global", true, 3),
        "buffer B is written and read by different threads of one kernel (blocks B and D); put the reader into a nest \
         of its own, or use scope shared"
    );
    assert!(refused("local", true, 3).starts_with("buffer B is local to a thread, but block D reads elements at "));
    assert_eq!(
        refused("shared", false, 3),
        "buffer B of scope shared is used by two kernels; only global buffers outlive a kernel"
    );
}

#[test]
fn what_cannot_be_lowered_says_so() {
    let simple = |extents: [i64; 2], tags: [&str; 2], kind: &str| {
        let mut b = Builder::new();
        let out = b.param("C", &[4096], DType::F32);
        let nest = b.each("i", extents[0], tags[0], |b, i| {
            b.each("j", extents[1], tags[1], |b, j| {
                b.block("C", &[(kind, 4096, i * extents[1] + j)], always(), Annotations::new(), |v| {
                    (None, store(out, v, float(1.0, DType::F32)))
                })
            })
        });
        lower(&b.finish(vec![nest]), &LowerOptions::default()).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(
        simple([2, 4], ["", ""], "S"),
        "block C runs outside of any thread; bind a loop around it to blockIdx or threadIdx"
    );
    assert_eq!(
        simple([32, 64], ["threadIdx.x", "threadIdx.x"], "S"),
        "loops i and j are both bound to threadIdx.x, with extents 32 and 64; give them the same extent"
    );
    assert_eq!(
        simple([2, 2048], ["blockIdx.x", "threadIdx.x"], "S"),
        "threads per block: 2048, at most 1024 are possible; choose smaller extents for the bound loops"
    );
    assert_eq!(
        simple([2, 64], ["blockIdx.x", "threadIdx.x"], "R"),
        "block C reduces over threads, and its reduction loop i is bound to blockIdx.x, and blocks cannot wait for each \
         other: rfactor that loop, and reduce its partial results in a second kernel"
    );
    let mut options = LowerOptions::default();
    options.target.max_shared_bytes = 2047;
    let gemm = Gemm { vthreads: (2, 2), ..Gemm::default() };
    assert_eq!(
        lower(&gemm.program(), &options).unwrap_err().to_string(),
        "2048 bytes of shared memory per block (A_shared 1024, B_shared 1024), the GPU has 2047; choose smaller tiles \
         or fewer stages"
    );
}

#[test]
fn rows_are_padded_as_storage_align_says() {
    let mut padded = Annotations::new();
    padded.insert("buffer_dim_align".into(), satune_ir::Attr::List(vec![ints(&[0, 0, 32, 4])]));
    for transposed in [false, true] {
        let gemm = Gemm { copy_annotations: padded.clone(), transposed, ..vectorized() };
        let (module, _) = check(&gemm, &LowerOptions::default());
        let sizes: Vec<u64> =
            module.kernels[0].arrays.iter().filter(|a| a.space == Space::Shared).map(|a| a.len).collect();
        assert_eq!(sizes, if transposed { [8 * 36, 8 * 36] } else { [32 * 36, 8 * 36] });
    }
}

/// A transposing copy through a tile that is swizzled: `tile[r, c ^ r]`.
#[test]
fn swizzles_pass_through() {
    let mut b = Builder::new();
    let a_in = b.param("A", &[64, 96], DType::F32);
    let out = b.param("C", &[96, 64], DType::F32);
    let tile = b.buffer("tile", &[64, 96], DType::F32, "shared");
    let none = Annotations::new;
    let nest = b.each("i_0", 2, "blockIdx.y", |b, i0| {
        b.each("j_0", 3, "blockIdx.x", |b, j0| {
            let swizzled = |v: &[E]| [v[0].clone(), v[1].clone() ^ (v[0].clone() % 32)];
            let read = b.each("r", 4, "", |b, r| {
                b.each("ty", 8, "threadIdx.y", |b, ty| {
                    b.each("tx", 32, "threadIdx.x", |b, tx| {
                        let at = [("S", 64, i0.clone() * 32 + r * 8 + ty), ("S", 96, j0.clone() * 32 + tx)];
                        b.block("tile", &at, always(), none(), |v| (None, store(tile, &swizzled(v), load(a_in, v))))
                    })
                })
            });
            let write = b.each("r", 4, "", |b, r| {
                b.each("ty", 8, "threadIdx.y", |b, ty| {
                    b.each("tx", 32, "threadIdx.x", |b, tx| {
                        let at = [("S", 96, j0.clone() * 32 + r * 8 + ty), ("S", 64, i0.clone() * 32 + tx)];
                        b.block("C", &at, always(), none(), |v| {
                            (None, store(out, v, load(tile, &swizzled(&[v[1].clone(), v[0].clone()]))))
                        })
                    })
                })
            });
            satune_ir::Stmt::seq(vec![read, write])
        })
    });
    let module = lower(&b.finish(vec![nest]), &LowerOptions::default()).unwrap();
    let a = numbers(64 * 96, 6);
    let mut params = vec![a.clone(), vec![0.0; 64 * 96]];
    let report = run(&module, &mut params).remove(0);
    let expected: Vec<f64> = (0..96).flat_map(|i| (0..64).map(move |j| (i, j))).map(|(i, j)| a[j * 96 + i]).collect();
    assert_eq!((&params[1], module.kernels[0].shared_bytes), (&expected, 4096), "{}", text(&module));
    let total = report.total;
    assert_eq!(total.shared_load_wavefronts, total.shared_load_wavefronts_ideal);
    assert_eq!(total.shared_store_wavefronts, total.shared_store_wavefronts_ideal);
}

/// Through a register that the vthreads would share, were it not for a dimension of its own; a guarded load.
#[test]
fn registers_of_vthreads_and_padding() {
    let mut b = Builder::new();
    let a_in = b.param("float", &[120], DType::F32);
    let out = b.param("C", &[128], DType::F32);
    let t = b.buffer("t", &[1], DType::F32, "local");
    let mut unknown = Annotations::new();
    unknown.insert("double_buffer_scope".into(), satune_ir::Attr::Int(0));
    let nest = b.each("i", 2, "blockIdx.x", |b, i| {
        b.each("v", 4, "vthread", |b, v| {
            b.each("j", 16, "threadIdx.x", |b, j| {
                let at = i * 64 + v * 16 + j;
                let first = b.block("t", &[("S", 128, at.clone())], always(), unknown, |x| {
                    let padded = satune_ir::Expr::Select {
                        lazy: true,
                        cond: x[0].clone().lt(120).0.into(),
                        then: load(a_in, x).0.into(),
                        otherwise: float(0.0, DType::F32).0.into(),
                    };
                    (None, store(t, &[0.into()], E(padded)))
                });
                let second = b.block("C", &[("S", 128, at)], always(), Annotations::new(), |x| {
                    let exp = satune_ir::Expr::Call("T.exp".into(), vec![load(t, &[0.into()]).0], DType::F32);
                    (None, store(out, x, E(exp) + load(t, &[0.into()])))
                });
                satune_ir::Stmt::seq(vec![first, second])
            })
        })
    });
    let module = lower(&b.finish(vec![nest]), &LowerOptions::default()).unwrap();
    let a = numbers(120, 7);
    let mut params = vec![a.clone(), vec![0.0; 128]];
    run(&module, &mut params);
    let expected: Vec<f32> = (0..128).map(|i| a.get(i).map_or(1.0, |x| x.exp() as f32 + *x as f32)).collect();
    for (x, y) in params[1].iter().zip(expected) {
        assert!((*x as f32 - y).abs() <= 1e-6 * (1.0 + y.abs()), "{x} {y}\n{}", text(&module));
    }
    let kernel = &module.kernels[0];
    assert_eq!(kernel.arrays[0].name, "float_kernel");
    assert_eq!(kernel.arrays[2].len, 4);
    assert!(kernel.notes.contains(&"annotation double_buffer_scope of block t is ignored".to_string()));
}

/// A store that the threads would all make is made by one.
#[test]
fn what_threads_share_is_written_once() {
    let mut b = Builder::new();
    let out = b.param("C", &[8], DType::F32);
    let nest = b.each("i", 4, "blockIdx.x", |b, _| {
        b.each("j", 32, "threadIdx.x", |b, _| {
            b.each("k", 8, "", |b, k| {
                b.block("C", &[("S", 8, k)], always(), Annotations::new(), |v| {
                    (None, store(out, v, float(3.0, DType::F32)))
                })
            })
        })
    });
    let module = lower(&b.finish(vec![nest]), &LowerOptions::default()).unwrap();
    let mut params = vec![vec![0.0; 8]];
    run(&module, &mut params);
    assert_eq!(params[0], [3.0; 8]);
}

#[test]
fn random_tilings() {
    use rand::{rngs::StdRng, seq::SliceRandom, Rng, SeedableRng};
    let mut rng = StdRng::seed_from_u64(11);
    let mut staged = Annotations::new();
    staged.insert("tir.manifest_shared_memory_local_stage".into(), satune_ir::Attr::Int(1));
    for _ in 0..150 {
        let pick = |rng: &mut StdRng, list: &[i64]| *list.choose(rng).unwrap_or(&1);
        let pair = |rng: &mut StdRng, list: &[i64]| (pick(rng, list), pick(rng, list));
        let vector = pick(&mut rng, &[1, 1, 2, 4, 8]);
        let whole = rng.gen_bool(0.5);
        let mut gemm = Gemm {
            threads: pair(&mut rng, &[1, 2, 3, 4, 8]),
            vthreads: pair(&mut rng, &[1, 1, 2, 3]),
            registers: pair(&mut rng, &[1, 2, 3, 4, 8]),
            k_tile: pick(&mut rng, &[1, 3, 4, 8, 12]),
            vector,
            local_vector: if rng.gen_bool(0.5) { 1 } else { 4 },
            unroll: rng.gen_bool(0.5),
            init_inside: rng.gen_bool(0.3),
            transposed: rng.gen_bool(0.5),
            input: if rng.gen_bool(0.2) { DType::F16 } else { DType::F32 },
            ..Gemm::default()
        };
        let (m, n) =
            (gemm.threads.0 * gemm.vthreads.0 * gemm.registers.0, gemm.threads.1 * gemm.vthreads.1 * gemm.registers.1);
        gemm.shape = if whole {
            (m * rng.gen_range(1..3), n * rng.gen_range(1..3), gemm.k_tile * rng.gen_range(1..5))
        } else {
            (rng.gen_range(1..70), rng.gen_range(1..70), rng.gen_range(1..40))
        };
        match rng.gen_range(0..4) {
            0 => gemm.k_annotations = pipelined(&[0, 0, rng.gen_range(1..4)], true),
            1 => gemm.k_annotations = pipelined(&[0, 0, rng.gen_range(1..3)], false),
            2 => {
                gemm.k_annotations = pipelined(&[0, 0, 1], false);
                gemm.copy_annotations = staged.clone();
            }
            _ => {}
        }
        check(&gemm, &LowerOptions::default());
    }
}

#[test]
fn machine_code_of_the_staircase() {
    use satune::compile::{hot_loop_mix, Job};
    let mut staged = Annotations::new();
    staged.insert("tir.manifest_shared_memory_local_stage".into(), satune_ir::Attr::Int(1));
    let big = Gemm {
        shape: (4096, 4096, 4096),
        threads: (16, 16),
        vthreads: (2, 2),
        vector: 4,
        local_vector: 4,
        unroll: true,
        transposed: true,
        ..Gemm::default()
    };
    let variants = [
        ("plain", big.clone()),
        ("not transposed", Gemm { transposed: false, ..big.clone() }),
        ("registers", Gemm { k_annotations: pipelined(&[0, 0, 1], false), copy_annotations: staged, ..big.clone() }),
        ("ring", Gemm { k_annotations: pipelined(&[0, 0, 2], true), transposed: false, ..big.clone() }),
        ("k 16", Gemm { k_tile: 16, k_annotations: pipelined(&[0, 0, 1], true), transposed: false, ..big.clone() }),
        ("ragged", Gemm { shape: (4095, 4097, 4099), vector: 1, ..big }),
    ];
    let mut jobs = Vec::new();
    for (name, gemm) in &variants {
        let module = lower(&gemm.program(), &LowerOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        jobs.push(Job { name: "main_kernel".into(), source: text(&module), arch: "sm_90".into() });
    }
    let Some(compiled) = crate::compiles::compile(&jobs, "machine_code_of_the_staircase") else { return };
    for ((name, _), c) in variants.iter().zip(&compiled) {
        let mix = hot_loop_mix(&c.cubin);
        println!("{name}: {} registers, {} spilled, {mix:?}", c.registers, c.spill_bytes);
        assert_eq!(c.spill_bytes, 0, "{name}");
        if let (Some(mix), false) = (mix, *name == "ragged") {
            assert!(mix.share > 0.8, "{name}: {mix:?}");
        }
    }
}
