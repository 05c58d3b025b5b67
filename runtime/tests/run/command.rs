//! The `memrun` command: exit codes, output, signals.

use std::{
    fs,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use crate::{CLASSIFIER, Folder, npy, parse};

/// Runs `memrun` in the folder with arguments separated by blanks.
pub(crate) fn memrun(folder: &Folder, arguments: &str) -> Output {
    command(folder, arguments).output().expect("memrun starts")
}

pub(crate) fn command(folder: &Folder, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memrun"));
    command.current_dir(folder.path("")).args(arguments.split_whitespace());
    // Most tests do not mind the data.
    if arguments.split_whitespace().next().is_some_and(|word| word.ends_with(".plan")) {
        command.arg("--synthetic");
    }
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// First note of a run on synthetic data.
const SYNTHETIC: &str = "memrun: note: synthetic data for `input`, `labels`\n";

/// Asserts the exit code, and that standard error is one message with these parts.
fn fails(folder: &Folder, arguments: &str, code: i32, parts: &[&str]) {
    let output = memrun(folder, arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments}: {error}");
    parts.iter().for_each(|part| assert!(error.contains(part), "{arguments}: {error} lacks {part}"));
    assert!(!error.contains("panicked"), "{error}");
    if code != 2 {
        let notes = |line: &&str| line.starts_with("memrun: note: synthetic data");
        assert_eq!(error.lines().filter(|line| !notes(line)).count(), 1, "{error}");
        assert_eq!(text(&output.stdout).lines().last(), Some(format!("memrun: FAILED exit={code}").as_str()));
    }
}

/// A run prints one row for each step and a last line with the verdict; what is made up is said on standard
/// error.
#[test]
fn a_run_prints_its_losses() {
    let folder = Folder::of(CLASSIFIER);
    let output = memrun(&folder, "model.plan --steps 3 --verify");
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), SYNTHETIC);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 5, "{printed}");
    let words: Vec<&str> = lines[3].split_whitespace().collect();
    assert_eq!(words[0], "3");
    assert!(words[1].parse::<f32>().is_ok_and(|loss| loss > 0.0));
    assert!(lines[4].starts_with("memrun: PASSED peak=14.88KiB/16.00KiB step="), "{printed}");
    assert!(lines[4].ends_with("verified=bit-identical"), "{printed}");
}

/// With `--json` standard output is one object, whose losses read back exactly.
#[test]
fn json_is_one_object() {
    let folder = Folder::of(CLASSIFIER);
    let losses = folder.run(&crate::steps(3)).unwrap();
    let output = memrun(&folder, "model.plan --steps 3 --json --threads 2");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let printed: Vec<f32> =
        object["losses"].as_array().unwrap().iter().map(|x| x.to_string().parse().unwrap()).collect();
    assert_eq!(printed, losses);
    assert_eq!(object["step_ns"].as_array().unwrap().len(), 3);
    assert_eq!(object["arena_bytes"], 15232);
    assert_eq!(object["host_bytes"], 13760);
    assert_eq!((&object["device"], &object["threads"]), (&Value::from("cpu"), &Value::from(2)));
    assert_eq!(object["verified"], Value::Null);
    assert_eq!(object["plan_hash"].as_str().unwrap().len(), 64);

    let info: Value =
        serde_json::from_slice(&memrun(&folder, "model.plan --plan-info --json").stdout).unwrap();
    assert_eq!(info["plan_hash"], object["plan_hash"]);
    assert_eq!(info["inputs"], serde_json::json!(["input", "labels"]));
    assert_eq!(info["internal_inputs"], serde_json::json!(["lr", "t"]));
    assert_eq!(info["gpu_mem_bytes"], object["gpu_mem_bytes"]);
    assert_eq!(object["synthetic"], serde_json::json!(["input", "labels"]));
    assert!(text(&memrun(&folder, "model.plan --plan-info").stdout).contains("14.88 KiB (15,232 B)"));

    let failed = memrun(&folder, "model.plan --json --resume nowhere");
    let object: Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert_eq!(object["exit_code"], 74);
    assert!(object.get("device").is_some_and(Value::is_null) && object["interrupted"] == false);
}

/// The description of a plan names its device, and the parts of the budget.
#[test]
fn plan_info_shows_the_device_and_the_parts_of_the_budget() {
    let of = |budget: &str| {
        let folder = Folder::of(&CLASSIFIER.replace("budget 16384 reserve 0", budget));
        let [printed, object] = ["", " --json"]
            .map(|json| text(&memrun(&folder, &format!("model.plan --plan-info{json}")).stdout));
        (printed, serde_json::from_str::<Value>(&object).unwrap())
    };
    let (printed, object) = of("profile mine\nbudget 17408 reserve 1024");
    let budget = "budget        17.00 KiB (17,408 B) = 16.00 KiB (16,384 B) for the arena + 1.00 KiB (1,024 \
        B) reserve (driver, libraries and code)\n";
    assert!(printed.contains("\nprofile       mine\n") && printed.contains(budget), "{printed}");
    assert_eq!((&object["profile"], &object["reserve_bytes"]), (&Value::from("mine"), &Value::from(1024)));
    assert_eq!(object["gpu_mem_bytes"], 17408);
    let (printed, _) = of("budget 16384 reserve 0");
    assert!(printed.contains("16.00 KiB (16,384 B), all of it for the arena\n"), "{printed}");
}

/// Of a plan with buckets the largest is described, or the one that is asked for, and its name is told.
#[test]
fn plan_info_is_of_one_bucket() {
    let sized = |name: &str, peak: &str| {
        let own = format!("option dim {name}\nbudget 16384 reserve 0");
        let text = CLASSIFIER.replace("budget 16384 reserve 0", &own);
        text.replace("\nkernel k0", &format!("\nclaim unplanned_peak_bytes {peak}\nkernel k0"))
    };
    let (first, second) = (sized("seq=8", "1"), sized("seq=16", "2"));
    let folder = Folder::of(&format!("{}bucket\n{second}", first.replace("\nplan 1", "\nplan 3")));
    let of = |more: &str| text(&memrun(&folder, &format!("model.plan --plan-info{more}")).stdout);
    let row = "buckets       seq=8 seq=16 (here seq=16; --bucket shows another)\n";
    assert!(of("").contains(row), "{}", of(""));
    assert!(of(" --bucket seq=8").contains("(here seq=8; "));
    let object: Value = serde_json::from_str(&of(" --json --bucket seq=8")).unwrap();
    assert_eq!(object["bucket"], "seq=8");
    let failed = memrun(&folder, "model.plan --plan-info --bucket seq=9");
    assert_eq!(failed.status.code(), Some(2));
    assert!(text(&failed.stderr).contains("no bucket `seq=9`; it has seq=8, seq=16"));
}

/// No output takes the place of the plan, of data, or of another output; a state may be saved over the one
/// that is resumed.
#[test]
fn outputs_take_the_place_of_nothing() {
    let folder = Folder::of(CLASSIFIER);
    let plan = std::fs::read(folder.path("model.plan")).unwrap();
    std::os::unix::fs::symlink("model.plan", folder.path("link.plan")).unwrap();
    npy(&folder.path("y.npy"), "<i8", &[32], &[0; 256]);
    for arguments in [
        "model.plan --trace model.plan",
        "model.plan --save ./model.plan",
        "model.plan --output loss=model.plan",
        "link.plan --trace model.plan",
        "model.plan --trace link.plan",
        "model.plan --input labels=@y.npy --trace y.npy",
        "model.plan --save new.x --trace new.x",
        "model.plan --steps 2 --measure model.plan",
        "model.plan --resume old.x --save new.x --trace old.x",
        "profile model.plan -o model.plan",
    ] {
        fails(&folder, arguments, 2, &["would be overwritten"]);
        assert_eq!(std::fs::read(folder.path("model.plan")).unwrap(), plan, "{arguments}");
    }
    for arguments in ["--save s.x", "--resume s.x --save s.x"] {
        let output = memrun(&folder, &format!("model.plan {arguments}"));
        assert_eq!(output.status.code(), Some(0), "{arguments}: {}", text(&output.stderr));
    }
}

/// A run that measures says where the profile is, and needs a second step.
#[test]
fn a_run_measures_from_the_second_step_on() {
    let folder = Folder::of(CLASSIFIER);
    fails(&folder, "model.plan --measure m.json", 2, &["from the second step on", "--steps"]);
    fails(&folder, "model.plan --measure-every 2", 2, &["--measure"]);
    let printed = text(&memrun(&folder, "model.plan --steps 5 --measure m.json").stdout);
    assert!(printed.contains("m.json: ") && printed.contains("memc compile --device m.json"), "{printed}");
    let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
    let object = json(&memrun(&folder, "model.plan --steps 5 --measure n.json --json").stdout);
    assert_eq!(object["profile"], "n.json");
    let profile = json(&fs::read(folder.path("n.json")).unwrap());
    assert_eq!(profile["format"], "memc-profile/1");
    assert!(profile["ops"].as_array().is_some_and(|ops| !ops.is_empty()));
}

/// Command lines that ask for what is not there.
#[test]
fn usage_errors_exit_with_2() {
    let folder = Folder::of(CLASSIFIER);
    for (arguments, part) in [
        ("", "model.plan"),
        ("model.plan --steps 0", "--steps"),
        ("model.plan --steps 1.5", "--steps"),
        ("model.plan --threads 0", "--threads"),
        ("model.plan --lr nan", "is no rate"),
        ("model.plan --lr -1", "not negative"),
        ("model.plan --keep 2 --save s.x", "--save-every"),
        ("model.plan --epochs 2", "every step reads the same"),
        ("model.plan --input x", "NAME=@FILE"),
        ("model.plan --host-mem 16", "16G"),
        ("model.plan --device gpu", "cuda:N"),
        ("model.plan --device cuda:-1", "number"),
        ("model.plan --output loss", "NAME=FILE"),
        ("model.plan --output w=x.npy", "no such output; it has `loss`"),
        ("model.plan --input image=@x.npy", "`input`, `labels`"),
        ("model.plan --input labels=@a --input labels=@b", "twice"),
    ] {
        fails(&folder, arguments, 2, &[part]);
    }
    let help = text(&memrun(&folder, "--help").stdout);
    assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
}

/// Whoever names a command that is none, or in the wrong place, is shown the command line that does it.
#[test]
fn commands_that_are_none_have_the_right_one_shown() {
    let folder = Folder::of(CLASSIFIER);
    for (arguments, part) in [
        ("run model.plan --steps 3", "no command `run`: write memrun model.plan --steps 3\n"),
        ("model.plan run", "no command `run`: write memrun model.plan --synthetic\n"),
        ("--steps 3 train model.plan", "no command `train`: write memrun --steps 3 model.plan\n"),
        ("info model.plan", "no command `info`: write memrun model.plan --plan-info\n"),
        ("check model.plan", "a command of memc: memc check model.plan\n"),
        ("--json profile model.plan -o p", "`profile` comes first: memrun profile --json model.plan -o p\n"),
        ("model.plan other.plan", "one plan, and `other.plan` is one argument more\n"),
    ] {
        fails(&folder, arguments, 2, &[part]);
    }
}

/// Each kind of failure has its exit code and one message.
#[test]
fn failures_have_their_exit_codes() {
    let folder = Folder::of(CLASSIFIER);
    let labels: Vec<u8> = [-1i64; 32].iter().flat_map(|x| x.to_le_bytes()).collect();
    npy(&folder.path("y.npy"), "<i8", &[32], &labels);
    fails(&folder, "model.plan --input labels=@y.npy", 3, &["input `labels`", "step 1", "-1 at [0]"]);
    fails(&folder, "model.plan --input input=@y.npy", 3, &["y.npy", "float32"]);
    fails(&folder, "model.plan --init y.npy", 3, &["y.npy", "NumPy array", "--input"]);
    fails(&folder, "model.plan --resume model.plan", 3, &["model.plan: this is a plan"]);
    fails(&folder, "model.plan --input input=@model.plan", 3, &["it is a plan"]);
    fs::write(folder.path("checkpoint"), b"\x08\x00\x00\x00ODTC and more").unwrap();
    fails(
        &folder,
        "model.plan --init checkpoint",
        3,
        &["ONNX Runtime checkpoint", "memc compile --checkpoint"],
    );
    fails(&folder, "nowhere.plan", 74, &["nowhere.plan: no such file", "`memc compile MODEL -o FILE.plan`"]);
    fails(&folder, "run", 74, &["run: no such file; memrun needs a plan"]);
    fails(&folder, "/", 7, &["/: not a memc plan but a folder; memrun needs a plan"]);
    fails(&folder, "model.plan --host-mem 8K", 5, &["13.44 KiB", "--host-mem 8.00 KiB"]);
    fails(&folder, "model.plan --save /dev/full", 74, &["/dev/full"]);
    fails(&folder, "y.npy", 7, &["y.npy", "not a memc plan"]);
    fs::write(folder.path("model.onnx"), b"\x08\x07\x12\x07pytorch").unwrap();
    fails(&folder, "model.onnx", 7, &["memc compile model.onnx -o model.plan"]);

    let other = Folder::of(&CLASSIFIER.replace("%lr, %t {alpha = 0.9", "%lr, %t {alpha = 0.8"));
    fails(&other, "model.plan --steps 4 --verify", 6, &["`loss`", "after step 2", "0x"]);
    let missing = Folder::of(&CLASSIFIER.replace("  host store s1\n", ""));
    fails(&missing, "model.plan --verify", 7, &["does not store `m`"]);
    fails(&missing, "model.plan --save x", 7, &["does not store `m`"]);
    assert_eq!(missing.entries(), ["model.plan"]);
}

/// A plan cut short anywhere, or with any byte changed, is refused with exit code 7.
#[test]
fn damaged_plans_are_refused() {
    let folder = Folder::of(CLASSIFIER);
    let whole = fs::read(folder.path("model.plan")).unwrap();
    let (n, path) = (whole.len(), folder.path("bad.plan"));
    for end in [1, 7, 8, 20, 63, 64, 65, n / 2, n - 1] {
        fs::write(&path, &whole[..end]).unwrap();
        fails(&folder, "bad.plan", 7, &["bad.plan"]);
    }
    for at in [0, 9, 13, 17, 30, 40, 64, n / 3, n / 2, n - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, bytes).unwrap();
        fails(&folder, "bad.plan", 7, &["bad.plan"]);
    }
}

/// A reader that goes away is no error, and a full disk behind standard output is one.
#[test]
#[cfg(target_os = "linux")]
fn standard_output_may_go_away() {
    let folder = Folder::of(CLASSIFIER);
    let mut child = command(&folder, "model.plan --steps 2")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), SYNTHETIC));
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command(&folder, "model.plan").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(74));
    assert!(text(&output.stderr).contains("standard output"));
}

/// A plan whose loss is not a number runs, and JSON says null.
#[test]
fn a_loss_that_is_no_number_is_null() {
    let plan = "
plan 1
arena dev 0 host 64
input i0 x f32[] host+0:4 data x micro 0 range 0..0
output o0 x f32[] host+0:4 loss
body {
  host write i0
  host read o0
}
";
    let folder = Folder::new(&parse(plan));
    npy(&folder.path("x.npy"), "<f4", &[], &f32::NAN.to_le_bytes());
    let output = memrun(&folder, "model.plan --input x=@x.npy --json");
    assert_eq!(output.status.code(), Some(0));
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["losses"], serde_json::json!([null]));
    assert_eq!(object["first_step_not_finite"], 1);
    let output = memrun(&folder, "model.plan --input x=@x.npy --output x=z.npy");
    let printed = text(&output.stdout);
    assert!(
        printed.contains("NaN") && printed.contains("PASSED WITH WARNING loss-not-finite-at-step=1 peak=")
    );
    assert!(!text(&output.stderr).contains("synthetic"));
    assert_eq!(fs::read(folder.path("z.npy")).unwrap()[128..], f32::NAN.to_le_bytes());
    assert_eq!(memrun(&folder, "model.plan --input x=@z.npy").status.code(), Some(0));
}

/// Where there is no GPU, asking for one says why; where there is one, the plan runs on it.
#[test]
fn a_gpu_runs_the_plan_or_is_missed() {
    let folder = Folder::of(CLASSIFIER);
    match memc_gpu::devices() {
        Err(why) => fails(&folder, "model.plan --device cuda", 8, &[&why.to_string()]),
        Ok(_) => {
            let output = memrun(&folder, "model.plan --device cuda --steps 3");
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        }
    }
}

/// `devices` works with and without CUDA's libraries: every one is listed with its version, or with why it is
/// missing, what that costs and what brings it; a file that is no library is named.
#[test]
fn devices_lists_what_is_there_and_what_is_missing() {
    let folder = Folder::of(CLASSIFIER);
    fs::write(folder.path("libcudnn.so.9"), "not a library").unwrap();
    let devices = |arguments: &str| {
        let mut command = command(&folder, arguments);
        let output = command.env("MEMRUN_CUDA_LIBS", folder.path("")).output().expect("memrun starts");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let (printed, object) = (devices("devices"), devices("devices --json"));
    let object: Value = serde_json::from_str(&object).unwrap();
    assert!(object["cpu"]["threads"].as_u64().unwrap() > 0);
    assert!(printed.contains("  cpu "), "{printed}");
    assert_eq!(object["gpus"].as_array().unwrap().is_empty(), object["no_gpu_because"].is_string());
    let libraries = object["libraries"].as_array().unwrap();
    let names: Vec<&str> = libraries.iter().map(|l| l["library"].as_str().unwrap()).collect();
    assert_eq!(names, ["driver", "NVRTC", "cuBLASLt", "cuDNN"]);
    for library in libraries {
        let said: &[&str] = if library["found"] == true { &["path"] } else { &["why", "costs", "remedy"] };
        for key in said {
            let what = library[key].as_str().unwrap();
            assert!(!what.is_empty() && printed.contains(what), "{printed} lacks {what}");
        }
    }
    if libraries[3]["found"] == false {
        let why = libraries[3]["why"].as_str().unwrap();
        assert!(why.contains("libcudnn.so.9") && !why.contains("folders"), "{why}");
    }
}

/// Completions know commands and options; each command has a man page.
#[test]
fn completions_and_man_pages_have_every_command() {
    let folder = Folder::of(CLASSIFIER);
    let output = memrun(&folder, "completions zsh");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0));
    assert!(["#compdef memrun", "profile", "--gpu-mem"].iter().all(|part| said.contains(part)), "{said}");
    assert_eq!(memrun(&folder, "man pages").status.code(), Some(0));
    for page in ["memrun.1", "memrun-tune.1"] {
        assert!(fs::read_to_string(folder.path(&format!("pages/{page}"))).unwrap().contains(".SH OPTIONS"));
    }
    fails(&folder, "man model.plan", 74, &["model.plan"]);
}
