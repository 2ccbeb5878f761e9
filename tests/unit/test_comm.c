/* Collectives by a fake transport, whose ranks all have what this one has: bad arguments, buckets,
 * casts, and faults. Arguments: the fake transport, the fake backend. */
#include "fake_use.h"
#include "tests/fake/comm.h"

enum { RANKS = 3, RANK = 1 };

static fake_comm *state;
static const fake_control *backend;
static const char *plugin_path;

static void state_reset(void)
{
    *state = (fake_comm){.rank = RANK,
                         .size = RANKS,
                         .sums = BSK_DTYPE_BIT(BSK_F32) | BSK_DTYPE_BIT(BSK_F64) |
                                 BSK_DTYPE_BIT(BSK_I32)};
}

typedef struct bench {
    bsk_context *context;
    const bsk_device *device;
    bsk_queue *queue;
    bsk_comm *comm;
} bench;

static bsk_comm_params fake_params(void)
{
    bsk_comm_params p = BSK_INIT(bsk_comm_params);
    p.transport = "fake";
    return p;
}

static bench bench_new(const char *id)
{
    bench b = {0};
    bsk_context_params params = unit_params();
    const bsk_comm_params p = fake_params();
    params.plugin_path = plugin_path;
    state_reset();
    CHECK_OK(bsk_context_create(&params, &b.context));
    CHECK_OK(bsk_context_find_device(b.context, id, &b.device));
    CHECK_OK(bsk_queue_create(b.device, &b.queue));
    CHECK_OK(bsk_comm_create(b.device, &p, &b.comm));
    return b;
}

static void bench_free(bench *b)
{
    bsk_comm_destroy(&b->comm);
    CHECK(!b->comm && state->live == 0);
    bsk_queue_destroy(&b->queue);
    bsk_context_destroy(&b->context);
    fake_check_clean(backend);
}

/* --- Communicators --- */

static void test_missing(void)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    bsk_comm *comm = NULL;
    CHECK_OK(bsk_context_create(&params, &context));
    const bsk_device *device = bsk_context_device(context, 0);
    bsk_comm_params p = fake_params();
    CHECK_ERROR(bsk_comm_create(device, &p, &comm), BSK_E_UNSUPPORTED, "no bsk_comm_fake.so in /");
    CHECK(!comm);
    static const char *const names[] = {"", "../x", "NCCL", "a234567890123456x"};
    for (size_t i = 0; i < UNIT_COUNT(names); i++) {
        p.transport = names[i];
        CHECK_ERROR(bsk_comm_create(device, &p, &comm), BSK_E_INVALID, "params.transport is");
    }
    bsk_context_destroy(&context);

    fake_directory other = fake_directory_new(); /* a file that is no module */
    fclose(fopen(fake_directory_file(&other, "bsk_comm_fake.so"), "w"));
    params.plugin_path = other.path;
    p.transport = "fake";
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK(!strcmp(bsk_context_backend_notes(context), "")); /* no context opens it */
    CHECK_ERROR(bsk_comm_create(bsk_context_device(context, 0), &p, &comm), BSK_E_UNSUPPORTED,
                other.path);
    bsk_context_destroy(&context);
    fake_directory_remove(&other);
}

static void test_create(void)
{
    bench b = bench_new("cpu:0");
    bsk_comm_info info = BSK_INIT(bsk_comm_info);
    bsk_comm_id id;
    bsk_comm *comm = NULL;
    CHECK_OK(bsk_comm_query(b.comm, &info));
    CHECK(info.rank == RANK && info.size == RANKS && !strcmp(info.transport, "fake"));
    CHECK(info.sums == (state->sums | BSK_DTYPE_BIT(BSK_F16) | BSK_DTYPE_BIT(BSK_BF16)));
    CHECK_ERROR(bsk_comm_query(NULL, &info), BSK_E_INVALID, "comm is NULL");
    CHECK_ERROR(bsk_comm_create(b.device, NULL, NULL), BSK_E_INVALID, "comm is NULL");
    CHECK_ERROR(bsk_comm_create(NULL, NULL, &comm), BSK_E_INVALID, "device is NULL");
    CHECK_ERROR(bsk_comm_id_create(b.device, NULL, NULL), BSK_E_INVALID, "id is NULL");

    const bsk_comm_params named = fake_params();
    CHECK_OK(bsk_comm_id_create(b.device, &named, &id));
    CHECK(id.bytes[0] == 7 && id.bytes[127] == 7);
    const struct {
        int native, id, rank, size, device_memory;
        const char *part; /* NULL: legal */
    } rows[] = {
        {0, 1, 4, 5, 0, NULL},
        {1, 0, 0, 0, 1, NULL},
        {1, 1, 0, 1, 0, "native and params.id"},
        {0, 1, 0, 0, 0, "params.size is 0"},
        {0, 1, 5, 5, 0, "params.rank is 5; legal are 0 to 4"},
        {0, 1, -1, 5, 0, "params.rank is -1"},
        {0, 0, 1, 2, 0, "legal is 0 without params.id"},
        {0, 0, 0, 0, 2, "params.device_memory is 2"},
    };
    for (size_t i = 0; i < UNIT_COUNT(rows); i++) {
        bsk_comm_params p = fake_params();
        p.native = rows[i].native ? &b : NULL;
        p.id = rows[i].id ? &id : NULL;
        p.rank = rows[i].rank;
        p.size = rows[i].size;
        p.device_memory = rows[i].device_memory;
        if (rows[i].part) {
            CHECK_ERROR(bsk_comm_create(b.device, &p, &comm), BSK_E_INVALID, rows[i].part);
            CHECK(!comm);
            continue;
        }
        CHECK_OK(bsk_comm_create(b.device, &p, &comm));
        CHECK(state->request.native == p.native && state->request.id == p.id &&
              state->request.device_memory == p.device_memory &&
              !strcmp(state->request.backend, "cpu"));
        CHECK_OK(bsk_comm_query(comm, &info));
        CHECK(info.rank == (p.id ? 4 : RANK) && info.size == (p.id ? 5 : RANKS));
        bsk_comm_destroy(&comm);
    }
    for (int silent = 0; silent < 2; silent++) {
        const char *part = silent ? "answers BSK_E_DEVICE" : "as told";
        state->silent = silent;
        state->fail_create = BSK_E_DEVICE;
        CHECK_ERROR(bsk_comm_create(b.device, &named, &comm), BSK_E_DEVICE, part);
        state->fail_create = BSK_E_DEVICE;
        CHECK_ERROR(bsk_comm_id_create(b.device, &named, &id), BSK_E_DEVICE, part);
    }
    state->abi_off = 1;
    CHECK_ERROR(bsk_comm_create(b.device, &named, &comm), BSK_E_UNSUPPORTED, "other ABI version");
    state->abi_off = 0;
    bench_free(&b);
}

/* --- Plans and runs of one tensor --- */

static void test_pair_plans(void)
{
    bench b = bench_new("cpu:0");
    const struct {
        bsk_status (*plan)(bsk_comm *, const bsk_collective_params *, bsk_comm_plan **);
        bsk_tensor x, y;
        const char *part; /* NULL: legal */
    } rows[] = {
        {bsk_all_reduce_plan, {BSK_F32, 0}, {BSK_F32, 0}, NULL},
        {bsk_all_reduce_plan, {BSK_U8, 1, {4}}, {BSK_U8, 1, {4}}, "x.dtype is u8 (8); legal are"},
        {bsk_all_reduce_plan, {BSK_F32, 1, {4}}, {BSK_F64, 1, {4}}, "y.dtype is f64; must be f32"},
        {bsk_all_reduce_plan, {BSK_F32, 1, {4}}, {BSK_F32, 1, {5}}, "y.dims[0] 5; must be equal"},
        {bsk_all_reduce_plan, {BSK_F32, 2, {2, 2}}, {BSK_F32, 1, {4}}, "y.rank is 1; must be 2"},
        {bsk_all_reduce_plan,
         {BSK_F32, 2, {2, 2}, {4, 1}},
         {BSK_F32, 2, {2, 2}},
         "x is not contiguous"},
        {bsk_all_reduce_plan, {BSK_F32, 1, {-1}}, {BSK_F32, 1, {-1}}, "x.dims[0] is -1"},
        {bsk_reduce_scatter_plan, {BSK_F32, 0}, {BSK_F32, 0}, "x.rank is 0; legal are 1 to 5"},
        {bsk_reduce_scatter_plan, {BSK_F32, 1, {6}}, {BSK_F32, 1, {2}}, NULL},
        {bsk_reduce_scatter_plan, {BSK_F32, 1, {7}}, {BSK_F32, 1, {2}}, "x's must be y's by"},
        {bsk_all_gather_plan, {BSK_U16, 1, {2}}, {BSK_U16, 1, {6}}, NULL},
        {bsk_all_gather_plan, {BSK_F32, 1, {2}}, {BSK_F32, 1, {2}}, "y's must be x's by"},
        {bsk_all_gather_plan, {BSK_NONE}, {BSK_NONE}, "x.dtype is none (0)"},
    };
    for (size_t i = 0; i < UNIT_COUNT(rows); i++) {
        bsk_collective_params p = BSK_INIT(bsk_collective_params);
        bsk_comm_plan *plan = NULL;
        p.x = rows[i].x;
        p.y = rows[i].y;
        if (rows[i].part) {
            CHECK_ERROR(rows[i].plan(b.comm, &p, &plan), BSK_E_INVALID, rows[i].part);
            CHECK(!plan);
        } else {
            CHECK_OK(rows[i].plan(b.comm, &p, &plan));
            bsk_comm_plan_destroy(&plan);
        }
        CHECK_ERROR(rows[i].plan(NULL, &p, &plan), BSK_E_INVALID, "comm is NULL");
        CHECK_ERROR(rows[i].plan(b.comm, NULL, &plan), BSK_E_INVALID, "params is NULL");
        CHECK_ERROR(rows[i].plan(b.comm, &p, NULL), BSK_E_INVALID, "plan is NULL");
    }
    bench_free(&b);
}

static void test_pair_runs(void)
{
    enum { N = 6 };
    bench b = bench_new("cpu:0");
    float x[N + 1] = {1, 2, 3, 4, 5, 6}, y[N + 1] = {0};
    bsk_collective_params p = BSK_INIT(bsk_collective_params);
    bsk_collective_args a = BSK_INIT(bsk_collective_args);
    bsk_comm_plan *plan = NULL;
    bsk_queue *other = NULL;
    p.x = p.y = bsk_tensor_1d(BSK_F32, N);
    CHECK_OK(bsk_all_reduce_plan(b.comm, &p, &plan));
    CHECK_OK(bsk_queue_create(fake_device_find(b.context, "fake:0"), &other));
    a.x = bsk_host_ptr(x);
    a.y = bsk_host_ptr(y);
    CHECK_ERROR(bsk_all_reduce_run(NULL, b.queue, &a), BSK_E_INVALID, "plan is NULL");
    CHECK_ERROR(bsk_all_reduce_run(plan, NULL, &a), BSK_E_INVALID, "queue is NULL");
    CHECK_ERROR(bsk_all_reduce_run(plan, b.queue, NULL), BSK_E_INVALID, "args is NULL");
    CHECK_ERROR(bsk_all_reduce_run(plan, other, &a), BSK_E_INVALID, "the queue of fake:0");
    CHECK_ERROR(bsk_all_gather_run(plan, b.queue, &a), BSK_E_INVALID, "made for all_reduce");
    a.x.size = 4;
    CHECK_ERROR(bsk_all_reduce_run(plan, b.queue, &a), BSK_E_INVALID, "args.x.size is 4 bytes");
    a.x = bsk_mem_at(bsk_host_ptr(x), 2);
    CHECK_ERROR(bsk_all_reduce_run(plan, b.queue, &a), BSK_E_INVALID, "args.x lies 2 bytes");
    a.x = bsk_device_ptr(x);
    CHECK_ERROR(bsk_all_reduce_run(plan, b.queue, &a), BSK_E_INVALID, "the kind of x is 2");
    a.x = bsk_host_ptr(NULL);
    CHECK_ERROR(bsk_all_reduce_run(plan, b.queue, &a), BSK_E_INVALID, "args.x is NULL");
    a.x = bsk_host_ptr(y + 1);
    CHECK_ERROR(bsk_all_reduce_run(plan, b.queue, &a), BSK_E_INVALID, "args.y overlaps args.x");
    CHECK(state->runs == 0 && y[0] == 0); /* nothing was begun */
    a.x = bsk_host_ptr(x);
    state->fail_run = BSK_E_DEVICE;
    CHECK_ERROR(bsk_all_reduce_run(plan, b.queue, &a), BSK_E_DEVICE, "as told");
    state->fail_run = BSK_E_DEVICE;
    state->silent = true;
    CHECK_ERROR(bsk_all_reduce_run(plan, b.queue, &a), BSK_E_DEVICE, "all_reduce answers");
    CHECK_OK(bsk_all_reduce_run(plan, b.queue, &a));
    CHECK(y[0] == RANKS && y[N - 1] == 6 * RANKS && y[N] == 0 && x[0] == 1);
    bsk_comm_plan_destroy(&plan);
    CHECK(!plan);

    /* f16 goes in f32, through a workspace that is asked for; its bits here are those of 2 and 6. */
    uint16_t h[N] = {0x4000, 0x4000, 0x4000, 0x4000, 0x4000, 0x4000}, part[N / RANKS] = {0};
    bsk_comm_plan_info info = BSK_INIT(bsk_comm_plan_info);
    p.x = bsk_tensor_1d(BSK_F16, N);
    p.y = bsk_tensor_1d(BSK_F16, N / RANKS);
    CHECK_OK(bsk_reduce_scatter_plan(b.comm, &p, &plan));
    CHECK_OK(bsk_comm_plan_query(plan, &info));
    CHECK(info.workspace_bytes >= 512 && info.calls == 1 && info.bytes == N * sizeof(float) &&
          info.capture_safe && !strcmp(info.op, "reduce_scatter"));
    a.x = bsk_host_ptr(h);
    a.y = bsk_host_ptr(part);
    CHECK_ERROR(bsk_reduce_scatter_run(plan, b.queue, &a), BSK_E_INVALID, "args.workspace has 0");
    CHECK_OK(bsk_mem_alloc(b.device, info.workspace_bytes, &a.workspace));
    const bsk_mem workspace = a.workspace;
    a.workspace.size--;
    CHECK_ERROR(bsk_reduce_scatter_run(plan, b.queue, &a), BSK_E_INVALID, "args.workspace has");
    a.workspace = workspace;
    a.y = workspace;
    CHECK_ERROR(bsk_reduce_scatter_run(plan, b.queue, &a), BSK_E_INVALID, "workspace overlaps");
    a.y = bsk_host_ptr(h + 1);
    CHECK_ERROR(bsk_reduce_scatter_run(plan, b.queue, &a), BSK_E_INVALID, "args.y overlaps args.x");
    a.y = bsk_host_ptr(part);
    CHECK_OK(bsk_reduce_scatter_run(plan, b.queue, &a));
    CHECK(part[0] == 0x4600 && part[1] == 0x4600 && h[0] == 0x4000);
    a.y = bsk_host_ptr(h + RANK * N / RANKS);
    CHECK_OK(bsk_reduce_scatter_run(plan, b.queue, &a));
    CHECK(h[1] == 0x4000 && h[2] == 0x4600 && h[3] == 0x4600 && h[4] == 0x4000);
    a.workspace = workspace;
    bsk_mem_free(b.device, &a.workspace);
    bsk_comm_plan_destroy(&plan);
    bsk_queue_destroy(&other);
    bench_free(&b);
}

/* --- Lists --- */

static void test_group(void)
{
    enum { COUNT = 5 };
    bench b = bench_new("cpu:0");
    _Alignas(16) float f[3][8] = {{1, 2, 3}, {4, 5}, {6, 7, 8, 9}};
    _Alignas(16) int32_t n[8] = {1, 2};
    const bsk_tensor tensors[COUNT] = {bsk_tensor_1d(BSK_F32, 3), bsk_tensor_1d(BSK_I32, 2),
                                       bsk_tensor_1d(BSK_F32, 2), bsk_tensor_1d(BSK_F64, 0),
                                       bsk_tensor_1d(BSK_F32, 4)};
    bsk_mem mems[COUNT] = {bsk_host_ptr(f[0]), bsk_host_ptr(n), bsk_host_ptr(f[1]),
                           bsk_host_ptr(NULL), bsk_host_ptr(f[2])};
    bsk_group_all_reduce_params p = BSK_INIT(bsk_group_all_reduce_params);
    bsk_tensor_list_args a = BSK_INIT(bsk_tensor_list_args);
    bsk_comm_plan_info info = BSK_INIT(bsk_comm_plan_info);
    bsk_comm_plan *plan = NULL;
    p.count = COUNT;
    p.tensors = NULL;
    CHECK_ERROR(bsk_group_all_reduce_plan(b.comm, &p, &plan), BSK_E_INVALID, "tensors is NULL");
    p.tensors = tensors;
    p.count = 65537;
    CHECK_ERROR(bsk_group_all_reduce_plan(b.comm, &p, &plan), BSK_E_INVALID, "count is 65537");
    p.count = COUNT;
    p.bucket_bytes = -1;
    CHECK_ERROR(bsk_group_all_reduce_plan(b.comm, &p, &plan), BSK_E_INVALID, "bucket_bytes is -1");
    p.bucket_bytes = 20; /* the first and the third tensor, and the last one alone */
    p.wire = BSK_I32;
    CHECK_ERROR(bsk_group_all_reduce_plan(b.comm, &p, &plan), BSK_E_INVALID, "wire.dtype is i32");
    p.wire = BSK_NONE;
    CHECK_OK(bsk_group_all_reduce_plan(b.comm, &p, &plan));
    CHECK_OK(bsk_comm_plan_query(plan, &info));
    CHECK(info.calls == 3 && info.bytes == 44);
    CHECK_ERROR(bsk_group_all_reduce_run(plan, b.queue, &a), BSK_E_INVALID, "tensors is NULL");
    a.tensors = mems;
    CHECK_OK(bsk_mem_alloc(b.device, info.workspace_bytes, &a.workspace));
    mems[2] = bsk_host_ptr(f[1] + 1);
    CHECK_ERROR(bsk_group_all_reduce_run(plan, b.queue, &a), BSK_E_INVALID, "tensors[2] lies 4");
    mems[2] = bsk_host_ptr(f[0]);
    CHECK_ERROR(bsk_group_all_reduce_run(plan, b.queue, &a), BSK_E_INVALID, "overlaps another");
    mems[2] = bsk_host_ptr(f[1]);
    CHECK(state->runs == 0);
    state->fail_run = BSK_E_DEVICE;
    CHECK_STATUS(bsk_group_all_reduce_run(plan, b.queue, &a), BSK_E_DEVICE);
    CHECK(f[0][0] == 1);
    state->count = 0;
    CHECK_OK(bsk_group_all_reduce_run(plan, b.queue, &a));
    CHECK(state->count == 3);
    CHECK(state->calls[0].dtype == BSK_F32 && state->calls[0].count == 5);
    CHECK(state->calls[1].y == f[2] && state->calls[1].count == 4);
    CHECK(state->calls[2].dtype == BSK_I32 && state->calls[2].y == n);
    CHECK(f[0][0] == 3 && f[0][2] == 9 && f[0][3] == 0 && f[1][1] == 15 && f[2][3] == 27);
    CHECK(n[0] == 3 && n[1] == 6 && n[2] == 0);
    bsk_comm_plan_destroy(&plan);
    bsk_mem_free(b.device, &a.workspace);

    p.wire = BSK_F64;
    p.bucket_bytes = 0;
    CHECK_OK(bsk_group_all_reduce_plan(b.comm, &p, &plan));
    CHECK_OK(bsk_comm_plan_query(plan, &info));
    CHECK(info.calls == 2 && info.bytes == 9 * 8 + 8);
    CHECK_OK(bsk_mem_alloc(b.device, info.workspace_bytes, &a.workspace));
    state->count = 0;
    CHECK_OK(bsk_group_all_reduce_run(plan, b.queue, &a));
    CHECK(state->calls[0].dtype == BSK_F64 && state->calls[0].count == 9);
    CHECK(f[0][0] == 9 && f[1][1] == 45 && f[2][3] == 81 && n[0] == 9);
    bsk_comm_plan_destroy(&plan);
    bsk_mem_free(b.device, &a.workspace);

    p.count = 0;
    CHECK_OK(bsk_group_all_reduce_plan(b.comm, &p, &plan));
    CHECK_OK(bsk_group_all_reduce_run(plan, b.queue, &a));
    bsk_comm_plan_destroy(&plan);
    bench_free(&b);
}

static void test_broadcast(void)
{
    enum { COUNT = 150 };
    bench b = bench_new("cpu:0");
    static uint8_t bytes[COUNT];
    bsk_tensor tensors[COUNT];
    bsk_mem mems[COUNT];
    bsk_broadcast_params p = BSK_INIT(bsk_broadcast_params);
    bsk_tensor_list_args a = BSK_INIT(bsk_tensor_list_args);
    bsk_comm_plan *plan = NULL;
    for (int i = 0; i < COUNT; i++) {
        tensors[i] = bsk_tensor_1d(BSK_U8, i != 3); /* one is empty */
        mems[i] = bsk_host_ptr(&bytes[COUNT - 1 - i]);
    }
    p.count = COUNT;
    p.tensors = tensors;
    a.tensors = mems;
    p.root = RANKS;
    CHECK_ERROR(bsk_broadcast_plan(b.comm, &p, &plan), BSK_E_INVALID,
                "root is 3; legal are 0 to 2");
    p.root = 2;
    CHECK_OK(bsk_broadcast_plan(b.comm, &p, &plan));
    CHECK_OK(bsk_broadcast_run(plan, b.queue, &a));
    CHECK(state->runs == 3 && state->count == COUNT - 1);
    CHECK(state->calls[0].kind == BSK_BROADCAST && state->calls[0].root == 2);
    CHECK(state->calls[3].y == &bytes[COUNT - 5] && state->calls[COUNT - 2].y == &bytes[0]);
    bsk_comm_plan_destroy(&plan);
    bench_free(&b);
}

/* --- A device with streams, and without casts --- */

static void test_device(void)
{
    bench b = bench_new("fake:0");
    bsk_collective_params p = BSK_INIT(bsk_collective_params);
    bsk_collective_args a = BSK_INIT(bsk_collective_args);
    bsk_comm_plan *plan = NULL;
    p.x = p.y = bsk_tensor_1d(BSK_F16, 4);
    CHECK_ERROR(bsk_all_reduce_plan(b.comm, &p, &plan), BSK_E_UNSUPPORTED, "cast");
    CHECK(!plan);
    p.x = p.y = bsk_tensor_1d(BSK_F32, 4);
    CHECK_OK(bsk_all_reduce_plan(b.comm, &p, &plan));
    CHECK_OK(bsk_mem_alloc(b.device, 16, &a.x));
    a.y = a.x;
    CHECK_OK(bsk_all_reduce_run(plan, b.queue, &a));
    CHECK(state->stream && state->calls[0].x == a.x.handle);
    backend->fail(FAKE_LEND, BSK_E_DEVICE, 0);
    CHECK_ERROR(bsk_all_reduce_run(plan, b.queue, &a), BSK_E_DEVICE, "lend fails as told");
    backend->fail(FAKE_SYNC, BSK_E_DEVICE, 0); /* not waited for */
    CHECK_OK(bsk_all_reduce_run(plan, b.queue, &a));
    CHECK_STATUS(bsk_queue_sync(b.queue), BSK_E_DEVICE);
    bsk_comm_plan_destroy(&plan);
    bsk_mem_free(b.device, &a.x);
    bench_free(&b);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    void *module = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    fake_comm_fn get = NULL;
    if (module)
        *(void **)&get = dlsym(module, FAKE_COMM_SYMBOL);
    if (!get)
        return 2;
    state = get();
    backend = fake_load(argv[2]);
    fake_directory directory = fake_directory_new();
    fake_directory_link(&directory, argv[1], "bsk_comm_fake.so");
    fake_directory_link(&directory, argv[2], "bsk_fake.so");
    plugin_path = directory.path;
    test_missing();
    test_create();
    test_pair_plans();
    test_pair_runs();
    test_group();
    test_broadcast();
    test_device();
    fake_directory_remove(&directory);
    return unit_report();
}
