//! Which of cuDNN's algorithms may be taken, and which are looked for.

use cudarc::cudnn::sys;

use super::Math;
use crate::tuning::Wanted;
use crate::{LibraryAlgorithm, MOST_ALGORITHMS};

/// Which of the heuristic's algorithms may be taken.
#[derive(Clone, Copy)]
pub(super) struct Rules<'a> {
    /// The most that is allowed of arithmetic.
    pub(super) math: Math,
    /// Whether products may be those of transforms.
    pub(super) transforms: bool,
    pub(super) any_order: bool,
    /// Most bytes of workspace.
    pub(super) workspace: usize,
    pub(super) wanted: Wanted<'a>,
}

impl Rules<'_> {
    pub(super) fn allow(&self, math: Math, is_direct: bool, determinism: sys::cudnnDeterminism_t) -> bool {
        let is_precise = match self.math {
            Math::CUDNN_FMA_MATH => math == Math::CUDNN_FMA_MATH,
            _ => math != Math::CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION,
        };
        let is_ordered = determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC;
        is_precise && (is_direct || self.transforms) && (is_ordered || self.any_order)
    }

    /// Whether one of the heuristic's algorithms is looked for.
    pub(super) fn want(&self, algorithm: u32, math: Math) -> bool {
        match self.wanted {
            Wanted::Best | Wanted::All => true,
            Wanted::Tuned(tuned) => *tuned == LibraryAlgorithm::Convolution { algorithm, math: math as u32 },
        }
    }

    /// Whether so many algorithms are all that are looked for.
    pub(super) fn enough(&self, algorithms: usize) -> bool {
        algorithms >= if matches!(self.wanted, Wanted::All) { MOST_ALGORITHMS } else { 1 }
    }
}
