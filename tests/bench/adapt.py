"""Plans that follow measured times: what measuring costs, and what the controller does about slow kernels.

Usage: python3 tests/bench/adapt.py [cost] [slow] [--model models/zoo/vgg11_cifar10.onnx] [--batch 2] [--share 0.4]
Needs: a release build of memc and memrun, nothing else; an idle machine. Prints one JSON object.

cost: `memrun` with `--measure` (one of 16 steps) beside `memrun` without, in turns; `ratio` has the mean times of
steps, with over without, of each pair of runs.
slow: a job trains on the CPU device under `memc serve --adapt`, with a profile measured before. From round 50 on
convolutions take three times as long. `seconds` is from that round until the jobs are planned with the new times, and
the faster plan is in service. `switched` says whether that is the new one. `over` is the modelled step of the plan that
is in service at the end over that of a plan made with true times, both by a profile that was measured with slow
convolutions from the start. `equal`: the states are those of `memrun` alone.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kills import BIN, ROOT, run, tensors

SLOW, FROM = "conv=3", 50
PAIRS, STEPS, EVERY = 9, 65, 4


def memc(*args):
    return run(BIN / "memc", *args).stdout


def memrun(*args):
    return json.loads(run(BIN / "memrun", *args, "--synthetic", "--json").stdout)


class Bench:
    def __init__(self, args, folder):
        self.folder, self.args = folder, args
        self.model = [args.model, "--loss", "cross-entropy", "--optimizer", "adamw", "--dim", f"batch={args.batch}"]
        self.budget = f"peak*{args.share * 100:g}%"
        self.base = folder / "base.json"
        plan = self.compile("cpu", folder / "first.plan")
        run(BIN / "memrun", "profile", plan, "-o", self.base, "--steps", "5")
        self.plan = self.compile(self.base, folder / "base.plan")

    def compile(self, device, to):
        memc("compile", *self.model, "--device", device, "--gpu-mem", self.budget, "-o", to)
        return to

    def cost(self):
        profile = self.folder / "measured.json"
        mean = lambda *more: statistics.mean(memrun(self.plan, "--steps", STEPS, *more)["step_ns"][1:])
        pairs = [(mean("--measure", profile), mean()) for _ in range(PAIRS)]
        ratios = sorted(a / b for a, b in pairs)
        return {"ratio": [round(r, 4) for r in ratios], "median": round(statistics.median(ratios), 4)}

    def slow(self):
        folder, steps = self.folder, self.args.steps
        peak = json.loads(memc("estimate", *self.model, "--device", self.base, "--json"))["peak_bytes"]
        socket, save = folder / "s", folder / "a.st"
        server = subprocess.Popen(
            [BIN / "memc", "serve", "--socket", socket, "--folder", folder / "jobs", "--device", self.base, "--adapt",
             "--gpu-mem", f"{int(peak * self.args.share)}B", "--measure-every", str(EVERY), "--slow", f"{SLOW}@{FROM}"],
            cwd=ROOT)
        ask = lambda *words: run(BIN / "memc", "job", *words, "--socket", socket, "--json", check=False)
        try:
            while ask("status").returncode:
                time.sleep(0.05)
            begun = ask("submit", "--job", f"a={self.model[0]}", *self.model[1:], "--synthetic", "--steps", steps, "--save", save)
            if begun.returncode:
                sys.exit(begun.stderr)
            seen = self.follow(ask)
        finally:
            server.terminate()
            server.wait()
        shutil.copy(folder / "jobs" / "jobs.plan", folder / "served.plan")
        true = folder / "true.json"
        memrun(self.plan, "--steps", 12, "--slow", f"{SLOW}@1", "--measure", true, "--measure-every", 1)
        ideal = self.compile(true, folder / "true.plan")
        of = lambda plan: json.loads(memc("trace", plan, "--device", true))["otherData"]["step_ns"]
        run(BIN / "memrun", self.plan, "--synthetic", "--steps", steps, "--save", folder / "alone.st")
        # A plan of one job has its name before each state; what is saved has not.
        equal = tensors(save) == tensors(folder / "alone.st")
        old, new, best = (of(plan) / 1e6 for plan in (self.plan, folder / "served.plan", ideal))
        times = {"old_ms": old, "served_ms": new, "true_ms": best, "over": new / best}
        return seen | {name: round(x, 3) for name, x in times.items()} | {"equal": equal}

    def follow(self, ask):
        """Times of rounds before and after, and seconds from the first slow round to a plan with the new times."""
        slow_at = found = None
        before = (0, 0)
        rounds = {"fast_ms": [], "slow_ms": [], "after_ms": []}
        while True:
            state = json.loads(ask("status").stdout)
            job, measured = state["jobs"][0], state["measured"]
            if job["status"] not in ("training", "stopping"):
                break
            if slow_at is None and job["step"] >= FROM:
                slow_at, before = time.time(), (measured["plans"], state["legs"])
            elif found is None and slow_at and measured["plans"] > before[0] and not state["planning"]:
                found = time.time()
            key = "fast_ms" if slow_at is None else "slow_ms" if found is None else "after_ms"
            rounds[key].append(job["round_ms"])
            time.sleep(0.1)
        medians = {key: round(statistics.median(x[2:] or x), 1) for key, x in rounds.items() if x}
        seconds = found and round(found - slow_at, 1)
        return medians | {"seconds": seconds, "plans": measured["plans"], "switched": state["legs"] > before[1], "status": job["status"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["cost", "slow"], choices=["cost", "slow"])
    parser.add_argument("--model", default="models/zoo/vgg11_cifar10.onnx")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.4)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(args, Path(name))
        print(json.dumps({part: getattr(bench, part)() for part in args.parts or ["cost", "slow"]}))


if __name__ == "__main__":
    main()
