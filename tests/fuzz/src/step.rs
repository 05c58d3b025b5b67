//! A step on its way from a module to a run: rewritten, planned, proved, executed and compared.
//!
//! Each stage may refuse. It must not panic, call itself at fault, or contradict the stage before.

use std::borrow::Cow;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

use memc::{Error, Imported, Model, Options, Rewrites, Search, Size};
use memc_ir::Module;
use memc_passes::{DeviceProfile, PROFILES};
use memc_plan::{Plan, PlanFile};
use memc_runtime::{Program, RunOptions, Silent};

/// Most ops of a module that is planned.
const MAX_OPS: usize = 300;
/// Most bytes of all values of a module that is planned.
const MAX_PLANNED: u64 = 1 << 40;
/// Most bytes of all values of a step that runs.
const MAX_RUN: u64 = 4 << 20;
/// Most arithmetic operations of a step that runs.
const MAX_FLOPS: u64 = 20_000_000;

thread_local! {
    static FOLDER: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
}

/// A file of this process with the given content, for readers that open files themselves.
pub(crate) fn file(name: &str, content: &[u8]) -> PathBuf {
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| tempfile::tempdir().expect("a temporary folder"));
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("the temporary folder takes a file");
        path
    })
}

/// A number that the bytes decide: options of a target that are not part of its input.
pub(crate) fn choice(data: &[u8]) -> u64 {
    let hash = memc_plan::hash(data);
    u64::from_le_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]])
}

/// The result, unless the error says that memc is at fault.
pub(crate) fn answer<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let fault = matches!(error, Error::Internal(_) | Error::Bug { .. });
            assert!(!fault, "memc is at fault: {error}");
            assert!(!error.to_string().is_empty(), "an error says nothing");
            None
        }
    }
}

/// Likewise for memrun.
pub(crate) fn ran<T>(result: Result<T, memc_runtime::Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let fault = matches!(error, memc_runtime::Error::Internal(_) | memc_runtime::Error::Mismatch(_));
            assert!(!fault, "memrun is at fault: {error}");
            assert!(!error.to_string().is_empty(), "an error says nothing");
            None
        }
    }
}

/// Asserts that a module is sound, and prints and parses to the same.
pub(crate) fn sound(module: &Module) {
    if let Err(diags) = memc_ir::verify(module) {
        panic!("an accepted module is not sound: {diags}");
    }
    let text = memc_ir::print(module);
    let again = memc_ir::parse(&text).unwrap_or_else(|d| panic!("a printed module does not parse: {d}"));
    assert_eq!(memc_ir::print(&again), text, "a module prints differently once it was parsed");
}

/// Bytes of all values, and arithmetic operations of all ops.
pub(crate) fn size(module: &Module) -> (u64, u64) {
    let bytes = module.values.values().map(|value| value.ty.bytes()).fold(0, u64::saturating_add);
    let flops = module.order.iter().filter_map(|&op| {
        let kind = module.ops[op].kind()?;
        let cost = kind.cost(&module.operand_types(op), &module.result_types(op));
        Some(cost.flops.saturating_add(cost.bytes_read).saturating_add(cost.workspace))
    });
    (bytes, flops.fold(0, u64::saturating_add))
}

/// Plans and proves a step with options that `choice` selects, and runs it where it is small.
pub(crate) fn compile(imported: Imported, choice: u64) {
    let (bytes, _) = size(&imported.module);
    if imported.module.order.len() > MAX_OPS || bytes > MAX_PLANNED {
        return;
    }
    let named = |name| DeviceProfile::named(name).unwrap_or(&PROFILES[0]);
    let profile = named(if choice.is_multiple_of(4) { "h100" } else { "cpu" });
    let rewrites = Rewrites { memory: choice >> 2 & 3 != 0, fuse: choice >> 4 & 3 != 0 };
    let Some(model) = answer(Model::of(imported, Cow::Borrowed(profile), rewrites)) else { return };
    model.graphs.iter().for_each(|graph| sound(&graph.module));
    let percent = [None, Some(100.0), Some(80.0), Some(60.0), Some(40.0)][(choice >> 6) as usize % 5];
    let search = Search { effort: 0, seed: choice >> 9 & 1, ..Search::default() };
    let options = Options { budget: percent.map(Size::PeakPercent), search, ..Options::default() };
    let Some(compiled) = answer(memc::compile(&model, &options)) else { return };
    let text = memc_plan::text::print(&compiled.plan);
    let again =
        memc_plan::text::parse(&text).unwrap_or_else(|e| panic!("a printed plan does not parse: {e}"));
    assert_eq!(again, compiled.plan, "a plan differs from its text");
    let small = |(bytes, flops)| bytes <= MAX_RUN && flops <= MAX_FLOPS;
    if !small(size(&model.own().module)) || choice >> 10 & 3 != 0 {
        return;
    }
    let path = file("compiled.plan", &[]);
    answer(compiled.write(&path, &|| false)).expect("a plan of a small model is written");
    let opened = PlanFile::open(&path).unwrap_or_else(|e| panic!("a written plan does not open: {e}"));
    assert_eq!(opened.plan(), &compiled.plan, "a plan differs from its file");
    let ready = Program::new(opened.plan()).map(drop);
    ready.unwrap_or_else(|e| panic!("memrun does not take a plan that memc wrote: {e}"));
    run(&opened, choice >> 12 & 1 == 0);
}

/// Whether a plan is small enough to be run as a test.
pub(crate) fn is_small(plan: &Plan, source: &Module) -> bool {
    let arenas = plan.meta.dev_bytes.saturating_add(plan.meta.host_bytes);
    let commands = plan.commands().count();
    let costs = plan.kernels.iter().map(|kernel| {
        let (operands, results): (Vec<_>, Vec<_>) =
            (kernel.operands.iter().collect(), kernel.results.iter().collect());
        let cost = kernel.op.cost(&operands, &results);
        cost.flops.saturating_add(cost.bytes_read)
    });
    let most = costs.max().unwrap_or(0).saturating_mul(commands as u64);
    let (bytes, flops) = size(source);
    arenas <= MAX_RUN && most <= MAX_FLOPS && commands <= 4000 && bytes <= MAX_RUN && flops <= MAX_FLOPS
}

/// Runs two steps on the CPU device with synthetic data and poisoned memory, compared with the unplanned run.
pub(crate) fn run(plan: &PlanFile, delayed: bool) {
    let cpu = memc_runtime::cpu::Options {
        threads: 1,
        check_memory: true,
        delay_seed: delayed.then_some(1),
        slow: None,
    };
    let options = RunOptions { steps: Some(2), synthetic: true, verify: true, cpu, ..RunOptions::default() };
    ran(memc_runtime::run(plan, &options, &mut Silent));
}

/// Imports a model file as `memc` does, and goes on with what is accepted.
pub(crate) fn import(path: &Path, options: memc_frontend::ImportOptions, choice: u64) {
    let source = memc::Source { path: path.to_owned(), import: options };
    if let Some(imported) = answer(memc::import(&source)) {
        sound(&imported.module);
        compile(imported, choice);
    }
}

/// Reads a module's text, where it has one, and goes on with what is accepted.
pub(crate) fn module(text: &str, choice: u64) {
    let Ok(module) = memc_ir::parse(text) else { return };
    let printed = memc_ir::print(&module);
    let again = memc_ir::parse(&printed).unwrap_or_else(|d| panic!("a printed module does not parse: {d}"));
    assert_eq!(memc_ir::print(&again), printed, "a module prints differently once it was parsed");
    match memc_ir::verify(&module) {
        Err(diags) => {
            assert!(!diags.0.is_empty(), "a refusal gives no reason");
            assert!(memc_ir::print_annotated(&module, &diags).contains(";~ "), "a reason has no place");
        }
        Ok(()) => {
            let path = file("module.mir", text.as_bytes());
            let source = memc::Source { path, ..memc::Source::default() };
            let Some(imported) = answer(memc::import(&source)) else { panic!("memc refuses a sound module") };
            compile(imported, choice);
        }
    }
}
