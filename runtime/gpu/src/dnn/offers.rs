//! Offers of cuDNN's heuristics, and the rules by which they are taken.

use cudarc::cudnn::sys::{self, cudnnMathType_t as Math};

use crate::library::Wanted;
use crate::{LibraryAlgorithm, MOST_ALGORITHMS};

/// Rules for the heuristic's algorithms.
#[derive(Clone, Copy)]
pub(super) struct Rules<'a> {
    /// The most that is allowed of arithmetic.
    pub(super) math: Math,
    /// Whether algorithms by transforms are allowed.
    pub(super) transforms: bool,
    pub(super) any_order: bool,
    /// Most bytes of workspace.
    pub(super) workspace: usize,
    pub(super) wanted: Wanted<'a>,
}

/// Offer of the heuristic, as numbers: the bindings' enumerations have no value for what a newer library may
/// say, nor for what a failed offer holds.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Offer {
    pub(super) algorithm: u32,
    pub(super) status: u32,
    _ms: f32,
    _memory: usize,
    determinism: u32,
    math: u32,
    _reserved: [i32; 3],
}

const _: () = assert!(size_of::<Offer>() == size_of::<sys::cudnnConvolutionFwdAlgoPerf_t>());
const _: () = assert!(size_of::<Offer>() == size_of::<sys::cudnnConvolutionBwdDataAlgoPerf_t>());
const _: () = assert!(size_of::<Offer>() == size_of::<sys::cudnnConvolutionBwdFilterAlgoPerf_t>());

/// The kind of arithmetic with this number.
fn math(number: u32) -> Option<Math> {
    let all = [
        Math::CUDNN_DEFAULT_MATH,
        Math::CUDNN_TENSOR_OP_MATH,
        Math::CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION,
        Math::CUDNN_FMA_MATH,
    ];
    all.into_iter().find(|math| *math as u32 == number)
}

impl Rules<'_> {
    /// Arithmetic of an offer that they allow and that is wanted.
    pub(super) fn take(&self, offer: &Offer, is_direct: bool) -> Option<Math> {
        let math = math(offer.math)?;
        let is_precise = match self.math {
            Math::CUDNN_FMA_MATH => math == Math::CUDNN_FMA_MATH,
            _ => math != Math::CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION,
        };
        let is_ordered = offer.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC as u32;
        let is_allowed = is_precise && (is_direct || self.transforms) && (is_ordered || self.any_order);
        let this = LibraryAlgorithm::Convolution { algorithm: offer.algorithm, math: offer.math };
        let is_wanted = match self.wanted {
            Wanted::Best | Wanted::All => true,
            Wanted::Tuned(tuned) => *tuned == this,
        };
        (is_allowed && is_wanted).then_some(math)
    }

    /// Whether so many algorithms are enough.
    pub(super) fn enough(&self, count: usize) -> bool {
        count >= if matches!(self.wanted, Wanted::All) { MOST_ALGORITHMS } else { 1 }
    }
}
