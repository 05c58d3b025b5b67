"""Trains real models through the package memc and with PyTorch, and prints a table: which are captured, and whether
losses, the change of every weight and the set of changed tensors agree, at three budgets.

Usage: python tests/bench/capture.py [--only GLOBS] [--rewrite] [--out ROWS.jsonl] [--table ROWS.jsonl]
Needs: the package memc (`pip install ./frontend/python`); torch 2.15, torchvision 0.29, transformers 5.24, timm 1.0.

Models, rates and the meaning of `ok`, `rounding` and `wrong` are those of models.py; here they take five steps. Budgets
are none, 60 % of the unplanned peak, and the smallest that memc names. Where no plan of 60 % exists, the smallest is the
second. `bits`: whether losses and all states are the same bits at all three, without memory-saving rewrites unless
--rewrite is given. `seconds`: capture, translation, a compile of effort 0 without a budget, and the five steps.
"""
import argparse
import copy
import fnmatch
import json
import multiprocessing
import os
import pathlib
import time
import warnings

import models

STEPS = 5
SECONDS = 600


def computed(torch, kind, labels):
    """The model's loss, as `compute` of a step."""
    F = torch.nn.functional
    if kind == "own":
        return lambda model, *args: model(*args)
    if kind == "mse":
        return lambda model, *args: F.mse_loss(model(*args[:-1]), args[-1])

    def cross_entropy(model, *args):
        out = model(*args[:-1])
        return F.cross_entropy(out.movedim(-1, 1) if kind == "tokens" and out.ndim > 2 else out, args[-1])

    return cross_entropy


def ran(torch, memc, make, start, inputs, compute, rate, rewrite, budget):
    """Losses and states of the steps within a budget, and the step."""
    model = make()
    model.load_state_dict(start)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)
    step = memc.train_step(model, None, optimizer, inputs, compute=compute, budget=budget, rewrite=rewrite, effort=0)
    losses = [float(step(*inputs)) for _ in range(STEPS)]
    return losses, {k: v.clone() for k, v in model.state_dict().items()}, step


def smallest(memc, attempt):
    """The smallest budget in bytes that memc names."""
    try:
        attempt("1B")
    except memc.InfeasibleBudget as error:
        return error.smallest
    return None


def one(case, rewrite):
    warnings.filterwarnings("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    import memc
    import modelset
    import torch
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, args, kind, _ = modelset.MODELS[case]()
    model.train()
    start = copy.deepcopy(model.state_dict())
    row = {"model": case}
    labels, loss, _ = models.goal(torch, kind, model(*args).detach())
    inputs = (*args, labels) if labels is not None else args
    rate, want, after = models.trained(torch, model, start, args, loss, STEPS)
    begun = time.monotonic()
    def attempt(budget):
        return ran(torch, memc, lambda: copy.deepcopy(model), start, inputs, computed(torch, kind, labels), rate, rewrite, budget)


    try:
        have, saved, step = attempt(None)
    except (memc.CaptureError, memc.UnsupportedOp) as error:
        return row | {"outcome": "refused", "why": str(error)}
    row |= {"seconds": round(time.monotonic() - begun, 1), "ops": step.plan.ops, "peak": step.unplanned_peak}
    row |= models.compared(torch, start, after, saved, have, want)
    if row["outcome"] == "differs":
        ours, theirs = models.spread(torch, model, start, args, loss, rate, saved, have)
        within = all(a <= 3 * b + 1e-5 for a, b in zip(ours, theirs))
        row |= {"outcome": "rounding"} if within else {"outcome": "wrong", "why": f"errors {ours}, not {theirs}"}
    least = smallest(memc, attempt)
    row["smallest"] = least
    equal = []
    for budget in ["peak*60%", f"{least}B"][: 2 if least else 1]:
        try:
            losses, states, planned = attempt(budget)
        except memc.InfeasibleBudget:
            continue
        equal.append(losses == have and all(torch.equal(states[k], saved[k]) or bool((states[k] != states[k]).any()) for k in saved))
        row.setdefault("peaks", []).append(planned.peak)
    return row | {"bits": all(equal) if equal else None, "budgets": len(equal)}


def child(case, rewrite, pipe):
    try:
        row = one(case, rewrite)
    except Exception as error:
        row = {"model": case, "outcome": "failed", "why": repr(error)[:300]}
    pipe.send(row)


def measured(case, rewrite):
    """The row of a model, from a process of its own, so that none ends the others."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=child, args=(case, rewrite, theirs))
    process.start()
    row = ours.recv() if ours.poll(SECONDS) else {"model": case, "outcome": "failed", "why": f"no result within {SECONDS} s"}
    process.kill()
    process.join()
    return row


def table(rows):
    lines = ["| model | ops | s | outcome | unplanned, MiB | smallest, % | bits |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        why = f": {row['why'][:110]}".replace("|", "/") if "why" in row else ""
        share = f"{100 * row['smallest'] / row['peak']:.0f}" if row.get("smallest") else ""
        bits = {True: "equal", False: "differ", None: ""}[row.get("bits")]
        peak = f"{row['peak'] / 2**20:.1f}" if "peak" in row else ""
        lines.append(f"| {row['model']} | {row.get('ops', '')} | {row.get('seconds', '')} | {row['outcome']}{why} | {peak} | {share} | {bits} |")
    counts = {o: [r["outcome"] for r in rows].count(o) for o in sorted({r["outcome"] for r in rows})}
    return "\n".join([*lines, f"\n{len(rows)} models: {counts}; bits equal in {sum(r.get('bits') is True for r in rows)}"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="*", help="patterns of models, separated by commas")
    parser.add_argument("--rewrite", action="store_true", help="with memory-saving rewrites")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    args = parser.parse_args()
    if args.table:
        print(table([json.loads(line) for line in args.table.read_text().splitlines()]))
        return
    import modelset
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out and args.out.exists() else []
    done = {row["model"] for row in rows}
    for case in modelset.MODELS:
        if case in done or not any(fnmatch.fnmatch(case, p) for p in args.only.split(",")):
            continue
        rows.append(measured(case, args.rewrite))
        print(json.dumps(rows[-1]), flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
