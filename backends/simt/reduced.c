/* Host side of reduced_wgrad. */
#include <backends/simt/products_host.h>

ENTRY(reduced_wgrad)

typedef struct reduced_state {
    const simt_kernel *norms, *products, *finish;
    norm_arg x, dy;
    reduced_arg product;
    finish_arg end;
    i64 x_groups, dy_groups, product_groups;
    size_t x_at, dy_at, parts; /* in the workspace */
} reduced_state;

static norm_arg norm_fill(const bsk_tensor *t, bsk_axis axis, i32 block, bsk_norm norm)
{
    const int n = axis == BSK_NC ? 0 : 1, feature = 1 - n;
    return (norm_arg){.x_n = t->strides[n],
                      .x_feature = t->strides[feature],
                      .n = t->dims[n],
                      .features = t->dims[feature],
                      .block = block,
                      .norm = (i32)norm,
                      .type = (i32)t->dtype,
                      .along_n = t->strides[feature] != 1};
}

static bool reduced_shape(const bsk_device_props *props, const bsk_problem *problem,
                          reduced_state *state, size_t *bytes)
{
    const bsk_reduced_wgrad_params *p = problem->params;
    const bsk_dtype dtype = problem->dtype;
    const i64 rows = p->g.dims[0], cols = p->g.dims[1];
    size_t x, dy, parts;
    i64 tiles, end_groups;

    state->x = norm_fill(&p->x, p->axis, p->block_rows, p->norm);
    state->dy = norm_fill(&p->dy, p->axis, p->block_cols, p->norm);
    const i64 n = state->x.n, strips = bski_ceil_div(n, NORM_ROWS);
    if (!grid_size(bski_ceil_div(rows, PRODUCT_ROWS), bski_ceil_div(cols, PRODUCT_COLS), 1, &tiles))
        return false;
    const i32 splits = split_count(props, tiles, n, MAX_SPLITS);
    state->product = (reduced_arg){.n = n, .rows = rows, .cols = cols, .splits = splits};
    state->end = finish_of(dtype, rows, cols, p->g.strides[0], splits);
    if (!grid_size(strips, rows, 1, &state->x_groups) ||
        !grid_size(strips, cols, 1, &state->dy_groups) ||
        !grid_size(tiles, splits, 1, &state->product_groups) ||
        !plane_size(1, rows, n, dtype, &x) || !plane_size(1, cols, n, dtype, &dy) ||
        !plane_size(splits, rows, cols, dtype, &parts) || !finish_groups(&state->end, &end_groups))
        return false;
    state->x_at = 0;
    state->dy_at = x;
    return bski_add_size(x, dy, &state->parts) && bski_add_size(state->parts, parts, bytes);
}

bsk_reason simt_reduced_wgrad_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    reduced_state state = {0};
    size_t bytes;
    if (!dtype_runs(props, problem->dtype))
        return BSK_REFUSE_DTYPE;
    return device_fits(props) && reduced_shape(props, problem, &state, &bytes) ? BSK_ACCEPT
                                                                               : BSK_REFUSE_LIMIT;
}

bsk_status simt_reduced_wgrad_prepare(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    const bsk_dtype dtype = prepared->problem->dtype;
    TRY(state_new(d, sizeof(reduced_state), prepared));
    reduced_state *state = prepared->state;
    bsk_status status = BSK_OK;
    if (!reduced_shape(&d->props, prepared->problem, state, &prepared->workspace_bytes))
        status = limit_fail(d, "reduced_wgrad");
    if (!status)
        status = small_kernel(d, "products", "block_norms", dtype, &state->norms);
    if (!status)
        status = small_kernel(d, "products", "norm_products", dtype, &state->products);
    if (!status)
        status = small_kernel(d, "products", "parts_finish", dtype, &state->finish);
    if (status)
        simt_reduced_wgrad_release(device, prepared);
    return status;
}

bsk_status simt_reduced_wgrad_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_reduced_wgrad_args *a = args;
    const bsk_reduced_wgrad_params *p = prepared->problem->params;
    const bsk_dtype dtype = prepared->problem->dtype;
    const reduced_state *state = prepared->state;
    simt_queue *q = queue;
    const bsk_mem x = bsk_mem_at(a->workspace, state->x_at);
    const bsk_mem dy = bsk_mem_at(a->workspace, state->dy_at);
    const bsk_mem parts = bsk_mem_at(a->workspace, state->parts);
    reduced_arg product = state->product;
    for (i32 pair = 0; pair < p->pairs; pair++) {
        const bsk_mem x_buffers[] = {a->x[pair], x}, dy_buffers[] = {a->dy[pair], dy};
        const bsk_mem buffers[] = {x, dy, parts};
        TRY(LAUNCH(q, state->norms, state->x_groups, LANES, x_buffers, state->x));
        TRY(LAUNCH(q, state->norms, state->dy_groups, LANES, dy_buffers, state->dy));
        product.accumulate = pair > 0;
        TRY(LAUNCH(q, state->products, state->product_groups, LANES, buffers, product));
    }
    return finish_launch(q, state->finish, &state->end, dtype, a->alpha, a->beta, parts, a->g);
}

void simt_reduced_wgrad_release(void *device, bsk_prepared *prepared)
{
    if (prepared->state)
        state_free(device, prepared);
}
