//! Measured times of ops on a device, and a correction of the roofline learned from them.
//!
//! The correction is the logarithm of measured time over the roofline's. It is fitted by ridge regression on
//! logarithms of an op's work ([`features`]): first one regression for all ops, then for each family another
//! on the residuals of the first one. So a family with few ops stays close to the common correction. Features
//! outside of the measured range are clamped to it.
//!
//! Quality is cross-validated: every op is predicted from the ops of the other [`FOLDS`] minus one shares. R2
//! is one less the squared errors over the squared differences from the mean.

use std::collections::BTreeMap;

use memc_ir::ops::Family;
use memc_ir::{OpKind, TensorType};

use super::ridge::{Ridge, r_squared};
use super::{DeviceProfile, roofline};

/// Shares of ops for cross-validation.
pub const FOLDS: usize = 5;

/// Most that a prediction departs from the roofline, as a logarithm: 1000 times.
const MOST: f64 = 6.9;

/// An op on types and its measured time.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// The op.
    pub op: OpKind,
    /// Types of its operands.
    pub operands: Vec<TensorType>,
    /// Types of its results.
    pub results: Vec<TensorType>,
    /// Bytes of workspace that it had; 0 where the file does not say.
    pub workspace_bytes: u64,
    /// Time in ns, at least 1.
    pub time_ns: u64,
}

impl Sample {
    /// The op and its operands' types in IR text, and its workspace.
    pub(super) fn key(&self) -> Key {
        (signature(&self.op, &self.operands.iter().collect::<Vec<_>>()), self.workspace_bytes)
    }

    fn row(&self, profile: &DeviceProfile) -> Row {
        let (operands, results) =
            (self.operands.iter().collect::<Vec<_>>(), self.results.iter().collect::<Vec<_>>());
        let plain = log(roofline::kernel_ns(profile, &self.op, &operands, &results));
        Row {
            family: self.op.family(&operands, &results),
            features: features(&self.op, &operands, &results, plain),
            plain,
            measured: log(self.time_ns as f64),
        }
    }
}

/// An op on types in IR text, and bytes of workspace.
pub(super) type Key = (String, u64);

/// An op on types in IR text, such as `relu(f32[4])`.
fn signature(op: &OpKind, operands: &[&TensorType]) -> String {
    let types: Vec<String> = operands.iter().map(ToString::to_string).collect();
    format!("{}{}({})", op.mnemonic(), op.attrs_text(), types.join(", "))
}

/// The natural logarithm, the same on every machine.
fn log(x: f64) -> f64 {
    libm::log(x.max(1e-9))
}

/// Number of features of an op.
const FEATURES: usize = 9;

/// Logarithms of: arithmetic, traffic, elements of the result, operations for each of them, elements read for
/// each of them, the last extent and the one before it, the roofline; and the roofline's squared.
fn features(op: &OpKind, operands: &[&TensorType], results: &[&TensorType], plain: f64) -> [f64; FEATURES] {
    let cost = op.cost(operands, results);
    let count = |n: u64| log(n as f64 + 1.0);
    let out: u64 = results.iter().map(|t| t.numel()).sum();
    let read: u64 = operands.iter().map(|t| t.numel()).sum();
    let widest = results.iter().chain(operands).max_by_key(|t| t.numel()).map_or(&[][..], |t| &t.shape);
    let extent = |from_end: usize| count(widest.iter().rev().nth(from_end).copied().unwrap_or(1));
    [
        count(cost.flops),
        count(cost.bytes_read.saturating_add(cost.bytes_written)),
        count(out),
        count(cost.flops) - count(out),
        count(read) - count(out),
        extent(0),
        extent(1),
        plain,
        plain * plain,
    ]
}

/// Observation of the regression.
struct Row {
    family: Family,
    features: [f64; FEATURES],
    /// Logarithm of the roofline's ns.
    plain: f64,
    /// Logarithm of the measured ns.
    measured: f64,
}

/// The learned correction.
#[derive(Clone, PartialEq, Debug, Default)]
struct Correction {
    all: Option<Ridge>,
    families: BTreeMap<Family, Ridge>,
}

impl Correction {
    fn fit(rows: &[&Row]) -> Correction {
        let pairs: Vec<(&[f64], f64)> =
            rows.iter().map(|r| (&r.features[..], r.measured - r.plain)).collect();
        let all = Ridge::fit(&pairs);
        let rest = |r: &Row| r.measured - r.plain - all.as_ref().map_or(0.0, |f| f.at(&r.features));
        let mut families = BTreeMap::new();
        for family in Family::ALL {
            let of = rows.iter().filter(|r| r.family == family);
            let pairs: Vec<(&[f64], f64)> = of.map(|r| (&r.features[..], rest(r))).collect();
            if let Some(ridge) = Ridge::fit(&pairs) {
                families.insert(family, ridge);
            }
        }
        Correction { all, families }
    }

    /// Logarithm of the factor of the roofline's time.
    fn at(&self, family: Family, features: &[f64]) -> f64 {
        let of = |f: Option<&Ridge>| f.map_or(0.0, |f| f.at(features));
        (of(self.all.as_ref()) + of(self.families.get(&family))).clamp(-MOST, MOST)
    }
}

/// Measured ops of a device.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    samples: BTreeMap<Key, Sample>,
    correction: Correction,
}

impl Measured {
    /// Learns from samples.
    pub(super) fn learn(profile: &DeviceProfile, samples: BTreeMap<Key, Sample>) -> Measured {
        let mut measured = Measured { samples, correction: Correction::default() };
        let rows = measured.rows(profile);
        measured.correction = Correction::fit(&rows.iter().collect::<Vec<_>>());
        measured
    }

    /// A row for each op, of the sample with the least workspace.
    fn rows(&self, profile: &DeviceProfile) -> Vec<Row> {
        let mut last = None;
        let first = self.samples.iter().filter(|((name, _), _)| last.replace(name) != Some(name));
        first.map(|(_, sample)| sample.row(profile)).collect()
    }

    /// The samples, in order of their ops, and of their workspaces.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.samples.values()
    }

    /// Time of an op in ns: as measured, or the roofline's corrected. Of an op that was measured with several
    /// workspaces, with the largest of them that is no more than `workspace()`, or else with the least.
    pub(super) fn op_ns(
        &self,
        op: &OpKind,
        operands: &[&TensorType],
        results: &[&TensorType],
        roofline_ns: f64,
        workspace: impl FnOnce() -> u64,
    ) -> f64 {
        let name = signature(op, operands);
        let mut measured = self.samples.range((name.clone(), 0)..=(name.clone(), u64::MAX));
        if let Some((_, least)) = measured.next() {
            let within = |most| self.samples.range((name.clone(), 0)..=(name, most)).next_back();
            let nearest = measured.next().and_then(|_| within(workspace()));
            return nearest.map_or(least, |(_, sample)| sample).time_ns as f64;
        }
        let plain = log(roofline_ns);
        let by = self.correction.at(op.family(operands, results), &features(op, operands, results, plain));
        (roofline_ns * libm::exp(by)).max(1.0)
    }
}

/// Quality of a prediction for some ops.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Quality {
    /// Ops predicted.
    pub ops: usize,
    /// R2 of the logarithm of time; `None` where all measured times are equal.
    pub log_time: Option<f64>,
    /// R2 of time.
    pub time: Option<f64>,
    /// R2 of the logarithm of time for the roofline without correction.
    pub plain_log_time: Option<f64>,
    /// Mean of the logarithm's absolute error, as a factor: 1.1 is ten per cent.
    pub typical_factor: f64,
}

/// Quality of predictions for ops that were not learned from.
#[derive(Clone, PartialEq, Debug)]
pub struct Judgement {
    /// For every op.
    pub all: Option<Quality>,
    /// For convolutions of all kinds.
    pub convolutions: Option<Quality>,
    /// For each family that has ops.
    pub families: Vec<(Family, Quality)>,
}

impl DeviceProfile {
    /// Quality of the learned correction for ops that it was not learned from, if there are measured ops. Op
    /// `i`, in order of signatures, is predicted by those that leave another remainder by [`FOLDS`].
    pub fn judge(&self) -> Option<Judgement> {
        let measured = self.measured.as_deref()?;
        let rows = measured.rows(self);
        let mut predicted = vec![0.0; rows.len()];
        for fold in 0..FOLDS {
            let (mut seen, mut unseen) = (Vec::new(), Vec::new());
            for (i, row) in rows.iter().enumerate() {
                if i % FOLDS == fold { unseen.push((i, row)) } else { seen.push(row) }
            }
            let correction = Correction::fit(&seen);
            for (i, row) in unseen {
                predicted[i] = row.plain + correction.at(row.family, &row.features);
            }
        }
        let quality = |of: &dyn Fn(Family) -> bool| {
            let chosen: Vec<(&Row, f64)> =
                rows.iter().zip(predicted.iter().copied()).filter(|(r, _)| of(r.family)).collect();
            if chosen.is_empty() {
                return None;
            }
            let logs: Vec<(f64, f64)> = chosen.iter().map(|(r, p)| (r.measured, *p)).collect();
            let times: Vec<(f64, f64)> = logs.iter().map(|&(a, b)| (libm::exp(a), libm::exp(b))).collect();
            let plain: Vec<(f64, f64)> = chosen.iter().map(|(r, _)| (r.measured, r.plain)).collect();
            let error = logs.iter().map(|(a, b)| (a - b).abs()).sum::<f64>() / logs.len() as f64;
            Some(Quality {
                ops: chosen.len(),
                log_time: r_squared(&logs),
                time: r_squared(&times),
                plain_log_time: r_squared(&plain),
                typical_factor: libm::exp(error),
            })
        };
        let families = Family::ALL.iter().filter_map(|&f| Some((f, quality(&|g| g == f)?))).collect();
        Some(Judgement { all: quality(&|_| true), convolutions: quality(&Family::is_convolution), families })
    }
}
