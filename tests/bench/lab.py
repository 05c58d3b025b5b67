"""Problems and plans by `memc`, each made once: results are kept in target/papers under what they depend on.

A plan is kept by the problem's content, its arguments and the program's hash. With `fresh`, only these planners' plans
must be of this very program; others may be of an earlier one. Problems are those of the present program alone.
"""

import hashlib
import json
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / "release" / "memc"
KEPT = ROOT / "target" / "papers"
# What the devices of the papers lend to their own context.
RESERVE = 512 << 20


def digest(data):
    return hashlib.blake2b(data, digest_size=10).hexdigest()


class Lab:
    def __init__(self, fresh=None, limit=900, skip=()):
        self.fresh, self.limit, self.skip = fresh, limit, skip
        self.program = digest(BIN.read_bytes())
        self.problems = KEPT / self.program
        for folder in KEPT.glob("*/"):
            if folder != self.problems:
                shutil.rmtree(folder)
        self.problems.mkdir(parents=True, exist_ok=True)
        # A copy, so that building meanwhile changes nothing.
        self.bin = self.problems / "memc"
        if not self.bin.exists():
            shutil.copy2(BIN, self.bin)
        self.log = KEPT / "plans.jsonl"
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.plans, self.any, self.used = {}, {}, {}
        for row in map(json.loads, lines):
            self.plans[row["key"], row["program"]] = self.any[row["key"]] = row

    def run(self, *command):
        """Output and CPU seconds of a command, which may find a budget infeasible; no output after the limit."""
        # CPU time of all threads: what others run on the machine stops no plan.
        bounded = lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(self.limit), int(self.limit) + 5))
        spent = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        before = spent()
        command = [str(part) for part in command]
        done = subprocess.run([self.bin, *command], capture_output=True, text=True, cwd=ROOT, preexec_fn=bounded)
        if done.returncode == -signal.SIGXCPU:
            return None, self.limit
        if done.returncode not in (0, 4):
            sys.exit(f"memc {' '.join(command)}: {done.stderr.strip()}")
        return done.stdout, spent() - before

    def posed(self, network, batch, device, optimizer, rewrite=False, flags=()):
        """Arguments that pose a network's training step."""
        loss = "output" if network == "inception_v3" else "cross-entropy:axis=1" if network.startswith("bert") else "cross-entropy"
        args = [f"models/zoo/{network}.onnx", "--loss", loss, "--optimizer", optimizer, "--device", device, "--no-fuse"]
        return args + ["--dim", f"batch={batch}", *([] if rewrite else ["--no-mem-rewrite"]), *flags]

    def problem(self, network, batch, device, optimizer, rewrite=False, edit=None, flags=()):
        """File of a training step's problem; `edit` changes it (and must change with its name)."""
        args = self.posed(network, batch, device, optimizer, rewrite, flags)
        key = digest(repr((args, edit and edit.__name__)).encode())
        path = self.problems / f"{network}.{batch}.{device}.{key}.json"
        if not path.exists():
            made, _ = self.run("export-problem", *args)
            made = json.dumps(edit(json.loads(made))) if edit else made
            # The whole file or none.
            part = path.with_suffix(".part")
            part.write_text(made)
            part.rename(path)
        return path

    def plan(self, problem, planner, budget, *flags):
        """What `memc plan --json` says, with `cpu_s`; nothing but that after the time limit."""
        key = digest(problem.read_bytes()) + f" {planner} {budget} {' '.join(flags)}"
        row = self.plans.get((key, self.program))
        if row is None and self.fresh is not None and planner not in self.fresh:
            row = self.any.get(key)
        if row is None and problem.name.split(".")[0] in self.skip:
            return {"feasible": None, "skipped": True}
        if row is None:
            out, seconds = self.run("plan", problem, "--gpu-mem", f"{budget}B", "--planner", planner, "--json", *flags)
            report = json.loads(out) if out else {"feasible": None}
            row = {"key": key, "program": self.program, "report": report | {"cpu_s": round(seconds, 1)}}
            self.plans[key, self.program] = self.any[key] = row
            with self.log.open("a") as log:
                log.write(json.dumps(row) + "\n")
            print(f"{problem.name} {planner} {budget / 2**20:.0f} MiB: {show(row['report'])}", file=sys.stderr)
        self.used[key] = row
        return row["report"]

    def curve(self, problem, planner, budget, effort):
        """The course of a planner's search, with the ideal step: what it found when, and its population over time."""
        course = problem.with_suffix(".curve")
        out, _ = self.run("plan", problem, "--gpu-mem", f"{budget}B", "--planner", planner, "--effort", effort, "--curve", course, "--json")
        return json.loads(course.read_text()) | {"ideal_ns": json.loads(out)["ideal_ns"]}

    def explained(self, problem, planner, budget):
        """What `memc explain --json` says of a plan: every tensor's absences, and what the kernels wait for."""
        path = problem.with_suffix(f".{planner}.{budget}.explained")
        if not path.exists():
            path.write_text(self.run("explain", problem, "--gpu-mem", f"{budget}B", "--planner", planner, "--json")[0])
        return json.loads(path.read_text())

    def timeline(self, network, batch, device, optimizer, planner, budget):
        """When kernels run and when copies, in one step: spans of (start, end) in microseconds, and the step's length."""
        path = self.problems / f"{network}.{batch}.{device}.{digest(optimizer.encode())}.{planner}.{budget}.trace"
        if not path.exists():
            plan = path.with_suffix(".plan")
            # The budget of a plan has the device's reserve in it.
            args = ["--planner", planner, "--gpu-mem", f"{budget + RESERVE}B", "-o", plan]
            self.run("compile", *self.posed(network, batch, device, optimizer), *args)
            if not plan.exists():
                return None
            self.run("trace", plan, "-o", path)
            plan.unlink()
        trace = json.loads(path.read_text())
        spans = {"launch": [], "copy": []}
        for e in trace["traceEvents"]:
            if e.get("cat") in spans:
                spans[e["cat"]].append((e["ts"], e["ts"] + e["dur"]))
        return spans | {"step": trace["otherData"]["step_ns"] / 1e3}

    def unplanned(self, problem):
        """Bytes of the arena that a step needs without a plan."""
        return self.kept(problem)["unplanned_peak_bytes"]

    def kept(self, problem):
        """The report of a step that keeps everything; it has the smallest budget with any plan, too."""
        return self.plan(problem, "keep-all", 1 << 50)

    def least(self, problem, planner, good=lambda r: r["feasible"], within=200):
        """The least budget found by bisection with a good plan, to within a part of what no plan needs."""
        peak = self.unplanned(problem)
        low, high = 0, peak
        while high - low > peak // within:
            middle = (low + high) // 2
            low, high = (low, middle) if good(self.plan(problem, planner, middle)) else (middle, high)
        return high

    def allocation(self, problem, algorithm):
        """What `memc alloc --json` says of a problem with every tensor on the device."""
        path = problem.with_suffix(".csv")
        if not path.exists():
            path.write_text(lives(json.loads(problem.read_text())))
        out, _ = self.run("alloc", path, "--algorithm", algorithm, "--json")
        return json.loads(out)


def lives(problem):
    """The live ranges of a step that keeps everything, with its workspaces, in the form that `memc alloc` reads."""
    ops, spans = problem["ops"], {}
    for i, op in enumerate(ops):
        for t in op["reads"] + op["writes"]:
            spans.setdefault(t, [i, i])[1] = i + 1
    lines = ["id,lower,upper,size"]
    aligned = lambda size: -(-max(size, 1) // 64) * 64
    for t in problem["tensors"]:
        if t["id"] in spans:
            low, high = spans[t["id"]]
            low, high = {"transient": (low, high), "input": (0, high), "persistent": (0, len(ops))}[t["kind"]]
            lines.append(f"{t['id']},{low},{high},{aligned(t['bytes'])}")
    lines += [f"w{i},{i},{i + 1},{aligned(op['workspace_bytes'])}" for i, op in enumerate(ops) if op["workspace_bytes"]]
    return "\n".join(lines) + "\n"


def show(report):
    if report["feasible"] is None:
        return f"no plan in {report['cpu_s']:.0f} s"
    if not report["feasible"]:
        return f"infeasible ({report['cpu_s']:.1f} s)"
    return f"{report['step_over_ideal']:.4f} of the unplanned step ({report['cpu_s']:.1f} s)"


def largest(start, holds):
    """The largest integer found at which `holds`, near `start` first, within one in fifty."""
    low = max(1, start)
    while low and not holds(low):
        low = low * 4 // 5
    if not low:
        return 0
    high = low * 5 // 4 + 1
    while holds(high):
        low, high = high, high * 5 // 4 + 1
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
