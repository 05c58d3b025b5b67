"""The stages of `gpu.py run`. Each measures cells and keeps their rows; what follows from them is gpureport.py's."""
import concurrent.futures
import itertools
import json
import pathlib
import re
import sys
import time

import gpuhost
import gpujobs
import gpusmoke
from gpudata import difference, digest
from gpulab import OutOfTime, parsed
from gpumodels import SMALL
from gpuplans import ahead, at_load, at_shares, replanned

GPU_HOWS = [[], ["--no-graph"], ["--check-memory"], ["--no-graph", "--check-memory"], ["--verify"]]
# Large models run in fewer ways: a process takes seconds to start and save.
LARGE_HOWS = [[], ["--no-graph", "--check-memory"], ["--verify"]]
CPU_HOWS = [[], ["--check-memory"], ["--verify"]]
TIME = "its time was over"
TIMED, TORCH_STEPS, IDEAL_STEPS = 30, 15, 6
# Commands of `bits` and `sanitizer` at a time: nothing of them is a time, and a process takes seconds to start.
AT_ONCE = 8
BUDGETS = [100, 60, 40]
CAPS = [50, 25, 12.5]
TF32 = ["--tf32"]
# Whose unplanned step a stage's caps are shares of, where it is not memrun's.
OF = {"torch-caps": "torch"}
WHOS = ("memrun", "checkpoint", "save_on_cpu")
# memrun as it is, and without a graph.
OWN = {"memrun": [], "issued": ["--no-graph"]}
# The unplanned step, a second time; and an error of a modelled step from which traces are kept.
AGAIN, LOOK = "again", 0.02
PEER = pathlib.Path(__file__).with_name("gputorch.py")


class NotRun(Exception):
    """Why a stage cannot run here; another run may find what it lacks."""


def hows_of(lab, model):
    return CPU_HOWS if not lab.gpu else GPU_HOWS if model in SMALL else LARGE_HOWS


def bits_cell(model, share, how):
    return f"{model} {share:g} {' '.join(how)}".strip()


def bits_names(lab):
    for model, (_, plans) in lab.models("bits").items():
        yield from (bits_cell(model, share, how) for share in plans for how in hows_of(lab, model))
        yield from [f"{model} cpu"] if lab.gpu else []


def bits(lab):
    """Every plan in several ways: losses and states; and a GPU's first steps' distance from the CPU's. Several cells run at a time."""
    def one(model, share, plan, how):
        def measure():
            if plan["plan"] is None:
                return {"infeasible": plan["infeasible"]}
            row, states = lab.states(plan["plan"], lab.device, *how, *lab.fed(model, whole[model], lab.steps))
            return {**row, **({"states": digest(states)} if states else {})}
        lab.cell("bits", bits_cell(model, share, how), measure, model=model, share=share, how=" ".join(how))

    def beside_cpu(model):
        lab.cell("bits", f"{model} cpu", lambda: from_cpu(lab, model, whole[model]), model=model)

    models = {model: plans for model, (_, plans) in lab.models("bits").items()}
    whole = {model: plans[100]["plan"] for model, plans in models.items()}
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE if lab.gpu else 1) as pool:
        cells = []
        for model, plans in models.items():
            # Each writes files that its cells share.
            lab.fed(model, whole[model], lab.steps)
            cells += [pool.submit(one, model, share, plan, how) for share, plan in plans.items() for how in hows_of(lab, model)]
            cells += [pool.submit(beside_cpu, model)] if lab.gpu else []
        for cell in cells:
            cell.result()


def from_cpu(lab, model, plan):
    steps = lab.steps if model in SMALL else 1
    fed = lab.fed(model, plan, lab.steps)
    (mine, states), (other, on_cpu) = (lab.states(plan, at, *fed, steps=steps) for at in (lab.device, "cpu"))
    if states is None or on_cpu is None:
        return mine if states is None else other
    losses, beside = mine["losses"], other["losses"]
    pairs = [(a, b) for a, b in zip(losses, beside) if None not in (a, b)]
    far = max((abs(a - b) / (1 + abs(b)) for a, b in pairs), default=0.0)
    element, norm, compared = difference(states, on_cpu)
    return {"cpu_steps": steps, "losses_compared": len(pairs), "states_compared": compared, "loss_from_cpu": far,
            "finite_alike": [a is None for a in losses] == [b is None for b in beside],
            "state_from_cpu": element[0], "state": element[1], "norm_from_cpu": norm[0], "norm_state": norm[1]}


CHECKS = (("memcheck", ["--no-libraries"]), ("racecheck", ["--no-libraries"]), ("memcheck", []))


def sanitizer_names(lab):
    models = [model for model in lab.models("bits") if model in SMALL]
    return [" ".join([check, model, *flags]) for check, flags in CHECKS for model in models]


def sanitizer(lab):
    """Memory errors and races of every kernel of the small models, issued one by one. The smallest plan has the most copies."""
    tool = gpuhost.sanitizer()
    if not lab.gpu or not tool:
        raise NotRun("compute-sanitizer was not found" if lab.gpu else "it needs a GPU")
    plans = {name: plans[min(plans)]["plan"] for name, (_, plans) in lab.models("bits").items() if name in SMALL}

    def one(check, flags, model, plan):
        out, wrong = lab.call(tool, "--tool", check, "--error-exitcode", 99, lab.folder / "memrun", lab.folder / plan, "--device",
                              lab.device, "--steps", 2, "--synthetic", "--no-graph", "--no-progress", *flags, *lab.host())
        text = (out or "") + (wrong["error"] if wrong else "")
        if "Device not supported" in text:
            return {"skipped": "compute-sanitizer says that the device is not supported"}
        said = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", text)
        found = int(said[1]) if said else None
        # An error of memrun itself, or no summary, says nothing about memory.
        if not wrong and found is None:
            wrong = {"error": "compute-sanitizer printed no summary"}
        # What it found is among what memrun prints.
        lines = [line for line in text.splitlines() if line.startswith("=========")]
        return {"found": found, **({"said": "\n".join(lines[:40])} if found else {}), **(wrong or {})}

    def cell(check, flags, model, plan):
        lab.cell("sanitizer", " ".join([check, model, *flags]), lambda: one(check, flags, model, plan), model=model, tool=check,
                 flags=" ".join(flags))

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        cells = [pool.submit(cell, check, flags, model, plan) for check, flags in CHECKS for model, plan in plans.items()]
        for begun in cells:
            begun.result()


def profiled(lab):
    """The models that plans are made of on the machine, with their unplanned plans and the shares that later stages have."""
    found = {}
    for stage, shares in (("throughput", [100, CAPS[0]]), ("accuracy", BUDGETS)):
        for name, (_, plans) in lab.models(stage).items():
            found.setdefault(name, (plans[100], []))[1].extend(shares)
    return found


def profiles(lab):
    """Measured profiles, one model after the other. Plans for them are made in the background from then on."""
    for name, (plan, shares) in profiled(lab).items():
        lab.cell("profiles", name, lambda: ahead(lab, name, plan, sorted(set(shares))), model=name)


def accuracy_names(lab):
    return [f"{model} {share}" for model in lab.models("accuracy") for share in [*BUDGETS, AGAIN]]


def accuracy(lab):
    """The step that memc says a plan takes, planned with the measured profile, beside the step that it takes. Profiles and runs follow
    each other within a minute, at load; the unplanned step is measured a second time at the end, which shows how far clocks drifted."""
    for model, (_, plans) in lab.models("accuracy").items():
        if lab.done("accuracy", [f"{model} {share}" for share in [*BUDGETS, AGAIN]]):
            continue
        caps = at_shares(plans[100], BUDGETS)
        profile, made = replanned(lab, model, plans[100], caps.values())
        for share in BUDGETS:
            def measure():
                row = dict(made[caps[share]])
                if "plan" in row:
                    row |= lab.memrun(row["plan"], lab.device, steps=at_load(row["planned_ns"]) if lab.gpu else TIMED)
                if "step_ns" in row:
                    row["error_of_step"] = row["planned_ns"] / row["step_ns"] - 1
                    row |= traces(lab, row["plan"], profile) if abs(row["error_of_step"]) > LOOK else {}
                return row
            first = lab.cell("accuracy", f"{model} {share}", measure, model=model, share=share)
            whole = first if share == BUDGETS[0] else whole

        def once_more():
            row = dict(made[caps[BUDGETS[0]]])
            row |= lab.memrun(row["plan"], lab.device, steps=at_load(row["planned_ns"]) if lab.gpu else TIMED) if "plan" in row else {}
            return row | ({"drift": row["step_ns"] / whole["step_ns"] - 1} if "step_ns" in row and "step_ns" in whole else {})
        lab.cell("accuracy", f"{model} {AGAIN}", once_more, model=model, share=None)


def traces(lab, plan, profile):
    """The planned and a measured step, for whoever looks into a difference."""
    stem = lab.folder / pathlib.Path(plan).stem
    _, wrong = lab.call(lab.folder / "memrun", lab.folder / plan, "--device", lab.device, "--steps", 5, "--synthetic", "--no-progress",
                        "--trace", f"{stem}.measured-trace.json", *lab.host())
    if not wrong:
        _, wrong = lab.call(lab.folder / "memc", "trace", lab.folder / plan, "--device", profile, "-o", f"{stem}.planned-trace.json")
    return {"traces": wrong} if wrong else {}


def peer(lab, model, way, cap, tf32):
    """A row about a step of PyTorch, in a process of its own."""
    spec = {"model": model["net"], "batch": model["batch"], "way": way, "device": lab.device, "cap_bytes": cap, "tf32": tf32,
            "steps": TORCH_STEPS if lab.gpu else 1}
    start = time.monotonic()
    out, wrong = lab.call(sys.executable, PEER, json.dumps(spec))
    if wrong:
        said = wrong["error"].splitlines()[-1]
        if said.startswith(("ModuleNotFoundError", "ImportError")):
            return {"skipped": "PyTorch is not installed" if "'torch'" in said else f"PyTorch cannot be imported: {said}"}
        return wrong
    return parsed(out) | ({"meter": lab.meter.since(start)} if lab.meter else {})


def key(name, who, share, of):
    return f"{name} {who} {share:g} of {of}" if share < 100 else f"{name} {who}"


def throughput_cells(net, stage):
    """Who is measured at which share. `throughput` has what the criteria are about, `caps` the rest."""
    unplanned = [("memrun", 100), ("memrun", 50), ("issued", 50), ("eager", 100)]
    half = [(who, 50) for who in ("checkpoint", "eager", "save_on_cpu")]
    defaults = [("default", 100), *([("default_nchw", 100)] if net == "resnet50" else [])]
    defaults += [(who, 50) for who in ("default", "default+checkpoint", "default+save_on_cpu")]
    return {"throughput": [*unplanned, *half, *defaults],
            "caps": [("tuned", 100), *((who, share) for share in CAPS[1:] for who in WHOS)],
            "tf32": [("memrun", 100), ("eager", 100), ("tuned", 100), *((who, 50) for who in WHOS)],
            "torch-caps": [(who, share) for share in CAPS for who in WHOS]}[stage]


def of_peers(lab, cells):
    """Cells without what of PyTorch is not asked for, and what only a GPU can run."""
    wanted = lambda who, share: not lab.peers or who in lab.peers or f"{who}@{share:g}" in lab.peers
    return [(who, share) for who, share in cells if (who == "memrun" or lab.gpu if who in OWN else wanted(who, share))]


def throughput_names(lab, stage):
    of = OF.get(stage, "memrun")
    return [key(name, who, share, of) for name, (model, _) in lab.models("throughput").items()
            for who, share in of_peers(lab, throughput_cells(model["net"], stage))]


def throughput(lab, stage):
    """memrun and PyTorch, unplanned and at caps: shares of memrun's unplanned arena, or of PyTorch's unplanned peak. A cap is that of
    the tensors: of the arena, and of PyTorch's allocator."""
    for name, (model, plans) in lab.models("throughput").items():
        cells = of_peers(lab, throughput_cells(model["net"], stage))
        if not lab.done(stage, [key(name, who, share, OF.get(stage, "memrun")) for who, share in cells]):
            compare(lab, stage, name, model, plans[100], cells)


def compare(lab, stage, name, model, plan, cells):
    """Measures cells of a model. Plans are made when the first cell of memrun needs one, for all shares of these cells."""
    of, flags = OF.get(stage, "memrun"), TF32 if stage == "tf32" else []
    base, made, lacks = plan, {}, None
    if of == "torch":
        eager = lab.rows.get(("cell", ("throughput", key(name, "eager", 100, of))), {})
        base = {"arena_bytes": eager.get("peak_bytes")}
        lacks = None if "peak_bytes" in eager else eager.get("skipped", "PyTorch's unplanned peak was not measured")
    caps = {} if lacks else at_shares(base, dict.fromkeys(share for _, share in cells))
    own = dict.fromkeys(caps[share] for who, share in cells if who in OWN and caps)

    def mine(cap, *how):
        if not made:
            made.update(replanned(lab, name, plan, own, *flags)[1])
        row = dict(made[cap])
        if "plan" not in row:
            return row
        return row | lab.memrun(row["plan"], lab.device, *how, *flags, *lab.fed(name, plan["plan"], TIMED), steps=TIMED)

    for who, share in cells:
        cap = caps.get(share) if share < 100 else None

        def measure():
            if lacks:
                return {"skipped": lacks}
            found = mine(caps[share], *OWN[who]) if who in OWN else peer(lab, model, who, cap, bool(flags))
            if "step_ns" in found:
                found["per_s"] = round(model["units"] / found["step_ns"] * 1e9, 2)
                whole = lab.rows.get(("cell", (stage if flags else "throughput", key(name, "memrun", 100, of))), {}).get("per_s")
                found |= {"of_unplanned": found["per_s"] / whole} if who in OWN and share < 100 and whole else {}
            return found
        lab.cell(stage, key(name, who, share, of), measure, model=name, who=who, share=share, of=of if share < 100 else None, cap_bytes=cap)


def ideal_names(lab):
    return [f"{name} {share:g}" for name, (_, plans) in lab.models("ideal").items() for share in plans]


def ideal(lab, stage="ideal", measured=False):
    """Models of several times the cap, beside themselves without one: the plans for the built-in profile, or for the measured one."""
    for name, (model, plans) in lab.models("ideal").items():
        keys = {share: f"{name} {share:g}" for share in plans}
        if lab.done(stage, keys.values()):
            continue
        made = plans
        if measured:
            caps = at_shares(plans[100], plans)
            _, by_cap = replanned(lab, name, plans[100], caps.values())
            made = {share: by_cap[cap] for share, cap in caps.items()}
        for share, at in keys.items():
            def measure():
                row = {k: v for k, v in made[share].items() if k not in ("model", "share", "stages")}
                if row.get("plan"):
                    row |= lab.memrun(row["plan"], lab.device, steps=IDEAL_STEPS)
                return row
            lab.cell(stage, at, measure, model=name, share=share)


# Stages in the order in which they run: what measures, its cells, and the share of a run's time that it may take, where others are
# to follow. They are more than one together: what is left goes on in the next run.
STAGES = {
    "smoke": (gpusmoke.smoke, gpusmoke.names, 0.25),
    "profiles": (profiles, profiled, 0.6),
    "bits": (bits, bits_names, 0.6),
    "throughput": (lambda lab: throughput(lab, "throughput"), lambda lab: throughput_names(lab, "throughput"), 0.8),
    "accuracy": (accuracy, accuracy_names, 0.6),
    "jobs": (gpujobs.jobs, gpujobs.names, 0.3),
    "caps": (lambda lab: throughput(lab, "caps"), lambda lab: throughput_names(lab, "caps"), 0.6),
    "sanitizer": (sanitizer, sanitizer_names, 0.35),
    "ideal": (ideal, ideal_names, 0.6),
    "tf32": (lambda lab: throughput(lab, "tf32"), lambda lab: throughput_names(lab, "tf32"), 0.25),
    "torch-caps": (lambda lab: throughput(lab, "torch-caps"), lambda lab: throughput_names(lab, "torch-caps"), 0.5),
    "ideal-measured": (lambda lab: ideal(lab, "ideal-measured", True), ideal_names, 0.6),
}


def run_stage(lab, name):
    """How a stage ended: whether every cell of it has been measured, if not why, and how many are left."""
    measure, names, _ = STAGES[name]
    why = None
    try:
        measure(lab)
    except OutOfTime:
        why = TIME
    except NotRun as reason:
        why = str(reason)
    except Exception as error:  # Whatever one stage meets, the others are measured.
        why = f"{type(error).__name__}: {error}"
    names = list(names(lab))
    left = lab.left(name, names)
    skipped = {lab.rows.get(("cell", (name, cell)), {}).get("skipped") for cell in left} - {None}
    said = "; ".join(filter(None, [why, *sorted(skipped)]))
    why = (said or "not measured") if left else None if names else "the folder has no plans for it"
    return {"complete": why is None, "cells": len(names), "left": len(left), "why": why}
