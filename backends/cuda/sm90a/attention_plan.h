/* What the host sides of attention on Hopper share: pure functions of the host. */
#ifndef BSKI_CUDA_SM90A_ATTENTION_PLAN_H
#define BSKI_CUDA_SM90A_ATTENTION_PLAN_H

#include <backends/cuda/host.h>
#include <backends/cuda/sm90a/attention.h>
#include <backends/cuda/tensor_map.h>
#include <common/checked.h>

/* A kernel of a pass that owns query rows. */
typedef struct attention90_form {
    int32_t step, width, groups, rings, side, bands; /* see ATTENTION_FORMS */
    int32_t team;                                    /* warpgroups with the same rows */
    bsk_dtype dtype;
    size_t shared_bytes;
    const char *name;
    const void *function;
} attention90_form;

/* Rows of a table of forms, for kernels <prefix>_<type>_<suffix>. The address of the symbol that
 * the compiler makes for a kernel stands for it. */
#define ATTENTION90_EXTERN(symbol) extern const char symbol[];
#define ATTENTION90_FORM(type, symbol, step, width, groups, rings, slots, buffers, side, bands)    \
    ATTENTION90_TEAM_FORM(type, symbol, 1, step, width, groups, rings, slots, buffers, side, bands)
#define ATTENTION90_TEAM_FORM(type, symbol, team, step, width, groups, rings, slots, buffers,      \
                              side, bands)                                                         \
    {step,    width, groups,                                                                       \
     rings,   side,  bands,                                                                        \
     team,    type,  ATTENTION_SHARED_BYTES(step, width, groups, rings, slots, buffers),           \
     #symbol, symbol},

/* The narrowest that holds heads of `width`; of such the last, which is one of long steps, if blocks
 * fill them, or
 * one whose warpgroups share keys and values, if blocks have rows for all of them or block rows
 * nearly all blocks in common with their neighbours. NULL: there is none. */
const attention90_form *bski_attention90_form(const attention90_form *forms, size_t count,
                                              bsk_dtype dtype, const bsk_layout_tables *layout,
                                              int64_t width);

/* Warpgroups of a ring that have rows of their own. */
static inline int32_t attention90_readers(const attention90_form *form)
{
    return form->groups / form->rings / form->team;
}

/* Rows of queries that lie together, as one copy brings them. */
int32_t bski_attention90_box(const attention90_form *form);

/* Whether windows are so narrow that tiles of 128 rows or keys, whose halves each multiply 64 lines
 * that only the other sees, lose more by that than they save by reading lines once for both. */
static inline bool attention90_is_narrow(int64_t window, bool causal)
{
    return window > 0 && window <= (causal ? 512 : 256);
}

/* Tiles of all heads are handed out to the rings of all thread blocks: heads in groups, the longest
 * tile first, each to the ring with least to do. */
typedef struct attention90_schedule {
    int32_t heads, tiles; /* of all members of the batch; of a head. Their product fits 32 bits. */
    int32_t together;     /* heads of a group: what they read fits into the L2 cache */
    int32_t rings;        /* of a thread block */
    const int32_t *steps; /* [patterns][tiles] */
    int32_t period, each; /* head h has pattern h % period / each */
    int32_t blocks;       /* of threads: at most so many, and then as many as are needed */
    int32_t *order,
        *start; /* head * tiles + tile by ring; [blocks * rings + 1], where rings begin */
} attention90_schedule;

/* Allocates and fills order and start, which host_drop frees, also after an error. */
bsk_status bski_attention90_schedule(const bsk_host *host, attention90_schedule *s);

/* The tables of a pass that owns query rows, in device memory. */
typedef struct attention90_tables {
    int32_t blocks; /* of threads; 0: nothing to do */
    bsk_mem units, slots, tiles,
        tile_start; /* attention_unit or attention_union, int32_t, attention_tile, int32_t */
} attention90_tables;

/* Fills arg's pointers to the tables; the rest of it says what can be
 * seen, but for lengths. */
bsk_status bski_attention90_tables(simt_device *device, const bsk_layout_tables *layout,
                                   const attention90_form *form, int64_t batch,
                                   attention90_tables *tables, attention_arg *arg);
void bski_attention90_tables_free(simt_device *device, attention90_tables *tables);

/* Whether the tables of such a pass count in 32 bits. */
bool bski_attention90_fits(const bsk_layout_tables *layout, int64_t batch, int64_t heads);

/* One of q, k, v ... as the copy engine sees it: so many times of a run, 64 features at a time. */
static inline bski_cuda_tensor attention90_tensor(const bsk_tensor *t, int32_t times, int32_t runs)
{
    return (bski_cuda_tensor){
        .dtype = t->dtype,
        .rank = 5,
        .dims = {t->dims[3], t->dims[2] / runs, runs, t->dims[1], t->dims[0]},
        .strides = {1, t->strides[2] * runs, t->strides[2], t->strides[1], t->strides[0]},
        .box = {64, times, 1, 1, 1},
        .swizzle = 128,
    };
}

/* Whether runs are whole blocks, and whole tiles of so many rows and keys. Where there is one, it
 * may end anywhere. */
static inline bool attention90_runs_fit(const bsk_layout_tables *t, int32_t runs, int32_t rows,
                                        int32_t keys)
{
    const int64_t q_run = t->rows / runs, k_run = t->cols / runs;
    return runs == 1 || (q_run % t->block_rows == 0 && q_run % rows == 0 &&
                         k_run % t->block_cols == 0 && k_run % keys == 0);
}

/* The same for the tiles of a form. */
bool bski_attention90_runs_fit(const attention90_form *form, const bsk_layout_tables *layout,
                               int32_t runs);

static inline bool attention90_given(const bsk_tensor *t)
{
    return t->dtype != BSK_NONE;
}

/* Whether stores of 8 bytes fit a result. */
bool bski_attention90_out_fits(const bsk_tensor *o);
attention_out bski_attention90_out(const bsk_tensor *o, int32_t runs);
attention_in bski_attention90_in(const bsk_tensor *x, int32_t runs);

/* What products are multiplied with to be powers of two; a number other than 0, as masks are
 * infinities of its sign. */
float bski_attention90_scale(double scale, int64_t width);

/* The factor with which dS is made: the scale itself, as large gradients of shares are beyond f16
 * unless a small scale is in them, or 1. rest: what is missing of the scale then. */
double bski_attention90_slope(double scale, int64_t width, double *rest);

/* The members of attention_arg that the parameters of both ops and a layout give. */
#define ATTENTION90_ARG(p, layout)                                                                 \
    .q = bski_attention90_in(&(p)->q, (p)->interleave),                                            \
    .k = bski_attention90_in(&(p)->k, (p)->interleave),                                            \
    .v = bski_attention90_in(&(p)->v, (p)->interleave), .masks = (p)->bits.dims[0],                \
    .heads = (int32_t)(p)->q.dims[1], .group = (int32_t)((p)->q.dims[1] / (p)->k.dims[1]),         \
    .q_time = (int32_t)((p)->q.dims[2] / (p)->interleave),                                         \
    .k_time = (int32_t)((p)->k.dims[2] / (p)->interleave), .runs = (p)->interleave,                \
    .block_rows = (layout)->block_rows, .block_cols = (layout)->block_cols,                        \
    .causal = (p)->causal != 0, .align_end = (p)->align == BSK_ALIGN_END,                          \
    .window =                                                                                      \
        (p)->window < ATTENTION_FAR ? (int32_t)bski_ceil_div((p)->window, (p)->interleave) : 0

/* No two times are so far apart. */
#define ATTENTION_FAR (INT64_C(1) << 30)

/* The options that both ops may have. Runs all have the times that their lines stand for, and begin
 * together. */
#define ATTENTION90_RUNS(p)                                                                        \
    ((p)->interleave == 1 ||                                                                       \
     (!attention90_given(&(p)->q_len) && !attention90_given(&(p)->k_len) &&                        \
      (p)->q.dims[2] % (p)->interleave == 0 && (p)->k.dims[2] % (p)->interleave == 0 &&            \
      ((p)->align != BSK_ALIGN_END || (p)->q.dims[2] == (p)->k.dims[2])))
#define ATTENTION90_TAKES(p)                                                                       \
    (ATTENTION90_RUNS(p) && !(p)->dropout && (p)->softcap == 0 &&                                  \
     !attention90_given(&(p)->bias) && !attention90_given(&(p)->slopes) &&                         \
     !attention90_given(&(p)->prefix) && !attention90_given(&(p)->k_segment))

/* What a run gives: addresses, and the scale. */
#define ATTENTION90_ADDRESS(p, a, name)                                                            \
    (attention90_given(&(p)->name) ? bsk_mem_address((a)->name) : NULL)
#define ATTENTION90_SET_RUN(arg, p, a)                                                             \
    do {                                                                                           \
        (arg)->q.data = bsk_mem_address((a)->q);                                                   \
        (arg)->k.data = bsk_mem_address((a)->k);                                                   \
        (arg)->v.data = bsk_mem_address((a)->v);                                                   \
        (arg)->q_len = ATTENTION90_ADDRESS(p, a, q_len);                                           \
        (arg)->k_len = ATTENTION90_ADDRESS(p, a, k_len);                                           \
        (arg)->bits = ATTENTION90_ADDRESS(p, a, bits);                                             \
        (arg)->bits_index = ATTENTION90_ADDRESS(p, a, bits_index);                                 \
        (arg)->scale = bski_attention90_scale((a)->scale, (p)->q.dims[3]);                         \
    } while (0)

#endif
