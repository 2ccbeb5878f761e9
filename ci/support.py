#!/usr/bin/env python3
"""The support matrix of the README, made from the library's own list of entries.

    bsk info --json | support.py            print the table
    bsk info --json | support.py --write README.md
    bsk info --json | support.py --check README.md      1 passed, or 1 failed with the differences;
                                            backends and architectures that the build lacks are not
                                            looked at, so that the table is of a whole build

Between the markers of the file stands one row for each kernel op and one column for each backend:
the types that its entries serve, and the architectures they are tuned for. Entries that are chosen
by name only are left out.
"""

import argparse
import difflib
import json
import pathlib
import sys

BEGIN = "<!-- support: begin -->"
END = "<!-- support: end -->"
BLOCKS = [8, 16, 32, 64, 128]  # an entry that serves all of them needs no list


def is_reference(entry):
    return entry.get("reference", entry["name"].startswith("ref_"))


def cell(entries):
    """What one backend has for one op, such as 'ref; f32 f16 bf16: base avx2 avx512'."""
    parts = ["ref"] if any(is_reference(e) for e in entries) else []
    archs = {}
    for entry in entries:
        if not is_reference(entry):
            some = entry["blocks"] if len(entry["blocks"]) < len(BLOCKS) else []
            blocks = " ".join(str(b) for b in some)
            types = " ".join(entry["dtypes"]) or "all types"
            key = f"{types} ({blocks})" if blocks else types
            archs.setdefault(key, []).append(entry["arch"] or "any")
    # Listed best first; read from the oldest architecture on.
    parts += [f"{types}: {' '.join(dict.fromkeys(reversed(names)))}"
              for types, names in archs.items()]
    return "; ".join(parts) or "-"


def table(info):
    backends, ops = [], []
    entries = [e for e in info["entries"] if not e["by_name"]]
    for entry in entries:
        if entry["backend"] not in backends:
            backends.append(entry["backend"])
        if entry["op"] not in ops:
            ops.append(entry["op"])
    lines = ["| op | " + " | ".join(backends) + " |", "|---" * (len(backends) + 1) + "|"]
    for op in sorted(ops):
        row = [cell([e for e in entries if e["op"] == op and e["backend"] == b])
               for b in backends]
        lines.append("| `" + op + "` | " + " | ".join(row) + " |")
    return "\n".join(lines)


def known(cell_text, archs):
    """A cell without the architectures that a build does not have."""
    parts = []
    for part in cell_text.split("; "):
        types, colon, names = part.partition(": ")
        kept = [name for name in names.split() if name in archs]
        if not colon or kept:
            parts.append(f"{types}: {' '.join(kept)}" if colon else part)
    return "; ".join(parts) or "-"


def within(lines, entries):
    """Rows of a table without the backends and architectures that are not in a build."""
    archs = {}
    for entry in entries:
        archs.setdefault(entry["backend"], set()).add(entry["arch"] or "any")
    rows = [[text.strip() for text in line.strip("|").split("|")] for line in lines]
    keep = [(i, archs[name]) for i, name in enumerate(rows[0]) if name in archs]
    head = ["| " + " | ".join([rows[0][0]] + [rows[0][i] for i, _ in keep]) + " |",
            "|---" * (len(keep) + 1) + "|"]
    return head + ["| " + " | ".join([row[0]] + [known(row[i], names) for i, names in keep]) + " |"
                   for row in rows[2:]]


def split(text, path):
    """The text before, between and after the markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{path}: needs one line {BEGIN} and one line {END}")
    before, rest = text.split(BEGIN)
    between, after = rest.split(END)
    return before + BEGIN + "\n", between.strip("\n"), "\n" + END + after


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--check", metavar="FILE", type=pathlib.Path)
    args = parser.parse_args()
    info = json.load(sys.stdin)
    wanted = table(info)
    path = args.write or args.check
    if not path:
        print(wanted)
        return 0
    before, between, after = split(path.read_text(), path)
    if args.write:
        path.write_text(before + wanted + after)
        return 0
    there = within(between.splitlines(), info["entries"])
    good = there == wanted.splitlines()
    if not good:
        sys.stdout.writelines(line + "\n" for line in difflib.unified_diff(
            there, wanted.splitlines(), str(path), "the library", lineterm=""))
    print("1 passed, 0 failed, 0 skipped" if good else "0 passed, 1 failed, 0 skipped")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
