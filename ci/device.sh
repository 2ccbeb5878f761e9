#!/usr/bin/env bash
# Conformance tests of one device, a process for each op, or for each type of the products and of
# attention, several at a time; no case falls back to another device's entries. Reports to build-device/.
#     ci/device.sh [-b BSK] [-t TIER] [-j PROCESSES] [-w TOOL] DEVICE [FILTER...]
#     ci/device.sh -t ci cuda:0
#     ci/device.sh -w 'compute-sanitizer --tool racecheck --error-exitcode 9' cuda:0 'dsd_sm90a_*'
# A line for each process that failed, with the end of what it said, and the sum of all checks.
set -euo pipefail
cd "$(dirname "$0")/.."

bsk=build/bench/bsk
tier=quick
jobs=$(nproc)
tool=
while getopts b:t:j:w: option; do
    case $option in
    b) bsk=$OPTARG ;;
    t) tier=$OPTARG ;;
    j) jobs=$OPTARG ;;
    w) tool=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
device=${1:?DEVICE}
shift
reports=build-device
rm -rf "$reports"
mkdir -p "$reports"

# One process: the words that every case's name has, beside the filters.
one() {
    local words=$1 name=$reports/${1// /_} status=0
    shift
    # shellcheck disable=SC2086 # words and a tool's options are several arguments
    BSK_FALLBACK=forbid $tool "$bsk" check --tier "$tier" --device "$device" \
        --json "$name.json" $words "$@" >"$name.txt" 2>&1 || status=$?
    # 77: no entry of this device takes any of them
    if [ $status != 0 ] && [ $status != 77 ]; then
        echo "FAILED ($status) $words"
        tail -n 3 "$name.txt" | sed 's/^/  /'
        return 1
    fi
}
export -f one
export bsk tier device tool reports

# The largest first: attention and products take longest. A process that ends without a report, or whose
# tool found something, is not in the sum: it counts by its status.
status=0
"$bsk" check --list --tier "$tier" --device "$device" "$@" |
    awk '{ name = $1
           if ($1 ~ /^(matmul|attention|arguments)/) name = $1 " " $2
           count[name] += $1 ~ /^(matmul|attention)/ ? 6 : 1 }
         END { for (name in count) print count[name] "\t" name }' |
    sort -rn | cut -f 2 |
    xargs -r -P "$jobs" -I '{}' bash -c 'one "$@"' one '{}' "$@" || status=1
ci/sum.py check "$reports"/*.json
exit $status
