"""Trains a residual network of images with memc: BatchNorm, momentum, milestones, epochs, shuffling, accuracy.

Usage: python cnn.py [FOLDER of memc and memrun, where they are not on the PATH]
Needs: torch, numpy, safetensors, onnx. Writes into the working folder.
"""
import pathlib
import subprocess
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import memc_torch

BATCH, EPOCHS, CLASSES = 32, 5, 10
COMPILE = ["--loss", "cross-entropy", "--optimizer", "momentum:lr=0.05,momentum=0.9,nesterov=true,weight_decay=5e-4",
           "--no-decay", "vectors", "--dim", f"batch={BATCH}"]
RUN = ["--epochs", EPOCHS, "--shuffle", 0, "--lr", "milestones=128/224,gamma=0.1"]


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x):
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.short(x))


def model():
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def data(samples=2048, seed=1):
    """Images of ten patterns, shifted and with noise, and their classes."""
    draw = torch.Generator().manual_seed(0)
    patterns = F.interpolate(torch.randn(CLASSES, 3, 6, 6, generator=draw), size=24, mode="bilinear")
    draw.manual_seed(seed)
    labels = torch.randint(0, CLASSES, (samples,), generator=draw)
    shifts = torch.randint(0, 24, (samples, 2), generator=draw).tolist()
    x = torch.stack([torch.roll(patterns[k], by, (1, 2)) for k, by in zip(labels.tolist(), shifts)])
    return {"x": (x + 3.0 * torch.randn(x.shape, generator=draw)).numpy(), "labels": labels.numpy()}


def export(model, path):
    # The exporter runs the model once. In training mode, that changes BatchNorm's running statistics.
    torch.onnx.export(model.train(), (torch.zeros(2, 3, 24, 24),), path, dynamo=False,
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                      input_names=["x"], dynamic_axes={"x": {0: "batch"}})
    memc_torch.parameter_names(model, "parameters.txt")


def optimizer(model):
    """The optimizer of COMPILE in PyTorch."""
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1]},
              {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)


def loss(model, x, labels):
    return F.cross_entropy(model(x), labels)


def accuracy(model, x, labels):
    with torch.no_grad():
        return (model.eval()(torch.tensor(x)).argmax(1) == torch.tensor(labels)).float().mean().item()


def main(tools=pathlib.Path()):
    torch.manual_seed(0)
    net = model()
    export(net, "cnn.onnx")
    for name, array in data().items():
        np.save(f"{name}.npy", array)
    for name, array in data(512, seed=2).items():
        np.save(f"test_{name}.npy", array)
    words = ["cnn.onnx", *COMPILE, "--parameters", "parameters.txt"]
    subprocess.run([tools / "memc", "compile", *words, "--gpu-mem", "peak*60%", "-o", "cnn.plan"], check=True)
    subprocess.run([tools / "memc", "compile", *words, "--evaluation", "-o", "test.plan"], check=True)
    subprocess.run([tools / "memrun", "cnn.plan", *map(str, RUN), "--input", "x=@x.npy", "--input", "labels=@labels.npy",
                    "--eval", "test.plan", "--eval-input", "x=@test_x.npy", "--eval-input", "labels=@test_labels.npy",
                    "--save", "cnn.safetensors", "--log-every", "16"], check=True)
    sgd = optimizer(net)
    steps = memc_torch.load("cnn.safetensors", net, sgd)
    print(f"after {steps} steps: accuracy {accuracy(net, **data(512, seed=2)):.4f}")
    net.train()
    batch = {name: torch.tensor(array) for name, array in data(BATCH, seed=3).items()}
    value = loss(net, **batch)      # and on in PyTorch
    value.backward()
    sgd.step()


if __name__ == "__main__":
    main(pathlib.Path(*sys.argv[1:2]))
