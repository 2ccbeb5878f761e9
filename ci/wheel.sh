#!/usr/bin/env bash
# The Python package as users get it: a wheel is built by pip in isolation, installed into a fresh
# environment, and used from there, with what PYTHON has of NumPy and torch.
#     ci/wheel.sh [PYTHON]
# The library in it has the reference entries only, compiled fast: to see that all parts are there.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset ${!BSK_@} PYTHONPATH
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# What is missing here is no fault of the package: then nothing is tested.
skip() {
    echo "$1"
    echo "0 passed, 0 failed, 1 skipped"
    exit
}
"$python" -m venv --system-site-packages "$folder/env" || skip "$python makes no environments"
pip=("$folder/env/bin/python" -m pip)
# From 23.1 on pip takes a build option more than once.
"${pip[@]}" install --quiet --upgrade "pip>=23.1" || skip "pip reaches no packages"

options=()
for option in bsk:cpu=disabled bsk:cuda=disabled bsk:hip=disabled bsk:opencl=auto optimization=0; do
    options+=("-Csetup-args=-D$option")
done
"${pip[@]}" wheel --quiet --no-deps "${options[@]}" --wheel-dir "$folder" "$root"
"${pip[@]}" install --quiet --no-deps --no-index --find-links "$folder" bsk

cd "$folder"
env/bin/python - "$folder" <<'END'
import pathlib
import sys

import bsk

package = pathlib.Path(bsk.__file__).parent
assert pathlib.Path(sys.argv[1]) in package.parents, package
assert (package / "lib/libbsk.so.0").exists()
print(bsk.version(), *sorted(p.name for p in (package / "lib").iterdir()))
layout = bsk.Layout.random((64, 96), 32, 0.5, seed=1)
x, w = (memoryview(bytearray(4 * a * b * c)).cast("f", (a, b, c))
        for a, b, c in ((1, 2, 64), (layout.nnz, 32, 32)))
assert bsk.ops.dds(layout, x, w).shape == (1, 2, 96)
END
if env/bin/python -c 'import numpy, pytest, torch' 2>/dev/null; then
    env/bin/python -m pytest -q -p no:cacheprovider "$root/python/tests/test_docs.py" \
        "$root/python/tests/test_layout.py"
    echo "2 passed, 0 failed, 0 skipped"
else
    echo "1 passed, 0 failed, 1 skipped"
fi
