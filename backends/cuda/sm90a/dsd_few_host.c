/* What the entries of dsd for a small minibatch share. */
#include <backends/cuda/sm90a/dsd_few_host.h>
#include <common/checked.h>

enum { MAX_TILE = 32, MIN_COLUMNS = 16, UNIT_BYTES = 16 /* of offsets, and of runs */ };
#define MOST_BYTES   ((double)UNIT_BYTES * (UINT32_MAX - 1))
#define MOST_B_BYTES ((double)UNIT_BYTES * (1 << DSD_FEW_PLACE))

static bool is_f8(bsk_dtype dtype)
{
    return dtype == BSK_F8E4M3 || dtype == BSK_F8E5M2;
}

dsd_few_shape bski_dsd_few_shape(const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const int64_t n = p->c.dims[p->c.rank - 1];
    dsd_few_shape s = {.flip = p->transpose_s != 0, .along_k = p->b.strides[p->b.rank - 2] == 1};
    s.bytes = problem->dtype == BSK_F32 ? 4 : is_f8(problem->dtype) ? 1 : 2;
    s.run = UNIT_BYTES / s.bytes;
    s.block_i = s.flip ? t->block_cols : t->block_rows;
    s.block_k = s.flip ? t->block_rows : t->block_cols;
    s.tile = s.block_i < MAX_TILE ? s.block_i : MAX_TILE;
    s.columns = MIN_COLUMNS;
    while (s.columns < n && s.columns < DSD_FEW_COLUMNS)
        s.columns *= 2;
    return s;
}

bsk_reason bski_dsd_few_refusal(const bsk_problem *problem, int64_t samples)
{
    const bsk_dsd_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    const bsk_tensor *b = &p->b;
    if (p->c.rank != 2 || t->heads != 1 || (p->s.rank == 4 && p->s.dims[0] != 1))
        return BSK_REFUSE_RANK;
    if (p->gate.dtype != BSK_NONE)
        return BSK_REFUSE_OPTION;
    if (p->c.dims[1] > samples)
        return BSK_REFUSE_SHAPE;
    const dsd_few_shape s = bski_dsd_few_shape(problem);
    /* The axis that runs are loaded along: how many elements at once, and how far apart. */
    const int64_t unit = s.along_k || s.columns >= 4 * s.run ? s.run : s.columns / 4;
    const int64_t length = s.along_k ? b->dims[0] : b->dims[1];
    const int64_t lines = s.along_k ? b->dims[1] : b->dims[0];
    if (b->strides[s.along_k ? 0 : 1] != 1 ||
        (lines > 1 && b->strides[s.along_k ? 1 : 0] % unit != 0))
        return BSK_REFUSE_STRIDE;
    if (length % unit != 0 || b->dims[0] % s.run != 0)
        return BSK_REFUSE_SHAPE;
    if ((double)t->nnz * t->block_rows * t->block_cols * s.bytes >= MOST_BYTES ||
        (double)b->dims[0] * (double)b->strides[0] * s.bytes >= MOST_B_BYTES ||
        (double)t->nnz * s.block_k / s.run >= INT32_MAX / 4 ||
        b->strides[0] >= INT32_MAX / s.bytes || b->strides[1] >= INT32_MAX / 16 ||
        b->dims[0] > INT32_MAX / 2 || p->c.dims[0] > INT32_MAX / 2)
        return BSK_REFUSE_LIMIT;
    return bski_cuda_epilogue_accept(problem);
}

double bski_dsd_few_steps(const bsk_problem *problem)
{
    const bsk_layout_tables *t = problem->layout;
    const dsd_few_shape s = bski_dsd_few_shape(problem);
    const double kept = (double)t->nnz * t->block_rows * t->block_cols;
    return kept / (s.tile * DSD_FEW_STEP * s.run);
}

const dsd_few_kernel *bski_dsd_few_find(const dsd_few_kernel *kernels, size_t count,
                                        bsk_dtype dtype, const dsd_few_shape *shape)
{
    for (size_t i = 0; i < count; i++) {
        const dsd_few_kernel *k = &kernels[i];
        if (k->dtype == dtype && k->flip == shape->flip && k->along_k == shape->along_k &&
            k->tile == shape->tile && k->columns == shape->columns)
            return k;
    }
    return NULL;
}

int32_t bski_dsd_few_row_steps(const bsk_problem *problem, const bski_lines *lines, int32_t row)
{
    const bsk_dsd_params *p = problem->params;
    const dsd_few_shape s = bski_dsd_few_shape(problem);
    int64_t runs = 0;
    for (int64_t e = lines->start[row]; e < lines->start[row + 1]; e++) {
        const int64_t left = p->b.dims[0] - (int64_t)lines->index[e] * s.block_k;
        runs += (left < s.block_k ? left > 0 ? left : 0 : s.block_k) / s.run;
    }
    return (int32_t)bski_ceil_div(runs, DSD_FEW_STEP);
}

void bski_dsd_few_runs(const bsk_problem *problem, const dsd_few_shape *shape,
                       const bski_lines *lines, int32_t row, int32_t tile, int32_t parts,
                       dsd_few_run *to)
{
    const bsk_dsd_params *p = problem->params;
    const dsd_few_shape s = *shape;
    const int64_t block = (int64_t)s.block_i * s.block_k, depth = p->b.dims[0];
    const int64_t pitch = s.flip ? s.block_i : 1; /* of the values, along the depth */
    const int64_t first = (int64_t)tile * s.tile * (s.flip ? 1 : s.block_k);
    int64_t count = 0;
    for (int64_t e = lines->start[row]; e < lines->start[row + 1]; e++)
        for (int32_t inner = 0; inner < s.block_k; inner += s.run) {
            const int64_t k = (int64_t)lines->index[e] * s.block_k + inner;
            const int64_t value = lines->slot[e] * block + inner * pitch + first;
            if (k < depth)
                to[count++] = (dsd_few_run){.b = (uint32_t)(k * p->b.strides[0] / s.run) |
                                                 (uint32_t)parts << DSD_FEW_PLACE,
                                            .s = (uint32_t)(value / s.run)};
        }
    for (; count % DSD_FEW_STEP; count++)
        to[count] = (dsd_few_run){.s = DSD_FEW_NONE};
}

void bski_dsd_few_fill(const bsk_problem *problem, dsd_few_operands *o)
{
    const bsk_dsd_params *p = problem->params;
    const dsd_few_shape s = bski_dsd_few_shape(problem);
    o->b_pitch = (int32_t)(p->b.strides[s.along_k ? 1 : 0] * s.bytes);
    o->s_pitch = (s.flip ? s.block_i : s.block_k) * s.bytes;
    bski_cuda_epilogue_fill(problem, &o->end);
}

void bski_dsd_few_bind(const bsk_dsd_args *args, dsd_few_operands *o)
{
    o->s = bsk_mem_address(args->s);
    o->b = bsk_mem_address(args->b);
    bski_cuda_epilogue_bind(args, &o->end);
}

static void matrix_skip(dsd_matrix *m, int64_t samples)
{
    if (m->data)
        m->data += samples * m->n * (m->type == BSK_F32 ? 4 : 2);
}

void bski_dsd_few_part(const bsk_problem *problem, int64_t first, dsd_few_operands *o)
{
    const bsk_dsd_params *p = problem->params;
    dsd_epilogue *e = &o->end;
    const int64_t left = e->n - first;
    o->b = (const char *)o->b + first * p->b.strides[1] * bski_dsd_few_shape(problem).bytes;
    matrix_skip(&e->c, first);
    matrix_skip(&e->residual, first);
    if (e->col_scale)
        e->col_scale += first;
    e->n = left < DSD_FEW_COLUMNS ? left : DSD_FEW_COLUMNS;
}
