"""Builds the wheel: meson-python over a project of its own, since the sources lie one folder up.

The project is python/wheel.meson with the library as a subproject, laid out in a temporary folder.
Build options of the library: pip install . -Csetup-args=-Dbsk:cuda=disabled
"""

import base64
import contextlib
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile

import mesonpy

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent


def version():
    return re.search(r"^\s*version: '([^']+)'", (ROOT / "meson.build").read_text(), re.M).group(1)


@contextlib.contextmanager
def project():
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="bsk-wheel-") as folder:
        made = pathlib.Path(folder)
        for file in (HERE / "pyproject.toml", HERE / "README.md", ROOT / "LICENSE"):
            shutil.copy(file, made)
        shutil.copy(HERE / "wheel.meson", made / "meson.build")
        (made / "VERSION").write_text(version())
        (made / "subprojects").mkdir()
        (made / "subprojects/bsk").symlink_to(ROOT)
        os.chdir(made)
        try:
            yield
        finally:
            os.chdir(before)


def for_any_python(folder, name):
    """The wheel by its right tag: what is compiled in it knows the machine, but no Python."""
    head, _, _, platform = name[:-len(".whl")].rsplit("-", 3)
    tag = f"py3-none-{platform}"
    path, made = pathlib.Path(folder, name), f"{head}-{tag}.whl"
    with zipfile.ZipFile(path) as wheel:
        files = [(info, wheel.read(info)) for info in wheel.infolist()]
    path.unlink()
    tagged = next(data for info, data in files if info.filename.endswith(".dist-info/WHEEL"))
    tagged = re.sub(rb"^Tag: .*$", b"Tag: " + tag.encode(), tagged, flags=re.M)
    digest = base64.urlsafe_b64encode(hashlib.sha256(tagged).digest()).rstrip(b"=")
    with zipfile.ZipFile(pathlib.Path(folder, made), "w", zipfile.ZIP_DEFLATED) as wheel:
        for info, data in files:
            if info.filename.endswith(".dist-info/WHEEL"):
                data = tagged
            elif info.filename.endswith(".dist-info/RECORD"):
                data = re.sub(rb"(\.dist-info/WHEEL),.*", rb"\1,sha256=%b,%d"
                              % (digest, len(tagged)), data)
            wheel.writestr(info, data)
    return made


def get_requires_for_build_wheel(config_settings=None):
    with project():
        return mesonpy.get_requires_for_build_wheel(config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    wheel_directory = os.path.abspath(wheel_directory)
    with project():
        name = mesonpy.build_wheel(wheel_directory, config_settings, metadata_directory)
    return for_any_python(wheel_directory, name)


def build_sdist(sdist_directory, config_settings=None):
    """The sources of the library and of the package, as they are committed."""
    name = f"bsk-{version()}"
    metadata = f"Metadata-Version: 2.1\nName: bsk\nVersion: {version()}\n".encode()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", f"--prefix={name}/", "HEAD"],
                             check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as source, \
            tarfile.open(pathlib.Path(sdist_directory, f"{name}.tar.gz"), "w:gz") as made:
        for member in source:
            made.addfile(member, source.extractfile(member) if member.isfile() else None)
        member = tarfile.TarInfo(f"{name}/PKG-INFO")
        member.size = len(metadata)
        made.addfile(member, io.BytesIO(metadata))
    return f"{name}.tar.gz"
