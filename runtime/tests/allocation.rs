//! Once warm, steps allocate nothing, on any thread.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use memc_plan::{NoData, PlanFile};
use memc_runtime::{FeedOptions, Feeder, Initial, Program, Session, cpu};

/// The system's allocator with a counter.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: passes everything on to the system's allocator.
#[allow(unsafe_code, reason = "counting allocations takes an allocator")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(start, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Copies in, element-wise kernels that are large enough to be split over threads, one of many operands, copies out,
/// events in all directions, and an optimizer step in place.
const PLAN: &str = "
plan 1
arena dev 2883584 host 1048768
kernel k0 = mul(f32[131072], f32[131072]) -> (f32[131072])
kernel k1 = sum_squares(f32[131072]) -> (f32[])
kernel k2 = sgd(f32[131072], f32[131072], f32[]) -> (f32[131072])
kernel k3 = concat(f32[64], f32[64], f32[64], f32[64]) \"{axis = 0}\" -> (f32[256])
state s0 w param f32[131072] dev+0:524288 random 3 uniform:1.0
state s1 swapped buffer f32[131072] host+524480:524288 zeros
input i0 x f32[131072] host+0:524288 data x micro 0 range 0..0
input i1 lr f32[] host+524288:4 rate 0.001
output o0 loss f32[] host+524352:4 loss
events 5
prologue {
  host load s0
  host load s1
  d2h record e3
}
body {
  host write i0
  host write i1
  h2d wait e3
  h2d copy host+0:524288 -> dev+524288:524288
  h2d copy host+524288:4 -> dev+1048576:4
  h2d copy host+524480:524288 -> dev+1572864:524288
  h2d record e0
  compute wait e0
  compute launch k0 r dev+0:524288 r dev+524288:524288 w dev+2097152:524288
  compute launch k1 r dev+2097152:524288 w dev+1048640:4
  compute record e1
  d2h wait e1
  d2h copy dev+1048640:4 -> host+524352:4
  d2h record e2
  compute launch k2 r dev+0:524288 r dev+2097152:524288 r dev+1048576:4 w dev+0:524288
  compute launch k0 r dev+1572864:524288 r dev+524288:524288 w dev+1572864:524288
  compute launch k3 r dev+0:256 r dev+256:256 r dev+0:256 r dev+512:256 w dev+1048704:1024
  compute free dev+1048704:1024
  compute record e4
  d2h wait e4
  d2h copy dev+1572864:524288 -> host+524480:524288
  d2h record e3
  host wait e2
  host read o0
}
epilogue {
  host wait e3
  host store s0
  host store s1
}
";

#[test]
fn steps_allocate_nothing_once_warm() {
    let mut plan = memc_plan::text::parse(PLAN).unwrap();
    plan.meta.set_source("");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.plan");
    memc_plan::write(&path, &plan, &mut NoData, &|| false).unwrap();
    let file = PlanFile::open(&path).unwrap();
    let program = Arc::new(Program::new(file.plan()).unwrap());
    for threads in [1, 2, 4] {
        let options = cpu::Options { threads, check_memory: true, delay_seed: Some(1) };
        let device = cpu::Cpu::new(options).unwrap();
        let initial = Initial::new(&file, None, None).unwrap();
        let mut feeder = Feeder::new(file.plan(), &program, &FeedOptions::default()).unwrap();
        let mut session =
            Session::start(&device, file.plan(), program.clone(), &initial, &mut feeder).unwrap();
        for _ in 0..5 {
            session.step().unwrap();
        }
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let mut losses = [0.0; 20];
        for loss in &mut losses {
            session.step().unwrap();
            *loss = session.loss().unwrap();
        }
        let during = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(during, 0, "allocations in 20 steps on {threads} threads");
        assert!(losses.windows(2).all(|pair| pair[0] != pair[1]), "the steps did something: {losses:?}");
        let mut stored = 0;
        session
            .finish(&mut |_, bytes| {
                stored += bytes.len();
                Ok(())
            })
            .unwrap();
        assert_eq!(stored, 2 * 524_288);
    }
}
