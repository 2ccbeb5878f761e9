#!/bin/sh
# Compiles a file of kernels to an object (embed.h) that has their code for all architectures.
#   kernels.sh OUTPUT SOURCE CC FATBINARY CODE... -- NVCC FLAG...
# CODE is VIRTUAL:REAL,...: PTX for an architecture, and what goes into the object, compute_* as PTX
# and sm_* as code; or VIRTUAL=NEWER:REAL,..., where the PTX is made of that of an architecture named
# before. nvcc alone compiles once for each virtual architecture, and its host side of kernels takes
# it longer than many a kernel.
set -eu
output=$1 source=$2 cc=$3 fatbinary=$4
shift 4
codes=
while [ "$1" != -- ]; do
    codes="$codes $1"
    shift
done
shift
here=$(dirname "$0")

parts=$output.parts
mkdir -p "$parts"
trap 'rm -rf "$parts"' EXIT
images=
for code in $codes; do
    virtual=${code%%:*}
    newer=${virtual#*=} virtual=${virtual%%=*}
    ptx=$parts/$virtual.ptx
    if [ "$newer" = "$virtual" ]; then
        "$@" -MD -MF "$output.d" -MT "$output" -ptx -arch="$virtual" "$source" -o "$ptx"
        if grep -q '/\*type' "$ptx"; then
            awk -f "$here/types.awk" "$ptx" >"$ptx.both"
            mv "$ptx.both" "$ptx"
        fi
    else
        awk -v target="${virtual#compute_}" -f "$here/older_ptx.awk" "$parts/$newer.ptx" >"$ptx"
    fi
    of=
    for real in $(echo "${code#*:}" | tr , ' '); do
        case $real in
            compute_*) of="$of --image3=kind=ptx,sm=${real#compute_},file=$ptx" ;;
            sm_*)
                "$@" -cubin -arch="$real" "$ptx" -o "$parts/$real.cubin"
                of="$of --image3=kind=elf,sm=${real#sm_},file=$parts/$real.cubin"
                ;;
        esac
    done
    images="$of $images" # oldest first, as nvcc has them
done
# Mode `size` makes code a fifth smaller, but takes 6 to 8 percent of the compilation.
# shellcheck disable=SC2086 # a list
"$fatbinary" -64 --compress-all --compress-mode=balance $images --create="$parts/image"

{
    echo "#define IMAGE \"$parts/image\""
    echo "#include <backends/cuda/embed.h>"
    sed -n 's/.*\.entry \([A-Za-z0-9_]*\).*/KERNEL(\1)/p' "$ptx"
} >"$parts/embed.c"
# shellcheck disable=SC2086 # a command and its arguments
$cc -fPIC -fvisibility=hidden -I"$here/../.." -c "$parts/embed.c" -o "$output"
