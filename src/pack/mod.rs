//! Packs: everything that a GPU is to be asked about a suite, made where no GPU is. A pack is one file, checked by its
//! hash: plans, kernels' texts, launches, predictions, simulated counts, machine code of candidates and of references, and
//! the descriptor that the predictions are made with.
//!
//! The file: a line `satune-pack FORMAT HASH`, HASH of all behind the line (BLAKE3, hexadecimal); behind it, compressed by
//! zstd, the length of a JSON text (8 bytes, least first), the text, and the machine code that the text refers to.
mod ahead;
mod breaker;
mod family;
mod make;
mod run;
mod summary;

pub use breaker::Breaker;
pub use family::Family;
pub use make::{make, probes, variants, Assumption, Draws, Wanted};
pub use run::{run, Duels, Outcome, RunError, Settings};
pub use summary::summary;

use crate::compile::{Figures, Version};
use crate::device::{GpuInfo, Ready};
use crate::simulate::Counts;
use crate::source::{self, SourceError, Work};
use satune_extract::{Cost, Descriptor};
use satune_ir::files;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::Path;

/// Of the file and of what is in it; another one is refused.
const FORMAT: u32 = 2;
/// The file's first word.
const MARK: &str = "satune-pack";
/// Most bytes that a pack is unpacked to.
const MOST: u64 = 4 << 30;

/// Why a pack is refused.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// What the system says.
    #[error("{path}: {error}")]
    File {
        /// As asked.
        path: String,
        /// What it says.
        error: std::io::Error,
    },
    /// Another kind of file.
    #[error("{0}: this is no pack; `satune pack SUITE --out {0}` makes one")]
    Foreign(String),
    /// Of a later or an earlier Satune.
    #[error(
        "{path}: the pack is of {of}, this is {this}; make the pack again with this version, or run it with that one"
    )]
    Version {
        /// As asked.
        path: String,
        /// Who made it.
        of: String,
        /// Who reads it.
        this: String,
    },
    /// The bytes are not those that were written.
    #[error("{path}: the pack is damaged: its hash is {found}, and {written} was written; copy it again")]
    Hash {
        /// As asked.
        path: String,
        /// Of what is there.
        found: String,
        /// In its first line.
        written: String,
    },
    /// Its content makes no sense.
    #[error("{path}: the pack cannot be read: {reason}; make it again")]
    Content {
        /// As asked.
        path: String,
        /// Why.
        reason: String,
    },
    /// A program in it.
    #[error(transparent)]
    Program(#[from] SourceError),
}

/// What is in a pack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pack {
    /// Version of Satune that made it.
    pub satune: String,
    /// Name of the suite.
    pub suite: String,
    /// Text of the descriptor, TOML.
    pub descriptor: String,
    /// The programs, in the suite's order.
    pub programs: Vec<Packed>,
    /// Hash of the file; what results are found by.
    #[serde(skip)]
    pub hash: String,
}

/// A program of a pack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Packed {
    /// As it was asked for.
    pub name: String,
    /// Its TVMScript, where it came from a file.
    pub script: Option<String>,
    /// Candidates: the best under the model in their order, then random ones.
    pub candidates: Vec<Candidate>,
    /// Why it has none, or fewer than were asked for.
    pub missing: Option<String>,
    /// Machine code of its reference by compilers.
    #[serde(default)]
    reference: Vec<Stored>,
}

/// A candidate of a pack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// How it came here.
    pub place: Origin,
    /// Texts, launches, tolerances.
    pub ready: Ready,
    /// Predicted time and parts.
    pub cost: Cost,
    /// What the simulator counted on a problem of few blocks, all of the kernel.
    pub counts: Counts,
    /// Machine code by compilers, where it was made.
    code: Vec<Stored>,
}

/// How a candidate came into a pack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The model's choice number so many, from 1.
    Top(usize),
    /// Random choice number so many, from 1.
    Random(usize),
    /// The first of its family and what is assumed of the hardware in it, in words.
    Probe(String),
    /// A change of the model's first choice, in words.
    Change(String),
}

/// Ranks that a GPU measures before anything random.
const EARLY: usize = 8;

impl Origin {
    /// Whether it is among what a GPU is asked first, and much rests on it.
    fn is_early(&self) -> bool {
        match self {
            Origin::Top(rank) => *rank <= EARLY,
            Origin::Random(_) => false,
            Origin::Probe(_) | Origin::Change(_) => true,
        }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Top(rank) => write!(f, "rank {rank}"),
            Origin::Random(number) => write!(f, "random {number}"),
            Origin::Probe(what) | Origin::Change(what) => f.write_str(what),
        }
    }
}

/// Machine code by one compiler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Stored {
    /// Version of NVRTC: `13.0`.
    nvrtc: String,
    /// What it made of each kernel.
    figures: Vec<Figures>,
    /// Of each kernel where its code begins behind the text, and its bytes.
    pieces: Vec<(u64, u64)>,
    #[serde(skip)]
    cubins: Vec<Vec<u8>>,
}

impl Candidate {
    /// Machine code for a driver that knows CUDA up to a version (`13.0`), and the registers of the first kernel.
    pub fn code_for(&self, driver: &str) -> Option<(&[Vec<u8>], u32)> {
        let stored = fitting(&self.code, driver)?;
        Some((&stored.cubins, stored.figures.first()?.registers))
    }

    /// What each compiler made of each kernel.
    pub fn figures(&self) -> impl Iterator<Item = (&str, &[Figures])> {
        self.code.iter().map(|c| (c.nvrtc.as_str(), c.figures.as_slice()))
    }
}

/// Of several compilers' code that of the latest which is not later than a driver; else of one of the driver's major version,
/// whose machine code the driver loads all the same (CUDA Compatibility, minor version compatibility).
fn fitting<'s>(code: &'s [Stored], driver: &str) -> Option<&'s Stored> {
    let driver: Version = driver.parse().ok()?;
    let known = code.iter().filter_map(|c| Some((c.nvrtc.parse::<Version>().ok()?, c)));
    let fits = known.filter(|(version, _)| *version <= driver || version.major == driver.major);
    fits.max_by_key(|(version, _)| (*version <= driver, *version)).map(|(_, stored)| stored)
}

impl Pack {
    /// The descriptor.
    ///
    /// # Errors
    /// When its text is none, as of another version.
    pub fn gpu(&self) -> Result<Descriptor, PackError> {
        Descriptor::parse(&self.descriptor, &self.suite)
            .map_err(|e| PackError::Content { path: self.suite.clone(), reason: e.to_string() })
    }

    /// Why a GPU is not the one that the pack is for; nothing where it is.
    pub fn misfit(&self, info: &GpuInfo) -> Option<String> {
        let gpu = self.gpu().ok()?;
        (info.arch != gpu.arch || info.sms != gpu.sms).then(|| {
            format!(
                "the pack is for {} ({}, {} multiprocessors), and this GPU is {} ({}, {} multiprocessors): make one with `satune probe --out here.toml; satune pack SUITE --gpu here.toml`, or give --any-gpu to measure these kernels here all the same",
                gpu.full_name, gpu.arch, gpu.sms, info.name, info.arch, info.sms
            )
        })
    }

    fn stored(&mut self) -> impl Iterator<Item = &mut Stored> {
        self.programs.iter_mut().flat_map(Packed::stored)
    }

    /// Writes the file, whole or not at all. Returns its bytes.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&mut self, path: &Path) -> Result<u64, PackError> {
        let failed = |error| PackError::File { path: path.display().to_string(), error };
        let mut code = Vec::new();
        for stored in self.stored() {
            stored.pieces.clear();
            for cubin in &stored.cubins {
                stored.pieces.push((code.len() as u64, cubin.len() as u64));
                code.extend_from_slice(cubin);
            }
        }
        let text = serde_json::to_vec(self).map_err(|e| failed(e.into()))?;
        // Texts of one program differ in little: the window must reach over many of them.
        let mut packer = zstd::Encoder::new(Vec::new(), 19).map_err(failed)?;
        packer.window_log(26).and_then(|()| packer.long_distance_matching(true)).map_err(failed)?;
        for part in [&(text.len() as u64).to_le_bytes()[..], &text, &code] {
            packer.write_all(part).map_err(failed)?;
        }
        let body = packer.finish().map_err(failed)?;
        self.hash = blake3::hash(&body).to_hex().to_string();
        let head = format!("{MARK} {FORMAT} {}\n", self.hash);
        let folder = path.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        file.write_all(head.as_bytes()).and_then(|()| file.write_all(&body)).map_err(failed)?;
        #[cfg(unix)]
        file.as_file().set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644)).map_err(failed)?;
        file.persist(path).map_err(|e| failed(e.error))?;
        Ok((head.len() + body.len()) as u64)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// See [`PackError`].
    pub fn read(path: &Path) -> Result<Pack, PackError> {
        let named = || path.display().to_string();
        let mut bytes = Vec::new();
        let all = files::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
        all.map_err(|error| PackError::File { path: named(), error })?;
        let end = bytes.iter().take(200).position(|b| *b == b'\n');
        let head = end.and_then(|end| std::str::from_utf8(&bytes[..end]).ok()).unwrap_or("");
        let words: Vec<&str> = head.split(' ').collect();
        let [MARK, format, written] = words[..] else { return Err(PackError::Foreign(named())) };
        if format != FORMAT.to_string() {
            let (of, this) = (format!("format {format}"), format!("format {FORMAT}"));
            return Err(PackError::Version { path: named(), of, this });
        }
        let body = &bytes[end.unwrap_or(0) + 1..];
        let found = blake3::hash(body).to_hex().to_string();
        if found != written {
            return Err(PackError::Hash { path: named(), found, written: written.into() });
        }
        let content = |reason: String| PackError::Content { path: named(), reason };
        let mut unpacker = zstd::Decoder::new(body).map_err(|e| content(e.to_string()))?;
        unpacker.window_log_max(26).map_err(|e| content(e.to_string()))?;
        let mut whole = Vec::new();
        unpacker.take(MOST).read_to_end(&mut whole).map_err(|e| content(e.to_string()))?;
        let short = || content("it ends too early".into());
        let (length, rest) = whole.split_first_chunk::<8>().ok_or_else(short)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| short())?;
        let (text, code) = rest.split_at_checked(length).ok_or_else(short)?;
        // The version first: another one's fields may be others.
        #[derive(Deserialize)]
        struct Of {
            satune: String,
        }
        let of: Of = serde_json::from_slice(text).map_err(|e| content(e.to_string()))?;
        if of.satune != env!("CARGO_PKG_VERSION") {
            let (of, this) = (format!("satune {}", of.satune), format!("satune {}", env!("CARGO_PKG_VERSION")));
            return Err(PackError::Version { path: named(), of, this });
        }
        let mut pack: Pack = serde_json::from_slice(text).map_err(|e| content(e.to_string()))?;
        for stored in pack.stored() {
            for (at, bytes) in &stored.pieces {
                let piece =
                    usize::try_from(*at).ok().and_then(|at| code.get(at..)?.get(..usize::try_from(*bytes).ok()?));
                stored.cubins.push(piece.ok_or_else(short)?.to_vec());
            }
        }
        pack.hash = found;
        Ok(pack)
    }
}

impl Packed {
    /// The program, read again.
    ///
    /// # Errors
    /// When this version does not take it.
    pub fn work(&self) -> Result<Work, SourceError> {
        match &self.script {
            Some(script) => source::work_of_script(&self.name, script),
            None => Ok(source::operator(&self.name)?),
        }
    }

    fn stored(&mut self) -> impl Iterator<Item = &mut Stored> {
        self.candidates.iter_mut().flat_map(|c| &mut c.code).chain(&mut self.reference)
    }

    /// Machine code of the reference for a driver.
    pub fn reference_for(&self, driver: &str) -> Option<&[Vec<u8>]> {
        fitting(&self.reference, driver).map(|stored| stored.cubins.as_slice())
    }
}
