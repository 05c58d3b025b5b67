//! Softmax cross-entropy.

use memc_ir::attr::Reduction;

use crate::error::EvalError;
use crate::norm::log_softmax;
use crate::tensor::Results;
use crate::tensor::{Data, Tensor64, flat, points};

/// For every label, the position of its logarithm in `log_prob`, or `None` when it is ignored.
fn labelled(scores: &[u64], labels: &Tensor64, ignore: i64) -> Result<Vec<Option<usize>>, EvalError> {
    let mut out = Vec::new();
    for (p, &label) in points(labels.shape()).iter().zip(labels.i()?) {
        if label == ignore {
            out.push(None);
        } else if (0..scores[1] as i64).contains(&label) {
            out.push(Some(flat(scores, &[&p[..1], &[label as usize], &p[1..]].concat())));
        } else {
            return Err(format!("label {label} is no class of {}", scores[1]).into());
        }
    }
    Ok(out)
}

/// Weight of each label in the loss; with every label ignored the mean is zero.
fn weight(places: &[Option<usize>], reduction: Reduction) -> f64 {
    match reduction {
        Reduction::None | Reduction::Sum => 1.0,
        Reduction::Mean => 1.0 / places.iter().flatten().count().max(1) as f64,
    }
}

pub(crate) fn cross_entropy(x: &[&Tensor64], reduction: Reduction, ignore: i64) -> Results {
    let log_prob = log_softmax(x[0], 1)?.remove(0);
    let Data::Float(logs) = &log_prob else { return Err("scores are not floating point".into()) };
    let places = labelled(x[0].shape(), x[1], ignore)?;
    let losses: Vec<f64> = places.iter().map(|p| p.map_or(0.0, |i| -logs[i])).collect();
    let loss = match reduction {
        Reduction::None => losses,
        _ => vec![losses.iter().sum::<f64>() * weight(&places, reduction)],
    };
    Ok(vec![Data::Float(loss), log_prob])
}

pub(crate) fn cross_entropy_grad(x: &[&Tensor64], reduction: Reduction, ignore: i64) -> Results {
    let (dloss, logs, labels) = (x[0].f()?, x[1].f()?, x[2]);
    let places = labelled(x[1].shape(), labels, ignore)?;
    let share = weight(&places, reduction);
    let mut out = Vec::new();
    for (i, p) in points(x[1].shape()).iter().enumerate() {
        let label = flat(labels.shape(), &[&p[..1], &p[2..]].concat());
        let slope = if reduction == Reduction::None { dloss[label] } else { dloss[0] * share };
        let hit = if places[label] == Some(i) { 1.0 } else { 0.0 };
        out.push(if places[label].is_none() { 0.0 } else { slope * (logs[i].exp() - hit) });
    }
    Ok(vec![Data::Float(out)])
}
