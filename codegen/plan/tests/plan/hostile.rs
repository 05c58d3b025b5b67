//! Damaged and hostile files.

use std::collections::BTreeMap;

use arbtest::{
    arbitrary::{Result, Unstructured},
    arbtest,
};
use memc_plan::{PlanError, text};

use crate::{Folder, example, generate, rehash, tuning};

/// Changes, inserts or removes a few bytes.
fn mutate(u: &mut Unstructured<'_>, bytes: &mut Vec<u8>, from: usize) -> Result<()> {
    for _ in 0..u.int_in_range(1..=4)? {
        if bytes.len() <= from {
            return Ok(());
        }
        let at = u.int_in_range(from..=bytes.len() - 1)?;
        match u.int_in_range(0..=4)? {
            0 => bytes[at] ^= 1 << u.int_in_range(0..=7)?,
            1 => bytes[at] = u.arbitrary()?,
            2 => bytes.insert(at, u.arbitrary()?),
            3 => {
                bytes.remove(at);
            }
            _ => {
                let to = u.int_in_range(at..=bytes.len())?;
                let run = bytes[at..to].to_vec();
                bytes.splice(at..at, run);
            }
        }
    }
    Ok(())
}

/// A file that differs in any byte from the one written is refused.
#[test]
fn mutated_files_are_refused() {
    let folder = Folder::new();
    arbtest(|u| {
        let (plan, data) = generate::valid(u)?;
        let original = folder.bytes(&plan, &data);
        for _ in 0..8 {
            let mut bytes = original.clone();
            mutate(u, &mut bytes, 0)?;
            assert_eq!(folder.open(&bytes).is_ok(), bytes == original);
        }
        Ok(())
    })
    .budget_ms(1000);
}

/// With a right content hash over wrong bytes, opening does not panic, and what it accepts is valid and
/// exactly what would be written.
#[test]
fn mutated_files_with_a_right_hash_are_refused_or_sound() {
    let (folder, again) = (Folder::new(), Folder::new());
    arbtest(|u| {
        let (plan, data) = generate::valid(u)?;
        let original = folder.bytes(&plan, &data);
        for mutant in 0..8 {
            let mut bytes = original.clone();
            let meta = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
            let length = bytes.len();
            let mut part = bytes.split_off(64);
            let rest = part.split_off(meta);
            // The first is whole: what is refused is not refused for how it was put together.
            if mutant > 0 {
                mutate(u, &mut part, 0)?;
            }
            bytes[16..24].copy_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend(part);
            if !rest.is_empty() {
                let data_bytes = u64::from_le_bytes(bytes[24..32].try_into().unwrap()) as usize;
                bytes.resize(bytes.len().next_multiple_of(4096), 0);
                bytes.extend(&rest[rest.len() - data_bytes..]);
            }
            assert!(bytes.len() <= length + (1 << 20));
            rehash(&mut bytes);
            let opened = folder.open(&bytes);
            assert!(mutant > 0 || opened.is_ok());
            if let Ok(mut file) = opened {
                file.plan().validate().unwrap();
                let plan = file.plan().clone();
                memc_plan::write(again.file(), &plan, &mut file, &|| false).unwrap();
                assert_eq!(std::fs::read(again.file()).unwrap(), bytes);
            }
        }
        Ok(())
    })
    .budget_ms(1500);
}

/// Random bytes are refused, also behind a plan's magic and version.
#[test]
fn random_bytes_are_refused() {
    let folder = Folder::new();
    arbtest(|u| {
        let mut bytes: Vec<u8> = u.arbitrary()?;
        assert!(folder.open(&bytes).is_err());
        let header = [b"MEMCPLAN".as_slice(), &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
        bytes.splice(0..0, header);
        assert!(folder.open(&bytes).is_err());
        if let Some(lengths) = bytes.get(64..).map(|body| (body.len() as u64).to_le_bytes()) {
            bytes[16..24].copy_from_slice(&lengths);
            bytes[24..32].fill(0);
            rehash(&mut bytes);
            let _ = folder.open(&bytes);
        }
        Ok(())
    })
    .budget_ms(500);
}

/// A file cut at any length is refused, and so is one with bytes after its end.
#[test]
fn truncated_files_are_refused() {
    let (plan, data) = example();
    let folder = Folder::new();
    let mut bytes = folder.bytes(&plan, &data);
    bytes.push(0);
    assert!(matches!(folder.open(&bytes), Err(PlanError::Damaged { .. })));
    bytes.pop();
    assert!(folder.open(&bytes).is_ok());
    for length in 0..bytes.len() {
        let mut cut = bytes[..length].to_vec();
        assert!(folder.open(&cut).is_err(), "{length}");
        rehash(&mut cut);
        assert!(folder.open(&cut).is_err(), "{length}, rehashed");
    }
}

/// Lengths in the header near the end of their range are refused without allocating.
#[test]
fn absurd_lengths_are_refused() {
    let (plan, data) = example();
    let folder = Folder::new();
    let bytes = folder.bytes(&plan, &data);
    for length in [u64::MAX, u64::MAX - 63, u64::MAX / 2, 1 << 40, (256 << 20) + 1] {
        for field in [16, 24] {
            let mut bytes = bytes.clone();
            bytes[field..field + 8].copy_from_slice(&length.to_le_bytes());
            rehash(&mut bytes);
            assert!(matches!(folder.open(&bytes), Err(PlanError::Damaged { .. })), "{length} at {field}");
        }
    }
}

/// Behind a right content hash, a changed data byte names its state, and a byte between the parts must be
/// zero.
#[test]
fn changed_data_is_refused() {
    let (plan, data) = example();
    let folder = Folder::new();
    let original = folder.bytes(&plan, &data);
    let mut bytes = original.clone();
    bytes[4096 + 17] ^= 1;
    rehash(&mut bytes);
    assert!(matches!(folder.open(&bytes), Err(PlanError::InitialData { state, .. }) if state == "w"));
    let mut bytes = original;
    bytes[4095] = 1;
    rehash(&mut bytes);
    let error = folder.open(&bytes).err().unwrap().to_string();
    assert!(error.contains("between its parts"), "{error}");
}

/// A table with more entries than allowed is refused before it is decoded.
#[test]
fn absurd_counts_are_refused() {
    let folder = Folder::new();
    let entries = (1usize << 22) + 1;
    let meta = [8 << 3 | 2, 0].repeat(entries);
    let mut bytes = [b"MEMCPLAN".as_slice(), &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
    bytes.extend((meta.len() as u64).to_le_bytes());
    bytes.extend([0; 40]);
    bytes.extend(meta);
    rehash(&mut bytes);
    let error = folder.open(&bytes).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("more than 4194304 entries"), "{error}");
}

/// A number of events that no commands could use is refused behind a right hash, before anything is made of
/// it.
#[test]
fn absurd_events_are_refused() {
    let folder = Folder::new();
    let mut plan = text::parse("plan 1\nevents 1\nprologue {\n  compute record e0\n}\n").unwrap();
    plan.meta.set_source("");
    let mut bytes = folder.bytes(&plan, &BTreeMap::new());
    let one = [6 << 3, 1, 7 << 3 | 2];
    let at = bytes.windows(3).position(|part| part == one).unwrap();
    bytes.splice(at + 1..at + 2, [0xff, 0xff, 0xff, 0xff, 0x0f]);
    let meta = bytes.len() as u64 - 64;
    bytes[16..24].copy_from_slice(&meta.to_le_bytes());
    rehash(&mut bytes);
    let error = folder.open(&bytes).err().unwrap();
    assert!(matches!(error, PlanError::Invalid { .. }));
    assert!(error.to_string().contains("4294967295 declared for 1 commands"), "{error}");
}

/// A newer version is refused as such.
#[test]
fn newer_versions_are_refused() {
    let (plan, data) = example();
    let folder = Folder::new();
    let mut bytes = folder.bytes(&plan, &data);
    bytes[8] = 4;
    let error = folder.open(&bytes).err().unwrap();
    assert!(matches!(error, PlanError::Version { found: 4, supported: 3 }));
    assert!(error.to_string().contains("newer"), "{error}");
    let error = text::parse("plan 4\n").err().unwrap();
    assert!(matches!(error, PlanError::Version { found: 4, supported: 3 }));
}

/// The versions that go with a tuning section and with buckets are those of plans that have them, and of no
/// others.
#[test]
fn the_version_is_that_of_the_contents() {
    let folder = Folder::new();
    let (mut plan, data) = example();
    for version in 1..=3 {
        plan.tuning = (version == 2).then(tuning);
        plan.buckets = if version == 3 { vec![plan.clone()] } else { Vec::new() };
        let mut bytes = folder.bytes(&plan, &data);
        assert_eq!(bytes[8..12], [version, 0, 0, 0]);
        for other in (1..=3).filter(|&other| other != version) {
            bytes[8] = other;
            rehash(&mut bytes);
            let error = folder.open(&bytes).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains("format version is not that of its contents"), "{error}");
        }
    }
}

/// A change of a file's meta section.
type Change<'a> = dyn Fn(&mut Vec<u8>) + 'a;

/// Of a tuning section behind a right hash, each field that has a form is refused in another one.
#[test]
fn damaged_tuning_sections_are_refused() {
    let folder = Folder::new();
    let (mut plan, data) = example();
    plan.tuning = Some(tuning());
    let bytes = folder.bytes(&plan, &data);
    let meta = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
    // The table's entry: kernel 1, a product of 64 bytes, a workspace of 256 bytes, two times.
    let entry =
        [[11 << 3 | 2, 75, 1 << 3, 1, 2 << 3 | 2, 64].as_slice(), &[7; 64], &[4 << 3, 0x80, 2]].concat();
    let at = bytes.windows(entry.len()).position(|part| part == entry).unwrap();
    let open = |change: &Change<'_>| {
        let mut part = bytes[64..64 + meta].to_vec();
        change(&mut part);
        let mut changed = bytes[..64].to_vec();
        changed[16..24].copy_from_slice(&(part.len() as u64).to_le_bytes());
        changed.extend(part);
        changed.resize(4096, 0);
        changed.extend(&bytes[4096..]);
        rehash(&mut changed);
        folder.open(&changed).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let at = at - 64;
    assert_eq!(open(&|_| ()), "");
    let short = |part: &mut Vec<u8>| {
        part.remove(at + 6);
        (part[at + 1], part[at + 5]) = (74, 63);
    };
    let none = |part: &mut Vec<u8>| {
        part.drain(at + 4..at + 70);
        part[at + 1] = 9;
    };
    let alone = |part: &mut Vec<u8>| {
        let header = part.iter().rposition(|byte| *byte == 10 << 3 | 2).unwrap();
        part.drain(header..at);
    };
    let cases: [(&Change<'_>, &str); 5] = [
        (&short, "tuned kernel 0: a product of 63 bytes"),
        (&none, "tuned kernel 0: it is neither a product nor a convolution"),
        (&alone, "does not say for what device"),
        (&|part| part[at + 3] = 3, "tuning: no kernel 3; the plan has 3"),
        (&|part| part[at + 72] = 3, "tuning: kernel 1 takes 384 bytes of workspace where a launch has 256"),
    ];
    for (change, expected) in cases {
        let error = open(change);
        assert!(error.contains(expected), "{expected:?} in {error:?}");
    }
}

/// Behind a right hash, names of ops, types and roles that do not exist are refused, with the entry that has
/// them.
#[test]
fn unknown_names_are_refused() {
    let folder = Folder::new();
    let (plan, data) = example();
    let original = folder.bytes(&plan, &data);
    let cases: [(&[u8], &[u8], &str); 5] = [
        (b"\x04relu", b"\x04relx", "invalid plan: kernel k0 `relx`: unknown op `relx`"),
        (b"{trans_a}", b"{trans_c}", "invalid plan: kernel k1 `matmul`: matmul has no attribute `trans_c`"),
        (
            b"\x08f32[8,8]",
            b"\x08f64[8,8]",
            "invalid plan: kernel k0 type `f64[8,8]`: `f64` is not an element type",
        ),
        (b"\x05param", b"\x05parax", "invalid plan: state s0 role: role `parax` is not one of param,"),
        (b"\x06output", b"\x06outpux", "invalid plan: output o0 role: role `outpux` is not one of loss,"),
    ];
    for (right, wrong, expected) in cases {
        let mut bytes = original.clone();
        let at = bytes.windows(right.len()).position(|part| part == right).unwrap();
        bytes[at..at + wrong.len()].copy_from_slice(wrong);
        rehash(&mut bytes);
        let error = folder.open(&bytes).err().unwrap();
        assert!(matches!(error, PlanError::Invalid { .. }));
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}

/// Other files get a hint of what they are.
#[test]
fn other_files_get_a_hint() {
    let folder = Folder::new();
    let cases: [(&[u8], &str); 7] = [
        (b"", "empty"),
        (b"ptrt\0\0\0\0", "TensorRT engine"),
        (b"plan 1\nproducer x\n", "text form"),
        (b"PK\x03\x04....", "PyTorch"),
        (b"\x10\0\0\0\0\0\0\0{\"w\":{}}", "safetensors"),
        (b"\x08\x08\x12\x07pytorch", "ONNX"),
        (b"hello", "MEMCPLAN"),
    ];
    for (bytes, hint) in cases {
        let error = folder.open(bytes).err().unwrap();
        assert!(matches!(error, PlanError::NotAPlan { .. }));
        assert!(error.to_string().contains(hint), "{error}");
    }
    assert!(matches!(memc_plan::PlanFile::open(folder.path()), Err(PlanError::NotAPlan { .. })));
    assert!(matches!(memc_plan::PlanFile::open(folder.path().join("none")), Err(PlanError::Io { .. })));
}

/// Random changes to the text form do not make the parser panic, and what it accepts prints and parses to the
/// same.
#[test]
fn mutated_text_is_refused_or_sound() {
    arbtest(|u| {
        let mut bytes = text::print(&generate::any(u)?).into_bytes();
        mutate(u, &mut bytes, 7)?;
        let mutant = String::from_utf8_lossy(&bytes);
        if let Ok(plan) = text::parse(&mutant) {
            let printed = text::print(&plan);
            assert_eq!(text::parse(&printed).as_ref().map(text::print).ok(), Some(printed));
        }
        Ok(())
    })
    .budget_ms(1000);
}
