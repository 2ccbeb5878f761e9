#!/usr/bin/env python3
"""Writes bsk/_abi.py: the C interface as Python data, taken from the sources themselves.

    abi.py ROOT OUTPUT [--depfile FILE] [--cc COMMAND...]

Structs, enums and functions are those of api/include/bsk as the preprocessor leaves them, and the
roles of the ops' tensors (in, out, optional) those of the descriptors in api/src/op_*.c. So a new
op needs no line here, and nothing is described twice.
"""

import argparse
import pathlib
import pprint
import re
import subprocess
import sys

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
STRUCT = re.compile(r"typedef struct (bsk_\w+) \{(.*?)\} \1;", re.DOTALL)
ENUM = re.compile(r"typedef enum (bsk_\w+) \{(.*?)\} \1;", re.DOTALL)
ANONYMOUS_ENUM = re.compile(r"^enum \{(.*?)\};", re.DOTALL | re.MULTILINE)
PROTOTYPE = re.compile(r"^BSK_API\s+([^;(]*?)(bsk_\w+)\s*\(([^;]*)\);", re.MULTILINE)
INCLUDE = re.compile(r"^#include <(bsk/\w+\.h)>", re.MULTILINE)
POINTER_FIELD = re.compile(r"\(\*(\w+)\)\(")
ARG_TABLE = re.compile(r"static const bski_arg (\w+)\[\] = \{(.*?)\};", re.DOTALL)
ZERO = re.compile(r"([\w, ]+);\s*/\*[^*]*?\b0 means ([^;*]+)")
OP = re.compile(r"const bski_op_info bski_op_(\w+) = \{(.*?)\};", re.DOTALL)

# What 0 stands for where the text above a struct says it, by op and field.
GATE = {"limit_a": "-0.1", "limit_b": "1.1"}
ZERO_IN_TEXT = {
    "l2_normalize": {"eps": "1e-12"}, "l2_normalize_grad": {"eps": "1e-12"},
    "block_l2_decay": {"eps": "1e-12"}, "concrete_gate_infer": GATE,
    "concrete_gate": {**GATE, "eps": "1e-6", "temperature": "2/3"},
    "concrete_gate_grad": {**GATE, "temperature": "2/3"},
}


def zeros(body):
    """Of the fields of a struct whose comment says "0 means ...": what that is."""
    found = {}
    for names, values in ZERO.findall(body):
        names = names.split(None, 1)[1].split(",")
        values = values.split(",") if len(names) > 1 else [values]
        found.update((n.strip(), " ".join(v.split())) for n, v in zip(names, values))
    return found


def declarations(body):
    """The fields of a struct: (name, type, number of elements)."""
    fields = []
    for line in body.split(";"):
        line = " ".join(line.split())
        if not line:
            continue
        function = POINTER_FIELD.search(line)
        if function:
            fields.append((function.group(1), "function", 1))
            continue
        kind, names = re.match(r"((?:const )?\w+)\s+(.*)", line).groups()
        for name in names.split(","):
            name, stars = re.subn(r"\*", "", name.strip())
            name, _, count = name.strip().partition("[")
            fields.append((name, kind.replace("const ", "") + " *" * stars,
                           count.rstrip("]") or 1))
    return fields


def enumerators(body, known):
    values, following = {}, 0
    for item in body.split(","):
        if not item.strip():
            continue
        name, _, value = (part.strip() for part in item.partition("="))
        following = (known[value] if value in known else int(value, 0)) if value else following
        values[name] = following
        following += 1
    return values


def parameter_types(text):
    types = []
    for item in text.split(","):
        item = item.strip().replace("const ", "")
        if item == "void":
            continue
        kind, stars = re.match(r"(\w+)\s*(\**)\s*\w*$", item.replace("* *", "**")).groups()
        types.append(kind + " *" * len(stars))
    return types


def comment_before(text, position):
    """The comment that ends right before a position, as plain lines."""
    before = text[:position].rstrip()
    if not before.endswith("*/"):
        return ""
    lines = before[before.rindex("/*") + 2:-2].splitlines()
    lines = [re.sub(r"^ \* ?", "", line).rstrip(" -") for line in lines]
    return "\n".join(lines).strip(" -\n")


class Interface:
    def __init__(self, root, compiler):
        self.root = pathlib.Path(root)
        self.compiler = compiler
        include = self.root / "api/include"
        self.files = [include / "bsk/bsk.h"]
        for path in self.files:  # grows: all that bsk.h includes
            self.files += [f for name in INCLUDE.findall(path.read_text())
                           if (f := include / name) not in self.files]
        self.sources = sorted((self.root / "api/src").glob("op_*.c"))
        self.enums, self.constants, self.structs, self.functions = {}, {}, {}, {}
        self.docs, self.zeros = {}, {}
        for path in self.files:
            self.read_header(path)
        self.sizes()
        self.ops = {}
        for path in self.sources:
            self.read_descriptors(self.preprocess(path))
        missing = {f"bsk_{op}_plan" for op in self.ops} ^ {
            name for name, (_, types) in self.functions.items()
            if name.endswith("_plan") and name[:-4] + "run" in self.functions
            and types[0] != "bsk_comm *"}  # collectives are no ops
        if missing:
            sys.exit(f"abi.py: {', '.join(sorted(missing))}: the descriptors and the headers differ")

    def preprocess(self, path):
        return subprocess.run([*self.compiler, "-E", "-P", "-D_POSIX_C_SOURCE=200809L",
                               f"-I{self.root}", f"-I{self.root / 'api/include'}", str(path)],
                              check=True, capture_output=True, text=True).stdout

    def read_header(self, path):
        raw = path.read_text()
        text = COMMENT.sub("", raw)
        for name, body in ENUM.findall(text):
            values = enumerators(body, self.constants)
            self.constants.update(values)
            self.enums[name] = {k: v for k, v in values.items() if not k.endswith("_FORCE_INT")}
        for body in ANONYMOUS_ENUM.findall(text):
            self.constants.update(enumerators(body, self.constants))
        for name, body in STRUCT.findall(raw):
            self.zeros[name] = zeros(body)
        for name, body in STRUCT.findall(text):
            self.structs[name] = declarations(body)
            self.docs[name] = comment_before(raw, raw.index(f"typedef struct {name} {{"))
        for kind, name, parameters in PROTOTYPE.findall(text):
            kind, stars = re.subn(r"\*", "", kind.replace("const ", ""))
            self.functions[name] = (kind.strip() + " *" * stars, parameter_types(parameters))
            self.docs[name] = comment_before(
                raw, re.search(r"^BSK_API[^;(]*\b" + name + r"\(", raw, re.MULTILINE).start())

    def sizes(self):
        """Lengths of arrays that are named constants."""
        for name, fields in self.structs.items():
            self.structs[name] = [(f, kind, self.constants[n] if n in self.constants else int(n))
                                  for f, kind, n in fields]

    def read_descriptors(self, text):
        tables = {name: re.findall(r"\{(\s*\.name.*?)\}", body, re.DOTALL)
                  for name, body in ARG_TABLE.findall(text)}
        for op, body in OP.findall(text):
            args = re.search(r"\.args = (\w+)", body).group(1)
            params = self.functions[f"bsk_{op}_plan"][1][1].rstrip(" *")
            arguments = self.functions[f"bsk_{op}_run"][1][2].rstrip(" *")
            self.ops[op] = {
                "params": params,
                "args": arguments,
                "zeros": {**self.zeros[params], **self.zeros[arguments],
                          **ZERO_IN_TEXT.get(op, {})},
                "tensors": [self.tensor(row) for row in tables[args]],
                "doc": self.docs[f"bsk_{op}_plan"] or self.docs[params],
            }

    @staticmethod
    def tensor(row):
        name = re.search(r'\.name = "(\w+)"', row).group(1)
        role = re.search(r"\.role = BSKI_(\w+)", row)
        flags = [flag for flag in ("optional", "list") if re.search(rf"\.{flag} = 1", row)]
        return (name, role.group(1).lower() if role else "in", *flags)

    def write(self, output):
        text = '"""The C interface of bsk as data. Made by python/abi.py at build time."""\n'
        version = re.search(r'BSK_VERSION_STRING "([^"]*)"',
                            (self.root / "api/include/bsk/bsk.h").read_text()).group(1)
        for name, value in (("VERSION", version), ("ENUMS", self.enums),
                            ("CONSTANTS", self.constants), ("STRUCTS", self.structs),
                            ("FUNCTIONS", self.functions), ("OPS", self.ops)):
            text += f"\n{name} = {pprint.pformat(value, width=96, sort_dicts=False)}\n"
        pathlib.Path(output).write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root")
    parser.add_argument("output")
    parser.add_argument("--depfile")
    parser.add_argument("--cc", nargs="+", default=["cc"])
    args = parser.parse_args()
    interface = Interface(args.root, args.cc)
    interface.write(args.output)
    if args.depfile:
        needed = [*interface.files, *interface.sources, interface.root / "api/src/op.h"]
        pathlib.Path(args.depfile).write_text(f"{args.output}: {' '.join(map(str, needed))}\n")


if __name__ == "__main__":
    main()
