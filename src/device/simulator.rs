//! The simulator as a device: right or wrong is found by simulation, the time is what the model predicts.
use super::{Ask, Device, DeviceError, DeviceKind, Identity, Ready};
use crate::store::{hash, Reason, Timing, Verdict};
use crate::workload::Workload;
use satune_extract::Descriptor;

/// What the names of simulators as devices begin with.
pub(crate) const SIMULATED: &str = "simulator of ";

/// A GPU that exists as a descriptor.
#[derive(Clone, Debug)]
pub struct Simulator {
    gpu: Descriptor,
    identity: Identity,
}

impl Simulator {
    /// The simulator of a GPU. Rows of another descriptor or another version of the model are not taken for its own.
    pub fn of(gpu: &Descriptor) -> Simulator {
        let descriptor = hash(&format!("{gpu:?}"));
        let identity = Identity {
            kind: DeviceKind::Simulator,
            device: format!("{SIMULATED}{}", gpu.name),
            toolchain: format!("satune {}, descriptor {}", env!("CARGO_PKG_VERSION"), &descriptor[..12]),
            deterministic: true,
        };
        Simulator { gpu: gpu.clone(), identity }
    }
}

impl Device for Simulator {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn measure_ready(&mut self, problem: &dyn Workload, ready: &Ready, _ask: &Ask) -> Result<Verdict, DeviceError> {
        // The candidate was simulated when it was made.
        Ok(match problem.predict(&ready.plan, &self.gpu) {
            Ok(cost) => Verdict::Measured(Timing {
                times_ms: vec![cost.ms],
                rounds: 1,
                cut_off: false,
                clock_mhz: None,
                relative_error: Some(0.0),
                conditions: None,
            }),
            Err(infeasible) => Verdict::Rejected { reason: Reason::Oom, detail: infeasible.to_string() },
        })
    }
}
