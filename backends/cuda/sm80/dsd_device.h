/* What the kernels of dsd for sm80 share. C^T[n][i] = sum over k of B^T[n][k] op(S)^T[k][i]: the
 * minibatch lies along the rows of the tensor core's products, and features, of which a block may
 * have as few as 8, along its columns.
 *
 * The depth is walked in runs of 16 bytes, C::RUN elements, so that kept blocks of every width
 * follow each other without gaps: a stage of shared memory holds the runs of one block, of several
 * or of a part of one. Runs beyond the list, beyond the depth, and of blocks whose gate is 0 are
 * zeros in both operands. */
#ifndef BSKI_CUDA_SM80_DSD_DEVICE_H
#define BSKI_CUDA_SM80_DSD_DEVICE_H

#include <backends/cuda/sm80/dsd_arg.h>
#include <backends/cuda/sm80/mma_tile.h>

/* --- The list --- */

/* The runs along the depth of a segment's blocks. */
typedef struct walk {
    const dsd_block *blocks;
    int32_t runs, shift;
} walk;

MMA_DEVICE dsd_block walk_block(const walk *w, int32_t run)
{
    return run < w->runs ? w->blocks[run >> w->shift] : dsd_block{-1, 0};
}

/* The inner run number of a block. */
template <int RUN> MMA_DEVICE int32_t run_inner(const dsd_arg *a, int32_t run)
{
    return (run & ((1 << a->granule_shift) - 1)) * RUN;
}

/* How many of a run's rows along the depth count, 0 to RUN; k: its first in B. */
template <bool PLAIN, int RUN>
MMA_DEVICE int run_depth(const dsd_arg *a, dsd_block block, int32_t k)
{
    if (block.column < 0 || (!PLAIN && a->gate && a->gate[block.slot] == 0))
        return 0;
    const int32_t left = (int32_t)a->depth - k;
    return left < RUN ? (left > 0 ? left : 0) : RUN;
}

/* --- Copies --- */

/* A thread's copies of both operands. PLAIN: no gates, and B in runs of 16 bytes. */
template <class C> struct copies {
    feed<C, C::TN> rows;
    feed<C, C::TI> features;
    int64_t rows_depth; /* bytes of B from one k to the next */
    walk w;
};

/* s: of the tile's first feature. */
template <class C>
MMA_DEVICE copies<C> copies_open(const dsd_arg *a, walk w, const typename C::T *s,
                                 const typename C::T *b, int64_t n0)
{
    enum { SIZE = sizeof(typename C::T) };
    copies<C> c;
    c.w = w;
    if (a->b_along_k)
        c.rows = feed_open<C, C::TN>(b + n0 * a->b_col, a->b_col, true, a->cols - n0);
    else
        c.rows = feed_open<C, C::TN>(b + n0, a->b_row, false, a->cols - n0);
    c.rows_depth = (a->b_along_k ? 1 : a->b_row) * SIZE;
    c.features =
        feed_open<C, C::TI>(s, a->s_flip ? a->block_rows : a->block_cols, !a->s_flip, C::TI);
    return c;
}

/* The blocks that a thread's copies of a stage come from. */
typedef struct stage_blocks {
    dsd_block rows, features;
} stage_blocks;

template <class C> MMA_DEVICE stage_blocks find_blocks(const copies<C> *c, int32_t first_run)
{
    return stage_blocks{walk_block(&c->w, first_run + c->rows.run),
                        walk_block(&c->w, first_run + c->features.run)};
}

template <class C, bool PLAIN>
MMA_DEVICE void copy_stage(const dsd_arg *a, const copies<C> *c, uint32_t stage, float *gates,
                           int32_t first_run, stage_blocks blocks)
{
    enum { SIZE = sizeof(typename C::T) };
    const int32_t inner = run_inner<C::RUN>(a, first_run + c->rows.run);
    const int32_t k = blocks.rows.column * a->block_cols + inner;
    const int depth = run_depth<PLAIN, C::RUN>(a, blocks.rows, k);
    if (PLAIN || a->b_vector)
        feed_copy<C, C::TN, true>(&c->rows, stage, k * c->rows_depth, depth);
    else
        feed_copy<C, C::TN, false>(&c->rows, stage, k * c->rows_depth, depth);

    const int32_t s_inner = run_inner<C::RUN>(a, first_run + c->features.run);
    const int s_depth = run_depth<PLAIN, C::RUN>(a, blocks.features,
                                                 blocks.features.column * a->block_cols + s_inner);
    const int64_t at = (int64_t)blocks.features.slot * (a->block_rows * a->block_cols) +
                       s_inner * (a->s_flip ? a->block_rows : 1);
    feed_copy<C, C::TI, true>(&c->features, stage + C::ROWS_BYTES, at * SIZE, s_depth);

    const int t = threadIdx.x % C::THREADS;
    if (!PLAIN && a->gate && t < C::RUNS) {
        const dsd_block block = walk_block(&c->w, first_run + t);
        gates[t] = block.column >= 0 ? a->gate[block.slot] : 0;
    }
}

/* --- Results --- */

/* Stores a run of 8 sums along C's contiguous axis. */
MMA_DEVICE void store_run(const dsd_arg *a, float (&v)[DSD_RUN], int64_t feature, int64_t n,
                          int64_t member)
{
    const dsd_epilogue &end = a->end;
    if (!a->bare) {
        dsd_finish(end, v, feature, n, member);
        return;
    }
    const int64_t left = end.along_n ? end.n - n : end.features - feature;
    if (feature >= end.features || n >= end.n)
        return;
    const float alpha = dsd_alpha(end);
#pragma unroll
    for (int e = 0; e < DSD_RUN; e++)
        v[e] *= alpha;
    dsd_write(end.c, member * end.c.batch + feature * end.c.feature + n * end.c.n,
              left < DSD_RUN ? (int)left : DSD_RUN, v);
}

#endif
