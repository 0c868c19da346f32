//! A few instances of what stands between the same loops: at the ends of their ranges and at random.
use super::search::{Found, Search, ANY};
use super::span::{span, Env};
use super::walk::{Access, Frame};
use satune_ir::Expr;
use std::rc::Rc;

/// Instances at random, besides those at the ends.
const RANDOM: usize = 16;
/// Inner loops near whose start there are some.
const NEAR: usize = 4;
/// Instances at the ends where there are many loops.
const MOST: usize = 32;

/// An instance of an access.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    /// The values of the loops, outermost first.
    pub(super) loops: Vec<i64>,
    /// What all variables around the access are.
    pub(super) env: Env,
}

impl Instance {
    /// The instance with these values of the loops.
    pub(super) fn of(frames: &[Frame], loops: Vec<i64>) -> Instance {
        let (mut env, mut values) = (Env::default(), loops.iter());
        for frame in frames {
            match frame {
                Frame::Loop(l) => env.set(l.var.id, values.next().map(|v| (*v, *v))),
                Frame::Let(var, value) => {
                    let value = span(value, &env);
                    env.set(var.id, value);
                }
                Frame::Block(r) => {
                    for (iv, value) in r.block.iter_vars.iter().zip(&r.iter_values) {
                        let value = span(value, &env);
                        env.set(iv.var.id, value);
                    }
                }
                Frame::If(..) | Frame::Init(_) => {}
            }
        }
        Instance { loops, env }
    }

    /// The values of expressions; none where one depends on a buffer.
    pub(super) fn values(&self, list: &[Expr]) -> Option<Vec<i64>> {
        list.iter().map(|e| span(e, &self.env).filter(|(lo, hi)| lo == hi).map(|(v, _)| v)).collect()
    }
}

/// Instances of what stands inside of `frames`: those nearest to the ends of all loops, to all but one of these, and to
/// random values; the most different ones first. With `despite_data`, conditions that data decides are taken for true.
pub(super) fn of(frames: &[Frame], despite_data: bool) -> Vec<Instance> {
    let n = frames.iter().filter(|f| matches!(f, Frame::Loop(_))).count();
    let mut targets: Vec<Vec<i64>> = Vec::new();
    let end = |last: bool| if last { ANY.1 } else { ANY.0 };
    for last in [true, false] {
        targets.push(vec![end(last); n]);
    }
    for last in [true, false] {
        targets.extend((0..n).rev().map(|i| (0..n).map(|j| end((i == j) != last)).collect::<Vec<i64>>()));
    }
    targets.truncate(MOST);
    let extents: Vec<i64> = frames
        .iter()
        .filter_map(|f| match f {
            Frame::Loop(l) => Some(crate::arith::constant(&l.extent).unwrap_or(1).max(1)),
            _ => None,
        })
        .collect();
    // splitmix64: the same instances always.
    let mut state = 0u64;
    let mut random = |below: i64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((z ^ (z >> 27)) >> 2) as i64 % below
    };
    targets.extend((0..RANDOM).map(|_| extents.iter().map(|e| random(*e)).collect::<Vec<i64>>()));
    // What is lost between two tiles shows near the start of one loop, wherever the others are.
    for (i, e) in extents.iter().enumerate().filter(|(_, e)| **e > 2).rev().take(NEAR) {
        for value in [1, 2, 3, e / 2, e - 2] {
            let mut target: Vec<i64> = extents.iter().map(|e| random(*e)).collect();
            target[i] = value;
            targets.push(target);
        }
    }
    if n <= 4 {
        targets.extend((0..1usize << n).map(|bits| (0..n).map(|i| end(bits >> i & 1 == 1)).collect::<Vec<i64>>()));
    }
    let mut found: Vec<Vec<i64>> = Vec::new();
    for target in targets {
        let search = Search::new(frames).towards(target);
        let search = if despite_data { search.despite_data() } else { search };
        if let Found::Instance(loops) = search.run(&[]) {
            if !found.contains(&loops) {
                found.push(loops);
            }
        }
    }
    found.into_iter().map(|loops| Instance::of(frames, loops)).collect()
}

/// The instances of accesses, one list for those that stand at the same place.
#[derive(Debug, Default)]
pub(super) struct Samples<'a>(Vec<Known<'a>>);

#[derive(Debug)]
struct Known<'a> {
    frames: Vec<Frame<'a>>,
    despite_data: bool,
    found: Rc<Vec<Instance>>,
}

impl<'a> Samples<'a> {
    /// Of an access, where all conditions around it hold for certain.
    pub(super) fn of(&mut self, access: &Access<'a>) -> Rc<Vec<Instance>> {
        self.found(access, false)
    }

    /// The same, and where data decides whether they hold.
    pub(super) fn despite_data(&mut self, access: &Access<'a>) -> Rc<Vec<Instance>> {
        self.found(access, true)
    }

    fn found(&mut self, access: &Access<'a>, despite_data: bool) -> Rc<Vec<Instance>> {
        let same = |known: &&Known| {
            let frames = &known.frames;
            known.despite_data == despite_data
                && frames.len() == access.frames.len()
                && frames.iter().zip(&access.frames).rev().all(|(a, b)| a.same(b))
        };
        if let Some(known) = self.0.iter().find(same) {
            return known.found.clone();
        }
        let found = Rc::new(of(&access.frames, despite_data));
        self.0.push(Known { frames: access.frames.clone(), despite_data, found: found.clone() });
        found
    }
}
