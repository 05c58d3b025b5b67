//! Convolution and pooling in two dimensions: every output, every position of its window.

use memc_ir::TensorType;

use crate::tensor::Results;
use crate::tensor::{Data, Tensor64, flat, points};

/// Position `output * stride + tap * dilation - pad`, when it is below `size`.
fn position(output: usize, stride: u64, tap: usize, dilation: u64, pad: u64, size: u64) -> Option<usize> {
    let padded = output as u64 * stride + tap as u64 * dilation;
    padded.checked_sub(pad).filter(|&i| i < size).map(|i| i as usize)
}

/// Attributes of a convolution.
pub(crate) struct Conv<'a> {
    pub(crate) strides: &'a [u64],
    pub(crate) pads: &'a [u64],
    pub(crate) dilations: &'a [u64],
    pub(crate) groups: i64,
}

impl Conv<'_> {
    /// Calls `term(y, x, w)` with the flat positions of every product that a convolution sums up.
    fn terms(&self, y: &[u64], x: &[u64], w: &[u64], mut term: impl FnMut(usize, usize, usize)) {
        let per_group = y[1] as usize / self.groups as usize;
        let taps = points(&w[1..]);
        let spatial = |i: usize, output: usize, tap: usize| {
            position(output, self.strides[i], tap, self.dilations[i], self.pads[i], x[2 + i])
        };
        for (at, p) in points(y).iter().enumerate() {
            for (tap, t) in taps.iter().enumerate() {
                if let (Some(h), Some(v)) = (spatial(0, p[2], t[1]), spatial(1, p[3], t[2])) {
                    let channel = p[1] / per_group * w[1] as usize + t[0];
                    term(at, flat(x, &[p[0], channel, h, v]), p[1] * taps.len() + tap);
                }
            }
        }
    }

    pub(crate) fn forward(&self, x: &[&Tensor64], y: &TensorType) -> Results {
        let (data, weight) = (x[0].f()?, x[1].f()?);
        let mut out = vec![0.0; y.numel() as usize];
        if let Some(bias) = x.get(2) {
            let bias = bias.f()?;
            out.iter_mut().zip(points(&y.shape)).for_each(|(v, p)| *v = bias[p[1]]);
        }
        self.terms(&y.shape, x[0].shape(), x[1].shape(), |y, x, w| out[y] += data[x] * weight[w]);
        Ok(vec![Data::Float(out)])
    }

    pub(crate) fn grad_input(&self, x: &[&Tensor64], dx: &TensorType) -> Results {
        let (dy, weight) = (x[0].f()?, x[1].f()?);
        let mut out = vec![0.0; dx.numel() as usize];
        self.terms(x[0].shape(), &dx.shape, x[1].shape(), |y, x, w| out[x] += dy[y] * weight[w]);
        Ok(vec![Data::Float(out)])
    }

    pub(crate) fn grad_weight(&self, x: &[&Tensor64], dw: &TensorType) -> Results {
        let (dy, data) = (x[0].f()?, x[1].f()?);
        let mut out = vec![0.0; dw.numel() as usize];
        self.terms(x[0].shape(), x[1].shape(), &dw.shape, |y, x, w| out[w] += dy[y] * data[x]);
        Ok(vec![Data::Float(out)])
    }
}

/// Attributes of a pooling window.
pub(crate) struct Pool<'a> {
    pub(crate) kernel: &'a [u64],
    pub(crate) strides: &'a [u64],
    pub(crate) pads: &'a [u64],
    pub(crate) dilations: &'a [u64],
}

impl Pool<'_> {
    /// Flat positions in the input `x` of the window of output `p`, row by row.
    fn taps(&self, p: &[usize], x: &[u64]) -> Vec<usize> {
        let spatial = |i: usize, tap: usize| {
            position(p[2 + i], self.strides[i], tap, self.dilations[i], self.pads[i], x[2 + i])
        };
        let inside = |tap: Vec<usize>| Some(flat(x, &[p[0], p[1], spatial(0, tap[0])?, spatial(1, tap[1])?]));
        points(self.kernel).into_iter().filter_map(inside).collect()
    }

    /// The number of elements that the average of output `p` divides by.
    fn divisor(&self, p: &[usize], x: &[u64], count_pad: bool) -> f64 {
        if !count_pad {
            return self.taps(p, x).len().max(1) as f64;
        }
        let within = |i: usize| {
            let end = self.pads[i] + x[2 + i] + self.pads[2 + i];
            (0..self.kernel[i]).filter(|tap| p[2 + i] as u64 * self.strides[i] + tap < end).count()
        };
        (within(0) * within(1)).max(1) as f64
    }

    pub(crate) fn max(&self, x: &Tensor64, y: &TensorType) -> Results {
        let data = x.f()?;
        let (mut values, mut indices) = (Vec::new(), Vec::new());
        for p in points(&y.shape) {
            let mut best: Option<usize> = None;
            for i in self.taps(&p, x.shape()) {
                if best.is_none_or(|b| data[i] > data[b] || (data[i].is_nan() && !data[b].is_nan())) {
                    best = Some(i);
                }
            }
            let best = best.ok_or("a window lies in the padding alone")?;
            values.push(data[best]);
            indices.push(best as i64);
        }
        Ok(vec![Data::Float(values), Data::Int(indices)])
    }

    pub(crate) fn max_grad_input(&self, x: &[&Tensor64], dx: &TensorType) -> Results {
        let pooled = TensorType::new(dx.dtype, x[0].shape());
        let mut out = vec![0.0; dx.numel() as usize];
        if let [_, Data::Int(indices)] = self.max(x[1], &pooled)?.as_slice() {
            x[0].f()?.iter().zip(indices).for_each(|(g, &i)| out[i as usize] += g);
        }
        Ok(vec![Data::Float(out)])
    }

    pub(crate) fn average(&self, x: &Tensor64, y: &TensorType, count_pad: bool) -> Results {
        let data = x.f()?;
        let mean = |p: &Vec<usize>| {
            let sum: f64 = self.taps(p, x.shape()).iter().map(|&i| data[i]).sum();
            sum / self.divisor(p, x.shape(), count_pad)
        };
        Ok(vec![Data::Float(points(&y.shape).iter().map(mean).collect())])
    }

    pub(crate) fn average_grad(&self, dy: &Tensor64, dx: &TensorType, count_pad: bool) -> Results {
        let mut out = vec![0.0; dx.numel() as usize];
        for (p, g) in points(dy.shape()).iter().zip(dy.f()?) {
            let share = g / self.divisor(p, &dx.shape, count_pad);
            self.taps(p, &dx.shape).iter().for_each(|&i| out[i] += share);
        }
        Ok(vec![Data::Float(out)])
    }
}

pub(crate) fn max_grad(x: &[&Tensor64], dx: &TensorType) -> Results {
    let mut out = vec![0.0; dx.numel() as usize];
    for (g, &i) in x[0].f()?.iter().zip(x[1].i()?) {
        let place = usize::try_from(i).ok().and_then(|i| out.get_mut(i));
        *place.ok_or_else(|| format!("index {i} is outside {dx}"))? += g;
    }
    Ok(vec![Data::Float(out)])
}
