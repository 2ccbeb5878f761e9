/* The host side of dK and dV by wgmma: lists of pieces of queries by tiles of keys. */
#include <backends/cuda/sm90a/attention_dkv.h>
#include <backends/cuda/sm90a/attention_dkv_arg.h>
#include <backends/cuda/sm90a/attention_plan.h>
#include <common/checked.h>

/* --- Forms --- */

typedef struct form {
    int32_t width, groups, rings, side;
    bsk_dtype dtype;
    size_t shared_bytes;
    const char *name;
    const void *function;
} form;

#define FORM_EXTERN(suffix, ...)                                                                   \
    ATTENTION90_EXTERN(cuda_attention_dkv_bf16_##suffix)                                           \
    ATTENTION90_EXTERN(cuda_attention_dkv_f16_##suffix)
DKV_FORMS(FORM_EXTERN)
#undef FORM_EXTERN
#define FORM_ROW(type, symbol, width, groups, rings, slots, steps, buffers, side)                  \
    {width,   groups, rings,                                                                       \
     side,    type,   DKV_SHARED_BYTES(width, groups, rings, slots, steps, buffers, side),         \
     #symbol, symbol},
#define FORM_ROWS(suffix, ...)                                                                     \
    FORM_ROW(BSK_BF16, cuda_attention_dkv_bf16_##suffix, __VA_ARGS__)                              \
    FORM_ROW(BSK_F16, cuda_attention_dkv_f16_##suffix, __VA_ARGS__)
static const form forms[] = {DKV_FORMS(FORM_ROWS)};
#undef FORM_ROWS
#undef FORM_ROW

/* Keys of a tile. */
static int32_t keys_of(const form *f)
{
    return DKV_TILE_KEYS(f->width, f->groups, f->rings);
}

/* Queries of a piece. */
static int32_t piece_of(const form *f)
{
    return DKV_PIECE(f->side);
}

/* Whether blocks are pieces and parts of the form. */
static bool blocks_fit(const form *f, const bsk_layout_tables *t)
{
    return DKV_MANY(f->side) ? t->block_rows == f->side && t->block_cols == f->side
                             : t->block_rows % piece_of(f) == 0 && t->block_cols % f->side == 0;
}

/* The narrowest that holds a head, of those for blocks with the most keys, unless windows do not fill
 * their tiles. */
static const form *form_of(const bsk_problem *problem)
{
    const bsk_attention_grad_params *p = problem->params;
    const int64_t width = p->q.dims[3] > p->v.dims[3] ? p->q.dims[3] : p->v.dims[3];
    const bool narrow = attention90_is_narrow(p->window, p->causal);
    const form *best = NULL;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const form *f = &forms[i];
        if (f->dtype == problem->dtype && f->width >= width && !(narrow && keys_of(f) > DKV_KEYS) &&
            blocks_fit(f, problem->layout) &&
            (!best || f->width < best->width || (f->width == best->width && f->side > best->side)))
            best = f;
    }
    return best;
}

/* --- Accepting --- */

static bool is_side(int32_t block)
{
    return block == DKV_KEYS / 8 || block == DKV_KEYS / 4 || block == DKV_KEYS / 2 ||
           block % DKV_KEYS == 0;
}

/* Tiles and lists of all heads, pieces, and the steps of a tile have 32 bits; places in lists, where
 * views of many parts lead to them, what those have for it. */
static bool lists_fit(const bsk_problem *problem)
{
    const bsk_attention_grad_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    int64_t lists, pieces, steps;
    return bski_mul_i64(p->q.dims[0], p->q.dims[1], &lists) &&
           bski_mul_i64(lists, bski_ceil_div(t->cols, DKV_KEYS), &lists) && lists <= INT32_MAX &&
           (!DKV_MANY(t->block_rows) || t->grid_rows <= ATTENTION_PLACES) &&
           bski_mul_i64(t->nnz, bski_ceil_div(t->block_rows, DKV_KEYS / 2), &pieces) &&
           pieces <= INT32_MAX &&
           bski_mul_i64(p->q.dims[1], bski_ceil_div(t->rows, DKV_LEAST), &steps) &&
           steps < INT32_MAX;
}

bsk_reason bski_attention90_dkv_accept(const bsk_problem *problem)
{
    const bsk_attention_grad_params *p = problem->params;
    const bsk_layout_tables *t = problem->layout;
    if (!is_side(t->block_rows) || !is_side(t->block_cols))
        return BSK_REFUSE_BLOCK;
    const form *f = form_of(problem);
    if (!f || !attention90_runs_fit(t, p->interleave, 1, keys_of(f)))
        return BSK_REFUSE_SHAPE;
    if (!bski_attention90_out_fits(&p->dk) || !bski_attention90_out_fits(&p->dv))
        return BSK_REFUSE_STRIDE;
    return lists_fit(problem) ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

/* --- Plans --- */

typedef struct state {
    bski_cuda_encoder encoder;
    bski_cuda_tensor q, k, v, dout;
    const form *form;
    int32_t blocks;                                   /* of threads; 0: nothing to do */
    bsk_mem pieces, slots, list_start, order, starts; /* device */
    attention_dkv_arg arg;
} state;

typedef struct builder {
    simt_device *device;
    const bsk_attention_grad_params *p;
    const bsk_layout_tables *t;
    state *out;
    /* host memory while a plan is made */
    attention_piece *pieces;
    int32_t *slots; /* [pieces][parts], of many parts with masks */
    int32_t *list_start;
    int32_t *list_steps; /* [layout heads][tiles] of a tile without lengths */
    int32_t *steps;      /* [patterns][tiles]: of all query heads of one of keys */
    int32_t count;       /* pieces so far */
    attention90_schedule schedule;
} builder;

static void scratch_free(builder *b)
{
    void *all[] = {b->pieces, b->slots,          b->list_start,    b->list_steps,
                   b->steps,  b->schedule.order, b->schedule.start};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        host_drop(b->device->host, all[i]);
}

/* The queries of a block row, if they are of the keys' run; slots are of its blocks with the parts
 * of the keys. */
static void list_rows(builder *b, int32_t run, int32_t block, const int32_t *slots, int32_t parts)
{
    const int32_t q_time = b->out->arg.all.q_time;
    attention_piece piece = {0, {slots[0], slots[parts - 1]}, 0};
    if (DKV_MANY(b->out->form->side)) {
        piece.slot[0] = 0;
        for (int32_t i = 0; i < parts; i++)
            piece.slot[0] |= (slots[i] >= 0) << i;
        if (b->slots)
            memcpy(b->slots + (int64_t)b->count * parts, slots, (size_t)parts * sizeof *slots);
    }
    for (int32_t i = 0; i < b->t->block_rows; i += piece_of(b->out->form)) {
        const int64_t row = (int64_t)block * b->t->block_rows + i - (int64_t)run * q_time;
        piece.row = (int32_t)row;
        if (row >= 0 && row < q_time)
            b->pieces[b->count++] = piece;
    }
}

/* Block columns first .. first + columns - 1 of a head of the layout, by rows. */
static void list_columns(builder *b, int32_t head, int32_t first, int32_t columns)
{
    const bsk_layout_tables *t = b->t;
    const int64_t *start = t->col_start + (int64_t)head * (t->grid_cols + 1);
    const int32_t run = (int32_t)((int64_t)first * t->block_cols / b->out->arg.all.k_time);
    int64_t at[DKV_KEYS / DKV_LEAST], end[DKV_KEYS / DKV_LEAST];
    int32_t slots[DKV_KEYS / DKV_LEAST];
    for (int32_t i = 0; i < columns; i++) {
        const int32_t col = first + i < t->grid_cols ? first + i : t->grid_cols;
        at[i] = start[col];
        end[i] = col < t->grid_cols ? start[col + 1] : at[i];
    }
    for (;;) {
        int32_t row = INT32_MAX;
        for (int32_t i = 0; i < columns; i++)
            if (at[i] < end[i] && t->col_row[at[i]] < row)
                row = t->col_row[at[i]];
        if (row == INT32_MAX)
            return;
        for (int32_t i = 0; i < columns; i++)
            slots[i] = at[i] < end[i] && t->col_row[at[i]] == row ? t->col_slot[at[i]++] : -1;
        list_rows(b, run, row, slots, columns);
    }
}

static bsk_status build_lists(builder *b)
{
    const bsk_layout_tables *t = b->t;
    attention_dkv_arg *a = &b->out->arg;
    const int32_t keys = keys_of(b->out->form);
    const int32_t span = t->block_cols > keys ? t->block_cols : keys; /* keys of a list */
    const int32_t columns = span / t->block_cols;
    a->each = span / keys;
    a->lists = (int32_t)bski_ceil_div(t->cols, span);
    a->tiles = (int32_t)bski_ceil_div(t->cols, keys);
    a->run_tiles = (int32_t)bski_ceil_div(a->all.k_time, keys);
    const int64_t lists = (int64_t)t->heads * a->lists + 1;
    const int64_t most = t->nnz * t->block_rows / piece_of(b->out->form);
    const bool masked = DKV_MANY(b->out->form->side) && a->all.masks > 0;
    TRY(host_array(b->device->host, &b->list_start, lists, sizeof *b->list_start));
    TRY(host_array(b->device->host, &b->pieces, most, sizeof *b->pieces));
    if (masked)
        TRY(host_array(b->device->host, &b->slots, most * columns, sizeof *b->slots));
    for (int32_t head = 0; head < t->heads; head++)
        for (int32_t l = 0; l < a->lists; l++) {
            list_columns(b, head, l * columns, columns);
            b->list_start[(int64_t)head * a->lists + l + 1] = b->count;
        }
    TRY(table_place(b->device, b->pieces, b->count, sizeof *b->pieces, &b->out->pieces,
                    &a->pieces));
    if (masked)
        TRY(table_place(b->device, b->slots, (int64_t)b->count * columns, sizeof *b->slots,
                        &b->out->slots, &a->all.slots));
    return table_place(b->device, b->list_start, lists, sizeof *b->list_start, &b->out->list_start,
                       &a->list_start);
}

/* Steps of a list for the tile of keys whose member has all times. */
static int32_t count_steps(const builder *b, int32_t head, int32_t tile)
{
    const attention_dkv_arg *a = &b->out->arg;
    const form *f = b->out->form;
    const int32_t keys = keys_of(f), rows = piece_of(f), *start = b->list_start + head * a->lists;
    const int64_t key = (int64_t)(tile % a->run_tiles) * keys, last = key + keys - 1;
    const int64_t shift = a->all.align_end ? a->all.k_time - a->all.q_time : 0;
    int32_t pieces = 0;
    for (int32_t i = start[tile / a->each]; i < start[tile / a->each + 1]; i++) {
        const int64_t row = b->pieces[i].row + shift, row_end = row + rows - 1;
        pieces += (!a->all.causal || row_end >= key) &&
                  (!a->all.window || (row - last < a->all.window && key - row_end < a->all.window));
    }
    return (int32_t)bski_ceil_div(pieces, DKV_STEP / rows);
}

static bsk_status count_all_steps(builder *b)
{
    const bsk_layout_tables *t = b->t;
    const int32_t tiles = b->out->arg.tiles, group = b->out->arg.all.group;
    const int32_t patterns = t->heads > 1 ? (int32_t)b->p->k.dims[1] : 1;
    const bsk_host *host = b->device->host;
    TRY(host_array(host, &b->list_steps, (int64_t)t->heads * tiles, sizeof *b->list_steps));
    TRY(host_array(host, &b->steps, (int64_t)patterns * tiles, sizeof *b->steps));
    for (int32_t head = 0; head < t->heads; head++)
        for (int32_t i = 0; i < tiles; i++)
            b->list_steps[(int64_t)head * tiles + i] = count_steps(b, head, i);
    for (int32_t k = 0; k < patterns; k++)
        for (int32_t i = 0; i < tiles; i++) {
            int32_t *sum = &b->steps[(int64_t)k * tiles + i];
            for (int32_t g = 0; g < group; g++) {
                const int32_t head = (k * group + g) / b->out->arg.per_head;
                *sum += b->list_steps[(int64_t)head * tiles + i];
            }
            *sum = *sum > 0 ? *sum : 1;
        }
    b->schedule.steps = b->steps;
    b->schedule.period = patterns;
    b->schedule.each = 1;
    return BSK_OK;
}

/* Heads of keys by groups, so that the queries and gradients that are in use at a time fit into the
 * L2 cache. */
static int32_t heads_at_once(const builder *b)
{
    enum { AT_ONCE = 4 };
    const int32_t group = b->out->arg.all.group;
    return group < AT_ONCE ? AT_ONCE / group : 1;
}

static bsk_status build_schedule(builder *b)
{
    attention90_schedule *s = &b->schedule;
    state *out = b->out;
    TRY(count_all_steps(b));
    s->heads = (int32_t)(b->p->k.dims[0] * b->p->k.dims[1]);
    s->tiles = out->arg.tiles;
    s->together = heads_at_once(b);
    s->rings = out->form->rings;
    s->blocks = b->device->props.compute_units;
    TRY(bski_attention90_schedule(b->device->host, s));
    TRY(table_place(b->device, s->order, (int64_t)s->heads * s->tiles, sizeof *s->order,
                    &out->order, &out->arg.order));
    TRY(table_place(b->device, s->start, (int64_t)s->blocks * s->rings + 1, sizeof *s->start,
                    &out->starts, &out->arg.all.tile_start));
    out->blocks = s->blocks;
    return BSK_OK;
}

static bsk_status build(builder *b, const bsk_problem *problem)
{
    const bsk_attention_grad_params *p = b->p;
    state *s = b->out;
    s->form = form_of(problem);
    s->q = attention90_tensor(&p->q, piece_of(s->form), p->interleave);
    s->k = attention90_tensor(&p->k, DKV_KEYS, p->interleave);
    s->v = attention90_tensor(&p->v, DKV_KEYS, p->interleave);
    s->dout = attention90_tensor(&p->dout, piece_of(s->form), p->interleave);
    s->arg = (attention_dkv_arg){
        .all = {ATTENTION90_ARG(p, b->t)},
        .dout = bski_attention90_in(&p->dout, p->interleave),
        .dk = bski_attention90_out(&p->dk, p->interleave),
        .dv = bski_attention90_out(&p->dv, p->interleave),
        .pad = (int32_t)(bski_ceil_div(p->q.dims[2], ATTENTION_ROWS) * ATTENTION_ROWS),
        .per_head = (int32_t)(p->q.dims[1] / b->t->heads),
        .key_heads = (int32_t)p->k.dims[1],
    };
    TRY(bski_cuda_encoder_find(b->device, &s->encoder));
    TRY(bski_cuda_kernel((const bski_cuda_device *)b->device, s->form->function,
                         s->form->shared_bytes, s->form->name));
    TRY(build_lists(b));
    return build_schedule(b);
}

bsk_status bski_attention90_dkv_plan(bski_cuda_device *device, const bsk_problem *problem,
                                     void **out)
{
    simt_device *d = &device->simt;
    builder b = {.device = d, .p = problem->params, .t = problem->layout};
    *out = NULL;
    TRY(host_array(d->host, &b.out, 1, sizeof *b.out));
    *out = b.out;
    const bsk_status status = build(&b, problem);
    scratch_free(&b);
    return status;
}

void bski_attention90_dkv_free(bski_cuda_device *device, void *given)
{
    state *s = given;
    if (!s)
        return;
    bsk_mem *all[] = {&s->pieces, &s->slots, &s->list_start, &s->order, &s->starts};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        table_drop(&device->simt, all[i]);
    host_drop(device->simt.host, s);
}

/* --- Running --- */

bsk_status bski_attention90_dkv_launch(const void *given, const bsk_problem *problem,
                                       const bski_cuda_queue *queue,
                                       const bsk_attention_grad_args *args, const float *bound,
                                       const float *delta)
{
    const bsk_attention_grad_params *p = problem->params;
    const state *s = given;
    CUtensorMap q, k, v, dout;
    TRY(bski_cuda_tensor_map(&s->encoder, &s->q, bsk_mem_address(args->q), &q));
    TRY(bski_cuda_tensor_map(&s->encoder, &s->k, bsk_mem_address(args->k), &k));
    TRY(bski_cuda_tensor_map(&s->encoder, &s->v, bsk_mem_address(args->v), &v));
    TRY(bski_cuda_tensor_map(&s->encoder, &s->dout, bsk_mem_address(args->dout), &dout));
    attention_dkv_arg arg = s->arg;
    double rest;
    ATTENTION90_SET_RUN(&arg.all, p, args);
    arg.dout.data = bsk_mem_address(args->dout);
    arg.dk.data = bsk_mem_address(args->dk);
    arg.dv.data = bsk_mem_address(args->dv);
    arg.bound = bound;
    arg.delta = delta;
    arg.slope = (float)bski_attention90_slope(args->scale, p->q.dims[3], &rest);
    arg.dk_factor = (float)(args->alpha * rest);
    arg.dv_factor = (float)args->alpha;
    arg.beta = (float)args->beta;
    void *arguments[] = {&q, &k, &v, &dout, &arg};
    const bski_cuda_run run = {.function = s->form->function,
                               .name = s->form->name,
                               .grid = {(unsigned)s->blocks, 1, 1},
                               .threads = DKV_THREADS((unsigned)s->form->groups),
                               .shared_bytes = s->form->shared_bytes,
                               .arguments = arguments,
                               .early = true};
    return bski_cuda_launch(queue, &run);
}
