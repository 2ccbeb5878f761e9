#!/usr/bin/env bash
# Installs what is missing on Debian 12 or a later Debian or Ubuntu, as root or through sudo.
#   ci/deps.sh          what building and ci/demo.sh need
#   ci/deps.sh --test   also what ci/test.sh needs
#   ci/deps.sh --hip    also what building the HIP backend needs
#   ci/deps.sh --python also what the tests of the Python package need
#   ci/deps.sh --arm    also what building and testing for 64-bit ARM needs on another processor
#   ci/deps.sh --extra  what ci/test.sh does more with: a checker of OpenCL kernels, a second OpenCL
#                       driver for processors, one more library to race against, and MPI
# Where everything is there already it calls neither apt nor pip.
set -euo pipefail

meson_needed=1.0.1
packages=()

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# need PACKAGE COMMAND...: the package is missing unless the command succeeds.
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || packages+=("$package")
}

# Whether an installed tool is at least of a version.
version_at_least() {
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

meson_good() {
    command -v meson >/dev/null && version_at_least "$meson_needed" "$(meson --version)"
}

installed() {
    dpkg-query -W -f '${Status}\n' "$1" 2>/dev/null | grep -q '^install ok installed$'
}

# A program is compiled and linked, since a compiler without its libraries is of no use.
clang_links() {
    local out
    out=$(mktemp)
    echo 'int main(void) { return 0; }' | clang "$@" -x c - -o "$out" && rm -f "$out"
}

fuzzer_links() {
    local out
    out=$(mktemp)
    echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d == 0 && n; }' |
        clang -fsanitize=fuzzer,address,undefined -x c - -o "$out" && rm -f "$out"
}

need gcc command -v gcc
need libc6-dev installed libc6-dev
need pkg-config command -v pkg-config
need ninja-build command -v ninja
need python3 command -v python3
need git command -v git
need gzip command -v gzip
need libcjson-dev installed libcjson-dev
need libopenblas-dev installed libopenblas-dev
need libdnnl-dev installed libdnnl-dev
need gnuplot-nox command -v gnuplot
need ocl-icd-opencl-dev pkg-config --exists OpenCL
command -v meson >/dev/null || packages+=(meson)

if [ "${1:-}" = --test ]; then
    need g++ command -v g++
    need clang clang_links
    need clang-format command -v clang-format
    need valgrind command -v valgrind
    need binutils command -v nm
    need pocl-opencl-icd installed pocl-opencl-icd
elif [ "${1:-}" = --hip ]; then
    need hipcc command -v hipcc
    need libamdhip64-dev installed libamdhip64-dev
    need rocm-device-libs installed rocm-device-libs
    # Knows architectures that hipcc's own compiler does not.
    need clang-19 command -v clang-19
    need clang-tools-19 command -v clang-offload-bundler-19
    need lld-19 command -v ld.lld-19
    need llvm-19 command -v llvm-config-19
elif [ "${1:-}" = --python ]; then
    need python3-numpy installed python3-numpy
    need python3-pytest installed python3-pytest
    need python3-scipy installed python3-scipy
    need python3-torch installed python3-torch
    need python3-venv installed python3-venv
elif [ "${1:-}" = --extra ]; then
    need oclgrind command -v oclgrind
    need mesa-opencl-icd installed mesa-opencl-icd
    need libxsmm-dev installed libxsmm-dev
    need libopenmpi-dev installed libopenmpi-dev
    need openmpi-bin command -v mpirun
elif [ "${1:-}" = --arm ]; then
    need gcc-aarch64-linux-gnu command -v aarch64-linux-gnu-gcc
    need libc6-dev-arm64-cross installed libc6-dev-arm64-cross
    need qemu-user command -v qemu-aarch64
    need libcjson-dev:arm64 installed libcjson-dev:arm64
elif [ $# -gt 0 ]; then
    echo "usage: ci/deps.sh [--test | --hip | --python | --arm | --extra]" >&2
    exit 2
fi

install_packages() {
    [ $# -gt 0 ] || return 0
    echo "installing: $*"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# Libraries of another architecture, which Ubuntu has elsewhere: then apt is left as it was.
if [ "${1:-}" = --arm ] && [ ${#packages[@]} -gt 0 ] &&
    ! dpkg --print-foreign-architectures | grep -qx arm64; then
    as_root dpkg --add-architecture arm64
    install_packages "${packages[@]}" || {
        as_root dpkg --remove-architecture arm64
        exit 1
    }
    packages=()
fi
install_packages ${packages[@]+"${packages[@]}"}

# The sanitizer and fuzzer libraries belong to one version of clang.
if [ "${1:-}" = --test ] && ! fuzzer_links >/dev/null 2>&1; then
    major=$(clang -dumpversion | cut -d. -f1)
    install_packages "libclang-rt-$major-dev"
    fuzzer_links
fi

if ! meson_good; then
    echo "installing: meson >= $meson_needed by pip"
    command -v pip3 >/dev/null || install_packages python3-pip
    as_root pip3 install --quiet "meson>=$meson_needed" 2>/dev/null ||
        as_root pip3 install --quiet --break-system-packages "meson>=$meson_needed"
    hash -r
    meson_good
fi
