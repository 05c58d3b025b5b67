"""What the Python package costs on the CPU: a step beside memrun's, time of capture, and memory of the weights.

Usage: python tests/bench/pystep.py [step|capture|memory] [--rounds 5] [--steps 20]
Needs: the package memc (`pip install ./frontend/python`); torch, torchvision and transformers; for `step` a release build of memrun.
Prints one JSON object a case.

`step`: ResNet-18, 16 images of 64 by 64. The package and memrun run the same plan in turns, blocks of --steps steps.
`ratio` is the median of the package's blocks, each of which is the median of its steps, over that of memrun's. `around_ms` is the
median of what a step takes outside of the compiled extension: Python's own part, whatever else the machine does.
`capture`: seconds of capture and translation of GPT-2 small (batch 4 of 1,024, AdamW), and of the compiler without a search, which
has import, passes and proof in it. Contents are never made.
`memory`: VGG-11, of whose weights a process holds `weights` bytes. `before` and `after` are its resident bytes around the building
of a step and its first run; `arena` is what the step's own memory takes, weights included.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEMRUN = ROOT / "target" / "release" / "memrun"


def momentum(torch, model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class Timed:
    """A session whose own time is counted."""

    def __init__(self, session):
        self.session, self.seconds = session, 0.0

    def __getattr__(self, name):
        found = getattr(self.session, name)
        if not callable(found):
            return found

        def timed(*args):
            begun = time.perf_counter()
            try:
                return found(*args)
            finally:
                self.seconds += time.perf_counter() - begun

        return timed


def step(torch, memc, args):
    import torchvision
    model = torchvision.models.resnet18(num_classes=10)
    batch = torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,))
    compiled = memc.train_step(model, torch.nn.functional.cross_entropy, momentum(torch, model), batch)
    session = compiled._session = Timed(compiled._session)
    ours, theirs, around = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder, "step.plan")
        compiled.plan.write(plan)
        line = [MEMRUN, plan, "--synthetic", "--steps", args.steps, "--json"]
        for _ in range(args.rounds):
            times = []
            for _ in range(args.steps):
                begun, session.seconds = time.perf_counter(), 0.0
                compiled(*batch)
                times.append((time.perf_counter() - begun) * 1e3)
                around.append(times[-1] - session.seconds * 1e3)
            ours.append(statistics.median(times))
            run = subprocess.run(list(map(str, line)), capture_output=True, text=True, check=True)
            theirs.append(int(re.search(r'"step_ns_median": ?(\d+)', run.stdout)[1]) / 1e6)
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {"network": "resnet18", "ms": mine, "memrun_ms": other, "ratio": mine / other, "around_ms": statistics.median(around),
            "blocks": list(zip(ours, theirs))}


def capture(torch, memc, args):
    import transformers
    from memc import _native, _step
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
    tokens = torch.zeros(4, 1024, dtype=torch.long)
    loss = lambda model, x, y: torch.nn.functional.cross_entropy(model(x).logits.flatten(0, 1), y.flatten())
    optimizer = torch.optim.AdamW(model.parameters())
    begun = time.perf_counter()
    captured, built, _ = _step.captured_training(model, None, optimizer, (tokens, tokens), loss, 1, None, None)
    text = str(built.module)
    middle = time.perf_counter()
    plan = _native.compile(text, device="h100", effort=0, copies=False)
    calls = sum(node.op == "call_function" for node in captured.graph.graph.nodes)
    return {"network": "gpt2_small", "calls": calls, "ops": plan.ops, "capture_s": middle - begun, "compile_s": time.perf_counter() - middle}


def resident():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory(torch, memc, args):
    import torchvision
    model = torchvision.models.vgg11()
    batch = torch.randn(1, 3, 224, 224), torch.randint(0, 1000, (1,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = resident()
    compiled = memc.train_step(model, torch.nn.functional.cross_entropy, optimizer, batch)
    compiled(*batch)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"network": "vgg11", "weights": weights, "before": before, "after": resident(), "arena": compiled.plan.dev_bytes}


CASES = {"step": step, "capture": capture, "memory": memory}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=CASES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    if args.what is None:
        for name in CASES:
            # Each in a process of its own: memory of one is not another's.
            line = [sys.executable, __file__, name, "--rounds", args.rounds, "--steps", args.steps]
            subprocess.run(list(map(str, line)), check=True)
        return
    import memc
    import torch
    torch.manual_seed(0)
    print(json.dumps({"case": args.what} | CASES[args.what](torch, memc, args)), flush=True)


if __name__ == "__main__":
    main()
