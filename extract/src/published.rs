//! Published measurements as data: what somebody measured of a known schedule, or of a library, on a GPU that is described
//! here. No constant is fitted to one of them; they say how far the model is from what was seen. A file for each set, in
//! `measurements/`.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const SETS: [(&str, &str); 10] = [
    ("sgemm_staircase", include_str!("../measurements/sgemm_staircase.toml")),
    ("sgemm_rtx3090", include_str!("../measurements/sgemm_rtx3090.toml")),
    ("fast_cu_h100", include_str!("../measurements/fast_cu_h100.toml")),
    ("cublas_h100", include_str!("../measurements/cublas_h100.toml")),
    ("cublas_h200", include_str!("../measurements/cublas_h200.toml")),
    ("cublas_a100", include_str!("../measurements/cublas_a100.toml")),
    ("cublas_l4", include_str!("../measurements/cublas_l4.toml")),
    ("cublas_rtx3090", include_str!("../measurements/cublas_rtx3090.toml")),
    ("cublas_t4", include_str!("../measurements/cublas_t4.toml")),
    ("memory_h100", include_str!("../measurements/memory_h100.toml")),
];

/// Measurements of one source on one GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// What it is called.
    pub name: String,
    /// Where it is from.
    pub source: String,
    /// The GPU's descriptor.
    pub gpu: String,
    /// Clock, power, data.
    pub conditions: String,
    /// The library whose kernels its rows without a schedule are.
    #[serde(default)]
    pub library: Option<String>,
    /// Whether each row is faster than the one before, so that the model's order can be judged.
    #[serde(default)]
    pub in_order: bool,
    /// Within which factor the gain of a row over the one before is predicted.
    #[serde(default)]
    pub gain_within: Option<f64>,
    /// What was measured.
    #[serde(rename = "row")]
    pub rows: Vec<Row>,
}

/// One measurement: a time or a rate.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// The operator that it computes.
    pub operator: String,
    /// The schedule in JSON; without one, what a library took, which stands beside the best of the space.
    #[serde(default)]
    pub plan: Option<String>,
    /// Registers of a thread, where the compiler of the measurement, or one of its time, says how many: as of any candidate that was
    /// compiled they stand in the place of the model's.
    #[serde(default)]
    pub registers: Option<u32>,
    /// Time, ms.
    #[serde(default)]
    pub ms: Option<f64>,
    /// Operations per second, 10^12.
    #[serde(default)]
    pub tflops: Option<f64>,
    /// Bytes of parameters per second, 10^9.
    #[serde(default)]
    pub gbs: Option<f64>,
    /// How far the prediction may be from it, as a share.
    pub within: f64,
    /// The clock was locked, MHz; no power limit is met then.
    #[serde(default)]
    pub clock_mhz: Option<f64>,
    /// The card is known to slow down.
    #[serde(default)]
    pub throttled: bool,
    /// All data are zeros, which take next to no power.
    #[serde(default)]
    pub zeros: bool,
}

impl Row {
    /// The measured time, ms, of so many operations or bytes; `None` where the row has no rate.
    pub fn measured_ms(&self, amount: f64) -> Option<f64> {
        let rate = self.tflops.map(|r| r * 1e12).or(self.gbs.map(|r| r * 1e9));
        self.ms.or(rate.map(|rate| amount / rate * 1e3))
    }

    /// The GPU as it was: locked clocks and zeros meet no power limit.
    pub fn conditions(&self, gpu: &crate::Descriptor) -> crate::Descriptor {
        let mut gpu = gpu.clone();
        if let Some(clock) = self.clock_mhz {
            gpu.clock_mhz = clock;
        }
        if self.clock_mhz.is_some() || self.zeros {
            gpu.power = None;
        }
        gpu
    }
}

/// Why a set cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("measurements/{file}.toml: {reason}")]
pub struct PublishedError {
    /// Which.
    pub file: &'static str,
    /// Line and reason.
    pub reason: String,
}

/// All sets.
///
/// # Errors
/// When one is malformed, which a test excludes.
pub fn sets() -> Result<Vec<Set>, PublishedError> {
    let read = |(file, text): &(&'static str, &str)| {
        toml::from_str(text).map_err(|e: toml::de::Error| PublishedError { file, reason: e.to_string() })
    };
    SETS.iter().map(read).collect()
}

/// A measurement beside its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// What was measured.
    pub name: String,
    /// Measured, ms.
    pub measured_ms: f64,
    /// Predicted of the kernels without their launches, as back-to-back runs are measured, ms.
    pub predicted_ms: f64,
    /// How far it may be, as a share.
    pub within: f64,
    /// The mechanism that binds.
    pub mechanism: String,
    /// Where it is the best of its space: no schedule there is predicted to be faster, with its launch, than this, ms.
    pub bound_ms: Option<f64>,
}

impl Judged {
    /// Predicted over measured.
    pub fn ratio(&self) -> f64 {
        self.predicted_ms / self.measured_ms
    }

    /// Whether the ratio is within its spread, either way.
    pub fn holds(&self) -> bool {
        let error = self.ratio().max(1.0 / self.ratio());
        error <= 1.0 + self.within
    }
}

/// Rows of a set, judged together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The set.
    pub set: String,
    /// The GPU.
    pub gpu: String,
    /// Each row.
    pub rows: Vec<Judged>,
    /// Geometric mean of the ratios: above 1, what is predicted is too slow.
    pub bias: f64,
    /// Geometric mean of the errors, each the ratio or its inverse.
    pub error: f64,
    /// The same of the rows that each mechanism binds.
    pub by_mechanism: BTreeMap<String, f64>,
    /// Spearman's rank correlation, of three rows at least that differ.
    pub spearman: Option<f64>,
    /// Rows that the order of the set has the wrong way round, each with its predecessor.
    pub out_of_order: Vec<String>,
    /// Rows whose gain over the one before is off by more than the set allows.
    pub wrong_gains: Vec<String>,
}

impl Verdict {
    /// Judges rows of a set.
    pub fn of(set: &Set, rows: Vec<Judged>) -> Verdict {
        let mean = |of: &mut dyn Iterator<Item = f64>| {
            let logs: Vec<f64> = of.map(f64::ln).collect();
            (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
        };
        let error = |row: &Judged| row.ratio().max(1.0 / row.ratio());
        let mut mechanisms: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for row in &rows {
            mechanisms.entry(row.mechanism.clone()).or_default().push(error(row));
        }
        // Those of one size only follow each other.
        let pairs =
            || rows.windows(2).zip(set.rows.windows(2)).filter(|(_, w)| w[0].operator_size() == w[1].operator_size());
        let gain = |w: &[Judged], of: fn(&Judged) -> f64| of(&w[0]) / of(&w[1]);
        let slower = |w: &[Judged]| gain(w, |r| r.predicted_ms) < 1.0 - 1e-9;
        let off = |w: &[Judged]| {
            let ratio = gain(w, |r| r.predicted_ms) / gain(w, |r| r.measured_ms);
            ratio.max(1.0 / ratio)
        };
        let named = |w: &[Judged]| w[1].name.clone();
        Verdict {
            set: set.name.clone(),
            gpu: set.gpu.clone(),
            bias: mean(&mut rows.iter().map(Judged::ratio)),
            error: mean(&mut rows.iter().map(error)),
            by_mechanism: mechanisms.into_iter().map(|(name, e)| (name, mean(&mut e.into_iter()))).collect(),
            spearman: match rows.len() {
                0..3 => None,
                _ => crate::calibrate::spearman(
                    &rows.iter().map(|r| (r.predicted_ms, r.measured_ms)).collect::<Vec<_>>(),
                ),
            },
            out_of_order: pairs().filter(|(w, _)| set.in_order && slower(w)).map(|(w, _)| named(w)).collect(),
            wrong_gains: pairs()
                .filter(|(w, _)| set.gain_within.is_some_and(|most| off(w) > most))
                .map(|(w, _)| named(w))
                .collect(),
            rows,
        }
    }
}

impl Row {
    /// The operator's extents: rows of one size can be ordered.
    fn operator_size(&self) -> Vec<&str> {
        self.operator.split([':', ',']).filter(|part| part.parse::<u64>().is_ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_is_read_and_each_row_has_one_time() {
        let sets = sets().unwrap();
        assert!(sets.iter().map(|s| s.rows.len()).sum::<usize>() > 30);
        for set in sets {
            let gpu = crate::Descriptor::load(&set.gpu).unwrap();
            for row in &set.rows {
                let times = [row.ms, row.tflops, row.gbs];
                assert_eq!(times.iter().flatten().count(), 1, "{}: {}", set.name, row.name);
                assert!(row.measured_ms(1e9).is_some_and(|ms| ms > 0.0) && row.within > 0.0);
                assert!(row.clock_mhz.is_none() || row.conditions(&gpu).power.is_none());
                if let Some(plan) = &row.plan {
                    serde_json::from_str::<satune_ir::term::Schedule>(plan).unwrap();
                }
            }
        }
    }

    #[test]
    fn orders_and_gains_are_judged() {
        let row = |name: &str, ms: f64| Row {
            name: name.into(),
            operator: "gemm:8,8,8,f32".into(),
            plan: None,
            registers: None,
            ms: Some(ms),
            tflops: None,
            gbs: None,
            within: 0.1,
            clock_mhz: None,
            throttled: false,
            zeros: false,
        };
        let set = Set {
            name: "s".into(),
            source: String::new(),
            gpu: "h100".into(),
            conditions: String::new(),
            library: None,
            in_order: true,
            gain_within: Some(1.5),
            rows: vec![row("a", 4.0), row("b", 2.0), row("c", 1.0)],
        };
        let judged = |predicted: [f64; 3]| {
            let of = |(row, predicted_ms): (&Row, f64)| Judged {
                name: row.name.clone(),
                measured_ms: row.ms.unwrap(),
                predicted_ms,
                within: row.within,
                mechanism: "l2".into(),
                bound_ms: None,
            };
            Verdict::of(&set, set.rows.iter().zip(predicted).map(of).collect())
        };
        let right = judged([4.0, 2.0, 1.0]);
        assert!(right.out_of_order.is_empty() && right.wrong_gains.is_empty() && (right.error - 1.0).abs() < 1e-12);
        let wrong = judged([4.0, 1.0, 1.1]);
        assert_eq!(
            (wrong.out_of_order, wrong.wrong_gains),
            (vec!["c".to_string()], vec!["c".to_string(), "b".into()].into_iter().rev().collect())
        );
        assert!((wrong.error - (2.0_f64 * 1.1).powf(1.0 / 3.0)).abs() < 1e-12 && !wrong.rows[1].holds());
    }
}
