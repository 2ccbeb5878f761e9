/* attention_decode, and the ops that write lists of blocks.
 * attention_decode: k queries (q_time), keys up to m, heads of size n, `heads` key/value heads with
 * count query heads each, groups the batch, pairs the keys of a page (0: no table), value the
 * scale. With a block there are lists: its rows are q_block, its columns block, the density the
 * capacity, and kind says whether they are counted, of blocks of the default sizes, or shared along
 * one dimension. "shared": one list for all.
 * layout_topk, layout_mask: groups x n rows of k columns, capacity m; count is layout_topk's k,
 * pairs its first and heads its last; index, if set, means a limit; kind says what a mask keeps. */
#include "tests/cases/attention.h"

TEST_CALLS(attention_decode)
TEST_CALLS(layout_topk)
TEST_CALLS(layout_mask)

static const bsk_dtype dtypes[] = {BSK_F64, BSK_F32, BSK_F16, BSK_BF16};

/* --- attention_decode ----------------------------------------------------------------------- */

enum { LISTS_COUNTED = 1, LISTS_DEFAULT, LISTS_BY_HEAD, LISTS_BY_MEMBER };

typedef struct sizes {
    int64_t batch, kv_heads, group, heads, q_time, d, dv;
    int64_t page, columns, pages, keys;
    int64_t q_block, block, lists, blocks, capacity;
} sizes;

static sizes sizes_of(const test_case *c)
{
    const test_spec *s = &c->spec;
    sizes z = {.batch = s->groups ? s->groups : 1, .q_time = s->k, .d = s->n};
    z.kv_heads = s->heads ? s->heads : 1;
    z.group = s->count ? s->count : 1;
    z.heads = z.kv_heads * z.group;
    z.dv = has_rule(c, RULE_DV) ? s->n / 2 + (s->n % 32 ? 3 : 8) : s->n;
    z.page = s->pairs ? s->pairs : s->m;
    z.columns = s->pairs ? (s->m + s->pairs - 1) / s->pairs : 1;
    z.pages = s->pairs ? z.batch * z.columns + 2 : z.batch;
    z.keys = z.columns * z.page;
    z.q_block = s->br ? s->br : z.q_time;
    z.block = s->br ? s->bc : z.keys;
    z.lists = (z.q_time + z.q_block - 1) / z.q_block;
    z.blocks = (z.keys + z.block - 1) / z.block;
    z.capacity = s->br ? (int64_t)ceil(s->pattern_value * (double)z.blocks) : z.blocks;
    return z;
}

static bsk_tensor heads_tensor(const test_case *c, bsk_dtype dtype, int64_t first, int64_t heads,
                               int64_t time, int64_t d)
{
    bsk_tensor t = {dtype, 4, {first, heads, time, d, 0}, {0}};
    return has_rule(c, RULE_PACKED) ? bsk_tensor_heads(dtype, first, heads, time, d) : t;
}

/* Integers in [0, limit), some of them outside. */
static void set_ints(test_case *c, const char *name, bsk_tensor desc, int64_t limit)
{
    test_tensor *t = test_set(c, name, desc);
    t->content = CONTENT_INDEX;
    t->limit = limit;
}

static void build_decode(test_case *c)
{
    const sizes z = sizes_of(c);
    const test_spec *s = &c->spec;
    const bool shared = (s->options & OPT_SHARED) != 0;
    bsk_attention_decode_params *p = (bsk_attention_decode_params *)(void *)c->params;
    p->causal = has_rule(c, RULE_CAUSAL);
    p->window = has_rule(c, RULE_WINDOW) ? s->m / 3 + 1 : 0;
    p->softcap = has_rule(c, RULE_SOFTCAP) ? SOFTCAP : 0;
    ((bsk_attention_decode_args *)(void *)c->args)->scale = s->value;
    test_set(c, "q", heads_tensor(c, s->dtype, z.batch, z.heads, z.q_time, z.d));
    test_set(c, "k", heads_tensor(c, s->dtype, z.pages, z.kv_heads, z.page, z.d));
    test_set(c, "v", heads_tensor(c, s->dtype, z.pages, z.kv_heads, z.page, z.dv));
    test_set(c, "o", heads_tensor(c, test_out_type(c), z.batch, z.heads, z.q_time, z.dv));
    if (s->options & OPT_SAVED)
        test_set(c, "lse", bsk_tensor_3d(test_scalar_type(c), z.batch, z.heads, z.q_time));
    if (has_rule(c, RULE_ALIBI))
        test_set(c, "slopes", bsk_tensor_1d(test_scalar_type(c), z.heads))->content = CONTENT_UNIT;
    if (s->pairs)
        set_ints(c, "table", bsk_tensor_2d(BSK_I32, z.batch, z.columns), z.pages);
    if (has_rule(c, RULE_RAGGED)) {
        set_ints(c, "q_len", bsk_tensor_1d(BSK_I32, z.batch), z.q_time + 1);
        set_ints(c, "k_len", bsk_tensor_1d(BSK_I32, z.batch), z.keys + 1);
    }
    if (!s->br)
        return;
    if (s->kind != LISTS_DEFAULT) {
        p->q_block = z.q_block;
        p->block = (int32_t)z.block;
    }
    const int64_t members = shared || s->kind == LISTS_BY_HEAD ? 1 : z.batch;
    const int64_t heads = shared || s->kind == LISTS_BY_MEMBER ? 1 : z.kv_heads;
    const bsk_tensor index = {BSK_I32, 4, {members, heads, z.lists, z.capacity}, {0}};
    set_ints(c, "block_index", index, z.blocks);
    if (s->kind && s->kind != LISTS_DEFAULT)
        set_ints(c, "block_count",
                 bsk_tensor_3d(BSK_I32, index.dims[0], index.dims[1], index.dims[2]),
                 z.capacity + 1);
}

static int64_t int_at(const test_tensor *t, int64_t b, int64_t h, int64_t list, int64_t e)
{
    const int64_t *d = t->desc.dims;
    const int64_t row = ((d[0] > 1 ? b : 0) * d[1] + (d[1] > 1 ? h : 0)) * d[2] + list;
    return (int64_t)t->value[t->desc.rank > 3 ? row * d[3] + e : row];
}

/* The keys that a query meets, one after another; each may occur several times. */
typedef struct terms {
    int64_t *key, *page;
    int64_t count;
} terms;

static void terms_add(test_case *c, const sizes *z, int64_t b, int64_t block, terms *t)
{
    const test_tensor *table = test_arg_at(c, "table");
    const int64_t k_len = clamped(test_arg_at(c, "k_len"), b, z->keys);
    for (int64_t key = block * z->block; key < (block + 1) * z->block && key < k_len; key++) {
        int64_t page = b;
        if (table->desc.dtype)
            page = (int64_t)table->value[b * z->columns + key / z->page];
        if (page < 0 || page >= z->pages)
            continue;
        t->key[t->count] = key;
        t->page[t->count++] = page;
    }
}

static void terms_find(test_case *c, const sizes *z, int64_t b, int64_t kv_head, int64_t i,
                       terms *t)
{
    const test_tensor *index = test_arg_at(c, "block_index"),
                      *count = test_arg_at(c, "block_count");
    const int64_t list = i / z->q_block;
    int64_t entries = z->capacity;
    if (count->desc.dtype) {
        const int64_t n = int_at(count, b, kv_head, list, 0);
        entries = n < 0 ? 0 : n < entries ? n : entries;
    }
    t->count = 0;
    for (int64_t e = 0; e < entries; e++) {
        const int64_t block = index->desc.dtype ? int_at(index, b, kv_head, list, e) : e;
        if (block >= 0 && block < z->blocks)
            terms_add(c, z, b, block, t);
    }
}

static terms terms_make(const sizes *z)
{
    const size_t most = (size_t)(z->capacity * z->block + 1);
    terms t = {malloc(most * sizeof *t.key), malloc(most * sizeof *t.page), 0};
    if (!t.key || !t.page)
        abort();
    return t;
}

static void terms_free(terms *t)
{
    free(t->key);
    free(t->page);
}

/* NaN in the keys and values that nobody meets: they must not be read. */
static void poison_unread(test_case *c, const sizes *z, const char *name, terms *t)
{
    test_tensor *x = test_arg_at(c, name);
    const int64_t d = x->desc.dims[3];
    uint8_t *read = calloc((size_t)(x->elems + 1), 1);
    if (!read)
        abort();
    for (int64_t b = 0; b < z->batch; b++)
        for (int64_t h = 0; h < z->kv_heads; h++)
            for (int64_t list = 0; list < z->lists; list++) {
                terms_find(c, z, b, h, list * z->q_block, t);
                for (int64_t e = 0; e < t->count; e++)
                    read[(t->page[e] * z->kv_heads + h) * z->page + t->key[e] % z->page] = 1;
            }
    for (int64_t e = 0; e < x->elems; e++)
        if (!read[e / d])
            bski_store(x->desc.dtype, x->init, x->at[e], NAN);
    free(read);
    test_values_refresh(x);
}

/* Scores of query i of head h with the terms. */
static void decode_scores(test_case *c, const sizes *z, int64_t b, int64_t h, int64_t i,
                          const terms *t, softmax_row *r)
{
    const double scale = c->spec.value != 0 ? c->spec.value : 1 / sqrt((double)z->d);
    const int64_t q_len = clamped(test_arg_at(c, "q_len"), b, z->q_time);
    const int64_t pos = i + clamped(test_arg_at(c, "k_len"), b, z->keys) - q_len;
    const test_tensor *keys = test_arg_at(c, "k"), *slopes = test_arg_at(c, "slopes");
    const double *q = vector_at(test_arg_at(c, "q"), b, h, i);
    double worst = 0;
    for (int64_t e = 0; e < t->count; e++) {
        const int64_t distance = pos - t->key[e];
        r->score[e] = NAN;
        if (i >= q_len || (has_rule(c, RULE_CAUSAL) && distance < 0) ||
            (has_rule(c, RULE_WINDOW) && llabs(distance) >= c->spec.m / 3 + 1))
            continue;
        const double *k = vector_at(keys, t->page[e], h / z->group, t->key[e] % z->page);
        const number s = plain_score(c, slopes, scale, h, distance, dot(c, q, k, z->d));
        r->score[e] = s.v;
        worst = fmax(worst, s.error);
    }
    row_close(c, r, t->count, worst);
}

static void oracle_decode(test_case *c)
{
    const sizes z = sizes_of(c);
    test_tensor *v = test_arg_at(c, "v"), *o = test_arg_at(c, "o"), *lse = test_arg_at(c, "lse");
    const double u = test_arith_eps(c);
    softmax_row r = row_make(z.capacity * z.block);
    terms t = terms_make(&z);
    bool seen = false;
    if (!(c->spec.options & (OPT_REPEAT | OPT_SPLAT))) {
        poison_unread(c, &z, "k", &t);
        poison_unread(c, &z, "v", &t);
    }
    for (int64_t b = 0; b < z.batch; b++)
        for (int64_t h = 0; h < z.heads; h++)
            for (int64_t i = 0; i < z.q_time; i++) {
                terms_find(c, &z, b, h / z.group, i, &t);
                decode_scores(c, &z, b, h, i, &t, &r);
                seen |= r.live > 0;
                row_expect_lse(lse, (b * z.heads + h) * z.q_time + i, &r);
                for (int64_t f = 0; f < z.dv; f++) {
                    number sum = {0, 0};
                    for (int64_t e = 0; e < t.count; e++) {
                        if (isnan(r.score[e]))
                            continue;
                        const double share = row_share(&r, e);
                        const double x = vector_at(v, t.page[e], h / z.group, t.key[e] % z.page)[f];
                        sum.v += share * x;
                        sum.error += fabs(x) * (share * (2 * r.error + (double)(r.live + 8) * u) +
                                                rounding(c, share) + test_arith_tiny(c));
                    }
                    test_expect(o, vector_at(o, b, h, i) - o->value + f, sum.v, sum.error);
                }
            }
    o->zero_ok |= !seen;
    lse->zero_ok |= !seen;
    row_free(&r);
    terms_free(&t);
}

/* --- layout_topk, layout_mask --------------------------------------------------------------- */

/* Sets index and count for `from`, of rank 2 or 3. */
static void set_lists(test_case *c, const char *from, bsk_tensor desc)
{
    test_set(c, from, desc);
    desc.dtype = BSK_I32;
    desc.dims[desc.rank - 1] = c->spec.m;
    test_set(c, "index", desc)->zero_ok = true;
    desc.rank--;
    test_set(c, "count", desc)->zero_ok = true;
}

static bsk_tensor row_tensor(const test_case *c, bsk_dtype dtype)
{
    const test_spec *s = &c->spec;
    return s->groups ? bsk_tensor_3d(dtype, s->groups, s->n, s->k)
                     : bsk_tensor_2d(dtype, s->n, s->k);
}

static void build_topk(test_case *c)
{
    const test_spec *s = &c->spec;
    bsk_layout_topk_params *p = (bsk_layout_topk_params *)(void *)c->params;
    p->k = s->count;
    p->first = s->pairs;
    p->last = s->heads;
    set_lists(c, "scores", row_tensor(c, s->dtype));
    if (s->index)
        set_ints(c, "limit", test_arg_at(c, "count")->desc, s->k + 1);
}

/* Row n of index and count, from a flag for each column. */
static void expect_list(test_case *c, int64_t n, const uint8_t *kept)
{
    test_tensor *index = test_arg_at(c, "index"), *count = test_arg_at(c, "count");
    int64_t found = 0;
    for (int64_t column = 0; column < c->spec.k; column++)
        if (kept[column] && found++ < c->spec.m)
            test_expect(index, n * c->spec.m + found - 1, (double)column, 0);
    for (int64_t e = found; e < c->spec.m; e++)
        test_expect(index, n * c->spec.m + e, -1, 0);
    test_expect(count, n, (double)found, 0);
}

static uint8_t *flags_make(const test_case *c)
{
    uint8_t *kept = malloc((size_t)c->spec.k + 1);
    if (!kept)
        abort();
    return kept;
}

/* Some scores are missing or not numbers. */
static void scores_special(test_case *c, test_tensor *t)
{
    for (int64_t e = 0; e < t->elems && c->spec.fill == FILL_INT; e++)
        if (e % 7 == 2 || e % 31 == 5)
            bski_store(t->desc.dtype, t->init, t->at[e], e % 31 == 5 ? NAN : -INFINITY);
    test_values_refresh(t);
}

/* Takes the best that is left, again and again. */
static void oracle_topk(test_case *c)
{
    const test_spec *s = &c->spec;
    test_tensor *scores = test_arg_at(c, "scores");
    const test_tensor *limit = test_arg_at(c, "limit");
    uint8_t *kept = flags_make(c);
    scores_special(c, scores);
    for (int64_t n = 0; n < scores->elems / s->k; n++) {
        const double *x = scores->value + n * s->k;
        const int64_t end =
            limit->desc.dtype ? (int64_t)fmin(fmax(limit->value[n], 0), (double)s->k) : s->k;
        int64_t left = s->count ? s->count : s->m;
        for (int64_t j = 0; j < s->k; j++) {
            kept[j] = j < end && (j < s->pairs || j >= end - s->heads);
            left -= kept[j];
        }
        for (; left > 0; left--) {
            int64_t best = -1;
            for (int64_t j = 0; j < end; j++)
                if (!kept[j] && x[j] != -INFINITY &&
                    (best < 0 || x[j] > x[best] || (isnan(x[j]) && !isnan(x[best]))))
                    best = j;
            if (best >= 0)
                kept[best] = 1;
        }
        expect_list(c, n, kept);
    }
    free(kept);
}

static void build_mask(test_case *c)
{
    set_lists(c, "mask", row_tensor(c, BSK_U8));
    test_arg_at(c, "mask")->content = c->spec.kind ? CONTENT_VALUE : CONTENT_FLAG;
    test_arg_at(c, "mask")->constant = c->spec.kind > 1 ? 255 : 0;
}

static void oracle_mask(test_case *c)
{
    const test_tensor *mask = test_arg_at(c, "mask");
    uint8_t *kept = flags_make(c);
    for (int64_t n = 0; n < mask->elems / c->spec.k; n++) {
        for (int64_t j = 0; j < c->spec.k; j++)
            kept[j] = mask->value[n * c->spec.k + j] != 0;
        expect_list(c, n, kept);
    }
    free(kept);
}

const test_op test_decode[] = {
    TEST_OP(attention_decode, build_decode, oracle_decode, NULL),
    TEST_OP(layout_topk, build_topk, oracle_topk, NULL),
    TEST_OP(layout_mask, build_mask, oracle_mask, NULL),
};
const int32_t test_decode_count = TEST_COUNT(test_decode);

/* --- Cases ---------------------------------------------------------------------------------- */

/* Queries, keys, keys of a page, queries of a list, keys of a block, size of a head, capacity. */
static const struct {
    int32_t queries, keys, page, q_block, block, d;
    double share;
} caches[] = {
    {1, 100, 16, 0, 0, 64, 0},      {1, 300, 0, 0, 0, 16, 0},      {2, 2100, 64, 0, 0, 8, 0},
    {1, 256, 32, 1, 16, 40, 0.5},   {3, 160, 16, 3, 16, 128, 1.5}, {1, 1500, 128, 1, 32, 24, 0.9},
    {5, 77, 0, 5, 16, 33, 0.6},     {40, 90, 8, 16, 8, 32, 0.4},   {17, 130, 0, 4, 12, 7, 0.7},
    {1, 4, 2, 1, 2, 3, 0.5},        {70, 70, 0, 32, 32, 16, 0.7},  {1, 1200, 0, 1, 64, 256, 0.9},
    {33, 64, 64, 64, 64, 72, 0.01}, {6, 50, 10, 2, 5, 20, 1},      {2, 40, 8, 0, 0, 300, 0},
    {24, 300, 4, 1, 1, 16, 1.2},
};

/* Key/value heads, query heads of each, batch. */
static const int32_t shapes[][3] = {{1, 1, 1}, {2, 4, 2}, {1, 8, 3}, {3, 1, 2}, {2, 3, 4}};

static const uint32_t visible[] = {
    0,
    RULE_CAUSAL | RULE_RAGGED,
    RULE_RAGGED | RULE_PACKED,
    RULE_CAUSAL | RULE_WINDOW | RULE_DV,
    RULE_SOFTCAP | RULE_ALIBI | RULE_RAGGED,
    RULE_PACKED | RULE_ALIBI | RULE_CAUSAL | RULE_WINDOW | RULE_SOFTCAP | RULE_RAGGED | RULE_DV,
};

/* Share of the cases numbered i that a tier takes, in an order without a period. */
static bool left_out(const test_list *list, int i)
{
    const uint32_t mixed = ((uint32_t)i * 2654435761u) >> 16;
    return mixed % (list->tier == TIER_QUICK ? 8u : list->tier == TIER_CI ? 2u : 1u) != 0;
}

static void list_decode(test_list *list)
{
    int i = 0;
    for (int g = 0; g < TEST_COUNT(caches); g++)
        for (int v = 0; v < TEST_COUNT(visible); v++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++, i++) {
                if (caches[g].keys > 4 && left_out(list, i))
                    continue;
                const int32_t *shape = shapes[(g + 2 * v + t) % TEST_COUNT(shapes)];
                test_spec s = {.op = "attention_decode", .dtype = dtypes[t]};
                s.k = caches[g].queries;
                s.m = caches[g].keys;
                s.n = caches[g].d;
                s.pairs = caches[g].page;
                s.br = caches[g].q_block;
                s.bc = caches[g].block;
                s.pattern_value = caches[g].share;
                s.heads = shape[0];
                s.count = shape[1];
                s.groups = shape[2];
                s.rules = visible[v];
                const bool defaults = s.br == s.k && s.bc == (s.pairs ? s.pairs : s.m);
                if (s.br)
                    s.kind = defaults && i % 2 ? LISTS_DEFAULT : i % (LISTS_BY_MEMBER + 1);
                if (s.kind == LISTS_DEFAULT && !defaults)
                    s.kind = 0;
                s.value = i % 4 == 1 ? -0.5 : i % 4 == 3 ? 0.7 : 0;
                s.out = i % 7 == 4 ? dtypes[(t + 1) % 4] : BSK_NONE;
                s.options = (i % 2 ? OPT_SAVED : 0) | (s.br && i % 5 == 2 ? OPT_SHARED : 0) |
                            (i % 3 == 2 ? OPT_LD | OPT_OFFSET : 0);
                test_emit(list, s);
            }
}

/* Batch, rows, columns, capacity, k, first, last. */
static const int32_t rows[][7] = {
    {0, 5, 9, 4, 0, 0, 0},   {2, 3, 40, 16, 10, 1, 2},  {0, 1, 1, 1, 1, 0, 0},
    {3, 7, 17, 17, 0, 2, 3}, {0, 4, 300, 64, 33, 0, 1}, {2, 2, 1500, 100, 0, 4, 4},
    {0, 64, 64, 8, 8, 4, 4}, {0, 3, 5, 20, 11, 1, 0},   {0, 2, 4700, 1300, 0, 3, 2},
};

static void list_lists(test_list *list)
{
    int i = 0;
    for (int g = 0; g < TEST_COUNT(rows); g++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++, i++) {
            if (list->tier == TIER_QUICK && rows[g][2] > 40 && i % 3)
                continue;
            test_spec s = {.op = "layout_topk", .dtype = dtypes[t]};
            s.groups = rows[g][0];
            s.n = rows[g][1];
            s.k = rows[g][2];
            s.m = rows[g][3];
            s.count = rows[g][4];
            s.pairs = rows[g][5];
            s.heads = rows[g][6];
            s.fill = (g + t) % 2 ? FILL_INT : FILL_REAL;
            s.index = i % 3 == 1 ? BSK_I32 : BSK_NONE;
            s.options = i % 5 == 2 ? OPT_LD | OPT_OFFSET : i % 5 == 4 ? OPT_TRANS : 0;
            test_emit(list, s);
            s.op = "layout_mask";
            s.dtype = BSK_U8;
            s.count = s.pairs = s.heads = 0;
            s.index = BSK_NONE;
            s.fill = FILL_REAL;
            s.kind = t > 1 ? 0 : t + g % 2;
            s.seed = (uint64_t)(t + 1);
            test_emit(list, s);
        }
}

void cases_decode(test_list *list)
{
    list_decode(list);
    list_lists(list);
}
