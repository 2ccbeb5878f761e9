/* Patterns that change between runs: lists written by one op and read by the next on the same queue,
 * with the same plans, against attention on the layout of the same blocks. */
#include <math.h>
#include <stdbool.h>

#include "unit.h"

enum {
    HEADS = 3,
    ROWS = 4, /* of blocks */
    COLS = 7,
    BLOCK = 16,
    QUERIES = ROWS * BLOCK,
    KEYS = COLS * BLOCK - 5,
    SIZE = 20,
    CAPACITY = 4,
    STEPS = 3
};

/* The memory of all tensors, and the plans that stay. */
typedef struct model {
    const bsk_device *device;
    bsk_queue *queue;
    bsk_tensor q, k, mask, scores, index, count;
    bsk_mem q_mem, k_mem, v_mem, wanted_mem, got_mem, mask_mem, scores_mem, index_mem, count_mem;
    bsk_mem workspace;
    bsk_plan *by_mask, *by_topk, *decode;
    uint64_t state;
} model;

static double uniform(model *m)
{
    m->state = m->state * 6364136223846793005u + 1442695040888963407u;
    return (double)(m->state >> 11) * 0x1p-53;
}

static bsk_mem memory(const model *m, size_t bytes)
{
    bsk_mem mem = {BSK_MEM_NULL, NULL, 0, 0};
    CHECK_OK(bsk_mem_alloc(m->device, bytes, &mem));
    return mem;
}

static bsk_mem random_memory(model *m, int64_t count)
{
    float *host = malloc((size_t)count * sizeof *host);
    bsk_mem mem = memory(m, (size_t)count * sizeof *host);
    if (!host)
        abort();
    for (int64_t i = 0; i < count; i++)
        host[i] = (float)(2 * uniform(m) - 1);
    CHECK_OK(bsk_mem_upload(m->queue, mem, host, (size_t)count * sizeof *host));
    CHECK_OK(bsk_queue_sync(m->queue));
    free(host);
    return mem;
}

static void need_workspace(model *m, const bsk_plan *plan)
{
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    CHECK_OK(bsk_plan_query(plan, &info));
    if (info.workspace_bytes > m->workspace.size) {
        CHECK_OK(bsk_queue_sync(m->queue));
        bsk_mem_free(m->device, &m->workspace);
        m->workspace = memory(m, info.workspace_bytes);
    }
}

static void make_plans(model *m)
{
    bsk_layout_mask_params by_mask = BSK_INIT(bsk_layout_mask_params);
    bsk_layout_topk_params by_topk = BSK_INIT(bsk_layout_topk_params);
    bsk_attention_decode_params decode = BSK_INIT(bsk_attention_decode_params);
    by_mask.mask = m->mask;
    by_topk.scores = m->scores;
    by_mask.index = by_topk.index = decode.block_index = m->index;
    by_mask.count = by_topk.count = decode.block_count = m->count;
    by_topk.k = CAPACITY - 1;
    by_topk.last = 1;
    decode.causal = 1;
    decode.block = decode.q_block = BLOCK;
    decode.q = decode.o = m->q;
    decode.k = decode.v = m->k;
    CHECK_OK(bsk_layout_mask_plan(m->device, &by_mask, NULL, &m->by_mask));
    CHECK_OK(bsk_layout_topk_plan(m->device, &by_topk, NULL, &m->by_topk));
    CHECK_OK(bsk_attention_decode_plan(m->device, &decode, NULL, &m->decode));
    need_workspace(m, m->decode);
}

/* The lists of this step and what they give: nothing waits in between. */
static void run_dynamic(model *m, bool topk)
{
    bsk_layout_mask_args by_mask = BSK_INIT(bsk_layout_mask_args);
    bsk_layout_topk_args by_topk = BSK_INIT(bsk_layout_topk_args);
    bsk_attention_decode_args decode = BSK_INIT(bsk_attention_decode_args);
    by_mask.mask = m->mask_mem;
    by_topk.scores = m->scores_mem;
    by_mask.index = by_topk.index = decode.block_index = m->index_mem;
    by_mask.count = by_topk.count = decode.block_count = m->count_mem;
    decode.q = m->q_mem;
    decode.k = m->k_mem;
    decode.v = m->v_mem;
    decode.o = m->got_mem;
    decode.workspace = m->workspace;
    if (topk)
        CHECK_OK(bsk_layout_topk_run(m->by_topk, m->queue, &by_topk));
    else
        CHECK_OK(bsk_layout_mask_run(m->by_mask, m->queue, &by_mask));
    CHECK_OK(bsk_attention_decode_run(m->decode, m->queue, &decode));
}

static void run_static(model *m, const uint8_t *mask)
{
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    bsk_attention_params params = BSK_INIT(bsk_attention_params);
    bsk_attention_args args = BSK_INIT(bsk_attention_args);
    bsk_layout *layout = NULL;
    bsk_plan *plan = NULL;
    p.rows = QUERIES;
    p.cols = KEYS;
    p.block_rows = p.block_cols = BLOCK;
    p.heads = HEADS;
    CHECK_OK(bsk_layout_from_mask(NULL, &p, mask, &layout));
    params.layout = layout;
    params.causal = 1;
    params.align = BSK_ALIGN_END;
    params.q = params.o = m->q;
    params.k = params.v = m->k;
    CHECK_OK(bsk_attention_plan(m->device, &params, NULL, &plan));
    need_workspace(m, plan);
    args.q = m->q_mem;
    args.k = m->k_mem;
    args.v = m->v_mem;
    args.o = m->wanted_mem;
    args.workspace = m->workspace;
    CHECK_OK(bsk_attention_run(plan, m->queue, &args));
    bsk_plan_destroy(&plan);
    bsk_layout_release(&layout);
}

static void compare(model *m)
{
    enum { COUNT = HEADS * QUERIES * SIZE };
    static float wanted[COUNT], got[COUNT];
    double worst = 0, largest = 0;
    CHECK_OK(bsk_mem_download(m->queue, wanted, m->wanted_mem, sizeof wanted));
    CHECK_OK(bsk_mem_download(m->queue, got, m->got_mem, sizeof got));
    CHECK_OK(bsk_queue_sync(m->queue));
    for (int i = 0; i < COUNT; i++) {
        worst = fmax(worst, fabs((double)wanted[i] - (double)got[i]));
        largest = fmax(largest, fabs((double)wanted[i]));
    }
    CHECK(worst <= 2e-6); /* f32 sums of up to 64 terms below 1 */
    CHECK(largest > 0.1);
}

/* At most CAPACITY blocks in each row. */
static void step_by_mask(model *m)
{
    uint8_t mask[HEADS * ROWS * COLS] = {0};
    for (int i = 0; i < HEADS * ROWS * CAPACITY; i++)
        mask[i / CAPACITY * COLS + (int)(uniform(m) * COLS)] = 1;
    CHECK_OK(bsk_mem_upload(m->queue, m->mask_mem, mask, sizeof mask));
    run_dynamic(m, false);
    run_static(m, mask);
    compare(m);
}

/* The blocks of the largest scores, and always the last one. */
static void step_by_topk(model *m)
{
    float scores[HEADS * ROWS * COLS];
    uint8_t mask[HEADS * ROWS * COLS] = {0};
    for (int i = 0; i < HEADS * ROWS * COLS; i++)
        scores[i] = (float)uniform(m);
    for (int row = 0; row < HEADS * ROWS; row++) {
        uint8_t *kept = mask + row * COLS;
        kept[COLS - 1] = 1;
        for (int left = CAPACITY - 2; left > 0; left--) {
            int best = -1;
            for (int j = 0; j < COLS; j++)
                if (!kept[j] && (best < 0 || scores[row * COLS + j] > scores[row * COLS + best]))
                    best = j;
            kept[best] = 1;
        }
    }
    CHECK_OK(bsk_mem_upload(m->queue, m->scores_mem, scores, sizeof scores));
    run_dynamic(m, true);
    run_static(m, mask);
    compare(m);
}

int main(void)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    model m = {.state = 5};
    if (!CHECK_OK(bsk_context_create(&params, &context)) ||
        !CHECK_OK(bsk_context_find_device(context, "cpu:0", &m.device)) ||
        !CHECK_OK(bsk_queue_create(m.device, &m.queue)))
        return unit_report();
    m.q = (bsk_tensor){BSK_F32, 4, {1, HEADS, QUERIES, SIZE, 0}, {0}};
    m.k = (bsk_tensor){BSK_F32, 4, {1, HEADS, KEYS, SIZE, 0}, {0}};
    m.mask = (bsk_tensor){BSK_U8, 4, {1, HEADS, ROWS, COLS, 0}, {0}};
    m.scores = (bsk_tensor){BSK_F32, 4, {1, HEADS, ROWS, COLS, 0}, {0}};
    m.index = (bsk_tensor){BSK_I32, 4, {1, HEADS, ROWS, CAPACITY, 0}, {0}};
    m.count = bsk_tensor_3d(BSK_I32, 1, HEADS, ROWS);
    m.q_mem = random_memory(&m, HEADS * QUERIES * SIZE);
    m.k_mem = random_memory(&m, HEADS * KEYS * SIZE);
    m.v_mem = random_memory(&m, HEADS * KEYS * SIZE);
    m.wanted_mem = random_memory(&m, HEADS * QUERIES * SIZE);
    m.got_mem = random_memory(&m, HEADS * QUERIES * SIZE);
    m.mask_mem = memory(&m, HEADS * ROWS * COLS);
    m.scores_mem = memory(&m, HEADS * ROWS * COLS * sizeof(float));
    m.index_mem = memory(&m, HEADS * ROWS * CAPACITY * sizeof(int32_t));
    m.count_mem = memory(&m, HEADS * ROWS * sizeof(int32_t));
    make_plans(&m);
    for (int step = 0; step < STEPS; step++) {
        step_by_mask(&m);
        step_by_topk(&m);
    }
    bsk_mem *const all[] = {&m.q_mem,    &m.k_mem,      &m.v_mem,     &m.wanted_mem, &m.got_mem,
                            &m.mask_mem, &m.scores_mem, &m.index_mem, &m.count_mem,  &m.workspace};
    for (size_t i = 0; i < UNIT_COUNT(all); i++)
        bsk_mem_free(m.device, all[i]);
    bsk_plan_destroy(&m.by_mask);
    bsk_plan_destroy(&m.by_topk);
    bsk_plan_destroy(&m.decode);
    bsk_queue_destroy(&m.queue);
    bsk_context_destroy(&context);
    return unit_report();
}
