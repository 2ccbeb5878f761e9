/* What --evolve does to a model: layouts change as asked, blocks that stay keep all their numbers, new
 * ones begin from zero, and dropping closed gates changes no prediction. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "model.h"

enum { TEXT_SIZE = 4000, STEPS = 12, MORE_STEPS = 30 };

static int passed, failed;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (condition) {                                                                           \
            passed++;                                                                              \
        } else {                                                                                   \
            failed++;                                                                              \
            fprintf(stderr, "%s:%d: %s: failed: %s\n", __FILE__, __LINE__, test->name,             \
                    #condition);                                                                   \
        }                                                                                          \
    } while (0)

static const struct test_row {
    const char *name;
    config c;
} tests[] = {
#define TRANSFORMER                                                                                \
    .time = 16, .layers = 1, .width = 32, .hidden = 64, .heads = 2, .block = 8,                    \
    .attention_block = 8, .stride = 8, .pattern = PATTERN_ALL, .batch = 4, .density = 0.5
    {"norm", {TRANSFORMER, .evolve_share = 0.25}},
    {"pruned", {TRANSFORMER, .evolve_share = 0.25, .prune_to = 0.25, .ema = 0.5}},
    {"bf16", {TRANSFORMER, .evolve_share = 0.25, .prune_to = 0.25, .dtype = BSK_BF16}},
    {"l0", {TRANSFORMER, .evolve_share = 0.25, .prune_by = PRUNE_L0, .prune_rate = 0.1}},
    {"l0 bf16",
     {TRANSFORMER, .prune_by = PRUNE_L0, .prune_rate = 0.1, .dtype = BSK_BF16, .ema = 0.5}},
    {"lasso", {TRANSFORMER, .evolve_share = 0.25, .prune_by = PRUNE_LASSO, .prune_rate = 1}},
    {"lstm",
     {.kind = 1,
      .time = 4,
      .layers = 1,
      .width = 16,
      .hidden = 32,
      .heads = 1,
      .block = 8,
      .attention_block = 8,
      .stride = 8,
      .batch = 4,
      .density = 0.5,
      .evolve_share = 0.25}},
    {"mlp",
     {.kind = 2,
      .time = 1,
      .layers = 2,
      .width = 8,
      .hidden = 32,
      .heads = 1,
      .block = 8,
      .attention_block = 8,
      .stride = 8,
      .context = 3,
      .buckets_log2 = 4,
      .batch = 16,
      .density = 0.5,
      .evolve_share = 0.25,
      .prune_to = 0.25}},
};

/* A parameter on the host. */
typedef struct snapshot {
    bsk_layout *layout;
    size_t count;
    float *value, *m, *v;
} snapshot;

static float *numbers(model *m, const tensor *t, const param *x)
{
    float *values = check_alloc(x->count * sizeof *values);
    machine_download(m->machine, values, tensor_view(*t, x->at, x->desc).mem,
                     x->count * sizeof *values);
    return values;
}

static snapshot *snapshots_take(model *m)
{
    snapshot *all = check_alloc((size_t)m->p.count * sizeof *all);
    for (int i = 0; i < m->p.count; i++) {
        const param *x = &m->p.list[i];
        all[i] = (snapshot){bsk_layout_retain(x->layout), x->count, numbers(m, &m->p.value, x),
                            numbers(m, &m->p.m, x), numbers(m, &m->p.v, x)};
    }
    return all;
}

static void snapshots_free(snapshot *all, int count)
{
    for (int i = 0; i < count; i++) {
        bsk_layout_release(&all[i].layout);
        free(all[i].value);
        free(all[i].m);
        free(all[i].v);
    }
    free(all);
}

static int same_block(const snapshot *a, int64_t i, const snapshot *b, int64_t k, size_t size)
{
    const size_t at = (size_t)i * size, to = (size_t)k * size, bytes = size * sizeof(float);
    return !memcmp(a->value + at, b->value + to, bytes) && !memcmp(a->m + at, b->m + to, bytes) &&
           !memcmp(a->v + at, b->v + to, bytes);
}

static int zero_block(const snapshot *a, int64_t i, size_t size)
{
    for (size_t k = (size_t)i * size; k < (size_t)(i + 1) * size; k++)
        if (a->value[k] != 0 || a->m[k] != 0 || a->v[k] != 0)
            return 0;
    return 1;
}

static double block_norm(const snapshot *a, int64_t i, size_t size)
{
    double sum = 0;
    for (size_t k = (size_t)i * size; k < (size_t)(i + 1) * size; k++)
        sum += (double)a->value[k] * a->value[k];
    return sqrt(sum);
}

/* A layer whose blocks may move; its gates, or NULL. */
static void check_blocks(const struct test_row *test, const snapshot *old, const snapshot *fresh,
                         const snapshot *old_gates, const snapshot *gates)
{
    bsk_layout_info was = BSK_INIT(bsk_layout_info), is = BSK_INIT(bsk_layout_info);
    CHECK(bsk_layout_query(old->layout, &was));
    CHECK(bsk_layout_query(fresh->layout, &is));
    EXPECT(is.rows == was.rows && is.cols == was.cols && is.block_rows == was.block_rows &&
           is.block_cols == was.block_cols && is.heads == 1);
    const size_t size = (size_t)is.block_rows * (size_t)is.block_cols;
    EXPECT(fresh->count == size * (size_t)is.nnz);
    const double grid = (double)is.grid_rows * is.grid_cols;
    if (test->c.prune_by == PRUNE_NORM) // at the end of the training
        EXPECT(test->c.prune_to > 0 ? is.nnz == lround(test->c.prune_to * grid)
                                    : is.nnz == was.nnz);
    else
        EXPECT(is.nnz >= 1 && is.nnz <= was.nnz);

    int64_t kept = 0, created = 0, wrong = 0;
    double least = INFINITY, most = 0; // of those that stay and of those that do not
    char *stays = check_alloc((size_t)was.nnz);
    memset(stays, 0, (size_t)was.nnz);
    for (int64_t slot = 0; slot < is.nnz; slot++) {
        int32_t row, col;
        int64_t from;
        CHECK(bsk_layout_block_coord(fresh->layout, slot, NULL, &row, &col));
        CHECK(bsk_layout_find(old->layout, 0, row, col, &from));
        if (from >= 0 && same_block(old, from, fresh, slot, size)) {
            kept++;
            stays[from] = 1;
            wrong += gates && !same_block(old_gates, from, gates, slot, 1);
        } else {
            created++;
            wrong += !zero_block(fresh, slot, size);
            wrong += gates && gates->value[slot] != 2;
        }
    }
    EXPECT(wrong == 0);
    EXPECT(created == (int64_t)(test->c.evolve_share * (double)is.nnz));
    EXPECT(kept > 0 && (kept < was.nnz || (test->c.evolve_share == 0 && kept == was.nnz)));
    for (int64_t i = 0; i < was.nnz && !gates; i++) {
        const double norm = block_norm(old, i, size);
        least = stays[i] ? fmin(least, norm) : least;
        most = stays[i] ? most : fmax(most, norm);
    }
    EXPECT(least >= most * (1 - 1e-6));
    free(stays);
}

static double train(model *m, const text_part *part, int steps)
{
    double nats = 0;
    for (int i = 0; i < steps; i++)
        nats = model_step(m, part, 0.01);
    return nats;
}

/* Half of all gates closed for good, by hand. */
static void gates_close(model *m)
{
    for (int i = 0; i < m->p.count; i++) {
        const param *x = &m->p.list[i];
        for (size_t k = 0; x->kind == PARAM_GATES && k < x->count; k += 2) {
            const float closed = -8;
            const tensor *const arrays[] = {&m->p.value, &m->p.average};
            for (int a = 0; a < 2; a++)
                if (arrays[a]->desc.dtype)
                    machine_upload(
                        m->machine,
                        bsk_mem_at(tensor_view(*arrays[a], x->at, x->desc).mem, k * sizeof closed),
                        &closed, sizeof closed);
        }
    }
}

/* Compaction alone: a model without half of its blocks, whose gates were closed, predicts the same. */
static void check_compaction(const struct test_row *test, machine *on, const text_part *part)
{
    model m;
    config c = test->c;
    c.evolve_share = 0;
    if (model_declare(&m, on, &c, NULL, 0))
        exit(1);
    model_allocate(&m);
    train(&m, part, STEPS);
    gates_close(&m);
    const double parameters = model_parameters(&m), bits = model_bits(&m, part, TEXT_SIZE);
    model_evolve(&m, 0);
    EXPECT(model_parameters(&m) < parameters);
    EXPECT(fabs(model_bits(&m, part, TEXT_SIZE) - bits) < 1e-5 * bits);
    model_destroy(&m);
}

static void check_model(const struct test_row *test, machine *on, const text_part *part)
{
    model m;
    if (model_declare(&m, on, &test->c, NULL, 0))
        exit(1);
    model_allocate(&m);
    const double start = train(&m, part, STEPS);
    snapshot *old = snapshots_take(&m);
    const int count = m.p.count;
    model_evolve(&m, 1);
    snapshot *fresh = snapshots_take(&m);
    EXPECT(m.p.count == count && m.step == STEPS);
    int sparse = 0;
    for (int i = 0; i < count; i++) {
        const param *x = &m.p.list[i];
        if (param_is_sparse(x)) {
            sparse++;
            check_blocks(test, &old[i], &fresh[i], x->gates ? &old[x->gates] : NULL,
                         x->gates ? &fresh[x->gates] : NULL);
        } else if (x->kind != PARAM_GATES) {
            EXPECT(old[i].count == fresh[i].count);
            EXPECT(same_block(&old[i], 0, &fresh[i], 0, x->count));
        }
    }
    EXPECT(sparse == 2);
    const double end = train(&m, part, MORE_STEPS);
    EXPECT(isfinite(end) && end < start);
    snapshots_free(old, count);
    snapshots_free(fresh, count);
    model_destroy(&m);
}

int main(int argc, char **argv)
{
    machine on;
    machine_create(&on, argc > 1 ? argv[1] : "cpu:0");
    text_part part = {check_alloc(TEXT_SIZE * sizeof(uint16_t)), TEXT_SIZE, TEXT_SIZE - TEXT_PAD};
    for (size_t i = 0; i < TEXT_SIZE; i++)
        part.code[i] = i < TEXT_PAD ? TEXT_NONE : (uint16_t)(i * i % 7 + 'a');
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        struct test_row test = tests[i];
        test.c.dtype = test.c.dtype ? test.c.dtype : BSK_F32;
        test.c.accumulate = test.c.seed = 1;
        test.c.clip = 1;
        check_model(&test, &on, &part);
        if (test.c.prune_by == PRUNE_L0)
            check_compaction(&test, &on, &part);
    }
    free(part.code);
    machine_destroy(&on);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
