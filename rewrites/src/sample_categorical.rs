//! `sample_categorical`: one of several integers, by probability. The program stays as it is.
//!
//!   unroll = sample_categorical([0, 16, 64], [0.2, 0.3, 0.5])          chosen from the seed
//!   unroll = sample_categorical([0, 16, 64], [0.2, 0.3, 0.5], 2)       decided: 64
//!
//! Legal when: 1 there are as many probabilities as candidates, and at least one; 2 a decision is the index of one of them;
//! 3 probabilities are not negative and not all 0, where one has to be chosen.
use crate::sample::{weighted, Random};
use crate::schedule::Result;
use crate::ScheduleError;

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The decision: an index of the candidates.
    pub index: usize,
    /// The candidate.
    pub value: i64,
}

/// The primitive.
pub fn sample_categorical(
    candidates: &[i64],
    probabilities: &[f64],
    decision: Option<i64>,
    random: &mut Random,
) -> Result<Choice> {
    if candidates.len() != probabilities.len() || candidates.is_empty() {
        return Err(ScheduleError::value(format!(
            "{} candidates and {} probabilities: there must be as many, and at least one",
            candidates.len(),
            probabilities.len()
        ))
        .within("sample_categorical")
        .remedy("give as many probabilities as candidates"));
    }
    let index = match decision {
        Some(decision) => usize::try_from(decision).ok(),
        None => Some(weighted(probabilities, random).map_err(|e| e.within("sample_categorical"))?),
    };
    index.and_then(|index| Some(Choice { index, value: *candidates.get(index)? })).ok_or_else(|| {
        let message = format!(
            "ValueError: Wrong decision value, where n = {}, but decision is: {}",
            candidates.len(),
            decision.unwrap_or_default()
        );
        ScheduleError::internal(message).within("sample_categorical")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_decides() {
        let choice = sample_categorical(&[0, 16, 64], &[0.2, 0.3, 0.5], Some(2), &mut Random::new(0)).unwrap();
        assert_eq!(choice, Choice { index: 2, value: 64 });
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let mut random = Random::new(1);
        let mut counts = [0; 3];
        for _ in 0..10_000 {
            counts[sample_categorical(&[5, 6, 7], &[0.25, 0.0, 0.75], None, &mut random).unwrap().index] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!((2200..2800).contains(&counts[0]), "{counts:?}");
    }

    #[test]
    fn refusals() {
        let mut random = Random::new(0);
        assert!(sample_categorical(&[], &[], None, &mut random).is_err());
        assert!(sample_categorical(&[1, 2], &[1.0], None, &mut random).is_err());
        assert!(sample_categorical(&[1, 2], &[0.0, 0.0], None, &mut random).is_err());
        assert!(sample_categorical(&[1, 2], &[0.5, f64::NAN], None, &mut random).is_err());
        for decision in [-1, 2] {
            let error = sample_categorical(&[1, 2], &[0.5, 0.5], Some(decision), &mut random).unwrap_err();
            assert!(error.fast.contains("Wrong decision value"), "{error}");
        }
    }
}
