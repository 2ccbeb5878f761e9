/* Descriptors of the LSTM ops. */
#include <math.h>

#include "api/src/internal.h"
#include "common/checked.h"
#include "common/dtype.h"

#define FLOATS BSKI_FLOATS

/* --- lstm_gates --------------------------------------------------------------------------- */

/* Four times the features of c, from `name`. */
static bsk_status merged_size(const bski_op_info *op, const char *name, const bsk_tensor *c,
                              bsk_axis axis, int64_t *size)
{
    const int64_t features = c->dims[axis == BSK_NC ? 1 : 0];
    return bski_mul_i64(features, 4, size)
               ? BSK_OK
               : bski_fail(BSK_E_INVALID, "%s: %s has %lld features; legal are up to %lld",
                           op->name, name, (long long)features, (long long)(INT64_MAX / 4));
}

/* A tensor of four times the features of c. */
static bsk_status expect_merged(const bski_op_info *op, const char *name, const bsk_tensor *t,
                                const bsk_tensor *c, bsk_axis axis)
{
    int64_t dims[2] = {c->dims[0], c->dims[1]};
    if (t->dtype == BSK_NONE)
        return BSK_OK;
    BSKI_TRY(merged_size(op, name, c, axis, &dims[axis == BSK_NC ? 1 : 0]));
    return bski_expect_shape(op, name, t, 2, dims, "four times the features");
}

/* Either the merged tensor or all four. */
static bsk_status expect_gates(const bski_op_info *op, const char *const names[5],
                               const bsk_tensor *const tensors[5], const bsk_tensor *c,
                               bsk_axis axis)
{
    const bool merged = tensors[0]->dtype != BSK_NONE;
    for (int i = 1; i < 5; i++) {
        if ((tensors[i]->dtype != BSK_NONE) == merged)
            return bski_fail(BSK_E_INVALID, "%s: %s is %s, and so is %s; one form is needed",
                             op->name, names[i], merged ? "given" : "absent", names[0]);
        BSKI_TRY(bski_expect_like(op, names[i], tensors[i], c, "as c"));
    }
    return expect_merged(op, names[0], tensors[0], c, axis);
}

static bsk_status expect_gate_bias(const bski_op_info *op, const bsk_tensor *bias,
                                   const bsk_tensor *c, bsk_axis axis)
{
    int64_t size = 0;
    BSKI_TRY(merged_size(op, "bias", c, axis, &size));
    return bski_expect_vector(op, "bias", bias, size, "four times the features");
}

static const char *const gate_names[5] = {"gates", "i", "u", "f", "o"};
static const char *const dgate_names[5] = {"dgates", "di", "du", "df", "do_"};

static const bski_arg lstm_gates_args[] = {
    {BSKI_ACTIVATION(lstm_gates, c), .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates, c_next), .role = BSKI_OUT, .alias = 1 << 0, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates, h_next), .role = BSKI_OUT, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates, gates), .optional = 1, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates, i), .optional = 1, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates, u), .optional = 1, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates, f), .optional = 1, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates, o), .optional = 1, .dtypes = FLOATS},
    {BSKI_VECTOR(lstm_gates, bias), .optional = 1, .dtypes = BSKI_SIDE},
};

static const bski_field lstm_gates_attrs[] = {
    BSKI_ATTR(lstm_gates, axis, I32, 0, 1),
};

static const bski_field lstm_gates_scalars[] = {
    BSKI_SCALAR(lstm_gates, forget_bias, F64, -INFINITY, INFINITY),
};

static bsk_status lstm_gates_check(const bski_op_info *op, const void *params,
                                   const bsk_layout_tables *l)
{
    (void)l;
    const bsk_lstm_gates_params *p = params;
    const bsk_tensor *const gates[5] = {&p->gates, &p->i, &p->u, &p->f, &p->o};
    BSKI_TRY(bski_expect_like(op, "c_next", &p->c_next, &p->c, "as c"));
    BSKI_TRY(bski_expect_like(op, "h_next", &p->h_next, &p->c, "as c"));
    BSKI_TRY(expect_gates(op, gate_names, gates, &p->c, p->axis));
    return expect_gate_bias(op, &p->bias, &p->c, p->axis);
}

const bski_op_info bski_op_lstm_gates = {
    .name = "lstm_gates",
    .kernel_op = BSK_OP_LSTM_GATES,
    BSKI_STRUCTS(lstm_gates),
    BSKI_TABLE(arg, lstm_gates_args),
    BSKI_TABLE(attr, lstm_gates_attrs),
    BSKI_TABLE(scalar, lstm_gates_scalars),
    .check = lstm_gates_check,
};
BSKI_DEFINE_OP(lstm_gates, lstm_gates)

static const bski_arg lstm_gates_grad_args[] = {
    {BSKI_ACTIVATION(lstm_gates_grad, dh), .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates_grad, c), .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates_grad, dc_next), .optional = 1, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates_grad, dc), .role = BSKI_OUT, .optional = 1, .alias = 1 << 2,
     .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates_grad, gates), .optional = 1, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates_grad, i), .optional = 1, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates_grad, u), .optional = 1, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates_grad, f), .optional = 1, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates_grad, o), .optional = 1, .dtypes = FLOATS},
    {BSKI_VECTOR(lstm_gates_grad, bias), .optional = 1, .dtypes = BSKI_SIDE},
    {BSKI_ACTIVATION(lstm_gates_grad, dgates), .role = BSKI_OUT, .optional = 1, .alias = 1 << 4,
     .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates_grad, di), .role = BSKI_OUT, .optional = 1, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates_grad, du), .role = BSKI_OUT, .optional = 1, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates_grad, df), .role = BSKI_OUT, .optional = 1, .dtypes = FLOATS},
    {BSKI_ACTIVATION(lstm_gates_grad, do_), .role = BSKI_OUT, .optional = 1, .dtypes = FLOATS},
};

static const bski_field lstm_gates_grad_attrs[] = {
    BSKI_ATTR(lstm_gates_grad, axis, I32, 0, 1),
};

static const bski_field lstm_gates_grad_scalars[] = {
    BSKI_ALPHA_BETA(lstm_gates_grad),
    BSKI_SCALAR(lstm_gates_grad, forget_bias, F64, -INFINITY, INFINITY),
};

static bsk_status lstm_gates_grad_check(const bski_op_info *op, const void *params,
                                        const bsk_layout_tables *l)
{
    (void)l;
    const bsk_lstm_gates_grad_params *p = params;
    const bsk_tensor *const gates[5] = {&p->gates, &p->i, &p->u, &p->f, &p->o};
    const bsk_tensor *const dgates[5] = {&p->dgates, &p->di, &p->du, &p->df, &p->do_};
    if ((p->gates.dtype == BSK_NONE) != (p->dgates.dtype == BSK_NONE))
        return bski_fail(BSK_E_INVALID, "%s: dgates is %s, but gates is %s", op->name,
                         p->dgates.dtype == BSK_NONE ? "absent" : "given",
                         p->gates.dtype == BSK_NONE ? "absent" : "given");
    BSKI_TRY(bski_expect_like(op, "c", &p->c, &p->dh, "as dh"));
    BSKI_TRY(bski_expect_like(op, "dc_next", &p->dc_next, &p->dh, "as dh"));
    BSKI_TRY(bski_expect_like(op, "dc", &p->dc, &p->dh, "as dh"));
    BSKI_TRY(expect_gates(op, gate_names, gates, &p->dh, p->axis));
    BSKI_TRY(expect_gates(op, dgate_names, dgates, &p->dh, p->axis));
    return expect_gate_bias(op, &p->bias, &p->dh, p->axis);
}

const bski_op_info bski_op_lstm_gates_grad = {
    .name = "lstm_gates_grad",
    .kernel_op = BSK_OP_LSTM_GATES_GRAD,
    BSKI_STRUCTS(lstm_gates_grad),
    BSKI_TABLE(arg, lstm_gates_grad_args),
    BSKI_TABLE(attr, lstm_gates_grad_attrs),
    BSKI_TABLE(scalar, lstm_gates_grad_scalars),
    .check = lstm_gates_grad_check,
};
BSKI_DEFINE_OP(lstm_gates_grad, lstm_gates_grad)

/* --- split4 ------------------------------------------------------------------------------- */

static bsk_status expect_quarters(const bski_op_info *op, const char *whole_name,
                                  const bsk_tensor *whole, const char *const names[4],
                                  const bsk_tensor *const quarters[4], bsk_axis axis)
{
    for (int i = 1; i < 4; i++)
        BSKI_TRY(bski_expect_like(op, names[i], quarters[i], quarters[0], "as the first quarter"));
    return expect_merged(op, whole_name, whole, quarters[0], axis);
}

static const bski_arg split4_args[] = {
    {BSKI_ACTIVATION(split4, x), .dtypes = FLOATS},
    {BSKI_ACTIVATION(split4, y0), .role = BSKI_OUT, .dtypes = FLOATS},
    {BSKI_ACTIVATION(split4, y1), .role = BSKI_OUT, .dtypes = FLOATS},
    {BSKI_ACTIVATION(split4, y2), .role = BSKI_OUT, .dtypes = FLOATS},
    {BSKI_ACTIVATION(split4, y3), .role = BSKI_OUT, .dtypes = FLOATS},
};

static const bski_field split4_attrs[] = {
    BSKI_ATTR(split4, axis, I32, 0, 1),
};

static bsk_status split4_check(const bski_op_info *op, const void *params,
                               const bsk_layout_tables *l)
{
    (void)l;
    const bsk_split4_params *p = params;
    static const char *const names[4] = {"y0", "y1", "y2", "y3"};
    const bsk_tensor *const quarters[4] = {&p->y0, &p->y1, &p->y2, &p->y3};
    return expect_quarters(op, "x", &p->x, names, quarters, p->axis);
}

const bski_op_info bski_op_split4 = {
    .name = "split4",
    .kernel_op = BSK_OP_SPLIT4,
    BSKI_STRUCTS(split4),
    BSKI_TABLE(arg, split4_args),
    BSKI_TABLE(attr, split4_attrs),
    .check = split4_check,
};
BSKI_DEFINE_OP(split4, split4)

/* --- concat4 ------------------------------------------------------------------------------ */

static const bski_arg concat4_args[] = {
    {BSKI_ACTIVATION(concat4, x0), .dtypes = FLOATS},
    {BSKI_ACTIVATION(concat4, x1), .dtypes = FLOATS},
    {BSKI_ACTIVATION(concat4, x2), .dtypes = FLOATS},
    {BSKI_ACTIVATION(concat4, x3), .dtypes = FLOATS},
    {BSKI_ACTIVATION(concat4, y), .role = BSKI_OUT, .dtypes = FLOATS},
};

static const bski_field concat4_attrs[] = {
    BSKI_ATTR(concat4, axis, I32, 0, 1),
};

static bsk_status concat4_check(const bski_op_info *op, const void *params,
                                const bsk_layout_tables *l)
{
    (void)l;
    const bsk_concat4_params *p = params;
    static const char *const names[4] = {"x0", "x1", "x2", "x3"};
    const bsk_tensor *const quarters[4] = {&p->x0, &p->x1, &p->x2, &p->x3};
    return expect_quarters(op, "y", &p->y, names, quarters, p->axis);
}

const bski_op_info bski_op_concat4 = {
    .name = "concat4",
    .kernel_op = BSK_OP_CONCAT4,
    BSKI_STRUCTS(concat4),
    BSKI_TABLE(arg, concat4_args),
    BSKI_TABLE(attr, concat4_attrs),
    .check = concat4_check,
};
BSKI_DEFINE_OP(concat4, concat4)
