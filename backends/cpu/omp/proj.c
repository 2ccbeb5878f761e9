/* Sparse projections. Where features lie along memory, a line is a row of them, between which elements
 * move; otherwise it is all rows of one feature, and lines move. Scattering takes to each element of the
 * large side what comes there, by the inverse of the index. */
#include "dense.h"

/* Lines of a tensor. */
typedef struct operand {
    bsk_dtype type;
    char *data;
    int64_t lines, length, step; /* elements of a line, and from one to the next */
} operand;

/* What moves to each line or element of a side: from[i], or nothing where that is -1. For elements also
 * the list of those to which something comes, in their order: whether one does cannot be foreseen. */
typedef struct move {
    int32_t to, from;
} move;

typedef struct mapping {
    int32_t *from;
    move *moves;
    int64_t size, count; /* of from, of moves */
    bool along;          /* elements */
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

/* Features are numbered by i32. */
static bsk_reason proj_accept(const bsk_tensor *const *tensors, int count, bsk_axis axis)
{
    if (common_axis(tensors, count) < 0)
        return BSK_REFUSE_STRIDE;
    for (int i = 0; i < count; i++)
        if (features_of(tensors[i], axis) > INT32_MAX)
            return BSK_REFUSE_LIMIT;
    return BSK_ACCEPT;
}

/* For each feature. */
enum { MAPPING_BYTES = sizeof(move) + sizeof(int32_t) };

/* Room for mappings to so many features in all. */
static bsk_status proj_prepare(bsk_prepared *prepared, int64_t features)
{
    return bski_mul_size((size_t)features, MAPPING_BYTES, &prepared->workspace_bytes)
               ? BSK_OK
               : BSK_E_UNSUPPORTED;
}

static mapping mapping_at(void *memory, int64_t size, bool along)
{
    move *moves = memory;
    return (mapping){(int32_t *)(moves + size), moves, size, 0, along};
}

static void mapping_list(mapping *m)
{
    for (int64_t i = 0; m->along && i < m->size; i++) {
        m->moves[m->count] = (move){(int32_t)i, m->from[i]};
        m->count += m->from[i] >= 0;
    }
}

/* To the small side, and to the large one. */
static mapping mapping_gather(const int32_t *index, int64_t small, int64_t large, void *memory,
                              bool along)
{
    mapping m = mapping_at(memory, small, along);
    for (int64_t i = 0; i < small; i++)
        m.from[i] = index[i] >= 0 && index[i] < large ? index[i] : -1;
    mapping_list(&m);
    return m;
}

static mapping mapping_scatter(const int32_t *index, int64_t small, int64_t large, void *memory,
                               bool along)
{
    mapping m = mapping_at(memory, large, along);
    for (int64_t f = 0; f < large; f++)
        m.from[f] = -1;
    for (int64_t i = 0; i < small; i++)
        if (index[i] >= 0 && index[i] < large)
            m.from[index[i]] = (int32_t)i;
    mapping_list(&m);
    return m;
}

/* The first move to element `to` or behind it. */
static int64_t move_find(const mapping *m, int64_t to)
{
    int64_t low = 0, high = m->count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (m->moves[middle].to < to)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
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

/* Moves elements to some of `count` from `first` on, bit by bit; to where nothing comes goes `none`. */
#define TAKE(name, word)                                                                           \
    static void name(void *restrict dst, int64_t first, int64_t count, const void *restrict src,   \
                     const move *restrict moves, int64_t moved, const void *none)                  \
    {                                                                                              \
        typedef word bits __attribute__((may_alias));                                              \
        const bits *restrict x = src;                                                              \
        bits *restrict to = dst;                                                                   \
        bits other;                                                                                \
        memcpy(&other, none, sizeof other);                                                        \
        if (moved == count) {                                                                      \
            for (int64_t i = 0; i < count; i++)                                                    \
                to[i] = x[moves[i].from];                                                          \
            return;                                                                                \
        }                                                                                          \
        for (int64_t i = 0; i < count; i++)                                                        \
            to[i] = other;                                                                         \
        for (int64_t i = 0; i < moved; i++)                                                        \
            to[moves[i].to - first] = x[moves[i].from];                                            \
    }
TAKE(take_16, uint16_t)
TAKE(take_32, uint32_t)
TAKE(take_64, uint64_t)

/* Elements of o that come to a piece. */
static void elements_take(const operand *o, const mapping *m, const piece *p, void *to, double none)
{
    const size_t size = type_size(o->type);
    const int64_t begin = move_find(m, p->first), end = move_find(m, p->first + p->count);
    uint64_t other;
    bski_store(o->type, &other, 0, none);
    (size == 8   ? take_64
     : size == 4 ? take_32
                 : take_16)(to, p->first, p->count, o->data + (size_t)(p->line * o->step) * size,
                            m->moves + begin, end - begin, &other);
}

static void piece_load(const operand *o, const piece *p, float *restrict row)
{
    row_load_f32(row, o->type, o->data, piece_at(o, p), p->count);
}

/* What comes from o to a piece of another operand, in f32. */
static void piece_load_mapped(const operand *o, const mapping *m, const piece *p,
                              float *restrict row, float none)
{
    float bits[CHUNK];
    if (m->along) {
        elements_take(o, m, p, bits, (double)none);
        row_load_f32(row, o->type, bits, 0, p->count);
        return;
    }
    const piece from = {m->from[p->line], p->first, p->count};
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

#define MOVE_TENSORS(p) (const bsk_tensor *const[]){&(p)->x, &(p)->y}, 2

/* A part of x further on, as large as what a piece of y is made from. */
static void piece_fetch(const operand *x, const piece *p, const operand *y)
{
    const int64_t parts = line_pieces(y), part = p->first / CHUNK;
    const int64_t first = x->length * part / parts, end = x->length * (part + 1) / parts;
    if (p->line + 1 < x->lines)
        row_fetch(x->type, x->data, (p->line + 1) * x->step + first, end - first);
}

static bsk_status proj_move(const bsk_prepared *prepared, void *queue, const bsk_proj_args *a,
                            bool scatters)
{
    const bsk_proj_params *p = prepared->problem->params;
    const int32_t contiguous = common_axis(MOVE_TENSORS(p));
    const operand x = operand_of(&p->x, a->x, contiguous), y = operand_of(&p->y, a->y, contiguous);
    const mapping m = (scatters ? mapping_scatter : mapping_gather)(
        bsk_mem_address(a->index), p->index.dims[0], features_of(scatters ? &p->y : &p->x, p->axis),
        bsk_mem_address(a->workspace), is_along(p->axis, contiguous));
#pragma omp parallel for schedule(static) num_threads(queue_threads(queue))
    for (int64_t i = 0; i < y.lines * line_pieces(&y); i++) {
        const piece here = piece_of(&y, i);
        const int64_t to = piece_at(&y, &here);
        if (m.along) {
            piece_fetch(&x, &here, &y);
            elements_take(&x, &m, &here, y.data + (size_t)to * type_size(y.type), 0);
            continue;
        }
        const int64_t from = m.from[here.line];
        row_convert(x.type, from >= 0 ? x.data : NULL, from * x.step + here.first, y.type, y.data,
                    to, here.count);
    }
    return BSK_OK;
}

/* An entry of a kind of op, on these tensors, with a mapping to the features of y. */
#define PROJ_ENTRY(name, kind, tensors, run, variant)                                              \
    OMP_DECLARE(name);                                                                             \
    OMP_ACCEPT(name)                                                                               \
    {                                                                                              \
        const bsk_##kind##_params *p = problem->params;                                            \
        (void)props;                                                                               \
        return proj_accept(tensors(p), p->axis);                                                   \
    }                                                                                              \
    OMP_PREPARE(name)                                                                              \
    {                                                                                              \
        const bsk_##kind##_params *p = prepared->problem->params;                                  \
        (void)device;                                                                              \
        return proj_prepare(prepared, features_of(&p->y, p->axis));                                \
    }                                                                                              \
    OMP_LAUNCH(name)                                                                               \
    {                                                                                              \
        return run(prepared, queue, args, variant);                                                \
    }
PROJ_ENTRY(proj_gather, proj, MOVE_TENSORS, proj_move, false)
PROJ_ENTRY(proj_scatter, proj, MOVE_TENSORS, proj_move, true)

/* --- proj_scatter_add, proj_scatter_mul ------------------------------------------------------- */

#define CHANGE_TENSORS(p) (const bsk_tensor *const[]){&(p)->x, &(p)->v, &(p)->y}, 3

/* Where nothing comes to an element it stays as it is: -0 is added, or it is multiplied by 1. */
static bsk_status proj_change(const bsk_prepared *prepared, void *queue,
                              const bsk_proj_scatter_op_args *a, bool multiply)
{
    const bsk_proj_scatter_op_params *p = prepared->problem->params;
    const int32_t contiguous = common_axis(CHANGE_TENSORS(p));
    const operand x = operand_of(&p->x, a->x, contiguous), y = operand_of(&p->y, a->y, contiguous);
    const operand v = operand_of(&p->v, a->v, contiguous);
    const mapping m =
        mapping_scatter(bsk_mem_address(a->index), p->index.dims[0], features_of(&p->y, p->axis),
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

PROJ_ENTRY(proj_scatter_add, proj_scatter_op, CHANGE_TENSORS, proj_change, false)
PROJ_ENTRY(proj_scatter_mul, proj_scatter_op, CHANGE_TENSORS, proj_change, true)

/* --- proj_scatter_mul_grad -------------------------------------------------------------------- */

OMP_DECLARE(proj_scatter_mul_grad);

#define MUL_GRAD_TENSORS(p)                                                                        \
    (const bsk_tensor *const[]){&(p)->dy, &(p)->x, &(p)->v, &(p)->dx, &(p)->dv}, 5

OMP_ACCEPT(proj_scatter_mul_grad)
{
    const bsk_proj_scatter_mul_grad_params *p = problem->params;
    (void)props;
    return proj_accept(MUL_GRAD_TENSORS(p), p->axis);
}

OMP_PREPARE(proj_scatter_mul_grad)
{
    const bsk_proj_scatter_mul_grad_params *p = prepared->problem->params;
    (void)device;
    return proj_prepare(prepared, features_of(&p->dv, p->axis) + features_of(&p->dx, p->axis));
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
    const int64_t small = p->index.dims[0], large = features_of(&p->dx, p->axis);
    const int32_t *index = bsk_mem_address(a->index);
    char *memory = bsk_mem_address(a->workspace);
    const mapping gather = mapping_gather(index, small, large, memory, along);
    const mapping scatter =
        mapping_scatter(index, small, large, memory + MAPPING_BYTES * small, along);
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
