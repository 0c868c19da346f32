//! Where lanes and registers hold the tiles of `mma.sync` m16n8kK and of `wgmma`, as index expressions: what [`Mma::layout`] says, the
//! other way round.
use satune_ir::layout::Run;
use satune_ir::term::tensor::{Fragment, Mma};

/// Lane and register of an element of a tile, by the names of its two numbers; `is_tile`: they are numbers of a tile's, else of
/// whatever the tiles make up.
pub(crate) fn held(op: Mma, matrix: Fragment, names: [&str; 2], is_tile: bool) -> [String; 2] {
    let held = op.layout(matrix).inverse().unwrap_or_else(|| unreachable!("each element of a fragment is held once"));
    let of = |run: &Run| {
        let name = matrix.names().iter().position(|n| *n == run.of).map_or(run.of, |at| names[at]);
        let mut text = name.to_string();
        // A tile's own number ends with its highest bits.
        if run.highest && !is_tile {
            text += &format!(" % {}", 1 << (run.first + run.bits));
        }
        if run.first > 0 {
            text += &format!(" // {}", 1 << run.first);
        }
        if !run.highest {
            text += &format!(" % {}", 1 << run.bits);
        }
        if run.at > 0 {
            text += &format!(" * {}", 1 << run.at);
        }
        text
    };
    ["lane", "element"].map(|name| {
        let runs = held.runs(name).unwrap_or_else(|| unreachable!("a fragment is held by neighbours"));
        runs.iter().map(of).collect::<Vec<_>>().join(" + ")
    })
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
        for op in Mma::SYNC {
            for is_tile in [true, false] {
                let parsed = |[lane, register]: [String; 2]| {
                    IndexMap::parse(&format!("lambda x, y: ({lane}, {register})")).unwrap()
                };
                for matrix in [Fragment::A, Fragment::B, Fragment::D] {
                    let map = parsed(held(op, matrix, ["x", "y"], is_tile));
                    let places = op.places(matrix);
                    let count = places.len() / 32;
                    for (at, place) in places.iter().enumerate() {
                        let held = [at / count, at % count].map(|x| x as i64);
                        assert_eq!(value(&map, *place), held, "{op:?} {matrix:?} {place:?}");
                    }
                }
            }
        }
    }
}
