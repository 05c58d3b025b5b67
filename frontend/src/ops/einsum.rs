//! `Einsum`, as transposes, matrix products and sums.
//!
//! Operands are contracted from left to right. An axis is summed as soon as no later operand and no output
//! axis has its label.

use memc_ir::attr::F32;
use memc_ir::{OpKind, ValueId};

use crate::context::{Done, Made, NodeCx};
use crate::error::Fault;

/// An axis: a letter, or an axis that an ellipsis stands for, counted from the last one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Label {
    Letter(char),
    Ellipsis(usize),
}

/// A tensor whose axes have distinct labels.
struct Term {
    value: ValueId,
    labels: Vec<Label>,
}

/// `Einsum`.
pub(crate) fn einsum(n: &mut NodeCx<'_, '_>) -> Done {
    let equation: String = n.text("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation.as_str(), None),
    };
    let operands = n.operands()?;
    let subscripts: Vec<&str> = left.split(',').collect();
    if subscripts.len() != operands.len() {
        return Err(format!("equation `{equation}` does not have {} operands", operands.len()).into());
    }
    let mut terms = Vec::new();
    for (&value, text) in operands.iter().zip(subscripts) {
        let labels = labels(text, Some(n.ty(value).rank()))?;
        terms.push(Term { value, labels });
    }
    let output = match right {
        Some(text) => output(text, &terms)?,
        None => implied(&terms),
    };
    widen(n, &mut terms)?;
    let mut rest = Vec::new();
    for term in terms {
        rest.push(diagonal(n, term)?);
    }
    if let Some(label) = output.iter().find(|l| !rest.iter().any(|t| t.labels.contains(l))) {
        return Err(format!("output label {label:?} of `{equation}` is in no operand").into());
    }
    rest.reverse();
    let mut done = rest.pop().ok_or("it has no operand")?;
    loop {
        let next = rest.pop();
        let kept = |label: &Label| output.contains(label) || rest.iter().any(|t| t.labels.contains(label));
        let Some(next) = next else {
            done = summed(n, done, &kept)?;
            break;
        };
        let left = summed(n, done, &|l| kept(l) || next.labels.contains(l))?;
        let right = summed(n, next, &|l| kept(l) || left.labels.contains(l))?;
        done = contracted(n, &left, &right, &kept)?;
    }
    let y = ordered(n, &done, &output)?;
    n.yields(0, y);
    Ok(())
}

/// The labels of a subscript; `rank` tells how many axes an ellipsis stands for.
fn labels(text: &str, rank: Option<usize>) -> Result<Vec<Label>, Fault> {
    let wrong = || Fault::Bad(format!("subscript `{text}` does not fit its operand"));
    let letters = text.replacen("...", "", 1);
    if let Some(other) = letters.chars().find(|c| !c.is_ascii_alphabetic()) {
        return Err(Fault::Bad(format!("subscript `{text}` has `{other}`, which is no letter")));
    }
    let letter = |part: &str| part.chars().map(Label::Letter).collect::<Vec<_>>();
    let rank = rank.unwrap_or(letters.len());
    let hidden = rank.checked_sub(letters.len()).ok_or_else(wrong)?;
    match text.split_once("...") {
        Some((before, after)) => {
            let ellipsis = (0..hidden).rev().map(Label::Ellipsis);
            Ok(letter(before).into_iter().chain(ellipsis).chain(letter(after)).collect())
        }
        None if hidden > 0 => Err(wrong()),
        None => Ok(letter(text)),
    }
}

/// The output's labels. Its ellipsis stands for all axes that those of the operands do.
fn output(text: &str, terms: &[Term]) -> Result<Vec<Label>, Fault> {
    let widest = terms.iter().flat_map(|t| &t.labels).filter_map(|l| match l {
        Label::Ellipsis(i) => Some(i + 1),
        Label::Letter(_) => None,
    });
    let hidden = if text.contains("...") { widest.max().unwrap_or(0) } else { 0 };
    let letters = text.replacen("...", "", 1).len();
    let list = labels(text, Some(letters.saturating_add(hidden)))?;
    match list.iter().enumerate().find(|(i, l)| list.iter().take(*i).any(|other| other == *l)) {
        Some(_) => Err(Fault::Bad(format!("output `{text}` has a label twice"))),
        None => Ok(list),
    }
}

/// The labels of an output that the equation leaves out: the ellipsis, and letters that occur once, sorted.
fn implied(terms: &[Term]) -> Vec<Label> {
    let all: Vec<Label> = terms.iter().flat_map(|t| t.labels.clone()).collect();
    let mut ellipsis: Vec<Label> = all.iter().copied().filter(|l| matches!(l, Label::Ellipsis(_))).collect();
    ellipsis.sort_unstable_by(|a, b| b.cmp(a));
    ellipsis.dedup();
    let once = |l: &Label| all.iter().filter(|other| *other == l).count() == 1;
    let mut letters: Vec<Label> =
        all.iter().copied().filter(|l| matches!(l, Label::Letter(_)) && once(l)).collect();
    letters.sort_unstable();
    ellipsis.into_iter().chain(letters).collect()
}

/// Drops axes of extent one whose label has a larger extent elsewhere: they broadcast.
fn widen(n: &mut NodeCx<'_, '_>, terms: &mut [Term]) -> Done {
    let extent = |n: &NodeCx<'_, '_>, t: &Term, i: usize| n.ty(t.value).shape.get(i).copied().unwrap_or(1);
    let mut widest: std::collections::BTreeMap<Label, u64> = std::collections::BTreeMap::new();
    for term in terms.iter() {
        for (i, &label) in term.labels.iter().enumerate() {
            let (have, most) = (extent(n, term, i), widest.entry(label).or_insert(1));
            if have != 1 && *most != 1 && have != *most {
                return Err(format!("{label:?} has extents {most} and {have}").into());
            }
            *most = if *most == 1 { have } else { *most };
        }
    }
    for term in terms {
        let narrow =
            |i: usize, l: &Label| extent(n, term, i) == 1 && widest.get(l).is_some_and(|&most| most != 1);
        let keep: Vec<usize> =
            term.labels.iter().enumerate().filter(|(i, l)| !narrow(*i, l)).map(|(i, _)| i).collect();
        let shape: Vec<u64> = keep.iter().map(|&i| extent(n, term, i)).collect();
        term.labels = keep.iter().filter_map(|&i| term.labels.get(i).copied()).collect();
        term.value = n.reshaped(term.value, &shape)?;
    }
    Ok(())
}

/// The diagonal where a label is given twice: every `extent + 1`-th element of both axes together.
fn diagonal(n: &mut NodeCx<'_, '_>, mut term: Term) -> Result<Term, Fault> {
    loop {
        let pairs = (0..term.labels.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
        let same = |&(i, j): &(usize, usize)| term.labels.get(i) == term.labels.get(j);
        let Some((i, j)) = pairs.into_iter().find(same) else { return Ok(term) };
        let rank = term.labels.len();
        let order: Vec<usize> = (0..rank).filter(|&a| a != i && a != j).chain([i, j]).collect();
        let perm: Vec<u64> = order.iter().map(|&a| a as u64).collect();
        let label = term.labels.get(i).copied();
        let turned = n.turned(term.value, &perm)?;
        let mut shape = n.ty(turned).shape.clone();
        let extent = shape.pop().unwrap_or(0);
        shape.pop();
        let axis = shape.len();
        shape.push(extent.saturating_mul(extent));
        let flat = n.reshaped(turned, &shape)?;
        let step = i64::try_from(extent).map_err(|_| "an extent is too large")?.saturating_add(1);
        let value = n.cut(flat, axis, 0, extent.saturating_mul(extent), step)?;
        let labels = order.iter().take(rank - 2).filter_map(|&a| term.labels.get(a).copied());
        term = Term { value, labels: labels.chain(label).collect() };
    }
}

/// The sum over axes whose label is not kept.
fn summed(n: &mut NodeCx<'_, '_>, term: Term, kept: &dyn Fn(&Label) -> bool) -> Result<Term, Fault> {
    let gone = term.labels.iter().enumerate().filter(|(_, l)| !kept(l));
    let axes: Vec<u64> = gone.map(|(i, _)| i as u64).collect();
    if axes.is_empty() {
        return Ok(term);
    }
    let value = n.sum(term.value, &axes, false)?;
    Ok(Term { value, labels: term.labels.into_iter().filter(kept).collect() })
}

/// The axes of `term` in the order `labels`.
fn ordered(n: &mut NodeCx<'_, '_>, term: &Term, labels: &[Label]) -> Made {
    let place = |l: &Label| term.labels.iter().position(|other| other == l).map(|i| i as u64);
    let perm: Option<Vec<u64>> = labels.iter().map(place).collect();
    let perm = perm.ok_or("an output label is missing")?;
    if perm.iter().enumerate().all(|(i, &p)| p == i as u64) {
        return Ok(term.value);
    }
    n.turned(term.value, &perm)
}

/// A tensor as matrices of extents `rows` by `columns` under `batch`, and whether they are transposed.
fn matrices(
    n: &mut NodeCx<'_, '_>,
    term: &Term,
    [batch, rows, columns]: [&[Label]; 3],
) -> Result<(ValueId, bool), Fault> {
    let swapped = [batch, columns, rows].concat();
    let transposed = term.labels == swapped && !rows.is_empty() && !columns.is_empty();
    let order = if transposed { swapped } else { [batch, rows, columns].concat() };
    let value = ordered(n, term, &order)?;
    let shape = n.ty(value).shape.clone();
    let product = |part: &[u64]| part.iter().fold(1u64, |p, &d| p.saturating_mul(d));
    let (outer, inner) = shape.split_at(batch.len());
    let (first, second) = inner.split_at(if transposed { columns.len() } else { rows.len() });
    let mut flat = if batch.is_empty() { Vec::new() } else { vec![product(outer)] };
    flat.extend([product(first), product(second)]);
    Ok((n.reshaped(value, &flat)?, transposed))
}

/// The product of two terms, summed over labels that both have and that are not kept.
fn contracted(
    n: &mut NodeCx<'_, '_>,
    a: &Term,
    b: &Term,
    kept: &dyn Fn(&Label) -> bool,
) -> Result<Term, Fault> {
    let both = |l: &&Label| b.labels.contains(l);
    let batch: Vec<Label> = a.labels.iter().filter(both).filter(|l| kept(l)).copied().collect();
    let inner: Vec<Label> = a.labels.iter().filter(both).filter(|l| !kept(l)).copied().collect();
    let rows: Vec<Label> = a.labels.iter().filter(|l| !b.labels.contains(l)).copied().collect();
    let columns: Vec<Label> = b.labels.iter().filter(|l| !a.labels.contains(l)).copied().collect();
    let extents = |n: &NodeCx<'_, '_>, t: &Term, list: &[Label]| -> Vec<u64> {
        let at = |l: &Label| t.labels.iter().position(|other| other == l);
        list.iter().filter_map(|l| n.ty(t.value).shape.get(at(l)?).copied()).collect()
    };
    let shape = [extents(n, a, &batch), extents(n, a, &rows), extents(n, b, &columns)].concat();
    let ((x, trans_a), (y, trans_b)) =
        (matrices(n, a, [&batch, &rows, &inner])?, matrices(n, b, [&batch, &inner, &columns])?);
    // Without a sum a product of elements does, by broadcasting.
    let value = if inner.is_empty() {
        n.mul(x, y)?
    } else {
        n.temp(OpKind::MatMul { trans_a, trans_b, alpha: F32(1.0) }, &[x, y])?
    };
    let value = n.reshaped(value, &shape)?;
    Ok(Term { value, labels: [batch, rows, columns].concat() })
}
