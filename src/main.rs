//! The `satune` command.

fn main() {
    if std::env::args().nth(1).as_deref() == Some("compile-worker") {
        std::process::exit(satune::compile::worker_main());
    }
}
