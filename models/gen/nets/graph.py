"""A builder of forward ONNX models without weights.

Every parameter is a graph input with a static type; how it starts is said by the standard's own means, a
`TrainingInfoProto` whose initialization graph computes it (`RandomNormal` with a seed of its own, or
`ConstantOfShape`) and whose `initialization_binding` names it. Other graph inputs are data with the symbolic axis
`batch`. Constants are `Constant` nodes, so nothing but parameters and statistics has a binding.

Deliberately absent: shape arithmetic (shapes are known here, so constants say them), weights, losses unless the
network defines its own.
"""

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
IR_VERSION = 9
BATCH = "batch"


class Tensor:
    """A value of the graph: its name and its shape, whose first axis may be "batch" or None (unnamed)."""

    def __init__(self, name, shape):
        self.name, self.shape = name, tuple(shape)

    @property
    def channels(self):
        return self.shape[1]


def pair(x):
    return (x, x) if isinstance(x, int) else tuple(x)


class Graph:
    def __init__(self, name):
        self.name = name
        self.inputs, self.states, self.nodes, self.outputs = [], [], [], []
        self.bindings, self.init_nodes, self.init_outputs = [], [], {}
        self.init_shapes, self.constants = {}, {}
        self.parameters = 0
        self.parameter_tensors = 0
        self.names = set()

    # Values.

    def input(self, name, shape, dtype=TensorProto.FLOAT):
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return Tensor(name, shape)

    def output(self, tensor):
        self.outputs.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.shape))

    def _state(self, name, shape, value):
        assert name not in self.names, name
        self.names.add(name)
        self.states.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        self.bindings.append((name, value))
        return Tensor(name, shape)

    def _init_output(self, name, shape):
        self.init_outputs[name] = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def _filled(self, shape, value):
        """The initialization graph's tensor of this shape and value, one for all states that start so."""
        extent = "x".join(map(str, shape))
        name = f"{'zeros' if value == 0 else 'ones' if value == 1 else f'full_{value}'}_{extent}"
        if name not in self.init_outputs:
            self.init_shapes[f"shape_{extent}"] = np.array(shape, np.int64)
            fill = helper.make_tensor("value", TensorProto.FLOAT, [1], [value])
            self.init_nodes.append(helper.make_node("ConstantOfShape", [f"shape_{extent}"], [name], value=fill))
            self._init_output(name, shape)
        return name

    def parameter(self, name, shape, std=None, fill=0.0):
        """A trained tensor that starts normally distributed with deviation `std`, or filled."""
        self.parameters += math.prod(shape)
        self.parameter_tensors += 1
        if std is None:
            return self._state(name, shape, self._filled(shape, fill))
        value = f"{name}_init"
        seed = float(sum(1 for n in self.init_nodes if n.op_type == "RandomNormal") + 1)
        self.init_nodes.append(
            helper.make_node("RandomNormal", [], [value], scale=float(np.float32(std)), seed=seed, shape=shape)
        )
        self._init_output(value, shape)
        return self._state(name, shape, value)

    def buffer(self, name, shape, fill):
        """A tensor that the model updates itself (running statistics)."""
        return self._state(name, shape, self._filled(shape, fill))

    def constant(self, value, dtype=np.int64):
        array = np.array(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            name = f"const.{len(self.constants)}"
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
            self.constants[key] = Tensor(name, array.shape)
        return self.constants[key]

    def op(self, kind, name, inputs, shapes, outputs=None, **attributes):
        """A node called `name`; its results are called `outputs`, or like the node."""
        outputs = outputs or [name]
        names = [t.name if t is not None else "" for t in inputs]
        self.nodes.append(helper.make_node(kind, names, outputs, name=name, **attributes))
        assert name not in self.names, name
        self.names.add(name)
        return [Tensor(n, s) for n, s in zip(outputs, shapes)]

    def one(self, kind, name, inputs, shape, **attributes):
        return self.op(kind, name, inputs, [shape], **attributes)[0]

    # Layers with parameters.

    def conv(self, x, name, cout, kernel, stride=1, pad=0, groups=1, bias=False, gain=2.0):
        """Convolution; `pad` is a number, a pair, or "same" (as small as possible, more at the end)."""
        kernel, stride, cin = pair(kernel), pair(stride), x.channels
        pads = same_pads(x.shape[2:], kernel, stride) if pad == "same" else pair(pad) * 2
        weight = (cout, cin // groups, *kernel)
        w = self.parameter(f"{name}.weight", weight, std=math.sqrt(gain / math.prod(weight[1:])))
        b = [self.parameter(f"{name}.bias", (cout,))] if bias else []
        size = window(x.shape[2:], kernel, stride, pads)
        extra = {"group": groups} if groups > 1 else {}
        return self.one("Conv", name, [x, w, *b], (x.shape[0], cout, *size),
                        kernel_shape=kernel, strides=stride, pads=pads, **extra)

    def batch_norm(self, x, name, eps=1e-5, momentum=0.9, gamma=1.0):
        c = (x.channels,)
        scale, bias = self.parameter(f"{name}.weight", c, fill=gamma), self.parameter(f"{name}.bias", c)
        mean, var = self.buffer(f"{name}.running_mean", c, 0.0), self.buffer(f"{name}.running_var", c, 1.0)
        outputs = [name, f"{mean.name}_new", f"{var.name}_new"]
        return self.op("BatchNormalization", name, [x, scale, bias, mean, var], [x.shape, c, c],
                       outputs=outputs, epsilon=eps, momentum=momentum, training_mode=1)[0]

    def linear(self, x, name, out, std=None, bias=True):
        """`x W^T + b` of a matrix; by default W has the variance of the uniform distribution over 1/sqrt(in)."""
        rows, cin = x.shape
        w = self.parameter(f"{name}.weight", (out, cin), std=std or 1 / math.sqrt(3 * cin))
        b = [self.parameter(f"{name}.bias", (out,))] if bias else []
        return self.one("Gemm", name, [x, w, *b], (rows, out), transB=1)

    def dense(self, x, name, out, std):
        """`x W + b` over the last axis of a tensor of any rank, as MatMul and Add."""
        w = self.parameter(f"{name}.weight", (x.shape[-1], out), std=std)
        b = self.parameter(f"{name}.bias", (out,))
        y = self.one("MatMul", f"{name}.matmul", [x, w], (*x.shape[:-1], out))
        return self.one("Add", name, [y, b], y.shape)

    def layer_norm(self, x, name, eps):
        c = (x.shape[-1],)
        scale, bias = self.parameter(f"{name}.weight", c, fill=1.0), self.parameter(f"{name}.bias", c)
        return self.one("LayerNormalization", name, [x, scale, bias], x.shape, axis=-1, epsilon=eps)

    # Layers without.

    def unary(self, kind, x, name, **attributes):
        return self.one(kind, name, [x], x.shape, **attributes)

    def relu(self, x, name):
        return self.unary("Relu", x, name)

    def add(self, a, b, name):
        return self.one("Add", name, [a, b], a.shape)

    def dropout(self, x, name, ratio):
        if ratio == 0:
            return x
        inputs = [x, self.constant(ratio, np.float32), self.constant(True, np.bool_)]
        return self.one("Dropout", name, inputs, x.shape)

    def pool(self, kind, x, name, kernel, stride=None, pad=0, ceil=False, count_pad=False):
        kernel, stride = pair(kernel), pair(stride or kernel)
        pads = same_pads(x.shape[2:], kernel, stride) if pad == "same" else pair(pad) * 2
        size = window(x.shape[2:], kernel, stride, pads, ceil)
        extra = {"ceil_mode": 1} if ceil else {}
        if count_pad:
            extra["count_include_pad"] = 1
        return self.one(kind, name, [x], (*x.shape[:2], *size), kernel_shape=kernel, strides=stride, pads=pads, **extra)

    def max_pool(self, x, name, kernel, stride=None, pad=0, ceil=False):
        return self.pool("MaxPool", x, name, kernel, stride, pad, ceil)

    def avg_pool(self, x, name, kernel, stride=None, pad=0, count_pad=False):
        return self.pool("AveragePool", x, name, kernel, stride, pad, count_pad=count_pad)

    def global_pool(self, x, name="avgpool"):
        """Mean over the image, as a matrix."""
        return self.flatten(self.one("GlobalAveragePool", name, [x], (*x.shape[:2], 1, 1)), f"{name}.flatten")

    def flatten(self, x, name):
        return self.one("Flatten", name, [x], (x.shape[0], math.prod(x.shape[1:])), axis=1)

    def concat(self, xs, name, axis=1):
        total = None if any(x.shape[axis] in (None, BATCH) for x in xs) else sum(x.shape[axis] for x in xs)
        shape = [total if i == axis else d for i, d in enumerate(xs[0].shape)]
        return self.one("Concat", name, xs, shape, axis=axis)

    def reshape(self, x, name, to, shape):
        return self.one("Reshape", name, [x, self.constant(to)], shape)

    def transpose(self, x, name, perm):
        return self.one("Transpose", name, [x], [x.shape[p] for p in perm], perm=perm)

    # The file.

    def model(self):
        graph = helper.make_graph(self.nodes, self.name, self.inputs + self.states, self.outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        model.producer_name = "memc models/gen/zoo.py"
        info = model.training_info.add()
        shapes = [numpy_helper.from_array(a, n) for n, a in sorted(self.init_shapes.items())]
        outputs = list(self.init_outputs.values())
        info.initialization.CopyFrom(helper.make_graph(self.init_nodes, "initialization", [], outputs, shapes))
        for name, value in self.bindings:
            info.initialization_binding.add(key=name, value=value)
        return model


def window(size, kernel, stride, pads, ceil=False):
    up = lambda n, d: -(-n // d) if ceil else n // d
    return tuple(up(s + pads[i] + pads[i + 2] - k, st) + 1 for i, (s, k, st) in enumerate(zip(size, kernel, stride)))


def same_pads(size, kernel, stride):
    """Padding with which the output has ceil(size / stride) elements; the odd one goes to the end."""
    total = [max((-(-s // st) - 1) * st + k - s, 0) for s, k, st in zip(size, kernel, stride)]
    return tuple(t // 2 for t in total) + tuple(t - t // 2 for t in total)


def image(graph, size, channels=3):
    return graph.input("input", (BATCH, channels, size, size))


def encode(model):
    return model.SerializeToString(deterministic=True)


def check(graph, model):
    """Raises unless the file is valid and its shapes are those the builder computed."""
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    for want, got in zip(graph.outputs, inferred.graph.output):
        for mine, theirs in zip(want.type.tensor_type.shape.dim, got.type.tensor_type.shape.dim, strict=True):
            assert mine == theirs or not mine.WhichOneof("value"), (want, got)
    known = {v.name for v in [*inferred.graph.value_info, *inferred.graph.output]}
    missing = [o for n in model.graph.node for o in n.output if o not in known]
    assert not missing, missing[:5]
