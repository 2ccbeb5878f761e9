#!/bin/sh
# Runs a program in several processes of MPI on this machine; 77 where there is no mpirun.
#     mpirun.sh PROCESSES PROGRAM ARGUMENT...
set -eu
if ! command -v mpirun >/dev/null; then
    echo "skipped: mpirun is not installed"
    exit 77
fi
# Options of Open MPI, whose own names nothing else understands.
options=
if mpirun --version 2>/dev/null | grep -q 'Open MPI\|OpenRTE'; then
    options='--oversubscribe --allow-run-as-root --bind-to none --mca btl self,vader'
fi
processes=$1
shift
export BSK_NUM_THREADS=1
exec mpirun $options -n "$processes" "$@"
