//! Interrupts: the runs that they end, the message at once, and the files left.
#![cfg(target_os = "linux")]

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStderr, Command, Stdio},
};

use serde_json::Value;

use crate::command::{command, memrun, text};
use crate::signal::interrupt;
use crate::{CLASSIFIER, Folder, npy, steps};

/// A command that an interrupt comes to.
struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Running {
    fn start(folder: &Folder, arguments: &str) -> Running {
        let mut command = command(folder, arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("memrun starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        Running { child, stderr }
    }

    /// The same, held up where it reads the pipe, after it has set its handler; and the other end of what it
    /// reads.
    fn held(folder: &Folder, arguments: &str) -> (Running, File) {
        let running = Running::start(folder, arguments);
        // Opening this end returns once the command has opened its own.
        let pipe = fs::OpenOptions::new().write(true).open(folder.path("pipe")).expect("the pipe opens");
        (running, pipe)
    }

    fn interrupt(&self) {
        assert!(interrupt(self.child.id()));
    }

    /// The next line of standard error.
    fn says(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).expect("text");
        line
    }

    /// Exit code, standard output and what is left of standard error.
    fn end(mut self) -> (Option<i32>, String, String) {
        let mut said = String::new();
        let output = self.child.wait_with_output().expect("it ends");
        self.stderr.read_to_string(&mut said).expect("text");
        (output.status.code(), text(&output.stdout), said)
    }
}

/// A folder with a plan and a pipe that nobody writes to.
fn folder_with_pipe() -> Folder {
    let folder = Folder::of(CLASSIFIER);
    assert!(Command::new("mkfifo").arg(folder.path("pipe")).status().expect("mkfifo starts").success());
    folder
}

/// A measurement has nothing to save: an interrupt ends it at once with 130, says that there is no result,
/// and leaves no file.
#[test]
fn an_interrupt_ends_a_measurement_at_once() {
    let folder = folder_with_pipe();
    let before = folder.entries();
    for arguments in [
        "profile model.plan -o p.json --input input=@pipe",
        "tune model.plan --device cuda --input input=@pipe",
    ] {
        let (running, pipe) = Running::held(&folder, arguments);
        running.interrupt();
        let (code, printed, said) = running.end();
        assert_eq!((code, printed.as_str()), (Some(130), ""), "{arguments}");
        assert_eq!(said, "memrun: interrupted: there is no result, and nothing was written\n");
        drop(pipe);
        assert_eq!(folder.entries(), before);
    }
}

/// An interrupt ends the run with 130 after a whole step, and the state that it had then is saved and can be
/// resumed.
#[test]
fn an_interrupt_saves_the_state() {
    let folder = Folder::of(CLASSIFIER);
    let mut running = Running::start(&folder, "model.plan --steps 1000000000 --save state");
    let mut stdout = BufReader::new(running.child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while !line.trim_start().starts_with("1 ") {
        line.clear();
        assert!(stdout.read_line(&mut line).expect("text") > 0, "memrun ended by itself");
    }
    running.interrupt();
    let mut printed = String::new();
    stdout.read_to_string(&mut printed).expect("text");
    let (code, _, said) = running.end();
    assert_eq!(code, Some(130), "{said}");
    let answer = "memrun: interrupted: ending after this step, then saving the state; once more ends at once";
    assert!(said.lines().any(|line| line.starts_with(answer)), "{said}");
    let last = printed.lines().last().unwrap_or_default();
    let steps = last.strip_prefix("memrun: INTERRUPTED steps=").expect(last);
    let steps: u64 =
        steps.split_once("/1000000000 peak=14.88KiB/16.00KiB step=").expect(last).0.parse().unwrap();
    let note = format!(
        "interrupted after {steps} of 1000000000 steps; the state that it left is saved in state, and \
         --resume state"
    );
    assert!(said.contains(&note), "{said} lacks {note}");
    let resumed = memrun(&folder, "model.plan --resume state --json");
    let object: Value = serde_json::from_slice(&resumed.stdout).unwrap();
    assert_eq!(object["first_step"].as_u64(), Some(steps + 1));
}

/// A pipe that gives nothing more does not hold up an interrupt. The last whole step is saved.
#[test]
fn an_interrupt_ends_the_wait_for_data() {
    let folder = folder_with_pipe();
    let arguments = "model.plan --steps 9 --input input=@pipe --save state";
    let (running, pipe) = Running::held(&folder, &format!("{arguments} --json"));
    running.interrupt();
    let (code, printed, said) = running.end();
    assert_eq!(code, Some(130), "{said}");
    let object: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&object["interrupted"], &object["exit_code"]), (&Value::from(true), &Value::from(130)));
    assert!(said.contains("pipe: interrupted while it waited for data"), "{said}");
    drop(pipe);

    let (mut running, mut pipe) = Running::held(&folder, arguments);
    npy(&folder.path("x.npy"), "<f4", &[9, 32, 64], &[0; 2 * 32 * 64 * 4]);
    pipe.write_all(&fs::read(folder.path("x.npy")).unwrap()).unwrap();
    let mut stdout = BufReader::new(running.child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while !line.trim_start().starts_with("2 ") {
        line.clear();
        assert!(stdout.read_line(&mut line).expect("text") > 0, "memrun ended by itself");
    }
    running.interrupt();
    let (code, _, said) = running.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("interrupted after 2 of 9 steps; the state that it left is saved"), "{said}");
}

/// An interrupt that comes before the first step lets no step run; there is no time of a step then, and no
/// state without `--save`.
#[test]
fn an_interrupt_before_the_first_step_is_told_as_that() {
    for (save, told) in [("", "nothing was saved"), (" --save s.x", "no step had changed")] {
        for json in ["", " --json"] {
            let folder = folder_with_pipe();
            folder.run_and_save(&steps(1));
            let arguments = format!("model.plan --steps 3 --init pipe --output loss=l.npy{save}{json}");
            let (mut running, mut pipe) = Running::held(&folder, &arguments);
            running.interrupt();
            let answer = running.says();
            assert!(answer.starts_with("memrun: interrupted: ending before the first step"), "{answer}");
            pipe.write_all(&fs::read(folder.path("saved.safetensors")).unwrap()).unwrap();
            drop(pipe);
            let (code, printed, said) = running.end();
            assert_eq!(code, Some(130), "{said}");
            assert!(said.contains("after 0 of 3 steps") && said.contains(told), "{said}");
            assert!(said.contains("no output was written"), "{said}");
            assert!(!folder.path("s.x").exists());
            if json.is_empty() {
                assert_eq!(printed, "memrun: INTERRUPTED steps=0/3 peak=14.88KiB/16.00KiB\n");
                continue;
            }
            let object: Value = serde_json::from_str(&printed).unwrap();
            assert_eq!((&object["steps"], &object["steps_asked"]), (&Value::from(0), &Value::from(3)));
            assert_eq!((&object["saved"], &object["interrupted"]), (&Value::Null, &Value::from(true)));
        }
    }
}

/// The second interrupt does not wait for the step.
#[test]
fn a_second_interrupt_ends_a_run_at_once() {
    let folder = folder_with_pipe();
    let (mut running, _pipe) = Running::held(&folder, "model.plan --init pipe --save s.x");
    running.interrupt();
    assert!(running.says().contains("once more ends at once"));
    running.interrupt();
    let (code, printed, said) = running.end();
    assert_eq!((code, printed.as_str()), (Some(130), ""));
    assert_eq!(said, "memrun: interrupted: nothing was saved\n");
    assert!(!folder.path("s.x").exists());
}

/// Interrupts end a run also where nobody reads what it says: here all of it goes to one pipe, which is full.
#[test]
fn interrupts_end_a_run_that_cannot_print() {
    let folder = folder_with_pipe();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    let filling = std::thread::spawn(move || while filler.write_all(&[b'.'; 4096]).is_ok() {});
    let mut command = command(&folder, "model.plan --steps 3 --init pipe --save state");
    let mut child =
        command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().expect("memrun starts");
    // Opening this end returns once the command has set its handler and opened its own.
    let pipe = fs::OpenOptions::new().write(true).open(folder.path("pipe")).expect("the pipe opens");
    let ended = (0..600).find_map(|_| {
        assert!(interrupt(child.id()));
        std::thread::sleep(std::time::Duration::from_millis(100));
        child.try_wait().expect("it is a child")
    });
    assert_eq!(ended.expect("it ends").code(), Some(130));
    assert!(!folder.path("state").exists());
    drop((pipe, command, reader));
    filling.join().unwrap();
}
