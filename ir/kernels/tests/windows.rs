//! Convolution and pooling against naive references: every output pixel with every kernel position.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use arbtest::arbitrary::{Result, Unstructured};
use arbtest::arbtest;
use common::Random;
use common::naive::{BUDGET_MS, close, flat, one, points, random};
use memc_ir::OpKind;
use memc_ir::ops::im2col_tiling;
use memc_kernels::interp::{Tensor, eval};

/// A random convolution: attributes, and extents batch, input and output channels of a group, input, kernel.
struct Convolution {
    strides: Vec<u64>,
    pads: Vec<u64>,
    dilations: Vec<u64>,
    groups: u64,
    x: [u64; 4],
    w: [u64; 4],
}

fn convolution(u: &mut Unstructured) -> Result<Convolution> {
    let pair = |u: &mut Unstructured, low, high| -> Result<Vec<u64>> {
        Ok(vec![u.int_in_range(low..=high)?, u.int_in_range(low..=high)?])
    };
    let plain: bool = u.arbitrary()?;
    let groups = u.int_in_range(1..=3)?;
    let (batch, m) = (u.int_in_range(1..=6)?, u.int_in_range(1..=3)?);
    let c = if u.arbitrary()? { 1 } else { u.int_in_range(1..=3)? };
    let (kernel, input) = (pair(u, 1, 3)?, pair(u, 5, 9)?);
    let strides = if plain { vec![1, 1] } else { pair(u, 1, 3)? };
    let dilations = if plain { vec![1, 1] } else { pair(u, 1, 2)? };
    let pads = if plain && u.arbitrary()? { vec![1; 4] } else { [pair(u, 0, 2)?, pair(u, 0, 2)?].concat() };
    let (x, w) = ([batch, c * groups, input[0], input[1]], [m * groups, c, kernel[0], kernel[1]]);
    Ok(Convolution { strides, pads, dilations, groups, x, w })
}

/// Compares conv and both gradients of random floats as [`compare`].
fn check_convolution(cv: Convolution, r: &mut Random, tolerance: f64) {
    compare(cv, |shape| r.f32(shape), tolerance);
}

/// Compares conv and both gradients, of operands that are drawn, with a sum over all pairs of an output pixel
/// and a kernel position.
fn compare(cv: Convolution, mut draw: impl FnMut(&[u64]) -> Tensor, tolerance: f64) {
    let (strides, pads, dilations) = (cv.strides.clone(), cv.pads.clone(), cv.dilations.clone());
    let groups = cv.groups as i64;
    let (x, w) = (draw(&cv.x), draw(&cv.w));
    let conv = OpKind::Conv { strides, pads, dilations, groups };
    let y = one(conv, &[&x, &w]);
    let dy = draw(&y.ty.shape);
    let (xs, ws) = (x.elements::<f32>().unwrap(), w.elements::<f32>().unwrap());
    let dys = dy.elements::<f32>().unwrap();
    let (mut want_y, mut want_dx) = (vec![0.0; y.ty.numel() as usize], vec![0.0; xs.len()]);
    let mut want_dw = vec![0.0; ws.len()];
    for p in points(&y.ty.shape) {
        let group = p[1] / (cv.w[0] / cv.groups) as usize;
        let at_y = flat(&y.ty.shape, &p);
        for tap in points(&cv.w[1..]) {
            let meet = |a: usize| {
                let at = p[2 + a] * cv.strides[a] as usize + tap[1 + a] * cv.dilations[a] as usize;
                at.checked_sub(cv.pads[a] as usize).filter(|&i| i < cv.x[2 + a] as usize)
            };
            let (Some(h), Some(wd)) = (meet(0), meet(1)) else { continue };
            let at_x = flat(&cv.x, &[p[0], group * cv.w[1] as usize + tap[0], h, wd]);
            let at_w = flat(&cv.w, &[&[p[1]], &tap[..]].concat());
            want_y[at_y] += f64::from(xs[at_x]) * f64::from(ws[at_w]);
            want_dx[at_x] += f64::from(dys[at_y]) * f64::from(ws[at_w]);
            want_dw[at_w] += f64::from(dys[at_y]) * f64::from(xs[at_x]);
        }
    }
    close(y.elements().unwrap(), &want_y, tolerance);
    let (strides, pads, dilations) = (cv.strides.clone(), cv.pads.clone(), cv.dilations.clone());
    let grad = OpKind::ConvGradInput { strides, pads, dilations, groups, size: cv.x[2..].to_vec() };
    close(one(grad, &[&dy, &w]).elements().unwrap(), &want_dx, tolerance);
    let (strides, pads, dilations) = (cv.strides, cv.pads, cv.dilations);
    let grad = OpKind::ConvGradWeight { strides, pads, dilations, groups, kernel: cv.w[2..].to_vec() };
    close(one(grad, &[&dy, &x]).elements().unwrap(), &want_dw, tolerance);
}

#[test]
fn convolutions_and_their_gradients_pair_the_same_pixels() {
    arbtest(|u| {
        let (cv, mut r) = (convolution(u)?, random(u)?);
        // Rounding of long sums would hide a pixel, or look like one.
        compare(cv, |shape| r.whole(shape), 0.0);
        Ok(())
    })
    .budget_ms(3 * BUDGET_MS);
}

#[test]
fn a_convolution_of_several_tiles_is_whole() {
    // More kernel rows and pixels than one tile of columns holds, with and without the shortcut for equal
    // widths.
    for (pads, stride, size) in [(vec![1; 4], 1, 19), (vec![0, 2, 1, 0], 1, 19), (vec![2, 1, 0, 1], 2, 33)] {
        let (x, w) = ([3, 40, size, size + 2], [2, 40, 3, 3]);
        let tiling = im2col_tiling(x[0], w[1] * 9, x[2] * x[3] / (stride * stride));
        assert!(tiling.tile * 2 < tiling.pixels);
        let cv = Convolution { strides: vec![stride; 2], pads, dilations: vec![1, 1], groups: 1, x, w };
        check_convolution(cv, &mut Random::new(5), 1e-4);
    }
}

#[test]
fn a_convolution_of_several_panels_is_whole() {
    // More kernel rows, pixels and channels than a panel has, of more images than there are lanes.
    for (pads, stride, dilation, groups, w) in [
        (vec![1; 4], 1, 1, 1, [70, 16, 3, 3]),
        (vec![2; 4], 1, 2, 2, [26, 15, 3, 3]),
        (vec![0, 2, 1, 0], 1, 1, 1, [7, 23, 3, 3]),
        (vec![3; 4], 2, 1, 1, [19, 3, 7, 7]),
        (vec![0; 4], 3, 1, 1, [9, 5, 5, 2]),
        (vec![0; 4], 1, 1, 1, [70, 67, 1, 1]),
        (vec![0; 4], 1, 1, 1, [67, 70, 1, 1]),
    ] {
        let x = [5, w[1] * groups, 13, 17];
        let (strides, dilations) = (vec![stride; 2], vec![dilation; 2]);
        let cv = Convolution { strides, pads, dilations, groups, x, w };
        check_convolution(cv, &mut Random::new(8), 1e-4);
    }
}

#[test]
fn a_convolution_of_one_image_is_whole_in_parts() {
    // Enough for parts of the channels side by side; the last part is smaller than the others.
    let (x, w) = ([1, 10, 17, 16], [37, 10, 3, 3]);
    let cv = Convolution { strides: vec![1; 2], pads: vec![1; 4], dilations: vec![1; 2], groups: 1, x, w };
    check_convolution(cv, &mut Random::new(6), 1e-4);
    let (x, w) = ([2, 70, 18, 16], [33, 70, 1, 1]);
    let cv = Convolution { strides: vec![1; 2], pads: vec![0; 4], dilations: vec![1; 2], groups: 1, x, w };
    check_convolution(cv, &mut Random::new(7), 1e-4);
}

#[test]
fn depthwise_convolutions_meet_their_own_channels() {
    for (multiplier, stride, dilation, pad) in [(1, 1, 1, 1), (2, 2, 1, 0), (3, 1, 2, 3), (1, 3, 2, 1)] {
        let (x, w) = ([2, 25, 13, 17], [25 * multiplier, 1, 3, 5]);
        let (strides, dilations) = (vec![stride; 2], vec![dilation; 2]);
        let cv = Convolution { strides, pads: vec![pad; 4], dilations, groups: 25, x, w };
        check_convolution(cv, &mut Random::new(stride), 1e-5);
    }
}

#[test]
fn depthwise_convolutions_of_several_bands_are_whole() {
    for (stride, size, kernel) in [(1, [70, 61], 3), (2, [91, 83], 3), (2, [40, 70], 6), (1, [3, 2500], 3)] {
        let (x, w) = ([2, 3, size[0], size[1]], [3, 1, kernel, kernel]);
        let (strides, dilations, pads) = (vec![stride; 2], vec![1; 2], vec![kernel / 2; 4]);
        let cv = Convolution { strides, pads, dilations, groups: 3, x, w };
        check_convolution(cv, &mut Random::new(stride), 1e-4);
    }
}

#[test]
fn a_max_pool_of_several_bands_has_the_first_maximum_of_every_window() {
    for (stride, pad, size) in [(1, 1, [70, 61]), (2, 1, [91, 83]), (2, 0, [90, 84]), (3, 1, [70, 61])] {
        let shape = [1, 2, size[0], size[1]];
        // Few different numbers, and whole windows of negative infinity.
        let numbers = Random::new(stride).f32(&shape);
        let coarse =
            |(i, v): (usize, &f32)| if i % 2000 > 1500 { f32::NEG_INFINITY } else { (v * 3.0).round() };
        let values: Vec<f32> = numbers.elements::<f32>().unwrap().iter().enumerate().map(coarse).collect();
        let x = Tensor::f32(&shape, &values).unwrap();
        let (strides, pads, dilations) = (vec![stride; 2], vec![pad; 4], vec![1; 2]);
        let op = OpKind::MaxPool { kernel: vec![3, 3], strides, pads, dilations, ceil: false };
        let pooled = eval(&op, &[&x]).unwrap();
        let (mut best, mut at) = (Vec::new(), Vec::new());
        for p in points(&pooled[0].ty.shape) {
            let mut first: Option<usize> = None;
            for tap in points(&[3, 3]) {
                let place = |a: usize| (p[2 + a] * stride as usize + tap[a]).checked_sub(pad as usize);
                let inside = |a: usize| place(a).filter(|&i| i < size[a] as usize);
                let (Some(h), Some(w)) = (inside(0), inside(1)) else { continue };
                let i = flat(&shape, &[p[0], p[1], h, w]);
                if first.is_none_or(|f| values[i] > values[f]) {
                    first = Some(i);
                }
            }
            best.push(values[first.unwrap()]);
            at.push(first.unwrap() as i64);
        }
        assert_eq!(pooled[0].elements::<f32>().unwrap(), best);
        assert_eq!(pooled[1].elements::<i64>().unwrap(), at);
    }
}

#[test]
fn a_max_pool_gradient_from_the_input_is_that_from_the_indices_bit_for_bit() {
    arbtest(|u| {
        let size = [2, 2, u.int_in_range(4..=8)?, u.int_in_range(4..=8)?];
        let (kernel, strides) = (vec![3, 2], vec![u.int_in_range(1..=3)?, u.int_in_range(1..=3)?]);
        let pads = vec![u.int_in_range(0..=2)?, 0, u.int_in_range(0..=2)?, u.int_in_range(0..=1)?];
        let dilations = vec![1, u.int_in_range(1..=2)?];
        let ceil = u.arbitrary()?;
        let r = &mut random(u)?;
        // Few different numbers, so that most windows have ties; zeros of both signs and a NaN among them.
        let pick = [0.0, -0.0, 1.0, -1.0, f32::NAN, f32::NEG_INFINITY];
        let numbers: Vec<f32> = r.f32(&size).elements::<f32>().unwrap().iter().map(|v| v.abs()).collect();
        let ties: Vec<f32> = numbers.iter().map(|v| pick[(v * 1e4) as usize % pick.len()]).collect();
        let x = Tensor::f32(&size, &ties).unwrap();
        let (k, s, p, d) = (kernel.clone(), strides.clone(), pads.clone(), dilations.clone());
        let pooled =
            eval(&OpKind::MaxPool { kernel: k, strides: s, pads: p, dilations: d, ceil }, &[&x]).unwrap();
        let dy = r.f32(&pooled[0].ty.shape);
        let want = one(OpKind::MaxPoolGrad { shape: size.to_vec() }, &[&dy, &pooled[1]]);
        let have = one(OpKind::MaxPoolGradInput { kernel, strides, pads, dilations, ceil }, &[&dy, &x]);
        assert_eq!(have, want);
        Ok(())
    })
    .budget_ms(BUDGET_MS);
}

#[test]
fn average_pooling_divides_by_what_the_window_holds() {
    arbtest(|u| {
        let size = [1, 2, u.int_in_range(3..=8)?, u.int_in_range(3..=8)?];
        let (kernel, strides) = (vec![3, 2], vec![u.int_in_range(1..=3)?, u.int_in_range(1..=3)?]);
        let pads = vec![
            u.int_in_range(0..=2)?,
            u.int_in_range(0..=1)?,
            u.int_in_range(0..=2)?,
            u.int_in_range(0..=1)?,
        ];
        let (ceil, count_pad) = (u.arbitrary()?, u.arbitrary()?);
        let x = random(u)?.f32(&size);
        let (k, s, p) = (kernel.clone(), strides.clone(), pads.clone());
        let y = one(OpKind::AveragePool { kernel: k, strides: s, pads: p, ceil, count_pad }, &[&x]);
        let average = |p: &Vec<usize>| {
            let (mut sum, mut inside, mut padded) = (0.0, 0.0, 0.0);
            for tap in points(&kernel) {
                let at = |a: usize| p[2 + a] * strides[a] as usize + tap[a];
                let in_pad = (0..2).all(|a| at(a) < (pads[a] + size[2 + a] + pads[2 + a]) as usize);
                padded += f64::from(in_pad);
                let real =
                    |a: usize| at(a).checked_sub(pads[a] as usize).filter(|&i| i < size[2 + a] as usize);
                if let (Some(h), Some(w)) = (real(0), real(1)) {
                    sum += f64::from(x.elements::<f32>().unwrap()[flat(&size, &[p[0], p[1], h, w])]);
                    inside += 1.0;
                }
            }
            sum / if count_pad { padded } else { f64::max(inside, 1.0) }
        };
        close(y.elements().unwrap(), &points(&y.ty.shape).iter().map(average).collect::<Vec<_>>(), 1e-6);
        Ok(())
    })
    .budget_ms(BUDGET_MS);
}
