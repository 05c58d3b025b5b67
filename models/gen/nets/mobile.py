"""MobileNet (Howard et al., 2017), MobileNetV2 (Sandler et al., 2018), SqueezeNet (Iandola et al., 2016)."""

import numpy as np

from .graph import Graph, image

V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)) + ((512, 1),) * 5 + ((1024, 2), (1024, 1))
# Expansion, channels, repeats, first stride.
V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
# Squeeze and expand channels of the fire modules, "pool" between them.
SQUEEZE = {
    "1_0": (96, 7, ("pool", 16, 16, 32, "pool", 32, 48, 48, 64, "pool", 64)),
    "1_1": (64, 3, ("pool", 16, 16, "pool", 32, 32, "pool", 48, 48, 64, 64)),
}


def mobilenet(name, size=224, classes=1000, divide=1):
    g = Graph(name)
    x = g.conv(image(g, size), "conv1", 32 // divide, 3, 2, 1)
    x = g.relu(g.batch_norm(x, "bn1"), "relu1")
    for i, (width, stride) in enumerate(V1):
        at = f"block{i}"
        x = g.conv(x, f"{at}.depthwise", x.channels, 3, stride, 1, groups=x.channels)
        x = g.relu(g.batch_norm(x, f"{at}.bn1"), f"{at}.relu1")
        x = g.conv(x, f"{at}.pointwise", width // divide, 1)
        x = g.relu(g.batch_norm(x, f"{at}.bn2"), f"{at}.relu2")
    g.output(g.linear(g.dropout(g.global_pool(x), "dropout", 0.001), "fc", classes))
    return g


def mobilenet_v2(name, size=224, classes=1000, divide=1):
    g = Graph(name)

    def layer(x, at, width, kernel, stride=1, groups=1):
        x = g.conv(x, f"{at}.0", width, kernel, stride, kernel // 2, groups)
        limits = [g.constant(v, np.float32) for v in (0.0, 6.0)]
        return g.one("Clip", f"{at}.2", [g.batch_norm(x, f"{at}.1"), *limits], x.shape)

    x = layer(image(g, size), "features.0", 32 // divide, 3, 2)
    i = 1
    for expand, width, repeats, first in V2:
        for block in range(repeats):
            at, before, stride = f"features.{i}.conv", x, first if block == 0 else 1
            inner, i = x.channels * expand, i + 1
            if expand > 1:
                x = layer(x, f"{at}.0", inner, 1)
            x = layer(x, f"{at}.1", inner, 3, stride, inner)
            x = g.batch_norm(g.conv(x, f"{at}.2", width // divide, 1), f"{at}.3")
            if stride == 1 and before.channels == x.channels:
                x = g.add(before, x, f"{at}.add")
    x = layer(x, f"features.{i}", 1280 // divide, 1)
    g.output(g.linear(g.dropout(g.global_pool(x), "classifier.0", 0.2), "classifier.1", classes, std=0.01))
    return g


def squeezenet(name, version, size=224, classes=1000, divide=1):
    g = Graph(name)
    width, kernel, modules = SQUEEZE[version]
    x = g.relu(g.conv(image(g, size), "features.0", width // divide, kernel, 2, bias=True), "features.1")
    for i, squeeze in enumerate(modules, start=2):
        at = f"features.{i}"
        if squeeze == "pool":
            x = g.max_pool(x, at, 3, 2, ceil=True)
            continue
        s = squeeze // divide
        x = g.relu(g.conv(x, f"{at}.squeeze", s, 1, bias=True), f"{at}.squeeze_activation")
        a = g.relu(g.conv(x, f"{at}.expand1x1", s * 4, 1, bias=True), f"{at}.expand1x1_activation")
        b = g.relu(g.conv(x, f"{at}.expand3x3", s * 4, 3, pad=1, bias=True), f"{at}.expand3x3_activation")
        x = g.concat([a, b], f"{at}.concat")
    x = g.conv(g.dropout(x, "classifier.0", 0.5), "classifier.1", classes, 1, bias=True, gain=0.05)
    g.output(g.global_pool(g.relu(x, "classifier.2"), "classifier.3"))
    return g
