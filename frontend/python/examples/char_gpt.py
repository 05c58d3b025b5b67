"""A character-level GPT on a text file, trained within a memory budget."""

import argparse
import pathlib

import memc
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary, length, width=64, heads=4, layers=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def loss_fn(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[3] / "ARCHITECTURE.md")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--budget", default="2G" if torch.cuda.is_available() else "peak*60%", help="device memory, as 8G")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    text = args.text.read_text()
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(c) for c in text])
    length, batch = 64, 16
    model = Gpt(len(letters), length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    example = torch.zeros(batch, length, dtype=torch.int64)
    step = memc.train_step(model, loss_fn, optimizer, (example, example), budget=args.budget)
    starts = torch.randint(0, len(codes) - length - 1, (args.steps, batch))
    losses = []
    for i in range(args.steps):
        x = torch.stack([codes[s:s + length] for s in starts[i]])
        y = torch.stack([codes[s + 1:s + length + 1] for s in starts[i]])
        loss = step(x, y)
        scheduler.step()
        losses.append(loss.item())
        if i % 20 == 0 or i == args.steps - 1:
            print(f"step {i + 1}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
