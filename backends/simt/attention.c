/* Host side of fused attention. */
#include <backends/simt/attention_host.h>

#include <backends/simt/attention.h>
#include <common/philox.h>

#include <stdio.h>

enum { LOCAL_BYTES = 32 << 10 }; /* that the kernels need at most */
enum { WIDE = 0 };               /* in place of a tile's lines */

/* --- what both directions share --- */

static i32 tile_of(const bsk_device_props *props, i32 side)
{
    return simt_props_wide(props) ? WIDE : side <= 16 ? 16 : 32;
}

static i32 lanes_of(const void *queue)
{
    return queue_device(queue)->wide ? 1 : ATTENTION_LANES;
}

/* WIDTH of attention_tile.h. */
static i64 width_of(bsk_dtype type, i32 tile)
{
    return tile == WIDE ? ATTENTION_WIDE_WIDTH : type == BSK_F64 ? 128 : 256;
}

/* A result by tiles of the layout's rows, or of its columns; false: more than a grid has. */
static bool tiles_fill(tiles_arg *tiles, const bsk_problem *problem, const bsk_tensor *out,
                       bool turned, i32 tile, i64 *groups)
{
    const bsk_layout_tables *t = problem->layout;
    const i64 width = out->dims[3];
    *tiles = (tiles_arg){.grid = turned ? t->grid_cols : t->grid_rows,
                         .side = turned ? t->block_cols : t->block_rows,
                         .lines = (i32)(turned ? t->cols : t->rows),
                         .heads = (i32)out->dims[1],
                         .turned = turned};
    const i64 each = bski_ceil_div(tiles->side, tile == WIDE ? ATTENTION_WIDE_TILE : tile),
              count = each * tiles->grid;
    const i64 parts = width > 0 ? bski_ceil_div(width, width_of(problem->dtype, tile)) : 1;
    if (count > INT32_MAX || parts > INT32_MAX)
        return false;
    tiles->each = (i32)each;
    tiles->count = (i32)count;
    tiles->parts = (i32)parts;
    return bski_mul_i64(count, parts, groups) && bski_mul_i64(*groups, out->dims[0], groups) &&
           bski_mul_i64(*groups, out->dims[1], groups) && *groups <= SIMT_MAX_GROUPS;
}

static heads_arg heads_of(const bsk_tensor *t, bsk_mem mem)
{
    const i64 vec = 16 / (i64)simt_size(t->dtype);
    heads_arg h = {.batch = t->dims[0] > 1 ? t->strides[0] : 0,
                   .head = t->dims[1] > 1 ? t->strides[1] : 0,
                   .time = t->dims[2] > 1 ? t->strides[2] : 0,
                   .type = (i32)t->dtype};
    h.vector = simt_aligned(mem) && h.batch % vec == 0 && h.head % vec == 0 && h.time % vec == 0;
    return h;
}

/* Kernel number k of the plan, in its form for a tile. */
static bsk_status tile_kernel(simt_device *d, bsk_prepared *prepared, int k, const char *op,
                              i32 tile)
{
    char name[32], variant[16];
    simt_state *s = prepared->state;
    if (tile == WIDE) {
        snprintf(name, sizeof name, "%s_wide", op);
        snprintf(variant, sizeof variant, "-DWIDE=1");
    } else {
        snprintf(name, sizeof name, "%s_%d", op, (int)tile);
        snprintf(variant, sizeof variant, "-DTM=%d", (int)tile);
    }
    const bsk_status status = d->api->kernel(
        d, "attention", name, simt_single(prepared->problem->dtype), variant, &s->kernel[k]);
    if (status)
        bski_simt_release(d, prepared);
    return status;
}

/* As the op dropout does. */
static void set_dropout(rules_arg *r, bsk_dtype type, i32 dropout, double keep, uint64_t seed,
                        uint64_t offset)
{
    r->dropout = dropout;
    r->factor = bski_simt_num(type, keep > 0 ? 1 / keep : 0);
    r->limit = (i32)bski_dropout_limit(keep);
    r->seed = (i64)seed;
    r->offset = (i64)offset;
}

static bsk_reason accept_size(const bsk_problem *problem, const bsk_device_props *props, i64 heads,
                              i64 d, i64 dv)
{
    return rules_fit(problem->layout, heads) && d <= INT32_MAX && dv <= INT32_MAX &&
                   props->local_bytes >= LOCAL_BYTES
               ? BSK_ACCEPT
               : BSK_REFUSE_LIMIT;
}

/* --- attention --- */

static i32 attention_tile(const bsk_device_props *props, const bsk_problem *problem)
{
    return tile_of(props, problem->layout->block_rows);
}

SIMT_RELEASE(attention)

SIMT_ACCEPT(attention)
{
    const bsk_attention_params *p = problem->params;
    const bsk_reason reason = ACCEPT(&p->q, &p->o, &p->bias);
    tiles_arg tiles;
    i64 groups;
    if (reason != BSK_ACCEPT)
        return reason;
    if (!tiles_fill(&tiles, problem, &p->o, false, attention_tile(props, problem), &groups))
        return BSK_REFUSE_LIMIT;
    return accept_size(problem, props, p->q.dims[1], p->q.dims[3], p->v.dims[3]);
}

SIMT_PREPARE(attention)
{
    static const simt_need need = {.file = "attention", .rows = true};
    const simt_device *d = device;
    TRY(bski_simt_prepare(device, prepared, &need));
    return tile_kernel(device, prepared, 0, "attention",
                       attention_tile(&d->props, prepared->problem));
}

SIMT_LAUNCH(attention)
{
    const bsk_attention_params *p = prepared->problem->params;
    const bsk_attention_args *a = args;
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_dtype type = p->q.dtype;
    attention_arg arg = {
        .rules = RULES_ARG(type, t, p, p->q.dims[1], p->q.dims[2], p->k.dims[2],
                           attention_scale(a->scale, p->q.dims[3])),
        .q = heads_of(&p->q, a->q),
        .k = heads_of(&p->k, a->k),
        .v = heads_of(&p->v, a->v),
        .o = heads_of(&p->o, a->o),
        .d = (i32)p->q.dims[3],
        .dv = (i32)p->v.dims[3],
        .group = attention_group(&p->q, &p->k),
    };
    i64 groups;
    tiles_fill(&arg.tiles, prepared->problem, &p->o, false,
               attention_tile(&queue_device(queue)->props, prepared->problem),
               &groups); /* as accepted */
    set_dropout(&arg.rules, type, p->dropout, a->keep, a->seed, a->offset);
    return LAUNCH_LANES(0, lanes_of(queue), groups, 1, arg, a->q, a->k, a->v, a->o,
                        mem_of(&p->lse, a->lse), RULES_MEMS(p, a), table_of(prepared, ROW_START),
                        table_of(prepared, ROW_COL), table_of(prepared, ROW_SLOT));
}

/* --- attention_grad --- */

enum { DELTA, BY_ROWS, BY_COLS };

static i32 grad_tile(const bsk_device_props *props, const bsk_problem *problem, bool turned)
{
    return tile_of(props, turned ? problem->layout->block_cols : problem->layout->block_rows);
}

SIMT_RELEASE(attention_grad)

SIMT_ACCEPT(attention_grad)
{
    const bsk_attention_grad_params *p = problem->params;
    const bsk_reason reason = ACCEPT(&p->q, &p->o, &p->dq, &p->dk, &p->dv, &p->bias);
    const bsk_tensor *const results[] = {&p->q, &p->k, &p->v};
    i64 rows;
    if (reason != BSK_ACCEPT)
        return reason;
    for (int i = 0; i < 3; i++) {
        tiles_arg tiles;
        i64 groups;
        if (!tiles_fill(&tiles, problem, results[i], i > 0, grad_tile(props, problem, i > 0),
                        &groups))
            return BSK_REFUSE_LIMIT;
    }
    if (!attention_rows(&p->q, &rows) || rows / (ATTENTION_LANES / DELTA_LANES) > SIMT_MAX_GROUPS)
        return BSK_REFUSE_LIMIT;
    return accept_size(problem, props, p->q.dims[1], p->q.dims[3], p->v.dims[3]);
}

SIMT_PREPARE(attention_grad)
{
    static const simt_need need = {.file = "attention",
                                   .kernels = {"attention_delta"},
                                   .single = true,
                                   .rows = true,
                                   .cols = true};
    const bsk_problem *problem = prepared->problem;
    const bsk_attention_grad_params *p = problem->params;
    const simt_device *d = device;
    size_t at;
    i64 rows = 0;
    if (!attention_rows(&p->q, &rows) ||
        !bski_simt_space(&prepared->workspace_bytes, rows, simt_num_size(problem->dtype), &at))
        return BSK_E_NOMEM;
    TRY(bski_simt_prepare(device, prepared, &need));
    TRY(tile_kernel(device, prepared, BY_ROWS, "attention_grad",
                    grad_tile(&d->props, problem, false)));
    return tile_kernel(device, prepared, BY_COLS, "attention_grad",
                       grad_tile(&d->props, problem, true));
}

/* An operand of attention and its gradient. */
typedef struct operand {
    const bsk_tensor *tensor;
    bsk_mem mem;
} operand;

/* One of dq, dk and dv: the operands of attention_grad_arg. */
typedef struct grad_run {
    operand x, y, x2, y2, z, out;
    bool turned, values;
} grad_run;

static bsk_status run_grad(const bsk_prepared *prepared, void *queue,
                           const bsk_attention_grad_args *a, const grad_run *r)
{
    const bsk_attention_grad_params *p = prepared->problem->params;
    const bsk_layout_tables *t = prepared->problem->layout;
    const bsk_dtype type = p->q.dtype;
    attention_grad_arg arg = {
        .rules = RULES_ARG(type, t, p, p->q.dims[1], p->q.dims[2], p->k.dims[2],
                           attention_scale(a->scale, p->q.dims[3])),
        .alpha = bski_simt_num(type, a->alpha),
        .beta = bski_simt_num(type, a->beta),
        .x = heads_of(r->x.tensor, r->x.mem),
        .y = heads_of(r->y.tensor, r->y.mem),
        .x2 = heads_of(r->x2.tensor, r->x2.mem),
        .y2 = heads_of(r->y2.tensor, r->y2.mem),
        .z = heads_of(r->z.tensor, r->z.mem),
        .out = heads_of(r->out.tensor, r->out.mem),
        .d = (i32)p->q.dims[3],
        .dv = (i32)p->v.dims[3],
        .width = (i32)r->z.tensor->dims[3],
        .group = attention_group(&p->q, &p->k),
        .values = r->values,
    };
    i64 groups;
    set_dropout(&arg.rules, type, p->dropout, a->keep, a->seed, a->offset);
    tiles_fill(&arg.tiles, prepared->problem, r->out.tensor, r->turned,
               grad_tile(&queue_device(queue)->props, prepared->problem, r->turned),
               &groups); /* as accepted */
    return LAUNCH_LANES(r->turned ? BY_COLS : BY_ROWS, lanes_of(queue), groups, 1, arg, r->x.mem,
                        r->y.mem, r->x2.mem, r->y2.mem, r->z.mem, r->out.mem, a->lse, a->workspace,
                        RULES_MEMS(p, a), table_of(prepared, r->turned ? COL_START : ROW_START),
                        table_of(prepared, r->turned ? COL_ROW : ROW_COL),
                        table_of(prepared, r->turned ? COL_SLOT : ROW_SLOT));
}

SIMT_LAUNCH(attention_grad)
{
    const bsk_attention_grad_params *p = prepared->problem->params;
    const bsk_attention_grad_args *a = args;
    const operand q = {&p->q, a->q}, k = {&p->k, a->k}, v = {&p->v, a->v};
    const operand dout = {&p->dout, a->dout};
    const grad_run runs[] = {
        {q, k, dout, v, k, {&p->dq, a->dq}, false, false},
        {k, q, v, dout, q, {&p->dk, a->dk}, true, false},
        {k, q, v, dout, dout, {&p->dv, a->dv}, true, true},
    };
    const delta_arg delta = {.rows = p->q.dims[0] * p->q.dims[1] * p->q.dims[2],
                             .o = heads_of(&p->o, a->o),
                             .dout = heads_of(&p->dout, a->dout),
                             .heads = (i32)p->q.dims[1],
                             .time = (i32)p->q.dims[2],
                             .dv = (i32)p->v.dims[3]};
    const i64 rows = queue_device(queue)->wide ? 1 : ATTENTION_LANES / DELTA_LANES; /* of a group */
    TRY(LAUNCH_LANES(DELTA, lanes_of(queue), bski_ceil_div(delta.rows, rows), 1, delta, a->o,
                     a->dout, a->workspace));
    for (int i = 0; i < 3; i++)
        if (runs[i].out.tensor->dtype != BSK_NONE)
            TRY(run_grad(prepared, queue, a, &runs[i]));
    return BSK_OK;
}
