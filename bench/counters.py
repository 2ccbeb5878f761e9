#!/usr/bin/env python3
"""What limits rows of `bsk bench` on an NVIDIA device: one launch of each under ncu, at the clock
that the chip takes, and clock and power while it runs for some time.

    python bench/counters.py [--bsk PATH] [--device ID] [--set NAME] [--seconds S] [--no-ncu]
                             --json FILE FILTER...

Each FILTER names one row, as `bsk bench` takes it; `dense N K M` is PyTorch's product of such
matrices of random numbers in bf16, that is cuBLAS's, `dense-tf32 N K M` the same of f32 rounded to
tf32 where both lie along the depth. Shares are of what the unit could do at the
clock of that launch: `tensor` of the tensor cores' cycles, `issue` of the instructions, `lsu` of
the cycles of the path that loads, ldmatrix, shuffles and barriers of an SM have in common (128
bytes of shared memory each), `l2`, `dram`. `stalls` are warps that wait for each that issues, by
reason. Clocks, power and temperature are medians of the samples above --watts; `capped` are shares
of these samples in which power, heat or the board slowed the clock down. `flops_a_cycle` is what a
multiprocessor made of useful operations in a cycle of that clock; `pj` is energy for each, in
picojoules."""
import argparse
import csv
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

COUNTERS = {
    "us": ("gpu__time_duration.sum", 1e-3),
    "mhz": ("gpc__cycles_elapsed.avg.per_second", 1e-6),
    "tensor": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 0.01),
    "issue": ("sm__inst_issued.avg.pct_of_peak_sustained_elapsed", 0.01),
    "lsu": ("l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed", 0.01),
    "lsu_cycles": ("l1tex__data_pipe_lsu_wavefronts.sum", 1),
    "lsu_shared_loads": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum", 1),
    "lsu_shared": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", 1),
    "l2": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", 0.01),
    "l2_sectors": ("lts__t_sectors.sum", 1),
    "dram": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 0.01),
    "dram_bytes": ("dram__bytes.sum", 1),
}
STALLS = ("long_scoreboard", "short_scoreboard", "wait", "gmma", "math_pipe_throttle",
          "mio_throttle", "branch_resolving", "sleeping", "not_selected")
STALL = "smsp__average_warps_issue_stalled_%s_per_issue_active.ratio"
REASONS = {"power": 0x4, "slowdown": 0x8, "heat": 0x60, "brake": 0x80}
MULTIPROCESSORS = 132
DENSE = {"dense": ("bfloat16", ""), "dense-tf32": ("float32", ".T")}  # type, how the second is turned
KERNEL = (r"regex:^(cuda_)?(dsd|sdd)_(sm90a_)?(wgmma|pair|mma)_(b?f|tf)|^sdd_(wgmma|pair|mma)_|"
          r"(ring|narrow|stream)_")


def number(text):
    return float(text.replace(",", ""))


def counters(bench, row):
    metrics = [name for name, _ in COUNTERS.values()] + [STALL % s for s in STALLS]
    ncu = ["ncu", "--csv", "--page", "raw", "--clock-control", "none", "-k", KERNEL,
           "--launch-skip", "2", "--launch-count", "1", "--metrics", ",".join(metrics)]
    out = subprocess.run(ncu + bench + ["--seconds", "0.005", row], capture_output=True, text=True)
    lines = [line for line in out.stdout.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        raise SystemExit(f"ncu profiled nothing of {row}: {out.stdout[-500:]}{out.stderr[-500:]}")
    table = list(csv.reader(lines))
    unit, value = dict(zip(table[0], table[1])), dict(zip(table[0], table[2]))
    time_unit = {"ns": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}
    found = {"kernel": value["Kernel Name"].split("(")[0]}
    for key, (name, scale) in COUNTERS.items():
        scale *= time_unit.get(unit[name], 1) if key == "us" else 1
        found[key] = float(f"{number(value[name]) * scale:.4g}")
    found["stalls"] = {s: number(value[STALL % s]) for s in STALLS if number(value[STALL % s]) > 0}
    return found


def sustained(bench, row, seconds, watts):
    """The row's rate over some time, the clock and the power meanwhile, and where that was."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw.instant,clocks_event_reasons.active,"
             "temperature.gpu,enforced.power.limit", "--format=csv,noheader,nounits", "-lms", "20"]
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        query += ["-i", os.environ["CUDA_VISIBLE_DEVICES"]]
    samples = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
    if row.split()[0] in DENSE:
        found, where = dense(*row.split(), seconds), {}
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows.json"
            subprocess.run(bench + ["--seconds", str(seconds), "--json", str(path), row],
                           check=True, stdout=subprocess.DEVNULL)
            report = json.loads(path.read_text())
        best = min(report["rows"], key=lambda r: r["ms"])
        found = {key: best[key] for key in ("name", "entry", "ms", "tflops")}
        where = {"host": report["host"], "device": report["device"]}
    samples.terminate()
    lines = [line.split(",") for line in samples.communicate()[0].splitlines()]
    busy = [(float(line[0]), float(line[1]), int(line[2], 16), float(line[3]), float(line[4]))
            for line in lines if len(line) == 5 and float(line[1]) > watts]
    if busy:
        mhz, power, _, celsius, limit = (statistics.median(b[i] for b in busy) for i in range(5))
        found |= {"samples": len(busy), "mhz": mhz, "watts": power, "limit_watts": limit,
                  "celsius": celsius, "capped": {
                      name: round(sum(b[2] & bit > 0 for b in busy) / len(busy), 2)
                      for name, bit in REASONS.items()}}
        found["flops_a_cycle"] = round(found["tflops"] * 1e6 / mhz / MULTIPROCESSORS)
        found["pj"] = round(power / found["tflops"], 3)
    return found, where


def dense(kind, n, k, m, seconds):
    """PyTorch's product for some time, by its own clock."""
    dtype, turn = DENSE[kind]
    second = f"({m}, {k})" if turn else f"({k}, {m})"
    program = f"""
import json, time, torch
torch.backends.cuda.matmul.allow_tf32 = True
a, b = (torch.randn(*s, device="cuda", dtype=torch.{dtype}) for s in (({n}, {k}), {second}))
b = b{turn}
c = a @ b
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
times, stop = [], time.monotonic() + {seconds}
while time.monotonic() < stop:
    start.record()
    for _ in range(16):
        torch.matmul(a, b, out=c)
    end.record()
    end.synchronize()
    times.append(start.elapsed_time(end) / 16)
ms = sorted(times)[len(times) // 2]
print(json.dumps({{"ms": ms, "tflops": 2e-9 * {n} * {k} * {m} / ms}}))
"""
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True,
                         text=True)
    kind = "tf32" if turn else "bf16"
    return {"name": f"dense {kind} n{n} k{k} m{m}", "entry": "cublas"} | json.loads(out.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bsk", default="bsk")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--set", default="hopper")
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--watts", type=float, default=400)
    parser.add_argument("--no-ncu", action="store_true", help="clock and power alone")
    parser.add_argument("--json", required=True)
    parser.add_argument("rows", nargs="+", metavar="FILTER")
    options = parser.parse_args()
    bench = [options.bsk, "bench", "--device", options.device, "--set", options.set]
    rows, where = [], {}
    for row in options.rows:
        found, place = sustained(bench, row, options.seconds, options.watts)
        where |= place
        rows.append({"sustained": found})
        if not options.no_ncu and row.split()[0] not in DENSE:
            rows[-1]["launch"] = counters(bench, row)
        print(json.dumps(rows[-1]), flush=True)
        text = json.dumps(where | {"rows": rows}, indent=1)
        pathlib.Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
