#!/usr/bin/env python3
"""The transformer of examples/lm in PyTorch: the same text, batches, first weights and schedule.

    lm_torch.py CHECKPOINT TEXT --steps N [--lr R] [--warm-up N] [--device cuda|cpu] [--skip N]

CHECKPOINT comes from `lm --seconds 0 --save CHECKPOINT ...`: sizes, patterns, seed and the weights
before the first step. Sparse layers are dense here, with zeros that gradients leave alone. On a GPU the model is compiled, attention is FlexAttention under the same
mask (or causal flash attention for the pattern `all`), and the optimizer is fused; elsewhere it is
eager. Prints a line of JSON: tokens a second without the first --skip steps, and all losses in nats.
"""
import argparse
import json
import math
import struct
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F

TEXT_NONE, TEXT_CODES, TEXT_PAD, TEXT_CHUNK, TEXT_EVERY = 256, 257, 64, 4096, 10
ALIGN = 128  # parameters begin at multiples of this many elements
TYPES = {1: torch.float64, 2: torch.float32, 3: torch.float16, 4: torch.bfloat16}
PATTERNS = ["all", "local", "strided", "fixed"]
WORD = (1 << 64) - 1


def read_layout(data):
    """The grid of a serialized layout, and the rows and columns of its blocks by slot."""
    flags, rows, cols, block_rows, block_cols, _, kept = struct.unpack_from("<IQQIIII", data, 12)
    grid = -(-rows // block_rows), -(-cols // block_cols)
    numbers = torch.tensor(struct.unpack_from(f"<{(len(data) - 52) // 4}I", data, 48))
    row = torch.repeat_interleave(torch.arange(grid[0]), numbers[: grid[0]])
    col, slot = numbers[sum(grid) :][:kept], numbers[sum(grid) + kept :][:kept]
    if flags & 1:
        order = torch.argsort(slot)
        row, col = row[order], col[order]
    return grid, row, col


def read_checkpoint(path):
    """The config, the layouts, and the flat array of the weights."""
    data = open(path, "rb").read()
    if data[:8] != b"BSKLM\r\n\0" or struct.unpack_from("<I", data, 8)[0] != 2:
        raise SystemExit(f"{path}: not a checkpoint of lm")
    at, config = 16, {}
    for _ in range(struct.unpack_from("<I", data, 12)[0]):
        end = at + 1 + data[at]
        config[data[at + 1 : end].decode()] = struct.unpack_from("<d", data, end)[0]
        at = end + 8
    at += 16
    layouts, count = [], struct.unpack_from("<I", data, at)[0]
    at += 4
    for _ in range(count):
        size = struct.unpack_from("<I", data, at)[0]
        layouts.append(read_layout(data[at + 4 : at + 4 + size]))
        at += 4 + size
    dtype, count = struct.unpack_from("<IQ", data, at + 4)
    if dtype != 2:
        raise SystemExit("the weights are not f32")
    weights = torch.frombuffer(bytearray(data[at + 16 : at + 16 + 4 * count]), dtype=torch.float32)
    config = {k: v if k in ("density", "lr", "clip", "beta2") else int(v)
              for k, v in config.items()}
    if config["model"] != 0 or config["pattern"] >= len(PATTERNS):
        raise SystemExit("only transformers, without the random pattern")
    return config, layouts, weights


class Weights:
    """Takes one parameter after the other from the flat array, and the layouts of matrices."""

    def __init__(self, flat, layouts, block):
        self.flat, self.layouts, self.block, self.at = flat, iter(layouts), block, 0

    def take(self, *shape):
        count = math.prod(shape)
        values = self.flat[self.at : self.at + count].reshape(shape).clone()
        self.at += -(-count // ALIGN) * ALIGN
        return values

    def matrix(self, rows, cols):
        """[cols, rows], and which of its elements are kept: None for all."""
        b = self.block
        if rows % b or cols % b:
            raise SystemExit("sizes must be multiples of --block")
        grid, row, col = next(self.layouts)
        both = torch.zeros(2, *grid, b, b)
        both[0, row, col] = self.take(len(row), b, b)
        both[1, row, col] = 1
        weight, kept = both.permute(0, 1, 3, 2, 4).reshape(2, rows, cols).transpose(1, 2)
        return weight.contiguous(), None if kept.all() else kept.contiguous()


def linear(weights, rows, cols, bias=True):
    layer = torch.nn.Linear(rows, cols, bias=bias)
    layer.weight.data, kept = weights.matrix(rows, cols)
    if bias:
        layer.bias.data = weights.take(cols)
    if kept is not None:
        layer.register_buffer("kept", kept)
        layer.weight.register_hook(lambda gradient: gradient * layer.kept)
    return layer


def norm(weights, width):
    layer = torch.nn.LayerNorm(width, eps=1e-6)
    layer.weight.data, layer.bias.data = weights.take(width), weights.take(width)
    return layer


def mask_of(config):
    """Whether head h lets query q see key k, as examples/lm/layouts.c says."""
    stride, block, heads = config["stride"], config["attention-block"], config["heads"]
    local = max(1, stride // block)
    patterns = min(heads, local)
    kind = PATTERNS[config["pattern"]]

    def visible(b, h, q, k):
        causal = k <= q
        if kind == "local":
            return causal & (q - k < stride)
        if kind == "strided":
            near = causal & (q - k < stride)
            return torch.where(h < heads // 2, near, causal & ((q - k) % stride == 0))
        if kind == "fixed":
            same = q // stride == k // stride
            return causal & (same | ((k // block) % local == local - 1 - h % patterns))
        return causal

    return visible


def block_mask(visible, heads, time_, device, block=128, rows=32):
    """What create_block_mask makes, from `rows` rows of blocks of one head at a time, so that it
    takes little memory at 65,536 positions."""
    from torch.nn.attention.flex_attention import BlockMask

    if time_ % block:
        raise SystemExit(f"--time must be a multiple of {block}")
    side, key = time_ // block, torch.arange(time_, device=device)
    counts = torch.empty(1, heads, side, side, dtype=torch.int32, device=device)
    for head in range(heads):
        for row in range(0, side, rows):
            query = key[row * block : (row + rows) * block].view(-1, 1)
            seen = visible(0, torch.tensor(head, device=device), query, key)
            parts = seen.view(-1, block, side, block)
            counts[0, head, row : row + rows] = parts.sum((1, 3), dtype=torch.int32)

    def lists(kept):
        order = kept.int().argsort(dim=-1, descending=True, stable=True)
        return kept.sum(-1, dtype=torch.int32), order.int()

    full = counts == block * block
    return BlockMask.from_kv_blocks(*lists((counts > 0) & ~full), *lists(full), block, visible)


class Attention:
    """q, k, v [batch, heads, time, d] to the same."""

    def __init__(self, config, device):
        self.config, self.kind = config, PATTERNS[config["pattern"]]
        visible, time_, heads = mask_of(config), config["time"], config["heads"]
        if device == "cuda" and self.kind != "all":
            from torch.nn.attention.flex_attention import flex_attention

            self.flex = flex_attention
            many = heads if self.kind in ("fixed", "strided") else 1
            self.blocks = block_mask(visible, many, time_, device)
        elif device != "cuda":
            at = torch.arange(time_)
            head = torch.arange(heads).view(-1, 1, 1)
            seen = visible(None, head, at.view(1, -1, 1), at.view(1, 1, -1))
            self.bias = torch.zeros(seen.shape).masked_fill(~seen, -math.inf)

    def __call__(self, q, k, v):
        if hasattr(self, "flex"):
            return self.flex(q, k, v, block_mask=self.blocks)
        if not hasattr(self, "bias"):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + self.bias
        return torch.softmax(scores, -1) @ v


class Layer(torch.nn.Module):
    def __init__(self, weights, config, attention):
        super().__init__()
        d, hidden = config["width"], config["hidden"]
        self.heads, self.attention = config["heads"], attention
        self.norm1 = norm(weights, d)
        self.qkv = linear(weights, d, 3 * d)
        self.out = linear(weights, d, d)
        self.norm2 = norm(weights, d)
        self.up = linear(weights, d, hidden)
        self.down = linear(weights, hidden, d)

    def forward(self, x):
        batch, time_, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time_, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).reshape(batch, time_, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(torch.nn.Module):
    def __init__(self, config, layouts, flat, device):
        super().__init__()
        weights = Weights(flat, layouts, config["block"])
        d, time_ = config["width"], config["time"]
        stride = config["stride"]
        self.token = torch.nn.Parameter(weights.take(TEXT_CODES, d))
        self.row = torch.nn.Parameter(weights.take(-(-time_ // stride), d))
        self.col = torch.nn.Parameter(weights.take(stride, d))
        self.final = norm(weights, d)
        self.head = linear(weights, d, 256, bias=False)
        attention = Attention(config, device)
        self.layers = torch.nn.ModuleList(
            Layer(weights, config, attention) for _ in range(config["layers"]))
        at = torch.arange(time_)
        self.register_buffer("rows", at // stride)
        self.register_buffer("cols", at % stride)

    def forward(self, tokens, labels):
        x = F.embedding(tokens, self.token) + F.embedding(self.rows, self.row)
        x = x + F.embedding(self.cols, self.col)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.final(x)).float()
        return F.cross_entropy(logits.view(-1, 256), labels.view(-1), ignore_index=-1,
                               reduction="sum")


def read_text(path, slack):
    """The codes of the training part: every tenth chunk is held out, stretches are padded."""
    data = open(path, "rb").read()
    codes, last = [], None
    for chunk in range(len(data) // TEXT_CHUNK + 1):
        part = data[chunk * TEXT_CHUNK : (chunk + 1) * TEXT_CHUNK]
        if chunk % TEXT_EVERY == TEXT_EVERY - 1 or not part:
            continue
        if last != chunk - 1:
            codes.append(torch.full((TEXT_PAD,), TEXT_NONE))
        codes.append(torch.frombuffer(bytearray(part), dtype=torch.uint8).long())
        last = chunk
    codes = torch.cat(codes)
    return torch.cat([codes, torch.full((slack,), TEXT_NONE)]), len(codes)


def seed_mix(a, b):
    z = (a * 0x9E3779B97F4A7C15 + b + 1) & WORD
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & WORD
    return z ^ z >> 31


def batch_of(config, codes, size, number):
    time_, usable = config["time"], size - TEXT_PAD - config["time"]
    first = seed_mix(config["seed"], number)
    at = [TEXT_PAD + seed_mix(first, row) % usable for row in range(config["batch"])]
    tokens = torch.stack([codes[a - 1 : a - 1 + time_] for a in at])
    labels = torch.stack([codes[a : a + time_] for a in at])
    return tokens, labels.masked_fill(labels == TEXT_NONE, -1)


def train(config, model, codes, size, options):
    device = options.device
    beta2 = config["beta2"] or 0.999
    fused = {"fused": True} if device == "cuda" else {}
    adam = torch.optim.Adam(model.parameters(), lr=options.lr, betas=(0.9, beta2), eps=1e-8, **fused)
    if device == "cuda" and options.compile == "layers":
        for layer in model.layers:
            layer.compile()
    call = torch.compile(model) if device == "cuda" and options.compile == "model" else model
    half = TYPES[config["dtype"]]
    losses, clock, start = [], [], time.perf_counter()
    for step in range(options.steps):
        warm = min(1, (step + 1) / options.warm_up) if options.warm_up else 1
        decay = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / options.steps))
        for group in adam.param_groups:
            group["lr"] = options.lr * warm * decay
        adam.zero_grad(set_to_none=True)
        nats = counted = 0
        for k in range(config["accumulate"]):
            tokens, labels = batch_of(config, codes, size, step * config["accumulate"] + k)
            counted += int((labels >= 0).sum())
            rounded = half != torch.float32
            with torch.autocast(device, dtype=half) if rounded else nullcontext():
                loss = call(tokens.to(device), labels.to(device))
            (loss / labels.numel() / config["accumulate"]).backward()
            nats = nats + loss.detach()
        if config["clip"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config["clip"])
        adam.step()
        losses.append(float(nats) / counted)
        clock.append(time.perf_counter() - start)
    return losses, clock


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("text")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warm-up", type=int, default=50)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--skip", type=int, default=3)
    parser.add_argument("--compile", choices=["model", "layers"], default="model",
                        help="on a GPU: the whole model, or one layer for all, which starts sooner")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    config, layouts, flat = read_checkpoint(options.checkpoint)
    codes, size = read_text(options.text, config["time"] + 1)
    model = Model(config, layouts, flat, options.device).to(options.device)
    losses, clock = train(config, model, codes, size, options)
    skip = min(options.skip, options.steps - 1)
    tokens = config["batch"] * config["time"] * config["accumulate"]
    seconds = clock[-1] - (clock[skip - 1] if skip else 0)
    memory = torch.cuda.max_memory_allocated() if options.device == "cuda" else None
    print(json.dumps({
        "torch": torch.__version__, "device": options.device,
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_per_second": tokens * (options.steps - skip) / seconds,
        "device_bytes": memory, "seconds": clock, "losses": losses}))


if __name__ == "__main__":
    main()
