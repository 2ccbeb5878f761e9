/* Plans and runs of the least and the largest problems: what has no elements takes no time, however
 * many rows it has, and long lists take as long as they are long. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <bsk/bsk.h>

#include "unit.h"

static const int64_t rows = (int64_t)1 << 45;

#define RUN(op, params, args)                                                                      \
    do {                                                                                           \
        bsk_plan *plan = NULL;                                                                     \
        CHECK_OK(bsk_##op##_plan(device, params, &options, &plan));                                \
        CHECK_OK(bsk_##op##_run(plan, queue, args));                                               \
        bsk_plan_destroy(&plan);                                                                   \
    } while (0)

/* Rows without elements, by the entries of a list. */
static void test_empty(const bsk_device *device, bsk_queue *queue, const char *kernels)
{
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.kernels = kernels;
    const bsk_tensor none = bsk_tensor_2d(BSK_F32, rows, 0);

    bsk_masked_softmax_params softmax = BSK_INIT(bsk_masked_softmax_params);
    bsk_masked_softmax_args softmax_args = BSK_INIT(bsk_masked_softmax_args);
    softmax.x = softmax.y = none;
    RUN(masked_softmax, &softmax, &softmax_args);

    bsk_layer_norm_params norm = BSK_INIT(bsk_layer_norm_params);
    bsk_layer_norm_args norm_args = BSK_INIT(bsk_layer_norm_args);
    norm.x = norm.y = none;
    RUN(layer_norm, &norm, &norm_args);
    RUN(rms_norm, &norm, &norm_args);
    norm.x = norm.y = bsk_tensor_2d(BSK_F32, 16, 0);
    norm.segments = (int64_t)1 << 40;
    RUN(layer_norm, &norm, &norm_args);
    norm.rstd = bsk_tensor_2d(BSK_F32, 3, 16); /* which are to be written, of no features */
    norm.segments = 3;
    float rstd[3 * 16] = {0};
    norm_args.rstd = bsk_host_ptr(rstd);
    RUN(layer_norm, &norm, &norm_args);
    for (size_t i = 0; i < UNIT_COUNT(rstd); i++)
        CHECK(rstd[i] > 999 && rstd[i] < 1001); /* 1 / sqrt(1e-6) */

    bsk_layer_norm_grad_params grad = BSK_INIT(bsk_layer_norm_grad_params);
    bsk_layer_norm_grad_args grad_args = BSK_INIT_ALPHA(bsk_layer_norm_grad_args);
    grad.dy = grad.x = grad.dx = none;
    grad.rstd = bsk_tensor_2d(BSK_F32, 1, rows);
    grad.rms = 1;
    grad_args.rstd = bsk_host_ptr(rstd); /* unread */
    RUN(layer_norm_grad, &grad, &grad_args);
}

/* The reference takes no workspace, so that its channels may be of any number of empty rows. */
static void test_empty_channels(const bsk_device *device, bsk_queue *queue)
{
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.kernels = "+ref_*";
    bsk_batch_norm_params norm = BSK_INIT(bsk_batch_norm_params);
    bsk_batch_norm_args norm_args = BSK_INIT(bsk_batch_norm_args);
    float mean = 7, var = 7, dgain = 7;
    norm.x = norm.y = bsk_tensor_3d(BSK_F32, rows, 1, 0);
    norm.mean = norm.var = bsk_tensor_1d(BSK_F32, 1);
    norm_args.mean = bsk_host_ptr(&mean);
    norm_args.var = bsk_host_ptr(&var);
    RUN(batch_norm, &norm, &norm_args);
    CHECK(mean == 0 && var == 0);

    bsk_batch_norm_grad_params grad = BSK_INIT(bsk_batch_norm_grad_params);
    bsk_batch_norm_grad_args grad_args = BSK_INIT_ALPHA(bsk_batch_norm_grad_args);
    grad.dy = grad.x = grad.dx = norm.x;
    grad.mean = grad.var = grad.dgain = norm.mean;
    grad_args.mean = bsk_host_ptr(&mean);
    grad_args.var = bsk_host_ptr(&var);
    grad_args.dgain = bsk_host_ptr(&dgain);
    RUN(batch_norm_grad, &grad, &grad_args);
    CHECK(dgain == 0);
}

/* Segments of all rows can be counted, even where there are no features to divide. */
static void test_segments(const bsk_device *device)
{
    bsk_layer_norm_params p = BSK_INIT(bsk_layer_norm_params);
    bsk_plan *plan = NULL;
    p.x = p.y = bsk_tensor_2d(BSK_F32, 16, 0);
    p.segments = INT64_MAX / 16;
    CHECK_OK(bsk_layer_norm_plan(device, &p, NULL, &plan));
    bsk_plan_destroy(&plan);
    p.segments++;
    CHECK_ERROR(bsk_layer_norm_plan(device, &p, NULL, &plan), BSK_E_INVALID,
                "segments is 576460752303423488; legal are up to 576460752303423487");
}

/* Messages have as many strides as the tensor. */
static void test_strides(const bsk_device *device)
{
    bsk_unary_params p = BSK_INIT(bsk_unary_params);
    bsk_plan *plan = NULL;
    p.x = p.y = (bsk_tensor){BSK_F32, 2, {3, 4}, {1, 2}};
    CHECK_ERROR(bsk_unary_plan(device, &p, NULL, &plan), BSK_E_INVALID, "y.strides are 1, 2: an");
    p.x = p.y = (bsk_tensor){BSK_F32, 5, {2, 2, 2, 2, 2}, {16, 8, 4, 2, 2}};
    CHECK_ERROR(bsk_unary_plan(device, &p, NULL, &plan), BSK_E_INVALID,
                "y.strides are 16, 8, 4, 2, 2: an");
    bsk_masked_softmax_params softmax = BSK_INIT(bsk_masked_softmax_params);
    softmax.x = softmax.y = (bsk_tensor){BSK_F32, 1, {4}, {3}};
    CHECK_ERROR(bsk_masked_softmax_plan(device, &softmax, NULL, &plan), BSK_E_INVALID,
                "x.strides are 3: the last");
}

/* Prepacking for an entry that has no image says so, not that a run's argument was given. */
static void test_no_image(bsk_context *context, const bsk_device *device, bsk_queue *queue)
{
    bsk_layout_params grid = BSK_INIT(bsk_layout_params);
    bsk_layout *layout = NULL;
    bsk_matmul_params p = BSK_INIT(bsk_matmul_params);
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    bsk_plan *plan = NULL;
    float memory[64] = {0};
    grid.rows = grid.cols = grid.block_rows = grid.block_cols = 8;
    CHECK_OK(bsk_layout_random(context, &grid, 1, 1, &layout));
    p.layout = layout;
    p.x = p.y = bsk_tensor_2d(BSK_F32, 4, 8);
    p.w = bsk_tensor_3d(BSK_F32, 1, 8, 8);
    options.kernels = "+ref_*";
    CHECK_OK(bsk_matmul_plan(device, &p, &options, &plan));
    const bsk_mem mem = bsk_host_ptr(memory);
    CHECK_ERROR(bsk_matmul_prepack(plan, queue, mem, mem), BSK_E_INVALID,
                "entry ref_dsd takes no packed image");
    bsk_plan_destroy(&plan);
    bsk_layout_release(&layout);
}

enum { LISTS = 4 };

/* Processor seconds of a run with so many tensors of one element, the best of a few. */
static double list_seconds(const bsk_device *device, bsk_queue *queue, int32_t pairs)
{
    bsk_adam_n_params p = BSK_INIT(bsk_adam_n_params);
    bsk_adam_n_args a = BSK_INIT(bsk_adam_n_args);
    bsk_plan *plan = NULL;
    float *memory = calloc((size_t)pairs * LISTS, sizeof *memory);
    bsk_mem *views = calloc((size_t)pairs * LISTS, sizeof *views);
    double best = INFINITY;
    if (!memory || !views)
        abort();
    for (int32_t i = 0; i < pairs; i++)
        for (int l = 0; l < LISTS; l++)
            views[l * pairs + i] = bsk_host_ptr(memory + LISTS * i + l);
    p.pairs = pairs;
    p.param = p.grad = p.m = p.v = bsk_tensor_1d(BSK_F32, 1);
    a.step = 1;
    a.param = views;
    a.grad = views + pairs;
    a.m = views + 2 * pairs;
    a.v = views + 3 * pairs;
    CHECK_OK(bsk_adam_n_plan(device, &p, NULL, &plan));
    for (int i = 0; i < 3; i++) {
        const clock_t before = clock();
        CHECK_OK(bsk_adam_n_run(plan, queue, &a));
        const double seconds = (double)(clock() - before) / CLOCKS_PER_SEC;
        best = seconds < best ? seconds : best;
    }
    bsk_plan_destroy(&plan);
    free(memory);
    free(views);
    return best;
}

/* All views are compared with all others, in a time that does not grow with their square: 16 times
 * as many would take 256 times as long. */
static void test_list_time(const bsk_device *device, bsk_queue *queue)
{
    const double few = list_seconds(device, queue, 4096);
    const double many = list_seconds(device, queue, 65536);
    if (!CHECK(many < 80 * few))
        fprintf(stderr, "  %g s and %g s\n", few, many);
}

/* Lists of blocks are checked, and copied; images without positions take no time. */
static void test_conv(const bsk_device *device, bsk_queue *queue)
{
    static const struct {
        int32_t list[5];
        int64_t size;
        const char *message;
    } bad[] = {
        {{1}, 1, "the last block begins at 0 and needs 2 numbers or more"},
        {{1, 1, 0, 0, 1}, 5, "the last block begins at 4 and needs 2 numbers or more"},
        {{-1, 1, 0}, 3, "shape.blocks[0] is -1; legal are 0 to 1 (inputs of a block)"},
        {{1, 2, 0, 0}, 4, "shape.blocks[1] is 2; legal are 0 to 1 (outputs of a block)"},
        {{1, 1, 3, 0}, 4, "shape.blocks[2] is 3; legal are 0 to 2 (channels of x)"},
        {{1, 1, 0, -1}, 4, "shape.blocks[3] is -1; legal are 0 to 1 (channels of y)"},
        {{0}, -1, "the size of its list is -1"},
    };
    int32_t good[] = {1, 1, 2, 1};
    float x[] = {2, 3, 5}, w[] = {7}, y[] = {1, 1};
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    bsk_plan *made = NULL;
    bsk_conv_params p = BSK_INIT(bsk_conv_params);
    p.x = bsk_tensor_3d(BSK_F32, 1, 3, 1);
    p.w = bsk_tensor_1d(BSK_F32, 1);
    p.y = bsk_tensor_3d(BSK_F32, 1, 2, 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        p.shape.blocks = bad[i].list;
        p.shape.blocks_size = bad[i].size;
        CHECK(bsk_conv_plan(device, &p, NULL, &made) == BSK_E_INVALID &&
              strstr(bsk_last_error(), bad[i].message));
    }
    p.shape.blocks = NULL;
    p.shape.blocks_size = 4;
    CHECK(bsk_conv_plan(device, &p, NULL, &made) == BSK_E_INVALID);
    p.shape.blocks = good;
    CHECK_OK(bsk_conv_plan(device, &p, NULL, &made));
    good[2] = good[3] = 0;
    bsk_conv_args a = BSK_INIT_ALPHA(bsk_conv_args);
    _Alignas(64) float workspace[64];
    a.workspace = bsk_host_ptr(workspace);
    a.workspace.size = sizeof workspace;
    a.x = bsk_host_ptr(x);
    a.w = bsk_host_ptr(w);
    a.y = bsk_host_ptr(y);
    CHECK_OK(bsk_conv_run(made, queue, &a));
    CHECK(y[0] == 0 && y[1] == 35);
    bsk_plan_destroy(&made);

    bsk_conv_wgrad_params g = BSK_INIT(bsk_conv_wgrad_params);
    bsk_conv_wgrad_args b = BSK_INIT_ALPHA(bsk_conv_wgrad_args);
    g.shape = p.shape;
    g.x = g.dy = bsk_tensor_3d(BSK_F32, rows, 3, 0);
    g.dw = p.w;
    b.dw = a.w;
    RUN(conv_wgrad, &g, &b);
    options.kernels = "+ref_*";
    w[0] = 1;
    RUN(conv_wgrad, &g, &b);
    CHECK(w[0] == 0);
}

/* The sets of taps outside of an image, by bits, and their numbers by the order in which they appear. */
static void test_conv_edges(void)
{
    static const struct {
        int32_t rank, filter[3], stride[3], dilation[3], pad[3];
        int64_t inputs[3], outputs[3];
    } cases[] = {
        {1, {3}, {1}, {1}, {1}, {6}, {6}},
        {1, {4}, {3}, {2}, {5}, {8}, {5}},
        {1, {2}, {1}, {1}, {0}, {0}, {3}},                   /* all outside */
        {2, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {5, 4}, {5, 4}}, /* corners and sides */
        {2, {3, 2}, {2, 3}, {2, 1}, {2, 4}, {7, 5}, {5, 6}}, /* some see nothing */
        {3, {2, 1, 3}, {1, 2, 2}, {3, 1, 1}, {1, 1, 0}, {4, 3, 5}, {4, 3, 3}},
        {1, {1}, {1}, {1}, {0}, {5}, {5}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int32_t deconv = 0; deconv < 2; deconv++) {
            bsk_conv_shape s = {0};
            int32_t edges[64];
            uint64_t seen[64];
            int64_t sets, positions = 1, count = 0;
            const int64_t *sizes = deconv ? cases[i].inputs : cases[i].outputs;
            const int64_t *others = deconv ? cases[i].outputs : cases[i].inputs;
            memcpy(s.filter, cases[i].filter, sizeof s.filter);
            memcpy(s.stride, cases[i].stride, sizeof s.stride);
            memcpy(s.dilation, cases[i].dilation, sizeof s.dilation);
            memcpy(s.pad, cases[i].pad, sizeof s.pad);
            for (int d = 0; d < cases[i].rank; d++)
                positions *= sizes[d];
            CHECK_OK(bsk_conv_edges(&s, cases[i].rank, cases[i].inputs, cases[i].outputs, deconv,
                                    edges, &sets));
            for (int64_t q = 0; q < positions; q++) {
                uint64_t lacked = 0, bit = 1;
                int64_t taps = 1, known = 0;
                for (int d = 0; d < cases[i].rank; d++)
                    taps *= s.filter[d];
                for (int64_t tap = 0; tap < taps; tap++, bit <<= 1) {
                    int64_t t = tap, p = q;
                    for (int d = cases[i].rank - 1; d >= 0; d--) {
                        const int64_t offset = t % s.filter[d] * s.dilation[d] - s.pad[d];
                        int64_t at = p % sizes[d] * s.stride[d] + offset;
                        if (deconv)
                            at = p % sizes[d] - offset;
                        t /= s.filter[d];
                        p /= sizes[d];
                        if (deconv && at % s.stride[d])
                            continue;
                        if (at < 0 || at >= others[d] * (deconv ? s.stride[d] : 1))
                            lacked |= bit;
                    }
                }
                while (known < count && seen[known] != lacked)
                    known++;
                if (lacked && known == count)
                    seen[count++] = lacked;
                CHECK(edges[q] == (lacked ? known : -1));
            }
            CHECK(sets == count);
        }
    const int64_t size = 4, huge = (int64_t)1 << 31;
    int32_t edges[4];
    int64_t sets;
    const bsk_conv_shape good = {.filter = {3}}, bad = {.stride = {-1}};
    CHECK(bsk_conv_edges(NULL, 1, &size, &size, 0, edges, &sets) == BSK_E_INVALID);
    CHECK(bsk_conv_edges(&good, 4, &size, &size, 0, edges, &sets) == BSK_E_INVALID);
    CHECK(bsk_conv_edges(&good, 1, &size, &size, 2, edges, &sets) == BSK_E_INVALID);
    CHECK(bsk_conv_edges(&good, 1, &size, &huge, 0, edges, &sets) == BSK_E_INVALID);
    CHECK(bsk_conv_edges(&bad, 1, &size, &size, 0, edges, &sets) == BSK_E_INVALID &&
          strstr(bsk_last_error(), "shape.stride[0] is -1; legal are 0 to 1048576"));
}

int main(void)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    bsk_queue *queue = NULL;
    if (!CHECK_OK(bsk_context_create(&params, &context)))
        return unit_report();
    const bsk_device *device = bsk_context_device(context, 0);
    CHECK_OK(bsk_queue_create(device, &queue));
    test_empty(device, queue, NULL);
    test_empty(device, queue, "+ref_*");
    test_empty_channels(device, queue);
    test_segments(device);
    test_strides(device);
    test_no_image(context, device, queue);
    test_list_time(device, queue);
    test_conv(device, queue);
    test_conv_edges();
    bsk_queue_destroy(&queue);
    bsk_context_destroy(&context);
    return unit_report();
}
