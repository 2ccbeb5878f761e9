/* Sparse projections. Where features lie along memory, a line is a row of them, in which elements are
 * looked up; otherwise it is all rows of one feature, and lines are. Scattering looks up what comes to
 * each element of the large side, in the inverse of the index. */
#include "dense.h"

/* Lines of a tensor. */
typedef struct operand {
    bsk_dtype type;
    char *data;
    int64_t lines, length, step; /* elements of a line, and from one to the next */
} operand;

/* The lines or elements of an operand that belong to those of another; outside 0 .. limit - 1: none. */
typedef struct mapping {
    const int32_t *from;
    int64_t limit;
    bool along; /* elements */
} mapping;

static operand operand_of(const bsk_tensor *t, bsk_mem mem, int32_t contiguous)
{
    return (operand){t->dtype, bsk_mem_address(mem), t->dims[1 - contiguous], t->dims[contiguous],
                     t->strides[1 - contiguous]};
}

static int64_t features_of(const bsk_tensor *t, bsk_axis axis)
{
    return t->dims[axis == BSK_NC ? 1 : 0];
}

static bool is_along(bsk_axis axis, int32_t contiguous)
{
    return contiguous == (axis == BSK_NC ? 1 : 0);
}

/* The small side is numbered by i32. */
static bsk_reason proj_accept(const bsk_tensor *const *tensors, int count, const bsk_tensor *index)
{
    if (common_axis(tensors, count) < 0)
        return BSK_REFUSE_STRIDE;
    return index->dims[0] <= INT32_MAX ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

/* Room for the inverse. */
static bsk_status proj_prepare(bsk_prepared *prepared, int64_t large)
{
    return bski_mul_size((size_t)large, sizeof(int32_t), &prepared->workspace_bytes)
               ? BSK_OK
               : BSK_E_UNSUPPORTED;
}

static mapping mapping_inverse(const int32_t *index, int64_t small, int64_t large, int32_t *inverse,
                               bool along)
{
    for (int64_t f = 0; f < large; f++)
        inverse[f] = -1;
    for (int64_t i = 0; i < small; i++)
        if (index[i] >= 0 && index[i] < large)
            inverse[index[i]] = (int32_t)i;
    return (mapping){inverse, small, along};
}

/* --- lines ------------------------------------------------------------------------------------ */

/* A piece of a line: at most CHUNK elements. */
typedef struct piece {
    int64_t line, first, count;
} piece;

static int64_t line_pieces(const operand *o)
{
    return bski_ceil_div(o->length, CHUNK);
}

static piece piece_of(const operand *o, int64_t i)
{
    const int64_t first = i % line_pieces(o) * CHUNK;
    return (piece){i / line_pieces(o), first, min_i64(CHUNK, o->length - first)};
}

static int64_t piece_at(const operand *o, const piece *p)
{
    return p->line * o->step + p->first;
}

/* to[i] = src[from[i]], or `none`, bit by bit. */
#define TAKE(name, word)                                                                           \
    static void name(void *restrict dst, const void *restrict src, const int32_t *restrict from,   \
                     int64_t limit, int64_t count, const void *none)                               \
    {                                                                                              \
        typedef word bits __attribute__((may_alias));                                              \
        bits *to = dst, other;                                                                     \
        const bits *x = src;                                                                       \
        memcpy(&other, none, sizeof other);                                                        \
        for (int64_t i = 0; i < count; i++)                                                        \
            to[i] = from[i] >= 0 && from[i] < limit ? x[from[i]] : other;                          \
    }
TAKE(take_16, uint16_t)
TAKE(take_32, uint32_t)
TAKE(take_64, uint64_t)

/* Elements of o for a piece along which they are looked up. */
static void elements_take(const operand *o, const mapping *m, const piece *p, void *to, double none)
{
    const size_t size = type_size(o->type);
    uint64_t other;
    bski_store(o->type, &other, 0, none);
    (size == 8   ? take_64
     : size == 4 ? take_32
                 : take_16)(to, o->data + (size_t)(p->line * o->step) * size, m->from + p->first,
                            m->limit, p->count, &other);
}

/* The line of o for one of another operand, or -1. */
static int64_t line_from(const mapping *m, int64_t line)
{
    return m->from[line] >= 0 && m->from[line] < m->limit ? m->from[line] : -1;
}

static void piece_load(const operand *o, const piece *p, float *restrict row)
{
    row_load_f32(row, o->type, o->data, piece_at(o, p), p->count);
}

/* What belongs to a piece of another operand, in f32. */
static void piece_load_mapped(const operand *o, const mapping *m, const piece *p,
                              float *restrict row, float none)
{
    float bits[CHUNK];
    if (m->along) {
        elements_take(o, m, p, bits, (double)none);
        row_load_f32(row, o->type, bits, 0, p->count);
        return;
    }
    const piece from = {line_from(m, p->line), p->first, p->count};
    if (from.line >= 0)
        piece_load(o, &from, row);
    else
        for (int64_t i = 0; i < p->count; i++)
            row[i] = none;
}

static void piece_store(const operand *o, const piece *p, const float *restrict row)
{
    row_store_f32(row, o->type, o->data, piece_at(o, p), p->count);
}

/* --- proj_gather, proj_scatter ---------------------------------------------------------------- */

/* A part of x further on, as large as what a piece of y is made from. */
static void piece_fetch(const operand *x, const piece *p, const operand *y)
{
    const int64_t parts = line_pieces(y), part = p->first / CHUNK;
    const int64_t first = x->length * part / parts, end = x->length * (part + 1) / parts;
    if (p->line + 1 < x->lines)
        row_fetch(x->type, x->data, (p->line + 1) * x->step + first, end - first);
}

/* y = x as the mapping has it. */
static void proj_move(const operand *x, const mapping *m, const operand *y, int threads)
{
    const size_t size = type_size(y->type);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < y->lines * line_pieces(y); i++) {
        const piece p = piece_of(y, i);
        char *to = y->data + (size_t)piece_at(y, &p) * size;
        if (m->along) {
            piece_fetch(x, &p, y);
            elements_take(x, m, &p, to, 0);
            continue;
        }
        const int64_t from = line_from(m, p.line);
        row_convert(x->type, from >= 0 ? x->data : NULL, from * x->step + p.first, y->type, y->data,
                    piece_at(y, &p), p.count);
    }
}

OMP_DECLARE(proj_gather);
OMP_PREPARE_NONE(proj_gather)

OMP_ACCEPT(proj_gather)
{
    const bsk_proj_params *p = problem->params;
    (void)props;
    return proj_accept((const bsk_tensor *const[]){&p->x, &p->y}, 2, &p->index);
}

OMP_LAUNCH(proj_gather)
{
    const bsk_proj_params *p = prepared->problem->params;
    const bsk_proj_args *a = args;
    const int32_t contiguous = common_axis((const bsk_tensor *const[]){&p->x, &p->y}, 2);
    const operand x = operand_of(&p->x, a->x, contiguous), y = operand_of(&p->y, a->y, contiguous);
    const mapping m = {bsk_mem_address(a->index), features_of(&p->x, p->axis),
                       is_along(p->axis, contiguous)};
    proj_move(&x, &m, &y, queue_threads(queue));
    return BSK_OK;
}

OMP_DECLARE(proj_scatter);

OMP_ACCEPT(proj_scatter)
{
    const bsk_proj_params *p = problem->params;
    (void)props;
    return proj_accept((const bsk_tensor *const[]){&p->x, &p->y}, 2, &p->index);
}

OMP_PREPARE(proj_scatter)
{
    const bsk_proj_params *p = prepared->problem->params;
    (void)device;
    return proj_prepare(prepared, features_of(&p->y, p->axis));
}

OMP_LAUNCH(proj_scatter)
{
    const bsk_proj_params *p = prepared->problem->params;
    const bsk_proj_args *a = args;
    const int32_t contiguous = common_axis((const bsk_tensor *const[]){&p->x, &p->y}, 2);
    const operand x = operand_of(&p->x, a->x, contiguous), y = operand_of(&p->y, a->y, contiguous);
    const mapping m =
        mapping_inverse(bsk_mem_address(a->index), p->index.dims[0], features_of(&p->y, p->axis),
                        bsk_mem_address(a->workspace), is_along(p->axis, contiguous));
    proj_move(&x, &m, &y, queue_threads(queue));
    return BSK_OK;
}

/* --- proj_scatter_add, proj_scatter_mul ------------------------------------------------------- */

static int32_t scatter_op_axis(const bsk_proj_scatter_op_params *p)
{
    return common_axis((const bsk_tensor *const[]){&p->x, &p->v, &p->y}, 3);
}

/* Where nothing comes to an element it stays as it is: -0 is added, or it is multiplied by 1. */
static bsk_status scatter_op(const bsk_prepared *prepared, void *queue,
                             const bsk_proj_scatter_op_args *a, bool multiply)
{
    const bsk_proj_scatter_op_params *p = prepared->problem->params;
    const int32_t contiguous = scatter_op_axis(p);
    const operand x = operand_of(&p->x, a->x, contiguous), y = operand_of(&p->y, a->y, contiguous);
    const operand v = operand_of(&p->v, a->v, contiguous);
    const mapping m =
        mapping_inverse(bsk_mem_address(a->index), p->index.dims[0], features_of(&p->y, p->axis),
                        bsk_mem_address(a->workspace), is_along(p->axis, contiguous));
#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t i = 0; i < y.lines * line_pieces(&y); i++) {
        const piece here = piece_of(&y, i);
        float to[CHUNK], by[CHUNK];
        piece_load(&x, &here, to);
        piece_load_mapped(&v, &m, &here, by, multiply ? 1 : -0.0f);
        for (int64_t k = 0; k < here.count; k++)
            to[k] = multiply ? to[k] * by[k] : to[k] + by[k];
        piece_store(&y, &here, to);
    }
    return BSK_OK;
}

#define SCATTER_OP(name, multiply)                                                                 \
    OMP_DECLARE(name);                                                                             \
    OMP_ACCEPT(name)                                                                               \
    {                                                                                              \
        const bsk_proj_scatter_op_params *p = problem->params;                                     \
        (void)props;                                                                               \
        return proj_accept((const bsk_tensor *const[]){&p->x, &p->v, &p->y}, 3, &p->index);        \
    }                                                                                              \
    OMP_PREPARE(name)                                                                              \
    {                                                                                              \
        const bsk_proj_scatter_op_params *p = prepared->problem->params;                           \
        (void)device;                                                                              \
        return proj_prepare(prepared, features_of(&p->y, p->axis));                                \
    }                                                                                              \
    OMP_LAUNCH(name)                                                                               \
    {                                                                                              \
        return scatter_op(prepared, queue, args, multiply);                                        \
    }
SCATTER_OP(proj_scatter_add, false)
SCATTER_OP(proj_scatter_mul, true)

/* --- proj_scatter_mul_grad -------------------------------------------------------------------- */

OMP_DECLARE(proj_scatter_mul_grad);

#define MUL_GRAD_TENSORS(p)                                                                        \
    (const bsk_tensor *const[]){&(p)->dy, &(p)->x, &(p)->v, &(p)->dx, &(p)->dv}, 5

OMP_ACCEPT(proj_scatter_mul_grad)
{
    const bsk_proj_scatter_mul_grad_params *p = problem->params;
    (void)props;
    return proj_accept(MUL_GRAD_TENSORS(p), &p->index);
}

OMP_PREPARE(proj_scatter_mul_grad)
{
    const bsk_proj_scatter_mul_grad_params *p = prepared->problem->params;
    (void)device;
    return proj_prepare(prepared, features_of(&p->dx, p->axis));
}

/* to = alpha x y + beta to for a piece of it. */
static void piece_product(const operand *to, const piece *p, float *restrict x,
                          const float *restrict y, const bsk_proj_scatter_mul_grad_args *a)
{
    for (int64_t i = 0; i < p->count; i++)
        x[i] *= y[i];
    row_blend(x, a->alpha, a->beta, to->type, to->data, piece_at(to, p), p->count);
    piece_store(to, p, x);
}

OMP_LAUNCH(proj_scatter_mul_grad)
{
    const bsk_proj_scatter_mul_grad_params *p = prepared->problem->params;
    const bsk_proj_scatter_mul_grad_args *a = args;
    const int32_t contiguous = common_axis(MUL_GRAD_TENSORS(p));
    const bool along = is_along(p->axis, contiguous);
    const operand dy = operand_of(&p->dy, a->dy, contiguous);
    const operand x = operand_of(&p->x, a->x, contiguous), v = operand_of(&p->v, a->v, contiguous);
    const operand dx = operand_of(&p->dx, a->dx, contiguous);
    const operand dv = operand_of(&p->dv, a->dv, contiguous);
    const int64_t large = features_of(&p->dx, p->axis);
    const mapping gather = {bsk_mem_address(a->index), large, along};
    const mapping scatter =
        mapping_inverse(gather.from, p->index.dims[0], large, bsk_mem_address(a->workspace), along);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        float by[CHUNK], d[CHUNK];
#pragma omp for schedule(static)
        for (int64_t i = 0; i < dv.lines * line_pieces(&dv); i++) { /* first: dx may be dy */
            const piece here = piece_of(&dv, i);
            piece_load_mapped(&dy, &gather, &here, d, 0);
            piece_load_mapped(&x, &gather, &here, by, 0);
            piece_product(&dv, &here, d, by, a);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < dx.lines * line_pieces(&dx); i++) {
            const piece here = piece_of(&dx, i);
            piece_load(&dy, &here, d);
            piece_load_mapped(&v, &scatter, &here, by, 1);
            piece_product(&dx, &here, d, by, a);
        }
    }
    return BSK_OK;
}
