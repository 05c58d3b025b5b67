//! The `memc` command.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Compiling makes and drops many small nodes; their cost must not grow with the graph.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(memc_cli::main(std::env::args_os()))
}
