#!/bin/sh
# Compiles kernels to PTX and asks an assembler whether it is legal for an architecture.
#   check_ptx.sh PTXAS ARCHITECTURE COMPILER ARGUMENT...
set -eu
ptxas=$1 arch=$2
shift 2

ptx=$(mktemp)
trap 'rm -f "$ptx"' EXIT
"$@" -S -o "$ptx"
"$ptxas" -O0 -arch="$arch" "$ptx" -o /dev/null
