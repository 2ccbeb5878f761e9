/* The cases of the products. Sizes are small, because the reference computes every one of them;
 * what matters is each block size, type, axis and option, and ragged edges everywhere. */
#include "tests/harness/test.h"

static const bsk_dtype dtypes[] = {BSK_F32, BSK_BF16, BSK_F16, BSK_F64};
static const char *const linear[] = {"matmul", "matmul_dgrad", "matmul_wgrad"};
static const int32_t blocks[][2] = {
    {8, 8},  {16, 16}, {32, 32}, {64, 64}, {128, 128},            /* first class */
    {8, 16}, {16, 8},  {32, 64}, {64, 8},  {8, 128},   {128, 32}, /* and mixed */
    {1, 1},  {3, 3},   {5, 7},   {24, 24}, {7, 64},    {32, 5},   /* any other */
};

static test_spec product(const char *op, bsk_dtype dtype, int32_t br, int32_t bc, int64_t n)
{
    test_spec s = {.op = op, .dtype = dtype, .br = br, .bc = bc, .n = n};
    s.k = 3 * br;
    s.m = 4 * bc;
    s.pattern_value = 0.5;
    return s;
}

/* Cuts the last block row and column. */
static test_spec ragged(test_spec s)
{
    s.k -= s.br > 2 ? s.br / 3 : 0;
    s.m -= s.bc > 2 ? s.bc / 2 : 0;
    return s;
}

static void emit_axes(test_list *list, test_spec s)
{
    s.axis = BSK_NC;
    test_emit(list, s);
    s.axis = BSK_CN;
    test_emit(list, s);
}

/* Every block size with every type, exact and rounded. */
static void list_blocks(test_list *list)
{
    for (int b = 0; b < TEST_COUNT(blocks); b++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int o = 0; o < TEST_COUNT(linear); o++) {
                if (list->tier == TIER_QUICK && (b % 4 != t || blocks[b][0] > 32))
                    continue;
                test_spec s = product(linear[o], dtypes[t], blocks[b][0], blocks[b][1], 19);
                s.fill = FILL_INT;
                emit_axes(list, s);
                s = ragged(s);
                s.fill = FILL_REAL;
                s.n = o == 2 ? 69 : 37; /* few have a way of their own */
                s.seed = 2;
                s.transpose = b % 2;
                emit_axes(list, s);
            }
}

static void list_samples(test_list *list)
{
    static const int64_t counts[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 48, 64, 65, 100, 129};
    for (int i = 0; i < TEST_COUNT(counts); i++)
        for (int o = 0; o < TEST_COUNT(linear); o++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++) {
                /* Nine columns end inside a vector of every type, and few have ways of their own. */
                if (list->tier == TIER_QUICK && (i % 5 || t > 1) && counts[i] != 9)
                    continue;
                emit_axes(list, ragged(product(linear[o], dtypes[t], 16, 16, counts[i])));
            }
}

/* Few columns under long rows, for which small tiles have the most warps that a device has room for. */
static void list_long(test_list *list)
{
    for (int32_t block = 8; block <= 16; block *= 2)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int o = 0; o < 2; o++) {
                test_spec s = product(linear[o], dtypes[t], block, block, 40);
                s.k = o ? 32 : 1056;
                s.m = o ? 1056 : 32;
                s.pattern = PATTERN_FULL;
                s.fill = FILL_INT;
                if (dtypes[t] == BSK_BF16 || list->tier != TIER_QUICK)
                    emit_axes(list, s);
            }
}

/* Few outputs and samples over a depth that is shared out where a device has room for more tiles. */
static void list_deep(test_list *list)
{
    static const struct {
        int32_t block;
        int64_t outputs, n;
        uint32_t options;
        bsk_act act;
        double beta;
    } forms[] = {{8, 64, 70, 0, BSK_ACT_NONE, 0},
                 {8, 320, 64, OPT_BIAS | OPT_RESIDUAL, BSK_ACT_GELU, 0.5},
                 {16, 320, 70, 0, BSK_ACT_NONE, 0},
                 {16, 64, 9, OPT_BIAS | OPT_LD, BSK_ACT_SILU, 0},
                 {32, 320, 72, OPT_BIAS, BSK_ACT_NONE, 0},
                 {32, 64, 100, OPT_RESIDUAL, BSK_ACT_QUICK_GELU, 1}};
    for (int i = 0; i < TEST_COUNT(forms); i++)
        for (int o = 0; o < 2; o++)
            for (int t = 0; t < 2; t++) {
                test_spec s = product(linear[o], t ? BSK_F16 : BSK_BF16, forms[i].block,
                                      forms[i].block, forms[i].n);
                s.k = o ? forms[i].outputs : 8216;
                s.m = o ? 8216 : forms[i].outputs;
                s.pattern_value = 0.05;
                s.fill = FILL_REAL;
                s.options = o ? forms[i].options & OPT_LD : forms[i].options;
                s.act = o ? BSK_ACT_NONE : forms[i].act;
                s.beta = forms[i].beta;
                if (list->tier != TIER_QUICK || (i + o + t) % 3 == 0)
                    emit_axes(list, s);
            }
}

/* A depth of more windows than a warp finds at once, of few samples: one more than a product has,
 * and than half of the largest tile. */
static void list_deepest(test_list *list)
{
    static const struct {
        int32_t block;
        int64_t n;
    } forms[] = {{8, 17}, {8, 33}, {16, 33}};
    for (int f = 0; f < TEST_COUNT(forms); f++) {
        const int32_t side = forms[f].block;
        test_spec s = product("matmul", BSK_BF16, side, side, forms[f].n);
        s.k = 16904;
        s.m = 40;
        s.pattern_value = 0.05;
        s.fill = FILL_REAL;
        emit_axes(list, s);
    }
}

/* One block row or two of few columns, whose list is cut in parts even by a device of two units; what
 * joins them does every kind of end. */
static void list_parts(test_list *list)
{
    static const struct {
        int32_t rows, depth; /* of a block of op(W) */
        int64_t outputs, n;
        int32_t groups;
        uint32_t options;
        bsk_act act;
        double beta;
    } forms[] = {{8, 8, 8, 1, 0, 0, BSK_ACT_NONE, 0},
                 {16, 16, 32, 8, 0, OPT_BIAS | OPT_RESIDUAL | OPT_LD, BSK_ACT_GELU, 0.5},
                 {32, 32, 20, 16, 0, OPT_ROW_SCALE | OPT_COL_SCALE, BSK_ACT_NONE, 0},
                 {12, 20, 12, 13, 0, OPT_GATE, BSK_ACT_NONE, -1},
                 {16, 16, 16, 5, 2, 0, BSK_ACT_NONE, 0}};
    for (int i = 0; i < TEST_COUNT(forms); i++)
        for (int o = 0; o < 2; o++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++) {
                const char *const op = forms[i].groups ? "dsd" : linear[o];
                if (list->tier == TIER_QUICK && (i + o + t) % 2)
                    continue;
                test_spec s = product(op, dtypes[t], o ? forms[i].rows : forms[i].depth,
                                      o ? forms[i].depth : forms[i].rows, forms[i].n);
                s.k = o ? forms[i].outputs : 2110;
                s.m = o ? 2110 : forms[i].outputs;
                s.groups = forms[i].groups;
                s.transpose = forms[i].groups && !o;
                s.pattern_value = 0.9;
                s.options = forms[i].options;
                if (o) { /* what gradients have */
                    s.options &= OPT_GATE | OPT_LD;
                } else {
                    s.act = forms[i].act;
                }
                s.beta = forms[i].beta;
                s.fill = s.act ? FILL_REAL : FILL_INT;
                emit_axes(list, s);
            }
}

/* Weight gradients of few samples, for paths that are bound by writing the blocks: small ones and parts
 * of large ones, with every kind of end, as stored or by the sums of pairs; whole, and ragged within
 * four elements or by fours. */
static void list_writing(test_list *list)
{
    static const int32_t sides[][2] = {{8, 8},  {32, 32}, {12, 12}, {16, 16}, {4, 4},     {64, 64},
                                       {8, 32}, {20, 64}, {32, 8},  {64, 4},  {128, 128}, {16, 96}};
    static const int64_t counts[] = {1, 17, 4, 33, 3, 64, 16};
    static const struct {
        int32_t pairs;
        uint32_t options;
        bsk_gate_mode mode;
        double alpha, beta;
    } forms[] = {{0, 0, 0, 0, 0},
                 {0, OPT_GATE, BSK_GATE_SKIP, -0.5, 0},
                 {0, OPT_GATE, BSK_GATE_SCALE, 2, 1},
                 {0, OPT_LD8, 0, 0, -1},
                 {0, OPT_GATE | OPT_OFFSET, BSK_GATE_SKIP, 0, 0.5},
                 {3, OPT_LD8, 0, 0, 0.5},
                 {2, OPT_GATE | OPT_DBIAS, BSK_GATE_SCALE, 0.5, 0},
                 {0, OPT_GATE | OPT_DGATE, BSK_GATE_SKIP, 0, 1},
                 {2, OPT_GATE | OPT_DGATE | OPT_LD, BSK_GATE_SCALE, 0, 0}};
    for (int b = 0; b < TEST_COUNT(sides); b++)
        for (int i = 0; i < TEST_COUNT(forms); i++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++) {
                const int at = b + i + t;
                if ((list->tier == TIER_QUICK && (at % 4 || (sides[b][0] > 64 && i % 3))) ||
                    (list->tier == TIER_CI && at % 2))
                    continue;
                test_spec s = product("matmul_wgrad", dtypes[t], sides[b][0], sides[b][1],
                                      counts[(b + 2 * i + 3 * t) % TEST_COUNT(counts)]);
                s.m += s.bc;
                s.pattern_value = s.br > 64 ? 0.3 : 0.5;
                s.pairs = forms[i].pairs;
                s.options = forms[i].options;
                s.gate_mode = forms[i].mode;
                s.alpha = forms[i].alpha;
                s.beta = forms[i].beta;
                s.out = at % 3 ? BSK_NONE : BSK_F32;
                s.fill = (b + i) % 2 || s.br > 64 ? FILL_INT : FILL_REAL;
                if (i % 3 == 1)
                    s = ragged(s);
                else if (i % 3 == 2 && s.br > 4 && s.bc > 4) {
                    s.k -= 4;
                    s.m -= 4;
                }
                emit_axes(list, s);
            }
}

/* The same of heads and batches, whose members add up where they share S, with every order of the two
 * operands. */
static void list_writing_batches(test_list *list)
{
    static const int32_t sides[][2] = {{8, 8}, {16, 4}, {64, 64}};
    static const struct {
        int32_t heads, groups;
        uint32_t options;
        int64_t n;
    } forms[] = {{1, 0, 0, 20},          {1, 0, OPT_TRANS, 24}, {2, 2, 0, 6},
                 {2, 2, OPT_SHARED, 32}, {3, 1, OPT_TRANS, 64}, {1, 4, OPT_SHARED | OPT_TRANS, 16}};
    for (int b = 0; b < TEST_COUNT(sides); b++)
        for (int i = 0; i < TEST_COUNT(forms); i++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++) {
                if ((list->tier == TIER_QUICK && (b + i + t) % 4) ||
                    (list->tier == TIER_CI && (b + i + t) % 2))
                    continue;
                test_spec s = product("sdd", dtypes[t], sides[b][0], sides[b][1], forms[i].n);
                s.heads = forms[i].heads;
                s.groups = forms[i].groups;
                s.options = forms[i].options;
                s.pattern = s.heads > 1 ? PATTERN_UNEVEN : PATTERN_RANDOM;
                s.beta = i % 2 ? 0.5 : 0;
                s.fill = t % 2 ? FILL_INT : FILL_REAL;
                test_emit(list, s);
            }
}

/* Blocks that are lines, of which a few columns could be taken for transposed ones. */
static void list_lines(test_list *list)
{
    static const int32_t lines[][2] = {{8, 1}, {16, 1}, {4, 1}, {1, 16}};
    static const int64_t counts[] = {1, 8, 16};
    for (int b = 0; b < TEST_COUNT(lines); b++)
        for (int i = 0; i < TEST_COUNT(counts); i++)
            for (int o = 0; o < TEST_COUNT(linear); o++)
                for (int t = 0; t < TEST_COUNT(dtypes); t++) {
                    if (list->tier == TIER_QUICK && dtypes[t] != (b % 2 ? BSK_F32 : BSK_F64))
                        continue;
                    emit_axes(list,
                              product(linear[o], dtypes[t], lines[b][0], lines[b][1], counts[i]));
                }
}

static void list_patterns(test_list *list)
{
    static const struct {
        test_pattern pattern;
        double value;
        bsk_order order;
    } patterns[] = {
        {PATTERN_EMPTY, 0, 0},
        {PATTERN_FULL, 0, 0},
        {PATTERN_ONE, 0, 0},
        {PATTERN_DIAGONAL, 0, 0},
        {PATTERN_BARABASI, 2, 0},
        {PATTERN_WATTS, 2, 0},
        {PATTERN_RANDOM, 0.1, 0},
        {PATTERN_RANDOM, 0.3, BSK_ORDER_COL},
        {PATTERN_RANDOM, 0.3, BSK_ORDER_MORTON},
        {PATTERN_RANDOM, 0.3, BSK_ORDER_GIVEN},
    };
    static const int columns[] = {21, 5}; /* few have a way of their own */
    for (int i = 0; i < TEST_COUNT(patterns) * TEST_COUNT(columns); i++)
        for (int o = 0; o < TEST_COUNT(linear); o++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++) {
                const int kind = i % TEST_COUNT(patterns);
                if (list->tier == TIER_QUICK && t)
                    continue;
                test_spec s =
                    product(linear[o], dtypes[t], 16, 16, columns[i / TEST_COUNT(patterns)]);
                s.k = s.m = 7 * 16;
                s.pattern = patterns[kind].pattern;
                s.pattern_value = patterns[kind].value;
                s.order = patterns[kind].order;
                s = ragged(s);
                s.m = s.k;
                s.beta = kind < 3 && t ? 0.5 : 0;
                emit_axes(list, s);
            }
}

/* Every output type with every input type. */
static void list_outputs(test_list *list)
{
    for (int t = 0; t < TEST_COUNT(dtypes); t++)
        for (int u = 0; u < TEST_COUNT(dtypes); u++)
            for (int o = 0; o < TEST_COUNT(linear); o++) {
                if (t == u || list->tier == TIER_QUICK)
                    continue;
                test_spec s = product(linear[o], dtypes[t], 32, 16, 23);
                s.out = dtypes[u];
                emit_axes(list, ragged(s));
                s.n = o == 2 ? 66 : 23;
                s.beta = -0.5;
                s.alpha = 2;
                s.fill = FILL_INT;
                emit_axes(list, s);
            }
}

static const uint32_t matmul_options[] = {
    OPT_GATE,
    OPT_BIAS,
    OPT_RESIDUAL,
    OPT_ROW_SCALE,
    OPT_COL_SCALE,
    OPT_LD,
    OPT_TRANS,
    OPT_OFFSET,
    OPT_RESIDUAL | OPT_INPLACE,
    OPT_ROW_SCALE | OPT_COL_SCALE,
    OPT_GATE | OPT_BIAS | OPT_OFFSET,
    OPT_LD | OPT_OFFSET,
    OPT_LD | OPT_TRANS | OPT_RESIDUAL,
    OPT_GATE | OPT_BIAS | OPT_RESIDUAL | OPT_ROW_SCALE | OPT_COL_SCALE | OPT_LD | OPT_OFFSET,
};

static void list_epilogue(test_list *list)
{
    for (int i = 0; i < TEST_COUNT(matmul_options); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++) {
            if (list->tier == TIER_QUICK && t != i % 4)
                continue;
            test_spec s = ragged(product("matmul", dtypes[t], 16, 32, 27));
            s.options = matmul_options[i];
            s.transpose = i % 2;
            emit_axes(list, s);
            s.fill = FILL_INT;
            s.alpha = -0.5;
            s.beta = i % 3 == 0 ? 2 : 0;
            emit_axes(list, s);
            s.fill = FILL_REAL;
            s.br = s.bc = 8;
            s.alpha = 1.7;
            s.beta = 0.3;
            emit_axes(list, s);
        }
    for (bsk_act act = BSK_ACT_RELU; act < BSK_ACT_COUNT; act++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++) {
            test_spec s = ragged(product("matmul", dtypes[t], 16, 16, 18));
            s.act = act;
            emit_axes(list, s);
            s.options = OPT_BIAS | OPT_RESIDUAL | OPT_GATE;
            s.alpha = 4;
            emit_axes(list, s);
        }
}

static void list_gradients(test_list *list)
{
    static const int32_t pairs[] = {1, 2, 9};
    for (int t = 0; t < TEST_COUNT(dtypes); t++) {
        for (int m = BSK_GATE_IGNORE; m <= BSK_GATE_SCALE; m++)
            for (int p = 0; p < TEST_COUNT(pairs); p++) {
                if (list->tier == TIER_QUICK && (t + m + p) % 3)
                    continue;
                test_spec s = ragged(product("matmul_wgrad", dtypes[t], 16, 8, 13));
                s.n = (m + p + t) % 2 ? 13 : 66; /* few have a way of their own */
                s.gate_mode = (bsk_gate_mode)m;
                s.pairs = pairs[p];
                s.options = OPT_GATE | (p != 1 ? OPT_DBIAS : 0) | (p ? OPT_DGATE : 0);
                s.transpose = p == 1; /* dbias has no transposed form */
                emit_axes(list, s);
                s.fill = FILL_INT;
                s.alpha = 2;
                s.beta = 1;
                s.options |= OPT_LD | OPT_OFFSET;
                emit_axes(list, s);
            }
        test_spec s = ragged(product("matmul_dgrad", dtypes[t], 32, 16, 29));
        static const uint32_t options[] = {OPT_GATE, OPT_LD, OPT_TRANS, OPT_OFFSET,
                                           OPT_GATE | OPT_LD | OPT_OFFSET};
        for (int i = 0; i < TEST_COUNT(options); i++) {
            s.options = options[i];
            s.beta = i % 2 ? 0.75 : 0;
            s.alpha = i % 2 ? -3 : 0;
            s.transpose = i % 2;
            emit_axes(list, s);
        }
        s = ragged(product("matmul_wgrad", dtypes[t], 32, 32, 20));
        s.options = OPT_DBIAS | OPT_TRANS;
        emit_axes(list, s);
        s.options = OPT_DGATE | OPT_DBIAS; /* without a gate */
        s.beta = 0.5;
        emit_axes(list, s);
    }
}

/* dsd, dds, sdd: transposes, strides, heads, groups. */
static void list_general(test_list *list)
{
    static const char *const ops[] = {"dsd", "dds", "sdd"};
    static const struct {
        int32_t heads, groups;
        uint32_t options;
    } batches[] = {
        {1, 0, 0},
        {1, 1, OPT_GATE},
        {1, 3, 0},
        {1, 3, OPT_SHARED},
        {3, 1, 0},
        {3, 2, OPT_LD},
        {4, 2, OPT_SHARED | OPT_GATE},
        {1, 0, OPT_TRANS},
        {2, 2, OPT_TRANS},
        {1, 0, OPT_LD},
        {1, 0, OPT_LD | OPT_OFFSET | OPT_GATE},
        {1, 2, OPT_TRANS | OPT_LD | OPT_OFFSET},
    };
    for (int o = 0; o < TEST_COUNT(ops); o++)
        for (int i = 0; i < TEST_COUNT(batches); i++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++) {
                if (list->tier == TIER_QUICK && (i + t + o) % 4)
                    continue;
                test_spec s = ragged(
                    product(ops[o], dtypes[t], i % 2 ? 8 : 16, 16, o == 2 && i % 3 ? 70 : 22));
                s.heads = batches[i].heads;
                s.groups = batches[i].groups;
                s.options = batches[i].options;
                s.pattern = s.heads > 1 && i % 2 ? PATTERN_UNEVEN : PATTERN_RANDOM;
                s.gate_mode = o == 2 && s.options & OPT_GATE ? BSK_GATE_SCALE : BSK_GATE_IGNORE;
                test_emit(list, s);
                s.transpose = o < 2;
                s.fill = FILL_INT;
                s.beta = 0.5;
                s.pairs = o == 2 ? 2 : 0;
                s.options |= o < 2 ? OPT_BIAS : OPT_DBIAS;
                test_emit(list, s);
                s.fill = FILL_REAL;
                s.options |= o < 2 ? OPT_RESIDUAL | OPT_ROW_SCALE | OPT_COL_SCALE : OPT_DGATE;
                s.act = o < 2 ? BSK_ACT_SILU : BSK_ACT_NONE;
                test_emit(list, s);
            }
}

/* Few columns of batches and heads, and more block rows than a CPU takes in turn. */
static void list_few_batches(test_list *list)
{
    static const int64_t columns[] = {1, 5, 13};
    for (int i = 0; i < TEST_COUNT(columns) && list->tier != TIER_QUICK; i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++) {
            test_spec s = product(i % 2 ? "dds" : "dsd", dtypes[t], 8, 8, columns[i]);
            s.k = s.m = 300 + 8 * i;
            s.heads = 2;
            s.groups = 2;
            s.options = i == 2 ? OPT_SHARED : 0;
            s.pattern = PATTERN_UNEVEN;
            test_emit(list, s);
        }
}

/* Panels of which a CPU's own cache keeps fewer than there are block columns; an odd number of rows. */
static void list_panels(test_list *list)
{
    for (int block = 8; block <= 16; block *= 2) {
        test_spec s = {.op = "matmul_wgrad", .dtype = BSK_F32, .br = block, .bc = block};
        s.n = 4103;
        s.k = 24;
        s.m = 128;
        s.pattern = PATTERN_RANDOM;
        s.pattern_value = 0.5;
        emit_axes(list, s);
    }
}

/* NaN and infinity reach what they should and no more; overflow goes to infinity. */
static void list_special(test_list *list)
{
    for (int o = 0; o < TEST_COUNT(linear); o++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++) {
            test_spec s = ragged(product(linear[o], dtypes[t], 8, 16, o == 2 && t % 2 ? 68 : 20));
            s.fill = FILL_SPECIAL;
            emit_axes(list, s);
            s.options = OPT_GATE;
            s.gate_mode = o == 2 ? BSK_GATE_SKIP : BSK_GATE_IGNORE;
            s.seed = 3;
            emit_axes(list, s);
            s.gate_mode = o == 2 ? BSK_GATE_SCALE : BSK_GATE_IGNORE;
            s.options |= o == 2 ? OPT_DGATE : 0;
            s.br = s.bc = 32;
            s.seed = 4;
            s.act = o == 0 ? BSK_ACT_RELU : BSK_ACT_NONE;
            emit_axes(list, s);
            s.act = BSK_ACT_NONE;
            if (o == 2) { /* what a gate of 0 turns off is 0, finite or not */
                s.options = OPT_GATE;
                s.br = s.bc = 8;
                emit_axes(list, s);
            }
            s.options = 0;
            s.gate_mode = BSK_GATE_IGNORE;
            s.fill = FILL_HUGE;
            s.out = BSK_F16;
            s.pattern = PATTERN_FULL;
            emit_axes(list, s);
        }
}

static void list_reduced(test_list *list)
{
    for (int t = 0; t < TEST_COUNT(dtypes); t++)
        for (int norm = BSK_NORM_MAX; norm <= BSK_NORM_L2; norm++) {
            /* the grid of R1's test: 8 pairs, 2 x 4 blocks of 32, N = 64 */
            test_spec s = product("reduced_wgrad", dtypes[t], 32, 32, 64);
            s.k = 64;
            s.m = 128;
            s.pairs = 8;
            s.norm = (bsk_norm)norm;
            emit_axes(list, s);
            s.pairs = 1;
            s.br = 5;
            s.bc = 7;
            s.n = 9;
            s.beta = 0.5;
            s.options = OPT_LD;
            s.fill = FILL_INT;
            emit_axes(list, s);
            s.fill = FILL_SPECIAL;
            s.options = OPT_TRANS | OPT_OFFSET;
            emit_axes(list, s);
            s.fill = FILL_REAL;
            s.n = 0;
            emit_axes(list, s);
            if (dtypes[t] != BSK_F32)
                continue;
            /* single products, of norms whose squares f32 does not hold */
            s = product("reduced_wgrad", BSK_F32, 1, 2, 1);
            s.k = 64;
            s.m = 96;
            s.norm = (bsk_norm)norm;
            s.fill = FILL_BITS;
            emit_axes(list, s);
            /* more samples than the CPU's entry takes together, and at a time */
            s = product("reduced_wgrad", BSK_F32, 32, 32, 300);
            s.k = 64;
            s.m = 128;
            s.norm = (bsk_norm)norm;
            emit_axes(list, s);
            if (norm == BSK_NORM_MAX)
                continue;
            s.br = s.bc = 1;
            s.n = 130;
            s.k = 8;
            s.m = 504;
            emit_axes(list, s);
        }
}

/* The grids of openai/blocksparse: Barabasi-Albert layouts, features x N. Large ones are left to
 * the full tier. */
static void list_openai(test_list *list)
{
    static const int32_t sizes[] = {8, 16, 32};
    static const int64_t counts[] = {8, 16, 32, 64, 128, 256};
    for (int b = 0; b < TEST_COUNT(sizes); b++)
        for (int i = 0; i < TEST_COUNT(counts); i++)
            for (int o = 0; o < TEST_COUNT(linear); o++) {
                int64_t work = (int64_t)sizes[b] * sizes[b] * counts[i];
                if (list->tier == TIER_QUICK || (list->tier == TIER_CI && work > 16 * 16 * 8))
                    continue;
                test_spec s = product(linear[o], BSK_F16, sizes[b], sizes[b], counts[i]);
                s.k = s.m = 160 * sizes[b];
                s.pattern = PATTERN_BARABASI;
                s.pattern_value = 5;
                s.axis = BSK_CN;
                test_emit(list, s);
            }
    if (list->tier == TIER_QUICK)
        return;
    for (int o = 0; o < TEST_COUNT(linear); o++) {
        test_spec s = product(linear[o], BSK_F32, 8, 8, list->tier == TIER_FULL ? 128 : 4);
        s.k = s.m = 448 * 8;
        s.pattern = PATTERN_BARABASI;
        s.pattern_value = 30;
        s.axis = BSK_CN;
        s.options = OPT_GATE | (o == 2 ? OPT_DGATE : 0);
        s.gate_mode = o == 2 ? BSK_GATE_SKIP : BSK_GATE_IGNORE;
        test_emit(list, s);
    }
}

/* The grids of pytorch_block_sparse: N x features, blocks of 32, both transposes. */
static void list_pytorch(test_list *list)
{
    static const int64_t shapes[][3] = {
        {32, 32, 32}, {32, 64, 32},   {64, 32, 32},     {128, 32, 32},      {128, 64, 32},
        {32, 32, 64}, {2048, 32, 64}, {8192, 128, 256}, {32, 64, 64},       {32, 64, 128},
        {1, 32, 32},  {64, 128, 256}, {1, 1024, 2048},  {4096, 1024, 2048},
    };
    static const double densities[] = {0.42, 1.0};
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int d = 0; d < TEST_COUNT(densities); d++)
            for (int o = 0; o < TEST_COUNT(linear); o++) {
                int64_t work = shapes[i][0] * shapes[i][1] * shapes[i][2];
                if (list->tier == TIER_QUICK || (list->tier == TIER_CI && work > 3000000))
                    continue;
                test_spec s = product(linear[o], BSK_F32, 32, 32, shapes[i][0]);
                s.k = shapes[i][1];
                s.m = shapes[i][2];
                s.pattern_value = densities[d];
                test_emit(list, s);
                s.transpose = 1;
                s.options = OPT_TRANS;
                test_emit(list, s);
            }
    static const struct {
        int32_t br, bc;
        int64_t size;
        double density;
    } layers[] = {{4, 1, 4, 0.5}, {4, 8, 32, 0.5}, {4, 8, 32, 1}, {1, 2, 32, 0.5}, {2, 4, 32, 0.5}};
    for (int i = 0; i < TEST_COUNT(layers); i++)
        for (int o = 0; o < TEST_COUNT(linear); o++) {
            test_spec s = product(linear[o], BSK_F32, layers[i].br, layers[i].bc, 32);
            s.k = s.m = layers[i].size;
            s.pattern_value = layers[i].density;
            s.options = o == 0 ? OPT_BIAS : o == 2 ? OPT_DBIAS : 0;
            test_emit(list, s);
            s.n = 256;
            test_emit(list, s);
        }
}

/* Layers in f32 of whole blocks over many rows with contiguous features, as a small model has them on a
 * CPU: entries that neither pack nor transpose. */
static void list_rows(test_list *list)
{
    static const int32_t sides[][2] = {{32, 32}, {32, 64}, {64, 32}, {16, 16}};
    static const struct {
        int64_t n;
        uint32_t options;
        bsk_act act;
        double alpha, beta, density;
    } forms[] = {{131, 0, 0, 0, 0, 0.3},
                 {600, 0, 0, 0, 1, 0.1},
                 {129, OPT_LD, 0, 0.5, -1, 1},
                 {70, OPT_BIAS | OPT_RESIDUAL, BSK_ACT_GELU, 0, 0, 0.3}};
    for (int b = 0; b < TEST_COUNT(sides); b++)
        for (int i = 0; i < TEST_COUNT(forms); i++)
            for (int o = 0; o < TEST_COUNT(linear); o++) {
                if (list->tier == TIER_QUICK && (b + i + o) % 4)
                    continue;
                test_spec s = product(linear[o], BSK_F32, sides[b][0], sides[b][1], forms[i].n);
                s.k = 192;
                s.m = 320;
                s.pattern_value = forms[i].density;
                s.options = o ? forms[i].options & OPT_LD : forms[i].options;
                s.act = o ? BSK_ACT_NONE : forms[i].act;
                s.alpha = forms[i].alpha;
                s.beta = forms[i].beta;
                s.pairs = o == 2 && i == 0 ? 2 : 0;
                s.fill = i == 1 ? FILL_INT : FILL_REAL;
                test_emit(list, s);
            }
}

/* Outputs so large that a CPU stores them past its caches, and lists so long that it takes them in
 * several parts for more columns than it packs at once. */
static void list_large(test_list *list)
{
    if (list->tier == TIER_QUICK)
        return;
    test_spec s = product("matmul", BSK_BF16, 32, 32, 1056);
    s.k = 32;
    s.m = 1024;
    s.pattern_value = 0.1;
    s.fill = FILL_REAL;
    emit_axes(list, s);
    for (int32_t block = 32; block <= 64; block *= 2) {
        s = product("matmul_wgrad", BSK_BF16, block, block, 300);
        s.k = 1024;
        s.m = 1088;
        s.pattern = PATTERN_FULL;
        s.fill = FILL_REAL;
        s.alpha = 0.5;
        emit_axes(list, s);
        for (int o = 0; o < 2; o++) {
            s = product(linear[o], BSK_BF16, block, block, 209);
            s.k = o ? 96 : 992;
            s.m = o ? 992 : 96;
            s.pattern = PATTERN_FULL;
            s.fill = FILL_REAL;
            emit_axes(list, s);
            s.dtype = s.other = BSK_I8;
            s.out = BSK_F32;
            emit_axes(list, s);
        }
    }
}

/* Every pair of first-class block sizes with every type and both densities, larger N. */
static void list_full(test_list *list)
{
    static const int32_t sizes[] = {8, 16, 32, 64, 128};
    if (list->tier != TIER_FULL)
        return;
    for (int r = 0; r < TEST_COUNT(sizes); r++)
        for (int q = 0; q < TEST_COUNT(sizes); q++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++)
                for (int o = 0; o < TEST_COUNT(linear); o++) {
                    test_spec s = product(linear[o], dtypes[t], sizes[r], sizes[q], 257);
                    s.k = s.m = 500;
                    s.pattern_value = 0.25;
                    s.seed = 11;
                    emit_axes(list, s);
                    s.fill = FILL_INT;
                    s.options = OPT_GATE | OPT_LD | OPT_OFFSET;
                    emit_axes(list, s);
                }
}

void cases_products(test_list *list)
{
    list_blocks(list);
    list_samples(list);
    list_long(list);
    list_deep(list);
    list_deepest(list);
    list_parts(list);
    list_writing(list);
    list_writing_batches(list);
    list_lines(list);
    list_patterns(list);
    list_outputs(list);
    list_epilogue(list);
    list_gradients(list);
    list_general(list);
    list_special(list);
    list_few_batches(list);
    list_panels(list);
    list_reduced(list);
    list_openai(list);
    list_pytorch(list);
    list_rows(list);
    list_large(list);
    list_full(list);
}
