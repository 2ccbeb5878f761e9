#!/usr/bin/env python3
"""The table of measured rows in the README, made from a report of `bsk bench --json`.

    bench_table.py REPORT.json            print the table
    bench_table.py REPORT.json --write README.md

Peers are given as time of the peer / time of bsk at the same shape, dense: above 1, bsk is faster.
"""

import argparse
import json
import pathlib

BEGIN = "<!-- bench: begin -->"
END = "<!-- bench: end -->"


def table(report, source):
    host, device, rows = report["host"], report["device"], report["rows"]
    peers = sorted({name for row in rows for name in row["peers"]})
    lines = [
        f"{device['name']}, {host['threads']} threads, {device['arch']}, commit {host['commit']}; "
        f"calibrated roof {host['roof_f32_flops'] / 1e9:.0f} GFLOP/s f32; medians; "
        f"packing counted. All figures of a row come from one run: `{source}`.",
        "",
        "| case | entry | ms | GFLOP/s | share of roof |"
        + "".join(f" {p} dense / bsk |" for p in peers),
        "|---|---|---|---|---|" + "---|" * len(peers),
    ]
    for row in rows:
        cells = [f"{row['peers'][p]['ms'] / row['ms']:.2f}" if p in row["peers"] else "-"
                 for p in peers]
        lines.append(
            "| " + " | ".join([f"`{row['name']}`", f"`{row['entry']}`", f"{row['ms']:.2f}",
                               f"{row['tflops'] * 1e3:.0f}", f"{row['roof']:.2f}"] + cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--write", type=pathlib.Path)
    args = parser.parse_args()
    text = table(json.loads(args.report.read_text()), args.report)
    if not args.write:
        print(text, end="")
        return
    page = args.write.read_text()
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    args.write.write_text(f"{before}{BEGIN}\n{text}{END}{after}")


if __name__ == "__main__":
    main()
