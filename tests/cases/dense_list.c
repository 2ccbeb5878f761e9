/* The cases of the dense ops: element-wise, choosing, norms, LSTM, training. */
#include "tests/harness/test.h"

static const bsk_dtype dtypes[] = {BSK_F32, BSK_BF16, BSK_F16, BSK_F64};

/* Shapes of up to five dimensions: heads, groups, n, k, m; 0 where a dimension is missing. */
static const struct {
    int32_t heads, groups;
    int64_t n, k, m;
} shapes[] = {
    {0, 0, 1, 0, 0},  {0, 0, 1023, 0, 0}, {0, 0, 33, 17, 0},  {0, 0, 0, 8, 0},
    {0, 0, 5, 9, 12}, {2, 3, 4, 5, 6},    {0, 0, 33, 136, 0},
};

static void set_shape(test_spec *s, int shape)
{
    s->heads = shapes[shape].heads;
    s->groups = shapes[shape].groups;
    s->n = shapes[shape].n;
    s->k = shapes[shape].k;
    s->m = shapes[shape].m;
}

/* Of the cases numbered i, those that a quick run takes. */
static bool left_out(const test_list *list, int i, int share)
{
    return list->tier == TIER_QUICK && i % share;
}

/* --- Element-wise ------------------------------------------------------------------------- */

static void list_binary(test_list *list)
{
    /* which dimensions of x (low five bits) and y are 1: a bias, a gain, both sides, all */
    static const int32_t repeats[] = {0, 1 << 5, 2 << 5, 1 | 2 << 5, 31 << 5, 5};
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int kind = 0; kind < BSK_BINARY_COUNT; kind++)
                for (int r = 0; r < TEST_COUNT(repeats); r++) {
                    if (left_out(list, i + t + kind + r, 5) || (i == 3 && r == 4))
                        continue;
                    test_spec s = {.op = "binary", .dtype = dtypes[t], .kind = kind};
                    set_shape(&s, i);
                    s.count = repeats[r];
                    s.fill = (i + r) % 2 ? FILL_INT : FILL_REAL;
                    s.index = r % 3 == 2 ? dtypes[(t + 1) % 4] : BSK_NONE;
                    s.out = r % 3 == 1 ? dtypes[(t + 3) % 4] : BSK_NONE;
                    s.options = i % 2 ? OPT_LD | OPT_OFFSET : i == 4 ? OPT_TRANS : 0;
                    test_emit(list, s);
                    if (r == 0 && !s.out) {
                        s.options |= OPT_INPLACE;
                        test_emit(list, s);
                        s.options &= ~(uint32_t)OPT_INPLACE;
                    }
                    if (kind != BSK_BINARY_DIV && i == 2) {
                        s.fill = FILL_SPECIAL;
                        test_emit(list, s);
                    }
                    s.op = "binary_grad";
                    s.fill = i % 2 && kind != BSK_BINARY_DIV ? FILL_INT : FILL_REAL;
                    s.beta = i % 2 ? 0.5 : 0;
                    s.alpha = r % 2 ? 2 : 0;
                    test_emit(list, s);
                    s.options |= OPT_NO_GRAD | OPT_SAVED;
                    if (r < 2)
                        test_emit(list, s);
                }
    for (int r = 0; r < TEST_COUNT(repeats); r++) {
        test_spec s = {.op = "binary_grad", .dtype = BSK_F32, .kind = BSK_BINARY_DIV};
        set_shape(&s, 2);
        s.count = repeats[r];
        s.options = OPT_GAIN;
        test_emit(list, s);
    }
}

static void list_unary(test_list *list)
{
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int kind = 0; kind < BSK_UNARY_COUNT; kind++) {
                if (left_out(list, i + t + kind, 3))
                    continue;
                test_spec s = {.op = "unary", .dtype = dtypes[t], .kind = kind};
                const bool scaled = kind == BSK_UNARY_ELU || kind == BSK_UNARY_SWISH;
                set_shape(&s, i);
                s.value = scaled && i % 2 ? 1.702 : 0;
                s.options = i % 2 ? OPT_LD | OPT_OFFSET : i == 4 ? OPT_INPLACE : 0;
                s.out = i == 6 && kind % 2 ? dtypes[(t + 1) % 4] : BSK_NONE;
                test_emit(list, s);
                if (i == 2) {
                    s.fill = FILL_SPECIAL;
                    test_emit(list, s);
                    s.fill = FILL_REAL;
                }
                s.op = "unary_grad";
                s.beta = i % 2 ? 0.5 : 0;
                s.alpha = i % 3 == 1 ? -2 : 0;
                test_emit(list, s);
                const bool output =
                    kind <= BSK_UNARY_ELU && kind != BSK_UNARY_SQR && kind != BSK_UNARY_LOG;
                s.options |= OPT_SAVED;
                if (output)
                    test_emit(list, s);
            }
    /* rcp and log from x, rcp and sqrt from y; f16 has no such numbers */
    static const int32_t steep[][2] = {{BSK_UNARY_RCP, OPT_TINY},
                                       {BSK_UNARY_LOG, OPT_TINY},
                                       {BSK_UNARY_RCP, OPT_TINY | OPT_SAVED},
                                       {BSK_UNARY_SQRT, OPT_TINY | OPT_SAVED}};
    for (int i = 0; i < 2 * TEST_COUNT(steep); i++)
        for (int t = 0; t < 2; t++) {
            test_spec s = {.op = "unary_grad", .dtype = dtypes[t], .kind = steep[i / 2][0]};
            set_shape(&s, 2);
            s.options = (uint32_t)steep[i / 2][1] | (i % 2 ? OPT_LD | OPT_OFFSET : 0);
            test_emit(list, s);
        }
}

static void list_sums(test_list *list)
{
    static const int32_t pairs[] = {1, 2, 3, 9, 16};
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int p = 0; p < TEST_COUNT(pairs); p++) {
                if (left_out(list, i + t + p, 4))
                    continue;
                test_spec s = {.op = "add_n", .dtype = dtypes[t], .pairs = pairs[p]};
                set_shape(&s, i);
                s.options = i % 2 ? OPT_LD | OPT_OFFSET : i == 4 ? OPT_TRANS : 0;
                s.fill = p % 2 ? FILL_INT : FILL_REAL;
                s.out = p == 3 ? dtypes[(t + 1) % 4] : BSK_NONE;
                s.alpha = i % 3 == 1 ? 0.5 : 0;
                s.beta = p == 2 ? -1 : 0;
                test_emit(list, s);
                s.alpha = s.beta = 0;
                if (p == 0) {
                    s.op = "assign_add";
                    s.pairs = 0;
                    s.out = i == 2 ? dtypes[(t + 1) % 4] : BSK_NONE;
                    test_emit(list, s);
                    s.op = "add_n";
                    s.out = BSK_NONE;
                    s.pairs = 1;
                    s.options |= OPT_INPLACE;
                    test_emit(list, s);
                }
            }
}

static void list_casts(test_list *list)
{
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int from = BSK_F64; from <= BSK_I8; from++)
            for (int to = BSK_F64; to <= BSK_I8; to++) {
                if (left_out(list, i + from + 3 * to, 5))
                    continue;
                test_spec s = {.op = "cast", .dtype = (bsk_dtype)from, .index = (bsk_dtype)to};
                set_shape(&s, i);
                s.options = i % 2 ? OPT_LD | OPT_OFFSET : i == 4 ? OPT_TRANS : 0;
                test_emit(list, s);
                s.fill = FILL_BITS;
                test_emit(list, s);
                if (from > BSK_BF16)
                    continue;
                s.fill = FILL_HUGE;
                test_emit(list, s);
                s.fill = FILL_SPECIAL;
                test_emit(list, s);
            }
    static const int64_t grids[][4] = {
        {3, 7, 5, 2}, {1, 64, 64, 1}, {2, 33, 4, 16}, {1, 0, 5, 3}, {2, 100, 130, 3}};
    for (int i = 0; i < TEST_COUNT(grids); i++)
        for (int from = BSK_F64; from <= BSK_I8; from++) {
            if (left_out(list, i + from, 3))
                continue;
            test_spec s = {.op = "transpose_0213", .dtype = (bsk_dtype)from};
            s.fill = from > BSK_U8 ? FILL_BITS : FILL_REAL;
            s.heads = (int32_t)grids[i][0];
            s.n = grids[i][1];
            s.k = grids[i][2];
            s.m = grids[i][3];
            s.options = i % 2 ? OPT_LD | OPT_OFFSET : 0;
            test_emit(list, s);
            s.op = "transpose_2d";
            s.heads = 0;
            s.m = 0;
            test_emit(list, s);
            s.index = from == BSK_F32 ? BSK_F16 : BSK_F32;
            test_emit(list, s);
            s.index = from == BSK_F8E4M3 ? BSK_F8E5M2 : BSK_F8E4M3;
            test_emit(list, s);
        }
}

static void list_channels(test_list *list)
{
    /* R1's grid, and NC and CN forms */
    static const int64_t grids[][3] = {{1, 32, 32}, {7, 5, 1},    {1, 9, 100},   {0, 4, 3},
                                       {8, 64, 16}, {64, 64, 32}, {8, 64, 1024}, {8, 64, 512}};
    static const uint32_t options[] = {OPT_GAIN | OPT_BIAS, OPT_GAIN, OPT_BIAS};
    for (int i = 0; i < TEST_COUNT(grids); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int o = 0; o < TEST_COUNT(options); o++)
                for (int relu = 0; relu < 2; relu++) {
                    const bool large = i > 4;
                    if ((large && list->tier != TIER_FULL) || left_out(list, i + t + o + relu, 3))
                        continue;
                    test_spec s = {.op = "cwise_linear", .dtype = dtypes[t]};
                    s.n = grids[i][0];
                    s.k = grids[i][1];
                    s.m = grids[i][2];
                    s.act = relu ? BSK_ACT_RELU : BSK_ACT_NONE;
                    s.kind = o == 0 && i % 2;
                    s.options = options[o] | (i % 2 ? OPT_LD | OPT_OFFSET : 0);
                    s.fill = (i + t) % 2 ? FILL_INT : FILL_REAL;
                    s.out = i == 2 ? dtypes[(t + 1) % 4] : BSK_NONE;
                    test_emit(list, s);
                    s.fill = FILL_SPECIAL;
                    if (i == 1)
                        test_emit(list, s);
                    s.op = "cwise_linear_grad";
                    s.options |= o != 1 ? OPT_DBIAS : 0;
                    s.alpha = o == 1 ? 2 : 0;
                    s.beta = i % 2 ? 0.5 : 0;
                    s.fill = relu || i % 2 ? FILL_INT : FILL_REAL;
                    test_emit(list, s);
                    s.options |= OPT_BLEND;
                    test_emit(list, s);
                    s.options &= ~(uint32_t)OPT_BLEND;
                    s.beta = 0;
                    s.out = BSK_NONE;
                    s.options |= OPT_INPLACE;
                    test_emit(list, s);
                    s.options = (s.options & ~(uint32_t)OPT_INPLACE) | OPT_NO_GRAD;
                    test_emit(list, s);
                }
}

static void list_filters(test_list *list)
{
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int kind = 0; kind < 4; kind++) {
                if (left_out(list, i + t + kind, 3))
                    continue;
                test_spec s = {.op = "filter", .dtype = dtypes[t], .kind = kind};
                set_shape(&s, i);
                s.fill = FILL_SPECIAL;
                s.value = kind % 2 ? 0.3 : 0;
                s.options = i % 2 ? OPT_LD | OPT_OFFSET : i == 4 ? OPT_INPLACE : 0;
                test_emit(list, s);
                s.options |= OPT_CLIP;
                s.out = i == 2 ? dtypes[(t + 1) % 4] : BSK_NONE;
                test_emit(list, s);
            }
    static const int64_t rows[][2] = {{1, 1}, {7, 33}, {4, 1024}, {0, 5}, {3, 4099}};
    static const double sigmas[] = {0, 1, -0.5};
    for (int i = 0; i < TEST_COUNT(rows); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int v = 0; v < TEST_COUNT(sigmas); v++)
                for (int axis = BSK_NC; axis <= BSK_CN; axis++) {
                    if (left_out(list, i + t + v + axis, 3))
                        continue;
                    test_spec s = {.op = "sparse_relu", .dtype = dtypes[t]};
                    s.axis = (bsk_axis)axis;
                    s.n = rows[i][0];
                    s.m = rows[i][1];
                    s.value = sigmas[v];
                    s.options = i % 2 ? OPT_LD | OPT_OFFSET : i == 2 ? OPT_INPLACE : 0;
                    test_emit(list, s);
                    s.fill = FILL_SPECIAL;
                    if (i == 1)
                        test_emit(list, s);
                    s.fill = FILL_REAL;
                    s.op = "sparse_relu_grad";
                    s.kind = v == 2;
                    s.alpha = v == 1 ? 2 : 0;
                    s.beta = i % 2 ? 0.5 : 0;
                    test_emit(list, s);
                }
}

static void list_dropout(test_list *list)
{
    static const double keeps[] = {0.8, 0.5, 1, 0};
    static const int32_t shared[] = {0, 1, 2, 5, 31};
    /* R1's shapes beside the common ones */
    static const int64_t more[][3] = {
        {64, 0, 0}, {1024, 128, 0}, {1023, 127, 0}, {63, 63, 63}, {64, 64, 64}};
    const int common = TEST_COUNT(shapes);
    for (int i = 0; i < common + TEST_COUNT(more); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int v = 0; v < TEST_COUNT(keeps); v++)
                for (int b = 0; b < TEST_COUNT(shared); b++) {
                    test_spec s = {.op = "dropout", .dtype = dtypes[t], .value = keeps[v]};
                    if (i < common) {
                        set_shape(&s, i);
                    } else {
                        s.n = more[i - common][0];
                        s.k = more[i - common][1];
                        s.m = more[i - common][2];
                    }
                    const int rank = 1 + (s.heads > 0) + (s.groups > 0) + (s.k > 0) + (s.m > 0);
                    if ((i > common && (list->tier != TIER_FULL || (t + v + b) % 4)) ||
                        left_out(list, i + t + v + b, 3))
                        continue;
                    s.count = shared[b] & ((1 << rank) - 1);
                    s.options = i % 2 ? OPT_LD | OPT_OFFSET : i == 4 ? OPT_INPLACE : 0;
                    s.out = i == 6 && v % 2 ? dtypes[(t + 1) % 4] : BSK_NONE;
                    s.fill = i == 2 && v == 1 ? FILL_SPECIAL : FILL_REAL;
                    test_emit(list, s);
                }
}

void cases_elementwise(test_list *list)
{
    list_binary(list);
    list_unary(list);
    list_sums(list);
    list_casts(list);
    list_channels(list);
    list_filters(list);
    list_dropout(list);
}

/* --- Choosing ----------------------------------------------------------------------------- */

static void list_gathers(test_list *list)
{
    static const bsk_dtype indices[] = {BSK_I32, BSK_U8, BSK_U16, BSK_I64};
    static const int64_t grids[][3] = {{3, 5, 4},      {7, 62, 1},     {2, 256, 33},  {0, 5, 2},
                                       {1, 1, 1},      {16, 30, 9},    {2, 130, 70},  {128, 16, 21},
                                       {128, 16, 149}, {128, 16, 128}, {128, 16, 30}, {128, 16, 9},
                                       {128, 16, 4},   {128, 16, 640}, {128, 16, 768}};
    for (int i = 0; i < TEST_COUNT(grids); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int x = 0; x < TEST_COUNT(indices); x++) {
                if ((i > 6 && list->tier != TIER_FULL) || left_out(list, i + t + x, 4))
                    continue;
                test_spec s = {.op = "reduce_max", .dtype = dtypes[t], .index = indices[x]};
                s.n = grids[i][0];
                s.k = grids[i][1];
                s.m = grids[i][2];
                s.count = 3;
                s.options = i % 2 ? OPT_LD | OPT_OFFSET : x == 2 ? OPT_TRANS : 0;
                s.out = x == 3 ? dtypes[(t + 1) % 4] : BSK_NONE;
                s.fill = x % 2 ? FILL_INT : FILL_REAL; /* with ties */
                test_emit(list, s);
                s.fill = FILL_SPECIAL;
                test_emit(list, s);
                s.fill = FILL_REAL;
                s.op = "take_along";
                test_emit(list, s);
                s.op = "fancy_gather";
                test_emit(list, s);
                static const char *const grads[] = {"take_along_grad", "fancy_gather_grad",
                                                    "reduce_max_grad"};
                for (int g = 0; g < TEST_COUNT(grads); g++) {
                    s.op = grads[g];
                    s.fill = x % 2 ? FILL_INT : FILL_REAL;
                    s.alpha = i % 2 ? 2 : 0;
                    s.beta = x % 2 ? 0.5 : 0;
                    test_emit(list, s);
                }
            }
    for (int x = 0; x < TEST_COUNT(indices); x++) { /* whole numbers */
        test_spec s = {.op = "take_along", .dtype = BSK_I32, .index = indices[x]};
        s.n = 3;
        s.k = 5;
        s.m = 33;
        s.count = 4;
        s.options = x % 2 ? OPT_LD | OPT_OFFSET : 0;
        test_emit(list, s);
        s.op = "fancy_gather";
        test_emit(list, s);
    }
    for (int t = 1; t < 3; t++) { /* many are gathered from many */
        test_spec s = {.op = "take_along_grad", .dtype = dtypes[t], .index = BSK_I32};
        s.n = 1;
        s.k = 1100;
        s.m = 66;
        s.count = 200;
        s.beta = t == 1 ? 0.5 : 0;
        test_emit(list, s);
    }
}

static void list_topk(test_list *list)
{
    static const bsk_dtype indices[] = {BSK_I32, BSK_NONE, BSK_U16, BSK_I64};
    static const int64_t grids[][3] = {{1, 1, 1},    {5, 33, 4},    {3, 100, 100}, {0, 8, 3},
                                       {4, 257, 16}, {2, 1024, 32}, {2, 5000, 5},  {3, 32768, 64}};
    for (int i = 0; i < TEST_COUNT(grids); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int x = 0; x < TEST_COUNT(indices); x++) {
                if ((i > 6 && list->tier != TIER_FULL) || left_out(list, i + t + x, 4))
                    continue;
                test_spec s = {.op = "topk", .dtype = dtypes[t], .index = indices[x]};
                s.n = grids[i][0];
                s.k = grids[i][1];
                s.count = (int32_t)grids[i][2];
                s.options = i % 2 ? OPT_LD | OPT_OFFSET : 0;
                s.fill = x % 2 ? FILL_INT : FILL_REAL;
                test_emit(list, s);
                if (i == 1) {
                    s.fill = FILL_SPECIAL;
                    test_emit(list, s);
                    s.fill = FILL_REAL;
                }
                s.op = "topk_grad";
                s.m = 1;
                s.beta = x % 2 ? 0.5 : 0;
                test_emit(list, s);
                s.m = 0;
                s.index = BSK_NONE;
                s.kind = x;
                s.op = "rectified_topk_grad";
                test_emit(list, s);
                s.beta = 0;
                s.kind = x % 2;
                s.op = "rectified_topk";
                test_emit(list, s);
                s.options = OPT_INPLACE;
                s.fill = i == 1 ? FILL_SPECIAL : FILL_REAL;
                test_emit(list, s);
                s.fill = FILL_REAL;
                s.op = "rectified_topk_grad";
                test_emit(list, s);
            }
}

static void list_softmax(test_list *list)
{
    /* R1's grid is the last lines */
    static const struct {
        int32_t heads, groups;
        int64_t n, k, m;
    } rows[] = {
        {0, 0, 1, 0, 0},     {0, 0, 33, 0, 0},      {0, 0, 7, 19, 0},      {0, 0, 0, 8, 0},
        {2, 3, 4, 9, 0},     {0, 2, 3, 5, 130},     {0, 0, 3, 4096, 0},    {0, 0, 2, 9000, 0},
        {4, 4, 512, 512, 0}, {8, 8, 256, 256, 0},   {2, 2, 1024, 1024, 0}, {4, 4, 768, 768, 0},
        {4, 4, 544, 544, 0}, {16, 16, 128, 128, 0}, {32, 32, 64, 64, 0},   {64, 64, 32, 32, 0},
        {0, 0, 2, 65536, 0},
    };
    static const uint32_t options[] = {0, OPT_GATE, OPT_SHARED, OPT_INPLACE, OPT_GATE | OPT_OFFSET};
    for (int i = 0; i < TEST_COUNT(rows); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int o = 0; o < TEST_COUNT(options); o++) {
                if ((i > 7 && (list->tier != TIER_FULL || t)) || left_out(list, i + t + o, 4))
                    continue;
                test_spec s = {.op = "masked_softmax", .dtype = dtypes[t], .options = options[o]};
                s.heads = rows[i].heads;
                s.groups = rows[i].groups;
                s.n = rows[i].n;
                s.k = rows[i].k;
                s.m = rows[i].m;
                s.value = o == 1 ? 2 : o == 2 ? -3 : 0;
                s.options |= i % 2 ? OPT_LD : 0;
                s.out = o == 2 ? dtypes[(t + 1) % 4] : BSK_NONE;
                test_emit(list, s);
                s.fill = FILL_SPECIAL;
                if (i == 2)
                    test_emit(list, s);
                s.fill = FILL_REAL;
                const int64_t last = s.m ? s.m : s.k ? s.k : s.n;
                s.op = "masked_topk_softmax";
                const int64_t third = last / 3 < 50 ? last / 3 : 50;
                s.count = last < 4 ? 1 : o % 2 || i > 7 ? 4 : (int32_t)third;
                if (last > 0)
                    test_emit(list, s);
                s.count = 0;
                s.op = "masked_softmax_grad";
                s.out = BSK_NONE;
                s.kind = t % 2;
                s.alpha = o == 1 ? 2 : 0;
                s.beta = o == 2 || o == 4 ? 0.5 : 0;
                s.options |= o == 4 ? OPT_TINY : 0;
                test_emit(list, s);
            }
    /* rows whose largest elements are far above the others */
    for (int t = 0; t < TEST_COUNT(dtypes); t++) {
        test_spec s = {.op = "masked_softmax", .dtype = dtypes[t], .n = 5, .k = 300, .value = 3000};
        test_emit(list, s);
        s.k = 304; /* whole vectors, and many shares that are denormal */
        s.value = 300;
        test_emit(list, s);
    }
}

void cases_select(test_list *list)
{
    list_gathers(list);
    list_topk(list);
    list_softmax(list);
}

/* --- Norms and LSTM ----------------------------------------------------------------------- */

/* The type of what normalisation number `grid` writes, where it is another: beside 16 bits mostly
 * f32, as in training. */
static bsk_dtype norm_out(int grid, int type)
{
    const bool narrow = dtypes[type] == BSK_BF16 || dtypes[type] == BSK_F16;
    if (grid == 5)
        return dtypes[(type + 1) % 4];
    return grid != 4 && grid != 6 ? BSK_NONE : narrow ? BSK_F32 : BSK_BF16;
}

static void list_layer_norm(test_list *list)
{
    static const int64_t grids[][3] = {
        {4, 31, 0},      {64, 33, 0},     {1, 1, 0},      {0, 8, 2},      {6, 128, 4},
        {3, 1024, 0},    {21, 768, 0},    {5, 3000, 3},   {64, 32, 2},    {512, 896, 0},
        {512, 1024, 4},  {512, 4096, 0},  {512, 8191, 0}, {512, 8192, 0}, {512, 8193, 0},
        {128, 32764, 0}, {128, 32767, 0}, {512, 8188, 0}, {128, 32768, 0}};
    for (int i = 0; i < TEST_COUNT(grids); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int axis = BSK_NC; axis <= BSK_CN; axis++)
                for (int rms = 0; rms < 2; rms++)
                    for (int relu = 0; relu < 2; relu++) {
                        /* few rows that lie across memory leave most lanes idle: long in an emulator */
                        const bool large = i > 8, idle = axis == BSK_CN && grids[i][1] > 700;
                        if ((large && (list->tier != TIER_FULL || t % 3 || relu)) ||
                            (idle && list->tier != TIER_FULL && (i + t + rms + relu) % 4) ||
                            left_out(list, i + t + axis + rms + relu, 3))
                            continue;
                        test_spec s = {.op = rms ? "rms_norm" : "layer_norm", .dtype = dtypes[t]};
                        s.n = grids[i][0];
                        s.m = grids[i][1];
                        s.count = (int32_t)grids[i][2];
                        s.axis = (bsk_axis)axis;
                        s.act = relu ? BSK_ACT_RELU : BSK_ACT_NONE;
                        s.options = (i % 4 ? OPT_GAIN | OPT_BIAS : 0) | (i % 3 ? OPT_SAVED : 0) |
                                    (i % 2 ? OPT_LD | OPT_OFFSET : 0);
                        s.out = norm_out(i, t);
                        test_emit(list, s);
                        if (i == 1) {
                            s.options |= OPT_INPLACE;
                            test_emit(list, s);
                            s.fill = rms ? FILL_REAL : FILL_SPECIAL;
                            test_emit(list, s);
                            s.fill = FILL_REAL;
                        }
                        s.op = rms ? "rms_norm_grad" : "layer_norm_grad";
                        s.options = (i % 4 ? OPT_GAIN | OPT_BIAS : 0) | OPT_DBIAS |
                                    (i % 2 ? OPT_LD | OPT_OFFSET : 0);
                        s.beta = i % 2 ? 0.5 : 0;
                        s.alpha = i % 3 == 1 ? 2 : 0;
                        test_emit(list, s);
                        s.options |= OPT_BLEND;
                        test_emit(list, s);
                        s.out = BSK_NONE;
                        s.beta = 0;
                        s.options |= OPT_INPLACE;
                        s.beta = 0.5;
                        if (i == 1)
                            test_emit(list, s);
                        s.beta = 0;
                        s.options &= ~(uint32_t)OPT_BLEND;
                        test_emit(list, s);
                        s.options = OPT_GAIN | OPT_DBIAS | OPT_NO_GRAD;
                        if (i % 3 == 0)
                            test_emit(list, s);
                    }
}

/* Rows whose mean is far above their deviation, and whose squares are denormal numbers of f32. The
 * bound of the former admits what one pass loses; they show that the second one is right. */
static void list_uneven_rows(test_list *list)
{
    for (int t = 0; t < TEST_COUNT(dtypes); t++)
        for (int i = 0; i < 2; i++) {
            test_spec s = {.op = "layer_norm", .dtype = dtypes[t], .n = 5, .m = i ? 1000 : 1024};
            s.options = OPT_GAIN | OPT_BIAS | OPT_SAVED;
            s.value = 200;
            test_emit(list, s);
            s.op = "rms_norm";
            s.value = 0x1p-64;
            if (s.dtype != BSK_F16)
                test_emit(list, s);
        }
}

/* Rows of whole runs, of all lengths that kernels tell apart, short of what lanes hold and up to
 * it; the last tier has enough of them for each multiprocessor of a large device. */
static void list_whole_rows(test_list *list)
{
    static const int64_t grids[][3] = {{1, 512, 0},  {6, 1000, 0}, {3, 4096, 2}, {70, 2056, 0},
                                       {9, 4096, 0}, {3, 8184, 0}, {2, 16384, 0}};
    for (int i = 0; i < TEST_COUNT(grids); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int o = 0; o < 4; o++) {
                const bool rms = o & 1, relu = o & 2;
                if (left_out(list, i + t + o, 3))
                    continue;
                test_spec s = {.op = rms ? "rms_norm" : "layer_norm", .dtype = dtypes[t]};
                s.n = list->tier == TIER_FULL && i == 4 ? 1500 : grids[i][0];
                s.m = grids[i][1];
                s.count = (int32_t)grids[i][2];
                s.act = relu ? BSK_ACT_RELU : BSK_ACT_NONE;
                s.options = ((i + o) % 4 ? OPT_GAIN | OPT_BIAS : 0) |
                            ((i + o) % 3 ? OPT_SAVED : 0) | (i % 2 ? OPT_LD8 : 0);
                test_emit(list, s);
                if (i == 1) {
                    s.options |= OPT_INPLACE;
                    s.fill = rms ? FILL_REAL : FILL_SPECIAL;
                    test_emit(list, s);
                    s.fill = FILL_REAL;
                }
                s.op = rms ? "rms_norm_grad" : "layer_norm_grad";
                s.options =
                    ((i + o) % 4 ? OPT_GAIN | OPT_BIAS : 0) | OPT_DBIAS | (i % 2 ? OPT_LD8 : 0);
                s.alpha = o == 2 ? 2 : 0;
                s.beta = o == 1 ? 0.5 : 0;
                test_emit(list, s);
                s.options |= o ? OPT_BLEND : OPT_INPLACE;
                s.beta = o > 1 ? 0.5 : 0;
                test_emit(list, s);
            }
}

static void list_batch_norm(test_list *list)
{
    static const int64_t grids[][3] = {{4, 7, 9}, {33, 5, 1},  {1, 6, 100},  {0, 4, 3},
                                       {1, 3, 1}, {8, 32, 64}, {28, 64, 256}};
    for (int i = 0; i < TEST_COUNT(grids); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int o = 0; o < 3; o++) {
                if ((i > 5 && list->tier != TIER_FULL) || left_out(list, i + t + o, 2))
                    continue;
                test_spec s = {.op = "batch_norm", .dtype = dtypes[t]};
                s.n = grids[i][0];
                s.k = grids[i][1];
                s.m = grids[i][2];
                s.options = (o ? OPT_GAIN : 0) | (o == 2 ? OPT_BIAS : 0) |
                            (i % 2    ? OPT_LD | OPT_OFFSET
                             : o == 1 ? OPT_INPLACE
                                      : 0);
                s.out = i == 5 && !o ? dtypes[(t + 1) % 4] : BSK_NONE;
                test_emit(list, s);
                s.op = "batch_norm_infer";
                test_emit(list, s);
                s.fill = FILL_SPECIAL;
                if (i == 0)
                    test_emit(list, s);
                s.op = "batch_norm";
                if (i == 0)
                    test_emit(list, s);
                s.fill = FILL_REAL;
                s.op = "batch_norm_grad";
                s.options |= OPT_DBIAS;
                s.alpha = o == 2 ? 2 : 0;
                s.beta = o == 2 ? 0.5 : 0;
                test_emit(list, s);
                s.options |= OPT_BLEND;
                test_emit(list, s);
                s.kind = 1;
                test_emit(list, s);
                s.options &= ~(uint32_t)OPT_BLEND;
                test_emit(list, s);
                s.out = BSK_NONE;
                s.options = OPT_GAIN | OPT_DBIAS | OPT_NO_GRAD;
                test_emit(list, s);
            }
}

static void list_lstm(test_list *list)
{
    static const int64_t grids[][2] = {{3, 5},  {1, 1},      {16, 64},   {0, 8},
                                       {9, 33}, {128, 1024}, {128, 2048}};
    for (int i = 0; i < TEST_COUNT(grids); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int axis = BSK_NC; axis <= BSK_CN; axis++)
                for (int split = 0; split < 2; split++) {
                    if ((i > 4 && list->tier != TIER_FULL) ||
                        left_out(list, i + t + axis + split, 2))
                        continue;
                    test_spec s = {.op = "lstm_gates", .dtype = dtypes[t], .kind = split};
                    s.axis = (bsk_axis)axis;
                    s.n = grids[i][0];
                    s.m = grids[i][1];
                    s.value = i % 2 ? 0 : 1;
                    s.options = (i % 2 ? OPT_LD | OPT_OFFSET : 0) | (t % 2 ? 0 : OPT_BIAS);
                    s.out = i == 4 ? dtypes[(t + 1) % 4] : BSK_NONE;
                    test_emit(list, s);
                    s.op = "lstm_gates_grad";
                    test_emit(list, s);
                    s.options |= OPT_DLOSS;
                    test_emit(list, s);
                    s.options |= OPT_INPLACE;
                    test_emit(list, s);
                    s.alpha = 2;
                    s.beta = 0.5;
                    test_emit(list, s);
                    s.options &= ~(uint32_t)OPT_INPLACE;
                    test_emit(list, s);
                    s.beta = 0;
                    s.options |= OPT_NO_GRAD;
                    test_emit(list, s);
                    s.options = i % 2 ? OPT_LD | OPT_OFFSET : 0;
                    s.alpha = 0;
                    s.value = 0;
                    s.kind = 0;
                    s.op = split ? "split4" : "concat4";
                    test_emit(list, s);
                }
}

void cases_norms(test_list *list)
{
    list_layer_norm(list);
    list_uneven_rows(list);
    list_whole_rows(list);
    list_batch_norm(list);
    list_lstm(list);
}

/* --- Training ----------------------------------------------------------------------------- */

static void list_optimizers(test_list *list)
{
    static const int64_t grids[][2] = {{1, 0}, {127, 0}, {33, 17},    {1, 100},
                                       {0, 4}, {64, 1},  {1024, 1023}};
    static const uint32_t options[] = {0,
                                       OPT_DECAY,
                                       OPT_CLIP,
                                       OPT_NORM_SCALE,
                                       OPT_SKIP,
                                       OPT_DECAY | OPT_CLIP | OPT_OFFSET,
                                       OPT_SAVED,
                                       OPT_DECAY | OPT_SAVED,
                                       OPT_SAVED | OPT_SKIP};
    for (int i = 0; i < TEST_COUNT(grids); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int o = 0; o < TEST_COUNT(options); o++) {
                if ((i > 5 && list->tier != TIER_FULL) || left_out(list, i + t + o, 3))
                    continue;
                test_spec s = {.op = "adafactor", .dtype = dtypes[t], .options = options[o]};
                s.n = -1;
                s.k = grids[i][0];
                s.m = grids[i][1];
                s.value = o % 2 ? 0.5 : 0;
                test_emit(list, s);
                if (options[o] & OPT_SKIP) {
                    s.seed = 2;
                    test_emit(list, s);
                }
                if (!s.m || o > 3)
                    continue;
                s.op = "ema";
                s.options = o % 2 ? OPT_GATE | OPT_OFFSET : 0;
                s.value = o > 1 ? 0.25 : 0.999;
                s.out = o % 2 ? dtypes[(t + 1) % 4] : BSK_NONE;
                test_emit(list, s);
            }
    for (int i = 0; i < 16; i++) {
        test_spec s = {.op = "loss_scale", .dtype = BSK_F32, .n = -1};
        s.count = i % 2 ? 4 : i / 2 % 2 ? 1 : 0;
        s.options = (i & 4 ? OPT_SKIP : 0) | (i & 8 ? OPT_SAVED : OPT_DECAY);
        s.value = i & 1 ? 4096 : i & 2 ? 0.5 : 128;
        s.seed = 1 + (uint64_t)(i & 1);
        test_emit(list, s);
        s.options |= OPT_NORM_SCALE | (i & 2 ? OPT_NO_GRAD : 0);
        test_emit(list, s);
    }
}

static void list_statistics(test_list *list)
{
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int o = 0; o < 4; o++) {
                if (left_out(list, i + t + o, 2))
                    continue;
                test_spec s = {.op = "global_norm", .dtype = dtypes[t]};
                set_shape(&s, i);
                s.pairs = o == 3 ? 5 : 1;
                s.options = (o ? OPT_SAVED : 0) | (o > 1 ? OPT_CLIP : 0) | (i % 2 ? OPT_OFFSET : 0);
                s.value = o == 2 ? 0.125 : 0;
                s.beta = o == 3 ? 1 : 0;
                test_emit(list, s);
                s.fill = FILL_SPECIAL;
                if (i != 3)
                    test_emit(list, s);
                s.fill = FILL_REAL;
                if (o == 2) {
                    test_spec none = s;
                    none.options |= OPT_NO_GRAD;
                    test_emit(list, none);
                }
                s.pairs = 0;
                s.beta = 0;
                s.op = "tensor_stats";
                s.options = (o % 2 ? OPT_CLIP : 0) | OPT_SAVED | (i % 2 ? OPT_LD | OPT_OFFSET : 0);
                s.value = o > 1 ? 4 : 0;
                s.count = o;
                test_emit(list, s);
                if (o == 2) {
                    test_spec limits = s;
                    limits.options |= OPT_TINY;
                    test_emit(list, limits);
                }
                s.fill = FILL_SPECIAL;
                if (i != 3)
                    test_emit(list, s);
            }
    for (int i = 0; i < 2; i++) {
        test_spec s = {.op = "tensor_stats", .dtype = i ? BSK_BF16 : BSK_F32};
        set_shape(&s, 2);
        s.options = OPT_GAIN | OPT_SAVED;
        s.value = i;
        test_emit(list, s);
    }
}

static void list_quantize(test_list *list)
{
    /* e4m3, e5m2, e8m7, e8m23, e1m0, e6m9; the exponents of their largest numbers */
    static const int32_t formats[][3] = {{4, 3, 0},   {5, 2, -4}, {8, 7, 127}, {8, 23, 127},
                                         {1, 0, -1},  {6, 9, 3},  {4, 23, 0},  {3, 4, -120},
                                         {8, 0, 127}, {4, 0, 7}};
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        for (int t = 0; t < TEST_COUNT(dtypes); t++)
            for (int f = 0; f < TEST_COUNT(formats); f++)
                for (int kind = 0; kind < 4; kind++) {
                    if (left_out(list, i + t + f + kind, 5))
                        continue;
                    test_spec s = {.op = "quantize", .dtype = dtypes[t], .kind = kind};
                    set_shape(&s, i);
                    s.count = formats[f][0] * 32 + formats[f][1];
                    s.value = formats[f][2];
                    s.out = t && t < 3 ? BSK_F32 : BSK_NONE;
                    s.options = (i % 2 ? OPT_LD | OPT_OFFSET : 0) | (kind == 2 ? OPT_SAVED : 0) |
                                (i == 4 && !s.out ? OPT_INPLACE : 0);
                    test_emit(list, s);
                    s.fill = i == 2 ? FILL_SPECIAL : FILL_HUGE;
                    test_emit(list, s);
                }
}

/* R1's large tensors. */
static void list_large(test_list *list)
{
    static const int64_t matrices[][2] = {{1024, 2048}, {1, 2048}, {1024, 1023}, {1, 1023}};
    for (int i = 0; i < TEST_COUNT(matrices) && list->tier == TIER_FULL; i++)
        for (int t = 0; t < 3; t++) {
            test_spec s = {.op = "adafactor", .dtype = dtypes[t], .options = OPT_DECAY};
            s.n = -1;
            s.k = matrices[i][0];
            s.m = matrices[i][1];
            test_emit(list, s);
        }
    for (int stochastic = 0; stochastic < 2 && list->tier == TIER_FULL; stochastic++) {
        test_spec s = {.op = "quantize", .dtype = BSK_F32, .n = 1 << 20, .kind = stochastic};
        s.count = 4 * 32 + 23;
        test_emit(list, s);
    }
    for (int kind = 0; kind < BSK_UNARY_COUNT && list->tier == TIER_FULL; kind++)
        for (int t = 0; t < 3; t++) {
            test_spec s = {.op = "unary", .dtype = dtypes[t], .n = 32, .k = 1024, .kind = kind};
            test_emit(list, s);
            s.op = "binary";
            if (kind < BSK_BINARY_COUNT)
                test_emit(list, s);
        }
    for (int t = 0; t < 3 && list->tier == TIER_FULL; t++) {
        test_spec s = {.op = "transpose_2d", .dtype = dtypes[t], .n = 4096, .k = 1031};
        test_emit(list, s);
        s = (test_spec){
            .op = "dropout", .dtype = dtypes[t], .n = 16, .k = 16, .m = 16, .value = 0.8};
        s.heads = s.groups = 16;
        test_emit(list, s);
        s.count = 1 | 4;
        test_emit(list, s);
    }
    test_spec wide = {.op = "transpose_2d", .dtype = BSK_F32, .n = 4096, .k = 32768};
    if (list->tier == TIER_FULL)
        test_emit(list, wide);
}

/* Exponents on the device that are none. */
static void list_exponents(test_list *list)
{
    for (int t = 0; t < TEST_COUNT(dtypes); t += 3)
        for (int sign = -1; sign <= 1; sign += 2) {
            test_spec s = {.op = "quantize", .dtype = dtypes[t], .n = 100, .options = OPT_SAVED};
            s.count = 4 * 32 + 3;
            s.value = sign * 2147483647.0;
            test_emit(list, s);
        }
}

void cases_training(test_list *list)
{
    list_large(list);
    list_exponents(list);
    list_optimizers(list);
    list_statistics(list);
    list_quantize(list);
}
