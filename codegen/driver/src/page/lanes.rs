//! Lanes of the step: what each queue runs when, and where kernels of the device wait.

use std::collections::BTreeSet;
use std::fmt::Write;

use memc_ir::counted;
use memc_plan::{Action, Queue, Space};

use super::arena::MOST_BOXES;
use super::scene::{Scene, Stall};
use super::svg::{Plot, UNITS, ms, percent, rect, scaled, size, table, time_marks};

/// Stalls of the table.
const SHOWN: usize = 20;

/// Share of a lane's height that boxes take, in percent.
const FILLED: u64 = 76;

const LANE: u64 = UNITS / Queue::ALL.len() as u64;

pub(super) fn name(queue: Queue) -> &'static str {
    match queue {
        Queue::COMPUTE => "compute",
        Queue::D2H => "to the host",
        Queue::H2D => "to the device",
        Queue::CPU => "ops on the host",
        Queue::Host => "host thread",
    }
}

fn top(queue: Queue) -> u64 {
    queue.index() as u64 * LANE + LANE * (100 - FILLED) / 200
}

/// Text and class of a command; `None` where it takes no time.
fn told(scene: &Scene<'_>, index: usize) -> Option<(String, &'static str)> {
    let label = scene.label(index);
    let plan = scene.plan;
    Some(match &scene.command(index)?.action {
        Action::Launch { kernel, .. } => {
            let op = plan.kernels.get(super::index(*kernel)).map_or("", |kernel| kernel.op.mnemonic());
            if scene.recomputed.contains(&index) {
                (format!("{label}: {op}, recomputed"), "redo")
            } else {
                (format!("{label}: {op}"), "launch")
            }
        }
        Action::Copy { src, dst } => {
            let way = if dst.space == Space::Host { "to the host" } else { "to the device" };
            (format!("{label}: copy {way}, {}", size(src.bytes)), "copy")
        }
        Action::HostWrite { input } => {
            (format!("write {}", plan.inputs.get(super::index(*input))?.name), "host")
        }
        Action::HostRead { output } => {
            (format!("read {}", plan.outputs.get(super::index(*output))?.name), "host")
        }
        _ => return None,
    })
}

fn cause(scene: &Scene<'_>, stall: &Stall) -> String {
    match stall.cause {
        Some((command, previous)) => {
            let kind = match scene.command(command).map(|command| &command.action) {
                Some(Action::Copy { dst, .. }) if dst.space == Space::Host => "copy to the host of ",
                Some(Action::Copy { .. }) => "copy to the device of ",
                _ => "",
            };
            let step = if previous { ", of the step before" } else { "" };
            format!("{kind}{}{step}", scene.label(command))
        }
        None => "the step's begin".to_owned(),
    }
}

/// A box of a lane.
struct Drawn {
    time: (u64, u64),
    class: &'static str,
    text: String,
}

/// Stalls of a lane: only kernels of the device are said to stall.
fn waiting(scene: &Scene<'_>, queue: Queue) -> Vec<Drawn> {
    let told = |stall: &Stall| Drawn {
        time: (stall.start_ns, stall.end_ns),
        class: "stall",
        text: format!(
            "stall of {}: {} waits for {}",
            ms(stall.end_ns - stall.start_ns),
            scene.label(stall.command),
            cause(scene, stall)
        ),
    };
    scene.stalls.iter().filter(|_| queue == Queue::COMPUTE).map(told).collect()
}

/// Boxes of all lanes, lane by lane, and how many short ones are left out.
fn boxes(scene: &Scene<'_>) -> (String, usize) {
    let mut longest: Vec<usize> = scene.spans.keys().copied().collect();
    longest.sort_by_key(|&command| (std::cmp::Reverse(scene.length_ns(command)), command));
    let drawn: BTreeSet<usize> = longest.into_iter().take(MOST_BOXES).collect();
    let (mut out, mut left_out) = (String::new(), 0);
    for queue in Queue::ALL {
        let mut lane = waiting(scene, queue);
        let own = |index: &usize| scene.command(*index).is_some_and(|command| command.queue == queue);
        for (&index, span) in scene.spans.iter().filter(|(index, _)| own(index)) {
            let Some((text, class)) = told(scene, index) else { continue };
            if !drawn.contains(&index) {
                left_out += 1;
                continue;
            }
            let text =
                format!("{text}, from {} to {}", scene.moment(span.start_ns), scene.moment(span.end_ns));
            let time = (span.start_ns, span.end_ns);
            let parts = if time.0 == time.1 { vec![time] } else { scene.folded(time) };
            lane.extend(parts.into_iter().map(|time| Drawn { time, class, text: text.clone() }));
        }
        lane.sort_by_key(|drawn| drawn.time);
        for Drawn { time: (start, end), class, text } in lane {
            let (start, end) = (scaled(start, scene.step_ns), scaled(end, scene.step_ns));
            let extent = (end.saturating_sub(start).max(1), LANE * FILLED / 100);
            rect(&mut out, &format!("b {class}"), (start, top(queue)), extent, &text);
        }
    }
    (out, left_out)
}

/// The longest stalls as a table.
fn stalls(scene: &Scene<'_>) -> String {
    if scene.stalls.is_empty() {
        return "<p>No kernel of the device waits.</p>\n".to_owned();
    }
    let length = |stall: &Stall| stall.end_ns - stall.start_ns;
    let mut all: Vec<&Stall> = scene.stalls.iter().collect();
    all.sort_by_key(|stall| (std::cmp::Reverse(length(stall)), stall.start_ns));
    let row = |stall: &&Stall| {
        vec![scene.label(stall.command), cause(scene, stall), ms(stall.start_ns), ms(length(stall))]
    };
    let rows: Vec<Vec<String>> = all.iter().take(SHOWN).map(row).collect();
    let caption = match all.len().saturating_sub(SHOWN) {
        0 => "Stalls, the longest first".to_owned(),
        more => format!("The {SHOWN} longest stalls; {} left out", counted(more, "shorter one")),
    };
    let total: u64 = all.iter().map(|stall| length(stall)).sum();
    format!(
        "<p>Kernels of the device wait {} in {}, {} of the step.</p>\n<details><summary>Stalls</summary>\n\
         {}</details>\n",
        ms(total),
        counted(all.len(), "stall"),
        percent(total, scene.step_ns),
        table(&caption, &["launch that waits", "waits for", "at", "for"], 2, &rows)
    )
}

/// The picture, its legend and its stalls.
pub(super) fn html(scene: &Scene<'_>) -> String {
    format!(
        "<p>Modelled for {}.</p>\n{}{}",
        super::svg::escape(&scene.device),
        picture(scene, "Lanes of the step: compute, copies in both directions, ops on the host, host thread"),
        stalls(scene)
    )
}

/// The picture and its legend.
pub(super) fn picture(scene: &Scene<'_>, title: &str) -> String {
    let (content, left_out) = boxes(scene);
    let mut busy = [0u64; Queue::ALL.len()];
    for (&index, command) in scene.spans.keys().filter_map(|index| Some((index, scene.command(*index)?))) {
        let queue = busy.get_mut(command.queue.index());
        queue.into_iter().for_each(|busy| *busy += scene.length_ns(index));
    }
    let lane = |queue: Queue| (UNITS - (queue.index() as u64 * LANE + LANE / 2), name(queue).to_owned());
    let mut times = String::new();
    for (queue, busy) in Queue::ALL.into_iter().zip(busy).filter(|(queue, _)| *queue != Queue::Host) {
        _ = write!(times, "<li>{}: busy {} of the step</li>", name(queue), percent(busy, scene.step_ns));
    }
    let left_out = match left_out {
        0 => String::new(),
        more => format!("<p>The shortest are left out: {}.</p>\n", counted(more, "command")),
    };
    let plot = Plot {
        title,
        height: 240,
        rows: Queue::ALL.map(lane).to_vec(),
        columns: time_marks(scene.step_ns),
        boxes: true,
        content,
    };
    format!(
        "{left_out}<ul class=\"legend\"><li><i class=\"launch\"></i>kernel</li>\
         <li><i class=\"redo\"></i>kernel that recomputes</li><li><i class=\"copy\"></i>copy</li>\
         <li><i class=\"stall\"></i>stall</li></ul>\n{}<ul class=\"facts\">{times}</ul>\n",
        plot.html(),
    )
}
