#!/bin/sh
# Completes a device library for architectures that it is too old to know.
#   devlib.sh BITCODE_DIR OUTPUT_DIR CLANG
# The library needs one file for each architecture, which holds its number alone; the other files
# serve all of them. OUTPUT_DIR becomes links to BITCODE_DIR and the files that are missing.
set -eu
bitcode=$1 out=$2 clang=$3

mkdir -p "$out"
ln -sf "$bitcode"/*.bc "$out"

for arch in 942:9402 1100:11000 1101:11001 1102:11002 1103:11003 1200:12000 1201:12001; do
    file=$out/oclc_isa_version_${arch%:*}.bc
    [ -e "$file" ] && continue
    echo 'extern __attribute__((visibility("hidden"), weak))
          const __attribute__((address_space(4))) int __oclc_ISA_version;
          const __attribute__((address_space(4))) int __oclc_ISA_version = ISA;' |
        "$clang" --target=amdgcn-amd-amdhsa -nogpulib -Xclang -mcode-object-version=none \
            -DISA="${arch#*:}" -x c -c -emit-llvm - -o "$file"
done
