#include "program.h"

#include <string.h>

#include "check.h"

void machine_create(machine *m, const char *device_id)
{
    memset(m, 0, sizeof *m);
    CHECK(bsk_context_create(NULL, &m->context));
    CHECK(bsk_context_find_device(m->context, device_id, &m->device));
    CHECK(bsk_queue_create(m->device, &m->queue));
    bsk_device_info info = BSK_INIT(bsk_device_info);
    CHECK(bsk_device_query(m->device, &info));
    m->limit = info.memory_bytes ? (size_t)info.memory_bytes : SIZE_MAX;
}

void machine_destroy(machine *m)
{
    machine_free(m, &m->workspace, m->workspace_bytes);
    bsk_queue_destroy(&m->queue);
    bsk_context_destroy(&m->context);
}

bsk_mem machine_alloc(machine *m, size_t bytes)
{
    bsk_mem mem;
    if (bytes > m->limit - m->bytes) {
        fprintf(stderr, "lm: the model needs more than %.0f MB of device memory\n",
                1e-6 * (double)m->limit);
        exit(1);
    }
    CHECK(bsk_mem_alloc(m->device, bytes, &mem));
    CHECK(bsk_mem_fill(m->queue, mem, 0, bytes));
    m->bytes += bytes;
    if (m->bytes > m->peak_bytes)
        m->peak_bytes = m->bytes;
    return mem;
}

void machine_free(machine *m, bsk_mem *mem, size_t bytes)
{
    if (mem->kind == BSK_MEM_NULL)
        return;
    CHECK(bsk_queue_sync(m->queue));
    bsk_mem_free(m->device, mem);
    m->bytes -= bytes;
}

void machine_workspace(machine *m, const bsk_plan *plan)
{
    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    CHECK(bsk_plan_query(plan, &info));
    if (info.workspace_bytes <= m->workspace_bytes)
        return;
    machine_free(m, &m->workspace, m->workspace_bytes);
    m->workspace_bytes = info.workspace_bytes;
    m->workspace = machine_alloc(m, m->workspace_bytes);
}

void machine_upload(machine *m, bsk_mem dst, const void *src, size_t bytes)
{
    CHECK(bsk_mem_upload(m->queue, dst, src, bytes));
    CHECK(bsk_queue_sync(m->queue));
}

void machine_download(machine *m, void *dst, bsk_mem src, size_t bytes)
{
    CHECK(bsk_mem_download(m->queue, dst, src, bytes));
    CHECK(bsk_queue_sync(m->queue));
}

tensor tensor_view(tensor t, size_t at, bsk_tensor desc)
{
    desc.dtype = t.desc.dtype;
    return (tensor){desc, bsk_mem_at(t.mem, at * bsk_dtype_size(desc.dtype))};
}

size_t tensor_size(const tensor *t)
{
    size_t count = 1;
    for (int i = 0; i < t->desc.rank; i++)
        count *= (size_t)t->desc.dims[i];
    return count;
}

void program_create(program *p, machine *m)
{
    memset(p, 0, sizeof *p);
    p->machine = m;
}

void program_destroy(program *p)
{
    if (!p->machine)
        return;
    CHECK(bsk_queue_sync(p->machine->queue)); // plans outlive their runs
    for (int i = 0; i < p->count; i++) {
        bsk_plan_destroy(&p->calls[i].plan);
        free(p->calls[i].args);
    }
    for (int i = 0; i < p->owned_count; i++) {
        machine_free(p->machine, &p->owned[i].mem, p->owned[i].bytes);
        free(p->owned[i].host);
    }
    free(p->calls);
    free(p->owned);
    memset(p, 0, sizeof *p);
}

/* Room for one more element of `size` bytes. */
static void *grow(void *list, int count, int *room, size_t size)
{
    if (count < *room)
        return list;
    *room = 2 * *room + 16;
    list = realloc(list, (size_t)*room * size);
    if (!list) {
        fprintf(stderr, "lm: out of memory\n");
        exit(1);
    }
    return list;
}

static struct owned *program_own(program *p)
{
    p->owned = grow(p->owned, p->owned_count, &p->owned_room, sizeof *p->owned);
    struct owned *o = &p->owned[p->owned_count++];
    memset(o, 0, sizeof *o);
    return o;
}

tensor program_tensor(program *p, bsk_tensor desc)
{
    struct owned *o = program_own(p);
    CHECK(bsk_tensor_bytes(&desc, &o->bytes));
    o->mem = machine_alloc(p->machine, o->bytes);
    return (tensor){desc, o->mem};
}

tensor program_data(program *p, bsk_tensor desc, const void *values)
{
    const tensor t = program_tensor(p, desc);
    machine_upload(p->machine, t.mem, values, tensor_size(&t) * bsk_dtype_size(desc.dtype));
    return t;
}

tensor program_constant(program *p, bsk_dtype dtype, double value)
{
    const float single = (float)value;
    return program_data(p, bsk_tensor_1d(dtype, 1),
                        dtype == BSK_F64 ? (const void *)&value : &single);
}

void *program_keep(program *p, const void *data, size_t bytes)
{
    struct owned *o = program_own(p);
    o->host = check_alloc(bytes);
    memcpy(o->host, data, bytes);
    return o->host;
}

void *program_add(program *p, const op_call *c, size_t args_bytes)
{
    p->calls = grow(p->calls, p->count, &p->room, sizeof *p->calls);
    op_call *mine = &p->calls[p->count++];
    *mine = *c;
    mine->args = check_alloc(args_bytes);
    memcpy(mine->args, c->args, args_bytes);

    bsk_plan_info info = BSK_INIT(bsk_plan_info);
    CHECK(bsk_plan_query(c->plan, &info));
    p->flops += info.flops;
    machine_workspace(p->machine, c->plan);
    return mine->args;
}

void program_run(program *p, uint64_t seed)
{
    machine *m = p->machine;
    for (int i = 0; i < p->count; i++) {
        const op_call *c = &p->calls[i];
        memcpy((char *)c->args + c->workspace_at, &m->workspace, sizeof(bsk_mem));
        if (c->seed_at) {
            const uint64_t mixed = seed_mix(seed, c->stream);
            memcpy((char *)c->args + c->seed_at, &mixed, sizeof mixed);
        }
        if (m->profile)
            profile_mark(m->profile, m->queue, c->plan);
        CHECK(c->run(c->plan, m->queue, c->args));
    }
    if (m->profile)
        profile_mark(m->profile, m->queue, NULL);
}

uint64_t seed_mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * 0x9e3779b97f4a7c15u + b + 1;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
