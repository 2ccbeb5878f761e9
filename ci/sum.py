#!/usr/bin/env python3
"""Sums the results of tests to one line 'N passed, N failed, N skipped'.

    sum.py check REPORT...    reports of `bsk check --json`
    sum.py meson TESTLOG      a testlog.json of `meson test`: programs whose output ends with such a
                              line count as many checks, others as one

The exit status is 1 if anything failed or nothing was run.
"""

import json
import re
import sys

LINE = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)


def sum_report(path):
    with open(path) as file:
        report = json.load(file)
    counts = [report["passed"], report["failed"], report["skipped"]]
    failures = [c for c in report["cases"] if c["status"].startswith("fail")]
    if counts[1] != len(failures):
        raise SystemExit(f"{path}: {counts[1]} failed, but {len(failures)} cases say so")
    for case in failures[:20]:
        print(f"FAILED {case['name']} @{case['device']} {case['entry']}")
    return counts


def sum_check(*paths):
    return [sum(column) for column in zip(*(sum_report(path) for path in paths))]


def sum_meson(path):
    counts = [0, 0, 0]
    with open(path) as file:
        for line in file:
            test = json.loads(line)
            result = test["result"]
            found = LINE.findall(test.get("stdout") or "")
            one = [int(n) for n in found[-1]] if found else [0, 0, 0]
            if result == "SKIP" and not found:
                one = [0, 0, 1]
            elif result == "OK" and not found:
                one = [1, 0, 0]
            elif result not in ("OK", "SKIP", "EXPECTEDFAIL") and not one[1]:
                one[1] = 1
            print(f"{test['name']}: {result}, {one[0]} passed, {one[1]} failed, {one[2]} skipped,"
                  f" {test['duration']:.1f} s")
            counts = [a + b for a, b in zip(counts, one)]
    return counts


def main():
    kinds = {"check": sum_check, "meson": sum_meson}
    if len(sys.argv) < 3 or sys.argv[1] not in kinds or (
            sys.argv[1] == "meson" and len(sys.argv) != 3):
        raise SystemExit(__doc__)
    counts = kinds[sys.argv[1]](*sys.argv[2:])
    print("{} passed, {} failed, {} skipped".format(*counts))
    return 1 if counts[1] or not counts[0] else 0


if __name__ == "__main__":
    sys.exit(main())
