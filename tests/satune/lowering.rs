//! Programs are lowered, simulated (races, bounds, unwritten reads, divergent barriers), and compared exactly. Tilings of a
//! product are in `tilings.rs`.
use crate::programs::*;
use crate::simulated::{numbers, product, run, text};
use satune::lower::program::*;
use satune_ir::{Annotations, DType};

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

/// Wide copies between any two memories move all that they name.
#[test]
fn wide_copies_between_memories_are_whole() {
    let copies = |scope: &str| {
        let nest = |name: &str, to: &str, from: &str| {
            format!(
                "        for t in T.thread_binding(32, thread=\"threadIdx.x\"):\n            for v in T.vectorized(4):\n                \
                 with T.sblock(\"{name}\"):\n                    vi = T.axis.spatial(4, b)\n                    vj = \
                 T.axis.spatial(128, t * 4 + v)\n                    {to}[vi, vj] = {from}[vi, vj]\n"
            )
        };
        let text = format!(
            "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((4, 128), \"float32\"), C: T.Buffer((4, 128), \"float32\")):\n    B = \
             T.sblock_alloc_buffer((4, 128), scope=\"{scope}\")\n    for b in T.thread_binding(4, thread=\"blockIdx.x\"):\n{}{}",
            nest("B", "B", "A"),
            nest("C", "C", "B"),
        );
        satune_ir::tvmscript::parse(&text).unwrap()
    };
    for scope in ["shared", "global", "local"] {
        let module = lower(&copies(scope), &LowerOptions::default()).unwrap();
        let mut params = vec![numbers(512, 4), vec![f64::NAN; 512]];
        run(&module, &mut params);
        assert_eq!(params[1], params[0], "{scope}\n{}", text(&module));
        assert!(text(&module).matches("float4*>(").count() >= 4, "{scope}\n{}", text(&module));
    }
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
    assert_eq!(kernel.arrays[0].name, "float_");
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

/// Threads that a guard keeps from a sum in shared memory would add 0 to an element that another adds to.
#[test]
fn guards_that_tell_threads_apart_stay_on_shared_sums() {
    let script = r#"
@T.prim_func(s_tir=True)
def main(A: T.Buffer((5,), "float32"), B: T.Buffer((5,), "float32"), C: T.Buffer((4,), "float32")):
    a = T.sblock_alloc_buffer((5,), "float32", scope="shared")
    b = T.sblock_alloc_buffer((5,), "float32", scope="shared")
    s = T.sblock_alloc_buffer((4,), "float32", scope="shared")
    for t in T.thread_binding(8, thread="threadIdx.x"):
        with T.sblock("a"):
            vt = T.axis.spatial(5, t)
            T.where(t < 5)
            a[vt] = A[vt]
        with T.sblock("b"):
            vt = T.axis.spatial(5, t)
            T.where(t < 5)
            b[vt] = B[vt]
        with T.sblock("clear"):
            vt = T.axis.spatial(4, t)
            T.where(t < 4)
            s[vt] = T.float32(1)
        with T.sblock("add"):
            vt = T.axis.spatial(5, t)
            T.where(t < 5 and 4 <= t)
            s[vt // 5] = s[vt // 5] + a[vt] * b[vt]
        with T.sblock("C"):
            vt = T.axis.spatial(4, t)
            T.where(t < 4)
            C[vt] = s[vt]
"#;
    let program = satune_ir::tvmscript::parse(script).unwrap();
    let module = lower(&program, &LowerOptions::default()).unwrap();
    let (a, b) = (numbers(5, 3), numbers(5, 4));
    let mut params = vec![a.clone(), b.clone(), vec![0.0; 4]];
    run(&module, &mut params);
    assert_eq!(params[2], [1.0 + a[4] * b[4], 1.0, 1.0, 1.0], "{}", text(&module));
}
