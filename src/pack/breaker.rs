//! Who goes wrong is asked last: after the first hang or crash of a family its other members wait until all else is
//! measured, and one that hangs again and again is not asked any more.
use super::run::results;
use super::{Family, RunError};
use crate::store::{Reason, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Timeouts that a family may cost in all.
const MOST_TIMEOUTS: u32 = 4;
/// Crashes, which cost less, of a family of which nothing went right.
const MOST_CRASHES: u32 = 8;

/// What became of a family's members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub right: u32,
    pub timeouts: u32,
    pub crashes: u32,
}

/// When a family's next member has its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Now,
    /// After all else.
    Last,
    /// Not at all, with the reason.
    Never(String),
}

/// Remembers what families did.
#[derive(Clone, Debug, Default)]
pub struct Breaker {
    families: BTreeMap<Family, Record>,
    without: Vec<Family>,
    /// Folders whose results were noted.
    folders: BTreeSet<PathBuf>,
}

impl Breaker {
    /// One that has some families not asked at all.
    pub fn without(families: Vec<Family>) -> Breaker {
        Breaker { without: families, ..Breaker::default() }
    }

    /// Families of which a kernel hung.
    pub fn hung(&self) -> impl Iterator<Item = Family> + '_ {
        self.families.iter().filter(|(_, record)| record.timeouts > 0).map(|(family, _)| *family)
    }

    /// Notes what a folder of results has, once.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn recall(&mut self, folder: &Path) -> Result<(), RunError> {
        if self.folders.insert(folder.into()) {
            results(folder)?.rows.iter().for_each(|line| self.note(line.family, &line.row.verdict));
        }
        Ok(())
    }

    /// Notes what came of a member.
    pub(super) fn note(&mut self, family: Family, verdict: &Verdict) {
        let record = self.families.entry(family).or_default();
        match verdict {
            Verdict::Measured(_) => record.right += 1,
            Verdict::Rejected { reason: Reason::Timeout, .. } => record.timeouts += 1,
            Verdict::Rejected { reason: Reason::Crash, .. } => record.crashes += 1,
            // A wrong result, or a kernel that does not compile, costs no more than a right one.
            Verdict::Rejected { .. } => {}
        }
    }

    /// When a member has its turn.
    pub(super) fn turn(&self, family: Family) -> Turn {
        let Record { right, timeouts, crashes } = self.families.get(&family).copied().unwrap_or_default();
        if self.without.contains(&family) {
            return Turn::Never(format!("the family {} was left out", family.name()));
        }
        if timeouts >= MOST_TIMEOUTS {
            return Turn::Never(format!("{timeouts} kernels of the family {} hung", family.name()));
        }
        if crashes >= MOST_CRASHES && right == 0 {
            return Turn::Never(format!(
                "{crashes} kernels of the family {} crashed, and none was right",
                family.name()
            ));
        }
        match timeouts + crashes {
            0 => Turn::Now,
            _ => Turn::Last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_hangs_costs_four_timeouts_and_the_others_nothing() {
        let mut breaker = Breaker::default();
        let hang = Verdict::Rejected { reason: Reason::Timeout, detail: String::new() };
        let wrong = Verdict::Rejected { reason: Reason::Wrong, detail: String::new() };
        breaker.note(Family::Cluster, &wrong);
        assert_eq!(breaker.turn(Family::Cluster), Turn::Now);
        for times in 1..=MOST_TIMEOUTS {
            breaker.note(Family::Cluster, &hang);
            assert_eq!(breaker.turn(Family::Cluster) == Turn::Last, times < MOST_TIMEOUTS, "{times}");
        }
        assert!(
            matches!(breaker.turn(Family::Cluster), Turn::Never(why) if why.contains("4 kernels of the family cluster"))
        );
        assert_eq!(breaker.turn(Family::Wgmma), Turn::Now);
        assert_eq!(breaker.hung().collect::<Vec<_>>(), [Family::Cluster]);
        let next = Breaker::without(breaker.hung().collect());
        assert!(matches!(next.turn(Family::Cluster), Turn::Never(why) if why.contains("left out")));
        assert_eq!(next.turn(Family::Wgmma), Turn::Now);
    }
}
