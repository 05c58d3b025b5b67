"""Trains a generative adversarial network with memc in two ways: both players in one plan, and a plan for each.

Usage: python gan.py [FOLDER of memc and memrun, where they are not on the PATH]
Needs: torch, numpy, safetensors, onnx. Writes into the working folder. The data are points near eight centres.

One plan: both players' gradients are taken at the same weights, then both take their step. The newer exporter keeps
detach(), and --lr-mult gives each player its rate. Two plans: the generator's step sees the discriminator's new weights.
Each step then takes two processes, and the players' weights go from file to file. Both are exact.
"""
import pathlib
import subprocess
import sys

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.func import functional_call

import memc_torch

BATCH, NOISE, STEPS = 64, 8, 2000
ADAM = ["--loss", "output", "--optimizer", "adam:lr=1e-3,beta1=0.5", "--dim", f"batch={BATCH}"]
COMPILE = [*ADAM, "--lr-mult", "g.*=0.5"]
RUN = ["--steps", STEPS]


def network(inside, outside, width=64):
    return nn.Sequential(nn.Linear(inside, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
                         nn.Linear(width, outside))


class Pair(nn.Module):
    """Generator and discriminator with the loss of one, or with the sum, in which each loss trains its own player."""

    def __init__(self, player="both"):
        super().__init__()
        self.player, self.g, self.d = player, network(NOISE, 2), network(2, 1)

    def forward(self, x, z):
        ones, fake = torch.ones_like(x[:, :1]), self.g(z)
        judged = F.binary_cross_entropy_with_logits(self.d(torch.cat((x, fake.detach()))), torch.cat((ones, 0 * ones)))
        constant = {name: p.detach() for name, p in self.d.named_parameters()}
        fooled = F.binary_cross_entropy_with_logits(functional_call(self.d, constant, (fake,)), ones)
        return {"both": judged + fooled, "d": judged, "g": fooled}[self.player]


def model():
    return Pair()


def data(steps=STEPS, seed=1):
    """Points of a ring of eight normal distributions, and noise."""
    draw = torch.Generator().manual_seed(seed)
    angle = torch.randint(0, 8, (steps * BATCH, 1), generator=draw) * (torch.pi / 4)
    x = torch.cat((angle.cos(), angle.sin()), 1) + 0.05 * torch.randn(steps * BATCH, 2, generator=draw)
    return {"x": x.numpy(), "z": torch.randn(steps * BATCH, NOISE, generator=draw).numpy()}


def export(pair, path):
    axes = {0: torch.export.Dim("batch")}
    torch.onnx.export(pair.train(), (torch.zeros(4, 2), torch.zeros(4, NOISE)), path, dynamo=True, optimize=False,
                      input_names=["x", "z"], dynamic_shapes=(axes, axes), verbose=False)
    memc_torch.parameter_names(pair, "parameters.txt")


def optimizer(pair):
    """The optimizers of COMPILE in PyTorch: of the discriminator and of the generator."""
    return [torch.optim.Adam(part.parameters(), lr=rate, betas=(0.5, 0.999))
            for part, rate in ((pair.d, 1e-3), (pair.g, 5e-4))]


def loss(pair, x, z):
    return pair(x, z)


def near(pair, count=2000):
    """Share of generated points within 0.2 of a centre."""
    z, angle = torch.randn(count, NOISE, generator=torch.Generator().manual_seed(2)), torch.arange(8) * (torch.pi / 4)
    with torch.no_grad():
        distance = torch.cdist(pair.g(z), torch.stack((angle.cos(), angle.sin()), 1))
    return (distance.min(1).values < 0.2).float().mean().item()


def run(*words):
    subprocess.run([*map(str, words)], check=True, stdout=subprocess.DEVNULL)


def alternating(tools, pair, steps):
    """Steps of the discriminator and of the generator in turn, by two plans."""
    for player in "dg":
        pair.player = player
        export(pair, f"{player}.onnx")
        run(tools / "memc", "compile", f"{player}.onnx", *(COMPILE if player == "g" else ADAM),
            "--parameters", "parameters.txt", "--trainable", f"{player}.*", "--gpu-mem", "peak*60%", "-o", f"{player}.plan")
    for step in range(steps):
        for player, other in ("dg", "gd"):
            more = ["--resume", f"{player}.st"] if step else []
            if step or player == "g":
                theirs = {n: t for n, t in load_file(f"{other}.st").items() if n.startswith(other) and "momentum" not in n}
                save_file(theirs, "other.st")
                more += ["--init", "other.st"]
            run(tools / "memrun", f"{player}.plan", "--steps", 1, "--input", "x=@x.npy", "--input", "z=@z.npy", *more,
                "--save", f"{player}.st")
    memc_torch.load("g.st", pair)


def main(tools=pathlib.Path(), steps=STEPS, turns=20):
    torch.manual_seed(0)
    pair = model()
    export(pair, "both.onnx")
    for name, array in data(steps).items():
        np.save(f"{name}.npy", array)
    run(tools / "memc", "compile", "both.onnx", *COMPILE, "--parameters", "parameters.txt",
        "--gpu-mem", "peak*60%", "-o", "both.plan")
    run(tools / "memrun", "both.plan", "--steps", steps, "--input", "x=@x.npy", "--input", "z=@z.npy", "--save", "both.st")
    memc_torch.load("both.st", pair, optimizer(pair))
    print(f"one plan, {steps} steps: {near(pair):.1%} of the points are near a centre")
    pair = model()
    alternating(tools, pair, turns)
    print(f"two plans, {turns} steps: {near(pair):.1%} of the points are near a centre")


if __name__ == "__main__":
    main(pathlib.Path(*sys.argv[1:2]))
