/* The cases of the weight ops, the dense companions and the optimizers. */
#include "tests/harness/test.h"

static const bsk_dtype dtypes[] = {BSK_F32, BSK_BF16, BSK_F16, BSK_F64};

/* --- Weights ------------------------------------------------------------------------------ */

static test_spec weight(const char *op, bsk_dtype dtype, int32_t br, int32_t bc)
{
    test_spec s = {.op = op, .dtype = dtype, .br = br, .bc = bc, .n = -1};
    s.k = 5 * br - (br > 2 ? br / 3 : 0);
    s.m = 6 * bc - (bc > 2 ? bc / 2 : 0);
    s.pattern_value = 0.5;
    return s;
}

static const struct {
    int32_t br, bc;
    test_pattern pattern;
    int32_t heads;
    bsk_order order;
} grids[] = {
    {8, 8, PATTERN_RANDOM, 0, BSK_ORDER_ROW},   {16, 16, PATTERN_FULL, 0, BSK_ORDER_ROW},
    {32, 16, PATTERN_RANDOM, 0, BSK_ORDER_COL}, {5, 7, PATTERN_RANDOM, 0, BSK_ORDER_GIVEN},
    {8, 32, PATTERN_EMPTY, 0, BSK_ORDER_ROW},   {16, 8, PATTERN_ONE, 0, BSK_ORDER_ROW},
    {64, 64, PATTERN_RANDOM, 0, BSK_ORDER_ROW}, {1, 1, PATTERN_RANDOM, 0, BSK_ORDER_MORTON},
    {8, 8, PATTERN_UNEVEN, 3, BSK_ORDER_ROW},
};

static void list_blocks(test_list *list)
{
    static const char *const ops[] = {"weight_identity", "weight_orthogonal", "weight_normal",
                                      "weight_checker"};
    for (int g = 0; g < TEST_COUNT(grids); g++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++) {
            if (list->tier == TIER_QUICK && t != g % 4)
                continue;
            test_spec s = weight("", dtypes[t], grids[g].br, grids[g].bc);
            s.pattern = grids[g].pattern;
            s.heads = grids[g].heads;
            s.order = grids[g].order;
            for (int o = 0; o < TEST_COUNT(ops); o++) {
                s.op = ops[o];
                s.dtype = o == 3 ? BSK_F32 : dtypes[t];
                if (o == 3 && t)
                    continue;
                s.alpha = 0;
                test_emit(list, s);
                s.alpha = 0.25;
                test_emit(list, s);
            }
            s.alpha = 0;
            s.dtype = dtypes[t];
            s.op = "block_norm";
            s.norm = BSK_NORM_MAX;
            test_emit(list, s);
            s.norm = BSK_NORM_L2;
            test_emit(list, s);
            s.fill = FILL_SPECIAL;
            test_emit(list, s);
            s.norm = BSK_NORM_MAX;
            test_emit(list, s);
            s.fill = FILL_REAL;
            s.op = "block_l2_decay";
            s.value = 0.5;
            test_emit(list, s);
            s.options = OPT_GATE | OPT_OFFSET;
            test_emit(list, s);
            s.value = 1000; /* takes everything */
            test_emit(list, s);
            s.value = 0;
            s.options = OPT_NO_GRAD;
            test_emit(list, s);
            s.op = "block_renew";
            s.options = 0;
            for (int r = BSK_RENEW_ZERO; r <= BSK_RENEW_UNIFORM; r++) {
                s.renew = (bsk_renew)r;
                s.alpha = r ? 0.5 : 0;
                test_emit(list, s);
            }
            s.renew = BSK_RENEW_ZERO;
            s.alpha = 0;
            s.dtype = BSK_U16;
            if (dtypes[t] == BSK_F16)
                test_emit(list, s);
        }
}

static void list_l2(test_list *list)
{
    for (int g = 0; g < TEST_COUNT(grids) - 1; g++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++) {
            if (list->tier == TIER_QUICK && t != g % 4)
                continue;
            test_spec s = weight("l2_normalize", dtypes[t], grids[g].br, grids[g].bc);
            s.pattern = grids[g].pattern;
            s.order = grids[g].order;
            test_emit(list, s);
            s.options = OPT_GAIN | OPT_SAVED | OPT_OFFSET;
            s.out = BSK_F32;
            test_emit(list, s);
            s.out = BSK_NONE;
            s.options = OPT_SAVED | OPT_TINY | OPT_INPLACE;
            test_emit(list, s);
            s.options = OPT_NO_GRAD;
            test_emit(list, s);
            s.op = "l2_normalize_grad";
            s.options = OPT_TINY;
            test_emit(list, s);
            s.options = OPT_NO_GRAD;
            test_emit(list, s);
            s.options = OPT_INPLACE;
            test_emit(list, s);
            s.options = OPT_GAIN;
            s.beta = 0.5;
            s.alpha = 2;
            s.out = BSK_F32;
            test_emit(list, s);
        }
    /* wider than what is taken at once; NaN, infinity */
    static const bsk_dtype narrow[] = {BSK_F32, BSK_BF16};
    for (int t = 0; t < TEST_COUNT(narrow); t++)
        for (int fill = FILL_REAL; fill <= FILL_SPECIAL; fill += FILL_SPECIAL - FILL_REAL) {
            test_spec s = weight("l2_normalize", narrow[t], 3, fill == FILL_REAL ? 300 : 24);
            s.fill = (test_fill)fill;
            s.options = OPT_GAIN | OPT_SAVED;
            test_emit(list, s);
            s.op = "l2_normalize_grad";
            s.options = OPT_GAIN;
            test_emit(list, s);
        }
}

static void list_vectors(test_list *list)
{
    static const int64_t counts[] = {0, 1, 7, 64, 1000};
    for (int i = 0; i < TEST_COUNT(counts); i++)
        for (int t = 0; t < 4; t += 3) { /* f32, f64 */
            test_spec s = {.dtype = dtypes[t], .n = counts[i]};
            static const double shares[] = {0, 0.1, 0.5, 0.93, 1};
            for (int v = 0; v < TEST_COUNT(shares); v++) {
                s.value = shares[v];
                s.op = "prune_sparsity";
                s.fill = v % 2 ? FILL_INT : FILL_REAL;
                test_emit(list, s);
                s.op = "prune_threshold";
                test_emit(list, s);
                s.fill = FILL_SPECIAL;
                test_emit(list, s);
                s.op = "prune_sparsity";
                test_emit(list, s);
            }
            s.fill = FILL_REAL;
            s.value = 0;
            for (int v = 0; v < 2; v++, s.value = 0.4) {
                s.op = "concrete_gate";
                test_emit(list, s);
                s.op = "concrete_gate_grad";
                s.beta = v ? 0.5 : 0;
                test_emit(list, s);
                s.beta = 0;
            }
            s.value = 0;
            s.options = OPT_OFFSET;
            s.op = "concrete_gate_infer";
            test_emit(list, s);
        }
    /* R1's pruning grid: 1000 blocks of 8, 16 and 32, both norms */
    for (int32_t b = 8; b <= 32 && list->tier != TIER_QUICK; b *= 2)
        for (int norm = BSK_NORM_MAX; norm <= BSK_NORM_L2; norm++) {
            test_spec s = weight("block_norm", BSK_F32, b, b);
            s.k = 40 * b;
            s.m = 25 * b;
            s.pattern = PATTERN_FULL;
            s.norm = (bsk_norm)norm;
            test_emit(list, s);
        }
}

static void list_projections(test_list *list)
{
    static const char *const ops[] = {"proj_gather", "proj_scatter", "proj_scatter_add",
                                      "proj_scatter_mul", "proj_scatter_mul_grad"};
    static const int64_t shapes[][3] = {
        {40, 9, 5}, {33, 33, 1}, {100, 1, 17}, {20, 6, 0}, {8192, 1024, 64}};
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int o = 0; o < TEST_COUNT(ops); o++)
                for (int axis = BSK_NC; axis <= BSK_CN; axis++) {
                    bool large = shapes[i][0] > 1000;
                    if (large && (t || list->tier == TIER_QUICK))
                        continue;
                    test_spec s = {.op = ops[o], .dtype = dtypes[t], .axis = (bsk_axis)axis};
                    s.k = shapes[i][0];
                    s.m = shapes[i][1];
                    s.n = shapes[i][2];
                    const bool blends = strcmp(s.op, "proj_scatter_mul_grad") == 0;
                    test_emit(list, s);
                    s.alpha = 2;
                    if (blends)
                        test_emit(list, s);
                    s.beta = 0.5;
                    if (blends)
                        test_emit(list, s);
                    if (large)
                        continue;
                    s.options = OPT_OFFSET | OPT_LD | (o >= 2 ? OPT_INPLACE : 0);
                    s.fill = FILL_INT;
                    if (blends)
                        test_emit(list, s);
                    s.alpha = s.beta = 0;
                    test_emit(list, s);
                }
    static const bsk_dtype moved[] = {BSK_F32, BSK_BF16,   BSK_F16,    BSK_F64,
                                      BSK_U16, BSK_F8E4M3, BSK_F8E5M2, BSK_I8};
    for (int t = 0; t < TEST_COUNT(moved); t++) {
        test_spec s = {.op = "block_gather", .dtype = moved[t], .n = -1, .k = 9, .m = 14};
        test_emit(list, s);
        s.value = 1;
        s.k = 20;
        s.m = 11;
        test_emit(list, s);
        s.options = OPT_OFFSET;
        test_emit(list, s);
    }
}

void cases_weights(test_list *list)
{
    list_blocks(list);
    list_l2(list);
    list_vectors(list);
    list_projections(list);
}

/* --- Dense companions --------------------------------------------------------------------- */

static void list_embedding(test_list *list)
{
    static const bsk_dtype indices[] = {BSK_I32, BSK_I64, BSK_U16, BSK_U8};
    /* rows, width, indices: from R1's list; one that GPUs copy in slices; the largest only in the
     * full tier */
    static const int64_t shapes[][3] = {{1, 1, 1},        {10, 16, 33},        {200, 7, 64},
                                        {256, 128, 0},    {1024, 64, 100},     {100, 33, 500},
                                        {9000, 264, 700}, {32768, 1024, 32768}};
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int x = 0; x < TEST_COUNT(indices); x++) {
                bool large = shapes[i][0] > 10000, sliced = !large && shapes[i][0] > 2000;
                if ((large && (list->tier != TIER_FULL || t || x)) ||
                    (sliced && (list->tier == TIER_QUICK || x)) ||
                    (list->tier == TIER_QUICK && (t + x) % 4))
                    continue;
                test_spec s = {.op = "embedding", .dtype = dtypes[t], .index = indices[x]};
                s.k = shapes[i][0];
                s.m = shapes[i][1];
                s.n = shapes[i][2];
                test_emit(list, s);
                if (sliced)
                    continue;
                s.op = "embedding_grad";
                s.fill = x % 2 ? FILL_INT : FILL_REAL;
                s.beta = x % 2 ? 0.5 : 0;
                test_emit(list, s);
                s.op = "embedding";
                s.out = dtypes[(t + 1) % 4];
                s.options = OPT_LD | OPT_OFFSET;
                s.beta = 0;
                test_emit(list, s);
                s.op = "embedding_grad";
                s.alpha = 0.5;
                test_emit(list, s);
            }
}

static void list_dense_wgrad(test_list *list)
{
    /* the last ones have R1's numbers of rows */
    static const int64_t shapes[][3] = {{33, 5, 7},          {0, 3, 4},         {8, 0, 4},
                                        {8, 4, 0},           {1000, 8, 64},     {4099, 17, 3},
                                        {32, 4, 4},          {1 << 20, 8, 4},   {1 << 17, 16, 8},
                                        {1 << 15, 32, 16},   {1 << 20, 32, 32}, {1 << 17, 128, 128},
                                        {1 << 15, 256, 256}, {32, 1024, 1024},  {64, 8, 8}};
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int axis = BSK_NC; axis <= BSK_CN; axis++) {
                if (i > 6 && (list->tier != TIER_FULL || t))
                    continue;
                test_spec s = {.op = "dense_wgrad", .dtype = dtypes[t], .axis = (bsk_axis)axis};
                s.n = shapes[i][0];
                s.k = shapes[i][1];
                s.m = shapes[i][2];
                s.options = i % 2 ? OPT_LD | OPT_OFFSET : 0;
                s.fill = i % 2 ? FILL_INT : FILL_REAL;
                s.out = t ? BSK_F32 : BSK_NONE;
                test_emit(list, s);
                s.alpha = 0.5;
                s.beta = -1;
                test_emit(list, s);
            }
}

static void list_bias_act(test_list *list)
{
    static const int64_t shapes[][2] = {{1, 1},      {32, 32},   {19, 257},  {0, 8},
                                        {3, 100},    {64, 1024}, {32, 8193}, {64, 4097},
                                        {128, 2049}, {64, 2048}, {64, 8192}, {256, 1025}};
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int act = 0; act < BSK_ACT_COUNT; act++)
                for (int axis = BSK_NC; axis <= BSK_CN; axis++) {
                    bool large = shapes[i][0] * shapes[i][1] > 10000;
                    if ((large && list->tier != TIER_FULL) ||
                        (list->tier == TIER_QUICK && (t + act + axis) % 4))
                        continue;
                    test_spec s = {.op = "bias_act", .dtype = dtypes[t], .act = (bsk_act)act};
                    s.axis = (bsk_axis)axis;
                    s.n = shapes[i][0];
                    s.m = shapes[i][1];
                    s.options = OPT_BIAS | (i % 2 ? OPT_LD | OPT_OFFSET : 0);
                    s.fill = act < 2 && i % 2 ? FILL_INT : FILL_REAL;
                    s.out = i % 3 == 2 ? dtypes[(t + 1) % 4] : BSK_NONE;
                    test_emit(list, s);
                    s.op = "bias_act_grad";
                    s.options |= OPT_DBIAS;
                    s.beta = i % 2 ? 0.5 : 0;
                    test_emit(list, s);
                    s.options |= OPT_BLEND;
                    test_emit(list, s);
                    if (i != 2)
                        continue;
                    s.out = BSK_NONE;
                    s.beta = 0.5;
                    s.options = OPT_INPLACE | OPT_BLEND;
                    test_emit(list, s);
                    s.beta = 0;
                    s.options = OPT_INPLACE;
                    test_emit(list, s);
                    s.op = "bias_act";
                    test_emit(list, s);
                    s.fill = FILL_SPECIAL;
                    test_emit(list, s);
                    s.op = "bias_act_grad";
                    s.options = OPT_DBIAS | OPT_NO_GRAD;
                    test_emit(list, s);
                }
    /* Rows of whole runs: one, none, a part of what a group takes, wider than a group, and so many
     * that groups take several turns. */
    static const int64_t whole[][2] = {{1, 8},    {0, 264},    {37, 264},
                                       {5, 4104}, {150, 1048}, {20000, 8}};
    for (int i = 0; i < TEST_COUNT(whole); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int act = BSK_ACT_RELU; act <= BSK_ACT_GELU; act++) {
                if (list->tier == TIER_QUICK && (i + t + act) % 2)
                    continue;
                test_spec s = {.op = "bias_act_grad", .dtype = dtypes[t], .act = (bsk_act)act};
                s.n = whole[i][0];
                s.m = whole[i][1];
                s.options = OPT_DBIAS | (i % 2 ? OPT_LD8 | OPT_BIAS : i == 2 ? OPT_INPLACE : 0);
                s.alpha = i % 2 ? 2 : 0;
                s.beta = i % 3 == 1 ? 0.5 : 0;
                test_emit(list, s);
                s.options |= OPT_BLEND;
                test_emit(list, s);
                s.options &= ~(uint32_t)OPT_BLEND;
                if (i != 2)
                    continue;
                s.fill = FILL_SPECIAL;
                test_emit(list, s);
                s.options = OPT_DBIAS | OPT_BIAS | OPT_NO_GRAD;
                test_emit(list, s);
                s.options = OPT_DBIAS | OPT_BIAS;
                s.fill = FILL_HUGE;
                test_emit(list, s);
            }
    /* Sums alone of whole runs, of more rows than lanes have under way. */
    for (int t = 0; t < TEST_COUNT(dtypes); t++) {
        test_spec s = {.op = "bias_act_grad", .dtype = dtypes[t], .n = 700, .m = 264};
        s.options = OPT_DBIAS | OPT_NO_GRAD;
        s.fill = FILL_REAL;
        test_emit(list, s);
        s.fill = FILL_INT;
        s.beta = 0.5;
        test_emit(list, s);
    }
}

/* Without beta, and with it where there is a gradient. */
static void emit_blend(test_list *list, test_spec s)
{
    test_emit(list, s);
    s.beta = 0.5;
    if (!(s.options & OPT_NO_GRAD))
        test_emit(list, s);
}

static void list_cross_entropy(test_list *list)
{
    static const bsk_dtype labels[] = {BSK_U16, BSK_I32, BSK_I64, BSK_U8};
    static const int64_t shapes[][2] = {{3, 10},   {9, 1},    {17, 33},   {3, 256},   {0, 5},
                                        {40, 512}, {3, 8192}, {3, 16384}, {3, 32768}, {3, 65536}};
    static const uint32_t options[] = {0,           OPT_SMOOTH,
                                       OPT_IGNORE,  OPT_DLOSS,
                                       OPT_NO_LOSS, OPT_NO_GRAD | OPT_OFFSET,
                                       OPT_INPLACE, OPT_SMOOTH | OPT_IGNORE | OPT_DLOSS | OPT_LD};
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int o = 0; o < TEST_COUNT(options); o++) {
                bool large = shapes[i][1] > 1000;
                if ((large && list->tier != TIER_FULL && o) ||
                    (list->tier == TIER_QUICK && (large || (o + t) % 4)))
                    continue;
                test_spec s = {.op = "cross_entropy", .dtype = dtypes[t], .options = options[o]};
                s.n = shapes[i][0];
                s.m = shapes[i][1];
                s.index = labels[(o + i) % 4];
                s.alpha = o % 2 ? 8 : 0;
                emit_blend(list, s);
                s.kind = i == 2 || i == 6;
                if (s.kind)
                    emit_blend(list, s);
                if (i != 2 || (options[o] & OPT_INPLACE))
                    continue;
                s.fill = FILL_SPECIAL;
                test_emit(list, s);
                s.kind = 0;
                s.out = dtypes[(t + 1) % 4];
                test_emit(list, s);
                s.fill = FILL_REAL;
                test_emit(list, s);
            }
    /* Smoothed losses sum distances, not logits. */
    for (int t = 0; t < TEST_COUNT(dtypes); t++) {
        test_spec s = {.op = "cross_entropy", .dtype = dtypes[t], .options = OPT_SMOOTH};
        s.n = 3;
        s.m = 49160;
        s.index = BSK_I32;
        s.value = dtypes[t] == BSK_F16 ? 1e4 : 1e5;
        test_emit(list, s);
    }
    /* Rows that are copied in pieces, more of them than there is room for at a time; the last tier
     * has that many for each multiprocessor of a large device. */
    for (int t = 0; t < TEST_COUNT(dtypes); t++)
        for (int o = 0; o < TEST_COUNT(options); o++) {
            test_spec s = {.op = "cross_entropy", .dtype = dtypes[t], .options = options[o]};
            if (list->tier == TIER_QUICK && (o + t) % 4)
                continue;
            s.n = list->tier == TIER_FULL && o == 3 ? 400 : 9;
            s.m = 49160;
            s.index = labels[o % 3];
            s.alpha = o % 2 ? 8 : 0;
            for (s.kind = 0; s.kind < 2; s.kind++)
                if (o % 3 == 0)
                    emit_blend(list, s);
                else
                    test_emit(list, s);
            s.kind = 0;
            if (o == 0 || (options[o] & OPT_DLOSS)) {
                s.fill = FILL_SPECIAL;
                test_emit(list, s);
            }
        }
}

void cases_ops(test_list *list)
{
    list_embedding(list);
    list_dense_wgrad(list);
    list_bias_act(list);
    list_cross_entropy(list);
}

/* --- Optimizers ---------------------------------------------------------------------------- */

void cases_optim(test_list *list)
{
    static const int64_t shapes[][2] = {{1, 0},    {3, 0}, {127, 0},     {33, 17},
                                        {1, 1024}, {0, 4}, {1023, 1024}, {1024, 1024}};
    static const uint32_t options[] = {0,
                                       OPT_DECAY,
                                       OPT_CLIP,
                                       OPT_NORM_SCALE,
                                       OPT_SKIP,
                                       OPT_GATE,
                                       OPT_COPY,
                                       OPT_OFFSET,
                                       OPT_LAZY,
                                       OPT_CLIP | OPT_DECAY | OPT_NORM_SCALE | OPT_COPY,
                                       OPT_LAZY | OPT_GATE,
                                       OPT_SAVED,
                                       OPT_SAVED | OPT_SKIP};
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int o = 0; o < TEST_COUNT(options); o++) {
                bool large = shapes[i][0] * shapes[i][1] > 10000;
                if ((large && list->tier != TIER_FULL) || (list->tier == TIER_QUICK && (o + t) % 4))
                    continue;
                if (!shapes[i][1] && (options[o] & OPT_LAZY))
                    continue;
                test_spec s = {.op = "adam", .dtype = dtypes[t], .n = -1, .options = options[o]};
                s.k = shapes[i][0];
                s.m = shapes[i][1];
                s.out = s.options & OPT_COPY ? dtypes[(t + 1) % 4] : BSK_NONE;
                s.value = o % 2 ? 0.5 : 0;
                test_emit(list, s);
                if (dtypes[t] != BSK_F64) {
                    s.index = o % 3 ? BSK_BF16 : BSK_U16;
                    s.kind = o % 3 == 2;
                    test_emit(list, s);
                }
                if (!large && !(options[o] & (OPT_GATE | OPT_LAZY))) {
                    s.op = "adam_n";
                    s.pairs = o % 2 ? 2 : 11;
                    test_emit(list, s);
                    if (s.index) {
                        s.index = BSK_NONE;
                        s.kind = 0;
                        test_emit(list, s);
                    }
                    s.op = "adam";
                    s.pairs = 0;
                }
                s.index = BSK_NONE;
                s.kind = 0;
                if (s.options & OPT_CLIP)
                    continue; /* where a clamp leaves NaN is not stated */
                s.seed = 2;
                s.fill = FILL_SPECIAL;
                test_emit(list, s);
            }
}
