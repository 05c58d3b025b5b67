//! The graph pipeline on the committed models: up to `raise` it keeps every bit, after that the numbers; it
//! is a fixpoint, and does what `models.txt` says.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use memc_frontend::{ImportOptions, import};
use memc_ir::{DType, Module, Role, parse, print};
use memc_kernels::interp::Tensor;
use memc_passes::analysis::peak_live_bytes;
use memc_passes::graph::memory;
use memc_passes::{DeviceProfile, GRAPH_PIPELINE, MEMORY_PIPELINE, PassCx, Pipeline, training};

use super::numbers::{self, Feeds};
use super::{compare_or_bless, root};

/// Every training step: artifacts of ONNX Runtime, and one-file steps. `models/gen` holds what they are made
/// from.
fn models() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let list = |folder: &Path| {
        let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        entries
    };
    let is_model =
        |p: &PathBuf| p.extension().is_some_and(|e| e == "onnx") && !p.ends_with("optimizer_model.onnx");
    list(&folder)
        .iter()
        .filter(|p| p.is_dir() && !p.ends_with("gen") && !p.ends_with("zoo"))
        .flat_map(|p| list(p))
        .filter(is_model)
        .collect()
}

pub(super) fn profile() -> &'static DeviceProfile {
    DeviceProfile::named("cpu").unwrap()
}

pub(super) fn run(m: &mut Module, pipeline: &str) -> Vec<(&'static str, String, u64)> {
    let mut cx = PassCx::new(profile());
    Pipeline::parse(pipeline).unwrap().run(m, &mut cx).unwrap();
    cx.stats
}

/// The training step of a model, with what passes add to it.
pub(super) fn imported(path: &Path, options: &ImportOptions) -> Module {
    let mut import = import(path, options).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    if let Some(recipe) = &import.recipe {
        let mut cx = PassCx::new(profile());
        training::fulfil(&mut import.module, recipe, &mut cx).unwrap();
    }
    import.finish().unwrap().module
}

/// Bytes that the backward pass needs of the forward pass after rewriting for memory.
fn saved_left(stats: &[(&'static str, String, u64)]) -> u64 {
    stats.iter().find(|(_, what, _)| what == memory::counts::AFTER).map(|(_, _, n)| *n).unwrap()
}

/// Whether all elements have the same bits, where a NaN equals every NaN.
fn same(a: &Tensor, b: &Tensor) -> bool {
    let float = a.ty.dtype == DType::F32;
    a.ty == b.ty
        && match (a.elements::<f32>(), b.elements::<f32>()) {
            (Some(a), Some(b)) if float => {
                a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan()))
            }
            _ => a.data == b.data,
        }
}

/// Whether all elements are close: within rounding of the largest, or `noise`.
fn close(a: &Tensor, b: &Tensor, noise: f32) -> bool {
    let (Some(x), Some(y)) = (a.elements::<f32>(), b.elements::<f32>()) else { return a.data == b.data };
    let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    a.ty == b.ty && x.iter().zip(y).all(|(x, y)| (x - y).abs() <= 2e-6 + 2e-5 * largest + noise)
}

/// Difference of parameters that rounding explains: Adam turns the noise of a gradient that is zero into a
/// step of the size of the learning rate. Its moments are held to what rounding of gradients does.
fn noise(m: &Module) -> f32 {
    let adam = |&op: &memc_ir::OpId| m.ops[op].kind().is_some_and(|k| k.mnemonic() == "adamw");
    if m.order.iter().any(adam) { 2.5e-3 } else { 0.0 }
}

/// Ops, transposes and live bytes of a module.
fn measures(m: &Module) -> [u64; 3] {
    let transposes =
        m.order.iter().filter(|&&op| m.ops[op].kind().is_some_and(|k| k.mnemonic() == "transpose"));
    [m.order.len() as u64, transposes.count() as u64, peak_live_bytes(m, profile()).unwrap().bytes]
}

/// Runs one step of every model before and after the pipeline, from the models' initial states.
pub(crate) fn check() {
    let mut table = String::from("what the graph pipeline and `schedule-ops` do to the committed models\n");
    let header = ["ops", "", "transposes", "", "peak bytes", "", "saved bytes", ""];
    let row = |out: &mut String, name: &str, cells: [String; 8]| {
        let [a, b, c, d, e, f, g, h] = cells;
        let line = format!("{name:<50} {a:>5} {b:>5} {c:>10} {d:>4} {e:>11} {f:>9} {g:>11} {h:>9}");
        writeln!(out, "{}", line.trim_end()).unwrap();
    };
    row(&mut table, "model", header.map(str::to_string));
    for path in models() {
        let name = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap_or(&path).display().to_string();
        // The models in the standard's own form leave the batch open.
        let open = path.parent().is_some_and(|folder| folder.ends_with("standard"));
        let dims = if open { vec![("batch".to_string(), 5)] } else { Vec::new() };
        let options = ImportOptions { dims, ..ImportOptions::default() };
        let before = imported(&path, &options);
        let mut after = before.clone();
        let mut exact = before.clone();
        run(&mut exact, &GRAPH_PIPELINE.replace("raise,", ""));
        run(&mut after, GRAPH_PIPELINE);
        let once = print(&after);
        assert_eq!(print(&parse(&once).unwrap()), once, "{name}: printing is a fixpoint");
        run(&mut after, GRAPH_PIPELINE);
        assert!(print(&after) == once, "{name}: the second run of the pipeline changes something");
        let mut rewritten = after.clone();
        let stats = run(&mut rewritten, MEMORY_PIPELINE);
        run(&mut after, "schedule-ops");
        let want = numbers::outcome(&before, Feeds::Initial).unwrap();
        let bits = numbers::outcome(&exact, Feeds::Initial).unwrap();
        let have = numbers::outcome(&after, Feeds::Initial).unwrap();
        let again = numbers::outcome(&rewritten, Feeds::Initial).unwrap();
        for ((what, have), (_, again)) in have.iter().zip(&again) {
            assert!(same(have, again), "{name}: {what} differs after rewriting for memory");
        }
        let roles = before.outputs.iter().map(|_| None).chain(before.states.values().map(|s| Some(s.role)));
        for ((((what, want), (_, bits)), (_, have)), role) in want.iter().zip(&bits).zip(&have).zip(roles) {
            assert!(same(want, bits), "{name}: {what} differs after the exact passes");
            let noise = if role == Some(Role::Param) { noise(&after) } else { 0.0 };
            assert!(close(want, have, noise), "{name}: {what} differs after the pipeline");
        }
        let (old, new) = (measures(&before), measures(&after));
        let kept = [memory::saved_bytes(&after), saved_left(&stats)];
        let cells = [old[0], new[0], old[1], new[1], old[2], new[2], kept[0], kept[1]].map(|n| n.to_string());
        row(&mut table, &name, cells);
    }
    if let Err(diff) = compare_or_bless(&root().join("models.txt"), &table) {
        panic!("{diff}");
    }
}
