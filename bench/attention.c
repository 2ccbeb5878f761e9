/* What the bench knows about attention: visible elements, and memory at great lengths. */
#include "bench/bench.h"

/* --- Visible elements ------------------------------------------------------------------------ */

typedef struct runs {
    int64_t row, col; /* lines of one residue of time */
    int64_t window;   /* in lines: closer than this; 0: any */
    bool causal;
} runs;

/* Visible columns of [first, end) in a row: an interval. */
static int64_t visible_columns(const runs *r, int64_t row, int64_t first, int64_t end)
{
    const int64_t base = row / r->row * r->col, at = base + row % r->row;
    int64_t low = base, high = base + r->col;
    if (r->causal && at + 1 < high)
        high = at + 1;
    if (r->window && at - r->window + 1 > low)
        low = at - r->window + 1;
    if (r->window && at + r->window < high)
        high = at + r->window;
    low = low > first ? low : first;
    high = high < end ? high : end;
    return high > low ? high - low : 0;
}

static runs runs_of(const test_case *c)
{
    const test_spec *s = &c->spec;
    const int64_t step = s->rules & RULE_INTERLEAVE ? c->text.stride : 1;
    runs r = {c->info.rows / step, c->info.cols / step, 0, (s->rules & RULE_CAUSAL) != 0};
    if (s->rules & RULE_WINDOW)
        r.window = (c->text.window - 1) / step + 1;
    return r;
}

double bench_visible_share(const test_case *c)
{
    const bsk_layout_info *l = &c->info;
    const uint32_t rules = RULE_CAUSAL | RULE_WINDOW | RULE_INTERLEAVE;
    const bool stated = (!(c->spec.rules & RULE_INTERLEAVE) || c->text.stride) &&
                        (!(c->spec.rules & RULE_WINDOW) || c->text.window);
    if (!c->layout || !stated || !c->spec.rules || (c->spec.rules & ~rules))
        return 1;
    const runs r = runs_of(c);
    double visible = 0;
    for (int64_t s = 0; s < l->nnz; s++) {
        const int64_t top = (int64_t)c->row[s] * l->block_rows;
        const int64_t left = (int64_t)c->col[s] * l->block_cols;
        const int64_t right = left + test_valid_cols(c, s);
        for (int64_t row = top; row < top + test_valid_rows(c, s); row++)
            visible += (double)visible_columns(&r, row, left, right);
    }
    const double kept = (double)l->nnz * l->block_rows * l->block_cols;
    return kept > 0 ? visible / kept : 1;
}

/* --- Memory ---------------------------------------------------------------------------------- */

enum { HEADS = 8, SIZE = 64, BLOCK = 64 };
static const char pattern[] = "fixed:local=32,global=1";

typedef struct footprint {
    double tensors, workspace, layout, kept; /* bytes; kept: one score array of the unfused ops */
} footprint;

static double bytes_of(const bsk_tensor *t)
{
    double count = (double)bsk_dtype_size(t->dtype);
    for (int i = 0; i < t->rank; i++)
        count *= (double)t->dims[i];
    return count;
}

/* The larger of the plan's workspace and *workspace. */
static bsk_status plan_workspace(bsk_plan *plan, double *workspace)
{
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    const bsk_status status = bsk_plan_query(plan, &info);
    if (status == BSK_OK && (double)info.workspace_bytes > *workspace)
        *workspace = (double)info.workspace_bytes;
    return status;
}

/* A forward run that saves lse, and a backward run: nothing else is kept between them. */
static bsk_status measure_plans(const bsk_device *device, const bsk_layout *layout, int64_t time,
                                bsk_dtype dtype, footprint *f)
{
    const bsk_plan_options options = {.struct_size = sizeof options,
                                      .fallback = BSK_FALLBACK_FORBID};
    bsk_attention_params p = BSK_INIT(bsk_attention_params);
    bsk_attention_grad_params g = BSK_INIT(bsk_attention_grad_params);
    bsk_plan *forward = NULL, *backward = NULL;
    p.layout = g.layout = layout;
    p.causal = g.causal = 1;
    p.q = p.k = p.v = p.o = bsk_tensor_heads(dtype, 1, HEADS, time, SIZE);
    g.q = g.k = g.v = g.o = g.dout = g.dq = g.dk = g.dv = p.q;
    p.lse = g.lse = bsk_tensor_3d(BSK_F32, 1, HEADS, time);
    bsk_status status = bsk_attention_plan(device, &p, &options, &forward);
    if (status == BSK_OK)
        status = bsk_attention_grad_plan(device, &g, &options, &backward);
    if (status == BSK_OK)
        status = plan_workspace(forward, &f->workspace);
    if (status == BSK_OK)
        status = plan_workspace(backward, &f->workspace);
    f->tensors = 8 * bytes_of(&p.q) + bytes_of(&p.lse);
    bsk_plan_destroy(&forward);
    bsk_plan_destroy(&backward);
    return status;
}

static bsk_status measure_time(const bsk_device *device, int64_t time, bsk_dtype dtype,
                               footprint *f)
{
    const bsk_layout_params geometry = {sizeof geometry, time, time,         BLOCK,
                                        BLOCK,           1,    BSK_ORDER_ROW};
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    test_layout_text text;
    char why[160];
    bsk_layout *layout = NULL;
    size_t bytes = 0;
    *f = (footprint){0};
    if (!test_layout_read(pattern, &geometry, &text, why, sizeof why))
        return BSK_E_INTERNAL;
    bsk_status status = test_layout_make(&text, &layout);
    if (status == BSK_OK)
        status = bsk_layout_query(layout, &info);
    if (status == BSK_OK)
        status = bsk_layout_serialize(layout, NULL, &bytes);
    if (status == BSK_OK)
        status = measure_plans(device, layout, time, dtype, f);
    f->layout = (double)bytes;
    f->kept = (double)info.nnz * BLOCK * BLOCK * HEADS * (double)bsk_dtype_size(dtype);
    bsk_layout_release(&layout);
    return status;
}

void bench_attention_memory(const bsk_device *device, FILE *to)
{
    static const bsk_dtype types[] = {BSK_F32, BSK_BF16};
    const double mib = 1 << 20;
    footprint f;
    fprintf(to,
            "\nmemory of attention and attention_grad, %s, causal, blocks of %d, %d heads of %d\n"
            "%-6s %9s %13s %13s %15s %13s %15s %15s\n",
            pattern, BLOCK, HEADS, SIZE, "type", "time", "tensors MiB", "workspace MiB",
            "bytes/(time*d)", "layout MiB", "kept scores MiB", "all scores MiB");
    for (int t = 0; t < TEST_COUNT(types); t++)
        for (int64_t time = 8192; time <= 65536; time *= 2) {
            const double size = (double)bsk_dtype_size(types[t]);
            if (measure_time(device, time, types[t], &f)) {
                fprintf(to, "%-6s %9lld n/a: %s\n", bsk_dtype_name(types[t]), (long long)time,
                        bsk_last_error());
                continue;
            }
            fprintf(to, "%-6s %9lld %13.1f %13.1f %15.2f %13.2f %15.1f %15.1f\n",
                    bsk_dtype_name(types[t]), (long long)time, f.tensors / mib, f.workspace / mib,
                    (f.tensors + f.workspace) / ((double)time * HEADS * SIZE), f.layout / mib,
                    f.kept / mib, (double)time * (double)time * HEADS * size / mib);
        }
}
