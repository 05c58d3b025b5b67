"""What gpu.py's stages share: commands within a time limit, the file of results, states, profiles and plans."""
import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import lzma
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
import threading
import time
import zlib

import gpudata
import gpuhost
import gpurows

BINARIES = ["memrun", "memc"]
# Seconds that a command may take, by its program or memrun's verb: about three times the longest that is expected. GPU.md has what.
LIMITS = {"memc": 100, "memrun": 120, "tune": 120, "profile": 120, "compute-sanitizer": 90, "gputorch.py": 90}
OTHERS = 30
# Plans that are made at a time.
AT_ONCE = 8
# Bytes of an input up to which each step gets a batch of its own. A larger one would measure how fast a file is read.
VARIED = 8 << 20


def file_digest(*paths):
    text = hashlib.sha256()
    for path in paths:
        text.update(path.read_bytes())
    return text.hexdigest()[:16]


class OutOfTime(Exception):
    """The stage's time, or that of the run, is over."""


def parsed(text):
    """The JSON object that a program printed, by itself or as the last line after what libraries say."""
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(next((line for line in reversed(text.splitlines()) if line.startswith("{")), text))


def limit_of(line):
    """Seconds that a command may take."""
    names = [pathlib.Path(word).name for word in line[:2]]
    return next((LIMITS[name] for name in reversed(names) if name in LIMITS), OTHERS)


class Lab:
    """A prepared folder on a device, and the file of results, whose cells are not measured again."""

    def __init__(self, args):
        self.folder, self.device, self.steps = pathlib.Path(args.folder).resolve(), args.device, args.steps
        self.out, self.again = args.out and pathlib.Path(args.out), args.again
        # What of PyTorch is measured, and which models beside those of `bits`; all where nothing is said.
        self.peers, self.chosen = args.peers and args.peers.split(","), args.models and args.models.split(",")
        nets = {model["net"] for model in json.loads((self.folder / "plans.json").read_text())["models"].values()}
        if unknown := set(self.chosen or ()) - nets:
            raise SystemExit(f"--models: the folder has no plans of {', '.join(sorted(unknown))}")
        if self.out:
            self.out.mkdir(parents=True, exist_ok=True)
        self.end, self.stage_end = time.monotonic() + args.limit, math.inf
        self.gpu, self.now, self.begun = self.device.startswith("cuda"), set(), time.monotonic()
        self.helps, self.stacks, self.saying = {}, {}, threading.Lock()
        # Plans that are being made or are there, by their files, and those that are tuned; and the commands that run.
        self.pool, self.plans, self.tuned, self.running = concurrent.futures.ThreadPoolExecutor(AT_ONCE), {}, set(), set()
        self.prepared = json.loads((self.folder / "plans.json").read_text())
        self.lock = self.hold()
        gpuhost.search_libraries()
        for name in BINARIES:
            os.chmod(self.folder / name, 0o755)
        self.results = self.folder / "results.jsonl"
        self.rows = {}
        if self.results.exists():
            gpurows.mend(self.results)
            self.rows = gpurows.load(self.results)
        self.ran = about = self.about()
        self.meter = gpuhost.Meter(int(self.device.partition(":")[2] or 0)) if self.gpu else None
        # More than the machine shows, where its memory grows as it is used.
        self.memory = max(args.host_mem or 0, gpuhost.total_memory())
        if args.resume and not self.rows:
            self.resume(pathlib.Path(args.resume))
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
        said, wrong = self.call(self.folder / "memrun", "devices", "--json", limit=OTHERS)
        if wrong:
            self.tell_environment()
            raise SystemExit(f"memrun cannot run here: {wrong['error'].splitlines()[-1]}")
        said = parsed(said)
        libraries = {of["library"]: of.get("version", "found") if of["found"] else None for of in said["libraries"]}
        gpu = None
        if self.gpu:
            at = self.device if ":" in self.device else "cuda:0"
            gpu = next((gpu["name"] for gpu in said["gpus"] if gpu["device"] == at), None)
            why = said["no_gpu_because"] or f"there is no {at}"
            if gpu and libraries["NVRTC"] is None:
                gpu, why = None, next(f"NVRTC is missing; {of['remedy']}" for of in said["libraries"] if of["library"] == "NVRTC")
            if gpu is None:
                self.tell_environment()
                raise SystemExit(f"nothing can run on {self.device}: {why}")
        programs = file_digest(*(self.folder / name for name in [*BINARIES, "plans.json"]))
        return {"device": self.device, "gpu": gpu, "steps": self.steps, "programs": programs,
                "quick": self.prepared.get("quick", False), "libraries": libraries if self.gpu else {}}

    def tell_environment(self):
        """Keeps what the machine is, for a run that ends before its first row."""
        if self.out:
            (self.out / "environment.json").write_text(json.dumps(gpuhost.environment(self.folder), indent=1))

    def resume(self, kept):
        """Takes what another machine gave, if it is of the same device and programs. Without it the run begins anew."""
        try:
            rows = gpurows.load(kept)
        except (FileNotFoundError, SystemExit) as error:
            print(f"nothing to go on from in {kept}: {error}", file=sys.stderr)
            return
        for row in rows.values():
            if "run" in row and row["run"] != self.ran:
                print(f"{kept} is of another run ({gpurows.differing(row['run'], self.ran)}): this one begins anew", file=sys.stderr)
                return
        if (kept / "profiles.tar.gz").exists():
            extract(kept / "profiles.tar.gz", self.folder)
        shutil.copy(kept / "results.jsonl", self.results)
        gpurows.mend(self.results)
        self.rows = rows

    def say(self, **row):
        line = json.dumps(row)
        with self.saying:
            self.rows[gpurows.key(row)] = row
            print(line, flush=True)
            print(f"[{time.monotonic() - self.begun:4.0f} s] {gpurows.short_row(row)}", file=sys.stderr, flush=True)
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

    def call(self, *line, limit=None, more=None):
        """Standard output of a command, and what went wrong: the command, its exit code and the end of what it said. `more` is for its
        environment."""
        line = [str(a) for a in line]
        left, limit = self.stage_end - time.monotonic(), limit or limit_of(line)
        if left <= 0:
            raise OutOfTime
        # A group of its own, so that what it starts ends with it.
        group = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
        try:
            ran = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                   pass_fds=[self.lock.fileno()], env={**os.environ, **(more or {})}, **group)
        except OSError as error:
            return None, {"error": str(error), "exit_code": None, "command": shlex.join(line)}
        self.running.add(ran.pid)
        try:
            out, err = ran.communicate(timeout=min(limit, left))
        except BaseException as error:
            os.killpg(ran.pid, signal.SIGKILL)
            out, err = ran.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            if left < limit:
                raise OutOfTime from error
            said = f"{(err.strip() or out.strip())[-1900:]}\nstopped after {limit:g} s".strip()
            return None, {"error": said, "exit_code": None, "command": shlex.join(line)}
        finally:
            self.running.discard(ran.pid)
        if ran.returncode == 0:
            return out, None
        said = (err.strip() or out.strip() or f"said nothing, and ended with {ran.returncode}")[-2000:]
        return out, {"error": said, "exit_code": ran.returncode, "command": shlex.join(line)}

    def stop(self):
        """Ends what is being planned, at the end of a run."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        for pid in list(self.running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def takes(self, verb, option):
        """Whether memrun has a verb, and it takes an option."""
        if verb not in self.helps:
            self.helps[verb] = self.call(self.folder / "memrun", *([verb] if verb else []), "--help")[0] or ""
        return option in self.helps[verb]

    def host(self, verb=""):
        """Lets memrun take as much host memory as the machine has, where it takes such an option: a host arena then is not held
        against the memory that is free at the moment."""
        return ["--host-mem", f"{self.memory}B"] if self.gpu and self.takes(verb, "--host-mem") else []

    def fed(self, name, plan, steps):
        """Options that give a model's small inputs another batch in every step."""
        if (name, steps) not in self.stacks:
            out, wrong = self.call(self.folder / "memc", "dump", self.folder / plan, "--json")
            options = []
            for n, (source, kind, shape, limits) in enumerate([] if wrong else gpudata.inputs(parsed(out))):
                if gpudata.size(kind, shape) <= VARIED:
                    path = self.folder / f"{name}.{n}.{steps}.npy"
                    gpudata.stack(path, kind, shape, limits, steps, source)
                    options += ["--input", f"{source}=@{path}"]
            self.stacks[name, steps] = options
        return self.stacks[name, steps]

    def memrun(self, plan, device, *more, steps=None, **how):
        """A row about a run: losses, times, kernels that a library refused, and the GPU meanwhile."""
        start, host = time.monotonic(), self.host() if device == self.device else []
        out, wrong = self.call(self.folder / "memrun", self.folder / plan, "--device", device, "--steps", steps or self.steps,
                               "--synthetic", "--json", "--no-progress", *host, *more, **how)
        meter = {"meter": self.meter.since(start)} if self.meter and device == self.device else {}
        if wrong:
            return wrong | meter
        said = parsed(out)
        # The first step warms up, the second one is the first of a graph, and of the next eight some are tried without one. Fewer
        # steps are for their bits alone.
        times = said["step_ns"][12 if len(said["step_ns"]) > 20 else 2:] or said["step_ns"]
        row = {"step_ns": statistics.median(times), "fastest_ns": min(times), "losses": said["losses"],
               "start_s": round(time.monotonic() - start - sum(said["step_ns"]) / 1e9, 2)}
        return row | ({"refused": said["refused"]} if said.get("refused") is not None else {}) | meter

    def states(self, plan, device, *more, steps=None, **how):
        """A row about a run, and its states."""
        saved = self.folder / f"states.{threading.get_ident()}.safetensors"
        row = self.memrun(plan, device, "--save", saved, *more, steps=steps, **how)
        if "error" in row:
            return row, None
        states = gpudata.tensors(saved)
        saved.unlink()
        return row, states

    def models(self, stage):
        """The models of a stage with their plans, by share."""
        found = {}
        for plan in self.prepared["plans"]:
            chosen = stage == "bits" or not self.chosen or plan["model"].rpartition("-")[0] in self.chosen
            if stage in plan["stages"] and chosen:
                found.setdefault(plan["model"], {})[plan["share"]] = plan
        return {name: (self.prepared["models"][name], plans) for name, plans in found.items()}


def extract(packed, folder):
    """Unpacks an archive; a damaged one ends the program with one line."""
    safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with tarfile.open(packed) as found:
            found.extractall(folder, **safe)
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError) as error:
        raise SystemExit(f"{packed} is not whole ({error}): carry it again") from None
