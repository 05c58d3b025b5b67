"""Trains the networks of frontend/pytorch with memc at three budgets and with PyTorch, and prints a table: losses, metrics
after loading back, and whether saves are byte-identical, also after a kill.

Usage: python tests/bench/training.py [--only GLOB] [--bin FOLDER] [--out ROWS.jsonl] [--table ROWS.jsonl]
Needs: a release build of memc and memrun; torch 2.15, transformers 5.23, numpy, safetensors, onnx. Takes 20 minutes.

A network has no dropout, since no two runtimes draw the same. PyTorch starts with the same weights, reads the same data in
the same order (memrun's shuffling is computed again), and takes the same steps: schedules of torch and transformers,
clip_grad_norm_, averaged micro-steps. memrun runs at 100, 60 and 40 % of the unplanned peak, or at the smallest budget that
memc names; the run at 60 % evaluates held-out data on the way. A further run at 60 % is killed (SIGKILL) past its half; the plan of 40 % resumes its last save.

A difference of losses is relative to the loss, where that is above 1. `rounding` is how far PyTorch in f32 is from PyTorch
in f64, with the same data: a difference of that size says nothing.
"""
import argparse
import fnmatch
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "frontend" / "pytorch"))
SHARES = (100, 60, 40)


def cases():
    """For each run: the script, its model and schedule, how the data lies, the metric and its data."""
    import torch
    from torch.optim import lr_scheduler
    from transformers import get_cosine_with_min_lr_schedule_with_warmup, get_linear_schedule_with_warmup
    import amp
    import bert
    import cnn
    import gan
    import gpt
    import lstm
    import unet

    def text(part):
        return dict(zip(("ids", "labels"), gpt.windows(gpt.data()[part])))

    made = {
        "CNN": dict(script=cnn, data=cnn.data, schedule=lambda o: lr_scheduler.MultiStepLR(o, [128, 224], 0.1),
                    metric="accuracy", of=lambda m: cnn.accuracy(m, **cnn.data(1024, seed=2)),
                    held=lambda: cnn.data(1024, seed=2)),
        "GPT": dict(script=gpt, data=lambda: text(0), model=gpt.GPT, clip=1.0, metric="perplexity",
                    schedule=lambda o: get_cosine_with_min_lr_schedule_with_warmup(o, 30, gpt.STEPS, min_lr_rate=0.1),
                    of=lambda m: gpt.perplexity(m, gpt.data()[1]), tokens=("ids", "labels"), held=lambda: text(1)),
        "BERT": dict(script=bert, data=bert.data, model=lambda: bert.model(dropout=0.0), clip=1.0, micro=bert.MICRO,
                     schedule=lambda o: get_linear_schedule_with_warmup(o, 10, 256),
                     metric="accuracy", of=lambda m: bert.accuracy(m, **bert.data(1))),
        "U-Net": dict(script=unet, data=unet.data, schedule=lambda o: lr_scheduler.CosineAnnealingLR(o, 192, 0.05 * 3e-3),
                      metric="overlap", of=lambda m: unet.overlap(m, **unet.data(256, seed=2))),
        "LSTM": dict(script=lstm, data=lstm.data, clip=1.0, schedule=lambda o: lr_scheduler.StepLR(o, 160, 0.3),
                     metric="error", of=lambda m: lstm.error(m, **lstm.data(1024, seed=2))),
        "GAN": dict(script=gan, data=gan.data, metric="points near a centre", of=gan.near),
    }
    mixed = types.SimpleNamespace(**vars(gpt) | {"export": amp.export, "loss": amp.loss})
    return made | {"GPT, bfloat16": made["GPT"] | {"script": mixed}}


def in_torch(case, model, steps, wide=False):
    """PyTorch's losses; the model is trained by them."""
    import torch
    import memc_torch
    script, micro = case["script"], case.get("micro", 1)
    tensors = {name: torch.as_tensor(array) for name, array in case["data"]().items()}
    if wide:
        tensors = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
    optimizers = script.optimizer(model.train())
    optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
    schedules = [case["schedule"](o) for o in optimizers] if "schedule" in case else []
    samples = len(next(iter(tensors.values())))
    per_pass = samples // (script.BATCH * micro)
    losses = []
    for step in range(steps):
        epoch, at = divmod(step, per_pass)
        if at == 0:
            order = memc_torch.order(samples, 0, epoch) if "--shuffle" in script.RUN else torch.arange(samples)
        for optimizer in optimizers:
            optimizer.zero_grad()
        total = 0.0
        for part in range(micro):
            rows = order[(at * micro + part) * script.BATCH:][:script.BATCH]
            loss = script.loss(model, **{name: t[rows] for name, t in tensors.items()})
            (loss / micro).backward()
            total += loss.item() / micro
        if "clip" in case:
            torch.nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
        for optimizer in [*optimizers, *schedules]:
            optimizer.step()
        losses.append(total)
    return losses


def run(args, name, *words):
    return subprocess.run([args.bin / name, *map(str, words)], capture_output=True, text=True)


def compiled(args, script, share, plan):
    """Compiles at a share of the peak, or at the smallest budget; returns memc's JSON."""
    words = ["model.onnx", *script.COMPILE, "--parameters", "parameters.txt", "--json", "-o", plan]
    out = run(args, "memc", "compile", *words, "--device", "cpu", "--gpu-mem", f"peak*{share}%")
    if out.returncode == 4:
        out = run(args, "memc", "compile", *words, "--device", "cpu", "--gpu-mem", re.search(r"--gpu-mem (\d+B)", out.stdout + out.stderr)[1])
    assert out.returncode == 0, out.stdout + out.stderr
    return json.loads(out.stdout)


def evaluated(args, script, held, steps):
    """Compiles the evaluation and writes its data; returns memrun's words for three evaluations within a run."""
    import numpy
    out = run(args, "memc", "compile", "model.onnx", "--device", "cpu", *script.COMPILE, "--parameters", "parameters.txt", "--evaluation",
              "-o", "held.plan")
    assert out.returncode == 0, out.stdout + out.stderr
    words = ["--eval", "held.plan", "--eval-every", steps // 3]
    for name, array in held().items():
        numpy.save(f"held_{name}.npy", array)
        words += ["--eval-input", f"{name}=@held_{name}.npy"]
    return words


def held_out(torch, script, held, model):
    """PyTorch's mean loss over the whole batches of held-out data, in evaluation mode."""
    data = {name: torch.as_tensor(array) for name, array in held().items()}
    batches = len(next(iter(data.values()))) // script.BATCH
    with torch.no_grad():
        rows = [slice(i * script.BATCH, (i + 1) * script.BATCH) for i in range(batches)]
        losses = [script.loss(model.eval(), **{n: t[part] for n, t in data.items()}).item() for part in rows]
    return sum(losses) / batches


def killed(args, words, steps):
    """Ends a run past its half, with saves on the way, and returns how many steps its last save has done."""
    from safetensors import safe_open
    every, rows = max(steps // 10, 1), pathlib.Path("killed.jsonl")
    command = [args.bin / "memrun", "60.plan", *words, "--save", "resumed.st", "--save-every", every, "--metrics", rows]
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (rows.exists() and rows.read_text().count("\n") > steps * 0.55):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it was killed"
    with safe_open("resumed.st", "np") as file:
        return int(file.metadata()["step"])


def difference(have, want):
    return max((abs(a - b) / max(abs(b), 1.0) for a, b in zip(have, want)), default=0.0)


def one(args, name, case):
    """The row of a run."""
    import numpy
    import torch
    import memc_torch
    script = case["script"]
    torch.manual_seed(0)
    make = case["model"] if "model" in case else script.model
    model = make()
    script.export(model, "model.onnx")
    # The exporter's own step of the running statistics is in the file, too.
    start = {n: t.clone() for n, t in model.state_dict().items()}
    words = []
    for array_name, array in case["data"]().items():
        if array_name in case.get("tokens", ()):
            memc_torch.token_file(script.data()[0], "train.bin")
            words += ["--input", f"{array_name}=@train.bin:u16{'+1' if array_name == 'labels' else ''}"]
        else:
            numpy.save(f"{array_name}.npy", array)
            words += ["--input", f"{array_name}=@{array_name}.npy"]
    words = [*script.RUN, *words, "--no-progress"]
    row = {"run": name, "metric": case["metric"], "parameters": sum(p.numel() for p in model.parameters())}
    results, saves = {}, {}
    for share in SHARES:
        plan = compiled(args, script, share, f"{share}.plan")
        begin = time.perf_counter()
        # The saves show that evaluations change no bit.
        more = evaluated(args, script, case["held"], 300) if share == 60 and "held" in case else []
        out = run(args, "memrun", f"{share}.plan", *words, *more, "--json", "--save", f"{share}.st")
        assert out.returncode == 0, out.stdout + out.stderr
        results[share] = json.loads(out.stdout)
        saves[share] = pathlib.Path(f"{share}.st").read_bytes()
        row[f"budget_{share}"] = plan.get("gpu_mem_bytes", results[share]["gpu_mem_bytes"])
        row[f"arena_{share}"] = results[share]["arena_bytes"]
        row[f"seconds_{share}"] = round(time.perf_counter() - begin, 1)
    losses = results[100]["losses"]
    steps = len(losses)
    row |= {"steps": steps, "same_losses": all(r["losses"] == losses for r in results.values()),
            "same_saves": len(set(saves.values())) == 1}

    done = killed(args, words, steps)
    more = list(map(str, words))
    if "--steps" in more:
        more[more.index("--steps") + 1] = str(steps - done)
    out = run(args, "memrun", "40.plan", *more, "--resume", "resumed.st", "--save", "resumed.st")
    assert out.returncode == 0, out.stdout + out.stderr
    row |= {"resumed_at": done, "same_resumed": pathlib.Path("resumed.st").read_bytes() == saves[100]}

    optimizer = script.optimizer(model)
    assert memc_torch.load("40.st", model, optimizer, micro_steps=case.get("micro", 1)) == steps
    row["metric_memc"] = case["of"](model)
    if "held" in case:
        row |= {"held_memc": results[60]["evaluations"][-1]["means"]["loss"],
                "held_torch": held_out(torch, script, case["held"], model)}
    theirs = make()
    theirs.load_state_dict(start)
    begin = time.perf_counter()
    want = in_torch(case, theirs, steps)
    row |= {"seconds_torch": round(time.perf_counter() - begin, 1), "metric_torch": case["of"](theirs)}
    exact = make().double()
    exact.load_state_dict(start)
    wide = in_torch(case, exact, steps, wide=True)
    row |= {"first_memc": losses[0], "first_torch": want[0], "last_memc": losses[-1], "last_torch": want[-1],
            "difference_10": difference(losses[:10], want[:10]), "difference": difference(losses, want),
            "rounding_10": difference(want[:10], wide[:10]), "rounding": difference(want, wide),
            "metric_f64": case["of"](exact.float())}
    return row


def table(rows):
    lines = ["| run | parameters | steps | first loss | PyTorch's | last loss | PyTorch's | metric | memc | PyTorch | f64 |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        losses = [f"{r[key]:.4f}" for key in ("first_memc", "first_torch", "last_memc", "last_torch")]
        metrics = [f"{r[key]:.4f}" for key in ("metric_memc", "metric_torch", "metric_f64")]
        cells = [r["run"], f"{r['parameters']:,}", str(r["steps"]), *losses, r["metric"], *metrics]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| run | largest difference, 10 steps | rounding | all steps | rounding |", "|---|---|---|---|---|"]
    for r in rows:
        lines.append(f"| {r['run']} | {r['difference_10']:.1e} | {r['rounding_10']:.1e} | {r['difference']:.1e} | "
                     f"{r['rounding']:.1e} |")
    lines += ["", "| run | budgets, bytes | saves of the three budgets | killed, resumed at | its save |",
              "|---|---|---|---|---|"]
    for r in rows:
        said = ["identical" if r[key] else "DIFFERENT" for key in ("same_saves", "same_resumed")]
        budgets = ", ".join(f"{r[f'budget_{share}']:,}" for share in SHARES)
        lines.append(f"| {r['run']} | {budgets} | {said[0]} | {r['resumed_at']} of {r['steps']} | {said[1]} |")
    lines += ["", "| run | loss on held-out data, `memrun --eval` | PyTorch, the same weights |", "|---|---|---|"]
    lines += [f"| {r['run']} | {r['held_memc']:.7f} | {r['held_torch']:.7f} |" for r in rows if "held_memc" in r]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="*")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "target" / "release")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    args = parser.parse_args()
    if args.table:
        print(table([json.loads(line) for line in args.table.read_text().splitlines()]))
        return
    import contextlib
    import torch
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    args.bin, args.out = args.bin.resolve(), args.out and args.out.resolve()
    rows = []
    for name, case in cases().items():
        if not fnmatch.fnmatch(name, args.only):
            continue
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            rows.append(one(args, name, case))
        print(json.dumps(rows[-1]), flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
