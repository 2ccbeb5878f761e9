/* How unit tests find and steer the fake backend. The module's path is the program's first
 * argument. */
#ifndef FAKE_USE_H
#define FAKE_USE_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fake/fake.h"
#include "unit.h"

/* A directory for plugins; removed, with the links in it, by fake_directory_remove. */
typedef struct fake_directory {
    char path[64];
    char files[16][256];
    int count;
} fake_directory;

static inline fake_directory fake_directory_new(void)
{
    fake_directory d = {"/tmp/bsk-test-XXXXXX", {{0}}, 0};
    if (!mkdtemp(d.path))
        abort();
    return d;
}

static inline const char *fake_directory_file(fake_directory *d, const char *name)
{
    if (d->count == 16)
        abort();
    char *file = d->files[d->count++];
    strcpy(file, d->path);
    strcat(strcat(file, "/"), name);
    return file;
}

/* A link to a file that may be named relative to the current directory, or be absent. */
static inline void fake_directory_link(fake_directory *d, const char *target, const char *name)
{
    char path[1024] = "";
    if (*target != '/' && (!getcwd(path, sizeof path / 2) || strlen(target) >= sizeof path / 2))
        abort();
    if (*path)
        strcat(path, "/");
    strcat(path, target);
    if (symlink(path, fake_directory_file(d, name)))
        abort();
}

static inline void fake_directory_remove(fake_directory *d)
{
    while (d->count)
        remove(d->files[--d->count]);
    rmdir(d->path);
}

/* The controls of the module, which stays loaded: contexts find the same instance. */
static inline const fake_control *fake_load(const char *path)
{
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    fake_control_fn get = NULL;
    if (module)
        *(void **)&get = dlsym(module, FAKE_CONTROL_SYMBOL);
    if (!get) {
        fprintf(stderr, "%s: %s\n", path, dlerror());
        abort();
    }
    return get();
}

/* Nothing that the fake made is left, and nobody touched what is not theirs. */
static inline void fake_check_clean(const fake_control *fake)
{
    fake_counts c = fake->counts();
    CHECK(c.devices == 0);
    CHECK(c.queues == 0);
    CHECK(c.allocations == 0);
    CHECK(c.events == 0);
    CHECK(c.prepared == 0);
    CHECK(c.violations == 0);
}

static inline const bsk_device *fake_device_find(const bsk_context *context, const char *id)
{
    const bsk_device *device = NULL;
    CHECK_OK(bsk_context_find_device(context, id, &device));
    return device;
}

/* Whether the device computes y = relu(x + bias) as it should, through whatever entry. */
static inline bsk_status fake_compute(const bsk_device *device)
{
    enum { N = 3, F = 5 };
    float x[N * F], bias[F], y[N * F] = {0};
    bsk_bias_act_params p = unit_bias_act(BSK_F32, N, F);
    bsk_bias_act_args a = BSK_INIT(bsk_bias_act_args);
    bsk_plan *plan = NULL;
    bsk_queue *queue = NULL;
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    bsk_status status = bsk_bias_act_plan(device, &p, NULL, &plan);
    for (int i = 0; i < N * F; i++)
        x[i] = (float)(i % 7 - 3);
    for (int i = 0; i < F; i++)
        bias[i] = (float)(i - 2);
#define STEP(call)                                                                                 \
    do {                                                                                           \
        if (status == BSK_OK)                                                                      \
            status = (call);                                                                       \
    } while (0)
    STEP(bsk_plan_query(plan, &info));
    STEP(bsk_queue_create(device, &queue));
    STEP(bsk_mem_alloc(device, sizeof x, &a.x));
    STEP(bsk_mem_alloc(device, sizeof y, &a.y));
    STEP(bsk_mem_alloc(device, sizeof bias, &a.bias));
    STEP(bsk_mem_alloc(device, info.workspace_bytes, &a.workspace));
    STEP(bsk_mem_upload(queue, a.x, x, sizeof x));
    STEP(bsk_mem_upload(queue, a.bias, bias, sizeof bias));
    STEP(bsk_bias_act_run(plan, queue, &a));
    STEP(bsk_mem_download(queue, y, a.y, sizeof y));
    STEP(bsk_queue_sync(queue));
#undef STEP
    int right = 1;
    for (int i = 0; i < N * F; i++) {
        float v = x[i] + bias[i % F];
        right &= y[i] == (v > 0 ? v : 0);
    }
    if (status == BSK_OK)
        CHECK(right);
    bsk_mem_free(device, &a.x);
    bsk_mem_free(device, &a.y);
    bsk_mem_free(device, &a.bias);
    bsk_mem_free(device, &a.workspace);
    bsk_queue_destroy(&queue);
    bsk_plan_destroy(&plan);
    return status;
}

#endif
