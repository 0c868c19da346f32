//! Programs that tests lower, built by hand.
use satune_ir::*;
use std::sync::Arc;

/// An expression with operators.
#[derive(Clone, Debug)]
pub struct E(pub Expr);

macro_rules! operator {
    ($trait:ident, $method:ident, $op:ident) => {
        impl<T: Into<E>> std::ops::$trait<T> for E {
            type Output = E;
            fn $method(self, other: T) -> E {
                E(Expr::Binary(BinOp::$op, Arc::new(self.0), Arc::new(other.into().0)))
            }
        }
    };
}
operator!(Add, add, Add);
operator!(Mul, mul, Mul);
operator!(Div, div, FloorDiv);
operator!(Rem, rem, FloorMod);
operator!(BitAnd, bitand, And);
operator!(BitXor, bitxor, BitXor);

impl From<i64> for E {
    fn from(v: i64) -> E {
        E(Expr::Int(v, DType::I32))
    }
}
impl E {
    pub fn lt(self, other: impl Into<E>) -> E {
        E(Expr::Binary(BinOp::Lt, Arc::new(self.0), Arc::new(other.into().0)))
    }
    pub fn cast(self, dtype: DType) -> E {
        E(Expr::Cast(dtype, Arc::new(self.0)))
    }
}

/// The condition true.
pub fn always() -> E {
    E(Expr::Int(1, DType::Bool))
}

pub struct Builder {
    pub program: Program,
}

impl Builder {
    pub fn new() -> Builder {
        let block = Block {
            id: BlockId(0),
            name: "root".into(),
            iter_vars: vec![],
            reads: vec![],
            writes: vec![],
            init: None,
            alloc_buffers: vec![],
            match_buffers: vec![],
            annotations: Annotations::new(),
            body: Box::new(Stmt::Seq(vec![])),
        };
        let body = BlockRealize { iter_values: vec![], predicate: always().0, block };
        let (name, attrs) = ("main".into(), Annotations::new());
        let program = Program { name, params: vec![], buffers: vec![], attrs, body, next_var: 0, next_block: 1 };
        Builder { program }
    }

    pub fn buffer(&mut self, name: &str, shape: &[i64], dtype: DType, scope: &str) -> BufferId {
        let id = self.program.add_buffer(Buffer {
            name: name.into(),
            dtype,
            shape: shape.iter().map(|v| E::from(*v).0).collect(),
            strides: vec![],
            elem_offset: None,
            scope: scope.into(),
            align: 0,
            offset_factor: 0,
        });
        self.program.body.block.alloc_buffers.push(id);
        id
    }

    pub fn param(&mut self, name: &str, shape: &[i64], dtype: DType) -> BufferId {
        let id = self.buffer(name, shape, dtype, "global");
        self.program.body.block.alloc_buffers.pop();
        self.program.params.push(id);
        id
    }

    pub fn finish(mut self, body: Vec<Stmt>) -> Program {
        self.program.body.block.body = Box::new(Stmt::seq(body));
        self.program
    }

    pub fn each(&mut self, name: &str, extent: i64, kind: &str, body: impl FnOnce(&mut Self, E) -> Stmt) -> Stmt {
        self.annotated(name, extent, kind, Annotations::new(), body)
    }

    pub fn annotated(
        &mut self,
        name: &str,
        extent: i64,
        kind: &str,
        annotations: Annotations,
        body: impl FnOnce(&mut Self, E) -> Stmt,
    ) -> Stmt {
        let var = self.program.fresh_var(name, DType::I32);
        let body = body(self, E(Expr::Var(var.clone())));
        let kind = match kind {
            "" => ForKind::Serial,
            "vectorized" => ForKind::Vectorized,
            "unrolled" => ForKind::Unrolled,
            tag => ForKind::ThreadBinding(tag.into()),
        };
        Stmt::For(For { var, min: E::from(0).0, extent: E::from(extent).0, kind, annotations, body: Box::new(body) })
    }

    /// A block; `iters`: "S" or "R", extent, value.
    pub fn block(
        &mut self,
        name: &str,
        iters: &[(&str, i64, E)],
        predicate: E,
        annotations: Annotations,
        body: impl FnOnce(&[E]) -> (Option<Stmt>, Stmt),
    ) -> Stmt {
        let mut iter_vars = Vec::new();
        for (i, (kind, extent, _)) in iters.iter().enumerate() {
            let var = self.program.fresh_var(format!("v{i}"), DType::I32);
            let kind = if *kind == "R" { IterKind::Reduce } else { IterKind::Spatial };
            iter_vars.push(IterVar { var, min: E::from(0).0, extent: E::from(*extent).0, kind });
        }
        let vars: Vec<E> = iter_vars.iter().map(|iv| E(Expr::Var(iv.var.clone()))).collect();
        let (init, body) = body(&vars);
        let block = Block {
            id: self.program.fresh_block(),
            name: name.into(),
            iter_vars,
            reads: vec![],
            writes: vec![],
            init: init.map(Box::new),
            alloc_buffers: vec![],
            match_buffers: vec![],
            annotations,
            body: Box::new(body),
        };
        let iter_values = iters.iter().map(|(_, _, e)| e.0.clone()).collect();
        Stmt::Realize(Box::new(BlockRealize { iter_values, predicate: predicate.0, block }))
    }
}

pub fn load(b: BufferId, at: &[E]) -> E {
    E(Expr::Load(b, at.iter().map(|e| e.0.clone()).collect()))
}

pub fn store(buffer: BufferId, at: &[E], value: E) -> Stmt {
    Stmt::Store { buffer, indices: at.iter().map(|e| e.0.clone()).collect(), value: value.0 }
}

pub fn float(v: f64, dtype: DType) -> E {
    E(Expr::Float(v.to_bits(), dtype))
}

/// A list of integers as an annotation.
pub fn ints(list: &[i64]) -> Attr {
    Attr::List(list.iter().map(|v| Attr::Int(*v)).collect())
}

/// A tiled product C = A B, as the staircase's schedules write it.
#[derive(Clone, Debug)]
pub struct Gemm {
    pub shape: (i64, i64, i64),
    pub threads: (i64, i64),
    pub vthreads: (i64, i64),
    pub registers: (i64, i64),
    pub k_tile: i64,
    /// Elements per access of the copies to shared memory, and of local copies and stores.
    pub vector: i64,
    pub local_vector: i64,
    pub unroll: bool,
    pub init_inside: bool,
    /// Shared A is stored as [k, m].
    pub transposed: bool,
    pub input: DType,
    pub k_annotations: Annotations,
    pub copy_annotations: Annotations,
}

impl Default for Gemm {
    fn default() -> Gemm {
        Gemm {
            shape: (64, 64, 32),
            threads: (4, 4),
            vthreads: (1, 1),
            registers: (4, 4),
            k_tile: 8,
            vector: 1,
            local_vector: 1,
            unroll: false,
            init_inside: false,
            transposed: false,
            input: DType::F32,
            k_annotations: Annotations::new(),
            copy_annotations: Annotations::new(),
        }
    }
}

impl Gemm {
    /// The program.
    pub fn program(&self) -> Program {
        let (m, n, k) = self.shape;
        let (bm, bn, bk) = (
            self.threads.0 * self.vthreads.0 * self.registers.0,
            self.threads.1 * self.vthreads.1 * self.registers.1,
            self.k_tile,
        );
        let up = |x: i64, y: i64| (x + y - 1) / y;
        let mut b = Builder::new();
        let a_in = b.param("A", &[m, k], self.input);
        let b_in = b.param("B", &[k, n], self.input);
        let out = b.param("C", &[m, n], DType::F32);
        let a_shape = if self.transposed { [k, m] } else { [m, k] };
        let a_sh = b.buffer("A_shared", &a_shape, self.input, "shared");
        let b_sh = b.buffer("B_shared", &[k, n], self.input, "shared");
        let a_lo = b.buffer("A_shared_local", &[m, k], self.input, "local");
        let b_lo = b.buffer("B_shared_local", &[k, n], self.input, "local");
        let sum = b.buffer("C_local", &[m, n], DType::F32, "local");
        let below = move |e: &E, bound: i64, tile: i64| if bound % tile == 0 { always() } else { e.clone().lt(bound) };
        let both = |x: E, y: E| match (&x.0, &y.0) {
            (Expr::Int(..), _) => y,
            (_, Expr::Int(..)) => x,
            _ => x & y,
        };
        let a_at = |v: &[E]| if self.transposed { vec![v[1].clone(), v[0].clone()] } else { v.to_vec() };
        let this = self.clone();
        let nest = b.each("i_0", up(m, bm), "blockIdx.y", |b, i0| {
            b.each("j_0", up(n, bn), "blockIdx.x", |b, j0| {
                b.each("i_1", this.vthreads.0, "vthread.y", |b, i1| {
                    b.each("j_1", this.vthreads.1, "vthread.x", |b, j1| {
                        b.each("i_2", this.threads.0, "threadIdx.y", |b, i2| {
                            b.each("j_2", this.threads.1, "threadIdx.x", |b, j2| {
                                let row = i0.clone() * bm + i1 * (bm / this.vthreads.0) + i2 * this.registers.0;
                                let column = j0.clone() * bn + j1 * (bn / this.vthreads.1) + j2 * this.registers.1;
                                let loops = if this.unroll { "unrolled" } else { "" };
                                let vector = if this.local_vector > 1 { "vectorized" } else { "" };
                                let two = |b: &mut Builder, kind: &str, last: &str, f: &mut dyn FnMut(&mut Builder, E, E) -> Stmt| {
                                    b.each("i_3", this.registers.0, kind, |b, x| {
                                        b.each("j_3", this.registers.1, last, |b, y| f(b, row.clone() + x.clone(), column.clone() + y))
                                    })
                                };
                                let inside = |r: &E, c: &E| both(below(r, m, bm), below(c, n, bn));
                                let init = two(b, loops, loops, &mut |b, r, c| {
                                    let p = inside(&r, &c);
                                    b.block("C_init", &[("S", m, r), ("S", n, c)], p, Annotations::new(), |v| {
                                        (None, store(sum, v, float(0.0, DType::F32)))
                                    })
                                });
                                let k_loop = b.annotated("k_0", up(k, bk), "", this.k_annotations.clone(), |b, k0| {
                                    let fill = |b: &mut Builder, name: &str, tile: (i64, i64), origin: (E, E), whole: (i64, i64), copy: &dyn Fn(&[E]) -> Stmt| {
                                        let per = this.threads.0 * this.threads.1 * this.vector;
                                        let elements = tile.0 * tile.1;
                                        b.each("ax_0", up(elements, per), "", |b, f0| {
                                            b.each("ax_1", this.threads.0, "threadIdx.y", |b, f1| {
                                                b.each("ax_2", this.threads.1, "threadIdx.x", |b, f2| {
                                                    let lanes = if this.vector > 1 { "vectorized" } else { "" };
                                                    b.each("ax_3", this.vector, lanes, |b, f3| {
                                                        let fused = f0 * per + f1 * (this.threads.1 * this.vector) + f2 * this.vector + f3;
                                                        let v0 = origin.0 + fused.clone() / tile.1;
                                                        let v1 = origin.1 + fused.clone() % tile.1;
                                                        let p = both(below(&v0, whole.0, tile.0), below(&v1, whole.1, tile.1));
                                                        let p = both(p, if elements % per == 0 { always() } else { fused.lt(elements) });
                                                        b.block(name, &[("S", whole.0, v0), ("S", whole.1, v1)], p, this.copy_annotations.clone(), |v| (None, copy(v)))
                                                    })
                                                })
                                            })
                                        })
                                    };
                                    let a = fill(b, "A_shared", (bm, bk), (i0.clone() * bm, k0.clone() * bk), (m, k), &|v| store(a_sh, &a_at(v), load(a_in, v)));
                                    let bb = fill(b, "B_shared", (bk, bn), (k0.clone() * bk, j0.clone() * bn), (k, n), &|v| store(b_sh, v, load(b_in, v)));
                                    let compute = b.each("k_1", bk, loops, |b, k1| {
                                        let kk = k0.clone() * bk + k1;
                                        let a_kind = if this.transposed { vector } else { "" };
                                        let a_l = b.each("ax0", this.registers.0, a_kind, |b, x| {
                                            let r = row.clone() + x;
                                            let p = both(below(&r, m, bm), below(&kk, k, bk));
                                            b.block("A_local", &[("S", m, r), ("S", k, kk.clone())], p, Annotations::new(), |v| (None, store(a_lo, v, load(a_sh, &a_at(v)))))
                                        });
                                        let b_l = b.each("ax1", this.registers.1, vector, |b, y| {
                                            let c = column.clone() + y;
                                            let p = both(below(&kk, k, bk), below(&c, n, bn));
                                            b.block("B_local", &[("S", k, kk.clone()), ("S", n, c)], p, Annotations::new(), |v| (None, store(b_lo, v, load(b_sh, v))))
                                        });
                                        let update = two(b, loops, loops, &mut |b, r, c| {
                                            let p = both(inside(&r, &c), below(&kk, k, bk));
                                            b.block("C_update", &[("S", m, r), ("S", n, c), ("R", k, kk.clone())], p, Annotations::new(), |v| {
                                                let at = [v[0].clone(), v[1].clone()];
                                                let wide = |e: E| if this.input == DType::F32 { e } else { e.cast(DType::F32) };
                                                let product = wide(load(a_lo, &[v[0].clone(), v[2].clone()])) * wide(load(b_lo, &[v[2].clone(), v[1].clone()]));
                                                let init = this.init_inside.then(|| store(sum, &at, float(0.0, DType::F32)));
                                                (init, store(sum, &at, load(sum, &at) + product))
                                            })
                                        });
                                        Stmt::seq(vec![a_l, b_l, update])
                                    });
                                    Stmt::Seq(vec![a, bb, compute])
                                });
                                let drain = two(b, "", vector, &mut |b, r, c| {
                                    let p = inside(&r, &c);
                                    b.block("C_local", &[("S", m, r), ("S", n, c)], p, Annotations::new(), |v| (None, store(out, v, load(sum, v))))
                                });
                                Stmt::seq(if this.init_inside { vec![k_loop, drain] } else { vec![init, k_loop, drain] })
                            })
                        })
                    })
                })
            })
        });
        b.finish(vec![nest])
    }
}
