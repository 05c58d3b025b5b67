//! Matrix products by cuBLASLt.
//!
//! cuBLASLt's matrices are stored by columns, so that a row-major matrix is the transpose of what it sees:
//! `y = a b` by rows is `y' = b' a'` by columns, with the operands in the other order and nothing moved.
//!
//! Sums are kept in `f32` ([`CUBLAS_COMPUTE_32F`](sys::cublasComputeType_t), which uses no TF32;
//! `CUBLAS_COMPUTE_32F_FAST_TF32` does). Where a sum is cut into parts, only those ways are allowed that keep
//! the parts in `f32` in the workspace and add them up in a step of its own
//! (`CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`), besides those that do not cut: they have one order, and round
//! once. Reduction in place is ordered too, by counters, but it rounds parts to the type of the result. The
//! header says what each scheme does (`cublasLt.h`, `cublasLtReductionScheme_t`); that the same call of the
//! same version gives the same bits on GPUs of one architecture with as many multiprocessors is the promise
//! of cuBLAS (cuBLAS documentation, "Results Reproducibility"), which it makes for cuBLASLt where the
//! workspace is the caller's and the algorithm is fixed.

use std::ffi::{CStr, c_char, c_void};

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasLtEpilogue_t as Flag, cublasLtMatmulAlgo_t as Algorithm,
    cublasLtMatmulDescAttributes_t as DescAttribute, cublasLtMatmulPreferenceAttributes_t as Preference,
    cublasLtMatrixLayoutAttribute_t as LayoutAttribute, cublasStatus_t as Status, cudaDataType_t as Type,
};
use memc_cuda::{Addend, DType, Epilogue, PLACE_ALIGN, Product};

use crate::driver::{LibraryOptions, Reason, Rounding};
use crate::library::{Handle, Refusal, failed, require, unusable};
use crate::{Candidate, Component, GpuError, LibraryAlgorithm, MOST_ALGORITHMS};

/// Functions that are called.
const SYMBOLS: &[&str] = &[
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetStatusName",
    "cublasLtGetStatusString",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
];

/// Workspace that is offered to learn what a product would take, in bytes.
const MUCH: usize = 1 << 32;
/// Name of the function that sets an attribute of a product.
const DESCRIBE: &str = "cublasLtMatmulDescSetAttribute";

type Layout = Handle<sys::cublasLtMatrixLayoutOpaque_t, Status>;

/// The library's two texts for a status.
#[allow(unsafe_code, reason = "cuBLASLt is a C library")]
fn text(status: Status) -> String {
    let text = |pointer: *const c_char| match pointer.is_null() {
        true => "unknown".into(),
        // SAFETY: a constant text of the library.
        false => unsafe { CStr::from_ptr(pointer) }.to_string_lossy(),
    };
    // SAFETY: has no conditions.
    let (name, meaning) =
        unsafe { (sys::cublasLtGetStatusName(status), sys::cublasLtGetStatusString(status)) };
    format!("{}, {}", text(name), text(meaning))
}

/// Result of a function that runs a product.
fn done(function: &'static str, status: Status) -> Result<(), GpuError> {
    match status {
        Status::CUBLAS_STATUS_SUCCESS => Ok(()),
        _ => {
            let is_full = status == Status::CUBLAS_STATUS_ALLOC_FAILED;
            Err(failed(Component::CublasLt, function, text(status), is_full))
        }
    }
}

/// Result of a function that plans one.
fn planned(function: &'static str, status: Status) -> Result<(), Refusal> {
    match status {
        Status::CUBLAS_STATUS_SUCCESS => Ok(()),
        _ => Err(Refusal::of_status(function, text(status))),
    }
}

/// A product with the algorithm that computes it.
#[derive(Debug)]
pub(crate) struct Matmul {
    desc: Handle<sys::cublasLtMatmulDescOpaque_t, Status>,
    /// Of the library's A, which is `b`.
    left: Layout,
    /// Of the library's B, which is `a`.
    right: Layout,
    /// Of C and D.
    result: Layout,
    algorithm: Algorithm,
    alpha: f32,
    addend: Addend,
    epilogue: Epilogue,
    /// Bytes that it takes.
    pub(crate) workspace: usize,
    /// The heuristic's algorithms with the bytes that they take, the best first.
    candidates: Vec<(Algorithm, usize)>,
}

impl Matmul {
    /// The heuristic's algorithms, the best first.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let candidate = |(algorithm, workspace): &(Algorithm, usize)| Candidate {
            algorithm: LibraryAlgorithm::Product(Box::new(serialized(algorithm))),
            workspace: *workspace,
        };
        self.candidates.iter().map(candidate).collect()
    }

    /// Takes this algorithm instead, where it is a candidate. The library never sees the bytes themselves:
    /// they may be anything, and none of its functions promises to validate them.
    pub(crate) fn take(&mut self, bytes: &[u8; 64]) -> Result<(), Refusal> {
        let found = self.candidates.iter().find(|(algorithm, _)| serialized(algorithm) == *bytes);
        (self.algorithm, self.workspace) = *found.ok_or(Refusal::Unsupported(Reason::Nothing))?;
        Ok(())
    }
}

/// An algorithm as bytes.
fn serialized(algorithm: &Algorithm) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (to, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(algorithm.data) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The library.
#[derive(Debug)]
pub(crate) struct Blas {
    handle: Handle<sys::cublasLtContext, Status>,
}

impl Blas {
    /// Starts it in the current context.
    #[allow(unsafe_code, reason = "cuBLASLt is a C library")]
    pub(crate) fn start() -> Result<Blas, GpuError> {
        require(Component::CublasLt, SYMBOLS)?;
        // SAFETY: a handle to write; a context is current.
        let create = |handle| match unsafe { sys::cublasLtCreate(handle) } {
            Status::CUBLAS_STATUS_SUCCESS => Ok(()),
            status => {
                let is_full = status == Status::CUBLAS_STATUS_ALLOC_FAILED;
                Err(unusable(Component::CublasLt, "cublasLtCreate", text(status), is_full))
            }
        };
        Ok(Blas { handle: Handle::new(create, sys::cublasLtDestroy)? })
    }

    /// Chooses an algorithm that takes at most so many bytes of workspace.
    #[allow(unsafe_code, reason = "cuBLASLt is a C library")]
    pub(crate) fn plan(
        &self,
        product: &Product,
        workspace: usize,
        options: LibraryOptions,
    ) -> Result<Matmul, Refusal> {
        let element = match product.dtype {
            DType::F32 => Type::CUDA_R_32F,
            DType::F16 => Type::CUDA_R_16F,
            DType::BF16 => Type::CUDA_R_16BF,
            _ => return Err(Refusal::Unsupported(Reason::Nothing)),
        };
        let compute = match options.rounding {
            Rounding::Tf32 if element == Type::CUDA_R_32F => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            Rounding::Bf16 if element == Type::CUDA_R_32F => Compute::CUBLAS_COMPUTE_32F_FAST_16BF,
            _ => Compute::CUBLAS_COMPUTE_32F,
        };
        let create = |desc| {
            // SAFETY: a handle to write.
            let status = unsafe { sys::cublasLtMatmulDescCreate(desc, compute, Type::CUDA_R_32F) };
            planned("cublasLtMatmulDescCreate", status)
        };
        let desc = Handle::new(create, sys::cublasLtMatmulDescDestroy)?;
        // The values of `cublasOperation_t`: 0 for a matrix as it is stored, 1 for its transpose.
        let (trans_a, trans_b) = (i32::from(product.trans_b), i32::from(product.trans_a));
        planned(DESCRIBE, describe(&desc, DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, &trans_a))?;
        planned(DESCRIBE, describe(&desc, DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, &trans_b))?;
        describe_epilogue(&desc, product)?;
        let [m, n, k] = [product.m, product.n, product.k].map(u64::from);
        let turned =
            |flag: bool, rows: u64, columns: u64| if flag { (columns, rows) } else { (rows, columns) };
        let layout = |(rows, columns), stride| layout(element, rows, columns, product.batch, stride);
        let left = layout(turned(product.trans_b, n, k), product.stride_b)?;
        let right = layout(turned(product.trans_a, k, m), product.stride_a)?;
        let result = layout((n, m), m * n)?;
        let ask = |bytes| {
            let found = self.choose(&desc, [&left, &right, &result], bytes, options.allow_nondeterminism)?;
            if found.is_empty() { Err(Refusal::Unsupported(Reason::Nothing)) } else { Ok(found) }
        };
        let candidates = match ask(workspace) {
            // It does not say what it lacks, but what it would do with more.
            Err(Refusal::Unsupported(reason)) => {
                let least = ask(MUCH).ok().and_then(|found| found.iter().map(|(_, bytes)| *bytes).min());
                let reason = least.map_or(reason, |bytes| Reason::Workspace(bytes as u64));
                return Err(Refusal::Unsupported(reason));
            }
            found => found?,
        };
        let &(algorithm, workspace) = candidates.first().ok_or(Refusal::Unsupported(Reason::Nothing))?;
        let Product { alpha, addend, epilogue, .. } = *product;
        Ok(Matmul { desc, left, right, result, algorithm, alpha, addend, epilogue, workspace, candidates })
    }

    /// The heuristic's algorithms that fit, the best first, and the workspace that each takes.
    #[allow(unsafe_code, reason = "cuBLASLt is a C library")]
    fn choose(
        &self,
        desc: &Handle<sys::cublasLtMatmulDescOpaque_t, Status>,
        [left, right, result]: [&Layout; 3],
        workspace: usize,
        any_order: bool,
    ) -> Result<Vec<(Algorithm, usize)>, Refusal> {
        let create = |preference| {
            // SAFETY: a handle to write.
            let status = unsafe { sys::cublasLtMatmulPreferenceCreate(preference) };
            planned("cublasLtMatmulPreferenceCreate", status)
        };
        let preference = Handle::new(create, sys::cublasLtMatmulPreferenceDestroy)?;
        let set = |attribute, value: &[u8]| {
            // SAFETY: the preference exists; the library reads that many bytes.
            let status = unsafe {
                sys::cublasLtMatmulPreferenceSetAttribute(
                    preference.pointer,
                    attribute,
                    value.as_ptr().cast(),
                    value.len(),
                )
            };
            planned("cublasLtMatmulPreferenceSetAttribute", status)
        };
        set(Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &(workspace as u64).to_ne_bytes())?;
        set(Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes(any_order).to_ne_bytes())?;
        for attribute in [
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            set(attribute, &(PLACE_ALIGN as u32).to_ne_bytes())?;
        }
        // The result may depend on the number that is asked for, and a tuned algorithm is looked up in it:
        // the number is always the same.
        // SAFETY: numbers, all of which may be zero; zero is a success among the statuses.
        let mut found: [sys::cublasLtMatmulHeuristicResult_t; MOST_ALGORITHMS] =
            unsafe { std::mem::zeroed() };
        let mut count = 0;
        // SAFETY: everything that is passed exists; there is room for as many results as are asked for.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle.pointer,
                desc.pointer,
                left.pointer,
                right.pointer,
                result.pointer,
                result.pointer,
                preference.pointer,
                MOST_ALGORITHMS as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        planned("cublasLtMatmulAlgoGetHeuristic", status)?;
        let found = found.iter().take(usize::try_from(count).unwrap_or(0));
        let fit = found
            .filter(|result| {
                result.state == Status::CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace
            })
            .map(|result| (result.algo, result.workspaceSize));
        Ok(fit.collect())
    }

    /// Multiplies what is at these addresses: operands in the op's order, then results.
    #[allow(unsafe_code, reason = "cuBLASLt is a C library")]
    pub(crate) fn run(
        &self,
        matmul: &Matmul,
        addresses: [u64; 5],
        workspace: u64,
        stream: *mut c_void,
    ) -> Result<(), GpuError> {
        let [a, b, more @ ..] = addresses;
        let mut more = more.into_iter();
        let mut next = || more.next().unwrap_or_default();
        let added = if matmul.addend == Addend::None { None } else { Some(next()) };
        if let (Addend::Row, Some(row)) = (matmul.addend, added) {
            done(DESCRIBE, describe(&matmul.desc, DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &row))?;
        }
        if has_more(matmul.epilogue) {
            let attribute = DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER;
            done(DESCRIBE, describe(&matmul.desc, attribute, &next()))?;
        }
        let d = next();
        if has_sum(matmul.epilogue) {
            let attribute = DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            done(DESCRIBE, describe(&matmul.desc, attribute, &next()))?;
        }
        let (c, beta) = match (matmul.addend, added) {
            (Addend::Matrix { beta }, Some(c)) => (c, beta),
            _ => (d, 0.0f32),
        };
        // SAFETY: the handles exist. The addresses are those of matrices as the layouts describe, in the
        // device's arena, and of the workspace that the algorithm takes; they stay there until the stream has
        // run dry.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.handle.pointer,
                matmul.desc.pointer,
                (&raw const matmul.alpha).cast(),
                b as *const c_void,
                matmul.left.pointer,
                a as *const c_void,
                matmul.right.pointer,
                (&raw const beta).cast(),
                c as *const c_void,
                matmul.result.pointer,
                d as *mut c_void,
                matmul.result.pointer,
                &matmul.algorithm,
                workspace as *mut c_void,
                matmul.workspace,
                stream.cast(),
            )
        };
        done("cublasLtMatmul", status)
    }
}

/// Reduction schemes that are allowed for the parts of a sum, besides sums in one part.
fn schemes(any_order: bool) -> u32 {
    let schemes = match any_order {
        true => sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_MASK,
        false => sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
    };
    schemes as u32
}

/// Sets an attribute of a product.
#[allow(unsafe_code, reason = "cuBLASLt is a C library")]
fn describe<T>(
    desc: &Handle<sys::cublasLtMatmulDescOpaque_t, Status>,
    attribute: DescAttribute,
    value: &T,
) -> Status {
    // SAFETY: the product exists; the library reads the value, which is of the attribute's type.
    unsafe {
        sys::cublasLtMatmulDescSetAttribute(
            desc.pointer,
            attribute,
            std::ptr::from_ref(value).cast(),
            size_of::<T>(),
        )
    }
}

/// Whether there is a further matrix, besides operands, addend and result.
fn has_more(epilogue: Epilogue) -> bool {
    matches!(epilogue, Epilogue::Gelu { is_kept: true } | Epilogue::GeluGrad)
}

/// Whether an operand is summed besides.
fn has_sum(epilogue: Epilogue) -> bool {
    matches!(epilogue, Epilogue::SumA | Epilogue::SumB)
}

/// Says what is made of a product. The heuristic takes the addresses, though it reads nothing there, for ones
/// as aligned as the row, the sum and the further matrix will be (`cublasLt.h`,
/// `CUBLASLT_MATMUL_DESC_BIAS_POINTER`): no more than slots are.
fn describe_epilogue(
    desc: &Handle<sys::cublasLtMatmulDescOpaque_t, Status>,
    product: &Product,
) -> Result<(), Refusal> {
    let has_row = product.addend == Addend::Row;
    let flag = match (product.epilogue, has_row) {
        (Epilogue::None, false) => return Ok(()),
        (Epilogue::None, true) => Flag::CUBLASLT_EPILOGUE_BIAS,
        (Epilogue::Relu, false) => Flag::CUBLASLT_EPILOGUE_RELU,
        (Epilogue::Relu, true) => Flag::CUBLASLT_EPILOGUE_RELU_BIAS,
        (Epilogue::Gelu { is_kept: false }, false) => Flag::CUBLASLT_EPILOGUE_GELU,
        (Epilogue::Gelu { is_kept: false }, true) => Flag::CUBLASLT_EPILOGUE_GELU_BIAS,
        (Epilogue::Gelu { is_kept: true }, false) => Flag::CUBLASLT_EPILOGUE_GELU_AUX,
        (Epilogue::Gelu { is_kept: true }, true) => Flag::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        (Epilogue::GeluGrad, _) => Flag::CUBLASLT_EPILOGUE_DGELU,
        // The library's B is `a`. Its sums are as long as its result has columns, those of its A as long as
        // that has rows.
        (Epilogue::SumA, _) => Flag::CUBLASLT_EPILOGUE_BGRADB,
        (Epilogue::SumB, _) => Flag::CUBLASLT_EPILOGUE_BGRADA,
    };
    planned(DESCRIBE, describe(desc, DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(flag as u32)))?;
    if has_row || has_sum(product.epilogue) {
        let attribute = DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
        planned(DESCRIBE, describe(desc, attribute, &PLACE_ALIGN))?;
    }
    if has_more(product.epilogue) {
        let attribute = DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER;
        planned(DESCRIBE, describe(desc, attribute, &PLACE_ALIGN))?;
        let attribute = DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD;
        planned(DESCRIBE, describe(desc, attribute, &i64::from(product.n)))?;
    }
    Ok(())
}

/// Matrices stored densely by columns.
#[allow(unsafe_code, reason = "cuBLASLt is a C library")]
fn layout(element: Type, rows: u64, columns: u64, batch: u32, stride: u64) -> Result<Layout, Refusal> {
    let ld = i64::try_from(rows).map_err(|_| Refusal::Unsupported(Reason::Nothing))?;
    let create = |layout| {
        // SAFETY: a handle to write.
        let status = unsafe { sys::cublasLtMatrixLayoutCreate(layout, element, rows, columns, ld) };
        planned("cublasLtMatrixLayoutCreate", status)
    };
    let layout = Handle::new(create, sys::cublasLtMatrixLayoutDestroy)?;
    if batch > 1 {
        let set = |attribute, value: &[u8]| {
            // SAFETY: the layout exists; the library reads that many bytes.
            let status = unsafe {
                sys::cublasLtMatrixLayoutSetAttribute(
                    layout.pointer,
                    attribute,
                    value.as_ptr().cast(),
                    value.len(),
                )
            };
            planned("cublasLtMatrixLayoutSetAttribute", status)
        };
        set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch.to_ne_bytes())?;
        set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride.to_ne_bytes())?;
    }
    Ok(layout)
}
