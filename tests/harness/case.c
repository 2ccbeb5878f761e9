/* From a spec to a case: layout, tensors, contents, expectations. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "tests/harness/test.h"

static const struct {
    const test_op *ops;
    const int32_t *count;
} families[] = {
    {test_products, &test_products_count},
    {test_weights, &test_weights_count},
    {test_ops, &test_ops_count},
    {test_optim, &test_optim_count},
    {test_elementwise, &test_elementwise_count},
    {test_select, &test_select_count},
    {test_norms, &test_norms_count},
    {test_training, &test_training_count},
    {test_attention, &test_attention_count},
    {test_decode, &test_decode_count},
    {test_grouped, &test_grouped_count},
    {test_conv, &test_conv_count},
};

const test_op *test_op_at(int32_t index)
{
    for (int32_t f = 0; f < TEST_COUNT(families); f++) {
        if (index < *families[f].count)
            return &families[f].ops[index];
        index -= *families[f].count;
    }
    return NULL;
}

const test_op *test_op_find(const char *name)
{
    const test_op *op;
    for (int32_t i = 0; (op = test_op_at(i)); i++)
        if (strcmp(op->name, name) == 0)
            return op;
    return NULL;
}

uint64_t test_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double test_uniform(uint64_t *state, double low, double high)
{
    return low + (high - low) * ((double)(test_random(state) >> 11) * 0x1p-53);
}

int32_t test_index(const test_case *c, const char *name)
{
    for (int32_t i = 0; i < c->about->arg_count; i++)
        if (strcmp(c->about->args[i].name, name) == 0)
            return i;
    fprintf(stderr, "bsk: %s has no argument %s\n", c->op->name, name);
    abort();
}

test_tensor *test_arg_at(test_case *c, const char *name)
{
    return &c->t[test_index(c, name)];
}

test_tensor *test_set(test_case *c, const char *name, bsk_tensor desc)
{
    test_tensor *t = test_arg_at(c, name);
    t->desc = desc;
    return t;
}

test_tensor *test_set_blocks(test_case *c, const char *name, bsk_dtype dtype)
{
    test_tensor *t = test_arg_at(c, name);
    t->desc = bsk_tensor_3d(dtype, c->info.nnz, c->spec.br, c->spec.bc);
    t->blocks = true;
    return t;
}

bsk_tensor test_act(const test_case *c, bsk_dtype dtype, int64_t features)
{
    return c->spec.axis == BSK_NC ? bsk_tensor_2d(dtype, c->spec.n, features)
                                  : bsk_tensor_2d(dtype, features, c->spec.n);
}

bsk_tensor test_shape(const test_case *c, bsk_dtype dtype)
{
    const test_spec *s = &c->spec;
    const int64_t dims[BSK_MAX_RANK] = {s->heads, s->groups, s->n, s->k, s->m};
    bsk_tensor t = {dtype, 0, {0}, {0}};
    for (int i = 0; i < BSK_MAX_RANK; i++)
        if (dims[i] || i == 2)
            t.dims[t.rank++] = dims[i];
    return t;
}

bsk_dtype test_scalar_type(const test_case *c)
{
    return c->spec.dtype == BSK_F64 ? BSK_F64 : BSK_F32;
}

bsk_dtype test_out_type(const test_case *c)
{
    return c->spec.out ? c->spec.out : c->spec.dtype;
}

int64_t test_row_element(const test_case *c, int64_t n, int64_t f)
{
    return c->spec.axis == BSK_NC ? n * c->spec.m + f : f * c->spec.n + n;
}

double test_alpha(const test_case *c)
{
    return c->spec.alpha != 0 ? c->spec.alpha : 1;
}

double test_old(const test_case *c, const test_tensor *t, int64_t e)
{
    return c->spec.beta != 0 ? c->spec.beta * t->value[e] : 0;
}

/* Expects alpha * v + old, exactly where v is exact and integers are. */
static void expect_blended(const test_case *c, test_tensor *t, int64_t e, double alpha, double v,
                           double old, double error)
{
    error *= fabs(alpha);
    if (error != 0 || c->spec.fill != FILL_INT)
        error += 4 * test_arith_eps(c) * (fabs(alpha * v) + fabs(old));
    test_expect(t, e, alpha * v + old, error);
}

void test_expect_blend(const test_case *c, test_tensor *t, int64_t e, double v, double error)
{
    if (test_alpha(c) != 1 || c->spec.beta != 0)
        expect_blended(c, t, e, test_alpha(c), v, test_old(c, t, e), error);
    else
        test_expect(t, e, v, error);
}

/* Those of dx: unlike alpha and beta, and no more read than beta has it. */
static const double dx_alpha = 0.75;

static double dx_beta(const test_case *c)
{
    return c->spec.beta != 0 ? -0.5 : 0;
}

void test_blend(const test_case *c, int32_t *blend, double *alpha, double *beta)
{
    *blend = (c->spec.options & OPT_BLEND) != 0;
    *alpha = dx_alpha; /* of no effect without it */
    *beta = dx_beta(c);
}

void test_expect_dx(const test_case *c, test_tensor *dx, int64_t e, double v, double error)
{
    if (c->spec.options & OPT_BLEND)
        expect_blended(c, dx, e, dx_alpha, v, dx_beta(c) != 0 ? dx_beta(c) * dx->value[e] : 0,
                       error);
    else
        test_expect(dx, e, v, error);
}

int32_t test_valid_rows(const test_case *c, int64_t slot)
{
    int64_t left = c->info.rows - (int64_t)c->row[slot] * c->info.block_rows;
    return left < c->info.block_rows ? (int32_t)left : c->info.block_rows;
}

int32_t test_valid_cols(const test_case *c, int64_t slot)
{
    int64_t left = c->info.cols - (int64_t)c->col[slot] * c->info.block_cols;
    return left < c->info.block_cols ? (int32_t)left : c->info.block_cols;
}

double test_arith_eps(const test_case *c)
{
    return c->spec.dtype == BSK_F64 ? 0x1p-53 : 0x1p-24;
}

double test_arith_tiny(const test_case *c)
{
    return c->spec.dtype == BSK_F64 ? 0x1p-1022 : 0x1p-126;
}

double test_store_error(bsk_dtype t, double v)
{
    /* half the spacing of denormals */
    double floor = t == BSK_F16 ? 0x1p-25 : t == BSK_BF16 ? 0x1p-134 : t == BSK_F32 ? 0x1p-150 : 0;
    double error = bski_epsilon(t) * fabs(v);
    return error > floor ? error : floor;
}

void test_expect(test_tensor *t, int64_t at, double want, double error)
{
    t->want[at] = want;
    t->bound[at] = error == 0 ? 0 : 2 * error + test_store_error(t->desc.dtype, fabs(want) + error);
}

/* --- Layout ------------------------------------------------------------------------------- */

/* Lengths of the rows from the longest on, which has 20 times the mean, or all columns: a power law
 * whose exponent gives the wanted sum. */
static int64_t skewed_length(int64_t rank, double longest, double exponent)
{
    return (int64_t)(longest * pow((double)rank + 1, -exponent) + 0.5);
}

static void mask_skewed(uint8_t *mask, int64_t rows, int64_t cols, double density, uint64_t *rng)
{
    const double mean = density * (double)cols, most = 20 * mean;
    const double longest = most < (double)cols ? most : (double)cols;
    double low = 0, high = 8;
    for (int step = 0; step < 40; step++) {
        const double middle = (low + high) / 2;
        int64_t sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += skewed_length(r, longest, middle);
        if ((double)sum > mean * (double)rows)
            low = middle;
        else
            high = middle;
    }
    /* an odd multiplier puts the ranks in another order where rows is a power of two */
    for (int64_t r = 0; r < rows; r++) {
        int64_t left = skewed_length((r * 37 + 11) % rows, longest, low);
        for (int64_t q = 0; q < cols; q++)
            if (test_uniform(rng, 0, (double)(cols - q)) < (double)left) {
                mask[r * cols + q] = 1;
                left--;
            }
    }
}

static void mask_banded(uint8_t *mask, int64_t rows, int64_t cols, double density)
{
    const int64_t wide = (int64_t)(density * (double)cols + 0.5), width = wide < 1 ? 1 : wide;
    for (int64_t r = 0; r < rows; r++) {
        int64_t first = (2 * r + 1) * cols / (2 * rows) - width / 2;
        first = first < 0 ? 0 : first + width > cols ? cols - width : first;
        memset(mask + r * cols + first, 1, (size_t)width);
    }
}

static bsk_status layout_masked(const test_spec *s, const bsk_layout_params *p, bsk_layout **layout)
{
    int64_t rows = bski_ceil_div(s->k, s->br), cols = bski_ceil_div(s->m, s->bc);
    int32_t heads = p->heads ? p->heads : 1;
    uint8_t *mask = calloc((size_t)(heads * rows * cols), 1);
    if (!mask)
        return BSK_E_NOMEM;
    uint64_t rng = s->seed;
    for (int64_t i = 0; i < heads * rows * cols; i++) {
        int64_t r = i / cols % rows, q = i % cols;
        double share = (double)(i / (rows * cols)) / heads;
        mask[i] = s->pattern == PATTERN_FULL ||
                  (s->pattern == PATTERN_ONE && r == rows - 1 && q == cols - 1) ||
                  (s->pattern == PATTERN_DIAGONAL && r % cols == q % rows) ||
                  (s->pattern == PATTERN_UNEVEN && test_uniform(&rng, 0, 1) < share);
    }
    if (s->pattern == PATTERN_SKEWED)
        mask_skewed(mask, heads * rows, cols, s->pattern_value, &rng);
    if (s->pattern == PATTERN_BANDED)
        mask_banded(mask, heads * rows, cols, s->pattern_value);
    bsk_status status = bsk_layout_from_mask(NULL, p, mask, layout);
    free(mask);
    return status;
}

/* The order given by the caller: blocks in a seeded random order within each head. */
static bsk_status layout_shuffled(const test_spec *s, const bsk_layout_params *p,
                                  bsk_layout **layout)
{
    bsk_layout_params q = *p;
    q.order = BSK_ORDER_ROW;
    bsk_layout *base = NULL;
    bsk_status status = bsk_layout_random(NULL, &q, s->pattern_value, s->seed, &base);
    if (status)
        return status;
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    bsk_layout_query(base, &info);
    size_t n = (size_t)info.nnz;
    int32_t *coo = malloc((3 * n + 1) * sizeof *coo);
    if (!coo) {
        bsk_layout_release(&base);
        return BSK_E_NOMEM;
    }
    int32_t *head = coo, *row = coo + n, *col = row + n;
    bsk_layout_to_coo(base, head, row, col);
    uint64_t rng = s->seed;
    for (size_t i = n; i > 1; i--) {
        size_t j = (size_t)(test_random(&rng) % i);
        if (head[i - 1] != head[j])
            continue;
        int32_t r = row[i - 1], k = col[i - 1];
        row[i - 1] = row[j];
        col[i - 1] = col[j];
        row[j] = r;
        col[j] = k;
    }
    status = bsk_layout_from_coo(NULL, p, info.nnz, head, row, col, layout);
    free(coo);
    bsk_layout_release(&base);
    return status;
}

static bsk_status layout_text(const test_spec *s, const bsk_layout_params *p,
                              test_layout_text *text, bsk_layout **layout)
{
    char why[160];
    if (test_layout_read(s->layout, p, text, why, sizeof why))
        return test_layout_make(text, layout);
    fprintf(stderr, "bsk: %s: %s\n", s->layout, why);
    return BSK_E_INVALID;
}

static bsk_status layout_make(const test_spec *s, test_layout_text *text, bsk_layout **layout)
{
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    p.rows = s->k;
    p.cols = s->m;
    p.block_rows = s->br;
    p.block_cols = s->bc;
    p.heads = s->heads;
    p.order = s->order;
    switch (s->pattern) {
    case PATTERN_RANDOM:
        return s->order == BSK_ORDER_GIVEN
                   ? layout_shuffled(s, &p, layout)
                   : bsk_layout_random(NULL, &p, s->pattern_value, s->seed, layout);
    case PATTERN_BARABASI:
        return bsk_layout_barabasi_albert(NULL, &p, (int32_t)s->pattern_value, s->seed, layout);
    case PATTERN_WATTS:
        return bsk_layout_watts_strogatz(NULL, &p, (int32_t)s->pattern_value, 0.2, s->seed, layout);
    case PATTERN_TEXT:
        return layout_text(s, &p, text, layout);
    default:
        return layout_masked(s, &p, layout);
    }
}

static bool case_layout(test_case *c)
{
    if (!c->spec.br || !c->about->layout)
        return true;
    if (layout_make(&c->spec, &c->text, &c->layout))
        return false;
    c->info.struct_size = sizeof c->info;
    bsk_layout_query(c->layout, &c->info);
    size_t n = (size_t)c->info.nnz + 1;
    c->head = malloc(n * sizeof *c->head);
    c->row = malloc(n * sizeof *c->row);
    c->col = malloc(n * sizeof *c->col);
    return c->head && c->row && c->col &&
           bsk_layout_to_coo(c->layout, c->head, c->row, c->col) == BSK_OK;
}

/* --- Strides ------------------------------------------------------------------------------ */

/* Strides by the case's options, as far as the op allows: "ld" pads the slower of the last two axes
 * (or the group axis of blocks), "trans" swaps the order of the last two, "repeat" and "splat" make
 * an input repeat its elements. */
static void tensor_strides(const test_case *c, test_tensor *t)
{
    bsk_tensor *d = &t->desc;
    const uint8_t rule = t->info->strides;
    for (int i = 0; i < d->rank; i++)
        if (d->strides[i])
            return;
    bool free_axis = rule == BSKI_ANY_STRIDE || rule == BSKI_UNIT_AXIS;
    bool trans = free_axis && d->rank >= 2 && (c->spec.options & OPT_TRANS);
    const uint32_t padded = c->spec.options & (OPT_LD | OPT_LD8);
    bool ld = (free_axis || rule == BSKI_UNIT_LAST) && padded;
    int64_t stride = ld && d->rank == 1 && rule == BSKI_ANY_STRIDE ? 2 : 1;
    for (int i = d->rank - 1; i >= 0; i--) {
        int axis = trans && i >= d->rank - 2 ? 2 * d->rank - 3 - i : i;
        d->strides[axis] = stride;
        stride *= d->dims[axis] > 0 ? d->dims[axis] : 1;
        if ((ld && i == d->rank - 1) ||
            (rule == BSKI_DENSE_BLOCKS && i == 1 && d->rank == 4 && padded))
            stride += padded & OPT_LD8 ? 8 : 3;
    }
    if (t->info->role != BSKI_IN || d->rank < 2)
        return;
    if ((c->spec.options & OPT_REPEAT) && (free_axis || rule == BSKI_UNIT_LAST))
        d->strides[0] = 0;
    if ((c->spec.options & OPT_SPLAT) && rule == BSKI_ANY_STRIDE)
        d->strides[d->rank - 1] = 0;
}

/* Element offsets of all indices, -1 for the padding of edge blocks. */
static void tensor_offsets(const test_case *c, test_tensor *t)
{
    const bsk_tensor *d = &t->desc;
    int64_t index[BSK_MAX_RANK] = {0};
    for (int64_t e = 0; e < t->elems; e++) {
        int64_t at = 0;
        for (int i = 0; i < d->rank; i++)
            at += index[i] * d->strides[i];
        if (t->blocks) {
            const int64_t *b = index + d->rank - 3;
            if (b[1] >= test_valid_rows(c, b[0]) || b[2] >= test_valid_cols(c, b[0]))
                at = -1;
        }
        t->at[e] = at;
        for (int i = d->rank - 1; i >= 0 && ++index[i] == d->dims[i]; i--)
            index[i] = 0;
    }
}

/* --- Contents ----------------------------------------------------------------------------- */

static bool is_first_input(const test_case *c, const test_tensor *t)
{
    const test_tensor *first = c->t;
    while (first < t && first->output)
        first++;
    return first == t;
}

static double content_float(test_case *c, const test_tensor *t, int64_t e)
{
    static const double gates[] = {0, 0.5, 1, 2}, scales[] = {-2, -1, -0.5, 0.5, 1, 2};
    uint64_t *r = &c->rng;
    switch (t->content) {
    case CONTENT_GATE:
        return e == 0 ? 1 : gates[test_random(r) % 4];
    case CONTENT_SCALE:
        return scales[test_random(r) % 6];
    case CONTENT_UNIT:
        return test_uniform(r, 0.05, 0.95);
    case CONTENT_POSITIVE:
        return c->spec.fill == FILL_INT ? (double)(test_random(r) % 5) : test_uniform(r, 0, 1);
    case CONTENT_VALUE:
        return t->constant;
    case CONTENT_ABOUT:
        return t->constant + test_uniform(r, -1, 1);
    case CONTENT_ADDITIVE:
        return e % t->desc.dims[t->desc.rank - 1] * 4 >= t->desc.dims[t->desc.rank - 1] * 3 ? 0
               : t->desc.dtype == BSK_F16                                                   ? -65504
                                          : -3.3895313892515355e38;
    default:
        break;
    }
    const bool rows = t->content == CONTENT_ROWS || t->content == CONTENT_MASKED;
    if (rows && t->desc.rank >= 1 && t->desc.dims[0] > 0 &&
        e / (t->elems / t->desc.dims[0]) % 3 == 0)
        return t->content == CONTENT_ROWS ? 0 : -INFINITY;
    if (c->spec.fill == FILL_INT)
        return (double)(int64_t)(test_random(r) % 5) - 2;
    if (c->spec.fill == FILL_HUGE)
        return 200 * (double)(1 + test_random(r) % 4);
    if (c->spec.fill == FILL_NEAR)
        return ldexp(is_first_input(c, t) == c->spec.seed % 2 ? 1 + 0x1p-10 - 0x1p-23 : 1,
                     (int)(test_random(r) % 3));
    if (t->desc.dtype == BSK_I8)
        return (double)(int64_t)(test_random(r) % 256) - 128;
    return test_uniform(r, -1, 1);
}

static void store_int(bsk_dtype t, void *p, int64_t i, int64_t v)
{
    switch (t) {
    case BSK_I64:
        ((int64_t *)p)[i] = v;
        break;
    case BSK_I32:
        ((int32_t *)p)[i] = (int32_t)v;
        break;
    case BSK_U16:
        ((uint16_t *)p)[i] = (uint16_t)v;
        break;
    default:
        ((uint8_t *)p)[i] = (uint8_t)v;
        break;
    }
}

/* About one index in eight lies outside [0, limit), where the type can say so. */
static int64_t content_index(test_case *c, const test_tensor *t)
{
    int64_t v = (int64_t)(test_random(&c->rng) % (uint64_t)(t->limit > 0 ? t->limit : 1));
    if (test_random(&c->rng) % 8)
        return v;
    bool is_signed = t->desc.dtype == BSK_I64 || t->desc.dtype == BSK_I32;
    int64_t most = t->desc.dtype == BSK_U8 ? 255 : 65535;
    if (is_signed)
        return v & 1 ? -1 : t->limit + v;
    return t->limit <= most ? most : v;
}

static void fill_distinct(test_case *c, test_tensor *t, void *base)
{
    int64_t *order = malloc((size_t)(t->limit + 1) * sizeof *order);
    if (!order)
        return;
    for (int64_t i = 0; i < t->limit; i++)
        order[i] = i;
    for (int64_t i = t->limit; i > 1; i--) {
        int64_t j = (int64_t)(test_random(&c->rng) % (uint64_t)i), v = order[i - 1];
        order[i - 1] = order[j];
        order[j] = v;
    }
    for (int64_t e = 0; e < t->elems; e++) {
        int64_t v = e < t->limit ? order[e] : -1;
        if (test_random(&c->rng) % 8 == 0)
            v = e & 1 ? -1 : t->limit + 3;
        store_int(t->desc.dtype, base, t->at[e], v);
    }
    free(order);
}

/* Offset number e of groups of rows. */
static int64_t group_offset(test_case *c, const test_tensor *t, int64_t e)
{
    const int64_t groups = t->elems - 1, rows = t->limit;
    const uint64_t any = test_random(&c->rng);
    switch (c->spec.kind) {
    case GROUPS_ONE:
        return e > groups / 2 ? rows : 0;
    case GROUPS_ASTRAY:
        return (int64_t)(any % (uint64_t)(2 * rows + 1)) - rows / 2;
    case GROUPS_EVEN:
        return groups ? rows * e / groups : 0;
    default: /* in steps, so that some are empty */
        break;
    }
    const int64_t first = c->spec.kind == GROUPS_SHORT ? rows / 8 : 0;
    const int64_t last = rows - first, steps = 2 * groups + 1;
    const int64_t step = e == 0 ? 0 : e == groups ? steps : 2 * e - 1 + (int64_t)(any % 3);
    return first + (last - first) * step / steps;
}

static void fill_offsets(test_case *c, test_tensor *t, void *base)
{
    for (int64_t e = 0; e < t->elems; e++)
        store_int(t->desc.dtype, base, t->at[e], group_offset(c, t, e));
}

static bool is_float(bsk_dtype t)
{
    return (BSK_DTYPE_BIT(t) & (BSKI_FLOATS | BSKI_SCALED)) != 0;
}

double test_number(bsk_dtype t, const void *p, int64_t i)
{
    return is_float(t) ? bski_load(t, p, i) : (double)bski_load_int(t, p, i);
}

void test_store(bsk_dtype t, void *p, int64_t i, double v)
{
    if (is_float(t))
        bski_store(t, p, i, v);
    else
        store_int(t, p, i, (int64_t)v);
}

/* Gaps and paddings hold NaN, so that whoever reads them shows it. */
static void fill_view(test_case *c, test_tensor *t, uint8_t *base)
{
    memset(base, 0xff, t->bytes);
    if (t->content == CONTENT_DISTINCT) {
        fill_distinct(c, t, base);
        return;
    }
    if (t->content == CONTENT_OFFSETS) {
        fill_offsets(c, t, base);
        return;
    }
    for (int64_t e = 0; e < t->elems; e++) {
        if (t->at[e] < 0)
            continue;
        if (is_float(t->desc.dtype))
            bski_store(t->desc.dtype, base, t->at[e], content_float(c, t, e));
        else if (t->content == CONTENT_VALUE)
            store_int(t->desc.dtype, base, t->at[e], (int64_t)t->constant);
        else if (t->content == CONTENT_FLAG)
            store_int(t->desc.dtype, base, t->at[e], (int64_t)(test_random(&c->rng) % 2));
        else
            store_int(t->desc.dtype, base, t->at[e], content_index(c, t));
    }
}

/* One NaN and one infinity in each plain floating-point input. */
static void fill_special(test_case *c, test_tensor *t)
{
    bool plain = t->content == CONTENT_DEFAULT || t->content == CONTENT_POSITIVE ||
                 t->content == CONTENT_MASKED;
    if (c->spec.fill != FILL_SPECIAL || !plain || !t->elems || !is_float(t->desc.dtype))
        return;
    for (int k = 0; k < 2; k++) {
        int64_t e = (int64_t)(test_random(&c->rng) % (uint64_t)t->elems);
        if (t->at[e] >= 0)
            bski_store(t->desc.dtype, t->init, t->at[e], k && !c->spec.act ? INFINITY : NAN);
    }
}

/* Bits of a float with so many of fraction. One in four is any; the others are of numbers that f8 has,
 * or of those half-way between two, or of their neighbours. */
static uint64_t bits_near(test_case *c, int fraction, int bias)
{
    const uint64_t any = test_random(&c->rng), last = ((uint64_t)1 << fraction) - 1;
    const uint64_t kind = any >> 56, sign = any >> 55 & 1;
    const int wide = fraction == 52 ? 11 : 8;
    if (kind % 4 == 0)
        return test_random(&c->rng) >> (63 - wide - fraction);
    const uint64_t exponent = (uint64_t)bias - 20 + any % 40;
    const uint64_t fine = kind % 3 == 0 ? 0 : kind % 3 == 1 ? 1 : last;
    const uint64_t coarse = any << (fraction - 4) & last;
    return ((sign << wide | exponent) << fraction) + coarse + fine;
}

static void fill_bits(test_case *c, test_tensor *t)
{
    if (c->spec.fill != FILL_BITS || t->output)
        return;
    for (int64_t e = 0; e < t->elems; e++) {
        const int64_t at = t->at[e];
        const uint64_t any = test_random(&c->rng);
        if (at < 0)
            continue;
        if (t->desc.dtype == BSK_F64)
            ((uint64_t *)(void *)t->init)[at] = bits_near(c, 52, 1023);
        else if (t->desc.dtype == BSK_F32)
            ((uint32_t *)(void *)t->init)[at] = (uint32_t)bits_near(c, 23, 127);
        else if (t->desc.dtype == BSK_I64) /* f64 holds it */
            store_int(BSK_I64, t->init, at, (int64_t)any >> (11 + any % 53));
        else if (bsk_dtype_size(t->desc.dtype) == 1)
            t->init[at] = (uint8_t)e;
        else
            store_int(t->desc.dtype == BSK_I32 ? BSK_I32 : BSK_U16, t->init, at,
                      (int64_t)(uint32_t)any);
    }
}

void test_values_refresh(test_tensor *t)
{
    for (int32_t v = 0; v < t->views; v++)
        for (int64_t e = 0; e < t->elems; e++) {
            const uint8_t *base = t->init + (size_t)v * t->bytes;
            double *out = t->value + v * t->elems + e;
            if (t->at[e] < 0)
                *out = NAN;
            else
                *out = test_number(t->desc.dtype, base, t->at[e]);
        }
}

/* From so many elements on, a tensor of a light case is bulk. The period is a prime, so that rows
 * differ. */
enum { BULK_ELEMENTS = 1 << 22, BULK_PERIOD = 1000003 };

static bool is_bulk(const test_tensor *t)
{
    return t->elems >= BULK_ELEMENTS && is_float(t->desc.dtype) &&
           (t->content == CONTENT_DEFAULT || t->content == CONTENT_POSITIVE);
}

/* All bytes of all views, gaps and paddings as well. */
static bool bulk_make(test_case *c, test_tensor *t)
{
    const size_t total = (size_t)t->views * t->bytes;
    const size_t period = BULK_PERIOD * bsk_dtype_size(t->desc.dtype);
    if (t->output && !test_reads_old(c, t))
        return true;
    t->init = malloc(total);
    if (!t->init)
        return false;
    for (int64_t e = 0; e < BULK_PERIOD; e++)
        bski_store(t->desc.dtype, t->init, e, content_float(c, t, 1));
    for (size_t done = period; done < total; done += period)
        memcpy(t->init + done, t->init, total - done < period ? total - done : period);
    return true;
}

static bool tensor_make(test_case *c, test_tensor *t, bool light)
{
    if (!t->desc.dtype)
        return true;
    tensor_strides(c, t);
    t->zero_ok |= (c->spec.options & (OPT_REPEAT | OPT_SPLAT)) != 0; /* one number may be all */
    t->elems = 1;
    for (int i = 0; i < t->desc.rank; i++)
        t->elems *= t->desc.dims[i];
    if (bsk_tensor_bytes(&t->desc, &t->bytes))
        return false;
    if (light && is_bulk(t))
        return bulk_make(c, t);
    size_t n = (size_t)t->elems + 1, views = (size_t)t->views;
    t->at = malloc(n * sizeof *t->at);
    t->init = malloc(views * t->bytes + 16);
    if (!t->at || !t->init)
        return false;
    tensor_offsets(c, t);
    for (size_t v = 0; v < views; v++)
        fill_view(c, t, t->init + v * t->bytes);
    fill_special(c, t);
    fill_bits(c, t);
    if (light)
        return true;
    t->value = malloc(views * n * sizeof *t->value);
    t->want = !t->output ? NULL : calloc(views * n, sizeof *t->want);
    t->bound = !t->output ? NULL : calloc(views * n, sizeof *t->bound);
    if (!t->value || (t->output && (!t->want || !t->bound)))
        return false;
    test_values_refresh(t);
    return true;
}

/* An output that shares memory with an input starts from that input's contents. */
static void case_alias(test_case *c)
{
    for (int32_t i = 0; i < c->about->arg_count; i++) {
        test_tensor *t = &c->t[i];
        if (t->alias < 0 || !t->desc.dtype)
            continue;
        const test_tensor *source = &c->t[t->alias];
        memcpy(t->init, source->init, t->bytes);
        if (t->value)
            test_values_refresh(t);
    }
}

static void params_write(test_case *c)
{
    size_t params = c->about->params_size, args = c->about->args_size;
    memcpy(c->params, &params, sizeof params);
    memcpy(c->args, &args, sizeof args);
    for (int32_t i = 0; i < c->about->arg_count; i++)
        memcpy(c->params + c->about->args[i].desc, &c->t[i].desc, sizeof(bsk_tensor));
    double alpha = c->spec.alpha != 0 ? c->spec.alpha : 1;
    for (int32_t i = 0; i < c->about->scalar_count; i++) {
        const bski_field *f = &c->about->scalars[i];
        if (strcmp(f->name, "alpha") == 0)
            memcpy(c->args + f->offset, &alpha, sizeof alpha);
        if (strcmp(f->name, "beta") == 0)
            memcpy(c->args + f->offset, &c->spec.beta, sizeof(double));
    }
    if (c->about->layout)
        memcpy(c->params + c->about->layout, &c->layout, sizeof c->layout);
    if (c->about->pairs)
        memcpy(c->params + c->about->pairs, &c->spec.pairs, sizeof c->spec.pairs);
}

test_case *test_case_make(const test_spec *spec, bool light)
{
    test_case *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->spec = *spec;
    c->rng = spec->seed * 77 + 5;
    test_spec_name(spec, c->name);
    c->op = test_op_find(spec->op);
    c->about = bski_op_find(spec->op);
    bool good = c->op && c->about && case_layout(c);
    for (int32_t i = 0; good && i < c->about->arg_count; i++) {
        c->t[i].info = &c->about->args[i];
        c->t[i].alias = -1;
        c->t[i].output = c->about->args[i].role != BSKI_IN;
        c->t[i].views = c->about->args[i].list && spec->pairs ? spec->pairs : 1;
    }
    if (good)
        c->op->build(c);
    for (int32_t i = 0; good && i < c->about->arg_count; i++)
        good = tensor_make(c, &c->t[i], light);
    if (!good) {
        fprintf(stderr, "bsk: cannot build case %s: %s\n", c->name, bsk_last_error());
        test_case_free(c);
        return NULL;
    }
    case_alias(c);
    params_write(c);
    c->expected = light || !c->op->oracle;
    return c;
}

void test_case_expect(test_case *c)
{
    if (!c->expected)
        c->op->oracle(c);
    c->expected = true;
}

void test_case_free(test_case *c)
{
    if (!c)
        return;
    for (int32_t i = 0; i < TEST_ARGS; i++) {
        free(c->t[i].init);
        free(c->t[i].value);
        free(c->t[i].at);
        free(c->t[i].want);
        free(c->t[i].bound);
    }
    free(c->head);
    free(c->row);
    free(c->col);
    bsk_layout_release(&c->layout);
    free(c);
}
