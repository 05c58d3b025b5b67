"""Trains the GPT of gpt.py in mixed precision with memc: bfloat16 by autocast, weights and moments in float32.

Usage: python amp.py [FOLDER of memc and memrun, where they are not on the PATH] [--dynamo]
Needs: torch, numpy, safetensors, onnx. Writes into the working folder.
"""
import pathlib
import subprocess
import sys

import torch

import gpt
import memc_torch


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def export(model, path, dynamo=False):
    """The casts of autocast become nodes of the graph."""
    ids = torch.zeros(2, gpt.LENGTH, dtype=torch.long)
    with autocast():
        if dynamo:
            torch.onnx.export(model.train(), (ids,), path, dynamo=True, optimize=False,
                              input_names=["ids"], dynamic_shapes=({0: torch.export.Dim("batch")},))
        else:
            torch.onnx.export(model.train(), (ids,), path, dynamo=False,
                              training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                              input_names=["ids"], dynamic_axes={"ids": {0: "batch"}})
    memc_torch.parameter_names(model, "parameters.txt")


def loss(model, ids, labels):
    with autocast():
        return gpt.loss(model, ids, labels)     # cross_entropy is one of the functions that autocast runs in float32


def main(tools=pathlib.Path(), dynamo=False):
    torch.manual_seed(0)
    net = gpt.GPT()
    export(net, "amp.onnx", dynamo)
    train, val = gpt.data()
    memc_torch.token_file(train, "train.bin")
    subprocess.run([tools / "memc", "compile", "amp.onnx", *gpt.COMPILE, "--parameters", "parameters.txt",
                    "--gpu-mem", "peak*60%", "-o", "amp.plan"], check=True)
    subprocess.run([tools / "memrun", "amp.plan", *map(str, gpt.RUN), "--input", "ids=@train.bin:u16", "--input",
                    "labels=@train.bin:u16+1", "--save", "amp.safetensors", "--log-every", "20"], check=True)
    adamw = gpt.optimizer(net)
    steps = memc_torch.load("amp.safetensors", net, adamw)
    print(f"after {steps} steps: perplexity {gpt.perplexity(net, val):.4f}")
    ids, labels = gpt.windows(val)
    loss(net.train(), ids[:gpt.BATCH], labels[:gpt.BATCH]).backward()       # and on in PyTorch
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    adamw.step()


if __name__ == "__main__":
    rest = [word for word in sys.argv[1:] if word != "--dynamo"]
    main(pathlib.Path(*rest[:1]), dynamo="--dynamo" in sys.argv)
