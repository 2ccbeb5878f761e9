/* Growing and pruning while training: the weakest blocks of the sparse layers are dropped, or move
 * to random empty places, where they start from zero. Values, moments and averages move along. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "model.h"

/* Where the blocks of one parameter come from: -1 for new ones. */
typedef struct move {
    bsk_layout *layout;
    int32_t *source;
    int64_t count;
} move;

/* The norm of each block, and the gates that keep the share 1 - drop of them; host arrays. */
static void block_strength(model *m, const param *x, int64_t count, double drop, float *norm,
                           float *gate)
{
    machine *on = m->machine;
    bsk_block_norm_params measure = BSK_INIT(bsk_block_norm_params);
    measure.layout = x->layout;
    measure.type = BSK_NORM_L2;
    measure.w = x->desc;
    measure.w.dtype = BSK_F32;
    measure.norm = bsk_tensor_1d(BSK_F32, count);
    bsk_prune_params prune = BSK_INIT(bsk_prune_params);
    prune.norm = prune.gate = measure.norm;
    bsk_plan *norm_plan = NULL, *prune_plan = NULL;
    CHECK(bsk_block_norm_plan(on->device, &measure, NULL, &norm_plan));
    CHECK(bsk_prune_sparsity_plan(on->device, &prune, NULL, &prune_plan));
    machine_workspace(on, norm_plan);
    machine_workspace(on, prune_plan);

    const size_t bytes = (size_t)count * sizeof(float);
    bsk_mem norms = machine_alloc(on, bytes), gates = machine_alloc(on, bytes);
    bsk_block_norm_args measure_args = BSK_INIT(bsk_block_norm_args);
    measure_args.workspace = on->workspace;
    measure_args.w = tensor_view(m->p.value, x->at, measure.w).mem;
    measure_args.norm = norms;
    CHECK(bsk_block_norm_run(norm_plan, on->queue, &measure_args));
    bsk_prune_args prune_args = BSK_INIT(bsk_prune_args);
    prune_args.workspace = on->workspace;
    prune_args.value = drop;
    prune_args.norm = norms;
    prune_args.gate = gates;
    CHECK(bsk_prune_sparsity_run(prune_plan, on->queue, &prune_args));
    machine_download(on, norm, norms, bytes);
    machine_download(on, gate, gates, bytes);
    machine_free(on, &norms, bytes);
    machine_free(on, &gates, bytes);
    bsk_plan_destroy(&norm_plan);
    bsk_plan_destroy(&prune_plan);
}

/* The density that pruning has reached at this step: linear down to the last third. */
static double density_now(const model *m, double progress)
{
    const config *c = &m->c;
    if (c->prune_to <= 0 || c->prune_to >= c->density)
        return c->density;
    const double way = progress * 1.5;
    return c->density + (c->prune_to - c->density) * (way < 1 ? way : 1);
}

/* Plans the moves of one sparse parameter. */
static move move_plan(model *m, const param *x, double density, uint64_t seed)
{
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK(bsk_layout_query(x->layout, &info));
    const int64_t count = info.nnz;
    // without pruning the count stays, whatever the density was rounded to
    const double share = density * info.grid_rows * info.grid_cols;
    const double wanted = density < m->c.density ? fmax(1, round(share)) : (double)count;
    const double drop = wanted < (double)count ? 1 - wanted / (double)count : 0;
    float *norm = check_alloc(2 * (size_t)count * sizeof *norm);
    float *gate = norm + count;
    uint8_t *keep = check_alloc((size_t)count);
    move result = {NULL, check_alloc((size_t)count * sizeof *result.source), 0};
    block_strength(m, x, count, drop, norm, gate);

    bsk_layout *compact = NULL;
    CHECK(bsk_layout_compact(x->layout, gate, result.source, &compact));
    CHECK(bsk_layout_query(compact, &info));
    result.count = info.nnz;
    for (int64_t i = 0; i < info.nnz; i++)
        gate[i] = norm[result.source[i]];
    CHECK(bsk_pattern_evolve(compact, gate, m->c.evolve_share, seed, keep, &result.layout));
    for (int64_t i = 0; i < info.nnz; i++)
        if (!keep[i])
            result.source[i] = -1;
    bsk_layout_release(&compact);
    free(norm);
    free(keep);
    return result;
}

/* y = the blocks of x in their new order. */
static void blocks_move(machine *on, tensor x, tensor y, bsk_mem index, int64_t count)
{
    bsk_block_gather_params params = BSK_INIT(bsk_block_gather_params);
    params.x = x.desc;
    params.index = bsk_tensor_1d(BSK_I32, count);
    params.y = y.desc;
    bsk_plan *plan = NULL;
    CHECK(bsk_block_gather_plan(on->device, &params, NULL, &plan));
    machine_workspace(on, plan);
    bsk_block_gather_args args = BSK_INIT(bsk_block_gather_args);
    args.workspace = on->workspace;
    args.x = x.mem;
    args.index = index;
    args.y = y.mem;
    CHECK(bsk_block_gather_run(plan, on->queue, &args));
    CHECK(bsk_queue_sync(on->queue));
    bsk_plan_destroy(&plan);
}

/* All arrays of a parameter from the old store to the new one. */
static void param_move(machine *on, const param_store *old, const param_store *fresh, int i,
                       const move *how, program *copies)
{
    const tensor *const from[] = {&old->value, &old->m, &old->v, &old->average};
    const tensor *const to[] = {&fresh->value, &fresh->m, &fresh->v, &fresh->average};
    const param *x = &old->list[i], *y = &fresh->list[i];
    bsk_mem index = {BSK_MEM_NULL, NULL, 0, 0};
    const size_t bytes = (size_t)how->count * sizeof *how->source;
    if (how->layout) {
        index = machine_alloc(on, bytes);
        machine_upload(on, index, how->source, bytes);
    }
    for (size_t k = 0; k < sizeof from / sizeof *from; k++) {
        if (!from[k]->desc.dtype)
            continue;
        const tensor a = tensor_view(*from[k], x->at, x->desc);
        const tensor b = tensor_view(*to[k], y->at, y->desc);
        if (how->layout)
            blocks_move(on, a, b, index, how->count);
        else
            op_cast(copies, a, b);
    }
    machine_free(on, &index, bytes);
}

void model_evolve(model *m, double progress)
{
    param_store old = m->p;
    move *moves = check_alloc((size_t)old.count * sizeof *moves);
    memset(moves, 0, (size_t)old.count * sizeof *moves);
    const double density = density_now(m, progress);
    const uint64_t seed = seed_mix((uint64_t)m->c.seed + 2, (uint64_t)m->step);
    param_store fresh;
    params_create(&fresh, m->machine, old.compute, &old.options);
    for (int i = 0; i < old.count; i++) {
        const param *x = &old.list[i];
        bsk_layout_info info = BSK_INIT(bsk_layout_info);
        if (x->layout)
            CHECK(bsk_layout_query(x->layout, &info));
        if (x->layout && info.density < 1)
            moves[i] = move_plan(m, x, density, seed_mix(seed, (uint64_t)i));
        if (x->layout)
            params_add_sparse(
                &fresh, moves[i].layout ? moves[i].layout : bsk_layout_retain(x->layout), x->init);
        else if (x->kind == PARAM_MATRIX)
            params_add_dense(&fresh, x->desc.dims[0], x->desc.dims[1], x->init);
        else
            params_add_vector(&fresh, x->desc.dims[0], x->init);
    }
    params_allocate(&fresh, seed);
    program copies;
    program_create(&copies, m->machine);
    for (int i = 0; i < old.count; i++)
        param_move(m->machine, &old, &fresh, i, &moves[i], &copies);
    op_cast(&copies, old.scale, fresh.scale);
    op_cast(&copies, old.good, fresh.good);
    op_cast(&copies, old.steps, fresh.steps);
    program_run(&copies, 0);
    program_destroy(&copies);

    m->p = fresh;
    params_refresh(&m->p);
    model_record(m);
    params_destroy(&old);
    for (int i = 0; i < m->p.count; i++)
        free(moves[i].source);
    free(moves);
}
