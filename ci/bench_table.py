#!/usr/bin/env python3
"""Tables of measured rows, made from a report of `bsk bench --json`.

    bench_table.py REPORT.json                    print the table
    bench_table.py REPORT.json --short            products: eta or share of roof by block and density
    bench_table.py REPORT.json --write README.md  put it between the page's bench marks, or those of
                                                  another name with --mark NAME

Reports of a CPU give peers as time of the peer / time of bsk at the same shape: above 1, bsk is
faster; libxsmm walks the kept blocks, the others are dense. Goals are shares of the calibrated roof
or rate of reading, and ratios to peers. Reports of an NVIDIA device give each row beside its goal:
measured / must of 1 or more holds. eta is the useful rate over cuBLAS's dense rate, timed in
alternation with the row. Reports of bench/attention_peers.py give bsk beside cuDNN and
FlexAttention.
"""

import argparse
import json
import pathlib

# eta that must be reached, by (weight gradient?, block), then shape, at density 0.10, 0.25, 0.50.
SHAPES = {(8192, 4096, 4096): "S", (16384, 8192, 8192): "L"}
DENSITIES = (0.10, 0.25, 0.50)
MUST = {
    (False, "128"): {"S": (0.64, 0.80, 0.90), "L": (0.75, 0.90, 0.95)},
    (False, "64"): {"S": (0.48, 0.60, 0.72), "L": (0.58, 0.66, 0.75)},
    (False, "32"): {"S": (0.32, 0.45, 0.60), "L": (0.34, 0.46, 0.64)},
    (False, "16"): {"S": (0.26, 0.38, 0.46), "L": (0.30, 0.40, 0.46)},
    (False, "8"): {"S": (0.15, 0.21, 0.42), "L": (0.17, 0.21, 0.42)},
    (True, "128"): {"S": (0.57, 0.79, 0.88), "L": (0.74, 0.83, 0.88)},
    (True, "64"): {"S": (0.45, 0.60, 0.70), "L": (0.60, 0.62, 0.68)},
    (True, "32"): {"S": (0.26, 0.34, 0.54), "L": (0.26, 0.35, 0.50)},
    (True, "16"): {"S": (0.23, 0.27, 0.46), "L": (0.23, 0.26, 0.42)},
    (True, "8"): {"S": (0.14, 0.22, 0.42), "L": (0.16, 0.21, 0.42)},
}
# TFLOP/s below which a throttled dense product does not lower the goal of shape L.
DENSE_L = 790
# Speed-ups over the dense product, by (size, block), of openai/blocksparse's own cases.
SPEEDUP = {(12288, "32"): 15, (20480, "32"): 30, (20480, "16"): 18, (20480, "8"): 9}
# Shares of the rate of another row, or of the copy rate.
DGRAD_OF_Y, CN_OF_NC, SKEWED_OF_UNIFORM, COPY_SHARE = 1 / 1.05, 0.85, 0.85, 0.80
SMALL_N = 64
# Shares of the copy rate of ops that memory limits (bias_act: with relu), where a backend has only
# portable entries this much of them; on the CPU one share for all that have a goal there.
MEMORY = {"layer_norm": 0.92, "layer_norm_grad": 0.85, "masked_softmax": 0.92,
          "masked_softmax_grad": 0.95, "unary": 0.93, "unary_grad": 0.93, "bias_act": 0.92,
          "bias_act_grad": 0.92, "dropout": 0.92, "adam": 0.92, "cross_entropy": 0.90,
          "embedding": 0.90, "embedding_grad": 0.60, "block_softmax": 0.80,
          "block_softmax_grad": 0.80}
PORTABLE = 0.85
CPU_COPY, CPU_MEMORY = 0.85, ("layer_norm", "rms_norm", "masked_softmax", "dropout", "adam")
ELEMENT_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i8": 1}
# On the CPU: shares of the roof for blocks of 8 and for larger ones, and for few samples also of the
# rate of reading; time of dX over that of Y; rate over oneDNN's where nearly all blocks are kept.
CPU_Y, CPU_WGRAD, CPU_SMALL, CPU_DGRAD, CPU_DENSE = (0.80, 0.85), (0.50, 0.70), 0.80, 1.10, 0.95
CPU_TILES = 0.55  # of the roof of matrix tiles
CPU_SMALL_N, CPU_DENSE_FROM = 32, 0.5


def key(row, **changes):
    """What rows have in common that differ in `changes` only."""
    names = ("op", "dtype", "axis", "pattern", "block", "n", "k", "m", "packed")
    return tuple(changes.get(n, row.get(n)) for n in names) + (round(row["density"], 2),)


def eta_goal(row):
    """(measured, must) of the rows of the two shapes that have a goal of their own."""
    shape = SHAPES.get((row["n"], row["k"], row["m"]))
    density = min(DENSITIES, key=lambda d: abs(d - row["density"]))
    plain = row["dtype"] in ("bf16", "f16") and row["axis"] == "nc" and row["pattern"] == "random"
    if not shape or not plain or abs(density - row["density"]) > 0.01 or not row["dense_tflops"]:
        return None
    must = MUST[(row["op"] == "matmul_wgrad", row["block"])][shape][DENSITIES.index(density)]
    dense = max(row["dense_tflops"], DENSE_L) if shape == "L" else row["dense_tflops"]
    return row["tflops"] / dense, must


def goals(row, rows, copy_rate, portable):
    """The goals of a row: (name, measured, must). portable: the backend has no tuned entries."""
    if not row["op"].startswith("matmul"):
        must = MEMORY.get(row["op"], 0) * (PORTABLE if portable else 1)
        if row["op"].startswith("bias_act") and " relu " not in row["name"]:
            must = 0
        return [("of the copy rate", row["roof"], must)] if must else []
    found = []

    def relative(name, other, must):
        if other and other is not row:
            found.append((name, other["ms"] / row["ms"], must))

    own = eta_goal(row)
    if own and row["op"] != "matmul_dgrad":
        found.append(("eta",) + own)
    if row["op"] == "matmul_dgrad":
        relative("rate / that of Y", rows.get(key(row, op="matmul")), DGRAD_OF_Y)
    if row["axis"] == "cn" and row["n"] > SMALL_N:
        relative("rate / that of nc", rows.get(key(row, axis="nc")), CN_OF_NC)
    if row["pattern"] == "skewed":
        relative("rate / uniform", rows.get(key(row, pattern="random")), SKEWED_OF_UNIFORM)
    if row["dtype"] == "f32" and row["eta"]:
        found.append(("eta", row["eta"], row["density"]))
    if (row["k"], row["block"]) in SPEEDUP and row["op"] == "matmul" and row["speedup"]:
        found.append(("times dense", row["speedup"], SPEEDUP[(row["k"], row["block"])]))
    elif row["n"] <= SMALL_N and copy_rate:
        kept = row["density"] * row["k"] * row["m"] * ELEMENT_BYTES[row["dtype"]]
        found.append(("weights / copy rate", kept / row["ms"] * 1e3 / copy_rate, COPY_SHARE))
    return found


def cpu_goals(row, rows, host):
    """The same on a CPU. Activations are packed in every timing. Weights are packed once: where Y was
    also timed so, that row has its goals; dX uses the weights of Y as they lie."""
    if row["op"].removesuffix("_grad") in CPU_MEMORY:
        return [("of the copy rate", row["roof"], CPU_COPY)]
    if "n" not in row or not row["op"].startswith("matmul"):
        return []
    if row.get("packed") != (row["op"] == "matmul" and key(row, packed=True) in rows):
        return []
    found = []
    larger = row["block"] != "8"
    peers = {name: peer["ms"] / row["ms"] for name, peer in row["peers"].items()}
    if row["n"] <= CPU_SMALL_N:
        kept = row["density"] * row["k"] * row["m"] * ELEMENT_BYTES[row["dtype"]]
        read = (row.get("read_gbps") or 0) * 1e9 or host.get("roof_read_bytes", 0)
        share = kept / row["ms"] * 1e3 / read if read else 0
        kind = row["dtype"] if row["dtype"] in ("bf16", "i8") else "f32"
        flops = host[f"roof_{kind}_flops"]
        found.append(("of reading or roof", max(share, row["tflops"] * 1e12 / flops), CPU_SMALL))
    elif row["density"] >= CPU_DENSE_FROM:
        if "onednn" in peers:
            dense = peers["onednn"] * row["density"]
            found.append(("rate / onednn", dense, CPU_DENSE))
    elif row["op"] == "matmul" and row["dtype"] != "i8":
        tiles = row["entry"].endswith("_amx")
        found.append(("roof", row["roof"], CPU_TILES if tiles else CPU_Y[larger]))
    elif row["op"] == "matmul_dgrad":
        of_y = rows.get(key(row, op="matmul"))
        if of_y:
            found.append(("rate / that of Y", of_y["ms"] / row["ms"], 1 / CPU_DGRAD))
    elif row["dtype"] == "bf16" and not row["entry"].endswith("_amx"):
        found.append(("roof", row["roof"], CPU_WGRAD[larger]))
    if "libxsmm" in peers:
        found.append(("rate / libxsmm", peers["libxsmm"], 1))
    return found


def goals_of(report):
    """A function from a row of the report to its goals."""
    host, rows = report["host"], {key(row): row for row in report["rows"]}
    if report["device"]["backend"] == "cpu":
        return lambda row: cpu_goals(row, rows, host)
    portable = report["device"]["backend"] != "cuda"
    return lambda row: goals(row, rows, host["roof_bytes"], portable)


def goal_table(report, source):
    host, device = report["host"], report["device"]
    found = goals_of(report)
    lines = [
        f"{device['name']}, {device['arch']}, driver {device['driver']}, {host['peers']}, commit "
        f"{host['commit']}; copy rate {host['roof_bytes'] / 1e9:.0f} GB/s; medians of samples of "
        f"several launches between device events, buffers rotated beyond the cache, random data. "
        f"All figures come from one run: `{source}`.",
        "",
        "| case | entry | packed | ms | TFLOP/s | dense | eta | times dense | goal | measured | "
        "must | measured / must |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        cells = [f"`{row['name'].removesuffix(' seed7')}`", f"`{row['entry']}`",
                 "yes" if row["packed"] else "", f"{row['ms']:.4f}", f"{row['tflops']:.4g}"]
        cells += [f"{row[name]:{form}}" if row[name] else "-"
                  for name, form in (("dense_tflops", ".4g"), ("eta", ".3f"), ("speedup", ".2f"))]
        for name, measured, must in found(row) or [("", None, None)]:
            ends = [name, "", "", ""]
            if must:
                ratio = measured / must
                mark = "" if ratio >= 1 else "**"
                ends[1:] = [f"{measured:.3f}", f"{must:.2f}", f"{mark}{ratio:.2f}{mark}"]
            lines.append("| " + " | ".join(cells + ends) + " |")
    return "\n".join(lines) + "\n"


def eta_table(report, source):
    host, device = report["host"], report["device"]
    best = {}
    for row in report["rows"]:
        own = eta_goal(row)
        if own and row["op"] != "matmul_dgrad" and row["dtype"] == "bf16":
            density = min(DENSITIES, key=lambda d: abs(d - row["density"]))
            at = (row["op"] == "matmul_wgrad", row["block"],
                  SHAPES[(row["n"], row["k"], row["m"])], density)
            best[at] = max(best.get(at, own), own)
    lines = [
        f"{device['name']}, driver {device['driver']}, {host['peers']}, commit {host['commit']}; "
        f"bf16, random blocks, prepacked weights; eta measured / wanted, at densities 0.10, 0.25 "
        f"and 0.50. S: N 8192, 4096 x 4096; L: N 16384, 8192 x 8192. One run: `{source}`.",
        "",
        "| product, block |" + "".join(f" {s} {d:.2f} |" for s in "SL" for d in DENSITIES),
        "|---|" + "---|" * 6,
    ]
    for gradient, block in MUST:
        cells = ["{:.3f} / {:.2f}".format(*best[at]) if at in best else "-"
                 for at in ((gradient, block, s, d) for s in "SL" for d in DENSITIES)]
        lines.append(f"| {'dW' if gradient else 'Y'}, {block} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


PRODUCTS = {"matmul": "Y", "matmul_dgrad": "dX", "matmul_wgrad": "dW"}


def is_tf32(row):
    return " tf32 " in row["name"]


def formats_table(report, source):
    """Products by number format: eta, and milliseconds where there is no dense peer."""
    host, device = report["host"], report["device"]
    cells, blocks = {}, []
    for row in report["rows"]:
        number = "tf32" if is_tf32(row) else row["dtype"]
        number += " scaled" if " scales " in row["name"] else ""
        number += ", ms" if row["eta"] is None else ""
        line = (-row["n"], list(PRODUCTS).index(row["op"]), row["axis"] != "nc", number)
        cells.setdefault(line, {}).setdefault(row["block"], {})[row["packed"]] = (
            f"{row['ms']:.3f}" if row["eta"] is None else f"{row['eta']:.2f}")
        if row["block"] not in blocks:
            blocks.append(row["block"])
    lines = [
        f"{device['name']}, driver {device['driver']}, {host['peers']}, commit {host['commit']}; "
        f"4096 x 4096, density 0.25; eta beside cuBLAS in the same format, weights as stored (packed "
        f"before). One run: `{source}`.",
        "",
        "| product, axis, N | format |" + "".join(f" {block} |" for block in blocks),
        "|---|---|" + "---|" * len(blocks),
    ]
    for line in sorted(cells):
        n, op, cn, number = line
        texts = [f"{of[False]} ({of[True]})" if True in of else of.get(False, "-")
                 for of in (cells[line].get(block, {}) for block in blocks)]
        name = f"{list(PRODUCTS.values())[op]}, {'CN' if cn else 'NC'}, {-n}"
        lines.append(f"| {name} | {number} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


FEW_FORMS = ["f32", "tf32", "bf16", "f8e4m3"]


def few_table(report, source):
    """Products of few samples: times, and how much longer the dense product takes."""
    host, device = report["host"], report["device"]
    cells, blocks = {}, []
    for row in report["rows"]:
        form = "tf32" if is_tf32(row) else row["dtype"]
        line = (FEW_FORMS.index(form), list(PRODUCTS).index(row["op"]), row["axis"] != "nc", row["n"])
        best = cells.setdefault(line, {}).get(row["block"])
        if not best or row["ms"] < best["ms"]:
            cells[line][row["block"]] = row
        if row["block"] not in blocks:
            blocks.append(row["block"])
    lines = [
        f"{device['name']}, driver {device['driver']}, {host['peers']}, commit {host['commit']}; "
        f"8192 x 8192, density 0.25; us (times as fast as cuBLAS, dense, in the same format), weights "
        f"as stored, or packed before where that is faster (*). Copies moved "
        f"{host['roof_bytes'] / 1e9:.0f} GB/s. One run: `{source}`.",
        "",
        "| format, product, axis, N |" + "".join(f" {block} |" for block in blocks),
        "|---|" + "---|" * len(blocks),
    ]
    for line in sorted(cells):
        form, op, cn, n = line
        texts = [f"{of['ms'] * 1e3:.1f}{'*' if of['packed'] else ''}"
                 f"{' (%.1f)' % of['speedup'] if of['speedup'] else ''}"
                 if of else "-" for of in (cells[line].get(block) for block in blocks)]
        lines.append(f"| {FEW_FORMS[form]}, {list(PRODUCTS.values())[op]}, "
                     f"{'CN' if cn else 'NC'}, {n} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def is_few(report):
    return all(row.get("dtype") in FEW_FORMS and row["n"] <= 128 for row in report["rows"])


def is_moe(report):
    return all(row.get("op", "").startswith(("grouped_", "moe_")) for row in report["rows"])


def moe_table(report, source):
    """Products of groups beside PyTorch."""
    host, device = report["host"], report["device"]
    lines = [
        f"{device['name']}, driver {device['driver']}, commit {host['commit']}; ms, medians (the least). "
        f"One run: `{source}`.",
        "",
        "| case | ms | TFLOP/s | PyTorch, ms | PyTorch / bsk |",
        "|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        peer = min((of["ms"] for of in row["peers"].values()), default=None)
        name = " ".join(w for w in row["name"].split() if not w.startswith("seed"))
        lines.append(f"| `{name}` | {row['ms']:.4g} ({row['ms_least']:.4g}) | "
                     + (f"{row['tflops']:.0f} | " if row["tflops"] else "- | ")
                     + (f"{peer:.4g} | {peer / row['ms']:.2f} |" if peer else "- | - |"))
    return "\n".join(lines) + "\n"


def attention_table(report, source):
    device, by_case = report["device"], {}
    for row in report["rows"]:
        by_case.setdefault((row["case"], row["d"], row["op"]), {})[row["entry"]] = row
    lines = [
        f"{device['name']}, driver {device['driver']}, PyTorch {report['torch']}, commit "
        f"{report['commit']}; bf16, batch 2, 16 heads, 8192 queries and keys; useful TFLOP/s; "
        f"medians of rounds in which the entries take turns. One run: `{source}`.",
        "",
        "| case | heads of | pass | bsk | cuDNN | FlexAttention | bsk / best peer |",
        "|---|---|---|---|---|---|---|",
    ]
    for (case, d, way), rows in by_case.items():
        rates = [rows[e]["tflops"] if e in rows else 0 for e in ("bsk", "cudnn", "flex")]
        peer = max(rates[1:])
        lines.append(f"| {case} | {d} | {way} | " +
                     " | ".join(f"{r:.3g}" if r else "-" for r in rates) +
                     f" | {f'{rates[0] / peer:.2f}' if peer else '-'} |")
    return "\n".join(lines) + "\n"


def summary(report):
    """One line for each kind of goal: how many hold."""
    counts, found = {}, goals_of(report)
    for row in report["rows"]:
        for name, measured, must in found(row):
            kind = (row["op"], name, "weights packed" if row["packed"] else "weights as stored")
            holds, total = counts.get(kind, (0, 0))
            counts[kind] = (holds + (measured >= must), total + 1)
    return "".join(f"{op}, {name}, {state}: {holds} of {total} goals hold\n"
                   for (op, name, state), (holds, total) in sorted(counts.items()))


def peer_table(report, source):
    host, device, rows = report["host"], report["device"], report["rows"]
    found = goals_of(report)
    peers = sorted({name for row in rows for name in row["peers"]})
    lines = [
        f"{device['name']}, {host['threads']} threads, {device['arch']}, commit {host['commit']}; "
        f"calibrated roof {host['roof_f32_flops'] / 1e9:.0f} GFLOP/s f32; medians; "
        f"activations are packed in the time, weights only where marked. All figures of a row come "
        f"from one run: `{source}`.",
        "",
        "| case | entry | ms | GFLOP/s | share of roof |"
        + "".join(f" {p} / bsk |" for p in peers) + " measured / must |",
        "|---|---|---|---|---|" + "---|" * (len(peers) + 1),
    ]
    for row in rows:
        cells = [f"{row['peers'][p]['ms'] / row['ms']:.2f}" if p in row["peers"] else "-"
                 for p in peers]
        entry = f"`{row['entry']}`" + (", packed" if row.get("packed") else "")
        ratios = ", ".join(f"{name} {measured / must:.2f}" for name, measured, must in found(row))
        lines.append(
            "| " + " | ".join([f"`{row['name']}`", entry, f"{row['ms']:.2f}",
                               f"{row['tflops'] * 1e3:.0f}", f"{row['roof']:.2f}"] + cells + [ratios]) +
            " |")
    return "\n".join(lines) + "\n"


def share_table(report, source):
    """Shares of the CPU's roof, by product, type, block, axis, samples and density."""
    host, device, found = report["host"], report["device"], goals_of(report)
    columns = [(axis, n, d) for axis in ("nc", "cn") for n in (256, 1024) for d in (0.25, 0.10)]
    cells, musts = {}, {}
    for row in report["rows"]:
        column = (row["axis"], row["n"], round(row["density"], 2))
        for name, measured, must in found(row):
            if name == "roof" and column in columns:
                line = (row["op"], row["dtype"], row["block"])
                musts[line] = must
                cell = f"{measured:.2f}" if measured >= must else f"**{measured:.2f}**"
                cells[line, column] = cell if row.get("calm", 1) >= 0.5 else f"({cell})"
    lines = [
        f"{device['name']}, {device['arch']}, threads: {host['threads']}, commit {host['commit']}; roof "
        f"{host['roof_f32_flops'] / 1e9:.0f} GFLOP/s f32, {host['roof_bf16_flops'] / 1e9:.0f} bf16; "
        f"W 4096 x 4096, random blocks; shares of the roof by axis, N and density; medians, "
        f"activations packed in the time, weights before; bold where less than wanted, in "
        f"parentheses where most samples had a busy neighbour. One run: `{source}`.",
        "",
        "| product, type, block | must |" + "".join(f" {a} {n} {d:.2f} |" for a, n, d in columns),
        "|---|---|" + "---|" * len(columns),
    ]
    for op, dtype, block in musts:
        name = "dW" if op == "matmul_wgrad" else "Y"
        lines.append(f"| {name}, {dtype}, {block} | {musts[op, dtype, block]:.2f} | " + " | ".join(
            cells.get(((op, dtype, block), column), "-") for column in columns) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--mark", default="bench")
    parser.add_argument("--summary", action="store_true", help="count the goals that hold")
    parser.add_argument("--short", action="store_true", help="one cell for each product")
    args = parser.parse_args()
    report = json.loads(args.report.read_text())
    if args.summary and "host" in report:
        print(summary(report), end="")
        return
    cpu = "device" in report and report["device"]["backend"] == "cpu"
    make = (attention_table if "torch" in report else
            moe_table if is_moe(report) else
            share_table if cpu and args.short else
            peer_table if cpu else
            goal_table if not args.short else
            few_table if is_few(report) else
            formats_table if any(map(is_tf32, report["rows"])) else eta_table)
    text = make(report, args.report)
    if not args.write:
        print(text, end="")
        return
    begin, end = f"<!-- {args.mark}: begin -->", f"<!-- {args.mark}: end -->"
    page = args.write.read_text()
    before, rest = page.split(begin, 1)
    _, after = rest.split(end, 1)
    args.write.write_text(f"{before}{begin}\n{text}{end}{after}")


if __name__ == "__main__":
    main()
