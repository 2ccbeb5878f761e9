/* What the host sides of the products share. */
#ifndef BSKI_SIMT_PRODUCTS_HOST_H
#define BSKI_SIMT_PRODUCTS_HOST_H

#include <stdbool.h>
#include <stdio.h>

#include <backends/simt/plan.h>
#include <common/checked.h>
#include <common/dtype.h>

typedef int64_t i64;
typedef int32_t i32;
#include <backends/simt/products_arg.h>

/* What one group computes, as in the kernels: lanes, and tiles of rows x columns. */
enum {
    LANES = 128,
    WIDE_ROWS = 32,
    DSD_WIDE_COLS = 64,
    DSD_WIDE_PANEL = 32,
    WIDE_PANELS = 512 << 10, /* bytes of panels that stay in a processor's cache */
    SPREAD_TILE = 32,
    SUM_COLS = 32,
    NORM_ROWS = 32,
    PRODUCT_ROWS = 8,
    PRODUCT_COLS = 16
};
/* dsd for few columns: the most of them, rows of a tile (half as many of up to 8 columns), groups of a
 * compute unit for which lists are cut, and the least terms of a part. */
enum { FEW_COLS = 64, FEW_ROWS = 32, FEW_UNIT_GROUPS = 4, FEW_TERMS = 512 };
/* sdd for few samples: rows of a patch, patches that are neighbours along rows, the most patches of a
 * block, and bytes of B that stay in a compute unit's cache. */
enum { PATCH_ROWS = 8, PATCH_ACROSS = 8, MAX_PATCHES = 1 << 15, PATCH_PANELS = 96 << 10 };
/* What the tiled kernels need, and the largest grid that every device takes: some count lanes in 32
 * bits. */
enum { LOCAL_BYTES = 32 << 10, MAX_GROUPS = UINT32_MAX / LANES };
/* Sums in parts, for enough groups: groups of each compute unit, parts, terms of a part. */
enum { UNIT_GROUPS = 32, MAX_SPLITS = 64, DENSE_SPLITS = 1024, MIN_TERMS = 256 };
enum { FINISH_WAYS = 16 }; /* lanes that share an element's parts */

#define ENTRY(op)                                                                                  \
    bsk_reason simt_##op##_accept(const bsk_problem *problem, const bsk_device_props *props);      \
    bsk_status simt_##op##_prepare(void *device, bsk_prepared *prepared);                          \
    bsk_status simt_##op##_launch(const bsk_prepared *prepared, void *queue, const void *args);    \
    void simt_##op##_release(void *device, bsk_prepared *prepared);

static inline size_t real_bytes(bsk_dtype dtype)
{
    return dtype == BSK_F64 ? sizeof(double) : sizeof(float);
}

/* A scalar in the form of NUM. */
static inline i64 real_bits(bsk_dtype dtype, double v)
{
    i64 bits = 0;
    float f = (float)v;
    if (dtype == BSK_F64)
        memcpy(&bits, &v, sizeof v);
    else
        memcpy(&bits, &f, sizeof f);
    return bits;
}

static inline i64 clamp(i64 v, i64 low, i64 high)
{
    return v < low ? low : v > high ? high : v;
}

/* The product of three counts, if every device takes such a grid. */
static inline bool grid_size(i64 a, i64 b, i64 c, i64 *groups)
{
    i64 n;
    if (!bski_mul_i64(a, b, &n) || !bski_mul_i64(n, c, &n) || n > MAX_GROUPS)
        return false;
    *groups = n;
    return true;
}

/* Bytes of `count` members of rows x cols numbers, as a multiple of a cache line. */
static inline bool plane_size(i64 count, i64 rows, i64 cols, bsk_dtype dtype, size_t *bytes)
{
    i64 n;
    if (!bski_mul_i64(count, rows, &n) || !bski_mul_i64(n, cols, &n) ||
        !bski_mul_i64(n, (i64)real_bytes(dtype), &n) || !bski_add_i64(n, 63, &n))
        return false;
    *bytes = (size_t)(n / 64 * 64);
    return true;
}

static inline i64 batch_count(const bsk_tensor *t)
{
    return t->rank == 3 ? t->dims[0] : 1;
}

/* One batch member of a matrix: its stride, 0 where there is one. */
static inline i64 batch_stride(const bsk_tensor *t, int32_t plain_rank)
{
    return t->rank > plain_rank && t->dims[0] > 1 ? t->strides[0] : 0;
}

static inline bool device_fits(const bsk_device_props *props)
{
    return props->max_group >= LANES && props->local_bytes >= LOCAL_BYTES;
}

static inline bool dtype_runs(const bsk_device_props *props, bsk_dtype dtype)
{
    return dtype == BSK_NONE || props->dtypes & BSK_DTYPE_BIT(dtype);
}

static inline bsk_status limit_fail(const simt_device *d, const char *op)
{
    return d->host->fail(d->host->context, BSK_E_UNSUPPORTED,
                         "%s: the problem needs more groups or workspace than can be counted", op);
}

static inline i64 tile_lanes(const simt_device *d)
{
    return d->wide ? 1 : LANES;
}

static inline bsk_status launch(simt_queue *queue, const simt_kernel *kernel, i64 groups, i64 lanes,
                                const bsk_mem *buffers, i32 count, const void *scalars,
                                size_t bytes)
{
    const simt_launch l = {.groups = {groups, 1, 1},
                           .group_size = (i32)lanes,
                           .buffer_count = count,
                           .buffers = buffers,
                           .scalars = scalars,
                           .scalar_bytes = bytes};
    return queue->device->api->launch(queue, kernel, &l);
}

#define LAUNCH(queue, kernel, groups, lanes, buffers, arg)                                         \
    launch(queue, kernel, groups, lanes, buffers, (i32)(sizeof buffers / sizeof *buffers), &(arg), \
           sizeof(arg))

/* Kernel `op` of a file in its form for tiles of tm rows, or in the wide form. */
static inline bsk_status tile_kernel(simt_device *d, const char *file, const char *op, i32 tm,
                                     bsk_dtype dtype, const simt_kernel **kernel)
{
    char name[32], variant[24] = "-DWIDE=1";
    if (d->wide) {
        snprintf(name, sizeof name, "%s_wide", op);
        dtype = simt_single(dtype);
    } else {
        dtype = simt_half(dtype);
        snprintf(name, sizeof name, "%s_%d", op, (int)tm);
        snprintf(variant, sizeof variant, "-DTM=%d", (int)tm);
    }
    return d->api->kernel(d, file, name, dtype, variant, kernel);
}

static inline bsk_status small_kernel(simt_device *d, const char *file, const char *name,
                                      bsk_dtype dtype, const simt_kernel **kernel)
{
    return d->api->kernel(d, file, name, simt_single(dtype), "", kernel);
}

/* The smallest tile that holds a block, or the largest tile. */
static inline i32 tile_of(i32 block, i32 most)
{
    i32 tile = 8;
    while (tile < block && tile < most)
        tile *= 2;
    return tile;
}

/* How many parts a sum of `terms` is cut into when there are `groups` of them. Only few are cut, so
 * that no cut makes a grid too large. */
static inline i32 split_count(const bsk_device_props *props, i64 groups, i64 terms, i64 most)
{
    const i64 units = props->compute_units > 0 ? props->compute_units : 1;
    const i64 resident = simt_props_wide(props) ? 2 : UNIT_GROUPS;
    const i64 wanted = bski_ceil_div(units * resident, groups > 0 ? groups : 1);
    return (i32)clamp(wanted, 1, clamp(terms / MIN_TERMS, 1, most));
}

/* The end of such sums: of [splits][rows][cols], to a matrix of the type of the arithmetic. */
static inline finish_arg finish_of(bsk_dtype dtype, i64 rows, i64 cols, i64 row_stride, i32 splits)
{
    finish_arg f = {.rows = rows,
                    .cols = cols,
                    .row_stride = row_stride,
                    .col_stride = 1,
                    .splits = splits,
                    .ways = 1,
                    .type = dtype == BSK_F64 ? BSK_F64 : BSK_F32};
    while (f.ways < splits && f.ways < FINISH_WAYS)
        f.ways *= 2;
    return f;
}

static inline bool finish_groups(const finish_arg *f, i64 *groups)
{
    i64 size;
    return bski_mul_i64(f->rows, f->cols, &size) &&
           grid_size(bski_ceil_div(size, LANES / f->ways), 1, 1, groups);
}

static inline bsk_status finish_launch(simt_queue *q, const simt_kernel *kernel,
                                       const finish_arg *f, bsk_dtype dtype, double alpha,
                                       double beta, bsk_mem parts, bsk_mem out)
{
    const bsk_mem buffers[] = {parts, out};
    finish_arg arg = *f;
    i64 groups = 0;
    arg.alpha = real_bits(dtype, alpha);
    arg.beta = real_bits(dtype, beta);
    finish_groups(f, &groups); /* fits, as the plan found */
    return LAUNCH(q, kernel, groups, LANES, buffers, arg);
}

#endif
