//! Devices: built-in ones by name, measured ones by file.

use memc_plan::PlanFile;
use memc_runtime::{ProfileOptions, profile};
use serde_json::Value;

use crate::support::{json, memc, memc_fails, memc_ok, number, put, run, verified};

const MODEL: &str = "models/cnn_bn/training_model.onnx";

#[test]
fn every_built_in_device_is_listed_and_times_a_step() {
    let listed = memc_ok(&["list", "devices"]);
    let ideal = |device: &str| {
        number(&json(&memc_ok(&["estimate", MODEL, "--device", device, "--json"])), "ideal_ns")
    };
    for device in memc_passes::PROFILES.iter().map(|profile| &*profile.name) {
        assert!(listed.lines().any(|l| l.trim_start().starts_with(device)), "{device}: {listed}");
        assert!(ideal(device) > 0);
    }
    assert!(ideal("h200") < ideal("v100-16g"));
    // Scripts get profiles.
    let folder = tempfile::tempdir().unwrap();
    let all = json(&memc_ok(&["list", "devices", "--json"]));
    let h100 = all.as_array().unwrap().iter().find(|p| p["name"] == "h100").unwrap();
    let file = put(folder.path(), "h100.json", h100.to_string().as_bytes()).display().to_string();
    assert_eq!(ideal(&file), ideal("h100"));
    let file = put(folder.path(), "all.json", all.to_string().as_bytes()).display().to_string();
    let said = memc_fails(3, &["estimate", MODEL, "--device", &file]);
    assert!(said.contains("the profile of one device is needed") && said.contains("h100, h200"), "{said}");
}

/// The device's reserve is named wherever a budget is.
#[test]
fn the_reserve_of_a_device_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("a.plan").display().to_string();
    let with = |command: &'static str, budget: &'static str| {
        let args = [command, MODEL, "--device", "h100", "--effort", "0", "--gpu-mem", budget];
        let to: &[&str] = if command == "compile" { &["-o", &output] } else { &[] };
        [&args[..], to].concat()
    };
    for command in ["plan", "compile", "compare"] {
        let said = memc_fails(4, &with(command, "1400M"));
        assert!(
            said.contains("both include the device's reserve for driver, libraries and code: 1.50 GiB"),
            "{said}"
        );
        assert!(said.contains("the reserve alone takes as much"), "{said}");
        let told = memc_ok(&with(command, "1600M"));
        assert!(told.contains("the device's reserve of 1.50 GiB included"), "{told}");
    }
    for command in ["plan", "compile"] {
        for budget in ["1400M", "1600M"] {
            let told = memc(&[&with(command, budget)[..], &["--json"]].concat());
            let told = json(&String::from_utf8(told.stdout).unwrap());
            assert_eq!(told["reserve_bytes"], 1536 << 20, "{told}");
        }
    }
}

#[test]
fn an_unknown_device_is_a_usage_error_with_the_nearest_one() {
    let said = memc_fails(2, &["estimate", MODEL, "--device", "A100-80"]);
    assert!(said.contains("did you mean `a100-80g`?") && said.contains("gtx1080ti"), "{said}");
}

#[test]
fn a_measured_profile_is_planned_with_and_its_plan_proved_and_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    memc_ok(&["compile", MODEL, "-o", &path("first.plan")]);
    let options = ProfileOptions { steps: 3, threads: 2, ..ProfileOptions::default() };
    let measured = profile(&PlanFile::open(folder.path().join("first.plan")).unwrap(), &options).unwrap();
    let device =
        put(folder.path(), "mine.json", measured.to_json().to_string().as_bytes()).display().to_string();

    let fitted = json(&memc_ok(&["fit-profile", &device, "--json", "-o", &path("fitted.json")]));
    assert_eq!(fitted["all"]["ops"].as_u64().unwrap(), measured.ops.len() as u64);
    assert!(fitted["families"]["conv-grad-weight"]["ops"].as_u64().unwrap() > 0, "{fitted}");
    assert_eq!(fitted["output"], path("fitted.json"));
    // The merged profile has the ops of all, with their times.
    let again =
        json(&memc_ok(&["fit-profile", &path("fitted.json"), &device, "--json", "-o", &path("again.json")]));
    assert_eq!((&again["all"], &again["families"]), (&fitted["all"], &fitted["families"]));
    let files = ["fitted.json", "again.json"].map(|name| std::fs::read(path(name)).unwrap());
    assert_eq!(files[0], files[1]);
    let told = memc_ok(&["fit-profile", &device, "-o", &path("again.json")]);
    assert!(told.contains("again.json: written"), "{told}");
    let is_negative = |q: &Value| q["r2_log_time"].as_f64().is_some_and(|r2| r2 < 0.0);
    let useless = fitted["families"].as_object().unwrap().values().chain([&fitted["all"]]).any(is_negative);
    assert_eq!(told.contains("R2 below 0"), useless, "{told}");
    let gpu = std::fs::read_to_string(&device).unwrap().replace("\"plain\"", "\"gpu\"");
    let gpu = put(folder.path(), "gpu.json", gpu.as_bytes()).display().to_string();
    assert!(memc_fails(2, &["fit-profile", &device, &gpu]).contains("different kinds"));

    let plan = path("second.plan");
    memc_ok(&["compile", MODEL, "--gpu-mem", "300K", "--device", &device, "-o", &plan]);
    memc_ok(&["check", &plan, "--source", MODEL, "--profile", &device]);
    let said = memc_fails(2, &["check", &plan, "--source", MODEL]);
    assert!(said.contains("cpu-2-threads") && said.contains("give its profile file: --device"), "{said}");
    run(folder.path().join("second.plan").as_path(), folder.path(), verified(2, 3));
}

#[test]
fn a_malformed_profile_is_a_bad_model_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"{"format": "memc-profile/1", "name": "x", "kernels": "plain", "processors": 1,
        "f32_flops_per_s": "fast"}"#;
    let path = put(folder.path(), "bad.json", text.as_bytes()).display().to_string();
    for command in ["estimate", "compile"] {
        let said = memc_fails(3, &[command, MODEL, "--device", &path]);
        assert!(said.contains("bad.json") && said.contains("`f32_flops_per_s` must be"), "{said}");
    }
    assert!(memc_fails(3, &["fit-profile", &path]).contains("bad.json"));
    let empty = memc_fails(74, &["estimate", MODEL, "--device", "absent.json"]);
    assert!(empty.contains("absent.json"), "{empty}");
}

#[test]
fn without_a_link_nothing_is_swapped() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"{"format": "memc-profile/1", "name": "alone", "kernels": "plain", "processors": 1,
        "f32_flops_per_s": 1e9, "memory_bytes_per_s": 1e9, "d2h_bytes_per_s": 0, "h2d_bytes_per_s": 0,
        "duplex_total_bytes_per_s": 0, "kernel_latency_ns": 0, "copy_latency_ns": 0, "reserve_bytes": 0}"#;
    let device = put(folder.path(), "alone.json", text.as_bytes()).display().to_string();
    let plan = folder.path().join("a.plan").display().to_string();
    let out = memc_ok(&["compile", MODEL, "--device", &device, "--gpu-mem", "1M", "-o", &plan, "--json"]);
    assert_eq!(number(&json(&out), "swap_out_bytes"), 0);
    let small = memc(&["compile", MODEL, "--device", &device, "--gpu-mem", "300K", "-o", &plan, "--json"]);
    // Without copies there may still be a plan that computes things again.
    match small.status.code() {
        Some(4) => {}
        Some(0) => {
            let out = json(&String::from_utf8(small.stdout).unwrap());
            assert_eq!((number(&out, "swap_out_bytes"), number(&out, "swap_in_bytes")), (0, 0), "{out}");
        }
        code => panic!("{code:?}: {}", String::from_utf8_lossy(&small.stderr)),
    }
}

/// Element-wise ops are fused where the device is a GPU, unless the user declines. The bits of every step
/// stay the same, and a plan is proved against its source as it was compiled.
#[test]
fn fusing_for_a_gpu_changes_kernels_but_no_bits() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["cnn_bn", "bert_tiny_dropout", "lstm_sgd", "mlp_clip"] {
        let model = format!("models/{name}/training_model.onnx");
        let need = json(&memc_ok(&["estimate", &model, "--device", "h100", "--json"]));
        assert!(number(&need["work"], "kernels") < number(&need["work_unfused"], "kernels"), "{need}");
        assert!(number(&need["work"], "bytes") < number(&need["work_unfused"], "bytes"), "{need}");
        let trained = [&["--device", "h100"][..], &["--device", "h100", "--no-fuse"], &[]].map(|flags| {
            let file = folder.path().join("fused.plan");
            let plan = file.display().to_string();
            let compile = ["compile", &model, "-o", &plan, "--effort", "0"];
            memc_ok(&[&compile[..], flags].concat());
            memc_ok(&["check", &plan, "--source", &model]);
            let text = memc_ok(&["dump", &plan]);
            let (fused, normed) = (text.contains(" = fused("), text.contains(" = fused_norm("));
            assert_eq!(normed, fused && name.starts_with("bert"), "{name}");
            // The gradients of linear layers.
            let summed = text.contains(" = matmul_bias_grad(");
            assert_eq!(summed, fused, "{name}");
            (fused, run(&file, folder.path(), verified(3, 7)))
        });
        assert_eq!(trained.each_ref().map(|(fused, _)| *fused), [true, false, false], "{name}");
        let [(_, one), (_, two), _] = &trained;
        assert!(one.losses == two.losses && one.states == two.states, "{name}");
    }
}

/// A problem is no device, and a device no problem; either is told what it is.
#[test]
fn a_problem_where_a_profile_belongs_is_called_one() {
    let folder = tempfile::tempdir().unwrap();
    let problem = folder.path().join("p.json").display().to_string();
    memc_ok(&["export-problem", "models/mlp_s/training_model.onnx", "-o", &problem]);
    for args in [&["plan", MODEL, "--gpu-mem", "1M", "--device", &problem][..], &["fit-profile", &problem]] {
        let said = memc_fails(3, args);
        assert!(said.contains("p.json: a planning problem, not the profile of a device"), "{said}");
        assert!(said.contains("in place of a model") && said.contains("memrun profile"), "{said}");
    }
}
