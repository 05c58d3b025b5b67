"""ONNX Runtime as an oracle: losses and gradients of one-step training graphs, dropout included.

Packages: those of artifacts.py.

`Step` runs a one-file step, `Artifact` a training_model.onnx in a plain inference session. The latter's gradient buffers and running
statistics are updated in place, so the arrays that were fed hold the results. Dropout's bits differ from runtime to runtime, so its
masks are drawn here, by memc's definition, and fed: element i of the n-th dropout of the graph is kept if word i % 4 of
Philox-4x32-10 of the counter (i / 4, n, step) under the key `seed` is at least ratio * 2^32.
"""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

BUFFER = "_grad.accumulation.buffer"
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def philox(counter, key):
    """Words of the blocks `counter` (4 arrays of uint64 below 2^32) under `key` (2 integers)."""
    a, b, c, d = counter
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    for i in range(10):
        k = [np.uint64((key[0] + i * 0x9E3779B9) & 0xFFFFFFFF), np.uint64((key[1] + i * 0xBB67AE85) & 0xFFFFFFFF)]
        p, q = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = (q >> half) ^ b ^ k[0], q & low, (p >> half) ^ d ^ k[1], p & low
    return np.stack([a, b, c, d], axis=-1)


def mask(shape, ratio, seed, stream, step):
    """True where dropout keeps an element."""
    count = int(np.prod(shape, dtype=np.int64))
    block = np.arange(-(-count // 4), dtype=np.uint64)
    same = lambda v: np.full_like(block, v)
    words = philox([block, same(0), same(stream), same(step)], [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF])
    return (words.reshape(-1)[:count] >= np.uint64(float(np.float32(ratio)) * 2**32)).reshape(shape)


def extents(info):
    return [d.dim_value for d in info.type.tensor_type.shape.dim]


def zeros(info):
    return np.zeros(extents(info), helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))


def widen(model):
    """Runs f16 and bf16 nodes in f32, each result rounded; whether there were any.

    ONNX Runtime has no CPU kernels for bf16, and runs f16 in f32 without rounding between nodes.
    """
    kinds = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    used = {a.i for n in model.graph.node for a in n.attribute if a.name == "to"} & set(kinds)
    if not used:
        return False
    (kind,) = used
    narrow, nodes = set(), []
    for node in model.graph.node:
        to = next((a for a in node.attribute if a.name == "to"), None)
        nodes.append(node)
        if node.op_type == "Cast" and to.i != kind or not (node.op_type == "Cast" or narrow & set(node.input)):
            continue
        if to:
            to.i = TensorProto.FLOAT
        for i, name in enumerate(node.output):
            node.output[i] = f"{name}/exact"
            nodes.append(helper.make_node("Cast", [f"{name}/exact"], [f"{name}/rounded"], to=kind))
            nodes.append(helper.make_node("Cast", [f"{name}/rounded"], [name], to=TensorProto.FLOAT))
            narrow.add(name)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    kept = [v for v in model.graph.value_info if v.type.tensor_type.elem_type != kind]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    return True


def session(model):
    options = onnxruntime.SessionOptions()
    # On several threads ScatterND with addition loses updates of rows that occur more than once.
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if widen(model):
        # Otherwise a cast and its inverse go.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def feed_masks(model):
    """Makes the masks of active dropout inputs of the graph; their names, shapes, ratios and numbers."""
    graph = model.graph
    constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    values = [(n.output[0], a.t) for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"]
    constants |= {name: numpy_helper.to_array(tensor) for name, tensor in values}
    shapes = {v.name: extents(v) for v in [*graph.value_info, *graph.input]}
    nodes, masks = [], []
    for node in graph.node:
        if node.op_type != "Dropout" or float(constants[node.input[1]]) == 0 or not constants[node.input[2]]:
            nodes.append(node)
            continue
        x, y = node.input[0], node.output[0]
        ratio = float(constants[node.input[1]])
        shape = next(shapes[n] for n in (y, x, f"{y}_grad", f"{x}_grad") if n in shapes)
        name = node.output[1] if len(node.output) > 1 and node.output[1] else f"{y}/mask"
        masks.append((name, shape, ratio, len(masks)))
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.BOOL, shape))
        scale = np.float32(1) / (np.float32(1) - np.float32(ratio))
        graph.initializer.append(numpy_helper.from_array(np.float32(scale), f"{name}/scale"))
        graph.initializer.append(numpy_helper.from_array(np.float32(0), f"{name}/zero"))
        nodes.append(helper.make_node("Mul", [x, f"{name}/scale"], [f"{name}/scaled"], name=f"{name}/mul"))
        nodes.append(helper.make_node("Where", [name, f"{name}/scaled", f"{name}/zero"], [y], name=f"{name}/where"))
    if masks:
        del graph.node[:]
        graph.node.extend(nodes)
    return masks


class Artifact:
    """One training_model.onnx with static shapes."""

    def __init__(self, path, seed=0):
        self.model = onnx.load(str(path))
        self.seed = seed
        self.masks = feed_masks(self.model)
        self.session = session(self.model)
        graph = self.model.graph
        self.inputs = {i.name: i for i in graph.input}
        self.trained = [n[: -len(BUFFER)] for n in self.inputs if n.endswith(BUFFER)]
        masks = {name for name, *_ in self.masks}
        skipped = {"lazy_reset_grad", *masks}
        rest = [n for n in self.inputs if n not in skipped and not n.endswith(BUFFER)]
        states = {n for n in rest if n in self.trained or n.endswith(STATISTICS)}
        # What is fed comes first; parameters and constants that are not trained follow.
        first = next(i for i, n in enumerate(rest) if n in states or "." in n)
        self.data = rest[:first]
        self.values = rest[first:]
        self.loss = graph.output[0].name

    def run(self, values, data, step=1):
        """Loss and gradients by parameter; running statistics in `values` move."""
        feed = {name: values[name] for name in self.values}
        feed |= dict(zip(self.data, data))
        gradients = {name: zeros(self.inputs[name + BUFFER]) for name in self.trained}
        feed |= {name + BUFFER: g for name, g in gradients.items()}
        feed["lazy_reset_grad"] = np.array([True])
        feed |= {name: mask(shape, ratio, self.seed, stream, step) for name, shape, ratio, stream in self.masks}
        loss = self.session.run([self.loss], feed)[0]
        return np.float32(np.asarray(loss).reshape(-1)[0]), gradients


class Step:
    """A one-file step with static shapes: states go in, outputs come out."""

    def __init__(self, path, seed=0):
        self.model = onnx.load(str(path))
        self.masks = feed_masks(self.model)
        self.seed = seed
        self.session = session(self.model)
        self.outputs = [o.name for o in self.model.graph.output]

    def run(self, feed, step=1):
        """Outputs by name."""
        masks = {name: mask(shape, ratio, self.seed, stream, step) for name, shape, ratio, stream in self.masks}
        named = {i.name for i in self.session.get_inputs()}
        feed = {name: value for name, value in (feed | masks).items() if name in named}
        return dict(zip(self.outputs, self.session.run(self.outputs, feed)))
