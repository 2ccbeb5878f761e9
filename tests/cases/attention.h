/* What the expectations of the attention ops share. */
#ifndef BSK_TEST_ATTENTION_H
#define BSK_TEST_ATTENTION_H

#include <math.h>
#include <stdlib.h>

#include "tests/harness/test.h"

#define SOFTCAP 1.5

/* Of block_softmax_grad: what dx replaces in place; and a dy of f32 beside a y of f64. */
enum { GRAD_OVER_DY, GRAD_OVER_Y, GRAD_OF_F32 };

static inline bool has_rule(const test_case *c, uint32_t rule)
{
    return (c->spec.rules & rule) != 0;
}

/* One pair of a query and a key. */
typedef struct pair {
    int64_t slot, row, col; /* the element in the block */
    int64_t distance;       /* pos(i) - j */
} pair;

static inline int64_t clamped(const test_tensor *len, int64_t b, int64_t time)
{
    if (!len->desc.dtype)
        return time;
    return (int64_t)fmin(fmax(len->value[b], 0), (double)time);
}

/* A number and a bound of its error before the store. */
typedef struct number {
    double v, error;
} number;

/* Element e of head h and time i of [batch, heads, time, d]. */
static inline const double *vector_at(const test_tensor *t, int64_t b, int64_t h, int64_t time)
{
    const int64_t *d = t->desc.dims;
    return t->value + ((b * d[1] + h) * d[2] + time) * d[3];
}

static inline number dot(const test_case *c, const double *x, const double *y, int64_t d)
{
    number r = {0, 0};
    double mag = 0;
    for (int64_t k = 0; k < d; k++) {
        r.v += x[k] * y[k];
        mag += fabs(x[k] * y[k]);
    }
    r.error = test_arith_eps(c) * (double)(d + 2) * mag;
    return r;
}

/* From a product to a score, but for a bias. */
static inline number plain_score(const test_case *c, const test_tensor *slopes, double scale,
                                 int64_t h, int64_t distance, number x)
{
    const double u = test_arith_eps(c);
    number s = {scale * x.v, fabs(scale) * x.error};
    s.error += 8 * u * fabs(s.v);
    if (has_rule(c, RULE_SOFTCAP)) {
        s.v = SOFTCAP * tanh(s.v / SOFTCAP);
        s.error += 8 * u * SOFTCAP;
    }
    if (slopes->desc.dtype) {
        const double slope = slopes->value[h] * (double)llabs(distance);
        s.v -= slope;
        s.error += 4 * u * (fabs(s.v) + slope);
    }
    return s;
}

/* The softmax of one row: scores by key, NaN where not visible, and what follows from them. */
typedef struct softmax_row {
    double *score;
    pair *at;
    double lse, error; /* of lse; a probability's relative error is 2 * error */
    int64_t live;
} softmax_row;

static inline softmax_row row_make(int64_t keys)
{
    softmax_row r = {.score = malloc((size_t)(keys + 1) * sizeof(double)),
                     .at = malloc((size_t)(keys + 1) * sizeof(pair))};
    if (!r.score || !r.at)
        abort();
    return r;
}

static inline void row_free(softmax_row *r)
{
    free(r->score);
    free(r->at);
}

/* Sums a row whose scores are set; worst is the largest error of a score. */
static inline void row_close(const test_case *c, softmax_row *r, int64_t keys, double worst)
{
    double max = -INFINITY, sum = 0, spread = 0;
    r->live = 0;
    for (int64_t j = 0; j < keys; j++)
        if (!isnan(r->score[j])) {
            r->live++;
            max = fmax(max, r->score[j]);
        }
    for (int64_t j = 0; j < keys; j++) {
        const double share = isnan(r->score[j]) ? 0 : exp(r->score[j] - max);
        sum += share;
        if (share > 0) /* scores far below the largest do not matter */
            spread = fmax(spread, fabs(r->score[j]));
    }
    r->lse = r->live ? max + log(sum) : -INFINITY;
    r->error = worst + test_arith_eps(c) * ((double)r->live + 16 + 8 * spread);
}

static inline double row_share(const softmax_row *r, int64_t j)
{
    return isnan(r->score[j]) ? 0 : exp(r->score[j] - r->lse);
}

static inline void row_expect_lse(test_tensor *lse, int64_t at, const softmax_row *r)
{
    if (lse->desc.dtype)
        test_expect(lse, at, r->lse, r->live ? 2 * r->error : 0);
}

/* Entries may round probabilities and their gradients to a 16-bit type before a product; in f32 the
 * factors they are made of may be denormal. */
static inline double rounding(const test_case *c, double v)
{
    return c->spec.dtype == BSK_F64   ? 0
           : c->spec.dtype == BSK_F32 ? 0x1p-148
                                      : test_store_error(c->spec.dtype, v);
}

#endif
