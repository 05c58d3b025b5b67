"""Inception-v3 (Szegedy et al., 2016) and Inception-v4 (Szegedy et al., 2017)."""

import numpy as np
from onnx import TensorProto

from .graph import BATCH, Graph, image


class Inception(Graph):
    """Convolutions are followed by batch normalisation and ReLU; `scale` multiplies their channels."""

    def __init__(self, name, scale):
        super().__init__(name)
        self.scale = scale

    def unit(self, x, at, width, kernel, stride=1, pad=0):
        width = max(int(width * self.scale), 1)
        x = self.conv(x, f"{at}.conv", width, kernel, stride, pad)
        return self.relu(self.batch_norm(x, f"{at}.bn", eps=1e-3), f"{at}.relu")

    def chain(self, x, at, *units):
        """Units (width, kernel[, stride]) in a row; kernels larger than 1 keep the size unless they have a stride."""
        for i, (width, kernel, *stride) in enumerate(units):
            pad = 0 if stride else tuple(k // 2 for k in np.broadcast_to(kernel, 2).tolist())
            x = self.unit(x, f"{at}_{i + 1}", width, kernel, *stride, pad=pad)
        return x


WIDE, TALL = (1, 7), (7, 1)


def block_a(g, x, at, pool, count_pad=True):
    branches = [
        g.chain(x, f"{at}.branch1x1", (64, 1)),
        g.chain(x, f"{at}.branch5x5", (48, 1), (64, 5)),
        g.chain(x, f"{at}.branch3x3dbl", (64, 1), (96, 3), (96, 3)),
        g.chain(g.avg_pool(x, f"{at}.pool", 3, 1, 1, count_pad), f"{at}.branch_pool", (pool, 1)),
    ]
    return g.concat(branches, at)


def block_c(g, x, at, c):
    branches = [
        g.chain(x, f"{at}.branch1x1", (192, 1)),
        g.chain(x, f"{at}.branch7x7", (c, 1), (c, WIDE), (192, TALL)),
        g.chain(x, f"{at}.branch7x7dbl", (c, 1), (c, TALL), (c, WIDE), (c, TALL), (192, WIDE)),
        g.chain(g.avg_pool(x, f"{at}.pool", 3, 1, 1, True), f"{at}.branch_pool", (192, 1)),
    ]
    return g.concat(branches, at)


def block_e(g, x, at):
    a = g.chain(x, f"{at}.branch3x3", (384, 1))
    b = g.chain(x, f"{at}.branch3x3dbl", (448, 1), (384, 3))
    fork = lambda y, name: [g.chain(y, f"{name}a", (384, (1, 3))), g.chain(y, f"{name}b", (384, (3, 1)))]
    branches = [
        g.chain(x, f"{at}.branch1x1", (320, 1)),
        *fork(a, f"{at}.branch3x3_2"),
        *fork(b, f"{at}.branch3x3dbl_3"),
        g.chain(g.avg_pool(x, f"{at}.pool", 3, 1, 1, True), f"{at}.branch_pool", (192, 1)),
    ]
    return g.concat(branches, at)


def v3(name, size=299, classes=1000, scale=1):
    """Its loss is in the graph: cross-entropy of the output plus 0.4 times that of the auxiliary classifier."""
    g = Inception(name, scale)
    x = g.unit(image(g, size), "Conv2d_1a_3x3", 32, 3, 2)
    x = g.unit(g.unit(x, "Conv2d_2a_3x3", 32, 3), "Conv2d_2b_3x3", 64, 3, pad=1)
    x = g.max_pool(x, "maxpool1", 3, 2)
    x = g.unit(g.unit(x, "Conv2d_3b_1x1", 80, 1), "Conv2d_4a_3x3", 192, 3)
    x = g.max_pool(x, "maxpool2", 3, 2)
    for at, pool in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        x = block_a(g, x, at, pool)
    at = "Mixed_6a"
    x = g.concat([
        g.chain(x, f"{at}.branch3x3", (384, 3, 2)),
        g.chain(x, f"{at}.branch3x3dbl", (64, 1), (96, 3), (96, 3, 2)),
        g.max_pool(x, f"{at}.pool", 3, 2),
    ], at)
    for at, c in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        x = block_c(g, x, at, c)
    y = g.unit(g.avg_pool(x, "AuxLogits.pool", 5, 3), "AuxLogits.conv0", 128, 1)
    y = g.unit(y, "AuxLogits.conv1", 768, min(5, y.shape[2]))
    aux = g.linear(g.global_pool(y, "AuxLogits.avgpool"), "AuxLogits.fc", classes, std=0.001)
    at = "Mixed_7a"
    x = g.concat([
        g.chain(x, f"{at}.branch3x3", (192, 1), (320, 3, 2)),
        g.chain(x, f"{at}.branch7x7x3", (192, 1), (192, WIDE), (192, TALL), (192, 3, 2)),
        g.max_pool(x, f"{at}.pool", 3, 2),
    ], at)
    x = block_e(g, block_e(g, x, "Mixed_7b"), "Mixed_7c")
    logits = g.linear(g.dropout(g.global_pool(x), "dropout", 0.5), "fc", classes)
    labels = g.input("labels", (BATCH,), TensorProto.INT64)
    main = g.one("SoftmaxCrossEntropyLoss", "main_loss", [logits, labels], (), reduction="mean")
    aux = g.one("SoftmaxCrossEntropyLoss", "aux_loss", [aux, labels], (), reduction="mean")
    aux = g.one("Mul", "aux_loss_scaled", [aux, g.constant(0.4, np.float32)], ())
    g.output(g.add(main, aux, "loss"))
    return g


def v4(name, size=299, classes=1000, scale=1):
    """SwapAdvisor's Inception-X is this network with all convolutions X times as wide."""
    g = Inception(name, scale)
    x = g.unit(image(g, size), "stem.conv1", 32, 3, 2)
    x = g.unit(g.unit(x, "stem.conv2", 32, 3), "stem.conv3", 64, 3, pad=1)
    x = g.concat([g.max_pool(x, "stem.3a.pool", 3, 2), g.unit(x, "stem.3a.conv", 96, 3, 2)], "stem.3a")
    a = g.unit(g.chain(x, "stem.4a.branch0", (64, 1)), "stem.4a.branch0_2", 96, 3)
    b = g.chain(x, "stem.4a.branch1", (64, 1), (64, WIDE), (64, TALL))
    x = g.concat([a, g.unit(b, "stem.4a.branch1_4", 96, 3)], "stem.4a")
    x = g.concat([g.unit(x, "stem.5a.conv", 192, 3, 2), g.max_pool(x, "stem.5a.pool", 3, 2)], "stem.5a")

    def block(x, at, pool, *chains):
        branches = [g.chain(x, f"{at}.branch{i}", *c) for i, c in enumerate(chains)]
        y = g.avg_pool(x, f"{at}.pool", 3, 1, 1)
        return g.concat([*branches, g.chain(y, f"{at}.branch_pool", (pool, 1))], at)

    def reduction(x, at, *chains):
        branches = [g.chain(x, f"{at}.branch{i}", *c) for i, c in enumerate(chains)]
        return g.concat([*branches, g.max_pool(x, f"{at}.pool", 3, 2)], at)

    for i in range(4):
        x = block(x, f"inception_a{i}", 96, [(96, 1)], [(64, 1), (96, 3)], [(64, 1), (96, 3), (96, 3)])
    x = reduction(x, "reduction_a", [(384, 3, 2)], [(192, 1), (224, 3), (256, 3, 2)])
    for i in range(7):
        x = block(x, f"inception_b{i}", 128, [(384, 1)], [(192, 1), (224, WIDE), (256, TALL)],
                  [(192, 1), (192, TALL), (224, WIDE), (224, TALL), (256, WIDE)])
    x = reduction(x, "reduction_b", [(192, 1), (192, 3, 2)], [(256, 1), (256, WIDE), (320, TALL), (320, 3, 2)])
    for i in range(3):
        at = f"inception_c{i}"
        a = g.chain(x, f"{at}.branch1", (384, 1))
        b = g.chain(x, f"{at}.branch2", (384, 1), (448, (3, 1)), (512, (1, 3)))
        fork = lambda y, to: [g.chain(y, f"{to}a", (256, (1, 3))), g.chain(y, f"{to}b", (256, (3, 1)))]
        y = g.chain(g.avg_pool(x, f"{at}.pool", 3, 1, 1), f"{at}.branch_pool", (256, 1))
        first = g.chain(x, f"{at}.branch0", (256, 1))
        x = g.concat([first, *fork(a, f"{at}.branch1_2"), *fork(b, f"{at}.branch2_4"), y], at)
    g.output(g.linear(g.dropout(g.global_pool(x), "dropout", 0.2), "last_linear", classes))
    return g
