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

/// `a - b`.
pub fn minus(a: Index, b: Index) -> Index {
    Index::Sub(Box::new(a), Box::new(b))
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

/// `index * k`, summand by summand: what is constant remains one.
pub fn scaled(index: &Index, k: i64) -> Index {
    match index {
        Index::Add(a, b) => Index::Add(Box::new(scaled(a, k)), Box::new(scaled(b, k))),
        index => mul(index.clone(), k),
    }
}

/// `a + b`, summand by summand.
pub fn sum(a: Index, b: Index) -> Index {
    match b {
        Index::Add(x, y) => add(sum(a, *x), *y),
        b => add(a, b),
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

/// Row and column of a number: down `group` rows, then the next column, and after the last column the next rows.
pub fn grouped(number: &Index, rows: i64, columns: i64, group: i64) -> (Index, Index) {
    let group = group.clamp(1, rows);
    if group == 1 {
        return (div(number.clone(), columns), rem(number.clone(), columns));
    }
    let per = group * columns;
    let first = mul(div(number.clone(), per), group);
    let within = rem(number.clone(), per);
    if rows % group == 0 {
        return (add(first, rem(within.clone(), group)), div(within, group));
    }
    // The last group has fewer rows.
    let left = minus(c(rows), first.clone());
    let high = Index::Min(Box::new(left), Box::new(c(group)));
    let row = Index::Mod(Box::new(within.clone()), Box::new(high.clone()));
    (add(first, row), Index::Div(Box::new(within), Box::new(high)))
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
