#!/usr/bin/env python3
"""Puts kernel files into a C file, so that a backend can compile them where it runs.

    embed.py --root DIR --prefix FILE... --depfile FILE --output FILE KERNEL_FILE...

Each kernel file becomes one text: the prefix files, then the kernel file, with every line
#include "x.h" or #include <backends/...> replaced by that file; guards see to it that the compiler
reads it once. An include that is not found beside the including file or in --root is left as it
is: those stand in branches for other compilers. The output defines the table bski_cl_sources, which
backends/opencl/opencl.h declares.
"""

import argparse
import pathlib
import re

INCLUDE = re.compile(r'\s*#\s*include\s*(?:"([^"]+)"|<(backends/[^>]+)>)')


def inline(path, root, used, open_files=()):
    """The lines of a file with its includes put in; used collects the files."""
    path = path.resolve()
    if path in open_files:  # a circle, which a guard would end
        return []
    used[path] = True
    lines = []
    for line in path.read_text(encoding="ascii").splitlines():
        match = INCLUDE.match(line)
        name = match and (match[1] or match[2])
        places = [p for p in (path.parent / name, root / name) if p.is_file()] if name else []
        lines += inline(places[0], root, used, (*open_files, path)) if places else [line]
    return lines


def array(data):
    """The bytes as C, sixteen in a line, with a terminator that the size does not count."""
    values = [f"{byte}," for byte in data + b"\0"]
    return "\n".join("    " + " ".join(values[i:i + 16]) for i in range(0, len(values), 16))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--prefix", type=pathlib.Path, nargs="*", default=[])
    parser.add_argument("--depfile", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("files", type=pathlib.Path, nargs="+")
    args = parser.parse_args()

    used = {}
    out = ["#include <backends/opencl/opencl.h>", ""]
    rows = []
    for file in args.files:
        lines = []
        for part in args.prefix + [file]:
            lines += inline(part, args.root, used)
        data = ("\n".join(lines) + "\n").encode("ascii")
        name = re.sub(r"\W", "_", file.stem)
        out += [f"static const unsigned char text_{name}[] = {{", array(data), "};", ""]
        rows.append(f'    {{"{file.stem}", text_{name}, {len(data)}}},')
    out += ["const bski_cl_source bski_cl_sources[] = {", *rows, "};",
            f"const size_t bski_cl_source_count = {len(rows)};"]
    args.output.write_text("\n".join(out) + "\n", encoding="ascii")
    if args.depfile:
        names = " ".join(str(path).replace(" ", "\\ ") for path in used)
        args.depfile.write_text(f"{args.output}: {names}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
