//! Plans, as files and as texts.

use arbtest::arbitrary::{Result, Unstructured};
use memc_plan::{Plan, PlanFile};
use memc_runtime::Programs;

use crate::wire::{self, Kind};
use crate::{damage, step};

/// Bytes of a file's header, and of the part of it that the hash covers.
const HEADER: usize = 64;
const HASHED: usize = 32;
/// Boundary at which the data behind the tables begins.
const PAGE: usize = 4096;

/// Message types of a plan: the plan, and any other.
const PLAN: Kind = 0;
const ENTRY: Kind = 1;

/// The messages of a plan's tables. What they hold is told by the field alone.
fn schema(kind: Kind, field: u64) -> Option<Kind> {
    let table = matches!(field, 1..=5 | 7..=11);
    (kind == PLAN && table).then_some(ENTRY)
}

/// The tables of a file, and its initial data.
fn parts(file: &[u8]) -> Option<(&[u8], &[u8])> {
    let number = |at: usize| {
        let bytes = file.get(at..at + 8)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    };
    let (meta, data) = (number(16)?, number(24)?);
    let tables = file.get(HEADER..HEADER.checked_add(meta)?)?;
    Some((tables, file.get(file.len().checked_sub(data)?..)?))
}

/// A file with the given parts and a right hash.
fn assemble(version: u8, tables: &[u8], data: &[u8]) -> Vec<u8> {
    let mut file = b"MEMCPLAN".to_vec();
    file.extend([version, 0, 0, 0, 0, 0, 0, 0]);
    file.extend((tables.len() as u64).to_le_bytes());
    file.extend((data.len() as u64).to_le_bytes());
    file.extend([0; HEADER - HASHED]);
    file.extend(tables);
    if !data.is_empty() {
        file.resize(file.len().next_multiple_of(PAGE), 0);
        file.extend(data);
    }
    sealed(&file)
}

/// The file with the hash that its content has.
fn sealed(file: &[u8]) -> Vec<u8> {
    let mut file = file.to_vec();
    if file.len() >= HEADER {
        let hashed = [&file[..HASHED], &file[HEADER..]].concat();
        file[HASHED..HEADER].copy_from_slice(&memc_plan::hash(&hashed));
    }
    file
}

/// Changes a plan file: mostly its tables behind a right hash, else its bytes.
pub(crate) fn mutate(u: &mut Unstructured<'_>, file: &mut Vec<u8>) -> Result<()> {
    let read =
        parts(file).and_then(|(tables, data)| Some((wire::read(tables, PLAN, schema)?, data.to_vec())));
    let version = file.get(8).copied().unwrap_or(1);
    match read {
        Some((mut tables, mut data)) if u.ratio(7, 8)? => {
            if u.ratio(1, 2)? {
                // The text form reaches what the canonical encoding of tables hides from changes of bytes.
                if let Some(text) = as_text(file) {
                    let mut text = text.into_bytes();
                    damage::text(u, &mut text)?;
                    let plan = std::str::from_utf8(&text).ok().and_then(|t| memc_plan::text::parse(t).ok());
                    if let Some(bytes) = plan.and_then(|plan| encoded(&plan)) {
                        *file = bytes;
                        return Ok(());
                    }
                }
            }
            if !data.is_empty() && u.ratio(1, 16)? {
                damage::bytes(u, &mut data)?;
            }
            wire::mutate(u, &mut tables, PLAN, &["relu", "f32[4]", "param", "loss", "", "zeros"])?;
            *file = assemble(version, &wire::write(&tables), &data);
            Ok(())
        }
        _ => damage::bytes(u, file),
    }
}

fn as_text(file: &[u8]) -> Option<String> {
    let opened = PlanFile::open(step::file("seed.plan", file)).ok()?;
    Some(memc_plan::text::print(opened.plan()))
}

/// The file of a plan without initial data; `None` where it is not valid.
fn encoded(plan: &Plan) -> Option<Vec<u8>> {
    let mut plan = plan.clone();
    plan.meta.set_source(plan.meta.source.clone());
    let path = step::file("encoded.plan", &[]);
    memc_plan::write(&path, &plan, &mut memc_plan::NoData, &|| false).ok()?;
    std::fs::read(path).ok()
}

/// A file is opened as it is, and with the hash that its bytes have; an open plan is checked, and what the
/// checker accepts is run and compared with its source.
pub(crate) fn file(data: &[u8]) {
    opened(data);
    let right = sealed(data);
    if right != data {
        opened(&right);
    }
}

fn opened(data: &[u8]) {
    let path = step::file("file.plan", data);
    let file = match PlanFile::open(&path) {
        Ok(file) => file,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let plan = file.plan();
    plan.validate().unwrap_or_else(|e| panic!("an open plan is not valid: {e}"));
    printed(plan);
    let accepted = step::answer(memc::check(plan, None)).is_some_and(|proved| match proved {
        Ok(_) => true,
        Err(rejection) => {
            assert!(rejection.errors.to_string().starts_with('C'), "a refusal has no code");
            false
        }
    });
    let ready = step::ran(Programs::new(plan)).is_some();
    let is_small =
        |plan: &Plan| memc_ir::parse(&plan.meta.source).is_ok_and(|source| step::is_small(plan, &source));
    if accepted && ready && plan.with_buckets().all(is_small) {
        step::run(&file, step::choice(data) & 1 == 0);
    }
}

/// A plan prints and parses to the same.
fn printed(plan: &Plan) {
    let text = memc_plan::text::print(plan);
    let again =
        memc_plan::text::parse(&text).unwrap_or_else(|e| panic!("a printed plan does not parse: {e}"));
    assert_eq!(memc_plan::text::print(&again), text, "a plan prints differently once it was parsed");
    assert!(memc_plan::diff(plan, plan).is_empty(), "a plan differs from itself");
}

/// A text is parsed; what is accepted is printed, validated and made ready.
pub(crate) fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(plan) = memc_plan::text::parse(text) else { return };
    let again = memc_plan::text::print(&plan);
    let twice =
        memc_plan::text::parse(&again).unwrap_or_else(|e| panic!("a printed plan does not parse: {e}"));
    assert_eq!(memc_plan::text::print(&twice), again, "a plan prints differently once it was parsed");
    if let Some(file) = encoded(&plan) {
        opened(&file);
    }
}
