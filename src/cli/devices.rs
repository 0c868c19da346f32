//! Devices and stores by name, and what their errors mean to the command.
use super::Failure;
use crate::device::{cuda::Cuda, Device, DeviceError, Scripted, Simulator};
use crate::measure::{bench::BenchError, MeasureError};
use crate::store::{Store, StoreError};
use clap::ValueEnum;
use satune_extract::Descriptor;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What candidates run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Choice {
    /// A CUDA GPU where there is one, else the simulator
    Auto,
    /// Checked by simulation; times are the model's predictions
    Simulator,
    /// Measured on a CUDA GPU
    Cuda,
    /// Nothing: candidates are simulated and ranked by prediction
    None,
    /// A script of outcomes
    #[value(hide = true)]
    Scripted,
}

impl Choice {
    /// As it is written on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
    }
}

/// What the kernel shows where it knows an NVIDIA GPU: on Linux, and on Linux under Windows.
const NVIDIA: [&str; 2] = ["/proc/driver/nvidia/version", "/dev/dxg"];

pub(super) fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::Environment(format!("the path of this program is not known: {e}")))
}

/// Opens a device; `None` where none is wanted.
pub(super) fn open(
    choice: Choice,
    gpu: &Descriptor,
    script: Option<&Path>,
) -> Result<Option<Box<dyn Device>>, Failure> {
    Ok(Some(match choice {
        Choice::None => return Ok(None),
        Choice::Simulator => Box::new(Simulator::of(gpu)),
        // Where the kernel knows no NVIDIA driver, no process needs to ask.
        Choice::Auto if !NVIDIA.iter().any(|mark| Path::new(mark).exists()) => Box::new(Simulator::of(gpu)),
        Choice::Auto => {
            match Cuda::open(this_program()?) {
                Ok(cuda) => boxed(cuda, gpu),
                Err(error @ DeviceError::Busy { .. }) => return Err(error.into()),
                Err(error) => {
                    super::say(&format!("satune: no GPU to measure on ({error}); the simulator stands in, and its times are predictions"));
                    Box::new(Simulator::of(gpu))
                }
            }
        }
        Choice::Cuda => boxed(Cuda::open(this_program()?)?, gpu),
        Choice::Scripted => {
            let script = script.ok_or_else(|| Failure::Input("--device scripted needs --script FILE".into()))?;
            Box::new(Scripted::new(this_program()?, script)?)
        }
    }))
}

/// Opens a device for a call that goes on without it where it is not there.
pub(super) fn opened(
    choice: Choice,
    gpu: &Descriptor,
    script: Option<&Path>,
    program: &Path,
) -> Result<Box<dyn Device>, DeviceError> {
    let missing = |what: &str, remedy: &str| DeviceError::Missing { what: what.into(), remedy: remedy.into() };
    Ok(match choice {
        Choice::Cuda | Choice::Auto => boxed(Cuda::open(program.into())?, gpu),
        Choice::Simulator => Box::new(Simulator::of(gpu)),
        Choice::Scripted => {
            let script = script.ok_or_else(|| missing("there is no script", "give --script FILE"))?;
            Box::new(Scripted::new(program.into(), script)?)
        }
        Choice::None => return Err(missing("--device none measures nothing", "choose cuda or simulator")),
    })
}

fn boxed(cuda: Cuda, gpu: &Descriptor) -> Box<dyn Device> {
    if let Some(difference) = mismatch(cuda.info(), gpu) {
        super::say(&format!("satune: {difference}; predictions are for the descriptor's GPU, times are this one's"));
    }
    Box::new(cuda)
}

/// Where a GPU is not the one that a descriptor describes, in words.
pub(super) fn mismatch(info: &crate::device::GpuInfo, gpu: &Descriptor) -> Option<String> {
    if info.arch == gpu.arch && info.sms == gpu.sms {
        return None;
    }
    Some(format!(
        "the GPU is {} ({}, {} multiprocessors), the descriptor `{}` is of {} ({}, {} multiprocessors)",
        info.name, info.arch, info.sms, gpu.name, gpu.full_name, gpu.arch, gpu.sms
    ))
}

/// The store of a command: named, or in the output folder.
pub(super) fn store_path(store: Option<&Path>, out: &Path) -> PathBuf {
    store.map_or_else(|| out.join("store.db"), Path::to_path_buf)
}

pub(super) fn open_store(path: &Path) -> Result<Store, Failure> {
    Ok(Store::open(path)?)
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let text = error.to_string();
        match error {
            StoreError::Newer { .. }
            | StoreError::Foreign { .. }
            | StoreError::Line { .. }
            | StoreError::NoRun { .. } => Failure::Input(text),
            StoreError::Corrupt { .. } | StoreError::Full { .. } | StoreError::Busy { .. } => {
                Failure::Environment(text)
            }
            StoreError::Unusable { .. } => Failure::Environment(text),
            StoreError::Row { .. } => Failure::Internal(text),
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Failure {
        Failure::Environment(error.to_string())
    }
}

impl From<MeasureError> for Failure {
    fn from(error: MeasureError) -> Failure {
        match error {
            MeasureError::Store(e) => e.into(),
            MeasureError::Device(e) => e.into(),
        }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        match error {
            BenchError::Explore(_, e) => e.into(),
            BenchError::Measure(e) => e.into(),
            BenchError::Nothing { .. } => Failure::Nothing(error.to_string()),
        }
    }
}
