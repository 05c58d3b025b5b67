//! Updates of an optimizer on the host: chosen or asked for, bit-equal, refused with a reason.

use crate::support::{json, memc_fails, memc_ok, number, put, run, verified};

/// A slow link, and a host that updates states faster than they cross it.
const PROFILE: &str = r#"{"format": "memc-profile/1", "name": "host", "kernels": "plain", "processors": 1,
    "f32_flops_per_s": 1e11, "memory_bytes_per_s": 1e11, "d2h_bytes_per_s": 1e9, "h2d_bytes_per_s": 1e9,
    "duplex_total_bytes_per_s": 1.5e9, "host_bytes_per_s": 5e10, "kernel_latency_ns": 100,
    "copy_latency_ns": 100, "reserve_bytes": 0}"#;

const BERT: &str = "models/bert_tiny_dropout/training_model.onnx";

/// Whatever runs on the host, losses and states of five steps are those of the unplanned run, and of a plan
/// with all ops on the device.
#[test]
fn updates_on_the_host_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let device = put(folder.path(), "host.json", PROFILE.as_bytes()).display().to_string();
    for name in ["mlp_s_adamw_wd", "mlp_clip", "mlp_s_sgd", "bert_tiny_dropout", "bert_tiny_nodrop_sgd"] {
        let model = format!("models/{name}/training_model.onnx");
        let ran =
            [&["--no-host-ops"][..], &["--host", "*weight*"], &["--host", "*bias*", "--host", "*weight*"]]
                .map(|host| {
                    let file = folder.path().join("model.plan");
                    let plan = file.display().to_string();
                    let compile = [
                        "compile",
                        &model,
                        "--device",
                        &device,
                        "--gpu-mem",
                        "peak*70%",
                        "--effort",
                        "1",
                        "-o",
                        &plan,
                    ];
                    memc_ok(&[&compile[..], host].concat());
                    assert_eq!(memc_ok(&["dump", &plan]).contains(" cpu launch "), host.len() > 1, "{name}");
                    run(&file, folder.path(), verified(5, 5))
                });
        let [none, some, all] = &ran;
        assert!(none.losses == some.losses && none.states == some.states, "{name}");
        assert!(none.losses == all.losses && none.states == all.states, "{name}");
    }
}

/// A step of some layers: a weight of 1 MB each, with 2 MB of moments, on a link of 1 GB/s.
fn layers(n: usize) -> String {
    let (mut tensors, mut forward, mut backward) = (Vec::new(), Vec::new(), Vec::new());
    let tensor = |id: usize, name: &str, bytes: usize, kind: &str| {
        format!(r#"{{"id": {id}, "name": "{name}{}", "bytes": {bytes}, "kind": "{kind}"}}"#, id / 5)
    };
    for i in 0..n {
        let [w, m, h, d, g] = std::array::from_fn(|k| 5 * i + k);
        tensors.push(tensor(w, "w", 1_000_000, "persistent"));
        tensors.push(tensor(m, "m", 2_000_000, "persistent"));
        for (id, name) in [(h, "h"), (d, "d")] {
            tensors.push(tensor(id, name, 1000, "transient"));
        }
        tensors.push(tensor(g, "g", 1_000_000, "transient"));
        let before = if i == 0 { String::new() } else { format!(", {}", h - 5) };
        let after = if i + 1 == n { String::new() } else { format!(", {}", d + 5) };
        forward
            .push(format!(r#"{{"id": {i}, "time_ns": 1000000, "reads": [{w}{before}], "writes": [{h}]}}"#));
        let id = 2 * n - 2 * i;
        backward.push(format!(
            r#"{{"id": {}, "time_ns": 10000, "reads": [{w}, {m}, {g}], "writes": [{w}, {m}],
                "host_time_ns": 1500000}}"#,
            n + id
        ));
        backward.push(format!(
            r#"{{"id": {}, "time_ns": 2000000, "reads": [{w}, {h}{after}], "writes": [{d}, {g}]}}"#,
            n + id - 1
        ));
    }
    backward.reverse();
    let ops = [forward, backward].concat().join(", ");
    format!(
        r#"{{"format": "memc-problem/1", "device": {{"memory_bytes": 0, "h2d_bytes_per_s": 1e9,
            "d2h_bytes_per_s": 1e9, "duplex_total_bytes_per_s": 2e9}}, "tensors": [{}], "ops": [{ops}]}}"#,
        tensors.join(", ")
    )
}

/// The search moves updates to the host where that makes the step shorter, and says so; a saved plan of it is
/// carried out again.
#[test]
fn the_search_chooses_what_runs_on_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let problem = put(folder.path(), "p.json", layers(12).as_bytes()).display().to_string();
    let decisions = folder.path().join("d.txt").display().to_string();
    let plan = |more: &[&str]| {
        let plan = ["plan", &problem, "--gpu-mem", "13000000B", "--json"];
        json(&memc_ok(&[&plan[..], more].concat()))
    };
    let (chosen, none) = (plan(&["--decisions", &decisions]), plan(&["--no-host-ops"]));
    assert!(number(&chosen, "step_ns") < number(&none, "step_ns") * 4 / 5, "{chosen} {none}");
    assert!(number(&chosen, "host_ops") > 0 && number(&none, "host_ops") == 0, "{chosen}");
    assert!(number(&chosen, "bound_ns") <= number(&chosen, "step_ns"), "{chosen}");
    assert!(chosen["bound_holds_for"].as_str().unwrap().contains("these ops on the host"), "{chosen}");
    let again = plan(&["--apply", &decisions]);
    assert_eq!(number(&again, "step_ns"), number(&chosen, "step_ns"));
    let told = memc_ok(&["plan", &problem, "--gpu-mem", "13000000B"]);
    assert!(told.contains("on the host"), "{told}");
}

#[test]
fn what_cannot_run_on_the_host_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let device = put(folder.path(), "host.json", PROFILE.as_bytes()).display().to_string();
    for (device, glob, why) in [
        (device.as_str(), "absent*", "--host absent*: no state that the step changes is called so"),
        ("cpu", "*weight*", "only where the device profile has a host_bytes_per_s"),
    ] {
        let said =
            memc_fails(2, &["plan", BERT, "--device", device, "--gpu-mem", "peak*70%", "--host", glob]);
        assert!(said.contains(why), "{said}");
    }
    let said = memc_fails(
        2,
        &["plan", BERT, "--device", &device, "--host", "*", "--no-host-ops", "--gpu-mem", "1G"],
    );
    assert!(said.contains("cannot be used with"), "{said}");
}

/// Of all states those move whose updates can. Host memory that is too small for them is said with the
/// largest, and with as much as is enough.
#[test]
fn states_on_the_host_need_room_there() {
    let folder = tempfile::tempdir().unwrap();
    let device = put(folder.path(), "host.json", PROFILE.as_bytes()).display().to_string();
    let plan = folder.path().join("model.plan").display().to_string();
    let model = "models/mlp_s_adamw_wd/training_model.onnx";
    let args = ["--gpu-mem", "1M", "--host", "*", "-o", &plan, "--host-mem"];
    let compile = [&["compile", model, "--device", &device][..], &args].concat();
    let said = memc_fails(4, &[&compile[..], &["1K"]].concat());
    assert!(said.contains("the largest state there: %") && said.contains("weight"), "{said}");
    let enough = said.split("pass --host-mem ").nth(1).unwrap().split_whitespace().next().unwrap();
    memc_ok(&[&compile[..], &[enough]].concat());
    assert!(memc_ok(&["dump", &plan]).contains(" cpu launch "));
}
