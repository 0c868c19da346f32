//! What a simulated kernel did, in warp instructions, wavefronts and sectors.
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// Counts of one kernel, or of one loop of it. Instructions are warp instructions: one per warp with an active lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Multiply-adds.
    pub fma: u64,
    /// Matrix multiply-adds: `mma.sync`; `wgmma` once per warp.
    pub matrix: u64,
    /// `ldmatrix` and `stmatrix` (not among the loads and stores; their wavefronts are).
    pub matrix_moves: u64,
    /// Other arithmetic on elements.
    pub arithmetic: u64,
    /// Shuffles between the lanes of a warp.
    #[serde(default)]
    pub shuffles: u64,
    /// Loads from shared memory.
    pub shared_loads: u64,
    /// Stores to shared memory.
    pub shared_stores: u64,
    /// Loads from global memory, cp.async not among them.
    pub global_loads: u64,
    /// Stores to global memory.
    pub global_stores: u64,
    /// cp.async.
    pub async_copies: u64,
    /// Atomic additions.
    pub atomics: u64,
    /// Barriers, per warp.
    pub barriers: u64,
    /// Wavefronts of shared memory taken by loads.
    pub shared_load_wavefronts: u64,
    /// The least that those loads could take.
    pub shared_load_wavefronts_ideal: u64,
    /// Wavefronts of shared memory taken by stores (cp.async among them).
    pub shared_store_wavefronts: u64,
    /// The least that those stores could take.
    pub shared_store_wavefronts_ideal: u64,
    /// 32-byte sectors read from global memory (cp.async among them).
    pub global_load_sectors: u64,
    /// The least for those loads.
    pub global_load_sectors_ideal: u64,
    /// 32-byte sectors written.
    pub global_store_sectors: u64,
    /// The least for those stores.
    pub global_store_sectors_ideal: u64,
}

impl Counts {
    /// What was computed, for people.
    pub fn computed(&self) -> String {
        match self {
            Counts { matrix: 1.., .. } => format!("{} matrix instructions", self.matrix),
            Counts { fma: 1.., .. } => format!("{} multiply-adds", self.fma),
            Counts { arithmetic: 1.., .. } => format!("{} instructions of arithmetic", self.arithmetic),
            _ => "no arithmetic".into(),
        }
    }

    /// All wavefronts of shared memory: (taken, least).
    pub fn shared_wavefronts(&self) -> (u64, u64) {
        (
            self.shared_load_wavefronts + self.shared_store_wavefronts,
            self.shared_load_wavefronts_ideal + self.shared_store_wavefronts_ideal,
        )
    }

    /// All sectors of global memory: (touched, least).
    pub fn global_sectors(&self) -> (u64, u64) {
        (
            self.global_load_sectors + self.global_store_sectors,
            self.global_load_sectors_ideal + self.global_store_sectors_ideal,
        )
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, o: Counts) {
        self.fma += o.fma;
        self.matrix += o.matrix;
        self.matrix_moves += o.matrix_moves;
        self.arithmetic += o.arithmetic;
        self.shuffles += o.shuffles;
        self.shared_loads += o.shared_loads;
        self.shared_stores += o.shared_stores;
        self.global_loads += o.global_loads;
        self.global_stores += o.global_stores;
        self.async_copies += o.async_copies;
        self.atomics += o.atomics;
        self.barriers += o.barriers;
        self.shared_load_wavefronts += o.shared_load_wavefronts;
        self.shared_load_wavefronts_ideal += o.shared_load_wavefronts_ideal;
        self.shared_store_wavefronts += o.shared_store_wavefronts;
        self.shared_store_wavefronts_ideal += o.shared_store_wavefronts_ideal;
        self.global_load_sectors += o.global_load_sectors;
        self.global_load_sectors_ideal += o.global_load_sectors_ideal;
        self.global_store_sectors += o.global_store_sectors;
        self.global_store_sectors_ideal += o.global_store_sectors_ideal;
    }
}
