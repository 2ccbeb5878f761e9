/* Errors of block-sparse attention beside those of a dense run at the same precision, both against
 * f64: at most twice as large forward, three times backward. */
#include "tests/unit/dense_attention.h"

enum { BATCH = 1, HEADS = 1, TIME = 192 };

typedef struct pattern {
    const char *name;
    bsk_status (*make)(const bsk_layout_params *p, bsk_layout **layout);
    int32_t causal;
    int64_t window;
} pattern;

static bsk_status make_full(const bsk_layout_params *p, bsk_layout **layout)
{
    return bsk_layout_random(NULL, p, 1, 1, layout);
}

static bsk_status make_causal(const bsk_layout_params *p, bsk_layout **layout)
{
    return bsk_layout_causal(NULL, p, 0, layout);
}

static bsk_status make_local(const bsk_layout_params *p, bsk_layout **layout)
{
    return bsk_layout_local(NULL, p, 70, 0, layout);
}

static bsk_status make_fixed(const bsk_layout_params *p, bsk_layout **layout)
{
    bsk_fixed_pattern f = BSK_INIT(bsk_fixed_pattern);
    f.local = 4;
    f.global = 1;
    return bsk_layout_fixed(NULL, p, &f, layout);
}

static bsk_status make_random(const bsk_layout_params *p, bsk_layout **layout)
{
    bsk_global_pattern g = BSK_INIT(bsk_global_pattern);
    g.window = 1;
    g.random = 2;
    g.seed = 5;
    return bsk_layout_bigbird(NULL, p, &g, layout);
}

static const pattern patterns[] = {
    {"full", make_full, 0, 0},   {"causal", make_causal, 1, 0},  {"local", make_local, 1, 70},
    {"fixed", make_fixed, 1, 0}, {"bigbird", make_random, 0, 0},
};

typedef struct about {
    const pattern *pattern;
    const bsk_layout *layout;
    int64_t block;
} about;

static bool sees(const void *user, int32_t head, int64_t i, int64_t j)
{
    const about *a = user;
    int64_t slot = -1;
    (void)head;
    bsk_layout_find(a->layout, 0, (int32_t)(i / a->block), (int32_t)(j / a->block), &slot);
    return slot >= 0 && !(a->pattern->causal && j > i) &&
           !(a->pattern->window && llabs(i - j) >= a->pattern->window);
}

/* Errors of a run, by output, beside those of the dense one. */
static void compare(const dense *exact, const dense *plain, const dense *sparse, const char *what)
{
    static const char *const names[] = {"o", "dq", "dk", "dv"};
    static const double limits[] = {2, 3, 3, 3};
    const double *const want[] = {exact->o, exact->dq, exact->dk, exact->dv};
    const double *const old[] = {plain->o, plain->dq, plain->dk, plain->dv};
    const double *const got[] = {sparse->o, sparse->dq, sparse->dk, sparse->dv};
    for (int t = 0; t < 4; t++) {
        const double dense_one = dense_error(old[t], want[t], dense_count(exact));
        const double error = dense_error(got[t], want[t], dense_count(exact));
        char detail[200];
        snprintf(detail, sizeof detail, "%s of %s: %g, and %g of a dense run", names[t], what,
                 error, dense_one);
        unit_check(dense_one > 0 && error <= limits[t] * dense_one, __FILE__, __LINE__, "error",
                   detail);
    }
}

static void check(const sparse_machine *m, const pattern *form, int32_t block, int64_t d,
                  bsk_dtype dtype)
{
    static const char *const entries[] = {NULL, "+ref*"};
    dense exact, plain, sparse, *const runs[] = {&exact, &plain, &sparse};
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    bsk_layout *l = NULL;
    p.rows = p.cols = TIME;
    p.block_rows = p.block_cols = block;
    if (!CHECK_OK(form->make(&p, &l)))
        return;
    const about a = {form, l, block};
    sparse_rules r = {.layout = l, .interleave = 1, .causal = form->causal, .window = form->window};
    for (size_t i = 0; i < UNIT_COUNT(runs); i++) {
        *runs[i] = dense_make(BATCH, HEADS, TIME, d, dtype, 11);
        runs[i]->visible = sees;
        runs[i]->about = &a;
    }
    dense_run(&exact, BSK_F64, true);
    dense_run(&plain, dtype, true);
    for (size_t e = 0; e < UNIT_COUNT(entries); e++) {
        char what[120];
        r.kernels = entries[e];
        sparse_fused(m, &r, &sparse, dtype, true);
        snprintf(what, sizeof what, "%s block %d d %d %s %s", form->name, block, (int)d,
                 bsk_dtype_name(dtype), entries[e] ? entries[e] : "");
        compare(&exact, &plain, &sparse, what);
    }
    for (size_t i = 0; i < UNIT_COUNT(runs); i++)
        dense_free(runs[i]);
    bsk_layout_release(&l);
}

int main(void)
{
    static const bsk_dtype types[] = {BSK_F32, BSK_F16, BSK_BF16};
    static const int32_t sizes[][2] = {{16, 32}, {32, 64}, {64, 40}};
    sparse_machine m = sparse_open();
    for (size_t p = 0; p < UNIT_COUNT(patterns); p++)
        for (size_t s = 0; s < UNIT_COUNT(sizes); s++)
            for (size_t t = 0; t < UNIT_COUNT(types); t++)
                check(&m, &patterns[p], sizes[s][0], sizes[s][1], types[t]);
    sparse_close(&m);
    return unit_report();
}
