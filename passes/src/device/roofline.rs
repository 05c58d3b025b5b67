//! The roofline: a kernel takes its launch, and then the longer of its arithmetic and its memory traffic.
//! Each runs at the share of the device's peak that its family reaches.
//!
//! On devices of kind [`Kernels::Gpu`]:
//!
//! - Traffic: `RAMP_NS + bytes / (bandwidth * memory)`. So half the bandwidth is reached at
//!   `bandwidth * memory * RAMP_NS` bytes, less than 1 MB on a V100, 3 MB on an H100.
//! - Products (matrix products; convolutions as implicit ones: a row for each output position, a column for
//!   each output channel, or one for each weight in the gradient by the weight) are cut into tiles of `tm` x
//!   `tn` elements, one at a time on each processor, so that time goes by full waves of tiles: `waves * 2 *
//!   tm * tn * (k + PROLOGUE) / (peak / processors * compute * tile)`, by the fastest of the tile shapes of
//!   [`TILES`] and of some ways to share the inner dimension `k` among several tiles, whose partial sums are
//!   then written and read once more. Tile and wave quantisation are explained in NVIDIA's "Matrix
//!   Multiplication Background User's Guide".
//! - Products on units for 16-bit floats reach the profile's `tensor_share` of the peak relative to others:
//!   they are harder to keep fed.
//! - Convolutions of `f32` with 3 x 3 kernels and stride 1 need fewer multiplications by Winograd's method
//!   (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2.25 times fewer in theory):
//!   `WINOGRAD`.
//! - Other ops: `flops / (peak * compute)`.
//!
//! Every part grows with each extent: of two ops alike, the one with more to do is never the faster one. The
//! shares of [`efficiency`] are set so that published training speeds come out;
//! `tests/bench/results/costs.md` compares both. They do not apply to ops that a profile has measured.

use memc_ir::ops::Family;
use memc_ir::{Cost, DType, OpKind, TensorType};

use super::DeviceProfile;

/// Share of the peaks that kernels reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernels {
    /// They reach the peaks, whatever their size.
    Plain,
    /// They reach the shares of libraries for GPUs.
    Gpu,
}

impl Kernels {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Kernels::Plain => "plain",
            Kernels::Gpu => "gpu",
        }
    }
}

/// Time in ns that memory takes to get going.
const RAMP_NS: f64 = 1_000.0;
/// Cost of filling and emptying a tile's pipeline, in steps along the inner dimension.
const PROLOGUE: f64 = 48.0;
/// Extents of tiles, and their speed relative to the largest: larger ones read less for each multiplication.
const TILES: [(u64, u64, f64); 4] = [(128, 128, 1.0), (128, 64, 0.92), (64, 64, 0.8), (32, 32, 0.5)];
/// Numbers of tiles that may share the inner dimension.
const SPLITS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Speedup of Winograd's method.
const WINOGRAD: f64 = 1.7;

/// Shares of a device's peaks.
struct Efficiency {
    /// Of the arithmetic throughput.
    compute: f64,
    /// Of the memory throughput.
    memory: f64,
}

/// Shares of the peaks that a family's large kernels reach.
fn efficiency(family: Family) -> Efficiency {
    let (compute, memory) = match family {
        Family::MatMul => (0.85, 0.80),
        Family::Conv => (0.90, 0.80),
        Family::ConvGradInput => (0.85, 0.80),
        Family::ConvGradWeight => (0.85, 0.80),
        Family::Depthwise => (0.15, 0.50),
        Family::Pool => (0.30, 0.60),
        Family::Norm => (0.30, 0.70),
        Family::Softmax => (0.30, 0.70),
        Family::ElementWise => (0.50, 0.80),
        Family::Reduce => (0.50, 0.75),
        Family::Gather => (0.50, 0.60),
        Family::Scatter => (0.50, 0.30),
        Family::Random => (0.25, 0.80),
        Family::Optimizer => (0.50, 0.80),
        Family::Movement => (0.50, 0.65),
    };
    Efficiency { compute, memory }
}

/// Time of a kernel in ns.
pub(super) fn kernel_ns(
    profile: &DeviceProfile,
    op: &OpKind,
    operands: &[&TensorType],
    results: &[&TensorType],
) -> f64 {
    let cost = op.cost(operands, results);
    let bytes = cost.bytes_read as f64 + cost.bytes_written as f64;
    let latency = profile.kernel_latency_ns as f64;
    match profile.kernels {
        Kernels::Plain => {
            let arithmetic = cost.flops as f64 / profile.peaks.f32;
            let traffic = bytes / profile.memory_bytes_per_s;
            latency + (arithmetic.max(traffic) * 1e9).ceil()
        }
        Kernels::Gpu => {
            let family = op.family(operands, results);
            let shares = efficiency(family);
            let bytes_per_s = profile.memory_bytes_per_s * shares.memory;
            let traffic = RAMP_NS + bytes / bytes_per_s * 1e9;
            let arithmetic = match Product::of(op, family, &cost, operands, results) {
                Some(product) => {
                    product.seconds(profile, peak(profile, operands) * shares.compute, bytes_per_s)
                }
                None => cost.flops as f64 / (profile.peaks.f32 * shares.compute),
            };
            latency + traffic.max(arithmetic * 1e9)
        }
    }
}

/// Arithmetic throughput of products of these operands.
fn peak(profile: &DeviceProfile, operands: &[&TensorType]) -> f64 {
    let peaks = &profile.peaks;
    let units = match operands.first().map(|t| t.dtype) {
        Some(DType::F16) => peaks.f16,
        Some(DType::BF16) => peaks.bf16,
        _ => None,
    };
    units.map_or(peaks.f32, |units| (units * profile.tensor_share).max(peaks.f32))
}

/// An op as a stack of matrix products.
struct Product {
    /// Products in the stack.
    batch: f64,
    /// Rows of each result.
    rows: u64,
    /// Columns of each result.
    columns: u64,
    /// Multiplications for each element of the result.
    inner: f64,
    /// Factor by which it is faster than multiplying it out.
    gain: f64,
}

impl Product {
    /// The products that an op is made of; `None` for one that is something else.
    fn of(
        op: &OpKind,
        family: Family,
        cost: &Cost,
        operands: &[&TensorType],
        results: &[&TensorType],
    ) -> Option<Product> {
        let y = &results.first()?.shape;
        let op = match op {
            OpKind::Fused { body, .. } => &body.head()?.op,
            op => op,
        };
        let (rows, columns, batch, gain) = match (family, op) {
            (Family::MatMul, _) => {
                let (&columns, lead) = y.split_last()?;
                let (&rows, stack) = lead.split_last()?;
                let stack: u64 = stack.iter().product();
                // A matrix that all products share makes them one product of all rows.
                if operands.get(1)?.rank() <= 2 {
                    (rows.saturating_mul(stack), columns, 1, 1.0)
                } else {
                    (rows, columns, stack, 1.0)
                }
            }
            (Family::Conv, OpKind::Conv { strides, dilations, groups, .. }) => {
                let w = &operands.get(1)?.shape;
                let gain = winograd(operands, w, strides, dilations, *groups);
                let groups = u64::try_from(*groups).ok()?.max(1);
                (positions(y)?, y.get(1)? / groups, groups, gain)
            }
            (Family::ConvGradInput, OpKind::ConvGradInput { strides, dilations, groups, .. }) => {
                let w = &operands.get(1)?.shape;
                let gain = winograd(operands, w, strides, dilations, *groups);
                let groups = u64::try_from(*groups).ok()?.max(1);
                (positions(y)?, y.get(1)? / groups, groups, gain)
            }
            (Family::ConvGradWeight, OpKind::ConvGradWeight { groups, .. }) => {
                let groups = u64::try_from(*groups).ok()?.max(1);
                (y.first()? / groups, y.get(1..)?.iter().product(), groups, 1.0)
            }
            _ => return None,
        };
        let elements = rows as f64 * columns as f64 * batch as f64;
        let inner = cost.flops as f64 / (2.0 * elements).max(1.0);
        Some(Product { batch: batch as f64, rows, columns, inner, gain })
    }

    /// Time in s at a throughput of `flops_per_s` for products that fill the device.
    fn seconds(&self, profile: &DeviceProfile, flops_per_s: f64, bytes_per_s: f64) -> f64 {
        let processors = f64::from(profile.processors.max(1));
        let each = flops_per_s * self.gain / processors;
        let mut best = f64::INFINITY;
        for (tm, tn, share) in TILES {
            let tiles = self.rows.div_ceil(tm) as f64 * self.columns.div_ceil(tn) as f64 * self.batch;
            for split in SPLITS {
                let parts = split as f64;
                let waves = (tiles * parts / processors).ceil();
                let steps = (self.inner / parts).ceil() + PROLOGUE;
                let sums = if split == 1 {
                    0.0
                } else {
                    2.0 * 4.0 * parts * self.rows as f64 * self.columns as f64 * self.batch / bytes_per_s
                };
                best = best.min(waves * 2.0 * (tm * tn) as f64 * steps / (each * share) + sums);
            }
        }
        best
    }
}

/// Elements of one channel of `[n, c, h, w]`, over all images.
fn positions(shape: &[u64]) -> Option<u64> {
    Some(shape.get(2..)?.iter().fold(*shape.first()?, |a, &b| a.saturating_mul(b)))
}

/// Speedup of Winograd's method for a convolution.
fn winograd(operands: &[&TensorType], w: &[u64], strides: &[u64], dilations: &[u64], groups: i64) -> f64 {
    let single = operands.first().is_some_and(|x| x.dtype == DType::F32);
    let dense = groups == 1 && [strides, dilations].iter().all(|s| s.iter().all(|&x| x == 1));
    if single && dense && w.get(2..) == Some(&[3, 3]) { WINOGRAD } else { 1.0 }
}
