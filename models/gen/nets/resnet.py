"""Residual networks (He et al., 2016), ResNeXt (Xie et al., 2017), wide ResNet, and the plain network."""

import numpy as np

from .graph import Graph, image

STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def basic(g, x, at, width, stride):
    y = g.relu(g.batch_norm(g.conv(x, f"{at}.conv1", width, 3, stride, 1), f"{at}.bn1"), f"{at}.relu1")
    return g.batch_norm(g.conv(y, f"{at}.conv2", width, 3, 1, 1), f"{at}.bn2")


def bottleneck(g, x, at, inner, width, stride, groups):
    """The stride is in the 3x3 convolution, as in every framework's model zoo."""
    y = g.relu(g.batch_norm(g.conv(x, f"{at}.conv1", inner, 1), f"{at}.bn1"), f"{at}.relu1")
    y = g.conv(y, f"{at}.conv2", inner, 3, stride, 1, groups)
    y = g.relu(g.batch_norm(y, f"{at}.bn2"), f"{at}.relu2")
    return g.batch_norm(g.conv(y, f"{at}.conv3", width, 1), f"{at}.bn3")


def resnet(name, depth, size=224, classes=1000, small=False, widen=1, groups=1, group_width=64, base=64):
    """`small` has CIFAR's stem (3x3, stride 1, no pooling); `widen` multiplies the channels of every convolution."""
    g = Graph(name)
    base, stem = base * widen, (3, 1, 1) if small else (7, 2, 3)
    x = g.relu(g.batch_norm(g.conv(image(g, size), "conv1", base, *stem), "bn1"), "relu")
    if not small:
        x = g.max_pool(x, "maxpool", 3, 2, 1)
    for stage, blocks in enumerate(STAGES[depth]):
        for block in range(blocks):
            at, plain = f"layer{stage + 1}.{block}", base << stage
            stride = 2 if stage > 0 and block == 0 else 1
            if depth < 50:
                width, y = plain, basic(g, x, at, plain, stride)
            else:
                width, inner = plain * 4, plain * group_width // 64 * groups
                y = bottleneck(g, x, at, inner, width, stride, groups)
            if stride > 1 or x.channels != width:
                x = g.batch_norm(g.conv(x, f"{at}.downsample.0", width, 1, stride), f"{at}.downsample.1")
            x = g.relu(g.add(y, x, f"{at}.add"), f"{at}.relu")
    g.output(g.linear(g.global_pool(x), "fc", classes))
    return g


def cifar(name, depth, residual, size=32, classes=10, base=16):
    """The paper's section 4.2: depth 6n+2, widths 16, 32, 64; shortcuts without parameters, or none (plain)."""
    g = Graph(name)
    x = g.relu(g.batch_norm(g.conv(image(g, size), "conv1", base, 3, 1, 1), "bn1"), "relu")
    for stage in range(3):
        for block in range((depth - 2) // 6):
            at, width = f"layer{stage + 1}.{block}", base << stage
            stride = 2 if width != x.channels else 1
            y = basic(g, x, at, width, stride)
            if residual and stride > 1:
                x = g.avg_pool(x, f"{at}.shortcut.pool", 1, stride)
                more = width - x.channels
                inputs = [x, g.constant([0, 0, 0, 0, 0, more, 0, 0]), g.constant(0.0, np.float32)]
                x = g.one("Pad", f"{at}.shortcut.pad", inputs, y.shape)
            y = g.add(y, x, f"{at}.add") if residual else y
            x = g.relu(y, f"{at}.relu")
    g.output(g.linear(g.global_pool(x), "fc", classes))
    return g
