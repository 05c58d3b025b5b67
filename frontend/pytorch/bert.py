"""Fine-tunes BERT of transformers with memc: frozen half, padding mask, parameter groups, accumulation, clipping.

Usage: python bert.py [FOLDER of memc and memrun, where they are not on the PATH] [--dynamo]
Needs: torch, transformers, numpy, safetensors, onnx. Writes into the working folder. The task is to tell which module of
Python's library lines of source are from. The weights are random: from_pretrained() in model() takes trained ones.
"""
import importlib
import inspect
import pathlib
import re
import subprocess
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import memc_torch

BATCH, MICRO, LENGTH, WORDS, EPOCHS = 16, 2, 48, 2000, 4
CLASSES = ("argparse", "tarfile", "turtle", "_pydecimal")
COMPILE = ["--loss", "cross-entropy", "--optimizer", "adamw:lr=3e-3,weight_decay=0.01,clip_norm=1", "--accumulate", MICRO,
           "--no-decay", "vectors", "--lr-mult", "bert.*=0.5", "--dim", f"batch={BATCH}"]
RUN = ["--epochs", EPOCHS, "--shuffle", 0, "--lr", "warmup=10,linear=256"]


class Classifier(nn.Module):
    """Scores as the only output, of positional arguments: exporters name those reliably."""

    def __init__(self, bert):
        super().__init__()
        self.bert, self.dropout, self.classifier = bert.bert, bert.dropout, bert.classifier

    def forward(self, ids, mask):
        return self.classifier(self.dropout(self.bert(input_ids=ids, attention_mask=mask).pooler_output))


def model(dropout=0.1):
    sizes = dict(vocab_size=WORDS, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128,
                 max_position_embeddings=LENGTH, num_labels=len(CLASSES), hidden_dropout_prob=dropout,
                 attention_probs_dropout_prob=dropout)
    net = Classifier(BertForSequenceClassification(BertConfig(**sizes)))
    for frozen in (net.bert.embeddings, net.bert.encoder.layer[:2]):
        frozen.requires_grad_(False)
    return net


def data(part=0):
    """Token numbers, padding masks and classes: pieces of 2 to 8 lines, of which every fourth is for validation."""
    rows = []
    for label, name in enumerate(CLASSES):
        lines = [line for line in inspect.getsource(importlib.import_module(name)).splitlines() if line.strip()]
        at, draw = 0, np.random.default_rng(label)
        while at < len(lines):
            size = int(draw.integers(2, 9))
            words = re.findall(r"\w+|\S", " ".join(lines[at:at + size]))[:LENGTH]
            rows.append(([2 + zlib.crc32(word.encode()) % (WORDS - 2) for word in words], label))
            at += size
    rows = [row for i, row in enumerate(rows) if (i % 4 == 3) == bool(part)]
    ids, mask = np.zeros((2, len(rows), LENGTH), np.int64)
    for i, (words, _) in enumerate(rows):
        ids[i, :len(words)], mask[i, :len(words)] = words, 1
    return {"ids": ids, "mask": mask, "labels": np.array([label for _, label in rows])}


def export(model, path, dynamo=False):
    args = (torch.ones(2, LENGTH, dtype=torch.long), torch.ones(2, LENGTH, dtype=torch.long))
    if dynamo:
        axes = {0: torch.export.Dim("batch")}
        torch.onnx.export(model.train(), args, path, dynamo=True, optimize=False,
                          input_names=["ids", "mask"], dynamic_shapes=(axes, axes))
    else:
        torch.onnx.export(model.train(), args, path, dynamo=False,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                          input_names=["ids", "mask"], dynamic_axes={"ids": {0: "batch"}, "mask": {0: "batch"}})
    memc_torch.parameter_names(model, "parameters.txt")


def optimizer(model):
    """The optimizer of COMPILE in PyTorch; clip_grad_norm_(model.parameters(), 1.0) belongs to it."""
    def group(inner, vector):
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        params = [p for n, p in named if n.startswith("bert.") == inner and (p.ndim < 2) == vector]
        return {"params": params, "lr": 1.5e-3 if inner else 3e-3, "weight_decay": 0.0 if vector else 0.01}
    return torch.optim.AdamW([group(inner, vector) for inner in (True, False) for vector in (True, False)])


def loss(model, ids, mask, labels):
    return F.cross_entropy(model(ids, mask), labels)


def accuracy(model, ids, mask, labels):
    with torch.no_grad():
        return (model.eval()(torch.tensor(ids), torch.tensor(mask)).argmax(1).numpy() == labels).mean().item()


def main(tools=pathlib.Path(), dynamo=False):
    torch.manual_seed(0)
    net = model()
    export(net, "bert.onnx", dynamo)
    for name, array in data().items():
        np.save(f"{name}.npy", array)
    subprocess.run([tools / "memc", "compile", "bert.onnx", *map(str, COMPILE), "--parameters", "parameters.txt",
                    "--gpu-mem", "peak*60%", "-o", "bert.plan"], check=True)
    subprocess.run([tools / "memrun", "bert.plan", *map(str, RUN), "--input", "ids=@ids.npy", "--input", "mask=@mask.npy",
                    "--input", "labels=@labels.npy", "--save", "bert.safetensors", "--log-every", "10"], check=True)
    adamw = optimizer(net)
    steps = memc_torch.load("bert.safetensors", net, adamw)
    print(f"after {steps} steps: accuracy {accuracy(net, **data(1)):.4f}")
    loss(net.train(), **{k: torch.tensor(v[:BATCH]) for k, v in data().items()}).backward()      # and on in PyTorch
    adamw.step()


if __name__ == "__main__":
    rest = [word for word in sys.argv[1:] if word != "--dynamo"]
    main(pathlib.Path(*rest[:1]), dynamo="--dynamo" in sys.argv)
