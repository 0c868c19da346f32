//! Commutative reducers: which one a reduction block computes, and with what.
//!
//! A reduction `C = C + A * B` with identity 0 is taken apart into its reducer `x + y`, the accumulator `C` and what is
//! added, `A * B`. Several accumulators together are known too: sums in pairs, the place and value of a maximum or minimum.
use crate::arith::int;
use crate::schedule::Result;
use crate::{text, ScheduleError};
use satune_ir::{visit, BinOp, Block, BufferId, DType, Expr, Program, Stmt, Var, VarId};
use std::collections::HashMap;
use std::sync::Arc;

/// A reduction block taken apart: per buffer that it reduces into, in the order of the updates.
#[derive(Clone, Debug)]
pub struct Reduction {
    /// The buffers.
    pub buffers: Vec<BufferId>,
    /// Where all of them are written.
    pub indices: Vec<Expr>,
    /// The values they start with.
    pub identities: Vec<Expr>,
    /// What is combined with them.
    pub operands: Vec<Expr>,
    results: Vec<Expr>,
}

/// The variable that stands for the accumulator (`side` 0) or the operand (1) of buffer `i` in a reducer's results.
fn hole(side: u32, i: usize, dtype: DType) -> Expr {
    let id = u32::MAX - 2 * i as u32 - side;
    Expr::Var(Var { id: VarId(id), name: if side == 0 { "x".into() } else { "y".into() }, dtype })
}

impl Reduction {
    /// What is stored where `accumulators` are combined with `operands`.
    pub fn combined(&self, accumulators: &[Expr], operands: &[Expr]) -> Vec<Expr> {
        let mut map = HashMap::new();
        for (side, values) in [(0, accumulators), (1, operands)] {
            for (i, value) in values.iter().enumerate() {
                map.insert(VarId(u32::MAX - 2 * i as u32 - side), value.clone());
            }
        }
        self.results.iter().map(|e| visit::substitute(e, &map)).collect()
    }
}

const APPLICABLE: &str =
    "Definition of a reduction block that is applicable by RFactor and Cross-Thread Reduction:\n1) The block init should be a \
     single BufferStore or a SeqStmt of BufferStores\n2) The buffers initialized in the block init should be all different\n3) \
     The number of consecutive Binds in the block body (if any) should equal the number of BufferStores in the block init\n4) \
     The variables of the Binds in the block body should be all different\n5) The statement after the innermost Bind should be \
     a single BufferStore or a SeqStmt of BufferStores\n6) The number of BufferStores under the block body should equal the \
     number of BufferStores in the block init, and thereby equal the number of Binds above\n7) The variables bound by the \
     Binds in the block body must all directly serve as values of the BufferStores inside, and the stored values of the \
     BufferStores can only be those variables\n8) The variables stored by the BufferStores in the block body should be all \
     different\n9) The buffers written by the BufferStores in the block body should be all different\n10) The buffers \
     initialized in the block init and written in the block body should match\n11) The buffers written by the block should \
     have same shape\n12) The indices of all BufferStores in the reduction block should be the same";

/// A store: buffer, indices, value.
pub(crate) type Store = (BufferId, Vec<Expr>, Expr);

/// The stores that a statement consists of.
pub(crate) fn stores(stmt: &Stmt) -> Option<Vec<Store>> {
    let one = |s: &Stmt| match s {
        Stmt::Store { buffer, indices, value } => Some((*buffer, indices.clone(), value.clone())),
        _ => None,
    };
    crate::tree::entries(stmt).iter().map(one).collect()
}

/// Stands for what TVM checks without a number: one update for several inits.
const UNBALANCED: u8 = 0;

/// Whether no two of the items are the same.
fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> bool {
    let items: Vec<T> = items.into_iter().collect();
    items.iter().enumerate().all(|(i, a)| !items[..i].contains(a))
}

/// The init values and the updates, in the order of the updates; otherwise the number of the condition that does not hold.
fn updates(program: &Program, block: &Block) -> std::result::Result<(Vec<Expr>, Vec<Store>), u8> {
    let inits = block.init.as_deref().and_then(stores).ok_or(1)?;
    if !distinct(inits.iter().map(|s| s.0)) {
        return Err(2);
    }
    let updates = match &*block.body {
        Stmt::Store { buffer, indices, value } => vec![(*buffer, indices.clone(), value.clone())],
        body => bound_updates(body, inits.len())?,
    };
    if updates.len() != inits.len() {
        return Err(UNBALANCED);
    }
    let shape = |id: BufferId| &program.buffer(id).shape;
    if updates.iter().any(|u| shape(u.0) != shape(updates[0].0)) {
        return Err(11);
    }
    if inits.iter().chain(&updates).any(|s| s.1 != updates[0].1) {
        return Err(12);
    }
    let value = |u: &Store| inits.iter().find(|i| i.0 == u.0).map(|i| i.2.clone()).ok_or(10);
    let values = updates.iter().map(value).collect::<std::result::Result<_, _>>()?;
    Ok((values, updates))
}

/// Updates of several buffers: all values are bound before any is stored.
fn bound_updates(body: &Stmt, count: usize) -> std::result::Result<Vec<Store>, u8> {
    let mut bound: Vec<(VarId, &Expr)> = Vec::new();
    let mut at = body;
    while let Stmt::Let { var, value, body } = at {
        bound.push((var.id, value));
        at = body;
    }
    if bound.len() != count {
        return Err(3);
    }
    if !distinct(bound.iter().map(|b| b.0)) {
        return Err(4);
    }
    let stored = stores(at).ok_or(5)?;
    if stored.len() != count {
        return Err(6);
    }
    let mut order = Vec::new();
    for s in &stored {
        let Expr::Var(v) = &s.2 else { return Err(7) };
        order.push(bound.iter().position(|b| b.0 == v.id).ok_or(7)?);
    }
    if !distinct(order.iter()) {
        return Err(8);
    }
    if !distinct(stored.iter().map(|s| s.0)) {
        return Err(9);
    }
    let mut out: Vec<(usize, Store)> =
        stored.into_iter().zip(order).map(|((b, i, _), n)| (n, (b, i, bound[n].1.clone()))).collect();
    out.sort_by_key(|(n, _)| *n);
    Ok(out.into_iter().map(|(_, s)| s).collect())
}

/// Takes a reduction block apart. Refused where init and update have another form, or compute no reducer that is known.
pub fn of(program: &Program, block: &Block) -> Result<Reduction> {
    let (identities, updates) = updates(program, block).map_err(|n| {
        if n == UNBALANCED {
            let why = format!("Block {} initializes more buffers than it updates", block.name);
            return ScheduleError::internal(why).at_block(block.id);
        }
        ScheduleError::refused(
            "RFactor cannot be applied to the block since the block does not meet the requirements",
            format!(
                "RFactor cannot be applied to block {}, because the block violates condition #{n}.\n{APPLICABLE}",
                block.name
            ),
        )
        .at_block(block.id)
        .remedy("write the reduction as one update `S = S op x` under an init with the operation's neutral value")
    })?;
    let loads: Vec<Expr> = updates.iter().map(|u| Expr::Load(u.0, u.1.clone())).collect();
    let types: Vec<DType> = updates.iter().map(|u| program.buffer(u.0).dtype).collect();
    for (known, results) in known_reducers(&types) {
        if !known.iter().zip(&identities).all(|(a, b)| same_constant(a, b)) {
            continue;
        }
        let mut holes = HashMap::new();
        let fits = results.iter().zip(&updates).all(|(pattern, u)| matches(pattern, &u.2, &mut holes));
        let filled = |side: u32, i: usize| holes.get(&VarId(u32::MAX - 2 * i as u32 - side)).cloned();
        let accumulates = loads.iter().enumerate().all(|(i, l)| filled(0, i).as_ref() == Some(l));
        let operands: Option<Vec<Expr>> = (0..loads.len()).map(|i| filled(1, i)).collect();
        if let (true, true, Some(operands)) = (fits, accumulates, operands) {
            // An operand that reads the accumulator again makes it no reduction.
            let again = |e: &Expr| visit::loads(e).iter().any(|(b, _)| updates.iter().any(|u| u.0 == *b));
            if !operands.iter().any(again) {
                return Ok(Reduction {
                    buffers: updates.iter().map(|u| u.0).collect(),
                    indices: updates[0].1.clone(),
                    identities: known,
                    operands,
                    results,
                });
            }
        }
    }
    let list = |e: Vec<&Expr>| e.into_iter().map(text::expr).collect::<Vec<_>>().join(", ");
    Err(ScheduleError::refused(
        "No matched reducer for the identity and the combiner of this reduction block. So rfactor and cross-thread reduction \
         cannot be applied.",
        format!(
            "No matched reducer for identity [{}] and combiner [{}]: rfactor cannot be applied to block {}",
            list(identities.iter().collect()),
            list(updates.iter().map(|u| &u.2).collect()),
            block.name
        ),
    )
    .at_block(block.id)
    .remedy("write the update as `C = C + ...`, `C * ...`, `T.min(C, ...)` or `T.max(C, ...)`, and the init as its identity"))
}

/// Whether an expression is a pattern with its holes filled, the same way everywhere.
fn matches(pattern: &Expr, e: &Expr, holes: &mut HashMap<VarId, Expr>) -> bool {
    match (pattern, e) {
        (Expr::Var(v), _) => holes.entry(v.id).or_insert_with(|| e.clone()) == e,
        (Expr::Binary(p, a, b), Expr::Binary(q, c, d)) => p == q && matches(a, c, holes) && matches(b, d, holes),
        (
            Expr::Select { lazy, cond, then, otherwise },
            Expr::Select { lazy: other, cond: c, then: t, otherwise: o },
        ) => lazy == other && matches(cond, c, holes) && matches(then, t, holes) && matches(otherwise, o, holes),
        _ => pattern == e,
    }
}

fn same_constant(a: &Expr, b: &Expr) -> bool {
    match (a, b) {
        (Expr::Int(x, s), Expr::Int(y, t)) => x == y && s == t,
        (Expr::Float(x, s), Expr::Float(y, t)) => f64::from_bits(*x) == f64::from_bits(*y) && s == t,
        _ => false,
    }
}

/// A whole number as a constant of a type.
pub(crate) fn number(value: i64, dtype: DType) -> Expr {
    if dtype.is_float() {
        Expr::Float((value as f64).to_bits(), dtype)
    } else {
        int(value, dtype)
    }
}

/// The smallest and largest finite value of a type.
pub(crate) fn limits(dtype: DType) -> (Expr, Expr) {
    let float = |max: f64| (Expr::Float((-max).to_bits(), dtype), Expr::Float(max.to_bits(), dtype));
    let ints = |min: i64, max: i64| (int(min, dtype), int(max, dtype));
    match dtype {
        DType::Bool => ints(0, 1),
        DType::I8 => ints(i8::MIN.into(), i8::MAX.into()),
        DType::I16 => ints(i16::MIN.into(), i16::MAX.into()),
        DType::I32 => ints(i32::MIN.into(), i32::MAX.into()),
        DType::I64 | DType::Handle => ints(i64::MIN, i64::MAX),
        DType::U8 => ints(0, u8::MAX.into()),
        DType::U16 => ints(0, u16::MAX.into()),
        DType::U32 => ints(0, u32::MAX.into()),
        // Larger ones are no constants of this language.
        DType::U64 => ints(0, i64::MAX),
        DType::F8E4M3 => float(448.0),
        DType::F8E5M2 => float(57344.0),
        DType::F16 => float(65504.0),
        // 8 and 11 bits of significand, the exponents of f32.
        DType::BF16 => float(f64::from(f32::from_bits(0x7f7f_0000))),
        DType::TF32 => float(f64::from(f32::from_bits(0x7f7f_e000))),
        DType::F32 => float(f64::from(f32::MAX)),
        DType::F64 => float(f64::MAX),
    }
}

/// Identities and results of the reducers for accumulators of these types, in TVM's order.
fn known_reducers(types: &[DType]) -> Vec<(Vec<Expr>, Vec<Expr>)> {
    let binary = |op: BinOp, a: &Expr, b: &Expr| Expr::Binary(op, Arc::new(a.clone()), Arc::new(b.clone()));
    match *types {
        [t] => {
            let (x, y) = (hole(0, 0, t), hole(1, 0, t));
            let (min, max) = limits(t);
            [(BinOp::Add, number(0, t)), (BinOp::Mul, number(1, t)), (BinOp::Min, max), (BinOp::Max, min)]
                .into_iter()
                .map(|(op, identity)| (vec![identity], vec![binary(op, &x, &y)]))
                .collect()
        }
        [t, u] => {
            let (x, y) = ([hole(0, 0, t), hole(0, 1, u)], [hole(1, 0, t), hole(1, 1, u)]);
            let sums = [0, 1].map(|i| binary(BinOp::Add, &x[i], &y[i])).to_vec();
            let mut out = vec![(vec![number(0, t), number(0, u)], sums)];
            let pick = |cond: &Expr, i: usize| Expr::Select {
                lazy: false,
                cond: Arc::new(cond.clone()),
                then: Arc::new(x[i].clone()),
                otherwise: Arc::new(y[i].clone()),
            };
            let (min, max) = limits(u);
            // Ties: whichever came first in the order of combination; the smaller place; the larger place.
            for tie in [None, Some(BinOp::Lt), Some(BinOp::Gt)] {
                for (better, worst) in [(BinOp::Gt, &min), (BinOp::Lt, &max)] {
                    let or_equal = if better == BinOp::Gt { BinOp::Ge } else { BinOp::Le };
                    let results = match tie {
                        None => [0, 1].map(|i| pick(&binary(or_equal, &x[1], &y[1]), i)).to_vec(),
                        Some(place) => {
                            let wins = binary(better, &x[1], &y[1]);
                            let equal = binary(BinOp::Eq, &x[1], &y[1]);
                            let first = binary(BinOp::And, &equal, &binary(place, &x[0], &y[0]));
                            vec![pick(&binary(BinOp::Or, &wins, &first), 0), pick(&wins, 1)]
                        }
                    };
                    out.push((vec![number(-1, t), worst.clone()], results));
                }
            }
            out
        }
        _ => Vec::new(),
    }
}
