//! Algorithms of a product other than the heuristic's best: those that it offers besides, and a tuned one.

use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t as Algorithm;

use super::Matmul;
use crate::library::Refusal;
use crate::{Candidate, LibraryAlgorithm};

/// Bytes of an algorithm, as plans have them.
fn bytes(algorithm: &Algorithm) -> [u8; 64] {
    let mut out = [0; 64];
    for (to, word) in out.chunks_exact_mut(size_of::<u64>()).zip(algorithm.data) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    out
}

impl Matmul {
    /// All algorithms that the heuristic offers, the best first.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let candidate = |(algorithm, workspace): &(Algorithm, usize)| Candidate {
            algorithm: LibraryAlgorithm::Product(Box::new(bytes(algorithm))),
            workspace: *workspace,
        };
        self.candidates.iter().map(candidate).collect()
    }

    /// Takes this algorithm instead, where it is one that the heuristic offers. Bytes that were kept may be
    /// anything, and no function of the library promises to look at such; so it never sees them.
    pub(crate) fn take(&mut self, algorithm: &[u8; 64]) -> Result<(), Refusal> {
        let found = self.candidates.iter().find(|(candidate, _)| bytes(candidate) == *algorithm);
        (self.algorithm, self.workspace) = *found.ok_or(Refusal::Unsupported)?;
        Ok(())
    }
}
