#!/bin/sh
# Compiles a file of kernels to an object that has their code for all architectures.
#   kernels.sh OUTPUT SOURCE CLANG BUNDLER GENERATE CODE... -- COMPILER FLAG...
# CODE is ARCH=ARCH,...: what kernels are compiled and optimized for, and what machine code is made of
# that. The compiler by itself does all of it for each architecture, though kernels ask for none, and
# what comes before machine code takes it two fifths of the time. GENERATE are flags for the rest.
set -eu
output=$1 source=$2 clang=$3 bundler=$4 generate=$5
shift 5
codes=
while [ "$1" != -- ]; do
    codes="$codes $1"
    shift
done
shift

parts=$output.parts
mkdir -p "$parts"
trap 'rm -rf "$parts"' EXIT
targets=host-x86_64-unknown-linux
images=-input=/dev/null
for code in $codes; do
    base=${code%%=*}
    "$@" --cuda-device-only --offload-arch="$base" -c -emit-llvm -S \
        -Wno-unused-command-line-argument \
        -MD -MF "$output.d" -MT "$output" "$source" -o "$parts/$base.ll"
    sed -E 's/ "target-(cpu|features)"="[^"]*"//g' "$parts/$base.ll" >"$parts/any.ll"
    for arch in $(echo "${code#*=}" | tr , ' '); do
        # shellcheck disable=SC2086 # a list
        "$clang" -x ir --target=amdgcn-amd-amdhsa -mcpu="$arch" $generate \
            -Xclang -disable-llvm-passes -nogpulib "$parts/any.ll" -o "$parts/$arch"
        targets=$targets,hipv4-amdgcn-amd-amdhsa--$arch
        images="$images -input=$parts/$arch"
    done
done
# shellcheck disable=SC2086 # a list
"$bundler" -type=o -bundle-align=4096 -targets="$targets" $images -output="$parts/image"
# A name of its own, which the compiler makes where it does all of the work.
"$@" --cuda-host-only -Xclang -fcuda-include-gpubinary -Xclang "$parts/image" \
    -Xclang -cuid="$(basename "$output" .o)" -c "$source" -o "$output"
