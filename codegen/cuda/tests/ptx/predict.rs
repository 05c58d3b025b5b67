//! Time of a launch by Little's law: bytes in flight over latency, and no more than the memory's rate.
//!
//! Figures are those of an H100 SXM (NVIDIA's data sheet and CUDA programming guide), and the latency of a
//! load from its memory under load (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU
//! Architecture via Microbenchmarking", 2024: 480 cycles without load).

use memc_cuda::{Arg, Launch};
use memc_ir::TensorType;

use super::stats::Stats;

const SMS: u64 = 132;
const THREADS: u64 = 2048;
const BLOCKS: u64 = 32;
const REGISTERS: u64 = 65536;
const SHARED: u64 = 228 << 10;
const CYCLES_PER_S: f64 = 1.755e9;
const BYTES_PER_S: f64 = 3.0e12;
/// Cycles from a load to its value.
const LATENCY: f64 = 800.0;
/// Cycles of one 64-bit division by a number that the compiler does not know.
const DIVISION: f64 = 130.0;
/// Seconds of a launch that moves nothing.
const LAUNCH: f64 = 2e-6;

/// Bytes that a launch reads and writes, each operand and result once.
pub(crate) fn bytes(launch: &Launch, operands: &[TensorType], results: &[TensorType]) -> u64 {
    let mut seen = Vec::new();
    for arg in &launch.args {
        let ty = match *arg {
            Arg::Operand(i) => operands.get(i).map(|ty| (false, i, ty)),
            Arg::Result(j) => results.get(j).map(|ty| (true, j, ty)),
            _ => None,
        };
        seen.extend(ty.filter(|(side, at, _)| !seen.iter().any(|(s, a, _)| (s, a) == (side, at))));
    }
    seen.iter().map(|(.., ty)| ty.bytes()).sum()
}

/// Seconds at the memory's rate.
pub(crate) fn bound(bytes: u64) -> f64 {
    bytes as f64 / BYTES_PER_S + LAUNCH
}

/// Seconds that a launch takes.
pub(crate) fn seconds(launch: &Launch, stats: &Stats, bytes: u64) -> f64 {
    let block = u64::from(launch.block);
    let registers = u64::from(stats.registers.max(16)).next_multiple_of(8) * block;
    let by_shared = SHARED.checked_div(u64::from(stats.shared) + 1024).unwrap_or(BLOCKS);
    let resident = (THREADS / block).min(BLOCKS).min(REGISTERS / registers).min(by_shared).max(1);
    let grid: u64 = launch.grid.iter().map(|&n| u64::from(n)).product();
    let threads = (resident * SMS).min(grid) * block;
    let latency = (LATENCY + DIVISION * stats.divisions as f64) / CYCLES_PER_S;
    let rate = threads as f64 * f64::from(stats.in_flight().max(1)) / latency;
    bytes as f64 / rate.min(BYTES_PER_S) + LAUNCH
}
