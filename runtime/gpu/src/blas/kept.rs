//! Ways of a product other than the heuristic's best: those that it offers besides, and one that was kept.

use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t as Algorithm;

use super::Matmul;
use crate::library::Refusal;
use crate::{LibraryWay, Offer};

/// An algorithm as it is kept.
fn kept(algorithm: &Algorithm) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (to, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(algorithm.data) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

impl Matmul {
    /// All ways that the heuristic offers, the best first.
    pub(crate) fn offers(&self) -> Vec<Offer> {
        let offer = |(algorithm, workspace): &(Algorithm, usize)| Offer {
            way: LibraryWay::Product(Box::new(kept(algorithm))),
            workspace: *workspace,
        };
        self.offered.iter().map(offer).collect()
    }

    /// Takes this way instead, where it is one that the heuristic offers. Bytes that were kept may be anything, and no
    /// function of the library promises to look at such; so it never sees them.
    pub(crate) fn take(&mut self, way: &[u8; 64]) -> Result<(), Refusal> {
        let found = self.offered.iter().find(|(algorithm, _)| kept(algorithm) == *way);
        (self.algorithm, self.workspace) = *found.ok_or(Refusal::Unsupported)?;
        Ok(())
    }
}
