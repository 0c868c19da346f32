//! What a part of a program's results should be, and how closely executed kernels must agree with it.
use super::module::Unable;
use super::rounding::{self, BEYOND};
use super::values::{place, value, InputKind, Inputs};
use crate::agreement::{self, Agreement, Spread, EXACT};
use satune_ir::affine::constant;
use satune_ir::interp::{self, in_double, slice, Array, Bounds, Fault, Scalar};
use satune_ir::{tvmscript, visit, BufferId, DType, Expr, Program};
use satune_rewrites::tree::all_realizes;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Most block instances that the interpreter runs for one part.
const INSTANCES: u64 = 20_000_000;
/// Parts that are kept: candidates of one problem often have the same tiles.
const KEPT: usize = 24;

/// What some elements of a parameter should be.
pub struct Expected {
    /// Where it was asked for. What else was computed on the way need not be what it is in the end.
    asked: Bounds,
    /// The part that was computed.
    bounds: Bounds,
    typed: Array,
    /// Without rounding, where results agree up to roundoff only.
    wide: Option<(Array, Spread)>,
    terms: u64,
    /// Whether something is computed of sums.
    of_sums: bool,
    /// Whether a compiler may fuse a product with a sum.
    fused: bool,
    /// Whether products that it fuses are all that may differ.
    only_fused: bool,
    /// How far each element may be from what it is without rounding, where that was computed.
    rounding: Option<Array>,
}

/// How the results of a program may differ from what it says.
pub struct Meaning<'p> {
    pub program: &'p Program,
    pub inputs: Arc<Inputs>,
    kind: InputKind,
    terms: u64,
    /// Most block instances of a part.
    instances: u64,
    text: String,
    /// Whether to go on.
    pub go_on: &'p (dyn Fn() -> bool + Sync),
}

/// A part of a program's results, and what it should be; empty until somebody has made it.
type Kept = (String, InputKind, usize, Bounds, Arc<Mutex<Option<Option<Arc<Expected>>>>>);
static PARTS: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

impl<'p> Meaning<'p> {
    /// Of a program on one kind of inputs, of a seed; what takes long is done for as long as `go_on` says so.
    pub fn of(
        program: &'p Program,
        kind: InputKind,
        tf32: bool,
        (seed, go_on): (u64, &'p (dyn Fn() -> bool + Sync)),
    ) -> Meaning<'p> {
        let terms = agreement::terms(program);
        let inputs = Arc::new(Inputs::of(program, kind, terms, tf32, seed));
        let text = format!("{seed} {tf32} {}", tvmscript::print(program));
        // Where whole numbers are made of rounded floats nothing is compared without their bounds.
        let values = rounding::bounds_of_whole_numbers(program).map_or(1, |b| b.values.max(1));
        Meaning { program, inputs, kind, terms, instances: INSTANCES / values, text, go_on }
    }

    /// Extents of a parameter.
    pub fn shape(&self, param: usize) -> Vec<i64> {
        self.program.buffer(self.program.params[param]).shape.iter().map(|e| constant(e).unwrap_or(0)).collect()
    }

    /// Whether results are the same in any order of sums, no function's value is rounded in its own way, and no product is that a
    /// compiler may fuse with a sum.
    fn exact(&self) -> bool {
        self.exact_but_for_products() && !self.fused()
    }

    fn exact_but_for_products(&self) -> bool {
        let mut plain = true;
        visit::walk_stmt_exprs(&self.program.body.block.body, &mut |e| {
            visit::walk_expr(e, &mut |e| match e {
                Expr::Call(name, _, dtype) if dtype.is_float() => plain &= EXACT.contains(&name.as_ref()),
                _ => {}
            });
        });
        let floats = self.program.buffers.iter().any(|b| b.dtype.is_float());
        let sums = self.kind == InputKind::Extreme && self.terms > 1 && floats;
        plain && !sums && Agreement::of(self.program) == Agreement::Exact
    }

    fn fused(&self) -> bool {
        agreement::fuses(self.program, self.inputs.largest())
    }

    /// What a part of a parameter should be; none where the interpreter cannot tell. A part whose results take too long is
    /// cut to its first and last lines: so several may come of one.
    ///
    /// # Errors
    /// When it is told to end.
    pub fn parts(&self, param: usize, bounds: &Bounds) -> Result<Vec<Arc<Expected>>, Unable> {
        let mut todo = vec![bounds.clone()];
        let mut found = Vec::new();
        while let Some(bounds) = todo.pop() {
            if let Some(expected) = self.part(param, &bounds)? {
                found.push(expected);
                continue;
            }
            let Some(at) = bounds.iter().position(|(low, high)| high - low > 1) else { continue };
            let instances = slice(self.program, &[(self.program.params[param], bounds.clone())]).map(|s| s.instances);
            let Some(times) = instances.map(|n| (n / self.instances + 1) as i64).filter(|n| *n > 1) else { continue };
            let (low, high) = bounds[at];
            let lines = ((high - low) / (2 * times)).max(1);
            for part in [(low, low + lines), (high - lines, high)] {
                if part != (low, high) {
                    let mut smaller = bounds.clone();
                    smaller[at] = part;
                    todo.push(smaller);
                }
            }
        }
        Ok(found)
    }

    fn part(&self, param: usize, bounds: &Bounds) -> Result<Option<Arc<Expected>>, Unable> {
        let known = {
            let mut parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
            let is = |k: &&Kept| k.2 == param && k.1 == self.kind && k.3 == *bounds && k.0 == self.text;
            let found = parts.iter().find(is).map(|k| k.4.clone());
            found.unwrap_or_else(|| {
                let new = Arc::default();
                parts.push((self.text.clone(), self.kind, param, bounds.clone(), Arc::clone(&new)));
                let excess = parts.len().saturating_sub(KEPT);
                parts.drain(..excess);
                new
            })
        };
        // Who comes second waits for the first. What was interrupted is not kept.
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*known {
            return Ok(known.clone());
        }
        let made = match self.make(param, bounds) {
            Err(Fault::Stopped) => return Err(Unable::Stopped),
            other => other.ok().flatten().map(Arc::new),
        };
        *known = Some(made.clone());
        Ok(made)
    }

    fn make(&self, param: usize, asked: &Bounds) -> Result<Option<Expected>, Fault> {
        let all = || self.shape(param).iter().map(|n| (0, *n)).collect::<Bounds>();
        let id = self.program.params[param];
        let (program, parts, instances) = match slice(self.program, &[(id, asked.clone())]) {
            Some(slice) if slice.instances > self.instances => return Ok(None),
            Some(slice) => (slice.program, slice.bounds, slice.instances),
            // The whole program, where that is what is asked for.
            None if *asked == all() => {
                let whole = |p| self.shape(p).iter().map(|n| (0, *n)).collect::<Bounds>();
                (self.program.clone(), (0..self.program.params.len()).map(whole).collect(), 1)
            }
            None => return Ok(None),
        };
        let inputs: Vec<Array> = parts
            .iter()
            .enumerate()
            .map(|(p, part)| self.inputs.array(p, &self.shape(p), part))
            .collect::<Result<_, _>>()?;
        let options = interp::Options { max_steps: 40 * INSTANCES, ..interp::Options::default() };
        let run = |program: &Program, inputs: &[Array]| {
            Ok::<_, Fault>(interp::run_while(program, inputs, &options, self.go_on)?.swap_remove(param))
        };
        let typed = run(&program, &inputs)?;
        let wide = match self.exact() {
            true => None,
            false => {
                let doubles: Vec<Array> = inputs.iter().map(Array::in_double).collect();
                let wide = run(&in_double(&program), &doubles)?;
                let spread = Spread::of_each(&[typed.to_f64()], &[wide.to_f64()])[0];
                Some((wide, spread))
            }
        };
        let of_sums = of_sums(self.program);
        let (bounds, terms, fused) = (parts[param].clone(), self.terms, self.fused());
        let only_fused = fused && self.exact_but_for_products();
        let rounding = match wide {
            Some(_) => self.rounding((&program, param), &inputs, instances)?,
            None => None,
        };
        let asked = asked.clone();
        Ok(Some(Expected { asked, bounds, typed, wide, terms, of_sums, fused, only_fused, rounding }))
    }

    /// How far each element may be from what it is without rounding; none where that cannot be told, or takes too long.
    fn rounding(
        &self,
        (program, param): (&Program, usize),
        inputs: &[Array],
        instances: u64,
    ) -> Result<Option<Array>, Fault> {
        let Some(bounds) = rounding::bounds(program) else { return Ok(None) };
        let Some(at) = bounds.bounded.iter().position(|p| *p == param) else { return Ok(None) };
        if instances.saturating_mul(bounds.values) > INSTANCES {
            return Ok(None);
        }
        match bounds.run(inputs, 2 * INSTANCES, self.go_on) {
            Ok(mut all) => Ok(Some(all.swap_remove(at))),
            Err(Fault::Stopped) => Err(Fault::Stopped),
            Err(_) => Ok(None),
        }
    }
}

/// Whether a block reads what another one adds up.
fn of_sums(program: &Program) -> bool {
    let all = all_realizes(&program.body.block.body);
    let sums = all.iter().filter(|r| r.block.init.is_some()).flat_map(|r| &r.block.writes);
    let sums: HashSet<BufferId> = sums.map(|region| region.buffer).collect();
    all.iter().flat_map(|r| &r.block.reads).any(|region| sums.contains(&region.buffer))
}

/// A result that is not what it should be.
pub struct Wrong {
    /// Row-major position in the parameter.
    pub at: u64,
    /// What it is; none: nothing was written.
    pub got: Option<Scalar>,
    /// What it should be.
    pub want: Scalar,
}

impl Expected {
    /// Compares what was written with what should have been. `got` gives an element's bytes, and whether all of them were written;
    /// `all`: everything that the program writes must be. Returns how many elements agree, or the first that does not.
    ///
    /// # Errors
    /// That.
    pub fn compare(
        &self,
        shape: &[i64],
        all: bool,
        got: impl Fn(u64) -> Option<[u8; 8]>,
        bytes: usize,
    ) -> Result<u64, Wrong> {
        let extents = |bounds: &Bounds| bounds.iter().map(|(low, high)| (high - low).max(1)).collect::<Vec<i64>>();
        let (asked, part) = (extents(&self.asked), extents(&self.bounds));
        let within: Bounds =
            self.asked.iter().zip(&self.bounds).map(|((from, to), (low, _))| (from - low, to - low)).collect();
        let mut compared = 0;
        for number in 0..asked.iter().product::<i64>() as u64 {
            let at = place(number, &asked, &part, &within) as usize;
            let Some(want) = self.typed.get(at) else { continue };
            let position = place(number, &asked, shape, &self.asked);
            match got(position) {
                None if all => return Err(Wrong { at: position, got: None, want }),
                None => {}
                Some(found) => {
                    let found = value(want.dtype(), &found[..bytes]);
                    if !self.agree(at, want, found) {
                        return Err(Wrong { at: position, got: Some(found), want });
                    }
                    compared += 1;
                }
            }
        }
        Ok(compared)
    }

    /// Whether a whole number that is made of rounded floats may be another one. What outgrows its type may be any.
    fn decided_by_rounding(&self, at: usize, want: Scalar, got: Scalar) -> bool {
        let most = self.rounding.as_ref().and_then(|all| all.get(at)).map_or(0.0, Scalar::as_f64);
        most >= BEYOND || (want.as_f64() - got.as_f64()).abs() <= 2.0 * most
    }

    fn agree(&self, at: usize, want: Scalar, got: Scalar) -> bool {
        let dtype: DType = want.dtype();
        if !dtype.is_float() {
            return want == got || self.wide.is_some() && self.decided_by_rounding(at, want, got);
        }
        let (a, b) = (want.as_f64(), got.as_f64());
        let same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan());
        if same(a, b) {
            return true;
        }
        let Some((wide, spread)) = &self.wide else { return false };
        let unrounded = wide.get(at).map_or(a, Scalar::as_f64);
        // Where rounding decides between a number and an infinity, or between both infinities, either is right.
        let others = a.is_infinite() && unrounded.is_infinite() && a != unrounded;
        if others || a.is_finite() != unrounded.is_finite() || a.is_nan() != unrounded.is_nan() {
            return true;
        }
        // A product that outgrows the widest type, and does not where what it is added to comes first.
        if self.fused && dtype == DType::F64 && !a.is_finite() && (!b.is_finite() || b.abs() > f64::MAX.sqrt()) {
            return true;
        }
        // An infinity times what is left of a sum that cancels out: 0 in one order, and little in another.
        if self.of_sums && !a.is_finite() && !b.is_finite() && (a.is_nan() || b.is_nan()) {
            return true;
        }
        let most = self.rounding.as_ref().and_then(|all| all.get(at)).map(Scalar::as_f64);
        // Nothing, or what rounding leaves of it, times values without end: a number or an infinity.
        if a.is_finite() && !b.is_finite() {
            return most.is_some_and(|most| most >= BEYOND);
        }
        // The interpreter's element and the kernel's are both within the bound of the one without rounding.
        let near = || match most {
            Some(most) if most < BEYOND => {
                let own = !self.only_fused && Agreement::Roundoff.agree(a, b, dtype);
                own || (a - b).abs() <= 2.0 * most
            }
            _ => spread.agree(a, b, dtype, self.terms),
        };
        a.is_finite() && near()
    }
}

/// Boxes that stretches of a row-major buffer make up: stretches of neighbouring lines are joined.
pub fn boxes(stretches: &[std::ops::Range<u64>], shape: &[i64]) -> Vec<Bounds> {
    let Some((last, outer)) = shape.split_last() else { return vec![Vec::new()] };
    let row = (*last).max(1) as u64;
    // Lines: number of the row, from, to.
    let mut lines: Vec<(u64, i64, i64)> = Vec::new();
    for s in stretches {
        let mut at = s.start;
        while at < s.end {
            let end = (at / row + 1) * row;
            let end = end.min(s.end);
            let first = at / row * row;
            lines.push((at / row, (at - first) as i64, (end - first) as i64));
            at = end;
        }
    }
    let bounds_of = |(number, from, to): (u64, i64, i64)| {
        let mut rest = number as i64;
        let mut out: Bounds = outer
            .iter()
            .rev()
            .map(|extent| {
                let at = rest % (*extent).max(1);
                rest /= (*extent).max(1);
                (at, at + 1)
            })
            .collect();
        out.reverse();
        out.push((from, to));
        out
    };
    let mut list: Vec<Bounds> = lines.into_iter().map(bounds_of).collect();
    for dim in (0..outer.len()).rev() {
        let others = |b: &Bounds| b.iter().enumerate().filter(|(d, _)| *d != dim).map(|(_, r)| *r).collect::<Bounds>();
        list.sort_by_key(|b| (others(b), b[dim]));
        let mut joined: Vec<Bounds> = Vec::new();
        for b in list {
            match joined.last_mut() {
                Some(last) if last[dim].1 == b[dim].0 && others(last) == others(&b) => last[dim].1 = b[dim].1,
                _ => joined.push(b),
            }
        }
        list = joined;
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_make_boxes() {
        assert_eq!(boxes(&[2..5, 12..15, 22..25], &[4, 10]), [vec![(0, 3), (2, 5)]]);
        let whole = std::slice::from_ref(&(0..40));
        assert_eq!(boxes(whole, &[4, 10]), [vec![(0, 4), (0, 10)]]);
        assert_eq!(boxes(&[0..20, 25..30], &[4, 10]), [vec![(0, 2), (0, 10)], vec![(2, 3), (5, 10)]]);
        assert_eq!(boxes(&[0..2, 4..6, 8..10, 12..14], &[2, 2, 4]), [vec![(0, 2), (0, 2), (0, 2)]]);
    }

    /// What a result in place holds beside the part that was asked for is not yet what it is in the end.
    #[test]
    fn only_what_was_asked_for_is_compared() {
        let program = tvmscript::parse(
            r#"
@T.prim_func(s_tir=True)
def shares(X: T.Buffer((2, 8), "float32")):
    S = T.alloc_buffer((2,))
    for i, k in T.grid(2, 8):
        with T.sblock("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + X[vi, vk]
    for i, k in T.grid(2, 8):
        with T.sblock("X"):
            vi, vk = T.axis.remap("SS", [i, k])
            X[vi, vk] = X[vi, vk] - S[vi]
"#,
        )
        .unwrap();
        let meaning = Meaning::of(&program, InputKind::Ordinary, false, (1, &|| true));
        let all: Bounds = vec![(0, 2), (0, 8)];
        let input = meaning.inputs.array(0, &[2, 8], &all).unwrap();
        let whole = interp::run(&program, &[input]).unwrap().swap_remove(0);
        let got = |at: u64| {
            let mut bytes = [0; 8];
            bytes[..4].copy_from_slice(&(whole.get(at as usize).unwrap().as_f64() as f32).to_le_bytes());
            Some(bytes)
        };
        let parts = meaning.parts(0, &vec![(0, 1), (0, 4)]).unwrap();
        let compared =
            parts.iter().map(|part| part.compare(&[2, 8], false, got, 4).unwrap_or_else(|w| panic!("{}", w.at)));
        assert_eq!(compared.sum::<u64>(), 4);
    }
}
