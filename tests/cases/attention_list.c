/* The cases of block-sparse attention, and its gradients for gradients.c. */
#include "tests/cases/attention.h"

static const bsk_dtype dtypes[] = {BSK_F64, BSK_F32, BSK_F16, BSK_BF16};

/* Blocks and sizes: r, c, rows, columns, size of a head. Rows and columns are free, and multiples
 * of 3 where the interleave is tried. */
static const int32_t grids[][5] = {
    {8, 8, 48, 48, 16},    {16, 16, 57, 57, 8},  {32, 32, 96, 96, 64},     {64, 64, 192, 192, 32},
    {8, 16, 51, 90, 40},   {32, 8, 75, 33, 7},   {128, 128, 300, 300, 64}, {5, 12, 21, 36, 24},
    {64, 32, 129, 66, 96}, {16, 16, 33, 3, 128}, {16, 64, 12, 330, 33},
};

static const struct {
    test_pattern pattern;
    double value;
} patterns[] = {
    {PATTERN_RANDOM, 0.5}, {PATTERN_FULL, 0},      {PATTERN_UNEVEN, 0}, {PATTERN_BANDED, 0.4},
    {PATTERN_ONE, 0},      {PATTERN_RANDOM, 0.25}, {PATTERN_EMPTY, 0},  {PATTERN_SKEWED, 0.3},
};

/* Heads of the layout, query heads of each, batch, and how heads lie. */
static const struct {
    int32_t heads, count, batch;
    uint32_t rules;
} shapes[] = {
    {1, 1, 1, 0},
    {1, 4, 2, RULE_PACKED},
    {3, 1, 2, 0},
    {2, 2, 1, RULE_PACKED | RULE_GQA},
    {1, 4, 2, RULE_GQA},
    {4, 1, 1, RULE_MQA | RULE_DV},
    {2, 3, 2, RULE_INTERLEAVE | RULE_DV},
    {1, 2, 1, RULE_INTERLEAVE | RULE_SHORT | RULE_PACKED},
};

/* What is visible, and how scores are made. */
static const uint32_t visible[] = {
    0,
    RULE_CAUSAL,
    RULE_CAUSAL | RULE_END | RULE_ALIBI,
    RULE_CAUSAL | RULE_PREFIX | RULE_KEY_MASK,
    RULE_WINDOW | RULE_SOFTCAP,
    RULE_CAUSAL | RULE_WINDOW | RULE_END | RULE_RAGGED,
    RULE_BITS,
    RULE_BITS_INDEX | RULE_CAUSAL,
    RULE_DOCUMENTS | RULE_CAUSAL,
    RULE_RAGGED | RULE_ROW_BIAS,
    RULE_SOFTCAP | RULE_ALIBI | RULE_WINDOW | RULE_PREFIX | RULE_CAUSAL | RULE_BITS_INDEX |
        RULE_RAGGED | RULE_DOCUMENTS,
};

/* Share of the cases numbered n that a tier takes: one in so many, in an order without a period. */
static bool left_out(const test_list *list, int n, uint32_t quick, uint32_t ci)
{
    const uint32_t mixed = ((uint32_t)n * 2654435761u) >> 16;
    return mixed % (list->tier == TIER_QUICK ? quick : list->tier == TIER_CI ? ci : 1) != 0;
}

/* What the choices of case n follow from: remainders of n itself would tie them to the types and
 * ops, which are counted innermost. */
static int drawn(int n)
{
    uint32_t x = (uint32_t)n * 2246822519u + 3266489917u;
    x = (x ^ x >> 15) * 2654435761u;
    return (int)((x ^ x >> 13) >> 2 & 0x1fffffff);
}

static test_spec spec_of(const char *op, int grid, int shape, int pattern, int type)
{
    test_spec s = {.op = op, .dtype = dtypes[type]};
    s.br = grids[grid][0];
    s.bc = grids[grid][1];
    s.k = grids[grid][2];
    s.m = grids[grid][3];
    s.n = grids[grid][4];
    s.heads = shapes[shape].heads;
    s.count = shapes[shape].count;
    s.groups = shapes[shape].batch;
    s.rules = shapes[shape].rules;
    if (s.k % 3 || s.m % 3)
        s.rules &= ~(uint32_t)(RULE_INTERLEAVE | RULE_SHORT);
    s.pattern = patterns[pattern].pattern;
    s.pattern_value = patterns[pattern].value;
    return s;
}

static void list_products(test_list *list)
{
    static const char *const ops[] = {"attn_scores", "attn_apply", "attn_apply_t"};
    int n = 0;
    for (int g = 0; g < TEST_COUNT(grids); g++)
        for (int h = 0; h < TEST_COUNT(shapes); h++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++)
                for (int o = 0; o < TEST_COUNT(ops); o++, n++) {
                    if (left_out(list, n, 13, 3))
                        continue;
                    const int i = drawn(n);
                    test_spec s = spec_of(ops[o], g, h, (g + h + t) % TEST_COUNT(patterns), t);
                    s.fill = i % 2 ? FILL_INT : FILL_REAL;
                    s.out = i % 5 == 1 ? dtypes[(t + 1) % 4] : BSK_NONE;
                    s.index = o && i % 5 == 2 ? dtypes[(t + 3) % 4] : BSK_NONE;
                    s.options = i % 3 == 1 ? OPT_LD | OPT_OFFSET : 0;
                    s.alpha = i % 7 == 3 ? -2 : 0;
                    s.beta = i % 7 > 4 ? 0.5 : 0;
                    s.transpose = o == 1 && i % 11 == 4;
                    s.order = i % 6 == 5 ? BSK_ORDER_MORTON : BSK_ORDER_ROW;
                    test_emit(list, s);
                }
}

static void list_softmax(test_list *list)
{
    int n = 0;
    for (int g = 0; g < TEST_COUNT(grids); g++)
        for (int v = 0; v < TEST_COUNT(visible); v++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++, n++) {
                if (left_out(list, n, 7, 2))
                    continue;
                const int i = drawn(n);
                const int h = (g + 3 * v + t) % TEST_COUNT(shapes);
                test_spec s = spec_of("block_softmax", g, h, (n + g) % TEST_COUNT(patterns), t);
                s.rules = (s.rules & ~(uint32_t)RULE_SHORT) | visible[v];
                s.value = i % 4 == 1 ? -0.75 : i % 4 == 2 ? 3 : 0;
                s.options = (i % 2 ? OPT_SAVED : 0) | (i % 3 == 1 ? OPT_OFFSET : 0) |
                            (i % 5 == 2 && !(s.rules & RULE_ROW_BIAS) ? OPT_BIAS : 0) |
                            (i % 4 == 3 ? OPT_INPLACE : 0);
                s.out = i % 5 == 4 && !(s.options & OPT_INPLACE) ? dtypes[(t + 1) % 4] : BSK_NONE;
                s.order = i % 6 == 5 ? BSK_ORDER_COL : BSK_ORDER_ROW;
                test_emit(list, s);
                s.op = "block_softmax_grad";
                s.rules &= RULE_SOFTCAP;
                s.options = (i % 8 < 6 && i % 2 ? OPT_TINY : 0) | (i % 4 == 3 ? OPT_INPLACE : 0);
                s.kind = i % 8 == 7 ? GRAD_OVER_Y : GRAD_OVER_DY;
                s.alpha = i % 3 == 1 ? 0.5 : 0;
                s.beta = i % 3 == 2 && !(s.options & OPT_INPLACE) ? -1 : 0;
                test_emit(list, s);
            }
}

/* Gradients of which some operands are f64 and dy is not. */
static void list_softmax_wider(test_list *list)
{
    static const uint32_t rules[] = {0, RULE_SOFTCAP};
    for (int g = 0; g < TEST_COUNT(grids); g++)
        for (int r = 0; r < TEST_COUNT(rules); r++) {
            if (left_out(list, 2 * g + r, 4, 1))
                continue;
            test_spec s = spec_of("block_softmax_grad", g, r, g % TEST_COUNT(patterns), 0);
            s.dtype = BSK_F64;
            s.rules = rules[r];
            s.kind = GRAD_OF_F32;
            s.value = r ? -0.75 : 0;
            s.beta = g % 2 ? -1 : 0;
            test_emit(list, s);
        }
}

/* Rows of more scores than a group of lanes holds. */
static void list_long_rows(test_list *list)
{
    static const char *const ops[] = {"block_softmax", "block_softmax_grad"};
    static const bsk_dtype types[] = {BSK_F64, BSK_F32};
    for (int o = 0; o < TEST_COUNT(ops); o++)
        for (int t = 0; t < TEST_COUNT(types); t++) {
            test_spec s = {.op = ops[o], .dtype = types[t], .br = 8, .bc = 8};
            s.k = 12;
            s.m = 4800;
            s.n = 8;
            s.heads = s.count = 1;
            s.pattern = PATTERN_TEXT;
            s.layout = "random:density=0.97,seed=1";
            s.options = o ? 0 : OPT_SAVED;
            test_emit(list, s);
        }
}

/* Rows with scores so far apart that some shares are denormal. */
static void list_small_shares(test_list *list)
{
    static const uint32_t rules[] = {0, RULE_CAUSAL};
    for (int r = 0; r < TEST_COUNT(rules); r++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++) {
            test_spec s = {.op = "block_softmax", .dtype = dtypes[t], .br = 16, .bc = 16};
            s.k = s.m = 128;
            s.n = 128;
            s.heads = s.count = 1;
            s.pattern = PATTERN_TEXT;
            s.layout = "random:density=0.6,seed=1";
            s.rules = rules[r];
            s.value = 300;
            test_emit(list, s);
        }
}

static void list_attention(test_list *list)
{
    int n = 0;
    for (int g = 0; g < TEST_COUNT(grids); g++)
        for (int h = 0; h < TEST_COUNT(shapes); h++)
            for (int v = 0; v < TEST_COUNT(visible); v++)
                for (int t = 0; t < TEST_COUNT(dtypes); t++, n++) {
                    /* f64 and large grids are the slow ones */
                    const uint32_t large = g == 3 || g == 6 || g == 8 ? 3 : 1;
                    if (left_out(list, n, 17 * large, 5 * large))
                        continue;
                    const int i = drawn(n);
                    test_spec s = spec_of("attention", g, h, (n + h) % TEST_COUNT(patterns), t);
                    s.rules |= visible[v] | (i % 4 == 2 ? RULE_DROPOUT : 0);
                    s.value = i % 4 == 1 ? -0.5 : i % 4 == 3 ? 0.7 : 0;
                    s.options = (i % 2 ? OPT_SAVED : 0) | (i % 3 == 1 ? OPT_LD | OPT_OFFSET : 0) |
                                (i % 6 == 2 && !(s.rules & RULE_ROW_BIAS) ? OPT_BIAS : 0);
                    s.out = i % 7 == 4 ? dtypes[(t + 1) % 4] : BSK_NONE;
                    s.order = i % 6 == 5 ? BSK_ORDER_MORTON : BSK_ORDER_ROW;
                    test_emit(list, s);
                    s.op = "attention_grad";
                    s.options &= ~(uint32_t)OPT_SAVED;
                    s.options |= i % 8 == 5 ? OPT_NO_GRAD : i % 8 == 6 ? OPT_SKIP : 0;
                    s.alpha = i % 5 == 3 ? -0.5 : 0;
                    s.beta = i % 5 == 4 ? 2 : 0;
                    test_emit(list, s);
                }
}

/* Lists of many steps for tuned tiles: of blocks that neighbours share and that they do not, with
 * several blocks to a tile, and several tiles to a block. */
static void list_walks(test_list *list)
{
    static const int32_t sizes[][5] = {{16, 16, 208, 272, 64},  {32, 32, 288, 225, 128},
                                       {64, 64, 327, 393, 128}, {16, 64, 144, 330, 96},
                                       {128, 16, 384, 200, 64}, {32, 128, 225, 642, 32},
                                       {64, 16, 320, 272, 128}, {128, 128, 384, 512, 64}};
    static const struct {
        test_pattern pattern;
        double value;
        int32_t heads, count, batch;
        uint32_t rules;
    } forms[] = {
        {PATTERN_RANDOM, 0.25, 1, 2, 1, RULE_PACKED},
        {PATTERN_BANDED, 0.5, 1, 1, 2, RULE_CAUSAL | RULE_END | RULE_RAGGED},
        {PATTERN_RANDOM, 0.4, 2, 2, 1, RULE_GQA | RULE_BITS_INDEX},
        {PATTERN_FULL, 0, 1, 2, 1, RULE_MQA | RULE_CAUSAL | RULE_WINDOW},
        {PATTERN_RANDOM, 0.6, 1, 1, 1, RULE_INTERLEAVE | RULE_CAUSAL | RULE_SOFTCAP | RULE_ALIBI},
    };
    static const char *const ops[] = {"attention", "attention_grad"};
    int n = 0;
    for (int g = 0; g < TEST_COUNT(sizes); g++)
        for (int f = 0; f < TEST_COUNT(forms); f++)
            for (int o = 0; o < TEST_COUNT(ops); o++, n++) {
                if (left_out(list, n, 16, 8))
                    continue;
                test_spec s = {.op = ops[o], .dtype = (g + f) % 2 ? BSK_F16 : BSK_BF16};
                s.br = sizes[g][0];
                s.bc = sizes[g][1];
                s.k = sizes[g][2];
                s.m = sizes[g][3];
                s.n = sizes[g][4];
                s.heads = forms[f].heads;
                s.count = forms[f].count;
                s.groups = forms[f].batch;
                s.pattern = forms[f].pattern;
                s.pattern_value = forms[f].value;
                s.rules = forms[f].rules;
                if (s.k % 3 || s.m % 3)
                    s.rules &= ~(uint32_t)RULE_INTERLEAVE;
                s.options = o == 0 ? OPT_SAVED : 0;
                test_emit(list, s);
            }
}

/* Patterns of the library with the rules that see through them. */
static void list_named(test_list *list)
{
    static const struct {
        const char *layout;
        int32_t heads;
        uint32_t rules;
    } named[] = {
        {"causal", 1, RULE_CAUSAL},
        {"local:window=20", 1, RULE_CAUSAL | RULE_WINDOW},
        {"strided:stride=6", 1, RULE_CAUSAL | RULE_INTERLEAVE},
        {"fixed:local=3,global=1,patterns=2", 2, RULE_CAUSAL},
        {"longformer:window=3,start=1/6,end=2/8", 1, 0},
    };
    static const char *const ops[] = {"attention", "attention_grad", "block_softmax"};
    for (int p = 0; p < TEST_COUNT(named); p++)
        for (int o = 0; o < TEST_COUNT(ops); o++) {
            test_spec s = {.op = ops[o], .dtype = o % 2 == p % 2 ? BSK_F32 : BSK_BF16};
            s.br = s.bc = p % 2 ? 8 : 16;
            s.k = s.m = 96;
            s.n = 24;
            s.heads = named[p].heads;
            s.count = 2;
            s.pattern = PATTERN_TEXT;
            s.layout = named[p].layout;
            s.rules = named[p].rules | RULE_PACKED;
            test_emit(list, s);
        }
}

/* Blocks as tiles of 64 and 128 rows have them, or two of them: lists of more than 32 runs of 64
 * keys, more tiles than any device has compute units, and scores that rise by hundreds along a row. */
static void list_tiles(test_list *list)
{
    static const struct {
        int32_t br, bc;
        int64_t rows, cols, d;
        int32_t heads, count, batch;
    } tiles[] = {
        {64, 64, 200, 330, 64, 1, 2, 1},    {64, 64, 130, 400, 128, 2, 1, 2},
        {128, 128, 400, 300, 128, 1, 2, 1}, {128, 128, 260, 520, 64, 2, 2, 1},
        {64, 128, 150, 390, 96, 1, 2, 2},   {128, 64, 390, 200, 80, 1, 2, 2},
        {64, 64, 20, 2500, 64, 1, 2, 1},    {64, 64, 3, 130, 64, 2, 12, 20},
        {64, 64, 3, 130, 128, 1, 20, 20},   {128, 128, 3, 200, 128, 2, 10, 20},
        {32, 32, 200, 330, 64, 1, 2, 2},    {32, 32, 130, 1300, 128, 2, 1, 1},
        {32, 32, 100, 230, 96, 3, 2, 1},    {64, 64, 300, 430, 128, 1, 2, 2},
        {64, 64, 130, 200, 192, 2, 1, 1},   {64, 64, 100, 200, 256, 1, 2, 1},
        {32, 32, 70, 140, 192, 1, 2, 1},    {32, 32, 70, 170, 256, 2, 1, 1},
        {128, 128, 200, 140, 160, 1, 2, 1}, {128, 128, 140, 200, 256, 1, 2, 1},
        {16, 16, 200, 330, 64, 1, 2, 2},    {16, 16, 70, 150, 40, 3, 1, 2},
        {8, 8, 70, 200, 128, 2, 2, 1},      {8, 8, 130, 230, 96, 1, 2, 1},
        {16, 16, 70, 400, 128, 2, 1, 1},    {16, 16, 70, 130, 256, 1, 2, 1},
        {8, 8, 100, 230, 64, 1, 2, 2},      {8, 8, 70, 100, 160, 1, 2, 1},
    };
    static const uint32_t rules[] = {
        0,
        RULE_CAUSAL | RULE_END,
        RULE_CAUSAL | RULE_PACKED,
        RULE_RAGGED | RULE_CAUSAL | RULE_END | RULE_GQA,
        RULE_RAGGED | RULE_PACKED,
        RULE_WINDOW | RULE_CAUSAL | RULE_END,
        RULE_WINDOW | RULE_RAGGED,
        RULE_BITS | RULE_MQA,
        RULE_BITS_INDEX | RULE_CAUSAL | RULE_END,
    };
    static const double scales[] = {0, 40, -40};
    int n = 0;
    for (int g = 0; g < TEST_COUNT(tiles); g++)
        for (int v = 0; v < TEST_COUNT(rules); v++)
            for (int t = 2; t < TEST_COUNT(dtypes); t++, n++) {
                if (left_out(list, n, 90, 30))
                    continue;
                const int i = drawn(n), p = i % TEST_COUNT(patterns);
                test_spec s = {.op = "attention", .dtype = dtypes[t]};
                s.br = tiles[g].br;
                s.bc = tiles[g].bc;
                s.k = tiles[g].rows;
                s.m = tiles[g].cols;
                s.n = tiles[g].d;
                s.heads = tiles[g].heads;
                s.count = tiles[g].count;
                s.groups = tiles[g].batch;
                s.rules = rules[v];
                s.pattern = patterns[p].pattern;
                s.pattern_value = patterns[p].value;
                s.value = scales[i % 5 % TEST_COUNT(scales)];
                s.options = i % 4 ? OPT_SAVED : OPT_LD8;
                s.out = i % 7 == 3 ? BSK_F32 : BSK_NONE;
                test_emit(list, s);
                if (s.count * s.groups > 16)
                    continue;
                s.op = "attention_grad"; /* its shares are not normalized: no large scales */
                s.value = i % 5 != 1 ? 0 : s.n > 128 ? -0.25 : -0.5;
                s.options &= ~(uint32_t)OPT_SAVED;
                s.options |= i % 8 == 5 ? OPT_NO_GRAD : i % 8 == 6 ? OPT_SKIP : 0;
                s.alpha = i % 5 == 3 ? -0.5 : 0;
                s.beta = i % 5 == 4 ? 2 : 0;
                test_emit(list, s);
            }
}

/* An interleave whose runs are whole blocks and whole tiles: rows and keys that leave one remainder
 * see each other alone, wherever blocks are kept. */
static void list_runs(test_list *list)
{
    static const struct {
        int32_t br, bc;
        int64_t rows, cols, d;
        int32_t heads, count, batch;
        uint32_t rules;
        test_pattern pattern;
        double value;
    } runs[] = {
        {64, 64, 384, 384, 128, 1, 2, 2, RULE_CAUSAL, PATTERN_RANDOM, 0.6},
        {64, 64, 192, 384, 64, 2, 1, 2, RULE_CAUSAL | RULE_PACKED, PATTERN_FULL, 0},
        {128, 128, 768, 384, 128, 1, 2, 1, RULE_WINDOW | RULE_GQA, PATTERN_RANDOM, 0.7},
        {128, 128, 384, 384, 64, 2, 2, 1, RULE_CAUSAL | RULE_END | RULE_PACKED, PATTERN_FULL, 0},
        {64, 64, 768, 768, 96, 1, 2, 1, RULE_CAUSAL | RULE_WINDOW | RULE_GQA, PATTERN_FULL, 0},
        {64, 128, 192, 768, 80, 1, 2, 2, RULE_BITS_INDEX, PATTERN_RANDOM, 0.5},
        {32, 32, 384, 192, 128, 2, 1, 2, RULE_CAUSAL, PATTERN_RANDOM, 0.6},
        {32, 32, 192, 384, 64, 1, 2, 1, RULE_BITS | RULE_CAUSAL | RULE_MQA, PATTERN_FULL, 0},
        {16, 16, 192, 384, 128, 1, 2, 2, RULE_CAUSAL | RULE_PACKED, PATTERN_RANDOM, 0.6},
        {8, 8, 192, 192, 64, 2, 1, 2, RULE_BITS_INDEX | RULE_CAUSAL, PATTERN_RANDOM, 0.5},
        {64, 64, 192, 192, 256, 1, 2, 1, RULE_CAUSAL, PATTERN_FULL, 0},
        {32, 32, 192, 192, 256, 1, 1, 2, RULE_CAUSAL, PATTERN_FULL, 0},
        {64, 64, 96, 384, 64, 1, 2, 1, RULE_CAUSAL, PATTERN_FULL, 0}, /* half a block of rows */
    };
    static const char *const ops[] = {"attention", "attention_grad"};
    for (int g = 0, n = 0; g < TEST_COUNT(runs); g++)
        for (int o = 0; o < TEST_COUNT(ops); o++, n++) {
            if (left_out(list, n, 4, 1))
                continue;
            test_spec s = {.op = ops[o], .dtype = (g + o) % 2 ? BSK_F16 : BSK_BF16};
            s.br = runs[g].br;
            s.bc = runs[g].bc;
            s.k = runs[g].rows;
            s.m = runs[g].cols;
            s.n = runs[g].d;
            s.heads = runs[g].heads;
            s.count = runs[g].count;
            s.groups = runs[g].batch;
            s.rules = runs[g].rules | RULE_INTERLEAVE;
            s.pattern = runs[g].pattern;
            s.pattern_value = runs[g].value;
            s.options = o == 0 ? OPT_SAVED : 0;
            s.beta = o == 1 && g % 3 == 1 ? 2 : 0;
            test_emit(list, s);
        }
}

/* Keys that a bias takes out, so many that whole tiles have no other. */
static void list_additive(test_list *list)
{
    static const char *const ops[] = {"attention", "block_softmax"};
    for (int o = 0; o < TEST_COUNT(ops); o++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++) {
            test_spec s = {
                .op = ops[o], .dtype = dtypes[t], .br = 16, .bc = 16, .pattern_value = 1};
            s.k = 40;
            s.m = 400;
            s.n = 24;
            s.heads = s.count = 1;
            s.rules = RULE_ADDITIVE;
            s.options = OPT_BIAS;
            test_emit(list, s);
        }
}

/* More tiles than a large device takes at a time, so that each of its workers has several. */
static void list_many(test_list *list)
{
    static const char *const ops[] = {"attention", "attention_grad"};
    static const int32_t blocks[] = {32, 64, 128, 8, 16};
    static const int64_t sizes[] = {64, 128};
    for (int b = 0; b < TEST_COUNT(blocks) && list->tier == TIER_FULL; b++)
        for (int d = 0; d < TEST_COUNT(sizes); d++)
            for (int o = 0; o < TEST_COUNT(ops); o++) {
                test_spec s = {.op = ops[o], .dtype = BSK_BF16, .br = blocks[b], .bc = blocks[b]};
                s.k = s.m = 1024;
                s.n = sizes[d];
                s.count = 16;
                s.groups = 2;
                s.pattern = PATTERN_TEXT;
                s.layout = "local:window=64";
                s.rules = RULE_CAUSAL | RULE_WINDOW;
                test_emit(list, s);
            }
}

/* NaN in inputs: they reach the rows and columns whose blocks meet them, and no others. */
static void list_special(test_list *list)
{
    static const char *const ops[] = {"attention", "attention_grad"};
    static const struct {
        int32_t block;
        int64_t d;
        test_pattern pattern;
        double value;
        uint64_t seed; /* with a NaN in a block that only one of two neighbouring rows has */
    } forms[] = {
        {16, 64, PATTERN_RANDOM, 0.3, 2},   {32, 64, PATTERN_RANDOM, 0.3, 2},
        {64, 64, PATTERN_RANDOM, 0.3, 2},   {128, 64, PATTERN_RANDOM, 0.3, 2},
        {64, 128, PATTERN_RANDOM, 0.95, 8}, /* rows that have nearly all blocks in common */
        {8, 64, PATTERN_RANDOM, 0.3, 2},    {16, 128, PATTERN_RANDOM, 0.3, 2},
        {8, 128, PATTERN_RANDOM, 0.3, 2},
    };
    for (int g = 0; g < TEST_COUNT(forms); g++)
        for (int o = 0; o < TEST_COUNT(ops); o++) {
            test_spec s = {.op = ops[o], .dtype = (g + o) % 2 ? BSK_F16 : BSK_BF16};
            s.br = s.bc = forms[g].block;
            s.k = s.m = 6 * forms[g].block;
            s.n = forms[g].d;
            s.heads = 1;
            s.count = 2;
            s.pattern = forms[g].pattern;
            s.pattern_value = forms[g].value;
            s.fill = FILL_SPECIAL;
            s.act = 1; /* no infinities, which might make either of NaN and infinity */
            s.rules = g % 2 ? RULE_PACKED : 0;
            s.seed = forms[g].seed;
            test_emit(list, s);
        }
}

/* Gradients of probabilities beyond f16, which the scale brings back, and scales above 1. */
static void list_scales(test_list *list)
{
    static const struct {
        int32_t block;
        int64_t d;
        double scale;
        uint32_t rules;
        test_fill fill;
    } forms[] = {
        {16, 64, 5e-8, 0, FILL_HUGE},
        {64, 128, 2e-8, RULE_CAUSAL, FILL_HUGE},
        {32, 64, 5e-8, RULE_SOFTCAP, FILL_HUGE},
        {64, 8, 1.5, 0, FILL_REAL},
        {16, 8, -1.5, RULE_ALIBI, FILL_REAL},
    };
    for (int i = 0; i < TEST_COUNT(forms); i++) {
        test_spec s = {.op = "attention_grad", .dtype = BSK_F16, .pattern = PATTERN_FULL};
        s.br = s.bc = forms[i].block;
        s.k = 48;
        s.m = 80;
        s.n = forms[i].d;
        s.heads = s.count = 1;
        s.value = forms[i].scale;
        s.rules = forms[i].rules;
        s.fill = forms[i].fill;
        test_emit(list, s);
    }
}

void cases_attention(test_list *list)
{
    list_additive(list);
    list_many(list);
    list_scales(list);
    list_special(list);
    list_named(list);
    list_products(list);
    list_softmax(list);
    list_softmax_wider(list);
    list_small_shares(list);
    list_long_rows(list);
    list_attention(list);
    list_tiles(list);
    list_walks(list);
    list_runs(list);
}

/* --- Gradients ---------------------------------------------------------------------------- */

#define SMALL .br = 4, .bc = 5, .k = 12, .m = 15, .n = 6, .pattern_value = 0.6
#define HEADS .heads = 2, .count = 2, .groups = 2
#define GRAD_OF(input, result, upstream_rules, upstream_options, ...)                              \
    {                                                                                              \
        {.op = "attention", SMALL, HEADS, .rules = upstream_rules, .options = upstream_options},   \
            "attention_grad", (upstream_options) & ~OPT_SAVED, input, "o", "dout", result,         \
        {                                                                                          \
            "q", "k", "v", "o=o", "lse=lse", __VA_ARGS__                                           \
        }                                                                                          \
    }
#define PLAIN    RULE_GQA | RULE_DV
#define MODIFIED RULE_CAUSAL | RULE_END | RULE_SOFTCAP | RULE_ALIBI | RULE_DROPOUT | RULE_INTERLEAVE
#define MASKED   RULE_MQA | RULE_PACKED | RULE_BITS_INDEX | RULE_DOCUMENTS | RULE_RAGGED

const test_gradient test_gradients_attention[] = {
    GRAD_OF("q", "dq", PLAIN, OPT_SAVED, NULL),
    GRAD_OF("k", "dk", PLAIN, OPT_SAVED, NULL),
    GRAD_OF("v", "dv", PLAIN, OPT_SAVED, NULL),
    GRAD_OF("q", "dq", MODIFIED, OPT_SAVED | OPT_BIAS, "bias", "slopes"),
    GRAD_OF("k", "dk", MODIFIED, OPT_SAVED | OPT_BIAS, "bias", "slopes"),
    GRAD_OF("v", "dv", MODIFIED, OPT_SAVED | OPT_BIAS, "bias", "slopes"),
    GRAD_OF("q", "dq", MASKED, OPT_SAVED, "bits", "bits_index", "q_segment", "k_segment", "q_len",
            "k_len"),
    GRAD_OF("k", "dk", MASKED, OPT_SAVED, "bits", "bits_index", "q_segment", "k_segment", "q_len",
            "k_len"),
    {{.op = "block_softmax", SMALL, HEADS, .value = -0.7},
     "block_softmax_grad",
     0,
     "x",
     "y",
     "dy",
     "dx",
     {"y=y"}},
    {{.op = "block_softmax", SMALL, HEADS, .rules = RULE_SOFTCAP | RULE_ALIBI | RULE_CAUSAL},
     "block_softmax_grad",
     0,
     "x",
     "y",
     "dy",
     "dx",
     {"x", "y=y"}},
};
const int32_t test_gradients_attention_count = TEST_COUNT(test_gradients_attention);
