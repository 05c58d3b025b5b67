//! Plans are read as they were written.

use arbtest::arbtest;
use memc_plan::{Init, PlanFile, text};

use crate::{Folder, example, example_text, generate, tuning};

/// The README's plan survives the file, with its data, and is valid.
#[test]
fn the_example_survives_the_file() {
    let (plan, data) = example();
    let folder = Folder::new();
    let bytes = folder.bytes(&plan, &data);
    let file = PlanFile::open(folder.file()).unwrap();
    assert_eq!(file.plan(), &plan);
    assert_eq!(file.data(0, 0), data[&0].as_slice());
    for (bucket, state) in [(0, 1), (1, 0), (usize::MAX, 0), (0, usize::MAX)] {
        assert_eq!(file.data(bucket, state), &[] as &[u8]);
    }
    assert_eq!(&bytes[32..64], file.content_hash());
    assert_eq!(bytes.len(), 4096 + 256);
}

/// The bytes of format 1 are fixed: where this fails, the format changed and needs a new version.
#[test]
fn the_bytes_of_the_example_are_fixed() {
    let (plan, data) = example();
    let hash = memc_plan::hash(&Folder::new().bytes(&plan, &data));
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "7da5e41a5fd0acdd4458b9600cae11a746c813231d36c953d65f4806e46b6d10");
}

/// Text of a tuning section.
#[test]
fn a_tuned_plan_is_printed_as_documented() {
    let (mut plan, _) = example();
    plan.tuning = Some(tuning());
    let printed = text::print(&plan);
    let algorithm = "07".repeat(64);
    let lines = format!(
        "tuning \"A GPU\" sm_90 rounding exact\nlibrary cuBLASLt 13.1.0\n\
         tuned k1 product {algorithm} workspace 256 ns 20 default 30\nevents 3\n"
    );
    assert!(printed.starts_with("plan 2\n") && printed.contains(&lines), "{printed}");
    assert_eq!(text::parse(&printed).unwrap(), plan);
}

/// The README's plan is printed exactly as it stands there.
#[test]
fn the_example_is_printed_as_documented() {
    assert_eq!(text::print(&example().0), example_text());
}

/// Any valid plan survives the file, and the same plan gives the same bytes.
#[test]
fn random_plans_survive_the_file() {
    arbtest(|u| {
        let (plan, data) = generate::valid(u)?;
        let (folder, again) = (Folder::new(), Folder::new());
        let bytes = folder.bytes(&plan, &data);
        let mut file = PlanFile::open(folder.file()).unwrap();
        assert_eq!(file.plan(), &plan);
        for (bucket, of) in plan.with_buckets().enumerate() {
            for (index, state) in of.states.iter().enumerate() {
                let read = file.data(bucket, index);
                match state.init {
                    Init::Data { hash, .. } => assert_eq!(memc_plan::hash(read), hash),
                    _ => assert!(read.is_empty()),
                }
                assert!(data.0.get(&(bucket, index)).is_none_or(|expected| expected == read));
            }
        }
        memc_plan::write(again.file(), &plan, &mut file, &|| false).unwrap();
        assert_eq!(std::fs::read(again.file()).unwrap(), bytes);
        Ok(())
    })
    .budget_ms(1000);
}

/// Any plan, valid or not, survives the text form.
#[test]
fn random_plans_survive_the_text() {
    arbtest(|u| {
        let plan = generate::any(u)?;
        let printed = text::print(&plan);
        assert_eq!(text::parse(&printed).as_ref().ok(), Some(&plan), "{printed}");
        Ok(())
    })
    .budget_ms(1000);
}

/// A plan of 100,000 commands survives file and text.
#[test]
fn a_long_plan_survives() {
    let (mut plan, data) = example();
    plan.body = plan.body.iter().cycle().take(100_000).cloned().collect();
    let folder = Folder::new();
    folder.bytes(&plan, &data);
    assert!(PlanFile::open(folder.file()).unwrap().plan() == &plan);
    assert!(text::parse(&text::print(&plan)).unwrap() == plan);
}
