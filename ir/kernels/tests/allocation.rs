//! Kernels take no memory from the heap.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{result_types, samples};
use memc_ir::{OpKind, TensorType};
use memc_kernels::interp::{AlignedBytes, Tensor};
use memc_kernels::{Call, Operand, execute};

/// The system allocator, counting for each thread.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending has no counters left.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
    if bytes > 0 {
        let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    }
}

#[allow(unsafe_code, reason = "counting needs a global allocator")]
// SAFETY: every method hands its arguments to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Whether an op calls the gemm crate, which packs its operands into a buffer of its own during the call.
fn multiplies(op: &OpKind) -> bool {
    match op {
        OpKind::Fused { body, .. } => body.head().is_some(),
        op => op.is_contraction(),
    }
}

#[test]
fn execute_does_not_allocate() {
    // One thread, so that the counters see all the work; parallel kernels still go through the pool's queues.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for sample in [samples(3), samples(1500)].iter().flatten() {
        let types: Vec<TensorType> = sample.operands.iter().map(|t| t.ty.clone()).collect();
        let results = result_types(sample);
        let call = Call { op: &sample.op, operand_types: &types, result_types: &results };
        let mut workspace = AlignedBytes::zeroed(call.check().unwrap() as usize);
        let operands: Vec<_> = sample.operands.iter().map(|t| Operand::Bytes(t.data.bytes())).collect();
        let mut out: Vec<_> = results.iter().map(|ty| Tensor::zeros(ty.clone()).unwrap()).collect();
        let mut bytes: Vec<&mut [u8]> = out.iter_mut().map(|t| t.data.bytes_mut()).collect();
        let (calls, held) = pool.install(|| {
            execute(&call, &operands, &mut bytes, workspace.bytes_mut()).unwrap();
            let before = (CALLS.get(), HELD.get());
            execute(&call, &operands, &mut bytes, workspace.bytes_mut()).unwrap();
            (CALLS.get() - before.0, HELD.get() - before.1)
        });
        let name = sample.op.mnemonic();
        assert_eq!(held, 0, "{name} keeps memory");
        // Narrow types are computed in calls whose shapes take a few words, as are the parts of a
        // normalisation.
        let cut = types.iter().chain(&results).any(|t| t.dtype.is_narrow())
            || matches!(sample.op, OpKind::FusedNorm { .. });
        assert!(calls == 0 || cut || multiplies(&sample.op), "{name} allocates {calls} times");
    }
}

#[test]
fn the_counters_count() {
    let before = (CALLS.get(), HELD.get());
    let kept = vec![0u8; 100];
    assert_eq!((CALLS.get() - before.0, HELD.get() - before.1), (1, 100));
    drop(kept);
    assert_eq!(HELD.get(), before.1);
}
