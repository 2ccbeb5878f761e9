/* Descriptors from arbitrary bytes: the input chooses an op and rewrites fields of a valid request
 * of it, through the op table. Making the plan must end in a status, whatever the fields say; if
 * it succeeds and the operands are small, the plan runs on memory of exactly the size that the
 * descriptions need, so that a sanitizer sees every access beyond it.
 *
 * Bytes: op, flags, then edits of a kind and an operand each. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/src/op.h"
#include "tests/unit/requests.h"

enum { MAX_BYTES = 1 << 16, MAX_PAIRS = 8 };

typedef struct input {
    const uint8_t *data;
    size_t left;
} input;

static uint64_t take(input *in, size_t bytes)
{
    uint64_t v = 0;
    for (size_t i = 0; i < bytes && in->left; i++, in->left--)
        v |= (uint64_t)*in->data++ << 8 * i;
    return v;
}

/* Numbers that matter more often than chance would have them. */
static int64_t take_number(input *in)
{
    static const int64_t special[] = {
        0,  1,     2,         3,         -1,         8,         7,         9,
        64, 65536, INT32_MAX, INT32_MIN, UINT32_MAX, INT64_MAX, INT64_MIN, INT64_MAX / 8};
    uint64_t how = take(in, 1);
    return how < 128 ? special[how % 16] : (int64_t)take(in, how % 8 + 1);
}

static double take_real(input *in)
{
    static const double special[] = {0, 1, -1, 0.5, 2, 1e-300, 1e300, INFINITY, -INFINITY, NAN};
    return special[take(in, 1) % 10];
}

static void edit_field(input *in, const bski_field *f, unsigned char *base)
{
    if (f->kind == BSKI_F64) {
        double v = take_real(in);
        memcpy(base + f->offset, &v, sizeof v);
    } else {
        int64_t v = take_number(in);
        memcpy(base + f->offset, &v, f->kind == BSKI_I32 ? 4 : 8);
    }
}

static void edit_tensor(input *in, bsk_tensor *t)
{
    uint64_t what = take(in, 1), axis = take(in, 1) % BSK_MAX_RANK;
    int64_t number = take_number(in);
    switch (what % 6) {
    case 0:
        t->dtype = (bsk_dtype)(number & 15);
        break;
    case 1:
        t->rank = (int32_t)number;
        break;
    case 2:
        t->dims[axis] = number;
        break;
    case 3:
        t->strides[axis] = number;
        break;
    case 4: /* a valid padding */
        if (t->rank == 2 && t->dims[1] < MAX_BYTES) {
            t->strides[0] = t->dims[1] + (number & 7);
            t->strides[1] = 1;
        }
        break;
    default:
        t->dtype = (bsk_dtype)(number % 4 + 1);
        break;
    }
}

/* One edit of the params; scalars are edited later, before the run. */
static void edit(input *in, const bski_op_info *op, request_struct *params)
{
    uint64_t kind = take(in, 1), which = take(in, 1);
    if (kind % 8 == 0 && op->attr_count) {
        edit_field(in, &op->attrs[which % op->attr_count], params->bytes);
    } else if (kind % 64 == 1) {
        size_t size = (size_t)take_number(in); /* never beyond the struct that is really there */
        size = size > sizeof *params ? size % (sizeof *params + 1) : size;
        memcpy(params->bytes, &size, sizeof size);
    } else {
        const bski_arg *a = &op->args[which % op->arg_count];
        bsk_tensor t;
        memcpy(&t, params->bytes + a->desc, sizeof t);
        edit_tensor(in, &t);
        memcpy(params->bytes + a->desc, &t, sizeof t);
    }
}

static double elements_of(const bsk_tensor *t)
{
    double elements = 1;
    for (int i = 0; i < t->rank; i++)
        elements *= (double)(t->dims[i] > 1 ? t->dims[i] : 1);
    return elements;
}

/* Sizes of all arguments; false if they are too large for a run. Strides of zero make much work of
 * little memory: no op's is more than the product of its three largest arguments. */
static bool measure(const bski_op_info *op, const request_struct *params, int pairs,
                    size_t bytes[BSKI_MAX_ARGS])
{
    const double most_work = 1 << 29;
    double largest[3] = {1, 1, 1};
    size_t total = 0;
    for (int i = 0; i < op->arg_count; i++) {
        const bsk_tensor *t = bski_arg_tensor(op, params->bytes, i);
        bytes[i] = 0;
        if (t->dtype == BSK_NONE)
            continue;
        if (bsk_tensor_bytes(t, &bytes[i]) || bytes[i] > MAX_BYTES)
            return false;
        total += bytes[i] * (size_t)(op->args[i].list ? pairs : 1);
        double elements = elements_of(t);
        for (int n = 0; n < 3; n++)
            if (elements > largest[n]) {
                const double smaller = largest[n];
                largest[n] = elements;
                elements = smaller;
            }
    }
    return total <= MAX_BYTES && largest[0] * largest[1] * largest[2] <= most_work;
}

static void run(input *in, const bski_op_info *op, const request_struct *params,
                const bsk_plan *plan, bsk_queue *queue)
{
    void *blocks[BSKI_MAX_ARGS][MAX_PAIRS] = {{0}};
    bsk_mem views[BSKI_MAX_ARGS][MAX_PAIRS] = {{{0}}};
    size_t bytes[BSKI_MAX_ARGS], size;
    int32_t pairs = 1;
    /* What a short struct leaves out, the plan does not know of. */
    memcpy(&size, params->bytes, sizeof size);
    if (size < op->params_size)
        return;
    if (op->pairs)
        memcpy(&pairs, params->bytes + op->pairs, sizeof pairs);
    pairs = pairs ? pairs : 1;
    if (pairs > MAX_PAIRS || !measure(op, params, pairs, bytes))
        return;
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    if (bsk_plan_query(plan, &info) || info.workspace_bytes > MAX_BYTES * 16)
        return;

    request_struct args;
    request_scalars(op, &args);
    for (unsigned n = (unsigned)take(in, 1) % 4; n && op->scalar_count; n--)
        edit_field(in, &op->scalars[take(in, 1) % op->scalar_count], args.bytes);
    for (int i = 0; i < op->arg_count; i++) {
        const bski_arg *a = &op->args[i];
        for (int p = 0; bytes[i] && p < (a->list ? pairs : 1); p++) {
            blocks[i][p] = malloc(bytes[i]);
            if (!blocks[i][p])
                abort();
            request_numbers(bski_arg_tensor(op, params->bytes, i), blocks[i][p], bytes[i],
                            (unsigned)take(in, 1));
            views[i][p] = bsk_host_ptr(blocks[i][p]);
            views[i][p].size = bytes[i];
        }
        const bsk_mem *list = views[i];
        if (a->list)
            memcpy(args.bytes + a->mem, &list, sizeof list);
        else
            memcpy(args.bytes + a->mem, list, sizeof *list);
    }
    size_t room = (info.workspace_bytes + info.workspace_alignment - 1) / info.workspace_alignment *
                  info.workspace_alignment;
    void *workspace = room ? aligned_alloc(info.workspace_alignment, room) : NULL;
    bsk_mem w = bsk_host_ptr(workspace);
    w.size = info.workspace_bytes;
    memcpy(args.bytes + op->workspace, &w, sizeof w);
    bski_plan_run(op, plan, queue, args.bytes);
    free(workspace);
    for (int i = 0; i < BSKI_MAX_ARGS; i++)
        for (int p = 0; p < MAX_PAIRS; p++)
            free(blocks[i][p]);
}

typedef struct world {
    bsk_context *context;
    const bsk_device *device;
    bsk_queue *queue;
    bsk_layout *layouts[3]; /* ordinary, empty, two heads */
    int64_t nnz[3];
} world;

/* What all inputs share, made once. */
static const world *world_get(void)
{
    static world w;
    if (w.context)
        return &w;
    bsk_context_params cp = BSK_INIT(bsk_context_params);
    bsk_layout_params lp = BSK_INIT(bsk_layout_params);
    cp.ignore_environment = 1;
    cp.num_threads = 1;
    lp.rows = REQUEST_K;
    lp.cols = REQUEST_M;
    lp.block_rows = lp.block_cols = REQUEST_BLOCK;
    bsk_status status = bsk_context_create(&cp, &w.context);
    w.device = bsk_context_device(w.context, 0);
    status |= bsk_queue_create(w.device, &w.queue);
    status |= request_layout(w.context, &w.layouts[0]);
    status |= bsk_layout_random(w.context, &lp, 0, 1, &w.layouts[1]);
    lp.heads = 2;
    status |= bsk_layout_random(w.context, &lp, 0.5, 1, &w.layouts[2]);
    for (int i = 0; i < 3; i++) {
        bsk_layout_info info = BSK_INIT(bsk_layout_info);
        status |= bsk_layout_query(w.layouts[i], &info);
        w.nnz[i] = info.nnz;
    }
    if (status)
        abort();
    return &w;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const lists[] = {NULL, "-ref_*", "+ref_*", "-*_avx512"};
    input in = {data, size};
    const world *w = world_get();
    const bski_op_info *op = bski_ops[take(&in, 1) % bski_op_count];
    uint64_t flags = take(&in, 1);
    int layout = (int)(flags >> 1 & 3) % 3;
    request_struct params;
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.kernels = lists[flags >> 5 & 3];
    options.packed = flags >> 7 & 1;
    if (!request_fill(op, w->layouts[layout], w->nnz[layout], (bsk_dtype)(1 + (flags >> 3 & 3)),
                      flags & 1, &params))
        abort();
    for (uint64_t n = take(&in, 1) % 6; n; n--)
        edit(&in, op, &params);
    bsk_plan *plan = NULL;
    request_struct before = params;
    bsk_status status = bski_plan_create(op, w->device, params.bytes, &options, &plan);
    if (!status != !!plan || memcmp(&before, &params, sizeof params))
        abort();
    if (!status)
        run(&in, op, &params, plan, w->queue);
    bsk_plan_destroy(&plan);
    return 0;
}
