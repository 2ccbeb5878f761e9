/* Reference entries of elementwise.h. */
#include "ref.h"

#include <common/philox.h>

/* --- binary ------------------------------------------------------------------------------- */

static double binary_value(bsk_binary_kind kind, double x, double y)
{
    switch (kind) {
    case BSK_BINARY_ADD:
        return x + y;
    case BSK_BINARY_SUB:
        return x - y;
    case BSK_BINARY_MUL:
        return x * y;
    case BSK_BINARY_DIV:
        return x / y;
    case BSK_BINARY_MAX:
        return x > y ? x : x <= y ? y : NAN;
    default: /* BSK_BINARY_MIN */
        return x < y ? x : x >= y ? y : NAN;
    }
}

/* The derivative of max(x, y) by x; of min(x, y) = -max(-x, -y) with the signs changed. */
static double larger_share(double x, double y)
{
    return x > y ? 1 : x < y ? 0 : x == y ? 0.5 : NAN;
}

typedef struct slopes {
    double x, y;
} slopes;

static slopes binary_slopes(bsk_binary_kind kind, double x, double y)
{
    switch (kind) {
    case BSK_BINARY_ADD:
        return (slopes){1, 1};
    case BSK_BINARY_SUB:
        return (slopes){1, -1};
    case BSK_BINARY_MUL:
        return (slopes){y, x};
    case BSK_BINARY_DIV:
        return (slopes){1 / y, -x / (y * y)};
    case BSK_BINARY_MAX:
        return (slopes){larger_share(x, y), larger_share(y, x)};
    default: /* BSK_BINARY_MIN */
        return (slopes){larger_share(-x, -y), larger_share(-y, -x)};
    }
}

REF_OP(binary, binary)
{
    const ref_view x = view_repeated(&p->x, a->x), y = view_repeated(&p->y, a->y);
    const ref_view z = view_of(&p->z, a->z);
    int64_t i[BSK_MAX_RANK] = {0};
    for (int64_t left = shape_count(&p->z); left > 0; left--, shape_next(&p->z, i))
        view_set(&z, i, binary_value(p->kind, view_get(&x, i), view_get(&y, i)));
}

/* One gradient: for each of its elements the sum over the dimensions in which it repeats. */
static void binary_reduce(const bsk_binary_grad_params *p, const bsk_binary_grad_args *a,
                          const bsk_tensor *shape, const ref_view *out, bool of_x)
{
    const ref_view dz = view_of(&p->dz, a->dz);
    const ref_view x = view_repeated(&p->x, a->x), y = view_repeated(&p->y, a->y);
    bsk_tensor inner = p->dz;
    int64_t i[BSK_MAX_RANK] = {0};
    for (int32_t d = 0; d < shape->rank; d++)
        inner.dims[d] = shape->dims[d] == 1 ? p->dz.dims[d] : 1;

    for (int64_t left = shape_count(shape); left > 0; left--, shape_next(shape, i)) {
        double sum = 0;
        int64_t j[BSK_MAX_RANK] = {0};
        for (int64_t terms = shape_count(&inner); terms > 0; terms--, shape_next(&inner, j)) {
            int64_t at[BSK_MAX_RANK];
            for (int d = 0; d < BSK_MAX_RANK; d++)
                at[d] = i[d] + j[d];
            const double vx = view_given(&x) ? view_get(&x, at) : 0;
            const double vy = view_given(&y) ? view_get(&y, at) : 0;
            const slopes s = binary_slopes(p->kind, vx, vy);
            sum += view_get(&dz, at) * (of_x ? s.x : s.y);
        }
        view_set(out, i, a->alpha * sum + view_scaled(out, i, a->beta));
    }
}

REF_OP(binary_grad, binary_grad)
{
    const ref_view dx = view_of(&p->dx, a->dx), dy = view_of(&p->dy, a->dy);
    if (view_given(&dx))
        binary_reduce(p, a, &p->dx, &dx, true);
    if (view_given(&dy))
        binary_reduce(p, a, &p->dy, &dy, false);
}

/* --- unary -------------------------------------------------------------------------------- */

static double unary_value(bsk_unary_kind kind, double c, double x)
{
    switch (kind) {
    case BSK_UNARY_NEG:
        return -x;
    case BSK_UNARY_RCP:
        return 1 / x;
    case BSK_UNARY_SQR:
        return x * x;
    case BSK_UNARY_SQRT:
        return sqrt(x);
    case BSK_UNARY_EXP:
        return exp(x);
    case BSK_UNARY_LOG:
        return log(x);
    case BSK_UNARY_SIGMOID:
        return sigmoid(x);
    case BSK_UNARY_TANH:
        return tanh(x);
    case BSK_UNARY_RELU:
        return bski_ref_act(BSK_ACT_RELU, x);
    case BSK_UNARY_ELU:
        return x > 0 ? x : c * expm1(x);
    case BSK_UNARY_GELU:
        return bski_ref_act(BSK_ACT_GELU, x);
    case BSK_UNARY_GELU_ERF:
        return bski_ref_act(BSK_ACT_GELU_ERF, x);
    default: /* BSK_UNARY_SWISH */
        return x * sigmoid(c * x);
    }
}

static double swish_slope(double c, double x)
{
    const double s = sigmoid(c * x), bend = s * sigmoid(-c * x);
    return s + (bend > 0 ? c * x * bend : 0);
}

/* The derivative, from the input x. */
static double unary_slope(bsk_unary_kind kind, double c, double x)
{
    switch (kind) {
    case BSK_UNARY_NEG:
        return -1;
    case BSK_UNARY_RCP:
        return -1 / (x * x);
    case BSK_UNARY_SQR:
        return 2 * x;
    case BSK_UNARY_SQRT:
        return 0.5 / sqrt(x);
    case BSK_UNARY_EXP:
        return exp(x);
    case BSK_UNARY_LOG:
        return 1 / x;
    case BSK_UNARY_SIGMOID:
        return sigmoid(x) * sigmoid(-x);
    case BSK_UNARY_TANH:
        return 4 * sigmoid(2 * x) * sigmoid(-2 * x);
    case BSK_UNARY_RELU:
        return bski_ref_act_slope(BSK_ACT_RELU, x);
    case BSK_UNARY_ELU:
        return x > 0 ? 1 : c * exp(x);
    case BSK_UNARY_GELU:
        return bski_ref_act_slope(BSK_ACT_GELU, x);
    case BSK_UNARY_GELU_ERF:
        return bski_ref_act_slope(BSK_ACT_GELU_ERF, x);
    default: /* BSK_UNARY_SWISH */
        return swish_slope(c, x);
    }
}

/* The derivative, from the output y. */
static double unary_slope_of_output(bsk_unary_kind kind, double c, double y)
{
    switch (kind) {
    case BSK_UNARY_NEG:
        return -1;
    case BSK_UNARY_RCP:
        return -y * y;
    case BSK_UNARY_SQRT:
        return 0.5 / y;
    case BSK_UNARY_EXP:
        return y;
    case BSK_UNARY_SIGMOID:
        return y * (1 - y);
    case BSK_UNARY_TANH:
        return (1 - y) * (1 + y);
    case BSK_UNARY_RELU:
        return bski_ref_act_slope(BSK_ACT_RELU, y);
    default: /* BSK_UNARY_ELU */
        return y > 0 ? 1 : y + c;
    }
}

REF_OP(unary, unary)
{
    const ref_view x = view_of(&p->x, a->x), y = view_of(&p->y, a->y);
    int64_t i[BSK_MAX_RANK] = {0};
    for (int64_t left = shape_count(&p->x); left > 0; left--, shape_next(&p->x, i))
        view_set(&y, i, unary_value(p->kind, p->coefficient, view_get(&x, i)));
}

REF_OP(unary_grad, unary_grad)
{
    const ref_view dy = view_of(&p->dy, a->dy), dx = view_of(&p->dx, a->dx);
    const ref_view x = view_of(&p->x, a->x), y = view_of(&p->y, a->y);
    int64_t i[BSK_MAX_RANK] = {0};
    for (int64_t left = shape_count(&p->dy); left > 0; left--, shape_next(&p->dy, i)) {
        const double slope =
            view_given(&y)
                ? unary_slope_of_output(p->kind, p->coefficient, view_get(&y, i))
                : unary_slope(p->kind, p->coefficient, view_given(&x) ? view_get(&x, i) : 0);
        view_set(&dx, i, a->alpha * view_get(&dy, i) * slope + view_scaled(&dx, i, a->beta));
    }
}

/* --- add_n, cast -------------------------------------------------------------------------- */

REF_OP(add_n, add_n)
{
    const ref_view y = view_of(&p->y, a->y);
    int64_t i[BSK_MAX_RANK] = {0};
    for (int64_t left = shape_count(&p->y); left > 0; left--, shape_next(&p->y, i)) {
        double sum = 0;
        for (int32_t n = 0; n < p->pairs; n++) {
            const ref_view x = view_of(&p->x, a->x[n]);
            sum += view_get(&x, i);
        }
        view_set(&y, i, a->alpha * sum + view_scaled(&y, i, a->beta));
    }
}

/* The limits of an index type. */
static int64_t index_low(bsk_dtype t)
{
    return t == BSK_I64 ? INT64_MIN : t == BSK_I32 ? INT32_MIN : 0;
}

static int64_t index_high(bsk_dtype t)
{
    return t == BSK_I64   ? INT64_MAX
           : t == BSK_I32 ? INT32_MAX
           : t == BSK_U16 ? UINT16_MAX
                          : UINT8_MAX;
}

static int64_t whole_of(bsk_dtype t, double v)
{
    if (v != v)
        return 0;
    if (v <= (double)index_low(t))
        return index_low(t);
    return v >= (double)index_high(t) ? index_high(t) : (int64_t)v;
}

static bool is_number(bsk_dtype t)
{
    return is_float(t) || (BSKI_SCALED >> t & 1);
}

/* v, or where f64 does not hold it, the neighbour with an odd last bit: rounded again to fewer digits it
 * is what v is. */
static double odd_of(int64_t v)
{
    double d = (double)v;
    uint64_t bits;
    if (d < 0x1p63 && (int64_t)d == v)
        return d;
    if (d >= 0x1p63 || (v > 0 ? (int64_t)d > v : (int64_t)d < v))
        d = nextafter(d, 0);
    memcpy(&bits, &d, sizeof bits);
    bits |= 1;
    memcpy(&d, &bits, sizeof bits);
    return d;
}

REF_OP(cast, cast)
{
    const ref_view x = view_of(&p->x, a->x), y = view_of(&p->y, a->y);
    const int64_t size = (int64_t)bsk_dtype_size(y.dtype);
    int64_t i[BSK_MAX_RANK] = {0};
    for (int64_t left = shape_count(&p->y); left > 0; left--, shape_next(&p->y, i)) {
        const int64_t from = view_at(&x, i), to = view_at(&y, i);
        if (x.dtype == y.dtype) {
            memcpy((char *)y.data + to * size, (const char *)x.data + from * size, (size_t)size);
        } else if (is_number(x.dtype) && is_number(y.dtype)) {
            bski_store(y.dtype, y.data, to, bski_load(x.dtype, x.data, from));
        } else if (is_number(x.dtype)) {
            const double v = bski_load(x.dtype, x.data, from);
            store_index(y.dtype, y.data, to, whole_of(y.dtype, v));
        } else {
            const int64_t v = bski_load_int(x.dtype, x.data, from), low = index_low(y.dtype),
                          high = index_high(y.dtype);
            if (is_number(y.dtype))
                bski_store(y.dtype, y.data, to, y.dtype == BSK_F64 ? (double)v : odd_of(v));
            else
                store_index(y.dtype, y.data, to, v < low ? low : v > high ? high : v);
        }
    }
}

/* --- cwise_linear ------------------------------------------------------------------------- */

/* gain and bias of one channel. */
typedef struct channel {
    double gain, bias;
    bool bias_first;
} channel;

static channel channel_of(const ref_view *gain, const ref_view *bias, bool bias_first, int64_t c)
{
    return (channel){view_given(gain) ? view_get1(gain, c) : 1,
                     view_given(bias) ? view_get1(bias, c) : 0, bias_first};
}

static double channel_value(channel k, double x)
{
    return k.bias_first ? (x + k.bias) * k.gain : x * k.gain + k.bias;
}

REF_OP(cwise_linear, cwise_linear)
{
    const ref_view x = view_of(&p->x, a->x), y = view_of(&p->y, a->y);
    const ref_view gain = view_of(&p->gain, a->gain), bias = view_of(&p->bias, a->bias);
    int64_t i[BSK_MAX_RANK] = {0};
    for (int64_t left = shape_count(&p->x); left > 0; left--, shape_next(&p->x, i)) {
        const channel k = channel_of(&gain, &bias, p->bias_first, i[1]);
        const double v = channel_value(k, view_get(&x, i));
        view_set(&y, i, p->relu ? bski_ref_act(BSK_ACT_RELU, v) : v);
    }
}

REF_OP(cwise_linear_grad, cwise_linear_grad)
{
    const ref_view dy = view_of(&p->dy, a->dy), x = view_of(&p->x, a->x);
    const ref_view gain = view_of(&p->gain, a->gain), bias = view_of(&p->bias, a->bias);
    const ref_view dx = view_of(&p->dx, a->dx), dgain = view_of(&p->dgain, a->dgain);
    const ref_view dbias = view_of(&p->dbias, a->dbias);
    for (int64_t c = 0; c < p->dy.dims[1]; c++) {
        const channel k = channel_of(&gain, &bias, p->bias_first, c);
        double sum_gain = 0, sum_bias = 0;
        for (int64_t n = 0; p->dy.dims[2] > 0 && n < p->dy.dims[0]; n++)
            for (int64_t s = 0; s < p->dy.dims[2]; s++) {
                const double v = view_given(&x) ? view_get3(&x, n, c, s) : 0;
                double g = view_get3(&dy, n, c, s);
                if (p->relu)
                    g *= bski_ref_act_slope(BSK_ACT_RELU, channel_value(k, v));
                sum_gain += g * (k.bias_first ? v + k.bias : v);
                sum_bias += k.bias_first ? g * k.gain : g;
                if (view_given(&dx))
                    view_set3(&dx, n, c, s,
                              a->dx_alpha * g * k.gain + view_scaled3(&dx, n, c, s, a->dx_beta));
            }
        if (view_given(&dgain))
            view_set1(&dgain, c, a->alpha * sum_gain + view_scaled1(&dgain, c, a->beta));
        if (view_given(&dbias))
            view_set1(&dbias, c, a->alpha * sum_bias + view_scaled1(&dbias, c, a->beta));
    }
}

/* --- filter, sparse_relu, dropout --------------------------------------------------------- */

REF_OP(filter, filter)
{
    const ref_view x = view_of(&p->x, a->x), y = view_of(&p->y, a->y);
    const double scale = a->scale != 0 ? a->scale : 1;
    int64_t i[BSK_MAX_RANK] = {0};
    for (int64_t left = shape_count(&p->x); left > 0; left--, shape_next(&p->x, i)) {
        double v = view_get(&x, i);
        if ((p->zero_infs && isinf(v)) || (p->zero_nans && isnan(v)))
            v = 0;
        v *= scale;
        if (a->saturate > 0)
            v = at_most(at_least(v, -a->saturate), a->saturate);
        view_set(&y, i, v);
    }
}

typedef struct row_cut {
    double mean, std, cut;
} row_cut;

static row_cut row_cut_of(const ref_view *x, int64_t n, int64_t features, double sigmas)
{
    row_cut r = {0};
    for (int64_t f = 0; f < features; f++)
        r.mean += view_get2(x, n, f) / (double)features;
    for (int64_t f = 0; f < features; f++)
        r.std += pow(view_get2(x, n, f) - r.mean, 2) / (double)features;
    r.std = sqrt(r.std);
    r.cut = r.mean + sigmas * r.std;
    return r;
}

REF_OP(sparse_relu, sparse_relu)
{
    const ref_view x = view_rows(&p->x, a->x, p->axis), y = view_rows(&p->y, a->y, p->axis);
    const int64_t features = features_count(&p->x, p->axis);
    for (int64_t n = 0; n < rows_count(&p->x, p->axis); n++) {
        const row_cut r = row_cut_of(&x, n, features, a->sigmas);
        for (int64_t f = 0; f < features; f++)
            view_set2(&y, n, f, bski_ref_act(BSK_ACT_RELU, view_get2(&x, n, f) - r.cut));
    }
}

REF_OP(sparse_relu_grad, sparse_relu_grad)
{
    const ref_view dy = view_rows(&p->dy, a->dy, p->axis), x = view_rows(&p->x, a->x, p->axis);
    const ref_view dx = view_rows(&p->dx, a->dx, p->axis);
    const int64_t features = features_count(&p->x, p->axis);
    for (int64_t n = 0; n < rows_count(&p->x, p->axis); n++) {
        const row_cut r = row_cut_of(&x, n, features, a->sigmas);
        double sum = 0;
        for (int64_t f = 0; f < features && !p->constant_cut; f++)
            sum += view_get2(&dy, n, f) *
                   bski_ref_act_slope(BSK_ACT_RELU, view_get2(&x, n, f) - r.cut);
        for (int64_t f = 0; f < features; f++) {
            const double v = view_get2(&x, n, f);
            const double h = r.std > 0 ? (v - r.mean) / r.std : 0;
            const double g = view_get2(&dy, n, f) * bski_ref_act_slope(BSK_ACT_RELU, v - r.cut);
            view_set2(&dx, n, f,
                      a->alpha * (g - sum * (1 + a->sigmas * h) / (double)features) +
                          view_scaled2(&dx, n, f, a->beta));
        }
    }
}

REF_OP(dropout, dropout)
{
    const ref_view x = view_of(&p->x, a->x), y = view_of(&p->y, a->y);
    const uint32_t limit = bski_dropout_limit(a->keep);
    int64_t i[BSK_MAX_RANK] = {0};
    for (int64_t left = shape_count(&p->x); left > 0; left--, shape_next(&p->x, i)) {
        uint64_t element = 0; /* of the mask */
        for (int32_t d = 0; d < p->x.rank; d++)
            if (!(p->shared >> d & 1))
                element = element * (uint64_t)p->x.dims[d] + (uint64_t)i[d];
        const bool kept = bski_philox_u16(a->seed, a->offset, element) < limit;
        view_set(&y, i, kept ? view_get(&x, i) / a->keep : 0);
    }
}
