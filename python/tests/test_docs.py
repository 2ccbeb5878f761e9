"""The examples of the documentation are run."""

import doctest
import pathlib

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")

import bsk  # noqa: E402
import bsk._conv  # noqa: E402
import bsk.compat  # noqa: E402
import bsk.torch  # noqa: E402

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs/python.md"


def test_guide():
    got = doctest.testfile(str(GUIDE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert got.attempted > 30 and not got.failed


@pytest.mark.parametrize("module", [bsk, bsk._conv, bsk.compat, bsk.layout, bsk.ops,
                                    bsk.torch.patch],
                         ids=lambda m: m.__name__)
def test_docstrings(module):
    got = doctest.testmod(module)
    assert got.attempted and not got.failed
