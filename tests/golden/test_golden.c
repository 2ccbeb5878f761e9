/* The library against dense.txt, whose results make.py computed without it: what the file says is
 * written into params and args through the op table.
 *
 *     test_golden FILE [DEVICE]
 *
 * Results of f64 are compared within 1e-9, f32 and f16 after their rounding, integers exactly. */
#include <math.h>

#include "api/src/internal.h"
#include "common/dtype.h"
#include "tests/unit/unit.h"

enum { MAX_VIEWS = 4, WORD = 64 };

/* One tensor of the file. */
typedef struct values {
    bsk_tensor desc;
    int64_t count;
    double *number;
} values;

typedef struct golden {
    const bski_op_info *op;
    const bsk_device *device;
    bsk_queue *queue;
    bsk_layout *layout;
    int32_t *list;
    _Alignas(16) unsigned char params[BSKI_MAX_STRUCT];
    _Alignas(16) unsigned char args[BSKI_MAX_STRUCT];
    values given[BSKI_MAX_ARGS][MAX_VIEWS], wanted[BSKI_MAX_ARGS][MAX_VIEWS];
    int given_views[BSKI_MAX_ARGS], wanted_views[BSKI_MAX_ARGS];
    bsk_mem memory[BSKI_MAX_ARGS][MAX_VIEWS], workspace;
    size_t bytes[BSKI_MAX_ARGS];
} golden;

/* --- Reading -------------------------------------------------------------------------------- */

static void read_word(FILE *f, char word[WORD])
{
    if (fscanf(f, "%63s", word) != 1)
        snprintf(word, WORD, "the end of the file");
}

static double read_number(FILE *f)
{
    char word[WORD];
    read_word(f, word);
    return strtod(word, NULL);
}

static void read_field(FILE *f, golden *g, bool attr)
{
    const bski_field *fields = attr ? g->op->attrs : g->op->scalars;
    const int count = attr ? g->op->attr_count : g->op->scalar_count;
    unsigned char *base = attr ? g->params : g->args;
    char name[WORD];
    read_word(f, name);
    const double v = read_number(f);
    for (int i = 0; i < count; i++) {
        if (strcmp(fields[i].name, name))
            continue;
        if (fields[i].kind == BSKI_F64)
            memcpy(base + fields[i].offset, &v, sizeof v);
        else if (fields[i].kind == BSKI_I32)
            memcpy(base + fields[i].offset, &(int32_t){(int32_t)v}, sizeof(int32_t));
        else
            memcpy(base + fields[i].offset, &(int64_t){(int64_t)v}, sizeof(int64_t));
        return;
    }
    fprintf(stderr, "%s has no field %s\n", g->op->name, name);
    CHECK(!"a field of the file");
}

static void read_layout(FILE *f, golden *g)
{
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    char mask[WORD];
    p.rows = (int64_t)read_number(f);
    p.cols = (int64_t)read_number(f);
    p.block_rows = (int32_t)read_number(f);
    p.block_cols = (int32_t)read_number(f);
    p.heads = (int32_t)read_number(f);
    read_word(f, mask);
    for (char *m = mask; *m; m++)
        *m = (char)(*m - '0');
    CHECK_OK(bsk_layout_from_mask(NULL, &p, (const uint8_t *)mask, &g->layout));
    memcpy(g->params + g->op->layout, &g->layout, sizeof g->layout);
}

/* Its size, and its numbers. */
static void read_list(FILE *f, golden *g)
{
    const int64_t size = (int64_t)read_number(f);
    g->list = malloc(((size_t)size + 1) * sizeof *g->list);
    if (!g->list)
        abort();
    for (int64_t i = 0; i < size; i++)
        g->list[i] = (int32_t)read_number(f);
    memcpy(g->params + g->op->list, &g->list, sizeof g->list);
    memcpy(g->params + g->op->list_size, &size, sizeof size);
}

static values read_values(FILE *f)
{
    values v = {.count = 1};
    char word[WORD];
    read_word(f, word);
    v.desc.dtype = bsk_dtype_parse(word);
    v.desc.rank = (int32_t)read_number(f);
    for (int32_t d = 0; d < v.desc.rank && d < BSK_MAX_RANK; d++)
        v.count *= v.desc.dims[d] = (int64_t)read_number(f);
    v.number = malloc(((size_t)v.count + 1) * sizeof *v.number);
    if (!v.number)
        abort();
    for (int64_t i = 0; i < v.count; i++)
        v.number[i] = read_number(f);
    return v;
}

static void read_tensor(FILE *f, golden *g, bool wanted)
{
    char name[WORD];
    read_word(f, name);
    const values v = read_values(f);
    for (int i = 0; i < g->op->arg_count; i++) {
        if (strcmp(g->op->args[i].name, name))
            continue;
        int *views = wanted ? &g->wanted_views[i] : &g->given_views[i];
        if (!CHECK(*views < MAX_VIEWS))
            break;
        memcpy(g->params + g->op->args[i].desc, &v.desc, sizeof v.desc);
        (wanted ? g->wanted : g->given)[i][(*views)++] = v;
        return;
    }
    fprintf(stderr, "%s has no argument %s, or fewer of them\n", g->op->name, name);
    CHECK(!"an argument of the file");
    free(v.number);
}

/* --- Running -------------------------------------------------------------------------------- */

static bool is_float(bsk_dtype t)
{
    return (BSKI_FLOATS >> t & 1) != 0;
}

static void store(bsk_dtype t, void *p, int64_t i, double v)
{
    const int64_t whole = is_float(t) ? 0 : (int64_t)v;
    if (is_float(t))
        bski_store(t, p, i, v);
    else /* little-endian */
        memcpy((char *)p + (size_t)i * bsk_dtype_size(t), &whole, bsk_dtype_size(t));
}

/* Memory of argument i, with what the file gives for it. */
static void bind(golden *g, int i)
{
    const bski_arg *a = &g->op->args[i];
    const bsk_tensor *t = bski_arg_tensor(g->op, g->params, i);
    if (t->dtype == BSK_NONE)
        return;
    CHECK_OK(bsk_tensor_bytes(t, &g->bytes[i]));
    unsigned char *host = calloc(1, g->bytes[i] + 1);
    if (!host)
        abort();
    for (int v = 0; v < (g->given_views[i] ? g->given_views[i] : 1); v++) {
        const values *given = &g->given[i][v];
        CHECK_OK(bsk_mem_alloc(g->device, g->bytes[i], &g->memory[i][v]));
        for (int64_t e = 0; given->number && e < given->count; e++)
            store(t->dtype, host, e, given->number[e]);
        CHECK_OK(bsk_mem_upload(g->queue, g->memory[i][v], host, g->bytes[i]));
        CHECK_OK(bsk_queue_sync(g->queue));
    }
    free(host);
    const bsk_mem *list = g->memory[i];
    if (a->list)
        memcpy(g->args + a->mem, &list, sizeof list);
    else
        memcpy(g->args + a->mem, list, sizeof *list);
}

static void run(golden *g)
{
    bsk_plan *plan = NULL;
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    if (CHECK_OK(bski_plan_create(g->op, g->device, g->params, NULL, &plan)) &&
        CHECK_OK(bsk_plan_query(plan, &info))) {
        CHECK_OK(bsk_mem_alloc(g->device, info.workspace_bytes, &g->workspace));
        memcpy(g->args + g->op->workspace, &g->workspace, sizeof g->workspace);
        CHECK_OK(bski_plan_run(g->op, plan, g->queue, g->args));
        CHECK_OK(bsk_queue_sync(g->queue));
    }
    bsk_plan_destroy(&plan);
}

static bool agrees(bsk_dtype t, double got, double want)
{
    if (isnan(want) || isinf(want) || !is_float(t))
        return isnan(want) ? isnan(got) : got == want;
    const double share = t == BSK_F64 ? 1e-9 : 2 * bski_epsilon(t);
    return fabs(got - want) <= share * (fabs(want) + (t == BSK_F64));
}

static void compare(golden *g, int i, int view, int number)
{
    const values *want = &g->wanted[i][view];
    const bsk_dtype t = want->desc.dtype;
    unsigned char *host = malloc(g->bytes[i] + 1);
    int64_t wrong = 0;
    if (!host)
        abort();
    CHECK_OK(bsk_mem_download(g->queue, host, g->memory[i][view], g->bytes[i]));
    CHECK_OK(bsk_queue_sync(g->queue));
    for (int64_t e = 0; e < want->count; e++) {
        const double got = is_float(t) ? bski_load(t, host, e) : (double)bski_load_int(t, host, e);
        if (!agrees(t, got, want->number[e]) && !wrong++)
            fprintf(stderr, "case %d, %s: %s[%lld] is %.17g, wanted %.17g\n", number, g->op->name,
                    g->op->args[i].name, (long long)e, got, want->number[e]);
    }
    CHECK(want->count > 0 && wrong == 0);
    free(host);
}

static void release(golden *g)
{
    for (int i = 0; i < BSKI_MAX_ARGS; i++) {
        for (int v = 0; v < MAX_VIEWS; v++) {
            free(g->given[i][v].number);
            free(g->wanted[i][v].number);
            bsk_mem_free(g->device, &g->memory[i][v]);
        }
    }
    bsk_mem_free(g->device, &g->workspace);
    bsk_layout_release(&g->layout);
    free(g->list);
}

/* From the name of the op to `end`. */
static void test_case(FILE *f, const bsk_device *device, bsk_queue *queue, int number)
{
    golden g = {.device = device, .queue = queue};
    char word[WORD];
    read_word(f, word);
    g.op = bski_op_find(word);
    if (!CHECK(g.op != NULL)) {
        fprintf(stderr, "there is no op %s\n", word);
        return;
    }
    const size_t params = g.op->params_size, args = g.op->args_size;
    memcpy(g.params, &params, sizeof params);
    memcpy(g.args, &args, sizeof args);
    for (read_word(f, word); strcmp(word, "end"); read_word(f, word)) {
        if (!strcmp(word, "attr") || !strcmp(word, "scalar")) {
            read_field(f, &g, word[0] == 'a');
        } else if (!strcmp(word, "layout") && g.op->layout) {
            read_layout(f, &g);
        } else if (!strcmp(word, "list") && g.op->list) {
            read_list(f, &g);
        } else if (!strcmp(word, "in") || !strcmp(word, "out")) {
            read_tensor(f, &g, word[0] == 'o');
        } else {
            fprintf(stderr, "case %d: unexpected %s\n", number, word);
            CHECK(!"a word of the file");
            break;
        }
    }
    for (int i = 0; i < g.op->arg_count; i++)
        bind(&g, i);
    run(&g);
    for (int i = 0; i < g.op->arg_count; i++)
        for (int v = 0; v < g.wanted_views[i]; v++)
            compare(&g, i, v, number);
    release(&g);
}

int main(int argc, char **argv)
{
    FILE *f = argc > 1 ? fopen(argv[1], "r") : NULL;
    if (!CHECK(f != NULL))
        return unit_report();
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    const bsk_device *device = NULL;
    bsk_queue *queue = NULL;
    params.ignore_environment = argc < 3; /* which tells where modules are */
    if (CHECK_OK(bsk_context_create(&params, &context)) &&
        CHECK_OK(bsk_context_find_device(context, argc > 2 ? argv[2] : "cpu:0", &device)) &&
        CHECK_OK(bsk_queue_create(device, &queue))) {
        char word[WORD];
        for (int number = 1; fscanf(f, "%63s", word) == 1 && CHECK(!strcmp(word, "op")); number++)
            test_case(f, device, queue, number);
    }
    fclose(f);
    bsk_queue_destroy(&queue);
    bsk_context_destroy(&context);
    return unit_report();
}
