//! How shared memory holds the operands of `wgmma` and `tcgen05`, and the boxes of the TMA: swizzles, and descriptors of matrices.

/// A permutation of 16-byte chunks: bits 4.. of an address are xored with bits 7...
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// As it is.
    None,
    /// Rows of 32 bytes.
    B32,
    /// Rows of 64 bytes.
    B64,
    /// Rows of 128 bytes.
    B128,
}

impl Swizzle {
    /// Bytes of a row within which chunks are permuted.
    pub fn span(self) -> u64 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 => 128,
        }
    }

    /// Where the byte of an address really is. `phase` lines of 128 bytes are taken off before the permutation is chosen.
    pub fn at(self, address: u64, phase: u64) -> u64 {
        let mask = match self {
            Swizzle::None => 0,
            Swizzle::B32 => 1,
            Swizzle::B64 => 3,
            Swizzle::B128 => 7,
        };
        address ^ (((address >> 7).wrapping_sub(phase) & mask) << 4)
    }
}

/// What the 64 bits that `wgmma` and `tcgen05.mma` get for an operand say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// Where the matrix begins, bytes.
    pub start: u64,
    /// Leading byte offset.
    pub leading: u64,
    /// Stride byte offset.
    pub stride: u64,
    /// Base offset, lines of 128 bytes.
    pub base: u64,
    /// Swizzle.
    pub swizzle: Swizzle,
}

impl From<u64> for Descriptor {
    fn from(bits: u64) -> Descriptor {
        let field = |at: u32| (bits >> at & 0x3fff) << 4;
        Descriptor {
            start: field(0),
            leading: field(16),
            stride: field(32),
            base: bits >> 49 & 7,
            swizzle: match bits >> 62 {
                0 => Swizzle::None,
                1 => Swizzle::B128,
                2 => Swizzle::B64,
                _ => Swizzle::B32,
            },
        }
    }
}

impl Descriptor {
    /// Where a chunk of 16 bytes begins.
    ///
    /// Along k (`along_k`), `line` is a row of A or a column of B and `chunk` counts along k: eight lines of a swizzle's span
    /// are an atom, atoms are `stride` apart; without a swizzle eight lines of 16 bytes are one, and chunks are `leading`
    /// apart. Else `line` is a number of k and `chunk` counts along m or n: eight k are an atom, atoms are `leading` apart along
    /// m or n and `stride` apart along k (without a swizzle the other way round).
    pub fn chunk(&self, along_k: bool, line: u64, chunk: u64) -> u64 {
        let span = self.swizzle.span();
        let (wide, narrow) = (chunk / (span / 16), chunk % (span / 16) * 16);
        let (atom, row) = (line / 8, line % 8);
        let (by_line, by_chunk) = match (along_k, self.swizzle) {
            (false, Swizzle::None) => (self.leading, self.stride),
            (_, _) => (self.stride, self.leading),
        };
        let linear = self.start + atom * by_line + row * span + wide * by_chunk + narrow;
        self.swizzle.at(linear, self.base) & 0x3_ffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn descriptor(swizzle: Swizzle, leading: u64, stride: u64) -> Descriptor {
        Descriptor { start: 1024, leading, stride, base: 0, swizzle }
    }

    #[test]
    fn fields_stand_where_the_instruction_has_them() {
        let bits = 1_u64 << 62 | 5 << 49 | 64 << 32 | 3 << 16 | 0x40;
        let d = Descriptor::from(bits);
        assert_eq!(d, Descriptor { start: 1024, leading: 48, stride: 1024, base: 5, swizzle: Swizzle::B128 });
    }

    #[test]
    fn a_swizzle_is_its_own_inverse_and_stays_in_its_row() {
        for s in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128] {
            for address in (0..4096).step_by(16) {
                assert_eq!(s.at(s.at(address, 0), 0), address);
                assert_eq!(s.at(address, 0) / s.span().max(16), address / s.span().max(16));
            }
        }
        assert_eq!(Swizzle::B128.at(0x80, 0), 0x90);
        assert_eq!(Swizzle::B128.at(0x3f0, 0), 0x380);
        assert_eq!(Swizzle::B64.at(0x1c0, 0), 0x1f0);
        assert_eq!(Swizzle::B32.at(0x80, 0), 0x90);
    }

    #[test]
    fn chunks_of_a_matrix_are_different_places() {
        for (s, leading, stride) in
            [(Swizzle::None, 128, 256), (Swizzle::B32, 0, 256), (Swizzle::B64, 0, 512), (Swizzle::B128, 0, 1024)]
        {
            let d = descriptor(s, leading, stride);
            let places: BTreeSet<u64> =
                (0..64).flat_map(|line| (0..2).map(move |chunk| d.chunk(true, line, chunk))).collect();
            assert_eq!(places.len(), 128);
        }
        // 64 numbers along n for 16 of k, which is two atoms along k.
        let d = descriptor(Swizzle::B128, 4096, 1024);
        assert_eq!(d.chunk(false, 1, 0), 1024 + 128 + 16);
        assert_eq!(d.chunk(false, 8, 0), 2048);
        assert_eq!(d.chunk(false, 0, 8), 1024 + 4096);
        let places: BTreeSet<u64> =
            (0..16).flat_map(|line| (0..16).map(move |chunk| d.chunk(false, line, chunk))).collect();
        assert_eq!(places.len(), 256);
    }
}
