#!/usr/bin/env bash
# Checks the form of the sources: format, characters, guards, sizes, and who reads the
# environment. Last line: 'N passed, N failed, N skipped'.
set -euo pipefail
cd "$(dirname "$0")/.."

max_lines=1000
max_subject=72
passed=0
failed=0
skipped=0

# check NAME < <(COMMAND): standard input lists the offences; none is a pass. Not at the end of a
# pipe, where the counters would be those of a subshell.
check() {
    local offences
    offences=$(cat)
    if [ -z "$offences" ]; then
        passed=$((passed + 1))
        return
    fi
    failed=$((failed + 1))
    printf '%s:\n%s\n' "$1" "$offences" | sed -n '1,60p' >&2
}

skip() {
    skipped=$((skipped + 1))
    echo "skipped: $1" >&2
}

in_git=false
git rev-parse --is-inside-work-tree >/dev/null 2>&1 && in_git=true

# Files of the project: tracked and not yet tracked, without what is ignored or deleted.
if $in_git; then
    mapfile -t files < <(git ls-files --cached --others --exclude-standard | sort -u |
        while read -r f; do [ -f "$f" ] && echo "$f"; done)
else
    mapfile -t files < <(find . -path './build*' -prune -o -path './.git' -prune -o -type f -print |
        sed 's,^\./,,' | sort)
fi

# select PATTERN: the files whose name matches an extended regular expression.
select_files() {
    printf '%s\n' "${files[@]}" | grep -E "$1" || true
}

mapfile -t c_files < <(select_files '\.(c|h)$')
mapfile -t headers < <(select_files '\.h$')
mapfile -t texts < <(select_files '\.(c|h|inc|py|sh|md|build|txt)$|^\.ci/run$|^meson')
mapfile -t sources < <(select_files '\.(c|h|inc|py|sh|build)$|^\.ci/run$')
mapfile -t scripts < <(select_files '\.sh$|^\.ci/run$')
[ ${#c_files[@]} -gt 0 ] && [ ${#headers[@]} -gt 0 ] && [ ${#scripts[@]} -gt 0 ]

library_files() {
    select_files '^(api|common|backends|transports)/.*\.(c|h)$'
}

find_format() {
    clang-format --dry-run -Werror "${c_files[@]}" 2>&1 | grep 'error:' | cut -d: -f1 | uniq -c
}

find_unterminated() {
    for f in "${texts[@]}"; do
        [ ! -s "$f" ] || [ "$(tail -c 1 "$f" | wc -l)" = 1 ] || echo "$f"
    done
}

find_long() {
    for f in "${c_files[@]}" $(select_files '\.(inc|py|sh)$'); do
        lines=$(wc -l <"$f")
        [ "$lines" -le "$max_lines" ] || echo "$f: $lines lines"
    done
}

# The guard is the first directive, and its name ends with the file's. A header that is meant to
# be included several times says "included once per" or "once for each"; texts of kernels, which
# are, have names made by the storage type.
find_unguarded() {
    for f in "${headers[@]}"; do
        guard=$(sed -n '/^#/{s/^#ifndef \([A-Z0-9_]*_H\)$/\1/p;q}' "$f")
        stem=$(basename "$f" .h | tr 'a-z-' 'A-Z_')
        case "$guard" in
        *"$stem"_H) grep -q "^#define $guard\$" "$f" || echo "$f: $guard is not defined" ;;
        *)
            grep -qE 'ncluded (by .* )?once (per|for each)' "$f" ||
                { [[ $f == backends/simt/* ]] && grep -qwE 'FN|NAME|SIMT_T' "$f"; } ||
                echo "$f: no guard ending in ${stem}_H"
            ;;
        esac
    done
}

# A portable kernel may start before the queue's earlier work has ended: its first statement waits.
find_unwaiting() {
    awk '
        /^ *([A-Z]+_)?KERNEL(_[A-Z]+)?\(/ { kernel = FILENAME ":" FNR ": " $1; body = 0 }
        body && $1 != "QUEUE_WAIT();" { print kernel }
        body { kernel = body = "" }
        kernel && $1 == "{" { body = 1 }' $(select_files '^backends/simt/.*\.h$')
}

find_bad_scripts() {
    for f in "${scripts[@]}"; do
        bash -n "$f" 2>&1 || echo "$f: does not parse"
        [ -x "$f" ] || echo "$f: is not executable"
        grep -qE '^set -eu(o pipefail)?$' "$f" || echo "$f: no 'set -euo pipefail'"
        head -n 1 "$f" | grep -qE '^#!(/usr/bin/env bash|/bin/sh)$' || echo "$f: first line"
    done
}

find_bad_python() {
    for f in $(select_files '\.py$'); do
        python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])' "$f" 2>&1 |
            tail -n 1 || true
    done
}

find_bad_subjects() {
    git log --no-merges --format='%h %s' | while read -r hash subject; do
        if [ ${#subject} -gt $max_subject ]; then
            echo "$hash: ${#subject} characters: $subject"
        elif ! [[ $subject =~ ^[a-z0-9_./,\ +-]+:\ [^\ ] ]]; then
            echo "$hash: not 'area: what': $subject"
        fi
    done
}

if command -v clang-format >/dev/null; then
    check "clang-format would change (offences by file)" < <(find_format)
else
    skip "clang-format is not installed"
fi
check "tabs" < <(grep -nP '\t' "${texts[@]}")
check "trailing blanks" < <(grep -nP '[ \r]+$' "${texts[@]}")
check "characters beyond ASCII" < <(grep -nP '[^\x00-\x7F]' "${sources[@]}")
check "unfinished words" < <(grep -nwE 'TODO|FIXME|XXX|HACK' "${texts[@]}" |
    grep -v '^ci/style.sh:')
check "no newline at the end" < <(find_unterminated)
check "more than $max_lines lines" < <(find_long)
check "header guards" < <(find_unguarded)
check "kernels that do not begin with QUEUE_WAIT()" < <(find_unwaiting)
check "getenv outside api/src/env.c" < <(grep -nE '\b(secure_)?getenv *\(' $(library_files) |
    grep -v '^api/src/env.c:')
# The log that BSK_VERBOSE asks for is an fprintf, and the only output.
check "the library aborts, exits or prints" < <(
    grep -nE '\b(abort|exit|_Exit|printf|puts|putchar|perror|assert) *\(' $(library_files))
check "scripts" < <(find_bad_scripts)
check "Python syntax" < <(find_bad_python)
if $in_git && git rev-parse --verify -q HEAD >/dev/null; then
    check "commit subjects" < <(find_bad_subjects)
else
    skip "there is no commit to look at"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
