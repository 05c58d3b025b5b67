"""Trains a U-Net with memc: skip connections, interpolation, BatchNorm, a loss of its own, Adam, overlap of masks.

Usage: python unet.py [FOLDER of memc and memrun, where they are not on the PATH]
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

BATCH, SIZE, EPOCHS = 16, 32, 4
COMPILE = ["--loss", "output", "--optimizer", "adam:lr=3e-3", "--dim", f"batch={BATCH}"]
RUN = ["--epochs", EPOCHS, "--shuffle", 0, "--lr", "cosine=192,min=0.05"]


def convolutions(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, 1, 1), nn.BatchNorm2d(outside), nn.ReLU(),
                         nn.Conv2d(outside, outside, 3, 1, 1), nn.BatchNorm2d(outside), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down1, self.down2 = convolutions(1, width), convolutions(width, 2 * width)
        self.middle = convolutions(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.join2, self.join1 = convolutions(4 * width, 2 * width), convolutions(3 * width, width)
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.up2(self.middle(F.max_pool2d(second, 2)))
        x = F.interpolate(self.join2(torch.cat((x, second), 1)), scale_factor=2, mode="bilinear", align_corners=False)
        return self.last(self.join1(torch.cat((x, first), 1)))


class Training(nn.Module):
    """The network with its loss, which memc takes as `--loss output`: cross-entropy and the overlap of masks (Dice)."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, mask):
        scores = self.net(x)
        share = torch.sigmoid(scores)
        overlap = (2 * (share * mask).sum((1, 2, 3)) + 1) / ((share + mask).sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(scores, mask) + (1 - overlap).mean()


def model():
    return Training(UNet())


def data(samples=768, seed=1):
    """Noisy images of three discs each, and the masks of the discs."""
    draw = torch.Generator().manual_seed(seed)
    places, sizes = torch.rand(samples, 3, 2, generator=draw) * SIZE, torch.rand(samples, 3, generator=draw) * 5 + 3
    grid = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij"), -1)
    distance = (grid - places[:, :, None, None]).square().sum(-1).sqrt()
    mask = (distance < sizes[:, :, None, None]).any(1, keepdim=True).float()
    return {"x": (mask + torch.randn(mask.shape, generator=draw)).numpy(), "mask": mask.numpy()}


def export(model, path):
    image = torch.zeros(2, 1, SIZE, SIZE)
    torch.onnx.export(model.train(), (image, image), path, dynamo=False,
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                      input_names=["x", "mask"], dynamic_axes={"x": {0: "batch"}, "mask": {0: "batch"}})
    memc_torch.parameter_names(model, "parameters.txt")


def optimizer(model):
    """The optimizer of COMPILE in PyTorch."""
    return torch.optim.Adam(model.parameters(), lr=3e-3)


def loss(model, x, mask):
    return model(x, mask)


def overlap(model, x, mask):
    """Intersection over union of predicted and true masks."""
    with torch.no_grad():
        found, mask = model.eval().net(torch.tensor(x)) > 0, torch.tensor(mask) > 0
    return ((found & mask).sum() / (found | mask).sum()).item()


def main(tools=pathlib.Path()):
    torch.manual_seed(0)
    net = model()
    export(net, "unet.onnx")
    for name, array in data().items():
        np.save(f"{name}.npy", array)
    subprocess.run([tools / "memc", "compile", "unet.onnx", *COMPILE, "--parameters", "parameters.txt",
                    "--gpu-mem", "peak*60%", "-o", "unet.plan"], check=True)
    subprocess.run([tools / "memrun", "unet.plan", *map(str, RUN), "--input", "x=@x.npy", "--input", "mask=@mask.npy",
                    "--save", "unet.safetensors", "--log-every", "16"], check=True)
    adam = optimizer(net)
    steps = memc_torch.load("unet.safetensors", net, adam)
    print(f"after {steps} steps: intersection over union {overlap(net, **data(128, seed=2)):.4f}")
    loss(net.train(), **{k: torch.tensor(v) for k, v in data(BATCH, seed=3).items()}).backward()      # and on in PyTorch
    adam.step()


if __name__ == "__main__":
    main(pathlib.Path(*sys.argv[1:2]))
