"""Training on text of changing lengths: one plan with buckets beside plans of the longest length.

Usage: python3 tests/bench/buckets.py [--sizes 64,128,256,512] [--shares 1,0.6,0.4] [--steps 24] [--table]
Needs: a release build of memc and memrun; numpy and onnx; an idle machine. Prints one JSON object a share, or a table.

The model is that of models/gen/text.py, by default of 4 layers with 256 features, and AdamW; batches of 2 sequences
have lengths between the least and the largest size, logarithmically uniform. `alone` is the plan of the largest size
alone, whose steps pad all data to it. `arena` is the device arena of the plan with buckets over the budget, and of
`alone` over it; `host` likewise in MiB. `model` has for each bucket the modelled step over that of `alone`, and the
bytes that it swaps. `run` is the time of all steps on the CPU device over that of `alone`, in pairs; `switches` is the
number of steps that take another bucket than the step before. `equal`: the plan with buckets was compared with the
unplanned step at every step, and its final states are those of every other share.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from kills import BIN, ROOT, run, tensors

BATCH, VOCABULARY = 2, 5000
PAIRS = 3


def memc(*args):
    return json.loads(run(BIN / "memc", *args, "--json").stdout)


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.sizes = [int(size) for size in args.sizes.split(",")]
        self.model = folder / "text.onnx"
        subprocess.run(
            [sys.executable, ROOT / "models/gen/text.py", "--layers", str(args.layers), "--width", str(args.width), "--heads", "8",
             "--vocabulary", str(VOCABULARY), "--positions", str(max(self.sizes)), "-o", self.model], check=True)
        self.flags = [self.model, "--loss", "cross-entropy:axis=-1", "--optimizer", "adamw", "--device", args.device,
                      "--dim", f"batch={BATCH}"]
        rng = random.Random(1)
        low, high = min(self.sizes), max(self.sizes)
        self.lengths = [int(low * (high / low) ** rng.random()) for _ in range(args.steps)]
        self.data(folder / "short", self.lengths, None)
        self.data(folder / "long", self.lengths, high)

    def data(self, folder, lengths, padded):
        rng = np.random.default_rng(2)
        for name in ("input_ids", "labels"):
            (folder / name).mkdir(parents=True)
        for step, length in enumerate(lengths):
            tokens = rng.integers(0, VOCABULARY, (BATCH, length + 1))
            for name, array, pad in (("input_ids", tokens[:, :-1], 0), ("labels", tokens[:, 1:], -100)):
                if padded:
                    array = np.pad(array, ((0, 0), (0, padded - length)), constant_values=pad)[None]
                np.save(folder / name / f"{step:04}.npy", np.ascontiguousarray(array))

    def compile(self, plan, seq, budget):
        path = self.folder / plan
        return path, memc("compile", *self.flags, "--dim", f"seq={seq}", "--gpu-mem", budget, "-o", path)

    def memrun(self, plan, data, *more):
        folder = self.folder / data
        inputs = [f"--input={name}=@{folder / name}" for name in ("input_ids", "labels")]
        pads = ["--pad", "input_ids=0", "--pad", "labels=-100"] if data == "short" else []
        out = run(BIN / "memrun", plan, *inputs, *pads, "--steps", self.args.steps, "--json", *more).stdout
        return json.loads(out)

    def share(self, share, states):
        estimate = memc("estimate", *self.flags, "--dim", f"seq={max(self.sizes)}")
        budget = max(int(estimate["peak_bytes"] * share), estimate["smallest_feasible_bytes"])
        alone, single = self.compile("alone.plan", max(self.sizes), f"{budget}B")
        plan, made = self.compile("buckets.plan", self.args.sizes, f"{budget}B")
        saved = self.folder / f"{share}.safetensors"
        self.memrun(plan, "short", "--verify", "--save", saved)
        states.append(tensors(saved))
        total = lambda plan, data: sum(self.memrun(plan, data)["step_ns"][1:])
        pairs = [] if self.args.no_run else [total(plan, "short") / total(alone, "long") for _ in range(PAIRS)]
        fit = [min(size for size in self.sizes if size >= length) for length in self.lengths]
        model = {
            bucket["name"]: {"step": round(bucket["step_ns"] / single["step_ns"], 3),
                             "swapped_mib": (bucket["swap_out_bytes"] + bucket["swap_in_bytes"]) >> 20}
            for bucket in made["buckets"]
        }
        arenas = [round(one["arena_bytes"] / (budget - one["reserve_bytes"]), 4) for one in (made, single)]
        return {"share": share, "budget": budget, "arena": arenas, "host_mib": [one["host_bytes"] >> 20 for one in (made, single)],
                "model": model, "run": round(statistics.median(pairs), 3) if pairs else None,
                "switches": sum(a != b for a, b in zip(fit, fit[1:])), "equal": all(one == states[0] for one in states)}


def table(rows):
    names = list(rows[0]["model"])
    print("| budget | arena, alone | host, alone | " + " | ".join(names) + " | run |\n|" + "---|" * (len(names) + 4))
    for row in rows:
        cells = [f"{row['model'][name]['step']:.2f}, {row['model'][name]['swapped_mib']} MiB" for name in names]
        arena, host = (", ".join(map(str, row[key])) for key in ("arena", "host_mib"))
        print(f"| {row['share']} | {arena} | {host} MiB | " + " | ".join(cells) + f" | {row['run']} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="64,128,256,512")
    parser.add_argument("--shares", default="1,0.6,0.4")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--no-run", action="store_true", help="leave the times on the CPU device out")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    states, rows = [], []
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(args, Path(name))
        for share in map(float, args.shares.split(",")):
            rows.append(bench.share(share, states))
            if not args.table:
                print(json.dumps(rows[-1]), flush=True)
    if args.table:
        table(rows)


if __name__ == "__main__":
    main()
