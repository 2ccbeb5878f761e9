#!/usr/bin/env bash
# Everything from a clean clone: packages, style, the demo, and all tests under two compilers, two
# sanitizer builds, reduced builds, fuzzers and valgrind. Logs and build folders: build*/ only.
#     ci/test.sh [STEP...]     with names, only those steps; `ci/test.sh --list` names them
# One line for each step, then 'N passed, N failed, N skipped', the sum of all checks.
set -euo pipefail
cd "$(dirname "$0")/.."

logs=$PWD/build-ci/logs
jobs=$(nproc)
passed=0
failed=0
skipped=0
unset OPENBLAS_CORETYPE
# A test chooses its own settings; those of the shell would change what is tested.
unset ${!BSK_@}
export OMP_WAIT_POLICY=passive

# --- steps: each is a function that fails or prints 'N passed, N failed, N skipped' lines ---

# setup FOLDER OPTION...: a build folder from scratch.
setup() {
    local folder=build-ci/$1
    shift
    rm -rf "$folder"
    meson setup "$folder" -Dwerror=true "$@"
}

# setup_core FOLDER OPTION...: the same without the accelerators, which one build covers.
setup_core() {
    setup "$@" -Dcuda=disabled -Dhip=disabled -Dopencl=disabled -Dpeers=disabled
}

# bsk_check FOLDER TIER [DEVICE]: the conformance tests of a device, summed from their report.
bsk_check() {
    local report=build-ci/$1/check.json status=0
    # Indented, since the report's line is the one that counts.
    build-ci/"$1"/bench/bsk check --tier "$2" --device "${3:-cpu:0}" --json "$report" |
        sed 's/^/  /' || status=$?
    ci/sum.py check "$report"
    return $status
}

step_deps() { ci/deps.sh --test; }

step_style() { ci/style.sh; }

step_demo() { ci/demo.sh; }

step_gcc() {
    CC=gcc setup gcc --prefix="$PWD/build-ci/prefix" -Dsm=80,90a -Dgfx=gfx90a
    meson compile -C build-ci/gcc -j "$jobs"
}

# All suites, `bsk check --tier ci` among them; the log has each program's last line.
step_suites() {
    meson test -C build-ci/gcc --print-errorlogs --num-processes 1
    ci/sum.py meson build-ci/gcc/meson-logs/testlog.json
}

# The table in the README is the library's own. CUDA and HIP have what OpenCL has.
step_support() {
    export BSK_PLUGIN_PATH=$PWD/build-ci/gcc/backends/opencl
    build-ci/gcc/bench/bsk info --json | ci/support.py --check README.md
}

# The portable GPU kernels through OpenCL on the processor.
step_opencl() {
    export BSK_PLUGIN_PATH=$PWD/build-ci/gcc/backends/opencl OCL_ICD_VENDORS=pocl.icd
    export BSK_CACHE_DIR=$PWD/build-ci/cache
    mkdir -p -m 700 "$BSK_CACHE_DIR"
    bsk_check gcc quick opencl:0
}

# The installed library from outside, through pkg-config, shared and static.
step_install() {
    local prefix=$PWD/build-ci/prefix program=$PWD/build-ci/quickstart pc libdir flags out
    rm -rf "$prefix"
    meson install -C build-ci/gcc --quiet
    pc=$(find "$prefix" -name bsk.pc)
    export PKG_CONFIG_PATH=${pc%/*}
    libdir=$(pkg-config --variable=libdir bsk)
    flags="-std=c11 -Wall -Wextra -Werror $(pkg-config --cflags bsk)"
    gcc $flags -o "$program" examples/quickstart.c $(pkg-config --libs bsk) -lm
    out=$(LD_LIBRARY_PATH=$libdir "$program")
    echo "$out"
    readelf -d "$program" | grep 'NEEDED.*libbsk'
    # The archive by its name: only this library is linked statically.
    gcc $flags -o "$program-static" examples/quickstart.c "$libdir/libbsk.a" \
        $(pkg-config --static --libs bsk | tr ' ' '\n' | grep -v '^-lbsk$') -lm
    "$program-static"
    [ -z "$(readelf -d "$program-static" | grep 'NEEDED.*libbsk')" ]
    [ -n "$out" ]
    echo "2 passed, 0 failed, 0 skipped"
}

step_clang() {
    CC=clang setup_core clang
    meson compile -C build-ci/clang -j "$jobs"
    meson test -C build-ci/clang --print-errorlogs --suite unit --suite abi
    ci/sum.py meson build-ci/clang/meson-logs/testlog.json
}

# The address, undefined-behaviour and leak sanitizers.
step_asan() {
    CC=gcc setup_core asan -Dbuildtype=debugoptimized -Db_sanitize=address,undefined \
        -Dc_args=-fno-sanitize-recover=undefined
    meson compile -C build-ci/asan -j "$jobs"
    meson test -C build-ci/asan --print-errorlogs --suite unit --timeout-multiplier 3
    ci/sum.py meson build-ci/asan/meson-logs/testlog.json
    bsk_check asan quick
}

# OpenMP's runtime is not instrumented: its barriers would be reported as races.
step_tsan() {
    CC=gcc setup_core tsan -Dbuildtype=debugoptimized -Db_sanitize=thread -Dopenmp=disabled \

    meson compile -C build-ci/tsan -j "$jobs"
    TSAN_OPTIONS=halt_on_error=1 meson test -C build-ci/tsan --print-errorlogs --suite unit \
        --timeout-multiplier 3 threads fallback plugin
    ci/sum.py meson build-ci/tsan/meson-logs/testlog.json
}

step_no_openmp() {
    CC=gcc setup_core no-openmp -Dopenmp=disabled
    meson compile -C build-ci/no-openmp -j "$jobs"
    bsk_check no-openmp quick
}

step_reference_only() {
    CC=gcc setup_core reference-only -Dcpu=disabled
    meson compile -C build-ci/reference-only -j "$jobs"
    meson test -C build-ci/reference-only --print-errorlogs --suite unit
    ci/sum.py meson build-ci/reference-only/meson-logs/testlog.json
    bsk_check reference-only quick
}

# Both targets at once, a minute each.
step_fuzz() {
    CC=clang setup_core fuzz -Dbuildtype=debugoptimized -Dfuzz=true -Db_lundef=false \
        -Db_sanitize=address,undefined -Dopenmp=disabled \
        -Dc_args='-fsanitize=fuzzer-no-link -fno-sanitize-recover=undefined'
    meson compile -C build-ci/fuzz -j "$jobs" fuzz_plan fuzz_layout
    local target pids=()
    for target in plan layout; do
        (
            mkdir -p build-ci/fuzz/corpus-$target
            cd build-ci/fuzz
            tests/fuzz/fuzz_$target -max_total_time=60 -max_len=4096 -timeout=20 \
                -rss_limit_mb=2048 -print_final_stats=1 corpus-$target >"$logs/fuzz-$target.log" 2>&1
        ) &
        pids+=($!)
    done
    local good=0 bad=0 pid
    for pid in "${pids[@]}"; do
        if wait "$pid"; then good=$((good + 1)); else bad=$((bad + 1)); fi
    done
    for target in plan layout; do
        tail -n 25 "$logs/fuzz-$target.log"
    done
    echo "$good passed, $bad failed, 0 skipped"
    [ "$bad" = 0 ]
}

# Memory that is read before it was written, which the sanitizers above do not see.
step_valgrind() {
    local tests=build-ci/no-openmp/tests name modules=()
    for name in fake abi symbol null slots; do
        modules+=("$tests/fake/bsk_$name.so")
    done
    local check=(valgrind --quiet --error-exitcode=9 --leak-check=full
        --errors-for-leak-kinds=definite)
    for name in layout layout_errors core; do
        "${check[@]}" "$tests/unit/test_$name"
    done
    "${check[@]}" "$tests/unit/test_plugin" "${modules[@]}"
    "${check[@]}" "$tests/unit/test_fallback" "${modules[0]}"
}

steps=(deps style demo gcc suites support opencl install clang asan tsan no_openmp reference_only fuzz valgrind)

# --- running them ---

if [ "${1:-}" = --list ]; then
    printf '%s\n' "${steps[@]}"
    exit 0
fi
wanted=("$@")
[ $# -gt 0 ] || wanted=("${steps[@]}")
for name in "${wanted[@]}"; do
    printf '%s\n' "${steps[@]}" | grep -qx "$name" || {
        echo "no step $name; ci/test.sh --list names them" >&2
        exit 2
    }
done
mkdir -p "$logs"

# Adds up the lines 'N passed, N failed, N skipped' of a log. Steps without any count as one.
count() {
    local log=$1 status=$2 p f s lines=0
    while read -r p f s; do
        passed=$((passed + p))
        failed=$((failed + f))
        skipped=$((skipped + s))
        step_failed=$((step_failed + f))
        lines=$((lines + 1))
    done < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$log")
    if [ "$status" = 0 ]; then
        [ $lines -gt 0 ] || passed=$((passed + 1))
    elif [ "$step_failed" = 0 ]; then
        failed=$((failed + 1))
    fi
}

for name in "${wanted[@]}"; do
    log=$logs/$name.log
    start=$SECONDS
    printf '%-16s' "$name"
    # A subshell of its own: within a condition errexit would be off.
    set +e
    (
        set -euo pipefail
        "step_$name"
    ) >"$log" 2>&1 </dev/null
    status=$?
    set -e
    step_failed=0
    count "$log" "$status"
    if [ "$status" = 0 ] && [ "$step_failed" = 0 ]; then
        result=ok
    else
        result=FAILED
    fi
    printf '%4d s  %-6s  %s\n' $((SECONDS - start)) "$result" "$(tail -n 1 "$log" | cut -c 1-80)"
    [ "$result" = ok ] || tail -n 60 "$log" | sed 's/^/    /'
done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
