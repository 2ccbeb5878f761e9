#!/bin/sh
# textmodel end to end: learns, saves, loads the same model again, refuses what is no model.
#     test.sh TEXTMODEL SOURCE_ROOT
set -eu
textmodel=$1
root=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail() {
    echo "FAILED: $1" >&2
    exit 1
}

small="--block 8 --hidden 48 --width 8 --context 4 --buckets 8 --batch 128"
held_bits() { sed -n "s/^$1 .* \([0-9.]*\)$/\1/p" "$2"; }

# Two runs of the same steps agree to the last digit that is printed.
for run in 1 2; do
    "$textmodel" --root "$root/examples" $small --steps 60 --save "$dir/$run.model" \
        --html "$dir/$run.html" >"$dir/$run.out"
done
cmp "$dir/1.model" "$dir/2.model" || fail 'two equal runs differ'
trained=$(held_bits sparse "$dir/1.out")
awk -v bits="$trained" 'BEGIN { exit !(bits > 0.5 && bits < 6) }' ||
    fail "after 60 steps: '$trained' bits, want fewer than 6"
grep -q '</html>' "$dir/1.html" || fail 'the page is not complete'

# A loaded model predicts as the saved one did.
"$textmodel" --root "$root/examples" --batch 128 --seconds 0 --load "$dir/1.model" >"$dir/l.out"
[ "$(held_bits sparse "$dir/l.out")" = "$trained" ] || fail 'the loaded model differs'

# Any cut and any changed byte is refused with status 1, not with a crash.
size=$(wc -c <"$dir/1.model")
refused() {
    status=0
    "$textmodel" --root "$root/examples" --seconds 0 --load "$dir/bad" >"$dir/bad.out" 2>&1 ||
        status=$?
    [ "$status" = 1 ] || fail "$1: status $status"
    grep -q 'not a model' "$dir/bad.out" || fail "$1: no reason given"
}
for keep in 0 7 8 40 200 $((size / 2)) $((size - 1)); do
    head -c "$keep" "$dir/1.model" >"$dir/bad"
    refused "cut to $keep bytes"
done
for at in 0 9 30 100 $((size / 2)) $((size - 1)); do
    cp "$dir/1.model" "$dir/bad"
    byte=$(od -An -tu1 -j "$at" -N 1 "$dir/bad")
    printf "\\$(printf %o $((byte ^ 1)))" | dd of="$dir/bad" bs=1 seek="$at" conv=notrunc 2>/dev/null
    refused "byte $at changed"
done

# The same number of parameters, give or take two percent.
"$textmodel" --root "$root/examples" --block 8 --hidden 128 --width 8 --context 4 --buckets 8 \
    --batch 128 --compare --steps 2 >"$dir/c.out"
awk '$1 == "sparse" { s = $4 } $1 == "dense" { d = $4 }
     END { exit !(s > 0 && d > 0.98 * s && d < 1.02 * s) }' "$dir/c.out" ||
    fail 'sparse and dense have different sizes'

# Bad options are errors.
for bad in '--density 0' '--density x' '--batch 0' '--nonsense' '--dense --compare'; do
    status=0
    "$textmodel" $bad >/dev/null 2>&1 || status=$?
    [ "$status" = 2 ] || fail "$bad: status $status"
done
echo 'textmodel: all passed'
