"""Tests of gpu.py, with stand-ins for memc and memrun that answer at once: what is judged, and that a run that was cut off goes on.

Usage: python3 tests/bench/gpucheck.py
"""
import array
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import gpu
import gpudata
import gpuhost
import gpulab
import gpumodels
import gpureport
import gpurows
import gpustages

GPU = pathlib.Path(__file__).with_name("gpu.py")
ON_GPU = {"device": "cuda", "gpu": "G", "steps": 5, "programs": "p", "quick": False, "libraries": {"cuBLASLt": "1", "cuDNN": "1"}}
DONE = {"complete": True, "cells": 1, "left": 0, "why": None}
# Answers as memrun and memc do, with states that follow from the plan's model. The plan named `fails` is refused, and STAND_IN_WRONG
# names an argument with which memrun fails, or after a colon hangs, or says another loss.
PROGRAM = f"""#!{sys.executable}
import json, os, struct, sys, time
line = sys.argv[1:]
word, _, how = os.environ.get("STAND_IN_WRONG", "none").partition(":")
wrong = how or "fails" if word in line or word == "plain" and not {{"--check-memory", "--verify", "profile"}} & set(line) else ""
with open(os.environ.get("STAND_IN_LOG", os.devnull), "a") as log:
    log.write(json.dumps({{"line": line, "logs": os.environ.get("CUBLASLT_LOG_LEVEL")}}) + "\\n")
if line[0] == "devices":
    libraries = [{{"library": name, "found": True, "version": "1"}} for name in ("driver", "NVRTC", "cuBLASLt", "cuDNN")]
    gpu = os.environ.get("STAND_IN_GPU")
    print(json.dumps({{"gpus": [{{"device": "cuda:0", "name": gpu}}] if gpu else [], "libraries": libraries if gpu else [],
                      "no_gpu_because": None if gpu else "there is no driver"}}))
    sys.exit()
if "--help" in line:
    print("--host-mem --device")
    sys.exit()
if line[0] == "dump":
    feed, other = {{"kind": "data", "source": "x", "low": 0, "high": 3}}, {{"kind": "learning_rate"}}
    print(json.dumps({{"inputs": [{{"type": "i64[4]", "feed": feed}}, {{"type": "f32[]", "feed": other}}]}}))
    sys.exit()
if line[0] in ("compile", "fit-profile", "trace", "tune", "profile"):
    if "-o" in line:
        open(line[line.index("-o") + 1], "w").close()
    print(json.dumps({{"gpu_mem_bytes": 1000, "arena_bytes": 900, "host_bytes": 0, "swap_in_bytes": 0, "recompute_ns": 0, "step_ns": 1}}))
    sys.exit()
time.sleep(float(os.environ.get("STAND_IN_SLEEPS", 0)))
if "fails" in line[0] or wrong == "fails":
    print("first line\\nthe last line", file=sys.stderr)
    sys.exit(7)
if wrong == "hangs":
    print("about to hang", file=sys.stderr, flush=True)
    time.sleep(600)
if "--save" in line:
    head = json.dumps({{"w": {{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}}}).encode()
    with open(line[line.index("--save") + 1], "wb") as to:
        to.write(struct.pack("<Q", len(head)) + head + struct.pack("<f", 1.5))
steps = int(line[line.index("--steps") + 1])
losses = [1.0] * (steps - 1) + [2.0 if wrong == "lies" else 1.0]
print("a library says something")
refused = {{"op": "conv", "library": "cuDNN", "reason": "NOT_SUPPORTED", "operands": ["f32[2]", "f32[3]"],
           "workspace_asked_bytes": 2 << 20, "workspace_allowed_bytes": 1 << 20}}
print(json.dumps({{"step_ns": [9, 9] + [1] * (steps - 2), "losses": losses, "refused": [refused | {{"launches": 3}}]}}))
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
    """Rows of both networks. Names of what is measured at half begin with half_, and a dot stands for a plus."""
    rows = {"eager": 10.0, "memrun": 10.0, "default": 9.5, "default_nchw": 9.0, "half_memrun": 9.9, "half_eager": {"oom": ""},
            "half_checkpoint": 8.0, "half_save_on_cpu": 2.0, "half_default": {"oom": ""}, "half_default.checkpoint": 9.0,
            "half_default.save_on_cpu": 3.0}
    found = []
    for net in gpureport.PEERS:
        for name, speed in {**rows, **per_s}.items():
            half, who = name.startswith("half_"), name.removeprefix("half_").replace(".", "+")
            found.append(cell("throughput", f"{net} {name}", model=f"{net}-1", who=who, share=50 if half else 100, cap_bytes=None,
                              of="memrun" if half else None, **(speed if isinstance(speed, dict) else {"per_s": speed})))
    return found


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

    def test_smoke(self):
        rows = [cell("smoke", "environment"), cell("smoke", "m", alike=True, batches=2, first_other_step=None)]
        self.assertEqual(verdicts("smoke", rows), ["met", "met"])
        self.assertEqual(verdicts("smoke", [*rows, cell("smoke", "x", error="it hangs")]), ["not met", "met"])
        self.assertEqual(verdicts("smoke", [*rows, cell("smoke", "PyTorch", skipped="not there")]), ["not run", "met"])
        self.assertEqual(verdicts("smoke", [cell("smoke", "m", alike=False, batches=2, first_other_step=7)]), ["met", "not met"])
        self.assertEqual(verdicts("smoke", [cell("smoke", "m", alike=True, batches=0, first_other_step=None)]), ["met", "not run"])

    def test_throughput(self):
        same, defaults, half, same_cap, defaults_cap = range(5)

        def differ(*, to, at, rows, about=ON_GPU):
            """Criteria of both networks that are not met, or not run; all others are met."""
            self.assertEqual(verdicts("throughput", rows, about), [to if n in at else "met" for n in range(5)] * 2)

        differ(to="not met", at=[same, defaults], rows=peers(memrun=9.0, half_memrun=9.9))
        differ(to="not met", at=[defaults], rows=peers(default=11.0))
        differ(to="not met", at=[half, same_cap, defaults_cap], rows=peers(half_memrun={"infeasible": 1}))
        differ(to="not met", at=[half, same_cap, defaults_cap], rows=peers(half_memrun=8.0))
        differ(to="not met", at=[same_cap], rows=peers(half_eager=9.9))
        differ(to="not met", at=[defaults_cap], rows=peers(**{"half_default.checkpoint": 12.0}))
        differ(to="met", at=[], rows=peers(half_checkpoint={"oom": ""}, half_save_on_cpu={"oom": ""}))
        differ(to="not run", at=[same], rows=peers(eager={"error": "it broke"}))
        rows = peers(**{name: {"skipped": "PyTorch is not installed"} for name in (
            "eager", "default", "default_nchw", "half_eager", "half_checkpoint", "half_save_on_cpu", "half_default",
            "half_default.checkpoint", "half_default.save_on_cpu")})
        differ(to="not run", at=[same, defaults, same_cap, defaults_cap], rows=rows)
        said = gpureport.judge("throughput", rows, ON_GPU, DONE)["criteria"].values()
        self.assertEqual(sum("because PyTorch is not installed" == of["detail"] for of in said), 8)
        without = {**ON_GPU, "libraries": {"cuBLASLt": "1", "cuDNN": None}}
        differ(to="not run", at=[same, defaults], rows=peers(memrun=9.0), about=without)

    def test_a_network_without_channels_last_needs_no_row_of_it(self):
        rows = [row for row in peers() if row["who"] != "default_nchw" or not row["model"].startswith("bert")]
        self.assertEqual(set(verdicts("throughput", rows)), {"met"})

    def test_sanitizer(self):
        rows = lambda **row: [cell("sanitizer", tool, tool=tool, flags="", model="m", **row) for tool in ("memcheck", "racecheck")]
        self.assertEqual(verdicts("sanitizer", rows(found=0)), ["met", "met"])
        self.assertEqual(verdicts("sanitizer", rows(found=2, error="99")), ["not met", "not met"])
        self.assertEqual(verdicts("sanitizer", rows(found=0, error="memrun fails")), ["not run", "not run"])
        self.assertEqual(verdicts("sanitizer", rows(found=None, error="stopped")), ["not run", "not run"])

    def test_distance_of_states(self):
        pack = lambda *values: {"w": ("F32", array.array("f", values).tobytes())}
        self.assertEqual(gpudata.difference(pack(1, 3), pack(1, 1))[0], (1.0, "w"))
        self.assertEqual(gpudata.difference(pack(1, float("nan")), pack(1, float("nan"))), ((0.0, "w"), (0.0, "w"), 1))
        for other in (pack(1), pack(1, float("nan")), {}):
            self.assertEqual(gpudata.difference(pack(1, 2), other)[0], (float("inf"), "w"))


class Inputs(unittest.TestCase):
    def batches(self, kind, shape, limits):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.npy"
            gpudata.stack(path, kind, shape, limits, 20, "seed")
            data = path.read_bytes()
        at = 10 + int.from_bytes(data[8:10], "little")
        self.assertEqual(at % 64, 0)
        self.assertIn(f"'shape': (20, {', '.join(map(str, shape))})", data[:at].decode("latin1"))
        size = gpudata.size(kind, shape)
        self.assertEqual(len(data), at + 20 * size)
        return [data[n:n + size] for n in range(at, len(data), size)]

    def test_every_step_has_a_batch_of_its_own(self):
        for kind, shape, limits in (("f32", [2, 40_000], (0, 0)), ("i64", [8, 16], (5, 9)), ("bool", [64], (0, 0))):
            self.assertEqual(len(set(self.batches(kind, shape, limits))), 20, kind)
        numbers = array.array("q", b"".join(self.batches("i64", [8, 16], (5, 9))))
        self.assertEqual(set(numbers), {5, 6, 7, 8})

    def test_only_data_is_fed(self):
        feed = {"kind": "data", "source": "labels", "low": 0, "high": 10}
        dumped = {"inputs": [{"name": "y", "type": "i64[4]", "feed": feed}, {"name": "z", "type": "bf16[2,3]", "feed": feed},
                             {"name": "lr", "type": "f32[]", "feed": {"kind": "learning_rate"}}]}
        self.assertEqual(gpudata.inputs(dumped), [("labels", "i64", [4], (0, 10))])


class Nvml:
    """NVML of a GPU that works, and then rests."""
    busy = 90

    def nvmlDeviceGetClockInfo(self, at, kind, to):
        to._obj.value = {1: 1980 if self.busy else 345}[kind]
        return 0

    def nvmlDeviceGetMemoryInfo(self, at, to):
        to._obj.used = 3 << 30
        return 0

    def nvmlDeviceGetUtilizationRates(self, at, to):
        to._obj.gpu = self.busy
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, at, to):
        to._obj.value = 0x4 if self.busy else 0x1
        return 0

    def nvmlDeviceGetPowerUsage(self, at, to):
        return 3


class Host(unittest.TestCase):
    def test_the_clock_is_that_of_a_busy_gpu(self):
        meter = gpuhost.Meter.__new__(gpuhost.Meter)
        meter.nvml, meter.at, meter.seen = Nvml(), None, []
        for at, busy in enumerate((0, 90, 90, 0, 0, 0)):
            meter.nvml.busy = busy
            meter.seen.append((at, meter.now()))
        row = {"sm_mhz": 1980, "sm_mhz_least": 1980, "used_bytes": 3 << 30, "clock_held_by": ["power cap"]}
        self.assertEqual(meter.since(0), row)
        self.assertEqual(meter.since(3), {"sm_mhz": 345, "sm_mhz_least": 345, "used_bytes": 3 << 30})
        self.assertEqual(meter.since(9), {})

    def test_a_size_of_memory(self):
        self.assertEqual([gpu.binary(text) for text in ("112G", "64GiB", "0.5G")], [112 << 30, 64 << 30, 1 << 29])


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
    def prepared(self, *plans, stages=("bits",)):
        for name in gpulab.BINARIES:
            (self.folder / name).write_text(PROGRAM)
            (self.folder / name).chmod(0o755)
        for name, _ in plans:
            (self.folder / f"{name}.plan").touch()
        listed = [{"plan": f"{name}.plan", "model": name, "share": share, "stages": stages, "arena_bytes": 900, "gpu_mem_bytes": 1000,
                   "planned_ns": 1} for name, share in plans]
        models = {name: gpumodels.artifact(name) for name, _ in plans}
        (self.folder / "plans.json").write_text(json.dumps({"models": models, "plans": listed, "profile": "h100"}))

    def start(self, *more, only="bits", device="cpu", **variables):
        line = [sys.executable, GPU, "run", self.folder, "--device", device, "--only", only, *more]
        return subprocess.Popen(list(map(str, line)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "STAND_IN_LOG": str(self.folder / "log"), **variables})

    def cells(self):
        rows = [json.loads(line) for line in self.results.read_text().splitlines()]
        return [row["cell"] for row in rows if "cell" in row]

    def lines(self, word):
        """Calls of the stand-ins that have a word."""
        calls = map(json.loads, (self.folder / "log").read_text().splitlines())
        return [call for call in calls if word in call["line"]]

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
        run = self.start(STAND_IN_SLEEPS="0.3")
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

    def test_smoke_goes_on_after_what_fails_and_what_hangs(self):
        self.prepared(("cnn_bn", 100), ("cnn_bn", 40), ("other", 100))
        short = self.folder / "short.py"
        short.write_text(f"import sys; sys.path.insert(0, {str(GPU.parent)!r}); sys.argv[0] = {str(GPU)!r}\n"
                         "import gpu, gpusmoke; gpusmoke.STEP = 4; sys.exit(gpu.main())")
        for wrong, last in (("--verify", "the last line"), ("--check-memory:hangs", "stopped after 4 s")):
            self.results.unlink(missing_ok=True)
            line = [sys.executable, short, "run", self.folder, "--device", "cpu", "--only", "smoke"]
            subprocess.run(line, capture_output=True, env={**os.environ, "STAND_IN_WRONG": wrong, "STAND_IN_LOG": str(self.folder / "log")})
            rows = [row for row in gpurows.load(self.folder).values() if row.get("stage") == "smoke" and "cell" in row]
            self.assertEqual(len(rows), 9)
            failed = {row["cell"] for row in rows if "error" in row and row["cell"] != "PyTorch"}
            self.assertTrue(failed and failed < {row["cell"] for row in rows} - {"cnn_bn"}, failed)
            self.assertEqual({row["error"].splitlines()[-1] for row in rows if row["cell"] in failed}, {last})
            self.assertIn("about to hang" if "hangs" in wrong else "first line", "\n".join(gpureport.report(self.folder)))
        self.assertTrue(self.lines("--check-memory"))
        self.assertEqual({call["logs"] for call in self.lines("-o")}, {"1"})

    def test_other_losses_of_inputs_that_change_are_found(self):
        self.prepared(("cnn_bn", 100))
        self.start(only="smoke", STAND_IN_WRONG="--check-memory:lies").communicate()
        row = gpurows.load(self.folder)["cell", ("smoke", "another batch every step: cnn_bn")]
        self.assertEqual((row["alike"], row["first_other_step"], row["batches"]), (False, 20, 1))

    def test_where_the_usual_way_fails_nothing_else_is_measured(self):
        self.prepared(("cnn_bn", 100))
        run = self.start(only="smoke,bits", STAND_IN_WRONG="plain")
        self.assertIn("nothing else is measured", run.communicate()[1])
        self.assertEqual(run.returncode, 1)
        self.assertNotIn("bits", {row.get("stage") for row in gpurows.load(self.folder).values()})
        self.start(only="bits").communicate()
        self.assertIn("bits", {row.get("stage") for row in gpurows.load(self.folder).values()})

    def test_stages_run_in_the_order_of_their_weight(self):
        self.assertEqual(list(gpustages.STAGES)[:4], ["smoke", "profiles", "bits", "throughput"])
        self.assertEqual(list(gpustages.STAGES), list(gpureport.STAGES))
        first, more = (gpustages.throughput_cells("resnet50", stage) for stage in ("throughput", "caps"))
        self.assertTrue({("eager", 100), ("default", 100), ("memrun", 50), ("checkpoint", 50)} < set(first))
        self.assertEqual(len({*first, *more}), len(first) + len(more))

    def test_on_a_gpu_rows_tell_refused_kernels_and_runs_take_host_memory(self):
        self.prepared(("m", 100), ("m", 40), stages=["bits", "accuracy"])
        run = self.start("--host-mem", "9000G", only="bits,accuracy", device="cuda", STAND_IN_GPU="G")
        run.communicate()
        rows = [row for row in gpurows.load(self.folder).values() if "how" in row]
        self.assertEqual({row["refused"][0]["launches"] for row in rows}, {3})
        self.assertIn("| conv | cuDNN | NOT_SUPPORTED | 1 | 3 | 2.0 | 1.0 | f32[2] f32[3] |", "\n".join(gpureport.report(self.folder)))
        on_gpu = [call["line"] for call in self.lines("cuda") if "--steps" in call["line"]]
        self.assertTrue(on_gpu and all(f"{9000 << 30}B" in line for line in on_gpu))
        fed = [call["line"] for call in self.lines("--save")]
        self.assertTrue(fed and all(any(word.startswith("x=@") for word in line) for line in fed))
        compiled = [call["line"] for call in self.lines("compile")]
        self.assertTrue(compiled and all(("--gpu-mem" in line) != ("--no-mem-rewrite" in line) for line in compiled))

    def test_a_fresh_machine_goes_on_from_what_was_kept(self):
        self.prepared(("m", 100), ("n", 100))
        kept = self.folder / "kept"
        run = self.start("--out", kept, STAND_IN_SLEEPS="0.3")
        until = time.monotonic() + 30
        while not ((kept / "results.jsonl").exists() and len(self.cells()) > 1) and time.monotonic() < until:
            time.sleep(0.05)
        run.send_signal(signal.SIGKILL)
        run.communicate()
        before = [row["cell"] for row in gpurows.load(kept).values() if "cell" in row]
        self.results.unlink()
        err = self.start("--out", self.folder / "next", "--resume", kept).communicate()[1]
        self.assertIn("complete: bits", err)
        self.assertEqual(self.cells()[:len(before)], before)
        self.assertEqual(sorted(self.cells()), sorted(set(self.cells())))
        self.assertEqual(gpurows.load(self.folder / "next").keys(), gpurows.load(self.folder).keys())
        self.assertIn("### Verdicts", (self.folder / "next" / "report.md").read_text())

    def test_what_cannot_be_gone_on_from_costs_no_run(self):
        self.prepared(("m", 100))
        kept = self.folder / "kept"
        kept.mkdir()
        self.assertIn("nothing to go on from", self.start("--resume", kept).communicate()[1])
        self.results.rename(kept / "results.jsonl")
        self.prepared(("m", 100), ("n", 100))
        err = self.start("--resume", kept).communicate()[1]
        self.assertIn("this one begins anew", err)
        self.assertEqual(len(self.cells()), 6)

    def test_without_a_gpu_nothing_is_written(self):
        self.prepared(("m", 100))
        out = self.folder / "out"
        run = subprocess.run([sys.executable, GPU, "run", self.folder, "--out", out], capture_output=True, text=True)
        self.assertIn("nothing can run on cuda: there is no driver", run.stderr)
        self.assertIn("MemTotal", json.loads((out / "environment.json").read_text())["memory"])
        self.assertFalse(self.results.exists())

    def test_other_programs_do_not_mix(self):
        self.prepared(("m", 100))
        self.start().communicate()
        self.prepared(("m", 100), ("n", 100))
        self.assertIn("is of another run (programs ", self.start().communicate()[1])


if __name__ == "__main__":
    unittest.main()
