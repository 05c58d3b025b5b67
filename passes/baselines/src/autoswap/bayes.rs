//! Bayesian optimisation of four weights in [-1, 1] (section IV-C).
//!
//! The paper has a Gaussian process prior after Snoek et al. (its reference 42), random first weights and
//! about 30 updates; it names neither kernel nor acquisition. Both are Snoek's: Matérn 5/2 and expected
//! improvement. One length scale for all weights, the most likely of a few; the acquisition is maximised over
//! random points and points near the best. Deterministic for a seed.

use crate::random::Random;

/// A point: the weights.
type Point = [f64; 4];

/// Random points before the process is asked.
const RANDOM: usize = 4;

/// Length scales to choose from.
const LENGTHS: [f64; 5] = [0.2, 0.4, 0.8, 1.6, 3.2];

/// Variance of the noise, in units of the observations' variance.
const NOISE: f64 = 1e-6;

/// Points at which the acquisition is evaluated.
const CANDIDATES: usize = 600;

/// Observations so far.
pub(super) struct Bayes {
    random: Random,
    points: Vec<Point>,
    values: Vec<f64>,
    first: usize,
}

impl Bayes {
    /// Nothing seen.
    pub(super) fn new(seed: u64) -> Bayes {
        Bayes { random: Random::new(seed, 0), points: Vec::new(), values: Vec::new(), first: RANDOM }
    }

    /// The value to minimise at a point.
    pub(super) fn observe(&mut self, point: Point, value: f64) {
        self.points.push(point);
        self.values.push(value);
    }

    /// The point to look at next.
    pub(super) fn next(&mut self) -> Point {
        if self.first > 0 || self.points.len() < 2 {
            self.first = self.first.saturating_sub(1);
            return self.uniform();
        }
        let points: Vec<Point> = (0..CANDIDATES).map(|_| self.uniform()).collect();
        let fits = LENGTHS.iter().filter_map(|&length| Process::fit(&self.points, &self.values, length));
        let Some(process) = fits.max_by(|a, b| a.likelihood.total_cmp(&b.likelihood)) else {
            return self.uniform();
        };
        let best = (0..self.values.len()).min_by(|&a, &b| self.values[a].total_cmp(&self.values[b]));
        let centre = best.map(|i| self.points[i]);
        let mut chosen: Option<(f64, Point)> = None;
        for (k, mut point) in points.into_iter().enumerate() {
            if let Some(centre) = centre.filter(|_| k % 4 == 0) {
                point = std::array::from_fn(|i| (centre[i] + 0.2 * point[i]).clamp(-1.0, 1.0));
            }
            let gain = process.expected_improvement(&point);
            if chosen.is_none_or(|c| gain > c.0) {
                chosen = Some((gain, point));
            }
        }
        chosen.map_or([1.0; 4], |c| c.1)
    }

    fn uniform(&mut self) -> Point {
        std::array::from_fn(|_| 2.0 * self.random.unit() - 1.0)
    }
}

/// A Gaussian process with the points it has seen.
struct Process<'a> {
    points: &'a [Point],
    length: f64,
    /// Lower triangle of the Cholesky factor of the covariance, by rows.
    factor: Vec<Vec<f64>>,
    /// The covariance's inverse times the standardised values.
    alpha: Vec<f64>,
    /// Logarithm of the likelihood, without its constant.
    likelihood: f64,
    best: f64,
}

impl<'a> Process<'a> {
    fn fit(points: &'a [Point], values: &[f64], length: f64) -> Option<Process<'a>> {
        let n = points.len();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64;
        let deviation = if variance > 0.0 { variance.sqrt() } else { 1.0 };
        let y: Vec<f64> = values.iter().map(|v| (v - mean) / deviation).collect();
        let mut factor: Vec<Vec<f64>> = Vec::with_capacity(n);
        for i in 0..n {
            let mut row = Vec::with_capacity(i + 1);
            for j in 0..=i {
                let above = factor.get(j).unwrap_or(&row);
                let dot: f64 = row[..j].iter().zip(&above[..j]).map(|(a, b)| a * b).sum();
                let k = matern(&points[i], &points[j], length) - dot;
                row.push(if i == j { (k + NOISE).sqrt() } else { k / factor[j][j] });
            }
            if row[i].is_nan() || row[i] <= 0.0 {
                return None;
            }
            factor.push(row);
        }
        let half = forward(&factor, &y);
        let likelihood =
            -0.5 * half.iter().map(|x| x * x).sum::<f64>() - (0..n).map(|i| factor[i][i].ln()).sum::<f64>();
        let alpha = backward(&factor, half);
        let best = y.iter().copied().fold(f64::INFINITY, f64::min);
        Some(Process { points, length, factor, alpha, likelihood, best })
    }

    /// Mean and deviation at a point.
    fn predict(&self, point: &Point) -> (f64, f64) {
        let k: Vec<f64> = self.points.iter().map(|x| matern(x, point, self.length)).collect();
        let mean = k.iter().zip(&self.alpha).map(|(a, b)| a * b).sum();
        let half = forward(&self.factor, &k);
        let variance = 1.0 - half.iter().map(|x| x * x).sum::<f64>();
        (mean, variance.max(0.0).sqrt())
    }

    /// By how much a point is expected to be below the best.
    fn expected_improvement(&self, point: &Point) -> f64 {
        let (mean, deviation) = self.predict(point);
        if deviation < 1e-9 {
            return (self.best - mean).max(0.0);
        }
        let z = (self.best - mean) / deviation;
        let density = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
        (self.best - mean) * normal_below(z) + deviation * density
    }
}

/// Matérn covariance with ν = 5/2 and variance 1.
fn matern(a: &Point, b: &Point, length: f64) -> f64 {
    let square: f64 = a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum();
    let r = (5.0 * square).sqrt() / length;
    (1.0 + r + r * r / 3.0) * (-r).exp()
}

/// Solves L x = b.
fn forward(factor: &[Vec<f64>], b: &[f64]) -> Vec<f64> {
    let mut x: Vec<f64> = Vec::with_capacity(b.len());
    for (row, b) in factor.iter().zip(b) {
        let dot: f64 = row.iter().zip(&x).map(|(l, x)| l * x).sum();
        x.push((b - dot) / row[x.len()]);
    }
    x
}

/// Solves Lᵀ x = b.
fn backward(factor: &[Vec<f64>], mut b: Vec<f64>) -> Vec<f64> {
    for i in (0..b.len()).rev() {
        let dot: f64 = (i + 1..b.len()).map(|k| factor[k][i] * b[k]).sum();
        b[i] = (b[i] - dot) / factor[i][i];
    }
    b
}

/// Distribution function of the normal distribution (Abramowitz and Stegun, 26.2.17; error below 7.5e-8).
fn normal_below(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let sum = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let poly = sum.iter().rev().fold(0.0, |acc, c| t * (c + acc));
    let tail = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt() * poly;
    if z > 0.0 { 1.0 - tail } else { tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process predicts a value that it has seen, with no variance; far away it predicts the mean.
    #[test]
    fn interpolates() {
        let points = [[0.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0]];
        let values = [1.0, 2.0, 6.0];
        let process = Process::fit(&points, &values, 0.2).expect("positive definite");
        let deviation = (14.0f64 / 3.0).sqrt();
        for (point, value) in points.iter().zip(values) {
            let (mean, doubt) = process.predict(point);
            assert!((mean - (value - 3.0) / deviation).abs() < 1e-4 && doubt < 2e-3, "{mean} {doubt}");
        }
        let (mean, doubt) = process.predict(&[1.0, -1.0, 1.0, 1.0]);
        assert!(mean.abs() < 1e-2 && doubt > 0.99);
    }

    /// Thirty looks at a smooth bowl come close to its bottom, closer than thirty random ones, and the seed
    /// decides all.
    #[test]
    fn finds_the_bottom_of_a_bowl() {
        let bowl = |x: &Point| {
            let bottom = [0.3, -0.4, 0.6, 0.0];
            x.iter().zip(bottom).map(|(a, b)| (a - b) * (a - b)).sum::<f64>()
        };
        let run = |seed, process: bool| {
            let mut bayes = Bayes::new(seed);
            let mut best = f64::INFINITY;
            for _ in 0..30 {
                let point = if process { bayes.next() } else { bayes.uniform() };
                bayes.observe(point, bowl(&point));
                best = best.min(bowl(&point));
            }
            best
        };
        for seed in 0..5 {
            assert!(run(seed, true) < 0.05, "{}", run(seed, true));
            assert!(run(seed, true) < run(seed, false));
            assert_eq!(run(seed, true).to_bits(), run(seed, true).to_bits());
        }
    }

    /// The approximation of the normal distribution has its published accuracy at known points.
    #[test]
    fn normal_distribution() {
        for (z, p) in [(0.0, 0.5), (1.0, 0.841_344_746), (-1.96, 0.024_997_895), (3.0, 0.998_650_102)] {
            assert!((normal_below(z) - p).abs() < 7.5e-8, "{z}");
        }
    }
}
