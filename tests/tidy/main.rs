//! The rules of ARCHITECTURE.md, each as a test that reads the repository.
//!
//! Nothing here builds or runs the compiler, except to ask its tables what they hold. A failing test lists
//! every violation with its file and line. `MEMC_BLESS=1` rewrites the generated tables of the crates' pages,
//! nothing else.

mod crates;
mod docs;
mod layout;
mod prose;
mod repo;
mod source;
mod tables;
