//! How NVIDIA GPUs serve one warp's access to memory: wavefronts of shared memory, sectors of global memory. The cost
//! model and the simulator count with these same functions.
//!
//! Source: 32 banks of 4 bytes (CUDA programming guide, shared memory); accesses of 64 and 128 bits are served in
//! halves and quarters of a warp, which merge where together they need no bank twice.

/// Wavefronts of a matrix whose lines, `bytes` long, stand `pitch` bytes apart from `start` on, moved in pieces of 128 bytes:
/// `piece` bytes (16 or 32) of as many neighbouring lines. (Taken, least.) So `wmma.load` reads on sm_75 to sm_90, 16 bytes of
/// eight lines as `ldmatrix`, and `wmma.store` of 16x16 and 32x8 writes, 32 bytes of four lines (machine code). What Volta does,
/// and 8x32, is assumed to be the same: PTX specifies lines and their distance alone.
pub fn matrix_wavefronts(start: u64, [lines, bytes]: [u64; 2], pitch: u64, piece: u64) -> (u64, u64) {
    let at_once = 128 / piece;
    let mut sum = (0, 0);
    for first in (0..lines).step_by(at_once as usize) {
        for from in (0..bytes).step_by(piece as usize) {
            let of = |lane: u64| start + (first + lane / (piece / 8)) * pitch + from + lane % (piece / 8) * 8;
            let lanes: Vec<(u32, u64)> = (0..16).map(|lane| (lane as u32, of(lane))).collect();
            let (taken, least) = wavefronts(&lanes, 8);
            sum = (sum.0 + u64::from(taken), sum.1 + u64::from(least));
        }
    }
    sum
}

/// Banks of shared memory, 4 bytes wide each.
pub const BANKS: u64 = 32;
/// Bytes of a sector of global memory.
pub const SECTOR: u64 = 32;

/// Wavefronts of one access of a warp to shared memory: (taken, least possible for as many distinct bytes). `addresses`
/// are the byte addresses of the active lanes in lane order with the lane's number; each lane takes `bytes_per_lane`
/// bytes (1 to 16).
pub fn wavefronts(addresses: &[(u32, u64)], bytes_per_lane: u32) -> (u32, u32) {
    if addresses.is_empty() {
        return (0, 0);
    }
    let lanes = match bytes_per_lane {
        0..=4 => 32,
        5..=8 => 16,
        _ => 8,
    };
    // The distinct words of each group of lanes, one group after the other.
    let mut words: Vec<u64> = Vec::with_capacity(addresses.len() * 4);
    let mut groups = [Group::default(); 4];
    let mut count = (32 / lanes) as usize;
    for (number, group) in groups.iter_mut().enumerate().take(count) {
        let from = words.len();
        let range = number as u32 * lanes..(number as u32 + 1) * lanes;
        for (_, a) in addresses.iter().filter(|(lane, _)| range.contains(lane)) {
            words.extend((a / 4)..=((a + u64::from(bytes_per_lane) - 1) / 4));
        }
        let distinct = distinct(&mut words[from..]);
        words.truncate(from + distinct);
        *group = Group { from, to: words.len(), degree: degree(&words[from..]) };
    }
    let mut all = if count == 1 { Vec::new() } else { words.clone() };
    let all = if count == 1 { words.len() } else { distinct(&mut all) };
    let ideal = (all as u64).div_ceil(BANKS).max(1) as u32;
    // Neighbouring groups merge, pairs first, where no bank is needed twice.
    while count > 1 {
        let mut merged = 0;
        for pair in 0..count / 2 {
            let (one, two) = (groups[2 * pair], groups[2 * pair + 1]);
            if fits_one_wavefront(&words[one.from..two.to]) {
                groups[merged] = Group { from: one.from, to: two.to, degree: one.degree.max(two.degree) };
                merged += 1;
            } else {
                groups[merged] = one;
                groups[merged + 1] = two;
                merged += 2;
            }
        }
        let any = merged < count;
        count = merged;
        if !any || count % 2 == 1 {
            break;
        }
    }
    let taken = groups[..count].iter().map(|g| g.degree).sum::<u32>().max(1);
    (taken, ideal.min(taken))
}

/// Lanes that are served together: where their words stand in a list, and how many of them one bank holds at most.
#[derive(Clone, Copy, Default)]
struct Group {
    from: usize,
    to: usize,
    degree: u32,
}

/// Sorts, moves the distinct values to the front, and says how many there are.
fn distinct(values: &mut [u64]) -> usize {
    values.sort_unstable();
    let mut kept = 0;
    for i in 0..values.len() {
        if i == 0 || values[i] != values[kept - 1] {
            values[kept] = values[i];
            kept += 1;
        }
    }
    kept
}

/// Most distinct words that one bank holds, where no word stands twice.
fn degree(words: &[u64]) -> u32 {
    let mut banks = [0_u32; BANKS as usize];
    for word in words {
        banks[(word % BANKS) as usize] += 1;
    }
    banks.into_iter().max().unwrap_or(0)
}

/// Whether no bank holds two different words; a word may stand twice.
fn fits_one_wavefront(words: &[u64]) -> bool {
    let mut banks = [None; BANKS as usize];
    words.iter().all(|word| *banks[(word % BANKS) as usize].get_or_insert(*word) == *word)
}

/// Sectors that one access of a warp to global memory touches, by number.
pub fn sectors_of(addresses: &[u64], bytes_per_lane: u32) -> Vec<u64> {
    let bytes = u64::from(bytes_per_lane).max(1);
    let mut touched: Vec<u64> = Vec::with_capacity(addresses.len());
    for a in addresses {
        for sector in (a / SECTOR)..=((a + bytes - 1) / SECTOR) {
            // Neighbouring lanes often share one.
            if touched.last() != Some(&sector) {
                touched.push(sector);
            }
        }
    }
    let count = distinct(&mut touched);
    touched.truncate(count);
    touched
}

/// Number of sectors that one access of a warp to global memory touches.
pub fn touched(addresses: &[u64], bytes_per_lane: u32) -> u32 {
    sectors_of(addresses, bytes_per_lane).len() as u32
}

/// Sectors of one access of a warp to global memory: (touched, least possible for as many distinct bytes).
pub fn sectors(addresses: &[u64], bytes_per_lane: u32) -> (u32, u32) {
    let touched = touched(addresses, bytes_per_lane);
    let mut starts = addresses.to_vec();
    let bytes = distinct(&mut starts) as u64 * u64::from(bytes_per_lane);
    (touched, (bytes.div_ceil(SECTOR) as u32).min(touched))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(f: impl Fn(u64) -> u64) -> Vec<(u32, u64)> {
        (0..32).map(|l| (l as u32, f(l))).collect()
    }

    #[test]
    fn neighbouring_words_take_one_wavefront_and_a_column_takes_32() {
        assert_eq!(wavefronts(&lanes(|l| 4 * l), 4), (1, 1));
        assert_eq!(wavefronts(&lanes(|l| 128 * l), 4), (32, 1));
        assert_eq!(wavefronts(&lanes(|l| 132 * l), 4), (1, 1));
    }

    #[test]
    fn equal_words_are_broadcast() {
        assert_eq!(wavefronts(&lanes(|_| 64), 4), (1, 1));
        assert_eq!(wavefronts(&lanes(|_| 64), 16), (1, 1));
        assert_eq!(wavefronts(&lanes(|l| 8 * (l % 2)), 4), (1, 1));
    }

    #[test]
    fn vectors_take_as_many_wavefronts_as_their_bytes() {
        assert_eq!(wavefronts(&lanes(|l| 16 * l), 16), (4, 4));
        assert_eq!(wavefronts(&lanes(|l| 8 * l), 8), (2, 2));
        // 8 distinct float4, as a fragment read of 4 x 8 lanes: one wavefront.
        assert_eq!(wavefronts(&lanes(|l| 16 * (l % 8)), 16), (1, 1));
        // The same with rows of lanes apart: (l / 8) distinct vectors.
        assert_eq!(wavefronts(&lanes(|l| 16 * (l / 8)), 16), (1, 1));
    }

    /// As [`wavefronts`], word for word from the rule.
    fn plainly(addresses: &[(u32, u64)], bytes: u32) -> (u32, u32) {
        use std::collections::BTreeSet;
        let words = |lanes: std::ops::Range<u32>| -> BTreeSet<u64> {
            let of = addresses.iter().filter(|(lane, _)| lanes.contains(lane));
            of.flat_map(|(_, a)| (a / 4)..=((a + u64::from(bytes) - 1) / 4)).collect()
        };
        let degree = |set: &BTreeSet<u64>| degree(&set.iter().copied().collect::<Vec<_>>());
        let lanes = [32, 16, 8][(bytes > 4) as usize + (bytes > 8) as usize];
        let mut groups: Vec<_> = (0..32 / lanes).map(|g| words(g * lanes..(g + 1) * lanes)).collect();
        while groups.len() % 2 == 0 {
            let before = groups.len();
            let merge = |pair: &[BTreeSet<u64>]| {
                let both = &pair[0] | &pair[1];
                if degree(&both) <= 1 {
                    vec![both]
                } else {
                    pair.to_vec()
                }
            };
            groups = groups.chunks(2).flat_map(merge).collect();
            if groups.len() == before {
                break;
            }
        }
        let taken = groups.iter().map(degree).sum::<u32>().max(1);
        (taken, (words(0..32).len().div_ceil(32).max(1) as u32).min(taken))
    }

    #[test]
    fn wavefronts_are_those_of_the_rule() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..20_000 {
            let bytes = [1, 2, 4, 8, 16][next(5) as usize];
            let (m, n, shift) = (4 * next(40), 4 * next(40), next(6));
            let range = 1 + next(64);
            let scattered = next(4) == 0;
            let mut addresses = Vec::new();
            for lane in 0..32_u64 {
                let place = if scattered { 4 * next(range) } else { (lane >> shift) * m + (lane % (1 << shift)) * n };
                if next(16) > 0 {
                    addresses.push((lane as u32, place / bytes * bytes));
                }
            }
            assert_eq!(
                wavefronts(&addresses, bytes as u32),
                plainly(&addresses, bytes as u32),
                "{bytes} {addresses:?}"
            );
        }
    }

    #[test]
    fn sectors_are_32_bytes() {
        let addresses: Vec<u64> = (0..32).map(|l| 4 * l).collect();
        assert_eq!(sectors(&addresses, 4), (4, 4));
        let strided: Vec<u64> = (0..32).map(|l| 128 * l).collect();
        assert_eq!(sectors(&strided, 4), (32, 4));
        let shifted: Vec<u64> = (0..32).map(|l| 4 * l + 16).collect();
        assert_eq!(sectors(&shifted, 4), (5, 4));
    }
}
