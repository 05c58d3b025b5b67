"""NASNet-A (Zoph et al., 2018), as its authors' published code builds it for ImageNet.

Left out: drop path and the auxiliary classifier.
"""

import numpy as np

from .graph import Graph, image


class Nasnet(Graph):
    def norm(self, x, at):
        return self.batch_norm(x, at, eps=1e-3, momentum=0.9997)

    def squeeze(self, x, at, filters):
        """ReLU, 1x1 convolution, normalisation."""
        return self.norm(self.conv(self.relu(x, f"{at}.relu"), f"{at}.conv", filters, 1), f"{at}.bn")

    def separable(self, x, at, filters, kernel, stride=1):
        """ReLU, depthwise and pointwise convolution, normalisation; twice, the stride in the first."""
        for i in (1, 2):
            x = self.relu(x, f"{at}.relu{i}")
            x = self.conv(x, f"{at}.depthwise{i}", x.channels, kernel, stride, "same", groups=x.channels)
            x = self.norm(self.conv(x, f"{at}.pointwise{i}", filters, 1), f"{at}.bn{i}")
            stride = 1
        return x

    def adjusted(self, p, x, at, filters):
        """The input of the cell before the last in the size and width of this cell's branches."""
        if p is None:
            return x
        if p.shape[2:] == x.shape[2:]:
            return self.squeeze(p, f"{at}.adjust", filters) if p.channels != filters else p
        at = f"{at}.adjust"
        p = self.relu(p, f"{at}.relu")
        a = self.conv(self.avg_pool(p, f"{at}.pool1", 1, 2), f"{at}.conv1", filters // 2, 1)
        # The other half sees the image shifted by one pixel.
        (n, c, h, w) = p.shape
        inputs = [p, self.constant([0, 0, 0, 0, 0, 0, 1, 1]), self.constant(0.0, np.float32)]
        p = self.one("Pad", f"{at}.pad", inputs, (n, c, h + 1, w + 1))
        crop = [self.constant(v) for v in ([1, 1], [h + 1, w + 1], [2, 3])]
        p = self.one("Slice", f"{at}.crop", [p, *crop], (n, c, h, w))
        b = self.conv(self.avg_pool(p, f"{at}.pool2", 1, 2), f"{at}.conv2", filters // 2, 1)
        return self.norm(self.concat([a, b], f"{at}.concat"), f"{at}.bn")

    def normal(self, x, p, at, filters):
        p = self.adjusted(p, x, at, filters)
        h = self.squeeze(x, f"{at}.h", filters)
        mean = lambda t, name: self.avg_pool(t, f"{at}.{name}", 3, 1, 1)
        sep = lambda t, name, k: self.separable(t, f"{at}.{name}", filters, k)
        parts = [
            p,
            self.add(sep(h, "left1", 5), sep(p, "right1", 3), f"{at}.add1"),
            self.add(sep(p, "left2", 5), sep(p, "right2", 3), f"{at}.add2"),
            self.add(mean(h, "left3"), p, f"{at}.add3"),
            self.add(mean(p, "left4"), mean(p, "right4"), f"{at}.add4"),
            self.add(sep(h, "left5", 3), h, f"{at}.add5"),
        ]
        return self.concat(parts, at)

    def reduction(self, x, p, at, filters):
        p = self.adjusted(p, x, at, filters)
        h = self.squeeze(x, f"{at}.h", filters)
        sep = lambda t, name, k, stride=2: self.separable(t, f"{at}.{name}", filters, k, stride)
        most = lambda name: self.max_pool(h, f"{at}.{name}", 3, 2, "same")
        x1 = self.add(sep(h, "left1", 5), sep(p, "right1", 7), f"{at}.add1")
        x2 = self.add(most("left2"), sep(p, "right2", 7), f"{at}.add2")
        x3 = self.add(self.avg_pool(h, f"{at}.left3", 3, 2, "same"), sep(p, "right3", 5), f"{at}.add3")
        x4 = self.add(x2, self.avg_pool(x1, f"{at}.left4", 3, 1, 1), f"{at}.add4")
        x5 = self.add(sep(x1, "left5", 3, 1), most("right5"), f"{at}.add5")
        return self.concat([x2, x3, x4, x5], at)


def nasnet(name, repeats, penultimate, stem, size, classes=1000, skip_reduction=True):
    """`repeats` normal cells in each of three stages (the paper's N, SwapAdvisor's R), last width `penultimate`.

    With `skip_reduction` the cell after a reduction sees the input of the cell before it.
    """
    g = Nasnet(name)
    filters = penultimate // 24
    x = g.norm(g.conv(image(g, size), "stem.conv", stem, 3, 2), "stem.bn")
    p = None
    for i, width in ((1, filters // 4), (2, filters // 2)):
        x, p = g.reduction(x, p, f"stem{i}", width), x
    for stage in range(3):
        width = filters << stage
        if stage:
            before = x
            x = g.reduction(x, p, f"reduce{stage}", width)
            p = p if skip_reduction else before
        for i in range(repeats):
            x, p = g.normal(x, p, f"cell{stage}.{i}", width), x
    g.output(g.linear(g.global_pool(g.relu(x, "relu")), "fc", classes))
    return g
