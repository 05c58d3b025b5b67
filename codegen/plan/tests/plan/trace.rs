//! The timeline of a step as a trace.

use memc_plan::{Span, Trace};
use serde_json::Value;

/// A state `w` at 0..64 that is updated in place; `x` comes in at 64..128, `y` is made of both at 128..192
/// and goes out while the next launch uses scratch at 64..96, and a constant lies at 256..320.
const PLAN: &str = "
plan 1
arena dev 320 host 128
kernel k0 = mul(f32[16], f32[16]) -> (f32[16])
kernel k1 = sgd(f32[16], f32[16], f32[16]) -> (f32[16])
state s0 w param f32[16] dev+0:64 zeros
state s1 c const f32[16] dev+256:64 zeros
input i0 x f32[16] host+0:64 data x micro 0 range 0..0
output o0 y f32[16] host+64:64 output
events 2
body {
  host write i0
  h2d copy host+0:64 -> dev+64:64 ; %x
  h2d record e0
  compute wait e0
  compute launch k0 r dev+0:64 r dev+64:64 w dev+128:64 ; %y
  compute record e1
  d2h wait e1
  d2h copy dev+128:64 -> host+64:64 ; %y
  compute launch k1 r dev+0:64 r dev+256:64 r dev+256:64 w dev+0:64 ws dev+64:32
  host read o0
}
";

fn spans() -> Vec<Span> {
    let at = [(0, 0, 0), (1, 0, 1000), (4, 1000, 1500), (7, 1500, 2500), (8, 1500, 2000), (9, 2500, 2500)];
    at.map(|(command, start_ns, end_ns)| Span { command, start_ns, end_ns }).to_vec()
}

/// Every command is a span on its stream's track with its op and bytes. Memory counts what is still to be
/// read.
#[test]
fn a_trace_has_slices_and_the_memory_in_use() {
    let plan = memc_plan::text::parse(PLAN).expect("the plan parses");
    let trace = Trace { plan: &plan, spans: &spans(), step_ns: 2500, origin: "planned" };
    let value: Value = serde_json::from_str(&trace.json()).expect("it is JSON");
    let events = value["traceEvents"].as_array().expect("a list");
    let of = |ph: &str| events.iter().filter(|e| e["ph"] == ph).collect::<Vec<_>>();
    let tracks: Vec<&Value> =
        of("M").iter().filter(|e| e["name"] == "thread_name").map(|e| &e["args"]["name"]).collect();
    assert_eq!(tracks, ["compute", "d2h", "h2d", "cpu", "host"]);
    let slices: Vec<(&str, u64, f64, f64)> = of("X")
        .iter()
        .map(|e| {
            let number = |key: &str| e[key].as_f64().expect("a number");
            let name = e["name"].as_str().expect("a name");
            (name, e["tid"].as_u64().expect("a track"), number("ts"), number("dur"))
        })
        .collect();
    let want = [
        ("write x", 4, 0.0, 0.0),
        ("%x", 2, 0.0, 1.0),
        ("%y", 0, 1.0, 0.5),
        ("%y", 1, 1.5, 1.0),
        ("sgd", 0, 1.5, 0.5),
        ("read y", 4, 2.5, 0.0),
    ];
    assert_eq!(slices, want);
    assert_eq!(of("X")[2]["args"]["kernel"], "mul");
    assert_eq!(of("X")[2]["args"]["bytes"], 192);
    let memory: Vec<(f64, u64)> = of("C")
        .iter()
        .map(|e| (e["ts"].as_f64().expect("a time"), e["args"]["live"].as_u64().expect("bytes")))
        .collect();
    // w and c always; x until it is used, y until it is out, scratch for its launch.
    assert_eq!(memory, [(0.0, 192), (1.0, 256), (1.5, 224), (2.0, 192), (2.5, 128)]);
}
