/* Products in other number formats: f32 data that may be rounded to tf32, and operands of 8 bits,
 * with and without scales. Small integers are exact in all of them, and all i8 numbers. */
#include "tests/harness/test.h"

static const char *const linear[] = {"matmul", "matmul_dgrad", "matmul_wgrad"};
static const int32_t squares[] = {8, 16, 32, 64, 128};
static const int32_t blocks[][2] = {{8, 8},  {16, 16}, {32, 32}, {64, 64},  {128, 128}, {16, 8},
                                    {8, 32}, {32, 64}, {64, 8},  {64, 128}, {128, 64},  {128, 16}};

/* A number format: the types of both operands and of the result, and how they are multiplied. One
 * of `share` of its cases is in the shorter tiers. */
typedef struct format {
    bsk_dtype dtype, other, out;
    bsk_precision precision;
    int32_t share;
} format;

static const format formats[] = {
    {BSK_F32, BSK_F32, BSK_F32, BSK_PRECISION_TF32, 1},
    {BSK_F8E4M3, BSK_F8E4M3, BSK_BF16, 0, 2},
    {BSK_F8E5M2, BSK_F8E4M3, BSK_F32, 0, 3},
    {BSK_F8E4M3, BSK_F8E5M2, BSK_F16, 0, 3},
    {BSK_F8E5M2, BSK_F8E5M2, BSK_F32, 0, 3},
    {BSK_I8, BSK_I8, BSK_F32, 0, 1},
    {BSK_I8, BSK_I8, BSK_BF16, 0, 3},
};

static bool is_scaled(const format *f)
{
    return f->dtype != BSK_F32;
}

static bool is_f8(const format *f)
{
    return f->dtype == BSK_F8E4M3 || f->dtype == BSK_F8E5M2;
}

/* f8, which many entries take, has every other turn of the lists that tier quick walks in turns, and
 * blocks of 8 in one format. */
static bool is_spare(const test_list *list, const format *f, int32_t br, int32_t bc, int turn)
{
    const bool narrow = br == 8 || bc == 8;
    return list->tier == TIER_QUICK && is_f8(f) && (turn % 2 || (f->share > 2 && narrow));
}

/* Sizes whose last blocks are cut short by `rest` elements. */
static test_spec product(const char *op, const format *f, int32_t br, int32_t bc, int64_t size,
                         int32_t rest)
{
    test_spec s = {.op = op,
                   .dtype = f->dtype,
                   .other = f->other,
                   .out = f->out,
                   .precision = f->precision,
                   .br = br,
                   .bc = bc,
                   .pattern_value = 0.3,
                   .seed = 31};
    s.k = (size + br - 1) / br * br - (br > rest ? rest : 0);
    s.m = (size + size / 4 + bc - 1) / bc * bc - (bc > rest ? rest : 0);
    return s;
}

/* Rows that are aligned to runs of 16 bytes, and rows that are not. */
static void emit_axis(test_list *list, test_spec s, int64_t n, int which)
{
    if (s.dtype != BSK_F32 && which / 2 % 2)
        s.options |= OPT_SCALES;
    s.axis = which % 2 ? BSK_CN : BSK_NC;
    s.n = n;
    test_emit(list, s);
}

static void list_blocks(test_list *list, const format *f)
{
    static const int64_t counts[] = {1, 40, 75, 272};
    for (int b = 0; b < TEST_COUNT(blocks); b++)
        for (int o = 0; o < TEST_COUNT(linear); o++)
            for (int i = 0; i < TEST_COUNT(counts); i++) {
                if ((list->tier == TIER_QUICK && (b + o * 5 + i * 7) % 12) ||
                    (list->tier == TIER_CI && (b + o + i) % (2 * f->share)) ||
                    is_spare(list, f, blocks[b][0], blocks[b][1], (b + o * 5 + i * 7) / 12))
                    continue;
                test_spec s =
                    product(linear[o], f, blocks[b][0], blocks[b][1], 200, i == 2 ? 3 : 8);
                s.fill = i % 2 ? FILL_REAL : FILL_INT;
                s.transpose = (b + i) % 4 >= 2;
                emit_axis(list, s, counts[i], 0);
                emit_axis(list, s, counts[i], 1);
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
    {OPT_RESIDUAL | OPT_ROW_SCALE | OPT_COL_SCALE, 0, BSK_F32, 2, 0.5, 0},
    {OPT_BIAS | OPT_RESIDUAL | OPT_INPLACE, BSK_ACT_GELU, BSK_F32, 0, 0, 0},
    {OPT_LD8 | OPT_BIAS | OPT_GATE, BSK_ACT_SILU, BSK_BF16, -0.5, 0, 1},
    {OPT_TRANS | OPT_LD, 0, BSK_F16, 0, 1, 0},
    {OPT_OFFSET, 0, BSK_F32, 0, 0, 0},
};

static void list_epilogues(test_list *list, const format *f)
{
    for (int i = 0; i < TEST_COUNT(epilogues); i++)
        for (int b = 0; b < TEST_COUNT(blocks); b++) {
            if ((list->tier == TIER_QUICK && (i + b * 5) % 14) ||
                (list->tier == TIER_CI && (i + b) % (3 * f->share)) ||
                is_spare(list, f, blocks[b][0], blocks[b][1], (i + b * 5) / 14))
                continue;
            test_spec s = product("matmul", f, blocks[b][0], blocks[b][1], 140, 8);
            s.options = epilogues[i].options;
            s.act = epilogues[i].act;
            s.out = epilogues[i].out ? epilogues[i].out : f->out;
            s.alpha = epilogues[i].alpha;
            s.beta = epilogues[i].beta;
            s.transpose = epilogues[i].transpose;
            s.fill = b % 2 && !s.act ? FILL_INT : FILL_REAL;
            const int64_t n = (i + b) % 4 < 2 ? 83 : 88; /* of these, rows of samples are aligned */
            emit_axis(list, s, n, i + b);
            s.op = "matmul_dgrad";
            s.act = BSK_ACT_NONE;
            s.options &= OPT_GATE | OPT_LD | OPT_LD8 | OPT_TRANS | OPT_OFFSET;
            emit_axis(list, s, n, i + b + 1);
        }
}

/* tf32 with few samples, for paths that read the weights once: every width of their tiles, with lines
 * of whole eights and a bare end, and with ends inside of eight elements and more to do there; and more
 * samples than a launch takes. */
static void list_few(test_list *list, const format *f)
{
    static const int64_t counts[] = {8, 12, 24, 28, 64, 60, 144, 140};
    static const uint32_t options[] = {OPT_BIAS | OPT_RESIDUAL, OPT_LD8, 0};
    for (int b = 0; b < TEST_COUNT(blocks) && f->dtype == BSK_F32; b++)
        for (int i = 0; i < TEST_COUNT(counts); i++)
            for (int o = 0; o < 2; o++) {
                const bool whole = b < 3 && i < 6, bare = i % 2 == 0;
                if ((list->tier == TIER_QUICK && (b + i * 5 + o * 7) % 12) ||
                    (list->tier == TIER_CI && !whole && (b + i + o) % 4))
                    continue;
                test_spec s = product(linear[o], f, blocks[b][0], blocks[b][1], 160, bare ? 8 : 4);
                s.fill = (b + i / 2 + o) % 2 ? FILL_INT : FILL_REAL;
                if (!bare) {
                    s.options = options[(b + i / 2) % 3] & (o ? OPT_LD8 : ~0u);
                    s.act = i == 3 && o == 0 ? BSK_ACT_SILU : BSK_ACT_NONE;
                    s.out = b % 4 == 3 ? BSK_BF16 : f->out;
                    s.beta = b % 2 ? 0.5 : 0;
                    s.fill = s.act ? FILL_REAL : s.fill;
                }
                emit_axis(list, s, counts[i], 0);
                emit_axis(list, s, counts[i], 1);
            }
}

/* The same with few outputs of long lists, which several share, and with a few lists so long that they
 * are cut by their samples. */
static void list_few_long(test_list *list, const format *f)
{
    for (int b = 0; b < TEST_COUNT(squares) && f->dtype == BSK_F32; b++)
        for (int axis = 0; axis < 2; axis++) {
            const int o = (b + axis) % 2;
            const bool cut = b < 3;
            if (list->tier == TIER_QUICK && (b + axis) % 5)
                continue;
            test_spec s =
                product(linear[o], f, squares[b], squares[b], cut ? 96 * squares[b] : 96, 0);
            if (cut)
                s.m = s.k;
            else
                *(o ? &s.m : &s.k) = 1024;
            s.pattern = cut ? PATTERN_SKEWED : PATTERN_RANDOM;
            s.pattern_value = cut ? 0.05 : 0.6;
            s.fill = b % 2 ? FILL_INT : FILL_REAL;
            emit_axis(list, s, 40 + 8 * (b % 3), axis);
        }
}

/* tf32: tiles for several turns of a device of four, two of which share weights, with a bare end and
 * with more; and a weight gradient in two units, for each of which it has two thread blocks. */
static void list_turns(test_list *list, const format *f)
{
    if (f->dtype != BSK_F32 || list->tier == TIER_QUICK)
        return;
    for (int i = 0; i < 4; i++) {
        const bool gradient = i == 1;
        test_spec s = product(linear[gradient], f, 64, 64, 0, 0);
        *(gradient ? &s.k : &s.m) = 376;
        *(gradient ? &s.m : &s.k) = 504;
        s.pattern_value = 0.9;
        s.fill = FILL_REAL;
        s.options = i < 2 ? 0 : OPT_BIAS | OPT_RESIDUAL;
        s.act = i < 2 ? BSK_ACT_NONE : BSK_ACT_GELU;
        emit_axis(list, s, 2000, i);
    }
    test_spec s = product("matmul_wgrad", f, 64, 64, 256, 0);
    s.m = 384;
    s.pattern_value = 0.4;
    s.seed = 77;
    s.fill = FILL_INT;
    emit_axis(list, s, 1000, 0);
    emit_axis(list, s, 1000, 1);
}

/* tf32: small blocks in more than one tile of 64 x 512 and several windows of the depth, all of them
 * ragged, with every kind of end; and few outputs of lists so long that a device of four shares
 * their depth. */
static void list_small(test_list *list, const format *f)
{
    static const struct {
        uint32_t options;
        bsk_act act;
        bsk_dtype out;
        double alpha, beta;
    } ends[] = {{0, 0, 0, 0, 0},
                {OPT_BIAS, BSK_ACT_GELU, 0, 0, 0},
                {OPT_BIAS | OPT_LD8, 0, 0, -2, 0},
                {OPT_RESIDUAL | OPT_ROW_SCALE, BSK_ACT_GELU_ERF, 0, 0, 0},
                {OPT_BIAS | OPT_COL_SCALE, BSK_ACT_RELU, BSK_BF16, 0, 0.5}};
    static const int32_t sides[][2] = {{8, 8}, {16, 16}, {32, 32}, {8, 16}, {32, 8}, {24, 40}};
    if (f->dtype != BSK_F32 || list->tier == TIER_QUICK)
        return;
    for (int b = 0; b < TEST_COUNT(sides); b++)
        for (int i = 0; i < TEST_COUNT(ends); i++)
            for (int axis = BSK_NC; axis <= BSK_CN; axis++) {
                if (list->tier == TIER_CI && b > 2 && (b + i + axis) % 3)
                    continue;
                test_spec s = product("matmul", f, sides[b][0], sides[b][1], 270, 8);
                s.m = 536;
                s.pattern_value = 0.15;
                s.options = ends[i].options;
                s.act = ends[i].act;
                s.out = ends[i].out ? ends[i].out : f->out;
                s.alpha = ends[i].alpha;
                s.beta = ends[i].beta;
                s.transpose = (b + i) % 2;
                s.fill = i || axis ? FILL_REAL : FILL_SPECIAL;
                emit_axis(list, s, axis == BSK_NC ? 75 : i < 3 ? 88 : 84, axis);
            }
    for (int i = 0; i < 6; i++) {
        test_spec s = product(linear[i % 2], f, squares[i / 2], squares[i / 2], 56, 0);
        *(i % 2 ? &s.m : &s.k) = 14336;
        s.pattern_value = 0.1;
        s.options = i % 2 ? 0 : OPT_BIAS;
        s.fill = FILL_REAL;
        emit_axis(list, s, i % 2 ? 64 : 42, i % 2);
    }
}

/* tf32: gradients of small blocks in more than one tile of 512, ragged, at densities for which tiles are
 * large and small, as they are, scaled, and beside what was there; and the smallest of them not rounded. */
static void list_gradients(test_list *list, const format *f)
{
    static const struct {
        double density;
        bsk_dtype out;
        double alpha, beta;
        int32_t pairs;
    } kinds[] = {{0.06, 0, 0, 0, 1}, {0.5, BSK_BF16, 0, 0.5, 1}, {0.15, BSK_BF16, -2, 0, 2}};
    for (int b = 0; b < 3 && f->dtype == BSK_F32; b++)
        for (int i = 0; i < TEST_COUNT(kinds); i++)
            for (int axis = BSK_NC; axis <= BSK_CN; axis++) {
                if (list->tier == TIER_QUICK && i == 2)
                    continue;
                test_spec s = product("matmul_wgrad", f, squares[b], squares[b], 490, 8);
                s.m = 536;
                s.pattern_value = kinds[i].density;
                s.out = kinds[i].out ? kinds[i].out : f->out;
                s.alpha = kinds[i].alpha;
                s.beta = kinds[i].beta;
                s.pairs = kinds[i].pairs;
                s.fill = (b + i + axis) % 2 ? FILL_REAL : FILL_INT;
                emit_axis(list, s, axis == BSK_NC ? 41 : 44, axis);
                s.precision = BSK_PRECISION_FULL;
                s.fill = FILL_REAL;
                if (axis == BSK_NC && b < 2)
                    emit_axis(list, s, 70, axis);
            }
}

/* tf32: either operand next below what it is rounded to, far above what is left without its last bits. */
static void list_near(test_list *list, const format *f)
{
    static const int64_t counts[] = {40, 264};
    for (int b = 0; b < TEST_COUNT(squares) && f->dtype == BSK_F32; b++)
        for (int o = 0; o < TEST_COUNT(linear); o++)
            for (int i = 0; i < 2 * TEST_COUNT(counts); i++) {
                if (list->tier == TIER_QUICK && (b + o * 2 + i) % 4)
                    continue;
                test_spec s = product(linear[o], f, squares[b], squares[b], 136, 0);
                s.fill = FILL_NEAR;
                s.seed += (uint32_t)i % 2;
                emit_axis(list, s, counts[i / 2], b + o + i / 2);
            }
}

/* f8 with so many samples that entries may take it as f16: rows of every alignment, most kinds of ends,
 * scales beside factors of rows and beside gates, pairs, and weights that a batch shares. */
static void list_wide(test_list *list, const format *f)
{
    static const struct {
        const char *op;
        int64_t n;
        int32_t rest, groups;
        uint32_t options;
        bsk_act act;
        bsk_dtype out;
        bsk_gate_mode mode;
        int32_t pairs;
        double alpha, beta;
    } rows[] = {
        {"matmul", 136, 8, 0, 0, 0, 0, 0, 0, 0, 0},
        {"matmul", 192, 8, 0, OPT_SCALES, 0, 0, 0, 0, 2, 0},
        {"matmul", 0, 8, 0, OPT_SCALES, 0, 0, 0, 0, 0, 0},
        {"matmul", 131, 3, 0, OPT_SCALES | OPT_ROW_SCALE | OPT_BIAS, BSK_ACT_GELU, 0, 0, 0, 0, 0},
        {"matmul", 160, 4, 0, OPT_LD8 | OPT_RESIDUAL | OPT_COL_SCALE, 0, BSK_F32, 0, 0, 0, 0.5},
        {"matmul_dgrad", 192, 4, 0, OPT_SCALES | OPT_LD, 0, 0, 0, 0, 0, 0},
        {"matmul_dgrad", 128, 8, 0, OPT_TRANS, 0, BSK_BF16, 0, 0, 0, 1},
        {"dsd", 72, 8, 2, OPT_SHARED, 0, 0, 0, 0, 0, 0},
        {"dsd", 76, 4, 2, OPT_SHARED | OPT_SCALES | OPT_LD, 0, 0, 0, 0, 0, 0},
        {"matmul_wgrad", 128, 8, 0, 0, 0, 0, 0, 0, 0, 0},
        {"matmul_wgrad", 150, 4, 0, OPT_SCALES | OPT_GATE, 0, 0, BSK_GATE_SKIP, 0, 0, 0},
        {"matmul_wgrad", 131, 3, 0, OPT_SCALES | OPT_GATE, 0, 0, BSK_GATE_SCALE, 0, 0, 1},
        {"matmul_wgrad", 136, 8, 0, OPT_SCALES | OPT_GATE, 0, 0, BSK_GATE_IGNORE, 0, -2, 0},
        {"matmul_wgrad", 136, 8, 0, OPT_GATE | OPT_LD, 0, 0, BSK_GATE_SCALE, 0, 0, 0},
        {"matmul_wgrad", 56, 8, 0, OPT_SCALES, 0, BSK_F32, 0, 3, 0, 0},
        {"matmul_wgrad", 0, 8, 0, OPT_SCALES, 0, 0, 0, 0, 0, 1},
    };
    for (int i = 0; i < TEST_COUNT(rows) && is_f8(f); i++)
        for (int b = 0; b < TEST_COUNT(squares); b++)
            for (int axis = BSK_NC; axis <= BSK_CN; axis++) {
                const int turn = 8 * b + 4 * axis + (int)(f - formats) + 7 * i;
                const bool batch = rows[i].groups > 0;
                if ((list->tier == TIER_QUICK && turn % 13) ||
                    (list->tier == TIER_CI && turn % 5) || (batch && axis))
                    continue;
                test_spec s = product(rows[i].op, f, squares[b], squares[b], 140, rows[i].rest);
                s.n = rows[i].n;
                s.axis = (bsk_axis)axis;
                s.groups = rows[i].groups;
                s.options = rows[i].options;
                s.act = rows[i].act;
                s.out = rows[i].out ? rows[i].out : f->out;
                s.gate_mode = rows[i].mode;
                s.pairs = rows[i].pairs;
                s.alpha = rows[i].alpha;
                s.beta = rows[i].beta;
                s.transpose = (b + i) % 2;
                s.fill = turn % 3 && !s.act ? FILL_INT : FILL_REAL;
                test_emit(list, s);
            }
}

/* All bits of f8, as neighbours and as every eighth, in sums of eight products. */
static void list_bits(test_list *list, const format *f)
{
    for (int i = 0; i < 4 && is_f8(f); i++) {
        if (list->tier == TIER_QUICK && (i + (f - formats)) % 2)
            continue;
        test_spec s = product("matmul", f, 8, 8, 0, 0);
        s.k = s.m = 251;
        s.n = i % 2 ? 264 : 259;
        s.axis = i % 2 ? BSK_CN : BSK_NC;
        s.transpose = i / 2;
        s.out = BSK_F32;
        s.pattern = PATTERN_DIAGONAL;
        s.fill = FILL_BITS;
        test_emit(list, s);
    }
}

/* Gates, their gradients, bias gradients and pairs. */
static void list_wgrad(test_list *list, const format *f)
{
    static const struct {
        uint32_t options;
        bsk_gate_mode mode;
        int32_t pairs;
        bsk_dtype out;
        double alpha, beta;
    } kinds[] = {
        {OPT_DBIAS, 0, 1, BSK_BF16, 0, 0},
        {OPT_GATE, BSK_GATE_SKIP, 1, 0, 0, 0},
        {OPT_GATE, BSK_GATE_SCALE, 2, 0, -2, 0.5},
        {OPT_GATE | OPT_DGATE, BSK_GATE_SCALE, 1, 0, 0, 0},
        {OPT_LD8, 0, 3, BSK_F32, 0, 1},
        {OPT_TRANS | OPT_LD, 0, 1, BSK_F16, 0, 0},
    };
    for (int i = 0; i < TEST_COUNT(kinds); i++)
        for (int b = 0; b < TEST_COUNT(blocks); b++) {
            if ((list->tier == TIER_QUICK && (i + b * 5) % 12) ||
                (list->tier == TIER_CI && (i + b) % (2 * f->share)) ||
                (is_scaled(f) && kinds[i].options & OPT_DGATE) ||
                is_spare(list, f, blocks[b][0], blocks[b][1], (i + b * 5) / 12))
                continue;
            test_spec s = product("matmul_wgrad", f, blocks[b][0], blocks[b][1], 140, 8);
            s.options = kinds[i].options;
            s.gate_mode = kinds[i].mode;
            s.pairs = kinds[i].pairs;
            s.out = kinds[i].out ? kinds[i].out : f->out;
            s.alpha = kinds[i].alpha;
            s.beta = kinds[i].beta;
            s.transpose = i % 2 && !(s.options & OPT_DBIAS);
            s.fill = b % 2 ? FILL_INT : FILL_REAL;
            emit_axis(list, s, 171, i + b);
        }
}

/* dsd, dds and sdd with batches, heads and groups. */
static void list_batches(test_list *list, const format *f)
{
    static const char *const ops[] = {"dsd", "dds", "sdd"};
    static const struct {
        int32_t heads, groups;
        uint32_t options;
    } batches[] = {{1, 0, OPT_TRANS}, {1, 3, 0}, {1, 3, OPT_SHARED}, {3, 2, OPT_LD8}};
    for (int o = 0; o < TEST_COUNT(ops); o++)
        for (int i = 0; i < TEST_COUNT(batches); i++)
            for (int b = 0; b < TEST_COUNT(squares); b++) {
                if ((list->tier == TIER_QUICK && (i + b * 5 + o * 11) % 12) ||
                    (list->tier == TIER_CI && (i + b + o) % (2 * f->share)) ||
                    is_spare(list, f, squares[b], squares[b], 0))
                    continue;
                test_spec s = product(ops[o], f, squares[b], squares[b], 130, 8);
                s.n = 72;
                s.heads = batches[i].heads;
                s.groups = batches[i].groups;
                s.options = batches[i].options;
                s.transpose = o < 2 && (i + b) % 2;
                s.fill = i % 2 ? FILL_INT : FILL_REAL;
                s.options |= is_scaled(f) && b % 2 ? OPT_SCALES : 0;
                test_emit(list, s);
            }
}

/* Empty and full lists, NaN and infinity in features without kept blocks. */
static void list_special(test_list *list, const format *f)
{
    static const test_pattern patterns[] = {PATTERN_EMPTY, PATTERN_FULL, PATTERN_SKEWED};
    for (int b = 0; b < TEST_COUNT(squares); b++)
        for (int o = 0; o < TEST_COUNT(linear); o++) {
            if ((list->tier == TIER_QUICK && (b + o * 5) % 7) ||
                (list->tier == TIER_CI && (b + o) % f->share) ||
                is_spare(list, f, squares[b], squares[b], 0))
                continue;
            test_spec s = product(linear[o], f, squares[b], squares[b], 140, 8);
            s.fill = FILL_SPECIAL;
            emit_axis(list, s, 72, b + o);
            if (f->dtype == BSK_F32 && o == 0) { /* sums are mended before and after the store */
                s.options = b % 2 ? OPT_BIAS : OPT_RESIDUAL;
                emit_axis(list, s, 72, b / 2);
                s.options = 0;
            }
            s.fill = FILL_INT;
            s.pattern = patterns[(b + o) % TEST_COUNT(patterns)];
            emit_axis(list, s, 72, b + o + 1);
        }
}

/* Sums of i8 products that nearly fill i32, and a depth beyond which one entry alone adds up. */
static void list_longest(test_list *list, const format *f)
{
    if (f->dtype != BSK_I8 || f->out != BSK_F32 || list->tier == TIER_QUICK)
        return;
    static const int64_t depths[] = {131056, 131088};
    for (int i = 0; i < TEST_COUNT(depths); i++) {
        test_spec s = product("matmul_wgrad", f, 8, 8, 8, 0);
        s.m = 8;
        s.fill = FILL_HUGE;
        s.pattern = PATTERN_FULL;
        s.n = depths[i];
        test_emit(list, s);
        s.op = "matmul";
        s.k = depths[i];
        s.n = 4;
        test_emit(list, s);
    }
}

void cases_products_formats(test_list *list)
{
    for (int i = 0; i < TEST_COUNT(formats); i++) {
        list_blocks(list, &formats[i]);
        list_epilogues(list, &formats[i]);
        list_few(list, &formats[i]);
        list_few_long(list, &formats[i]);
        list_turns(list, &formats[i]);
        list_small(list, &formats[i]);
        list_gradients(list, &formats[i]);
        list_near(list, &formats[i]);
        list_wide(list, &formats[i]);
        list_bits(list, &formats[i]);
        list_wgrad(list, &formats[i]);
        list_batches(list, &formats[i]);
        list_special(list, &formats[i]);
        list_longest(list, &formats[i]);
    }
}
