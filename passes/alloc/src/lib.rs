#![doc = include_str!("../README.md")]

mod algorithm;
mod attempt;
mod compact;
pub mod csv;
mod exact;
mod instance;
mod learn;
mod place;
mod pools;
mod random;
mod repair;
mod solution;
mod solve;
mod sweep;
mod work;

pub use algorithm::{Algorithm, place};
pub use instance::{Buffer, Conflict, Instance, InstanceError, MAX_TOTAL_BYTES, Range, check};
pub use solution::Solution;
pub use solve::{MAX_EFFORT, Options, solve};
