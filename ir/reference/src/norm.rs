//! Normalisation and softmax.

use crate::tensor::Results;
use crate::tensor::{Data, Tensor64, at, flat, points};

fn mean(xs: &[f64]) -> f64 {
    xs.iter().sum::<f64>() / xs.len() as f64
}

/// Mean, population variance and `1 / sqrt(var + epsilon)`.
fn statistics(xs: &[f64], epsilon: f32) -> [f64; 3] {
    let m = mean(xs);
    let var = mean(&xs.iter().map(|x| (x - m) * (x - m)).collect::<Vec<_>>());
    [m, var, 1.0 / (var + f64::from(epsilon)).sqrt()]
}

/// For every element of a tensor of `shape`, its channel.
fn channel_of(shape: &[u64]) -> Vec<usize> {
    points(shape).iter().map(|p| p[1]).collect()
}

pub(crate) fn batch_norm_stats(x: &Tensor64, epsilon: f32) -> Results {
    let channels = x.shape()[1] as usize;
    let mut groups = vec![Vec::new(); channels];
    for (&v, c) in x.f()?.iter().zip(channel_of(x.shape())) {
        groups[c].push(v);
    }
    let stats: Vec<[f64; 3]> = groups.iter().map(|g| statistics(g, epsilon)).collect();
    Ok((0..3).map(|i| Data::Float(stats.iter().map(|s| s[i]).collect())).collect())
}

pub(crate) fn batch_norm(x: &[&Tensor64]) -> Results {
    let [scale, bias, mean, inv_std] = [x[1].f()?, x[2].f()?, x[3].f()?, x[4].f()?];
    let of = |(&v, c): (&f64, usize)| (v - mean[c]) * inv_std[c] * scale[c] + bias[c];
    Ok(vec![Data::Float(x[0].f()?.iter().zip(channel_of(x[0].shape())).map(of).collect())])
}

/// The gradient of normalising one group by its own statistics, for the slopes `g` of the normalised values
/// `z`.
fn normalised_grad(g: &[f64], z: &[f64], inv_std: f64) -> Vec<f64> {
    let along: Vec<f64> = g.iter().zip(z).map(|(g, z)| g * z).collect();
    let (shift, slope) = (mean(g), mean(&along));
    g.iter().zip(z).map(|(g, z)| inv_std * (g - shift - z * slope)).collect()
}

pub(crate) fn batch_norm_grad(x: &[&Tensor64]) -> Results {
    let (dy, data) = (x[0].f()?, x[1].f()?);
    let [scale, mean, inv_std] = [x[2].f()?, x[3].f()?, x[4].f()?];
    let channel = channel_of(x[1].shape());
    let (mut dx, mut dscale, mut dbias) = (vec![0.0; dy.len()], Vec::new(), Vec::new());
    for c in 0..scale.len() {
        let members: Vec<usize> = (0..dy.len()).filter(|&i| channel[i] == c).collect();
        let z: Vec<f64> = members.iter().map(|&i| (data[i] - mean[c]) * inv_std[c]).collect();
        let g: Vec<f64> = members.iter().map(|&i| dy[i]).collect();
        dscale.push(g.iter().zip(&z).map(|(g, z)| g * z).sum());
        dbias.push(g.iter().sum());
        let slopes: Vec<f64> = g.iter().map(|g| g * scale[c]).collect();
        let grads = normalised_grad(&slopes, &z, inv_std[c]);
        members.iter().zip(grads).for_each(|(&i, d)| dx[i] = d);
    }
    Ok(vec![Data::Float(dx), Data::Float(dscale), Data::Float(dbias)])
}

/// Elements of a row that is normalised over the axes from `axis` on.
fn row_len(x: &Tensor64, axis: i64) -> usize {
    x.shape()[axis as usize..].iter().product::<u64>() as usize
}

pub(crate) fn layer_norm(x: &[&Tensor64], axis: i64, epsilon: f32) -> Results {
    let (data, scale) = (x[0].f()?, x[1].f()?);
    let (mut y, mut means, mut inv_stds) = (Vec::new(), Vec::new(), Vec::new());
    for row in data.chunks(row_len(x[0], axis)) {
        let [m, _, inv_std] = statistics(row, epsilon);
        for (i, v) in row.iter().enumerate() {
            let bias = if let Some(bias) = x.get(2) { bias.f()?[i] } else { 0.0 };
            y.push((v - m) * inv_std * scale[i] + bias);
        }
        means.push(m);
        inv_stds.push(inv_std);
    }
    Ok(vec![Data::Float(y), Data::Float(means), Data::Float(inv_stds)])
}

pub(crate) fn layer_norm_grad(x: &[&Tensor64], axis: i64) -> Results {
    let (dy, data) = (x[0].f()?, x[1].f()?);
    let [scale, mean, inv_std] = [x[2].f()?, x[3].f()?, x[4].f()?];
    let n = row_len(x[1], axis);
    let (mut dx, mut dscale, mut dbias) = (Vec::new(), vec![0.0; n], vec![0.0; n]);
    for (row, (g, v)) in dy.chunks(n).zip(data.chunks(n)).enumerate() {
        let z: Vec<f64> = v.iter().map(|v| (v - mean[row]) * inv_std[row]).collect();
        for i in 0..n {
            dscale[i] += g[i] * z[i];
            dbias[i] += g[i];
        }
        let slopes: Vec<f64> = g.iter().zip(scale).map(|(g, s)| g * s).collect();
        dx.extend(normalised_grad(&slopes, &z, inv_std[row]));
    }
    Ok(vec![Data::Float(dx), Data::Float(dscale), Data::Float(dbias)])
}

/// Rewrites every line of `x` along `axis`; `line` gets its elements and, of each other operand, the same
/// line.
fn along(x: &[&Tensor64], axis: i64, line: impl Fn(&[Vec<f64>]) -> Vec<f64>) -> Results {
    let (shape, axis) = (x[0].shape(), axis as usize);
    let mut out = vec![0.0; x[0].f()?.len()];
    for p in points(shape).iter().filter(|p| p[axis] == 0) {
        let places: Vec<usize> = (0..shape[axis] as usize).map(|i| flat(shape, &at(p, axis, i))).collect();
        let mut lines = Vec::new();
        for t in x {
            let t = t.f()?;
            lines.push(places.iter().map(|&i| t[i]).collect());
        }
        places.iter().zip(line(&lines)).for_each(|(&i, v)| out[i] = v);
    }
    Ok(vec![Data::Float(out)])
}

fn log_softmax_line(x: &[f64]) -> Vec<f64> {
    let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log = x.iter().map(|v| (v - top).exp()).sum::<f64>().ln();
    x.iter().map(|v| v - top - log).collect()
}

pub(crate) fn log_softmax(x: &Tensor64, axis: i64) -> Results {
    along(&[x], axis, |lines| log_softmax_line(&lines[0]))
}

pub(crate) fn softmax(x: &Tensor64, axis: i64) -> Results {
    along(&[x], axis, |lines| log_softmax_line(&lines[0]).iter().map(|v| v.exp()).collect())
}

pub(crate) fn softmax_grad(x: &[&Tensor64], axis: i64) -> Results {
    along(x, axis, |lines| {
        let (dy, y) = (&lines[0], &lines[1]);
        let dot: f64 = dy.iter().zip(y).map(|(d, y)| d * y).sum();
        dy.iter().zip(y).map(|(d, y)| (d - dot) * y).collect()
    })
}
