"""Kills a controller many times while jobs train, and compares what they end with to runs of their own.

Usage: python3 tests/bench/kills.py [--kills 100] [--seed 0] [--steps 60000]
Needs: a release build of memc and memrun, nothing else. Prints one JSON object.

Two jobs train on synthetic data on the CPU device, with a checkpoint every 20 rounds. The controller gets SIGKILL
after a random time of 0.1 to 1.5 s, sometimes while a job is paused, resumed or moved to another budget, and is started
again. `lost` is the most steps by which a job was back after a restart; `equal` says whether the states at the end are
those of `memrun` alone, byte for byte by tensor.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / "release"
JOBS = {"a": "models/cnn_bn/training_model.onnx", "b": "models/mlp_clip/training_model.onnx"}
EVERY = 20


def run(*args, check=True):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, cwd=ROOT)
    if check and done.returncode:
        sys.exit(f"{' '.join(map(str, args))}: {done.stderr.strip()}")
    return done


def tensors(path):
    """Tensors of a safetensors file: type, shape and bytes by name."""
    raw = Path(path).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + length])
    part = lambda of: (of["dtype"], tuple(of["shape"]), raw[8 + length:][slice(*of["data_offsets"])])
    return {name: part(of) for name, of in header.items() if name != "__metadata__"}


class Controller:
    def __init__(self, folder):
        self.folder = folder
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [BIN / "memc", "serve", "--device", "cpu", "--effort", "0", "--gpu-mem", "600K", "--save-every", str(EVERY),
             "--socket", self.folder / "s", "--folder", self.folder / "jobs"], cwd=ROOT, stderr=subprocess.DEVNULL)
        while not self.state():
            time.sleep(0.01)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def ask(self, *words):
        return run(BIN / "memc", "job", *words, "--socket", self.folder / "s", "--json", check=False)

    def state(self):
        done = self.ask("status")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def steps(self):
        state = self.state()
        return {job["job"]: job["step"] for job in state["jobs"]} if state else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60000)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        controller = Controller(folder)
        controller.start()
        for job, model in JOBS.items():
            done = controller.ask("submit", "--job", f"{job}={model}", "--synthetic", "--steps", args.steps, "--save", folder / f"{job}.st")
            if done.returncode:
                sys.exit(done.stderr)
        lost = kills = 0
        while kills < args.kills and any(step < args.steps for step in controller.steps().values()):
            time.sleep(chance.uniform(0.1, 1.5))
            change = chance.choice([None, ("pause", "a"), ("resume", "a"), ("set-budget", "300K"), ("set-budget", "600K")])
            if change:
                subprocess.Popen([BIN / "memc", "job", *change, "--socket", folder / "s"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(chance.uniform(0, 0.1))
            before = controller.steps()
            controller.kill()
            kills += 1
            controller.start()
            after = controller.steps()
            lost = max([lost, *(before[job] - after.get(job, 0) for job in before)])
            time.sleep(0.2)
        controller.ask("resume", "a")
        while any(job["status"] in ("training", "stopping") for job in controller.state()["jobs"]):
            time.sleep(0.2)
        failed = [job for job in controller.state()["jobs"] if job["status"] != "done"]
        controller.kill()
        equal = not failed
        for job, model in JOBS.items():
            run(BIN / "memc", "compile", model, "--device", "cpu", "-o", folder / "alone.plan")
            run(BIN / "memrun", folder / "alone.plan", "--synthetic", "--steps", args.steps, "--save", folder / "alone.st", "--log-every", args.steps)
            equal = equal and tensors(folder / f"{job}.st") == tensors(folder / "alone.st")
        print(json.dumps({"kills": kills, "lost": lost, "checkpoint_every": EVERY, "equal": equal, "failed": failed}))


if __name__ == "__main__":
    main()
