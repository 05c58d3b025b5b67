//! The kinds of test: one function for each.

use std::fs;
use std::path::Path;

use memc_check::{BucketErrors, check_buckets};
use memc_frontend::{ImportOptions, import};
use memc_ir::autodiff::differentiate;
use memc_ir::{
    Anchor, Module, OpId, Output, OutputRole, Role, ValueId, parse, print, print_annotated, value_name,
    verify,
};
use memc_lower::lower;
use memc_passes::{DeviceProfile, PassCx, PassError, Pipeline};
use memc_plan::{Meta, Plan, text};

use super::case::Case;
use super::{numbers, root};

/// Output of a kind of test for a case.
enum Outcome {
    /// Lines to stand after the input as `;=`.
    Lines(Vec<String>),
    /// The input again, with diagnostics under its lines.
    Annotated(Vec<String>),
}

type Kind = (&'static str, fn(&Case) -> Result<Outcome, String>);

/// Every kind of test by its name in `;! test`.
const KINDS: &[Kind] = &[
    ("parse", parse_text),
    ("verify", verify_module),
    ("infer", infer_types),
    ("cost", op_costs),
    ("run", run_ops),
    ("opt", run_passes),
    ("gradients", gradients),
    ("import", import_model),
    ("lower", lower_module),
    ("plan", plan_module),
    ("check", check_plan),
];

/// The case as it should be in the file.
///
/// A case of several kinds has one block of expected lines for each, headed by its name.
pub(crate) fn run(case: &Case) -> Result<String, String> {
    let kinds = case.kinds();
    let mut body = case.input.clone();
    let mut expected = Vec::new();
    for name in &kinds {
        let Some((_, kind)) = KINDS.iter().find(|(n, _)| n == name) else {
            let known: Vec<&str> = KINDS.iter().map(|(n, _)| *n).collect();
            return Err(format!("unknown kind of test `{name}` (known: {})", known.join(", ")));
        };
        match kind(case)? {
            Outcome::Annotated(lines) => body = lines,
            Outcome::Lines(lines) => {
                if kinds.len() > 1 {
                    expected.push(format!("-- {name}"));
                }
                expected.extend(lines);
            }
        }
    }
    Ok(case.render(&body, &expected))
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_string).collect()
}

fn module(case: &Case) -> Result<Module, String> {
    parse(&case.text()).map_err(|d| d.to_string())
}

/// `parse`: the canonical text, whose own text is itself, or the parser's complaint under its line.
fn parse_text(case: &Case) -> Result<Outcome, String> {
    match parse(&case.text()) {
        Ok(m) => {
            let text = print(&m);
            let again = parse(&text).map_err(|d| format!("what was printed does not parse: {d}"))?;
            if print(&again) != text {
                return Err(format!("printing is no fixpoint:\n{text}\nthen\n{}", print(&again)));
            }
            Ok(Outcome::Lines(lines(&text)))
        }
        Err(d) => {
            let mut body = case.input.clone();
            let at = if let Anchor::Line(n) = d.at { n.min(body.len()) } else { body.len() };
            body.insert(at, format!(";~ {}: {}", d.code, d.message));
            Ok(Outcome::Annotated(body))
        }
    }
}

/// `verify`: the input, which must be canonical, with every violation under its line.
fn verify_module(case: &Case) -> Result<Outcome, String> {
    let m = module(case)?;
    if print(&m) != case.text() {
        return Err(format!("the input of a `verify` case must be canonical:\n{}", print(&m)));
    }
    let diags = verify(&m).err().unwrap_or_default();
    Ok(Outcome::Annotated(lines(&print_annotated(&m, &diags))))
}

/// The module's ops by name of their first result, with their operand types.
fn ops(m: &Module) -> Vec<(OpId, String)> {
    let name = |op: OpId| m.ops[op].results.iter().map(|&v| value_name(m, v)).collect::<Vec<_>>().join(", ");
    m.order.iter().map(|&op| (op, name(op))).collect()
}

/// `infer`: the result types that each op's row infers, or why it infers none. The types in the text are not
/// read.
fn infer_types(case: &Case) -> Result<Outcome, String> {
    let m = module(case)?;
    let line = |(op, name): (OpId, String)| {
        let kind = m.ops[op].kind()?;
        let types = match kind.infer(&m.operand_types(op)) {
            Ok(types) => types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            Err(message) => format!("error: {message}"),
        };
        Some(format!("{name} : {types}"))
    };
    Ok(Outcome::Lines(ops(&m).into_iter().filter_map(line).collect()))
}

/// `cost`: what each op that its row accepts costs, and which operands its results may overwrite.
fn op_costs(case: &Case) -> Result<Outcome, String> {
    let m = module(case)?;
    let line = |(op, name): (OpId, String)| {
        let (kind, operands) = (m.ops[op].kind()?, m.operand_types(op));
        let results = kind.infer(&operands).ok()?;
        let results: Vec<_> = results.iter().collect();
        let cost = kind.cost(&operands, &results);
        let pairs = kind.inplace_pairs(&operands, &results);
        let def = kind.def();
        let slot = |names: &[&str], i: usize| match names.get(i) {
            Some(name) if !name.ends_with(['*', '+']) => (*name).to_string(),
            _ => format!("{}[{i}]", names.last().map_or("", |n| n.trim_end_matches(['*', '+']))),
        };
        let pair =
            |(i, j): &(usize, usize)| format!("{} -> {}", slot(def.operands, *i), slot(def.results, *j));
        let pairs: Vec<String> = pairs.iter().map(pair).collect();
        let inplace =
            if pairs.is_empty() { String::new() } else { format!(", in place {}", pairs.join(", ")) };
        Some(format!(
            "{name} : {} flops, {} B read, {} B written, {} B workspace{inplace}",
            cost.flops, cost.bytes_read, cost.bytes_written, cost.workspace
        ))
    };
    Ok(Outcome::Lines(ops(&m).into_iter().filter_map(line).collect()))
}

/// `run`: the results of every op that its row accepts, for inputs filled with a fixed pattern.
fn run_ops(case: &Case) -> Result<Outcome, String> {
    numbers::run(&module(case)?).map(Outcome::Lines)
}

/// The module after the passes of `;! pass`, and how many rewrites they made.
pub(super) fn optimised(case: &Case) -> Result<(Module, usize), String> {
    let mut m = module(case)?;
    let text = case.header("pass").ok_or("an `opt` case needs a header `;! pass ...`")?;
    let profile = DeviceProfile::named("toy").ok_or("no toy device")?;
    let mut cx = PassCx::new(profile);
    Pipeline::parse(text).and_then(|p| p.run(&mut m, &mut cx)).map_err(|e| e.to_string())?;
    Ok((m, cx.fired.len()))
}

/// `opt`: the module after the passes of `;! pass`, or why they stop; with `;! stats`, what they counted.
///
/// Files that options name are in the folder of golden files.
fn run_passes(case: &Case) -> Result<Outcome, String> {
    let mut m = module(case)?;
    let device = case.header("device").unwrap_or("toy");
    let profile = DeviceProfile::named(device).ok_or_else(|| format!("unknown device `{device}`"))?;
    let text = case.header("pass").ok_or("an `opt` case needs a header `;! pass ...`")?;
    let read_file = &|name: &str| {
        let text = fs::read_to_string(root().join(name));
        text.map_err(|_| PassError::Usage(format!("{name} cannot be read")))
    };
    let mut cx = PassCx { read_file, ..PassCx::new(profile) };
    let done = Pipeline::parse(text).and_then(|p| p.run(&mut m, &mut cx));
    let mut out = match done {
        Ok(()) => lines(&print(&m)),
        Err(e) => lines(&format!("error: {e}")),
    };
    if case.header("stats").is_some() {
        let counted = cx.stats.iter().filter(|(_, _, n)| *n > 0);
        out.extend(counted.map(|(pass, what, n)| format!("; {pass}: {n} {what}")));
    }
    Ok(Outcome::Lines(out))
}

/// `gradients`: the module with the gradients of its loss by all its parameters as outputs, or why there are
/// none.
fn gradients(case: &Case) -> Result<Outcome, String> {
    let mut m = module(case)?;
    let loss = m.outputs.iter().find(|o| o.role == OutputRole::Loss).ok_or("the case needs a loss")?.value;
    let params: Vec<ValueId> = m.states.values().filter(|s| s.role == Role::Param).map(|s| s.value).collect();
    let grads = match differentiate(&mut m, loss, &params) {
        Ok(grads) => grads,
        Err(e) => return Ok(Outcome::Lines(vec![format!("error: {e}")])),
    };
    let mut independent = Vec::new();
    for (&v, grad) in params.iter().zip(grads) {
        match grad {
            Some(value) => {
                let name = m.values[v].name.clone();
                m.outputs.push(Output { value, name, role: OutputRole::Gradient });
            }
            None => independent.push(format!("; no gradient: {}", value_name(&m, v))),
        }
    }
    verify(&m).map_err(|d| d.to_string())?;
    let mut out = lines(&print(&m));
    out.extend(independent);
    Ok(Outcome::Lines(out))
}

/// `import`: the module that the importer makes of the file in `;! model`, below `models`, or why it makes
/// none.
///
/// `;! options` has import options as `name=value`, separated by blanks.
fn import_model(case: &Case) -> Result<Outcome, String> {
    let model = case.header("model").ok_or("an `import` case needs a header `;! model FILE`")?;
    let mut options = ImportOptions::default();
    for option in case.header("options").unwrap_or_default().split_whitespace() {
        let (name, value) = option.split_once('=').ok_or_else(|| format!("{option}: write name=value"))?;
        match name {
            "loss" => options.loss = Some(value.parse()?),
            "optimizer" => options.optimizer = Some(value.parse()?),
            "accumulate" => options.accumulate = value.parse().map_err(|_| format!("{option}: no number"))?,
            "trainable" => options.trainable.push(value.into()),
            "freeze" => options.freeze.push(value.into()),
            "dim" | "carry" => {
                let (left, right) = value.split_once(':').ok_or_else(|| format!("{option}: write A:B"))?;
                if name == "dim" {
                    let size = right.parse().map_err(|_| format!("{option}: no number"))?;
                    options.dims.push((left.into(), size));
                } else {
                    options.carry.push((left.into(), right.into()));
                }
            }
            _ => return Err(format!("unknown import option `{name}`")),
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(model);
    Ok(Outcome::Lines(match import(&path, &options) {
        Ok(imported) => lines(&print(&imported.module)),
        Err(e) => lines(&format!("error: {e}")),
    }))
}

/// `lower`: the plan of a mem-phase module with offsets and events, without its source, or why there is none.
fn lower_module(case: &Case) -> Result<Outcome, String> {
    let m = module(case)?;
    let source = Module::new(m.name.clone());
    let mut plan = match lower(&source, &m, Meta::default()) {
        Ok(lowered) => lowered.plan,
        Err(e) => return Ok(Outcome::Lines(lines(&format!("error: {e}")))),
    };
    Ok(Outcome::Lines(lines(&own_text(&mut plan))))
}

/// The text of a plan without what does not depend on the module's body.
fn own_text(plan: &mut Plan) -> String {
    plan.meta.producer.clear();
    plan.meta.set_source(String::new());
    text::print(plan)
}

/// `plan`: what `memc compile` decides for the module in `;! budget` bytes on `;! device`, and the plan,
/// without its source; or why there is none. Without a budget everything stays on the device.
fn plan_module(case: &Case) -> Result<Outcome, String> {
    let imported = memc::Imported {
        module: module(case)?,
        notes: Vec::new(),
        warnings: Vec::new(),
        options: Vec::new(),
        fired: Vec::new(),
    };
    let bytes = |text: &str| text.parse().map(memc::Size::Bytes).map_err(|_| format!("{text}: no number"));
    let budget = case.header("budget").map(bytes).transpose()?;
    let profile = memc::device::find(case.header("device").unwrap_or("toy")).map_err(|e| e.to_string())?;
    let compiled = memc::Model::of(imported, profile, memc::Rewrites::default())
        .and_then(|model| memc::compile(&model, &memc::Options { budget, ..Default::default() }));
    Ok(Outcome::Lines(match compiled {
        Err(e) => lines(&format!("error: {e}")),
        Ok(mut compiled) => {
            let mut out = lines(&compiled.outcome.decisions(&compiled.instance).unwrap_or_default());
            out.extend(lines(&own_text(&mut compiled.plan)));
            out
        }
    }))
}

/// `check`: the checker's report on a plan, which stands after a line `---` below its source module.
///
/// A plan without a line `source` gets the module's.
fn check_plan(case: &Case) -> Result<Outcome, String> {
    let at = case.input.iter().position(|l| l == "---").ok_or("a `check` case needs `---` and a plan")?;
    let join = |part: &[String]| part.iter().map(|l| format!("{l}\n")).collect::<String>();
    let source = parse(&join(&case.input[..at])).map_err(|d| d.to_string())?;
    let mut plan = text::parse(&join(&case.input[at + 1..])).map_err(|e| e.to_string())?;
    if !case.input.iter().take_while(|l| *l != "bucket").any(|l| l.starts_with("source ")) {
        plan.meta.set_source(print(&source));
    }
    let mut sources = vec![source];
    for bucket in &plan.buckets {
        sources.push(parse(&bucket.meta.source).map_err(|d| d.to_string())?);
    }
    Ok(Outcome::Lines(match check_buckets(&sources, &plan) {
        Err(BucketErrors { bucket: 0, errors }) => lines(&errors.to_string()),
        Err(BucketErrors { bucket, errors }) => {
            std::iter::once(format!("bucket {bucket}")).chain(lines(&errors.to_string())).collect()
        }
        Ok(reports) => {
            let of = |report: &memc_check::Report| {
                let lints = report.lints.iter().map(ToString::to_string);
                std::iter::once(format!("accepted: {} commands", report.commands))
                    .chain(lints)
                    .collect::<Vec<_>>()
            };
            reports.iter().flat_map(of).collect()
        }
    }))
}
