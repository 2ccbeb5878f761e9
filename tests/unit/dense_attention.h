/* Attention from its definition, over all pairs of a query and a key, and the library's attention
 * on the same tensors. Heads lie inside rows: [batch][time][heads * d]. */
#ifndef DENSE_ATTENTION_H
#define DENSE_ATTENTION_H

#include <math.h>
#include <stdbool.h>

#include "common/dtype.h"
#include "unit.h"

/* Whether query i of a head sees key j. */
typedef bool (*dense_visible)(const void *about, int32_t head, int64_t i, int64_t j);

typedef struct dense {
    int64_t batch, heads, time, d;
    dense_visible visible;
    const void *about;
    double *q, *k, *v, *dout;
    double *o, *dq, *dk, *dv;
} dense;

static inline void *dense_memory(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);
    if (!memory)
        abort();
    return memory;
}

static inline int64_t dense_count(const dense *p)
{
    return p->batch * p->time * p->heads * p->d;
}

static inline double dense_round(bsk_dtype dtype, double x)
{
    unsigned char bytes[8];
    bski_store(dtype, bytes, 0, x);
    return bski_load(dtype, bytes, 0);
}

/* Uniform in [-1, 1), rounded to a type. */
static inline void dense_fill(double *to, int64_t count, bsk_dtype dtype, uint64_t *state)
{
    for (int64_t i = 0; i < count; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        to[i] = dense_round(dtype, (double)(*state >> 11) * 0x1p-52 - 1);
    }
}

/* A problem with random inputs of a type. */
static inline dense dense_make(int64_t batch, int64_t heads, int64_t time, int64_t d,
                               bsk_dtype dtype, uint64_t seed)
{
    dense p = {.batch = batch, .heads = heads, .time = time, .d = d};
    double **const in[] = {&p.q, &p.k, &p.v, &p.dout}, **const out[] = {&p.o, &p.dq, &p.dk, &p.dv};
    for (size_t i = 0; i < UNIT_COUNT(in); i++) {
        *in[i] = dense_memory(dense_count(&p), sizeof(double));
        *out[i] = dense_memory(dense_count(&p), sizeof(double));
        dense_fill(*in[i], dense_count(&p), dtype, &seed);
    }
    return p;
}

static inline void dense_free(dense *p)
{
    double *const all[] = {p->q, p->k, p->v, p->dout, p->o, p->dq, p->dk, p->dv};
    for (size_t i = 0; i < UNIT_COUNT(all); i++)
        free(all[i]);
}

/* --- The definition --- */

/* sum + x * y: in f64, or for other types in f32. */
static inline double dense_add(bsk_dtype dtype, double sum, double x, double y)
{
    if (dtype == BSK_F64)
        return sum + x * y;
    const float product = (float)x * (float)y;
    return (float)sum + product;
}

static inline double dense_dot(const dense *p, bsk_dtype dtype, const double *x, const double *y)
{
    double sum = 0;
    for (int64_t f = 0; f < p->d; f++)
        sum = dense_add(dtype, sum, x[f], y[f]);
    return sum;
}

static inline void dense_axpy(const dense *p, bsk_dtype dtype, double a, const double *x, double *y)
{
    for (int64_t f = 0; f < p->d; f++)
        y[f] = dense_add(dtype, y[f], a, x[f]);
}

/* Probabilities of query i, stored in the type. */
static inline void dense_row(const dense *p, bsk_dtype dtype, int32_t head, int64_t i,
                             const double *q, const double *k, double *share)
{
    const int64_t step = p->heads * p->d;
    const double scale = 1 / sqrt((double)p->d);
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < p->time; j++) {
        share[j] = -INFINITY;
        if (p->visible(p->about, head, i, j))
            share[j] = dense_round(dtype, dense_dot(p, dtype, q, k + j * step) * scale);
        max = fmax(max, share[j]);
    }
    for (int64_t j = 0; j < p->time; j++) {
        share[j] = share[j] == -INFINITY ? 0 : exp(share[j] - max);
        if (dtype != BSK_F64)
            share[j] = (float)share[j];
        sum = dense_add(dtype, sum, share[j], 1);
    }
    for (int64_t j = 0; j < p->time; j++)
        share[j] = dense_round(dtype, share[j] / sum);
}

/* One head of one member: forward, and backward if dout counts. Everything that a dense run stores
 * between its products is rounded to the type. */
static inline void dense_head(dense *p, bsk_dtype dtype, int32_t head, int64_t at, bool backward,
                              double *share, double *ds)
{
    const int64_t step = p->heads * p->d;
    const double scale = 1 / sqrt((double)p->d);
    for (int64_t i = 0; i < p->time; i++) {
        const int64_t row = at + i * step;
        double sum = 0;
        dense_row(p, dtype, head, i, p->q + row, p->k + at, share);
        for (int64_t j = 0; j < p->time; j++)
            dense_axpy(p, dtype, share[j], p->v + at + j * step, p->o + row);
        if (!backward)
            continue;
        for (int64_t j = 0; j < p->time; j++) {
            ds[j] = dense_round(dtype, dense_dot(p, dtype, p->dout + row, p->v + at + j * step));
            sum = dense_add(dtype, sum, ds[j], share[j]);
        }
        for (int64_t j = 0; j < p->time; j++) {
            ds[j] = dense_round(dtype, share[j] * (ds[j] - sum) * scale);
            dense_axpy(p, dtype, ds[j], p->k + at + j * step, p->dq + row);
            dense_axpy(p, dtype, ds[j], p->q + row, p->dk + at + j * step);
            dense_axpy(p, dtype, share[j], p->dout + row, p->dv + at + j * step);
        }
    }
}

/* Computes o, and dq, dk and dv, as a dense run whose tensors have that type does. */
static inline void dense_run(dense *p, bsk_dtype dtype, bool backward)
{
    double *share = dense_memory(2 * p->time, sizeof(double));
    double *const out[] = {p->o, p->dq, p->dk, p->dv};
    const int64_t count = dense_count(p);
    for (size_t t = 0; t < UNIT_COUNT(out); t++)
        memset(out[t], 0, (size_t)count * sizeof(double));
    for (int64_t b = 0; b < p->batch; b++)
        for (int32_t h = 0; h < p->heads; h++)
            dense_head(p, dtype, h, b * p->time * p->heads * p->d + h * p->d, backward, share,
                       share + p->time);
    for (size_t t = 0; t < UNIT_COUNT(out); t++)
        for (int64_t e = 0; e < count; e++)
            out[t][e] = dense_round(dtype, out[t][e]);
    free(share);
}

/* --- The library --- */

/* How the library is to see it. */
typedef struct sparse_rules {
    const bsk_layout *layout;
    int32_t interleave, causal;
    int64_t window;
    int32_t *bits_index; /* with bits instead of causal and window */
    uint8_t *bits;
    int64_t masks;
    const char *kernels; /* as in bsk_plan_options */
} sparse_rules;

typedef struct sparse_machine {
    bsk_context *context;
    const bsk_device *device;
    bsk_queue *queue;
} sparse_machine;

static inline sparse_machine sparse_open(void)
{
    sparse_machine m = {NULL, NULL, NULL};
    const bsk_context_params params = unit_params();
    CHECK_OK(bsk_context_create(&params, &m.context));
    CHECK_OK(bsk_context_find_device(m.context, "cpu:0", &m.device));
    CHECK_OK(bsk_queue_create(m.device, &m.queue));
    return m;
}

static inline void sparse_close(sparse_machine *m)
{
    bsk_queue_destroy(&m->queue);
    bsk_context_destroy(&m->context);
}

/* Memory of a type for numbers. */
static inline void *sparse_store(bsk_dtype dtype, const double *from, int64_t count)
{
    void *to = dense_memory(count, bsk_dtype_size(dtype));
    for (int64_t i = 0; from && i < count; i++)
        bski_store(dtype, to, i, from[i]);
    return to;
}

static inline void sparse_load(bsk_dtype dtype, void *from, double *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = bski_load(dtype, from, i);
    free(from);
}

static inline void sparse_workspace(const sparse_machine *m, const bsk_plan *plan,
                                    bsk_mem *workspace)
{
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    CHECK_OK(bsk_plan_query(plan, &info));
    if (info.workspace_bytes)
        CHECK_OK(bsk_mem_alloc(m->device, info.workspace_bytes, workspace));
}

#define SPARSE_PLAN_RUN(op, m, rules, params, args)                                                \
    do {                                                                                           \
        bsk_plan_options options_ = BSK_INIT(bsk_plan_options);                                    \
        bsk_plan *plan_ = NULL;                                                                    \
        options_.kernels = (rules)->kernels;                                                       \
        if (!CHECK_OK(bsk_##op##_plan((m)->device, (params), &options_, &plan_)))                  \
            break;                                                                                 \
        sparse_workspace((m), plan_, &(args)->workspace);                                          \
        CHECK_OK(bsk_##op##_run(plan_, (m)->queue, (args)));                                       \
        CHECK_OK(bsk_queue_sync((m)->queue));                                                      \
        bsk_plan_destroy(&plan_);                                                                  \
        if ((args)->workspace.kind)                                                                \
            bsk_mem_free((m)->device, &(args)->workspace);                                         \
    } while (0)

/* Masks of any op's params and args. */
#define SPARSE_MASKS(r, p, a)                                                                      \
    do {                                                                                           \
        bsk_layout_info info_ = BSK_INIT(bsk_layout_info);                                         \
        CHECK_OK(bsk_layout_query((r)->layout, &info_));                                           \
        (p)->layout = (r)->layout;                                                                 \
        (p)->interleave = (r)->interleave;                                                         \
        (p)->causal = (r)->causal;                                                                 \
        (p)->window = (r)->window;                                                                 \
        if (!(r)->bits_index || !(r)->masks)                                                       \
            break;                                                                                 \
        (p)->bits =                                                                                \
            bsk_tensor_3d(BSK_U8, (r)->masks, info_.block_rows, (info_.block_cols + 7) / 8);       \
        (p)->bits_index = bsk_tensor_1d(BSK_I32, info_.nnz);                                       \
        (a)->bits = bsk_host_ptr((r)->bits);                                                       \
        (a)->bits_index = bsk_host_ptr((r)->bits_index);                                           \
    } while (0)

/* o, dq, dk and dv by attention and attention_grad. */
static inline void sparse_fused(const sparse_machine *m, const sparse_rules *r, dense *x,
                                bsk_dtype dtype, bool backward)
{
    const int64_t count = dense_count(x);
    bsk_attention_params p = BSK_INIT(bsk_attention_params);
    bsk_attention_args a = BSK_INIT(bsk_attention_args);
    bsk_attention_grad_params gp = BSK_INIT(bsk_attention_grad_params);
    bsk_attention_grad_args ga = BSK_INIT_ALPHA(bsk_attention_grad_args);
    void *q = sparse_store(dtype, x->q, count), *k = sparse_store(dtype, x->k, count);
    void *v = sparse_store(dtype, x->v, count), *dout = sparse_store(dtype, x->dout, count);
    void *o = sparse_store(dtype, NULL, count), *dq = sparse_store(dtype, NULL, count);
    void *dk = sparse_store(dtype, NULL, count), *dv = sparse_store(dtype, NULL, count);
    float *lse = dense_memory(x->batch * x->heads * x->time, sizeof(float));
    SPARSE_MASKS(r, &p, &a);
    SPARSE_MASKS(r, &gp, &ga);
    p.q = p.k = p.v = p.o = bsk_tensor_heads(dtype, x->batch, x->heads, x->time, x->d);
    gp.q = gp.k = gp.v = gp.o = gp.dout = gp.dq = gp.dk = gp.dv = p.q;
    p.lse = gp.lse = bsk_tensor_3d(BSK_F32, x->batch, x->heads, x->time);
    a.q = ga.q = bsk_host_ptr(q);
    a.k = ga.k = bsk_host_ptr(k);
    a.v = ga.v = bsk_host_ptr(v);
    a.o = ga.o = bsk_host_ptr(o);
    a.lse = ga.lse = bsk_host_ptr(lse);
    ga.dout = bsk_host_ptr(dout);
    ga.dq = bsk_host_ptr(dq);
    ga.dk = bsk_host_ptr(dk);
    ga.dv = bsk_host_ptr(dv);
    SPARSE_PLAN_RUN(attention, m, r, &p, &a);
    if (backward)
        SPARSE_PLAN_RUN(attention_grad, m, r, &gp, &ga);
    sparse_load(dtype, o, x->o, count);
    sparse_load(dtype, dq, x->dq, count);
    sparse_load(dtype, dk, x->dk, count);
    sparse_load(dtype, dv, x->dv, count);
    free(q), free(k), free(v), free(dout), free(lse);
}

/* The largest difference of two arrays. */
static inline double dense_error(const double *a, const double *b, int64_t count)
{
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        const double error = fabs(a[i] - b[i]);
        worst = error > worst || isnan(error) ? error : worst;
        if (isnan(error))
            break;
    }
    return worst;
}

#endif
