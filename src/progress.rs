//! How long work tells how far it is, and learns that it shall come to an end.

/// Watches a piece of work. Told from several threads at once.
pub trait Progress: Sync {
    /// A step begins. `pieces` is how many times [`Progress::advance`] will be called in it; 0 where nobody knows.
    fn begin(&self, step: &str, pieces: usize);

    /// A piece of the step is done.
    fn advance(&self) {}

    /// Whether to end soon, with what there is.
    fn stopped(&self) -> bool {
        false
    }
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn begin(&self, _step: &str, _pieces: usize) {}
}
