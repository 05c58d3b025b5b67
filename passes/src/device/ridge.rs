//! Linear regression with a penalty on weights (ridge regression), by its normal equations.
//!
//! Features are scaled to mean 0 and variance 1, so that one penalty suits all; it is that of one
//! observation. The equations are symmetric and positive definite with it, and so small that Cholesky's
//! factorisation is all they need.

/// The penalty.
const LAMBDA: f64 = 1.0;

/// A fitted regression.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Ridge {
    /// For each feature: mean, scale, least and largest value seen, weight.
    terms: Vec<[f64; 5]>,
    /// Prediction at the mean of all features.
    base: f64,
}

impl Ridge {
    /// Fits pairs of features and target; `None` without pairs. All have as many features as the first.
    ///
    /// The base is the targets' sum over their number plus the penalty: few targets hardly move it from 0.
    pub(super) fn fit(pairs: &[(&[f64], f64)]) -> Option<Ridge> {
        let n = pairs.first()?.0.len();
        let count = pairs.len() as f64;
        let column = |j: usize| pairs.iter().map(move |(x, _)| x.get(j).copied().unwrap_or(0.0));
        let mut terms: Vec<[f64; 5]> = (0..n)
            .map(|j| {
                let mean = column(j).sum::<f64>() / count;
                let variance = column(j).map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
                let scale = if variance > 1e-18 { 1.0 / variance.sqrt() } else { 0.0 };
                [
                    mean,
                    scale,
                    column(j).fold(f64::INFINITY, f64::min),
                    column(j).fold(f64::NEG_INFINITY, f64::max),
                    0.0,
                ]
            })
            .collect();
        let base = pairs.iter().map(|(_, y)| y).sum::<f64>() / (count + LAMBDA);
        let mut matrix = vec![vec![0.0; n]; n];
        let mut right = vec![0.0; n];
        for (x, y) in pairs {
            let z: Vec<f64> = terms.iter().zip(*x).map(|(t, x)| (x - t[0]) * t[1]).collect();
            for (i, a) in z.iter().enumerate() {
                right[i] += a * (y - base);
                for (j, b) in z.iter().enumerate() {
                    matrix[i][j] += a * b;
                }
            }
        }
        for (i, row) in matrix.iter_mut().enumerate() {
            row[i] += LAMBDA;
        }
        for (term, weight) in terms.iter_mut().zip(solve(matrix, right)) {
            term[4] = weight;
        }
        Some(Ridge { terms, base })
    }

    /// The prediction for these features, each brought into the range that was seen.
    pub(super) fn at(&self, features: &[f64]) -> f64 {
        let terms = self.terms.iter().zip(features);
        self.base
            + terms
                .map(|([mean, scale, low, high, w], x)| (x.max(*low).min(*high) - mean) * scale * w)
                .sum::<f64>()
    }
}

/// The solution of `a x = b` for a symmetric positive definite `a`, by Cholesky's factorisation in place.
fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Vec<f64> {
    let n = b.len();
    for j in 0..n {
        for k in 0..j {
            let ljk = a[j][k];
            for row in a.iter_mut().skip(j) {
                row[j] -= row[k] * ljk;
            }
        }
        let pivot = a[j][j].max(f64::MIN_POSITIVE).sqrt();
        for row in a.iter_mut().skip(j) {
            row[j] /= pivot;
        }
    }
    for i in 0..n {
        let known: f64 = a[i].iter().zip(&b).take(i).map(|(l, y)| l * y).sum();
        b[i] = (b[i] - known) / a[i][i];
    }
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|k| a[k][i] * b[k]).sum();
        b[i] = (b[i] - known) / a[i][i];
    }
    b
}

/// R2 of pairs (measured, predicted): 1 less the squared errors over the squared differences from the mean.
/// `None` where the measured ones do not differ.
pub(super) fn r_squared(pairs: &[(f64, f64)]) -> Option<f64> {
    let mean = pairs.iter().map(|p| p.0).sum::<f64>() / pairs.len().max(1) as f64;
    let total: f64 = pairs.iter().map(|p| (p.0 - mean) * (p.0 - mean)).sum();
    let error: f64 = pairs.iter().map(|p| (p.0 - p.1) * (p.0 - p.1)).sum();
    (total > 0.0).then(|| 1.0 - error / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random, between 0 and 1.
    fn numbers() -> impl Iterator<Item = f64> {
        let mut x = 9u64;
        std::iter::repeat_with(move || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 40) as f64 / (1u64 << 24) as f64
        })
    }

    #[test]
    fn known_coefficients_are_found_again() {
        let mut random = numbers();
        let x: Vec<[f64; 3]> =
            (0..5_000).map(|_| [0; 3].map(|_: i32| random.next().unwrap_or(0.0))).collect();
        let truth = |x: &[f64; 3]| 0.7 + 3.0 * x[0] - 2.0 * x[1];
        let pairs: Vec<(&[f64], f64)> = x.iter().map(|x| (&x[..], truth(x))).collect();
        let ridge = Ridge::fit(&pairs).expect("there are pairs");
        for (j, wanted) in [3.0, -2.0, 0.0].into_iter().enumerate() {
            let weight = ridge.terms[j][4] * ridge.terms[j][1];
            assert!((weight - wanted).abs() < 2e-3, "{j}: {weight}");
        }
        let predicted: Vec<(f64, f64)> = x.iter().map(|x| (truth(x), ridge.at(x))).collect();
        assert!(r_squared(&predicted).expect("they differ") > 0.999_99);
        // Beyond what was seen the nearest seen counts.
        assert!((ridge.at(&[100.0, 0.5, 0.5]) - ridge.at(&[1.0, 0.5, 0.5])).abs() < 0.02);
    }

    #[test]
    fn r_squared_is_one_for_the_truth_and_zero_for_the_mean() {
        assert_eq!(r_squared(&[(1.0, 1.0), (3.0, 3.0)]), Some(1.0));
        assert_eq!(r_squared(&[(1.0, 2.0), (3.0, 2.0)]), Some(0.0));
        assert_eq!(r_squared(&[(1.0, 3.0), (3.0, 1.0)]), Some(-3.0));
        assert_eq!(r_squared(&[(2.0, 1.0), (2.0, 3.0)]), None);
        assert_eq!(r_squared(&[]), None);
    }

    #[test]
    fn a_single_observation_is_half_believed_and_a_constant_feature_ignored() {
        let ridge = Ridge::fit(&[(&[5.0], 4.0)]).expect("there is a pair");
        assert_eq!((ridge.at(&[5.0]), ridge.at(&[50.0])), (2.0, 2.0));
        assert!(Ridge::fit(&[]).is_none());
    }
}
