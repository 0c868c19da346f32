//! How annotations are read. What is not annotated is the usual: 0, or no.
use crate::space::unread::{wrong, Read};
use satune_ir::{Annotations, Attr};

/// The number of an annotation; 0 where there is none.
pub(super) fn number(place: &str, annotations: &Annotations, key: &str) -> Read<i64> {
    match annotations.get(key) {
        None => Ok(0),
        Some(Attr::Int(n)) => Ok(*n),
        Some(_) => wrong(place, format!("annotation `{key}` is no number")),
    }
}

/// The same, where it is not negative.
pub(super) fn small(place: &str, annotations: &Annotations, key: &str) -> Read<u32> {
    let n = number(place, annotations, key)?;
    u32::try_from(n).or_else(|_| wrong(place, format!("annotation `{key}` is {n}")))
}

/// Yes or no; no where there is none.
pub(super) fn flag(place: &str, annotations: &Annotations, key: &str) -> Read<bool> {
    match number(place, annotations, key)? {
        0 => Ok(false),
        1 => Ok(true),
        n => wrong(place, format!("annotation `{key}` is {n}; it is 0 or 1")),
    }
}

/// The numbers of an annotation.
pub(super) fn numbers(place: &str, annotations: &Annotations, key: &str) -> Read<Option<Vec<i64>>> {
    let list = match annotations.get(key) {
        None => return Ok(None),
        Some(Attr::List(items)) => items.iter().map(|i| if let Attr::Int(n) = i { Some(*n) } else { None }).collect(),
        Some(_) => None,
    };
    list.map_or_else(|| wrong(place, format!("annotation `{key}` is no list of numbers")), |l| Ok(Some(l)))
}
