#!/usr/bin/env python3
"""The pictures of docs/attention.md, drawn by `bsk info --layout`.

    pictures.py --write BSK     draw docs/pictures/*.svg again
    pictures.py --check BSK     those files, and pictures of other layouts: well-formed, small, the
                                same each time, and with the kept blocks that the layout has
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "docs" / "pictures"
MOST_BYTES = 30 * 1024
SVG = "{http://www.w3.org/2000/svg}"

PICTURES = {
    "causal": "causal:time=128,block=8",
    "local": "local:time=128,block=8,window=36",
    "sink_local": "sink_local:time=128,block=8,sink=12,window=24",
    "strided": "strided:time=128,block=8,stride=4",
    "sliding": "sliding:time=128,block=8,blocks=5",
    "fixed": "fixed:time=128,block=8,heads=4,local=4,global=1,patterns=4",
    "fixed_bidirectional": "fixed:time=128,block=8,local=4,global=1,bidirectional,horizontal",
    "bigbird": "bigbird:time=128,block=8,heads=2,window=3,first=1,random=2,seed=1",
    "longformer": "longformer:time=128,block=8,window=3,start=0/7,end=1/9",
    "variable": "variable:time=128,block=8,windows=2/4/6,start=3,random=1,seed=1",
    "conv": "conv:block=8,height=8,width=16,filter=3,causal",
    "deconv": "deconv:block=8,height=12,width=16,filter=4,stride=2",
    "random": "random:time=128,block=8,heads=2,density=0.25,seed=1",
    "barabasi_albert": "barabasi_albert:time=256,block=8,m=3,seed=1",
    "watts_strogatz": "watts_strogatz:time=256,block=8,k=4,p=0.2,seed=1",
}

# Edges cut short, blocks that are not square, heads that differ, nothing kept, all kept, large.
OTHERS = [
    "causal:rows=50,cols=75,block=8x5,shift=20", "causal:rows=64,cols=64,block=16,shift=-40",
    "local:time=100,block=7x9,window=1", "sink_local:rows=60,cols=90,block=8,sink=20,window=11,"
    "shift=30", "strided:time=120,block=8,stride=5", "strided:time=96,block=7x4,stride=1",
    "sliding:time=128,block=8,blocks=4,causal", "sliding:time=128,block=8,blocks=0",
    "fixed:time=104,block=8,local=4,global=2,bidirectional,deepspeed",
    "fixed:time=128,block=8,heads=3,local=5,global=1,patterns=3",
    "bigbird:time=128,block=8,window=3,first=2,random=1,causal,seed=7",
    "longformer:time=128,block=8,start=2/5,causal",
    "variable:time=128,block=8,windows=3/1,start=1/9,end=2/12,horizontal",
    "variable:time=128,block=8,windows=3/1,causal=1", "conv:block=4x16,height=1,width=48,filter=1x5",
    "random:time=64,density=0", "random:time=64,density=1,heads=5",
    "random:time=1,block=1,density=1", "random:rows=640,cols=1280,block=8,density=0.3,seed=3", "causal:time=16384,block=64",
]

# Element formulas: whether row i sees column j.
FORMULAS = {
    "causal": lambda v, i, j: j <= i + v.get("shift", 0),
    "local": lambda v, i, j: 0 <= i + v.get("shift", 0) - j < v["window"],
    "sink_local": lambda v, i, j: 0 <= i + v.get("shift", 0) - j
    and (i + v.get("shift", 0) - j < v["window"] or j < v["sink"]),
    "strided": lambda v, i, j: j <= i
    and i * v["stride"] // v["time"] == j * v["stride"] // v["time"],
}

MISTAKES = [
    ["--layout", ""], ["--layout", "nothing"], ["--layout", "causal:window=3"],
    ["--layout", "local"], ["--layout", "local:window"], ["--layout", "local:window=a"],
    ["--layout", "local:window=3x"], ["--layout", "causal:block=8x"], ["--layout", "causal:time="],
    ["--layout", "fixed:local=4294967300,global=1"], ["--layout", "local:window=" + "9" * 20],
    ["--layout", "strided:time=64,stride=5"], ["--layout", "conv:height=3,width=3,filter=2"],
    ["--layout", "longformer:start=1/2,end=3"], ["--layout", "longformer:start=1//2"],
    ["--layout", "random:density=2"], ["--layout", "causal:" + "x" * 300], ["--svg", "x.svg"],
]


class Checks:
    """Counts checks, and prints those that fail."""

    def __init__(self):
        self.passed = self.failed = 0

    def check(self, good, what):
        self.passed += bool(good)
        self.failed += not good
        if not good:
            print("failed:", what, file=sys.stderr)


def draw(bsk, spec, path):
    """Draws a layout and returns what the tool says about it."""
    out = subprocess.run([bsk, "info", "--json", "--layout", spec, "--svg", str(path)], check=True,
                         capture_output=True, text=True)
    return json.loads(out.stdout)


def cells_of(path_element):
    """The cells of a path of rectangles."""
    cells, text = [], path_element.get("d")
    rectangles = re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)h-(\d+)z", text)
    whole = "".join("M%s %sh%sv%sh-%sz" % r for r in rectangles) == text
    for x, y, width, height, back in ([int(n) for n in r] for r in rectangles):
        whole &= width == back
        cells += [(y + i, x + j) for i in range(height) for j in range(width)]
    return cells, whole


def expected(spec, info):
    """Cells by class, from the element formula; None where there is no formula."""
    name, _, keys = spec.partition(":")
    if name not in FORMULAS or info["grid_rows"] * info["grid_cols"] > 1000:
        return None
    values = dict((k.partition("=")[0], k.partition("=")[2]) for k in keys.split(","))
    values = {k: int(v) for k, v in values.items() if k != "block"}
    found = {"full": set(), "partial": set()}
    for r in range(info["grid_rows"]):
        for c in range(info["grid_cols"]):
            seen = [FORMULAS[name](values, i, j)
                    for i in range(r * info["block_rows"],
                                   min((r + 1) * info["block_rows"], info["rows"]))
                    for j in range(c * info["block_cols"],
                                   min((c + 1) * info["block_cols"], info["cols"]))]
            if any(seen):
                found["full" if all(seen) else "partial"].add((r, c))
    return found


def check_picture(checks, spec, info, text):
    root = ElementTree.fromstring(text)
    heads = root.findall(f"{SVG}g")
    want = expected(spec, info)
    drawn = {"full": 0, "partial": 0}
    for head in heads:
        everything = []
        for kind in drawn:
            paths = [p for p in head.findall(f"{SVG}path") if p.get("class") == kind]
            cells = []
            for path in paths:
                some, whole = cells_of(path)
                checks.check(whole, f"{spec}: the path is made of rectangles")
                cells += some
            checks.check(len(paths) <= 1, f"{spec}: one path for {kind}")
            checks.check(want is None or set(cells) == want[kind], f"{spec}: {kind} by formula")
            drawn[kind] += len(cells)
            everything += cells
        checks.check(len(everything) == len(set(everything)), f"{spec}: no overlap")
        checks.check(all(r < info["grid_rows"] and c < info["grid_cols"] for r, c in everything),
                     f"{spec}: inside the grid")
    checks.check(len(heads) == info["heads"], f"{spec}: a grid for each head")
    checks.check(sum(drawn.values()) == info["nnz"], f"{spec}: {drawn} of {info['nnz']} blocks")
    checks.check(drawn["full"] == info["full"] and drawn["partial"] == info["partial"],
                 f"{spec}: {drawn} but full {info['full']}")
    grid = info["heads"] * info["grid_rows"] * info["grid_cols"]
    checks.check(abs(info["density"] - info["nnz"] / grid) < 1e-12, f"{spec}: density")


def check_all(bsk):
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        one, two = pathlib.Path(folder) / "one.svg", pathlib.Path(folder) / "two.svg"
        for spec in list(PICTURES.values()) + OTHERS:
            info = draw(bsk, spec, one)
            draw(bsk, spec, two)
            checks.check(one.read_bytes() == two.read_bytes(), f"{spec}: the same each time")
            check_picture(checks, spec, info, one.read_text())
            words = subprocess.run([bsk, "info", "--layout", spec], check=True,
                                   capture_output=True, text=True).stdout
            checks.check(re.search(rf"^kept +{info['nnz']}: {info['full']} visible in full, "
                                   rf"{info['partial']} in part$", words, re.M), f"{spec}: text")
        for name, spec in PICTURES.items():
            draw(bsk, spec, one)
            file = FOLDER / f"{name}.svg"
            checks.check(file.exists() and file.read_bytes() == one.read_bytes(),
                         f"{file.name}: as the tool draws it")
            checks.check(one.stat().st_size <= MOST_BYTES, f"{file.name}: small")
        for mistake in MISTAKES:
            run = subprocess.run([bsk, "info", *mistake], capture_output=True, text=True)
            checks.check(run.returncode == 2 and run.stderr and not run.stdout,
                         f"{mistake}: {run.returncode} {run.stderr}")
        nowhere = str(pathlib.Path(folder) / "no" / "where.svg")
        run = subprocess.run([bsk, "info", "--layout", "causal", "--svg", nowhere],
                             capture_output=True, text=True)
        checks.check(run.returncode == 1 and nowhere in run.stderr, "a file that cannot be made")
    print(f"{checks.passed} passed, {checks.failed} failed, 0 skipped")
    return 1 if checks.failed else 0


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("--write", "--check"):
        print(__doc__, file=sys.stderr)
        return 2
    if sys.argv[1] == "--check":
        return check_all(sys.argv[2])
    FOLDER.mkdir(exist_ok=True)
    for name, spec in PICTURES.items():
        draw(sys.argv[2], spec, FOLDER / f"{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
