"""BERT (Devlin et al., 2019), GPT-2 (Radford et al., 2019) and ViT (Dosovitskiy et al., 2021)."""

import math

import numpy as np
from onnx import TensorProto

from .graph import BATCH, Graph, image


def kept(extent):
    """An axis that Reshape leaves as it is: 0 stands for the extent where it is symbolic."""
    return 0 if isinstance(extent, str) else extent


class Transformer(Graph):
    def __init__(self, name, dropout, std=0.02):
        super().__init__(name)
        self.ratio, self.std = dropout, std

    def drop(self, x, at):
        return self.dropout(x, at, self.ratio)

    def heads(self, x, at, heads, perm):
        """[batch, S, D] as [batch, heads, S, D / heads], or with the last two axes swapped by `perm`."""
        n, s, d = x.shape
        x = self.reshape(x, f"{at}.split", [0, kept(s), heads, d // heads], (n, s, heads, d // heads))
        return self.transpose(x, at, perm)

    def attention(self, q, k, v, at, heads, mask, drop):
        """`mask` turns scores into masked scores."""
        n, s, d = q.shape
        q, v = (self.heads(t, f"{at}.{name}", heads, (0, 2, 1, 3)) for t, name in ((q, "q"), (v, "v")))
        k = self.heads(k, f"{at}.k", heads, (0, 2, 3, 1))
        scores = self.one("MatMul", f"{at}.qk", [q, k], (n, heads, s, s))
        scale = self.constant(1 / math.sqrt(d // heads), np.float32)
        scores = mask(self.one("Mul", f"{at}.scores", [scores, scale], scores.shape))
        weights = self.unary("Softmax", scores, f"{at}.softmax", axis=-1)
        if drop:
            weights = self.drop(weights, f"{at}.dropout")
        y = self.one("MatMul", f"{at}.av", [weights, v], (n, heads, s, d // heads))
        y = self.transpose(y, f"{at}.context", (0, 2, 1, 3))
        return self.reshape(y, f"{at}.merge", [0, kept(s), d], (n, s, d))

    def fused_attention(self, x, at, heads, mask, drop, std):
        """Query, key and value by one product, then attention and the output projection."""
        n, s, d = x.shape
        qkv = self.dense(x, f"{at}.qkv", 3 * d, self.std)
        names = [f"{at}.{part}_in" for part in ("q", "k", "v")]
        parts = self.op("Split", f"{at}.parts", [qkv, self.constant([d] * 3)], [(n, s, d)] * 3, outputs=names, axis=2)
        return self.dense(self.attention(*parts, at, heads, mask, drop), f"{at}.proj", d, std)

    def mlp(self, x, at, names, inner, std, approximate="none"):
        y = self.unary("Gelu", self.dense(x, f"{at}.{names[0]}", inner, self.std), f"{at}.gelu", approximate=approximate)
        return self.dense(y, f"{at}.{names[1]}", x.shape[-1], std)


def bert(name, layers, width, heads, sequence, vocabulary=30522, positions=512, dropout=0.1):
    """Question answering (SQuAD): one score per token for the answer's start and one for its end.

    Logits are [batch, sequence, 2], so cross-entropy over axis 1 with labels [batch, 2] (start, end) is BERT's loss,
    the mean of both. `attention_mask` is 1 for tokens and 0 for padding.
    """
    g = Transformer(name, dropout)
    n, s = BATCH, sequence
    ids = g.input("input_ids", (n, s), TensorProto.INT64)
    types = g.input("token_type_ids", (n, s), TensorProto.INT64)
    mask = g.input("attention_mask", (n, s))

    def lookup(at, rows, index):
        table = g.parameter(f"embeddings.{at}.weight", (rows, width), std=g.std)
        return g.one("Gather", f"embeddings.{at}", [table, index], (n, s, width), axis=0)

    x = lookup("word", vocabulary, ids)
    table = g.parameter("embeddings.position.weight", (positions, width), std=g.std)
    bounds = [g.constant(v) for v in ([0], [s], [0])]
    places = g.one("Slice", "embeddings.position", [table, *bounds], (s, width))
    x = g.add(g.add(x, places, "embeddings.sum1"), lookup("token_type", 2, types), "embeddings.sum2")
    x = g.drop(g.layer_norm(x, "embeddings.norm", 1e-12), "embeddings.dropout")
    mask = g.one("Sub", "mask.padding", [g.constant(1.0, np.float32), mask], (n, s))
    mask = g.one("Mul", "mask.scaled", [mask, g.constant(-10000.0, np.float32)], (n, s))
    mask = g.one("Unsqueeze", "mask", [mask, g.constant([1, 2])], (n, 1, 1, s))
    for i in range(layers):
        at = f"layer.{i}"
        q, k, v = (g.dense(x, f"{at}.attention.{p}", width, g.std) for p in ("query", "key", "value"))
        masked = lambda scores: g.add(scores, mask, f"{at}.attention.masked")
        y = g.dense(g.attention(q, k, v, f"{at}.attention", heads, masked, True), f"{at}.attention.output", width, g.std)
        x = g.layer_norm(g.add(g.drop(y, f"{at}.dropout1"), x, f"{at}.residual1"), f"{at}.norm1", 1e-12)
        y = g.drop(g.mlp(x, at, ("intermediate", "output"), 4 * width, g.std), f"{at}.dropout2")
        x = g.layer_norm(g.add(y, x, f"{at}.residual2"), f"{at}.norm2", 1e-12)
    g.output(g.dense(x, "qa_outputs", 2, g.std))
    return g


def gpt2(name, layers, width, heads, sequence=1024, vocabulary=50257, dropout=0.1):
    """Next-token prediction; the output layer is the embedding table. A row of the logits is one token."""
    g = Transformer(name, dropout)
    n, s = BATCH, sequence
    ids = g.input("input_ids", (n, s), TensorProto.INT64)
    table = g.parameter("wte.weight", (vocabulary, width), std=g.std)
    places = g.parameter("wpe.weight", (s, width), std=0.01)
    x = g.one("Gather", "wte", [table, ids], (n, s, width), axis=0)
    x = g.drop(g.add(x, places, "embedding"), "drop")
    place = g.one("Range", "causal.positions", [g.constant(v) for v in (0, s, 1)], (s,))
    rows = g.one("Unsqueeze", "causal.rows", [place, g.constant([1])], (s, 1))
    causal = g.one("GreaterOrEqual", "causal", [rows, place], (s, s))
    least = g.constant(np.finfo(np.float32).min, np.float32)
    residual_std = g.std / math.sqrt(2 * layers)
    for i in range(layers):
        at = f"h.{i}"
        mask = lambda scores: g.one("Where", f"{at}.attn.masked", [causal, scores, least], scores.shape)
        y = g.layer_norm(x, f"{at}.ln_1", 1e-5)
        y = g.fused_attention(y, f"{at}.attn", heads, mask, True, residual_std)
        x = g.add(x, g.drop(y, f"{at}.attn.resid_dropout"), f"{at}.residual1")
        y = g.layer_norm(x, f"{at}.ln_2", 1e-5)
        y = g.mlp(y, f"{at}.mlp", ("c_fc", "c_proj"), 4 * width, residual_std, approximate="tanh")
        x = g.add(x, g.drop(y, f"{at}.mlp.dropout"), f"{at}.residual2")
    x = g.reshape(g.layer_norm(x, "ln_f", 1e-5), "tokens", [-1, width], (None, width))
    g.output(g.one("Gemm", "logits", [x, table], (None, vocabulary), transB=1))
    return g


def text(name, layers, width, heads, vocabulary, positions, dropout=0.1):
    """Next-token prediction on sequences of any length: the axis `seq` is symbolic, and so are its masks' shapes."""
    g = Transformer(name, dropout)
    n, s = BATCH, "seq"
    ids = g.input("input_ids", (n, s), TensorProto.INT64)
    table = g.parameter("wte.weight", (vocabulary, width), std=g.std)
    places = g.parameter("wpe.weight", (positions, width), std=0.01)
    extents = g.one("Shape", "extents", [ids], (2,))
    length = g.one("Gather", "length", [extents, g.constant(1)], (), axis=0)
    end = g.one("Unsqueeze", "end", [length, g.constant([0])], (1,))
    places = g.one("Slice", "places", [places, g.constant([0]), end, g.constant([0])], (s, width))
    x = g.one("Gather", "wte", [table, ids], (n, s, width), axis=0)
    x = g.drop(g.add(x, places, "embedding"), "drop")
    place = g.one("Range", "causal.positions", [g.constant(0), length, g.constant(1)], (s,))
    rows = g.one("Unsqueeze", "causal.rows", [place, g.constant([1])], (s, 1))
    causal = g.one("GreaterOrEqual", "causal", [rows, place], (s, s))
    least = g.constant(np.finfo(np.float32).min, np.float32)
    for i in range(layers):
        at = f"h.{i}"
        mask = lambda scores: g.one("Where", f"{at}.attn.masked", [causal, scores, least], scores.shape)
        y = g.fused_attention(g.layer_norm(x, f"{at}.ln_1", 1e-5), f"{at}.attn", heads, mask, True, g.std)
        x = g.add(x, g.drop(y, f"{at}.attn.resid_dropout"), f"{at}.residual1")
        y = g.mlp(g.layer_norm(x, f"{at}.ln_2", 1e-5), f"{at}.mlp", ("c_fc", "c_proj"), 4 * width, g.std)
        x = g.add(x, g.drop(y, f"{at}.mlp.dropout"), f"{at}.residual2")
    x = g.layer_norm(x, "ln_f", 1e-5)
    columns = g.transpose(table, "columns", (1, 0))
    g.output(g.one("MatMul", "logits", [x, columns], (n, s, vocabulary)))
    return g


def vit(name, layers, width, heads, patch=16, size=224, classes=1000, dropout=0.1):
    """The class token is padded to the sequence and added, which is the same as putting it in front."""
    g = Transformer(name, dropout)
    n, s = BATCH, (size // patch) ** 2
    x = g.conv(image(g, size), "conv_proj", width, patch, patch, bias=True, gain=1.0)
    x = g.transpose(g.reshape(x, "patches", [0, width, s], (n, width, s)), "patches.rows", (0, 2, 1))
    token = g.parameter("class_token", (1, 1, width))
    places = g.parameter("pos_embedding", (1, s + 1, width), std=g.std)
    zero = g.constant(0.0, np.float32)
    x = g.one("Pad", "patches.pad", [x, g.constant([0, 1, 0, 0, 0, 0]), zero], (n, s + 1, width))
    token = g.one("Pad", "class_token.pad", [token, g.constant([0, 0, 0, 0, s, 0]), zero], (1, s + 1, width))
    x = g.add(g.add(x, token, "sequence"), places, "embedding")
    x = g.drop(x, "dropout")
    for i in range(layers):
        at = f"encoder.{i}"
        y = g.fused_attention(g.layer_norm(x, f"{at}.ln_1", 1e-6), f"{at}.attention", heads, lambda t: t, False, g.std)
        x = g.add(x, g.drop(y, f"{at}.dropout"), f"{at}.residual1")
        y = g.dense(g.layer_norm(x, f"{at}.ln_2", 1e-6), f"{at}.mlp.0", 4 * width, g.std)
        y = g.drop(g.unary("Gelu", y, f"{at}.mlp.gelu"), f"{at}.mlp.dropout1")
        y = g.drop(g.dense(y, f"{at}.mlp.1", width, g.std), f"{at}.mlp.dropout2")
        x = g.add(x, y, f"{at}.residual2")
    x = g.layer_norm(x, "encoder.ln", 1e-6)
    x = g.one("Gather", "class", [x, g.constant(0)], (n, width), axis=1)
    g.output(g.linear(x, "head", classes, std=0.01))
    return g
