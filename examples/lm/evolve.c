/* Growing and pruning while training: the weakest blocks of the sparse layers are dropped, or move
 * to random empty places, where they start from zero. Values, moments, averages and gates move
 * along. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "check.h"
#include "model.h"

/* Where the blocks of one parameter come from: -1 for new ones. */
typedef struct move {
    bsk_layout *layout; /* NULL: nothing moves */
    int32_t *source;
    int64_t count;
} move;

/* The norms below which blocks are dropped whatever the density: none; those of closed gates; what
 * a single step of Adam makes of zeros. */
static double norm_least(const model *m, const param *x)
{
    switch (m->c.prune_by) {
    case PRUNE_L0:
        return FLT_MIN;
    case PRUNE_LASSO:
        return m->lr * param_block_root(x);
    default:
        return 0;
    }
}

/* The norm of each block, as gated, and gates that keep the share 1 - drop of them and none below
 * the least norm; host arrays. */
static void block_strength(const model *m, const param *x, double drop, float *norm, float *gate)
{
    const size_t count = (size_t)x->desc.dims[0];
    program p;
    program_create(&p, m->machine);
    const tensor norms = program_tensor(&p, bsk_tensor_1d(BSK_F32, x->desc.dims[0]));
    const tensor kept = program_tensor(&p, norms.desc), strong = program_tensor(&p, norms.desc);
    op_block_norm(&p, x->layout, tensor_view(m->p.value, x->at, x->desc), norms);
    if (x->gates) {
        const tensor open = program_tensor(&p, norms.desc);
        op_gates_infer(&p, param_value(&m->p, x->gates, SET_TRAIN), open);
        op_multiply(&p, norms, open, norms);
    }
    op_prune_sparsity(&p, drop, norms, kept);
    op_prune_threshold(&p, norm_least(m, x), norms, strong);
    op_multiply(&p, kept, strong, kept);
    program_run(&p, 0);
    machine_download(m->machine, norm, norms.mem, count * sizeof *norm);
    machine_download(m->machine, gate, kept.mem, count * sizeof *gate);
    program_destroy(&p);

    size_t best = 0; // a layer keeps at least one block
    for (size_t i = 1; i < count; i++)
        if (norm[i] > norm[best])
            best = i;
    gate[best] = 1;
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
static move move_plan(const model *m, const param *x, double density, uint64_t seed)
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
    block_strength(m, x, drop, norm, gate);

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

/* What a store keeps of a parameter, as blocks. */
enum { ARRAYS = 4 };

static tensor array_blocks(const param_store *p, const param *x, int array)
{
    const tensor *const all[ARRAYS] = {&p->value, &p->average, &p->m, &p->v};
    bsk_tensor desc = x->desc;
    if (x->kind == PARAM_GATES)
        desc = bsk_tensor_3d(BSK_NONE, x->desc.dims[0], 1, 1);
    return all[array]->desc.dtype ? tensor_view(*all[array], x->at, desc) : absent;
}

/* Gates of new blocks begin as all gates did. */
static void gates_start(machine *on, tensor t, const move *how, double init)
{
    const size_t bytes = (size_t)how->count * sizeof(float);
    float *values = check_alloc(bytes);
    machine_download(on, values, t.mem, bytes);
    for (int64_t i = 0; i < how->count; i++)
        if (how->source[i] < 0)
            values[i] = (float)init;
    machine_upload(on, t.mem, values, bytes);
    free(values);
}

/* All arrays of a parameter from the old store to the new one. */
static void param_move(machine *on, const param_store *old, const param_store *fresh, int i,
                       const move *how)
{
    const param *x = &old->list[i], *y = &fresh->list[i];
    program p;
    program_create(&p, on);
    const tensor index =
        how->layout ? program_data(&p, bsk_tensor_1d(BSK_I32, how->count), how->source) : absent;
    for (int k = 0; k < ARRAYS; k++) {
        const tensor from = array_blocks(old, x, k), to = array_blocks(fresh, y, k);
        if (!from.desc.dtype)
            continue;
        if (how->layout)
            op_block_gather(&p, from, index, to);
        else
            op_cast(&p, from, to);
    }
    program_run(&p, 0);
    for (int k = 0; k < 2 && x->kind == PARAM_GATES; k++) // the value and its average
        if (array_blocks(fresh, y, k).desc.dtype)
            gates_start(on, array_blocks(fresh, y, k), how, x->init);
    program_destroy(&p);
}

static void counters_move(machine *on, const param_store *old, const param_store *fresh)
{
    program p;
    program_create(&p, on);
    op_cast(&p, old->scale, fresh->scale);
    op_cast(&p, old->good, fresh->good);
    op_cast(&p, old->steps, fresh->steps);
    program_run(&p, 0);
    program_destroy(&p);
}

/* The same parameters with the layouts that the moves lead to. */
static void params_declare_again(param_store *fresh, const param_store *old, const move *moves)
{
    for (int i = 0; i < old->count; i++) {
        const param *x = &old->list[i];
        if (x->layout)
            params_add_sparse(
                fresh, moves[i].layout ? moves[i].layout : bsk_layout_retain(x->layout), x->init);
        else if (x->kind == PARAM_MATRIX)
            params_add_dense(fresh, x->desc.dims[0], x->desc.dims[1], x->init);
        else if (x->kind == PARAM_VECTOR)
            params_add_vector(fresh, x->desc.dims[0], x->init);
    }
    if (old->list[old->count - 1].kind == PARAM_GATES)
        params_add_gates(fresh);
}

void model_evolve(model *m, double progress)
{
    param_store old = m->p, fresh;
    move *moves = check_alloc((size_t)old.count * sizeof *moves);
    memset(moves, 0, (size_t)old.count * sizeof *moves);
    const double density = density_now(m, progress);
    const uint64_t seed = seed_mix((uint64_t)m->c.seed + 2, (uint64_t)m->step);
    for (int i = 0; i < old.count; i++)
        if (param_is_sparse(&old.list[i])) {
            moves[i] = move_plan(m, &old.list[i], density, seed_mix(seed, (uint64_t)i));
            if (old.list[i].gates)
                moves[old.list[i].gates] = moves[i];
        }
    params_create(&fresh, m->machine, old.compute, &old.options);
    params_declare_again(&fresh, &old, moves);
    params_allocate(&fresh, seed);
    for (int i = 0; i < old.count; i++)
        param_move(m->machine, &old, &fresh, i, &moves[i]);
    counters_move(m->machine, &old, &fresh);
    for (int i = 0; i < old.count; i++)
        if (old.list[i].layout)
            free(moves[i].source);
    free(moves);

    m->p = fresh;
    params_refresh(&m->p);
    model_record(m);
    params_destroy(&old);
}
