"""Tensors of gpu.py: the states that a run saves, how far they are from others, and inputs with a different batch for every step."""
import array
import hashlib
import json
import math
import random
import re

# Types of inputs that stacks are made for, as numpy names them, and the letters of Python's arrays; other inputs stay synthetic.
KINDS = {"f32": ("<f4", "f"), "i64": ("<i8", "q"), "i32": ("<i4", "i"), "bool": ("|b1", "b")}
# Numbers that random floats are drawn as; longer inputs repeat them, from another place in every step.
POOL = 1 << 16


def inputs(dumped):
    """Inputs that take data, of what `memc dump --json` says: name, type, shape, and the half-open range of integers."""
    found = []
    for one in dumped["inputs"]:
        kind, shape = re.fullmatch(r"(\w+)\[(.*)\]", one["type"]).groups()
        feed = one["feed"]
        if feed["kind"] == "data" and kind in KINDS:
            found.append((feed["source"], kind, [int(n) for n in shape.split(",") if n], (feed["low"], feed["high"])))
    return found


def size(kind, shape):
    return math.prod(shape) * array.array(KINDS[kind][1]).itemsize


def stack(path, kind, shape, limits, steps, seed):
    """Writes a .npy file of a batch for each step: normal floats, integers of the range, fair coins. No two steps have the same."""
    draw, (name, letter), count = random.Random(f"{seed} {kind} {shape}"), KINDS[kind], math.prod(shape)
    low, high = limits if limits[0] < limits[1] else (0, 2)
    pool = array.array(letter, (draw.gauss(0, 1) for _ in range(POOL))) if kind == "f32" else None
    head = repr({"descr": name, "fortran_order": False, "shape": (steps, *shape)})
    head += " " * (63 - (len(head) + 10) % 64) + "\n"
    with path.open("wb") as to:
        to.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode())
        for _ in range(steps):
            if pool is None:
                array.array(letter, (draw.randrange(low, high) for _ in range(count))).tofile(to)
            else:
                at = draw.randrange(POOL)
                turned = pool[at:] + pool[:at]
                (turned * (count // POOL + 1))[:count].tofile(to)


def tensors(path):
    """The tensors of a safetensors file: type and bytes by name."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + length:]
    return {n: (t["dtype"], body[t["data_offsets"][0]:t["data_offsets"][1]]) for n, t in header.items()}


def digest(states):
    text = hashlib.sha256()
    for name in sorted(states):
        text.update(name.encode())
        text.update(states[name][1])
    return text.hexdigest()[:16]


# Rounding noise of an element that is a sum of terms near 1.
NOISE = 1e-6


def difference(states, others, most=20_000):
    """How far f32 states are from others: the largest difference relative to 1 and the number, the largest norm of a state's
    difference over the other's norm, whose they are, and how many states were compared. Of a large state elements at equal distances
    count, about `most`. What is finite on one side alone, or missing on one, is infinitely far."""
    element, norm, compared = (0.0, ""), (0.0, ""), 0
    for name in sorted({**states, **others}):
        (dtype, data), (_, beside) = states.get(name, ("F32", b"")), others.get(name, ("F32", b""))
        if dtype != "F32":
            continue
        mine, other = (array.array("f", bytes(d)) for d in (data, beside))
        if len(mine) != len(other):
            return (math.inf, name), (math.inf, name), compared
        step = max(1, len(mine) // most)
        pairs = [(a, b) for a, b in zip(mine[::step], other[::step]) if math.isfinite(a) or math.isfinite(b)]
        gaps = [abs(a - b) if math.isfinite(a - b) else math.inf for a, b in pairs]
        scales = [abs(b) if math.isfinite(b) else 0.0 for _, b in pairs]
        element = max(element, (max((gap / (1 + scale) for gap, scale in zip(gaps, scales)), default=0.0), name))
        apart, whole = (math.sqrt(sum(x * x for x in xs)) for xs in (gaps, scales))
        # A gradient that is zero, such as that of a bias whose scores all grow alike, is rounding noise of the terms that cancel.
        norm = max(norm, (apart / (whole + NOISE * math.sqrt(len(pairs) or 1)), name))
        compared += 1
    return element, norm, compared
