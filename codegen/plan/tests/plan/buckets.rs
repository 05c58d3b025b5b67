//! Plans of the same step at other extents.

use std::{collections::BTreeMap, fs};

use memc_ir::Role;
use memc_plan::{Init, MAX_BUCKETS, Plan, PlanFile, Slice, State, StateRole, hash, text};

use crate::{Blobs, Folder, example, rehash, tuning};

/// A state of 64 bytes, all of them `byte`.
fn state(name: &str, role: StateRole, byte: u8) -> State {
    let init = Init::Data { offset: 0, bytes: 64, hash: hash(&[byte; 64]) };
    let ty = memc_ir::parse_type("u8[64]").expect("a type");
    State { name: name.to_owned(), role, ty, resident: Slice::dev(0, 64), init }
}

/// The example with two more states of equal bytes, a constant and two buckets. Each of these has the
/// constant and one of its own: bytes that the other also has, and in the first the plan's own once more.
fn bucketed() -> (Plan, Blobs) {
    let (mut plan, data) = example();
    let parameter = StateRole::Variable(Role::Param);
    plan.states.extend([state("v", parameter, 1), state("v2", parameter, 1)]);
    plan.states.push(state("c", StateRole::Const, 2));
    let mut short = plan.clone();
    short.meta.set_source("module @short\n");
    short.states.extend([state("own", StateRole::Const, 3), state("again", StateRole::Const, 1)]);
    let mut long = plan.clone();
    long.meta.set_source("bucket\n| bucket\n");
    long.states.extend([state("own", StateRole::Const, 3), state("more", StateRole::Const, 4)]);
    plan.buckets = vec![short, long];
    assert_eq!(plan.layout_data().expect("a small data section"), 256 + 5 * 64);
    let blob = |bucket, index, byte| ((bucket, index), vec![byte; 64]);
    let mut blobs = BTreeMap::from([blob(0, 1, 1), blob(0, 2, 1), blob(0, 3, 2), blob(1, 4, 3)]);
    blobs.extend([blob(2, 5, 4), ((0, 0), data[&0].clone())]);
    (plan, Blobs(blobs))
}

/// Offsets of the data of each of the plan's states.
fn offsets(plan: &Plan) -> Vec<u64> {
    let offset = |state: &State| match state.init {
        Init::Data { offset, .. } => Some(offset),
        _ => None,
    };
    plan.states.iter().filter_map(offset).collect()
}

/// Data that several plans have is in the file once, and each of them reads it. States of one plan share
/// nothing.
#[test]
fn buckets_share_their_data() {
    let (plan, data) = bucketed();
    plan.validate().unwrap();
    assert_eq!(plan.data_bytes().unwrap(), 576);
    let [short, long] = &plan.buckets[..] else { panic!("two buckets") };
    assert_eq!(offsets(&plan), [0, 256, 320, 384]);
    assert_eq!(offsets(short), [0, 256, 320, 384, 448, 320]);
    assert_eq!(offsets(long), [0, 256, 320, 384, 448, 512]);
    let folder = Folder::new();
    let bytes = folder.bytes(&plan, &data);
    assert_eq!(bytes.len(), bytes.len().next_multiple_of(4096) - 4096 + 576);
    let file = PlanFile::open(folder.file()).unwrap();
    for (bucket, expected) in [&[1, 1, 2][..], &[1, 1, 2, 3, 1], &[1, 1, 2, 3, 4]].into_iter().enumerate() {
        assert_eq!(file.data(bucket, 0), data.0[&(0, 0)]);
        for (index, &byte) in (1..).zip(expected) {
            assert_eq!(file.data(bucket, index), [byte; 64]);
        }
        assert!(file.data(bucket, expected.len() + 1).is_empty());
    }
    assert!(file.data(3, 0).is_empty());
}

/// Without a bucket, states with equal bytes have a place each.
#[test]
fn states_of_one_plan_share_nothing() {
    let (mut plan, _) = bucketed();
    plan.buckets.clear();
    assert_eq!(plan.layout_data().unwrap(), 448);
    assert_eq!(offsets(&plan), [0, 256, 320, 384]);
    plan.validate().unwrap();
}

/// A plan with buckets survives file and text, and is written again from its file.
#[test]
fn buckets_survive() {
    let (plan, data) = bucketed();
    let (folder, again) = (Folder::new(), Folder::new());
    let bytes = folder.bytes(&plan, &data);
    assert_eq!(bytes[8..12], [3, 0, 0, 0]);
    let mut file = PlanFile::open(folder.file()).unwrap();
    assert_eq!(file.plan(), &plan);
    memc_plan::write(again.file(), &plan, &mut file, &|| false).unwrap();
    assert_eq!(fs::read(again.file()).unwrap(), bytes);
    let printed = text::print(&plan);
    assert!(printed.starts_with("plan 3\n"), "{printed}");
    assert_eq!(printed.matches("\nbucket\nplan 1\n").count(), 2, "{printed}");
    assert_eq!(text::parse(&printed).unwrap(), plan);
}

/// The bytes of format 3 are fixed: where this fails, the format changed and needs a new version.
#[test]
fn the_bytes_of_buckets_are_fixed() {
    let (plan, data) = bucketed();
    let hash = hash(&Folder::new().bytes(&plan, &data));
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "e6da19cd00bad10cb0e5c315766362f5356c85840fcdbecd9e5698b16dfa223f");
}

/// Each rule of buckets rejects a plan with one thing changed, and says in which bucket.
#[test]
fn each_rule_rejects() {
    type Case = (fn(&mut Plan), &'static str);
    let cases: [Case; 18] = [
        (
            |p| p.buckets[0].buckets.push(Plan::default()),
            "invalid plan: bucket 1: buckets: a bucket has none",
        ),
        (|p| p.buckets = vec![p.buckets[0].clone(); 65], "buckets: 65 entries; at most 64 are allowed"),
        (|p| p.tuning = Some(tuning()), "invalid plan: tuning: a plan with buckets has no tuning section"),
        (
            |p| p.buckets[1].tuning = Some(tuning()),
            "bucket 2: tuning: a plan with buckets has no tuning section",
        ),
        (|p| p.buckets[1].meta.dev_bytes += 1, "bucket 2: device arena: 1025 bytes where the plan has 1024"),
        (|p| p.buckets[0].meta.host_bytes += 1, "bucket 1: host arena: 545 bytes where the plan has 544"),
        (|p| p.buckets[0].meta.budget_bytes = 0, "bucket 1: budget: 0 bytes where the plan has 8192"),
        (|p| p.buckets[0].meta.reserve_bytes = 0, "bucket 1: reserve: 0 bytes where the plan has 4096"),
        (
            |p| p.buckets[0].states[0].resident.offset = 8,
            "bucket 1: state `w`: state 0 of the plan is `w param f32[8,8] dev+0:256 data 0:256 blake3:",
        ),
        (|p| p.buckets[1].states[1].init = Init::Zeros, "bucket 2: state `v`: state 1 of the plan is `v "),
        (|p| p.buckets[1].states.truncate(2), "bucket 2: state `v2`: the plan has it, and the bucket does"),
        (
            |p| p.buckets[0].states.push(state("x", StateRole::Variable(Role::Param), 3)),
            "bucket 1: state `x`: it is no constant, and the plan does not have it",
        ),
        (|p| p.states.swap(2, 3), "invalid plan: state `v2`: it follows a constant; in a plan with buckets"),
        (
            |p| p.buckets[1].states[5].init = Init::Data { offset: 0, bytes: 64, hash: hash(&[4; 64]) },
            "bucket 2: state `more`: data at offset 0; its place in the data section is 512",
        ),
        (|p| p.buckets[0].events = 2, "bucket 1: body command 10 `d2h record e2`: no event 2"),
        (|p| p.buckets[0].outputs.clear(), "bucket 1: inputs and outputs: there are more or fewer than in"),
        (|p| p.buckets[1].outputs[0].name.push('x'), "bucket 2: output `yx`: it differs from the plan's in"),
        (|p| p.buckets[1].meta.source.push('x'), "bucket 2: source: the hash is not that of the text"),
    ];
    for (change, expected) in cases {
        let (mut plan, mut data) = bucketed();
        change(&mut plan);
        let error = plan.validate().err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(expected), "{expected:?} in {error:?}");
        let folder = Folder::new();
        assert!(memc_plan::write(folder.file(), &plan, &mut data, &|| false).is_err());
        assert!(folder.entries().is_empty());
    }
}

/// The greatest number of buckets is a valid one.
#[test]
fn many_buckets_survive() {
    let (mut plan, data) = example();
    plan.buckets = vec![plan.clone(); MAX_BUCKETS];
    let folder = Folder::new();
    folder.bytes(&plan, &data);
    assert_eq!(PlanFile::open(folder.file()).unwrap().plan(), &plan);
}

/// A constant before the plan's only variable state is refused, wherever it is.
#[test]
fn constants_come_last() {
    let (mut plan, _) = example();
    plan.states.insert(0, state("c", StateRole::Const, 1));
    plan.layout_data().unwrap();
    plan.validate().unwrap();
    plan.buckets.push(plan.clone());
    let error = plan.validate().err().unwrap().to_string();
    assert!(error.contains("state `w`: it follows a constant"), "{error}");
}

/// A file of format 3 without data, whose meta section is this one.
fn file_of(meta: &[u8]) -> Vec<u8> {
    let mut bytes = [b"MEMCPLAN".as_slice(), &[3, 0, 0, 0, 0, 0, 0, 0]].concat();
    bytes.extend((meta.len() as u64).to_le_bytes());
    bytes.extend([0; 40]);
    bytes.extend(meta);
    rehash(&mut bytes);
    bytes
}

/// A field of tag 12 with this content.
fn bucket_field(mut content: Vec<u8>) -> Vec<u8> {
    let mut length = content.len();
    let mut field = vec![12 << 3 | 2];
    while length > 0x7f {
        field.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    field.append(&mut content);
    field
}

/// Behind a right hash, buckets in buckets to any depth, too many of them and tables that are too long are
/// refused before anything is decoded.
#[test]
fn hostile_buckets_are_refused() {
    let folder = Folder::new();
    let mut nested = Vec::new();
    for _ in 0..10_000 {
        nested = bucket_field(nested);
    }
    let long = [8 << 3 | 2, 0].repeat((1 << 22) + 1);
    let cases = [
        (bucket_field(bucket_field(Vec::new())), "damaged: bucket 1: a bucket has buckets"),
        (nested, "damaged: bucket 1: a bucket has buckets"),
        (bucket_field(Vec::new()).repeat(65), "damaged: it has more than 64 buckets"),
        ([bucket_field(Vec::new()), bucket_field(long)].concat(), "bucket 2: a table has more than 4194304"),
        (bucket_field(vec![13 << 3, 1]), "bucket 1: it has an unknown field"),
        (bucket_field(vec![12 << 3, 1]), "bucket 1: a bucket has buckets"),
        (vec![12 << 3, 1], "bucket 1: a field is a number"),
        (vec![12 << 3 | 2, 9], "a field is cut short"),
    ];
    for (meta, expected) in cases {
        let error = folder.open(&file_of(&meta)).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(expected), "{expected:?} in {error:?}");
    }
}

/// Behind a right hash, names that do not exist and other data are refused, with the bucket that has them.
#[test]
fn damaged_buckets_are_refused() {
    let (plan, data) = bucketed();
    let folder = Folder::new();
    let original = folder.bytes(&plan, &data);
    let open = |at: usize, byte: u8| {
        let mut bytes = original.clone();
        bytes[at] = byte;
        rehash(&mut bytes);
        folder.open(&bytes).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let relu = original.windows(5).rposition(|part| part == b"\x04relu").unwrap();
    let error = open(relu + 4, b'x');
    assert!(error.starts_with("invalid plan: bucket 2 kernel k0 `relx`: unknown op"), "{error}");
    let start = original.len() - 576;
    let error = open(start + 450, 9);
    assert!(error.contains("state `own`: bucket 1: the bytes in the file do not match"), "{error}");
    let error = open(start + 300, 9);
    assert!(error.contains("state `v`: the bytes in the file do not match"), "{error}");
}
