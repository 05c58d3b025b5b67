"""Trains a recurrent network with memc: two layers of LSTM, mean squared error, Adagrad, clipping, both exporters.

Usage: python lstm.py [FOLDER of memc and memrun, where they are not on the PATH] [--dynamo]
Needs: torch, numpy, safetensors, onnx. Writes into the working folder. The task is to predict a series of numbers.
"""
import pathlib
import subprocess
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import memc_torch

BATCH, LENGTH, EPOCHS = 32, 40, 5
COMPILE = ["--loss", "mse", "--optimizer", "adagrad:lr=0.02,clip_norm=1", "--dim", f"batch={BATCH}"]
RUN = ["--epochs", EPOCHS, "--shuffle", 0, "--lr", "step=160,gamma=0.3"]


class Forecast(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.lstm = nn.LSTM(1, width, num_layers=2, batch_first=True)
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        return self.last(self.lstm(x)[0][:, -1])


def model():
    return Forecast()


def data(samples=2048, seed=1):
    """Sums of two waves with noise, and the number that comes next."""
    draw = torch.Generator().manual_seed(seed)
    speed, phase, size = (torch.rand(samples, 2, 1, generator=draw) for _ in range(3))
    time = torch.arange(LENGTH + 1)
    wave = ((0.5 + size) * torch.sin((0.1 + 0.5 * speed) * time + 6.28 * phase)).sum(1)
    series = wave + 0.05 * torch.randn(wave.shape, generator=draw)
    return {"x": series[:, :-1, None].numpy(), "labels": series[:, -1:].numpy()}


def export(model, path, dynamo=False):
    example = (torch.zeros(2, LENGTH, 1),)
    if dynamo:
        torch.onnx.export(model.train(), example, path, dynamo=True, optimize=False,
                          input_names=["x"], dynamic_shapes=({0: torch.export.Dim("batch")},))
    else:
        torch.onnx.export(model.train(), example, path, dynamo=False,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                          input_names=["x"], dynamic_axes={"x": {0: "batch"}})
    memc_torch.parameter_names(model, "parameters.txt")


def optimizer(model):
    """The optimizer of COMPILE in PyTorch; clip_grad_norm_(model.parameters(), 1.0) belongs to it."""
    return torch.optim.Adagrad(model.parameters(), lr=0.02)


def loss(model, x, labels):
    return F.mse_loss(model(x), labels)


def error(model, x, labels):
    """Mean squared error over the variance of the labels."""
    with torch.no_grad():
        return loss(model.eval(), torch.tensor(x), torch.tensor(labels)).item() / labels.var().item()


def main(tools=pathlib.Path(), dynamo=False):
    torch.manual_seed(0)
    net = model()
    export(net, "lstm.onnx", dynamo)
    for name, array in data().items():
        np.save(f"{name}.npy", array)
    subprocess.run([tools / "memc", "compile", "lstm.onnx", *COMPILE, "--parameters", "parameters.txt",
                    "--gpu-mem", "peak*60%", "-o", "lstm.plan"], check=True)
    subprocess.run([tools / "memrun", "lstm.plan", *map(str, RUN), "--input", "x=@x.npy", "--input", "labels=@labels.npy",
                    "--save", "lstm.safetensors", "--log-every", "16"], check=True)
    adagrad = optimizer(net)
    steps = memc_torch.load("lstm.safetensors", net, adagrad)
    print(f"after {steps} steps: error {error(net, **data(512, seed=2)):.4f}")
    loss(net.train(), **{k: torch.tensor(v) for k, v in data(BATCH, seed=3).items()}).backward()      # and on in PyTorch
    adagrad.step()


if __name__ == "__main__":
    rest = [word for word in sys.argv[1:] if word != "--dynamo"]
    main(pathlib.Path(*rest[:1]), dynamo="--dynamo" in sys.argv)
