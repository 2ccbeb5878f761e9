#!/usr/bin/env bash
# Everything from a clean clone: packages, style, the demo, all tests under gcc, two builds with
# sanitizers, one of them by clang, reduced builds, fuzzers and valgrind. Logs and build folders:
# build*/ only.
#     ci/test.sh [STEP...]     with names, only those steps; `ci/test.sh --list` names them
# One line for each step, with its seconds and those of all cores, then 'N passed, N failed, N skipped',
# the sum of all checks.
set -euo pipefail
cd "$(dirname "$0")/.."

logs=$PWD/build-ci/logs
jobs=$(nproc)
passed=0
failed=0
skipped=0
emulator= # what runs the programs of a cross build
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

# compile_tests FOLDER NAME...: these unit tests, and the backends that they load.
compile_tests() {
    local folder=build-ci/$1
    shift
    ninja -C "$folder" -j "$jobs" "${@/#/tests/unit/test_}" \
        $(ninja -C "$folder" -t targets all | sed -nE 's,^(tests/fake/[a-z_]*\.so): .*,\1,p')
}

# The CPU's instruction sets that this machine runs, for builds whose others would be compiled and
# never run.
own_sets() {
    local flags pair sets=
    flags=" $(grep -m 1 '^flags' /proc/cpuinfo) "
    for pair in avx2:avx2 avx512:avx512bw avx512vnni:avx512_vnni avx512bf16:avx512_bf16 amx:amx_bf16; do
        [[ $flags != *" ${pair#*:} "* ]] || sets+=,${pair%:*}
    done
    echo "${sets#,}"
}

# bsk_check FOLDER FILTER...: conformance tests of the CPU, several filters at a time.
bsk_check() {
    local folder=build-ci/$1 i=0 pid pids=() status=0 one
    rm -f "$folder"/check-*
    for one in "${@:2}"; do
        $emulator "$folder"/bench/bsk check --tier quick --device cpu:0 \
            --json "$folder/check-$i.json" "$one" >"$folder/check-$i.txt" 2>&1 &
        pids+=($!)
        i=$((i + 1))
    done
    # 77: this machine has nothing that the filter names, such as entries for bf16 instructions.
    for pid in "${pids[@]}"; do
        wait "$pid" || [ $? = 77 ] || status=1
    done
    # Indented, since the line of all reports is the one that counts.
    cat "$folder"/check-*.txt | sed 's/^/  /'
    ci/sum.py check "$folder"/check-*.json
    return $status
}

# Small cases of every op, for drivers that take long: filters, of which some match a few.
small_cases=(
    'batch_norm f32 n4 k7 m9' 'batch_norm_grad f32 n4 k7 m9 dbias' 'batch_norm_infer f32 n4 k7 m9'
    'fancy_gather f32 i32 n3 k5 m4' 'fancy_gather_grad f32 i32 n3 k5 m4'
    'layer_norm f32 n4 m31 nc' 'layer_norm_grad f32 n4 m31 nc dbias' 'masked_softmax f32 n1'
    'masked_softmax_grad f32 n1' 'masked_topk_softmax f32 n1 c1' 'reduce_max f32 i32 n3 k5 m4'
    'reduce_max_grad f32 i32 n3 k5 m4' 'rectified_topk f32 n1 k1 c1'
    'rectified_topk_grad f32 n1 k1 c1' 'rms_norm f32 n4 m31' 'rms_norm_grad f32 n4 m31'
    'take_along f32 i32 n3 k5 m4' 'take_along_grad f32 i32 n3 k5 m4' 'topk f32 i32 n1 k1 c1'
    'topk_grad f32 i32 n1 k1 m1 c1'
    'add_n f32 n1' 'assign_add f32 n1' 'binary f32 n1 add' 'binary_grad f32 n1 add'
    'cast f32 u8 n5' 'concat4 f32 n3 m5 nc' 'cwise_linear f32 n1 k32 m32 bias'
    'cwise_linear_grad f32 n1 k32 m32 bias dbias' 'dropout f32 n1' 'filter f32 n1 special'
    'lstm_gates f32 n3 m5 cn split bias value1' 'lstm_gates_grad f32 n3 m5 nc nograd'
    'quantize f32 n1 c131' 'sparse_relu f32 n1 m1 nc' 'sparse_relu_grad f32 n1 m1 nc'
    'split4 f32 n3 m5 cn' 'tensor_stats f32 n1 saved' 'transpose_0213 f32 n64 m1 !splat'
    'transpose_2d f32 n7 k5' 'unary f32 n1 sqrt' 'unary_grad f32 n1 sqrt'
    'adafactor f32 k1' 'adam_n f32 k1 p11' 'dense_wgrad f32 n33 k5 m7 nc' 'ema f32 k33 m17'
    'global_norm f32 n1' 'loss_scale f32 decay value128'
    'adam f32 k33 m17' 'bias_act f32 n1 m1 nc bias' 'bias_act_grad f32 n1 m1 nc bias dbias'
    'block_gather f32 k9 m14' 'block_l2_decay f32 b8 value0.5' 'block_norm f32 b8 max'
    'block_renew f32 b8 zero' 'concrete_gate f32 n64' 'concrete_gate_grad f32 n64'
    'concrete_gate_infer f32 n64' 'cross_entropy f32 u16 n3 m10' 'dds f32 b8x16 n22 g3 shared'
    'dsd bf16 b8x16 n22 g3' 'embedding f32 i32 n1 k1 m1' 'embedding_grad f32 i32 n1 k1 m1'
    'l2_normalize f32 b8' 'l2_normalize_grad f32 b8' 'matmul f32 b8 n19 k24 nc int'
    'matmul_dgrad f32 b8 n19 k24 nc int' 'matmul_wgrad f32 b8 n19 k24 nc int'
    'matmul_wgrad f32 b16x8 n66 nc dbias gate ld offset' 'proj_gather f32 n5 k40 nc'
    'proj_scatter f32 n5 k40 nc' 'proj_scatter_add f32 n5 k40 nc' 'proj_scatter_mul f32 n5 k40 nc'
    'proj_scatter_mul_grad f32 n5 k40 nc' 'prune_sparsity f32 n64 value0.93 int'
    'prune_threshold f32 n64 value0.93' 'reduced_wgrad f32 b5x7 n9 nc l2 special'
    'sdd f32 b16 n70 g3' 'weight_checker f32 b8' 'weight_identity f32 b8' 'weight_normal f32 b8'
    'weight_orthogonal f32 b8'
    'attn_scores f32 b5x12 n24 h3 g2 uneven c1'
    'attn_apply f16 b8 n16 k48 m48 h2 g1 d0.25 packed gqa'
    'attn_apply_t f16 b5x12 n24 k21 m36 g2 d0.25 c4 gqa'
    'block_softmax f32 b5x12 n24 k21 m36 g2 d0.50 c4 saved causal prefix keymask'
    'block_softmax_grad f16 b5x12 n24 g1 colmajor softcap'
    'attention f32 b5x12 n24 k21 m36 g1 d0.50 c2 keymask'
    'attention_grad f32 b5x12 n24 k21 m36 g1 d0.50 c2 keymask'
    'attention_decode f32 b1x2 n3 k1 m4 causal ragged' 'layout_topk f32 n3 k40' 'layout_mask u8 n3 k40'
    'grouped_matmul f32 n64 short' 'grouped_wgrad f32 n5 short' 'moe_route i32 n7'
    'conv f32 n1 g3 uneven' 'conv_dgrad f32 n1 g3 uneven' 'conv_wgrad f32 n1 g3 uneven'
    'conv_edge_bias f32 far' 'conv_edge_bias_grad f32 far'
)

# check_small NAME COMMAND...: the small cases through COMMAND on opencl:0, eight to a process, which
# starts once for them, and as many of these as there are cores. %d in COMMAND is the folder and the
# number of the process.
check_small() {
    local folder=build-ci/$1 i=0 first some
    shift
    rm -rf "$folder"
    mkdir -p "$folder"
    export BSK_PLUGIN_PATH=$PWD/build-ci/gcc/backends/opencl BSK_CACHE_DIR=$PWD/build-ci/cache
    mkdir -p -m 700 "$BSK_CACHE_DIR"
    for ((first = 0; first < ${#small_cases[@]}; first += 8)); do
        some=$(IFS='|' && echo "${small_cases[*]:first:8}")
        "${@//%d/$folder/$i}" build-ci/gcc/bench/bsk check --device opencl:0 \
            --json "$folder/$i.json" "$some" >"$folder/$i.txt" 2>&1 &
        i=$((i + 1))
        [ $i -lt "$jobs" ] || wait -n || true
    done
    wait
    cat "$folder"/*.txt | sed 's/^/  /'
    # One that broke off has no report.
    [ "$(ls "$folder"/*.json | wc -l)" = $i ]
    ci/sum.py check "$folder"/*.json
}

# The ops of the OpenCL backend that small_cases lacks, and what it names and no case has, which are
# none.
check_small_complete() {
    local bsk=build-ci/gcc/bench/bsk missing one
    for one in "${small_cases[@]}"; do
        [ -n "$("$bsk" check --device opencl:0 --list "$one")" ] || {
            echo "no case is '$one'"
            return 1
        }
    done
    missing=$(comm -23 \
        <("$bsk" check --device opencl:0 --list | grep -v '^\(allocation\|arguments\|gradient\) ' |
            cut -d' ' -f1 | sort -u) \
        <(printf '%s\n' "${small_cases[@]}" | cut -d' ' -f1 | sort -u))
    [ -z "$missing" ] || {
        echo "small_cases has no case of" $missing
        return 1
    }
}

# What only some distributions have is left out there, with a message.
step_deps() {
    local more missing=0
    ci/deps.sh --test
    for more in hip python extra arm; do
        ci/deps.sh --$more || {
            echo "packages of 'ci/deps.sh --$more' are not to be had: done without"
            missing=$((missing + 1))
        }
    done
    echo "$((5 - missing)) passed, 0 failed, $missing skipped"
}

step_style() { ci/style.sh; }

# Without what an earlier run installed, whose modules the tool would find before those it is given.
setup_gcc() {
    rm -rf build-ci/prefix
    CC=gcc setup gcc --prefix="$PWD/build-ci/prefix" -Dsm=80,90a -Dgfx=gfx90a \
        -Dquick_kernels=true -Demulator=enabled
}

# In the folder of the next step, of which it builds what it needs.
step_demo() {
    setup_gcc
    DEMO_BUILD=build-ci/gcc ci/demo.sh --seconds 5
}

step_gcc() {
    [[ " ${groups[*]} " == *' demo '* ]] || setup_gcc
    ninja -C build-ci/gcc -j "$jobs" all emulators
}

# All cases on the CPU, which keep one core busy for longest; of the reference and of the least
# instruction set, whose text that of others is, those of tier quick.
step_check() {
    check_device cpu ci '!ref_* !*_base'
    check_device cpu quick 'ref_*|*_base'
}

# All other suites; the log has each program's last line.
step_suites() {
    meson test -C build-ci/gcc --print-errorlogs --num-processes "$jobs" --timeout-multiplier 2 \
        --no-suite conformance
    ci/sum.py meson build-ci/gcc/meson-logs/testlog.json
}

# The table in the README is the library's own.
step_support() {
    local backends=$PWD/build-ci/gcc/backends
    export BSK_PLUGIN_PATH=$backends/opencl:$backends/cuda:$backends/hip
    build-ci/gcc/bench/bsk info --json | ci/support.py --check README.md
}

# check_device BACKEND TIER [FILTER]: all cases on its first device, or some.
check_device() {
    local report=build-ci/gcc/$1-$2${3:+-${3//[^a-z0-9]/}}.json
    rm -f "$report"
    build-ci/gcc/bench/bsk check --device "$1:0" --tier "$2" --json "$report" "${@:3}" |
        sed 's/^/  /'
    ci/sum.py check "$report"
}

# check_all FILTER...: on all devices in one process.
check_all() {
    rm -f build-ci/gcc/all.json
    build-ci/gcc/bench/bsk check --device all --json build-ci/gcc/all.json "$@" | sed 's/^/  /'
    ci/sum.py check build-ci/gcc/all.json
}

# check_tuned CAPABILITY GENERATION [TIER [FILTER]]: a generation's tuned CUDA entries, on a device
# with it.
check_tuned() {
    rm -f "build-ci/gcc/$2.json"
    BSK_PLUGIN_PATH=$PWD/build-ci/gcc/tests/emu_cuda BSK_EMU_CUDA=$1 \
        build-ci/gcc/bench/bsk check --tier "${3:-quick}" --device cuda_emu:0 \
        --json build-ci/gcc/"$2.json" "*_$2*" ${4+"$4"} |
        sed 's/^/  /'
    ci/sum.py check build-ci/gcc/"$2.json"
}

# side_by_side COMMAND...: commands of this shell, as many at a time as there are cores; then what each
# of them printed.
side_by_side() {
    local folder=build-ci/side-by-side i=0 one
    rm -rf "$folder"
    mkdir -p "$folder"
    for one in "$@"; do
        [ $i -lt "$jobs" ] || wait -n || true
        (eval "$one" || touch "$folder/failed") >"$folder/$(printf %02d $i).txt" 2>&1 &
        i=$((i + 1))
    done
    wait
    cat "$folder"/*.txt
    [ ! -e "$folder/failed" ]
}

# The portable GPU kernels in their emulator, which takes longest, and through OpenCL; the tuned CUDA
# kernels of each generation in theirs; whole models through OpenCL and on the CPU.
step_devices() {
    local work=() suite
    export BSK_PLUGIN_PATH=$PWD/build-ci/gcc/backends/opencl:$PWD/build-ci/gcc/tests/emu
    export OCL_ICD_VENDORS=pocl.icd BSK_CACHE_DIR=$PWD/build-ci/cache POCL_MAX_PTHREAD_COUNT=1
    mkdir -p -m 700 "$BSK_CACHE_DIR"
    check_small_complete
    # Whole, so that it also proves that cases reach every entry.
    work+=('check_device opencl ci')
    # Tier ci takes four times as long there, where suites and asan check f32; of attention, which
    # takes longest, one more type in smaller blocks.
    for suite in 'att*_simt f16 !b64 !b128' '[a-l]*_simt !att* !f32' '[m-z]*_simt !f32' arguments gradient \
        allocation; do
        work+=("check_device emu quick '$suite'")
    done
    # Portable kernels in f64 beside results that were computed without the library.
    work+=('check_all matmul f32 b8'
        'build-ci/gcc/tests/golden/test_golden tests/golden/dense.txt opencl:0')
    if [ -e build-ci/gcc/tests/emu_cuda/bsk_cuda_emu.so ]; then
        # 8.6 has less shared memory than 8.0
        work+=('check_tuned 75 sm75' 'check_tuned 80 sm80' 'check_tuned 86 sm80_narrow'
            'check_tuned 89 sm89' 'check_tuned 90 sm90a' 'check_tuned 100 sm100a ci bf16'
            'check_tuned 120 sm120a')
    else
        echo "without nvcc: the tuned CUDA kernels do not run"
        echo "0 passed, 0 failed, 1 skipped"
    fi
    side_by_side "${work[@]}" 'examples/lm/devices.sh build-ci/gcc/examples/lm . opencl:0 10'
}

# Races and accesses out of bounds in the form for GPUs, which oclgrind runs instruction by
# instruction. Its exit status says nothing of what it found: its log does.
step_oclgrind() {
    if ! command -v oclgrind >/dev/null; then
        echo "oclgrind is not installed"
        echo "0 passed, 0 failed, 1 skipped"
        return
    fi
    unset OCL_ICD_VENDORS
    check_small oclgrind oclgrind --data-races --log %d.log
    if [ -n "$(cat build-ci/oclgrind/*.log)" ]; then
        head -n 40 build-ci/oclgrind/*.log
        return 1
    fi
}

# A second OpenCL driver: Mesa's rusticl on llvmpipe, without f64 and with small groups. What Mesa 22
# breaks is refused there, so that those cases are skipped.
step_rusticl() {
    if [ ! -e /etc/OpenCL/vendors/rusticl.icd ]; then
        echo "rusticl is not installed"
        echo "0 passed, 0 failed, 1 skipped"
        return
    fi
    export OCL_ICD_VENDORS=rusticl.icd RUSTICL_ENABLE=llvmpipe
    check_small rusticl env
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
    rm -rf "$prefix"
    echo "2 passed, 0 failed, 0 skipped"
}

# The language model beside the same one in PyTorch; then the Python package of the gcc build, with
# what Debian's Python has of NumPy, SciPy and torch.
step_python() {
    local python summary status=0
    for python in /usr/bin/python3 python3; do
        ! "$python" -c 'import numpy, pytest' 2>/dev/null || break
        python=
    done
    if [ -z "$python" ]; then
        echo "no Python with NumPy and pytest"
        echo "0 passed, 0 failed, 1 skipped"
        return
    fi
    if "$python" -c 'import torch' 2>/dev/null; then
        bench/models/compare.py --lm build-ci/gcc/examples/lm --python "$python" --threads 1 \
            --steps 3 --check 0.001
        echo "1 passed, 0 failed, 0 skipped"
    else
        echo "without torch: its tests are skipped"
    fi
    summary=$(env PYTHONPATH="$PWD/build-ci/gcc/python" PYTHONDONTWRITEBYTECODE=1 \
        BSK_LIBRARY="$PWD/build-ci/gcc/api/libbsk.so.0" \
        "$python" -m pytest -q -rs -p no:cacheprovider python/tests) || status=$?
    echo "$summary"
    number() { echo "$summary" | tail -n 1 | sed -nE "s/.*\b([0-9]+) $1.*/\1/p"; }
    local passed failed errors skipped
    passed=$(number passed) failed=$(number failed) errors=$(number error) skipped=$(number skipped)
    echo "${passed:-0} passed, $((${failed:-0} + ${errors:-0})) failed, ${skipped:-0} skipped"
    ci/wheel.sh "$python" || status=1
    return $status
}

# The address, undefined-behaviour and leak sanitizers, in a build that fuzz uses as well, by a second
# compiler. Left out are checks of pointers that the first makes as well, and of those that are computed
# and not used; and long functions call its checks instead of having them inline: either takes most of
# the compiler's time.
setup_asan() {
    local args='-gline-tables-only -fno-sanitize-recover=undefined
        -fno-sanitize=pointer-overflow,null,object-size
        -mllvm -asan-instrumentation-with-call-threshold=500'
    CC=clang CXX=clang++ setup_core asan -Ddebug=true -Doptimization=1 -Dfuzz=true \
        -Db_lundef=false -Db_sanitize=address,undefined -Dcpu_sets="$(own_sets)" \
        -Demulator=enabled -Dc_args="$args" -Dcpp_args="$args"
}

# The portable GPU kernels with the sanitizers, in f32.
asan_emulator() {
    rm -f build-ci/asan/emu.json
    BSK_PLUGIN_PATH=$PWD/build-ci/asan/tests/emu build-ci/asan/bench/bsk check --device emu:0 \
        --json build-ci/asan/emu.json f32 '*_simt' '!b128 !m3000 !m16384' | sed 's/^/  /'
    ci/sum.py check build-ci/asan/emu.json
}

step_asan() {
    setup_asan
    meson compile -C build-ci/asan -j "$jobs"
    meson test -C build-ci/asan --print-errorlogs --no-rebuild --suite unit --no-suite numbers \
        --timeout-multiplier 3
    ci/sum.py meson build-ci/asan/meson-logs/testlog.json
    ninja -C build-ci/asan -j "$jobs" tests/emu/bsk_emu.so
    # Cases of f32 take longest: those of products apart, beside the others and the emulator.
    side_by_side asan_emulator "bsk_check asan 'f32 !*d_* !b128 !?4700' 'f32 *d_* !b128 !?4700 !n330 !n600' \
        '*_bf16_*' 'f8*' 'i8*' cast 'transpose*' u8 arguments gradient allocation"
}

# OpenMP's runtime is not instrumented: its barriers would be reported as races.
step_tsan() {
    CC=gcc setup_core tsan -Dbuildtype=debugoptimized -Db_sanitize=thread -Dopenmp=disabled \
        -Dcpu=disabled
    compile_tests tsan threads fallback plugin
    TSAN_OPTIONS=halt_on_error=1 meson test -C build-ci/tsan --print-errorlogs --suite unit \
        --no-rebuild --timeout-multiplier 3 threads fallback plugin
    ci/sum.py meson build-ci/tsan/meson-logs/testlog.json
}

# The base instruction set alone: what is other without OpenMP is the same text in all.
step_no_openmp() {
    CC=gcc setup_core no-openmp -Dopenmp=disabled -Doptimization=1 -Dcpu_sets=
    meson compile -C build-ci/no-openmp -j "$jobs" bsk:executable
    compile_tests no-openmp layout layout_errors core plugin fallback
    bsk_check no-openmp 'bf16 !b128'
}

# The entries for 64-bit ARM in an emulator: cases of the products but the largest, of either 16-bit
# type for one way, and small ones of the other ops, whose numbers of rows choose them.
# Without OpenMP, whose threads make no headway under qemu 7.2.
step_aarch64() {
    local tool
    for tool in aarch64-linux-gnu-gcc qemu-aarch64 /usr/lib/aarch64-linux-gnu/libcjson.so; do
        command -v $tool >/dev/null || [ -e $tool ] || {
            echo "$tool is not installed"
            echo "0 passed, 0 failed, 1 skipped"
            return
        }
    done
    setup_core aarch64 --cross-file ci/aarch64.ini -Doptimization=1 -Dopenmp=disabled \
        -Dpython=disabled -Dtests=disabled -Dtool=enabled
    meson compile -C build-ci/aarch64 -j "$jobs" bsk:executable
    emulator=qemu-aarch64
    $emulator build-ci/aarch64/bench/bsk info | grep '^  cpu:0 .* neonbf16 '
    bsk_check aarch64 'dsd_f32_neon !bf16 !b128 !?8216' 'sdd_f32_neon !f16 !b128' \
        'block_softmax_grad_f32_neon !b128' 'attention_grad_f32_neon n?|attention_grad_f32_neon n24' \
        'bf16 *_neonbf16 !b128 !?8216 !?1???' \
        'f32 *d_nc_f32_neon' 'f64 *d_f64_neon' 'i8 *_i8_neon' 'f16 n[1-7] *_neon'
}

# Both targets at once. The same inputs every time: longer runs with other seeds are for developers.
step_fuzz() {
    [ -d build-ci/asan ] || setup_asan
    meson compile -C build-ci/asan -j "$jobs" fuzz_plan fuzz_layout
    local target pids=()
    for target in plan layout; do
        (
            rm -rf build-ci/asan/corpus-$target
            mkdir build-ci/asan/corpus-$target
            cd build-ci/asan
            tests/fuzz/fuzz_$target -seed=1 -runs=60000 -max_len=4096 -timeout=20 \
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
    for name in fake abi symbol null slots events; do
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

# Those of a line run at once, since most have times in which they keep one core busy, or none, but
# that what follows a + waits for what is before it. All give way to the first of the line, which
# takes longest. A line needs what earlier ones built.
groups=(
    'deps'
    'demo style'
    'gcc'
    'check suites devices support'
    'asan+fuzz oclgrind rusticl install python aarch64 tsan no_openmp+valgrind'
)
read -ra steps <<<"$(tr + ' ' <<<"${groups[*]}")"

# --- running them ---

if [ "${1:-}" = --list ]; then
    printf '%s\n' "${steps[@]}"
    exit 0
fi
[ $# = 0 ] || groups=("$@")
for name in "$@"; do
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

# run STEP FIRST: its status and its times go to a file. FIRST: the step that others give way to.
run() {
    local start=$SECONDS status
    [ "$1" = "$2" ] || renice -n 5 $BASHPID >/dev/null
    rm -f "$logs/$1.status"
    # A subshell of its own: within a condition errexit would be off.
    set +e
    (
        set -euo pipefail
        "step_$1"
    ) >"$logs/$1.log" 2>&1 </dev/null
    status=$?
    times >"$logs/$1.times"
    echo "$status $((SECONDS - start)) $(cores_busy "$logs/$1.times")" >"$logs/$1.status"
}

# The seconds of all cores in the output of `times`, whose second line is of what was called.
cores_busy() {
    sed -n 2p "$1" | tr 'ms' '  ' | awk '{ printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }'
}

# Says how it ended.
report() {
    local log=$logs/$1.log status time busy result=FAILED
    read -r status time busy <"$logs/$1.status" || status=1 time=0 busy=0
    step_failed=0
    count "$log" "$status"
    [ "$status" != 0 ] || [ "$step_failed" != 0 ] || result=ok
    printf '%-10s%5d s,%5d of cores  %-6s  %s\n' "$1" "$time" "$busy" "$result" \
        "$(tail -n 1 "$log" | cut -c 1-80)"
    [ "$result" = ok ] || tail -n 60 "$log" | sed 's/^/    /'
}

for group in "${groups[@]}"; do
    for chain in $group; do
        for name in ${chain//+/ }; do
            (run "$name" "${group%%[ +]*}")
        done &
    done
    wait
    for name in ${group//+/ }; do
        report "$name"
    done
done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
