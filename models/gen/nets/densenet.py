"""DenseNet (Huang et al., 2017), bottlenecked and compressed (BC), as trained on ImageNet without dropout."""

from .graph import Graph, image


def densenet(name, blocks=(6, 12, 24, 16), growth=32, stem=64, size=224, classes=1000):
    g = Graph(name)
    x = g.conv(image(g, size), "features.conv0", stem, 7, 2, 3)
    x = g.relu(g.batch_norm(x, "features.norm0"), "features.relu0")
    x = g.max_pool(x, "features.pool0", 3, 2, 1)
    for b, layers in enumerate(blocks, start=1):
        features = [x]
        for layer in range(1, layers + 1):
            at = f"features.denseblock{b}.denselayer{layer}"
            y = g.concat(features, f"{at}.concat") if layer > 1 else x
            y = g.conv(g.relu(g.batch_norm(y, f"{at}.norm1"), f"{at}.relu1"), f"{at}.conv1", 4 * growth, 1)
            y = g.conv(g.relu(g.batch_norm(y, f"{at}.norm2"), f"{at}.relu2"), f"{at}.conv2", growth, 3, 1, 1)
            features.append(y)
        x = g.concat(features, f"features.denseblock{b}.concat")
        if b < len(blocks):
            at = f"features.transition{b}"
            x = g.relu(g.batch_norm(x, f"{at}.norm"), f"{at}.relu")
            x = g.avg_pool(g.conv(x, f"{at}.conv", x.channels // 2, 1), f"{at}.pool", 2)
    x = g.relu(g.batch_norm(x, "features.norm5"), "features.relu5")
    g.output(g.linear(g.global_pool(x), "classifier", classes))
    return g
