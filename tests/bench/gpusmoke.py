"""The first stage of `gpu.py run`: in a minute and a half, whether anything runs on the machine, in which ways, and what fails."""
import pathlib
import shutil
import sys

import gpudata
import gpuhost
from gpumodels import SMALL

# Seconds that a step may take.
STEP = 25
# Ways of running a plan, from the plainest to the usual one.
WAYS = {True: [["--no-libraries", "--no-graph"], ["--no-libraries"], []], False: [["--check-memory"], []]}
# Two that must give the same bits.
PLAIN = {True: ["--no-graph"], False: ["--check-memory"]}
BATCHES = 20
PEER = pathlib.Path(__file__).with_name("gputorch.py")


def chosen(lab):
    """A small model, and one with larger inputs, with their plans by share."""
    models = {name: plans for name, (_, plans) in lab.models("bits").items()}
    small = [name for name in models if name in SMALL] or list(models)
    large = [name for name in models if name not in SMALL]
    return models, "cnn_bn" if "cnn_bn" in models else small[0], large[0] if large else None


def logged(lab, run):
    """A row, with what NVIDIA's libraries say meanwhile of calls that they refuse. They write files, so that memrun's output is its
    own."""
    folder = lab.folder / "library-logs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    row = run({"CUBLASLT_LOG_LEVEL": "1", "CUBLASLT_LOG_FILE": str(folder / "cublaslt.%i"), "CUDNN_LOGLEVEL_DBG": "1",
               "CUDNN_LOGDEST_DBG": str(folder / "cudnn")})
    said = {path.name.partition(".")[0]: path.read_text(errors="replace")[-1500:] for path in sorted(folder.iterdir())}
    return row | ({"libraries_say": said} if any(said.values()) else {})


def ran(lab, plan, *more, **how):
    return lambda env: lab.memrun(plan, lab.device, *more, limit=STEP, more=env, **how)


def varied(lab, model, plan):
    """Steps that each have another batch, as a graph and without one: an input that is overwritten while a step still reads it gives
    other losses."""
    def run(env):
        fed = lab.fed(model, plan, BATCHES)
        rows = []
        for way in (PLAIN[lab.gpu], []):
            row, states = lab.states(plan, lab.device, *way, *fed, steps=BATCHES, limit=STEP, more=env)
            if states is None:
                return row
            rows.append(row | {"states": gpudata.digest(states)})
        plain, usual = rows
        first = next((n for n, pair in enumerate(zip(plain["losses"], usual["losses"]), 1) if pair[0] != pair[1]), None)
        return usual | {"alike": first is None and plain["states"] == usual["states"], "first_other_step": first, "batches": len(fed) // 2}
    return run


def tool(lab, verb, plan, *more):
    """A verb of memrun on a copy of the plan, which it may change."""
    def run(env):
        copy = lab.folder / f"smoke-{verb}.plan"
        shutil.copy(lab.folder / plan, copy)
        _, wrong = lab.call(lab.folder / "memrun", verb, copy, "--device", lab.device, *more, *lab.host(verb), limit=STEP, more=env)
        return wrong or {}
    return run


def peer(lab):
    out, wrong = lab.call(sys.executable, PEER, "--smoke", lab.device, limit=STEP)
    said = wrong["error"].splitlines()[-1] if wrong else ""
    return {"skipped": said} if said.startswith(("ModuleNotFoundError", "ImportError")) else wrong or {"says": out.splitlines()[-1]}


def steps(lab):
    """Steps by name, each a function that gives a row from variables for the environment; the machine is told first."""
    models, small, large = chosen(lab)
    plans, least = models[small], min(models[small])
    found = {"environment": lambda env: {"says": gpuhost.environment(lab.folder) | {"devices": lab.call(lab.folder / "memrun", "devices",
                                                                                                    "--json", limit=STEP)[0]}}}
    for way in WAYS[lab.gpu]:
        found[" ".join([small, *way])] = ran(lab, plans[100]["plan"], *way)
    found[f"another batch every step: {small}"] = varied(lab, small, plans[100]["plan"])
    found[f"{small} at {least} %, verified"] = ran(lab, plans[least]["plan"], "--verify")
    if large:
        found[f"another batch every step: {large}"] = varied(lab, large, models[large][100]["plan"])
        small_cap = min(models[large])
        found[f"{large} at {small_cap} %"] = ran(lab, models[large][small_cap]["plan"])
    if lab.gpu:
        found["tune"] = tool(lab, "tune", plans[100]["plan"])
    short = ["--warm-up", 1] if lab.takes("profile", "--warm-up") else []
    found["profile"] = tool(lab, "profile", plans[100]["plan"], "-o", lab.folder / "smoke.profile.json", "--steps", 3, *short)
    found["PyTorch"] = lambda env: peer(lab)
    return found


def names(lab):
    return list(steps(lab)) if lab.models("bits") else []


def smoke(lab):
    """Every step by itself: one that fails or hangs takes no time of the others beyond its own limit."""
    for name, run in (steps(lab) if lab.models("bits") else {}).items():
        lab.cell("smoke", name, lambda: logged(lab, run))


def hopeless(lab):
    """Why no later stage can measure memrun: its usual way failed in this run. None where it works, or was not tried."""
    if not lab.models("bits"):
        return None
    _, small, _ = chosen(lab)
    row = lab.rows.get(("cell", ("smoke", small)), {})
    return f"{row['cell']}: {row['error'].splitlines()[-1]}" if "error" in row else None
