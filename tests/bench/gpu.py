"""Checks memrun on a GPU: the same bits at every budget, captured as a graph and not, with poisoned memory, and as an unplanned
run on the same GPU has them; and the CPU's numbers. Measures it: a profile of every plan, and what that predicts of the plan's
step beside what the step took.

Usage: python3 tests/bench/gpu.py prepare FOLDER [--bin target/release] [--profile h200] [MODEL...]
       python3 tests/bench/gpu.py run FOLDER [--device cuda] [--steps 5] [--limit 540] [--out FILE]
Needs nothing but Python. `prepare` compiles plans at 100, 60 and 40 % of each model's unplanned peak and puts memc and memrun
beside them, so that the folder is all that a machine with a GPU needs (and CUDA's libraries: `memrun devices`). `run` prints one
JSON object a line, so that a run that is cut short still says what it did; the last has the verdict. Models are files
below `models/`.

A plan's states are those after `--steps` steps on synthetic data. `step_ns` is the median of the steps without the first;
`start_s` is the time of the whole first process without its steps: on a new machine it compiles the kernels. For each plan
N.plan the folder gets N.profile.json (`memrun profile`), N.measured.json (`memrun --trace`) and N.planned.json (`memc trace`
with that profile); `simulated_ns` is the step of the last, and `error` that over the measured one, less 1.
"""
import argparse
import array
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ["mlp_s", "cnn_bn", "resnet_tiny", "bert_tiny_nodrop", "bert_tiny_dropout", "lstm_sgd"]
SHARES = [100, 60, 40]
BINARIES = ["memrun", "memc"]
HOWS = [[], ["--no-graph"], ["--check-memory"], ["--no-graph", "--check-memory"], ["--verify"]]
# Largest difference from the CPU, relative to 1 and the number.
LOSS, STATE = 1e-4, 5e-3


def command(*args):
    run = subprocess.run([str(a) for a in args], capture_output=True, text=True, cwd=ROOT)
    if run.returncode != 0:
        raise SystemExit(f"{args}: exit {run.returncode}\n{run.stderr}")
    return json.loads(run.stdout)


def prepare(args):
    folder = pathlib.Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in BINARIES:
        shutil.copy(pathlib.Path(args.bin) / name, folder / name)
        if shutil.which("strip"):
            subprocess.run(["strip", folder / name], check=True)
    memc, plans = (pathlib.Path(args.bin) / "memc").resolve(), []
    for name in args.models or MODELS:
        path = f"models/{name}" if name.endswith(".onnx") else f"models/{name}/training_model.onnx"
        need = command(memc, "estimate", path, "--device", args.profile, "--json")
        for share in SHARES:
            plan = (folder / f"{len(plans)}.plan").resolve()
            base = ["compile", path, "--device", args.profile, "-o", plan, "--json"]
            out = command(memc, *base)
            reserve = out["gpu_mem_bytes"] - out["arena_bytes"]
            budget = max(reserve + out["arena_bytes"] * share // 100, need["smallest_feasible_bytes"])
            if share < 100:
                out = command(memc, *base, "--gpu-mem", f"{budget}B")
            plans.append({"plan": plan.name, "model": name, "share": share, "arena_bytes": out["arena_bytes"],
                          "gpu_mem_bytes": out["gpu_mem_bytes"], "planned_ns": out["step_ns"]})
    (folder / "plans.json").write_text(json.dumps(plans, indent=1))
    print(f"{len(plans)} plans in {folder}")


def tensors(path):
    """The tensors of a safetensors file: type and bytes by name."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length:]
    return {n: (t["dtype"], body[t["data_offsets"][0]:t["data_offsets"][1]]) for n, t in header.items()}


def digest(states):
    text = hashlib.sha256()
    for name in sorted(states):
        text.update(name.encode() + states[name][1])
    return text.hexdigest()[:16]


def farthest(states, others):
    """The largest difference of an f32 state, relative to 1 and the number, and whose it is."""
    worst = (0.0, "")
    for name, (dtype, data) in states.items():
        if dtype == "F32":
            pairs = zip(array.array("f", data), array.array("f", others[name][1]))
            far = max((abs(a - b) / (1 + abs(b)) if a == a else float("inf") for a, b in pairs), default=0.0)
            worst = max(worst, (far, name))
    return worst


class Runner:
    def __init__(self, args):
        self.folder = pathlib.Path(args.folder).resolve()
        self.steps, self.end = args.steps, time.monotonic() + args.limit
        self.out = open(args.out, "a") if args.out else None

    def say(self, **row):
        for to in filter(None, (sys.stdout, self.out)):
            print(json.dumps(row), file=to, flush=True)

    def call(self, *line):
        """Standard output of a command, and what went wrong."""
        left = max(1, self.end - time.monotonic())
        try:
            ran = subprocess.run([str(a) for a in line], capture_output=True, text=True, timeout=left)
        except subprocess.TimeoutExpired:
            return None, {"error": "no time is left"}
        if ran.returncode != 0:
            return None, {"error": ran.stderr.strip()[-2000:], "exit_code": ran.returncode}
        return ran.stdout, None

    def memrun(self, plan, device, *more):
        saved = self.folder / "out.safetensors"
        start = time.monotonic()
        out, wrong = self.call(self.folder / "memrun", self.folder / plan, "--device", device, "--steps", self.steps,
                               "--json", "--no-progress", "--save", saved, *more)
        took = time.monotonic() - start
        if wrong:
            return wrong, None
        said = json.loads(out)
        states = tensors(saved)
        saved.unlink()
        row = {"losses": said["losses"], "step_ns": statistics.median(said["step_ns"][1:] or said["step_ns"]),
               "start_s": round(took - sum(said["step_ns"]) / 1e9, 3), "states": digest(states)}
        return row, states

    def predict(self, plan, device, measured_ns):
        """What the profile of a plan says that its step takes."""
        stem = self.folder / pathlib.Path(plan).stem
        profile, planned = f"{stem}.profile.json", f"{stem}.planned.json"
        path = self.folder / plan
        for line in (["memrun", "profile", path, "--device", device, "-o", profile],
                     ["memrun", path, "--device", device, "--steps", self.steps, "--no-progress", "--json",
                      "--trace", f"{stem}.measured.json"],
                     ["memc", "trace", path, "--device", profile, "-o", planned]):
            _, wrong = self.call(self.folder / line[0], *line[1:])
            if wrong:
                return wrong
        simulated = json.loads(pathlib.Path(planned).read_text())["otherData"]["step_ns"]
        machine = json.loads(pathlib.Path(profile).read_text())
        machine.pop("ops")
        return {"simulated_ns": simulated, "measured_ns": measured_ns, "error": simulated / measured_ns - 1,
                "profile": machine}


def run(args):
    runner, wrong = Runner(args), []
    for name in BINARIES:
        os.chmod(runner.folder / name, 0o755)
    devices = subprocess.run([runner.folder / "memrun", "devices", "--json"], capture_output=True, text=True)
    runner.say(devices=json.loads(devices.stdout or "null"))
    first, checks = {}, 0
    for entry in json.loads((runner.folder / "plans.json").read_text()):
        model = entry["model"]
        for how in HOWS:
            row, states = runner.memrun(entry["plan"], args.device, *how)
            runner.say(**entry, device=args.device, how=" ".join(how), **row)
            at = f"{model} at {entry['share']} % {' '.join(how)}".strip()
            if states is None:
                wrong.append(f"{at}: {row['error']}")
                continue
            checks += 1
            bits = (row["losses"], row["states"])
            if first.setdefault(model, bits) != bits:
                wrong.append(f"{at}: other bits than the first plan")
            if not how:
                predicted = runner.predict(entry["plan"], args.device, row["step_ns"])
                runner.say(plan=entry["plan"], model=model, share=entry["share"], **predicted)
                if "simulated_ns" not in predicted:
                    wrong.append(f"{at}, its profile: {predicted['error']}")
            if entry["share"] == 100 and not how:
                cpu, on_cpu = runner.memrun(entry["plan"], "cpu")
                if on_cpu is None:
                    wrong.append(f"{at} on the CPU: {cpu['error']}")
                    continue
                pairs = list(zip(row["losses"], cpu["losses"]))
                loss = max((abs(a - b) / (1 + abs(b)) for a, b in pairs if None not in (a, b)), default=0.0)
                far, name = farthest(states, on_cpu)
                runner.say(model=model, loss_from_cpu=loss, state_from_cpu=far, state=name)
                if loss > LOSS or far > STATE or any((a is None) != (b is None) for a, b in pairs):
                    wrong.append(f"{at}: {loss:.1e} (loss) and {far:.1e} ({name}) from the CPU")
    runner.say(runs=checks, passed=not wrong and checks > 0, wrong=wrong)
    return 1 if wrong or not checks else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("prepare")
    one.add_argument("folder")
    one.add_argument("models", nargs="*")
    one.add_argument("--bin", default=ROOT / "target" / "release")
    one.add_argument("--profile", default="h200")
    two = verbs.add_parser("run")
    two.add_argument("folder")
    two.add_argument("--device", default="cuda")
    two.add_argument("--steps", type=int, default=5)
    two.add_argument("--limit", type=float, default=540, help="seconds for all of it")
    two.add_argument("--out", help="a file to add the lines to")
    args = parser.parse_args()
    return prepare(args) if args.verb == "prepare" else run(args)


if __name__ == "__main__":
    sys.exit(main())
