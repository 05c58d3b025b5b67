"""Several jobs in one plan against processes of their own and against TENSILE's method, as tables.

Usage: python3 tests/bench/jobs.py [pairs|tensile] [--devices NAMES] [--effort N] [--table]
Needs: a release build of memc, nothing else. One JSON object a row on stdout, or with --table the table.

`pairs`: a round of two jobs, one step of each, in ms by the model. `joint` is `memc plan --job`; `split` the best parts
of the budget for processes of their own, whose kernels take turns (`memc split`); `turns` the sum of both steps where
each has the whole budget, as if states moved in no time between them. Budgets are parts of the joint peak.

`tensile`: jobs of VGG-16 at batch 2, as TENSILE's Table 2 and Fig. 6 have them, and a mixed workload. Every planner gets
the budget that saves the part of the unplanned peak that TENSILE saves there by its paper (MSR; a quarter for the mixed
workload), or where it finds no plan the smallest of those tried with which it does. EOR is the time that it adds to the
unplanned round; `paper` what TENSILE added by its paper.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("MEMC", ROOT / "target" / "release" / "memc"))
CE = ["--loss", "cross-entropy"]
MOMENTUM = [*CE, "--optimizer", "momentum"]
ADAMW = [*CE, "--optimizer", "adamw"]
SQUAD = ["--loss", "cross-entropy:axis=1", "--optimizer", "adamw"]
MODELS = {
    "gpt2_small": (8, ADAMW), "resnet50": (96, MOMENTUM), "bert_base": (8, SQUAD), "vgg16": (32, MOMENTUM),
    "inception_v3": (32, ["--loss", "output", "--optimizer", "momentum"]), "densenet121": (32, MOMENTUM),
    "mobilenet_v2": (64, MOMENTUM),
}
PAIRS = [("gpt2_small", "resnet50"), ("bert_base", "resnet50"), ("bert_base", "gpt2_small"), ("vgg16", "inception_v3"),
         ("densenet121", "mobilenet_v2"), ("resnet50", "resnet50")]
SHARES = (0.5, 0.3)
# Label, networks, and of TENSILE in its paper the part of the peak that is saved and the time that is added.
TENSILE = [("VGG x1", ["vgg16"], 0.2001, 0.0838), ("VGG x2", ["vgg16"] * 2, 0.2295, 0.1016),
           ("VGG x3", ["vgg16"] * 3, 0.2767, 0.2793),
           ("mixed", ["vgg16", "inception_v3", "resnet50", "densenet121"], 0.25, None)]
PLANNERS = ["memc", "tensile", "capuchin", "vdnn-all"]


def memc(command, *more):
    done = subprocess.run([str(a) for a in (BIN, command, *more, "--json")], capture_output=True, text=True, cwd=ROOT)
    if done.returncode not in (0, 4):
        sys.exit(f"memc {command}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def jobs(names, batch=None):
    """The options for jobs of these networks."""
    out = []
    for i, name in enumerate(names):
        own, options = MODELS[name]
        out += ["--job", f"j{i}={ROOT / 'models' / 'zoo' / name}.onnx", *options, "--dim", f"batch={batch or own}"]
    return out


def model(name):
    batch, options = MODELS[name]
    return [ROOT / "models" / "zoo" / f"{name}.onnx", *options, "--dim", f"batch={batch}"]


def pairs(args):
    for names in PAIRS:
        for device in args.devices:
            on = ["--device", device, "--effort", args.effort]
            peak = memc("estimate", *jobs(names), "--device", device)["peak_bytes"]
            for share in SHARES:
                budget = f"{int(share * peak)}B"
                joint = memc("plan", *jobs(names), *on, "--gpu-mem", budget)
                split = memc("split", *jobs(names), *on, "--gpu-mem", budget, "--parts", "4")
                alone = [memc("plan", *model(name), *on, "--gpu-mem", budget)["step_ns"] for name in names]
                ms = lambda ns: round(ns / 1e6, 1) if ns else None
                yield {"jobs": " + ".join(names), "device": device, "share": share, "joint": ms(joint["step_ns"]),
                       "split": ms(split.get("round_ns")), "turns": ms(sum(alone)) if all(alone) else None,
                       "ideal": ms(joint["ideal_ns"])}


def tensile(args):
    """Rows of TENSILE's Table 2, and a mixed workload."""
    for label, names, saved, paper in TENSILE:
        for device in args.devices:
            given = [*jobs(names, 2), "--device", device, "--effort", args.effort]
            for planner in PLANNERS:
                for percent in (100 * (1 - saved), *range(80, 101, 4)):
                    r = memc("plan", *given, "--gpu-mem", f"peak*{percent:.1f}%", "--planner", planner)
                    found = r["step_ns"] is not None
                    if found:
                        break
                peak = r["unplanned_peak_bytes"]
                yield {"workload": label, "device": device, "planner": planner,
                       "MSR": 1 - (r["arena_bytes"] + r["reserve_bytes"]) / peak if found else None,
                       "EOR": r["step_ns"] / r["ideal_ns"] - 1 if found else None, "paper": paper}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="pairs", choices=["pairs", "tensile"])
    parser.add_argument("--devices", default="a100-40g,rtx4090", type=lambda text: text.split(","))
    parser.add_argument("--effort", default="1")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    header = None
    for row in {"pairs": pairs, "tensile": tensile}[args.what](args):
        if not args.table:
            print(json.dumps(row), flush=True)
            continue
        if header is None:
            header = list(row)
            print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
        text = lambda x: "no plan" if x is None else f"{x:.4f}" if isinstance(x, float) and x < 10 else str(x)
        print(f"| {' | '.join(text(row[name]) for name in header)} |", flush=True)


if __name__ == "__main__":
    main()
