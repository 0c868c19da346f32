//! Schedules in the words of others: a configuration of Triton's autotuner, a tile of CUTLASS.
//!
//! They say what of a product's schedule they fix, not which instruction multiplies. So each is several questions, and the answer is the best
//! of theirs.
use satune_ir::term::tensor::GroupMma;

/// The questions that a text of another project is; none where it is no such text.
///
/// * `BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP_M=8, num_warps=8, num_stages=3` and the like, also as a Python dictionary, with `BLOCK_SIZE_M`
///   for `BLOCK_M`: Triton. Its warps are those that multiply; with `wgmma` and `tcgen05` four are a consumer.
/// * `128x256x64`, or a name with `128x256_64x3` in it (tile and stages): CUTLASS.
pub(super) fn questions(text: &str) -> Option<Vec<String>> {
    let Tile { extents: [m, n, k], warps, stages, group } = triton(text).or_else(|| cutlass(text))?;
    let stages = |words: &str| stages.map(|count| words.replace('N', &count.to_string()));
    let grouped = group.filter(|rows| *rows > 1);
    let tensor = |instruction: &str, team: Option<String>| {
        let order = grouped.map(|rows| format!("blocks in groups of {rows} rows over the columns"));
        let all = [Some(instruction.to_string()), Some(format!("tile {m}x{n}x{k}")), stages("N stages"), team, order];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    };
    let threads = warps.map(|warps| format!("{} threads", warps.saturating_mul(32)));
    let consumers =
        warps.map_or(Some(None), |warps| (warps % 4 == 0).then(|| Some(format!("{} consumers", warps / 4))));
    let of_threads = warps.map(|warps| format!("threads {}", warps.saturating_mul(32)));
    let own = [Some(format!("block {m}x{n}, k {k}")), of_threads, stages("stages N")];
    let mut out = vec![tensor("mma.sync", threads.clone()), tensor("wmma", threads)];
    let groups = GroupMma::ALL.iter().filter_map(|op| Some(tensor(op.name(), consumers.clone()?)));
    out.extend(groups);
    out.push(own.into_iter().flatten().collect::<Vec<_>>().join(", "));
    Some(out)
}

/// What is fixed.
struct Tile {
    extents: [u32; 3],
    warps: Option<u32>,
    stages: Option<u32>,
    /// Rows of blocks that are gone through together.
    group: Option<u32>,
}

fn triton(text: &str) -> Option<Tile> {
    let plain: String = text.chars().map(|c| if "{}()'\",".contains(c) { ' ' } else { c }).collect();
    let plain = plain.replace(['=', ':'], " ");
    let words: Vec<&str> = plain.split_whitespace().collect();
    let value = |names: &[&str]| {
        let at = words.iter().position(|word| names.contains(word))?;
        words.get(at + 1)?.parse::<u32>().ok().filter(|value| *value > 0)
    };
    let extent = |axis: &str| value(&[&format!("BLOCK_{axis}"), &format!("BLOCK_SIZE_{axis}")]);
    Some(Tile {
        extents: [extent("M")?, extent("N")?, extent("K")?],
        warps: value(&["num_warps"]),
        stages: value(&["num_stages"]),
        group: value(&["GROUP_M", "GROUP_SIZE_M"]),
    })
}

fn cutlass(text: &str) -> Option<Tile> {
    let numbers =
        |part: &str| part.split('x').map(|n| n.parse().ok().filter(|n: &u32| *n > 0)).collect::<Option<Vec<u32>>>();
    let tile = |extents: [u32; 3], stages: Option<u32>| Tile { extents, warps: None, stages, group: None };
    if let Some([m, n, k]) = numbers(text.trim()).as_deref() {
        return Some(tile([*m, *n, *k], None));
    }
    let parts: Vec<Option<Vec<u32>>> = text.trim().split('_').map(numbers).collect();
    parts.windows(2).find_map(|pair| match pair {
        [Some(block), Some(depth)] => match (block.as_slice(), depth.as_slice()) {
            ([m, n], [k, stages]) => Some(tile([*m, *n, *k], Some(*stages))),
            _ => None,
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::questions;

    #[test]
    fn words_of_others_are_questions() {
        let triton = "{'BLOCK_SIZE_M': 128, 'BLOCK_SIZE_N': 256, 'BLOCK_SIZE_K': 64, 'GROUP_SIZE_M': 8}, num_stages=3, num_warps=8";
        let found = questions(triton).unwrap();
        let expected = [
            "mma.sync, tile 128x256x64, 3 stages, 256 threads, blocks in groups of 8 rows over the columns",
            "wmma, tile 128x256x64, 3 stages, 256 threads, blocks in groups of 8 rows over the columns",
            "wgmma, tile 128x256x64, 3 stages, 2 consumers, blocks in groups of 8 rows over the columns",
            "tcgen05, tile 128x256x64, 3 stages, 2 consumers, blocks in groups of 8 rows over the columns",
            "block 128x256, k 64, threads 256, stages 3",
        ];
        assert_eq!(found, expected);
        let cutlass = questions("cutlass_tensorop_s16816gemm_f16_128x64_32x4_tn_align8").unwrap();
        assert_eq!(cutlass[0], "mma.sync, tile 128x64x32, 4 stages");
        assert_eq!(questions("64x64x8").unwrap().last().unwrap(), "block 64x64, k 8");
        for own in [
            "block 128x128, k 8",
            "tile 128x128x32, 4 stages",
            "64x64",
            "threads 256",
            "BLOCK_M=0, BLOCK_N=1, BLOCK_K=1",
        ] {
            assert!(questions(own).is_none(), "{own}");
        }
    }
}
