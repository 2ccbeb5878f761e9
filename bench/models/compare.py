#!/usr/bin/env python3
"""Trains the same transformer with examples/lm and with PyTorch, in turns, and compares them.

    compare.py --lm PATH [--size tiny|8k|8k-wide|64k] [--pattern fixed|local|strided|all]
               [--density D] [--steps N] [--device cpu:0|cuda:0] [--python PYTHON]
               [--compile model|layers] [--rounds N] [--threads N] [--only bsk|torch]
               [--limit SECONDS] [--check NATS] [--json FILE]

--python: an interpreter that has torch. Both start from the same weights and see the same batches;
below --density 1 PyTorch multiplies dense matrices whose zeros stay. Rates leave out the first steps,
in which PyTorch compiles; the table has the best of the rounds. A side that has not ended after
--limit seconds is left out.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SKIP = 3
TEXT_BYTES = 1 << 20

# 85 million parameters in the layers of the large ones.
LARGE = {"layers": 12, "width": 768, "hidden": 3072, "heads": 12, "block": 64,
         "attention-block": 128, "dtype": "bf16", "lr": 3e-4, "warm-up": 10}
SIZES = {
    "tiny": {"time": 256, "batch": 4, "layers": 2, "width": 128, "hidden": 512, "heads": 4, "block": 32,
             "attention-block": 32, "stride": 64, "dtype": "f32", "lr": 1e-3, "warm-up": 10},
    "8k": dict(LARGE, time=8192, batch=4, stride=512),
    # With --density 0.25 as many parameters as 8k has at 1.
    "8k-wide": dict(LARGE, hidden=12288, time=8192, batch=4, stride=512, lr=1e-4),
    "64k": dict(LARGE, time=65536, batch=1, stride=2048),
}


def write_text(path):
    """Sources of this tree."""
    names = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if f[0] != "." and not f.startswith("build"))
        names += [os.path.join(folder, f) for f in sorted(files)
                  if f.endswith((".c", ".h", ".py", ".md", ".sh"))]
    data = b"".join(open(n, "rb").read() for n in names)
    with open(path, "wb") as out:
        out.write(data[:TEXT_BYTES])


def run(command, limit=None):
    """What a command prints; None if it has not ended after `limit` seconds."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"{os.path.basename(command[0])} did not end within {limit:g} s", flush=True)
        return None
    if done.returncode:
        sys.exit(f"{command[0]} ended with status {done.returncode}")
    return done.stdout


def run_lm(options, flags, text, log):
    if os.path.exists(log):
        os.remove(log)
    command = [options.lm, "--text", text, "--device", options.device, "--log", log, *flags]
    if run(command, options.limit) is None:
        return None
    rows = [json.loads(line) for line in open(log)]
    steps = [r for r in rows if "loss" in r]
    ends = [r for r in rows if "held_bits" in r]
    size = SIZES[options.size]
    skip = min(SKIP, len(steps) - 1)
    seconds = steps[-1]["seconds"] - (steps[skip - 1]["seconds"] if skip else 0)
    return {"tokens_per_second": size["time"] * size["batch"] * (len(steps) - skip) / seconds,
            "losses": [r["loss"] for r in steps], "device_bytes": ends[-1]["device_bytes"],
            "gflops": ends[-1]["gflops"], "roof_gflops": ends[-1]["roof_gflops"],
            "held_bits": ends[-1]["held_bits"]}


def run_torch(options, start, text):
    size = SIZES[options.size]
    command = [options.python, os.path.join(HERE, "lm_torch.py"), start, text, "--steps",
               str(options.steps), "--lr", str(size["lr"]), "--warm-up", str(size["warm-up"]),
               "--skip", str(SKIP), "--device", "cuda" if "cuda" in options.device else "cpu",
               "--compile", options.compile]
    if options.threads:
        command += ["--threads", str(options.threads)]
    printed = run(command, options.limit)
    return printed and json.loads(printed.splitlines()[-1])


def report(options, results):
    best = {name: max(r, key=lambda x: x["tokens_per_second"]) for name, r in results.items()}
    print(f"{options.size}, pattern {options.pattern}, density {options.density:g}, "
          f"{options.device}, {options.steps} steps")
    print(f"{'':8} {'tokens/s':>12} {'first loss':>11} {'last loss':>10} {'device MB':>10}")
    for name, r in best.items():
        print(f"{name:8} {r['tokens_per_second']:12.0f} {r['losses'][0]:11.5f} "
              f"{r['losses'][-1]:10.5f} {(r['device_bytes'] or 0) / 1e6:10.0f}")
    if options.check is not None and len(best) < 2:
        sys.exit("nothing to compare")
    if len(best) == 2:
        lm, torch = best["bsk"], best["torch"]
        apart = [abs(a - b) for a, b in zip(lm["losses"], torch["losses"])]
        print(f"bsk / torch: {lm['tokens_per_second'] / torch['tokens_per_second']:.2f} "
              f"of the tokens/s; losses differ by {max(apart):.5f} nats at most")
        if options.check is not None and not (
                len(apart) == len(lm["losses"]) == len(torch["losses"])
                and all(x <= options.check for x in apart)):  # NaN is not
            sys.exit("the losses differ")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lm", required=True)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--pattern", choices=["all", "local", "strided", "fixed"], default="fixed")
    parser.add_argument("--density", type=float, default=1, help="of the feed-forward layers")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu:0")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--threads", type=int, help="of both, on a CPU")
    parser.add_argument("--compile", choices=["model", "layers"], default="model",
                        help="what PyTorch compiles on a GPU")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=["bsk", "torch"])
    parser.add_argument("--limit", type=float, help="seconds for a side in a round")
    parser.add_argument("--check", type=float, help="fail where losses differ by more nats")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.threads:
        os.environ["BSK_NUM_THREADS"] = str(options.threads)
    flags = ["--model", "transformer", "--density", str(options.density), "--pattern",
             options.pattern]
    for name, value in SIZES[options.size].items():
        flags += [f"--{name}", str(value)]
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        text, start, log = (os.path.join(folder, n) for n in ("text", "start", "log"))
        write_text(text)
        if options.only != "bsk":
            run([options.lm, "--text", text, "--device", options.device, "--seconds", "0", "--save",
                 start, *flags])
        for _ in range(options.rounds):
            got = {}
            if options.only != "torch":
                got["bsk"] = run_lm(options, [*flags, "--steps", str(options.steps)], text, log)
            if options.only != "bsk":
                got["torch"] = run_torch(options, start, text)
            for name, result in got.items():
                if result:
                    results.setdefault(name, []).append(result)
    if options.json:
        with open(options.json, "w") as out:
            json.dump({"size": options.size, "pattern": options.pattern, "density": options.density,
                       "device": options.device, "config": SIZES[options.size],
                       "results": results}, out, indent=1)
    report(options, results)


if __name__ == "__main__":
    main()
