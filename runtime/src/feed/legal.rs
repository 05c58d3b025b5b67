//! Values that kernels accept in integer inputs.
//!
//! A step that meets an illegal index stops in the middle, with its states half updated. Data is therefore
//! compared with what the kernels want before a step begins.

use std::collections::BTreeMap;
use std::ops::Range;

use memc_ir::{DType, OpKind, TensorType};
use memc_plan::{Plan, Section};

use crate::program::Action;
use crate::{Error, Program};

/// Legal values of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Legal {
    range: Range<i64>,
    /// A value that is legal too.
    ignore: Option<i64>,
}

/// Legal values of the inputs that kernels read directly, by the index of the input.
pub(crate) fn of(plan: &Plan, program: &Program) -> BTreeMap<usize, Vec<Legal>> {
    let names: BTreeMap<&str, usize> =
        plan.inputs.iter().enumerate().map(|(i, input)| (input.name.as_str(), i)).collect();
    let mut out: BTreeMap<usize, Vec<Legal>> = BTreeMap::new();
    for command in program.section(Section::Body) {
        let Action::Launch(launch) = &command.action else { continue };
        let Some(kernel) = program.kernels.get(launch.kernel) else { continue };
        let Some((operand, legal)) = wanted(&kernel.op, &kernel.operands) else { continue };
        let Some(Some(name)) = launch.fed_by.get(operand) else { continue };
        let Some(&input) = names.get(name.as_str()) else { continue };
        let list = out.entry(input).or_default();
        if !list.contains(&legal) {
            list.push(legal);
        }
    }
    out
}

/// The operand of an op that must hold legal indices, and which those are.
fn wanted(op: &OpKind, operands: &[TensorType]) -> Option<(usize, Legal)> {
    let extent = |operand: usize, axis: i64| {
        let extent = *operands.get(operand)?.shape.get(usize::try_from(axis).ok()?)?;
        i64::try_from(extent).ok()
    };
    let index = |operand: usize, extent: i64| (operand, Legal { range: -extent..extent, ignore: None });
    let label = |operand: usize, scores: usize, ignore: i64| {
        Some((operand, Legal { range: 0..extent(scores, 1)?, ignore: Some(ignore) }))
    };
    match op {
        OpKind::Gather { axis } | OpKind::GatherElements { axis } | OpKind::ScatterElements { axis, .. } => {
            Some(index(1, extent(0, *axis)?))
        }
        OpKind::GatherGrad { dim, .. } => Some(index(0, *dim)),
        OpKind::CrossEntropy { ignore_index, .. } => label(1, 0, *ignore_index),
        OpKind::CrossEntropyGrad { ignore_index, .. } => label(2, 1, *ignore_index),
        _ => None,
    }
}

/// Refuses the first value of a micro-step's data that no kernel would accept.
pub(crate) fn check(
    legal: &[Legal],
    input: &str,
    ty: &TensorType,
    bytes: &[u8],
    step: u64,
) -> Result<(), Error> {
    let wrong = first_wrong(legal, ty, bytes).map(|what| format!("input `{input}`: step {step}: {what}"));
    wrong.map_or(Ok(()), |text| Err(Error::Data(text)))
}

/// The first value that no kernel would accept, in words.
pub(crate) fn first_wrong(legal: &[Legal], ty: &TensorType, bytes: &[u8]) -> Option<String> {
    let value = |n: &[u8]| match (ty.dtype, n) {
        (DType::I32, &[a, b, c, d]) => Some(i64::from(i32::from_le_bytes([a, b, c, d]))),
        (DType::I64, &[a, b, c, d, e, f, g, h]) => Some(i64::from_le_bytes([a, b, c, d, e, f, g, h])),
        _ => None,
    };
    for Legal { range, ignore } in legal {
        let numbers = bytes.chunks_exact(ty.dtype.bytes() as usize).map(value);
        let wrong = |v: &Option<i64>| v.is_some_and(|v| !range.contains(&v) && Some(v) != *ignore);
        let Some((at, Some(found))) = numbers.enumerate().find(|(_, v)| wrong(v)) else { continue };
        return Some(format!(
            "{found} at {} of {ty} is not within {} to {}",
            position(at as u64, &ty.shape),
            range.start,
            range.end.saturating_sub(1),
        ));
    }
    None
}

/// `[1, 2]` for flat position `at`.
fn position(at: u64, shape: &[u64]) -> String {
    let mut rest = at;
    let mut index: Vec<u64> = Vec::new();
    for &extent in shape.iter().rev() {
        index.push(rest.checked_rem(extent).unwrap_or(0));
        rest = rest.checked_div(extent).unwrap_or(0);
    }
    index.reverse();
    format!("{index:?}")
}
