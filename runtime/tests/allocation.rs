//! Once warm, steps allocate nothing, on any thread of the CPU device, and nothing above a GPU's driver.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use memc_gpu::{
    Answer, Arch, Candidate, Clock, Driver, Facts, Function, GpuError, Graph, Graphs, HostCall, HostWork,
    LibraryAlgorithm, LibraryAlgorithms, LibraryCall, LibraryOp, LibraryOptions, Region, Setting, Sizes,
    Stream, Word,
};
use memc_plan::{NoData, PlanFile};
use memc_runtime::{Device, FeedOptions, Feeder, Initial, Program, Session, cpu, gpu};

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

/// Copies in, element-wise kernels that are large enough to be split over threads, one of many operands,
/// copies out, events in all directions, and an optimizer step in place.
const PLAN: &str = "
plan 1
budget 2900000 reserve 0
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

/// A driver that takes every command and does nothing.
#[derive(Default)]
struct Idle {
    host: Vec<u8>,
    reports: Vec<u8>,
    commands: usize,
}

impl Driver for Idle {
    fn name(&self) -> String {
        "idle".to_owned()
    }
    fn build(&mut self, _: &[String]) -> Result<(), GpuError> {
        Ok(())
    }
    fn function(&mut self, _: &str) -> Result<Function, GpuError> {
        Ok(Function(0))
    }
    fn reserve(&mut self, sizes: Sizes, _: usize, _: u8) -> Result<(), GpuError> {
        (self.host, self.reports) = (vec![0; sizes.host], vec![0; sizes.reports]);
        Ok(())
    }
    fn is_page_locked(&self) -> bool {
        true
    }
    fn reports(&mut self) -> &mut [u8] {
        &mut self.reports
    }
    fn launch(&mut self, _: Function, _: [u32; 3], _: u32, words: &[Word]) -> Result<(), GpuError> {
        self.commands += words.len();
        Ok(())
    }
    fn plan_library(&mut self, _: &LibraryCall, _: usize) -> Result<Answer, GpuError> {
        Ok(Answer::NotAsked)
    }
    fn call(&mut self, _: LibraryOp, places: &[Region], _: Region) -> Result<(), GpuError> {
        self.commands += places.len();
        Ok(())
    }
    fn take_work(&mut self, _: HostWork) -> HostCall {
        HostCall(0)
    }
    fn call_host(&mut self, _: Stream, _: HostCall) -> Result<(), GpuError> {
        Ok(())
    }
    fn copy(&mut self, _: Stream, _: Region, _: Region) -> Result<(), GpuError> {
        Ok(())
    }
    fn fill(&mut self, _: Stream, _: usize, _: usize, _: u8) -> Result<(), GpuError> {
        Ok(())
    }
    fn record(&mut self, _: Stream, _: usize) -> Result<(), GpuError> {
        Ok(())
    }
    fn wait(&mut self, _: Stream, _: usize) -> Result<(), GpuError> {
        Ok(())
    }
    fn await_event(&mut self, _: usize) -> Result<(), GpuError> {
        // The loss depends on all that a step computes, and so shows that steps have run.
        self.host[524_352] = self.commands as u8;
        Ok(())
    }
    fn synchronize(&mut self) -> Result<(), GpuError> {
        Ok(())
    }
    fn upload(&mut self, _: usize, _: &[u8]) -> Result<(), GpuError> {
        Ok(())
    }
    fn download(&mut self, _: usize, _: &mut [u8]) -> Result<(), GpuError> {
        Ok(())
    }
    fn device_address(&mut self, start: usize, _: usize) -> Result<usize, GpuError> {
        Ok(start)
    }
    fn host(&mut self, start: usize, len: usize) -> Result<&mut [u8], GpuError> {
        Ok(&mut self.host[start..start + len])
    }
}

impl Graphs for Idle {
    fn begin_capture(&mut self) -> Result<(), GpuError> {
        Ok(())
    }
    fn end_capture(&mut self) -> Result<Graph, GpuError> {
        Ok(Graph(0))
    }
    fn replay(&mut self, _: Graph) -> Result<(), GpuError> {
        self.commands += 1;
        Ok(())
    }
    fn record_outside(&mut self, _: Stream, _: usize) -> Result<(), GpuError> {
        Ok(())
    }
    fn wait_outside(&mut self, _: Stream, _: usize) -> Result<(), GpuError> {
        Ok(())
    }
}

impl LibraryAlgorithms for Idle {
    fn algorithms(&mut self, _: &LibraryCall, _: usize) -> Result<Vec<Candidate>, GpuError> {
        Ok(Vec::new())
    }
    fn plan_tuned(
        &mut self,
        _: &LibraryCall,
        _: usize,
        _: &LibraryAlgorithm,
    ) -> Result<Option<LibraryOp>, GpuError> {
        Ok(None)
    }
    fn setting(&self) -> Setting {
        let (arch, options) = (Arch { major: 9, minor: 0 }, LibraryOptions::default());
        Setting { device: "idle".to_owned(), arch, libraries: Vec::new(), options }
    }
}

impl Clock for Idle {
    fn reserve_marks(&mut self, _: usize) -> Result<(), GpuError> {
        Ok(())
    }
    fn mark(&mut self, _: Stream, _: usize) -> Result<(), GpuError> {
        Ok(())
    }
    fn elapsed_ns(&mut self, _: usize, _: usize) -> Result<i64, GpuError> {
        Ok(0)
    }
    fn facts(&self) -> Result<Facts, GpuError> {
        let name = String::new();
        Ok(Facts { name, processors: 1, free_bytes: 0, total_bytes: 0, context_bytes: None })
    }
}

#[test]
fn steps_allocate_nothing_once_warm() {
    let mut plan = memc_plan::text::parse(PLAN).unwrap();
    plan.meta.set_source("");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.plan");
    memc_plan::write(&path, &plan, &mut NoData, &|| false).unwrap();
    let file = PlanFile::open(&path).unwrap();
    let program = Arc::new(Program::new(file.plan()).unwrap());
    let on_cpu = [1, 2, 4].map(|threads| {
        let options = cpu::Options { threads, check_memory: true, delay_seed: Some(1), slow: None };
        Box::new(cpu::Cpu::new(options).unwrap()) as Box<dyn Device>
    });
    let on_gpu = [false, true].map(|no_graph| {
        let device = gpu::Gpu::new("idle", || Ok(Idle::default()), true).without_graph(no_graph);
        Box::new(device) as Box<dyn Device>
    });
    // Threads of a device that is dropped end when they like, and may allocate then.
    let devices: Vec<Box<dyn Device>> = on_cpu.into_iter().chain(on_gpu).collect();
    for device in &devices {
        let threads = device.threads();
        let initial = Initial::new(&file, Vec::new(), Vec::new()).unwrap();
        let mut feeder = Feeder::new(
            file.plan(),
            std::slice::from_ref(&program),
            &FeedOptions { synthetic: true, ..FeedOptions::default() },
        )
        .unwrap();
        let mut session =
            Session::start(device.as_ref(), file.plan(), program.clone(), &initial, &mut feeder).unwrap();
        for _ in 0..5 {
            session.step().unwrap();
        }
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let mut losses = [0.0; 20];
        for loss in &mut losses {
            session.step().unwrap();
            *loss = session.loss(0).unwrap();
        }
        let during = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(during, 0, "allocations in 20 steps on {}, {threads} threads", device.name());
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
