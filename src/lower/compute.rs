//! What a thread computes: its accumulators, the fragments that it reads, the multiply-adds, the stores.
use super::index::{add, c, mul};
use super::Lowering;
use crate::kernel::{ArrayId, Cond, Index, Stmt, Unroll, Value};
use satune_ir::term::{Axis, Side};
use satune_ir::DType;

/// Which result of a thread: vthread numbers and register numbers along m and n.
struct Result2 {
    outer: [Index; 2],
    inner: [Index; 2],
    register: [Index; 2],
}

impl Lowering<'_> {
    /// Loops over the thread's pieces and registers along one axis, all expanded.
    fn along(
        &mut self,
        axis: Axis,
        body: impl FnOnce(&mut Self, Index, Index, Index) -> Vec<Stmt>,
        registers: bool,
    ) -> Vec<Stmt> {
        let p = self.plan;
        let (outer, inner, register) = match axis {
            Axis::M => (p.vthread_outer.m, p.vthread_inner.m, p.registers.m),
            _ => (p.vthread_outer.n, p.vthread_inner.n, p.registers.n),
        };
        let register = if registers { register } else { 1 };
        self.repeat(&format!("{axis}_vo"), outer, Unroll::Full, |this, vo| {
            this.repeat(&format!("{axis}_vi"), inner, Unroll::Full, |this, vi| {
                this.repeat(&format!("{axis}_r"), register, Unroll::Full, |this, r| body(this, vo, vi, r))
            })
        })
    }

    fn results(
        &mut self,
        m_outer: bool,
        along_n_registers: bool,
        body: impl FnOnce(&mut Self, &Result2) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        if m_outer {
            self.along(
                Axis::M,
                |this, mo, mi, mr| {
                    this.along(
                        Axis::N,
                        |this, no, ni, nr| {
                            body(this, &Result2 { outer: [mo, no], inner: [mi, ni], register: [mr, nr] })
                        },
                        along_n_registers,
                    )
                },
                true,
            )
        } else {
            self.along(
                Axis::N,
                |this, no, ni, nr| {
                    this.along(
                        Axis::M,
                        |this, mo, mi, mr| {
                            body(this, &Result2 { outer: [mo, no], inner: [mi, ni], register: [mr, nr] })
                        },
                        true,
                    )
                },
                along_n_registers,
            )
        }
    }

    /// Number of a piece along an axis.
    fn piece(&self, axis: Axis, outer: &Index, inner: &Index) -> Index {
        let inner_extent = match axis {
            Axis::M => self.plan.vthread_inner.m,
            _ => self.plan.vthread_inner.n,
        };
        add(mul(outer.clone(), inner_extent), inner.clone())
    }

    /// Position of a result in the accumulators: pieces and registers of m, then of n.
    fn sum_index(&self, at: &Result2) -> Index {
        let p = self.plan;
        let n_pieces = p.vthread_outer.n * p.vthread_inner.n;
        let m = add(mul(self.piece(Axis::M, &at.outer[0], &at.inner[0]), p.registers.m), at.register[0].clone());
        let n = add(mul(self.piece(Axis::N, &at.outer[1], &at.inner[1]), p.registers.n), at.register[1].clone());
        add(mul(m, n_pieces * p.registers.n), n)
    }

    /// (row, column) of a result within the block's tile.
    fn position(&self, at: &Result2) -> (Index, Index) {
        let along = |axis: Axis, i: usize, first: &Index| {
            add(add(first.clone(), self.piece_offset(axis, &at.outer[i], &at.inner[i])), at.register[i].clone())
        };
        (along(Axis::M, 0, &self.m_thread), along(Axis::N, 1, &self.n_thread))
    }

    /// Clears the accumulators.
    pub(super) fn clear(&mut self) -> Vec<Stmt> {
        let Some(sums) = self.sums else { return Vec::new() };
        let zero = self.zero();
        self.results(true, true, |this, at| vec![Stmt::Store { array: sums, index: this.sum_index(at), value: zero }])
    }

    fn zero(&self) -> Value {
        let dtype = self.contraction.accumulate;
        if dtype.is_float() {
            Value::Float(0.0, dtype)
        } else {
            Value::Int(0, dtype)
        }
    }

    /// The arithmetic of one k tile.
    pub(super) fn compute(&mut self, tile: &Index, slot: &Index) -> Vec<Stmt> {
        let plan = self.plan;
        let steps = plan.k_tile / plan.k_step;
        let unroll = if plan.unroll_k { Unroll::Full } else { Unroll::No };
        let slot = slot.clone();
        let tile = tile.clone();
        self.repeat("k_inner", steps, unroll, |this, step| {
            let k_in_tile = mul(step, plan.k_step);
            let mut body = Vec::new();
            for side in [Side::A, Side::B] {
                body.extend(this.read_fragment(side, &tile, &k_in_tile, &slot));
            }
            body.extend(this.repeat("kk", plan.k_step, Unroll::Full, |this, kk| {
                let k = add(k_in_tile.clone(), kk.clone());
                this.results(plan.registers_m_outer, true, |this, at| this.multiply(at, &tile, &k, &kk))
            }));
            body
        })
    }

    /// Position in a fragment of (piece, register, kk): contiguous along what one access reads.
    fn fragment_index(&self, side: Side, piece: Index, register: Index, kk: Index) -> Index {
        let (_, registers, _) = self.side_sizes(side);
        let along_k = self.plan.staging(side).shared.is_some_and(|(layout, _)| !layout.k_major);
        if along_k {
            add(mul(add(mul(piece, registers), register), self.plan.k_step), kk)
        } else {
            add(mul(add(mul(piece, self.plan.k_step), kk), registers), register)
        }
    }

    fn read_fragment(&mut self, side: Side, tile: &Index, k_in_tile: &Index, slot: &Index) -> Vec<Stmt> {
        let (Some(fragment), Some(vector)) = (self.fragment[side as usize], self.plan.staging(side).local) else {
            return Vec::new();
        };
        let plan = self.plan;
        let (_, registers, _) = self.side_sizes(side);
        let axis = side.spatial();
        let along_k = plan.staging(side).shared.is_some_and(|(layout, _)| !layout.k_major);
        let v = i64::from(vector);
        let (r_steps, k_steps) = if along_k { (registers, plan.k_step / v) } else { (registers / v, plan.k_step) };
        let (r_width, k_width) = if along_k { (1, v) } else { (v, 1) };
        self.along(
            axis,
            |this, outer, inner, _| {
                this.repeat("f_k", k_steps, Unroll::Full, |this, ks| {
                    this.repeat("f_r", r_steps, Unroll::Full, |this, rs| {
                        let (r, kk) = (mul(rs, r_width), mul(ks, k_width));
                        let piece = this.piece(axis, &outer, &inner);
                        let dst_index = this.fragment_index(side, piece, r.clone(), kk.clone());
                        let first = if axis == Axis::M { this.m_thread.clone() } else { this.n_thread.clone() };
                        let x = add(add(first, this.piece_offset(axis, &outer, &inner)), r);
                        let k = add(k_in_tile.clone(), kk);
                        let (src, src_index, zero_unless) = match this.shared[side as usize] {
                            Some(shared) => (shared, this.shared_index(side, &x, &k, slot), Cond::True),
                            None => this.global_element(side, &x, tile, &k),
                        };
                        vec![Stmt::Copy { dst: fragment, dst_index, src, src_index, width: vector, zero_unless }]
                    })
                })
            },
            false,
        )
    }

    /// An operand's element in global memory: array, index, and the condition that it exists.
    fn global_element(&self, side: Side, x: &Index, tile: &Index, k: &Index) -> (ArrayId, Index, Cond) {
        let operand = self.contraction.operand(side);
        let origin = if side == Side::A { &self.m0 } else { &self.n0 };
        let x = add(origin.clone(), x.clone());
        let k = add(add(self.k0.clone(), mul(tile.clone(), self.plan.k_tile)), k.clone());
        let exists = super::index::all(vec![self.within(side.spatial(), &x), self.within(Axis::K, &k)]);
        (self.global[side as usize], self.global_index(operand, &x, &x, &k), exists)
    }

    fn multiply(&mut self, at: &Result2, tile: &Index, k: &Index, kk: &Index) -> Vec<Stmt> {
        let dtype = self.contraction.accumulate;
        let (m, n) = self.position(at);
        let factor = |this: &Self, side: Side| {
            let i = side as usize;
            let operand = this.contraction.operand(side);
            let value = match this.fragment[i] {
                Some(fragment) => {
                    let piece = this.piece(side.spatial(), &at.outer[i], &at.inner[i]);
                    Value::Load(fragment, this.fragment_index(side, piece, at.register[i].clone(), kk.clone()))
                }
                None => {
                    let (array, index, exists) =
                        this.global_element(side, if side == Side::A { &m } else { &n }, tile, k);
                    let load = Value::Load(array, index);
                    match exists {
                        Cond::True => load,
                        exists => {
                            let zero = Value::Float(0.0, operand.dtype);
                            Value::Select(exists, Box::new(load), Box::new(zero))
                        }
                    }
                }
            };
            convert(value, operand.dtype, dtype)
        };
        let (a, b) = (factor(self, Side::A), factor(self, Side::B));
        let fma = |sum: Value| Value::Fma(dtype, Box::new(a.clone()), Box::new(b.clone()), Box::new(sum));
        match self.sums {
            Some(sums) => {
                let index = self.sum_index(at);
                let sum = Value::Load(sums, index.clone());
                let update = Stmt::Store { array: sums, index: index.clone(), value: fma(sum) };
                self.first_clears(sums, index, tile, k, update)
            }
            None => {
                let (row, column) = (add(self.m0.clone(), m.clone()), add(self.n0.clone(), n.clone()));
                let out = self.global[2];
                let index = self.global_index(&self.contraction.c, &row, &column, &c(0));
                let update =
                    Stmt::Store { array: out, index: index.clone(), value: fma(Value::Load(out, index.clone())) };
                let body = self.first_clears(out, index, tile, k, update);
                match self.inside(&row, &column) {
                    Cond::True => body,
                    cond => vec![Stmt::If { cond, then: body, otherwise: vec![] }],
                }
            }
        }
    }

    /// Where the init is not hoisted, the first k value clears the sum.
    fn first_clears(&self, array: ArrayId, index: Index, tile: &Index, k: &Index, update: Stmt) -> Vec<Stmt> {
        if self.plan.init_hoisted {
            return vec![update];
        }
        let k = add(mul(tile.clone(), self.plan.k_tile), k.clone());
        let mut sum = k;
        for (axis, value) in &self.others {
            if matches!(axis, Axis::Outer(_)) {
                sum = add(sum, value.clone());
            }
        }
        let clear = Stmt::Store { array, index, value: self.zero() };
        vec![Stmt::If { cond: Cond::Eq(sum, c(0)), then: vec![clear], otherwise: vec![] }, update]
    }

    /// Stores the accumulators.
    pub(super) fn drain(&mut self) -> Vec<Stmt> {
        let Some(sums) = self.sums else { return Vec::new() };
        let plan = self.plan;
        let width = i64::from(plan.store_vector);
        let out = self.global[2];
        let results: i64 = self.contraction.c.dims.iter().map(|axis| self.contraction.extent(*axis)).product();
        self.results(true, false, |this, at| {
            this.repeat("n_store", plan.registers.n / width, Unroll::Full, |this, piece| {
                let mut register = at.register.clone();
                register[1] = mul(piece, width);
                let at = Result2 { outer: at.outer.clone(), inner: at.inner.clone(), register };
                let (m, n) = this.position(&at);
                let (row, column) = (add(this.m0.clone(), m), add(this.n0.clone(), n));
                let place = this.global_index(&this.contraction.c, &row, &column, &c(0));
                let store = Stmt::Copy {
                    dst: out,
                    dst_index: add(mul(this.part.clone(), results), place),
                    src: sums,
                    src_index: this.sum_index(&at),
                    width: plan.store_vector,
                    zero_unless: Cond::True,
                };
                match this.inside(&row, &column) {
                    Cond::True => vec![store],
                    cond => vec![Stmt::If { cond, then: vec![store], otherwise: vec![] }],
                }
            })
        })
    }
}

fn convert(value: Value, from: DType, to: DType) -> Value {
    if from == to {
        value
    } else {
        Value::Cast(to, Box::new(value))
    }
}
