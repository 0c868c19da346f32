//! GPU descriptors: what a GPU can hold and how fast it is. One TOML file each; a user's own file works like a built-in.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// A GPU. Units are in the fields' names or comments; the built-in files say where each number is from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// Short name.
    pub name: String,
    /// Marketing name.
    pub full_name: String,
    /// Portable architecture, `sm_90`.
    pub arch: String,
    /// Architecture with the chip's own features, `sm_90a`.
    pub arch_features: String,
    /// Multiprocessors.
    pub sms: u32,
    /// Clock, MHz.
    pub clock_mhz: f64,
    /// Single-precision multiply-adds per clock and multiprocessor.
    pub fp32_lanes: u32,
    /// Double-precision multiply-adds per clock and multiprocessor.
    pub fp64_lanes: u32,
    /// Lanes of the load/store units, for shared and global memory: a warp's access takes 32 / this clocks at least.
    #[serde(default = "load_store_lanes")]
    pub load_store_lanes: u32,
    /// Share of the issue slots that dense arithmetic sustains.
    pub issue_efficiency: f64,
    /// Shared memory per multiprocessor, bytes.
    pub shared_per_sm: u32,
    /// Shared memory per block, bytes.
    pub shared_per_block: u32,
    /// Threads that a block can have: 1024 on every GPU so far (CUDA C++ Programming Guide, technical specifications per
    /// compute capability), where a file does not say.
    #[serde(default = "threads_per_block", skip_serializing_if = "is_usual")]
    pub threads_per_block: u32,
    /// Shared memory that the system takes per resident block, bytes.
    pub shared_reserved: u32,
    /// Registers per multiprocessor.
    pub registers_per_sm: u32,
    /// Resident threads per multiprocessor.
    pub threads_per_sm: u32,
    /// Resident blocks per multiprocessor.
    pub blocks_per_sm: u32,
    /// Clusters of 1, 2, 4 and 8 blocks that are resident at once, where each block takes a multiprocessor's shared memory
    /// (`cuOccupancyMaxActiveClusters`); estimated where a file does not say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub max_clusters: Vec<u32>,
    /// L2, bytes.
    pub l2_bytes: u64,
    /// L2 bytes per clock for the chip.
    pub l2_bytes_per_clock: f64,
    /// L1 bytes per clock for a multiprocessor.
    pub l1_bytes_per_clock: f64,
    /// DRAM, GB/s, nominal.
    pub dram_nominal_gbs: f64,
    /// DRAM, GB/s, reached by a copy: read and written together.
    pub dram_gbs: f64,
    /// Rate of reads alone over that of a copy; writes alone are as much slower as makes a copy what it is.
    #[serde(default = "dram_read_ratio")]
    pub dram_read_ratio: f64,
    /// Clocks.
    pub latency_dram: f64,
    /// Clocks.
    pub latency_l2: f64,
    /// Clocks.
    pub latency_shared: f64,
    /// Bytes of instructions that a loop may have before fetching them slows it.
    pub instruction_cache_bytes: u64,
    /// Microseconds.
    pub launch_us: f64,
    /// Exponent of the norm over resources.
    pub overlap_exponent: f64,
    /// cp.async exists (sm_80 and later).
    pub cp_async: bool,
    /// The bulk tensor copy engine exists (sm_90).
    pub tma: bool,
    /// How far the truth may be from a rate, as a share, where that is known better than of GPUs in general.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spread: BTreeMap<String, f64>,
    /// Power and energies; without them a GPU is never slowed down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
    /// Tensor cores (sm_70 and later).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<TensorRates>,
}

/// What a board may take, and what work takes at the boost clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// Limit of the board, W.
    pub limit_w: f64,
    /// Taken whatever it does, W: leakage, clocks, DRAM's refresh.
    pub idle_w: f64,
    /// pJ per FLOP in single precision, with its instructions and operands; twice as much in double precision.
    pub fp32_pj: f64,
    /// pJ per FLOP of tensor cores with operands of 16 bits; others by their width.
    pub tensor16_pj: f64,
    /// pJ per byte between L2 and L1.
    pub l2_pj: f64,
    /// pJ per byte of DRAM.
    pub dram_pj: f64,
}

/// Rates of tensor cores: dense FLOP per clock and multiprocessor, and the shares that instructions sustain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorRates {
    /// Operands in f16, sums in f32.
    pub f16: f64,
    /// Operands in bf16: as fast as in f16 where a file does not say; 0 where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16: Option<f64>,
    /// Operands in tf32; 0 where there are none.
    pub tf32: f64,
    /// Operands in i8, sums in i32; in fp8, sums in f32; 0 where there are none.
    pub i8: f64,
    /// Share that `mma.sync` sustains; 0 where it has not the shapes of sm_80.
    pub mma_share: f64,
    /// Share that `wmma` sustains: that of `mma.sync` where a file does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wmma_share: Option<f64>,
    /// Share that `wgmma` sustains; 0 where there is none.
    pub wgmma_share: f64,
}

/// The number of an architecture: 90 for `sm_90` and `sm_90a`; 0 where it has none.
pub fn arch_number(arch: &str) -> u32 {
    arch.trim_start_matches("sm_").chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}

impl Descriptor {
    /// The number of the architecture: 90 for `sm_90`.
    pub fn arch_number(&self) -> u32 {
        arch_number(&self.arch)
    }

    /// Blocks that are resident at once in clusters of so many, one on a multiprocessor: as `max_clusters` says, where it is
    /// there. `None` where it is not.
    pub fn clustered(&self, cluster: u32) -> Option<u32> {
        let at = CLUSTERS.iter().position(|size| *size == cluster)?;
        let clusters = self.max_clusters.get(at)?;
        Some(clusters.saturating_mul(cluster).min(self.sms))
    }

    /// [`Descriptor::clustered`], estimated where a file does not say: pairs are neighbours everywhere; of larger clusters the
    /// last multiprocessors of a graphics processing cluster may hold none.
    pub fn usable(&self, cluster: u32) -> u32 {
        let estimate = match cluster {
            ..=2 => self.sms,
            _ => (self.sms / (SMS_OF_GPC + 2) * SMS_OF_GPC).max(cluster.min(self.sms)),
        };
        self.clustered(cluster).filter(|blocks| *blocks > 0).unwrap_or(estimate)
    }
}

/// Sizes of clusters that a descriptor speaks of.
pub const CLUSTERS: [u32; 4] = [1, 2, 4, 8];

/// Multiprocessors of a graphics processing cluster, which holds whole clusters only; at least so many of them.
const SMS_OF_GPC: u32 = 16;

impl TensorRates {
    /// FLOP per clock and multiprocessor for operands of a type; 0 where tensor cores do not take them.
    pub fn of(&self, operand: satune_ir::DType) -> f64 {
        match operand {
            satune_ir::DType::I8 | satune_ir::DType::F8E4M3 | satune_ir::DType::F8E5M2 => self.i8,
            satune_ir::DType::F32 => self.tf32,
            satune_ir::DType::BF16 => self.bf16.unwrap_or(self.f16),
            _ => self.f16,
        }
    }

    /// Share of the rate that a warp's instruction sustains.
    pub fn share(&self, op: satune_ir::term::tensor::Mma) -> f64 {
        match op.wmma() {
            Some(_) => self.wmma_share.unwrap_or(self.mma_share),
            None => self.mma_share,
        }
    }
}

/// Of the SMs of data-centre GPUs (whitepapers of GV100, GA100, GH100); Turing's and those of GeForce boards have 16.
fn load_store_lanes() -> u32 {
    32
}

/// Measured on H100: a sum reads 3240 GB/s where a copy reaches 3000.
fn dram_read_ratio() -> f64 {
    1.08
}

const THREADS_PER_BLOCK: u32 = 1024;

fn threads_per_block() -> u32 {
    THREADS_PER_BLOCK
}

fn is_usual(threads: &u32) -> bool {
    *threads == THREADS_PER_BLOCK
}

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
        let gpu: Descriptor = toml::from_str(text)
            .map_err(|e| DescriptorError::Malformed { path: origin.into(), reason: e.to_string() })?;
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
            ("tensor.bf16", t.bf16.unwrap_or(0.0), 0.0, 1e6, "0 to 1000000"),
            ("tensor.tf32", t.tf32, 0.0, 1e6, "0 to 1000000"),
            ("tensor.i8", t.i8, 0.0, 1e6, "0 to 1000000"),
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
        assert!(error.contains("my.toml") && error.contains("sms"), "{error}");
        let error =
            Descriptor::parse(&text.replace("[spread]\n", "[spread]\nsms = 0.1\n"), "x").unwrap_err().to_string();
        assert!(error.starts_with("GPU descriptor t4: spread.sms is 0.1; spreads are 0 to 1"), "{error}");
        let error = Descriptor::parse(&text.replace("idle_w = 12", "idle_w = 70"), "x").unwrap_err().to_string();
        assert!(error.starts_with("GPU descriptor t4: power.limit_w is 70"), "{error}");
    }
}
