/* Products in f32 of activations whose features are contiguous: [n, features] in memory. A row of a
 * block of S that lies along features is a row of vectors, so that nothing has to be transposed but,
 * in one direction, S itself. */
#include "dense.h"

/* Rows and vectors of a tile, and so its features. */
#if defined(BSK_ISA_AVX512)
enum { HIGH = 8, WIDE = 2 };
#elif defined(BSK_ISA_NEON)
enum { HIGH = 8, WIDE = 2 };
#else
enum { HIGH = 4, WIDE = 2 };
#endif
enum { STRIP = WIDE * F32_LANES };

/* Rows of C in a task: few, so that they are written side by side while S comes from the second-level
 * cache, where all of it fits. */
enum { ROWS = 32 };

/* --- dsd --------------------------------------------------------------------------------------- */

/* C = op(S) B. A tile of a few rows of C, by some of its features, stays in registers while the list of
 * its block row is walked; B is read where it lies. */
typedef struct product {
    const bsk_dsd_params *p;
    const bsk_dsd_args *a;
    const bsk_layout_tables *t;
    const int64_t *start; /* the lists of op(S)'s block rows */
    const int32_t *other, *slot;
    int64_t n, block_i, block_j, grid_i;
    int64_t ldb, ldc, ldr; /* from a row of B, C, residual to the next */
    const float *s;        /* [slot][block_j][block_i] */
} product;

static void product_shape(product *d, const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bool swap = p->transpose_s != 0;
    *d = (product){.p = p,
                   .t = t,
                   .start = swap ? t->col_start : t->row_start,
                   .other = swap ? t->col_row : t->row_col,
                   .slot = swap ? t->col_slot : t->row_slot,
                   .n = p->b.dims[1],
                   .block_i = swap ? t->block_cols : t->block_rows,
                   .block_j = swap ? t->block_rows : t->block_cols,
                   .grid_i = swap ? t->grid_cols : t->grid_rows,
                   .ldb = p->b.strides[1],
                   .ldc = p->c.strides[1],
                   .ldr = p->residual.strides[1]};
}

OMP_DECLARE(dsd_nc_f32);

OMP_ACCEPT(dsd_nc_f32)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bsk_tensor *const dense[] = {&p->b, &p->c, &p->residual};
    (void)props;
    for (int i = 0; i < 3; i++)
        if (dense[i]->dtype != BSK_NONE && dense[i]->dtype != BSK_F32)
            return BSK_REFUSE_DTYPE;
    if (p->b.rank != 2 || p->s.rank != 3)
        return BSK_REFUSE_RANK;
    for (int i = 0; i < 3; i++)
        if (dense[i]->dtype != BSK_NONE && dense[i]->strides[0] != 1)
            return BSK_REFUSE_STRIDE;
    if (p->gate.dtype != BSK_NONE || p->row_scale.dtype != BSK_NONE ||
        p->col_scale.dtype != BSK_NONE)
        return BSK_REFUSE_OPTION;
    if (p->b.dims[1] < ROWS)
        return BSK_REFUSE_SHAPE;
    const int64_t side = p->transpose_s ? t->block_cols : t->block_rows;
    const int64_t depth = p->transpose_s ? t->block_rows : t->block_cols;
    if (side % STRIP || depth % SQUARE_f32 || t->rows % t->block_rows || t->cols % t->block_cols)
        return BSK_REFUSE_BLOCK;
    return t->nnz <= NEAR / (int64_t)sizeof(float) / (side * depth) ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

OMP_PREPARE(dsd_nc_f32)
{
    const bsk_dsd_params *p = prepared->problem->params;
    const bsk_layout_tables *t = prepared->problem->layout;
    size_t elements;
    (void)device;
    if (p->transpose_s)
        return BSK_OK;
    return bski_mul_size((size_t)t->nnz, (size_t)t->block_rows * (size_t)t->block_cols,
                         &elements) &&
                   bski_mul_size(elements, sizeof(float), &prepared->workspace_bytes)
               ? BSK_OK
               : BSK_E_UNSUPPORTED;
}

/* out[high][STRIP] = sums over the list of a block row: b, rows of B; s, the feature in block 0. */
OMP_INLINE void tile_sum(const product *d, int64_t first, int64_t end, const float *b,
                         const float *s, float *restrict out, const int high)
{
    const int64_t size = d->block_i * d->block_j;
    vec_f32 sum[HIGH][WIDE];
    _Pragma("GCC unroll 8") for (int r = 0; r < high; r++)
        _Pragma("GCC unroll 2") for (int v = 0; v < WIDE; v++) sum[r][v] = (vec_f32){0};
    for (int64_t e = first; e < end; e++) {
        const float *restrict w = s + d->slot[e] * size;
        const float *restrict x[HIGH];
        _Pragma("GCC unroll 8") for (int r = 0; r < high; r++) x[r] =
            b + r * d->ldb + d->other[e] * d->block_j;
        for (int64_t k = 0; k < d->block_j; k++, w += d->block_i) {
            vec_f32 row[WIDE];
            _Pragma("GCC unroll 2") for (int v = 0; v < WIDE; v++) row[v] =
                load_f32(w + v * F32_LANES);
            _Pragma("GCC unroll 8") for (int r = 0; r < high; r++)
                _Pragma("GCC unroll 2") for (int v = 0; v < WIDE; v++) sum[r][v] +=
                x[r][k] * row[v];
        }
    }
    _Pragma("GCC unroll 8") for (int r = 0; r < high; r++)
        _Pragma("GCC unroll 2") for (int v = 0; v < WIDE; v++)
            store_f32(out + r * STRIP + v * F32_LANES, sum[r][v]);
}

/* The epilogue: rows [n, n + high) and a strip of features from i on. */
static void tile_store(const product *d, const float *restrict sum, int64_t n, int64_t high,
                       int64_t i)
{
    const bsk_dsd_params *p = d->p;
    const float alpha = (float)d->a->alpha, beta = (float)d->a->beta;
    const float *bias = bsk_mem_address(d->a->bias);
    const float *residual = bsk_mem_address(d->a->residual);
    float *c = bsk_mem_address(d->a->c), add[STRIP] = {0};
    for (int64_t k = 0; p->bias.dtype != BSK_NONE && k < STRIP; k++)
        add[k] = bias[(i + k) * p->bias.strides[0]];
    for (int64_t r = 0; r < high; r++)
        for (int64_t v = 0; v < STRIP; v += F32_LANES) {
            float *to = c + (n + r) * d->ldc + i + v;
            vec_f32 x = alpha * load_f32(sum + r * STRIP + v) + load_f32(add + v);
            if (beta != 0)
                x += beta * load_f32(to);
            if (p->act != BSK_ACT_NONE)
                x = act_vector(p->act, x);
            if (p->residual.dtype != BSK_NONE)
                x += load_f32(residual + (n + r) * d->ldr + i + v);
            store_f32(to, x);
        }
}

/* Rows [n, end) and a strip of features of one block row, from feature `at` on. */
static void strip_run(const product *d, int64_t block, int64_t at, int64_t n, int64_t end)
{
    const float *b = bsk_mem_address(d->a->b), *s = d->s + at;
    const int64_t first = d->start[block], last = d->start[block + 1], i = block * d->block_i + at;
    _Alignas(64) float sum[HIGH * STRIP];
    for (; n + HIGH <= end; n += HIGH) {
        tile_sum(d, first, last, b + n * d->ldb, s, sum, HIGH);
        tile_store(d, sum, n, HIGH, i);
    }
    for (; n < end; n++) {
        tile_sum(d, first, last, b + n * d->ldb, s, sum, 1);
        tile_store(d, sum, n, 1, i);
    }
}

/* to[slot][block_j][block_i] = the blocks transposed. */
static void blocks_turn(const product *d, const float *s, float *to, int threads)
{
    const int64_t size = d->block_i * d->block_j;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t slot = 0; slot < d->t->nnz; slot++)
        for (int64_t i = 0; i < d->block_i; i += SQUARE_f32)
            for (int64_t j = 0; j < d->block_j; j += SQUARE_f32)
                transpose_square_f32(to + slot * size + j * d->block_i + i, d->block_i,
                                     s + slot * size + i * d->block_j + j, d->block_j);
}

OMP_LAUNCH(dsd_nc_f32)
{
    const bsk_dsd_args *a = args;
    const int threads = queue_threads(queue);
    product d;
    product_shape(&d, prepared->problem);
    d.a = a;
    d.s = bsk_mem_address(a->s);
    if (!d.p->transpose_s) {
        float *turned = bsk_mem_address(a->workspace);
        blocks_turn(&d, d.s, turned, threads);
        d.s = turned;
    }
    /* Some tasks for each thread, where the rows are not enough. */
    const int64_t parts = bski_ceil_div(d.n, ROWS);
    const int64_t ranges = min_i64(d.grid_i, bski_ceil_div(4 * threads, parts));
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t task = 0; task < parts * ranges; task++) {
        const int64_t n = task / ranges * ROWS, range = task % ranges;
        for (int64_t i = range * d.grid_i / ranges; i < (range + 1) * d.grid_i / ranges; i++)
            for (int64_t at = 0; at < d.block_i; at += STRIP)
                strip_run(&d, i, at, n, min_i64(n + ROWS, d.n));
    }
    return BSK_OK;
}

/* --- sdd --------------------------------------------------------------------------------------- */

/* S = A B, summed over n. Steps of n are packed by blocks of features, as many at a time as stay in the
 * second-level cache, and of these as many are walked at a time as stay in the first-level one; the
 * sums of a few rows of a block stay in registers meanwhile. */
enum { STEPS_LEAST = 64, STEPS_MOST = 512, WALK = 128, PACK = 16 };

/* LONG: steps from which on that is faster: blocks pass through memory once more than in `sdd`, which
 * stores them past the caches where there are instructions for it. FIRST: bytes of both operands that
 * are walked at a time. */
#if defined(BSK_ISA_AVX512)
enum { LONG = 512, FIRST = 128 << 10 };
#else
enum { LONG = WALK, FIRST = 16 << 10 };
#endif

typedef struct weights {
    const bsk_sdd_params *p;
    const bsk_sdd_args *a;
    const bsk_layout_tables *t;
    int64_t n, steps;         /* of one pair; of a chunk */
    int64_t a_panel, b_panel; /* floats of a block's steps */
    float *packed[2], *sum;   /* [block][step][feature of A, of B]; [slot][row][column] */
} weights;

static bool weights_shape(weights *d, const bsk_problem *problem, size_t *bytes)
{
    const bsk_sdd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    int64_t a, b, sum, total;
    *d = (weights){.p = p, .t = t, .n = p->b.dims[0]};
    const int64_t step = (t->rows + t->cols) * (int64_t)sizeof(float);
    d->steps = max_i64(STEPS_LEAST, min_i64(STEPS_MOST, NEAR / step)) / PACK * PACK;
    /* a line apart, so that panels do not meet in one set of a cache */
    d->a_panel = d->steps * t->block_rows + F32_LANES;
    d->b_panel = d->steps * t->block_cols + F32_LANES;
    if (!bski_mul_i64(d->a_panel, t->grid_rows, &a) ||
        !bski_mul_i64(d->b_panel, t->grid_cols, &b) ||
        !bski_mul_i64(t->nnz, (int64_t)t->block_rows * t->block_cols, &sum) ||
        !bski_add_i64(a, b, &total) || !bski_add_i64(total, sum, &total))
        return false;
    return bski_mul_size((size_t)total, sizeof(float), bytes);
}

OMP_DECLARE(sdd_nc_f32);

OMP_ACCEPT(sdd_nc_f32)
{
    const bsk_sdd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    weights d;
    size_t bytes;
    (void)props;
    if (p->s.dtype != BSK_F32)
        return BSK_REFUSE_DTYPE;
    if (p->a.rank != 2 || p->s.rank != 3)
        return BSK_REFUSE_RANK;
    if (p->a.strides[0] != 1 || p->b.strides[1] != 1)
        return BSK_REFUSE_STRIDE;
    if (p->gate.dtype != BSK_NONE || p->dgate.dtype != BSK_NONE || p->bsum.dtype != BSK_NONE)
        return BSK_REFUSE_OPTION;
    if (t->block_rows % HIGH || t->block_cols % STRIP || t->rows % t->block_rows ||
        t->cols % t->block_cols)
        return BSK_REFUSE_BLOCK;
    if (p->b.dims[0] < LONG)
        return BSK_REFUSE_SHAPE;
    return weights_shape(&d, problem, &bytes) ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

OMP_PREPARE(sdd_nc_f32)
{
    weights d;
    (void)device;
    return weights_shape(&d, prepared->problem, &prepared->workspace_bytes) ? BSK_OK
                                                                            : BSK_E_UNSUPPORTED;
}

/* Rows of `side` features of each block, of one step. */
static void step_pack(const float *restrict from, float *restrict to, int64_t features,
                      int64_t side, int64_t panel)
{
    for (int64_t f = 0; f < features; f += side, to += panel)
        for (int64_t i = 0; i < side; i += HIGH)
            memcpy(to + i, from + f + i, HIGH * sizeof *to);
}

/* PACK steps from step k of the chunk that begins at n on. */
static void steps_pack(const weights *d, int64_t pair, int64_t n, int64_t k, int64_t count)
{
    const bsk_layout_tables *t = d->t;
    const float *a = bsk_mem_address(d->a->a[pair]), *b = bsk_mem_address(d->a->b[pair]);
    const int64_t lda = d->p->a.strides[1], ldb = d->p->b.strides[0];
    for (int64_t i = k; i < min_i64(k + PACK, count); i++) {
        step_pack(a + (n + i) * lda, d->packed[0] + i * t->block_rows, t->rows, t->block_rows,
                  d->a_panel);
        step_pack(b + (n + i) * ldb, d->packed[1] + i * t->block_cols, t->cols, t->block_cols,
                  d->b_panel);
    }
}

/* sum[HIGH][STRIP] += a^T b over the steps. */
OMP_INLINE void steps_sum(float *restrict sum, const float *restrict a, int64_t lda,
                          const float *restrict b, int64_t ldb, int64_t steps)
{
    vec_f32 acc[HIGH][WIDE];
    _Pragma("GCC unroll 8") for (int r = 0; r < HIGH; r++)
        _Pragma("GCC unroll 2") for (int v = 0; v < WIDE; v++) acc[r][v] =
            load_f32(sum + r * ldb + v * F32_LANES);
    for (int64_t k = 0; k < steps; k++, a += lda, b += ldb) {
        vec_f32 row[WIDE];
        _Pragma("GCC unroll 2") for (int v = 0; v < WIDE; v++) row[v] = load_f32(b + v * F32_LANES);
        _Pragma("GCC unroll 8") for (int r = 0; r < HIGH; r++)
            _Pragma("GCC unroll 2") for (int v = 0; v < WIDE; v++) acc[r][v] += a[r] * row[v];
    }
    _Pragma("GCC unroll 8") for (int r = 0; r < HIGH; r++)
        _Pragma("GCC unroll 2") for (int v = 0; v < WIDE; v++)
            store_f32(sum + r * ldb + v * F32_LANES, acc[r][v]);
}

/* Adds `count` packed steps to one block. */
static void block_sum(const weights *d, int64_t slot, int64_t count)
{
    const int64_t rows = d->t->block_rows, cols = d->t->block_cols;
    const float *a = d->packed[0] + d->t->slot_row[slot] * d->a_panel;
    const float *b = d->packed[1] + d->t->slot_col[slot] * d->b_panel;
    float *sum = d->sum + slot * rows * cols;
    const int64_t walk = max_i64(PACK, min_i64(WALK, FIRST / ((rows + cols) * (int64_t)sizeof *a)));
    for (int64_t k = 0; k < count; k += walk, a += walk * rows, b += walk * cols)
        for (int64_t r = 0; r < rows; r += HIGH) {
            const int64_t steps = min_i64(walk, count - k);
            for (int64_t c = 0; c < cols; c += STRIP)
                steps_sum(sum + r * cols + c, a + r, rows, b + c, cols, steps);
        }
}

static void block_store(const weights *d, int64_t slot)
{
    const int64_t size = (int64_t)d->t->block_rows * d->t->block_cols;
    const float alpha = (float)d->a->alpha, beta = (float)d->a->beta, *sum = d->sum + slot * size;
    float *s = (float *)bsk_mem_address(d->a->s) + slot * size;
    for (int64_t i = 0; i < size; i++)
        s[i] = beta == 0 ? alpha * sum[i] : alpha * sum[i] + beta * s[i];
}

OMP_LAUNCH(sdd_nc_f32)
{
    weights d;
    size_t bytes;
    weights_shape(&d, prepared->problem, &bytes);
    d.a = args;
    d.packed[0] = bsk_mem_address(d.a->workspace);
    d.packed[1] = d.packed[0] + d.a_panel * d.t->grid_rows;
    d.sum = d.packed[1] + d.b_panel * d.t->grid_cols;
    memset(d.sum, 0, (size_t)(d.t->nnz * d.t->block_rows * d.t->block_cols) * sizeof *d.sum);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        for (int64_t pair = 0; pair < d.p->pairs; pair++)
            for (int64_t n = 0; n < d.n; n += d.steps) {
                const int64_t count = min_i64(d.steps, d.n - n);
#pragma omp for schedule(static)
                for (int64_t k = 0; k < count; k += PACK)
                    steps_pack(&d, pair, n, k, count);
#pragma omp for schedule(static)
                for (int64_t slot = 0; slot < d.t->nnz; slot++)
                    block_sum(&d, slot, count);
            }
#pragma omp for schedule(static)
        for (int64_t slot = 0; slot < d.t->nnz; slot++)
            block_store(&d, slot);
    }
    return BSK_OK;
}
