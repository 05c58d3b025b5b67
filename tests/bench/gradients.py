"""Holds step 0 of training graphs, as memc plans it and memrun runs it, against ONNX Runtime.

Usage: python tests/bench/gradients.py MODEL... [--budgets 100,60,0] [--verify] [--smooth]
Needs: a release build of memc and memrun; the packages of models/gen/artifacts.py; safetensors.

A MODEL is a training_model.onnx, or a one-file step whose output X_new (or, without one, X_grad) belongs to the input X; shapes are
static. Initial values are drawn here and given to both sides, and so are the data; dropout masks are memc's, drawn a second time by
models/gen/oracle.py.

memrun saves states, so that gradients are read from them: of artifacts by one step of gradient descent at a rate of
2^30, where w' is -rate * g; of a one-file step X_grad is carried into X; a step with its own optimizer is held by all
that it carries. Budgets are shares of the unplanned peak in percent, 0 the smallest feasible budget.

An activation within rounding of zero passes its gradient in one program and not in the other, which moves whole channels. Two
things tell this from a mistake: `sensitivity` is what ONNX Runtime's own gradients do when weights and data move by one
unit in the last place, and --smooth puts Tanh in the place of every Relu of training artifacts, for both sides. The choice
between equal maxima of a pooling window remains.

Prints one JSON object with a row for each model: loss of both; for what starts at zero or is a gradient, and for all else, the
largest difference relative to the largest element of its tensor, the tensor, the largest absolute difference, and the
difference of all together in the Euclidean norm (`norm`); whether all budgets gave the same bits; seconds a step took.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from safetensors.numpy import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / "release"
sys.path.insert(0, str(ROOT / "models" / "gen"))
from oracle import Artifact, Step  # noqa: E402

RATE = 2.0**30
# Gradients that are zero but for rounding, as of a bias in front of a normalisation, are held against this share of the largest.
FLOOR = 1e-3
SGD = ROOT / "models" / "mlp_s_sgd" / "optimizer_model.onnx"
TYPES = {"f32": np.float32, "i64": np.int64, "i32": np.int32, "bool": np.bool_}


def tool(name, *args):
    run = subprocess.run([str(BIN / name), *map(str, args)], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{name} {' '.join(map(str, args))}\n{run.stderr}")
    return json.loads(run.stdout)


def typed(text):
    name, _, extents = text.rstrip("]").partition("[")
    return [int(d) for d in extents.split(",") if d], TYPES[name]


def start(state, random):
    """The initial value of a state."""
    shape, dtype = typed(state["type"])
    if state["role"] == "optimizer" or dtype != np.float32 or "running_mean" in state["name"]:
        return np.zeros(shape, dtype)
    if "running_var" in state["name"]:
        return np.ones(shape, dtype)
    if len(shape) < 2:
        middle = 1.0 if state["name"].endswith("weight") else 0.0
        return (middle + random.uniform(-0.1, 0.1, shape)).astype(dtype)
    # He's bound, which keeps the size of activations through Relu, where nothing normalises them.
    bound = (6 / np.prod(shape[1:])) ** 0.5
    return random.uniform(-bound, bound, shape).astype(dtype)


def draw(entry, random):
    """The value of a data input."""
    shape, dtype = typed(entry["type"])
    if np.issubdtype(dtype, np.floating):
        return random.standard_normal(shape).astype(dtype)
    low, high = entry["feed"]["low"], entry["feed"]["high"]
    if "mask" in entry["name"]:
        value = np.ones(shape, dtype)
        value[..., -(-3 * shape[-1] // 4) :] = 0
        return value
    return random.integers(low, high if high > low else 2, shape).astype(dtype)


def expected(model, states, data, artifact):
    """Loss, and by name what states hold after the step, or their gradient."""
    if artifact:
        graph = Artifact(model)
        values = {name: states[name].copy() for name in graph.values}
        loss, gradients = graph.run(values, [data[name] for name in graph.data])
        moved = {n: v for n, v in values.items() if n not in gradients and not np.array_equal(v, states[n])}
        return float(loss), gradients | moved
    out = Step(model).run(states | data | {"step": np.array(1, np.float32)})
    loss = float(np.asarray(out["loss"]).reshape(-1)[0])
    new = {name.removesuffix("_new").removesuffix("_grad"): value for name, value in out.items()}
    return loss, {name: value for name, value in new.items() if name in states}


def difference(pairs):
    """How two sets of tensors differ."""
    worst, absolute, off, size = (0.0, ""), 0.0, 0.0, 0.0
    least = FLOOR * max((float(np.abs(want).max(initial=0)) for _, want in pairs.values()), default=0.0)
    for name, (have, want) in pairs.items():
        have, want = have.astype(np.float64), want.astype(np.float64)
        gap, largest = np.abs(have - want).max(initial=0), np.abs(want).max(initial=0)
        if not np.isfinite(have).all() or not np.isfinite(want).all():
            return {"relative": None, "tensor": name}
        worst = max(worst, (float(gap / max(largest, least, 1e-30)), name))
        absolute = max(absolute, float(gap))
        off, size = off + float(((have - want) ** 2).sum()), size + float((want**2).sum())
    return {"tensors": len(pairs), "relative": worst[0], "tensor": worst[1], "absolute": absolute,
            "norm": (off / size) ** 0.5 if size else 0.0}


def shaken(tensors, random):
    """`tensors` with every float moved by one unit in the last place."""
    move = lambda v: np.nextafter(v, random.choice([-np.inf, np.inf], v.shape).astype(v.dtype)) if v.any() else v
    return {n: move(v) if np.issubdtype(v.dtype, np.floating) else v for n, v in tensors.items()}


def smoothed(model, folder):
    """The artifact with Tanh for Relu."""
    proto = onnx.load(str(model))
    for node in proto.graph.node:
        if node.op_type in ("Relu", "ReluGrad"):
            node.op_type = node.op_type.replace("Relu", "Tanh")
    onnx.save(proto, folder / model.name)
    return folder / model.name


def row_of(model, budgets, verify, smooth, folder):
    artifact = model.name == "training_model.onnx"
    row = {"model": str(model)}
    if artifact and smooth:
        model = smoothed(model, folder)
    args, lr = [model], []
    if artifact:
        args += ["--optimizer-model", SGD]
        lr = ["--lr", RATE]
    plan, init, saved = folder / "m.plan", folder / "init.safetensors", folder / "out.safetensors"
    if not artifact:
        outputs = [o.name for o in onnx.load(str(model), load_external_data=False).graph.output]
        args += [f"--carry={n.removesuffix('_grad')}={n}" for n in outputs if n.endswith("_grad")]
    need = tool("memc", "estimate", *args, "--json")
    row |= {key: need[key] for key in ("peak_bytes", "smallest_feasible_bytes")}
    states, first, runs = None, None, []
    for share in budgets:
        budget = max(need["peak_bytes"] * share // 100, need["smallest_feasible_bytes"])
        done = tool("memc", "compile", *args, "--device", "cpu", "--gpu-mem", f"{budget}B", "-o", plan, "--json")
        if states is None:
            listed = tool("memc", "dump", plan, "--json")
            random = np.random.default_rng(7)
            states = {s["name"]: start(s, random) for s in listed["states"] if s["role"] != "const"}
            data = {i["feed"]["source"]: draw(i, random) for i in listed["inputs"] if i["feed"]["kind"] == "data"}
            save_file(states, init)
            feeds = []
            for i, (name, value) in enumerate(data.items()):
                np.save(folder / f"{i}.npy", value)
                feeds += ["--input", f"{name}=@{folder / f'{i}.npy'}"]
        more = ["--verify"] if verify else []
        ran = tool("memrun", plan, "--init", init, *feeds, *lr, "--save", saved, "--json", *more)
        after = {n: v for n, v in load_file(saved).items() if n in states}
        same = first is None or (first[0] == ran["losses"] and all(np.array_equal(first[1][n], v, equal_nan=True) for n, v in after.items()))
        first = first or (ran["losses"], after)
        runs.append({"budget": budget, "arena": done["arena_bytes"], "swap_in": done["swap_in_bytes"],
                     "recomputed": done["recompute_ops"], "same_bits": same, "step_s": ran["step_ns"][0] / 1e9})
    row["runs"] = runs
    loss, want = expected(model, states, data, artifact)
    row["loss"], row["loss_onnxruntime"] = ran["losses"][0], loss
    have = dict(first[1])
    trained = set(want)
    if artifact:
        trained = {s["name"] for s in listed["states"] if s["role"] == "param"}
        have |= {n: (states[n].astype(np.float64) - have[n]) / RATE for n in trained}
    missing = sorted(set(want) - set(have))
    if missing:
        row["not_saved"] = missing
    pairs = {n: (have[n], w) for n, w in want.items() if n in have and w.size}
    is_gradient = lambda n: (artifact and n in trained) or (not artifact and (not states[n].any() or ".grads" in model.name))
    row["gradients"] = difference({n: p for n, p in pairs.items() if is_gradient(n)})
    _, other = expected(model, shaken(states, random), shaken(data, random), artifact)
    row["sensitivity"] = difference({n: (other[n], w) for n, (_, w) in pairs.items() if is_gradient(n)})
    row["other_states"] = difference({n: p for n, p in pairs.items() if not is_gradient(n)})
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--budgets", default="100,60,0")
    parser.add_argument("--smooth", action="store_true", help="Tanh for Relu, in training artifacts")
    parser.add_argument("--verify", action="store_true", help="also let memrun compare with its unplanned run")
    args = parser.parse_args()
    rows = []
    for model in args.models:
        with tempfile.TemporaryDirectory() as folder:
            budgets = [int(b) for b in args.budgets.split(",")]
            rows.append(row_of(model.resolve(), budgets, args.verify, args.smooth, pathlib.Path(folder)))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
