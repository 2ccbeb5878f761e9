/* The four modes of openai/sparse_attention, by its own parameters, against dense attention under
 * the mode's mask: fused and unfused ops, forward and backward, predicates and bit masks. */
#include "tests/unit/dense_attention.h"

enum { BATCH = 2, HEADS = 4, SIZE = 8 };
#define TOLERANCE 3e-6 /* of f32 sums of up to 128 terms below 1 */

typedef enum mode { ALL, LOCAL, STRIDED, FIXED } mode;

/* The parameters of the original: bT, blocksize, local_attn_ctx, num_verts, vertsize. */
typedef struct setting {
    mode mode;
    int64_t n, block, local;
    int32_t num_verts, vertsize;
} setting;

/* --- Masks, by position --- */

static bool sees(const void *about, int32_t head, int64_t i, int64_t j)
{
    const setting *s = about;
    if (j > i)
        return false;
    switch (s->mode) {
    case ALL:
        return true;
    case LOCAL:
        return i - j < s->local;
    case STRIDED:
        return (i - j) % s->local == 0;
    case FIXED:
        break;
    }
    const int64_t stripe = s->local / s->block, row = i / s->block, col = j / s->block;
    const int64_t end = stripe - head % s->num_verts * s->vertsize; /* of the head's verticals */
    return row / stripe == col / stripe ||
           (col % stripe < end && col % stripe >= end - s->vertsize);
}

/* The same by lines of the layout. */
static int sees_line(void *user, int32_t head, int64_t row, int64_t col)
{
    const setting *s = user;
    if (s->mode != STRIDED)
        return sees(s, head, row, col);
    const int64_t run = s->n / s->local;
    return sees(s, head, row % run * s->local + row / run, col % run * s->local + col / run);
}

/* --- The library's form of a mode --- */

static bsk_layout *layout_of(const setting *s)
{
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    bsk_fixed_pattern f = BSK_INIT(bsk_fixed_pattern);
    bsk_layout *l = NULL;
    p.rows = p.cols = s->n;
    p.block_rows = p.block_cols = (int32_t)s->block;
    f.local = (int32_t)(s->local / s->block);
    f.global = s->vertsize;
    f.patterns = s->num_verts;
    if (s->mode == FIXED)
        p.heads = s->num_verts > 1 ? HEADS : 1;
    switch (s->mode) {
    case ALL:
        CHECK_OK(bsk_layout_causal(NULL, &p, 0, &l));
        break;
    case LOCAL:
        CHECK_OK(bsk_layout_local(NULL, &p, s->local, 0, &l));
        break;
    case STRIDED:
        CHECK_OK(bsk_layout_strided(NULL, &p, s->local, &l));
        break;
    case FIXED:
        CHECK_OK(bsk_layout_fixed(NULL, &p, &f, &l));
        break;
    }
    return l;
}

/* o by attn_scores, block_softmax and attn_apply. */
static void unfused(const sparse_machine *m, const sparse_rules *r, dense *x)
{
    bsk_layout_info l = BSK_INIT(bsk_layout_info);
    CHECK_OK(bsk_layout_query(r->layout, &l));
    const int64_t count = dense_count(x), kept = l.nnz * l.block_rows * l.block_cols;
    const int64_t scores = BATCH * (HEADS / l.heads) * kept;
    const bsk_tensor heads = bsk_tensor_heads(BSK_F32, BATCH, HEADS, x->time, SIZE);
    const bsk_tensor blocks = {
        BSK_F32, 5, {BATCH, HEADS / l.heads, l.nnz, l.block_rows, l.block_cols}, {0}};
    void *q = sparse_store(BSK_F32, x->q, count), *k = sparse_store(BSK_F32, x->k, count);
    void *v = sparse_store(BSK_F32, x->v, count), *o = sparse_store(BSK_F32, NULL, count);
    void *s = sparse_store(BSK_F32, NULL, scores);
    bsk_attn_scores_params sp = BSK_INIT(bsk_attn_scores_params);
    bsk_attn_scores_args sa = BSK_INIT_ALPHA(bsk_attn_scores_args);
    bsk_block_softmax_params xp = BSK_INIT(bsk_block_softmax_params);
    bsk_block_softmax_args xa = BSK_INIT(bsk_block_softmax_args);
    bsk_attn_apply_params ap = BSK_INIT(bsk_attn_apply_params);
    bsk_attn_apply_args aa = BSK_INIT_ALPHA(bsk_attn_apply_args);
    sp.layout = ap.layout = r->layout;
    sp.interleave = ap.interleave = r->interleave;
    sp.q = sp.k = ap.v = ap.y = heads;
    sp.s = xp.x = xp.y = ap.s = blocks;
    SPARSE_MASKS(r, &xp, &xa);
    xa.scale = 1 / sqrt((double)SIZE);
    sa.q = bsk_host_ptr(q);
    sa.k = bsk_host_ptr(k);
    sa.s = xa.x = xa.y = aa.s = bsk_host_ptr(s);
    aa.v = bsk_host_ptr(v);
    aa.y = bsk_host_ptr(o);
    SPARSE_PLAN_RUN(attn_scores, m, r, &sp, &sa);
    SPARSE_PLAN_RUN(block_softmax, m, r, &xp, &xa);
    SPARSE_PLAN_RUN(attn_apply, m, r, &ap, &aa);
    sparse_load(BSK_F32, o, x->o, count);
    free(q), free(k), free(v), free(s);
}

static void compare(const setting *s, const char *what, const dense *got, const dense *want,
                    bool backward)
{
    static const char *const names[] = {"o", "dq", "dk", "dv"};
    const double *const a[] = {got->o, got->dq, got->dk, got->dv};
    const double *const b[] = {want->o, want->dq, want->dk, want->dv};
    for (int t = 0; t < (backward ? 4 : 1); t++) {
        const double error = dense_error(a[t], b[t], dense_count(want));
        char detail[160];
        snprintf(detail, sizeof detail,
                 "%s of %s: mode %d, n %lld, block %lld, local %lld, verts %d x %d: error %g",
                 names[t], what, s->mode, (long long)s->n, (long long)s->block, (long long)s->local,
                 s->num_verts, s->vertsize, error);
        /* dk and dv sum over all queries */
        unit_check(error <= TOLERANCE * (t < 2 ? 1 : 4), __FILE__, __LINE__, "as dense", detail);
    }
}

static void check(const sparse_machine *m, const setting *s)
{
    static const char *const entries[] = {NULL, "+ref*"};
    dense want = dense_make(BATCH, HEADS, s->n, SIZE, BSK_F32, (uint64_t)s->n);
    dense got = dense_make(BATCH, HEADS, s->n, SIZE, BSK_F32, (uint64_t)s->n);
    bsk_layout *l = layout_of(s);
    if (!CHECK(l))
        return;
    want.visible = sees;
    want.about = s;
    dense_run(&want, BSK_F64, true);
    sparse_rules r = {.layout = l, .causal = 1};
    r.interleave = s->mode == STRIDED ? (int32_t)s->local : 1;
    r.window = s->mode == LOCAL ? s->local : 0;
    for (size_t e = 0; e < UNIT_COUNT(entries); e++) {
        r.kernels = entries[e];
        sparse_fused(m, &r, &got, BSK_F32, true);
        compare(s, "attention", &got, &want, true);
    }
    r.kernels = NULL;
    unfused(m, &r, &got);
    compare(s, "the unfused ops", &got, &want, false);
    /* the callback of the original: bits and no predicates */
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK_OK(bsk_layout_query(l, &info));
    setting about = *s;
    r.causal = 0;
    r.window = 0;
    r.bits_index = dense_memory(info.nnz, sizeof *r.bits_index);
    CHECK_OK(bsk_layout_element_bits(l, sees_line, &about, r.bits_index, NULL, &r.masks));
    r.bits = dense_memory(r.masks * s->block * ((s->block + 7) / 8), 1);
    CHECK_OK(bsk_layout_element_bits(l, sees_line, &about, r.bits_index, r.bits, &r.masks));
    sparse_fused(m, &r, &got, BSK_F32, true);
    compare(s, "attention by bits", &got, &want, true);
    free(r.bits_index), free(r.bits);
    bsk_layout_release(&l);
    dense_free(&want);
    dense_free(&got);
}

/* All parameters that the original admits, for a length. */
static void check_length(const sparse_machine *m, int64_t block, int64_t blocks)
{
    const int64_t n = block * blocks;
    check(m, &(setting){ALL, n, block, 0, 0, 0});
    for (int64_t w = 1; w <= blocks; w++) {
        check(m, &(setting){LOCAL, n, block, w * block, 0, 0});
        if (blocks % w == 0)
            check(m, &(setting){STRIDED, n, block, w, 0, 0});
        for (int32_t size = 1; size <= w; size++)
            for (int32_t verts = 1; w % size == 0 && verts * size <= w; verts++)
                if (HEADS % verts == 0)
                    check(m, &(setting){FIXED, n, block, w * block, verts, size});
    }
}

int main(void)
{
    static const struct {
        int64_t block, most;
    } grids[] = {{8, 8}, {16, 4}, {32, 3}, {64, 2}};
    sparse_machine m = sparse_open();
    for (size_t g = 0; g < UNIT_COUNT(grids); g++)
        for (int64_t blocks = 1; blocks <= grids[g].most; blocks++)
            check_length(&m, grids[g].block, blocks);
    sparse_close(&m);
    return unit_report();
}
