"""Tests of gpu.py, with stand-ins for memc and memrun that answer at once: what is judged, and that a run that was cut off goes on.

Usage: python3 tests/bench/gpucheck.py
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import gpulab
import gpureport
import gpurows

GPU = pathlib.Path(__file__).with_name("gpu.py")
ON_GPU = {"device": "cuda", "gpu": "G", "steps": 5, "programs": "p", "quick": False, "libraries": {"cuBLASLt": "1", "cuDNN": "1"}}
DONE = {"complete": True, "cells": 1, "left": 0, "why": None}
# Answers as memrun does, with states that follow from the plan's model; a plan named `fails` is refused.
MEMRUN = f"""#!{sys.executable}
import json, os, struct, sys, time
line = sys.argv[1:]
if line[0] == "devices":
    print(json.dumps({{"gpus": [], "no_gpu_because": "there is no driver", "libraries": []}}))
    sys.exit()
time.sleep(float(os.environ.get("STAND_IN_SLEEPS", 0)))
if "fails" in line[0]:
    print("first line\\nthe last line", file=sys.stderr)
    sys.exit(7)
if "--save" in line:
    head = json.dumps({{"w": {{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}}}).encode()
    with open(line[line.index("--save") + 1], "wb") as to:
        to.write(struct.pack("<Q", len(head)) + head + struct.pack("<f", 1.5))
steps = int(line[line.index("--steps") + 1])
print(json.dumps({{"step_ns": [9, 9] + [1] * (steps - 2), "losses": [1.0] * steps}}))
"""


def cell(stage, name, **row):
    return {"stage": stage, "cell": name, **row}


def verdicts(stage, rows, about=ON_GPU, end=DONE):
    return [of["verdict"] for of in gpureport.judge(stage, rows, about, end)["criteria"].values()]


def bits(states="s", **row):
    ran = {"model": "m", "share": 100, "how": "", "losses": [1.0], "states": states}
    beside = {"cpu_steps": 5, "losses_compared": 5, "states_compared": 1, "loss_from_cpu": 0.0, "finite_alike": True, "norm_state": "w",
              "state_from_cpu": 0.0, "state": "w", "norm_from_cpu": 0.0}
    return [cell("bits", "m 100", **ran), cell("bits", "m 60", **{**ran, "states": states[:1]}),
            cell("bits", "m cpu", model="m", **{**beside, **row})]


def steps(models, budgets, error=0.01):
    return [cell("accuracy", f"{m} {b}", model=f"{m}", share=b, error_of_step=error) for m in range(models) for b in range(budgets)]


def peers(**per_s):
    rows = {"eager": (100, 10.0), "memrun": (100, 10.0), "half": (50, 9.9), "checkpoint": (50, 8.0), "save_on_cpu": (50, 2.0)}
    return [cell("throughput", f"{net} {who}", model=f"{net}-1", who="memrun" if who == "half" else who, share=share,
                 of=None if share == 100 else "memrun", **(per_s.get(who) or {"per_s": speed}))
            for net in gpureport.PEERS for who, (share, speed) in rows.items()]


class Verdicts(unittest.TestCase):
    def test_nothing_measured_meets_nothing(self):
        for stage in gpureport.STAGES:
            for end in (DONE, gpureport.ended(stage, [])):
                said = verdicts(stage, [], end=end)
                self.assertEqual(set(said), {"not run"}, stage)

    def test_bits(self):
        self.assertEqual(verdicts("bits", bits()), ["met", "met"])
        self.assertEqual(verdicts("bits", bits(states="other")), ["not met", "met"])
        self.assertEqual(verdicts("bits", bits(loss_from_cpu=1.0)), ["met", "not met"])
        self.assertEqual(verdicts("bits", bits(losses_compared=0)), ["met", "not met"])
        self.assertEqual(verdicts("bits", bits()[:2]), ["met", "not run"])
        self.assertEqual(verdicts("bits", bits(), end={**DONE, "complete": False, "why": "time"}), ["not run", "not run"])

    def test_without_a_gpu_only_bits_count_and_quick_plans_never(self):
        self.assertEqual(verdicts("bits", bits(), {**ON_GPU, "gpu": None, "device": "cpu"}), ["met", "not run"])
        for stage, rows in (("accuracy", steps(5, 3)), ("throughput", peers())):
            self.assertEqual(set(verdicts(stage, rows)), {"met"})
            self.assertEqual(set(verdicts(stage, rows, {**ON_GPU, "gpu": None})), {"not run"})
            self.assertEqual(set(verdicts(stage, rows, {**ON_GPU, "quick": True})), {"not run"})
        self.assertEqual(verdicts("bits", bits(states="other"), {**ON_GPU, "quick": True}), ["not met", "not run"])

    def test_the_page_has_the_wording_of_accuracy(self):
        page = " ".join(GPU.with_name("GPU.md").read_text().split())
        for text in gpureport.judge("accuracy", [], ON_GPU, DONE)["criteria"]:
            self.assertIn(f'"{text}"', page)

    def test_accuracy_takes_five_models_of_three_budgets(self):
        self.assertEqual(verdicts("accuracy", steps(5, 3)), ["met"])
        self.assertEqual(verdicts("accuracy", steps(8, 2)), ["not run"])
        self.assertEqual(verdicts("accuracy", steps(4, 3)), ["not run"])
        self.assertEqual(verdicts("accuracy", steps(5, 3) + steps(6, 3, -0.03)[-1:]), ["not met"])
        self.assertEqual(verdicts("accuracy", steps(5, 3) + [cell("accuracy", "x", model="x", share=1, error="")]), ["not met"])

    def test_throughput(self):
        self.assertEqual(verdicts("throughput", peers(memrun={"per_s": 9.0})), ["not met", "met", "met"] * 2)
        self.assertEqual(verdicts("throughput", peers(half={"infeasible": 1})), ["met", "not met", "not met"] * 2)
        self.assertEqual(verdicts("throughput", peers(checkpoint={"oom": ""}, save_on_cpu={"oom": ""})), ["met"] * 6)
        self.assertEqual(verdicts("throughput", peers(eager={"error": "it broke"})), ["not run", "met", "met"] * 2)
        self.assertEqual(verdicts("throughput", peers(half={"per_s": 8.0})), ["met", "not met", "not met"] * 2)
        rows = peers(**dict.fromkeys(("eager", "checkpoint", "save_on_cpu"), {"skipped": "PyTorch is not installed"}))
        self.assertEqual(verdicts("throughput", rows), ["not run", "met", "not run"] * 2)
        said = gpureport.judge("throughput", rows, ON_GPU, DONE)["criteria"].values()
        self.assertEqual(sum("because PyTorch is not installed" == of["detail"] for of in said), 4)
        without = {**ON_GPU, "libraries": {"cuBLASLt": "1", "cuDNN": None}}
        self.assertEqual(verdicts("throughput", peers(memrun={"per_s": 9.0}), without), ["not run", "met", "met"] * 2)

    def test_sanitizer(self):
        rows = lambda **row: [cell("sanitizer", tool, tool=tool, flags="", model="m", **row) for tool in ("memcheck", "racecheck")]
        self.assertEqual(verdicts("sanitizer", rows(found=0)), ["met", "met"])
        self.assertEqual(verdicts("sanitizer", rows(found=2, error="99")), ["not met", "not met"])
        self.assertEqual(verdicts("sanitizer", rows(found=0, error="memrun fails")), ["not run", "not run"])
        self.assertEqual(verdicts("sanitizer", rows(found=None, error="stopped")), ["not run", "not run"])

    def test_distance_of_states(self):
        pack = lambda *values: {"w": ("F32", gpulab.array.array("f", values).tobytes())}
        self.assertEqual(gpulab.difference(pack(1, 3), pack(1, 1))[0], (1.0, "w"))
        self.assertEqual(gpulab.difference(pack(1, float("nan")), pack(1, float("nan"))), ((0.0, "w"), (0.0, "w"), 1))
        for other in (pack(1), pack(1, float("nan")), {}):
            self.assertEqual(gpulab.difference(pack(1, 2), other)[0], (float("inf"), "w"))


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.results = self.folder / "results.jsonl"


class Files(InFolder):
    def refused(self, *rows, text=None):
        self.results.write_text(text if text is not None else "".join(json.dumps(row) + "\n" for row in rows))
        with self.assertRaises(SystemExit) as refused:
            list(gpureport.report(self.results))
        self.assertNotIn("\n", str(refused.exception))
        return str(refused.exception)

    def test_what_cannot_be_reported_is_one_line(self):
        self.assertIn("no results", self.refused(text=""))
        self.assertIn("no results", self.refused({"run": ON_GPU}))
        self.assertIn("line 1", self.refused(text='{"run": \n{}\n'))
        self.assertIn("not of `gpu.py run`", self.refused(text='{"a": 1}\n'))
        self.assertIn("gpu G and H", self.refused({"run": ON_GPU}, {"run": {**ON_GPU, "gpu": "H"}}, *bits()))
        self.assertIn("programs p and q", self.refused({"run": ON_GPU}, *bits(), {"run": {**ON_GPU, "programs": "q"}}))

    def test_a_line_that_was_cut_off_and_a_repeated_cell_do_no_harm(self):
        rows = [{"run": ON_GPU}, cell("bits", "m cpu", skipped="later"), {"run": ON_GPU}, *bits()]
        self.results.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"stage": "bi')
        self.assertEqual([row["cell"] for row in gpurows.load(self.folder).values() if "cell" in row], ["m 100", "m 60", "m cpu"])
        gpurows.mend(self.results)
        self.assertTrue(self.results.read_text().endswith("}\n"))
        self.assertIn("a run was cut off", "\n".join(gpureport.report(self.folder)))


class Runs(InFolder):
    def prepared(self, *plans):
        for name in gpulab.BINARIES:
            (self.folder / name).write_text(MEMRUN)
            (self.folder / name).chmod(0o755)
        listed = [{"plan": f"{name}.plan", "model": name, "share": share, "stages": ["bits"]} for name, share in plans]
        models = {name: gpulab.artifact(name) for name, _ in plans}
        (self.folder / "plans.json").write_text(json.dumps({"models": models, "plans": listed}))

    def start(self, *more, sleeps=0):
        line = [sys.executable, GPU, "run", self.folder, "--device", "cpu", "--only", "bits", *more]
        return subprocess.Popen(list(map(str, line)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "STAND_IN_SLEEPS": str(sleeps)})

    def cells(self):
        rows = [json.loads(line) for line in self.results.read_text().splitlines()]
        return [row["cell"] for row in rows if "cell" in row]

    def test_a_failure_is_recorded_and_stops_nothing(self):
        self.prepared(("fails", 100), ("m", 100))
        run = self.start()
        run.communicate()
        self.assertEqual((run.returncode, len(self.cells())), (1, 6))
        row = next(row for row in gpurows.load(self.folder).values() if row.get("model") == "fails")
        self.assertEqual((row["exit_code"], row["error"]), (7, "first line\nthe last line"))
        self.assertIn("memrun", row["command"])
        self.assertIn("the last line", "\n".join(gpureport.report(self.folder)))

    def test_the_limit_is_told_and_the_next_run_goes_on(self):
        self.prepared(("m", 100), ("n", 100))
        err = self.start("--limit", "0").communicate()[1]
        self.assertIn("left undone: bits (6 of 6 cells)", err)
        self.assertIn("The same command goes on", err)
        self.assertIn("complete: bits", self.start().communicate()[1])
        self.assertEqual(len(self.cells()), len(set(self.cells())))
        self.assertEqual(len(self.cells()), 6)

    def test_a_killed_run_goes_on_without_double_entries(self):
        self.prepared(("m", 100), ("n", 100))
        run = self.start(sleeps=0.3)
        until = time.monotonic() + 30
        while not (self.results.exists() and len(self.cells()) > 1) and time.monotonic() < until:
            time.sleep(0.05)
        run.send_signal(signal.SIGKILL)
        run.communicate()
        with self.results.open("a") as to:
            to.write('{"stage": "bits", "cell": "m 1')
        self.start().communicate()
        self.assertEqual(sorted(self.cells()), sorted(set(self.cells())))
        self.assertEqual(len(self.cells()), 6)
        self.assertEqual(verdicts("bits", list(gpurows.load(self.folder).values())), ["met", "not run"])

    def test_without_a_gpu_nothing_is_written(self):
        self.prepared(("m", 100))
        run = subprocess.run([sys.executable, GPU, "run", self.folder], capture_output=True, text=True)
        self.assertIn("nothing can run on cuda: there is no driver", run.stderr)
        self.assertFalse(self.results.exists())

    def test_other_programs_do_not_mix(self):
        self.prepared(("m", 100))
        self.start().communicate()
        self.prepared(("m", 100), ("n", 100))
        self.assertIn("is of another run (programs ", self.start().communicate()[1])


if __name__ == "__main__":
    unittest.main()
