//! A GPU through NVIDIA's driver: one device arena, one page-locked host arena, three non-blocking streams,
//! events without timing, one program.
//!
//! The device's primary context is current in the thread that opened the device, which is the only one to use
//! it. Handles are freed when the device is dropped, after its streams have run dry.

mod graph;
mod modules;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent, CUresult};
use memc_cuda::LibraryCall;
use memc_ir::{Space, Stream};

use crate::api::{done, free, start};
use crate::calls::Calls;
use crate::devices::{Context, find, info};
use crate::driver::{
    Answer, Candidate, Clock, Driver, Facts, Function, HostCall, HostWork, LibraryAlgorithm,
    LibraryAlgorithms, LibraryOp, Region, Setting, Sizes, Word, check_region,
};
use crate::host::HostMemory;
use crate::library::require;
use crate::meter::refused;
use crate::{Component, DeviceInfo, GpuError, Libraries, LibraryOptions};
use modules::Modules;

/// Functions that are called beyond those that list devices.
const SYMBOLS: &[&str] = &[
    "cuCtxGetStreamPriorityRange",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyAsync",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoD_v2",
    "cuMemsetD8Async",
    "cuMemsetD8_v2",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// The function for the time between two events that every driver has; the bindings have that of newer
/// drivers alone.
const ELAPSED: &str = "cuEventElapsedTime";
type Elapsed = extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

/// Pool of events with timing. Other events have none: timing makes every record slower.
#[derive(Debug, Default)]
struct Marks(Vec<CUevent>);

impl Marks {
    /// Frees every handle; nothing may be running.
    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn destroy(&mut self) {
        for event in self.0.drain(..) {
            // SAFETY: the event was made, is freed once, and nothing uses it any more.
            unsafe { sys::cuEventDestroy_v2(event) };
        }
    }

    fn get(&self, mark: usize) -> Result<CUevent, GpuError> {
        let bounds = GpuError::Bounds { start: mark, len: 1, arena: self.0.len() };
        self.0.get(mark).copied().ok_or(bounds)
    }
}

/// A GPU; see the module.
#[derive(Debug)]
pub struct Cuda {
    info: DeviceInfo,
    streams: [sys::CUstream; Stream::ALL.len()],
    /// Each at an address of its own, which the driver is given.
    work: Vec<Arc<HostWork>>,
    events: Vec<sys::CUevent>,
    modules: Modules,
    functions: Vec<sys::CUfunction>,
    calls: Calls,
    device: (sys::CUdeviceptr, usize),
    host: HostMemory,
    reports: HostMemory,
    /// Room for the parameters of a launch.
    values: Vec<u64>,
    pointers: Vec<*mut c_void>,
    captured: graph::Captured,
    marks: Marks,
    /// Released last: fields are dropped after `drop`.
    context: Context,
}

impl Cuda {
    /// Opens the device with this number, with a choice of libraries.
    ///
    /// # Errors
    /// Those of the driver where it or the device cannot be used.
    #[allow(unsafe_code, reason = "the driver is a C library")]
    pub fn open(ordinal: usize, libraries: LibraryOptions) -> Result<Cuda, GpuError> {
        start()?;
        Libraries::get().require(Component::Driver)?.require(SYMBOLS)?;
        let device = find(ordinal)?;
        // First of all, so that asking for what is free does not make and destroy a context of its own.
        let context = Context::measured(device)?;
        let info = info(ordinal, device)?;
        let mut cuda = Cuda {
            info,
            streams: [null_mut(); Stream::ALL.len()],
            work: Vec::new(),
            events: Vec::new(),
            modules: Modules::default(),
            functions: Vec::new(),
            calls: Calls::new(libraries),
            device: (0, 0),
            host: HostMemory::none(),
            reports: HostMemory::none(),
            values: Vec::new(),
            pointers: Vec::new(),
            captured: graph::Captured::default(),
            marks: Marks::default(),
            context,
        };
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: two integers to write.
        let range = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
        done("cuCtxGetStreamPriorityRange", range)?;
        for (queue, stream) in Stream::ALL.into_iter().zip(&mut cuda.streams) {
            let priority = if queue == Stream::Compute { greatest } else { least };
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: a handle to write.
            let made = unsafe { sys::cuStreamCreateWithPriority(stream, flags, priority) };
            done("cuStreamCreateWithPriority", made)?;
        }
        Ok(cuda)
    }

    /// Facts about it.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn stream(&self, queue: Stream) -> sys::CUstream {
        let [compute, d2h, h2d, cpu] = self.streams;
        match queue {
            Stream::Compute => compute,
            Stream::DeviceToHost => d2h,
            Stream::HostToDevice => h2d,
            Stream::HostCompute => cpu,
        }
    }

    fn event(&self, event: usize) -> Result<sys::CUevent, GpuError> {
        let arena = self.events.len();
        self.events.get(event).copied().ok_or(GpuError::Bounds { start: event, len: 1, arena })
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn new_event(&self, flags: sys::CUevent_flags) -> Result<sys::CUevent, GpuError> {
        let mut event = null_mut();
        // SAFETY: a handle to write.
        done("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags as u32) })?;
        Ok(event)
    }

    /// The address of a place, in the address space that both arenas share.
    fn address(&self, region: Region) -> Result<sys::CUdeviceptr, GpuError> {
        let (base, bytes) = match region.arena {
            Space::Dev => self.device,
            Space::Host => self.host.range(),
        };
        check_region(region.start, region.len, bytes)?;
        Ok(base + region.start as u64)
    }
}

/// Does work; `work` is the address of a [`HostWork`].
#[allow(unsafe_code, reason = "the driver calls it")]
// SAFETY: only for `cuLaunchHostFunc`, with such an address.
unsafe extern "C" fn do_work(work: *mut c_void) {
    // SAFETY: the address of work that a device keeps, shared with nobody who changes it.
    let work = unsafe { &*work.cast_const().cast::<HostWork>() };
    (work.0)();
}

impl Driver for Cuda {
    fn name(&self) -> String {
        format!("{}, {}", self.info.name, self.info.arch)
    }

    fn build(&mut self, texts: &[String]) -> Result<(), GpuError> {
        self.modules.build(texts, self.info.arch)
    }

    fn function(&mut self, name: &str) -> Result<Function, GpuError> {
        self.functions.push(self.modules.function(name)?);
        Ok(Function(self.functions.len() - 1))
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn reserve(&mut self, sizes: Sizes, events: usize, fill: u8) -> Result<(), GpuError> {
        if self.device.1 > 0 || self.host.range().1 > 0 || !self.events.is_empty() {
            return Err(GpuError::Call { function: "reserve", error: "the arenas are reserved".to_owned() });
        }
        let (Sizes { device, host, reports }, owner) = (sizes, self.context.device);
        if device > 0 {
            // SAFETY: an address to write; freed once, when the device is dropped.
            let result = unsafe { sys::cuMemAlloc_v2(&mut self.device.0, device) };
            done("cuMemAlloc", result).map_err(|e| refused(owner, "the device arena", device, &e))?;
            self.device.1 = device;
            // SAFETY: the bytes were just reserved.
            done("cuMemsetD8", unsafe { sys::cuMemsetD8_v2(self.device.0, fill, device) })?;
        }
        self.reports = HostMemory::words(reports, fill)
            .map_err(|error| refused(owner, "the page-locked words of kernels", reports, &error))?;
        self.host = HostMemory::arena(host, fill)?;
        for _ in 0..events {
            self.events.push(self.new_event(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?);
        }
        // SAFETY: has no conditions; the fill above ran on the default stream, which the others do not wait
        // for.
        done("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(null_mut()) })
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn launch(
        &mut self,
        function: Function,
        grid: [u32; 3],
        block: u32,
        words: &[Word],
    ) -> Result<(), GpuError> {
        let arena = self.functions.len();
        let bounds = GpuError::Bounds { start: function.0, len: 1, arena };
        let handle = *self.functions.get(function.0).ok_or(bounds)?;
        self.values.clear();
        for word in words {
            self.values.push(match *word {
                Word::Address(start) => self.address(Region { arena: Space::Dev, start, len: 0 })?,
                Word::Report(start) => {
                    let (base, bytes) = self.reports.range();
                    check_region(start, 0, bytes)?;
                    base + start as u64
                }
                Word::Int(value) => value.cast_unsigned(),
            });
        }
        self.pointers.clear();
        self.pointers.extend(self.values.iter_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>()));
        let ([x, y, z], stream) = (grid, self.stream(Stream::Compute));
        // SAFETY: the function is one of the module's; all parameters of its kernels are of eight bytes, and
        // the caller passes as many as the kernel has. The driver reads them before it returns.
        let result = unsafe {
            sys::cuLaunchKernel(
                handle,
                x,
                y,
                z,
                block,
                1,
                1,
                0,
                stream,
                self.pointers.as_mut_ptr(),
                null_mut(),
            )
        };
        done("cuLaunchKernel", result)
    }

    fn plan_library(&mut self, call: &LibraryCall, workspace: usize) -> Result<Answer, GpuError> {
        self.calls.plan(call, workspace, None, self.stream(Stream::Compute).cast())
    }

    fn call(&mut self, op: LibraryOp, places: &[Region], workspace: Region) -> Result<(), GpuError> {
        self.values.clear();
        for place in places {
            self.values.push(self.address(*place)?);
        }
        let operands = self.values.iter().copied().zip(places.iter().map(|place| place.len));
        let scratch = (self.address(workspace)?, workspace.len);
        self.calls.run(op, operands, scratch, self.stream(Stream::Compute).cast())
    }

    fn take_work(&mut self, work: HostWork) -> HostCall {
        self.work.push(Arc::new(work));
        HostCall(self.work.len() - 1)
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn call_host(&mut self, queue: Stream, call: HostCall) -> Result<(), GpuError> {
        let bounds = GpuError::Bounds { start: call.0, len: 1, arena: self.work.len() };
        let work = Arc::as_ptr(self.work.get(call.0).ok_or(bounds)?);
        // SAFETY: the stream exists. The work stays where it is until the device is dropped, when nothing
        // runs.
        let result =
            unsafe { sys::cuLaunchHostFunc(self.stream(queue), Some(do_work), work.cast_mut().cast()) };
        done("cuLaunchHostFunc", result)
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn copy(&mut self, queue: Stream, from: Region, to: Region) -> Result<(), GpuError> {
        if from.len != to.len {
            return Err(GpuError::Bounds { start: to.start, len: from.len, arena: to.len });
        }
        let (source, target) = (self.address(from)?, self.address(to)?);
        if to.len == 0 {
            return Ok(());
        }
        // SAFETY: both places are within the arenas, which outlive the streams' work.
        done("cuMemcpyAsync", unsafe { sys::cuMemcpyAsync(target, source, to.len, self.stream(queue)) })
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn fill(&mut self, queue: Stream, start: usize, len: usize, byte: u8) -> Result<(), GpuError> {
        let at = self.address(Region { arena: Space::Dev, start, len })?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the place is within the arena, which outlives the streams' work.
        done("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(at, byte, len, self.stream(queue)) })
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn record(&mut self, queue: Stream, event: usize) -> Result<(), GpuError> {
        // SAFETY: event and stream exist.
        done("cuEventRecord", unsafe { sys::cuEventRecord(self.event(event)?, self.stream(queue)) })
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn wait(&mut self, queue: Stream, event: usize) -> Result<(), GpuError> {
        // SAFETY: event and stream exist.
        done("cuStreamWaitEvent", unsafe {
            sys::cuStreamWaitEvent(self.stream(queue), self.event(event)?, 0)
        })
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn await_event(&mut self, event: usize) -> Result<(), GpuError> {
        // SAFETY: the event exists.
        done("cuEventSynchronize", unsafe { sys::cuEventSynchronize(self.event(event)?) })
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn synchronize(&mut self) -> Result<(), GpuError> {
        self.streams.iter().chain(self.captured.streams()).try_for_each(|stream| {
            // SAFETY: the stream exists.
            done("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(*stream) })
        })
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn upload(&mut self, start: usize, bytes: &[u8]) -> Result<(), GpuError> {
        let at = self.address(Region { arena: Space::Dev, start, len: bytes.len() })?;
        // SAFETY: the place is within the arena; the bytes are readable, and copied when the call returns.
        done("cuMemcpyHtoD", unsafe { sys::cuMemcpyHtoD_v2(at, bytes.as_ptr().cast(), bytes.len()) })?;
        // SAFETY: has no conditions. From pageable memory the call may return before the last bytes have
        // arrived.
        done("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(null_mut()) })
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn download(&mut self, start: usize, bytes: &mut [u8]) -> Result<(), GpuError> {
        let at = self.address(Region { arena: Space::Dev, start, len: bytes.len() })?;
        // SAFETY: the place is within the arena; the bytes are writable, and written when the call returns.
        done("cuMemcpyDtoH", unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), at, bytes.len()) })
    }

    fn device_address(&mut self, start: usize, len: usize) -> Result<usize, GpuError> {
        let address = self.address(Region { arena: Space::Dev, start, len })?;
        usize::try_from(address).map_err(|_| GpuError::Bounds { start, len, arena: self.device.1 })
    }

    fn host(&mut self, start: usize, len: usize) -> Result<&mut [u8], GpuError> {
        self.host.bytes(start, len)
    }

    fn is_page_locked(&self) -> bool {
        self.host.is_locked()
    }

    fn reports(&mut self) -> &mut [u8] {
        let (_, len) = self.reports.range();
        self.reports.bytes(0, len).unwrap_or_default()
    }
}

impl Clock for Cuda {
    fn reserve_marks(&mut self, marks: usize) -> Result<(), GpuError> {
        Libraries::get().require(Component::Driver)?.require(&["cuEventRecordWithFlags", ELAPSED])?;
        self.marks.destroy();
        for _ in 0..marks {
            let event = self.new_event(sys::CUevent_flags::CU_EVENT_DEFAULT)?;
            self.marks.0.push(event);
        }
        Ok(())
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn mark(&mut self, queue: Stream, mark: usize) -> Result<(), GpuError> {
        let outside = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        let flags = if self.captured.capturing { outside } else { 0 };
        let (event, stream) = (self.marks.get(mark)?, self.stream(queue));
        // SAFETY: event and stream exist.
        done("cuEventRecordWithFlags", unsafe { sys::cuEventRecordWithFlags(event, stream, flags) })
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn elapsed_ns(&mut self, from: usize, to: usize) -> Result<i64, GpuError> {
        let driver = Libraries::get().require(Component::Driver)?;
        let mut ms = 0f32;
        let (from, to) = (self.marks.get(from)?, self.marks.get(to)?);
        // SAFETY: the function has this type in every version of the driver. The events exist, and a number
        // is written.
        let elapsed = unsafe { driver.function::<Elapsed>(ELAPSED)? };
        done(ELAPSED, elapsed(&mut ms, from, to))?;
        Ok((f64::from(ms) * 1e6) as i64)
    }

    fn facts(&self) -> Result<Facts, GpuError> {
        let (free_bytes, total_bytes) = free()?;
        Ok(Facts {
            name: self.info.name.clone(),
            processors: self.info.processors,
            free_bytes,
            total_bytes,
            context_bytes: self.context.bytes,
        })
    }
}

impl LibraryAlgorithms for Cuda {
    fn algorithms(&mut self, call: &LibraryCall, workspace: usize) -> Result<Vec<Candidate>, GpuError> {
        self.calls.candidates(call, workspace, self.stream(Stream::Compute).cast())
    }

    fn plan_tuned(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        algorithm: &LibraryAlgorithm,
    ) -> Result<Option<LibraryOp>, GpuError> {
        let stream = self.stream(Stream::Compute).cast();
        Ok(match self.calls.plan(call, workspace, Some(algorithm), stream)? {
            Answer::Taken(op) => Some(op),
            Answer::Refused(_) | Answer::NotAsked => None,
        })
    }

    fn setting(&self) -> Setting {
        let version = |component| {
            require(component, &[]).ok()?;
            Some((component, Libraries::get().require(component).ok()?.version.clone()?))
        };
        Setting {
            device: self.info.name.clone(),
            arch: self.info.arch,
            libraries: [Component::CublasLt, Component::Cudnn].into_iter().filter_map(version).collect(),
            options: self.calls.options,
        }
    }
}

impl Drop for Cuda {
    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn drop(&mut self) {
        // Queues may still use the arenas; where the device is lost there is nothing to wait for.
        let mut is_idle = true;
        for stream in self.streams.iter().chain(self.captured.streams()) {
            // SAFETY: the stream exists, or is the default one.
            let synced = unsafe { sys::cuStreamSynchronize(*stream) };
            is_idle &= done("cuStreamSynchronize", synced).is_ok();
        }
        if !is_idle && !self.work.is_empty() {
            // A thread of the driver may still do work: what it touches stays until the process ends.
            std::mem::forget(std::mem::take(&mut self.work));
            std::mem::forget(std::mem::replace(&mut self.host, HostMemory::none()));
        }
        self.captured.destroy();
        self.marks.destroy();
        self.calls.close();
        self.modules.unload();
        // SAFETY: every handle was made, is freed once, and nothing uses it any more. Errors have nobody to
        // go to.
        unsafe {
            for &event in &self.events {
                sys::cuEventDestroy_v2(event);
            }
            for &stream in self.streams.iter().filter(|stream| !stream.is_null()) {
                sys::cuStreamDestroy_v2(stream);
            }
            if self.device.1 > 0 {
                sys::cuMemFree_v2(self.device.0);
            }
        }
    }
}
