#include "roof.h"

#include <time.h>

#include "check.h"
#include "layouts.h"
#include "ops.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of the product of two matrices of n x n; *flops: its operations. */
static double product_seconds(machine *m, bsk_dtype type, int n, double *flops)
{
    enum { BLOCK = 64, RUNS = 4 };
    program p;
    program_create(&p, m);
    bsk_layout *dense = layout_weights(m->context, n, n, BLOCK, 1, 0);
    const int64_t blocks = (int64_t)n / BLOCK * n / BLOCK;
    const linear l = {.layout = dense,
                      .w = program_tensor(&p, bsk_tensor_3d(type, blocks, BLOCK, BLOCK))};
    const tensor x = program_tensor(&p, bsk_tensor_2d(type, n, n));
    op_linear(&p, &l, BSK_ACT_NONE, x, absent, program_tensor(&p, x.desc));
    double best = 0;
    for (int i = 0; i < RUNS; i++) {
        CHECK(bsk_queue_sync(m->queue));
        const double start = now();
        program_run(&p, 0);
        CHECK(bsk_queue_sync(m->queue));
        const double seconds = now() - start;
        best = i == 0 || seconds < best ? seconds : best;
    }
    *flops = p.flops;
    program_destroy(&p);
    bsk_layout_release(&dense);
    return best;
}

double machine_roof(machine *m, bsk_dtype type)
{
    enum { SMALLEST = 256, LARGEST = 8192 };
    const double enough = 0.01;
    double roof = 0, seconds = 0, flops;
    for (int n = SMALLEST; n <= LARGEST && seconds < enough; n *= 2) {
        seconds = product_seconds(m, type, n, &flops);
        roof = flops / seconds > roof ? flops / seconds : roof;
    }
    m->peak_bytes = m->bytes;
    return roof;
}
