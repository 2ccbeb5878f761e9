#!/bin/sh
# The three models learn the same on two devices: the losses of the first steps agree.
#     devices.sh LM SOURCE_ROOT DEVICE [STEPS]      DEVICE against cpu:0; 100 steps
# The bound is what rounding does: eight times the largest difference so far between two instruction
# sets of the CPU, and a millionth. Before it has learnt, the recurrent network is chaotic: any
# difference grows tenfold in some 32 times, so that its batches hold few times of many rows.
set -eu
lm=$1
root=$2
device=$3
steps=${4:-100}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

cat "$root"/examples/quickstart.c "$root"/api/include/bsk/*.h "$root/LICENSE" >"$dir/text"
small="--block 8 --width 32 --hidden 64 --layers 1 --heads 2 --attention-block 8 --stride 16
       --time 32 --batch 4 --context 4 --buckets 6"

# losses NAME OPTION...: one a line, in $dir/NAME
losses() {
    name=$1
    shift
    rm -f "$dir/log"
    "$lm" --text "$dir/text" $small --steps "$steps" --log "$dir/log" "$@" >"$dir/out"
    sed -n 's/.*"loss": \([^}]*\)}/\1/p' "$dir/log" >"$dir/$name"
    [ "$(wc -l <"$dir/$name")" = "$steps" ]
}

failed=0
for model in transformer 'lstm --time 4 --batch 32' mlp; do
    BSK_NUM_THREADS=1 losses cpu --model $model --device cpu:0
    BSK_MAX_ARCH=base BSK_NUM_THREADS=1 \
        losses base --model $model --device cpu:0
    losses device --model $model --device "$device"
    paste "$dir/cpu" "$dir/base" "$dir/device" | awk -v model="${model%% *}" -v device="$device" '
        function size(x) { return x < 0 ? -x : x }
        {
            noise = size($2 - $1) / $1 > noise ? size($2 - $1) / $1 : noise
            error = size($3 - $1) / $1
            worst = error > worst ? error : worst
            if (!(error <= 1e-6 + 8 * noise) && !wrong)
                wrong = NR
        }
        END {
            printf "%-12s %s: %d losses, differences up to %.2g, of instruction sets %.2g%s\n",
                model, device, NR, worst, noise, wrong ? "; FAILED at step " wrong : ""
            exit wrong != 0
        }' || failed=$((failed + 1))
done
echo "$((3 - failed)) passed, $failed failed, 0 skipped"
[ $failed = 0 ]
