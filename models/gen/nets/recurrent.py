"""Deep LSTMs, unrolled over time into primitive ops: SwapAdvisor's RNN-L-XK and BRNN-L-XK.

A character model: embedding, layers of LSTM cells, one output layer for all time steps. All cells of a layer (of a
direction) share its parameters. The first cell of a sequence starts from zeros, so it has no recurrent product and
no forgotten state.
"""

import math

from onnx import TensorProto

from .graph import BATCH, Graph


class Recurrent(Graph):
    def layer(self, xs, at, hidden):
        """One direction over the list of inputs; the outputs in the same order as the inputs."""
        rows, cin = xs[0].shape
        std = 1 / math.sqrt(3 * hidden)
        w = self.parameter(f"{at}.weight_ih", (4 * hidden, cin), std=std)
        u = self.parameter(f"{at}.weight_hh", (4 * hidden, hidden), std=std)
        b = self.parameter(f"{at}.bias", (4 * hidden,))
        narrow, wide = (rows, hidden), (rows, 4 * hidden)
        split = self.constant([hidden] * 4)
        h = c = None
        out = []
        for t, x in enumerate(xs):
            step = f"{at}.t{t}"
            z = self.one("Gemm", f"{step}.x", [x, w, b], wide, transB=1)
            if h is not None:
                r = self.one("Gemm", f"{step}.h", [h, u], wide, transB=1)
                z = self.add(z, r, f"{step}.z")
            names = [f"{step}.{gate}_in" for gate in "ifgo"]
            parts = self.op("Split", f"{step}.gates", [z, split], [narrow] * 4, outputs=names, axis=1)
            act = lambda i, gate, kind="Sigmoid": self.unary(kind, parts[i], f"{step}.{gate}")
            i, g, o = act(0, "i"), act(2, "g", "Tanh"), act(3, "o")
            kept = c
            c = self.one("Mul", f"{step}.ig", [i, g], narrow)
            if kept is not None:
                f = act(1, "f")
                c = self.add(self.one("Mul", f"{step}.fc", [f, kept], narrow), c, f"{step}.c")
            h = self.one("Mul", f"{step}.out", [o, self.unary("Tanh", c, f"{step}.tanh")], narrow)
            out.append(h)
        return out


def rnn(name, layers, hidden, steps=40, vocabulary=256, bidirectional=False):
    """Labels are ordered by time step, then sample, like the rows of the logits."""
    g = Recurrent(name)
    ids = g.input("input", (BATCH, steps), TensorProto.INT64)
    table = g.parameter("embedding.weight", (vocabulary, hidden), std=0.1)
    x = g.one("Gather", "embedding", [table, ids], (BATCH, steps, hidden), axis=0)
    names = [f"embedding.{t}" for t in range(steps)]
    xs = g.op("Split", "steps", [x, g.constant([1] * steps)], [(BATCH, 1, hidden)] * steps, outputs=names, axis=1)
    xs = [g.one("Squeeze", f"input.{t}", [x, g.constant([1])], (BATCH, hidden)) for t, x in enumerate(xs)]
    for i in range(layers):
        if bidirectional:
            ahead = g.layer(xs, f"layer{i}.forward", hidden)
            back = g.layer(xs[::-1], f"layer{i}.backward", hidden)[::-1]
            xs = [g.concat([a, b], f"layer{i}.concat.t{t}") for t, (a, b) in enumerate(zip(ahead, back))]
        else:
            xs = g.layer(xs, f"layer{i}", hidden)
    g.output(g.linear(g.concat(xs, "features", axis=0), "output", vocabulary))
    return g
