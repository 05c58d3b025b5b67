"""VGG (Simonyan and Zisserman, 2014): the ImageNet networks, and the CIFAR-10 ones that SmartPool uses."""

from .graph import Graph, image

STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
WIDTHS = (64, 128, 256, 512, 512)


def imagenet(name, depth, size=224, classes=1000, divide=1):
    """Configurations A, B, D and E: convolutions with bias, two dropped-out layers of 4096. `divide` narrows."""
    g = Graph(name)
    x, i = image(g, size), 0
    for count, width in zip(STAGES[depth], WIDTHS):
        for _ in range(count):
            x = g.relu(g.conv(x, f"features.{i}", width // divide, 3, pad=1, bias=True), f"features.{i + 1}")
            i += 2
        x = g.max_pool(x, f"features.{i}", 2)
        i += 1
    x = g.flatten(x, "flatten")
    for i in (0, 3):
        x = g.relu(g.linear(x, f"classifier.{i}", 4096 // divide, std=0.01), f"classifier.{i + 1}")
        x = g.dropout(x, f"classifier.{i + 2}", 0.5)
    g.output(g.linear(x, "classifier.6", classes, std=0.01))
    return g


def cifar(name, depth, size=32, classes=10, divide=1):
    """With batch normalisation, dropout between the convolutions of a stage, and one layer of 512 (Zagoruyko, 2015)."""
    g = Graph(name)
    x = image(g, size)
    for stage, (count, width) in enumerate(zip(STAGES[depth], WIDTHS)):
        for i in range(count):
            at = f"features.{stage}.{i}"
            x = g.conv(x, f"{at}.conv", width // divide, 3, pad=1, bias=True)
            x = g.relu(g.batch_norm(x, f"{at}.bn", eps=1e-3), f"{at}.relu")
            if i + 1 < count:
                x = g.dropout(x, f"{at}.dropout", 0.3 if stage == 0 else 0.4)
        x = g.max_pool(x, f"features.{stage}.pool", 2)
    x = g.dropout(g.flatten(x, "flatten"), "classifier.0", 0.5)
    x = g.relu(g.batch_norm(g.linear(x, "classifier.1", 512 // divide), "classifier.2"), "classifier.3")
    g.output(g.linear(g.dropout(x, "classifier.4", 0.5), "classifier.5", classes))
    return g
