//! Ways in which a library may compute an op: by the call that the op is, or by another one, with launches
//! behind it.
//!
//! A convolution whose window is one element is a product of matrices for each image. On an H100 cuBLASLt
//! computes gradients so in half the time of cuDNN's algorithms that keep an order, and results about as
//! fast.
//!
//! - The result: `y[n] = w * x[n]`.
//! - The gradient of the input: `dx[n] = transpose(w) * dy[n]`. Where the window moves by more than one, a
//!   launch spreads the product over the zeros between.
//! - The gradient of the weight: `dw = sum of dy[n] * transpose(x[n])`. The products of all images are
//!   written to the workspace, and a launch adds them in their order. In `f32` alone, since in 16 bits each
//!   would be rounded.

use memc_ir::{DType, OpKind, SLOT_ALIGN, TensorType};

use crate::kernel::{Arg, Entry, Lowering, name};
use crate::library::{Addend, Convolution, Epilogue, LibraryCall, Pass, Product, library};
use crate::{Call, bias_grad, reduce};

/// One way in which a library may compute an op.
#[derive(Clone, PartialEq, Debug)]
pub struct Form {
    /// The call.
    pub call: LibraryCall,
    /// Places of the call's operands, then of its results.
    pub places: Vec<Arg>,
    /// Bytes at the start of the workspace that are not the library's: results of the call that launches
    /// read.
    pub kept: u64,
    /// Launches behind the call.
    pub rest: Lowering,
    /// Whether the call is another than [`library`] returns.
    pub is_apart: bool,
}

/// All ways in which a library may compute `op` on operands of these types, the one that is expected to be
/// the fastest first; none where the op has to be generated.
pub fn forms(op: &OpKind, operands: &[TensorType]) -> Vec<Form> {
    let whole = library(op, operands);
    let mut forms: Vec<Form> = whole.into_iter().map(Form::own).collect();
    forms.extend(bias_grad::split_call(op, operands).map(|(call, rest)| Form {
        rest,
        is_apart: true,
        ..Form::own(call)
    }));
    if let Some(LibraryCall::Convolution(c)) = whole
        && let Some(form) = as_product(&c)
    {
        // Of the results neither is faster in general.
        forms.insert(usize::from(matches!(c.pass, Pass::Forward { .. })), form);
    }
    forms
}

impl Form {
    /// The call on the op's first operands, giving its first results.
    fn own(call: LibraryCall) -> Form {
        let (takes, gives) = call.elements();
        let places = (0..takes.len()).map(Arg::Operand).chain((0..gives.len()).map(Arg::Result)).collect();
        Form { call, places, kept: 0, rest: Lowering::default(), is_apart: false }
    }

    /// Bytes of workspace without which it cannot be.
    pub fn least_workspace(&self) -> u64 {
        if self.kept > 0 { self.kept.max(self.rest.workspace) } else { 0 }
    }
}

/// A convolution as a product for each image, where it is one.
fn as_product(c: &Convolution) -> Option<Form> {
    let size = |d: i32| u64::try_from(d).ok();
    let number = |d: u64| u32::try_from(d).ok();
    let [images, .., height, width] = c.x;
    let &[out, inner, 1, 1] = &c.w else { return None };
    let [.., oh, ow] = c.y;
    if c.pads != [0, 0] || c.groups != 1 {
        return None;
    }
    let is_dense = c.strides == [1, 1];
    let [images, out, inner, pixels] = [size(images)?, size(out)?, size(inner)?, size(oh)? * size(ow)?];
    let product = |[m, n, k]: [u64; 3], [trans_a, trans_b]: [bool; 2], [stride_a, stride_b]: [u64; 2]| {
        Some(LibraryCall::Product(Product {
            dtype: c.dtype,
            m: number(m)?,
            n: number(n)?,
            k: number(k)?,
            trans_a,
            trans_b,
            batch: number(images)?,
            stride_a,
            stride_b,
            alpha: 1.0,
            addend: Addend::None,
            epilogue: Epilogue::None,
        }))
    };
    let form = |call, [a, b]: [usize; 2], at: Arg, kept: u64, rest| Form {
        call,
        places: vec![Arg::Operand(a), Arg::Operand(b), at],
        kept,
        rest,
        is_apart: true,
    };
    let bytes = |elements: u64| (elements * c.dtype.bytes()).next_multiple_of(SLOT_ALIGN);
    match c.pass {
        Pass::Forward { has_bias: false, is_rectified: false } if is_dense => {
            let call = product([out, pixels, inner], [false, false], [0, inner * pixels])?;
            Some(form(call, [1, 0], Arg::Result(0), 0, Lowering::default()))
        }
        Pass::Forward { .. } => None,
        Pass::GradInput => {
            let call = product([inner, pixels, out], [true, false], [0, out * pixels])?;
            if is_dense {
                return Some(form(call, [1, 0], Arg::Result(0), 0, Lowering::default()));
            }
            let planes = images * inner;
            let rest = spread(c.dtype, planes, [[height, width], [oh, ow], c.strides])?;
            Some(form(call, [1, 0], Arg::Workspace(0), bytes(planes * pixels), rest))
        }
        Pass::GradWeight if is_dense && c.dtype == DType::F32 => {
            let call = product([out, inner, pixels], [false, true], [out * pixels, inner * pixels])?;
            let kept = bytes(images * out * inner);
            let parts = TensorType { dtype: c.dtype, shape: vec![images, out * inner] };
            let rest = add_up(&parts, kept)?;
            Some(form(call, [0, 1], Arg::Workspace(0), kept, rest))
        }
        Pass::GradWeight => None,
    }
}

/// The sum over the first axis of what the workspace begins with, whose further bytes from `kept` on it uses.
fn add_up(parts: &TensorType, kept: u64) -> Option<Lowering> {
    let op = OpKind::ReduceSum { axes: vec![0], keepdims: false };
    let results = op.infer(&[parts]).ok()?;
    let mut sum = reduce::lower(&Call { op: &op, operands: std::slice::from_ref(parts), results: &results })?;
    for arg in sum.launches.iter_mut().flat_map(|launch| &mut launch.args) {
        *arg = match *arg {
            Arg::Operand(_) => Arg::Workspace(0),
            Arg::Workspace(at) => Arg::Workspace(kept + at),
            other => other,
        };
    }
    sum.workspace += kept;
    Some(sum)
}

/// Planes of the first extents, zero but for every so many rows and columns, which are those of the planes of
/// the second extents that the workspace begins with.
fn spread(
    dtype: DType,
    planes: u64,
    [[height, width], [oh, ow], [sh, sw]]: [[i32; 2]; 3],
) -> Option<Lowering> {
    let t = name(dtype);
    let entry = Entry::new().buffer(Arg::Workspace(0), &format!("const {t}"), "from").result(0, t, "to");
    let fields = [("height", height), ("width", width), ("oh", oh), ("ow", ow), ("sh", sh), ("sw", sw)];
    let entry = fields.iter().fold(entry, |entry, (name, value)| entry.int(name, *value));
    let body = format!(
        "const idx column = i % (idx)width, above = i / (idx)width;\n\
         const idx row = above % (idx)height, plane = above / (idx)height;\n\
         const idx r = row / (idx)sh, c = column / (idx)sw;\n\
         const bool is_there = r * (idx)sh == row && c * (idx)sw == column;\n\
         to[i] = is_there ? from[(plane * (idx)oh + r) * (idx)ow + c] : down<{t}>(0.0f);"
    );
    let total = planes * u64::try_from(height).ok()? * u64::try_from(width).ok()?;
    Some(Lowering::of(entry.each("spread", total, &body)))
}

#[cfg(test)]
mod tests;
