//! The cost model: built-in profiles, families, and what must hold of times.

#![allow(clippy::unwrap_used, reason = "tests")]

use memc_ir::ops::{Class, OP_DEFS};
use memc_ir::{OpKind, TensorType, parse_op, parse_type};
use memc_passes::{DeviceProfile, Family, Kernels, PROFILES};

fn op(text: &str, attrs: &str) -> OpKind {
    parse_op(text, attrs).unwrap()
}

fn types(texts: &[&str]) -> Vec<TensorType> {
    texts.iter().map(|t| parse_type(t).unwrap()).collect()
}

/// Time and family of an op on a device.
fn timed(device: &str, kind: &OpKind, operands: &[&str]) -> (u64, Family) {
    let operands = types(operands);
    let operands: Vec<&TensorType> = operands.iter().collect();
    let results = kind.infer(&operands).unwrap();
    let results: Vec<&TensorType> = results.iter().collect();
    let profile = DeviceProfile::named(device).unwrap();
    (profile.op_ns(kind, &operands, &results), kind.family(&operands, &results))
}

const CONV: &str = "{strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1]}";

#[test]
fn every_name_is_found_and_no_other() {
    for profile in PROFILES {
        assert!(std::ptr::eq(DeviceProfile::named(&profile.name).unwrap(), profile));
        assert_eq!(PROFILES.iter().filter(|p| p.name == profile.name).count(), 1);
        assert!(profile.can_swap());
        let fastest = profile.d2h_bytes_per_s.max(profile.h2d_bytes_per_s);
        assert!(profile.duplex_total_bytes_per_s >= fastest, "{}", profile.name);
        assert!(profile.duplex_total_bytes_per_s <= profile.d2h_bytes_per_s + profile.h2d_bytes_per_s);
        assert!(profile.memory_bytes.is_none_or(|m| m > profile.reserve_bytes));
    }
    assert!(DeviceProfile::named("H200").is_none());
}

#[test]
fn toy_does_one_flop_and_one_byte_a_ns() {
    let matmul = op("matmul", "");
    assert_eq!(timed("toy", &matmul, &["f32[8,64]", "f32[64,8]"]).0, 2 * 8 * 8 * 64);
    assert_eq!(timed("toy", &op("relu", ""), &["f32[100]"]).0, 800);
    let toy = DeviceProfile::named("toy").unwrap();
    assert_eq!((toy.d2h_ns(1), toy.round_trip_ns(100)), (Some(4), Some(800)));
}

#[test]
fn a_view_takes_no_time() {
    assert_eq!(timed("v100-16g", &op("reshape", "{shape = [4]}"), &["f32[2,2]"]).0, 0);
}

#[test]
fn without_a_link_there_is_no_copy() {
    let mut alone = DeviceProfile::named("toy").unwrap().clone();
    alone.d2h_bytes_per_s = 0.0;
    assert_eq!((alone.d2h_ns(64), alone.h2d_ns(64), alone.round_trip_ns(64)), (None, Some(256), None));
    assert!(!alone.can_swap());
}

#[test]
fn more_of_any_extent_is_never_faster() {
    let sizes = [1u64, 7, 31, 32, 33, 64, 127, 128, 129, 200, 255, 256, 257, 1000, 1024, 4096, 5000];
    for profile in PROFILES.iter().map(|p| &*p.name) {
        for fixed in [3u64, 64, 900] {
            let mut last = [0; 5];
            for n in sizes {
                let (x, y) = (format!("f32[{n},{fixed}]"), format!("f32[{fixed},{fixed}]"));
                let (a, b) = (format!("f32[{fixed},{n}]"), format!("f32[{n},{fixed}]"));
                let (i, w) = (format!("f32[{n},8,14,14]"), format!("f32[{fixed},8,3,3]"));
                let stack = (format!("f16[{n},{fixed},32]"), format!("f16[{n},32,{fixed}]"));
                let now = [
                    timed(profile, &op("matmul", ""), &[&x, &y]).0,
                    timed(profile, &op("matmul", ""), &[&a, &b]).0,
                    timed(profile, &op("matmul", ""), &[&stack.0, &stack.1]).0,
                    timed(profile, &op("conv", CONV), &[&i, &w]).0,
                    timed(profile, &op("gelu", ""), &[&x]).0,
                ];
                for (form, (now, last)) in now.iter().zip(last).enumerate() {
                    assert!(*now >= last, "{profile}: form {form} at {n}: {now} < {last}");
                }
                last = now;
            }
        }
    }
}

#[test]
fn no_kernel_beats_the_roofline() {
    for profile in PROFILES.iter().filter(|p| p.kernels == Kernels::Gpu) {
        for n in [64u64, 512, 4096] {
            let square = format!("f32[{n},{n}]");
            let flops = 2.0 * (n as f64).powi(3);
            let bytes = 3.0 * 4.0 * (n as f64).powi(2);
            let least = 1e9 * (flops / profile.peaks.f32).max(bytes / profile.memory_bytes_per_s);
            let (ns, _) = timed(&profile.name, &op("matmul", ""), &[&square, &square]);
            assert!(ns as f64 >= least, "{}: {ns} < {least}", profile.name);
        }
    }
}

#[test]
fn a_small_product_reaches_a_small_share_of_the_peak() {
    let share = |n: u64| {
        let square = format!("f32[{n},{n}]");
        let (ns, _) = timed("v100-16g", &op("matmul", ""), &[&square, &square]);
        2.0 * (n as f64).powi(3) / ns as f64 * 1e9 / 15.7e12
    };
    assert!(share(64) < 0.02, "{}", share(64));
    assert!(share(512) < 0.7, "{}", share(512));
    assert!((0.75..0.9).contains(&share(8192)), "{}", share(8192));
}

#[test]
fn sixteen_bit_products_use_the_units_for_them_where_there_are_any() {
    let matmul = op("matmul", "");
    let time = |device: &str, ty: &str| {
        let square = format!("{ty}[4096,4096]");
        timed(device, &matmul, &[&square, &square]).0
    };
    assert!(time("v100-16g", "f16") * 3 < time("v100-16g", "f32"));
    assert!(time("a100-40g", "bf16") * 3 < time("a100-40g", "f32"));
    assert_eq!(time("gtx1080ti", "f16"), time("gtx1080ti", "f32"));
    assert_eq!(time("v100-16g", "bf16"), time("v100-16g", "f32"));
}

#[test]
fn convolutions_are_told_apart_by_direction_and_depth() {
    let grad = "{strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], size = [8, 8]}";
    let weight = "{strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], kernel = [3, 3]}";
    let x = "f32[2,16,8,8]";
    let conv = timed("h100", &op("conv", CONV), &[x, "f32[16,16,3,3]"]).1;
    assert_eq!(conv, Family::Conv);
    assert_eq!(timed("h100", &op("conv_grad_input", grad), &[x, "f32[16,16,3,3]"]).1, Family::ConvGradInput);
    assert_eq!(timed("h100", &op("conv_grad_weight", weight), &[x, x]).1, Family::ConvGradWeight);
    let groups = |attrs: &str| attrs.replace('}', ", groups = 16}");
    let depth = [
        timed("h100", &op("conv", &groups(CONV)), &[x, "f32[16,1,3,3]"]).1,
        timed("h100", &op("conv_grad_input", &groups(grad)), &[x, "f32[16,1,3,3]"]).1,
        timed("h100", &op("conv_grad_weight", &groups(weight)), &[x, x]).1,
    ];
    assert_eq!(depth, [Family::Depthwise; 3]);
}

#[test]
fn a_family_stands_in_the_list_once_under_a_name_of_its_own() {
    for (i, family) in Family::ALL.iter().enumerate() {
        assert!(Family::ALL[..i].iter().all(|f| f != family && f.name() != family.name()));
    }
    assert_eq!(OP_DEFS.iter().filter(|d| d.class == Class::View).count(), 1);
}
