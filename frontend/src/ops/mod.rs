//! Import functions by family. Each turns one node into ops, or into a constant when its operands are.

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod block;
pub(crate) mod conv;
pub(crate) mod einsum;
pub(crate) mod elementwise;
pub(crate) mod fourier;
pub(crate) mod gradient;
pub(crate) mod index;
pub(crate) mod linalg;
pub(crate) mod loss;
pub(crate) mod movement;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod recurrent;
pub(crate) mod reduce;
pub(crate) mod resize;
pub(crate) mod sample;
pub(crate) mod sequence;
pub(crate) mod shape;
pub(crate) mod update;
pub(crate) mod volume;
mod window;
