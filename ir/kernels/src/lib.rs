//! CPU kernels: the meaning of every op in numbers.
