#!/usr/bin/env bash
# Builds bsk and trains the language model of examples/lm on the project's own text: a transformer
# with block-sparse layers and attention beside a dense one with as many parameters, in turns, for
# as many steps: about a minute on two cores.
#     ci/demo.sh [OPTION]...      options of lm: --device ID, --seconds S, --model mlp, --help ...
# Without --device it runs on an NVIDIA GPU where build/ has the backend for it already, else on the
# CPU. With --device cuda:0, hip:0 or opencl:0 it builds that backend first.
# Writes build/demo/index.html. DEMO_BUILD names another build folder than build.
set -euo pipefail
cd "$(dirname "$0")/.."

# Threads that wait leave their core to others: on a busy machine this is several times faster.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

build=${DEMO_BUILD:-build}
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
if [ ! -f "$build/build.ninja" ]; then
    step 'configure' meson setup "$build" --buildtype=release
fi

device=
previous=
for option; do
    case "$previous $option" in
    '--device '*) device=$option ;;
    *' --device='*) device=${option#*=} ;;
    esac
    previous=$option
done
if [ -z "$device" ]; then
    device=cpu:0
    if [ -e "$build/backends/cuda/bsk_cuda.so" ] && nvidia-smi -L >/dev/null 2>&1; then
        device=cuda:0
    fi
    set -- --device "$device" "$@"
fi
backend=${device%%:*}
plugin=()
if [ "$backend" != cpu ]; then
    plugin=("backends/$backend/bsk_$backend.so")
    export BSK_PLUGIN_PATH=$(realpath "$build")/backends/$backend
fi
step 'build' ninja -C "$build" examples/lm ${plugin[@]+"${plugin[@]}"}

# With equal steps the result does not depend on the clock. Steps win over seconds.
length=(--steps 400)
case " $* " in *' --seconds'*) length=() ;; esac
mkdir -p "$build/demo"
"$build/examples/lm" --root . ${length[@]+"${length[@]}"} \
    --compare --save "$build/demo/model.bsklm" --html "$build/demo/index.html" --generate 300 "$@"
echo
echo "model: $build/demo/model.bsklm   page: $build/demo/index.html"
