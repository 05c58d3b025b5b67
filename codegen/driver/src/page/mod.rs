//! A plan as a page: one HTML file with pictures of its memory and its step, which needs no network. The
//! same as a snapshot for PyTorch's memory viewer, and as notes in a copy of the model.
//!
//! The plan alone is read. Times are those of the cost model, names and purposes those of the source graph
//! that the plan carries. The same plan gives the same bytes.

mod arena;
mod budget;
mod curve;
mod decisions;
mod lanes;
mod measured;
mod notes;
mod peak;
mod scene;
mod slots;
mod snapshot;
pub(crate) mod svg;
mod tensors;

use std::fmt::Write;
use std::path::Path;

use memc_passes::DeviceProfile;
use memc_plan::Plan;

use self::measured::Measured;
use self::scene::Scene;
use self::svg::{escape, ms, percent, size, table};
use crate::check::{carried, check, require_source};
use crate::error::Error;
use crate::source::import_failed;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page of a plan, or of the bucket with a name; of several, the one that needs most memory unplanned is
/// drawn where no name is given. `trace` is the text of a trace of the plan, whose times are drawn too.
///
/// # Errors
/// [`Error::Plan`] for a plan that the checker does not accept, [`Error::Usage`] for a name that no bucket
/// has, and for a text that is no trace of the plan.
pub fn page(
    plan: &Plan,
    bucket: Option<&str>,
    profile: &DeviceProfile,
    trace: Option<&str>,
) -> Result<String, Error> {
    let (index, drawn) = proved(plan, bucket)?;
    let module = carried(drawn)?;
    let scene = Scene::of(drawn, &module, profile)?;
    let measured = match trace {
        Some(text) => {
            let measured = Measured::parse(text, drawn)?;
            measured::html(&scene, Scene::of(drawn, &module, profile)?, measured)
        }
        None => String::new(),
    };
    Ok(filled(|name| match name {
        "model" => escape(&drawn.meta.model),
        "style" => STYLE.to_owned(),
        "script" => SCRIPT.to_owned(),
        "kind" => kind(drawn),
        "device" => escape(&scene.device),
        "bucket" => told_bucket(plan, index),
        "figures" => figures(&scene),
        "budget" => budget::html(&scene),
        "arena" => arena::html(&scene),
        "memory" => curve::html(&scene),
        "lanes" => lanes::html(&scene),
        "measured" => measured.clone(),
        "peak" => peak::html(&scene),
        "decisions" => decisions::html(&scene),
        "states" => states(drawn),
        "facts" => facts(&scene),
        _ => String::new(),
    }))
}

/// A snapshot of PyTorch's CUDA allocator, as a pickle that pytorch.org/memory_viz opens. It is of the plan
/// or bucket that [`page`] draws.
///
/// The one segment is the device arena, and addresses are offsets in it. The trace has a whole step and the
/// next one up to its peak, whose blocks are the segment's. Frames name a tensor, the op that made it, with
/// the place in the user's program or the node where the plan knows it, and its purpose. `user_metadata` says
/// what the plan decided. `time_us` is in µs from the first step's begin, by the cost model.
///
/// # Errors
/// As of [`page`].
pub fn snapshot(plan: &Plan, bucket: Option<&str>, profile: &DeviceProfile) -> Result<Vec<u8>, Error> {
    let (_, drawn) = proved(plan, bucket)?;
    let module = carried(drawn)?;
    snapshot::pickle(&Scene::of(drawn, &module, profile)?)
}

/// A copy of a plan's ONNX model, to be written to `copy`. Its nodes and values have the plan's decisions as
/// metadata with keys `memc.*`. All else is the model's: data in other files stays there.
///
/// `device` is the name or file of the profile where the plan's is a measured one.
///
/// # Errors
/// As of [`page`]. [`Error::Usage`] for a plan of several jobs or of another model, and for a copy outside
/// the model's folder where the model has data in other files. [`Error::Model`] for a file that is no ONNX
/// model, [`Error::Io`] for one that cannot be read.
pub fn annotate(
    plan: &Plan,
    bucket: Option<&str>,
    device: Option<&str>,
    model: &Path,
    copy: &Path,
) -> Result<Vec<u8>, Error> {
    let (_, drawn) = proved(plan, bucket)?;
    if memc_plan::jobs(&drawn.meta.options).next().is_some() {
        return Err(Error::Usage("the plan is of several jobs; notes are for a plan of one model".into()));
    }
    let module = carried(drawn)?;
    let profile = crate::device::of_plan(device, &plan.meta.profile)?;
    let scene = Scene::of(drawn, &module, &profile)?;
    let noted = memc_frontend::annotate(model, copy, &notes::notes(&scene));
    let noted = noted.map_err(|error| import_failed(model, &error))?;
    require_source(drawn, model, device)?;
    Ok(noted)
}

/// The bucket of a plan to show, with its index, if the checker accepts the plan.
fn proved<'a>(plan: &'a Plan, bucket: Option<&str>) -> Result<(usize, &'a Plan), Error> {
    if let Err(rejection) = check(plan, None)? {
        let first = rejection.errors.0.first().map(ToString::to_string).unwrap_or_default();
        return Err(Error::Plan(format!(
            "not a correct plan of its source, which `memc check` tells more of: {first}"
        )));
    }
    let index = plan.find_bucket(bucket).map_err(|error| Error::Usage(error.to_string()))?;
    let drawn = plan.bucket(index).ok_or_else(|| Error::Internal("the plan lost a bucket".into()))?;
    Ok((index, drawn))
}

/// The skeleton with its holes, `{{name}}`, filled; what fills one is not looked at again.
fn filled(content: impl Fn(&str) -> String) -> String {
    let mut out = String::new();
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, tail) = after.split_once("}}").unwrap_or((after, ""));
        out.push_str(before);
        out.push_str(&content(name));
        rest = tail;
    }
    out + rest
}

/// The kind of step that a plan runs.
fn kind(plan: &Plan) -> String {
    let meta = &plan.meta;
    let each = if meta.is_inference() {
        "step of inference"
    } else if meta.is_evaluation() {
        "step of evaluation"
    } else {
        "training step"
    };
    match memc_plan::jobs(&meta.options).count() {
        0 => format!("A {each}"),
        jobs => format!("A round of {jobs} jobs, each a {each},"),
    }
}

/// Paragraph that names the bucket, of a plan with several.
fn told_bucket(plan: &Plan, index: usize) -> String {
    if plan.buckets.is_empty() {
        return String::new();
    }
    let names = plan.bucket_names();
    let own = names.get(index).map(String::as_str).unwrap_or_default();
    format!(
        "<p class=\"note\">The plan has {} buckets: {}. This page shows <b>{}</b>; \
         <code>--bucket NAME</code> chooses another.</p>\n",
        names.len(),
        escape(&names.join(", ")),
        escape(own)
    )
}

/// The step in a few figures.
fn figures(scene: &Scene<'_>) -> String {
    let meta = &scene.plan.meta;
    let claims = &meta.claims;
    let unplanned = scene.unplanned.step_ns;
    let slower = match scene.step_ns.checked_sub(unplanned) {
        Some(0) => "as unplanned".to_owned(),
        Some(more) => format!("{} more than unplanned", percent(more, unplanned)),
        None => format!("{} less than unplanned", percent(unplanned - scene.step_ns, unplanned)),
    };
    let needs = claims.unplanned_peak_bytes;
    let cells = [
        ("budget", size(meta.budget_bytes), format!("{} of it reserve", size(meta.reserve_bytes))),
        (
            "arena",
            size(meta.dev_bytes),
            format!("{} of {} unplanned", percent(meta.dev_bytes, needs), size(needs)),
        ),
        ("step, modelled", ms(scene.step_ns), slower),
        (
            "copied out, in",
            format!("{}, {}", size(claims.swap_out_bytes), size(claims.swap_in_bytes)),
            "in a step".to_owned(),
        ),
        ("recomputed", memc_ir::counted(claims.recompute_ops, "op"), ms(scene.recomputed_ns())),
        ("host memory", size(meta.host_bytes), "host arena".to_owned()),
    ];
    let mut out = String::new();
    for (name, value, about) in cells {
        _ = writeln!(out, "<div><dt>{name}</dt><dd><b>{value}</b><small>{about}</small></dd></div>");
    }
    out
}

/// All states with their homes.
fn states(plan: &Plan) -> String {
    let row = |state: &memc_plan::State| {
        let home = match (state.resident.space, plan.host_shadow(state)) {
            (memc_plan::Space::Host, _) => "host",
            (memc_plan::Space::Dev, None) => "device",
            (memc_plan::Space::Dev, Some(_)) => "both",
        };
        let (role, ty) = (state.role.name().to_owned(), state.ty.to_string());
        vec![state.name.clone(), role, ty, home.to_owned(), size(state.resident.bytes)]
    };
    let rows: Vec<Vec<String>> = plan.states.iter().map(row).collect();
    let header = ["state", "role", "type", "home", "bytes"];
    table("States, and where they are when a step begins", &header, 4, &rows)
}

/// Origin of the plan.
fn facts(scene: &Scene<'_>) -> String {
    let meta = &scene.plan.meta;
    let hash: String = meta.source_hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut rows = vec![
        vec!["producer".to_owned(), meta.producer.clone()],
        vec!["planner".to_owned(), format!("{}, seed {}", meta.planner, meta.seed)],
        vec!["planned for".to_owned(), meta.profile.clone()],
        vec!["times of".to_owned(), scene.device.clone()],
        vec!["source graph".to_owned(), format!("blake3 {hash}")],
    ];
    rows.extend(meta.options.iter().map(|(name, value)| vec![format!("option {name}"), value.clone()]));
    table("Origin of the plan", &["fact", "value"], 2, &rows)
}

/// An index of a table.
fn index(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
