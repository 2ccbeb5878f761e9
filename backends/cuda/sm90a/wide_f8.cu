/* Makes f16 of operands of f8, and gates of blocks of the scales of both. */
#include <backends/cuda/mma.h>
#include <backends/cuda/sm90a/f8_device.h>
#include <backends/cuda/sm90a/wide_f8.h>

/* Eight bytes from any address, of which so many are there. */
PTX_FN uint2 run_load(const uint8_t *from, int64_t there)
{
    const unsigned low = (unsigned)(uintptr_t)from;
    if (there >= WIDE_RUN && low % 8 == 0)
        return *(const uint2 *)from;
    if (there >= WIDE_RUN && low % 4 == 0)
        return make_uint2(((const uint32_t *)from)[0], ((const uint32_t *)from)[1]);
    uint32_t v[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < WIDE_RUN; i++)
        v[i / 4] |= i < there ? (uint32_t)from[i] << i % 4 * 8 : 0;
    return make_uint2(v[0], v[1]);
}

PTX_FN uint2 part_load(const wide_part &p, uint32_t run)
{
    uint32_t row = run / p.line_runs;
    const uint32_t at = run % p.line_runs * WIDE_RUN;
    const uint8_t *from = p.from + at;
    if (row >= p.lines) {
        from += row / p.lines * p.batch;
        row %= p.lines;
    }
    return run_load(from + row * p.line, p.length - at);
}

/* All loads of a thread are under way together. */
PTX_FN void part_widen(const wide_part &p, uint32_t block)
{
    const uint32_t first = block * WIDE_BLOCK + threadIdx.x;
    uint2 v[WIDE_EACH];
#pragma unroll
    for (int i = 0; i < WIDE_EACH; i++)
        if (first + i * WIDE_THREADS < p.runs)
            v[i] = part_load(p, first + i * WIDE_THREADS);
#pragma unroll
    for (int i = 0; i < WIDE_EACH; i++) {
        const uint32_t run = first + i * WIDE_THREADS;
        if (run >= p.runs)
            continue;
        const uint2 low = f8_to_f16(v[i].x, p.e5m2), high = f8_to_f16(v[i].y, p.e5m2);
        ((uint4 *)p.to)[run] = make_uint4(low.x, low.y, high.x, high.y);
    }
}

PTX_FN void gate_fill(const wide_gates &g, uint32_t i)
{
    if (i >= g.count)
        return;
    const float scale = (g.scale[0] ? *g.scale[0] : 1) * (g.scale[1] ? *g.scale[1] : 1);
    const float gate = g.gate ? g.gate[i] : 1;
    g.to[i] = gate == 0 ? 0 : g.skip ? scale : scale * gate;
}

extern "C" __global__ void __launch_bounds__(WIDE_THREADS)
    sm90a_wide_f8(const __grid_constant__ wide_arg a)
{
    int part = 0;
    while (part + 1 < a.parts && blockIdx.x >= a.part[part + 1].first)
        part++;
    grid_allow_next();
    grid_wait();
    if (blockIdx.x >= a.gates.first)
        gate_fill(a.gates, (blockIdx.x - a.gates.first) * WIDE_THREADS + threadIdx.x);
    else
        part_widen(a.part[part], blockIdx.x - a.part[part].first);
}
