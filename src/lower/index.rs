//! Building integer expressions, folded as they are built.
use crate::kernel::{Cond, Index};

/// A constant.
pub fn c(value: i64) -> Index {
    Index::Const(value)
}

/// `a + b`.
pub fn add(a: Index, b: Index) -> Index {
    match (a, b) {
        (Index::Const(0), x) | (x, Index::Const(0)) => x,
        (Index::Const(x), Index::Const(y)) => c(x + y),
        (Index::Add(x, y), Index::Const(z)) => match *y {
            Index::Const(y) => add(*x, c(y + z)),
            y => Index::Add(Box::new(Index::Add(x, Box::new(y))), Box::new(c(z))),
        },
        (x @ Index::Const(_), y) => Index::Add(Box::new(y), Box::new(x)),
        (a, b) => Index::Add(Box::new(a), Box::new(b)),
    }
}

/// `a * k`.
pub fn mul(a: Index, k: i64) -> Index {
    match a {
        _ if k == 0 => c(0),
        a if k == 1 => a,
        Index::Const(x) => c(x * k),
        Index::Mul(x, y) => match *y {
            Index::Const(y) => mul(*x, y * k),
            y => Index::Mul(Box::new(Index::Mul(x, Box::new(y))), Box::new(c(k))),
        },
        a => Index::Mul(Box::new(a), Box::new(c(k))),
    }
}

/// `a / k`, a not negative.
pub fn div(a: Index, k: i64) -> Index {
    match a {
        a if k == 1 => a,
        Index::Const(x) => c(x / k),
        a => Index::Div(Box::new(a), Box::new(c(k))),
    }
}

/// `a % k`, a not negative.
pub fn rem(a: Index, k: i64) -> Index {
    match a {
        _ if k == 1 => c(0),
        Index::Const(x) => c(x % k),
        a => Index::Mod(Box::new(a), Box::new(c(k))),
    }
}

/// `a ^ b`.
pub fn xor(a: Index, b: Index) -> Index {
    match (a, b) {
        (Index::Const(x), Index::Const(y)) => c(x ^ y),
        (x, Index::Const(0)) | (Index::Const(0), x) => x,
        (a, b) => Index::Xor(Box::new(a), Box::new(b)),
    }
}

/// All of the conditions.
pub fn all(list: Vec<Cond>) -> Cond {
    let mut kept: Vec<Cond> = list.into_iter().filter(|c| *c != Cond::True).collect();
    match kept.len() {
        0 => Cond::True,
        1 => kept.remove(0),
        _ => Cond::And(kept),
    }
}
