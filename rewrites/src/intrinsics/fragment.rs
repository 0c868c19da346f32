//! Where lanes and registers hold the tiles of `mma.sync` m16n8kK and of `wgmma`, as index expressions: what
//! [`Mma::a_place`], [`Mma::b_place`] and [`Mma::d_place`] say, the other way round.
use satune_ir::term::tensor::Mma;

/// `x % n`, or `x` where it is below `n` anyway.
fn rest(x: &str, n: u32, is_below: bool) -> String {
    if is_below {
        x.to_string()
    } else {
        format!("{x} % {n}")
    }
}

/// Four lanes side by side along k: which of them, for words of several elements.
fn lane_of_k(k: &str, word: u32) -> String {
    if word == 1 {
        format!("{k} % 4")
    } else {
        format!("{k} // {word} % 4")
    }
}

/// What an element is in its word, as a summand.
fn in_word(k: &str, word: u32) -> String {
    if word == 1 {
        String::new()
    } else {
        format!(" + {k} % {word}")
    }
}

/// Lane and register of element (row, k) of a tile of A, 16 x K; `is_tile`: row and k are below 16 and K.
pub(crate) fn a(op: Mma, row: &str, k: &str, is_tile: bool) -> [String; 2] {
    let (word, whole) = (op.word(), op.k());
    let lane = format!("{row} % 8 * 4 + {}", lane_of_k(k, word));
    let (k_half, row_half) = (rest(k, whole, is_tile), rest(row, 16, is_tile));
    let by_row = if word == 1 { String::new() } else { format!(" * {word}") };
    let register = format!("{k_half} // {} * {} + {row_half} // 8{by_row}{}", 4 * word, 2 * word, in_word(k, word));
    [lane, register]
}

/// Lane and register of element (k, column) of a tile of B, K x 8.
pub(crate) fn b(op: Mma, k: &str, column: &str, is_tile: bool) -> [String; 2] {
    let (word, whole) = (op.word(), op.k());
    let lane = format!("{} * 4 + {}", rest(column, 8, is_tile), lane_of_k(k, word));
    let by_half = if word == 1 { String::new() } else { format!(" * {word}") };
    let register = format!("{} // {}{by_half}{}", rest(k, whole, is_tile), 4 * word, in_word(k, word));
    [lane, register]
}

/// Lane and register of element (row, column) of a tile of sums, 16 x 8.
pub(crate) fn d(row: &str, column: &str, is_tile: bool) -> [String; 2] {
    let lane = format!("{row} % 8 * 4 + {} // 2", rest(column, 8, is_tile));
    [lane, format!("{} // 8 * 2 + {column} % 2", rest(row, 16, is_tile))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index_map::IndexMap;
    use satune_ir::affine::{constant, int, Domains};
    use satune_ir::{visit, DType, VarId};

    fn value(map: &IndexMap, at: [u32; 2]) -> Vec<i64> {
        let values = (0..).map(VarId).zip(at).map(|(v, x)| (v, int(x.into(), DType::I32))).collect();
        let of = |e| constant(&crate::simplify::simplified(&visit::substitute(e, &values), &Domains::new()));
        map.outputs.iter().map(|e| of(e).unwrap()).collect()
    }

    /// Every element of every tile, against where the instruction has it.
    #[test]
    fn places_are_the_instructions() {
        for op in [Mma::F16, Mma::Bf16, Mma::Tf32, Mma::S8] {
            for is_tile in [true, false] {
                let parsed = |[lane, register]: [String; 2]| {
                    IndexMap::parse(&format!("lambda x, y: ({lane}, {register})")).unwrap()
                };
                let maps = [a(op, "x", "y", is_tile), b(op, "x", "y", is_tile), d("x", "y", is_tile)].map(parsed);
                for lane in 0..32 {
                    let lists = [4 * op.word(), 2 * op.word(), 4];
                    for (which, (map, count)) in maps.iter().zip(lists).enumerate() {
                        for i in 0..count {
                            let (x, y) = match which {
                                0 => op.a_place(lane, i),
                                1 => op.b_place(lane, i),
                                _ => Mma::d_place(lane, i),
                            };
                            assert_eq!(value(map, [x, y]), [i64::from(lane), i64::from(i)], "{op:?} {which} {x} {y}");
                        }
                    }
                }
            }
        }
    }
}
