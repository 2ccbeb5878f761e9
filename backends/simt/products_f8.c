/* Products of f8 by those of f32: both operands become f32 in the workspace, times their scales, and the
 * portable entry of f32 multiplies them. */
#include <backends/simt/products_host.h>

ENTRY(dsd)
ENTRY(sdd)
ENTRY(dsd_f8)
ENTRY(sdd_f8)

/* Operands of a product, and pairs of a sum at most: their views are on the stack of a run. */
enum { LEFT, RIGHT, SIDES, PAIRS_MOST = 16, QUAD = 4 };

/* An operand's copy: that of the first pair lies at `at`, the next ones follow. */
typedef struct widened {
    size_t at, bytes;
    i64 groups;
    widen_arg arg;
} widened;

typedef struct f8_state {
    bsk_prepared prepared; /* in f32 */
    bsk_problem problem;
    union {
        bsk_dsd_params dsd;
        bsk_sdd_params sdd;
    } params;
    widened side[SIDES];
    const simt_kernel *widen;
} f8_state;

/* --- Copies --- */

/* A copy of so many lines of `length` numbers. */
static bool lines_fill(widened *w, bsk_dtype dtype, i64 lines, i64 length)
{
    i64 quads;
    w->arg.type = (i32)dtype;
    w->arg.lines = lines;
    w->arg.length = length;
    if (length > INT64_MAX - QUAD || !bski_mul_i64(lines, bski_ceil_div(length, QUAD), &quads))
        return false;
    w->arg.pitch = bski_ceil_div(length, QUAD) * QUAD;
    w->groups = clamp(bski_ceil_div(quads, LANES), 1, MAX_GROUPS);
    return plane_size(1, lines, w->arg.pitch, BSK_F32, &w->bytes);
}

/* *t, of one matrix or a batch of them, becomes its copy: lines along the same axis. */
static bool matrix_widen(bsk_tensor *t, widened *w)
{
    const int last = t->rank - 1;
    /* Where both axes count as contiguous, one of them has length 1. */
    const bool along_last =
        t->strides[last] == 1 && (t->dims[last] > 1 || t->strides[last - 1] != 1);
    const int inner = along_last ? last : last - 1, outer = 2 * last - 1 - inner;
    i64 lines;
    w->arg.member = t->dims[outer];
    w->arg.line = t->strides[outer];
    w->arg.batch = batch_stride(t, 2);
    if (!bski_mul_i64(t->dims[outer], w->arg.batch ? batch_count(t) : 1, &lines) ||
        !lines_fill(w, t->dtype, lines, t->dims[inner]))
        return false;
    w->arg.vector = w->arg.line % QUAD == 0 && w->arg.batch % QUAD == 0;
    t->dtype = BSK_F32;
    t->strides[inner] = 1;
    t->strides[outer] = w->arg.pitch;
    if (t->rank == 3)
        t->strides[0] = w->arg.batch ? w->arg.pitch * w->arg.member : 0;
    return true;
}

/* The same of blocks, one after the other, or groups of them. */
static bool blocks_widen(bsk_tensor *t, widened *w)
{
    const int axis = t->rank - 4; /* of groups; -1: there are none */
    i64 count = 1;
    for (int d = axis + 1; d < t->rank; d++)
        if (!bski_mul_i64(count, t->dims[d], &count))
            return false;
    w->arg.member = 1;
    w->arg.batch = batch_stride(t, 3);
    w->arg.vector = w->arg.batch % QUAD == 0;
    if (!lines_fill(w, t->dtype, w->arg.batch ? t->dims[axis] : 1, count))
        return false;
    t->dtype = BSK_F32;
    if (axis == 0)
        t->strides[0] = w->arg.batch ? w->arg.pitch : 0;
    return true;
}

/* --- Problems in f32; false where their copies cannot be counted --- */

static bool dsd_fill(const bsk_problem *problem, f8_state *s)
{
    const bsk_dsd_params *p = problem->params;
    bsk_dsd_params *own = &s->params.dsd;
    *own = *p;
    own->s_scale = own->b_scale = (bsk_tensor){0};
    s->problem = *problem;
    s->problem.dtype = BSK_F32;
    s->problem.params = own;
    return blocks_widen(&own->s, &s->side[LEFT]) && matrix_widen(&own->b, &s->side[RIGHT]);
}

static bool sdd_fill(const bsk_problem *problem, f8_state *s)
{
    const bsk_sdd_params *p = problem->params;
    bsk_sdd_params *own = &s->params.sdd;
    *own = *p;
    own->a_scale = own->b_scale = (bsk_tensor){0};
    s->problem = *problem;
    s->problem.dtype = BSK_F32;
    s->problem.params = own;
    return p->pairs <= PAIRS_MOST && matrix_widen(&own->a, &s->side[LEFT]) &&
           matrix_widen(&own->b, &s->side[RIGHT]);
}

/* --- Plans --- */

/* Room for the copies of all pairs behind what the product of f32 has. */
static bool room_make(f8_state *s, i64 pairs, size_t *bytes)
{
    *bytes = s->prepared.workspace_bytes;
    for (int side = 0; side < SIDES; side++) {
        s->side[side].at = *bytes;
        for (i64 pair = 0; pair < pairs; pair++)
            if (!bski_add_size(*bytes, s->side[side].bytes, bytes))
                return false;
    }
    return true;
}

static bsk_status f8_finish(simt_device *d, const char *op, i64 pairs, bsk_prepared *prepared)
{
    f8_state *s = prepared->state;
    if (!room_make(s, pairs, &prepared->workspace_bytes))
        return limit_fail(d, op);
    return small_kernel(d, "products", "widen", BSK_F32, &s->widen);
}

/* --- Running --- */

/* Makes an operand's copy of a pair, and returns it in *mem. */
static bsk_status side_run(const f8_state *s, simt_queue *q, int side, i32 pair, bsk_mem workspace,
                           bsk_mem scale, bsk_mem *mem)
{
    const widened *w = &s->side[side];
    const bsk_mem to = bsk_mem_at(workspace, w->at + (size_t)pair * w->bytes);
    const bsk_mem buffers[] = {*mem, scale, to};
    widen_arg arg = w->arg;
    arg.vector = arg.vector && simt_aligned(*mem);
    *mem = to;
    return LAUNCH(q, s->widen, w->groups, LANES, buffers, arg);
}

/* --- dsd --- */

bsk_reason simt_dsd_f8_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    f8_state s = {0};
    return dsd_fill(problem, &s) ? simt_dsd_accept(&s.problem, props) : BSK_REFUSE_LIMIT;
}

bsk_status simt_dsd_f8_prepare(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    TRY(state_new(d, sizeof(f8_state), prepared));
    f8_state *s = prepared->state;
    s->prepared.problem = &s->problem;
    bsk_status status = dsd_fill(prepared->problem, s) ? simt_dsd_prepare(device, &s->prepared)
                                                       : limit_fail(d, "dsd");
    if (!status)
        status = f8_finish(d, "dsd", 1, prepared);
    if (status)
        simt_dsd_f8_release(device, prepared);
    return status;
}

bsk_status simt_dsd_f8_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const f8_state *s = prepared->state;
    bsk_dsd_args a = *(const bsk_dsd_args *)args;
    TRY(side_run(s, queue, LEFT, 0, a.workspace, a.s_scale, &a.s));
    TRY(side_run(s, queue, RIGHT, 0, a.workspace, a.b_scale, &a.b));
    return simt_dsd_launch(&s->prepared, queue, &a);
}

void simt_dsd_f8_release(void *device, bsk_prepared *prepared)
{
    f8_state *s = prepared->state;
    if (!s)
        return;
    simt_dsd_release(device, &s->prepared);
    state_free(device, prepared);
}

/* --- sdd --- */

bsk_reason simt_sdd_f8_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    f8_state s = {0};
    return sdd_fill(problem, &s) ? simt_sdd_accept(&s.problem, props) : BSK_REFUSE_LIMIT;
}

bsk_status simt_sdd_f8_prepare(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    TRY(state_new(d, sizeof(f8_state), prepared));
    f8_state *s = prepared->state;
    s->prepared.problem = &s->problem;
    bsk_status status = sdd_fill(prepared->problem, s) ? simt_sdd_prepare(device, &s->prepared)
                                                       : limit_fail(d, "sdd");
    if (!status)
        status = f8_finish(d, "sdd", s->params.sdd.pairs, prepared);
    if (status)
        simt_sdd_f8_release(device, prepared);
    return status;
}

bsk_status simt_sdd_f8_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const f8_state *s = prepared->state;
    bsk_mem left[PAIRS_MOST], right[PAIRS_MOST];
    bsk_sdd_args a = *(const bsk_sdd_args *)args;
    for (i32 pair = 0; pair < s->params.sdd.pairs; pair++) {
        left[pair] = a.a[pair];
        right[pair] = a.b[pair];
        TRY(side_run(s, queue, LEFT, pair, a.workspace, a.a_scale, &left[pair]));
        TRY(side_run(s, queue, RIGHT, pair, a.workspace, a.b_scale, &right[pair]));
    }
    a.a = left;
    a.b = right;
    return simt_sdd_launch(&s->prepared, queue, &a);
}

void simt_sdd_f8_release(void *device, bsk_prepared *prepared)
{
    f8_state *s = prepared->state;
    if (!s)
        return;
    simt_sdd_release(device, &s->prepared);
    state_free(device, prepared);
}
