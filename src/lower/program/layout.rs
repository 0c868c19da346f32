//! Where the elements of a buffer lie.
//!
//! A buffer on the chip has its full shape in the program, but only what one block (shared) or one thread (local) has
//! alive at a time is allocated. An index is the sum of a part that is fixed while the buffer lives, which is dropped,
//! and a part that varies. Pieces of the varying part that lie apart (vthread strides) are moved together: the part is
//! read as a mixed-radix number whose unused digits are left out.
use super::boxes::Boxes;
use super::error::LowerError;
use super::guards::may_go;
use super::linear::{Atom, Linear, Ranges};
use super::nest::{Leaf, Nest};
use super::pred::{range_of_parts, range_under, Pred};
use satune_ir::affine::{index_type, int};
use satune_ir::{visit, Annotations, Attr, BufferId, DType, Expr, Program, Stmt, VarId};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Digit of an index: `(index // unit) % extent`, which becomes a digit of weight `packed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digit {
    unit: i64,
    extent: i64,
    packed: i64,
}

/// One dimension.
#[derive(Clone, Debug, Default)]
struct Dim {
    /// Subtracted from the index first.
    origin: Linear,
    /// None: taken as it is.
    digits: Option<Vec<Digit>>,
    extent: i64,
    stride: i64,
    /// Whether writes reach all that reads reach.
    covered: bool,
}

/// Where the elements of a buffer lie.
#[derive(Clone, Debug)]
pub struct BufferLayout {
    dims: Vec<Dim>,
    /// Strides by which an element's indices are one number first, as they are where digits of one number index them.
    joined: Option<Vec<i64>>,
    /// Rows are in boxes of a matrix instruction's.
    boxes: Option<Boxes>,
    /// Elements to allocate.
    pub len: i64,
    /// Whether writes reach all that reads reach.
    pub covered: bool,
}

impl BufferLayout {
    /// Position of an element.
    pub fn flatten(&self, at: &[Linear], ranges: &Ranges) -> Linear {
        let one = self.joined.as_ref().map(|strides| [join(at, strides, ranges)]);
        let at = one.as_ref().map_or(at, |one| one);
        let packed = |(index, dim): (&Linear, &Dim)| {
            let index = index.plus(&dim.origin, -1);
            match &dim.digits {
                None => index,
                Some(digits) => {
                    index.terms.iter().fold(Linear::of(of_constant(digits, index.constant)), |sum, (atom, c)| {
                        let digit = digits.iter().rev().find(|d| d.unit <= *c);
                        let c = digit.map_or(*c, |d| c / d.unit * d.packed);
                        sum.plus(&Linear { terms: vec![(atom.clone(), c)], constant: 0 }, 1)
                    })
                }
            }
        };
        let strided = |at: &[Linear]| {
            let parts = at.iter().zip(&self.dims);
            parts.fold(Linear::of(0), |sum, (index, dim)| sum.plus(&packed((index, dim)), dim.stride))
        };
        match (&self.boxes, self.row(), at) {
            (Some(boxes), Some(d), [before @ .., _, _]) if at.len() == self.dims.len() => {
                let last = before.len() + 1;
                let [row, column] = [d, last].map(|d| packed((&at[d], &self.dims[d])));
                // Of dimensions between rows and columns one value lives at a time.
                let others = strided(&at[..d]);
                others.plus(&boxes.place(&row, &column, self.dims[d].extent, ranges), 1)
            }
            _ => strided(at),
        }
    }

    /// The dimension of rows, where columns are the last: the nearest before it of which several values live at a time.
    pub fn row(&self) -> Option<usize> {
        let nearest = self.dims.len().checked_sub(2)?;
        Some((0..=nearest).rev().find(|d| self.dims[*d].extent > 1).unwrap_or(nearest))
    }

    /// Rows and columns of a matrix: of what lives at a time.
    pub fn matrix(&self) -> Option<[i64; 2]> {
        let [row, column] = [self.row()?, self.dims.len() - 1].map(|d| self.dims[d].extent);
        self.joined.is_none().then_some([row, column])
    }

    /// Row and column of an element within what lives at a time.
    pub fn in_matrix(&self, at: &[Linear]) -> [Linear; 2] {
        let (Some(row), true) = (self.row(), at.len() == self.dims.len()) else {
            return [Linear::of(0), Linear::of(0)];
        };
        [row, at.len() - 1].map(|d| at[d].plus(&self.dims[d].origin, -1))
    }

    /// Rows are in boxes.
    pub fn in_boxes(&mut self, boxes: Boxes) {
        self.boxes = Some(boxes);
    }

    /// The boxes that rows are in.
    pub fn boxes(&self) -> Option<&Boxes> {
        self.boxes.as_ref()
    }

    /// All of a buffer, by its own strides.
    pub fn whole(shape: &[i64], strides: &[i64]) -> BufferLayout {
        let mut dims: Vec<Dim> = shape.iter().map(|e| Dim { extent: *e, ..Dim::default() }).collect();
        let mut stride = 1_i64;
        for (i, dim) in dims.iter_mut().enumerate().rev() {
            dim.stride = strides.get(i).copied().unwrap_or(stride);
            stride = stride.saturating_mul(dim.extent);
        }
        let last = dims.iter().fold(0_i64, |n, d| n.saturating_add((d.extent - 1).saturating_mul(d.stride)));
        BufferLayout { dims, joined: None, boxes: None, len: last.saturating_add(1), covered: true }
    }
}

/// A number without the digits that are left out.
fn of_constant(digits: &[Digit], number: i64) -> i64 {
    let (mut rest, mut sum) = (number, 0);
    for d in digits.iter().rev() {
        sum += rest / d.unit * d.packed;
        rest %= d.unit;
    }
    sum + rest
}

/// The number that the indices of an element are the digits of.
fn join(at: &[Linear], strides: &[i64], ranges: &Ranges) -> Linear {
    let sum = at.iter().zip(strides).fold(Linear::of(0), |sum, (index, stride)| sum.plus(index, *stride));
    sum.joined(ranges)
}

/// The constant shape and strides of a buffer.
pub fn constants(program: &Program, id: BufferId) -> Result<(Vec<i64>, Vec<i64>), LowerError> {
    let buffer = program.buffer(id);
    let all = |list: &[Expr]| -> Result<Vec<i64>, LowerError> {
        list.iter()
            .map(|e| match e {
                Expr::Int(v, _) if (0..1 << 40).contains(v) => Ok(*v),
                _ => {
                    Err(LowerError::Overflow { what: format!("shape of buffer {} has no constants, or", buffer.name) })
                }
            })
            .collect()
    };
    Ok((all(&buffer.shape)?, all(&buffer.strides)?))
}

/// The strides of what has no gaps.
pub fn row_major(shape: &[i64]) -> Vec<i64> {
    BufferLayout::whole(shape, &[]).dims.iter().map(|dim| dim.stride).collect()
}

/// The constant shape of a buffer, and its strides, said or not.
pub fn strided(program: &Program, id: BufferId) -> Result<(Vec<i64>, Vec<i64>), LowerError> {
    let (shape, strides) = constants(program, id)?;
    let strides = BufferLayout::whole(&shape, &strides).dims.iter().map(|dim| dim.stride).collect();
    Ok((shape, strides))
}

/// One access.
struct Access<'n> {
    leaf: &'n Leaf,
    at: Cow<'n, [Linear]>,
    write: bool,
    path: Vec<VarId>,
}

/// Lays out a buffer on the chip; `local`: one copy per thread.
pub fn compact(nest: &Nest, program: &Program, id: BufferId, local: bool) -> Result<BufferLayout, LowerError> {
    let mut accesses: Vec<Access> = Vec::new();
    nest.leaves(&mut |leaf, path| {
        let path: Vec<VarId> = path.iter().map(|l| l.var).collect();
        for (_, at) in leaf.reads.iter().filter(|(b, _)| *b == id) {
            accesses.push(Access { leaf, at: at.into(), write: false, path: path.clone() });
        }
        if leaf.target == id {
            accesses.push(Access { leaf, at: (&leaf.at).into(), write: true, path });
        }
    });
    let layout = laid(nest, program, id, local, &accesses);
    let by_threads = |layout: &BufferLayout| {
        let mut found = false;
        let mut all = accesses.iter().map(|a| layout.flatten(&a.at, &nest.ranges));
        all.any(|form| {
            form.vars(&mut |v| found |= nest.thread(v).is_some());
            found
        })
    };
    let one_each = match &layout {
        Ok(layout) => !local || !by_threads(layout),
        Err(error) => !matches!(error, LowerError::NotLocal { .. }),
    };
    if one_each {
        return layout;
    }
    // Registers have no addresses: what each thread has of a row is one number where the indices of the row are its digits.
    let whole = BufferLayout::whole(&constants(program, id)?.0, &[]);
    let strides: Vec<i64> = whole.dims.iter().map(|dim| dim.stride).collect();
    let one = |a: &Access<'_>| vec![join(&a.at, &strides, &nest.ranges)];
    let joined: Vec<Access<'_>> =
        accesses.iter().map(|a| Access { at: one(a).into(), path: a.path.clone(), ..*a }).collect();
    match laid(nest, program, id, local, &joined) {
        Ok(other) => {
            let other = BufferLayout { joined: Some(strides), ..other };
            if by_threads(&other) {
                layout
            } else {
                Ok(other)
            }
        }
        Err(_) => layout,
    }
}

fn laid(
    nest: &Nest,
    program: &Program,
    id: BufferId,
    local: bool,
    accesses: &[Access<'_>],
) -> Result<BufferLayout, LowerError> {
    let around = accesses.iter().map(|a| a.path.as_slice()).reduce(common).unwrap_or_default();
    let serial: HashSet<VarId> = around.iter().copied().filter(|v| nest.vthreads.iter().all(|x| x.var != *v)).collect();
    let rank = accesses.first().map_or(0, |a| a.at.len());
    let plan = Uses { nest, program, local, accesses };
    let lay_out = |serial: &HashSet<VarId>| -> Result<Option<Vec<Dim>>, LowerError> {
        (0..rank).map(|d| plan.dimension(d, serial, program, id)).collect()
    };
    let mut dims = match lay_out(&serial)? {
        Some(dims) => dims,
        // An element that is read was written in an earlier iteration: nothing of the loops can be dropped.
        None => lay_out(&HashSet::new())?.unwrap_or_default(),
    };
    let extents: Vec<i64> = dims.iter().map(|dim| dim.extent).collect();
    let (strides, len) = strides_of(&extents, &alignment(accesses));
    dims.iter_mut().zip(strides).for_each(|(dim, stride)| dim.stride = stride);
    let covered = dims.iter().all(|d| d.covered);
    Ok(BufferLayout { dims, joined: None, boxes: None, len, covered })
}

/// `storage_align`: (factor, offset) per dimension.
type Pads = HashMap<usize, (i64, i64)>;

/// The program with the strides of buffers between kernels whose rows are to begin at multiples (`storage_align`).
pub fn aligned(program: &Program) -> Cow<'_, Program> {
    let mut found: Vec<(BufferId, Pads)> = Vec::new();
    visit::walk_stmt(&program.body.block.body, &mut |s| {
        let Stmt::Realize(r) = s else { return };
        let pads = pads_of(&r.block.annotations);
        if let (Stmt::Store { buffer, .. }, false) = (r.block.body.as_ref(), pads.is_empty()) {
            let info = program.buffer(*buffer);
            if info.scope == "global" && info.strides.is_empty() && !program.params.contains(buffer) {
                found.push((*buffer, pads));
            }
        }
    });
    if found.is_empty() {
        return Cow::Borrowed(program);
    }
    let mut out = program.clone();
    for (buffer, pads) in found {
        let (Ok((shape, _)), Some(info)) = (constants(program, buffer), out.buffers.get_mut(buffer.0 as usize)) else {
            continue;
        };
        let index = info.shape.first().map_or(DType::I32, index_type);
        info.strides = strides_of(&shape, &pads).0.into_iter().map(|stride| int(stride, index)).collect();
    }
    Cow::Owned(out)
}

/// Strides of dimensions of these extents, and how many elements they are.
fn strides_of(extents: &[i64], pads: &Pads) -> (Vec<i64>, i64) {
    let (mut strides, mut stride) = (vec![1; extents.len()], 1_i64);
    for (d, extent) in extents.iter().enumerate().rev() {
        if let Some((factor, offset)) = pads.get(&d) {
            stride += (factor + offset - stride % factor) % factor;
        }
        strides[d] = stride;
        stride = stride.saturating_mul(*extent);
    }
    (strides, stride)
}

fn common<'a>(a: &'a [VarId], b: &'a [VarId]) -> &'a [VarId] {
    let n = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    &a[..n]
}

/// Those of the blocks that write.
fn alignment(accesses: &[Access]) -> Pads {
    accesses.iter().filter(|a| a.write).flat_map(|a| pads_of(&a.leaf.annotations)).collect()
}

/// Those of a block.
fn pads_of(annotations: &Annotations) -> Pads {
    let Some(Attr::List(list)) = annotations.get("buffer_dim_align") else { return HashMap::new() };
    let pad = |entry: &Attr| match super::nest::int_list(Some(entry)).as_deref() {
        Some([_, axis, factor, offset]) if *factor > 0 => {
            Some((usize::try_from(*axis).ok()?, (*factor, offset.rem_euclid(*factor))))
        }
        _ => None,
    };
    list.iter().filter_map(pad).collect()
}

struct Uses<'n> {
    nest: &'n Nest,
    program: &'n Program,
    local: bool,
    accesses: &'n [Access<'n>],
}

impl Uses<'_> {
    fn is_thread(&self, v: VarId) -> bool {
        self.nest.thread(v).is_some()
    }

    /// Whether an atom has one value while the buffer lives.
    fn fixed(&self, atom: &Atom, serial: &HashSet<VarId>) -> bool {
        let mut fixed = true;
        atom.vars(&mut |v| {
            fixed &= match self.nest.thread(v) {
                Some(t) => !t.block || self.local,
                None => serial.contains(&v),
            }
        });
        fixed
    }

    /// One dimension; None where something is read that the loops in `serial` have left behind.
    fn dimension(
        &self,
        d: usize,
        serial: &HashSet<VarId>,
        program: &Program,
        id: BufferId,
    ) -> Result<Option<Dim>, LowerError> {
        let ranges = &self.nest.ranges;
        let split: Vec<(Linear, Linear)> =
            self.accesses.iter().map(|a| a.at[d].partition(&|atom| self.fixed(atom, serial))).collect();
        let Some((origin, _)) = split.first() else { return Ok(None) };
        let mut origin = origin.clone();
        if split.iter().any(|(fixed, _)| *fixed != origin) {
            if let Some(error) = self.exchange(&split, d, program, id) {
                return Err(error);
            }
            // Only what all have in common is dropped.
            let shared_terms = |t: &(Atom, i64)| split.iter().all(|(fixed, _)| fixed.terms.contains(t));
            origin.terms.retain(shared_terms);
        }
        let varying: Vec<Linear> = self.accesses.iter().map(|a| a.at[d].plus(&origin, -1)).collect();
        let hull = |pick: &dyn Fn(&Access) -> bool| {
            self.accesses
                .iter()
                .zip(&varying)
                .filter(|(a, _)| pick(a))
                .map(|(a, form)| self.bounds(a, form))
                .reduce(around)
        };
        let Some((lo, hi)) = hull(&|_| true) else { return Ok(None) };
        let written = hull(&|a| a.write).unwrap_or((lo, hi));
        let read = hull(&|a| !a.write).unwrap_or(written);
        let covered = written.0 <= read.0 && read.1 <= written.1 && self.permuted_covered(d, serial);
        if !serial.is_empty() && !covered && !self.written_in_place(&varying, d, serial) {
            return Ok(None);
        }
        if hi.saturating_sub(lo) >= 1 << 40 {
            let name = &program.buffer(id).name;
            return Err(LowerError::Overflow { what: format!("dimension {d} of buffer {name}") });
        }
        let digits = digits(&varying, ranges);
        let packed = |list: &[Digit]| list.iter().map(|x| x.extent).product::<i64>();
        // A tile that has no gaps is taken as it is.
        let digits = digits.filter(|list| self.local || packed(list) < hi - lo + 1);
        let extent = digits.as_deref().map_or(hi - lo + 1, packed);
        let origin = origin.shifted(if digits.is_some() { 0 } else { lo });
        Ok(Some(Dim { origin, digits, extent, stride: 1, covered }))
    }

    /// Whether what is read, under all guards, is written under all guards while the loops stand still: then nothing is kept
    /// for later iterations, even if guards that go let reads reach further. Where all accesses are permuted, guards bound what is
    /// permuted; of the xor itself they say little.
    fn written_in_place(&self, varying: &[Linear], d: usize, serial: &HashSet<VarId>) -> bool {
        let ranges = &self.nest.ranges;
        let plain = |a: &Access| {
            self.permuted(a, d, serial, |form| {
                let guards: Vec<Pred> = a.leaf.guards.iter().map(|p| p.map(&mut |l| l.joined(ranges))).collect();
                range_of_parts(form, &guards, ranges)
            })
        };
        self.covered(|at, a| Some(range_of_parts(&varying[at], &a.leaf.guards, ranges)))
            || self.accesses.iter().all(|a| a.at[d].without_xor().is_some()) && self.covered(|_, a| plain(a))
    }

    /// The bounds of an xor are those of all that it could be: what is permuted, on its left side, has to be covered too.
    fn permuted_covered(&self, d: usize, serial: &HashSet<VarId>) -> bool {
        self.covered(|_, a| self.permuted(a, d, serial, |form| self.bounds(a, form)))
    }

    /// Bounds of what varies of an index that is permuted within its dimension, as it was before; none where it is not permuted.
    fn permuted(
        &self,
        access: &Access,
        d: usize,
        serial: &HashSet<VarId>,
        bounds: impl FnOnce(&Linear) -> (i64, i64),
    ) -> Option<(i64, i64)> {
        let plain = access.at[d].without_xor()?;
        let form = plain.partition(&|atom| self.fixed(atom, serial)).1.joined(&self.nest.ranges);
        // Nothing is written for sure by terms that move together, whose bounds are no values: `x // 2 * 2 + x % 2` of x < 15
        // has no 15.
        Some(if access.write && !apart(&form) { (1, 0) } else { bounds(&form) })
    }

    /// Whether what is written, where something is, covers what is read, within the bounds of each access that has some.
    fn covered(&self, bounds: impl Fn(usize, &Access) -> Option<(i64, i64)>) -> bool {
        let hull = |write: bool| {
            let all = self.accesses.iter().enumerate().filter(|(_, a)| a.write == write);
            all.filter_map(|(at, a)| bounds(at, a)).reduce(around)
        };
        match (hull(true), hull(false)) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(written), Some(read)) => written.0 <= written.1 && written.0 <= read.0 && read.1 <= written.1,
        }
    }

    /// Bounds of what an access touches. Guards that stay conditions count; those on an index of the statement, and others that may go
    /// (see [`may_go`]), do not count.
    fn bounds(&self, access: &Access, form: &Linear) -> (i64, i64) {
        let leaf = access.leaf;
        let kept_one = |p: &&Pred| match p {
            Pred::Lt(l, _) => {
                let mut indices = access.at.iter().chain(&leaf.at).chain(leaf.reads.iter().flat_map(|(_, at)| at));
                !indices.any(|index| index.plus(l, -1).as_constant().is_some())
                    && !may_go(self.nest, self.program, leaf, p, access.write)
            }
            _ => false,
        };
        let kept: Vec<Pred> = leaf.guards.iter().filter(kept_one).cloned().collect();
        range_under(form, &kept, &self.nest.ranges)
    }

    /// The error of threads that exchange data through a local buffer.
    fn exchange(&self, split: &[(Linear, Linear)], d: usize, program: &Program, id: BufferId) -> Option<LowerError> {
        if !self.local {
            return None;
        }
        let threads = |l: &Linear| l.partition(&|a| a.uses(&|v| self.is_thread(v))).0;
        let (first, _) = split.first()?;
        let (other, (_, _)) =
            self.accesses.iter().zip(split).find(|(_, (fixed, _))| threads(fixed) != threads(first))?;
        let names = |l: &Linear| super::emit::describe(l, self.nest);
        Some(LowerError::NotLocal {
            buffer: program.buffer(id).name.clone(),
            reader: other.leaf.block.clone(),
            read: names(&other.at[d]),
            written: names(&self.accesses.first()?.at[d]),
        })
    }
}

/// Bounds around two.
fn around(a: (i64, i64), b: (i64, i64)) -> (i64, i64) {
    (a.0.min(b.0), a.1.max(b.1))
}

/// Whether no two terms have a variable in common.
fn apart(form: &Linear) -> bool {
    let mut seen = HashSet::new();
    form.terms.iter().all(|(atom, _)| {
        let mut own = HashSet::new();
        atom.vars(&mut |v| {
            own.insert(v);
        });
        own.into_iter().all(|v| seen.insert(v))
    })
}

/// The digits that all of the forms use. None where they are no digits of one mixed-radix number.
fn digits(forms: &[Linear], ranges: &Ranges) -> Option<Vec<Digit>> {
    let mut used: Vec<(i64, i64)> = Vec::new();
    for form in forms {
        if form.constant != 0 {
            return None;
        }
        let mut own = Vec::new();
        for (atom, c) in &form.terms {
            let (lo, hi) = Linear { terms: vec![(atom.clone(), 1)], constant: 0 }.range(ranges);
            if *c <= 0 || lo != 0 {
                return None;
            }
            own.push((*c, hi + 1));
        }
        own.sort_unstable();
        // Within one form digits must not overlap.
        if own.windows(2).any(|w| w[0].0.saturating_mul(w[0].1) > w[1].0) {
            return None;
        }
        used.extend(own);
    }
    used.sort_unstable();
    let mut merged: Vec<(i64, i64)> = Vec::new();
    for (unit, extent) in used {
        match merged.last_mut() {
            Some((first, size)) if unit <= first.saturating_mul(*size) => {
                if unit % *first != 0 {
                    return None;
                }
                *size = (*size).max((unit / *first).saturating_mul(extent));
            }
            _ => merged.push((unit, extent)),
        }
    }
    let mut packed = 1_i64;
    let mut out = Vec::new();
    for (unit, extent) in merged {
        out.push(Digit { unit, extent, packed });
        packed = packed.saturating_mul(extent);
    }
    if out.is_empty() {
        out.push(Digit { unit: 1, extent: 1, packed: 1 });
    }
    Some(out)
}
