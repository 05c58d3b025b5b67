//! Ways of a product other than the heuristic's best: those that it offers besides, and one that was kept.

use cudarc::cublaslt::sys::{self, cublasLtMatmulAlgoConfigAttributes_t as Config, cublasStatus_t as Status};

use super::{Blas, Matmul, done, schemes};
use crate::library::Refusal;
use crate::{LibraryWay, Offer};

impl Matmul {
    /// All ways that the heuristic offers, the best first.
    pub(crate) fn offers(&self) -> Vec<Offer> {
        let offer = |(algorithm, workspace): &(sys::cublasLtMatmulAlgo_t, usize)| {
            let mut bytes = [0; 64];
            for (to, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(algorithm.data) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            Offer { way: LibraryWay::Product(Box::new(bytes)), workspace: *workspace }
        };
        self.offered.iter().map(offer).collect()
    }
}

impl Blas {
    /// Takes this way for a product instead, where the library takes it, it needs no more than so many bytes of workspace,
    /// and parts of a sum are added up as is allowed.
    #[allow(unsafe_code, reason = "cuBLASLt is a C library")]
    pub(crate) fn take(
        &self,
        product: &mut Matmul,
        kept: &[u8; 64],
        workspace: usize,
        any_order: bool,
    ) -> Result<(), Refusal> {
        let mut algorithm = sys::cublasLtMatmulAlgo_t { data: [0; 8] };
        let (words, _) = kept.as_chunks::<{ size_of::<u64>() }>();
        algorithm.data.iter_mut().zip(words).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        // SAFETY: numbers, all of which may be zero; zero is a success among the statuses.
        let mut found: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        // SAFETY: everything that is passed exists. Whether the algorithm means anything is what the function tells.
        let status = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                self.handle.pointer,
                product.desc.pointer,
                product.left.pointer,
                product.right.pointer,
                product.result.pointer,
                product.result.pointer,
                &algorithm,
                &mut found,
            )
        };
        match status {
            Status::CUBLAS_STATUS_NOT_SUPPORTED | Status::CUBLAS_STATUS_INVALID_VALUE => {
                return Err(Refusal::Unsupported);
            }
            _ => done("cublasLtMatmulAlgoCheck", status)?,
        }
        let scheme = number(&algorithm, Config::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)?;
        let parts = number(&algorithm, Config::CUBLASLT_ALGO_CONFIG_SPLITK_NUM)?;
        let is_ordered = scheme & !schemes(any_order) == 0 && (scheme != 0 || parts <= 1);
        if !is_ordered || found.state != Status::CUBLAS_STATUS_SUCCESS || found.workspaceSize > workspace {
            return Err(Refusal::Unsupported);
        }
        (product.algorithm, product.workspace) = (algorithm, found.workspaceSize);
        Ok(())
    }
}

/// A property of an algorithm that is a number of 32 bits.
#[allow(unsafe_code, reason = "cuBLASLt is a C library")]
fn number(algorithm: &sys::cublasLtMatmulAlgo_t, attribute: Config) -> Result<u32, Refusal> {
    let (mut number, mut written) = (0u32, 0);
    // SAFETY: the library writes no more bytes than the number has, and how many these are.
    let status = unsafe {
        sys::cublasLtMatmulAlgoConfigGetAttribute(
            algorithm,
            attribute,
            (&raw mut number).cast(),
            size_of::<u32>(),
            &mut written,
        )
    };
    match status {
        Status::CUBLAS_STATUS_SUCCESS if written == size_of::<u32>() => Ok(number),
        // Without it nothing is known of the order of sums.
        _ => Err(Refusal::Unsupported),
    }
}
