//! What each decision of a schedule is worth, and where the schedule stands among all of its space: what is told of it. Found out
//! by the space itself (`why --sensitivity`).
use serde::Serialize;

/// How much slower the best with a value may be before it is told by that alone.
pub const FAR: f64 = 2.0;

/// Upper ends of the classes of times, over that of the schedule; above the last there is one more.
const ENDS: [f64; 7] = [1.1, 1.5, 2.0, 4.0, 8.0, 16.0, 64.0];

/// What the decisions of a schedule are worth.
#[derive(Clone, Debug, Serialize)]
pub struct Sensitivity {
    /// Those of which the space has other values, that which costs most when it is left first.
    pub decisions: Vec<Decision>,
    /// Predicted times of schedules drawn evenly from the space, over that of the schedule.
    pub drawn: Drawn,
    /// Others that were asked for.
    pub marks: Vec<Mark>,
}

/// A decision.
#[derive(Clone, Debug, Serialize)]
pub struct Decision {
    /// What it is about.
    pub name: String,
    /// What is decided, in the words of `why-not`.
    pub value: String,
    /// Other values, best first.
    pub others: Vec<Other>,
    /// How many other values were seen.
    pub seen: usize,
}

/// Another value of a decision.
#[derive(Clone, Debug, Serialize)]
pub struct Other {
    /// In the words of `why-not`.
    pub value: String,
    /// Time of the best schedule with it over that of the schedule; none where it is more than [`FAR`] times that.
    pub ratio: Option<f64>,
    /// The best schedule with it is found for certain.
    pub proved: bool,
}

/// Times of schedules drawn evenly.
#[derive(Clone, Debug, Serialize)]
pub struct Drawn {
    /// How many the GPU can run, and were drawn.
    pub runnable: usize,
    /// How many were drawn.
    pub count: usize,
    /// Upper ends of the classes (the last has none), as ratios, and how many fall into each.
    pub classes: Vec<(Option<f64>, usize)>,
    /// The fastest, as a ratio.
    pub least: Option<f64>,
    /// The one in the middle, as a ratio.
    pub median: Option<f64>,
}

/// A schedule that somebody knows, or a library's kernel, among those that were drawn.
#[derive(Clone, Debug, Serialize)]
pub struct Mark {
    /// As it was asked for.
    pub name: String,
    /// Time of the best schedule that keeps to it, or that the library was measured to take, over that of the schedule.
    pub ratio: Option<f64>,
    /// That one is found for certain.
    pub proved: bool,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

impl Other {
    /// The ratio; infinity where it is far beyond.
    pub fn at_least(&self) -> f64 {
        self.ratio.unwrap_or(f64::INFINITY)
    }

    /// What it costs, in a word.
    pub fn word(&self) -> String {
        let word = match self.ratio.map(|r| 100.0 * (r - 1.0)) {
            None => format!("more than {FAR}x"),
            Some(percent) if percent.abs() < 0.05 => "as fast".into(),
            Some(percent) => format!("{percent:+.1}%"),
        };
        word + if self.proved { "" } else { " (not proved)" }
    }
}

impl Decision {
    /// What it costs at least to decide otherwise.
    pub fn cheapest(&self) -> f64 {
        self.others.iter().map(Other::at_least).fold(f64::INFINITY, f64::min)
    }

    /// How many values more were seen than are told, in words.
    pub fn more(&self) -> Option<String> {
        let more = self.seen - self.others.len();
        (more > 0).then(|| format!("{more} more values"))
    }
}

impl Mark {
    /// Its name and where it stands, in a few words.
    pub fn words(&self) -> String {
        match self.ratio {
            None => format!("{}: {}", self.name, self.absent.as_deref().unwrap_or("not in the space")),
            Some(ratio) => format!("{}: {ratio:.2}x{}", self.name, if self.proved { "" } else { " (not proved)" }),
        }
    }
}

impl Drawn {
    /// Counts ratios of `count` schedules that were drawn.
    pub fn of(count: usize, mut ratios: Vec<f64>) -> Drawn {
        ratios.sort_by(f64::total_cmp);
        let mut from = 0;
        let mut classes = Vec::new();
        for end in ENDS.map(Some).into_iter().chain([None]) {
            let to = end.map_or(ratios.len(), |end| ratios.partition_point(|r| *r < end));
            classes.push((end, to - from));
            from = to;
        }
        let (least, median) = (ratios.first().copied(), ratios.get(ratios.len() / 2).copied());
        Drawn { runnable: ratios.len(), count, classes, least, median }
    }
}

/// A class of times: in words, how many fall into it, and who is marked there.
pub struct Class {
    /// `below 1.5x`.
    pub name: String,
    /// How many.
    pub many: usize,
    /// This schedule, and others.
    pub marks: Vec<String>,
}

impl Sensitivity {
    /// The classes of times.
    pub fn classes(&self) -> Vec<Class> {
        let marks = [("this schedule".to_string(), 1.0)].into_iter();
        let marks = marks.chain(self.marks.iter().filter_map(|m| Some((m.words(), m.ratio?)))).collect::<Vec<_>>();
        let mut from = 0.0;
        let class = |(end, many): &(Option<f64>, usize)| {
            let within = |ratio: f64| ratio >= from && end.is_none_or(|end| ratio < end);
            let marks = marks.iter().filter(|(_, ratio)| within(*ratio)).map(|(words, _)| words.clone()).collect();
            let name = end.map_or_else(|| format!("{from}x and more"), |end| format!("below {end}x"));
            from = end.unwrap_or(from);
            Class { name, many: *many, marks }
        };
        self.drawn.classes.iter().map(class).collect()
    }

    /// What the classes are of, in a sentence.
    pub fn drawn_words(&self) -> String {
        format!(
            "of {} different schedules drawn evenly from the space this GPU can run {}; their times over this one's:",
            self.drawn.count, self.drawn.runnable
        )
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out =
            String::from("what each decision is worth: the best schedule with another value, all else free\n");
        for decision in &self.decisions {
            let shown: Vec<String> =
                decision.others.iter().map(|other| format!("{}: {}", other.value, other.word())).collect();
            let more = decision.more().map(|more| format!(" ({more})")).unwrap_or_default();
            out.push_str(&format!("  {} ({}): {}{more}\n", decision.name, decision.value, shown.join("; ")));
        }
        out.push_str(&format!("{}\n", self.drawn_words()));
        let classes = self.classes();
        let most = classes.iter().map(|c| c.many).max().unwrap_or(0).max(1);
        for Class { name, many, marks } in &classes {
            let bar = "#".repeat((many * 40).div_ceil(most));
            let marks = if marks.is_empty() { String::new() } else { format!("  <- {}", marks.join(", ")) };
            out.push_str(format!("  {name:<14} {many:>6}  {bar}{marks}").trim_end());
            out.push('\n');
        }
        if let (Some(least), Some(median)) = (self.drawn.least, self.drawn.median) {
            out.push_str(&format!("  the fastest of them {least:.2}x, the one in the middle {median:.2}x\n"));
        }
        for mark in self.marks.iter().filter(|m| m.ratio.is_none()) {
            out.push_str(&format!("  {}\n", mark.words()));
        }
        out
    }
}
