/* Bad arguments, generated from the op descriptors: each must be refused with INVALID and a message
 * that names the argument, and nothing may be written. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/src/internal.h"
#include "tests/harness/test.h"

#define GRID     .br = 8, .bc = 8, .k = 24, .m = 32, .pattern_value = 0.5
#define HEADS    .heads = 2, .count = 2, .groups = 3
#define RULES    RULE_ALIBI | RULE_RAGGED | RULE_PREFIX | RULE_DOCUMENTS | RULE_BITS_INDEX
#define EPILOGUE OPT_GATE | OPT_BIAS | OPT_RESIDUAL | OPT_ROW_SCALE | OPT_COL_SCALE

/* One legal problem per op, with every optional argument that can be had at once. */
static const test_spec legal[] = {
    {.op = "matmul", .n = 6, GRID, .options = EPILOGUE},
    {.op = "matmul_dgrad", .n = 6, GRID, .options = OPT_GATE},
    {.op = "matmul_wgrad",
     .n = 6,
     GRID,
     .options = OPT_GATE | OPT_DGATE | OPT_DBIAS,
     .pairs = 2,
     .gate_mode = BSK_GATE_SKIP},
    {.op = "dsd", .n = 6, GRID, .heads = 2, .groups = 2, .options = EPILOGUE},
    {.op = "dds", .n = 6, GRID, .heads = 2, .groups = 2, .options = EPILOGUE},
    {.op = "sdd",
     .n = 6,
     GRID,
     .heads = 2,
     .groups = 2,
     .options = OPT_GATE | OPT_DGATE | OPT_DBIAS,
     .gate_mode = BSK_GATE_SKIP},
    {.op = "reduced_wgrad", .n = 6, .br = 8, .bc = 8, .k = 24, .m = 32},
    {.op = "weight_identity", GRID},
    {.op = "weight_orthogonal", GRID},
    {.op = "weight_normal", GRID},
    {.op = "weight_checker", GRID},
    {.op = "l2_normalize", GRID, .options = OPT_GAIN | OPT_SAVED},
    {.op = "l2_normalize_grad", GRID, .options = OPT_GAIN},
    {.op = "block_norm", GRID},
    {.op = "prune_sparsity", .n = 9},
    {.op = "prune_threshold", .n = 9},
    {.op = "block_l2_decay", GRID, .options = OPT_GATE},
    {.op = "concrete_gate", .n = 9},
    {.op = "concrete_gate_grad", .n = 9},
    {.op = "concrete_gate_infer", .n = 9},
    {.op = "block_renew", GRID},
    {.op = "block_gather", .k = 5, .m = 7},
    {.op = "proj_gather", .n = 6, .k = 12, .m = 5},
    {.op = "proj_scatter", .n = 6, .k = 12, .m = 5},
    {.op = "proj_scatter_add", .n = 6, .k = 12, .m = 5},
    {.op = "proj_scatter_mul", .n = 6, .k = 12, .m = 5},
    {.op = "proj_scatter_mul_grad", .n = 6, .k = 12, .m = 5},
    {.op = "embedding", .n = 6, .k = 12, .m = 5},
    {.op = "embedding_grad", .n = 6, .k = 12, .m = 5},
    {.op = "dense_wgrad", .n = 6, .k = 4, .m = 5},
    {.op = "bias_act", .n = 6, .m = 5, .act = BSK_ACT_GELU, .options = OPT_BIAS},
    {.op = "bias_act_grad", .n = 6, .m = 5, .act = BSK_ACT_GELU, .options = OPT_BIAS | OPT_DBIAS},
    {.op = "cross_entropy", .n = 6, .m = 5, .options = OPT_DLOSS | OPT_SMOOTH},
    {.op = "adam", .k = 6, .m = 5, .options = OPT_NORM_SCALE | OPT_GATE | OPT_COPY | OPT_SAVED},
    {.op = "adam_n", .k = 6, .m = 5, .pairs = 3, .options = OPT_NORM_SCALE | OPT_COPY | OPT_SAVED},
    {.op = "binary", .n = 6, .m = 5, .kind = BSK_BINARY_DIV},
    {.op = "binary_grad", .n = 6, .m = 5, .kind = BSK_BINARY_DIV},
    {.op = "unary", .n = 6, .m = 5, .kind = BSK_UNARY_GELU},
    {.op = "unary_grad", .n = 6, .m = 5, .kind = BSK_UNARY_GELU},
    {.op = "add_n", .n = 6, .m = 5, .pairs = 3},
    {.op = "assign_add", .n = 6, .m = 5},
    {.op = "cast", .n = 6, .m = 5, .index = BSK_BF16},
    {.op = "transpose_2d", .n = 6, .k = 5},
    {.op = "transpose_0213", .heads = 2, .n = 6, .k = 5, .m = 3},
    {.op = "cwise_linear", .n = 6, .k = 5, .m = 3, .options = OPT_GAIN | OPT_BIAS},
    {.op = "cwise_linear_grad",
     .n = 6,
     .k = 5,
     .m = 3,
     .act = BSK_ACT_RELU,
     .options = OPT_GAIN | OPT_BIAS | OPT_DBIAS},
    {.op = "filter", .n = 6, .m = 5},
    {.op = "sparse_relu", .n = 6, .m = 5},
    {.op = "sparse_relu_grad", .n = 6, .m = 5},
    {.op = "dropout", .n = 6, .m = 5, .value = 0.5, .count = 1},
    {.op = "reduce_max", .n = 6, .k = 5, .m = 3, .index = BSK_U16},
    {.op = "reduce_max_grad", .n = 6, .k = 5, .m = 3},
    {.op = "take_along", .n = 6, .k = 5, .m = 3, .count = 2},
    {.op = "take_along_grad", .n = 6, .k = 5, .m = 3, .count = 2},
    {.op = "fancy_gather", .n = 6, .k = 5, .m = 3},
    {.op = "fancy_gather_grad", .n = 6, .k = 5, .m = 3},
    {.op = "topk", .n = 6, .k = 9, .count = 3, .index = BSK_I32},
    {.op = "topk_grad", .n = 6, .k = 9, .m = 1, .count = 3},
    {.op = "rectified_topk", .n = 6, .k = 9, .count = 3},
    {.op = "rectified_topk_grad", .n = 6, .k = 9, .count = 3},
    {.op = "masked_softmax", .n = 6, .k = 9, .options = OPT_GATE},
    {.op = "masked_topk_softmax", .n = 6, .k = 9, .count = 3, .options = OPT_GATE},
    {.op = "masked_softmax_grad", .n = 6, .k = 9, .options = OPT_GATE},
    {.op = "attn_scores", .n = 6, GRID, HEADS},
    {.op = "attn_apply", .n = 6, GRID, HEADS},
    {.op = "attn_apply_t", .n = 6, GRID, HEADS},
    {.op = "block_softmax", .n = 6, GRID, HEADS, .options = OPT_SAVED | OPT_BIAS, .rules = RULES},
    {.op = "block_softmax_grad", .n = 6, GRID, HEADS, .rules = RULE_SOFTCAP},
    {.op = "attention", .n = 6, GRID, HEADS, .options = OPT_SAVED | OPT_BIAS, .rules = RULES},
    {.op = "attention_grad", .n = 6, GRID, HEADS, .options = OPT_BIAS, .rules = RULES},
    {.op = "attention_decode",
     .n = 6,
     .k = 5,
     .m = 24,
     .br = 2,
     .bc = 4,
     .pattern_value = 0.5,
     .heads = 2,
     .count = 2,
     .groups = 3,
     .pairs = 8,
     .kind = 1,
     .options = OPT_SAVED,
     .rules = RULE_ALIBI | RULE_RAGGED},
    {.op = "layout_topk", .groups = 2, .n = 3, .k = 9, .m = 5, .count = 4, .index = BSK_I32},
    {.op = "layout_mask", .groups = 2, .n = 3, .k = 9, .m = 5},
    {.op = "grouped_matmul", .n = 6, .k = 4, .m = 5, .groups = 3, .options = OPT_BIAS},
    {.op = "grouped_wgrad", .n = 6, .k = 4, .m = 5, .groups = 3, .options = OPT_DBIAS},
    {.op = "moe_route", .n = 6, .k = 2, .groups = 3, .options = OPT_SAVED},
    {.op = "conv", .n = 2, .kind = 4, .groups = 2},
    {.op = "conv_dgrad", .n = 2, .kind = 4, .groups = 2},
    {.op = "conv_wgrad", .n = 2, .kind = 4, .groups = 2},
    {.op = "conv_edge_bias", .n = 2, .kind = 4, .groups = 2, .count = 3},
    {.op = "conv_edge_bias_grad", .n = 2, .kind = 4, .groups = 2, .count = 3},
    {.op = "layer_norm", .n = 6, .m = 8, .count = 2, .options = OPT_GAIN | OPT_BIAS | OPT_SAVED},
    {.op = "layer_norm_grad", .n = 6, .m = 8, .options = OPT_GAIN | OPT_BIAS | OPT_DBIAS},
    {.op = "rms_norm", .n = 6, .m = 8, .count = 2, .options = OPT_GAIN | OPT_BIAS | OPT_SAVED},
    {.op = "rms_norm_grad", .n = 6, .m = 8, .options = OPT_GAIN | OPT_BIAS | OPT_DBIAS},
    {.op = "batch_norm", .n = 6, .k = 5, .m = 3, .options = OPT_GAIN | OPT_BIAS},
    {.op = "batch_norm_infer", .n = 6, .k = 5, .m = 3, .options = OPT_GAIN | OPT_BIAS},
    {.op = "batch_norm_grad", .n = 6, .k = 5, .m = 3, .options = OPT_GAIN | OPT_DBIAS},
    {.op = "lstm_gates", .n = 6, .m = 5, .options = OPT_BIAS},
    {.op = "lstm_gates_grad", .n = 6, .m = 5, .kind = 1, .options = OPT_BIAS | OPT_DLOSS},
    {.op = "split4", .n = 6, .m = 5},
    {.op = "concat4", .n = 6, .m = 5},
    {.op = "adafactor", .k = 6, .m = 5, .options = OPT_NORM_SCALE | OPT_SAVED},
    {.op = "ema", .k = 6, .m = 5, .value = 0.5, .options = OPT_GATE},
    {.op = "global_norm", .n = 6, .k = 5, .pairs = 3, .options = OPT_SAVED | OPT_CLIP},
    {.op = "loss_scale", .value = 8, .options = OPT_NORM_SCALE | OPT_SAVED},
    {.op = "quantize", .n = 6, .k = 5, .count = 4 * 32 + 3, .options = OPT_SAVED},
    {.op = "tensor_stats", .n = 6, .k = 5, .options = OPT_SAVED},
};

/* Larger problems of the matrix units' types, whose entries may have packed images and promises. */
#define UNITS                                                                                      \
    .dtype = BSK_BF16, .br = 64, .bc = 64, .n = 72, .k = 192, .m = 256, .pattern_value = 0.5
static const test_spec packing[] = {
    {.op = "matmul", UNITS}, {.op = "matmul_dgrad", UNITS}, {.op = "matmul_wgrad", UNITS},
    {.op = "dsd", UNITS},    {.op = "dds", UNITS},
};

/* Dimensions that nothing else fixes: one more is another legal problem. */
static const struct {
    const char *op, *arg;
    int dim; /* -1: all but the first */
} free_dims[] = {
    {"block_gather", "x", 0},
    {"proj_gather", "x", 1},
    {"proj_scatter", "y", 1},
    {"embedding", "table", 0},
    {"embedding_grad", "dtable", 0},
    {"take_along", "x", 1},
    {"take_along_grad", "dx", 1},
    {"fancy_gather", "x", 1},
    {"fancy_gather_grad", "dx", 1},
    {"reduce_max", "x", 1},
    {"reduce_max_grad", "dx", 1},
    {"topk", "x", 1},
    {"topk_grad", "dx", 1},
    {"global_norm", "x", 0},
    {"global_norm", "x", 1},
    {"tensor_stats", "x", 0},
    {"tensor_stats", "x", 1},
    {"block_softmax", "bits", 0},
    {"attention", "bits", 0},
    {"attention_grad", "bits", 0},
    {"attention_decode", "table", 1},
    {"attention_decode", "block_index", 3},
    {"layout_topk", "scores", 2},
    {"layout_topk", "index", 2},
    {"layout_mask", "mask", 2},
    {"layout_mask", "index", 2},
    {"moe_route", "offsets", 0},
    {"conv", "x", -1},
    {"conv", "y", -1},
    {"conv_dgrad", "dy", -1},
    {"conv_dgrad", "dx", -1},
    {"conv_wgrad", "x", -1},
    {"conv_wgrad", "dy", -1},
};

typedef struct tester {
    test_session *session;
    const test_device *device;
    test_case *c;
    char label[40]; /* the op, and the type where it is not f32 */
    const bsk_plan *plan;
    char text[96]; /* that the next message must have besides */
    _Alignas(16) unsigned char params[BSKI_MAX_STRUCT]; /* the legal ones */
    _Alignas(16) unsigned char args[BSKI_MAX_STRUCT];
} tester;

/* What was to be tested could not be. */
static void untested(tester *t, const char *why)
{
    char name[TEST_NAME];
    test_result r = {TEST_PASS, "", 0, 0};
    snprintf(name, sizeof name, "arguments %s", t->label);
    test_fail(&r, "%s: %s", why, bsk_last_error());
    if (test_wanted(t->session, name))
        test_report(t->session, name, t->device, "", &r);
}

/* Judges a call that had to fail and name `what`. */
static void verdict(tester *t, const char *what, const char *how, bsk_status status,
                    bsk_status wanted)
{
    char name[TEST_NAME];
    test_result r = {TEST_PASS, "", 0, 0};
    snprintf(name, sizeof name, "arguments %s %s %s", t->label, what, how);
    if (!test_wanted(t->session, name))
        return;
    if (status != wanted)
        test_fail(&r, "status %s, expected %s", bsk_status_name(status), bsk_status_name(wanted));
    else if (!strstr(bsk_last_error(), what))
        test_fail(&r, "the message does not name %s: %s", what, bsk_last_error());
    else if (!strstr(bsk_last_error(), t->text))
        test_fail(&r, "the message lacks \"%s\": %s", t->text, bsk_last_error());
    test_report(t->session, name, t->device, "", &r);
}

/* A number outside the range of a field: the message must have it, and the range. */
static void expect_number(tester *t, const bski_field *f, double v)
{
    snprintf(t->text, sizeof t->text, "%s is %.17g; legal are %.10g to %.10g", f->name, v, f->low,
             f->high);
}

static void try_plan(tester *t, const char *what, const char *how, bsk_status wanted)
{
    bsk_plan *plan = NULL;
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.fallback = BSK_FALLBACK_DEVICE;
    bsk_status status = t->c->op->plan(t->device->device, t->c->params, &options, &plan);
    verdict(t, what, plan && status ? "leaves a plan behind" : how, status, wanted);
    bsk_plan_destroy(&plan);
    memcpy(t->c->params, t->params, sizeof t->params);
}

static void try_run(tester *t, const char *what, const char *how)
{
    verdict(t, what, how, t->c->op->run(t->plan, t->device->queue, t->c->args), BSK_E_INVALID);
    memcpy(t->c->args, t->args, sizeof t->args);
}

/* --- Plan time ----------------------------------------------------------------------------- */

static bool dim_is_free(const char *op, const char *arg, int dim)
{
    for (int i = 0; i < TEST_COUNT(free_dims); i++)
        if (strcmp(free_dims[i].op, op) == 0 && strcmp(free_dims[i].arg, arg) == 0 &&
            (free_dims[i].dim == dim || (free_dims[i].dim < 0 && dim > 0)))
            return true;
    return false;
}

/* One more in a dimension: refused, but the message may name either side of the disagreement. */
static void try_longer(tester *t, const bski_arg *arg, bsk_tensor *d, int dim)
{
    char name[TEST_NAME];
    test_result r = {TEST_PASS, "", 0, 0};
    bsk_plan *plan = NULL;
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.fallback = BSK_FALLBACK_DEVICE;
    d->dims[dim]++;
    memset(d->strides, 0, sizeof d->strides);
    bsk_status status = t->c->op->plan(t->device->device, t->c->params, &options, &plan);
    bsk_status wanted = dim_is_free(t->c->op->name, arg->name, dim) ? BSK_OK : BSK_E_INVALID;
    if (status != wanted)
        test_fail(&r, "status %s, expected %s", bsk_status_name(status), bsk_status_name(wanted));
    bsk_plan_destroy(&plan);
    memcpy(t->c->params, t->params, sizeof t->params);
    snprintf(name, sizeof name, "arguments %s %s longer%d", t->label, arg->name, dim);
    if (test_wanted(t->session, name))
        test_report(t->session, name, t->device, "", &r);
}

static bsk_dtype illegal_dtype(const test_case *c, const bski_arg *arg)
{
    uint32_t legal_mask = arg->dtypes;
    if (legal_mask & BSKI_SAME)
        legal_mask |= BSK_DTYPE_BIT(c->spec.dtype);
    if (legal_mask & BSKI_SIDE)
        legal_mask |= BSK_DTYPE_BIT(test_scalar_type(c));
    for (int t = BSK_DTYPE_COUNT - 1; t > 0; t--)
        if (!(legal_mask >> t & 1))
            return (bsk_dtype)t;
    return BSK_NONE;
}

static void try_dimension(tester *t, const bski_arg *arg, const char *how, int k)
{
    char name[32];
    snprintf(name, sizeof name, "%s%d", how, k);
    try_plan(t, arg->name, name, BSK_E_INVALID);
}

static void bad_dimension(tester *t, const bski_arg *arg, bsk_tensor *d, int k)
{
    d->dims[k] = -1;
    try_dimension(t, arg, "negative", k);
    d->dims[k] = INT64_MAX;
    memset(d->strides, 0, sizeof d->strides);
    try_dimension(t, arg, "overflow", k);
    d->strides[k] = -1;
    try_dimension(t, arg, "backwards", k);
    d->strides[k] = INT64_MAX / 2;
    if (d->dims[k] > 2)
        try_dimension(t, arg, "far", k);
    memcpy(t->c->params, t->params, sizeof t->params);
    /* all strides zero mean contiguous */
    if (arg->role != BSKI_IN && d->rank > 1 && d->dims[k] > 1) {
        d->strides[k] = 0;
        try_dimension(t, arg, "repeats", k);
    }
    try_longer(t, arg, d, k);
}

static void bad_tensor(tester *t, int32_t i)
{
    const bski_arg *arg = &t->c->about->args[i];
    bsk_tensor *d = (bsk_tensor *)(void *)(t->c->params + arg->desc);
    if (!arg->optional) {
        d->dtype = BSK_NONE;
        try_plan(t, arg->name, "absent", BSK_E_INVALID);
    }
    if (!d->dtype)
        return;
    d->dtype = illegal_dtype(t->c, arg);
    if (d->dtype)
        try_plan(t, arg->name, "dtype", BSK_E_INVALID);
    d->dtype = (bsk_dtype)77;
    try_plan(t, arg->name, "dtype77", BSK_E_INVALID);
    d->rank = 6;
    try_plan(t, arg->name, "rank6", BSK_E_INVALID);
    d->rank = -1;
    try_plan(t, arg->name, "rank-1", BSK_E_INVALID);
    if (arg->rank_max < BSK_MAX_RANK) {
        d->rank = arg->rank_max + 1;
        for (int k = 0; k < d->rank; k++) {
            d->dims[k] = d->dims[k] ? d->dims[k] : 1;
            d->strides[k] = 0;
        }
        try_plan(t, arg->name, "rank", BSK_E_INVALID);
    }
    for (int k = 0; k < d->rank; k++)
        bad_dimension(t, arg, d, k);
}

static void write_number(unsigned char *base, const bski_field *f, double v)
{
    /* only fields of whole numbers get what is one */
    int32_t i32 = f->kind == BSKI_I32 ? (int32_t)v : 0;
    int64_t i64 = f->kind == BSKI_F64 ? 0 : (int64_t)v;
    switch (f->kind) {
    case BSKI_F64:
        memcpy(base + f->offset, &v, sizeof v);
        break;
    case BSKI_I32:
        memcpy(base + f->offset, &i32, sizeof i32);
        break;
    default:
        memcpy(base + f->offset, &i64, sizeof i64);
        break;
    }
}

/* The numbers just outside a field's range; count of them in bad. */
static int outside(const bski_field *f, double bad[4])
{
    int n = 0;
    bool whole = f->kind != BSKI_F64;
    if (isfinite(f->low) && fabs(f->low) < 2e9)
        bad[n++] = f->low - (whole ? 1 : 1e-3);
    if (isfinite(f->high) && fabs(f->high) < 2e9)
        bad[n++] = f->open ? f->high : f->high + (whole ? 1 : 1e-3);
    if (!whole)
        bad[n++] = NAN;
    return n;
}

static void bad_plan(tester *t)
{
    const bski_op_info *op = t->c->about;
    double bad[4];
    for (int32_t i = 0; i < op->arg_count; i++)
        bad_tensor(t, i);
    for (int32_t i = 0; i < op->attr_count; i++)
        for (int k = 0, n = outside(&op->attrs[i], bad); k < n; k++) {
            char how[40];
            write_number(t->c->params, &op->attrs[i], bad[k]);
            snprintf(how, sizeof how, "%g", bad[k]);
            expect_number(t, &op->attrs[i], bad[k]);
            try_plan(t, op->attrs[i].name, how, BSK_E_INVALID);
            t->text[0] = 0;
        }
    if (op->layout) {
        memset(t->c->params + op->layout, 0, sizeof(void *));
        try_plan(t, "layout", "NULL", BSK_E_INVALID);
    }
    if (op->pairs) {
        const int32_t pairs = -3;
        memcpy(t->c->params + op->pairs, &pairs, sizeof pairs);
        try_plan(t, "pairs", "negative", BSK_E_INVALID);
    }
    size_t size = 0;
    memcpy(t->c->params, &size, sizeof size);
    try_plan(t, "struct_size", "0", BSK_E_INVALID);
    bsk_plan *plan = NULL;
    verdict(t, "device", "NULL", t->c->op->plan(NULL, t->c->params, NULL, &plan), BSK_E_INVALID);
    verdict(t, "params", "NULL", t->c->op->plan(t->device->device, NULL, NULL, &plan),
            BSK_E_INVALID);
    verdict(t, "plan", "nowhere", t->c->op->plan(t->device->device, t->c->params, NULL, NULL),
            BSK_E_INVALID);
}

/* --- Run time ------------------------------------------------------------------------------ */

/* The view of argument i in the args, or its copy for a list of views. */
static bsk_mem *view_of(tester *t, int32_t i, bsk_mem *list)
{
    const bski_arg *arg = &t->c->about->args[i];
    const bsk_mem *views;
    if (!arg->list)
        return (bsk_mem *)(void *)(t->c->args + arg->mem);
    memcpy(&views, t->c->args + arg->mem, sizeof views);
    for (int32_t v = 0; v < t->c->t[i].views; v++)
        list[v] = views[v];
    views = list;
    memcpy(t->c->args + arg->mem, &views, sizeof views);
    return &list[t->c->t[i].views - 1];
}

static void bad_overlap(tester *t, int32_t out)
{
    const bski_op_info *op = t->c->about;
    const bsk_mem *first = (const bsk_mem *)(const void *)(t->args + op->args[out].mem);
    bsk_mem list[TEST_VIEWS];
    if (op->args[out].list)
        memcpy(&first, t->args + op->args[out].mem, sizeof first);
    for (int32_t i = 0; i < op->arg_count; i++) {
        bool allowed = (op->args[out].alias >> i & 1) || (op->args[i].alias >> out & 1);
        if (i == out || !t->c->t[i].desc.dtype || allowed)
            continue;
        bsk_mem *view = view_of(t, i, list);
        *view = *first;
        view->size = 0;
        /* the long view may reach a third argument, so the message names one of them */
        char how[64];
        snprintf(how, sizeof how, "of %s and %s", op->args[out].name, op->args[i].name);
        try_run(t, "overlap", how);
    }
}

static void bad_memory(tester *t, int32_t i)
{
    const bski_arg *arg = &t->c->about->args[i];
    const test_tensor *tensor = &t->c->t[i];
    bsk_mem list[TEST_VIEWS];
    if (!tensor->desc.dtype) {
        /* absent in the params, present in the args */
        *view_of(t, i, list) = *(bsk_mem *)(void *)(t->args + t->c->about->workspace);
        view_of(t, i, list)->kind = BSK_MEM_HOST;
        view_of(t, i, list)->handle = list;
        try_run(t, arg->name, "unexpected");
        return;
    }
    view_of(t, i, list)->handle = NULL;
    try_run(t, arg->name, "NULL");
    memset(view_of(t, i, list), 0, sizeof(bsk_mem));
    try_run(t, arg->name, "missing");
    view_of(t, i, list)->kind = t->device->info.host_memory ? BSK_MEM_CL : BSK_MEM_HOST;
    try_run(t, arg->name, "kind");
    view_of(t, i, list)->size = tensor->bytes - 1;
    if (tensor->bytes > 1)
        try_run(t, arg->name, "short");
    if (bsk_dtype_size(tensor->desc.dtype) > 1) {
        bsk_mem *view = view_of(t, i, list);
        view->offset++;
        view->size = 0;
        try_run(t, arg->name, "misaligned");
    }
    if (arg->list) {
        memset(t->c->args + arg->mem, 0, sizeof(void *));
        try_run(t, arg->name, "nolist");
    }
    if (arg->role != BSKI_IN)
        bad_overlap(t, i);
}

static void bad_run(tester *t, const bsk_plan_info *info)
{
    const bski_op_info *op = t->c->about;
    bsk_mem *workspace = (bsk_mem *)(void *)(t->c->args + op->workspace);
    double bad[4];
    for (int32_t i = 0; i < op->arg_count; i++)
        bad_memory(t, i);
    for (int32_t i = 0; i < op->scalar_count; i++)
        for (int k = 0, n = outside(&op->scalars[i], bad); k < n; k++) {
            char how[40];
            write_number(t->c->args, &op->scalars[i], bad[k]);
            snprintf(how, sizeof how, "%g", bad[k]);
            expect_number(t, &op->scalars[i], bad[k]);
            try_run(t, op->scalars[i].name, how);
            t->text[0] = 0;
        }
    if (info->workspace_bytes) {
        memset(workspace, 0, sizeof *workspace);
        try_run(t, "workspace", "missing");
        workspace->size = info->workspace_bytes - 1;
        try_run(t, "workspace", "short");
        if (info->workspace_alignment > 1) {
            workspace->offset++;
            workspace->size = 0;
            try_run(t, "workspace", "misaligned");
        }
        for (int32_t i = 0; i < op->arg_count; i++) {
            bsk_mem list[TEST_VIEWS];
            char how[64];
            if (!t->c->t[i].desc.dtype)
                continue;
            *workspace = *view_of(t, i, list);
            workspace->size = info->workspace_bytes;
            snprintf(how, sizeof how, "of workspace and %s", op->args[i].name);
            try_run(t, "overlap", how);
        }
    }
    size_t size = 1;
    memcpy(t->c->args, &size, sizeof size);
    try_run(t, "struct_size", "1");
    verdict(t, "args", "NULL", t->c->op->run(t->plan, t->device->queue, NULL), BSK_E_INVALID);
    verdict(t, "queue", "NULL", t->c->op->run(t->plan, NULL, t->c->args), BSK_E_INVALID);
    verdict(t, "plan", "NULL", t->c->op->run(NULL, t->device->queue, t->c->args), BSK_E_INVALID);
}

/* --- Packed weights and promised alignment ---------------------------------------------------- */

static void try_prepack(tester *t, const char *what, const char *how, const bsk_plan *plan,
                        bsk_queue *queue, bsk_mem weights, bsk_mem packed)
{
    char words[64];
    snprintf(words, sizeof words, "prepack %s", how);
    verdict(t, what, words, t->c->op->prepack(plan, queue, weights, packed), BSK_E_INVALID);
}

/* An image that runs and prepack refuse alike. */
static void try_image(tester *t, const char *how, bsk_mem weights, bsk_mem packed)
{
    memcpy(t->c->args + t->c->about->packed, &packed, sizeof packed);
    try_run(t, "packed", how);
    if (packed.kind)
        try_prepack(t, "packed", how, t->plan, t->device->queue, weights, packed);
}

/* packed: as many bytes as the plan's image has, or a few if it has none. */
static void bad_packed(tester *t, const bsk_plan_info *info, bsk_mem packed)
{
    const bski_op_info *op = t->c->about;
    const bsk_mem weights = *(bsk_mem *)(void *)(t->args + op->args[BSKI_PACKED].mem);
    bsk_queue *queue = t->device->queue;
    bsk_mem bad = packed;
    if (!info->packed_bytes) {
        try_image(t, "of a plan that has none", weights, packed);
        return;
    }
    bad.size = info->packed_bytes - 1;
    try_image(t, "short", weights, bad);
    bad = packed;
    bad.handle = NULL;
    try_image(t, "NULL", weights, bad);
    bad = packed;
    bad.kind = t->device->info.host_memory ? BSK_MEM_CL : BSK_MEM_HOST;
    try_image(t, "kind", weights, bad);
    bad = packed;
    bad.offset++;
    bad.size = info->packed_bytes;
    if (info->packed_alignment > 1)
        try_image(t, "misaligned", weights, bad);
    for (int32_t i = 0; i < op->arg_count; i++)
        if (op->args[i].role != BSKI_IN && t->c->t[i].desc.dtype) {
            bad = *(bsk_mem *)(void *)(t->args + op->args[i].mem);
            bad.size = info->packed_bytes;
            memcpy(t->c->args + op->packed, &bad, sizeof bad);
            try_run(t, "overlap", "of an output and packed");
        }
    const char *name = op->args[BSKI_PACKED].name;
    bad = weights;
    bad.handle = NULL;
    try_prepack(t, name, "NULL", t->plan, queue, bad, packed);
    bad = weights;
    bad.size = t->c->t[BSKI_PACKED].bytes - 1;
    try_prepack(t, name, "short", t->plan, queue, bad, packed);
    bad = weights;
    bad.size = info->packed_bytes;
    try_prepack(t, "packed", "on the weights", t->plan, queue, weights, bad);
    try_prepack(t, "plan", "NULL", NULL, queue, weights, packed);
    try_prepack(t, "queue", "NULL", t->plan, NULL, weights, packed);
}

static void packed_arguments(tester *t, const bsk_plan_info *info)
{
    bsk_mem packed = {0};
    if (!t->c->op->prepack)
        return;
    /* room for a misaligned image, so that nothing but its address is wrong */
    if (bsk_mem_alloc(t->device->device, info->packed_bytes + 64, &packed)) {
        untested(t, "no memory for a packed image");
        return;
    }
    bad_packed(t, info, packed);
    bsk_mem_free(t->device->device, &packed);
}

static int32_t entry_alignment(const test_device *d, const char *name)
{
    const bsk_backend *backend = d->device->backend->api;
    for (size_t i = 0; i < backend->entry_count; i++)
        if (strcmp(backend->entries[i].name, name) == 0)
            return backend->entries[i].alignment;
    return 0;
}

/* Addresses that break the promise, where the plan's entry relies on it. */
static void bad_alignment(tester *t, const bsk_plan_info *info)
{
    const int32_t needs = info->staged ? 0 : entry_alignment(t->device, info->entry);
    for (int32_t i = 0; i < t->c->about->arg_count; i++) {
        const bski_arg *arg = &t->c->about->args[i];
        const size_t element = bsk_dtype_size(t->c->t[i].desc.dtype);
        if (!element || arg->list || needs <= (int32_t)element)
            continue;
        bsk_mem *view = (bsk_mem *)(void *)(t->c->args + arg->mem);
        view->offset += element;
        view->size = 0;
        try_run(t, arg->name, "off the promised alignment");
    }
}

/* A plan that is promised elements only must not have an entry that needs more. */
static void plan_alignment(tester *t)
{
    static const int32_t bad[] = {-16, 3, 24, 8192};
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    bsk_plan *plan = NULL;
    options.fallback = BSK_FALLBACK_DEVICE;
    for (int i = 0; i < TEST_COUNT(bad); i++) {
        char how[40];
        options.alignment = bad[i];
        snprintf(how, sizeof how, "%d", (int)bad[i]);
        verdict(t, "alignment", how,
                t->c->op->plan(t->device->device, t->c->params, &options, &plan), BSK_E_INVALID);
        bsk_plan_destroy(&plan);
    }
    char name[TEST_NAME];
    test_result r = {TEST_PASS, "", 0, 0};
    snprintf(name, sizeof name, "arguments %s alignment 1", t->label);
    options.alignment = 1;
    if (!test_wanted(t->session, name))
        return;
    if (t->c->op->plan(t->device->device, t->c->params, &options, &plan))
        test_fail(&r, "no plan without a promise: %s", bsk_last_error());
    else if (bsk_plan_query(plan, &info) ||
             (!info.staged && entry_alignment(t->device, info.entry) > 1))
        test_fail(&r, "the plan has %s, which needs more", info.entry);
    bsk_plan_destroy(&plan);
    test_report(t->session, name, t->device, "", &r);
}

/* After all refusals the memory must be as it was uploaded. */
static void nothing_written(tester *t, const test_memory *m)
{
    char name[TEST_NAME];
    test_result r = {TEST_PASS, "", 0, 0};
    snprintf(name, sizeof name, "arguments %s nothing written", t->label);
    if (!test_wanted(t->session, name))
        return;
    for (int32_t i = 0; i < t->c->about->arg_count; i++)
        for (int32_t v = 0; v < TEST_VIEWS; v++) {
            const test_buffer *b = &m->buffer[i][v];
            uint8_t *now = b->image ? malloc(b->total) : NULL;
            if (!now)
                continue;
            if (bsk_mem_download(t->device->queue, now, b->whole, b->total) ||
                bsk_queue_sync(t->device->queue) || memcmp(now, b->image, b->total) != 0)
                test_fail(&r, "a refused run changed %s", t->c->about->args[i].name);
            free(now);
        }
    test_report(t->session, name, t->device, "", &r);
}

/* The legal problem, and what is wrong in turn: all there is, or packing and alignment only. */
static void op_arguments(test_session *s, const test_device *d, test_spec spec, bool all)
{
    tester t = {.session = s, .device = d};
    bsk_plan *plan = NULL;
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    test_memory *m = malloc(sizeof *m);
    spec.seed = 1;
    snprintf(t.label, sizeof t.label, "%s%s%s", spec.op, spec.dtype ? " " : "",
             spec.dtype ? bsk_dtype_name(spec.dtype) : "");
    spec.dtype = spec.dtype ? spec.dtype : BSK_F32;
    if (!spec.index && (strstr(spec.op, "embedding") || strstr(spec.op, "cross")))
        spec.index = BSK_I32;
    t.c = test_case_make(&spec, true);
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.fallback = BSK_FALLBACK_DEVICE;
    bsk_status status =
        t.c ? t.c->op->plan(d->device, t.c->params, &options, &plan) : BSK_E_INTERNAL;
    if (status || !m) {
        untested(&t, "the legal problem is refused");
    } else {
        bsk_plan_query(plan, &info);
        t.plan = plan;
        memcpy(t.params, t.c->params, sizeof t.params);
        if (all)
            bad_plan(&t);
        plan_alignment(&t);
        if (test_memory_make(m, t.c, d->device, info.workspace_bytes) &&
            test_memory_load(m, t.c, d->queue, 0xff) == BSK_OK) {
            memcpy(t.args, t.c->args, sizeof t.args);
            if (all)
                bad_run(&t, &info);
            bad_alignment(&t, &info);
            packed_arguments(&t, &info);
            nothing_written(&t, m);
        } else {
            untested(&t, "no memory for the legal problem");
        }
        test_memory_free(m);
    }
    bsk_plan_destroy(&plan);
    test_case_free(t.c);
    free(m);
}

void suite_arguments(test_session *s, const test_device *d)
{
    for (int i = 0; i < TEST_COUNT(legal); i++)
        if (test_has_entry(d, legal[i].op))
            op_arguments(s, d, legal[i], true);
    for (int i = 0; i < TEST_COUNT(packing); i++)
        op_arguments(s, d, packing[i], false);
}
