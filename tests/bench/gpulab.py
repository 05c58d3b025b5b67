"""What gpu.py's stages share: the models, commands within a time limit, the file of results, states, profiles and plans."""
import array
import concurrent.futures
import fcntl
import glob
import hashlib
import json
import math
import os
import pathlib
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import time

import gpurows

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
    difference over the other's norm, whose they are, and how many states were compared. Of a large state elements at equal distances
    count, about `most`. What is finite on one side alone, or missing on one, is infinitely far."""
    element, norm, compared = (0.0, ""), (0.0, ""), 0
    for name in sorted({**states, **others}):
        (dtype, data), (_, beside) = states.get(name, ("F32", b"")), others.get(name, ("F32", b""))
        if dtype != "F32":
            continue
        mine, other = (array.array("f", bytes(d)) for d in (data, beside))
        if len(mine) != len(other):
            return (math.inf, name), (math.inf, name), compared
        step = max(1, len(mine) // most)
        pairs = [(a, b) for a, b in zip(mine[::step], other[::step]) if math.isfinite(a) or math.isfinite(b)]
        gaps = [abs(a - b) if math.isfinite(a - b) else math.inf for a, b in pairs]
        scales = [abs(b) if math.isfinite(b) else 0.0 for _, b in pairs]
        element = max(element, (max((gap / (1 + scale) for gap, scale in zip(gaps, scales)), default=0.0), name))
        apart, whole = (math.sqrt(sum(x * x for x in xs)) for xs in (gaps, scales))
        # Rounding noise is as large as what it is noise of where that is zero.
        norm = max(norm, (apart / (whole + 1e-7 * math.sqrt(len(pairs) or 1)), name))
        compared += 1
    return element, norm, compared


def search_libraries():
    """Lets memrun look for CUDA's libraries among the wheels of this Python, and in the usual toolkit."""
    folders = [found for folder in sys.path for found in sorted(glob.glob(f"{folder}/nvidia/*/lib"))]
    folders += glob.glob("/usr/local/cuda/lib64")
    said = os.environ.get("MEMRUN_CUDA_LIBS")
    if folders:
        os.environ["MEMRUN_CUDA_LIBS"] = os.pathsep.join(dict.fromkeys([*([said] if said else []), *folders]))


class Lab:
    """A prepared folder on a device, and the file of results, whose cells are not measured again."""

    def __init__(self, args):
        self.folder, self.device, self.steps = pathlib.Path(args.folder).resolve(), args.device, args.steps
        self.out, self.again = args.out and pathlib.Path(args.out), args.again
        if self.out:
            self.out.mkdir(parents=True, exist_ok=True)
        self.end, self.stage_end = time.monotonic() + args.limit, math.inf
        self.gpu, self.tunes, self.now = self.device.startswith("cuda"), None, set()
        self.prepared = json.loads((self.folder / "plans.json").read_text())
        self.lock = self.hold()
        search_libraries()
        for name in BINARIES:
            os.chmod(self.folder / name, 0o755)
        self.results = self.folder / "results.jsonl"
        self.rows = {}
        if self.results.exists():
            gpurows.mend(self.results)
            self.rows = gpurows.load(self.results)
        self.ran = about = self.about()
        # In the name of what is made here, so that another device or build takes none of it.
        self.tag = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:8]
        for row in list(self.rows.values()):
            if "run" in row and row["run"] != about:
                raise SystemExit(f"{self.results} is of another run ({gpurows.differing(row['run'], about)}): move it away")
        self.say(run=about)

    def hold(self):
        """A lock that this run has, and every command of it for as long as it runs, so that no other run is beside them."""
        lock = (self.folder / "lock").open("w")
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                if time.monotonic() > self.end:
                    raise SystemExit(f"another run, or a command that one left, is at work in {self.folder}") from None
                print(f"waiting for another run in {self.folder}, or a command that one left", file=sys.stderr, flush=True)
                time.sleep(5)

    def about(self):
        """What is measured on what: results that differ in it do not belong together."""
        said, wrong = self.call(self.folder / "memrun", "devices", "--json")
        if wrong:
            raise SystemExit(f"memrun cannot run here: {wrong['error'].splitlines()[-1]}")
        said = json.loads(said)
        libraries = {of["library"]: of.get("version", "found") if of["found"] else None for of in said["libraries"]}
        gpu = None
        if self.gpu:
            at = self.device if ":" in self.device else "cuda:0"
            gpu = next((gpu["name"] for gpu in said["gpus"] if gpu["device"] == at), None)
            why = said["no_gpu_because"] or f"there is no {at}"
            if gpu and libraries["NVRTC"] is None:
                gpu, why = None, next(f"NVRTC is missing; {of['remedy']}" for of in said["libraries"] if of["library"] == "NVRTC")
            if gpu is None:
                raise SystemExit(f"nothing can run on {self.device}: {why}")
        programs = file_digest(*(self.folder / name for name in [*BINARIES, "plans.json"]))
        return {"device": self.device, "gpu": gpu, "steps": self.steps, "programs": programs,
                "quick": self.prepared.get("quick", False), "libraries": libraries if self.gpu else {}}

    def say(self, **row):
        self.rows[gpurows.key(row)] = row
        line = json.dumps(row)
        print(line, flush=True)
        with self.results.open("a") as to:
            to.write(line + "\n")
        if self.out:
            shutil.copy(self.results, self.out / "results.jsonl")

    def known(self, stage, name):
        """The row of a cell, unless it is to be measured again: what was skipped, by every run."""
        row = self.rows.get(("cell", (stage, name)))
        again = row is not None and ("skipped" in row or self.again and "error" in row)
        return None if again and (stage, name) not in self.now else row

    def cell(self, stage, name, measure, **about):
        """The row of a cell: that of an earlier run, or what `measure` returns now, and what is known of it before."""
        row = self.known(stage, name)
        if row is not None:
            return row
        if time.monotonic() > self.stage_end:
            raise OutOfTime
        try:
            found = measure()
        except OutOfTime:
            raise
        except Exception as error:  # Whatever one cell meets, the others are measured.
            found = {"error": f"{type(error).__name__}: {error}"}
        self.now.add((stage, name))
        self.say(stage=stage, cell=name, **{**about, **found})
        return self.known(stage, name)

    def done(self, stage, names):
        return all(self.known(stage, name) is not None for name in names)

    def left(self, stage, names):
        """The cells that no run has measured."""
        rows = {name: self.rows.get(("cell", (stage, name))) for name in names}
        return [name for name, row in rows.items() if row is None or "skipped" in row]

    def keep(self, archive, pattern):
        """Packs files of the folder into the one for what is kept."""
        if self.out:
            part = self.folder / f"{archive}.part"
            with tarfile.open(part, "w:gz") as kept:
                for path in sorted(self.folder.glob(pattern)):
                    kept.add(path, path.name)
            shutil.move(part, self.out / archive)

    def call(self, *line):
        """Standard output of a command, and what went wrong: the command, its exit code and the end of what it said."""
        line = [str(a) for a in line]
        left = self.stage_end - time.monotonic()
        if left <= 0:
            raise OutOfTime
        # A group of its own, so that what it starts ends with it.
        group = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
        try:
            ran = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                   pass_fds=[self.lock.fileno()], **group)
        except OSError as error:
            return None, {"error": str(error), "exit_code": None, "command": shlex.join(line)}
        try:
            out, err = ran.communicate(timeout=min(COMMAND, left))
        except BaseException as error:
            os.killpg(ran.pid, signal.SIGKILL)
            ran.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            if left < COMMAND:
                raise OutOfTime from error
            return None, {"error": f"stopped after {COMMAND} s", "exit_code": None, "command": shlex.join(line)}
        if ran.returncode == 0:
            return out, None
        said = (err.strip() or out.strip() or f"said nothing, and ended with {ran.returncode}")[-2000:]
        return out, {"error": said, "exit_code": ran.returncode, "command": shlex.join(line)}

    def memrun(self, plan, device, *more, steps=None):
        """A row about a run: losses and times."""
        start = time.monotonic()
        out, wrong = self.call(self.folder / "memrun", self.folder / plan, "--device", device, "--steps", steps or self.steps,
                               "--synthetic", "--json", "--no-progress", *more)
        if wrong:
            return wrong
        said = json.loads(out)
        # The first step warms up, on a GPU the second one too: it is the first of a graph. Fewer steps are for their bits alone.
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
            _, wrong = self.call(self.folder / "memrun", "tune", self.folder / plan, "--device", self.device, *precision)
            if wrong:
                self.say(failure=f"{plan} is not tuned", **wrong)

    def profile(self, name, plan, *precision):
        """The measured profile of a model, made once: of the plan for the built-in profile, and of the one for what that measured,
        since other times may choose other kernels. The file, and what went wrong."""
        model, stem = self.prepared["models"][name], self.folder / "".join([name, *precision, f".{self.tag}"])
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
        # The whole file or none.
        fitted = path.with_suffix(".part")
        _, wrong = self.call(self.folder / "memc", "fit-profile", *parts, "-o", fitted)
        if wrong:
            return None, wrong
        fitted.replace(path)
        self.keep("profiles.tar.gz", f"*.{self.tag}.profile.json")
        return path, None

    def replanned(self, name, plan, caps, *precision):
        """Plans for the measured profile, with these bytes of arena: the profile, and a row for each, or one error for all.
        A cap that the unplanned step does not exceed has its plan."""
        model, stem = self.prepared["models"][name], "".join([name, *precision, f".{self.tag}"])
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
