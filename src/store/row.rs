//! What is known about one candidate on one device: measured, or rejected with its reason.
use satune_ir::term::Schedule;
use serde::{Deserialize, Serialize};

/// What a row is found by. All four say what was measured and with what; none depends on when.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// Hash of the source program's text.
    pub program: String,
    /// Hash of the canonical trace and of the decisions that are no primitives.
    pub trace: String,
    /// What made machine code and ran it: NVRTC and driver, or the model of the simulator.
    pub toolchain: String,
    /// The GPU and its clocks, or the simulator.
    pub device: String,
}

/// Why a candidate has no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Compiler or kernel did not end in time.
    Timeout,
    /// Illegal access or instruction, or the process that ran it died twice.
    Crash,
    /// The result is not the reference's.
    Wrong,
    /// The compiler refuses it.
    CompileError,
    /// More memory than there is.
    Oom,
}

impl Reason {
    /// Its name in the store.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Timeout => "timeout",
            Reason::Crash => "crash",
            Reason::Wrong => "wrong",
            Reason::CompileError => "compile_error",
            Reason::Oom => "oom",
        }
    }

    /// Whether it says something about the kernel even where an earlier visit went well.
    pub fn distrusts(self) -> bool {
        matches!(self, Reason::Wrong | Reason::Crash | Reason::Timeout)
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The state of a GPU while something was measured, as its driver tells it. What it does not tell is missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Clock of the multiprocessors, MHz, the median of samples.
    pub sm_mhz: Option<f64>,
    /// Clock of the memory, MHz.
    pub memory_mhz: Option<f64>,
    /// Power, W.
    pub power_w: Option<f64>,
    /// Temperature, degrees Celsius.
    pub temperature_c: Option<f64>,
    /// What kept the clocks low at any time.
    pub held_back_by: Vec<String>,
}

/// Times of one candidate, ms, in the order in which they were taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// One for each repeat.
    pub times_ms: Vec<f64>,
    /// How many visits they come from; more than 1 where a candidate was measured again beside its rivals.
    pub rounds: u32,
    /// Whether it was stopped early because it was clearly slower than the best ones.
    pub cut_off: bool,
    /// Clock of the multiprocessors while it ran, MHz, where the device says.
    pub clock_mhz: Option<f64>,
    /// Relative error of the result against the reference in higher precision, where the device says.
    pub relative_error: Option<f64>,
    /// Clocks, power and what held them back while it ran, where the driver tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Box<Conditions>>,
}

impl Timing {
    /// The median of all repeats, ms.
    pub fn median_ms(&self) -> f64 {
        median(&self.times_ms)
    }

    /// The spread: median distance from the median over the median, scaled to a standard deviation of normal noise.
    pub fn spread(&self) -> f64 {
        let middle = self.median_ms();
        let distances: Vec<f64> = self.times_ms.iter().map(|t| (t - middle).abs()).collect();
        1.4826 * median(&distances) / middle
    }

    /// What is wrong with the numbers, if anything is.
    pub fn fault(&self) -> Option<String> {
        if self.times_ms.is_empty() || self.rounds == 0 {
            return Some("no times".into());
        }
        self.times_ms.iter().find(|t| !(t.is_finite() && **t > 0.0)).map(|t| format!("{t} ms is no time"))
    }
}

/// The middle value; NaN for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len() / 2, sorted.len() % 2) {
        (_, _) if sorted.is_empty() => f64::NAN,
        (half, 1) => sorted[half],
        (half, _) => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

/// What came of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Verdict {
    /// It ran and its result was right.
    Measured(Timing),
    /// It did not.
    Rejected {
        /// Why.
        reason: Reason,
        /// In full.
        detail: String,
    },
}

impl Verdict {
    /// `measured`, or the reason.
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Measured(_) => "measured",
            Verdict::Rejected { reason, .. } => reason.name(),
        }
    }

    /// The median, if it was measured.
    pub fn median_ms(&self) -> Option<f64> {
        match self {
            Verdict::Measured(timing) => Some(timing.median_ms()),
            Verdict::Rejected { .. } => None,
        }
    }

    /// Whether this one replaces another of the same key: more rounds, then more repeats; a time replaces a rejection; but
    /// who was right once and then wrong, or then failed, is not to be trusted.
    pub fn replaces(&self, old: &Verdict) -> bool {
        match (self, old) {
            (Verdict::Measured(new), Verdict::Measured(old)) => {
                (!new.cut_off, new.rounds, new.times_ms.len()) > (!old.cut_off, old.rounds, old.times_ms.len())
            }
            (Verdict::Measured(_), Verdict::Rejected { .. }) => true,
            (Verdict::Rejected { reason, .. }, Verdict::Measured(_)) => reason.distrusts(),
            (Verdict::Rejected { .. }, Verdict::Rejected { .. }) => false,
        }
    }
}

/// A row: one line of NDJSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What it is found by.
    #[serde(flatten)]
    pub key: Key,
    /// The program as it was asked for.
    pub operator: String,
    /// Its text, where it came from a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// The descriptor that the prediction was made with.
    pub gpu: String,
    /// Predicted time, ms.
    pub predicted_ms: f64,
    /// Every decision.
    pub plan: Schedule,
    /// Seconds since 1970.
    pub at: u64,
    /// What came of it.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Hash of a text, hexadecimal, 128 of BLAKE3's bits.
pub fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..32].to_string()
}

/// Seconds since 1970; 0 where the clock is before that.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
