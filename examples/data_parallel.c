/* Several ranks train Y = X W, W block-sparse, each on its share of the samples: gradients are added by
 * group_all_reduce before each step. Each also trains alone on all samples, and compares.
 *
 *     mpirun -n 2 data_parallel        with bsk_comm_mpi.so installed, or in BSK_PLUGIN_PATH */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include <bsk/bsk.h>

enum { SAMPLES = 48, K = 64, M = 32, BLOCK = 16, STEPS = 20 };

#define CHECK(call)                                                                                \
    do {                                                                                           \
        if (call) {                                                                                \
            fprintf(stderr, "%s\n", bsk_last_error());                                             \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)

/* One model and its plans, on some of the samples. */
typedef struct trainer {
    const bsk_device *device;
    bsk_queue *queue;
    bsk_comm_plan *sum; /* NULL: alone */
    bsk_plan *forward, *backward;
    bsk_matmul_args f;
    bsk_matmul_wgrad_args b;
    bsk_tensor_list_args s;
    bsk_mem dy_mem;
    float *x, *y, *dy, *w, *dw;
    const float *target;
    int samples;
    size_t weights;
} trainer;

/* Numbers between -1 and 1 that depend on their place alone. */
static float number(int i, int salt)
{
    const uint32_t mixed = ((uint32_t)i * 2u + (uint32_t)salt) * 2654435761u;
    return (float)(mixed >> 16) / 32768 - 1;
}

static float *floats(size_t count)
{
    float *p = aligned_alloc(64, (count * sizeof(*p) + 63) / 64 * 64);
    if (!p)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return p;
}

static bsk_mem workspace(const trainer *t, const bsk_plan *plan)
{
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    bsk_mem mem;
    CHECK(bsk_plan_query(plan, &info));
    CHECK(bsk_mem_alloc(t->device, info.workspace_bytes, &mem));
    return mem;
}

/* The model on samples first, first + 1 ... */
static void trainer_make(trainer *t, const bsk_device *device, bsk_comm *comm, bsk_layout *layout,
                         const float *all_x, const float *all_y, int first, int samples)
{
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    bsk_matmul_params f = BSK_INIT(bsk_matmul_params);
    bsk_matmul_wgrad_params b = BSK_INIT(bsk_matmul_wgrad_params);
    CHECK(bsk_layout_query(layout, &info));
    CHECK(bsk_queue_create(device, &t->queue));
    t->device = device;
    t->samples = samples;
    t->weights = (size_t)info.nnz * BLOCK * BLOCK;
    t->x = floats((size_t)samples * K);
    t->y = floats((size_t)samples * M);
    t->dy = floats((size_t)samples * M);
    t->w = floats(t->weights);
    t->dw = floats(t->weights);
    memcpy(t->x, all_x + (size_t)first * K, sizeof(float) * (size_t)samples * K);
    t->target = all_y + (size_t)first * M;
    memset(t->w, 0, t->weights * sizeof(float));

    f.layout = b.layout = layout;
    f.x = b.x = bsk_tensor_2d(BSK_F32, samples, K);
    f.w = b.dw = bsk_tensor_3d(BSK_F32, info.nnz, BLOCK, BLOCK);
    f.y = b.dy = bsk_tensor_2d(BSK_F32, samples, M);
    CHECK(bsk_matmul_plan(device, &f, NULL, &t->forward));
    CHECK(bsk_matmul_wgrad_plan(device, &b, NULL, &t->backward));
    t->f = (bsk_matmul_args)BSK_INIT_ALPHA(bsk_matmul_args);
    t->f.x = bsk_host_ptr(t->x);
    t->f.w = bsk_host_ptr(t->w);
    t->f.y = bsk_host_ptr(t->y);
    t->f.workspace = workspace(t, t->forward);
    t->b = (bsk_matmul_wgrad_args)BSK_INIT_ALPHA(bsk_matmul_wgrad_args);
    t->dy_mem = bsk_host_ptr(t->dy);
    t->b.x = &t->f.x;
    t->b.dy = &t->dy_mem;
    t->b.dw = bsk_host_ptr(t->dw);
    t->b.workspace = workspace(t, t->backward);
    if (!comm)
        return;
    bsk_group_all_reduce_params s = BSK_INIT(bsk_group_all_reduce_params);
    bsk_comm_plan_info wanted = BSK_INIT(bsk_comm_plan_info);
    s.count = 1; /* a model has many: all go here, in one list */
    s.tensors = &b.dw;
    CHECK(bsk_group_all_reduce_plan(comm, &s, &t->sum));
    CHECK(bsk_comm_plan_query(t->sum, &wanted));
    t->s = (bsk_tensor_list_args)BSK_INIT(bsk_tensor_list_args);
    t->s.tensors = &t->b.dw;
    CHECK(bsk_mem_alloc(device, wanted.workspace_bytes, &t->s.workspace));
}

/* A step of gradient descent on the mean of squares; answers this rank's part of the loss. */
static float step(trainer *t)
{
    float loss = 0;
    CHECK(bsk_matmul_run(t->forward, t->queue, &t->f));
    for (int i = 0; i < t->samples * M; i++) {
        const float error = t->y[i] - t->target[i];
        t->dy[i] = 2 * error / (SAMPLES * M);
        loss += error * error / (SAMPLES * M);
    }
    CHECK(bsk_matmul_wgrad_run(t->backward, t->queue, &t->b));
    if (t->sum)
        CHECK(bsk_group_all_reduce_run(t->sum, t->queue, &t->s));
    for (size_t i = 0; i < t->weights; i++)
        t->w[i] -= 8 * t->dw[i];
    return loss;
}

static void trainer_free(trainer *t)
{
    bsk_comm_plan_destroy(&t->sum);
    bsk_plan_destroy(&t->forward);
    bsk_plan_destroy(&t->backward);
    bsk_mem_free(t->device, &t->f.workspace);
    bsk_mem_free(t->device, &t->b.workspace);
    bsk_mem_free(t->device, &t->s.workspace);
    bsk_queue_destroy(&t->queue);
    float *const all[] = {t->x, t->y, t->dy, t->w, t->dw};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

int main(int argc, char **argv)
{
    bsk_context *context;
    const bsk_device *device;
    bsk_layout *layout;
    bsk_comm *comm;
    bsk_comm_info info = BSK_INIT(bsk_comm_info);
    bsk_layout_params lp = {sizeof(lp), K, M, BLOCK, BLOCK, 1, BSK_ORDER_ROW};
    static float x[SAMPLES * K], y[SAMPLES * M];
    MPI_Init(&argc, &argv);
    CHECK(bsk_context_create(NULL, &context));
    CHECK(bsk_context_find_device(context, "cpu:0", &device));
    CHECK(bsk_layout_random(context, &lp, 0.5, 1, &layout));
    CHECK(bsk_comm_create(device, NULL, &comm)); /* of MPI_COMM_WORLD */
    CHECK(bsk_comm_query(comm, &info));
    for (int i = 0; i < SAMPLES * K; i++)
        x[i] = number(i, 1);
    for (int i = 0; i < SAMPLES * M; i++)
        y[i] = number(i, 2);

    trainer shared = {0}, alone = {0};
    const int first = SAMPLES * info.rank / info.size;
    const int end = SAMPLES * (info.rank + 1) / info.size;
    trainer_make(&shared, device, comm, layout, x, y, first, end - first);
    trainer_make(&alone, device, NULL, layout, x, y, 0, SAMPLES);
    float difference = 0, loss = 0, begin = 0;
    for (int i = 0; i < STEPS; i++) {
        step(&shared);
        loss = step(&alone);
        begin = i ? begin : loss;
    }
    for (size_t i = 0; i < shared.weights; i++)
        difference = fmaxf(difference, fabsf(shared.w[i] - alone.w[i]));
    const int good = difference < 1e-4f && loss < begin;
    if (!info.rank)
        printf("%d ranks: loss %.4f to %.4f; weights differ by %.1e from those of one rank\n",
               (int)info.size, (double)begin, (double)loss, (double)difference);
    trainer_free(&shared);
    trainer_free(&alone);
    bsk_comm_destroy(&comm);
    bsk_layout_release(&layout);
    bsk_context_destroy(&context);
    MPI_Finalize();
    return good ? 0 : 1;
}
