//! The streams of the CPU device, on plans of a few commands.

use super::*;
use crate::program::Place;
use crate::{Device, cpu::Cpu};

/// A host that has nothing to do, and counts what it is called for.
#[derive(Default)]
struct Idle {
    calls: usize,
}

impl HostSide for Idle {
    fn load(&mut self, _: usize, _: &mut [u8]) -> Result<(), Error> {
        self.calls += 1;
        Ok(())
    }
    fn store(&mut self, _: usize, _: &[u8]) -> Result<(), Error> {
        self.calls += 1;
        Ok(())
    }
    fn write(&mut self, _: usize, _: &mut [u8]) -> Result<(), Error> {
        self.calls += 1;
        Ok(())
    }
    fn read(&mut self, _: usize, _: &[u8]) -> Result<(), Error> {
        self.calls += 1;
        Ok(())
    }
}

/// A panic on any stream becomes an internal error that names the command; the streams that wait for the
/// panicked one end too, and the executor only returns errors from then on.
#[test]
fn a_panic_ends_all_streams() {
    let text = "plan 1\narena dev 64 host 0\nevents 1\nbody {\n  compute free dev+0:64\n  compute record \
        e0\n  \
                h2d wait e0\n  h2d free dev+0:64\n  h2d record e0\n  d2h wait e0\n  d2h free dev+0:64\n  \
                d2h record e0\n  host wait e0\n}\n";
    for broken in [0, 3, 6] {
        let mut plan = memc_plan::text::parse(text).unwrap();
        plan.meta.set_source("");
        let mut program = Program::new(&plan).unwrap();
        let place = Place { space: memc_plan::Space::Dev, start: 64, len: 64 };
        program.body_mut()[broken].action = Action::Free(place);
        let device =
            Cpu::new(Options { threads: 1, check_memory: true, delay_seed: None, slow: None }).unwrap();
        let mut executor = device.open(Arc::new(program)).unwrap();
        executor.run(Section::Prologue, &mut Idle::default()).unwrap();
        let error = executor.run(Section::Body, &mut Idle::default()).unwrap_err();
        assert_eq!(error.exit_code(), 70);
        assert!(error.to_string().contains(&format!("body command {broken} panicked")), "{error}");
        assert!(executor.run(Section::Body, &mut Idle::default()).is_err());
        assert!(executor.synchronize().is_err());
    }
}

/// Issuing far ahead of a slow stream blocks until there is room, and loses nothing.
#[test]
fn queues_are_bounded() {
    let text = "plan 1\narena dev 64 host 0\nbody {\n  compute free dev+0:64\n  compute free dev+0:64\n}\n";
    let mut plan = memc_plan::text::parse(text).unwrap();
    plan.meta.set_source("");
    let device =
        Cpu::new(Options { threads: 1, check_memory: true, delay_seed: Some(3), slow: None }).unwrap();
    let mut executor = device.open(Arc::new(Program::new(&plan).unwrap())).unwrap();
    executor.run(Section::Prologue, &mut Idle::default()).unwrap();
    for _ in 0..200 {
        executor.run(Section::Body, &mut Idle::default()).unwrap();
    }
    executor.synchronize().unwrap();
}

/// A plan with a host action in each section.
const HOSTED: &str = "plan 1\narena dev 0 host 64\nstate s0 s buffer f32[1] host+0:4 zeros\n\
    input i0 x f32[1] host+4:4 data x micro 0 range 0..0\nprologue {\n  host load s0\n}\n\
    body {\n  host write i0\n}\nepilogue {\n  host store s0\n}\n";

fn hosted() -> Box<dyn Executor> {
    let mut plan = memc_plan::text::parse(HOSTED).unwrap();
    plan.meta.set_source("");
    let device = Cpu::new(Options { threads: 1, check_memory: true, delay_seed: None, slow: None }).unwrap();
    device.open(Arc::new(Program::new(&plan).unwrap())).unwrap()
}

/// Of all orders of up to four sections, those run that are prologue, bodies, epilogue, again and again; the
/// first section out of order calls no host action, and nothing runs after it.
#[test]
fn sections_run_in_order_only() {
    let order = |text: &[Section]| {
        let letters: String = text.iter().map(|section| section.to_string().remove(0)).collect();
        // A run begins after each epilogue.
        letters.split_inclusive('e').all(|run| {
            let rest = run.strip_prefix('p');
            rest.is_some_and(|rest| rest.trim_start_matches('b').trim_end_matches('e').is_empty())
        })
    };
    let mut right = 0;
    for code in 0..3usize.pow(4) {
        let sequence = [1, 3, 9, 27].map(|place| Section::ALL[code / place % 3]);
        let (mut executor, mut host) = (hosted(), Idle::default());
        let mut failed = false;
        for (index, section) in sequence.into_iter().enumerate() {
            let expected = order(&sequence[..=index]);
            let calls = host.calls;
            match executor.run(section, &mut host) {
                Ok(()) => assert!(expected && !failed, "{sequence:?} at {index}"),
                Err(error) => {
                    assert!(!expected, "{sequence:?} at {index}: {error}");
                    assert_eq!((error.exit_code(), host.calls), (70, calls));
                    assert!(failed || error.to_string().contains("out of order"), "{error}");
                    failed = true;
                }
            }
        }
        assert_eq!(executor.synchronize().is_err(), failed);
        right += usize::from(!failed);
    }
    // pbbb, pbbe, pbep, pepb and pepe.
    assert_eq!(right, 5);
}

/// After a stream has failed, no host action runs, also where nothing waits for that stream, and the next
/// call returns the stream's error.
#[test]
fn no_host_action_runs_after_a_failure() {
    let text = HOSTED
        .replace("arena dev 0", "arena dev 64")
        .replace("body {\n", "body {\n  compute free dev+0:64\n");
    let mut plan = memc_plan::text::parse(&text).unwrap();
    plan.meta.set_source("");
    let mut program = Program::new(&plan).unwrap();
    let place = Place { space: memc_plan::Space::Dev, start: 64, len: 64 };
    program.body_mut()[0].action = Action::Free(place);
    let device = Cpu::new(Options { threads: 1, check_memory: true, delay_seed: None, slow: None }).unwrap();
    let (mut executor, mut host) = (device.open(Arc::new(program)).unwrap(), Idle::default());
    executor.run(Section::Prologue, &mut host).unwrap();
    assert_eq!(host.calls, 1);
    // The body may be issued before its command fails; synchronising returns once it has.
    let issued = executor.run(Section::Body, &mut host);
    let synchronized = executor.synchronize();
    let calls = host.calls;
    let error = issued.and(synchronized).unwrap_err();
    assert!(error.to_string().contains("body command 0 panicked"), "{error}");
    assert!(executor.run(Section::Epilogue, &mut host).is_err());
    assert_eq!(host.calls, calls, "a host action ran after the failure");
}

/// An error of a host action ends the run: no later host action of the section, or of another one, is called.
#[test]
fn a_host_error_ends_the_run() {
    struct Refuses;
    impl HostSide for Refuses {
        fn load(&mut self, _: usize, _: &mut [u8]) -> Result<(), Error> {
            Err(Error::Data("refused".to_owned()))
        }
        fn store(&mut self, _: usize, _: &[u8]) -> Result<(), Error> {
            unreachable!("stored")
        }
        fn write(&mut self, _: usize, _: &mut [u8]) -> Result<(), Error> {
            unreachable!("written")
        }
        fn read(&mut self, _: usize, _: &[u8]) -> Result<(), Error> {
            unreachable!("read")
        }
    }
    let mut executor = hosted();
    assert_eq!(executor.run(Section::Prologue, &mut Refuses).unwrap_err().exit_code(), 3);
    for section in [Section::Body, Section::Epilogue, Section::Prologue] {
        assert!(executor.run(section, &mut Refuses).is_err());
    }
}

#[test]
fn plans_for_gpus_are_told() {
    assert!(made_for_a_gpu("h100").is_some_and(|note| note.contains("--device cuda")));
    assert_eq!([made_for_a_gpu("cpu"), made_for_a_gpu("")], [None, None]);
}
