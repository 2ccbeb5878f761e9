/* Contexts, devices, entries, memory, events and plans on the CPU device, through the public
 * interface only. */
#include <math.h>
#include <stdint.h>

#include <bsk/bsk.h>

#include "common/dtype.h"
#include "unit.h"

static bsk_context *context_new(void)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    CHECK_OK(bsk_context_create(&params, &context));
    return context;
}

static void test_status(void)
{
    static const char *const names[] = {
        "BSK_OK",
        "BSK_E_INVALID",
        "BSK_E_UNSUPPORTED",
        "BSK_E_NOMEM",
        "BSK_E_DEVICE_NOMEM",
        "BSK_E_DEVICE",
        "BSK_E_DEVICE_LOST",
        "BSK_E_PLUGIN",
        "BSK_E_VERSION",
        "BSK_E_CORRUPT",
        "BSK_E_ENVIRONMENT",
        "BSK_E_INTERNAL",
    };
    for (size_t i = 0; i < UNIT_COUNT(names); i++)
        CHECK(!strcmp(bsk_status_name((bsk_status) - (int)i), names[i]));
    CHECK(bsk_status_name((bsk_status)1) && bsk_status_name((bsk_status)-99));
    CHECK(!strcmp(bsk_version(), BSK_VERSION_STRING));
    CHECK(!strcmp(bsk_last_error(), ""));
}

static void test_dtypes(void)
{
    static const struct {
        bsk_dtype dtype;
        size_t size;
        const char *name;
    } rows[] = {
        {BSK_F64, 8, "f64"},       {BSK_F32, 4, "f32"}, {BSK_F16, 2, "f16"},
        {BSK_BF16, 2, "bf16"},     {BSK_I64, 8, "i64"}, {BSK_I32, 4, "i32"},
        {BSK_U16, 2, "u16"},       {BSK_U8, 1, "u8"},   {BSK_F8E4M3, 1, "f8e4m3"},
        {BSK_F8E5M2, 1, "f8e5m2"}, {BSK_I8, 1, "i8"},
    };
    CHECK(UNIT_COUNT(rows) + 1 == BSK_DTYPE_COUNT);
    for (size_t i = 0; i < UNIT_COUNT(rows); i++) {
        CHECK(bsk_dtype_size(rows[i].dtype) == rows[i].size);
        CHECK(!strcmp(bsk_dtype_name(rows[i].dtype), rows[i].name));
        CHECK(bsk_dtype_parse(rows[i].name) == rows[i].dtype);
    }
    CHECK(bsk_dtype_size(BSK_NONE) == 0 && bsk_dtype_size((bsk_dtype)1000) == 0);
    CHECK(bsk_dtype_size((bsk_dtype)-1) == 0);
    CHECK(!strcmp(bsk_dtype_name(BSK_NONE), "none"));
    CHECK(!strcmp(bsk_dtype_name((bsk_dtype)1000), "?"));
    CHECK(!strcmp(bsk_dtype_name((bsk_dtype)-1), "?"));
    CHECK(bsk_dtype_parse("f33") == BSK_NONE && bsk_dtype_parse(NULL) == BSK_NONE);
}

static uint8_t byte_store(bsk_dtype type, double v)
{
    double memory[1];
    bski_store(type, memory, 0, v);
    return *(const uint8_t *)memory;
}

static double byte_load(bsk_dtype type, uint8_t bits)
{
    double memory[1];
    memset(memory, bits, sizeof memory);
    return bski_load(type, memory, 0);
}

/* 8-bit types: what their numbers are, and rounding between any two of them. */
static void test_f8(void)
{
    static const struct {
        bsk_dtype type;
        uint8_t bits;
        double value;
    } known[] = {
        {BSK_F8E4M3, 0x01, 0x1p-9},  {BSK_F8E4M3, 0x08, 0x1p-6}, {BSK_F8E4M3, 0x38, 1},
        {BSK_F8E4M3, 0xc4, -3},      {BSK_F8E4M3, 0x7e, 448},    {BSK_F8E5M2, 0x01, 0x1p-16},
        {BSK_F8E5M2, 0x04, 0x1p-14}, {BSK_F8E5M2, 0x3c, 1},      {BSK_F8E5M2, 0xc2, -3},
        {BSK_F8E5M2, 0x7b, 57344},
    };
    static const bsk_dtype types[] = {BSK_F8E4M3, BSK_F8E5M2};
    for (size_t i = 0; i < UNIT_COUNT(known); i++) {
        CHECK(byte_load(known[i].type, known[i].bits) == known[i].value);
        CHECK(byte_store(known[i].type, known[i].value) == known[i].bits);
    }
    for (size_t t = 0; t < UNIT_COUNT(types); t++) {
        const uint8_t most = types[t] == BSK_F8E4M3 ? 0x7e : 0x7b;
        for (uint8_t b = 0; b < most; b++) {
            const uint8_t next = (uint8_t)(b + 1), even = b % 2 ? next : b;
            const double low = byte_load(types[t], b), high = byte_load(types[t], next);
            const double middle = (low + high) / 2;
            CHECK(low < high && byte_store(types[t], low) == b);
            CHECK(byte_store(types[t], middle) == even);
            CHECK(byte_store(types[t], nextafter(middle, low)) == b);
            CHECK(byte_store(types[t], -nextafter(middle, high)) == (next | 0x80));
        }
        CHECK(byte_store(types[t], 1e30) == most &&
              byte_store(types[t], -INFINITY) == (most | 0x80));
        CHECK(isnan(byte_load(types[t], byte_store(types[t], NAN))));
    }
}

static void test_i8(void)
{
    static const double stored[][2] = {{0.5, 0},     {1.5, 2},          {-2.5, -2},
                                       {126.5, 126}, {-128.5, -128},    {127.5, 127},
                                       {1e30, 127},  {-INFINITY, -128}, {NAN, 0}};
    for (size_t i = 0; i < UNIT_COUNT(stored); i++)
        CHECK((int8_t)byte_store(BSK_I8, stored[i][0]) == stored[i][1]);
    CHECK(byte_load(BSK_I8, 0x80) == -128 && byte_load(BSK_I8, 0xff) == -1);
}

static void test_tensor_bytes(void)
{
    size_t bytes = 7;
    bsk_tensor t = bsk_tensor_2d(BSK_F32, 3, 5);
    CHECK_OK(bsk_tensor_bytes(&t, &bytes));
    CHECK(bytes == 60);
    t = bsk_tensor_ld(BSK_F16, 3, 5, 100);
    CHECK_OK(bsk_tensor_bytes(&t, &bytes));
    CHECK(bytes == 2 * 205);
    t = bsk_tensor_2d(BSK_F32, 0, 5);
    CHECK_OK(bsk_tensor_bytes(&t, &bytes));
    CHECK(bytes == 0);
    t.rank = 0;
    t.dims[1] = 0;
    bsk_status scalar = bsk_tensor_bytes(&t, &bytes);
    CHECK(scalar == BSK_OK || scalar == BSK_E_INVALID);

    const bsk_tensor wrong[] = {
        {(bsk_dtype)77, 1, {1}, {0}},
        {BSK_NONE, 1, {1}, {0}},
        {BSK_F32, -1, {1}, {0}},
        {BSK_F32, BSK_MAX_RANK + 1, {1}, {0}},
        {BSK_F32, 1, {-1}, {0}},
        {BSK_F32, 2, {2, 2}, {-2, 1}},
        {BSK_F64, 1, {INT64_MAX}, {0}},
        {BSK_F64, 2, {INT64_MAX, INT64_MAX}, {0}},
        {BSK_U8, 2, {INT64_MAX, 2}, {INT64_MAX, 1}},
        {BSK_F32, 5, {1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20}, {0}},
    };
    bytes = 7;
    for (size_t i = 0; i < UNIT_COUNT(wrong); i++)
        CHECK_STATUS(bsk_tensor_bytes(&wrong[i], &bytes), BSK_E_INVALID);
    CHECK_STATUS(bsk_tensor_bytes(NULL, &bytes), BSK_E_INVALID);
    CHECK_STATUS(bsk_tensor_bytes(&t, NULL), BSK_E_INVALID);
    CHECK(bytes == 7);
}

static void test_context(void)
{
    bsk_context *context = NULL;
    CHECK_ERROR(bsk_context_create(NULL, NULL), BSK_E_INVALID, "context");
    bsk_context_destroy(NULL);
    bsk_context_destroy(&context);
    CHECK_OK(bsk_context_create(NULL, &context));
    CHECK(bsk_context_device_count(context) >= 1);
    CHECK(!strcmp(bsk_context_backend_notes(context), ""));
    bsk_context_destroy(&context);
    CHECK(!context);
    bsk_context_destroy(&context);
}

/* A struct of another version: shorter is fine, longer only with nothing in what we do not know. */
static void test_struct_sizes(void)
{
    struct {
        bsk_context_params params;
        unsigned char more[40];
    } big;
    bsk_context *context = NULL;
    memset(&big, 0, sizeof big);
    big.params.struct_size = sizeof big;
    big.params.ignore_environment = 1;
    CHECK_OK(bsk_context_create(&big.params, &context));
    bsk_context_destroy(&context);
    big.more[39] = 1;
    CHECK_ERROR(bsk_context_create(&big.params, &context), BSK_E_VERSION, "params");
    CHECK(!context);

    bsk_context_params small = unit_params();
    small.num_threads = -1; /* beyond the size, so unread */
    small.struct_size = offsetof(bsk_context_params, num_threads);
    CHECK_OK(bsk_context_create(&small, &context));
    bsk_context_destroy(&context);
    static const size_t wrong[] = {0, 1, sizeof(size_t) - 1, sizeof(size_t) + 4, 1 << 20, SIZE_MAX};
    for (size_t i = 0; i < UNIT_COUNT(wrong); i++) {
        small.struct_size = wrong[i];
        CHECK_ERROR(bsk_context_create(&small, &context), BSK_E_INVALID, "struct_size");
    }
}

static void test_plan_struct_sizes(const bsk_device *device)
{
    struct {
        bsk_bias_act_params params;
        unsigned char more[24];
    } big;
    bsk_plan *plan = NULL;
    memset(&big, 0, sizeof big);
    big.params = unit_bias_act(BSK_F32, 4, 8);
    big.params.struct_size = sizeof big;
    CHECK_OK(bsk_bias_act_plan(device, &big.params, NULL, &plan));
    bsk_plan_destroy(&plan);
    big.more[0] = 1;
    CHECK_STATUS(bsk_bias_act_plan(device, &big.params, NULL, &plan), BSK_E_VERSION);
    CHECK(!plan);

    /* Without the bias, which lies at the end of the struct. */
    bsk_bias_act_params p = unit_bias_act(BSK_F32, 4, 8);
    p.struct_size = offsetof(bsk_bias_act_params, bias);
    CHECK_OK(bsk_bias_act_plan(device, &p, NULL, &plan));
    bsk_queue *queue = NULL;
    CHECK_OK(bsk_queue_create(device, &queue));
    float x[32] = {0}, y[32];
    bsk_bias_act_args args = BSK_INIT(bsk_bias_act_args);
    args.struct_size = offsetof(bsk_bias_act_args, bias);
    args.x = bsk_host_ptr(x);
    args.y = bsk_host_ptr(y);
    args.bias = bsk_host_ptr(&p); /* beyond the size, so unread */
    CHECK_OK(bsk_bias_act_run(plan, queue, &args));
    args.struct_size = sizeof args;
    CHECK_ERROR(bsk_bias_act_run(plan, queue, &args), BSK_E_INVALID, "bias");
    args.struct_size = 0;
    CHECK_STATUS(bsk_bias_act_run(plan, queue, &args), BSK_E_INVALID);
    bsk_queue_destroy(&queue);
    bsk_plan_destroy(&plan);

    struct {
        bsk_plan_options options;
        unsigned char more[24];
    } options = {BSK_INIT(bsk_plan_options), {0}};
    p = unit_bias_act(BSK_F32, 4, 8);
    options.options.struct_size = sizeof options;
    CHECK_OK(bsk_bias_act_plan(device, &p, &options.options, &plan));
    bsk_plan_destroy(&plan);
    options.more[3] = 1;
    CHECK_STATUS(bsk_bias_act_plan(device, &p, &options.options, &plan), BSK_E_VERSION);
}

/* Output structs are filled as far as the caller's size goes, and not beyond. */
static void test_info_sizes(const bsk_device *device)
{
    bsk_device_info info;
    memset(&info, 0x5a, sizeof info);
    info.struct_size = offsetof(bsk_device_info, name);
    CHECK_OK(bsk_device_query(device, &info));
    CHECK(!strcmp(info.id, "cpu:0") && !strcmp(info.backend, "cpu"));
    unsigned char untouched[sizeof info.arch];
    memset(untouched, 0x5a, sizeof untouched);
    CHECK(!memcmp(&info.name, untouched, sizeof info.name));
    CHECK(info.struct_size == offsetof(bsk_device_info, name));
    static const size_t wrong[] = {3, offsetof(bsk_device_info, backend) + 4, 1 << 20};
    const char *const id = info.id;
    for (size_t i = 0; i < UNIT_COUNT(wrong); i++) {
        info.struct_size = wrong[i];
        CHECK_ERROR(bsk_device_query(device, &info), BSK_E_INVALID, "info.struct_size");
        CHECK(info.id == id);
    }
    info.struct_size = sizeof info;
    CHECK_STATUS(bsk_device_query(NULL, &info), BSK_E_INVALID);
    CHECK_STATUS(bsk_device_query(device, NULL), BSK_E_INVALID);
}

static void test_devices(const bsk_context *context)
{
    const bsk_device *device = NULL;
    size_t count = bsk_context_device_count(context);
    CHECK(count == 1 && bsk_context_device_count(NULL) == 0);
    CHECK(!bsk_context_device(context, count) && !bsk_context_device(context, SIZE_MAX));
    CHECK(!bsk_context_device(NULL, 0));
    CHECK_OK(bsk_context_find_device(context, "cpu:0", &device));
    CHECK(device == bsk_context_device(context, 0));
    device = NULL;
    CHECK_OK(bsk_context_find_device(context, NULL, &device));
    CHECK(device == bsk_context_device(context, 0));
    static const char *const wrong[] = {"", "cpu", "cpu:1", "cpu:00", "cuda:0", "CPU:0"};
    for (size_t i = 0; i < UNIT_COUNT(wrong); i++) {
        device = bsk_context_device(context, 0);
        CHECK_ERROR(bsk_context_find_device(context, wrong[i], &device), BSK_E_INVALID, "cpu:0");
        CHECK(!device);
    }
    device = bsk_context_device(context, 0);
    CHECK_STATUS(bsk_context_find_device(NULL, "cpu:0", &device), BSK_E_INVALID);
    CHECK(!device);
    CHECK_STATUS(bsk_context_find_device(context, "cpu:0", NULL), BSK_E_INVALID);

    bsk_device_info info = BSK_INIT(bsk_device_info);
    CHECK_OK(bsk_device_query(bsk_context_device(context, 0), &info));
    CHECK(info.name && *info.name && info.arch && *info.arch && info.driver);
    CHECK(info.compute_units >= 1 && info.memory_bytes > 0 && info.host_memory);

    /* A backend that is named twice still has each device once. */
    bsk_context_params params = unit_params();
    bsk_context *twice = NULL;
    params.backends = "cpu,cpu";
    if (bsk_context_create(&params, &twice) == BSK_OK)
        CHECK(bsk_context_device_count(twice) == 1);
    bsk_context_destroy(&twice);
}

/* Every op has a reference entry, every entry a name of its own. */
static void test_entries(const bsk_context *context)
{
    char seen[128][64];
    char names[512][64];
    int ops = 0, count = 0;
    bsk_entry_info e = BSK_INIT(bsk_entry_info);
    while (count < 512 && bsk_context_entry(context, (size_t)count, &e) == BSK_OK) {
        CHECK(e.name && *e.name && e.op && *e.op && !strcmp(e.backend, "cpu") && e.arch);
        for (int i = 0; i < count; i++)
            CHECK(strcmp(names[i], e.name));
        snprintf(names[count++], 64, "%s", e.name);
        if (e.reference && ops < 128)
            snprintf(seen[ops++], 64, "%s", e.op);
    }
    CHECK(count > 0 && ops > 0);
    char range[32];
    snprintf(range, sizeof range, "0 to %d", count - 1);
    CHECK_ERROR(bsk_context_entry(context, (size_t)count, &e), BSK_E_INVALID, range);
    CHECK_STATUS(bsk_context_entry(context, SIZE_MAX, &e), BSK_E_INVALID);
    CHECK_STATUS(bsk_context_entry(NULL, 0, &e), BSK_E_INVALID);
    CHECK_STATUS(bsk_context_entry(context, 0, NULL), BSK_E_INVALID);
    for (int i = 0; bsk_context_entry(context, (size_t)i, &e) == BSK_OK; i++) {
        int found = 0;
        for (int j = 0; j < ops; j++)
            found += !strcmp(seen[j], e.op);
        CHECK(found == 1);
    }
}

static void test_memory(const bsk_device *device)
{
    bsk_queue *queue = NULL;
    bsk_mem mem = {0}, view;
    unsigned char data[1000], back[1000];
    for (int i = 0; i < 1000; i++)
        data[i] = (unsigned char)(i * 7);
    CHECK_OK(bsk_queue_create(device, &queue));
    CHECK_OK(bsk_mem_alloc(device, sizeof data, &mem));
    CHECK(mem.size == sizeof data && (uintptr_t)mem.handle % 256 == 0);
    CHECK_OK(bsk_mem_upload(queue, mem, data, sizeof data));
    CHECK_OK(bsk_mem_fill(queue, bsk_mem_at(mem, 990), 0xee, 10));
    CHECK_OK(bsk_mem_download(queue, back, mem, sizeof back));
    CHECK_OK(bsk_queue_sync(queue));
    CHECK(!memcmp(data, back, 990) && back[990] == 0xee && back[999] == 0xee);

    /* Beyond the view's size: refused, and nothing is written. */
    memset(back, 1, sizeof back);
    view = bsk_mem_at(mem, 900);
    CHECK_STATUS(bsk_mem_upload(queue, view, data, 101), BSK_E_INVALID);
    CHECK_STATUS(bsk_mem_download(queue, back, view, 101), BSK_E_INVALID);
    CHECK_STATUS(bsk_mem_fill(queue, view, 0, 101), BSK_E_INVALID);
    CHECK_STATUS(bsk_mem_upload(queue, bsk_mem_at(mem, 1000), data, 1), BSK_E_INVALID);
    CHECK_STATUS(bsk_mem_upload(queue, mem, NULL, 1), BSK_E_INVALID);
    CHECK_STATUS(bsk_mem_download(queue, NULL, mem, 1), BSK_E_INVALID);
    CHECK_STATUS(bsk_mem_upload(NULL, mem, data, 1), BSK_E_INVALID);
    CHECK_STATUS(bsk_mem_download(NULL, back, mem, 1), BSK_E_INVALID);
    CHECK_STATUS(bsk_mem_fill(NULL, mem, 0, 1), BSK_E_INVALID);
    view = mem;
    view.kind = BSK_MEM_CL;
    CHECK_STATUS(bsk_mem_fill(queue, view, 0, 1), BSK_E_INVALID);
    view.kind = (bsk_mem_kind)42;
    CHECK_STATUS(bsk_mem_fill(queue, view, 0, 1), BSK_E_INVALID);
    view = mem;
    view.handle = NULL;
    CHECK_ERROR(bsk_mem_upload(queue, view, data, 1), BSK_E_INVALID, "NULL");
    CHECK_ERROR(bsk_mem_download(queue, back, view, 1), BSK_E_INVALID, "NULL");
    CHECK_ERROR(bsk_mem_fill(queue, view, 0, 1), BSK_E_INVALID, "NULL");
    CHECK(back[0] == 1 && back[100] == 1);
    CHECK_OK(bsk_mem_upload(queue, mem, data, 0));
    CHECK_OK(bsk_mem_upload(queue, mem, NULL, 0));
    bsk_mem_free(device, &mem);
    CHECK(mem.kind == BSK_MEM_NULL && !mem.handle);
    bsk_mem_free(device, &mem);
    bsk_mem_free(device, NULL);

    CHECK_OK(bsk_mem_alloc(device, 0, &mem));
    CHECK(mem.size == 1);
    bsk_mem_free(device, &mem);
    bsk_status status = bsk_mem_alloc(device, SIZE_MAX - 100, &mem);
    CHECK(status == BSK_E_NOMEM || status == BSK_E_DEVICE_NOMEM);
    CHECK(!mem.handle);
    CHECK_STATUS(bsk_mem_alloc(NULL, 1, &mem), BSK_E_INVALID);
    CHECK_STATUS(bsk_mem_alloc(device, 1, NULL), BSK_E_INVALID);
    bsk_queue_destroy(&queue);
    CHECK(!queue);
    bsk_queue_destroy(&queue);
    bsk_queue_destroy(NULL);
}

static void test_queues(const bsk_device *device)
{
    bsk_queue *queue = (bsk_queue *)&queue;
    CHECK_STATUS(bsk_queue_wrap(device, &queue, &queue), BSK_E_UNSUPPORTED);
    CHECK(!queue);
    queue = (bsk_queue *)&queue;
    CHECK_STATUS(bsk_queue_create(NULL, &queue), BSK_E_INVALID);
    CHECK(!queue);
    CHECK_STATUS(bsk_queue_create(device, NULL), BSK_E_INVALID);
    CHECK_STATUS(bsk_queue_wrap(device, &queue, NULL), BSK_E_INVALID);
    CHECK_STATUS(bsk_queue_sync(NULL), BSK_E_INVALID);
}

static void test_events(const bsk_device *device)
{
    bsk_queue *queue = NULL;
    bsk_event *start = NULL, *stop = NULL;
    double ms = -1;
    CHECK_OK(bsk_queue_create(device, &queue));
    bsk_status status = bsk_event_create(device, &start);
    if (status == BSK_E_UNSUPPORTED) {
        atomic_fetch_add(&unit_skipped, 1);
        CHECK(!start);
    } else {
        CHECK_OK(status);
        CHECK_OK(bsk_event_create(device, &stop));
        CHECK_ERROR(bsk_event_elapsed(start, stop, &ms), BSK_E_INVALID, "start is not recorded");
        CHECK_OK(bsk_event_record(start, queue));
        CHECK_ERROR(bsk_event_elapsed(start, stop, &ms), BSK_E_INVALID, "stop is not recorded");
        CHECK_OK(bsk_event_record(stop, queue));
        CHECK_OK(bsk_event_elapsed(start, stop, &ms));
        CHECK(ms >= 0);
        CHECK_STATUS(bsk_event_elapsed(start, NULL, &ms), BSK_E_INVALID);
        CHECK_STATUS(bsk_event_record(NULL, queue), BSK_E_INVALID);
        CHECK_STATUS(bsk_event_record(start, NULL), BSK_E_INVALID);
    }
    bsk_event_destroy(&start);
    bsk_event_destroy(&stop);
    CHECK(!start && !stop);
    bsk_event_destroy(NULL);
    bsk_queue_destroy(&queue);
}

/* Forcing by name, banning by glob, and names that match nothing. */
static void test_choice(const bsk_device *device)
{
    static const struct {
        const char *kernels;
        bsk_fallback fallback;
        bsk_dtype dtype;
        const char *entry; /* "": UNSUPPORTED */
    } rows[] = {
        {"+ref_bias_act", BSK_FALLBACK_DEFAULT, BSK_F32, "ref_bias_act"},
        {"+ref_bias_act", BSK_FALLBACK_FORBID, BSK_F32, "ref_bias_act"},
        {"-*bias_act*", BSK_FALLBACK_DEFAULT, BSK_F32, ""},
        {NULL, BSK_FALLBACK_DEVICE, BSK_F64, "ref_bias_act"},
        {NULL, BSK_FALLBACK_FORBID, BSK_F64, ""},
#ifdef UNIT_CPU_TUNED
        {"-bias_act_*", BSK_FALLBACK_DEFAULT, BSK_F32, "ref_bias_act"},
        {"-bias_act_*", BSK_FALLBACK_FORBID, BSK_F32, ""},
        {"-ref_bias_act,-bias_act_*", BSK_FALLBACK_DEVICE, BSK_F32, ""},
        {"+bias_act_base", BSK_FALLBACK_DEFAULT, BSK_F32, "bias_act_base"},
        {"+bias_act_base,-ref_*", BSK_FALLBACK_FORBID, BSK_F32, "bias_act_base"},
        {"+bias_act_base", BSK_FALLBACK_DEFAULT, BSK_F64, ""},
#endif
    };
    for (size_t i = 0; i < UNIT_COUNT(rows); i++) {
        bsk_plan_options options = BSK_INIT(bsk_plan_options);
        char name[64];
        options.kernels = rows[i].kernels;
        options.fallback = rows[i].fallback;
        if (!CHECK(!strcmp(unit_chosen(device, &options, rows[i].dtype, name), rows[i].entry)))
            fprintf(stderr, "  row %zu chose \"%s\"\n", i, name);
    }

    bsk_bias_act_params p = unit_bias_act(BSK_F32, 4, 8);
    bsk_plan *plan = NULL;
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    options.kernels = "-*bias_act*";
    CHECK_ERROR(bsk_bias_act_plan(device, &p, &options, &plan), BSK_E_UNSUPPORTED, "ref_bias_act");
    options.kernels = "+bias_act_sm90a";
    CHECK_ERROR(bsk_bias_act_plan(device, &p, &options, &plan), BSK_E_INVALID, "bias_act_sm90a");
    static const char *const forms[] = {"bias_act", "", "+ref_bias_act,", "+ref_bias_act,,-*_base",
                                        "+ref_bias_act -*_base"};
    for (size_t i = 0; i < UNIT_COUNT(forms); i++) {
        options.kernels = forms[i];
        CHECK_ERROR(bsk_bias_act_plan(device, &p, &options, &plan), BSK_E_INVALID,
                    "options.kernels is");
    }
    char long_item[129] = "+";
    memset(long_item + 1, '*', 127);
    options.kernels = long_item;
    CHECK_OK(bsk_bias_act_plan(device, &p, &options, &plan));
    bsk_plan_destroy(&plan);
    char longer_item[130] = "+";
    memset(longer_item + 1, '*', 128);
    options.kernels = longer_item;
    CHECK_ERROR(bsk_bias_act_plan(device, &p, &options, &plan), BSK_E_INVALID, "up to 127");
    options.kernels = NULL;
    options.fallback = (bsk_fallback)9;
    CHECK_ERROR(bsk_bias_act_plan(device, &p, &options, &plan), BSK_E_INVALID, "fallback");
    options.fallback = BSK_FALLBACK_DEFAULT;
    for (options.packed = -1; options.packed <= 2; options.packed += 3)
        CHECK_ERROR(bsk_bias_act_plan(device, &p, &options, &plan), BSK_E_INVALID,
                    "options.packed is");
    options.packed = 0;
    options.reserved = 1;
    CHECK_ERROR(bsk_bias_act_plan(device, &p, &options, &plan), BSK_E_INVALID,
                "options.reserved is 1");
    CHECK(!plan);
    options.reserved = 0;
    options.packed = 1; /* of an op without packed weights */
    CHECK_OK(bsk_bias_act_plan(device, &p, &options, &plan));
    bsk_plan_destroy(&plan);
}

/* BSK_MAX_ARCH hides entries, and the log says which and why. */
static void test_max_arch(void)
{
    unit_log *log = unit_log_new();
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    char name[64];
    params.max_arch = "base";
    params.log = unit_log_line;
    params.log_user = log;
    params.log_level = BSK_LOG_DISPATCH;
    CHECK_OK(bsk_context_create(&params, &context));
    unit_chosen(bsk_context_device(context, 0), NULL, BSK_F32, name);
#ifdef UNIT_CPU_TUNED
    CHECK(!strcmp(name, "bias_act_base"));
    static const char *const sets[] = {UNIT_CPU_SETS};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        char entry[64];
        snprintf(entry, sizeof entry, "bias_act_%s", sets[i]);
        CHECK_TEXT(log->text, entry);
    }
    if (sizeof sets / sizeof *sets > 1)
        CHECK_TEXT(log->text, "arch");
#else
    CHECK(!strcmp(name, "ref_bias_act"));
#endif
    CHECK_TEXT(log->text, name);
    unit_log_clear(log);
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
#ifdef UNIT_CPU_TUNED
    options.kernels = "-bias_act_*";
#endif
    options.fallback = BSK_FALLBACK_FORBID;
    unit_chosen(bsk_context_device(context, 0), &options, BSK_F32, name);
    CHECK(!*name);
    CHECK_TEXT(log->text, "ref_bias_act");
    CHECK_TEXT(log->text, "reference");
#ifdef UNIT_CPU_TUNED
    CHECK_TEXT(log->text, "banned");
#endif
    bsk_context_destroy(&context);
    unit_log_free(log);
}

static void test_plans(const bsk_device *device)
{
    bsk_bias_act_params p = unit_bias_act(BSK_F32, 4, 8);
    bsk_plan *plan = NULL;
    CHECK_STATUS(bsk_bias_act_plan(NULL, &p, NULL, &plan), BSK_E_INVALID);
    CHECK_STATUS(bsk_bias_act_plan(device, NULL, NULL, &plan), BSK_E_INVALID);
    CHECK_STATUS(bsk_bias_act_plan(device, &p, NULL, NULL), BSK_E_INVALID);
    CHECK_OK(bsk_bias_act_plan(device, &p, NULL, &plan));
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    CHECK_OK(bsk_plan_query(plan, &info));
    CHECK(!strcmp(info.op, "bias_act") && !strcmp(info.backend, "cpu") && !info.staged);
    CHECK(info.deterministic && info.synchronous);
    CHECK(info.workspace_alignment && !(info.workspace_alignment & (info.workspace_alignment - 1)));
    CHECK_STATUS(bsk_plan_query(NULL, &info), BSK_E_INVALID);
    CHECK_STATUS(bsk_plan_query(plan, NULL), BSK_E_INVALID);

    bsk_queue *queue = NULL;
    CHECK_OK(bsk_queue_create(device, &queue));
    float x[32], y[32], bias[8];
    for (int i = 0; i < 32; i++)
        x[i] = (float)(i % 5 - 2);
    for (int i = 0; i < 8; i++)
        bias[i] = (float)(i % 3 - 1);
    memset(y, 0x77, sizeof y);
    bsk_bias_act_args args = BSK_INIT(bsk_bias_act_args);
    args.x = bsk_host_ptr(x);
    args.bias = bsk_host_ptr(bias);
    CHECK_ERROR(bsk_bias_act_run(plan, queue, &args), BSK_E_INVALID, "y");
    args.y = bsk_host_ptr(y);
    args.y.size = sizeof y - 1;
    CHECK_ERROR(bsk_bias_act_run(plan, queue, &args), BSK_E_INVALID, "y");
    args.y = bsk_host_ptr((char *)y + 1);
    CHECK_ERROR(bsk_bias_act_run(plan, queue, &args), BSK_E_INVALID, "y");
    args.y = bsk_host_ptr(x + 1); /* overlaps x, but is not x */
    CHECK_ERROR(bsk_bias_act_run(plan, queue, &args), BSK_E_INVALID, "y");
    args.y = bsk_device_ptr(y);
    CHECK_ERROR(bsk_bias_act_run(plan, queue, &args), BSK_E_INVALID, "y");
    args.y = bsk_host_ptr(y);
    args.bias = bsk_host_ptr(NULL);
    CHECK_ERROR(bsk_bias_act_run(plan, queue, &args), BSK_E_INVALID, "bias");
    args.bias = bsk_host_ptr(bias);
    CHECK_STATUS(bsk_bias_act_run(NULL, queue, &args), BSK_E_INVALID);
    CHECK_STATUS(bsk_bias_act_run(plan, NULL, &args), BSK_E_INVALID);
    CHECK_STATUS(bsk_bias_act_run(plan, queue, NULL), BSK_E_INVALID);
    unsigned char poison[sizeof y];
    memset(poison, 0x77, sizeof poison);
    CHECK(!memcmp(y, poison, sizeof y)); /* nothing was written by any refused call */

    /* A plan of another op. */
    bsk_embedding_args other = BSK_INIT(bsk_embedding_args);
    CHECK_STATUS(bsk_embedding_run(plan, queue, &other), BSK_E_INVALID);

    CHECK_OK(bsk_bias_act_run(plan, queue, &args));
    CHECK_OK(bsk_queue_sync(queue));
    for (int i = 0; i < 32; i++) {
        float v = x[i] + bias[i % 8];
        CHECK(y[i] == (v > 0 ? v : 0));
    }
    bsk_plan_destroy(&plan);
    CHECK(!plan);
    bsk_plan_destroy(&plan);
    bsk_plan_destroy(NULL);

    /* A queue of another device, even of the same kind. */
    bsk_context *second = context_new();
    CHECK_OK(bsk_bias_act_plan(bsk_context_device(second, 0), &p, NULL, &plan));
    CHECK_STATUS(bsk_bias_act_run(plan, queue, &args), BSK_E_INVALID);
    bsk_plan_destroy(&plan);
    bsk_context_destroy(&second);
    bsk_queue_destroy(&queue);
}

/* A plan keeps its layout alive. */
static void test_layout_lifetime(bsk_context *context, const bsk_device *device)
{
    bsk_layout_params lp = BSK_INIT(bsk_layout_params);
    lp.rows = lp.cols = 16;
    lp.block_rows = lp.block_cols = 8;
    const uint8_t mask[4] = {1, 0, 1, 1};
    bsk_layout *layout = NULL;
    CHECK_OK(bsk_layout_from_mask(context, &lp, mask, &layout));
    bsk_matmul_params p = BSK_INIT(bsk_matmul_params);
    p.layout = layout;
    p.x = p.y = bsk_tensor_2d(BSK_F32, 2, 16);
    p.w = bsk_tensor_3d(BSK_F32, 3, 8, 8);
    bsk_plan *plan = NULL;
    bsk_queue *queue = NULL;
    CHECK_OK(bsk_matmul_plan(device, &p, NULL, &plan));
    CHECK_OK(bsk_queue_create(device, &queue));
    bsk_layout_release(&layout);
    CHECK(!layout);
    float x[32], w[192], y[32];
    for (int i = 0; i < 32; i++)
        x[i] = 1;
    for (int i = 0; i < 192; i++)
        w[i] = 1;
    bsk_matmul_args args = BSK_INIT_ALPHA(bsk_matmul_args);
    args.x = bsk_host_ptr(x);
    args.w = bsk_host_ptr(w);
    args.y = bsk_host_ptr(y);
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    bsk_mem workspace = {0};
    CHECK_OK(bsk_plan_query(plan, &info));
    CHECK_OK(bsk_mem_alloc(device, info.workspace_bytes, &workspace));
    if (info.workspace_bytes) {
        CHECK_ERROR(bsk_matmul_run(plan, queue, &args), BSK_E_INVALID, "workspace has 0 bytes");
        args.workspace = (bsk_mem){BSK_MEM_HOST, NULL, 0, info.workspace_bytes};
        CHECK_ERROR(bsk_matmul_run(plan, queue, &args), BSK_E_INVALID, "workspace.handle is NULL");
        args.workspace = workspace;
    }
    CHECK_OK(bsk_matmul_run(plan, queue, &args));
    for (int i = 0; i < 32; i++)
        CHECK(y[i] == (i % 16 < 8 ? 16 : 8));
    bsk_mem_free(device, &workspace);
    bsk_plan_destroy(&plan);
    bsk_queue_destroy(&queue);
}

/* One piece of work that allocates; NOMEM at any point must leave nothing behind. */
static bsk_status work(const bsk_context_params *params)
{
    bsk_context *context = NULL;
    bsk_layout *layout = NULL;
    bsk_plan *plan = NULL;
    bsk_queue *queue = NULL;
    bsk_layout_params lp = BSK_INIT(bsk_layout_params);
    bsk_matmul_params mp = BSK_INIT(bsk_matmul_params);
    lp.rows = lp.cols = 64;
    lp.block_rows = lp.block_cols = 8;
    bsk_status status = bsk_context_create(params, &context);
    CHECK(!status == !!context);
    if (status)
        return status;
    const bsk_device *device = bsk_context_device(context, 0);
    status = bsk_layout_random(context, &lp, 0.5, 1, &layout);
    CHECK(!status == !!layout);
    if (!status) {
        mp.layout = layout;
        mp.x = mp.y = bsk_tensor_2d(BSK_F32, 4, 64);
        mp.w = bsk_tensor_3d(BSK_F32, 32, 8, 8);
        status = bsk_matmul_plan(device, &mp, NULL, &plan);
        CHECK(!status == !!plan);
    }
    if (!status) {
        status = bsk_queue_create(device, &queue);
        CHECK(!status == !!queue);
    }
    bsk_queue_destroy(&queue);
    bsk_plan_destroy(&plan);
    bsk_layout_release(&layout);
    bsk_context_destroy(&context);
    return status;
}

static void test_allocator(void)
{
    unit_heap heap = {0, -1};
    bsk_context_params params = unit_params();
    params.allocator = unit_allocator(&heap);
    params.plugin_path = "/nonexistent"; /* makes a note */
    params.kernels = "-ref_prune_*";
    params.device = "cpu:0";
    CHECK_OK(work(&params));
    CHECK(atomic_load(&heap.live) == 0);
    int tries = 0;
    bsk_status status = BSK_E_NOMEM;
    for (; status != BSK_OK && tries < 1000; tries++) {
        atomic_store(&heap.countdown, tries);
        status = work(&params);
        if (status != BSK_OK)
            CHECK_STATUS(status, BSK_E_NOMEM);
        CHECK(atomic_load(&heap.live) == 0);
    }
    CHECK(status == BSK_OK && tries > 8);
}

/* What no element is told by, strides of single members and dimensions beyond the rank, does not
 * tell two views of one memory apart. */
static void test_in_place(const bsk_device *device)
{
    static const struct {
        bsk_tensor x, y;
    } rows[] = {
        {{BSK_F32, 2, {1, 8}, {8, 1}}, {BSK_F32, 2, {1, 8}, {100, 1}}},
        {{BSK_F32, 2, {4, 1}, {1, 1}}, {BSK_F32, 2, {4, 1}, {1, 0}}},
        {{BSK_F32, 1, {8}, {1}}, {BSK_F32, 1, {8, 3, 5}, {1, 9, 7}}},
    };
    bsk_queue *queue = NULL;
    CHECK_OK(bsk_queue_create(device, &queue));
    for (size_t r = 0; r < UNIT_COUNT(rows); r++) {
        float memory[8] = {1, 2, 3, 4, 5, 6, 7, 8};
        bsk_unary_params p = BSK_INIT(bsk_unary_params);
        bsk_unary_args a = BSK_INIT(bsk_unary_args);
        bsk_plan *plan = NULL;
        p.kind = BSK_UNARY_NEG;
        p.x = rows[r].x;
        p.y = rows[r].y;
        a.x = a.y = bsk_host_ptr(memory);
        CHECK_OK(bsk_unary_plan(device, &p, NULL, &plan));
        CHECK_OK(bsk_unary_run(plan, queue, &a));
        CHECK(memory[0] == -1 && memory[3] == -4);
        bsk_plan_destroy(&plan);
    }
    bsk_queue_destroy(&queue);
}

/* A workspace on an operand would be scratched while that is read. */
static void test_workspace_overlap(const bsk_device *device)
{
    enum { N = 64 };
    bsk_embedding_grad_params p = BSK_INIT(bsk_embedding_grad_params);
    bsk_embedding_grad_args a = BSK_INIT_ALPHA(bsk_embedding_grad_args);
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    bsk_plan *plan = NULL;
    bsk_queue *queue = NULL;
    bsk_mem all = {0};
    const size_t bytes = N * N * sizeof(float);
    p.dy = p.dtable = bsk_tensor_2d(BSK_F32, N, N);
    p.index = bsk_tensor_1d(BSK_I32, N);
    CHECK_OK(bsk_queue_create(device, &queue));
    CHECK_OK(bsk_embedding_grad_plan(device, &p, NULL, &plan));
    CHECK_OK(bsk_plan_query(plan, &info));
    if (!info.workspace_bytes) {
        atomic_fetch_add(&unit_skipped, 1);
    } else {
        CHECK_OK(bsk_mem_alloc(device, 3 * bytes + info.workspace_bytes, &all));
        CHECK_OK(bsk_mem_fill(queue, all, 0, all.size));
        a.dy = all;
        a.dtable = bsk_mem_at(all, bytes);
        a.index = bsk_mem_at(all, 2 * bytes);
        a.workspace = bsk_mem_at(all, 3 * bytes);
        CHECK_OK(bsk_embedding_grad_run(plan, queue, &a));
        a.workspace = a.dy;
        CHECK_ERROR(bsk_embedding_grad_run(plan, queue, &a), BSK_E_INVALID, "workspace");
        a.workspace = bsk_mem_at(a.dtable, bytes - 64);
        CHECK_ERROR(bsk_embedding_grad_run(plan, queue, &a), BSK_E_INVALID, "workspace");
        bsk_mem_free(device, &all);
    }
    bsk_plan_destroy(&plan);
    bsk_queue_destroy(&queue);
}

/* A directory whose name is too long to be opened is noted as one that is not there. */
static void test_long_path(void)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    static char path[6000];
    memset(path, 'p', sizeof path - 1);
    path[0] = '/';
    params.plugin_path = path;
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK_TEXT(bsk_context_backend_notes(context), "/pppp");
    bsk_context_destroy(&context);
}

static void one_line(void *user, bsk_log_level level, const char *line)
{
    (void)level;
    CHECK(!strchr(line, '\n'));
    *(int *)user += strstr(line, "/nonexistent") != NULL;
}

/* Each note about a backend is a line of the log. */
static void test_notes(void)
{
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    int notes = 0;
    params.plugin_path = "/nonexistent/a:/nonexistent/b:/nonexistent/c";
    params.log = one_line;
    params.log_user = &notes;
    params.log_level = BSK_LOG_INFO;
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK(notes == 3);
    bsk_context_destroy(&context);
    params.backends = "nosuch"; /* an error has one line */
    CHECK_ERROR(bsk_context_create(&params, &context), BSK_E_PLUGIN,
                "\"nosuch\" is not there: /nonexistent/a: cannot be read; /nonexistent/b");
    CHECK(!strchr(bsk_last_error(), '\n'));
}

/* Long lists: every pair of views is compared, wherever both stand. */
static void test_list_overlap(const bsk_device *device)
{
    enum { COUNT = 3300, LISTS = 4, SIZE = 2, ORDERS = 3 };
    static const char *const names[LISTS] = {"param", "grad", "m", "v"};
    static const struct {
        int list, view, other, place, off; /* view `view` is put `off` elements into the other */
    } rows[] = {
        {0, 3, 0, 900, 0},    {0, 1299, 0, 0, 1}, {0, 600, 1, 511, 0}, {1, 512, 0, 1298, 1},
        {2, 1100, 3, 7, 0},   {3, 1299, 3, 5, 0}, {3, 0, 1, 1299, 1},  {2, 700, 2, 701, 0},
        {1, 1024, 2, 512, 0}, {0, 3299, 3, 0, 1}, {0, 5, 2, 3299, 0},  {2, 1023, 2, 2048, 1},
    };
    /* where view i of list l is: neither forwards nor backwards, forwards, each list apart */
    static const struct {
        int view, list;
    } orders[ORDERS] = {{7 * LISTS, 1}, {LISTS, 1}, {1, COUNT}};
    static float memory[COUNT * LISTS * SIZE];
    static bsk_mem views[LISTS][COUNT];
    bsk_adam_n_params p = BSK_INIT(bsk_adam_n_params);
    bsk_adam_n_args a = BSK_INIT(bsk_adam_n_args);
    bsk_plan *plan = NULL;
    bsk_queue *queue = NULL;
    p.pairs = COUNT;
    p.param = p.grad = p.m = p.v = bsk_tensor_1d(BSK_F32, SIZE);
    a.step = 1;
    a.param = views[0];
    a.grad = views[1];
    a.m = views[2];
    a.v = views[3];
    CHECK_OK(bsk_adam_n_plan(device, &p, NULL, &plan));
    CHECK_OK(bsk_queue_create(device, &queue));
    for (size_t o = 0; o < ORDERS; o++) {
        for (int l = 0; l < LISTS; l++)
            for (int i = 0; i < COUNT; i++)
                views[l][i] = bsk_host_ptr(memory + (i * orders[o].view + l * orders[o].list) %
                                                        (COUNT * LISTS) * SIZE);
        CHECK_OK(bsk_adam_n_run(plan, queue, &a));
        for (size_t r = 0; r < UNIT_COUNT(rows); r++) {
            bsk_mem *moved = &views[rows[r].list][rows[r].view], before = *moved;
            moved->handle = (float *)views[rows[r].other][rows[r].place].handle + rows[r].off;
            CHECK_ERROR(bsk_adam_n_run(plan, queue, &a), BSK_E_INVALID, names[rows[r].list]);
            *moved = before;
        }
        /* two gradients may be one */
        views[1][4] = views[1][1200];
        CHECK_OK(bsk_adam_n_run(plan, queue, &a));
    }
    CHECK_OK(bsk_queue_sync(queue));
    bsk_queue_destroy(&queue);
    bsk_plan_destroy(&plan);
}

int main(void)
{
    test_status();
    test_dtypes();
    test_f8();
    test_i8();
    test_tensor_bytes();
    test_context();
    test_struct_sizes();
    bsk_context *context = context_new();
    if (!context)
        return unit_report();
    const bsk_device *device = bsk_context_device(context, 0);
    test_plan_struct_sizes(device);
    test_info_sizes(device);
    test_devices(context);
    test_entries(context);
    test_memory(device);
    test_queues(device);
    test_events(device);
    test_choice(device);
    test_max_arch();
    test_plans(device);
    test_list_overlap(device);
    test_in_place(device);
    test_workspace_overlap(device);
    test_long_path();
    test_notes();
    test_layout_lifetime(context, device);
    bsk_context_destroy(&context);
    test_allocator();
    return unit_report();
}
