"""Plans of training steps of transformers, of recomputation alone, with ten seeds, and at many budgets, as tables.

Usage: python3 tests/bench/transformer_plans.py [budgets|recompute|seeds|steps] [--only NAMES] [--devices NAMES]
                                            [--shares NUMBERS] [--effort N] [--no-host-ops] [--table]
Needs: a release build of memc, nothing else. One JSON object a cell on stdout, or with --table the table.

Shares are of the unplanned peak of the model's own gradients, the device's reserve included. `ideal` is the time of the
ops alone of the fastest formulation, `bound` what no plan of any formulation beats in the plan's order: in
any order, where the plan changes that of its formulation. `given_order_bound` is that of plans that keep the order as
given. `unlaid` is the shortest step of all choices in the search that fit in bytes, before they have offsets, by its
own timing.
"""

import argparse
import functools
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / "release" / "memc"
CE = ["--loss", "cross-entropy"]
ADAMW = [*CE, "--optimizer", "adamw"]
SQUAD = ["--loss", "cross-entropy:axis=1", "--optimizer", "adamw"]
MOMENTUM = [*CE, "--optimizer", "momentum"]
# Network, batch, options.
TRANSFORMERS = [("gpt2_small", 16, ADAMW), ("gpt2_medium", 8, ADAMW), ("gpt2_large", 4, ADAMW), ("gpt2_xl", 4, ADAMW),
                ("bert_large", 32, SQUAD), ("vit_l_16", 64, ADAMW)]
RECOMPUTE = [("gpt2_medium", 8, ADAMW), ("densenet121", 64, MOMENTUM), ("resnet50", 64, MOMENTUM), ("inception_v4", 32, MOMENTUM)]
HEURISTICS = ["dtr", "checkpoint-sqrt"]
SEEDS = [("resnet50", "v100-16g", 64, MOMENTUM, 0.4), ("bert_base", "v100-16g", 8, SQUAD, 0.4), ("vgg16", "gtx1080ti", 64, MOMENTUM, 0.5)]


def memc(command, network, batch, device, options, *more):
    """The JSON object that a command prints."""
    model = ROOT / "models" / "zoo" / f"{network}.onnx"
    args = [BIN, command, model, "--dim", f"batch={batch}", "--device", device, *options, "--json", *more]
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, cwd=ROOT)
    if done.returncode not in (0, 4):
        sys.exit(f"memc {command} {network}: {done.stderr.strip()}")
    return json.loads(done.stdout)


@functools.cache
def peak_bytes(network, batch, device, options):
    return memc("estimate", network, batch, device, options)["peak_bytes"]


def cell(network, batch, device, options, share, *more):
    """Figures of a plan within a share of the peak."""
    peak = peak_bytes(network, batch, device, tuple(options))
    begun = time.monotonic()
    with tempfile.NamedTemporaryFile(suffix=".json") as curve:
        r = memc("plan", network, batch, device, options, "--gpu-mem", f"{int(share * peak)}B", "--curve", curve.name, *more)
        # The file is replaced, not written.
        alive = json.loads(Path(curve.name).read_text())["alive"] if r["feasible"] else []
    # Times of choices that fit in bytes, before they have offsets.
    r["unlaid_over_ideal"] = min((row[2] for row in alive), default=0) / r["ideal_ns"] or None
    wanted = ["step_over_ideal", "step_over_bound", "step_over_given_order_bound", "unlaid_over_ideal", "formulation", "swap_out_bytes", "recompute_ns", "evaluations"]
    row = {"network": network, "batch": batch, "device": device, "share": share}
    return row | {name: r.get(name) for name in wanted} | {"seconds": round(time.monotonic() - begun, 1)}


def budgets(args):
    for network, batch, options in TRANSFORMERS:
        for device in args.devices:
            for share in args.shares:
                yield cell(network, batch, device, options, share, "--effort", args.effort, *(["--no-host-ops"] if args.no_host_ops else []))


def recompute(args):
    for network, batch, options in RECOMPUTE:
        for device in args.devices:
            planned = lambda planner, share: {"planner": planner} | cell(network, batch, device, options, share, "--no-swap", "--planner", planner)
            for share in (0.5, 0.4, 0.3, least_share(planned)):
                for planner in ("memc", *HEURISTICS):
                    yield planned(planner, share)


def least_share(planned):
    """The smallest share, in hundredths, within which a heuristic has a plan, between 0.05 and 1."""
    low, high = 5, 100
    while low < high:
        middle = (low + high) // 2
        fits = any(planned(planner, middle / 100)["step_over_ideal"] for planner in HEURISTICS)
        low, high = (low, middle) if fits else (middle + 1, high)
    return low / 100


def seeds(args):
    for network, device, batch, options, share in SEEDS:
        rows = [cell(network, batch, device, options, share, "--search-seed", str(seed)) for seed in range(10)]
        steps = [r["step_over_ideal"] for r in rows]
        yield rows[0] | {"best": min(steps), "worst": max(steps), "mean": sum(steps) / 10, "seconds": max(r["seconds"] for r in rows)}


def steps(args):
    for network, device, batch, options, _ in SEEDS:
        rows = [cell(network, batch, device, options, percent / 100) for percent in range(30, 100, 5)]
        over = [r["step_over_ideal"] or math.inf for r in rows]
        rises = [(a / min(over[: i + 1]), rows[i]["share"]) for i, a in enumerate(over) if a < math.inf] or [(None, None)]
        row = {"network": network, "batch": batch, "device": device} | {f"{r['share']:.2f}": r["step_over_ideal"] for r in rows}
        yield row | {"worst_rise": max(rises)[0], "at": max(rises)[1], "seconds": max(r["seconds"] for r in rows)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="budgets", choices=["budgets", "recompute", "seeds", "steps"])
    parser.add_argument("--only", default="", help="networks, separated by commas")
    parser.add_argument("--devices", default="h100,a100-40g,rtx4090", type=lambda text: text.split(","))
    parser.add_argument("--shares", default="0.5,0.3", type=lambda text: [float(share) for share in text.split(",")])
    parser.add_argument("--effort", default="2")
    parser.add_argument("--no-host-ops", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    only = [name for name in args.only.split(",") if name]
    for table in (TRANSFORMERS, RECOMPUTE, SEEDS):
        table[:] = [row for row in table if not only or row[0] in only]
    header = None
    for row in {"budgets": budgets, "recompute": recompute, "seeds": seeds, "steps": steps}[args.what](args):
        if not args.table:
            print(json.dumps(row), flush=True)
            continue
        if header is None:
            header = list(row)
            print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
        text = lambda x: "no plan" if x is None else f"{x:.4f}" if isinstance(x, float) and x < 100 else str(x)
        print(f"| {' | '.join(text(row[name]) for name in header)} |", flush=True)


if __name__ == "__main__":
    main()
