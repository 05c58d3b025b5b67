"""Tests memc_torch.py and the scripts beside it, with memc and memrun: prints what holds, fails where something does not.

Usage: python check.py [FOLDER of memc and memrun, where they are not on the PATH] [--only NAME,NAME]
Needs: torch 2.15, transformers, numpy, safetensors, onnx. Takes minutes. CI does not run it, since it has no PyTorch.

For every optimizer and for tied, frozen and normalised tensors: STEPS steps of memrun, loaded, and STEPS more of PyTorch
are 2 * STEPS steps of PyTorch within 1e-5. A state that save() writes is taken by --resume, --init and --checkpoint, and
memrun goes on as PyTorch does. Files that do not fit are refused. Then every script runs, at small size.
"""
import contextlib
import copy
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import memc_torch

STEPS, BATCH, NEAR = 4, 8, 1e-5
RULES = {
    "sgd:lr=0.05,weight_decay=0.01": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.01),
    "momentum:lr=0.05": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "momentum:lr=0.05,dampening=0.5": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.5),
    "momentum:lr=0.02,nesterov=true": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "adam:lr=1e-2,weight_decay=0.01": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.01),
    "adamw:lr=1e-2": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adagrad:lr=0.05": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adagrad:lr=0.05,lr_decay=0.1": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1),
}


class Odd(nn.Module):
    """One of each: tied weights, BatchNorm in both modes, a frozen layer, buffers of three kinds, an unused parameter."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.tokens.weight
        self.norm, self.fixed = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("places", torch.randn(4, 8))
        self.register_buffer("scale", torch.full((8,), 0.5), persistent=False)
        self.register_buffer("numbers", torch.arange(4))
        self.places_of = nn.Embedding(4, 8)

    def train(self, mode=True):
        super().train(mode)
        self.fixed.eval()
        return self

    def forward(self, ids):
        x = (self.tokens(ids) + self.places + self.places_of(self.numbers)) * self.scale
        x = self.fixed(self.norm(self.frozen(x).transpose(1, 2))).transpose(1, 2)
        return self.head(torch.tanh(x))


def memc(tools, name, *words):
    out = subprocess.run([tools / name, *map(str, words)], capture_output=True, text=True)
    assert out.returncode == 0, f"{name} {' '.join(map(str, words))}: {out.stderr}"
    return out


def exported(model, path, dynamo):
    args = (torch.zeros(2, 4, dtype=torch.long),)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if dynamo:
            torch.onnx.export(model, args, path, dynamo=True, optimize=False, input_names=["ids"], verbose=False,
                              dynamic_shapes=({0: torch.export.Dim("batch")},))
        else:
            torch.onnx.export(model, args, path, dynamo=False, training=torch.onnx.TrainingMode.PRESERVE,
                              do_constant_folding=False, input_names=["ids"], dynamic_axes={"ids": {0: "batch"}})
    memc_torch.parameter_names(model, "parameters.txt")


def trained(model, optimizer, first, last, micro):
    """Steps of PyTorch on the data of these numbers."""
    ids, labels = (torch.tensor(np.load(f"{name}.npy")) for name in ("ids", "labels"))
    for i in range(first, last):
        optimizer.zero_grad()
        for at in range(i * micro * BATCH, (i + 1) * micro * BATCH, BATCH):
            loss = F.cross_entropy(model(ids[at:][:BATCH]).flatten(0, 1), labels[at:][:BATCH].flatten())
            (loss / micro).backward()
        optimizer.step()


def same(a, b, near=NEAR):
    """Fails where two models or optimizers differ."""
    for key in a:
        far = (a[key].double() - b[key].double()).abs().max().item() if a[key].numel() else 0.0
        assert a[key].shape == b[key].shape and far <= near, f"{key} differs by {far}"


def flat(optimizer):
    return {f"{i}.{k}": v for i, s in optimizer.state_dict()["state"].items() for k, v in s.items() if v is not None}


def made(rule, state):
    """A model with these tensors, in training mode, and its optimizer."""
    model = Odd().train()
    model.load_state_dict(state)
    return model, RULES[rule]([p for p in model.parameters() if p.requires_grad])


def goes_on(tools, rule, dynamo, micro=1):
    """memrun then PyTorch, and PyTorch then memrun, beside PyTorch alone."""
    torch.manual_seed(0)
    model = Odd().train()
    exported(model, "odd.onnx", dynamo)
    start = {name: t.clone() for name, t in model.state_dict().items()}
    # The file has the statistics as they are now; the exporter counts its own batch.
    start["norm.num_batches_tracked"].zero_()
    want, of_want = made(rule, start)
    trained(want, of_want, 0, STEPS, micro)
    middle, of_middle = made(rule, want.state_dict())
    of_middle.load_state_dict(copy.deepcopy(of_want.state_dict()))
    trained(want, of_want, STEPS, 2 * STEPS, micro)

    memc(tools, "memc", "compile", "odd.onnx", "--loss", "cross-entropy:axis=-1", "--optimizer", rule, "--parameters",
         "parameters.txt", "--dim", f"batch={BATCH}", "--accumulate", micro, "--gpu-mem", "peak*90%", "--effort", 0,
         "-o", "odd.plan")
    feed = ["--input", "ids=@ids.npy", "--input", "labels=@labels.npy"]
    memc(tools, "memrun", "odd.plan", "--steps", STEPS, *feed, "--save", "half.st")
    have, of_have = made(rule, start)
    assert memc_torch.load("half.st", have, of_have, micro_steps=micro, allow_missing=["unused"]) == STEPS
    assert have.head.weight is have.tokens.weight
    same(middle.state_dict(), have.state_dict())
    same(flat(of_middle), flat(of_have))
    trained(have, of_have, STEPS, 2 * STEPS, micro)
    same(want.state_dict(), have.state_dict())

    memc_torch.save("resume.st", middle, of_middle, like="half.st", steps=STEPS)
    memc(tools, "memrun", "odd.plan", "--steps", STEPS, *feed, "--resume", "resume.st", "--save", "whole.st")
    back, of_back = made(rule, start)
    assert memc_torch.load("whole.st", back, of_back, micro_steps=micro, allow_missing=["unused"]) == 2 * STEPS
    same(want.state_dict(), back.state_dict())
    same(flat(of_want), flat(of_back))
    for name in ("ids", "labels"):
        np.save(f"rest_{name}.npy", np.load(f"{name}.npy")[STEPS * micro * BATCH:])
    memc(tools, "memrun", "odd.plan", "--steps", STEPS, "--input", "ids=@rest_ids.npy", "--input",
         "labels=@rest_labels.npy", "--init", "resume.st", "--save", "init.st")
    same(load_file("whole.st"), load_file("init.st"))


def checkpoints(tools):
    """A file without `like` is a checkpoint of all weights, under either name of tied ones."""
    exported(Odd().train(), "odd.onnx", False)
    torch.manual_seed(1)
    model = Odd().train()
    memc_torch.save("weights.st", model)
    with safe_open("weights.st", "pt") as file:
        assert file.metadata()["head.weight"] == "tokens.weight" and "head.weight" not in file.keys()
    out = memc(tools, "memc", "compile", "odd.onnx", "--loss", "cross-entropy:axis=-1", "--optimizer", "sgd:lr=0", "--dim",
               f"batch={BATCH}", "--parameters", "parameters.txt", "--checkpoint", "weights.st", "-o", "weights.plan")
    assert "keep the model's values" not in out.stderr, out.stderr
    memc(tools, "memrun", "weights.plan", "--synthetic", "--save", "after.st")
    other = Odd().train()
    memc_torch.load("after.st", other, allow_missing=["unused"])
    same(dict(model.named_parameters()), dict(other.named_parameters()))


def refusals():
    """load() takes nothing that does not fit. half.st is AdamW's here, of the check before."""
    def refused(what, *args, **options):
        try:
            memc_torch.load(*args, **options)
        except (ValueError, RuntimeError) as error:
            assert what in str(error), error
            return
        raise AssertionError(f"not refused: {what}")
    model = Odd().train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    refused("unused", "half.st", model)
    sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], momentum=0.9)
    refused("momentum1", "half.st", model, sgd, allow_missing=["unused"])
    memc_torch.load("half.st", model, allow_missing=["unused"])
    model.load_state_dict(before)
    save_file(load_file("half.st") | {"more": torch.ones(1)}, "more.st")
    refused("more", "more.st", model, allow_missing=["unused"])
    cut = {n: t for n, t in load_file("half.st").items() if n not in ("tokens.weight", "head.weight")}
    save_file(cut, "less.st")
    refused("tokens.weight", "less.st", model, allow_missing=["unused"])
    save_file(load_file("half.st") | {"norm.weight": torch.ones(9)}, "shape.st")
    refused("norm.weight", "shape.st", model, allow_missing=["unused"])
    same(before, model.state_dict())
    refused("no Adam with these options", "half.st", model, torch.optim.Adam(model.parameters(), amsgrad=True))


def players(tools):
    """A GAN by two plans and by one, beside PyTorch with two optimizers."""
    import gan
    for together in (True, False):
        torch.manual_seed(0)
        want, have = gan.model(), gan.model()
        have.load_state_dict(want.state_dict())
        first, second = gan.optimizer(want)
        feed = gan.data(10)
        for i in range(10):
            batch = {name: torch.tensor(a[i * gan.BATCH:][:gan.BATCH]) for name, a in feed.items()}
            for player, steps in {"both": [first, second]}.items() if together else {"d": [first], "g": [second]}.items():
                want.player = player
                first.zero_grad()
                second.zero_grad()
                want(**batch).backward()
                for optimizer in steps:
                    optimizer.step()
        for name, array in feed.items():
            np.save(f"{name}.npy", array)
        if together:
            gan.export(have, "both.onnx")
            memc(tools, "memc", "compile", "both.onnx", *gan.COMPILE, "--parameters", "parameters.txt", "-o", "both.plan")
            memc(tools, "memrun", "both.plan", "--steps", 10, "--input", "x=@x.npy", "--input", "z=@z.npy",
                 "--save", "both.st")
            both = gan.optimizer(have)
            memc_torch.load("both.st", have, both)
            same(flat(first) | flat(second), flat(both[0]) | flat(both[1]))
        else:
            with quiet():
                gan.alternating(tools, have, 10)
        same(want.state_dict(), have.state_dict())


def script(tools, name, **options):
    """A script as a user runs it, but for its size."""
    module = __import__(name)
    if hasattr(module, "EPOCHS"):
        module.EPOCHS, module.RUN[:2] = 1, ["--epochs", 1]
    if name in ("gpt", "amp"):
        import gpt
        gpt.RUN[:2] = ["--steps", 10]
    with quiet():
        module.main(tools, **options)


@contextlib.contextmanager
def quiet():
    """Sends what this process and its children print to a file."""
    with open("said.txt", "w") as said:
        own = [os.dup(1), os.dup(2)]
        try:
            sys.stdout.flush()
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            yield
        finally:
            sys.stdout.flush()
            os.dup2(own[0], 1)
            os.dup2(own[1], 2)


def example(tools):
    """The first blocks of PYTORCH.md, in their order, and PyTorch after as many steps."""
    page = (pathlib.Path(__file__).resolve().parents[1] / "PYTORCH.md").read_text().split("```")
    first, shell, last = (block.split("\n", 1)[1] for block in page[1:6:2])
    names = {}
    torch.manual_seed(0)
    np.random.seed(0)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        exec(first, names)
    other = copy.deepcopy(names["model"])
    for line in shell.splitlines():
        name, *words = line.split()
        memc(tools, name, *words)
    exec(last, names)
    assert names["steps"] == 5
    sgd = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    x, labels = torch.tensor(np.load("x.npy")), torch.tensor(np.load("labels.npy"))
    for i in range(5):
        sgd.zero_grad()
        F.cross_entropy(other(x[i * 32:][:32]), labels[i * 32:][:32]).backward()
        sgd.step()
    for state in (other.state_dict(), names["model"].state_dict()):
        state["1.num_batches_tracked"].zero_()      # the exporter counts its own batch
        state["5.num_batches_tracked"].zero_()
    # A network with BatchNorm enlarges differences from step to step.
    same(other.state_dict(), names["model"].state_dict(), near=1e-4)
    same(flat(sgd), flat(names["optimizer"]), near=1e-3)


def main():
    only = sys.argv[sys.argv.index("--only") + 1].split(",") if "--only" in sys.argv else None
    folders = [w for w in sys.argv[1:] if not w.startswith("--") and w != ",".join(only or [])]
    tools = pathlib.Path(*folders[:1])
    tools = tools.resolve() if folders else tools
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    checks = {f"{rule} {'dynamo' if dynamo else 'TorchScript'}": (lambda r=rule, d=dynamo: goes_on(tools, r, d))
              for rule in RULES for dynamo in (False, True)}
    checks["accumulation"] = lambda: goes_on(tools, "adamw:lr=1e-2", False, micro=3)
    checks |= {"checkpoints": lambda: checkpoints(tools), "refusals": refusals, "players": lambda: players(tools)}
    for name in ("cnn", "gpt", "bert", "unet", "lstm", "amp"):
        checks[f"{name}.py"] = lambda name=name: script(tools, name)
    for name in ("bert", "lstm", "amp"):
        checks[f"{name}.py --dynamo"] = lambda name=name: script(tools, name, dynamo=True)
    checks["PYTORCH.md"] = lambda: example(tools)
    checks["gan.py"] = lambda: script(tools, "gan", steps=50, turns=2)
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name in ("ids", "labels"):
            np.save(f"{name}.npy", draw.integers(0, 16, (2 * STEPS * 3 * BATCH, 4)))
        for name, check in checks.items():
            if only is None or any(word in name for word in only):
                check()
                print("holds:", name, flush=True)


if __name__ == "__main__":
    main()
