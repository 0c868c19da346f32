//! The `satune` command.

/// Searches make and drop many small sets.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    std::process::exit(satune::cli::main());
}
