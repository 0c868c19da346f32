use super::{Failure, Outcome};
#[derive(clap::Args)]
pub(super) struct Args {
    file: String,
}
pub(super) fn run(args: &Args) -> Outcome {
    Err(Failure::Input(args.file.clone()))
}
