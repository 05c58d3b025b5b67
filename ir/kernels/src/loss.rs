//! Softmax cross-entropy and its gradient.

use memc_ir::DType;
use memc_ir::attr::Reduction;

use crate::error::KernelError;
use crate::index::{Index, by_index, first_illegal};
use crate::num::special;
use crate::num::wide::map_in_place;
use crate::parallel::for_rows;
use crate::softmax::normalise;
use crate::view::{Ctx, Src};
use crate::walk::{ext, product};

type Done = Result<(), KernelError>;

/// Classes, and label positions of one image.
fn extents(logits: &[u64]) -> (usize, usize) {
    (ext(logits[1]), product(&logits[2..]))
}

/// Checks the labels, operand `operand`, and counts those that are not ignored.
fn count<I: Index>(c: &Ctx, operand: usize, classes: usize, ignore: i64) -> Result<usize, KernelError> {
    let labels = c.slice::<I>(operand)?;
    let legal = |_, v: i64| v == ignore || (0..classes as i64).contains(&v);
    if let Some(position) = first_illegal(labels, legal) {
        let (value, high) = (labels[position].value(), classes as i64);
        let (op, operand) = (c.op.mnemonic(), c.op.def().operands[operand]);
        return Err(KernelError::Index { op, operand, position, value, low: 0, high });
    }
    Ok(labels.iter().filter(|l| l.value() != ignore).count())
}

pub(crate) fn cross_entropy(c: &Ctx, results: &mut [&mut [u8]], reduction: Reduction, ignore: i64) -> Done {
    by_index!(c, 1, I => cross_entropy_as::<I>(c, results, reduction, ignore))
}

fn cross_entropy_as<I: Index>(c: &Ctx, results: &mut [&mut [u8]], reduction: Reduction, ignore: i64) -> Done {
    let (classes, inner) = extents(&c.types[0].shape);
    let counted = count::<I>(c, 1, classes, ignore)?;
    let labels = c.slice::<I>(1)?;
    let [loss, log_prob] = c.outs(results)?;
    let (loss, log_prob) = (c.out::<f32>(loss)?, c.out::<f32>(log_prob)?);
    normalise(c.src(0)?, log_prob, classes, inner, true);

    let of = |i: usize| {
        let label = labels[i].value();
        // An ignored label need not be a class.
        if label == ignore {
            return 0.0;
        }
        -log_prob[i / inner * classes * inner + label as usize * inner + i % inner]
    };
    let total = || (0..labels.len()).map(|i| f64::from(of(i))).sum::<f64>();
    match reduction {
        Reduction::None => loss.iter_mut().enumerate().for_each(|(i, l)| *l = of(i)),
        Reduction::Sum => loss.fill(total() as f32),
        // With every label ignored the loss is 0, as in ONNX Runtime.
        Reduction::Mean => loss.fill((total() / counted.max(1) as f64) as f32),
    }
    Ok(())
}

pub(crate) fn cross_entropy_grad(c: &Ctx, dlogits: &mut [u8], reduction: Reduction, ignore: i64) -> Done {
    by_index!(c, 2, I => cross_entropy_grad_as::<I>(c, dlogits, reduction, ignore))
}

fn cross_entropy_grad_as<I: Index>(c: &Ctx, dlogits: &mut [u8], reduction: Reduction, ignore: i64) -> Done {
    let (classes, inner) = extents(&c.types[1].shape);
    let counted = count::<I>(c, 2, classes, ignore)?;
    let (dloss, log_prob, labels) = (c.slice::<f32>(0)?, c.src::<f32>(1)?, c.slice::<I>(2)?);
    let share = if reduction == Reduction::Mean { 1.0 / counted.max(1) as f32 } else { 1.0 };
    let slope = |position: usize| match reduction {
        Reduction::None => dloss[position],
        Reduction::Sum | Reduction::Mean => dloss[0] * share,
    };
    let slab = classes * inner;
    for_rows(c.out::<f32>(dlogits)?, slab, slab.saturating_mul(4), |first, rows| {
        for (i, row) in rows.chunks_exact_mut(slab).enumerate() {
            if let Src::Slice(x) = log_prob {
                row.copy_from_slice(&x[(first + i) * slab..][..slab]);
            }
            map_in_place(row, special::exp);
            for (class, row) in row.chunks_exact_mut(inner).enumerate() {
                for (j, d) in row.iter_mut().enumerate() {
                    let position = (first + i) * inner + j;
                    let label = labels[position].value();
                    let hit = if label == class as i64 { 1.0 } else { 0.0 };
                    *d = if label == ignore { 0.0 } else { (*d - hit) * slope(position) };
                }
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::interp::{Tensor, eval};
    use memc_ir::OpKind;
    use memc_ir::attr::Reduction;

    /// An ignored label that is no class, as -100, counts nothing and is never used as an index.
    #[test]
    fn ignored_labels_need_not_be_classes() {
        let logits = Tensor::f32(&[2, 2], &[0.0, 0.0, 5.0, -5.0]).unwrap();
        let labels = Tensor::i64(&[2], &[1, -100]).unwrap();
        let op = OpKind::CrossEntropy { reduction: Reduction::Mean, ignore_index: -100 };
        let loss = eval(&op, &[&logits, &labels]).unwrap();
        let loss = loss[0].elements::<f32>().unwrap()[0];
        assert!((loss - std::f32::consts::LN_2).abs() < 1e-6, "{loss}");
    }
}
