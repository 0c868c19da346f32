//! Instructions of `mma.sync` in scheduled programs: multiplications on registers that lanes hold, and the loads of such registers.
//!
//! A multiplication is a block that is an intrinsic. A load is a copy from shared memory, in loops over what a lane holds (see
//! [`super::lanes`]); how it is written is decided here:
//!
//! ```text
//!   for a, b, e in T.grid(2, 2, 2):                                        ldmatrix.x4: matrix m = l // 8 is word m of the registers,
//!       W[l, 4 * b + 2 * a + e] = S[a * 8 + l // 4, b * 8 + l % 4 * 2 + e]   ->   l gives the place of its row l % 8: S[m % 2 * 8 + l % 8, m // 2 * 8]
//! ```
//! `ldmatrix` gives lane l word l % 4 of row l // 4 of each matrix, transposed unit l // 4 of rows 2 (l % 4) and the next. Whether a copy is
//! that is seen by taking the one from the other: nothing is left.
use super::emit::{guarded, Emitter};
use super::error::LowerError;
use super::guards::{missing, Guarding};
use super::linear::{Linear, Ranges};
use super::matrix::{strange, Instruction, LANES, LANE_TAG};
use super::nest::{Leaf, Nest};
use super::pred::Pred;
use crate::kernel::{ArrayId, Cond, Index, Space, Stmt, Value, WarpOp};
use crate::lower::index::{add, c};
use satune_ir::term::tensor::Mma;
use satune_ir::{Attr, DType, Expr, VarId};
use satune_rewrites::intrinsics::{mma, mma_sync};
use satune_rewrites::keys;
use std::collections::HashMap;

/// Bytes of a row of a matrix that `ldmatrix` loads.
const ROW_BYTES: i64 = 16;

/// An instruction, so often side by side along n; whether the description has B's factors first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiplication {
    pub op: Mma,
    pub pairs: i64,
    pub swapped: bool,
}

/// The multiplication that an intrinsic of the name is.
pub fn named(name: &str) -> Option<Multiplication> {
    let pair = || mma::pair(name).map(|op| Multiplication { op, pairs: 2, swapped: false });
    mma_sync::named(name).map(|(op, swapped)| Multiplication { op, pairs: 1, swapped }).or_else(pair)
}

impl Emitter<'_> {
    /// A multiplication, or several side by side along n.
    pub(super) fn multiply(
        &mut self,
        leaf: &Leaf,
        what: &Instruction,
        Multiplication { op, pairs, swapped }: Multiplication,
        when: &[Pred],
    ) -> Result<Vec<Stmt>, LowerError> {
        let refused = |why: &str| strange(&what.name, &leaf.block, why);
        let mut factors: Vec<_> = leaf.reads.iter().filter(|(b, _)| *b != leaf.target).collect();
        if swapped {
            factors.reverse();
        }
        let [(a, a_at), (b, b_at)] = factors.as_slice() else { return Err(refused("it has other operands")) };
        let b_words = op.fragment_words()[1] * i64::from(op.word());
        let first_of = |form: &Linear| {
            let first = what.loops.iter().map(|v| (*v, Linear::of(0))).collect();
            form.substitute(&first, &self.nest.ranges)
        };
        let mut places = Vec::new();
        for (buffer, at) in [(leaf.target, &leaf.at), (*a, a_at), (*b, b_at)] {
            let (array, form) = self.element(buffer, at)?;
            let first = first_of(&form);
            if first.uses(&|v| self.nest.thread(v).is_some()) {
                return Err(refused("lanes have different registers"));
            }
            let Some(register) = at.last() else { return Err(refused("it has other operands")) };
            if form.plus(&first, -1) != register.plus(&first_of(register), -1) {
                return Err(refused("the registers of a fragment are no neighbours"));
            }
            places.push((array, first));
        }
        let places: Vec<_> = places.into_iter().map(|(array, first)| (array, self.plain_index(&first))).collect();
        let part =
            |(array, index): &(ArrayId, Index), by: i64, number: i64| (*array, add(index.clone(), c(by * number)));
        let list = (0..pairs).map(|number| {
            let d = part(&places[0], 4, number);
            let (a, b) = (places[1].clone(), part(&places[2], b_words, number));
            Stmt::Warp(WarpOp::Mma { op, d, a, b })
        });
        let list = list.collect();
        Ok(guarded(self.condition(when), list))
    }

    /// What lanes hold is loaded or cleared, in words of their registers.
    pub(super) fn hold(&mut self, leaf: &Leaf, what: &Instruction, when: &[Pred]) -> Result<Vec<Stmt>, LowerError> {
        let refused = |why: &str| strange(&what.name, &leaf.block, why);
        let (array, to) = self.element(leaf.target, &leaf.at)?;
        let dtype = self.array(array).dtype;
        let per_word = i64::from(4 / dtype.bytes().clamp(1, 4));
        // The innermost loop counts the elements of a word.
        let (each, loops) = match what.loops.split_last() {
            Some((each, loops)) if per_word > 1 => (Some(*each), loops),
            _ => (None, what.loops.as_slice()),
        };
        let whole = each.is_none_or(|v| {
            self.nest.ranges.get(&v) == Some(&(0, per_word - 1)) && to.split_var(v).is_some_and(|(unit, _)| unit == 1)
        });
        if !whole {
            return Err(refused("the elements of a lane's words are no neighbours"));
        }
        let first = to.substitute(&zeros(each.iter().chain(loops)), &self.nest.ranges);
        let words = self.words((&to, &first), each, loops);
        let mut words = words.ok_or_else(|| refused("which registers are meant is not known"))?;
        words.sort_by_key(|word| word.at);
        let source = match (&leaf.value, leaf.reads.as_slice()) {
            (Expr::Load(..), [(b, at)]) if self.program.buffer(*b).dtype == dtype => {
                let inside = !self.is_global(*b) || missing(self.program, *b, at, when, &self.nest.ranges).is_empty();
                Some(self.element(*b, at)?).filter(|_| inside)
            }
            _ => None,
        };
        let most = match leaf.annotations.get(keys::LDMATRIX) {
            Some(Attr::Int(count @ (1 | 2 | 4))) => *count as usize,
            _ => 4,
        };
        let shared = source.as_ref().filter(|(src, _)| self.array(*src).space == Space::Shared);
        let lines = shared.and_then(|(src, from)| Some((*src, self.lines(from, each, per_word)?)));
        if let Some((src, from)) = shared.filter(|_| dtype.bytes() == 1) {
            let to = (array, &first);
            if let Some(list) = self.bytes(to, (*src, from), (each, loops), &words, most) {
                return Ok(guarded(self.condition(when), list));
            }
        }
        let (mut list, mut rest) = (Vec::new(), words.as_slice());
        while let Some(word) = rest.first() {
            let dst_index = self.plain_index(&first.shifted(word.at));
            let fits = |count: &usize| *count <= most.min(rest.len()) && follow(&rest[..*count], per_word);
            let matrices = lines.as_ref().and_then(|(src, lines)| {
                [4, 2, 1].into_iter().filter(fits).find_map(|count| {
                    let row = self.rows(&lines.rows, &rest[..count], loops)?;
                    let aligned = row.scaled(dtype.bytes().into()).multiple_of(ROW_BYTES);
                    aligned.then_some((count, *src, row, lines.transposed))
                })
            });
            let taken = match matrices {
                Some((count, src, row, transposed)) => {
                    let (dst, src_index) = (array, self.index(src, &row, "row"));
                    let op = WarpOp::LoadMatrix { dst, dst_index, src, src_index, count: count as u32, transposed };
                    list.push(Stmt::Warp(op));
                    count
                }
                None => {
                    list.extend(self.word(leaf, (array, dst_index), (each, loops), word, source.as_ref())?);
                    1
                }
            };
            rest = &rest[taken..];
        }
        Ok(guarded(self.condition(when), list))
    }

    /// Words of four bytes that lie across rows of shared memory, by `ldmatrix` of units of two bytes, and permuted. None where the two of a unit
    /// are no elements of two words of a lane.
    fn bytes(
        &mut self,
        (array, first): (ArrayId, &Linear),
        (src, from): (ArrayId, &Linear),
        (each, loops): (Option<VarId>, &[VarId]),
        words: &[Word],
        most: usize,
    ) -> Option<Vec<Stmt>> {
        let warp = InWarp::of(self.nest)?;
        let (ranges, each) = (&warp.ranges, each?);
        let (from, lane) = (&warp.apart(from), Linear::var(warp.lane));
        let instead = |lane_is: Linear, each_is: Linear| {
            from.substitute(&HashMap::from([(warp.lane, lane_is), (each, each_is)]), ranges)
        };
        // Unit l // 4 of the rows of word l % 4.
        let unit = from.plus(&instead(lane.remainder(4, ranges), Linear::var(each)), -1);
        if unit.plus(&lane.divided(4, ranges), -2).joined(ranges).as_constant() != Some(0) {
            return None;
        }
        let is_half = |v: &VarId| ranges.get(v) == Some(&(0, 1)) && from.split_var(*v).is_some_and(|(by, _)| by == 1);
        let half = loops.iter().position(is_half)?;
        let pairs: Vec<[&Word; 2]> = words
            .iter()
            .filter(|word| word.values[half] == 0)
            .map(|word| {
                let mut other = word.values.clone();
                other[half] = 1;
                Some([word, words.iter().find(|word| word.values == other)?])
            })
            .collect::<Option<_>>()?;
        // Rows 2 t and 2 t + 1 of a matrix are elements 0 and 1 of word t, or 2 and 3.
        let row = lane.remainder(8, ranges);
        let matrix = lane.divided(8, ranges);
        let element = row.remainder(2, ranges).plus(&matrix.remainder(2, ranges), 2);
        let rows = instead(row.divided(2, ranges), element);
        let place = |words: &[[&Word; 2]]| {
            let second = matrix.divided(2, ranges);
            let of = |(d, v): (usize, &VarId)| {
                let [first, next] = [0, 1].map(|n| words.get(n).map_or(0, |[word, _]| word.values[d]));
                let steps = if words.len() == 2 { second.scaled(next - first) } else { Linear::of(0) };
                (*v, steps.shifted(first))
            };
            let place = rows.substitute(&loops.iter().enumerate().map(of).collect(), ranges);
            place.multiple_of(ROW_BYTES).then(|| warp.together(&place))
        };
        let groups = pairs.chunks(if most == 4 { 2 } else { 1 });
        let groups = groups.map(|words| Some((words, place(words)?))).collect::<Option<Vec<_>>>()?;
        let units = self.words_of(array, 16);
        let mut list = Vec::new();
        for (words, place) in groups {
            let (src_index, count) = (self.index(src, &place, "row"), 2 * words.len() as u32);
            let load = WarpOp::LoadMatrix { dst: units, dst_index: c(0), src, src_index, count, transposed: true };
            list.push(Stmt::Warp(load));
            for (number, halves) in (0..).zip(words) {
                let [low, high] = [0, 4].map(|at| (units, c(8 * number + at)));
                for (word, selector) in halves.iter().zip([0x6420, 0x7531]) {
                    let dst = (array, self.plain_index(&first.shifted(word.at)));
                    let (low, high) = (low.clone(), high.clone());
                    list.push(Stmt::Warp(WarpOp::Permute { dst, low, high, selector }));
                }
            }
        }
        Some(list)
    }

    /// Values of 16 bits that lanes hold go to shared memory by `stmatrix`: of up to four matrices at once. None where they are no rows of
    /// whole matrices, or not all lanes store.
    pub(super) fn by_stmatrix(&mut self, leaf: &Leaf, what: &Instruction) -> Result<Option<Vec<Stmt>>, LowerError> {
        let Guarding { when, zero } = self.guarding.get(&leaf.id).cloned().unwrap_or_default();
        let of_lanes =
            |p: &Pred| !p.forms(&mut |form| self.nest.is_uniform(form)) || p.uses(&|v| what.loops.contains(&v));
        let Some((each, loops)) = what.loops.split_last().filter(|_| !when.iter().any(of_lanes)) else {
            return Ok(None);
        };
        let (array, to) = self.element(leaf.target, &leaf.at)?;
        let source = leaf.reads.iter().find(|(b, _)| self.nest.roles.contains_key(b));
        let Some((held, at)) = source.map(|(b, at)| (*b, at.clone())) else { return Ok(None) };
        let (_, from) = self.element(held, &at)?;
        let first = from.substitute(&zeros([each].into_iter().chain(loops)), &self.nest.ranges);
        let pairs =
            self.nest.ranges.get(each) == Some(&(0, 1)) && from.split_var(*each).is_some_and(|(unit, _)| unit == 1);
        let words = self.words((&from, &first), Some(*each), loops).filter(|_| pairs);
        let lines = self.lines(&to, Some(*each), 2);
        let (Some(mut words), Some(lines)) = (words, lines) else { return Ok(None) };
        words.sort_by_key(|word| word.at);
        let (mut matrices, mut rest) = (Vec::new(), words.as_slice());
        while !rest.is_empty() {
            let fits = |count: &usize| *count <= rest.len() && follow(&rest[..*count], 2);
            let row = [4, 2, 1].into_iter().filter(fits).find_map(|count| {
                let row = self.rows(&lines.rows, &rest[..count], loops)?;
                row.scaled(2).multiple_of(ROW_BYTES).then_some((count, row))
            });
            let Some((count, row)) = row else { return Ok(None) };
            let (words, others) = rest.split_at(count);
            matrices.push((words, row));
            rest = others;
        }
        let packed = self.words_of(array, 8);
        let mut list = Vec::new();
        for (words, row) in matrices {
            for (number, word) in (0..).zip(words) {
                let mut value = |element| self.value_at(leaf, (Some(*each), loops), word, (element, &zero));
                let (low, high) = (value(0)?, value(1)?);
                list.push(Stmt::Warp(WarpOp::Pack { dst: (packed, c(2 * number)), low, high }));
            }
            let (dst_index, count, transposed) = (self.index(array, &row, "row"), words.len() as u32, lines.transposed);
            let (dst, src, src_index) = (array, packed, c(0));
            list.push(Stmt::Warp(WarpOp::StoreMatrix { dst, dst_index, src, src_index, count, transposed }));
        }
        Ok(Some(guarded(self.condition(&when), list)))
    }

    /// The words that loops run over: where each is among the registers, as a distance from the first.
    fn words(&self, (to, first): (&Linear, &Linear), each: Option<VarId>, loops: &[VarId]) -> Option<Vec<Word>> {
        let ranges = &self.nest.ranges;
        let mut points: Vec<Vec<i64>> = vec![Vec::new()];
        for v in loops {
            let most = ranges.get(v)?.1;
            points = points.iter().flat_map(|p| (0..=most).map(|n| [p.as_slice(), &[n]].concat())).collect();
        }
        let word = |values: Vec<i64>| {
            let mut map = zeros(each.iter());
            map.extend(loops.iter().zip(&values).map(|(v, n)| (*v, Linear::of(*n))));
            let at = to.substitute(&map, ranges).plus(first, -1).as_constant()?;
            Some(Word { values, at })
        };
        points.into_iter().map(word).collect()
    }

    /// Where the rows of matrices begin that a copy is a load of.
    fn lines(&self, from: &Linear, each: Option<VarId>, per_word: i64) -> Option<Lines> {
        let warp = InWarp::of(self.nest)?;
        let ranges = &warp.ranges;
        let (from, lane) = (&warp.apart(from), Linear::var(warp.lane));
        let instead = |lane_is: Linear, each_is: Linear| {
            let mut map = HashMap::from([(warp.lane, lane_is)]);
            map.extend(each.map(|v| (v, each_is)));
            from.substitute(&map, ranges)
        };
        let own = each.map_or(Linear::of(0), Linear::var);
        let nothing = |form: Linear| form.joined(ranges).as_constant() == Some(0);
        // Word l % 4 of row l // 4.
        let start = instead(lane.divided(4, ranges).scaled(4), Linear::of(0));
        let within = lane.remainder(4, ranges).scaled(per_word).plus(&own, 1);
        if nothing(from.plus(&start, -1).plus(&within, -1)) {
            let rows = warp.together(&instead(lane.remainder(8, ranges).scaled(4), Linear::of(0)));
            return Some(Lines { rows, transposed: false });
        }
        // Unit l // 4 of rows 2 (l % 4) and the next.
        let start = instead(lane.remainder(4, ranges), own);
        if per_word == 2 && nothing(from.plus(&start, -1).plus(&lane.divided(4, ranges), -1)) {
            let row = lane.remainder(8, ranges);
            let rows = warp.together(&instead(row.divided(2, ranges), row.remainder(2, ranges)));
            return Some(Lines { rows, transposed: true });
        }
        None
    }

    /// The place of a lane's row of matrices, which are these words, one after the other.
    fn rows(&self, rows: &Linear, words: &[Word], loops: &[VarId]) -> Option<Linear> {
        let ranges = &self.nest.ranges;
        let warp = InWarp::of(self.nest)?;
        let matrix = warp.together(&Linear::var(warp.lane)).divided(8, ranges);
        let bits = [matrix.remainder(2, ranges), matrix.divided(2, ranges)];
        let mut map = HashMap::new();
        for (d, v) in loops.iter().enumerate() {
            let value = |number: usize| words.get(number).map_or(0, |word| word.values[d]);
            let (first, steps) = (value(0), [value(1), value(2)].map(|n| n - value(0)));
            let form = match words.len() {
                4 if value(3) == first + steps[0] + steps[1] => bits[0].scaled(steps[0]).plus(&bits[1], steps[1]),
                2 => bits[0].scaled(steps[0]),
                1 => Linear::of(0),
                _ => return None,
            };
            map.insert(*v, form.shifted(first));
        }
        Some(rows.substitute(&map, ranges))
    }

    /// An element of a word, as packing takes it; zero where `zero` does not hold.
    fn value_at(
        &mut self,
        leaf: &Leaf,
        (each, loops): (Option<VarId>, &[VarId]),
        word: &Word,
        (element, zero): (i64, &[Pred]),
    ) -> Result<Value, LowerError> {
        let mut bound: Vec<_> = loops.iter().zip(&word.values).map(|(v, n)| (*v, c(*n))).collect();
        bound.extend(each.map(|v| (v, c(element))));
        self.with_all(&bound, |this| {
            // Packing rounds by itself.
            let dtype = this.program.buffer(leaf.target).dtype;
            let rounds =
                matches!(&leaf.value, Expr::Cast(_, of) if this.type_of(of) == DType::F32 && dtype.bytes() == 2);
            let (value, dtype) = match this.leaf_value(leaf, zero)? {
                Value::Cast(_, value) if rounds => (*value, DType::F32),
                value => (value, dtype),
            };
            Ok(match this.condition(zero) {
                Cond::True => value,
                cond => Value::Select(cond, Box::new(value), Box::new(Value::zero(dtype))),
            })
        })
    }

    /// A word of a lane's registers: neighbours at once, or element by element.
    fn word(
        &mut self,
        leaf: &Leaf,
        (array, index): (ArrayId, Index),
        (each, loops): (Option<VarId>, &[VarId]),
        word: &Word,
        source: Option<&(ArrayId, Linear)>,
    ) -> Result<Vec<Stmt>, LowerError> {
        let dtype = self.array(array).dtype;
        let width = 4 / dtype.bytes().clamp(1, 4);
        let values = |element: i64| {
            let values = loops.iter().zip(&word.values).map(|(v, n)| (*v, *n));
            values.chain(each.map(|v| (v, element))).collect::<Vec<_>>()
        };
        if let Some((src, from)) = source {
            let neighbours = each.is_none_or(|v| from.split_var(v).is_some_and(|(unit, _)| unit == 1));
            let map = values(0).into_iter().map(|(v, n)| (v, Linear::of(n))).collect();
            let from = from.substitute(&map, &self.nest.ranges);
            if neighbours && from.multiple_of(width.into()) {
                let src_index = self.index(*src, &from, "from");
                let (dst, dst_index, src, zero_unless) = (array, index, *src, Cond::True);
                return Ok(vec![Stmt::Copy { dst, dst_index, src, src_index, width, zero_unless }]);
            }
        }
        let value = |element: i64| self.value_at(leaf, (each, loops), word, (element, &[]));
        let elements = (0..width.into()).map(value).collect::<Result<Vec<_>, _>>()?;
        match elements.as_slice() {
            [one] => Ok(vec![Stmt::Store { array, index, value: one.clone() }]),
            [low, high] => {
                let [low, high] = [low.clone(), high.clone()];
                Ok(vec![Stmt::Warp(WarpOp::Pack { dst: (array, index), low, high })])
            }
            _ => {
                let src = self.vector_registers(array, dtype, width.into(), &[]);
                let store = |(e, value)| Stmt::Store { array: src, index: c(e), value };
                let mut list: Vec<Stmt> = (0..).zip(elements).map(store).collect();
                let (dst, dst_index, src_index, zero_unless) = (array, index, c(0), Cond::True);
                list.push(Stmt::Copy { dst, dst_index, src, src_index, width, zero_unless });
                Ok(list)
            }
        }
    }
}

/// A word of a lane's registers: the values of the loops, and where it is.
struct Word {
    values: Vec<i64>,
    at: i64,
}

/// Where a lane's row begins, by the words' loops and with the lane's number as that of a row, modulo 8.
struct Lines {
    rows: Linear,
    transposed: bool,
}

fn lane(nest: &Nest) -> Option<VarId> {
    nest.threads.iter().find(|t| t.tag == LANE_TAG).map(|t| t.var)
}

/// The lanes of a warp, where several hold what is multiplied together.
struct InWarp {
    /// The lane's number, in its warp.
    lane: VarId,
    /// What `threadIdx.x` is by the lane and the warp, and these by it; none where there is one warp.
    apart: HashMap<VarId, Linear>,
    together: HashMap<VarId, Linear>,
    ranges: Ranges,
}

impl InWarp {
    fn of(nest: &Nest) -> Option<InWarp> {
        let (own, mut ranges) = (lane(nest)?, nest.ranges.clone());
        if nest.lanes == LANES {
            return Some(InWarp { lane: own, apart: HashMap::new(), together: HashMap::new(), ranges });
        }
        let [lane, warp] = [1, 2].map(|n| VarId(nest.next_var + n));
        ranges.extend([(lane, (0, LANES - 1)), (warp, (0, nest.lanes / LANES - 1))]);
        let number = Linear::var(own);
        let apart = HashMap::from([(own, Linear::var(warp).scaled(LANES).plus(&Linear::var(lane), 1))]);
        let by_thread = [(lane, number.remainder(LANES, &ranges)), (warp, number.divided(LANES, &ranges))];
        Some(InWarp { lane, apart, together: HashMap::from(by_thread), ranges })
    }

    /// A form in which lane and warp stand for `threadIdx.x`.
    fn apart(&self, form: &Linear) -> Linear {
        form.substitute(&self.apart, &self.ranges)
    }

    /// The other way round.
    fn together(&self, form: &Linear) -> Linear {
        form.substitute(&self.together, &self.ranges)
    }
}

fn zeros<'v>(vars: impl Iterator<Item = &'v VarId>) -> HashMap<VarId, Linear> {
    vars.map(|v| (*v, Linear::of(0))).collect()
}

/// Whether words follow each other.
fn follow(words: &[Word], per_word: i64) -> bool {
    words.windows(2).all(|pair| pair[1].at == pair[0].at + per_word)
}
