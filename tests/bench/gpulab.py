"""What gpu.py's stages share: the models, commands within a time limit, the file of results, states, profiles and plans."""
import array
import concurrent.futures
import hashlib
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

BINARIES = ["memrun", "memc"]
# Seconds that any one command may take.
COMMAND = 150
MOMENTUM = "momentum:lr=0.01,momentum=0.9"
# Samples or tokens of a sample, by network, that throughput is counted in.
TOKENS = {"bert_base": 384, "bert_large": 384, "gpt2_small": 1024}


def zoo(net, batch, optimizer):
    """Path below models/, options of memc, samples and tokens of a step."""
    loss = "output" if net == "inception_v3" else "cross-entropy:axis=1" if net.startswith("bert") else "cross-entropy"
    options = [f"--dim=batch={batch}", f"--loss={loss}", f"--optimizer={optimizer}"]
    return {"file": f"zoo/{net}.onnx", "options": options, "net": net, "batch": batch, "units": batch * TOKENS.get(net, 1)}


def artifact(name):
    return {"file": f"{name}/training_model.onnx", "options": [], "net": name, "batch": None, "units": None}


SMALL = {name: artifact(name) for name in ("mlp_s", "cnn_bn", "resnet_tiny", "bert_tiny_nodrop", "bert_tiny_dropout", "lstm_sgd")}
# The models of each stage, by the name that plans and results have. Without Adam in `bits`, so that the states of a first step
# are near the CPU's: Adam makes steps of the whole rate of rounding noise.
FULL = {
    "bits": SMALL | {"resnet18-8": zoo("resnet18", 8, MOMENTUM), "resnet50-8": zoo("resnet50", 8, MOMENTUM),
                     "bert_base-2": zoo("bert_base", 2, MOMENTUM)},
    "accuracy": {f"{net}-{batch}": zoo(net, batch, optimizer) for net, batch, optimizer in (
        ("resnet50", 64, MOMENTUM), ("bert_base", 16, "adamw"), ("resnet18", 64, MOMENTUM), ("gpt2_small", 4, "adamw"),
        ("inception_v3", 32, MOMENTUM), ("vit_b_16", 32, "adamw"))},
    "throughput": {f"{net}-{batch}": zoo(net, batch, optimizer) for net, batch, optimizer in (
        ("resnet50", 64, MOMENTUM), ("bert_base", 16, "adamw"), ("gpt2_small", 4, "adamw"))},
    # Arenas of the unplanned step, as `memc estimate` has them on the h100 profile: 23.7, 22.2, 18.2 and 19.9 GiB; modelled steps of
    # 0.43, 0.54, 1.4 and 0.40 s. A host of 64 GiB is enough, and parameters are few enough to be drawn in half a minute (one
    # core does 20 million a second, so that SwapAdvisor's wider networks would take minutes for each run).
    "ideal": {f"{net}-{batch}": zoo(net, batch, optimizer) for net, batch, optimizer in (
        ("resnet152", 256, MOMENTUM), ("bert_large", 32, "adamw"), ("inception_v4_4", 64, "sgd"), ("nasnet_a_r25", 16, "sgd"))},
}
QUICK = {
    "bits": {"mlp_s": SMALL["mlp_s"], "cnn_bn": SMALL["cnn_bn"], "resnet20_cifar10-4": zoo("resnet20_cifar10", 4, MOMENTUM)},
    "accuracy": {"resnet20_cifar10-32": zoo("resnet20_cifar10", 32, MOMENTUM)},
    "throughput": {"resnet50-1": zoo("resnet50", 1, MOMENTUM)},
    "ideal": {"resnet20_cifar10-64": zoo("resnet20_cifar10", 64, MOMENTUM)},
}
# Percent of the arena of the unplanned step, of plans that `prepare` makes.
SHARES = {"bits": [100, 60, 40], "accuracy": [100], "throughput": [100], "ideal": [100, 50, 25, 12.5]}


def file_digest(*paths):
    text = hashlib.sha256()
    for path in paths:
        text.update(path.read_bytes())
    return text.hexdigest()[:16]


def load(path, again=False):
    """The rows of a file of results, without a line that was cut off, and without what was skipped where it is tried again."""
    rows = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines() if line.endswith("}")]
    last = len(rows) if again else max((n for n, row in enumerate(rows) if "run" in row), default=0)
    return [row for n, row in enumerate(rows) if n >= last or "skipped" not in row]


class OutOfTime(Exception):
    """The stage's time, or that of the run, is over."""


def tensors(path):
    """The tensors of a safetensors file: type and bytes by name."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + length:]
    return {n: (t["dtype"], body[t["data_offsets"][0]:t["data_offsets"][1]]) for n, t in header.items()}


def digest(states):
    text = hashlib.sha256()
    for name in sorted(states):
        text.update(name.encode())
        text.update(states[name][1])
    return text.hexdigest()[:16]


def difference(states, others, most=20_000):
    """How far f32 states are from others: the largest difference relative to 1 and the number, the largest norm of a state's
    difference over the other's norm, and whose they are. Of a large state elements at equal distances count, about `most`."""
    element, norm = (0.0, ""), (0.0, "")
    for name, (dtype, data) in states.items():
        if dtype == "F32":
            mine, other = (array.array("f", bytes(d)) for d in (data, others[name][1]))
            step = max(1, len(mine) // most)
            pairs = [(a, b) if a == a else (math.inf, b) for a, b in zip(mine[::step], other[::step])]
            element = max(element, (max((abs(a - b) / (1 + abs(b)) for a, b in pairs), default=0.0), name))
            apart, whole = (math.sqrt(sum(x * x for x in xs)) for xs in ([a - b for a, b in pairs], [b for _, b in pairs]))
            # Rounding noise is as large as what it is noise of where that is zero.
            norm = max(norm, (apart / (whole + 1e-7 * math.sqrt(len(pairs) or 1)), name))
    return element, norm


class Lab:
    """A prepared folder on a device, and the file of results, whose cells are not measured again."""

    def __init__(self, args):
        self.folder, self.device, self.steps = pathlib.Path(args.folder).resolve(), args.device, args.steps
        self.out = pathlib.Path(args.out) if args.out else None
        if self.out:
            self.out.mkdir(parents=True, exist_ok=True)
        self.end = self.stage_end = time.monotonic() + args.limit
        self.gpu, self.tunes = self.device.startswith("cuda"), None
        self.prepared = json.loads((self.folder / "plans.json").read_text())
        # memrun finds CUDA's libraries among this Python's wheels, too.
        os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
        for name in BINARIES:
            os.chmod(self.folder / name, 0o755)
        self.results = self.folder / "results.jsonl"
        self.rows = load(self.results, again=True) if self.results.exists() else []
        programs = file_digest(*(self.folder / name for name in [*BINARIES, "plans.json"]))
        about = {"device": self.device, "steps": self.steps, "programs": programs}
        if any(row["run"] != about for row in self.rows if "run" in row):
            raise SystemExit(f"{self.results} is of other programs, plans, steps or another device: move it away")
        devices, _ = self.call(self.folder / "memrun", "devices", "--json")
        self.say(run=about, devices=json.loads(devices or "null"))

    def say(self, **row):
        self.rows.append(row)
        line = json.dumps(row)
        print(line, flush=True)
        with self.results.open("a") as to:
            to.write(line + "\n")
        if self.out:
            shutil.copy(self.results, self.out / "results.jsonl")

    def cell(self, stage, name, measure):
        """The row of a cell: that of an earlier run, or what `measure` returns now."""
        for row in self.rows:
            if (row.get("stage"), row.get("cell")) == (stage, name):
                return row
        if time.monotonic() > self.stage_end:
            raise OutOfTime
        self.say(stage=stage, cell=name, **measure())
        return self.rows[-1]

    def done(self, stage, names):
        known = {row.get("cell") for row in self.rows if row.get("stage") == stage}
        return known.issuperset(names)

    def call(self, *line):
        """Standard output of a command, and what went wrong."""
        left = self.stage_end - time.monotonic()
        try:
            ran = subprocess.run([str(a) for a in line], capture_output=True, text=True, timeout=max(1, min(COMMAND, left)))
        except subprocess.TimeoutExpired as error:
            if left < COMMAND:
                raise OutOfTime from error
            return None, {"error": f"stopped after {COMMAND} s"}
        if ran.returncode != 0:
            return ran.stdout, {"error": (ran.stderr.strip() or ran.stdout.strip())[-2000:], "exit_code": ran.returncode}
        return ran.stdout, None

    def memrun(self, plan, device, *more, steps=None):
        """A row about a run: losses and times."""
        start = time.monotonic()
        out, wrong = self.call(self.folder / "memrun", self.folder / plan, "--device", device, "--steps", steps or self.steps,
                               "--json", "--no-progress", *more)
        if wrong:
            return wrong
        said = json.loads(out)
        # The first step warms up, on a GPU the second one too: it is the first of a graph.
        times = said["step_ns"][2:] or said["step_ns"]
        return {"step_ns": statistics.median(times), "fastest_ns": min(times), "losses": said["losses"],
                "start_s": round(time.monotonic() - start - sum(said["step_ns"]) / 1e9, 2)}

    def states(self, plan, device, *more, steps=None):
        """A row about a run, and its states."""
        saved = self.folder / "states.safetensors"
        row = self.memrun(plan, device, "--save", saved, *more, steps=steps)
        if "error" in row:
            return row, None
        states = tensors(saved)
        saved.unlink()
        return row, states

    def models(self, stage):
        """The models of a stage with their plans, by share."""
        found = {}
        for plan in self.prepared["plans"]:
            if stage in plan["stages"]:
                found.setdefault(plan["model"], {})[plan["share"]] = plan
        return {name: (self.prepared["models"][name], plans) for name, plans in found.items()}

    def compiled(self, model, profile, plan, budget=None):
        """A row about a plan that is made here."""
        limit = ["--gpu-mem", f"{budget}B"] if budget else []
        out, wrong = self.call(self.folder / "memc", "compile", self.folder / pathlib.Path(model["file"]).name, *model["options"],
                               "--device", profile, "-o", self.folder / plan, "--json", *limit)
        if wrong:
            said = json.loads(out) if wrong.get("exit_code") == 4 else {}
            return {"infeasible": said["smallest_feasible_bytes"]} if said else wrong
        return {"plan": plan, **kept(json.loads(out))}

    def tune(self, plan, precision):
        """Lets a plan have the algorithms of libraries that are measured to be the fastest, where this memrun can."""
        if self.tunes is None:
            self.tunes = self.gpu and self.call(self.folder / "memrun", "tune", "--help")[1] is None
        if self.tunes:
            self.call(self.folder / "memrun", "tune", self.folder / plan, "--device", self.device, *precision)

    def profile(self, name, plan, *precision):
        """The measured profile of a model, made once: of the plan for the built-in profile, and of the one for what that measured,
        since other times may choose other kernels. The file, and what went wrong."""
        model, stem = self.prepared["models"][name], self.folder / "".join([name, *precision])
        path = pathlib.Path(f"{stem}.profile.json")
        parts = [f"{stem}.{n}.json" for n in (1, 2)]
        if path.exists():
            return path, None
        for n, part in enumerate(parts):
            if n > 0:
                made = self.compiled(model, parts[0], f"{stem.name}.measured.plan")
                if "plan" not in made:
                    return None, made
                plan = made["plan"]
            self.tune(plan, precision)
            _, wrong = self.call(self.folder / "memrun", "profile", self.folder / plan, "--device", self.device, "-o", part,
                                 "--steps", 7, *precision)
            if wrong:
                return None, wrong
        _, wrong = self.call(self.folder / "memc", "fit-profile", *parts, "-o", path)
        return (None, wrong) if wrong else (path, None)

    def replanned(self, name, plan, caps, *precision):
        """Plans for the measured profile, with these bytes of arena: the profile, and a row for each, or one error for all.
        A cap that the unplanned step does not exceed has its plan."""
        model, stem = self.prepared["models"][name], "".join([name, *precision])
        profile, wrong = self.profile(name, plan["plan"], *precision)
        whole = wrong or self.compiled(model, profile, f"{stem}.unplanned.plan")
        if "plan" not in whole:
            return None, dict.fromkeys(caps, whole)
        reserve = whole["gpu_mem_bytes"] - whole["arena_bytes"]

        def one(cap):
            fits = cap >= whole["arena_bytes"]
            return whole if fits else self.compiled(model, profile, f"{stem}.{cap}.plan", reserve + cap)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            made = dict(zip(caps, pool.map(one, caps)))
        for path in sorted({row["plan"] for row in made.values() if "plan" in row}):
            self.tune(path, precision)
        return profile, made


def kept(compiled):
    """What the record keeps of what `memc compile --json` says."""
    return {key: compiled[key] for key in ("gpu_mem_bytes", "arena_bytes", "host_bytes", "swap_in_bytes", "recompute_ns")} | {
        "planned_ns": compiled["step_ns"]}
