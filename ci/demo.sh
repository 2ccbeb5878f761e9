#!/usr/bin/env bash
# Builds bsk and trains the character model of examples/textmodel on the project's own text:
# block-sparse beside dense at equal parameter count, a minute of training each.
#     ci/demo.sh [OPTION]...      options of textmodel: --device ID, --seconds S, --density D ...
# Writes build/demo/index.html. Fails if a model needs more bits per character than gzip -9.
set -euo pipefail
cd "$(dirname "$0")/.."

# Threads that wait leave their core to others: on a busy machine this is several times faster.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# What a step prints matters only if it fails.
step() {
    local name=$1
    shift
    printf '%-22s' "$name ..."
    if "$@" >"$log" 2>&1 </dev/null; then
        echo ok
    else
        echo FAILED
        tail -n 50 "$log"
        exit 1
    fi
}

step 'needed packages' ci/deps.sh
if [ ! -f build/build.ninja ]; then
    step 'configure' meson setup build --buildtype=release
fi
step 'build' ninja -C build examples/textmodel

mkdir -p build/demo
build/examples/textmodel --root . --device cpu:0 --compare --require-gzip \
    --save build/demo/model.bsktext --html build/demo/index.html "$@"
echo
echo "model: build/demo/model.bsktext   page: build/demo/index.html"
