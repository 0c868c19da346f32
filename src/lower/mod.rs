//! Lowering: from scheduled programs to kernels.
mod index;
pub mod program;
pub mod tensor;

/// A C identifier for a name of the program.
pub fn safe(name: &str) -> String {
    let mut out: String = name.chars().map(|ch| if ch.is_ascii_alphanumeric() { ch } else { '_' }).collect();
    if out.is_empty() || out.starts_with(|ch: char| ch.is_ascii_digit()) {
        out.insert(0, 'v');
    }
    out
}
