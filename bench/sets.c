/* Sets of cases for the bench. */
#include <string.h>

#include "bench/bench.h"

static const char *const linear[] = {"matmul", "matmul_dgrad", "matmul_wgrad"};

static test_spec square(const char *op, bsk_dtype dtype, int32_t block, int64_t size, int64_t n,
                        double density, bsk_axis axis)
{
    test_spec s = {.op = op,
                   .dtype = dtype,
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

/* The grid by which the CPU entries are judged. */
static void set_cpu(test_list *list)
{
    static const int64_t counts[] = {32, 256, 1024};
    static const double densities[] = {0.25, 0.10};
    static const int32_t blocks[] = {8, 16, 32, 64};
    for (int d = 0; d < TEST_COUNT(densities); d++)
        for (int b = 0; b < TEST_COUNT(blocks); b++)
            for (int n = 0; n < TEST_COUNT(counts); n++)
                for (int axis = BSK_NC; axis <= BSK_CN; axis++)
                    for (int o = 0; o < TEST_COUNT(linear); o++)
                        test_emit(list, square(linear[o], BSK_F32, blocks[b], 4096, counts[n],
                                               densities[d], (bsk_axis)axis));
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

/* The dense companions at the sizes of a small language model. */
static void set_ops(test_list *list)
{
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
} sets[] = {{"cpu", set_cpu}, {"half", set_half}, {"ops", set_ops}, {"smoke", set_smoke}};

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
    return "cpu, half, ops, smoke";
}
