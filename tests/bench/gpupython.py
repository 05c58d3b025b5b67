"""The Python package on a GPU: steps beside PyTorch's own, the same bits within every budget, and time beside memrun's.

Usage: python3 tests/bench/gpupython.py run [--out FOLDER] [--only CASES] [--limit 240] [--memrun PATH]
       python3 tests/bench/gpupython.py case NAME
Needs torch with CUDA, torchvision and transformers, and the package `memc` (PYTHONPATH). Each case is a process, so that one that
crashes leaves the others; its row is a JSON object in FOLDER/python.jsonl and on standard output.

A case trains a model and its twin for five steps. `losses` is the largest relative difference to PyTorch without TF32, `change` that of
all that the parameters have changed by; `rounding` is the same between PyTorch's bfloat16 and its float32. `alike` says whether
losses and weights have the same bits in every budget. Cases of `TIMED` have ms a step, medians of 20 after ten: PyTorch's, the
package's, and memrun's for the same plan.
"""
import argparse
import concurrent.futures
import copy
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

STEPS, WARM, TIMES = 5, 10, 20
# Percent of what the plan without a budget has beyond the reserve, and whether algorithms are measured.
CELLS, TIMED_CELLS = [(100, False), (60, False)], [(100, False), (100, True), (50, True)]


def cnn(torch, batch=32):
    nn = torch.nn
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
                          nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return model, lambda: (torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,)))


def image_net(name, batch):
    def make(torch):
        import torchvision
        model = getattr(torchvision.models, name)(weights=None)
        return model, lambda: (torch.randn(batch, 3, 224, 224), torch.randint(0, 1000, (batch,)))
    return make


def recurrent(kind):
    def make(torch):
        class Tagger(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn = getattr(torch.nn, kind)(16, 24, 2, batch_first=True, bidirectional=True)
                self.out = torch.nn.Linear(48, 5)

            def forward(self, x):
                return self.out(self.rnn(x)[0]).flatten(0, 1)
        return Tagger(), lambda: (torch.randn(8, 12, 16), torch.randint(0, 5, (96,)))
    return make


def gpt2(batch, length, **sizes):
    def make(torch):
        import transformers
        config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **sizes)
        config._attn_implementation = "eager"
        model = transformers.GPT2LMHeadModel(config)

        class Logits(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = model

            def forward(self, tokens):
                return self.net(tokens).logits.flatten(0, 1)
        return Logits(), lambda: (torch.randint(0, config.vocab_size, (batch, length)), torch.randint(0, config.vocab_size, (batch * length,)))
    return make


SMALL_GPT = dict(n_layer=2, n_embd=64, n_head=4, vocab_size=211, n_positions=64)
# Model, optimizer, whether it computes in bfloat16 where autocast says so, and whether the model starts on the GPU.
CASES = {
    "cnn": (cnn, "adamw", False, True),
    "cnn from the CPU": (cnn, "adamw", False, False),
    "lstm": (recurrent("LSTM"), "adam", False, True),
    "gru": (recurrent("GRU"), "sgd", False, True),
    "gpt": (gpt2(4, 32, **SMALL_GPT), "adamw", False, True),
    "gpt in bfloat16": (gpt2(4, 32, **SMALL_GPT), "adamw", True, True),
    "resnet18 in bfloat16": (image_net("resnet18", 16), "momentum", True, True),
    "evaluation": (cnn, "momentum", False, True),
    "resnet50": (image_net("resnet50", 64), "momentum", False, True),
    "gpt2_small": (gpt2(4, 1024), "adamw", False, True),
}
TIMED = {"resnet50", "gpt2_small"}


def optimizer_of(torch, kind, parameters):
    return {"adamw": lambda: torch.optim.AdamW(parameters, lr=1e-4), "adam": lambda: torch.optim.Adam(parameters, lr=1e-4),
            "sgd": lambda: torch.optim.SGD(parameters, lr=0.01),
            "momentum": lambda: torch.optim.SGD(parameters, lr=0.01, momentum=0.9)}[kind]()


def eager(torch, model, optimizer, loss_of, batches):
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def median_ms(torch, run, batch):
    times = []
    for _ in range(WARM + TIMES):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run(*batch)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return round(statistics.median(times[WARM:]), 2)


def case(name, memrun):
    import torch
    import memc

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    make, kind, half, on_gpu = CASES[name]
    first, batch = make(torch)
    cross_entropy = torch.nn.functional.cross_entropy

    def loss_with(half):
        def loss_of(model, x, y):
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
                return cross_entropy(model(x), y)
        return loss_of

    loss_of = loss_with(half)
    batches = [batch() for _ in range(STEPS)]
    on_device = [tuple(t.cuda() for t in pair) for pair in batches]
    row = {"case": name, "torch": torch.__version__}
    begin = {n: p.detach().clone() for n, p in first.named_parameters()}
    expected, final, row["eager_ms"] = alone(torch, first, kind, loss_of, on_device, name in TIMED)
    if half:
        row["rounding"] = change(torch, begin, alone(torch, first, kind, loss_with(False), on_device, False)[1], final)
    seen, row["cells"] = [], []
    for share, tune in TIMED_CELLS if name in TIMED else CELLS:
        # Of the first plan, which is unplanned: its reserve, and a share of the rest.
        budget = None if share == 100 else reserve + int((peak - reserve) * share / 100)
        model = copy.deepcopy(first)
        model, given = (model.cuda(), on_device) if on_gpu else (model, batches)
        optimizer = optimizer_of(torch, kind, model.parameters())
        start = time.perf_counter()
        options = {} if name in TIMED else {"rewrite": False, "conv_workspace": "32M"}
        step = memc.train_step(model, None, optimizer, given[0], budget=budget, compute=loss_of, tune=tune, **options)
        reserve, peak = step.plan.reserve_bytes, step.unplanned_peak
        cell = {"share": share, "tuned": tune, "build_s": round(time.perf_counter() - start, 2), "plan": repr(step),
                "notes": step._session.notes[:3], "modelled_ms": step.plan.step_ns / 1e6}
        losses = [float(step(*pair)) for pair in given]
        state = {n: p.detach().cpu().clone() for n, p in model.named_parameters()}
        seen.append((losses, state))
        cell["on"] = sorted({str(p.device) for p in model.parameters()})
        cell["shared"] = all(p.numel() == 0 or p.data_ptr() == step._views[n].address for n, p in model.named_parameters())
        if name == "evaluation":
            cell |= evaluated(torch, memc, model, given[0][0])
        if name in TIMED:
            cell["ms"] = median_ms(torch, step, batches[0])
            cell |= beside_memrun(step, memrun)
        step.close()
        cell["back_on"] = sorted({str(p.device) for p in model.parameters()})
        row["cells"].append(cell)
        del model, optimizer, step
        torch.cuda.empty_cache()
    losses, state = seen[0]
    row["losses"] = max(abs(a - b) / (1 + abs(b)) for a, b in zip(losses, expected))
    row["change"] = change(torch, begin, state, final)
    row["alike"] = all(other == losses and all(torch.equal(s[n], state[n]) for n in state) for other, s in seen[1:])
    row["first_losses"], row["expected"] = losses, expected
    return row


def alone(torch, first, kind, loss_of, batches, is_timed):
    """Losses of PyTorch's own steps, the parameters after them, and ms a step."""
    twin = copy.deepcopy(first).cuda()
    optimizer = optimizer_of(torch, kind, twin.parameters())
    losses = eager(torch, twin, optimizer, loss_of, batches)
    final = {n: p.detach().cpu().clone() for n, p in twin.named_parameters()}
    ms = median_ms(torch, lambda *pair: eager(torch, twin, optimizer, loss_of, [pair]), batches[0]) if is_timed else None
    del twin, optimizer
    torch.cuda.empty_cache()
    return losses, final, ms


def change(torch, begin, ours, theirs):
    """Norm of the difference of two changes, over that of the second one."""
    norm = lambda tensors: float(torch.stack([t.double().norm() for t in tensors]).norm())
    return norm([ours[n] - theirs[n] for n in begin]) / norm([theirs[n] - begin[n] for n in begin])


def evaluated(torch, memc, model, x):
    """A forward pass of PyTorch, and one of a compiled step, on the weights that lie in the training step's memory."""
    model.eval()
    with torch.no_grad():
        plain = model(x)
        with memc.eval_step(model, (x,)) as forward:
            ours = forward(x)
        model[0].weight.mul_(0.5)
        other = model(x)
    model.train()
    return {"forward": float((ours - plain.cpu()).norm() / plain.cpu().norm()), "feels_a_change": not torch.equal(plain, other)}


def beside_memrun(step, memrun):
    if memrun is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        plan = pathlib.Path(folder, "step.plan")
        step.plan.write(plan)
        line = [memrun, plan, "--device", "cuda", "--synthetic", "--steps", WARM + TIMES, "--json"]
        run = subprocess.run(list(map(str, line)), capture_output=True, text=True)
    found = re.search(r'"step_ns_median": ?(\d+)', run.stdout)
    return {"memrun_ms": int(found[1]) / 1e6} if found else {"memrun": (run.stdout + run.stderr)[-600:]}


def attempt(name, args, begun):
    left = args.limit - (time.monotonic() - begun)
    if left < 10:
        return {"case": name, "error": "no time was left"}
    line = [sys.executable, "-W", "ignore", __file__, "case", name, *(["--memrun", args.memrun] if args.memrun else [])]
    try:
        run = subprocess.run(line, capture_output=True, text=True, timeout=min(left, 110))
    except subprocess.TimeoutExpired as over:
        return {"case": name, "error": f"stopped after {over.timeout:.0f} s"}
    found = [text for text in run.stdout.splitlines() if text.startswith('{"case"')]
    return json.loads(found[-1]) if found else {"case": name, "error": (run.stderr or run.stdout)[-2500:], "rc": run.returncode}


def run(args):
    begun, rows = time.monotonic(), []
    names = args.only.split(",") if args.only else list(CASES)
    out = args.out and pathlib.Path(args.out) / "python.jsonl"

    if out:
        out.parent.mkdir(parents=True, exist_ok=True)

    def keep(row):
        rows.append(row | {"at_s": round(time.monotonic() - begun, 1)})
        print(json.dumps(rows[-1]), flush=True)
        if out:
            out.write_text("".join(json.dumps(row) + "\n" for row in rows))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for row in pool.map(lambda name: attempt(name, args, begun), [name for name in names if name not in TIMED]):
            keep(row)
    for name in names:
        if name in TIMED:
            keep(attempt(name, args, begun))
    return 1 if any("error" in row for row in rows) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "case"])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--out")
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=240)
    parser.add_argument("--memrun")
    args = parser.parse_args()
    if args.verb == "case":
        print(json.dumps(case(args.name, args.memrun)))
        return 0
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
