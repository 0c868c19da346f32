//! The `satune` command.

fn main() {
    std::process::exit(satune::cli::main());
}
