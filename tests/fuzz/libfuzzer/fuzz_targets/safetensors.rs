//! The target `safetensors` for libFuzzer.
#![no_main]

memc_libfuzzer::target!("safetensors");
