//! Which element of a matrix stands in which lane, register and bits.
//!
//! `lane / 4` is the group, `lane % 4` the thread in the group. Operands of 16 and 8 rows, `e` elements per register:
//!
//! ```text
//! A: row = group + 8 (register & 1), column = e thread + element + 4 e (register / 2)
//! B: row = e thread + element + 4 e register, column = group
//! C: row = group + 8 (register / 2), column = 2 thread + (register & 1)
//! ```

use std::borrow::Borrow;

/// A matrix of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The left operand, M x K.
    A,
    /// The right operand, K x N.
    B,
    /// What is added, and the result, M x N.
    C,
}

/// How the fragments of an instruction are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentLayout {
    /// `mma.sync` with 8 or 16 rows and 8 columns, and a warp's part of `wgmma` (16 rows, any number of columns).
    Groups,
    /// `mma.sync.m8n8k4` on f16: four products of 8 x 8 x 4, one for each two quarters of the warp; whether A's columns and B's
    /// rows are contiguous. The row of the result counts through the four products.
    Quads {
        /// A is stored by columns.
        a_columns: bool,
        /// B is stored by rows.
        b_rows: bool,
    },
    /// `wmma`, which tells nobody: elements are dealt to the lanes one after the other from another start in each register, so
    /// that what takes it for another layout computes something else.
    Opaque,
}

/// One matrix of an instruction as a warp holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Which.
    pub side: Side,
    /// How.
    pub layout: FragmentLayout,
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub columns: usize,
    /// Registers of a lane.
    pub registers: usize,
    /// Elements in a register.
    pub per: usize,
}

impl Fragment {
    /// Row and column of the element at a place of a register of a lane.
    pub fn place(&self, lane: usize, register: usize, element: usize) -> (usize, usize) {
        match self.layout {
            FragmentLayout::Groups => self.in_groups(lane, register, element),
            FragmentLayout::Quads { a_columns, b_rows } => self.in_quads(lane, register, element, a_columns, b_rows),
            FragmentLayout::Opaque => {
                let slot = (register * 32 + (lane * 5 + register * 7 + 3) % 32) * self.per + element;
                let slot = slot % (self.rows * self.columns);
                (slot / self.columns, slot % self.columns)
            }
        }
    }

    fn in_groups(&self, lane: usize, register: usize, element: usize) -> (usize, usize) {
        let (group, thread, e) = (lane / 4, lane % 4, self.per);
        match self.side {
            Side::A if self.rows == 8 => (group, e * thread + element + 4 * e * register),
            Side::A => (group + 8 * (register & 1), e * thread + element + 4 * e * (register / 2)),
            Side::B => (e * thread + element + 4 * e * register, group),
            Side::C => {
                // Pairs of neighbouring columns, in one register or in two.
                let place = register * e + element;
                let (pair, half) = (place / 2, place % 2);
                match self.rows {
                    8 => (group, 2 * thread + half + 8 * pair),
                    _ => (group + 8 * (pair & 1), 8 * (pair / 2) + 2 * thread + half),
                }
            }
        }
    }

    fn in_quads(&self, lane: usize, register: usize, element: usize, a_columns: bool, b_rows: bool) -> (usize, usize) {
        let (product, upper) = (lane % 16 / 4, lane / 16);
        let at = register * self.per + element;
        match self.side {
            Side::A if a_columns => (8 * product + 4 * upper + at, lane % 4),
            Side::A => (8 * product + 4 * upper + lane % 4, at),
            Side::B if b_rows => (4 * product + lane % 4, 4 * upper + at),
            Side::B => (4 * product + at, 4 * upper + lane % 4),
            Side::C if self.per == 2 => (8 * product + 4 * upper + lane % 4, at),
            Side::C => (8 * product + 4 * upper + (lane & 1) + (at & 2), (at & 4) + (lane & 2) + (at & 1)),
        }
    }

    /// Where all its elements stand.
    pub fn dealt(self) -> Dealt {
        let at = |lane, register, element| {
            let (row, column) = self.place(lane, register, element);
            (row * self.columns + column) as u32
        };
        let mut places = Vec::with_capacity(32 * self.registers * self.per);
        for register in 0..self.registers {
            for lane in 0..32 {
                places.extend((0..self.per).map(|element| at(lane, register, element)));
            }
        }
        Dealt { fragment: self, places }
    }
}

/// A fragment with the row-major position of each element, by register, lane and place in the register.
#[derive(Clone, Debug)]
pub struct Dealt {
    /// Which.
    pub fragment: Fragment,
    places: Vec<u32>,
}

impl Dealt {
    /// The elements of a matrix from registers of all lanes. Row-major.
    pub fn gather(&self, bits: u32, registers: impl IntoIterator<Item = impl Borrow<[u64; 32]>>) -> Vec<u64> {
        let Fragment { rows, columns, per, .. } = self.fragment;
        let mut out = vec![0; rows * columns];
        let mask = u64::MAX >> (64 - bits);
        for (number, words) in registers.into_iter().enumerate() {
            let places = self.places(number);
            for element in 0..per {
                let shift = element as u32 * bits;
                for (word, place) in words.borrow().iter().zip(places[element..].iter().step_by(per)) {
                    out[*place as usize] = word >> shift & mask;
                }
            }
        }
        out
    }

    /// The row-major positions of a register's elements, by lane and place in the register.
    pub fn places(&self, register: usize) -> &[u32] {
        let per = self.fragment.per;
        &self.places[register * 32 * per..(register + 1) * 32 * per]
    }

    /// A register of all lanes from a row-major matrix.
    pub fn scatter(&self, bits: u32, matrix: &[u64], register: usize) -> [u64; 32] {
        let (per, places) = (self.fragment.per, self.places(register));
        std::array::from_fn(|lane| {
            let places = places[lane * per..(lane + 1) * per].iter().enumerate();
            places.fold(0, |word, (element, place)| word | matrix[*place as usize] << (element as u32 * bits))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each element stands somewhere, and all stand equally often.
    fn covers(f: Fragment) -> usize {
        let mut times = vec![0; f.rows * f.columns];
        for lane in 0..32 {
            for register in 0..f.registers {
                for element in 0..f.per {
                    let (row, column) = f.place(lane, register, element);
                    assert!(row < f.rows && column < f.columns, "{f:?} {lane} {register} {element}");
                    times[row * f.columns + column] += 1;
                }
            }
        }
        assert!(times.iter().all(|&t| t == times[0]), "{f:?}");
        times[0]
    }

    fn f(side: Side, layout: FragmentLayout, rows: usize, columns: usize, registers: usize, per: usize) -> Fragment {
        Fragment { side, layout, rows, columns, registers, per }
    }

    #[test]
    fn fragments_cover_their_matrices_once() {
        let g = FragmentLayout::Groups;
        for (rows, k, registers, per) in [
            (16, 8, 2, 2),
            (16, 16, 4, 2),
            (16, 32, 4, 4),
            (16, 16, 2, 4),
            (16, 8, 4, 1),
            (16, 4, 2, 1),
            (16, 16, 8, 1),
        ] {
            assert_eq!(covers(f(Side::A, g, rows, k, registers, per)), 1);
            assert_eq!(covers(f(Side::B, g, k, 8, registers / 2, per)), 1);
        }
        assert_eq!(covers(f(Side::A, g, 8, 16, 1, 4)), 1);
        assert_eq!(covers(f(Side::C, g, 16, 8, 4, 1)), 1);
        assert_eq!(covers(f(Side::C, g, 16, 8, 2, 2)), 1);
        assert_eq!(covers(f(Side::C, g, 8, 8, 2, 1)), 1);
        assert_eq!(covers(f(Side::C, g, 16, 256, 128, 1)), 1);
        for (a_columns, b_rows) in [(false, false), (true, false), (false, true), (true, true)] {
            let q = FragmentLayout::Quads { a_columns, b_rows };
            assert_eq!(covers(f(Side::A, q, 32, 4, 2, 2)), 1);
            assert_eq!(covers(f(Side::B, q, 16, 8, 2, 2)), 1);
            assert_eq!(covers(f(Side::C, q, 32, 8, 8, 1)), 1);
            assert_eq!(covers(f(Side::C, q, 32, 8, 4, 2)), 1);
        }
        let o = FragmentLayout::Opaque;
        assert_eq!(covers(f(Side::A, o, 16, 16, 8, 2)), 2);
        assert_eq!(covers(f(Side::B, o, 16, 8, 8, 2)), 4);
        assert_eq!(covers(f(Side::C, o, 16, 16, 8, 1)), 1);
    }

    /// Corners of the figures in the instructions' descriptions.
    #[test]
    fn elements_stand_where_the_instructions_have_them() {
        let a = f(Side::A, FragmentLayout::Groups, 16, 16, 4, 2);
        assert_eq!(a.place(0, 0, 1), (0, 1));
        assert_eq!(a.place(5, 1, 0), (9, 2));
        assert_eq!(a.place(31, 3, 1), (15, 15));
        let b = f(Side::B, FragmentLayout::Groups, 16, 8, 2, 2);
        assert_eq!(b.place(6, 1, 1), (13, 1));
        let c = f(Side::C, FragmentLayout::Groups, 16, 8, 4, 1);
        assert_eq!(c.place(7, 2, 0), (9, 6));
        let w = f(Side::C, FragmentLayout::Groups, 16, 64, 32, 1);
        assert_eq!(w.place(4, 6, 0), (9, 8));
        let q = f(Side::C, FragmentLayout::Quads { a_columns: false, b_rows: false }, 32, 8, 8, 1);
        assert_eq!(q.place(3, 6, 0), (3, 6));
        assert_eq!(q.place(21, 1, 0), (8 + 4 + 1, 1));
    }

    #[test]
    fn what_is_gathered_is_scattered_again() {
        let a = f(Side::A, FragmentLayout::Groups, 16, 32, 4, 4);
        let word = |lane: usize, register: usize| ((lane * 131 + register * 7919) as u64 * 2_654_435_761) & 0xffff_ffff;
        let registers: Vec<[u64; 32]> = (0..4).map(|r| std::array::from_fn(|lane| word(lane, r))).collect();
        let a = a.dealt();
        let matrix = a.gather(8, &registers);
        for (register, words) in registers.iter().enumerate() {
            assert_eq!(a.scatter(8, &matrix, register), *words);
        }
    }
}
