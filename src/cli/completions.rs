//! `completions` and `man`: what shells and readers of manuals want to know of the command.
use super::{print, Command, Failure, Outcome};
use clap::CommandFactory;
use std::path::Path;

/// Prints the completions of a shell.
pub(super) fn shell(shell: clap_complete::Shell) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Command::command(), "satune", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// Prints the manual's first page, or writes all pages into a folder.
pub(super) fn manual(folder: Option<&Path>) -> Outcome {
    let failed = |e: std::io::Error| Failure::Environment(format!("manual: {e}"));
    let command = Command::command();
    let Some(folder) = folder else {
        let mut text = Vec::new();
        clap_mangen::Man::new(command).render(&mut text).map_err(failed)?;
        return print(&String::from_utf8_lossy(&text));
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(command, folder).map_err(failed)?;
    print(&format!("manual pages are in {}\n", folder.display()))
}
