"""Trains real models from PyTorch with memc and with PyTorch, and prints a table: which are accepted, and whether
losses, the change of every weight and the set of changed tensors agree.

Usage: python tests/bench/models.py [--only GLOBS] [--list] [--bin FOLDER] [--out ROWS.jsonl] [--table ROWS.jsonl]
Needs: a release build of memc and memrun; torch 2.15, torchvision 0.29, transformers 5.23, timm 1.0, safetensors, onnx.

Each model (modelset.py) has random weights, reduced size and no dropout. Both exporters write it, as
frontend/PYTORCH.md says. memc compiles it at 60 % of its unplanned peak, or at the smallest budget that it names;
memrun takes three steps of SGD on real arrays; PyTorch takes the same steps from the same weights. The rate is the
largest of 0.1 to 0.0001 at which PyTorch's loss changes by at most 8 %.

`ok`: losses within 1e-4 (relative to the loss, where that is above 1), the change of each weight within 1 % of its
largest element's, and exactly the tensors changed that PyTorch changes by more than rounding. `rounding`: the tensors
agree, losses or changes differ by more, and PyTorch itself differs as much: from the same steps in double precision,
memc is no further than three times the furthest of five runs of PyTorch whose weights start with random last bits.
Networks with batch normalisation over few values are of this kind. `wrong`: anything else that ran. `refused`,
`export`: memc's, or the exporter's, message.
"""
import argparse
import contextlib
import copy
import fnmatch
import io
import json
import multiprocessing
import os
import pathlib
import re
import subprocess
import tempfile
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXPORTERS = ("torchscript", "dynamo")
SECONDS = 240
# Tensors behind `detach`, which the older exporter drops.
DETACHED = {
    "byol": ["/f_1/Gemm_output_0"],
    "vqvae_straight_through": ["/Sub_1_output_0", "/Expand_1_output_0"],
}


def exported(torch, model, args, path, exporter):
    names = [f"x{i}" for i in range(len(args))]
    more = {"dynamo": True, "optimize": False, "verbose": False} if exporter == "dynamo" else \
        {"dynamo": False, "training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.onnx.export(model, args, path, input_names=names, output_names=["out"], **more)
    return names


def losses_of(torch, model, args, loss, rate, steps=3):
    """Losses of SGD steps; the model is trained by them."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)
    out = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model(*args))
        value.backward()
        optimizer.step()
        out.append(value.item())
    return out


def trained(torch, model, start, args, loss, steps=3):
    """The rate, PyTorch's losses and its states after the steps."""
    for rate in (0.1, 0.01, 0.001, 0.0001):
        model.load_state_dict(start)
        losses = losses_of(torch, model, args, loss, rate, steps)
        if rate == 0.0001 or all(abs(x - losses[0]) <= 0.08 * abs(losses[0]) for x in losses):
            return rate, losses, {k: v.clone() for k, v in model.state_dict().items()}


def in_double(torch, value):
    return value.double() if value.is_floating_point() else value


def changed(start, change):
    """States that each are changed; what modules note about their versions stays."""
    out = copy.copy(start)
    out.update({name: change(value) for name, value in start.items()})
    return out


def spread(torch, model, start, args, loss, rate, saved, have):
    """Errors of memc and of PyTorch's own rounding against double precision, each of losses and of changes."""
    exact = copy.deepcopy(model).double()
    exact.load_state_dict(changed(start, lambda v: in_double(torch, v)))
    doubled = [in_double(torch, a) for a in args]
    want = losses_of(torch, exact, doubled, loss, rate, len(have))
    after = exact.state_dict()
    names = [k for k in saved if k in after and after[k].is_floating_point() and saved[k].shape == after[k].shape]
    size = {k: (after[k] - start[k].double()).abs().max().item() for k in names if after[k].numel()}
    counted = [k for k in size if size[k] > 2e-5 * max(start[k].abs().max().item(), 1e-3)]

    def errors(losses, states):
        of_losses = max(abs(a - b) / max(abs(b), 1) for a, b in zip(losses, want))
        return of_losses, max(((states[k].double() - after[k]).abs().max().item() / size[k] for k in counted), default=0)

    def nudged(v):
        return v * (1 + (torch.rand_like(v) - 0.5) * 2.4e-7) if v.is_floating_point() else v

    theirs = []
    for seed in range(5):
        torch.manual_seed(seed)
        model.load_state_dict(changed(start, nudged) if seed else start)
        losses = losses_of(torch, model, args, loss, rate, len(have))
        theirs.append(errors(losses, model.state_dict()))
    return errors(have, saved), tuple(map(max, zip(*theirs)))


def goal(torch, kind, out):
    """Labels, the loss in PyTorch, and memc's spelling of it."""
    F = torch.nn.functional
    torch.manual_seed(1)
    if kind == "own":
        return None, lambda value: value, "output"
    if kind == "mse":
        labels = torch.randn_like(out)
        return labels, lambda value: F.mse_loss(value, labels.to(value.dtype)), "mse"
    axis = -1 if kind == "tokens" else 1
    shape = list(out.shape)
    classes = shape.pop(axis)
    labels = torch.randint(0, classes, shape)
    move = (lambda v: v.movedim(-1, 1)) if axis == -1 and out.ndim > 2 else (lambda v: v)
    spelled = "cross-entropy" if out.ndim == 2 else f"cross-entropy:axis={axis}"
    return labels, lambda value: F.cross_entropy(move(value), labels), spelled


def run(bin_folder, name, *args):
    return subprocess.run([str(bin_folder / name), *map(str, args)], capture_output=True, text=True, timeout=SECONDS)


def said(result):
    lines = [line for line in result.stderr.splitlines() if "error" in line] or result.stderr.splitlines()[-1:]
    more = result.stderr.splitlines()
    return " ".join((lines + more[more.index(lines[0]) + 1:])[:4])[:300] if lines else "no message"


def compiled(bin_folder, model, loss, rate, plan, flags):
    """The result of the first compile that has a plan: at 60 % of the peak, or at the smallest budget."""
    args = [model, "--effort", "0", "--loss", loss, "--optimizer", f"sgd:lr={rate}", "-o", plan, *flags]
    first = run(bin_folder, "memc", "compile", *args, "--device", "cpu", "--gpu-mem", "peak*60%")
    least = re.search(r"--gpu-mem (\d+B)", first.stderr)
    if first.returncode == 4 and least:
        return run(bin_folder, "memc", "compile", *args, "--device", "cpu", "--gpu-mem", least[1])
    return first


def one(case, exporter, bin_folder, folder):
    """A row about a model and an exporter."""
    warnings.filterwarnings("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    import numpy
    import torch
    from safetensors.torch import load_file, save_model
    import modelset
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make, args, kind, flags = modelset.MODELS[case]()
    model = make.train()
    row = {"model": case, "exporter": exporter}
    start = copy.deepcopy(model.state_dict())
    path = folder / "model.onnx"
    try:
        names = exported(torch, model, args, str(path), exporter)
    except Exception as error:
        return row | {"outcome": "export", "why": " ".join(str(error).split())[:200]}
    model.load_state_dict(start)
    labels, loss, spelled = goal(torch, kind, model(*args).detach())
    rate, want, after = trained(torch, model, start, args, loss)
    trainable = [n for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]
    (folder / "parameters.txt").write_text("\n".join(trainable))
    flags = [*flags, "--parameters", folder / "parameters.txt"]
    if exporter == "torchscript":
        # The older exporter runs the model, which moves its statistics before it writes them.
        model.load_state_dict(start)
        save_model(model, str(folder / "start.safetensors"))
        flags = [*flags, "--checkpoint", folder / "start.safetensors"]
        for tensor in DETACHED.get(case, []):
            flags += ["--stop-gradient", tensor]
    plan = folder / "model.plan"
    result = compiled(bin_folder, path, spelled, rate, plan, flags)
    row |= {"rate": rate, "warnings": [line for line in result.stderr.splitlines() if line.startswith("warning")]}
    if result.returncode:
        return row | {"outcome": "refused", "why": said(result)}
    feeds = []
    wanted = set(json.loads(run(bin_folder, "memrun", plan, "--plan-info", "--json").stdout)["inputs"])
    for name, value in [*zip(names, args), ("labels", labels)]:
        if name in wanted:
            numpy.save(folder / f"{name}.npy", value.numpy())
            feeds += ["--input", f"{name}=@{folder / name}.npy"]
    result = run(bin_folder, "memrun", plan, "--steps", 3, "--json", "--save", folder / "saved", *feeds)
    if result.returncode:
        return row | {"outcome": "refused", "why": said(result)}
    have = json.loads(result.stdout)["losses"]
    saved = load_file(folder / "saved")
    row |= compared(torch, start, after, saved, have, want)
    if row["outcome"] != "differs":
        return row
    (ours, theirs) = spread(torch, model, start, args, loss, rate, saved, have)
    row |= {"errors": ours, "errors_of_rounding": theirs}
    within = all(a <= 3 * b + 1e-5 for a, b in zip(ours, theirs))
    return row | ({"outcome": "rounding"} if within else {"outcome": "wrong", "why": f"errors {ours}, not {theirs}"})


def compared(torch, start, after, saved, have, want):
    row = {"loss_difference": max(abs(a - b) / max(abs(b), 1) for a, b in zip(have, want)),
           "moved": abs(want[0] - want[-1])}
    worst, wrong = 0.0, []
    for name, value in saved.items():
        if name not in after or not value.is_floating_point() or value.shape != after[name].shape:
            continue
        ours, theirs = (value - start[name]).double(), (after[name] - start[name]).double()
        if not value.numel():
            continue
        # Gradients that are zero but for rounding move a weight by its last bits.
        rounding = 2e-6 * max(start[name].abs().max().item(), 1e-3)
        moved, wanted = ours.abs().max().item(), theirs.abs().max().item()
        if (moved > 10 * rounding and wanted <= rounding) or (wanted > 10 * rounding and moved <= rounding):
            wrong.append(name)
        off = (ours - theirs).abs().max().item() / wanted if wanted > 10 * rounding else 0.0
        worst = max(worst, off)
    row |= {"change_difference": worst, "wrong_tensors": wrong[:5]}
    if wrong:
        return row | {"outcome": "wrong", "why": "tensors changed: " + ", ".join(wrong[:3])}
    return row | {"outcome": "ok" if row["loss_difference"] <= 1e-4 and worst <= 1e-2 else "differs"}


def child(case, exporter, bin_folder, pipe):
    with tempfile.TemporaryDirectory() as folder:
        try:
            row = one(case, exporter, bin_folder, pathlib.Path(folder))
        except Exception as error:
            row = {"model": case, "exporter": exporter, "outcome": "failed", "why": repr(error)[:300]}
    pipe.send(row)


def measured(case, exporter, bin_folder):
    """The row of a model, from a process of its own, so that none ends the others."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(case, exporter, bin_folder, theirs))
    process.start()
    row = {"model": case, "exporter": exporter, "outcome": "failed", "why": f"no result within {SECONDS} s"}
    if ours.poll(SECONDS * 2):
        row = ours.recv()
    process.kill()
    process.join()
    return row


def table(rows):
    cells = {}
    for row in rows:
        # PyTorch colours the steps of an export.
        why = re.sub(r"\x1b\[\d+m", "", row.get("why", "")).split(" This is step")[0].replace("|", "/")
        cells.setdefault(row["model"], {})[row["exporter"]] = row["outcome"] + (f": {why[:90]}" if why else "")
    lines = ["| model | TorchScript | dynamo |", "|---|---|---|"]
    lines += [f"| {name} | {of.get(EXPORTERS[0], '')} | {of.get(EXPORTERS[1], '')} |" for name, of in cells.items()]
    for exporter in EXPORTERS:
        own = [row["outcome"] for row in rows if row["exporter"] == exporter]
        written = [o for o in own if o != "export"]
        right = sum(o in ("ok", "rounding") for o in written)
        counts = {o: own.count(o) for o in sorted(set(own))}
        lines.append(f"\n{exporter}: {right} of {len(written)} that it wrote are right; {counts}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="*", help="patterns of models, separated by commas")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "target" / "release")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    args = parser.parse_args()
    if args.table:
        print(table([json.loads(line) for line in args.table.read_text().splitlines()]))
        return
    import modelset
    modelset.torch.set_num_threads(1)
    cases = [name for name in modelset.MODELS if any(fnmatch.fnmatch(name, p) for p in args.only.split(","))]
    if args.list:
        print("\n".join(cases))
        return
    known = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out and args.out.exists() else []
    done = {(row["model"], row["exporter"]) for row in known}
    for case in cases:
        for exporter in EXPORTERS:
            if (case, exporter) in done:
                continue
            row = measured(case, exporter, args.bin)
            known.append(row)
            print(json.dumps(row), flush=True)
            if args.out:
                with args.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print(table(known))


if __name__ == "__main__":
    main()
