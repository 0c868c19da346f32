//! The descriptors that there are, and how one is read.
use crate::descriptor::{Descriptor, CLUSTERS};
use std::path::Path;

/// Why there is no descriptor.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// No built-in of that name and no such file.
    #[error(
        "unknown GPU `{name}`{hint}; known are {known}, or name a TOML file (see `satune gpu show h200` for the form)"
    )]
    Unknown {
        /// As asked.
        name: String,
        /// The most similar name, or what to do about a GPU that is not described.
        hint: String,
        /// All names.
        known: String,
    },
    /// The file cannot be read.
    #[error("GPU descriptor {path}: {reason}")]
    Unreadable {
        /// File.
        path: String,
        /// What the system says.
        reason: String,
    },
    /// The file is no descriptor.
    #[error("GPU descriptor {path}: {reason}")]
    Malformed {
        /// File.
        path: String,
        /// Line and reason.
        reason: String,
    },
    /// A spread of nothing.
    #[error("GPU descriptor {name}: spread.{field} is {value}; spreads are 0 to 1, of rates that the cost reads (issue_efficiency, dram_gbs, fp32_pj ...)")]
    Spread {
        /// Descriptor.
        name: String,
        /// As named.
        field: String,
        /// Value.
        value: f64,
    },
    /// A number is absurd.
    #[error("GPU descriptor {name}: {field} is {value}; it must be {wanted}")]
    Absurd {
        /// Descriptor.
        name: String,
        /// Field.
        field: &'static str,
        /// Value.
        value: f64,
        /// Range in words.
        wanted: &'static str,
    },
}

const BUILT_IN: [(&str, &str); 11] = [
    ("h200", include_str!("../devices/h200.toml")),
    ("h100", include_str!("../devices/h100.toml")),
    ("a100", include_str!("../devices/a100.toml")),
    ("rtx3090", include_str!("../devices/rtx3090.toml")),
    ("rtx4090", include_str!("../devices/rtx4090.toml")),
    ("a6000", include_str!("../devices/a6000.toml")),
    ("v100", include_str!("../devices/v100.toml")),
    ("t4", include_str!("../devices/t4.toml")),
    ("l4", include_str!("../devices/l4.toml")),
    ("b200", include_str!("../devices/b200.toml")),
    ("rtx5090", include_str!("../devices/rtx5090.toml")),
];

impl Descriptor {
    /// Names of the built-in descriptors.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Text of a built-in descriptor.
    pub fn text(name: &str) -> Option<&'static str> {
        BUILT_IN.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
    }

    /// A built-in descriptor by name, or the one in a TOML file.
    ///
    /// # Errors
    /// When there is neither, or the file is malformed.
    pub fn load(name: &str) -> Result<Descriptor, DescriptorError> {
        Descriptor::parse(&Descriptor::source(name)?, name)
    }

    /// The text of a built-in descriptor by name, or of a TOML file.
    ///
    /// # Errors
    /// When there is neither.
    pub fn source(name: &str) -> Result<String, DescriptorError> {
        if let Some(text) = Descriptor::text(name) {
            return Ok(text.into());
        }
        let path = Path::new(name);
        if !path.exists() {
            if let Some(text) = Descriptor::text(&canonical(name)) {
                return Ok(text.into());
            }
            let known = Descriptor::names().collect::<Vec<_>>().join(", ");
            return Err(DescriptorError::Unknown { name: name.into(), hint: hint(name), known });
        }
        satune_ir::files::read_text(path, LONGEST)
            .map_err(|e| DescriptorError::Unreadable { path: name.into(), reason: e.to_string() })
    }

    /// Reads a descriptor.
    ///
    /// # Errors
    /// When the text is malformed or a number absurd.
    pub fn parse(text: &str, origin: &str) -> Result<Descriptor, DescriptorError> {
        let gpu: Descriptor = toml::from_str(text).map_err(|e| {
            // What the file as a whole lacks has no line in it.
            let whole = e.message().starts_with("missing field") && e.span().is_none_or(|at| at.start == 0);
            let what = if whole { e.message().into() } else { e.to_string() };
            let reason = format!("{}; `satune gpu show h200` prints a whole one, to copy and change", what.trim_end());
            DescriptorError::Malformed { path: origin.into(), reason }
        })?;
        gpu.check()?;
        Ok(gpu)
    }

    fn check(&self) -> Result<(), DescriptorError> {
        let fields = [
            ("sms", f64::from(self.sms), 1.0, 10_000.0, "1 to 10000"),
            ("clock_mhz", self.clock_mhz, 1.0, 100_000.0, "1 to 100000"),
            ("fp32_lanes", f64::from(self.fp32_lanes), 1.0, 4096.0, "1 to 4096"),
            ("fp64_lanes", f64::from(self.fp64_lanes), 1.0, 4096.0, "1 to 4096"),
            ("issue_efficiency", self.issue_efficiency, 0.01, 1.0, "0.01 to 1"),
            ("load_store_lanes", f64::from(self.load_store_lanes), 1.0, 1024.0, "1 to 1024"),
            ("dram_read_ratio", self.dram_read_ratio, 1.0, 1.9, "1 to 1.9"),
            ("shared_per_sm", f64::from(self.shared_per_sm), 1024.0, 1e9, "at least 1024"),
            ("shared_per_block", f64::from(self.shared_per_block), 1024.0, 1e9, "at least 1024"),
            ("registers_per_sm", f64::from(self.registers_per_sm), 1024.0, 1e9, "at least 1024"),
            ("threads_per_sm", f64::from(self.threads_per_sm), 32.0, 1e6, "32 to 1000000"),
            ("threads_per_block", f64::from(self.threads_per_block), 1.0, 1024.0, "1 to 1024"),
            ("blocks_per_sm", f64::from(self.blocks_per_sm), 1.0, 1e6, "1 to 1000000"),
            ("l2_bytes", self.l2_bytes as f64, 1024.0, 1e12, "at least 1024"),
            ("l2_bytes_per_clock", self.l2_bytes_per_clock, 1.0, 1e6, "1 to 1000000"),
            ("l1_bytes_per_clock", self.l1_bytes_per_clock, 1.0, 1e5, "1 to 100000"),
            ("dram_gbs", self.dram_gbs, 1.0, 1e6, "1 to 1000000"),
            ("dram_nominal_gbs", self.dram_nominal_gbs, 1.0, 1e6, "1 to 1000000"),
            ("latency_dram", self.latency_dram, 1.0, 1e5, "1 to 100000"),
            ("latency_l2", self.latency_l2, 1.0, 1e5, "1 to 100000"),
            ("latency_shared", self.latency_shared, 1.0, 1e5, "1 to 100000"),
            ("instruction_cache_bytes", self.instruction_cache_bytes as f64, 1024.0, 1e9, "at least 1024"),
            (
                "instruction_buffer_bytes",
                self.instruction_buffer_bytes.map_or(1e9, |b| b as f64),
                1024.0,
                1e9,
                "at least 1024",
            ),
            ("launch_us", self.launch_us, 0.0, 1e6, "0 to 1000000"),
            ("overlap_exponent", self.overlap_exponent, 1.0, 100.0, "1 to 100"),
        ];
        let absurd = |fields: &[(&'static str, f64, f64, f64, &'static str)]| {
            let found = fields.iter().find(|(_, value, low, high, _)| !(low..=high).contains(&value));
            found.map_or(Ok(()), |&(field, value, _, _, wanted)| {
                Err(DescriptorError::Absurd { name: self.name.clone(), field, value, wanted })
            })
        };
        absurd(&fields)?;
        for (field, value) in &self.spread {
            if !crate::uncertainty::is_rate(field) || !(0.0..=1.0).contains(value) {
                return Err(DescriptorError::Spread { name: self.name.clone(), field: field.clone(), value: *value });
            }
        }
        if let Some(p) = self.power {
            absurd(&[
                ("power.idle_w", p.idle_w, 0.0, 1e5, "0 to 100000"),
                (
                    "power.limit_w",
                    p.limit_w,
                    p.idle_w + 1.0,
                    1e5,
                    "at least 1 W more than power.idle_w, at most 100000",
                ),
                ("power.fp32_pj", p.fp32_pj, 0.0, 1e6, "0 to 1000000"),
                ("power.tensor16_pj", p.tensor16_pj, 0.0, 1e6, "0 to 1000000"),
                ("power.l2_pj", p.l2_pj, 0.0, 1e6, "0 to 1000000"),
                ("power.dram_pj", p.dram_pj, 0.0, 1e6, "0 to 1000000"),
            ])?;
        }
        let most = f64::from(self.sms);
        let clusters = self.max_clusters.iter().map(|n| f64::from(*n)).find(|n| !(0.0..=most).contains(n));
        let more = (self.max_clusters.len() > CLUSTERS.len()).then_some(self.max_clusters.len() as f64);
        if let Some(value) = clusters.or(more) {
            let wanted = "at most four numbers, of clusters of 1, 2, 4 and 8 blocks, none above sms";
            return Err(DescriptorError::Absurd { name: self.name.clone(), field: "max_clusters", value, wanted });
        }
        let Some(t) = self.tensor else { return Ok(()) };
        absurd(&[
            ("tensor.f16", t.f16, 1.0, 1e6, "1 to 1000000"),
            ("tensor.f16_sums", t.f16_sums.unwrap_or(t.f16), 1.0, 1e6, "1 to 1000000"),
            ("tensor.bf16", t.bf16.unwrap_or(0.0), 0.0, 1e6, "0 to 1000000"),
            ("tensor.tf32", t.tf32, 0.0, 1e6, "0 to 1000000"),
            ("tensor.i8", t.i8, 0.0, 1e6, "0 to 1000000"),
            ("tensor.fp8", t.fp8.unwrap_or(0.0), 0.0, 1e6, "0 to 1000000"),
            ("tensor.mma_share", t.mma_share, 0.0, 1.0, "0 to 1"),
            ("tensor.wmma_share", t.wmma_share.unwrap_or(t.mma_share), 0.01, 1.0, "0.01 to 1"),
            ("tensor.wgmma_share", t.wgmma_share, 0.0, 1.0, "0 to 1"),
        ])
    }
}

/// Largest file of a descriptor, bytes.
const LONGEST: u64 = 1 << 20;

/// GPUs that there are, of which no descriptor is built in: their names are no misspelling of others.
const OTHERS: &[&str] = &[
    "a10",
    "a16",
    "a2",
    "a2000",
    "a30",
    "a40",
    "a4000",
    "a4500",
    "a5000",
    "a800",
    "b100",
    "b300",
    "gb200",
    "gb300",
    "gh200",
    "h20",
    "h800",
    "k80",
    "l20",
    "l40",
    "l40s",
    "m60",
    "p100",
    "p4",
    "p40",
    "rtx2060",
    "rtx2070",
    "rtx2080",
    "rtx2080ti",
    "rtx3050",
    "rtx3060",
    "rtx3070",
    "rtx3080",
    "rtx3090ti",
    "rtx4060",
    "rtx4070",
    "rtx4080",
    "rtx5060",
    "rtx5070",
    "rtx5080",
    "titanv",
];

/// A name as descriptors are called: `NVIDIA GeForce RTX 4090`, `4090` and `rtx-4090` are `rtx4090`.
fn canonical(name: &str) -> String {
    let plain: String = name.to_lowercase().chars().filter(|c| !matches!(c, ' ' | '-' | '_')).collect();
    let mut plain = plain.as_str();
    for maker in ["nvidia", "geforce", "tesla"] {
        plain = plain.strip_prefix(maker).unwrap_or(plain);
    }
    let card = format!("rtx{plain}");
    let known = |name: &str| Descriptor::text(name).is_some() || OTHERS.contains(&name);
    match plain.strip_prefix("rtx") {
        // The RTX A6000 is called so by its maker, and A6000 by everybody.
        Some(rest) if known(rest) => rest.into(),
        _ if known(&card) => card,
        _ => plain.into(),
    }
}

/// What to do about a name that is not known.
fn hint(name: &str) -> String {
    let plain = canonical(name);
    if OTHERS.contains(&plain.as_str()) {
        return format!(
            " (no descriptor of it is built in: `satune probe --out {plain}.toml` on one writes it, or copy the nearest)"
        );
    }
    let distance = |known: &str| strsim::damerau_levenshtein(known, &plain);
    let nearest = Descriptor::names().min_by_key(|known| distance(known)).filter(|known| distance(known) <= 2);
    nearest.map_or_else(String::new, |known| format!(" (did you mean `{known}`?)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_those_of_the_driver_where_a_file_has_them() {
        let text = Descriptor::text("h200").unwrap();
        let said = |line: &str| Descriptor::parse(&text.replace("sms = 132", &format!("sms = 132\n{line}")), "x");
        let gpu = said("max_clusters = [132, 66, 32, 0]").unwrap();
        assert_eq!([1, 2, 4, 8].map(|c| gpu.clustered(c)), [Some(132), Some(132), Some(128), Some(0)]);
        assert_eq!([1, 2, 4, 8].map(|c| gpu.usable(c)), [132, 132, 128, 112]);
        let gpu = Descriptor::load("h200").unwrap();
        assert_eq!(
            [1, 2, 4, 8].map(|c| (gpu.clustered(c), gpu.usable(c))),
            [(None, 132), (None, 132), (None, 112), (None, 112)]
        );
        for bad in ["max_clusters = [133]", "max_clusters = [1, 1, 1, 1, 1]"] {
            assert!(said(bad).unwrap_err().to_string().contains("max_clusters"), "{bad}");
        }
    }

    #[test]
    fn every_built_in_is_sound() {
        for name in Descriptor::names() {
            assert_eq!(Descriptor::load(name).unwrap().name, name);
        }
    }

    #[test]
    fn a_misspelt_name_gets_the_nearest() {
        let text = Descriptor::load("h2000").unwrap_err().to_string();
        assert!(text.starts_with("unknown GPU `h2000` (did you mean `h200`?); known are h200, h100"), "{text}");
        // A GPU that there is is no misspelling of another.
        for name in ["b300", "B300", "NVIDIA H20", "RTX 5080"] {
            let text = Descriptor::load(name).unwrap_err().to_string();
            assert!(text.contains("satune probe") && !text.contains("did you mean"), "{text}");
        }
    }

    #[test]
    fn names_are_known_as_people_type_them() {
        for (typed, name) in [
            ("H200", "h200"),
            ("NVIDIA H100", "h100"),
            ("Tesla V100", "v100"),
            ("RTX 4090", "rtx4090"),
            ("4090", "rtx4090"),
            ("GeForce RTX 3090", "rtx3090"),
            ("RTX A6000", "a6000"),
        ] {
            assert_eq!(Descriptor::load(typed).unwrap().name, name);
        }
    }

    #[test]
    fn absurd_numbers_and_missing_fields_are_refused() {
        let text = Descriptor::text("t4").unwrap();
        let error = Descriptor::parse(&text.replace("sms = 40", "sms = 0"), "x").unwrap_err().to_string();
        assert_eq!(error, "GPU descriptor t4: sms is 0; it must be 1 to 10000");
        let error = Descriptor::parse(&text.replace("sms = 40\n", ""), "my.toml").unwrap_err().to_string();
        let remedy = "; `satune gpu show h200` prints a whole one, to copy and change";
        assert_eq!(error, format!("GPU descriptor my.toml: missing field `sms`{remedy}"));
        let error = Descriptor::parse("", "empty.toml").unwrap_err().to_string();
        assert_eq!(error, format!("GPU descriptor empty.toml: missing field `name`{remedy}"));
        let error = Descriptor::parse("name = 3\n", "my.toml").unwrap_err().to_string();
        assert!(error.contains("line 1, column 8") && error.ends_with(remedy), "{error}");
        let error =
            Descriptor::parse(&text.replace("[spread]\n", "[spread]\nsms = 0.1\n"), "x").unwrap_err().to_string();
        assert!(error.starts_with("GPU descriptor t4: spread.sms is 0.1; spreads are 0 to 1"), "{error}");
        let error = Descriptor::parse(&text.replace("idle_w = 12", "idle_w = 70"), "x").unwrap_err().to_string();
        assert!(error.starts_with("GPU descriptor t4: power.limit_w is 70"), "{error}");
    }
}
