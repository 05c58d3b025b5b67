#!/usr/bin/env python3
"""Decisions while a step runs (DELTA, DTR) beside the plan, on the CPU device.

`python3 tests/bench/dynamic.py [--share 0.6] [--steps 5] [--table] [NETWORK ...]` prints a JSON object for
each network and way, or a table: the mean step in ms of the faster of two runs, what was decided, and whether
two steps equal the unplanned ones bit for bit. Each way but the first gets the same share of the unplanned
peak. `plan` may choose gradients that save fewer activations, `own` has those of the exported model, as the
policies have. The second runs come after all first ones, since a busy machine changes from minute to minute.

`--least` prints the rows of DELTA's table II: for each way the smallest budget in which a step runs, to one in fifty
of the unplanned peak. `--grow` prints those of its tables III and IV: the largest batch in the memory that a smaller
one takes unplanned, to an eighth of that. Both have the time of a step, or of a sample, over that of an unplanned step
that ran just before. Steps that take a minute count as none.
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


def call(program, *args, limit=None):
    line = [str(a) for a in (BIN / program, *args, "--json")]
    try:
        done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"it takes more than {limit} s"}
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return found[-1] if found else {"error": done.stderr.strip() or f"exit code {done.returncode}"}


def network(name, args, folder):
    source = model(name, BATCHES[name])
    peak = call("memc", "estimate", *source)["peak_bytes"]
    budget = f"{int(args.share * peak)}B"
    whole, own, plan = folder / "whole.plan", folder / "own.plan", folder / "part.plan"
    for file, options in ((whole, ["--no-mem-rewrite"]), (own, ["--no-mem-rewrite", "--gpu-mem", budget]),
                          (plan, ["--gpu-mem", budget])):
        made = call("memc", "compile", *source, "-o", file, "--effort", "1", *options)
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


def model(name, batch):
    return [f"models/zoo/{name}.onnx", "--dim", f"batch={batch}", "--loss", "cross-entropy", "--optimizer",
            "momentum", "--device", "cpu"]


def compiled(file, *words):
    made = call("memc", "compile", *words, "-o", file, "--effort", "0")
    if "error" in made and "feasible" not in made and made.get("exit_code") != 4:
        sys.exit(f"{words[0]}: {made['error']}")
    return "error" not in made


def step_ns(file, steps, *more):
    """Mean time of a step; None where there is no room, or where the steps take a minute."""
    ran = call("memrun", file, *SYNTHETIC, "--steps", steps, *more, limit=60)
    if "error" in ran:
        if ran.get("exit_code") not in (4, 5, None) and "no room" not in ran["error"]:
            sys.exit(f"{file}: {ran['error']}")
        return None
    return sum(ran["step_ns"]) / steps


def smallest(low, high, fits):
    """The smallest number above `low`, which does not fit, that fits; `high` does."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


WAYS = ["plan", "own", *POLICIES]


def runs_in(way, source, whole, budget, folder, steps):
    """Time of a step within a budget; None where there is no room, if only in the last of these steps. Plans are made
    for it."""
    if way in POLICIES:
        return step_ns(whole, steps, "--dynamic", way, "--gpu-mem", budget)
    part = folder / "part.plan"
    options = ["--no-mem-rewrite"] if way == "own" else []
    return step_ns(part, steps) if compiled(part, *source, *options, "--gpu-mem", budget) else None


def least(name, args, folder):
    source, whole = model(name, BATCHES[name]), folder / "whole.plan"
    peak = call("memc", "estimate", *source)["peak_bytes"]
    compiled(whole, *source, "--no-mem-rewrite")
    cells = []
    for way in args.ways:
        plain, times = step_ns(whole, args.steps), {}

        def runs(part):
            times[part] = runs_in(way, source, whole, f"{peak * part // 50}B", folder, args.steps)
            return times[part] is not None

        part = smallest(0, 50, runs)
        cells.append(f"{2 * part} %" + (f", {times[part] / plain:.2f}" if part in times else ""))
    return [f"`{name}` {BATCHES[name]}", f"{peak / 2**20:.0f}", *cells]


def grow(name, args, folder):
    base = max(1, BATCHES[name] // 4)
    peak, whole = call("memc", "estimate", *model(name, base))["peak_bytes"], folder / "whole.plan"

    def ns(way, batch):
        source = model(name, batch)
        if way in POLICIES:
            compiled(whole, *source, "--no-mem-rewrite")
        return runs_in(way, source, whole, f"{peak}B", folder, args.steps)

    cells = []
    for way in args.ways:
        compiled(whole, *model(name, base), "--no-mem-rewrite")
        plain, times = step_ns(whole, args.steps), {}
        size = lambda eighths: base * eighths // 8

        def runs(less):
            times[less] = ns(way, size(64 - less))
            return times[less] is not None

        # Steps take longer with the batch; beyond eight times it is not looked for.
        less = smallest(-1, 56, runs)
        batch = size(64 - less)
        slower = f", {times[less] / batch * base / plain:.2f}" if less in times else ""
        cells.append(f"{'at least ' if less == 0 else ''}{batch / base:.2f}{slower}")
    return [f"`{name}` {base}", f"{peak / 2**20:.0f}", *cells]


def extremes(of, args):
    print("| network, batch | unplanned, MiB | " + " | ".join(args.ways) + " |")
    print("|---|---:|" + "---:|" * len(args.ways))
    for name in args.networks:
        with tempfile.TemporaryDirectory() as folder:
            print("| " + " | ".join(of(name, args, Path(folder))) + " |", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(BATCHES), metavar="NETWORK")
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--least", action="store_true")
    parser.add_argument("--grow", action="store_true")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="of --least and --grow")
    args = parser.parse_args()
    if args.least or args.grow:
        return extremes(least if args.least else grow, args)
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
