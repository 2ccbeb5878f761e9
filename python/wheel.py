"""Builds the wheel: meson-python over a project of its own, since the sources lie one folder up.

The project is python/wheel.meson with the library as a subproject, laid out in a temporary folder.
Build options of the library: pip install ./python -Csetup-args=-Dbsk:cuda=disabled
"""

import contextlib
import os
import pathlib
import shutil
import tempfile

import mesonpy

HERE = pathlib.Path(__file__).resolve().parent


@contextlib.contextmanager
def project():
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="bsk-wheel-") as folder:
        made = pathlib.Path(folder)
        shutil.copy(HERE / "pyproject.toml", made)
        shutil.copy(HERE / "README.md", made)
        shutil.copy(HERE / "wheel.meson", made / "meson.build")
        (made / "subprojects").mkdir()
        (made / "subprojects/bsk").symlink_to(HERE.parent)
        os.chdir(made)
        try:
            yield
        finally:
            os.chdir(before)


def get_requires_for_build_wheel(config_settings=None):
    with project():
        return mesonpy.get_requires_for_build_wheel(config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    wheel_directory = os.path.abspath(wheel_directory)
    with project():
        return mesonpy.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("the sources of the wheel are those of the whole library: clone it")
