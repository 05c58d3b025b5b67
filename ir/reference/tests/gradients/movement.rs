//! Cases of reductions, data movement, gather and scatter, and random tensors.

use memc_ir::attr::{F32, Scalar, ScatterMode};
use memc_ir::{DType, OpKind};
use memc_reference::Tensor64;

use crate::support::{Case, Random};

pub(crate) fn cases(all: &mut Vec<Case>) {
    let r = &mut Random::new(3);
    reductions(r, all);
    moves(r, all);
    slices(r, all);
    indices(r, all);
    random(r, all);
}

fn reductions(r: &mut Random, all: &mut Vec<Case>) {
    use OpKind::*;
    for axes in [vec![], vec![0], vec![1], vec![0, 2], vec![0, 1, 2]] {
        for keepdims in [false, true] {
            let shape = [2, 3, 4];
            let a = || axes.clone();
            all.push(Case::new(ReduceSum { axes: a(), keepdims }, vec![r.nonzero(&shape)]));
            all.push(Case::new(ReduceMean { axes: a(), keepdims }, vec![r.nonzero(&shape)]));
            all.push(Case::new(ReduceMax { axes: a(), keepdims }, vec![r.distinct(&shape, 0.0)]));
        }
    }
    for shape in [&[][..], &[5], &[2, 3]] {
        all.push(Case::new(SumSquares {}, vec![r.nonzero(shape)]));
    }
}

fn moves(r: &mut Random, all: &mut Vec<Case>) {
    use OpKind::*;
    let shape = [2, 3, 4];
    for perm in [vec![0, 1, 2], vec![2, 0, 1], vec![1, 2, 0], vec![0, 2, 1]] {
        all.push(Case::new(Transpose { perm }, vec![r.nonzero(&shape)]));
    }
    for to in [vec![24], vec![4, 6], vec![2, 3, 4], vec![1, 2, 12]] {
        all.push(Case::new(Reshape { shape: to }, vec![r.nonzero(&shape)]));
    }
    for from in [&[][..], &[1], &[3, 1], &[2, 1, 4], &[1, 1, 1], &[2, 3, 4]] {
        all.push(Case::new(Broadcast { shape: shape.to_vec() }, vec![r.nonzero(from)]));
    }
    for axis in 0..3 {
        let mut middle = shape;
        middle[axis] = 1;
        let xs = vec![r.nonzero(&shape), r.nonzero(&middle), r.nonzero(&shape)];
        all.push(Case::new(Concat { axis: axis as i64 }, xs.clone()));
        all.push(Case::only(Concat { axis: axis as i64 }, xs, &[1]));
    }
    all.push(Case::new(Concat { axis: 0 }, vec![r.nonzero(&shape)]));
    let value = Scalar::Float(F32(2.5));
    all.push(Case::new(Pad { before: vec![1, 0, 2], after: vec![0, 0, 1], value }, vec![r.nonzero(&shape)]));
    all.push(Case::new(Pad { before: vec![0; 3], after: vec![0; 3], value }, vec![r.nonzero(&shape)]));
    all.push(Case::new(Fill { dtype: DType::F32, shape: vec![2], value }, vec![]));
}

fn slices(r: &mut Random, all: &mut Vec<Case>) {
    // Start, end and step of each axis of 7 and 6 elements.
    for [(a, b, s), (c, d, t)] in [
        [(0, 7, 1), (0, 6, 1)],
        [(2, 5, 1), (1, 6, 1)],
        [(0, 7, 2), (1, 6, 3)],
        [(1, 7, 3), (5, -1, -1)],
        [(6, -1, -2), (4, 0, -3)],
        [(5, 1, -1), (0, 6, 5)],
        [(3, 4, 4), (2, 1, -5)],
    ] {
        let op = OpKind::Slice { starts: vec![a, c], ends: vec![b, d], steps: vec![s, t] };
        all.push(Case::new(op, vec![r.nonzero(&[7, 6])]));
    }
}

fn indices(r: &mut Random, all: &mut Vec<Case>) {
    use OpKind::*;
    for axis in 0..3 {
        let data = [3, 4, 2];
        let extent = data[axis] as i64;
        for shape in [&[][..], &[5], &[2, 3]] {
            let ids = r.ints(shape, -extent, extent);
            let axis = axis as i64;
            all.push(Case::new(Gather { axis }, vec![r.nonzero(&data), ids.clone()]));
            let at = axis as usize;
            let dy = r.nonzero(&[&data[..at], shape, &data[at + 1..]].concat());
            all.push(Case::new(GatherGrad { axis, dim: extent }, vec![ids, dy]));
        }
        let mut shape = [2, 3, 2];
        shape[axis] = 5;
        let ids = r.ints(&shape, -extent, extent);
        let axis = axis as i64;
        all.push(Case::new(GatherElements { axis }, vec![r.nonzero(&data), ids.clone()]));
        let (x, u) = (r.nonzero(&data), r.nonzero(&shape));
        for mode in [ScatterMode::Add, ScatterMode::Mul, ScatterMode::Min, ScatterMode::Max] {
            all.push(Case::new(ScatterElements { axis, mode }, vec![x.clone(), ids.clone(), u.clone()]));
        }
    }
    // Replacing wants every position at most once.
    let ids = Tensor64::ints(&[2, 2], vec![2, 0, -3, 1]);
    let (x, u) = (r.nonzero(&[3, 2]), r.nonzero(&[2, 2]));
    all.push(Case::new(ScatterElements { axis: 0, mode: ScatterMode::Replace }, vec![x, ids, u]));

    let data = [3, 4, 2];
    for (batch_dims, ids, slices) in [
        (0, Tensor64::ints(&[2, 1], vec![-1, 0]), &[2, 4, 2][..]),
        (0, Tensor64::ints(&[3, 2], vec![0, 1, 2, -1, 1, 0]), &[3, 2]),
        (0, Tensor64::ints(&[1, 2, 3], vec![0, 1, 1, 2, 3, 0]), &[1, 2]),
        (1, Tensor64::ints(&[3, 1], vec![0, -1, 2]), &[3, 2]),
    ] {
        all.push(Case::new(GatherNd { batch_dims }, vec![r.nonzero(&data), ids.clone()]));
        for mode in ScatterMode::ALL {
            let operands = vec![r.nonzero(&data), ids.clone(), r.nonzero(slices)];
            all.push(Case::new(ScatterNd { mode, batch_dims }, operands));
        }
    }
    all.push(Case::new(TopK { axis: 1, k: 2, smallest: false }, vec![r.nonzero(&data)]));
    // Positions that are named twice.
    let ids = Tensor64::ints(&[3, 2], vec![0, 1, 2, -1, 0, 1]);
    all.push(Case::new(GatherNd { batch_dims: 0 }, vec![r.nonzero(&data), ids.clone()]));
    let operands = vec![r.nonzero(&data), ids, r.nonzero(&[3, 2])];
    all.push(Case::new(ScatterNd { mode: ScatterMode::Add, batch_dims: 0 }, operands));
}

fn random(r: &mut Random, all: &mut Vec<Case>) {
    use OpKind::*;
    let (seed, stream, ratio) = (7, 2, F32(0.4));
    let step = Tensor64::ints(&[], vec![3]);
    let shape = vec![2, 5];
    all.push(Case::new(Dropout { ratio, seed, stream }, vec![r.nonzero(&shape), step.clone()]));
    all.push(Case::new(MaskScale { scale: F32(1.25) }, vec![r.nonzero(&shape), r.bools(&shape)]));
    all.push(Case::new(RandomMask { ratio, seed, stream, shape: shape.clone() }, vec![step.clone()]));
    let (low, high, mean, scale) = (F32(-1.0), F32(1.0), F32(0.0), F32(1.0));
    all.push(Case::new(RandomUniform { seed, stream, shape: shape.clone(), low, high }, vec![step.clone()]));
    all.push(Case::new(RandomNormal { seed, stream, shape, mean, scale }, vec![step]));
}
