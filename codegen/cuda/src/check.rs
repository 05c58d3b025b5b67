//! Launches that look for index values out of range, ahead of the ops that use them.
//!
//! A check reports the first illegal value in flat order, so that the report does not depend on timing.

use memc_ir::OpKind;

use crate::Call;
use crate::kernel::{Entry, IndexCheck, Launch, Lowering, int, name};

/// The report of a check that found nothing.
pub const NO_REPORT: u64 = u64::MAX;

/// The flat position and the value that a report names; `None` of [`NO_REPORT`]. Values beyond 32 bits come
/// as the nearest that has 32, positions likewise.
pub fn report(word: u64) -> Option<(u64, i64)> {
    (word != NO_REPORT).then(|| (word >> 32, i64::from(word as u32 as i32)))
}

/// Puts the checks of an op in front of its launches.
pub(crate) fn add(call: &Call, lowering: &mut Lowering) {
    let mut launches = Vec::new();
    for strided in checks(call) {
        if let Some(launch) = launch(call, &strided, lowering.checks.len()) {
            launches.push(launch);
            lowering.checks.push(strided.check);
        }
    }
    launches.append(&mut lowering.launches);
    lowering.launches = launches;
}

/// A check of every `every`-th value from `first` on.
struct Strided {
    check: IndexCheck,
    first: u64,
    every: u64,
    ignore: Option<i64>,
}

fn checks(call: &Call) -> Vec<Strided> {
    use OpKind::*;
    let shape = |i: usize| call.operands.get(i).map(|t| t.shape.as_slice()).unwrap_or_default();
    let along = |shape: &[u64], axis: i64| usize::try_from(axis).ok().and_then(|a| shape.get(a).copied());
    let signed = |extent: u64| i64::try_from(extent).unwrap_or(i64::MAX);
    let plain =
        |operand, legal| Strided { check: IndexCheck { operand, legal }, first: 0, every: 1, ignore: None };
    // Negative indices count from the end.
    let index = |operand, extent: u64| plain(operand, -signed(extent)..signed(extent));
    let labels = |operand, logits: &[u64], ignore| Strided {
        ignore: Some(ignore),
        ..plain(operand, 0..signed(along(logits, 1).unwrap_or(0)))
    };
    match call.op {
        Gather { axis } | GatherElements { axis } | ScatterElements { axis, .. } => {
            along(shape(0), *axis).map(|extent| index(1, extent)).into_iter().collect()
        }
        GatherGrad { dim, .. } => vec![index(0, u64::try_from(*dim).unwrap_or(0))],
        GatherNd { batch_dims } | ScatterNd { batch_dims, .. } => {
            let depth = shape(1).last().copied().unwrap_or(0);
            let batch = usize::try_from(*batch_dims).unwrap_or(0);
            let addressed = shape(0).iter().skip(batch).zip(0..depth);
            addressed.map(|(&extent, first)| Strided { first, every: depth, ..index(1, extent) }).collect()
        }
        CrossEntropy { ignore_index, .. } => vec![labels(1, shape(0), *ignore_index)],
        CrossEntropyGrad { ignore_index, .. } => vec![labels(2, shape(1), *ignore_index)],
        MaxPoolGrad { shape } => vec![plain(1, 0..signed(shape.iter().product()))],
        _ => Vec::new(),
    }
}

fn launch(call: &Call, strided: &Strided, slot: usize) -> Option<Launch> {
    let values = call.operands.get(strided.check.operand)?;
    let legal = &strided.check.legal;
    let entry = Entry::new()
        .operand(strided.check.operand, name(values.dtype), "values")
        .report(slot, "found")
        .int("first", strided.first)
        .int("every", strided.every)
        .int("low", legal.start)
        .int("high", legal.end);
    let ignored = strided.ignore.map(|value| format!(" && value != {}", int(value))).unwrap_or_default();
    let body = format!(
        "const i64 at = first + (i64)i * every, value = (i64)values[at];\n\
         if ((value < low || value >= high){ignored}) report_index(found, at, value);"
    );
    entry.each("check_index", values.numel().checked_div(strided.every)?, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report as kernels pack it is read back.
    #[test]
    fn reports_are_read_back() {
        assert_eq!(report(NO_REPORT), None);
        assert_eq!(report(7 << 32 | 0xffff_fffe), Some((7, -2)));
        assert_eq!(report(30_522), Some((0, 30_522)));
    }
}
