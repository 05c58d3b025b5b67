//! States between two steps: read, replaced, and where they lie.

use std::sync::Arc;

use memc_plan::Section;
use memc_runtime::cpu::{Cpu, Options};
use memc_runtime::gpu::Gpu;
use memc_runtime::{Device, Error, Executor, HostSide, Program};

use crate::mock::{Behaviour, Mock};

/// A state on both sides, one in host memory and one on the device. The outputs are what the first has in
/// host memory, and what it has on the device.
const PLAN: &str = "plan 1\narena dev 192 host 256\nevents 3\n\
    state s0 both param f32[1] dev+0:4 zeros\n\
    state s1 host param f32[1] host+64:4 zeros\n\
    state s2 device param f32[1] dev+64:4 zeros\n\
    output o0 shadow f32[1] host+128:4 output\n\
    output o1 resident f32[1] host+192:4 output\n\
    prologue {\n  host load s0\n  host load s1\n  host load s2\n  d2h copy dev+0:4 -> host+0:4\n  \
    d2h record e2\n  host wait e2\n  d2h record e1\n}\n\
    body {\n  h2d wait e1\n  h2d copy host+0:4 -> dev+128:4\n  h2d record e0\n  d2h wait e0\n  \
    d2h copy dev+128:4 -> host+128:4\n  d2h copy dev+0:4 -> host+192:4\n  d2h record e1\n  host wait e1\n  \
    host read o0\n  host read o1\n}\n\
    epilogue {\n  d2h record e1\n  host wait e1\n  host store s0\n  host store s1\n  host store s2\n}\n";

/// Whether the plan copies the state to another place.
const HAS_COPIES: [bool; 3] = [true, false, false];

/// Loads the number of each state, and keeps outputs.
#[derive(Default)]
struct Host {
    outputs: [f32; 2],
}

impl HostSide for Host {
    fn load(&mut self, state: usize, bytes: &mut [u8]) -> Result<(), Error> {
        bytes.copy_from_slice(&(state as f32 + 1.0).to_le_bytes());
        Ok(())
    }
    fn store(&mut self, _: usize, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn write(&mut self, _: usize, _: &mut [u8]) -> Result<(), Error> {
        Ok(())
    }
    fn read(&mut self, output: usize, bytes: &[u8]) -> Result<(), Error> {
        self.outputs[output] = number(bytes);
        Ok(())
    }
}

fn number(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().expect("one number"))
}

fn state(executor: &mut dyn Executor, state: usize) -> f32 {
    let mut bytes = [0; 4];
    executor.read_state(state, &mut bytes).expect("the state can be read");
    number(&bytes)
}

/// A write reaches both copies of a state, before the first step and after any.
fn states_are_exchanged(device: &dyn Device, are_on_gpu: [bool; 3]) {
    let mut plan = memc_plan::text::parse(PLAN).expect("the plan parses");
    plan.meta.set_source("");
    let program = Arc::new(Program::new(&plan).expect("the plan is in order"));
    let (mut executor, mut host) = (device.open(program).expect("the plan opens"), Host::default());
    assert!(executor.read_state(0, &mut [0; 4]).is_err(), "nothing is loaded yet");
    executor.run(Section::Prologue, &mut host).expect("the states are loaded");
    for (s, is_on_gpu) in are_on_gpu.into_iter().enumerate() {
        assert_eq!(state(&mut *executor, s), s as f32 + 1.0);
        let place = executor.state_place(s).expect("states have places");
        assert_eq!((place.is_on_gpu, place.has_copies), (is_on_gpu, HAS_COPIES[s]), "state {s}");
    }
    for step in 0..20 {
        let value = step as f32 + 10.0;
        for s in 0..3 {
            executor.write_state(s, &(value + s as f32).to_le_bytes()).expect("the state can be written");
        }
        executor.run(Section::Body, &mut host).expect("the step runs");
        assert_eq!(host.outputs, [value, value], "step {step}");
        assert_eq!([0, 1, 2].map(|s| state(&mut *executor, s)), [value, value + 1.0, value + 2.0]);
    }
    assert!(executor.read_state(0, &mut [0; 8]).is_err(), "the length is wrong");
    assert!(executor.write_state(3, &[0; 4]).is_err(), "there is no such state");
    executor.run(Section::Epilogue, &mut host).expect("the states are stored");
    assert!(executor.write_state(0, &[0; 4]).is_err(), "the run is over");
}

#[test]
fn states_are_exchanged_on_the_cpu() {
    for delay_seed in [None, Some(1), Some(2)] {
        let options = Options { threads: 1, delay_seed, ..Options::default() };
        let device = Cpu::new(options).expect("threads start");
        states_are_exchanged(&device, [false; 3]);
    }
}

#[test]
fn states_are_exchanged_on_a_gpu() {
    for seed in [None, Some(1), Some(2)] {
        for no_graph in [false, true] {
            let behaviour = Behaviour { seed, ..Behaviour::default() };
            let device = Gpu::new("mock", move || Ok(Mock::new(behaviour)), false).without_graph(no_graph);
            states_are_exchanged(&device, [true, false, true]);
        }
    }
}
