#!/usr/bin/env python3
"""The library's binary interface: what the headers declare is what the library exports.

    abi.py list HEADERS                            print the declared functions
    abi.py symbols HEADERS LIST LIBRARY [--nm NM]  compare headers, checked-in list and library
    abi.py headers HEADERS                         compile each header alone and the initialisers of
                                                   its structs, in three languages

The last line of the two checks is 'N passed, N failed, N skipped'.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

# A prototype: the marker, a type, the name and an opening parenthesis.
PROTOTYPE = re.compile(r"^BSK_API\s+[^;(]*?\b(bsk_\w+)\s*\(", re.MULTILINE)
# A struct with a size, which BSK_INIT sets.
SIZED = re.compile(r"^typedef struct (\w+) \{\n\s+size_t struct_size;.*\n(\s+double alpha\b)?",
                   re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)

# Symbols that the linker itself may add.
LINKER = {"_init", "_fini", "_edata", "_end", "__bss_start"}

LANGUAGES = [
    ("C99", ["gcc", "clang"], ["-x", "c", "-std=c99"]),
    ("C11", ["gcc", "clang"], ["-x", "c", "-std=c11"]),
    ("C++11", ["g++", "clang++"], ["-x", "c++", "-std=c++11"]),
]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def headers_in(directory):
    return sorted(pathlib.Path(directory, "bsk").glob("*.h"))


def declared(directory):
    """The functions that the headers mark with BSK_API, sorted."""
    names = []
    for path in headers_in(directory):
        names += PROTOTYPE.findall(COMMENT.sub("", path.read_text()))
    if len(names) != len(set(names)):
        doubled = sorted(n for n in set(names) if names.count(n) > 1)
        raise SystemExit(f"declared twice: {', '.join(doubled)}")
    return sorted(names)


def exported(library, nm):
    out = subprocess.run([nm, "--dynamic", "--defined-only", "--format=posix", library],
                         check=True, capture_output=True, text=True).stdout
    return sorted({line.split()[0].split("@")[0] for line in out.splitlines()} - LINKER)


class Report:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def check(self, good, text):
        if good:
            self.passed += 1
        else:
            self.failed += 1
            print(text, file=sys.stderr)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 1 if self.failed or not self.passed else 0


def check_symbols(args):
    report = Report()
    names = set(declared(args.headers))
    listed = set(pathlib.Path(args.list).read_text().split())
    library = set(exported(args.library, args.nm))
    for name in sorted(names | listed | library):
        missing = [where for where, there in (("the headers", names), ("the list", listed),
                                              ("the library", library)) if name not in there]
        report.check(not missing, f"{name} is missing in {' and '.join(missing)}")
    return report.finish()


def check_headers(args):
    report = Report()
    with tempfile.TemporaryDirectory() as directory:
        for path in headers_in(args.headers):
            for language, compilers, flags in LANGUAGES:
                source = pathlib.Path(directory, "alone.c")
                # Twice, so that the guard is tried too.
                lines = [f"#include <bsk/{path.name}>"] * 2 + ["int unused_here;"]
                lines += ["#include <bsk/tensor.h>"]  # has BSK_INIT
                for name, alpha in SIZED.findall(path.read_text()):
                    init = "BSK_INIT_ALPHA" if alpha else "BSK_INIT"
                    lines += [f"size_t init_{name}(void);", f"size_t init_{name}(void)",
                              f"{{ {name} s = {init}({name}); return s.struct_size; }}"]
                source.write_text("\n".join(lines) + "\n")
                for compiler in compilers:
                    if not shutil.which(compiler):
                        report.skipped += 1
                        continue
                    run = subprocess.run([compiler, *flags, *WARNINGS, "-fsyntax-only", "-I",
                                          args.headers, str(source)],
                                         capture_output=True, text=True)
                    report.check(run.returncode == 0,
                                 f"{path.name} as {language} with {compiler}:\n{run.stderr}")
    return report.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("list")
    command.add_argument("headers")
    command = commands.add_parser("symbols")
    command.add_argument("headers")
    command.add_argument("list")
    command.add_argument("library")
    command.add_argument("--nm", default="nm")
    command = commands.add_parser("headers")
    command.add_argument("headers")
    args = parser.parse_args()
    if args.command == "list":
        print("\n".join(declared(args.headers)))
        return 0
    return check_symbols(args) if args.command == "symbols" else check_headers(args)


if __name__ == "__main__":
    sys.exit(main())
