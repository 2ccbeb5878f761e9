#!/usr/bin/env python3
"""Trains one transformer of examples/lm under several attention patterns and compares what it learns.

    patterns.py --lm PATH [--device cpu:0|cuda:0] [--patterns all,fixed,strided] [--size large|tiny]
                [--steps N] [--seed N] [--dropout P] [--text FILE] [--megabytes N] [--json FILE]

Weights at the start, batches, steps and the schedule of the rate are the same for all. The default
text, sources of this tree and of Python's library, is so long that the steps see it little more than
once: what is compared is learning, and not overfitting. Bits a byte are those of the held-out tenth.
"""
import argparse
import hashlib
import json
import os
import sysconfig
import tempfile

from compare import ROOT, run

SIZES = {
    "tiny": {"time": 128, "batch": 4, "layers": 2, "width": 64, "hidden": 128, "heads": 4,
             "block": 32, "attention-block": 16, "stride": 32, "dtype": "f32", "lr": 3e-3,
             "warm-up": 5},
    "large": {"time": 2048, "batch": 16, "layers": 6, "width": 512, "hidden": 2048, "heads": 8,
              "block": 64, "attention-block": 64, "stride": 128, "dtype": "bf16", "lr": 5e-4,
              "warm-up": 50},
}
SKIPPED = ("build", "site-packages", "dist-packages", "__pycache__")


def sources(root):
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f[0] != "." and not f.startswith(SKIPPED))
        yield from (os.path.join(folder, f) for f in sorted(files)
                    if f.endswith((".c", ".h", ".py", ".md", ".sh")))


def write_text(path, limit):
    written = 0
    with open(path, "wb") as out:
        for root in (ROOT, sysconfig.get_paths()["stdlib"]):
            for name in sources(root):
                with open(name, "rb") as file:
                    written += out.write(file.read()[:limit - written])


def train(options, pattern, text, log):
    flags = [f"--{name}={value}" for name, value in SIZES[options.size].items()]
    if os.path.exists(log):
        os.remove(log)
    run([options.lm, "--text", text, "--device", options.device, "--log", log, "--pattern", pattern,
         "--model", "transformer", "--density", "1", "--steps", str(options.steps),
         "--dropout", str(options.dropout), "--seed", str(options.seed), *flags])
    with open(log) as file:
        rows = [json.loads(line) for line in file]
    curve = [{k: r[k] for k in ("step", "train_bits", "held_bits")} for r in rows
             if "held_bits" in r]
    end = [r for r in rows if "held_bits" in r][-1]
    return {"train_bits": end["train_bits"], "held_bits": end["held_bits"],
            "bytes_per_second": end["bytes_per_second"], "seconds": end["seconds"],
            "gflops": end["gflops"], "curve": curve}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lm", required=True)
    parser.add_argument("--device", default="cpu:0")
    parser.add_argument("--patterns", default="all,fixed,strided")
    parser.add_argument("--size", choices=SIZES, default="large")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0)
    parser.add_argument("--text")
    parser.add_argument("--megabytes", type=float, default=16, help="of the default text")
    parser.add_argument("--json")
    options = parser.parse_args()
    size, results = SIZES[options.size], {}
    with tempfile.TemporaryDirectory() as folder:
        text, log = options.text or os.path.join(folder, "text"), os.path.join(folder, "log")
        if not options.text:
            write_text(text, int(options.megabytes * 1e6))
        with open(text, "rb") as file:
            data = file.read()
        passes = options.steps * size["batch"] * size["time"] / (0.9 * len(data))
        print(f"{options.size}, {options.device}, {options.steps} steps: {len(data)} bytes of text, "
              f"seen {passes:.2f} times\n{'pattern':8} {'train bits':>10} {'held bits':>10} "
              f"{'bytes/s':>10} {'GFLOP/s':>9}")
        for pattern in options.patterns.split(","):
            r = results[pattern] = train(options, pattern, text, log)
            print(f"{pattern:8} {r['train_bits']:10.3f} {r['held_bits']:10.3f} "
                  f"{r['bytes_per_second']:10.0f} {r['gflops']:9.0f}", flush=True)
    if options.json:
        with open(options.json, "w") as out:
            json.dump({"size": options.size, "config": size, "device": options.device,
                       "steps": options.steps, "seed": options.seed, "dropout": options.dropout,
                       "text": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
                       "results": results}, out, indent=1)


if __name__ == "__main__":
    main()
