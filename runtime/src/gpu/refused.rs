//! Kernels that a library computes by its own account, and refuses as this program has them.

use std::collections::BTreeMap;

use memc_gpu::{Component, LibraryCall, Reason, Refused};
use memc_ir::Bytes;
use memc_plan::{Kernel, Section};

use super::library::Group;
use super::places::launches;
use crate::Program;
use crate::program::Action;

/// A call that a library refused; generated kernels run instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedCall {
    /// Name of the op.
    pub op: String,
    /// Its attributes as in IR text; empty when all have their defaults.
    pub attrs: String,
    /// Types of its operands.
    pub operands: Vec<String>,
    /// The library.
    pub library: &'static str,
    /// Reason, for people.
    pub reason: String,
    /// Least bytes of workspace with which the library would compute it, where it lacks workspace.
    pub workspace_asked: Option<u64>,
    /// Bytes of workspace that the plan has for it.
    pub workspace_allowed: u64,
    /// Launches of it in a step.
    pub launches: usize,
}

/// Calls that were asked for and those that were refused.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// By library: distinct calls, and their launches in a step.
    asked: BTreeMap<Component, [usize; 2]>,
    refused: Vec<(Refused, RefusedCall)>,
}

/// Reason, for people.
fn text(reason: &Reason) -> String {
    match reason {
        Reason::Workspace(_) => "too little workspace".to_owned(),
        Reason::Nothing => "no algorithm that the options for numbers allow".to_owned(),
        Reason::Status { function, text } => format!("{function} says {text}"),
    }
}

/// The library that computes a call.
fn component(call: &LibraryCall) -> Component {
    match call {
        LibraryCall::Product(_) => Component::CublasLt,
        LibraryCall::Convolution(_) => Component::Cudnn,
    }
}

impl Refusals {
    /// A library was asked for a group's kernels, and gave a reason where it refused its call and no other
    /// form was taken.
    pub(super) fn add(&mut self, program: &Program, group: &Group, why: Option<Refused>) {
        let Some(call) = group.own() else { return };
        let body = program.section(Section::Body).iter();
        let is_of = |action: &Action| match action {
            Action::Launch(launch) => group.kernels.contains(&launch.kernel),
            _ => false,
        };
        let count = body.filter(|command| is_of(&command.action)).count();
        let asked = self.asked.entry(component(call)).or_default();
        *asked = [asked[0] + 1, asked[1] + count];
        let kernel = launches(program).find(|launch| group.kernels.contains(&launch.kernel));
        let kernel = kernel.and_then(|launch| program.kernels.get(launch.kernel));
        if let (Some(why), Some(kernel)) = (why, kernel) {
            let call = refused_call(kernel, &why, group.workspace as u64, count);
            self.refused.push((why, call));
        }
    }

    /// One note for each library and kind of reason.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut kinds: BTreeMap<(Component, String), Vec<&RefusedCall>> = BTreeMap::new();
        for (why, call) in &self.refused {
            kinds.entry((why.component, call.reason.clone())).or_default().push(call);
        }
        let note = |((component, reason), calls): (&(Component, String), &Vec<&RefusedCall>)| {
            let [all, all_launches] = self.asked.get(component).copied().unwrap_or_default();
            let launches: usize = calls.iter().map(|call| call.launches).sum();
            let what = match component {
                Component::Cudnn => "convolutions",
                _ => "matrix products",
            };
            let most =
                calls.iter().filter_map(|call| Some((call.workspace_asked?, call))).max_by_key(|m| m.0);
            let detail = most.map_or_else(String::new, |(asked, call)| {
                let (asked, allowed) = (Bytes(asked), Bytes(call.workspace_allowed));
                format!(" ({} asks for {asked} and has {allowed})", call.op)
            });
            format!(
                "{} does not compute {} of {all} {what}, {launches} of {all_launches} launches a step: \
                 {reason}{detail}; generated kernels run instead, which are slower",
                component.name(),
                calls.len(),
            )
        };
        kinds.iter().map(note).collect()
    }

    /// The refused calls, in the order of the program's kernels.
    pub(super) fn calls(self) -> Vec<RefusedCall> {
        self.refused.into_iter().map(|(_, call)| call).collect()
    }
}

fn refused_call(kernel: &Kernel, why: &Refused, allowed: u64, launches: usize) -> RefusedCall {
    RefusedCall {
        op: kernel.op.mnemonic().to_owned(),
        attrs: kernel.op.attrs_text(),
        operands: kernel.operands.iter().map(ToString::to_string).collect(),
        library: why.component.name(),
        reason: text(&why.reason),
        workspace_asked: match why.reason {
            Reason::Workspace(bytes) => Some(bytes),
            _ => None,
        },
        workspace_allowed: allowed,
        launches,
    }
}
