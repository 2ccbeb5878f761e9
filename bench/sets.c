/* Sets of cases for the bench. */
#include <string.h>

#include "bench/bench.h"

static const char *const linear[] = {"matmul", "matmul_dgrad", "matmul_wgrad"};

static test_spec square(const char *op, bsk_dtype dtype, int32_t block, int64_t size, int64_t n,
                        double density, bsk_axis axis)
{
    test_spec s = {.op = op,
                   .dtype = dtype,
                   .out = dtype == BSK_I8 ? BSK_BF16 : BSK_NONE,
                   .br = block,
                   .bc = block,
                   .k = size,
                   .m = size,
                   .n = n,
                   .pattern_value = density,
                   .axis = axis,
                   .seed = 7};
    return s;
}

static const bsk_dtype cpu_types[] = {BSK_F32, BSK_BF16};

static void cpu_main(test_list *list, bsk_dtype dtype, double density)
{
    static const int64_t counts[] = {256, 1024};
    for (int32_t block = 8; block <= 64; block *= 2)
        for (int n = 0; n < TEST_COUNT(counts); n++)
            for (int axis = BSK_NC; axis <= BSK_CN; axis++)
                for (int o = 0; o < TEST_COUNT(linear); o++)
                    test_emit(list, square(linear[o], dtype, block, 4096, counts[n], density,
                                           (bsk_axis)axis));
}

/* Bound by reading the kept weights once, or nearly so. */
static void cpu_small(test_list *list, bsk_dtype dtype)
{
    static const int64_t counts[] = {1, 4, 16, 32};
    for (int32_t block = 8; block <= 64; block *= 2)
        for (int n = 0; n < TEST_COUNT(counts); n++)
            for (int axis = BSK_NC; axis <= BSK_CN; axis++)
                test_emit(list,
                          square("matmul", dtype, block, 8192, counts[n], 0.25, (bsk_axis)axis));
}

/* As many weights as a dense product has, or more than the last-level cache holds. */
static void cpu_large(test_list *list, bsk_dtype dtype)
{
    for (int axis = BSK_NC; axis <= BSK_CN; axis++) {
        test_spec s = square("matmul", dtype, 32, 4096, 256, 0, (bsk_axis)axis);
        s.pattern = PATTERN_FULL;
        test_emit(list, s);
        test_emit(list, square("matmul", dtype, 32, 8192, 256, 0.5, (bsk_axis)axis));
    }
}

/* The grid by which the CPU entries are judged; ci/bench_table.py has the goals. */
static void set_cpu(test_list *list)
{
    for (int t = 0; t < TEST_COUNT(cpu_types); t++) {
        cpu_main(list, cpu_types[t], 0.25);
        cpu_main(list, cpu_types[t], 0.10);
        cpu_small(list, cpu_types[t]);
        cpu_large(list, cpu_types[t]);
    }
    cpu_main(list, BSK_I8, 0.25);
}

/* 16-bit operands, f32 arithmetic. */
static void set_half(test_list *list)
{
    static const bsk_dtype types[] = {BSK_BF16, BSK_F16};
    for (int t = 0; t < TEST_COUNT(types); t++)
        for (int32_t block = 8; block <= 64; block *= 2)
            for (int axis = BSK_NC; axis <= BSK_CN; axis++)
                for (int o = 0; o < TEST_COUNT(linear); o++)
                    test_emit(list,
                              square(linear[o], types[t], block, 4096, 256, 0.25, (bsk_axis)axis));
}

/* What memory limits: passes over rows of 4096. */
static void ops_rows(test_list *list, bsk_dtype dtype, int64_t count)
{
    static const char *const norms[] = {"layer_norm", "layer_norm_grad", "rms_norm",
                                        "rms_norm_grad"};
    static const char *const rows[] = {"masked_softmax", "masked_softmax_grad", "dropout"};
    test_spec s = {.dtype = dtype, .n = count, .m = 4096, .seed = 7};
    for (int o = 0; o < TEST_COUNT(norms); o++) {
        s.op = norms[o];
        s.options = OPT_GAIN | (o < 2 ? OPT_BIAS : 0) | (o % 2 ? OPT_DBIAS : OPT_SAVED);
        test_emit(list, s);
    }
    test_spec r = {.dtype = dtype, .n = count, .k = 4096, .value = 0.9, .seed = 7};
    for (int o = 0; o < TEST_COUNT(rows); o++) {
        r.op = rows[o];
        test_emit(list, r);
    }
    test_spec gelu = {.op = "unary", .dtype = dtype, .n = count, .k = 4096, .seed = 7};
    gelu.kind = BSK_UNARY_GELU;
    test_emit(list, gelu);
    gelu.op = "unary_grad";
    test_emit(list, gelu);
}

/* The dense companions at the sizes of a small language model. */
static void set_ops(test_list *list)
{
    ops_rows(list, BSK_F32, 4096);
    ops_rows(list, BSK_BF16, 4096);
    test_spec s = {.op = "bias_act",
                   .dtype = BSK_F32,
                   .n = 1024,
                   .m = 4096,
                   .act = BSK_ACT_GELU,
                   .options = OPT_BIAS,
                   .seed = 7};
    test_emit(list, s);
    s.op = "bias_act_grad";
    s.options = OPT_BIAS | OPT_DBIAS;
    test_emit(list, s);
    test_spec e = {.op = "embedding",
                   .dtype = BSK_F32,
                   .n = 4096,
                   .k = 32768,
                   .m = 1024,
                   .index = BSK_I32,
                   .seed = 7};
    test_emit(list, e);
    e.op = "embedding_grad";
    test_emit(list, e);
    test_spec c = {
        .op = "cross_entropy", .dtype = BSK_F32, .n = 1024, .m = 8192, .index = BSK_I32, .seed = 7};
    test_emit(list, c);
    test_spec a = {.op = "adam", .dtype = BSK_F32, .n = -1, .k = 4096, .m = 1024, .seed = 7};
    test_emit(list, a);
}

/* --- Hopper ---------------------------------------------------------------------------------
 *
 * The grid by which the NVIDIA entries are judged; ci/bench_table.py has the goals. S and L are the
 * two shapes. */

static const struct {
    int64_t size, n;
} hopper_shapes[] = {{4096, 8192}, {8192, 16384}};

static const int32_t hopper_blocks[] = {128, 64, 32, 16, 8};

static void emit_linear(test_list *list, test_spec s)
{
    for (int o = 0; o < TEST_COUNT(linear); o++) {
        s.op = linear[o];
        test_emit(list, s);
    }
}

static void hopper_main(test_list *list)
{
    static const double densities[] = {0.10, 0.25, 0.50};
    for (int h = 0; h < TEST_COUNT(hopper_shapes); h++)
        for (int b = 0; b < TEST_COUNT(hopper_blocks); b++)
            for (int d = 0; d < TEST_COUNT(densities); d++)
                emit_linear(list, square("", BSK_BF16, hopper_blocks[b], hopper_shapes[h].size,
                                         hopper_shapes[h].n, densities[d], BSK_NC));
}

/* The other axis, the other types, the other patterns: one density of S each. */
static void hopper_variants(test_list *list)
{
    static const struct {
        test_pattern pattern;
        double value;
    } patterns[] = {{PATTERN_RANDOM, 0.05}, /* what the skewed rows are compared with */
                    {PATTERN_SKEWED, 0.05},
                    {PATTERN_BANDED, 0.25},
                    {PATTERN_BARABASI, 8}};
    for (int b = 0; b < TEST_COUNT(hopper_blocks); b++) {
        test_spec s = square("", BSK_BF16, hopper_blocks[b], 4096, 8192, 0.25, BSK_CN);
        emit_linear(list, s);
        s.axis = BSK_NC;
        s.dtype = BSK_F16;
        if (hopper_blocks[b] == 64 || hopper_blocks[b] == 16)
            emit_linear(list, s);
        s.dtype = BSK_F32;
        emit_linear(list, s);
        s.dtype = BSK_BF16;
        for (int p = 0; p < TEST_COUNT(patterns) && hopper_blocks[b] <= 64; p++) {
            s.pattern = patterns[p].pattern;
            s.pattern_value = patterns[p].value;
            emit_linear(list, s);
        }
    }
}

/* Bound by reading the kept weights once: 34 MB, where a launch counts, and 134. */
static void hopper_small(test_list *list)
{
    static const int64_t counts[] = {1, 4, 16, 32, 64};
    for (int b = 0; b < TEST_COUNT(hopper_blocks); b++)
        for (int n = 0; n < TEST_COUNT(counts); n++)
            for (int64_t size = 8192; size <= 16384; size *= 2) {
                test_spec s =
                    square("matmul", BSK_BF16, hopper_blocks[b], size, counts[n], 0.25, BSK_NC);
                test_emit(list, s);
                s.op = "matmul_dgrad";
                if (counts[n] >= 16)
                    test_emit(list, s);
            }
}

/* The two cases with which openai/blocksparse was presented: hidden state of 12,288, and 20,480
 * with about 6.55 million weights. */
static void hopper_openai(test_list *list)
{
    static const struct {
        int32_t block, degree;
    } graphs[] = {{32, 5}, {16, 10}, {8, 20}};
    emit_linear(list, square("", BSK_BF16, 32, 12288, 32, 0.03, BSK_CN));
    for (int g = 0; g < TEST_COUNT(graphs); g++) {
        test_spec s = square("", BSK_BF16, graphs[g].block, 20480, 64, graphs[g].degree, BSK_CN);
        s.pattern = PATTERN_BARABASI;
        emit_linear(list, s);
    }
}

/* Dense weight gradients of a small language model: small outputs, sums over many samples. */
static void hopper_dense(test_list *list)
{
    static const int64_t outputs[] = {768, 3072};
    for (int m = 0; m < TEST_COUNT(outputs); m++) {
        test_spec s = square("matmul_wgrad", BSK_BF16, 64, 768, 32768, 0, BSK_NC);
        s.pattern = PATTERN_FULL;
        s.m = outputs[m];
        test_emit(list, s);
    }
}

static void set_hopper(test_list *list)
{
    hopper_main(list);
    hopper_variants(list);
    hopper_small(list);
    hopper_openai(list);
    hopper_dense(list);
}

/* From a few samples to where tiles fill a chip, and there with and without bias and activation. */
static void set_minibatch(test_list *list)
{
    static const int64_t counts[] = {32, 64, 128, 256, 512, 1024};
    static const double densities[] = {0.10, 0.25};
    for (int b = 0; b < TEST_COUNT(hopper_blocks); b++) {
        test_spec s = square("matmul", BSK_BF16, hopper_blocks[b], 4096, 8192, 0.25, BSK_NC);
        test_emit(list, s);
        s.options |= OPT_BIAS;
        s.act = BSK_ACT_GELU;
        test_emit(list, s);
    }
    for (int b = 0; b < TEST_COUNT(hopper_blocks); b++)
        for (int d = 0; d < TEST_COUNT(densities); d++)
            for (int n = 0; n < TEST_COUNT(counts); n++)
                test_emit(list, square("matmul", BSK_BF16, hopper_blocks[b], 4096, counts[n],
                                       densities[d], BSK_NC));
}

/* f32 data by tf32, and operands of 8 bits, beside bf16; of both fewer samples, too. */
static void set_formats(test_list *list)
{
    static const int64_t counts[] = {32, 128, 512, 2048};
    static const struct {
        bsk_dtype dtype, out;
        bsk_precision precision;
        uint32_t options;
        bool few; /* also with few samples */
    } formats[] = {{BSK_BF16, BSK_BF16, BSK_PRECISION_FULL, 0, false},
                   {BSK_F32, BSK_F32, BSK_PRECISION_TF32, 0, true},
                   {BSK_F8E4M3, BSK_BF16, BSK_PRECISION_FULL, 0, true},
                   {BSK_F8E4M3, BSK_BF16, BSK_PRECISION_FULL, OPT_SCALES, false}};
    for (int f = 0; f < TEST_COUNT(formats); f++)
        for (int b = 0; b < TEST_COUNT(hopper_blocks); b++) {
            test_spec s = square("", formats[f].dtype, hopper_blocks[b], 4096, 8192, 0.25, BSK_NC);
            s.out = formats[f].out;
            s.precision = formats[f].precision;
            s.options = formats[f].options;
            emit_linear(list, s);
            s.axis = BSK_CN;
            emit_linear(list, s);
            s.axis = BSK_NC;
            for (int n = 0; n < TEST_COUNT(counts) && formats[f].few && b % 2 == 0; n++) {
                s.n = counts[n];
                emit_linear(list, s);
            }
        }
}

/* Few samples in f32, and rounded to tf32: bound by reading the kept weights once, or by writing their
 * gradient; that of bf16, and weights of f8, too. */
static void set_few(test_list *list)
{
    static const struct {
        const char *op;
        int64_t n;
        bsk_axis axis;
    } rows[] = {
        {"matmul", 1, BSK_NC},        {"matmul", 4, BSK_NC},        {"matmul", 16, BSK_NC},
        {"matmul", 32, BSK_NC},       {"matmul", 64, BSK_NC},       {"matmul", 16, BSK_CN},
        {"matmul_dgrad", 16, BSK_NC}, {"matmul_wgrad", 1, BSK_NC},  {"matmul_wgrad", 4, BSK_NC},
        {"matmul_wgrad", 16, BSK_NC}, {"matmul_wgrad", 32, BSK_NC}, {"matmul_wgrad", 64, BSK_NC},
        {"matmul_wgrad", 16, BSK_CN}};
    static const bsk_precision precisions[] = {BSK_PRECISION_FULL, BSK_PRECISION_TF32};
    for (int b = 0; b < TEST_COUNT(hopper_blocks); b++)
        for (int p = 0; p < TEST_COUNT(precisions); p++)
            for (int r = 0; r < TEST_COUNT(rows); r++) {
                test_spec s = square(rows[r].op, BSK_F32, hopper_blocks[b], 8192, rows[r].n, 0.25,
                                     rows[r].axis);
                s.precision = precisions[p];
                test_emit(list, s);
            }
    static const int64_t f8_counts[] = {1, 4, 16, 64};
    for (int b = 0; b < TEST_COUNT(hopper_blocks); b++) {
        test_emit(list, square("matmul_wgrad", BSK_BF16, hopper_blocks[b], 8192, 16, 0.25, BSK_NC));
        for (int i = 0; i < 2 * TEST_COUNT(f8_counts); i++) {
            test_spec s = square(linear[i % 2], BSK_F8E4M3, hopper_blocks[b], 8192,
                                 f8_counts[i / 2], 0.25, BSK_NC);
            s.out = BSK_BF16;
            test_emit(list, s);
        }
    }
}

/* What memory limits, at the sizes of a large model, for GPUs: rows of bytes over time. */
static void set_memory(test_list *list)
{
    static const bsk_act acts[] = {BSK_ACT_RELU, BSK_ACT_GELU};
    ops_rows(list, BSK_BF16, 32768);
    ops_rows(list, BSK_F32, 32768);
    for (int a = 0; a < TEST_COUNT(acts); a++) {
        test_spec s = {.op = "bias_act",
                       .dtype = BSK_BF16,
                       .n = 32768,
                       .m = 4096,
                       .act = acts[a],
                       .options = OPT_BIAS,
                       .seed = 7};
        test_emit(list, s);
        s.op = "bias_act_grad";
        s.options = OPT_BIAS | OPT_DBIAS;
        test_emit(list, s);
    }
    test_spec e = {.op = "embedding",
                   .dtype = BSK_F32,
                   .n = 65536,
                   .k = 50304,
                   .m = 1024,
                   .index = BSK_I32,
                   .seed = 7};
    test_emit(list, e);
    e.op = "embedding_grad";
    test_emit(list, e);
    test_spec c = {.op = "cross_entropy",
                   .dtype = BSK_BF16,
                   .n = 8192,
                   .m = 50304,
                   .index = BSK_I32,
                   .seed = 7};
    test_emit(list, c);
    c.options = OPT_NO_GRAD;
    test_emit(list, c);
    test_spec a = {.op = "adam", .dtype = BSK_F32, .n = -1, .k = 65536, .m = 4096, .seed = 7};
    test_emit(list, a);
    for (int32_t block = 8; block <= 64; block *= 2) {
        test_spec p = {.op = "block_softmax", .dtype = BSK_BF16, .br = block, .bc = block};
        p.n = 64;
        p.k = p.m = 4096;
        p.count = 16;
        p.groups = 2;
        p.layout = "random:density=0.25,seed=3";
        p.pattern = PATTERN_TEXT;
        p.seed = 3;
        test_emit(list, p);
        p.op = "block_softmax_grad";
        test_emit(list, p);
    }
}

/* --- Attention: 8 heads, one batch ---------------------------------------------------------- */

/* Patterns, with the rules that see through them; NULL: all blocks. */
static const struct {
    const char *layout;
    uint32_t rules;
} attention_patterns[] = {
    {NULL, 0},
    {"causal", RULE_CAUSAL},
    {"local:window=256", RULE_CAUSAL | RULE_WINDOW},
    {"strided:stride=16", RULE_CAUSAL | RULE_INTERLEAVE},
    {"fixed:local=8,global=1", RULE_CAUSAL},
    {"sliding:blocks=8,causal", RULE_CAUSAL},
    {"bigbird:window=3,first=1,random=3,seed=1", 0},
    {"longformer:window=8,start=0", 0},
    {"random:density=0.1,seed=1", 0},
};
enum { ATTENTION_FIXED = 4, ATTENTION_RANDOM = 8 };

/* Forward and backward. */
static void emit_attention(test_list *list, int pattern, bsk_dtype dtype, int32_t block, int64_t d,
                           int64_t time)
{
    test_spec s = {.op = "attention", .dtype = dtype, .br = block, .bc = block, .n = d};
    s.k = s.m = time;
    s.count = 8;
    s.layout = attention_patterns[pattern].layout;
    s.pattern = s.layout ? PATTERN_TEXT : PATTERN_FULL;
    s.rules = attention_patterns[pattern].rules;
    s.seed = 3;
    s.options = OPT_SAVED;
    test_emit(list, s);
    s.op = "attention_grad";
    s.options = 0;
    test_emit(list, s);
}

/* All patterns at one size, the fixed one at the others, and the case that the CPU's goal names. */
static void set_attention(test_list *list)
{
    static const bsk_dtype types[] = {BSK_F32, BSK_BF16};
    static const int32_t blocks[] = {16, 32, 128};
    static const int64_t sizes[] = {32, 128}, times[] = {1024, 8192, 16384};
    for (int t = 0; t < TEST_COUNT(types); t++) {
        for (int p = 0; p < TEST_COUNT(attention_patterns); p++)
            emit_attention(list, p, types[t], 64, 64, 2048);
        for (int b = 0; b < TEST_COUNT(blocks); b++)
            emit_attention(list, ATTENTION_FIXED, types[t], blocks[b], 64, 2048);
        emit_attention(list, ATTENTION_RANDOM, types[t], 32, 64, 2048);
    }
    for (int d = 0; d < TEST_COUNT(sizes); d++)
        emit_attention(list, ATTENTION_FIXED, BSK_BF16, 64, sizes[d], 2048);
    for (int n = 0; n < TEST_COUNT(times); n++)
        emit_attention(list, ATTENTION_FIXED, BSK_BF16, 64, 64, times[n]);
    emit_attention(list, ATTENTION_FIXED, BSK_F16, 64, 64, 2048);
}

/* Long sequences of 16 heads, two of them. */
/* 16 heads of 8,192 tokens, two members. layout: NULL, full */
static test_spec long_attention(const char *layout, int32_t block, int64_t d, uint32_t rules)
{
    test_spec s = {.op = "attention", .dtype = BSK_BF16, .br = block, .bc = block, .n = d};
    s.k = s.m = 8192;
    s.count = 16;
    s.groups = 2;
    s.seed = 3;
    s.layout = layout;
    s.pattern = layout ? PATTERN_TEXT : PATTERN_FULL;
    s.rules = rules;
    s.options = OPT_SAVED;
    return s;
}

static void set_attention_hopper(test_list *list)
{
    static const struct {
        const char *layout;
        int32_t block;
        uint32_t rules;
    } rows[] = {
        {NULL, 128, 0},
        {"causal", 128, RULE_CAUSAL},
        {"random:density=0.1,seed=3", 128, 0},
        {"random:density=0.1,seed=3", 64, 0},
        {"random:density=0.1,seed=3", 32, 0},
        {"random:density=0.1,seed=3", 16, 0},
        {"local:window=512", 64, RULE_CAUSAL | RULE_WINDOW},
        {"fixed:local=8,global=1", 64, RULE_CAUSAL},
        {"strided:stride=128", 64, RULE_CAUSAL | RULE_INTERLEAVE},
    };
    static const int64_t sizes[] = {128, 64};
    /* Wide heads and small blocks. */
    static const struct {
        const char *layout;
        int32_t block;
        int64_t d;
        uint32_t rules;
    } others[] = {
        {"causal", 128, 256, RULE_CAUSAL},
        {"random:density=0.1,seed=3", 128, 256, 0},
        {"random:density=0.1,seed=3", 64, 256, 0},
        {"random:density=0.1,seed=3", 32, 256, 0},
        {"local:window=512", 64, 256, RULE_CAUSAL | RULE_WINDOW},
        {"causal", 128, 192, RULE_CAUSAL},
        {"random:density=0.1,seed=3", 64, 192, 0},
        {"random:density=0.1,seed=3", 8, 128, 0},
        {"local:window=512", 16, 128, RULE_CAUSAL | RULE_WINDOW},
        {"local:window=512", 8, 128, RULE_CAUSAL | RULE_WINDOW},
        {"random:density=0.1,seed=3", 8, 64, 0},
        {"local:window=512", 16, 64, RULE_CAUSAL | RULE_WINDOW},
        {"fixed:local=32,global=2", 16, 64, RULE_CAUSAL},
        {"local:window=512", 8, 64, RULE_CAUSAL | RULE_WINDOW},
    };
    for (int d = 0; d < TEST_COUNT(sizes); d++)
        for (int r = 0; r < TEST_COUNT(rows); r++) {
            test_spec s = long_attention(rows[r].layout, rows[r].block, sizes[d], rows[r].rules);
            test_emit(list, s);
            s.op = "attention_grad";
            s.options = 0;
            test_emit(list, s);
        }
    for (int r = 0; r < TEST_COUNT(others); r++) {
        test_spec s =
            long_attention(others[r].layout, others[r].block, others[r].d, others[r].rules);
        test_emit(list, s);
        s.op = "attention_grad";
        s.options = 0;
        test_emit(list, s);
    }
}

/* Lists of blocks made on the device, 256 x 256 of them, and one query each over a paged cache. */
static void set_dynamic(test_list *list)
{
    static const double shares[] = {0.1, 0.25, 1};
    static const int32_t heads[] = {1, 16};
    for (int h = 0; h < TEST_COUNT(heads); h++) {
        test_spec s = {.op = "layout_topk", .dtype = BSK_F32, .groups = heads[h], .seed = 3};
        s.n = s.k = 256;
        s.m = 64;
        s.count = 26;
        s.pairs = s.heads = 1;
        test_emit(list, s);
        s.op = "layout_mask";
        s.dtype = BSK_U8;
        s.count = s.pairs = s.heads = 0;
        s.m = 256;
        test_emit(list, s);
    }
    for (int i = 0; i < TEST_COUNT(shares); i++) {
        test_spec s = {.op = "attention_decode", .dtype = BSK_BF16, .n = 128, .seed = 3};
        s.k = 1;
        s.m = 16384;
        s.heads = 8;
        s.count = 4;
        s.groups = 8;
        s.pairs = 64;
        if (shares[i] < 1) {
            s.br = 1;
            s.bc = 64;
            s.pattern_value = shares[i];
        }
        test_emit(list, s);
    }
}

/* A layer of experts: rows of all choices, shared out evenly or not, up, down, and gradients. Tokens,
 * choices, experts, features, hidden size. */
static void set_moe(test_list *list)
{
    static const int32_t layers[][5] = {{8192, 2, 8, 4096, 14336},
                                        {8192, 8, 64, 2048, 1024},
                                        {16384, 8, 256, 7168, 2048},
                                        {64, 8, 64, 2048, 1024}};
    static const int32_t kinds[] = {GROUPS_EVEN, GROUPS_ANY};
    for (int i = 0; i < TEST_COUNT(layers); i++) {
        const int32_t *layer = layers[i];
        test_spec s = {.op = "moe_route", .dtype = BSK_I32, .seed = 3, .groups = layer[2]};
        s.n = layer[0];
        s.k = layer[1];
        s.options = OPT_SAVED;
        test_emit(list, s);
        s.dtype = BSK_BF16;
        s.n = (int64_t)layer[0] * layer[1];
        s.options = 0;
        for (int kind = 0; kind < TEST_COUNT(kinds); kind++) {
            s.op = "grouped_matmul";
            s.kind = kinds[kind];
            s.k = layer[3];
            s.m = layer[4];
            for (s.transpose = 0; s.transpose < 2; s.transpose++)
                test_emit(list, s);
            s.transpose = 0;
            s.k = layer[4];
            s.m = layer[3];
            test_emit(list, s);
            s.op = "grouped_wgrad";
            test_emit(list, s);
        }
    }
}

static void set_smoke(test_list *list)
{
    for (int o = 0; o < TEST_COUNT(linear); o++)
        test_emit(list, square(linear[o], BSK_F32, 32, 1024, 64, 0.25, BSK_NC));
    test_emit(list, square("matmul", BSK_BF16, 32, 1024, 64, 0.25, BSK_CN));
    test_spec s = {.op = "bias_act",
                   .dtype = BSK_F32,
                   .n = 64,
                   .m = 1024,
                   .act = BSK_ACT_RELU,
                   .options = OPT_BIAS,
                   .seed = 7};
    test_emit(list, s);
}

static const struct {
    const char *name;
    void (*add)(test_list *list);
} sets[] = {{"attention", set_attention},
            {"attention-hopper", set_attention_hopper},
            {"cpu", set_cpu},
            {"dynamic", set_dynamic},
            {"few", set_few},
            {"half", set_half},
            {"formats", set_formats},
            {"hopper", set_hopper},
            {"memory", set_memory},
            {"minibatch", set_minibatch},
            {"moe", set_moe},
            {"ops", set_ops},
            {"smoke", set_smoke}};

bool bench_set(const char *name, test_list *list)
{
    for (int i = 0; i < TEST_COUNT(sets); i++)
        if (strcmp(sets[i].name, name) == 0) {
            sets[i].add(list);
            return true;
        }
    return false;
}

const char *bench_set_names(void)
{
    return "attention, attention-hopper, cpu, dynamic, few, half, formats, hopper, memory, "
           "minibatch, moe, ops, smoke";
}
