//! Copies of models with a plan's decisions as metadata.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::support::{memc_fails, memc_ok};

/// The fields of a message that have a length, with their contents; a graph's fields by name and metadata.
fn fields(bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &[u8], at: &mut usize) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[*at];
            *at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let key = varint(bytes, &mut at);
        match key & 7 {
            0 => _ = varint(bytes, &mut at),
            1 => at += 8,
            5 => at += 4,
            _ => {
                let length = varint(bytes, &mut at) as usize;
                out.push((key >> 3, &bytes[at..at + length]));
                at += length;
            }
        }
    }
    out
}

type Metadata = BTreeMap<String, String>;

fn text(bytes: &[u8], number: u64) -> String {
    let found = fields(bytes).into_iter().find(|(n, _)| *n == number).map(|(_, content)| content);
    String::from_utf8(found.unwrap_or_default().to_vec()).unwrap()
}

/// Metadata of the messages in a field of a model's graph, by name.
fn metadata(model: &[u8], of: u64, name: u64, metadata: u64) -> BTreeMap<String, Metadata> {
    let graph = fields(model).into_iter().find(|(number, _)| *number == 7).unwrap().1;
    let own = |content: &[u8]| {
        let entries = fields(content).into_iter().filter(|(number, _)| *number == metadata);
        entries.map(|(_, entry)| (text(entry, 1), text(entry, 2))).collect()
    };
    let messages = fields(graph).into_iter().filter(|(number, _)| *number == of);
    messages.map(|(_, content)| (text(content, name), own(content))).collect()
}

fn compile(folder: &Path, model: &str, more: &[&str]) -> PathBuf {
    let plan = folder.join("model.plan");
    let to = plan.display().to_string();
    memc_ok(&[&["compile", model, "--effort", "1", "--device", "cpu", "-o", &to], more].concat());
    plan
}

fn annotated(plan: &Path, model: &str) -> Vec<u8> {
    let to = plan.with_extension("onnx").display().to_string();
    memc_ok(&["report", plan.to_str().unwrap(), "--source", model, "--annotate", &to]);
    assert!(!plan.with_extension("html").exists());
    std::fs::read(to).unwrap()
}

fn get<'m>(of: &'m Metadata, key: &str) -> &'m str {
    of.get(key).map_or("", String::as_str)
}

/// Values and nodes of a training graph say what the plan does: those that leave say when and how they come
/// back.
#[test]
fn a_copy_says_what_was_decided() {
    let folder = tempfile::tempdir().unwrap();
    let model = "models/cnn_bn/training_model.onnx";
    let path = compile(folder.path(), model, &["--gpu-mem", "240K", "--no-recompute"]);
    let copy = annotated(&path, model);
    assert_eq!(copy, annotated(&path, model));
    let values = metadata(&copy, 13, 1, 4);
    let away: Vec<&String> =
        values.iter().filter(|(_, of)| get(of, "memc.decision") == "swap").map(|(name, _)| name).collect();
    assert!(!away.is_empty());
    for name in &away {
        let of = &values[*name];
        assert!(get(of, "memc.bytes").parse::<u64>().unwrap() > 0, "{name}");
        assert_eq!(get(of, "memc.back_by"), "copy", "{name}");
        for key in ["memc.leaves_after", "memc.back_for", "memc.offset"] {
            assert!(!get(of, key).is_empty(), "{name}: {key}");
        }
    }
    let nodes = metadata(&copy, 1, 3, 9);
    let told = nodes.values().flatten().filter(|(_, line)| line.starts_with("swap, "));
    let told: Vec<String> = told.map(|(key, _)| key.replace("memc.output.", "")).collect();
    assert!(away.iter().all(|name| told.contains(name)), "{told:?}");
    let conv = nodes.values().find(|of| get(of, "memc.ops") == "conv").unwrap();
    assert!(!get(conv, "memc.commands").is_empty() && get(conv, "memc.time").ends_with(" ms"));
    let weights: Vec<Metadata> = metadata(&copy, 11, 1, 4).into_values().collect();
    assert!(weights.iter().any(|of| get(of, "memc.part") == "weights"));
}

/// Nodes of a forward model have the ops of their gradients, and how many launches recompute.
#[test]
fn a_forward_models_nodes_have_their_gradients() {
    let folder = tempfile::tempdir().unwrap();
    let model = "models/zoo/plain20_cifar10.onnx";
    let more = ["--loss", "cross-entropy", "--optimizer", "momentum", "--dim", "batch=8"];
    let path = compile(folder.path(), model, &[&more[..], &["--gpu-mem", "peak*50%", "--no-swap"]].concat());
    let copy = annotated(&path, model);
    let nodes = metadata(&copy, 1, 3, 9);
    assert!(nodes.values().any(|of| get(of, "memc.gradient_ops").contains("conv_grad_weight")));
    assert!(nodes.values().any(|of| !get(of, "memc.recomputed").is_empty()));
    let outputs = nodes.values().flatten().filter(|(key, _)| key.starts_with("memc.output."));
    assert!(outputs.clone().any(|(_, line)| line.starts_with("recompute, ")));
    assert!(outputs.clone().any(|(_, line)| line.starts_with("keep, ")));
}

/// The model must be the plan's.
#[test]
fn another_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), "models/cnn_bn/training_model.onnx", &["--gpu-mem", "240K"]);
    let plan = path.to_str().unwrap();
    let to = folder.path().join("copy.onnx").display().to_string();
    for other in ["models/mlp_s/training_model.onnx", "models/zoo/resnet18.onnx"] {
        let said = memc_fails(2, &["report", plan, "--source", other, "--annotate", &to]);
        assert!(said.contains(other) && said.contains("of another model"), "{said}");
    }
    let said = memc_fails(3, &["report", plan, "--source", plan, "--annotate", &to]);
    assert!(said.contains("not an ONNX model"), "{said}");
    memc_fails(2, &["report", plan, "--annotate", &to]);
    let model = "models/cnn_bn/training_model.onnx";
    let said = memc_fails(2, &["report", plan, "--source", model, "--annotate", model]);
    assert!(said.contains(model), "{said}");
    assert!(!Path::new(&to).exists());
}
