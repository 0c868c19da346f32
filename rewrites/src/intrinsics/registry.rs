//! Tensor intrinsics, and where families put theirs.
use indexmap::IndexMap;
use satune_ir::{Block, Program};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// A tensor intrinsic.
#[derive(Clone, Debug, PartialEq)]
pub struct Intrinsic {
    /// Its name.
    pub name: String,
    /// What it computes.
    pub description: Program,
    /// The same where lanes hold the operands, if the description has them elsewhere: loads and multiplications of a family agree on
    /// either.
    pub held: Option<Program>,
    /// How; the parameters are those of the description.
    pub implementation: Program,
    /// How its operands lie. Multiplications of operands that lie differently are one instruction: what it computes
    /// is known from the loads before it.
    pub lie: Lie,
}

/// How operands of a multiplication lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    /// It makes no difference.
    #[default]
    Any,
    /// The load brings a parameter into fragments, transposed or not.
    Load {
        /// The parameter that is written.
        target: usize,
        /// Whether the tile is transposed on the way.
        transposed: bool,
    },
    /// The multiplication takes its first and second parameter loaded transposed, or not.
    Multiply {
        /// Of the first.
        a: bool,
        /// Of the second.
        b: bool,
    },
}

impl Intrinsic {
    /// The block of the description that a program's block is compared with.
    pub fn pattern(&self) -> &Block {
        &self.description.body.block
    }
}

/// The text of an intrinsic, and what was read of it.
#[derive(Debug)]
pub(super) struct Entry {
    pub description: String,
    /// See [`Intrinsic::held`].
    pub held: Option<String>,
    pub implementation: String,
    pub lie: Lie,
    /// TVM does not have it.
    pub own: bool,
    pub parsed: OnceLock<Option<Arc<Intrinsic>>>,
}

/// Where families put their intrinsics.
#[derive(Debug, Default)]
pub(super) struct Registry {
    pub entries: IndexMap<String, Entry>,
}

impl Registry {
    pub fn add(&mut self, name: impl Into<String>, description: String, implementation: String) {
        self.entry(Lie::Any, false, name, [description, implementation]);
    }

    /// An intrinsic that TVM does not have.
    pub fn own(&mut self, name: impl Into<String>, description: String, implementation: String) {
        self.entry(Lie::Any, true, name, [description, implementation]);
    }

    /// Description and implementation; `own`: TVM does not have it.
    pub fn entry(&mut self, lie: Lie, own: bool, name: impl Into<String>, [description, implementation]: [String; 2]) {
        let entry = Entry { description, held: None, implementation, lie, own, parsed: OnceLock::new() };
        self.entries.insert(name.into(), entry);
    }

    /// What the intrinsic that was added last computes where lanes hold its operands.
    pub fn held(&mut self, description: String) {
        if let Some((_, entry)) = self.entries.last_mut() {
            entry.held = Some(description);
        }
    }
}

/// What users registered, for the whole process.
static REGISTERED: RwLock<Vec<Arc<Intrinsic>>> = RwLock::new(Vec::new());

/// Adds what a user registers.
pub(super) fn extend(new: Vec<Arc<Intrinsic>>) {
    REGISTERED.write().unwrap_or_else(PoisonError::into_inner).extend(new);
}

/// The intrinsic of a name that a user registered.
pub(super) fn registered(name: &str) -> Option<Arc<Intrinsic>> {
    REGISTERED.read().unwrap_or_else(PoisonError::into_inner).iter().find(|i| i.name == name).cloned()
}

/// All that users registered.
pub(super) fn all_registered() -> Vec<Arc<Intrinsic>> {
    REGISTERED.read().unwrap_or_else(PoisonError::into_inner).clone()
}
