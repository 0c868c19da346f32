//! Which instances of one access come before or after an instance of another, while the memory of their buffer lasts.
use super::search::{Found, Search, ANY};
use super::walk::{Access, Walk};

/// An instance of an access of a walk.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct At {
    /// Number of the access.
    pub(super) access: usize,
    /// Which of its instances.
    pub(super) loops: Vec<i64>,
}

/// Intervals of the loops around an access.
type Intervals = Vec<(i64, i64)>;

impl<'a> Walk<'a> {
    fn lifetime(&self, access: &Access) -> usize {
        self.depth.get(&access.buffer).copied().unwrap_or(0)
    }

    /// The instances of `of` before `at`, as parts of its loops' ranges, the last ones first: in the same round of all
    /// loops that both share where it stands before, and in earlier rounds of one of these.
    pub(super) fn before(&self, of: usize, at: &At) -> Vec<Intervals> {
        self.beside(of, at, of < at.access, |v| (ANY.0, v - 1))
    }

    /// The instances of `of` after `at`, the first ones first.
    pub(super) fn after(&self, of: usize, at: &At) -> Vec<Intervals> {
        self.beside(of, at, of > at.access, |v| (v + 1, ANY.1))
    }

    fn beside(&self, of: usize, at: &At, same: bool, other: impl Fn(i64) -> (i64, i64)) -> Vec<Intervals> {
        let (access, here) = (&self.accesses[of], &self.accesses[at.access]);
        let (loops, shared) = (access.loops(), access.shared(here));
        let mut out = Vec::new();
        let prefix = |n: usize| -> Intervals {
            (0..loops).map(|i| at.loops.get(i).filter(|_| i < n).map_or(ANY, |v| (*v, *v))).collect()
        };
        if same {
            out.push(prefix(shared));
        }
        for j in (self.lifetime(access)..shared).rev() {
            let mut part = prefix(j);
            part[j] = other(at.loops[j]);
            out.push(part);
        }
        out
    }

    /// The instances of `of` after `first` and before `last`.
    pub(super) fn between(&self, of: usize, first: &At, last: Option<&At>) -> Vec<Intervals> {
        let after = self.after(of, first);
        let Some(last) = last else { return after };
        let before = self.before(of, last);
        let both = |a: &Intervals, b: &Intervals| -> Option<Intervals> {
            let cut: Intervals = a.iter().zip(b).map(|(x, y)| (x.0.max(y.0), x.1.min(y.1))).collect();
            cut.iter().all(|(lo, hi)| lo <= hi).then_some(cut)
        };
        after.iter().flat_map(|a| before.iter().filter_map(move |b| both(a, b))).collect()
    }

    /// Finds an instance of an access in one of the parts, in their order, that accesses `place`, with `also`.
    pub(super) fn find<'s>(
        &'s self,
        of: usize,
        place: &[i64],
        parts: &[Intervals],
        also: &dyn Fn(Search<'s, 'a>) -> Search<'s, 'a>,
    ) -> Found {
        let access = &self.accesses[of];
        let mut result = Found::Nothing;
        for part in parts {
            match also(Search::new(&access.frames).equal(access.indices, place)).run(part) {
                Found::Nothing => {}
                Found::Instance(loops) => return Found::Instance(loops),
                other => result = other,
            }
        }
        result
    }
}
