"""The C interface as the package sees it is that of the headers and of the library."""

import ctypes
import importlib.util
import pathlib
import re
import shutil
import subprocess

import pytest

import bsk
from bsk import _abi, _c, ops

ROOT = pathlib.Path(__file__).resolve().parents[2]


def generator():
    spec = importlib.util.spec_from_file_location("abi", ROOT / "python/abi.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_module_is_that_of_the_headers(tmp_path):
    generator().Interface(ROOT, ["cc"]).write(tmp_path / "_abi.py")
    made = {}
    exec((tmp_path / "_abi.py").read_text(), made)
    for name in ("VERSION", "ENUMS", "CONSTANTS", "STRUCTS", "FUNCTIONS", "OPS"):
        assert made[name] == getattr(_abi, name), name


def test_versions_agree():
    assert f"version: '{_abi.VERSION}'" in (ROOT / "meson.build").read_text()
    assert bsk.__version__ == _abi.VERSION


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_structs_lie_as_the_compiler_lays_them(tmp_path):
    lines = ['#include <bsk/bsk.h>', '#include <stdio.h>', 'int main(void) {']
    for name, cls in _c.structs.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{f} %zu\\n", offsetof({name}, {f}));' for f, _ in cls._fields_]
    (tmp_path / "sizes.c").write_text("\n".join([*lines, "return 0; }\n"]))
    subprocess.run(["cc", "-I", str(ROOT / "api/include"), "-o", str(tmp_path / "sizes"),
                    str(tmp_path / "sizes.c")], check=True)
    out = subprocess.run([str(tmp_path / "sizes")], check=True, capture_output=True, text=True)
    expected = dict(line.rsplit(" ", 1) for line in out.stdout.splitlines())
    for name, cls in _c.structs.items():
        assert ctypes.sizeof(cls) == int(expected[name]), name
        for field, _ in cls._fields_:
            assert getattr(cls, field).offset == int(expected[f"{name}.{field}"]), (name, field)


def test_structs_that_are_read_end_with_a_field():
    """A field that is added later must not lie where callers of today leave chance bytes."""
    for name, cls in _c.structs.items():
        if name.endswith(("_params", "_args", "_options")):
            last = getattr(cls, cls._fields_[-1][0])
            assert last.offset + last.size == ctypes.sizeof(cls), name


def test_library_knows_the_structs():
    """A struct with fields that the library has not is refused as newer."""
    size = ctypes.sizeof(_c.structs["bsk_context_params"])
    memory = (ctypes.c_size_t * (size // 8 + 1))(size + 8)
    handle = ctypes.c_void_p()
    memory[size // 8] = 1
    with pytest.raises(bsk.FormatError):
        _c.check(_c.lib.bsk_context_create(ctypes.addressof(memory), ctypes.addressof(handle)))


@pytest.mark.parametrize("op", sorted(_abi.OPS))
def test_every_op_is_a_function(op):
    function = getattr(ops, op)
    assert function.__name__ == op
    for section in ("Parameters", "Returns"):
        assert section in function.__doc__
    assert op in dir(ops)


def test_unknown_op():
    with pytest.raises(AttributeError):
        ops.no_such_op


def test_errors_carry_message_and_status():
    with pytest.raises(bsk.InvalidError, match="density") as caught:
        bsk.Layout.random((8, 8), 8, 1.5)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, bsk.BskError)
    assert caught.value.status == -1


def test_devices():
    assert "cpu:0" in [d.id for d in bsk.devices()]
    assert bsk.device("cpu:0").host_memory
    with pytest.raises(bsk.InvalidError):
        bsk.device("cpu:77")
    with pytest.raises(RuntimeError):
        bsk.init(num_threads=1)
