//! The target `onnx` for libFuzzer.
#![no_main]

memc_libfuzzer::target!("onnx");
