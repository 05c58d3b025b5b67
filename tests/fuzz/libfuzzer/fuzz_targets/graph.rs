//! The target `graph` for libFuzzer.
#![no_main]

memc_libfuzzer::target!("graph");
