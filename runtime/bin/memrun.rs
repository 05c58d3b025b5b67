//! The `memrun` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(memc_runtime::memrun::main(std::env::args_os()))
}
