//! `memc alloc`: what it prints, refuses and keeps.

use std::process::Command;

use memc_alloc::{check, csv};

use crate::support::{json, memc, memc_fails, memc_ok, number, put, root};

fn instance(name: &str) -> String {
    root().join("passes/alloc/tests/data").join(name).display().to_string()
}

#[test]
fn the_allocation_on_stdout_is_one_of_the_instance_within_the_capacity() {
    let path = instance("B.csv");
    let printed = memc_ok(&["alloc", &path, "--capacity", "1048576"]);
    let given = csv::read(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let allocation = csv::read(&printed).unwrap();
    assert_eq!(given.ids, allocation.ids);
    let offsets: Vec<u64> = allocation.instance.buffers().iter().map(|b| b.offset.unwrap()).collect();
    assert!(check(&given.instance, &offsets).unwrap() <= 1 << 20);
}

/// Two searches race within a capacity, and the one that took less work wins, on one thread or two.
#[test]
fn an_allocation_within_a_capacity_is_the_same_on_any_number_of_threads() {
    for (capacity, seed) in [("1048576", "0"), ("1060000", "1")] {
        let allocation = |threads: &str| {
            let mut memc = Command::new(env!("CARGO_BIN_EXE_memc"));
            memc.env("RAYON_NUM_THREADS", threads).args(["alloc", &instance("D.csv"), "--effort", "3"]);
            memc.args(["--capacity", capacity, "--seed", seed]).output().unwrap().stdout
        };
        let found = allocation("1");
        assert!(!found.is_empty() && found == allocation("2") && found == allocation("3"), "{capacity}");
    }
}

#[test]
fn json_has_what_scripts_read_and_a_file_takes_the_allocation() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.csv").display().to_string();
    let out = json(&memc_ok(&["alloc", &instance("resnet50.csv"), "--json", "-o", &file]));
    assert_eq!(number(&out, "height"), number(&out, "load"));
    assert_eq!(out["optimal"], true);
    number(&out, "solve_ns");
    assert_eq!(std::fs::read_to_string(file).unwrap().lines().count(), 1043);
}

#[test]
fn every_named_algorithm_lays_out_and_none_lower_than_the_load() {
    let path = instance("A.csv");
    for algorithm in memc_alloc::Algorithm::ALL {
        let out = json(&memc_ok(&["alloc", &path, "--json", "--algorithm", algorithm.name()]));
        assert!(number(&out, "height") >= number(&out, "load"), "{out}");
    }
    let said = memc_fails(2, &["alloc", &path, "--algorithm", "guess"]);
    assert!(said.contains("best-fit") && said.contains("search"), "{said}");
}

#[test]
fn a_capacity_that_is_too_small_is_exit_4_with_load_and_best_height() {
    let path = instance("C.csv");
    let said = memc_fails(4, &["alloc", &path, "--capacity", "1000000"]);
    assert!(said.contains("load 1039360") && said.contains("lowest found"), "{said}");
    let out = memc(&["alloc", &path, "--capacity", "1000000", "--json"]);
    let out = json(&String::from_utf8(out.stdout).unwrap());
    assert_eq!((number(&out, "exit_code"), number(&out, "bound")), (4, 1_039_360));
}

/// Below the quick algorithms' allocations a search within a capacity has none until it has one of that
/// height.
#[test]
fn a_capacity_that_was_not_reached_says_whose_height_it_names_and_what_may_help() {
    let path = instance("D.csv");
    let refused = |flags: &[&str], parts: &[&str]| {
        let said = memc_fails(4, &[&["alloc", &path, "--capacity", "990000"], flags].concat());
        assert!(parts.iter().all(|p| said.contains(p)), "{flags:?}: {said}");
    };
    refused(&["--effort", "0"], &["more --effort", "the quick algorithms' lowest is 1227776"]);
    refused(
        &["--effort", "5", "--time-limit", "1ms"],
        &["in time; a longer --time-limit", "quick algorithms"],
    );
    refused(&["--algorithm", "best-fit"], &["by best-fit; leave --algorithm out", "best-fit reaches"]);
}

/// A capacity is in the instance's units; one with a unit is refused with the number to write.
#[test]
fn a_capacity_with_a_unit_is_exit_2_and_says_what_to_write() {
    let path = instance("B.csv");
    for (text, hint) in [
        ("1M", "1048576 where they are bytes"),
        ("1.5KiB", "1536 where they are bytes"),
        ("90%", "a share"),
        ("1MB", "not a height"),
        ("-4", "not a height"),
        ("1e6", "such as 1048576"),
    ] {
        let said = memc_fails(2, &["alloc", &path, &format!("--capacity={text}")]);
        assert!(said.contains(hint) && said.contains("units of the instance's sizes"), "{text}: {said}");
    }
}

#[test]
fn malformed_instances_are_exit_3_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    for (text, place) in [
        ("id,lower,upper,size\na,0,4,x\n", "line 2, column `size`"),
        ("id,lower,upper,size\na,0,4,1\nb,4,4,1\n", "line 3, column `upper`"),
        ("a,0,4,1\n", "line 1"),
    ] {
        let path = put(folder.path(), "bad.csv", text.as_bytes()).display().to_string();
        let said = memc_fails(3, &["alloc", &path]);
        assert!(said.contains(place) && said.contains("bad.csv"), "{said}");
    }
    memc_fails(74, &["alloc", "no-such-file.csv"]);
}

#[test]
fn a_time_limit_ends_the_search_with_an_allocation() {
    let path = instance("D.csv");
    let out = json(&memc_ok(&["alloc", &path, "--json", "--time-limit", "50ms"]));
    assert_eq!((&out["optimal"], &out["stopped"]), (&false.into(), &true.into()), "{out}");
    assert!(number(&out, "height") > number(&out, "load"), "{out}");
    let said = memc_fails(2, &["alloc", &path, "--time-limit", "50"]);
    assert!(said.contains("unit"), "{said}");
}

/// Training graphs and steps among the committed models, relative to the repository.
fn training_graphs() -> Vec<String> {
    let mut found = Vec::new();
    for folder in std::fs::read_dir(root().join("models")).unwrap() {
        let folder = folder.unwrap().path();
        let Ok(files) = std::fs::read_dir(&folder) else { continue };
        for file in files {
            let file = file.unwrap().path();
            let (of, name) = (folder.file_name().unwrap(), file.file_name().unwrap());
            let step =
                of.to_str().unwrap().ends_with("_step") && file.extension().is_some_and(|e| e == "onnx");
            if step || name == "training_model.onnx" {
                found.push(file.strip_prefix(root()).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_committed_training_graph_is_laid_out_at_its_load() {
    let graphs = training_graphs();
    assert!(graphs.len() > 20, "{graphs:?}");
    for graph in graphs {
        let pass = "all,bufferize,alloc{algo=search}";
        let out = memc(&["opt", &graph, "--pass", pass, "--stats", "-o", "/dev/null"]);
        let said = String::from_utf8(out.stderr).unwrap();
        let count = |what: &str| {
            let line = said.lines().find(|l| l.contains(what));
            let line = line.unwrap_or_else(|| panic!("{graph}: no {what} in {said}"));
            line.split_whitespace().filter_map(|w| w.parse::<u64>().ok()).next_back().unwrap()
        };
        assert_eq!(count("device arena bytes"), count("device load bytes"), "{graph}");
    }
}
