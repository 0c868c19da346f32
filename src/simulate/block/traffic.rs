//! What the TMA and `wgmma` ask of shared and global memory. Both move chunks of 16 bytes, eight at a time: a wavefront
//! where the eight lie in different banks.
use super::phases::Move;
use super::{Counts, Runner};
use satune_ir::machine::wavefronts;

/// Wavefronts of chunks of 16 bytes at byte addresses, in order: (taken, least).
pub(super) fn chunks(addresses: &[u64]) -> (u64, u64) {
    let mut sum = (0, 0);
    for eight in addresses.chunks(8) {
        let lanes: Vec<(u32, u64)> = (0..).zip(eight.iter().copied()).collect();
        let (taken, least) = wavefronts(&lanes, 16);
        sum = (sum.0 + u64::from(taken), sum.1 + u64::from(least));
    }
    sum
}

/// Byte addresses of the chunks of a `wgmma` operand, matrices of eight chunks one after the other; `place`: where an
/// element of a row (column) and of k is. `rows`: a multiple of 8; `across`: rows lie along memory.
pub(super) fn operand_chunks(rows: u64, k: u64, bytes: u64, across: bool, place: impl Fn(u64, u64) -> u64) -> Vec<u64> {
    let chunk = 16 / bytes;
    let (lines, columns) = if across { (k, rows) } else { (rows, k) };
    let mut list = Vec::new();
    for first in (0..lines).step_by(8) {
        for column in (0..columns).step_by(chunk as usize) {
            list.extend((first..first + 8).map(|line| if across { place(column, line) } else { place(line, column) }));
        }
    }
    list
}

impl Runner<'_> {
    /// Wavefronts and sectors of a box that the TMA moves.
    pub(super) fn tile_traffic(&self, elements: &[Move], map: u32, store: bool) -> Counts {
        let Some(map) = self.kernel.tensor_maps.get(map as usize) else { return Counts::default() };
        let Some(((shared, _), _)) = elements.first() else { return Counts::default() };
        let array = self.kernel.array(*shared);
        let bytes = u64::from(array.dtype.bytes());
        let chunk = (16 / bytes) as usize;
        let at = |element: usize| u64::from(array.shared_offset) + element as u64 * bytes;
        let addresses: Vec<u64> = elements.iter().step_by(chunk).map(|((_, element), _)| at(*element)).collect();
        let (taken, least) = chunks(&addresses);
        let (mut touched, mut ideal) = (0, 0);
        for row in elements.chunks(map.tile[0] as usize) {
            let mut inside = row.iter().filter_map(|(_, global)| global.map(|(_, i)| i as u64 * bytes));
            let Some(first) = inside.next() else { continue };
            let end = inside.next_back().unwrap_or(first) + bytes;
            touched += (end - 1) / 32 - first / 32 + 1;
            ideal += (end - first).div_ceil(32);
        }
        if store {
            Counts {
                shared_load_wavefronts: taken,
                shared_load_wavefronts_ideal: least,
                global_store_sectors: touched,
                global_store_sectors_ideal: ideal,
                ..Counts::default()
            }
        } else {
            Counts {
                shared_store_wavefronts: taken,
                shared_store_wavefronts_ideal: least,
                global_load_sectors: touched,
                global_load_sectors_ideal: ideal,
                ..Counts::default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::phases::swizzled;
    use super::*;

    /// Chunks of 64 rows of 16 elements of 16 bits in rows of 128 bytes, and of 16 rows of k of 64 elements.
    fn tile(across: bool, swizzle: fn(u64) -> u64) -> (u64, u64) {
        let place = |row: u64, k: u64| swizzle(if across { k * 128 + row * 2 } else { row * 128 + k * 2 });
        chunks(&operand_chunks(64, 16, 2, across, place))
    }

    #[test]
    fn a_tile_that_is_not_swizzled_conflicts() {
        for across in [false, true] {
            assert_eq!(tile(across, |at| swizzled(at, 128)), (16, 16), "{across}");
            assert_eq!(tile(across, |at| at), (128, 16), "{across}: each matrix's eight chunks lie in the same banks");
            // Half of the xor leaves pairs in the same banks.
            assert_eq!(tile(across, |at| at ^ ((at >> 8 & 3) << 5)), (32, 16), "{across}");
        }
    }

    #[test]
    fn a_row_of_a_box_is_one_wavefront_in_any_order() {
        let row: Vec<u64> = (0..8).map(|c| swizzled(3 * 128 + c * 16, 128)).collect();
        assert_eq!(chunks(&row), (1, 1));
        let column: Vec<u64> = (0..8).map(|r| r * 128).collect();
        assert_eq!(chunks(&column), (8, 1));
    }
}
