"""Trains a small GPT on text with memc: token files, tied embeddings, AdamW, warm-up and cosine, clipping, perplexity.

Usage: python gpt.py [FOLDER of memc and memrun, where they are not on the PATH]
Needs: torch, numpy, safetensors, onnx. Writes into the working folder. The text is Python's own language reference.
"""
import pathlib
import subprocess
import sys
from pydoc_data.topics import topics

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import memc_torch

BATCH, LENGTH, WIDTH, STEPS = 16, 64, 64, 300
COMPILE = ["--loss", "cross-entropy:axis=-1", "--optimizer",
           "adamw:lr=4e-3,beta1=0.9,beta2=0.95,weight_decay=0.1,clip_norm=1", "--no-decay", "vectors",
           "--dim", f"batch={BATCH}"]
RUN = ["--steps", STEPS, "--shuffle", 0, "--lr", f"warmup=30,cosine={STEPS},min=0.1"]


class Block(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary=128, layers=3):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.05)
        nn.init.normal_(self.places.weight, std=0.05)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def data():
    """Characters of the language reference as numbers: most for training, the last tenth for validation."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    tokens = np.frombuffer(text.encode("ascii", "replace"), np.uint8)
    return tokens[:len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10:]


def export(model, path):
    torch.onnx.export(model.train(), (torch.zeros(2, LENGTH, dtype=torch.long),), path, dynamo=False,
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                      input_names=["ids"], dynamic_axes={"ids": {0: "batch"}})
    memc_torch.parameter_names(model, "parameters.txt")


def optimizer(model):
    """The optimizer of COMPILE in PyTorch; clip_grad_norm_(model.parameters(), 1.0) belongs to it."""
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1]},
              {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)


def windows(tokens):
    """All windows of a token file with their labels, as `x=@FILE:u16` and `labels=@FILE:u16+1` have them."""
    count = (len(tokens) - 1) // LENGTH
    tokens = torch.tensor(tokens[:count * LENGTH + 1].astype(np.int64))
    return tokens[:-1].view(count, LENGTH), tokens[1:].view(count, LENGTH)


def loss(model, ids, labels):
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


def perplexity(model, tokens):
    ids, labels = windows(tokens)
    with torch.no_grad():
        return loss(model.eval(), ids, labels).exp().item()


def main(tools=pathlib.Path()):
    torch.manual_seed(0)
    gpt = GPT()
    export(gpt, "gpt.onnx")
    train, val = data()
    memc_torch.token_file(train, "train.bin")
    memc_torch.token_file(val, "val.bin")
    words = ["gpt.onnx", *COMPILE, "--parameters", "parameters.txt"]
    subprocess.run([tools / "memc", "compile", *words, "--gpu-mem", "peak*60%", "-o", "gpt.plan"], check=True)
    subprocess.run([tools / "memc", "compile", *words, "--evaluation", "-o", "val.plan"], check=True)
    subprocess.run([tools / "memrun", "gpt.plan", *map(str, RUN), "--input", "ids=@train.bin:u16", "--input",
                    "labels=@train.bin:u16+1", "--eval", "val.plan", "--eval-every", "100", "--eval-input",
                    "ids=@val.bin:u16", "--eval-input", "labels=@val.bin:u16+1",
                    "--save", "gpt.safetensors", "--log-every", "20"], check=True)
    adamw = optimizer(gpt)
    steps = memc_torch.load("gpt.safetensors", gpt, adamw)
    print(f"after {steps} steps: perplexity {perplexity(gpt, val):.4f}")
    ids, labels = windows(val)
    loss(gpt.train(), ids[:BATCH], labels[:BATCH]).backward()      # and on in PyTorch
    nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
    adamw.step()


if __name__ == "__main__":
    main(pathlib.Path(*sys.argv[1:2]))
