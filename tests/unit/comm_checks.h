/* All collectives over a real transport, beside results that each rank computes alone: what every
 * rank's tensors hold is a function of the rank. Numbers are small integers, so that sums are exact in
 * every type, unless a check is about rounding. */
#ifndef COMM_CHECKS_H
#define COMM_CHECKS_H

#include <stdint.h>

#include "unit.h"

enum { COMM_TENSORS = 7, COMM_GUARD = 16 };

typedef struct comm_ranks {
    const bsk_device *device;
    bsk_queue *queue;
    bsk_comm *comm;
    int rank, size;
    int widened; /* f16 and bf16 are added in f32 */
} comm_ranks;

static inline int64_t comm_value(int rank, int tensor, int64_t i)
{
    return (rank * 5 + tensor * 3 + i * 7) % 13;
}

/* Numbers as integers of their type's bits: those that are used are exact in all of them. */
static inline void comm_store(bsk_dtype dtype, void *to, int64_t i, double v)
{
    const float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    switch (dtype) {
    case BSK_F64:
        ((double *)to)[i] = v;
        return;
    case BSK_F32:
        ((float *)to)[i] = f;
        return;
    case BSK_BF16:
        ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
        return;
    case BSK_F16: /* normal numbers and 0 */
        ((uint16_t *)to)[i] =
            v == 0 ? 0
                   : (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) |
                                (bits >> 13 & 1023));
        return;
    case BSK_I64:
        ((int64_t *)to)[i] = (int64_t)v;
        return;
    case BSK_I32:
        ((int32_t *)to)[i] = (int32_t)v;
        return;
    default:
        ((uint8_t *)to)[i] = (uint8_t)(int)v;
        return;
    }
}

/* Memory of the device with bytes behind it that nobody may write. */
static inline bsk_mem comm_upload(const comm_ranks *r, const void *data, size_t bytes)
{
    char *all = malloc(bytes + COMM_GUARD);
    bsk_mem mem;
    CHECK_OK(bsk_mem_alloc(r->device, bytes + COMM_GUARD, &mem));
    memset(all, 0x5a, bytes + COMM_GUARD);
    if (data && bytes)
        memcpy(all, data, bytes);
    CHECK_OK(bsk_mem_upload(r->queue, mem, all, bytes + COMM_GUARD));
    CHECK_OK(bsk_queue_sync(r->queue));
    free(all);
    return mem;
}

static inline int comm_holds(const comm_ranks *r, bsk_mem mem, const void *want, size_t bytes)
{
    char *all = malloc(bytes + COMM_GUARD);
    int good = 1;
    CHECK_OK(bsk_mem_download(r->queue, all, mem, bytes + COMM_GUARD));
    CHECK_OK(bsk_queue_sync(r->queue));
    if (bytes)
        good = !memcmp(all, want, bytes);
    for (int i = 0; i < COMM_GUARD; i++)
        good &= all[bytes + (size_t)i] == 0x5a;
    free(all);
    return good;
}

static inline bsk_mem comm_workspace(const comm_ranks *r, const bsk_comm_plan *plan)
{
    bsk_comm_plan_info info = BSK_INIT(bsk_comm_plan_info);
    bsk_mem mem = {BSK_MEM_NULL, NULL, 0, 0};
    CHECK_OK(bsk_comm_plan_query(plan, &info));
    if (info.workspace_bytes)
        CHECK_OK(bsk_mem_alloc(r->device, info.workspace_bytes, &mem));
    return mem;
}

/* Rank's values of a tensor, or the sum of all ranks'. */
static inline void comm_fill(const comm_ranks *r, bsk_dtype dtype, int rank, int tensor,
                             int64_t first, int64_t count, void *to)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t v = 0;
        for (int k = 0; k < r->size; k++)
            if (rank < 0 || k == rank)
                v += comm_value(k, tensor, first + i);
        comm_store(dtype, to, i, (double)v);
    }
}

typedef struct comm_op {
    bsk_status (*plan)(bsk_comm *, const bsk_collective_params *, bsk_comm_plan **);
    bsk_status (*run)(const bsk_comm_plan *, bsk_queue *, const bsk_collective_args *);
    int in, out; /* 1: a part for each rank */
} comm_op;

static const comm_op comm_ops[] = {
    {bsk_all_reduce_plan, bsk_all_reduce_run, 0, 0},
    {bsk_reduce_scatter_plan, bsk_reduce_scatter_run, 1, 0},
    {bsk_all_gather_plan, bsk_all_gather_run, 0, 1},
};

/* One tensor of rows x 3, apart or in place. */
static inline void comm_check_pair(const comm_ranks *r, int kind, bsk_dtype dtype, int64_t rows,
                                   int in_place)
{
    const comm_op *op = &comm_ops[kind];
    const int64_t n = rows * 3, own = n * r->rank;
    const size_t size = bsk_dtype_size(dtype), part = (size_t)n * size;
    const size_t x_bytes = part * (op->in ? (size_t)r->size : 1);
    const size_t y_bytes = part * (op->out ? (size_t)r->size : 1);
    char *x = calloc(1, x_bytes + 1), *y = calloc(1, y_bytes + 1);
    comm_fill(r, dtype, r->rank, kind, 0, op->in ? n * r->size : n, x);
    if (op->out) {
        for (int k = 0; k < r->size; k++)
            comm_fill(r, dtype, k, kind, 0, n, y + part * (size_t)k);
    } else {
        comm_fill(r, dtype, -1, kind, op->in ? own : 0, n, y);
    }

    bsk_collective_params p = BSK_INIT(bsk_collective_params);
    bsk_collective_args a = BSK_INIT(bsk_collective_args);
    bsk_comm_plan *plan = NULL;
    p.x = bsk_tensor_2d(dtype, op->in ? rows * r->size : rows, 3);
    p.y = bsk_tensor_2d(dtype, op->out ? rows * r->size : rows, 3);
    CHECK_OK(op->plan(r->comm, &p, &plan));
    a.workspace = comm_workspace(r, plan);
    bsk_mem x_mem = {BSK_MEM_NULL, NULL, 0, 0}, y_mem = x_mem;
    if (op->out && in_place) {
        char *whole = malloc(y_bytes + 1);
        memset(whole, 0x33, y_bytes + 1);
        memcpy(whole + part * (size_t)r->rank, x, part);
        a.y = y_mem = comm_upload(r, whole, y_bytes);
        a.x = bsk_mem_at(a.y, part * (size_t)r->rank);
        free(whole);
    } else {
        a.x = x_mem = comm_upload(r, x, x_bytes);
        if (in_place)
            a.y = op->in ? bsk_mem_at(a.x, part * (size_t)r->rank) : a.x;
        else
            a.y = y_mem = comm_upload(r, NULL, y_bytes);
    }
    CHECK_OK(op->run(plan, r->queue, &a));
    if (in_place && !op->out) {
        memcpy(x + (op->in ? part * (size_t)r->rank : 0), y, y_bytes);
        /* the other parts of a scattered x are as they were */
        CHECK(comm_holds(r, x_mem, x, x_bytes));
    } else {
        CHECK(comm_holds(r, y_mem, y, y_bytes));
        if (!in_place)
            CHECK(comm_holds(r, x_mem, x, x_bytes));
    }
    bsk_mem_free(r->device, &x_mem);
    bsk_mem_free(r->device, &y_mem);
    bsk_mem_free(r->device, &a.workspace);
    bsk_comm_plan_destroy(&plan);
    free(x);
    free(y);
}

/* A list of mixed types and sizes, empty ones too, in buckets of so many bytes; root < 0: their sums,
 * with floats in type wire on the way; else those of root. */
static inline void comm_check_list(const comm_ranks *r, bsk_dtype wire, int64_t bucket_bytes,
                                   int root)
{
    static const struct {
        bsk_dtype dtype;
        int64_t count;
    } rows[COMM_TENSORS] = {{BSK_F32, 5}, {BSK_F16, 7},    {BSK_I32, 33},  {BSK_F32, 0},
                            {BSK_F64, 1}, {BSK_BF16, 129}, {BSK_F32, 1000}};
    bsk_tensor tensors[COMM_TENSORS];
    bsk_mem mems[COMM_TENSORS];
    bsk_tensor_list_args a = BSK_INIT(bsk_tensor_list_args);
    bsk_comm_plan *plan = NULL;
    double data[1000];
    for (int i = 0; i < COMM_TENSORS; i++) {
        tensors[i] = bsk_tensor_1d(rows[i].dtype, rows[i].count);
        comm_fill(r, rows[i].dtype, r->rank, i, 0, rows[i].count, data);
        mems[i] = comm_upload(r, data, (size_t)rows[i].count * bsk_dtype_size(rows[i].dtype));
    }
    a.tensors = mems;
    if (root < 0) {
        bsk_group_all_reduce_params p = BSK_INIT(bsk_group_all_reduce_params);
        p.count = COMM_TENSORS;
        p.tensors = tensors;
        p.wire = wire;
        p.bucket_bytes = bucket_bytes;
        CHECK_OK(bsk_group_all_reduce_plan(r->comm, &p, &plan));
        a.workspace = comm_workspace(r, plan);
        CHECK_OK(bsk_group_all_reduce_run(plan, r->queue, &a));
    } else {
        bsk_broadcast_params p = BSK_INIT(bsk_broadcast_params);
        p.count = COMM_TENSORS;
        p.tensors = tensors;
        p.root = root;
        CHECK_OK(bsk_broadcast_plan(r->comm, &p, &plan));
        CHECK_OK(bsk_broadcast_run(plan, r->queue, &a));
    }
    for (int i = 0; i < COMM_TENSORS; i++) {
        comm_fill(r, rows[i].dtype, root, i, 0, rows[i].count, data);
        CHECK(comm_holds(r, mems[i], data, (size_t)rows[i].count * bsk_dtype_size(rows[i].dtype)));
        bsk_mem_free(r->device, &mems[i]);
    }
    bsk_mem_free(r->device, &a.workspace);
    bsk_comm_plan_destroy(&plan);
}

/* One element that is `first` in rank 0 and `other` in the rest, added by a list of it and another. */
static inline void comm_check_rounding(const comm_ranks *r, bsk_dtype dtype, bsk_dtype wire,
                                       double first, double other, double want)
{
    const bsk_tensor tensors[2] = {bsk_tensor_1d(dtype, 1), bsk_tensor_1d(dtype, 1)};
    bsk_group_all_reduce_params p = BSK_INIT(bsk_group_all_reduce_params);
    bsk_tensor_list_args a = BSK_INIT(bsk_tensor_list_args);
    bsk_comm_plan *plan = NULL;
    bsk_mem mems[2];
    double value, expected;
    comm_store(dtype, &value, 0, r->rank ? other : first);
    comm_store(dtype, &expected, 0, want);
    for (int i = 0; i < 2; i++)
        mems[i] = comm_upload(r, &value, bsk_dtype_size(dtype));
    p.count = 2;
    p.wire = wire;
    p.tensors = tensors;
    a.tensors = mems;
    CHECK_OK(bsk_group_all_reduce_plan(r->comm, &p, &plan));
    a.workspace = comm_workspace(r, plan);
    CHECK_OK(bsk_group_all_reduce_run(plan, r->queue, &a));
    for (int i = 0; i < 2; i++) {
        CHECK(comm_holds(r, mems[i], &expected, bsk_dtype_size(dtype)));
        bsk_mem_free(r->device, &mems[i]);
    }
    bsk_mem_free(r->device, &a.workspace);
    bsk_comm_plan_destroy(&plan);
}

static inline void comm_check_all(const comm_ranks *r)
{
    static const bsk_dtype sums[] = {BSK_F64, BSK_F32, BSK_F16, BSK_BF16,
                                     BSK_I64, BSK_I32, BSK_U8,  BSK_I8};
    static const int64_t rows[] = {0, 1, 5, 343};
    static const bsk_dtype wires[] = {BSK_NONE, BSK_F64, BSK_F32, BSK_F16, BSK_BF16};
    static const int64_t buckets[] = {0, 1, 100};
    for (int kind = 0; kind < 3; kind++)
        for (size_t d = 0; d < UNIT_COUNT(sums); d++)
            for (size_t n = 0; n < UNIT_COUNT(rows); n++)
                for (int in_place = 0; in_place < 2; in_place++)
                    comm_check_pair(r, kind, sums[d], rows[n], in_place);
    comm_check_pair(r, 2, BSK_U16, 5, 0); /* gathered, but not added */
    for (size_t w = 0; w < UNIT_COUNT(wires); w++)
        for (size_t b = 0; b < UNIT_COUNT(buckets); b++)
            comm_check_list(r, wires[w], buckets[b], -1);
    for (int root = 0; root < r->size; root++)
        comm_check_list(r, BSK_NONE, 0, root);
    /* The cast on the way: 1 + 2^-9 is 1 in bf16 and exact in f32; 2^24 + 1 is exact in f64 alone. */
    comm_check_rounding(r, BSK_F32, BSK_BF16, 1 + 1.0 / 512, 1 + 1.0 / 512, r->size);
    comm_check_rounding(r, BSK_F32, BSK_NONE, 1 + 1.0 / 512, 1 + 1.0 / 512,
                        r->size * (1 + 1.0 / 512));
    if (r->size == 3) {
        comm_check_rounding(r, BSK_F32, BSK_F64, 16777216, 1, 16777218);
        if (r->widened) /* rounded once: 256 + 1 is 256 in bf16 */
            comm_check_rounding(r, BSK_BF16, BSK_NONE, 256, 1, 258);
    }
}

#endif
