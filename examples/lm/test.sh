#!/bin/sh
# lm end to end: learns, saves, goes on bit for bit, refuses what is no checkpoint.
#     test.sh LM SOURCE_ROOT
set -eu
lm=$1
root=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Sizes are so small that threads would only wait for each other.
export BSK_NUM_THREADS=1
export BSK_DEVICE=${BSK_DEVICE:-cpu:0}

fail() {
    echo "FAILED: $1" >&2
    exit 1
}

# The text: what changes least.
cat "$root"/examples/quickstart.c "$root"/api/include/bsk/*.h "$root/LICENSE" >"$dir/text"
text="--text $dir/text"
small="--block 8 --width 32 --hidden 64 --layers 2 --heads 4 --attention-block 8 --stride 16
       --time 32 --batch 8 --context 4 --buckets 6"
held_bits() { sed -n "s/^$1 .* \([0-9.]*\)$/\1/p" "$2"; }

# same NAME OPTION...: 8 steps in one go and 3 + 5 steps are the same, bit for bit, and better than
# 8 bits.
same() {
    name=$1
    shift
    "$lm" $text $small "$@" --steps 8 --save "$dir/$name.whole" >"$dir/$name.out"
    "$lm" $text $small "$@" --steps 8 --stop-after 3 --save "$dir/$name.part" >"$dir/part.out"
    cmp -s "$dir/$name.whole" "$dir/$name.part" && fail "$name: nothing was left to do"
    "$lm" $text --resume "$dir/$name.part" --save "$dir/$name.part" >"$dir/part.out"
    cmp "$dir/$name.whole" "$dir/$name.part" || fail "$name: resuming differs"
    bits=$(held_bits sparse "$dir/$name.out")
    awk -v bits="$bits" 'BEGIN { exit !(bits > 0.5 && bits < 8) }' || fail "$name: '$bits' bits"
}
same fixed --pattern fixed --lr 0.01
same strided --pattern strided --lr 0.01 --dropout 0.1 --ema 0.5
same bf16 --pattern bigbird --lr 0.01 --dtype bf16 --accumulate 2 --ema 0.5
same f16 --pattern local --lr 0.01 --dtype f16
same evolve --pattern all --lr 0.01 --evolve 2 --prune-to 0.1
same l0 --pattern all --lr 0.01 --evolve 2 --prune-by l0 --prune-to 0.1 --dtype bf16 --ema 0.5
same lasso --pattern all --lr 0.01 --evolve 2 --prune-by lasso --prune-rate 1 --prune-to 0.1
same lstm --model lstm --lr 0.02 --evolve 3
same lstm_bf16 --model lstm --lr 0.02 --dtype bf16 --dropout 0.1
same mlp --model mlp --lr 0.02 --ema 0.5

# Pruning drops blocks, whatever finds the weak ones.
parameters() { awk '$1 == "sparse" { print $4 }' "$1"; }
for name in evolve l0 lasso; do
    [ "$(parameters "$dir/$name.out")" -lt "$(parameters "$dir/fixed.out")" ] ||
        fail "$name: no block was dropped"
done

# Learning: all kinds of models, on what is easy to predict.
for model in transformer lstm mlp; do
    "$lm" $text $small --model $model --lr 0.02 --warm-up 5 --steps 60 --html "$dir/page.html" \
        --log "$dir/log" --save "$dir/$model" --profile --generate 20 --prompt 'int ' \
        >"$dir/$model.out"
    bits=$(held_bits sparse "$dir/$model.out")
    awk -v bits="$bits" 'BEGIN { exit !(bits > 0.5 && bits < 5.5) }' ||
        fail "$model: '$bits' bits after 60 steps"
    grep -q '^matmul_wgrad ' "$dir/$model.out" || fail "$model: no profile"
    grep -q '</html>' "$dir/page.html" || fail 'the page is not complete'
    names=$(grep -o "id=['\"][^'\"]*" "$dir/page.html" | sort | uniq -d)
    [ -z "$names" ] || fail "the page has the same name twice: $names"
    # A loaded model predicts and writes as the saved one did.
    "$lm" $text --resume "$dir/$model" --generate 20 --prompt 'int ' >"$dir/again.out"
    [ "$(held_bits resumed "$dir/again.out")" = "$bits" ] || fail "$model: the loaded one differs"
    [ "$(tail -n 2 "$dir/$model.out")" = "$(tail -n 2 "$dir/again.out")" ] ||
        fail "$model: the loaded one writes something else"
done
[ "$(grep -c '"held_bits"' "$dir/log")" -gt 20 ] || fail 'the log is too short'

# Any cut and any changed byte is refused with status 1, not with a crash.
whole=$dir/fixed.whole
size=$(wc -c <"$whole")
refused() {
    status=0
    "$lm" $text --resume "$dir/bad" >"$dir/bad.out" 2>&1 || status=$?
    [ "$status" = 1 ] || fail "$1: status $status"
    grep -q 'not a checkpoint' "$dir/bad.out" || fail "$1: no reason given"
}
for keep in 0 7 8 40 200 $((size / 2)) $((size - 1)); do
    head -c "$keep" "$whole" >"$dir/bad"
    refused "cut to $keep bytes"
done
for at in 0 9 30 100 $((size / 2)) $((size - 1)); do
    cp "$whole" "$dir/bad"
    byte=$(od -An -tu1 -j "$at" -N 1 "$dir/bad")
    printf "\\$(printf %o $((byte ^ 1)))" | dd of="$dir/bad" bs=1 seek="$at" conv=notrunc 2>/dev/null
    refused "byte $at changed"
done
cp "$root/LICENSE" "$dir/bad"
refused 'another file'

# Ctrl-C: the step is finished and saved; what was saved can go on. Shells start background jobs
# with the signal ignored, so that the program is told by env to heed it.
env --default-signal=INT "$lm" $text $small --steps 1000000 --save "$dir/int" --save-every 2 \
    >"$dir/int.out" 2>&1 &
pid=$!
tries=0
until [ -f "$dir/int" ] || [ $((tries += 1)) -gt 600 ]; do sleep 0.1; done
kill -INT "$pid"
status=0
wait "$pid" || status=$?
[ "$status" = 130 ] || fail "interrupted: status $status"
"$lm" $text --resume "$dir/int" --stop-after 1 >"$dir/int.out" || fail 'interrupted: no checkpoint'

# Where the file cannot be written in full, the old one stays.
cp "$whole" "$dir/old"
status=0
(
    trap '' XFSZ
    ulimit -f 8
    "$lm" $text --resume "$dir/old" --steps 9 --save "$dir/old" >"$dir/bad.out" 2>&1
) || status=$?
[ "$status" = 1 ] || fail "checkpoint that cannot be written: status $status"
cmp "$whole" "$dir/old" || fail 'the old checkpoint is gone'
[ ! -e "$dir/old.new" ] || fail 'a part of a checkpoint is left'

# What cannot be written is refused before the training, not after it.
mkdir "$dir/folder"
for bad in "--save $dir/none/x" "--save $dir/folder" "--html $dir/none/x" "--log $dir/none/x"; do
    status=0
    "$lm" $text $small --steps 1 $bad >"$dir/bad.out" 2>&1 || status=$?
    [ "$status" = 1 ] && ! grep -q '^text' "$dir/bad.out" || fail "$bad: status $status, too late"
done

# More memory than there is: a message, and nothing that was saved is lost.
status=0
(
    ulimit -v 1000000
    "$lm" $text $small --batch 4000 --hidden 8192 --save "$dir/old" >"$dir/bad.out" 2>&1
) || status=$?
[ "$status" = 1 ] && grep -q 'memory' "$dir/bad.out" ||
    fail "out of memory: status $status: $(cat "$dir/bad.out")"
cmp "$whole" "$dir/old" || fail 'the old checkpoint is gone'

# The same number of parameters, give or take a few percent.
for model in transformer lstm mlp; do
    "$lm" $text $small --width 64 --hidden 512 --model $model --compare --steps 1 >"$dir/c.out"
    awk '$1 == "sparse" { s = $4 } $1 == "dense" { d = $4 }
         END { exit !(s > 0 && d > 0.97 * s && d < 1.03 * s) }' "$dir/c.out" ||
        fail "$model: sparse and dense have different sizes: $(grep -E '^(sparse|dense)' "$dir/c.out")"
done

# Help needs no device, and bad options are errors.
BSK_DEVICE=none:0 "$lm" --help | grep -q -e --model || fail '--help'
for bad in '--density 0' '--density x' '--batch 0' '--nonsense' '--dense --compare' \
    '--model rnn' '--pattern none' '--prune-by luck' "--resume $whole --width 64"; do
    status=0
    "$lm" $bad >/dev/null 2>&1 || status=$?
    [ "$status" = 2 ] || fail "$bad: status $status"
done
echo 'lm: all passed'
