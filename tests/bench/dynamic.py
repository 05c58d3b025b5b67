#!/usr/bin/env python3
"""Decisions while a step runs (DELTA, DTR) beside the plan, on the CPU device.

`python3 tests/bench/dynamic.py [--share 0.6] [--steps 5] [--table] [NETWORK ...]` prints a JSON object for
each network and way, or a table: the mean step in ms of the faster of two runs, what was decided, and whether
two steps equal the unplanned ones bit for bit. Each way but the first gets the same share of the unplanned
peak. `plan` may choose gradients that save fewer activations, `own` has those of the exported model, as the
policies have. The second runs come after all first ones, since a busy machine changes from minute to minute.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("MEMC_BIN", ROOT / "target" / "release"))
BATCHES = {"resnet18": 8, "mobilenet_v2": 8, "densenet121": 4, "squeezenet1_1": 16, "resnet20_cifar10": 64}
SYNTHETIC = ["--synthetic", "--no-progress"]
POLICIES = ["delta", "delta-lru", "delta-greedy", "dtr"]


def call(program, *args):
    done = subprocess.run([str(a) for a in (BIN / program, *args, "--json")], capture_output=True, text=True, cwd=ROOT)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return found[-1] if found else {"error": done.stderr.strip() or f"exit code {done.returncode}"}


def network(name, args, folder):
    model = [f"models/zoo/{name}.onnx", "--dim", f"batch={BATCHES[name]}", "--loss", "cross-entropy", "--optimizer",
             "momentum", "--device", "cpu"]
    peak = call("memc", "estimate", *model)["peak_bytes"]
    budget = f"{int(args.share * peak)}B"
    whole, own, plan = folder / "whole.plan", folder / "own.plan", folder / "part.plan"
    for file, options in ((whole, ["--no-mem-rewrite"]), (own, ["--no-mem-rewrite", "--gpu-mem", budget]),
                          (plan, ["--gpu-mem", budget])):
        made = call("memc", "compile", *model, "-o", file, "--effort", "1", *options)
        if "error" in made:
            sys.exit(f"{name}: {made['error']}")
    ways = [("no budget", whole, []), ("plan", plan, []), ("own", own, [])]
    ways += [(policy, whole, ["--dynamic", policy, "--gpu-mem", budget]) for policy in POLICIES]
    runs = [[call("memrun", file, *SYNTHETIC, "--steps", args.steps, *more) for _, file, more in ways] for _ in range(2)]
    for (way, file, more), first, second in zip(ways, *runs):
        row = {"network": name, "batch": BATCHES[name], "share": args.share, "way": way}
        failed = [ran["error"] for ran in (first, second) if "error" in ran]
        if failed:
            yield row | {"error": failed[0]}
            continue
        checked = call("memrun", file, *SYNTHETIC, "--steps", 2, "--verify", *more)
        # A step's time is that between its ends: of a queue that runs ahead, only the sum says what a step takes.
        row |= {"ms": round(min(sum(ran["step_ns"]) for ran in (first, second)) / args.steps / 1e6, 1)}
        row |= {"equal": checked.get("verified") is True}
        yield row | {key: value for key, value in second.get("dynamic", {}).items() if key != "policy"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(BATCHES), metavar="NETWORK")
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        ways = ["no budget", "plan", "own", *POLICIES]
        print("| network | " + " | ".join(ways) + " |\n|---|" + "---:|" * len(ways))
    for name in args.networks:
        with tempfile.TemporaryDirectory() as folder:
            rows = []
            for row in network(name, args, Path(folder)):
                rows.append(row)
                if not args.table:
                    print(json.dumps(row), flush=True)
        if args.table:
            cells = [f"{row['ms']}{'' if row['equal'] else ' other bits'}" if "ms" in row else "no room" for row in rows]
            print(f"| `{name}` {BATCHES[name]} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
