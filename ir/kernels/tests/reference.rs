//! Kernels against naive references on random small shapes: one element at a time, by multi-index.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use arbtest::arbitrary::{Result, Unstructured};
use arbtest::arbtest;
use common::Random;
use common::naive::{BUDGET_MS, close, flat, one, points, random, shape, smaller};
use memc_ir::attr::{F32, Scalar, ScatterMode};
use memc_ir::{DType, OpKind};
use memc_kernels::interp::Tensor;

/// Elements as bytes, whatever their type.
fn cells(t: &Tensor) -> Vec<&[u8]> {
    t.data.bytes().chunks(t.ty.dtype.bytes() as usize).collect()
}

fn dtype(u: &mut Unstructured) -> Result<DType> {
    u.choose(&DType::ALL).copied()
}

#[test]
fn broadcasting_ops_take_the_elements_that_numpy_would() {
    arbtest(|u| {
        let rank = u.int_in_range(0..=4)?;
        let full = shape(u, rank, 4)?;
        let (sa, sb, sc) = (smaller(u, &full)?, smaller(u, &full)?, smaller(u, &full)?);
        let r = &mut random(u)?;
        let dtype = dtype(u)?;
        let (cond, b, a) = (r.tensor(DType::Bool, &sc), r.tensor(dtype, &sb), r.tensor(dtype, &full));
        let y = one(OpKind::Select {}, &[&cond, &a, &b]);
        let pick = |p: &Vec<usize>| {
            let yes = cond.data.bytes()[flat(&sc, p)] != 0;
            if yes { cells(&a)[flat(&full, p)] } else { cells(&b)[flat(&sb, p)] }
        };
        assert_eq!(cells(&y), points(&full).iter().map(pick).collect::<Vec<_>>());

        let (a, b) = (r.tensor(DType::I32, &sa), r.tensor(DType::I32, &full));
        let (xs, ys) = (a.elements::<i32>().unwrap(), b.elements::<i32>().unwrap());
        let pairs: Vec<_> = points(&full).iter().map(|p| (xs[flat(&sa, p)], ys[flat(&full, p)])).collect();
        let y = one(OpKind::Sub {}, &[&a, &b]);
        assert_eq!(y.elements::<i32>().unwrap(), pairs.iter().map(|(a, b)| a - b).collect::<Vec<_>>());
        let y = one(OpKind::Less {}, &[&a, &b]);
        assert_eq!(y.data.bytes(), pairs.iter().map(|(a, b)| u8::from(a < b)).collect::<Vec<_>>());
        Ok(())
    })
    .budget_ms(BUDGET_MS);
}

#[test]
fn movement_ops_put_every_element_where_they_say() {
    arbtest(|u| {
        let rank = u.int_in_range(1..=4)?;
        let from = shape(u, rank, 5)?;
        let x = random(u)?.tensor(dtype(u)?, &from);
        let moved = |y: &Tensor, from_where: &dyn Fn(&[usize]) -> Option<Vec<usize>>, other: &[u8]| {
            let want = |p: &Vec<usize>| from_where(p).map_or(other, |q| cells(&x)[flat(&from, &q)]);
            assert_eq!(
                cells(y),
                points(&y.ty.shape).iter().map(want).collect::<Vec<_>>(),
                "{} to {}",
                x.ty,
                y.ty
            );
        };

        let mut perm: Vec<u64> = (0..rank as u64).collect();
        for i in 1..rank {
            perm.swap(i, u.int_in_range(0..=i)?);
        }
        let y = one(OpKind::Transpose { perm: perm.clone() }, &[&x]);
        let source = |p: &[usize]| {
            let mut q = vec![0; rank];
            perm.iter().zip(p).for_each(|(&a, &i)| q[a as usize] = i);
            Some(q)
        };
        moved(&y, &source, &[]);

        let (mut starts, mut ends, mut steps) = (vec![], vec![], vec![]);
        for &d in &from {
            let (a, b) = (u.int_in_range(0..=d as i64 - 1)?, u.int_in_range(0..=d as i64)?);
            let step = u.int_in_range(1..=3)?;
            let back: bool = u.arbitrary()?;
            starts.push(a);
            ends.push(if back { b - 1 } else { b });
            steps.push(if back { -step } else { step });
        }
        let y = one(OpKind::Slice { starts: starts.clone(), ends, steps: steps.clone() }, &[&x]);
        let source = |p: &[usize]| {
            let axis = |a: usize| (starts[a] + p[a] as i64 * steps[a]) as usize;
            Some((0..rank).map(axis).collect())
        };
        moved(&y, &source, &[]);

        let (before, after) = (shape(u, rank, 2)?, shape(u, rank, 2)?);
        let (value, bytes) = match x.ty.dtype {
            DType::F32 => (Scalar::Float(F32(2.5)), 2.5f32.to_le_bytes().to_vec()),
            DType::F16 => (Scalar::Float(F32(2.5)), vec![0x00, 0x41]),
            DType::BF16 => (Scalar::Float(F32(2.5)), vec![0x20, 0x40]),
            DType::I32 => (Scalar::Int(-7), (-7i32).to_le_bytes().to_vec()),
            DType::I64 => (Scalar::Int(-7), (-7i64).to_le_bytes().to_vec()),
            DType::I8 => (Scalar::Int(-7), vec![249]),
            DType::U8 => (Scalar::Int(200), vec![200]),
            DType::Bool => (Scalar::Int(1), vec![1]),
        };
        let y = one(OpKind::Pad { before: before.clone(), after, value }, &[&x]);
        let source = |p: &[usize]| {
            let axis = |a: usize| p[a].checked_sub(before[a] as usize).filter(|&i| i < from[a] as usize);
            (0..rank).map(axis).collect()
        };
        moved(&y, &source, &bytes);

        let to = [&[2], &from[..]].concat();
        moved(&one(OpKind::Broadcast { shape: to }, &[&x]), &|p| Some(p[1..].to_vec()), &[]);

        let axis = u.int_in_range(0..=rank - 1)?;
        let mut empty = from.clone();
        empty[axis] = 0;
        let empty = Tensor::zeros(memc_ir::TensorType::new(x.ty.dtype, empty)).unwrap();
        let y = one(OpKind::Concat { axis: axis as i64 }, &[&empty, &x, &empty, &x, &x]);
        let source = |p: &[usize]| {
            let mut q = p.to_vec();
            q[axis] %= from[axis] as usize;
            Some(q)
        };
        moved(&y, &source, &[]);
        Ok(())
    })
    .budget_ms(2 * BUDGET_MS);
}

#[test]
fn a_transpose_of_many_blocks_moves_every_element() {
    let (planes, rows, cols) = (3, 75, 331);
    let x: Vec<u64> = (0..planes * rows * cols).collect();
    let ty = memc_ir::TensorType::new(DType::I64, [planes, rows, cols]);
    let y = one(OpKind::Transpose { perm: vec![0, 2, 1] }, &[&Tensor::from_slice(ty, &x).unwrap()]);
    for (at, &v) in y.elements::<u64>().unwrap().iter().enumerate() {
        let (plane, col, row) = (at as u64 / (rows * cols), at as u64 / rows % cols, at as u64 % rows);
        assert_eq!(v, (plane * rows + row) * cols + col);
    }
}

#[test]
fn reductions_fold_exactly_the_reduced_axes() {
    arbtest(|u| {
        let rank = u.int_in_range(0..=4)?;
        let from = shape(u, rank, 5)?;
        let mut axes = vec![];
        for a in 0..rank as u64 {
            if u.arbitrary()? {
                axes.push(a);
            }
        }
        let x = random(u)?.tensor(DType::I64, &from);
        let floats: Vec<f32> = x.elements::<i64>().unwrap().iter().map(|&v| v as f32 * 0.25).collect();
        let floats = Tensor::f32(&from, &floats).unwrap();
        let kept: Vec<u64> =
            (0..rank).map(|a| if axes.contains(&(a as u64)) { 1 } else { from[a] }).collect();
        let n: u64 = kept.iter().product();
        let (mut sums, mut maxima, mut counts) = (vec![0i64; n as usize], vec![i64::MIN; n as usize], 0);
        for p in points(&from) {
            let (to, v) = (flat(&kept, &p), x.elements::<i64>().unwrap()[flat(&from, &p)]);
            sums[to] += v;
            maxima[to] = maxima[to].max(v);
            counts += 1;
        }
        let y = one(OpKind::ReduceSum { axes: axes.clone(), keepdims: true }, &[&x]);
        assert_eq!((y.elements::<i64>().unwrap(), &y.ty.shape), (&sums[..], &kept));
        let y = one(OpKind::ReduceMax { axes: axes.clone(), keepdims: false }, &[&x]);
        assert_eq!(y.elements::<i64>().unwrap(), maxima);
        let y = one(OpKind::ReduceMean { axes, keepdims: false }, &[&floats]);
        let each = f64::from(counts) / n.max(1) as f64;
        close(y.elements().unwrap(), &sums.iter().map(|&s| s as f64 * 0.25 / each).collect::<Vec<_>>(), 1e-7);
        Ok(())
    })
    .budget_ms(BUDGET_MS);
}

#[test]
fn matrix_products_sum_over_the_inner_axis() {
    arbtest(|u| {
        let (m, n, k) = (u.int_in_range(1..=40)?, u.int_in_range(1..=40)?, u.int_in_range(0..=70)?);
        let lead = shape(u, 2, 4)?;
        let (lead_a, lead_b) = (lead.clone(), smaller(u, &lead)?);
        let (trans_a, trans_b) = (u.arbitrary()?, u.arbitrary()?);
        let r = &mut random(u)?;
        let matrix = |r: &mut Random, lead: &[u64], rows, cols, trans: bool| {
            r.f32(&[lead, &if trans { [cols, rows] } else { [rows, cols] }].concat())
        };
        let (a, b) = (matrix(r, &lead_a, m, k, trans_a), matrix(r, &lead_b, k, n, trans_b));
        let y = one(OpKind::MatMul { trans_a, trans_b, alpha: F32(0.5) }, &[&a, &b]);
        let product = |p: &Vec<usize>| {
            let (lead, &[i, j]) = p.split_last_chunk::<2>().unwrap();
            let term = |l: usize| {
                let at = |t: &Tensor, row, col, trans: bool| {
                    let index = [lead, &if trans { [col, row] } else { [row, col] }].concat();
                    f64::from(t.elements::<f32>().unwrap()[flat(&t.ty.shape, &index)])
                };
                at(&a, i, l, trans_a) * at(&b, l, j, trans_b)
            };
            0.5 * (0..k as usize).map(term).sum::<f64>()
        };
        if y.ty.numel() <= 4000 {
            close(y.elements().unwrap(), &points(&y.ty.shape).iter().map(product).collect::<Vec<_>>(), 1e-5);
        }
        Ok(())
    })
    .budget_ms(BUDGET_MS);
}

#[test]
fn a_product_cut_in_panels_is_the_whole_product() {
    let r = &mut Random::new(3);
    let (m, k, n) = (300usize, 60usize, 50usize);
    let (a, b) = (r.f32(&[m as u64, k as u64]), r.f32(&[k as u64, n as u64]));
    let y = one(OpKind::MatMul { trans_a: false, trans_b: false, alpha: F32(1.0) }, &[&a, &b]);
    let (xs, ys) = (a.elements::<f32>().unwrap(), b.elements::<f32>().unwrap());
    let entry =
        |at: usize| (0..k).map(|l| f64::from(xs[at / n * k + l]) * f64::from(ys[l * n + at % n])).sum();
    close(y.elements().unwrap(), &(0..m * n).map(entry).collect::<Vec<f64>>(), 1e-5);
}

#[test]
fn softmax_is_the_normalised_exponential_along_its_axis() {
    arbtest(|u| {
        let full: Vec<u64> = shape(u, 3, 6)?;
        let axis = u.int_in_range(0..=2)?;
        let x = random(u)?.f32(&full);
        let xs = x.elements::<f32>().unwrap();
        let mut totals = full.clone();
        totals[axis] = 1;
        let mut sums = vec![0.0f64; totals.iter().product::<u64>() as usize];
        for p in points(&full) {
            sums[flat(&totals, &p)] += f64::from(xs[flat(&full, &p)]).exp();
        }
        let share = |p: &Vec<usize>| f64::from(xs[flat(&full, p)]).exp() / sums[flat(&totals, p)];
        let want: Vec<f64> = points(&full).iter().map(share).collect();
        close(one(OpKind::Softmax { axis: axis as i64 }, &[&x]).elements().unwrap(), &want, 3e-7);
        let logs: Vec<f64> = want.iter().map(|p| p.ln()).collect();
        close(one(OpKind::LogSoftmax { axis: axis as i64 }, &[&x]).elements().unwrap(), &logs, 3e-7);
        Ok(())
    })
    .budget_ms(BUDGET_MS);
}

/// Distance in units in the last place of the correctly rounded value.
fn ulps(got: f32, want: f64) -> f64 {
    let rounded = want as f32;
    if got == rounded || (got.is_nan() && want.is_nan()) {
        return 0.0;
    }
    let ulp = f64::from(f32::from_bits((rounded.abs().to_bits()).max(1) + 1)) - f64::from(rounded.abs());
    (f64::from(got) - want).abs() / ulp
}

#[test]
fn transcendental_functions_are_accurate_to_two_units_in_the_last_place() {
    let spread = |low: f32, high: f32| -> Vec<f32> {
        let n = 20_000;
        (0..=n).map(|i| low + (high - low) * i as f32 / n as f32).collect()
    };
    let gelu = |x: f64| 0.5 * x * libm::erfc(-x / 2f64.sqrt());
    let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    let gelu_tanh = |x: f64| x / (1.0 + (-2.0 * inner(x)).exp());
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    type Exact<'a> = &'a dyn Fn(f64) -> f64;
    let cases: [(OpKind, Vec<f32>, Exact); 11] = [
        (OpKind::Atan {}, spread(-20.0, 20.0), &f64::atan),
        (OpKind::Sin {}, spread(-50.0, 50.0), &f64::sin),
        (OpKind::Cos {}, spread(-50.0, 50.0), &f64::cos),
        (OpKind::Exp {}, spread(-87.0, 88.0), &f64::exp),
        (OpKind::Log {}, spread(1e-6, 1e3), &f64::ln),
        (OpKind::Sqrt {}, spread(0.0, 1e3), &f64::sqrt),
        (OpKind::Tanh {}, spread(-10.0, 10.0), &f64::tanh),
        (OpKind::Sigmoid {}, spread(-80.0, 80.0), &sigmoid),
        (OpKind::Erf {}, spread(-4.0, 4.0), &libm::erf),
        (OpKind::Gelu { tanh: false }, spread(-12.0, 12.0), &gelu),
        (OpKind::Gelu { tanh: true }, spread(-9.0, 9.0), &gelu_tanh),
    ];
    for (op, xs, f) in cases {
        let y = one(op.clone(), &[&Tensor::f32(&[xs.len() as u64], &xs).unwrap()]);
        for (&x, &y) in xs.iter().zip(y.elements::<f32>().unwrap()) {
            let want = f(f64::from(x));
            assert!(ulps(y, want) <= 2.0, "{op:?} of {x:e} is {y:e}, not {want:e}");
        }
    }
}

#[test]
fn transcendental_functions_have_their_limits() {
    let (inf, big) = (f32::INFINITY, 1e30);
    let x = Tensor::f32(&[5], &[-inf, -big, big, inf, f32::NAN]).unwrap();
    let one_each = Tensor::f32(&[5], &[1.0; 5]).unwrap();
    let check = |op: OpKind, operands: &[&Tensor], want: [f32; 4]| {
        let y = one(op.clone(), operands);
        let y = y.elements::<f32>().unwrap();
        assert_eq!(y[..4], want, "{op:?}");
        assert!(y[4].is_nan(), "{op:?} of NaN");
    };
    check(OpKind::Exp {}, &[&x], [0.0, 0.0, inf, inf]);
    check(OpKind::Tanh {}, &[&x], [-1.0, -1.0, 1.0, 1.0]);
    check(OpKind::Erf {}, &[&x], [-1.0, -1.0, 1.0, 1.0]);
    check(OpKind::Sigmoid {}, &[&x], [0.0, 0.0, 1.0, 1.0]);
    for tanh in [false, true] {
        check(OpKind::Gelu { tanh }, &[&x], [0.0, 0.0, big, inf]);
        check(OpKind::GeluGrad { tanh }, &[&one_each, &x], [0.0, 0.0, 1.0, 1.0]);
    }
}

#[test]
fn integer_arithmetic_wraps_and_never_traps() {
    let a =
        Tensor::from_slice(memc_ir::TensorType::new(DType::I32, [4]), &[i32::MIN, 7, -7, i32::MIN]).unwrap();
    let b = Tensor::from_slice(memc_ir::TensorType::new(DType::I32, [4]), &[-1, 0, 2, i32::MAX]).unwrap();
    let result = |op| one(op, &[&a, &b]).elements::<i32>().unwrap().to_vec();
    assert_eq!(result(OpKind::Div {}), [i32::MIN, 0, -3, -1]);
    assert_eq!(result(OpKind::Add {}), [i32::MAX, 7, -5, -1]);
    assert_eq!(result(OpKind::Pow {}), [0, 1, 49, 0]);
    let abs = one(OpKind::Abs {}, &[&a]);
    assert_eq!(abs.elements::<i32>().unwrap(), [i32::MIN, 7, 7, i32::MIN]);
}

#[test]
fn rounding_goes_down_up_and_to_the_nearest_even() {
    let x = Tensor::f32(&[8], &[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.25, f32::INFINITY]).unwrap();
    let result = |op| one(op, &[&x]).elements::<f32>().unwrap().to_vec();
    assert_eq!(result(OpKind::Floor {}), [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, f32::INFINITY]);
    assert_eq!(result(OpKind::Ceil {}), [-2.0, -1.0, -0.0, 1.0, 2.0, 3.0, 4.0, f32::INFINITY]);
    assert_eq!(result(OpKind::Round {}), [-2.0, -2.0, -0.0, 0.0, 2.0, 2.0, 3.0, f32::INFINITY]);
}

#[test]
fn index_tuples_name_slices_within_their_batch() {
    arbtest(|u| {
        let (batch, depth) = (u.int_in_range(0..=2)?, u.int_in_range(1..=2)?);
        let data: Vec<u64> = (0..batch + depth + u.int_in_range(0..=1)?)
            .map(|_| u.int_in_range(1..=4))
            .collect::<Result<_>>()?;
        let outer = [&data[..batch], &[u.int_in_range(0..=5)?]].concat();
        let r = &mut random(u)?;
        let dtype = dtype(u)?;
        let x = r.tensor(dtype, &data);
        let least = data[batch..batch + depth].iter().copied().min().unwrap_or(1) as i64;
        let indices = r.indices(&[&outer[..], &[depth as u64]].concat(), 0, least);
        let tuples = indices.elements::<i64>().unwrap().chunks(depth);
        let at = |p: &[usize]| {
            let tuple = tuples.clone().nth(flat(&outer, &p[..outer.len()])).unwrap();
            let tuple: Vec<usize> = tuple.iter().map(|&v| v as usize).collect();
            flat(&data, &[&p[..batch], &tuple, &p[outer.len()..]].concat())
        };
        let batch_dims = batch as i64;
        let y = one(OpKind::GatherNd { batch_dims }, &[&x, &indices]);
        assert_eq!(y.ty.shape, [&outer[..], &data[batch + depth..]].concat());
        let places = points(&y.ty.shape);
        assert_eq!(cells(&y), places.iter().map(|p| cells(&x)[at(p)]).collect::<Vec<_>>());

        // The gradient of a gather adds into zeros.
        let zeros = Tensor::zeros(memc_ir::TensorType::new(DType::I64, &data[..])).unwrap();
        let updates = r.tensor(DType::I64, &y.ty.shape);
        let mut want = vec![0i64; zeros.ty.numel() as usize];
        for (p, v) in places.iter().zip(updates.elements::<i64>().unwrap()) {
            want[at(p)] += v;
        }
        let op = OpKind::ScatterNd { mode: ScatterMode::Add, batch_dims };
        assert_eq!(one(op, &[&zeros, &indices, &updates]).elements::<i64>().unwrap(), want);
        Ok(())
    })
    .budget_ms(BUDGET_MS);
}

#[test]
fn nan_wins_in_min_max_relu_and_reduce_max() {
    let (nan, n) = (f32::NAN, 3u64);
    let a = Tensor::f32(&[n], &[nan, 1.0, -1.0]).unwrap();
    let b = Tensor::f32(&[n], &[0.0, nan, 5.0]).unwrap();
    for op in [OpKind::Min {}, OpKind::Max {}] {
        let y = one(op, &[&a, &b]);
        assert!(y.elements::<f32>().unwrap()[..2].iter().all(|v| v.is_nan()));
    }
    assert!(one(OpKind::Relu {}, &[&a]).elements::<f32>().unwrap()[0].is_nan());
    for x in [&a, &b] {
        let y = one(OpKind::ReduceMax { axes: vec![0], keepdims: false }, &[x]);
        assert!(y.elements::<f32>().unwrap()[0].is_nan());
    }
}
