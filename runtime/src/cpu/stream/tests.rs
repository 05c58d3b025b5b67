//! The streams of the CPU device, on plans of a few commands.

use super::*;
use crate::program::Place;
use crate::{Device, cpu::Cpu};

/// A host that has nothing to do.
struct Idle;

impl HostSide for Idle {
    fn load(&mut self, _: usize, _: &mut [u8]) -> Result<(), Error> {
        Ok(())
    }
    fn store(&mut self, _: usize, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    fn write(&mut self, _: usize, _: &mut [u8]) -> Result<(), Error> {
        Ok(())
    }
    fn read(&mut self, _: usize, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }
}

/// A panic on any stream becomes an internal error that names the command; the streams that wait for the panicked
/// one end too, and the executor only returns errors from then on.
#[test]
fn a_panic_ends_all_streams() {
    let text = "plan 1\narena dev 64 host 0\nevents 1\nbody {\n  compute free dev+0:64\n  compute record e0\n  \
                h2d wait e0\n  h2d free dev+0:64\n  h2d record e0\n  d2h wait e0\n  d2h free dev+0:64\n  \
                d2h record e0\n  host wait e0\n}\n";
    for broken in [0, 3, 6] {
        let mut plan = memc_plan::text::parse(text).unwrap();
        plan.meta.set_source("");
        let mut program = Program::new(&plan).unwrap();
        let place = Place { space: memc_plan::Space::Dev, start: 64, len: 64 };
        program.body_mut()[broken].action = Action::Free(place);
        let device = Cpu::new(Options { threads: 1, check_memory: true, delay_seed: None }).unwrap();
        let mut executor = device.open(Arc::new(program)).unwrap();
        let error = executor.run(Section::Body, &mut Idle).unwrap_err();
        assert_eq!(error.exit_code(), 70);
        assert!(error.to_string().contains(&format!("body command {broken} panicked")), "{error}");
        assert!(executor.run(Section::Body, &mut Idle).is_err());
        assert!(executor.synchronize().is_err());
    }
}

/// Issuing far ahead of a slow stream blocks until there is room, and loses nothing.
#[test]
fn queues_are_bounded() {
    let text = "plan 1\narena dev 64 host 0\nbody {\n  compute free dev+0:64\n  compute free dev+0:64\n}\n";
    let mut plan = memc_plan::text::parse(text).unwrap();
    plan.meta.set_source("");
    let device = Cpu::new(Options { threads: 1, check_memory: true, delay_seed: Some(3) }).unwrap();
    let mut executor = device.open(Arc::new(Program::new(&plan).unwrap())).unwrap();
    for _ in 0..200 {
        executor.run(Section::Body, &mut Idle).unwrap();
    }
    executor.synchronize().unwrap();
}
