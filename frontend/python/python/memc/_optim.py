"""Updates of PyTorch's optimizers in memc's IR, by the hyperparameters of the optimizer object.

Contract: the same arithmetic as PyTorch's single-tensor implementation, up to rounding. State tensors have PyTorch's
names and shapes. Learning rates are inputs of the step; all else is fixed when the step is built.
"""

from __future__ import annotations

import torch

from ._errors import CaptureError
from ._ir import Module, Type, Value

# Hyperparameters that choose an implementation, not a result.
IGNORED = {"params", "lr", "foreach", "fused", "capturable", "differentiable", "initial_lr", "param_names"}
KINDS = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adam", torch.optim.Adagrad: "adagrad",
         torch.optim.RMSprop: "rmsprop"}


def groups_of(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> list[tuple[dict, list[str]]]:
    """Hyperparameters of each group, and the names of its parameters."""
    if type(optimizer) not in KINDS:
        known = ", ".join(kind.__name__ for kind in KINDS)
        raise CaptureError(f"the optimizer {type(optimizer).__name__} is not supported; use one of {known}")
    found = []
    for group in optimizer.param_groups:
        missing = [i for i, p in enumerate(group["params"]) if id(p) not in names]
        if missing:
            raise CaptureError(f"the optimizer has a parameter of shape {tuple(group['params'][missing[0]].shape)} that is "
                               "not one of the model's; train several modules as one, in a torch.nn.ModuleDict with "
                               "compute=, or give the optimizer this model's parameters alone")
        found.append((hyperparameters(group), [names[id(p)] for p in group["params"]]))
    return found


def hyperparameters(group: dict) -> dict:
    """All that a group fixes, as plain numbers."""
    plain = {}
    for key, value in group.items():
        if key not in IGNORED:
            plain[key] = tuple(map(float, value)) if isinstance(value, (tuple, list)) else \
                value.item() if isinstance(value, torch.Tensor) else value
    return plain


class Updater:
    """Appends updates to a module."""

    def __init__(self, module: Module, optimizer: torch.optim.Optimizer):
        self.m, self.kind = module, KINDS[type(optimizer)]
        self.states: dict[str, dict[str, Value]] = {}

    def state(self, parameter: str, name: str, w: Value, fill: float = 0.0) -> Value:
        init = "zeros" if fill == 0.0 else f"fill({fill!r})"
        value = self.m.state(f"{name}.{parameter}", w.type, "optimizer", init)
        self.states.setdefault(parameter, {})[name] = value
        return value

    def update(self, parameter: str, w: Value, g: Value, lr: Value, h: dict) -> Value:
        """New value of a parameter, whose states are carried on."""
        m = self.m
        m.loc, m.scope = f"optimizer {parameter}", f"{parameter}/update"
        g = m.unary("neg", m.cast(g, w.type.dtype)) if h.get("maximize") else m.cast(g, w.type.dtype)
        return getattr(self, f"_{self.kind}")(parameter, w, g, lr, h)

    def carry(self, states: list[Value], news: list[Value]) -> None:
        for state, new in zip(states, news):
            self.m.carry(state, new)

    def _sgd(self, name, w, g, lr, h):
        if h["momentum"] == 0:
            return self.m.op("sgd", [w, self.decayed(w, g, h), lr], w.type)
        v = self.state(name, "momentum_buffer", w)
        count = [self.m.step()] if h["dampening"] else []
        new, v_new = self.m.ops("momentum", [w, g, v, lr, *count], [w.type] * 2, alpha=float(h["momentum"]),
                                beta=1.0 - h["dampening"], l2=float(h["weight_decay"]), nesterov=h["nesterov"])
        self.carry([v], [v_new])
        return new

    def decayed(self, w, g, h):
        """The gradient with that of the squared norm of the weights."""
        decay = h.get("weight_decay", 0)
        return g if decay == 0 else self.m.binary("add", g, self.m.by("mul", w, decay))

    def _adam(self, name, w, g, lr, h):
        decoupled = h.get("decoupled_weight_decay", False)
        if h["amsgrad"]:
            return self.amsgrad(name, w, g, lr, h, decoupled)
        first, second = self.state(name, "exp_avg", w), self.state(name, "exp_avg_sq", w)
        decay = float(h["weight_decay"])
        new, *news = self.m.ops("adamw", [w, g, first, second, lr, self.m.step()], [w.type] * 3, alpha=h["betas"][0],
                                beta=h["betas"][1], epsilon=float(h["eps"]), weight_decay=decay if decoupled else 0.0,
                                bias_correction=True, decay_first=True, l2=0.0 if decoupled else decay)
        self.carry([first, second], news)
        return new

    def amsgrad(self, name, w, g, lr, h, decoupled):
        m, dtype = self.m, w.type.dtype
        states = [self.state(name, kind, w) for kind in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")]
        lr = m.cast(lr, dtype)
        if decoupled:
            shrink = m.binary("sub", m.scalar(1.0, dtype), m.by("mul", lr, h["weight_decay"]))
            w = m.binary("mul", w, shrink)
        else:
            g = self.decayed(w, g, h)
        first = self.average(states[0], g, h["betas"][0])
        second = self.average(states[1], m.binary("mul", g, g), h["betas"][1])
        most = m.binary("max", states[2], second)
        self.carry(states, [first, second, most])
        one, two = (m.cast(self.correction(beta), dtype) for beta in h["betas"])
        root = m.by("add", m.binary("div", m.unary("sqrt", most), m.unary("sqrt", two)), h["eps"])
        return m.binary("sub", w, m.binary("mul", m.binary("div", lr, one), m.binary("div", first, root)))

    def average(self, old, new, beta):
        """`beta * old + (1 - beta) * new`."""
        return self.m.binary("add", self.m.by("mul", old, beta), self.m.by("mul", new, 1.0 - beta))

    def correction(self, beta):
        """`1 - beta^step`."""
        m = self.m
        power = m.binary("pow", m.scalar(beta, "f32"), m.cast(m.step(), "f32"))
        return m.binary("sub", m.scalar(1.0, "f32"), power)

    def _adagrad(self, name, w, g, lr, h):
        total = self.state(name, "sum", w, float(h["initial_accumulator_value"]))
        count = [self.m.step()] if h["lr_decay"] else []
        new, total_new = self.m.ops("adagrad", [w, g, total, lr, *count], [w.type] * 2, epsilon=float(h["eps"]),
                                    l2=float(h["weight_decay"]), decay=float(h["lr_decay"]))
        self.carry([total], [total_new])
        return new

    def _rmsprop(self, name, w, g, lr, h):
        m, g, lr = self.m, self.decayed(w, g, h), self.m.cast(lr, w.type.dtype)
        square = self.state(name, "square_avg", w)
        square_new = self.average(square, m.binary("mul", g, g), h["alpha"])
        self.carry([square], [square_new])
        spread = square_new
        if h["centered"]:
            mean = self.state(name, "grad_avg", w)
            mean_new = self.average(mean, g, h["alpha"])
            self.carry([mean], [mean_new])
            spread = m.binary("sub", square_new, m.binary("mul", mean_new, mean_new))
        move = m.binary("div", g, m.by("add", m.unary("sqrt", spread), h["eps"]))
        if h["momentum"] > 0:
            buffer = self.state(name, "momentum_buffer", w)
            move = m.binary("add", m.by("mul", buffer, h["momentum"]), move)
            self.carry([buffer], [move])
        return m.binary("sub", w, m.binary("mul", lr, move))


def clipped(m: Module, gradients: dict[str, Value], norm: float | None, value: float | None) -> dict[str, Value]:
    """Gradients as `clip_grad_norm_` and `clip_grad_value_` leave them."""
    if value is not None:
        limit = lambda g: m.by("min", m.by("max", g, -value), value)
        gradients = {name: limit(g) for name, g in gradients.items()}
    if norm is None or not gradients:
        return gradients
    m.loc, m.scope = "clip_grad_norm_", "clip"
    squares = [m.op("sum_squares", [g], Type("f32", ())) for g in gradients.values()]
    total = squares[0]
    for square in squares[1:]:
        total = m.binary("add", total, square)
    length = m.by("add", m.unary("sqrt", total), 1e-6)
    factor = m.by("min", m.binary("div", m.scalar(norm, "f32"), length), 1.0)
    return {name: m.binary("mul", g, m.cast(factor, g.type.dtype)) for name, g in gradients.items()}
