//! The target `plan_text` for libFuzzer.
#![no_main]

memc_libfuzzer::target!("plan_text");
