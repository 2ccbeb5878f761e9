/* Products for entries with large tiles, whose loads need aligned rows: dimensions are multiples of
 * eight elements even where blocks are cut short, sizes exceed one tile of 256 x 512 outputs and
 * several slices of the inner dimension, and epilogues and patterns meet every block size. */
#include "tests/harness/test.h"

static const bsk_dtype dtypes[] = {BSK_BF16, BSK_F16, BSK_F32};
static const char *const linear[] = {"matmul", "matmul_dgrad", "matmul_wgrad"};
static const int32_t squares[] = {8, 16, 32, 64, 128};
static const int32_t blocks[][2] = {{8, 8},  {16, 16}, {32, 32}, {64, 64},  {128, 128}, {16, 8},
                                    {8, 32}, {32, 64}, {64, 32}, {64, 128}, {128, 64},  {128, 16}};

/* At least `size` elements in whole blocks, the last of them cut by a multiple of eight. */
static int64_t cut(int64_t size, int32_t block)
{
    return (size + block - 1) / block * block - block / 16 * 8;
}

/* The nearest that keeps rows of the axis aligned. */
static int64_t samples(int64_t n, bsk_axis axis)
{
    return axis == BSK_NC ? n : (n + 7) / 8 * 8;
}

static test_spec product(const char *op, bsk_dtype dtype, int32_t br, int32_t bc, int64_t size)
{
    test_spec s = {.op = op, .dtype = dtype, .br = br, .bc = bc, .pattern_value = 0.3, .seed = 21};
    s.k = cut(size, br);
    s.m = cut(size + size / 4, bc);
    return s;
}

static void emit_axes(test_list *list, test_spec s, int64_t n)
{
    for (int axis = BSK_NC; axis <= BSK_CN; axis++) {
        s.axis = (bsk_axis)axis;
        s.n = samples(n, s.axis);
        test_emit(list, s);
    }
}

static void emit_axis(test_list *list, test_spec s, int64_t n, int which)
{
    s.axis = which % 2 ? BSK_CN : BSK_NC;
    s.n = samples(n, s.axis);
    test_emit(list, s);
}

/* More than one tile each way, and a ragged end of each. */
static void list_large(test_list *list)
{
    for (int b = 0; b < TEST_COUNT(blocks) && list->tier != TIER_QUICK; b++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int o = 0; o < TEST_COUNT(linear); o++) {
                if (list->tier == TIER_CI && t && (b + o + t) % 3)
                    continue;
                test_spec s = product(linear[o], dtypes[t], blocks[b][0], blocks[b][1], 500);
                s.pattern_value = 0.12;
                s.fill = (b + o) % 2 ? FILL_REAL : FILL_INT;
                emit_axis(list, s, 271, b + t);
                if (list->tier == TIER_CI && (t || (b + o) % 3))
                    continue;
                s.transpose = 1;
                s.fill = FILL_INT;
                s.beta = 0.5;
                emit_axis(list, s, 271, b + t + 1);
            }
}

/* More tiles than a large device has multiprocessors, so that each computes several. */
static void list_many(test_list *list)
{
    for (int b = 0; b < TEST_COUNT(squares) && list->tier != TIER_QUICK; b++)
        for (int o = 0; o < TEST_COUNT(linear); o++) {
            if (list->tier == TIER_CI && (o != b / 2 % 2 || b == 0 || b == 2))
                continue;
            test_spec s = product(linear[o], BSK_BF16, squares[b], squares[b], 256);
            s.m = cut(2200, squares[b]);
            s.pattern_value = 0.06;
            s.fill = FILL_INT;
            emit_axis(list, s, 2100, b);
        }
}

/* More than sixteen tiles of 96 x 384 for each thread block of a device of four, with both ends. */
static void list_turns(test_list *list)
{
    for (int t = 0; t < 2 && list->tier != TIER_QUICK; t++) {
        test_spec s = product("matmul", dtypes[t], 16, 16, 90);
        s.m = cut(1100, 16);
        s.options = t ? OPT_BIAS | OPT_RESIDUAL : 0;
        s.fill = FILL_INT;
        emit_axis(list, s, 2200, BSK_NC);
    }
}

/* A weight gradient in an odd number of large tiles: a last round for less than all thread blocks
 * of a device of four. */
static void list_odd(test_list *list)
{
    test_spec s = product("matmul_wgrad", BSK_BF16, 32, 32, 700);
    s.m = cut(400, 32);
    s.pattern_value = 0.6;
    s.fill = FILL_INT;
    if (list->tier != TIER_QUICK)
        emit_axis(list, s, 1200, BSK_NC);
}

/* A weight gradient in two units, for each of which a device of four has two thread blocks. */
static void list_halves(test_list *list)
{
    for (int t = 0; t < 2 && list->tier != TIER_QUICK; t++) {
        test_spec s = product("matmul_wgrad", dtypes[t], 64, 64, 256);
        s.m = 384;
        s.k = 256;
        s.pattern_value = 0.4;
        s.seed = 77;
        s.fill = FILL_INT;
        emit_axes(list, s, 1000);
    }
}

/* Few samples: paths that read the weights once. */
static void list_few(test_list *list)
{
    static const int64_t counts[] = {1, 5, 8, 16, 33, 64};
    for (int b = 0; b < TEST_COUNT(blocks); b++)
        for (int i = 0; i < TEST_COUNT(counts); i++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++)
                for (int o = 0; o < TEST_COUNT(linear); o++) {
                    if ((list->tier == TIER_QUICK && (b + i * 5 + t * 7 + o * 11) % 36) ||
                        (list->tier == TIER_CI && t && (b + i) % 3))
                        continue;
                    test_spec s = product(linear[o], dtypes[t], blocks[b][0], blocks[b][1], 160);
                    s.fill = (i + t) % 2 ? FILL_INT : FILL_REAL;
                    s.transpose = (b + i) % 4 == 3;
                    emit_axes(list, s, counts[i]);
                }
}

/* Few outputs of long lists, which entries cut into parts. */
static void list_long(test_list *list)
{
    for (int b = 0; b < TEST_COUNT(squares) && list->tier != TIER_QUICK; b++) {
        test_spec s = product(linear[b % 2], BSK_BF16, squares[b], squares[b], 96);
        *(b % 2 ? &s.m : &s.k) = 1024;
        s.pattern_value = 0.6;
        s.fill = b % 2 ? FILL_INT : FILL_REAL;
        emit_axis(list, s, b % 2 ? 12 : 40, b / 2);
    }
}

static const struct {
    uint32_t options;
    bsk_act act;
    bsk_dtype out;
    double alpha, beta;
    int32_t transpose;
} epilogues[] = {
    {OPT_GATE, 0, 0, 0, 0, 0},
    {OPT_BIAS, BSK_ACT_RELU, 0, 0, 0, 1},
    {OPT_RESIDUAL, 0, 0, 2, 0, 0},
    {OPT_ROW_SCALE | OPT_COL_SCALE, 0, 0, 0, 0.5, 0},
    {OPT_BIAS | OPT_RESIDUAL | OPT_INPLACE, BSK_ACT_GELU, 0, 0, 0, 0},
    {OPT_LD8, 0, 0, 0, 1, 0},
    {OPT_LD8 | OPT_BIAS | OPT_GATE, BSK_ACT_SILU, 0, -0.5, 0, 1},
    {OPT_TRANS, 0, 0, 0, 0, 0},
    {OPT_TRANS | OPT_LD8 | OPT_RESIDUAL, BSK_ACT_QUICK_GELU, 0, 0, 0, 0},
    {0, BSK_ACT_GELU_ERF, BSK_F32, 0, 0, 0},
    {0, 0, BSK_F32, 4, -1, 1},
    {OPT_BIAS, 0, BSK_F16, 0, 0, 0},
    {OPT_RESIDUAL, 0, BSK_BF16, 0, 0.25, 0},
    {OPT_GATE | OPT_BIAS | OPT_RESIDUAL | OPT_ROW_SCALE | OPT_COL_SCALE, BSK_ACT_RELU, 0, 2, -0.5,
     0},
    {OPT_OFFSET, 0, 0, 0, 0, 0},
};

/* Epilogues of matmul with every block size, and what dgrad has of them. */
static void list_epilogues(test_list *list)
{
    for (int i = 0; i < TEST_COUNT(epilogues); i++)
        for (int b = 0; b < TEST_COUNT(blocks); b++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++) {
                if ((list->tier == TIER_QUICK && (i + b * 5 + t * 7) % 36) ||
                    (list->tier == TIER_CI && (i + b + t) % 3))
                    continue;
                test_spec s = product("matmul", dtypes[t], blocks[b][0], blocks[b][1], 140);
                s.options = epilogues[i].options;
                s.act = epilogues[i].act;
                s.out = epilogues[i].out;
                s.alpha = epilogues[i].alpha;
                s.beta = epilogues[i].beta;
                s.transpose = epilogues[i].transpose;
                s.fill = (b + t) % 2 && !s.act ? FILL_INT : FILL_REAL;
                emit_axis(list, s, 83, i + b);
                s.op = "matmul_dgrad";
                s.act = BSK_ACT_NONE;
                s.options &= OPT_GATE | OPT_LD8 | OPT_TRANS | OPT_OFFSET;
                if (s.options || s.out || s.alpha != 0 || s.beta != 0)
                    emit_axis(list, s, 83, i + b + 1);
            }
}

/* Uneven, empty and full lists, and slots in other orders than the lists. */
static void list_shapes(test_list *list)
{
    static const struct {
        test_pattern pattern;
        double value;
        bsk_order order;
    } patterns[] = {
        {PATTERN_EMPTY, 0, 0},
        {PATTERN_FULL, 0, 0},
        {PATTERN_ONE, 0, 0},
        {PATTERN_SKEWED, 0.12, 0},
        {PATTERN_BANDED, 0.2, 0},
        {PATTERN_BARABASI, 2, 0},
        {PATTERN_RANDOM, 0.05, 0},
        {PATTERN_RANDOM, 0.3, BSK_ORDER_COL},
        {PATTERN_RANDOM, 0.3, BSK_ORDER_MORTON},
        {PATTERN_RANDOM, 0.3, BSK_ORDER_GIVEN},
    };
    for (int i = 0; i < TEST_COUNT(patterns); i++)
        for (int b = 0; b < TEST_COUNT(squares); b++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++)
                for (int o = 0; o < TEST_COUNT(linear); o++) {
                    if ((list->tier == TIER_QUICK && (i + b * 4 + t * 7 + o * 11) % 45) ||
                        (list->tier == TIER_CI && t && (i + b + o) % 3))
                        continue;
                    const int64_t size = squares[b] * 9 > 500 ? 500 : squares[b] * 9;
                    test_spec s = product(linear[o], dtypes[t], squares[b], squares[b], size);
                    s.m = s.k;
                    s.pattern = patterns[i].pattern;
                    s.pattern_value = patterns[i].value;
                    s.order = patterns[i].order;
                    s.beta = i < 3 ? 0.5 : 0;
                    s.fill = (i + b) % 2 ? FILL_REAL : FILL_INT;
                    emit_axis(list, s, 75, i + b + o);
                }
}

/* Small minibatches with a few lists so long that kernels cut them by their samples. */
static void list_uneven(test_list *list)
{
    static const int32_t sizes[] = {8, 16, 32};
    if (list->tier == TIER_QUICK)
        return;
    for (int b = 0; b < TEST_COUNT(sizes); b++)
        for (int axis = BSK_NC; axis <= BSK_CN; axis++) {
            test_spec s =
                product(linear[(b + axis) % 2], BSK_BF16, sizes[b], sizes[b], 96 * sizes[b]);
            s.m = s.k;
            s.pattern = PATTERN_SKEWED;
            s.pattern_value = 0.05;
            s.fill = FILL_REAL;
            emit_axis(list, s, 40 + 8 * b, axis);
        }
}

/* A number of samples and what becomes of their sums. */
typedef struct ending {
    uint32_t options;
    int64_t n;
    bsk_dtype out;
    double alpha, beta;
} ending;

/* A list of all blocks among short ones, of an odd number of slices of 64. */
static void list_lone(test_list *list)
{
    static const ending ends[] = {{0, 300, 0, 0, 0},
                                  {OPT_BIAS | OPT_RESIDUAL, 130, 0, 2, 0},
                                  {OPT_LD8, 70, 0, -0.5, 0.5},
                                  {0, 200, BSK_F32, 0, 0.5}};
    for (int i = 0; i < 16; i++) {
        const int o = i / 4 % 2, axis = (i / 8 + i) % 2, end = i % TEST_COUNT(ends);
        if (list->tier == TIER_QUICK && i % 7)
            continue;
        const int32_t block = (i + i / 4) % 3 ? 64 : 128;
        test_spec s = product(linear[o], dtypes[i / 2 % 2], block, block, 1088);
        s.m = s.k;
        s.pattern = PATTERN_SKEWED;
        s.pattern_value = 0.15;
        s.fill = i % 5 == 4 ? FILL_SPECIAL : FILL_REAL;
        s.options = o ? ends[end].options & OPT_LD8 : ends[end].options;
        s.out = ends[end].out;
        s.alpha = ends[end].alpha;
        s.beta = ends[end].beta;
        s.transpose = o == 0; /* the long list is one of rows */
        emit_axis(list, s, ends[end].n, axis);
    }
}

/* Small minibatches of large blocks with long lists, four tiles of 64 features or six, which a device
 * of four cannot share out evenly. */
static void list_wide(test_list *list)
{
    static const ending ends[] = {{0, 64, 0, 0, 0},
                                  {OPT_BIAS | OPT_RESIDUAL, 40, 0, 2, 0},
                                  {0, 48, BSK_F32, 0, 0.5},
                                  {OPT_LD8, 33, 0, -0.5, 0}};
    for (int i = 0; i < (list->tier == TIER_QUICK ? 2 : 32); i++) {
        const int o = i % 2, axis = i / 2 % 2, t = i / 4 % 2, wide = i / 8 % 2;
        const int32_t block = (o + axis + t + i / 16) % 2 ? 64 : 128;
        const int end = (i + i / 4) % TEST_COUNT(ends);
        test_spec s = product(linear[o], dtypes[t], block, block, 0);
        *(o ? &s.k : &s.m) = cut(wide ? 384 : 256, block);
        *(o ? &s.m : &s.k) = cut(wide ? 3072 : 1536, block);
        s.pattern_value = 0.9;
        s.options = o ? ends[end].options & OPT_LD8 : ends[end].options;
        s.out = ends[end].out;
        s.alpha = ends[end].alpha;
        s.beta = ends[end].beta;
        emit_axis(list, s, ends[end].n, axis);
    }
}

/* The same with so few that two warps have a tile, and of weights along both axes. */
static void list_wide_few(test_list *list)
{
    static const ending ends[] = {{0, 16, 0, 0, 0},
                                  {OPT_BIAS | OPT_RESIDUAL, 7, 0, 2, 0},
                                  {0, 17, BSK_F32, 0, 0.5},
                                  {OPT_LD8, 32, 0, -0.5, 0}};
    for (int i = 0; i < 32; i++) {
        const int o = i / 4 % 2, axis = i / 2 % 2, t = i / 8 % 2, uneven = (i + i / 4) % 2;
        if (list->tier == TIER_QUICK && i % 12)
            continue;
        const ending *end = &ends[(i + i / 4) % TEST_COUNT(ends)];
        const int32_t block = (i + i / 2) % 2 ? 64 : 128;
        test_spec s = product(linear[o], dtypes[t], block, block, 0);
        *(o ? &s.k : &s.m) = cut(uneven ? 640 : 256, block);
        *(o ? &s.m : &s.k) = cut(1536, block);
        s.pattern_value = 0.9;
        s.options = o ? end->options & OPT_LD8 : end->options;
        s.out = end->out;
        s.alpha = end->alpha;
        s.beta = end->beta;
        s.transpose = (o + i / 16) % 2; /* values along the depth from 16 on */
        emit_axis(list, s, end->n, axis);
    }
}

/* Tiles of 64 features for a device of 132 multiprocessors: more rows than leave one narrow tile to
 * each, full, uneven, and growing from none on; some so long that two multiprocessors share them; in
 * tier full with so few samples that two warps have a tile; and what is too little for wide tiles. */
static void list_wide_many(test_list *list)
{
    static const struct {
        int64_t k, m, n;
        test_pattern pattern;
        double value;
        const char *layout;
        double beta;
    } shapes[] = {
        {4352, 576, 33, PATTERN_FULL, 0, NULL, 0},
        {4480, 640, 40, PATTERN_SKEWED, 0.9, NULL, 0.5},
        {5120, 640, 33, PATTERN_TEXT, 0, "causal:shift=-256", 0.5},
        {2176, 3840, 33, PATTERN_SKEWED, 0.9, NULL, 0.5},
        {1536, 9088, 16, PATTERN_SKEWED, 0.9, NULL, 0.5},
        {8448, 1664, 25, PATTERN_FULL, 0, NULL, 0},
        {384, 256, 64, PATTERN_EMPTY, 0, NULL, 0.5},
        {384, 256, 33, PATTERN_ONE, 0, NULL, 0.5},
    };
    for (int i = 0; i < TEST_COUNT(shapes) && list->tier != TIER_QUICK; i++)
        for (int v = 0; v < 4; v++) {
            const int b = v % 2, along = v / 2; /* values along the depth */
            if (list->tier == TIER_CI && (i < 4 ? (i + b) % 2 : shapes[i].m > 1000))
                continue;
            const int o = (i / 2 + b) % 2;
            const int32_t block = squares[3 + b];
            test_spec s = product(linear[o], dtypes[i % 2], block, block, 0);
            s.k = shapes[i].k;
            s.m = shapes[i].m;
            s.n = shapes[i].n;
            s.pattern = shapes[i].pattern;
            s.pattern_value = shapes[i].value;
            s.layout = shapes[i].layout;
            s.beta = shapes[i].beta;
            s.transpose = (o == 0) == along;
            test_emit(list, s);
        }
}

/* One sample, and some more of types of 8 and 16 bits: values along the depth and across it, cut and whole,
 * every kind of end, lists shorter than what lanes have under way, long ones that several share, and a few
 * among short ones. */
static void list_one(test_list *list)
{
    static const struct {
        bsk_dtype dtype, other, out;
        int64_t most;
    } types[] = {{BSK_BF16, 0, 0, 8},
                 {BSK_F16, 0, 0, 16},
                 {BSK_F32, 0, 0, 1},
                 {BSK_F8E4M3, BSK_F8E4M3, BSK_BF16, 4},
                 {BSK_F8E4M3, BSK_F8E5M2, BSK_F32, 4},
                 {BSK_F8E5M2, BSK_F8E4M3, BSK_F16, 4}};
    static const struct {
        int64_t out, depth; /* features */
        test_pattern pattern;
        double value;
        uint32_t options;
        bsk_act act;
        double alpha, beta;
        int64_t fewer; /* samples than the most */
    } kinds[] = {{200, 160, PATTERN_RANDOM, 0.3, 0, 0, 0, 0, 0},
                 {128, 2064, PATTERN_RANDOM, 0.6, OPT_BIAS | OPT_RESIDUAL, BSK_ACT_SILU, 2, 0, 1},
                 {528, 1040, PATTERN_SKEWED, 0.1, OPT_LD8, 0, -0.5, 0.5, 3},
                 {0, 0, PATTERN_TEXT, 0, OPT_ROW_SCALE, 0, 0, 1, 0}};
    /* Of two rows of two blocks one block, which sees the first features of neither axis in both ways. */
    static const char *const last[] = {"causal:shift=-8", "causal:shift=-16", "causal:shift=-32",
                                       "causal:shift=-64", "causal:shift=-128"};
    enum { LAST = 3, DEPTH = 16 /* whole runs of f8 */ };
    for (int t = 0; t < TEST_COUNT(types); t++)
        for (int b = 0; b < TEST_COUNT(squares); b++)
            for (int i = 0; i < 2 * TEST_COUNT(kinds); i++) {
                const int o = i % 2, kind = i / 2;
                /* the least blocks of the first types; f8 has many entries */
                const bool always = t < 4 && b == t / 3;
                if ((list->tier == TIER_QUICK && !always &&
                     (t + b * 3 + i * 5 + 2) % (t < 3 ? 6 : 12)) ||
                    (list->tier == TIER_CI && (t % 3 ? (t + b + i) % 3 : t == 0 && b)))
                    continue;
                test_spec s = {.op = linear[o],
                               .dtype = types[t].dtype,
                               .other = types[t].other,
                               .out = types[t].out,
                               .br = squares[b],
                               .bc = squares[b],
                               .seed = 4}; /* with it, specials are among the first features */
                const int64_t depth =
                    (kinds[kind].depth + squares[b] - 1) / squares[b] * squares[b] -
                    squares[b] / 32 * DEPTH;
                *(o ? &s.k : &s.m) = cut(kinds[kind].out, squares[b]);
                *(o ? &s.m : &s.k) = depth;
                if (kind == LAST) {
                    s.k = s.m = 2 * squares[b];
                    s.layout = last[b];
                }
                s.pattern = kinds[kind].pattern;
                s.pattern_value = kinds[kind].value;
                s.options = o ? kinds[kind].options & OPT_LD8 : kinds[kind].options;
                if (t > 2 && s.options & OPT_LD8) /* half of a run of f8 */
                    s.options ^= OPT_LD8 | OPT_SCALES;
                s.act = o ? BSK_ACT_NONE : kinds[kind].act;
                s.alpha = kinds[kind].alpha;
                s.beta = kinds[kind].beta;
                s.transpose = (t + b + kind) % 2;
                s.fill = kind == LAST ? FILL_SPECIAL : s.act || b % 2 ? FILL_REAL : FILL_INT;
                s.n = types[t].most > kinds[kind].fewer ? types[t].most - kinds[kind].fewer : 1;
                s.axis = kind == LAST && t > 2 ? BSK_CN : BSK_NC;
                test_emit(list, s);
            }
}

/* Gates, their gradients, bias gradients and pairs of matmul_wgrad. */
static void list_wgrad(test_list *list)
{
    static const struct {
        uint32_t options;
        bsk_gate_mode mode;
        int32_t pairs;
        bsk_dtype out;
        double alpha, beta;
    } kinds[] = {
        {0, 0, 1, BSK_F32, 0, 0},
        {0, 0, 3, 0, 0, 1},
        {OPT_DBIAS, 0, 1, 0, 0, 0},
        {OPT_GATE, BSK_GATE_SKIP, 1, 0, 0, 0},
        {OPT_GATE, BSK_GATE_SCALE, 2, 0, -2, 0.5},
        {OPT_GATE | OPT_DGATE, BSK_GATE_SCALE, 1, 0, 0, 0},
        {OPT_LD8, 0, 1, 0, 0, 0},
        {OPT_TRANS | OPT_LD8, 0, 1, BSK_F32, 0, 1},
        {OPT_OFFSET, 0, 1, 0, 0, 0},
    };
    for (int i = 0; i < TEST_COUNT(kinds); i++)
        for (int b = 0; b < TEST_COUNT(blocks); b++)
            for (int t = 0; t < TEST_COUNT(dtypes); t++) {
                if ((list->tier == TIER_QUICK && (i + b * 5 + t * 7) % 27) ||
                    (list->tier == TIER_CI && (i + b + t) % 2))
                    continue;
                test_spec s = product("matmul_wgrad", dtypes[t], blocks[b][0], blocks[b][1], 140);
                s.options = kinds[i].options;
                s.gate_mode = kinds[i].mode;
                s.pairs = kinds[i].pairs;
                s.out = kinds[i].out;
                s.alpha = kinds[i].alpha;
                s.beta = kinds[i].beta;
                s.transpose = i % 2 && !(s.options & OPT_DBIAS);
                s.fill = (b + t) % 2 ? FILL_INT : FILL_REAL;
                emit_axis(list, s, 171, i + b);
            }
}

/* Weight gradients of small minibatches in whole blocks, rows of them odd and even in number. */
static void list_narrow(test_list *list)
{
    static const struct {
        int64_t n;
        uint32_t options;
        int32_t pairs;
        bsk_dtype out;
        double alpha, beta;
    } kinds[] = {{64, 0, 1, 0, 0, 0},         {24, 0, 3, 0, 0, 0.5}, {40, 0, 1, BSK_F32, 0, 0},
                 {32, 0, 1, BSK_F32, 0.5, 1}, {56, 0, 2, 0, 0, 1},   {8, OPT_LD8, 1, 0, 0, 0}};
    for (int i = 0; i < TEST_COUNT(kinds); i++)
        for (int b = 0; b < TEST_COUNT(squares); b++)
            for (int t = 0; t < 2; t++) {
                if ((list->tier == TIER_QUICK && (i + b + t) % 6) ||
                    (list->tier == TIER_CI && (i / 2 + b + t) % 2))
                    continue;
                const int32_t side = squares[b] < 64 ? 64 : squares[b];
                test_spec s = product("matmul_wgrad", dtypes[t], squares[b], squares[b], 0);
                s.k = 5 * side;
                s.m = 7 * side;
                s.pattern_value = 0.6;
                s.options = kinds[i].options;
                s.pairs = kinds[i].pairs;
                s.out = kinds[i].out;
                s.alpha = kinds[i].alpha;
                s.beta = kinds[i].beta;
                s.fill = (i + b / 2) % 2 ? FILL_INT : FILL_REAL;
                for (int axis = BSK_NC; axis <= BSK_CN; axis++) {
                    s.axis = (bsk_axis)axis;
                    s.n = kinds[i].n - (axis == BSK_NC && i % 2 ? 3 : 0);
                    test_emit(list, s);
                }
            }
}

/* The same with more blocks than a large device has warps. */
static void list_narrow_many(test_list *list)
{
    for (int b = 0; b < 3 && list->tier != TIER_QUICK; b++) {
        test_spec s = product("matmul_wgrad", BSK_BF16, squares[b], squares[b], 0);
        s.k = 1024;
        s.m = 1088;
        s.pattern = PATTERN_FULL;
        s.fill = FILL_INT;
        emit_axes(list, s, b ? 64 : 40);
    }
}

/* dsd, dds and sdd with batches, heads and groups. */
static void list_batches(test_list *list)
{
    static const char *const ops[] = {"dsd", "dds", "sdd"};
    static const struct {
        int32_t heads, groups;
        uint32_t options;
    } batches[] = {{1, 0, OPT_TRANS}, {1, 3, 0}, {1, 3, OPT_SHARED}, {3, 1, 0}, {3, 2, OPT_LD8}};
    for (int o = 0; o < TEST_COUNT(ops); o++)
        for (int i = 0; i < TEST_COUNT(batches); i++)
            for (int b = 0; b < TEST_COUNT(squares); b++)
                for (int t = 0; t < TEST_COUNT(dtypes); t++) {
                    if ((list->tier == TIER_QUICK && (i + b * 5 + t * 7 + o * 11) % 24) ||
                        (list->tier == TIER_CI && (i + b + t) % 2))
                        continue;
                    test_spec s = product(ops[o], dtypes[t], squares[b], squares[b], 130);
                    s.n = 72;
                    s.heads = batches[i].heads;
                    s.groups = batches[i].groups;
                    s.options = batches[i].options;
                    s.transpose = o < 2 && (i + b) % 2;
                    s.fill = (i + t) % 2 ? FILL_INT : FILL_REAL;
                    test_emit(list, s);
                }
}

/* NaN and infinity of features without kept blocks stay out, whatever shares their tile; overflow
 * goes to infinity. */
static void list_special(test_list *list)
{
    for (int b = 0; b < TEST_COUNT(blocks); b++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int o = 0; o < TEST_COUNT(linear); o++) {
                const bool few = blocks[b][0] == blocks[b][1] && blocks[b][0] % 24 == 8 && o < 2;
                if ((list->tier == TIER_CI && (b + t + o) % 2) ||
                    (list->tier == TIER_QUICK && !few))
                    continue;
                test_spec s = product(linear[o], dtypes[t], blocks[b][0], blocks[b][1], 140);
                s.fill = FILL_SPECIAL;
                emit_axis(list, s, (b + o) % 3 ? 72 : 40, b + o);
                s.fill = FILL_HUGE;
                s.out = BSK_F16;
                emit_axis(list, s, 72, b + o + 1);
            }
}

void cases_products_tiles(test_list *list)
{
    list_large(list);
    list_many(list);
    list_turns(list);
    list_odd(list);
    list_halves(list);
    list_few(list);
    list_long(list);
    list_epilogues(list);
    list_shapes(list);
    list_uneven(list);
    list_lone(list);
    list_wide(list);
    list_wide_few(list);
    list_wide_many(list);
    list_one(list);
    list_wgrad(list);
    list_narrow(list);
    list_narrow_many(list);
    list_batches(list);
    list_special(list);
}
