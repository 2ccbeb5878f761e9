/* One NaN and one infinity in each input, for the ops whose own lists have none: a share of rows that
 * tuned entries take beside one that they do not. */
#include "tests/harness/test.h"

static const bsk_dtype dtypes[] = {BSK_F32, BSK_BF16, BSK_F16, BSK_F64};

static const test_spec specials[] = {
    {.op = "add_n", .n = 33, .k = 17, .pairs = 3},
    {.op = "add_n", .n = 33, .k = 136, .pairs = 9, .beta = -1},
    {.op = "assign_add", .n = 33, .k = 17},
    {.op = "cwise_linear_grad", .n = 7, .k = 5, .m = 3, .options = OPT_GAIN | OPT_BIAS | OPT_DBIAS},
    {.op = "cwise_linear_grad", .n = 8, .k = 16, .m = 32, .options = OPT_GAIN | OPT_DBIAS},
    {.op = "cwise_linear_grad", .n = 1, .k = 32, .m = 32, .options = OPT_BIAS | OPT_DBIAS},
    {.op = "sparse_relu_grad", .n = 7, .m = 33, .value = 1},
    {.op = "sparse_relu_grad", .n = 4, .m = 1024, .axis = BSK_CN},
    {.op = "take_along", .index = BSK_I32, .n = 3, .k = 5, .m = 33, .count = 4},
    {.op = "take_along_grad", .index = BSK_I32, .n = 3, .k = 5, .m = 33, .count = 4},
    {.op = "fancy_gather", .index = BSK_U8, .n = 3, .k = 5, .m = 33},
    {.op = "fancy_gather_grad", .index = BSK_U8, .n = 3, .k = 5, .m = 33, .beta = 0.5},
    {.op = "reduce_max_grad", .index = BSK_U16, .n = 3, .k = 5, .m = 33},
    {.op = "topk_grad", .index = BSK_I32, .n = 5, .k = 33, .m = 1, .count = 4},
    {.op = "rectified_topk", .n = 4, .k = 257, .count = 16},
    {.op = "rectified_topk_grad", .n = 5, .k = 33, .count = 4},
    {.op = "masked_topk_softmax", .n = 7, .k = 19, .count = 4},
    {.op = "masked_topk_softmax", .n = 5, .k = 304, .count = 8, .options = OPT_GATE},
    {.op = "masked_softmax", .n = 5, .k = 304, .options = OPT_GATE},
    {.op = "masked_softmax_grad", .n = 7, .k = 19},
    {.op = "masked_softmax_grad", .n = 5, .k = 304, .options = OPT_GATE, .beta = 0.5},
    {.op = "rms_norm", .n = 7, .m = 33, .options = OPT_GAIN},
    {.op = "rms_norm", .n = 6, .m = 1000, .options = OPT_GAIN | OPT_SAVED},
    {.op = "rms_norm_grad", .n = 7, .m = 33, .options = OPT_GAIN | OPT_DBIAS},
    {.op = "rms_norm_grad", .n = 6, .m = 1000, .options = OPT_GAIN | OPT_DBIAS},
    {.op = "layer_norm_grad", .n = 7, .m = 33, .options = OPT_GAIN | OPT_BIAS | OPT_DBIAS},
    {.op = "layer_norm_grad", .n = 7, .m = 33, .axis = BSK_CN, .options = OPT_GAIN | OPT_DBIAS},
    {.op = "layer_norm_grad", .n = 6, .m = 1000, .options = OPT_GAIN | OPT_BIAS | OPT_DBIAS},
    {.op = "batch_norm_grad", .n = 4, .k = 7, .m = 9, .options = OPT_GAIN | OPT_DBIAS},
    {.op = "lstm_gates", .n = 3, .m = 5, .kind = 1},
    {.op = "lstm_gates", .n = 16, .m = 64, .value = 1, .options = OPT_BIAS},
    {.op = "lstm_gates_grad", .n = 3, .m = 5, .kind = 1, .options = OPT_DLOSS},
    {.op = "lstm_gates_grad", .n = 16, .m = 64, .value = 1, .options = OPT_BIAS | OPT_DLOSS},
    {.op = "split4", .n = 9, .m = 33},
    {.op = "concat4", .n = 9, .m = 33},
    {.op = "transpose_0213", .heads = 3, .n = 7, .k = 5, .m = 2},
    {.op = "transpose_2d", .n = 64, .k = 64},
    {.op = "dropout", .n = 33, .k = 136, .value = 0.5},
    {.op = "embedding", .index = BSK_I32, .k = 10, .m = 16, .n = 33},
    {.op = "embedding_grad", .index = BSK_I32, .k = 10, .m = 16, .n = 33},
    {.op = "embedding_grad", .index = BSK_U16, .k = 200, .m = 264, .n = 64, .beta = 0.5},
    {.op = "dense_wgrad", .n = 33, .k = 5, .m = 7},
    {.op = "dense_wgrad", .n = 1000, .k = 8, .m = 64, .axis = BSK_CN},
    {.op = "adam_n", .n = -1, .k = 33, .m = 17, .pairs = 2},
    {.op = "adam_n", .n = -1, .k = 127, .pairs = 11, .options = OPT_DECAY | OPT_NORM_SCALE},
    {.op = "adafactor", .n = -1, .k = 127},
    {.op = "adafactor", .n = -1, .k = 33, .m = 17, .options = OPT_DECAY},
    {.op = "ema", .n = -1, .k = 33, .m = 17, .value = 0.25},
    {.op = "ema", .n = -1, .k = 33, .m = 17, .value = 0.999, .options = OPT_GATE},
};

void cases_specials(test_list *list)
{
    for (int t = 0; t < TEST_COUNT(dtypes); t++) {
        for (int i = 0; i < TEST_COUNT(specials); i++) {
            test_spec s = specials[i];
            if (list->tier == TIER_QUICK && (i + t) % 2)
                continue;
            s.dtype = dtypes[t];
            s.fill = FILL_SPECIAL;
            test_emit(list, s);
            s.seed = 2;
            test_emit(list, s);
        }
        for (int kind = 0; kind < BSK_BINARY_COUNT; kind++) {
            test_spec s = {.op = "binary_grad", .dtype = dtypes[t], .n = 33, .k = 17, .kind = kind};
            s.fill = FILL_SPECIAL;
            test_emit(list, s);
            s.count = 1 << 5; /* the second operand is repeated */
            test_emit(list, s);
        }
        for (int kind = 0; kind < BSK_UNARY_COUNT; kind++) {
            test_spec s = {.op = "unary_grad", .dtype = dtypes[t], .n = 33, .k = 136, .kind = kind};
            s.fill = FILL_SPECIAL;
            test_emit(list, s);
        }
    }
}
