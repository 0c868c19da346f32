//! How NVIDIA GPUs serve one warp's access to memory: wavefronts of shared memory, sectors of global memory. The cost
//! model and the simulator count with these same functions.
//!
//! Source: 32 banks of 4 bytes (CUDA programming guide, shared memory); accesses of 64 and 128 bits are served in
//! halves and quarters of a warp, which merge where together they need no bank twice.

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
    let words = |range: std::ops::Range<u32>| -> Vec<u64> {
        let mut list: Vec<u64> = addresses
            .iter()
            .filter(|(lane, _)| range.contains(lane))
            .flat_map(|(_, a)| (a / 4)..=((a + u64::from(bytes_per_lane) - 1) / 4))
            .collect();
        list.sort_unstable();
        list.dedup();
        list
    };
    let all = words(0..32);
    let ideal = (all.len() as u64).div_ceil(BANKS).max(1) as u32;
    let lanes = match bytes_per_lane {
        0..=4 => 32,
        5..=8 => 16,
        _ => 8,
    };
    let mut groups: Vec<Vec<u64>> = (0..32 / lanes).map(|g| words(g * lanes..(g + 1) * lanes)).collect();
    // Neighbouring groups merge, pairs first, where no bank is needed twice.
    while groups.len() > 1 {
        let mut merged = Vec::with_capacity(groups.len() / 2);
        let mut any = false;
        for pair in groups.chunks(2) {
            let mut both: Vec<u64> = pair.concat();
            both.sort_unstable();
            both.dedup();
            if pair.len() == 2 && degree(&both) <= 1 {
                merged.push(both);
                any = true;
            } else {
                merged.extend(pair.iter().cloned());
            }
        }
        groups = merged;
        if !any || groups.len() % 2 == 1 {
            break;
        }
    }
    let taken = groups.iter().map(|g| degree(g)).sum::<u32>().max(1);
    (taken, ideal.min(taken))
}

/// Most distinct words that one bank holds.
fn degree(words: &[u64]) -> u32 {
    let mut banks = [0_u32; BANKS as usize];
    for word in words {
        banks[(word % BANKS) as usize] += 1;
    }
    banks.into_iter().max().unwrap_or(0)
}

/// Sectors of one access of a warp to global memory: (touched, least possible for as many distinct bytes).
pub fn sectors(addresses: &[u64], bytes_per_lane: u32) -> (u32, u32) {
    let bytes = u64::from(bytes_per_lane);
    let mut touched: Vec<u64> =
        addresses.iter().flat_map(|a| (a / SECTOR)..=((a + bytes.max(1) - 1) / SECTOR)).collect();
    touched.sort_unstable();
    touched.dedup();
    let mut starts = addresses.to_vec();
    starts.sort_unstable();
    starts.dedup();
    let distinct = starts.len() as u64 * bytes;
    (touched.len() as u32, (distinct.div_ceil(SECTOR) as u32).min(touched.len() as u32))
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
