/* Plans and launches that products of f8 by kernels of f16 share. */
#include <backends/cuda/sm90a/wide_host.h>
#include <common/checked.h>

extern const char sm90a_wide_f8[];

enum { ALIGNMENT = 256 };

/* --- Copies --- */

static bool part_fill(const bsk_tensor *from, int64_t length, int64_t lines, int64_t members,
                      wide_part *part)
{
    const int64_t line_runs = bski_ceil_div(length, WIDE_RUN);
    int64_t runs;
    if (!bski_mul_i64(lines, members, &runs) || !bski_mul_i64(runs, line_runs, &runs) ||
        runs > INT32_MAX - WIDE_BLOCK)
        return false;
    *part = (wide_part){.length = length,
                        .lines = (uint32_t)lines,
                        .line_runs = (uint32_t)line_runs,
                        .runs = (uint32_t)runs,
                        .e5m2 = from->dtype == BSK_F8E5M2};
    return true;
}

bool bski_wide_matrix(const bsk_tensor *from, bsk_tensor *to, wide_part *part)
{
    const int32_t last = from->rank - 1;
    /* Where both axes count as contiguous, one of them has length 1. */
    const bool along_last =
        from->strides[last] == 1 && (from->dims[last] > 1 || from->strides[last - 1] != 1);
    const int32_t inner = along_last ? last : last - 1, outer = 2 * last - 1 - inner;
    const int64_t members = from->rank == 3 ? from->dims[0] : 1;
    if (!part_fill(from, from->dims[inner], from->dims[outer], members, part))
        return false;
    part->line = from->strides[outer];
    part->batch = from->rank == 3 ? from->strides[0] : 0;
    *to = *from;
    to->dtype = BSK_F16;
    to->strides[inner] = 1;
    to->strides[outer] = (int64_t)part->line_runs * WIDE_RUN;
    if (from->rank == 3)
        to->strides[0] = to->strides[outer] * from->dims[outer];
    return from->strides[inner] == 1;
}

bool bski_wide_blocks(const bsk_tensor *from, bsk_tensor *to, wide_part *part)
{
    int64_t count = 1;
    *to = *from;
    to->dtype = BSK_F16;
    for (int32_t i = from->rank - 1; i >= 0; i--) {
        to->strides[i] = count;
        if (!bski_mul_i64(count, from->dims[i], &count))
            return false;
    }
    return part_fill(from, count, 1, 1, part);
}

size_t bski_wide_bytes(const wide_part *part)
{
    return (size_t)part->runs * WIDE_RUN * sizeof(uint16_t);
}

double bski_wide_seconds(double bytes)
{
    static const double rate = 3e12, launch = 2e-6; /* of bytes read and written */
    return launch + 1.5 * bytes / rate;
}

/* --- Plans --- */

static bool round_up(size_t *bytes)
{
    if (!bski_add_size(*bytes, ALIGNMENT - 1, bytes))
        return false;
    *bytes = *bytes / ALIGNMENT * ALIGNMENT;
    return true;
}

bool bski_wide_room(size_t bytes, size_t *end, size_t *at)
{
    if (!round_up(end))
        return false;
    *at = *end;
    return bski_add_size(*end, bytes, end) && round_up(end);
}

static size_t larger(size_t x, size_t y)
{
    return x > y ? x : y;
}

bsk_status bski_wide_uncounted(const bski_cuda_device *device)
{
    const bsk_host *host = device->simt.host;
    return host->fail(host->context, BSK_E_UNSUPPORTED,
                      "cuda: copies in f16 are larger than can be counted");
}

bsk_status bski_wide_prepare(bski_cuda_device *device, bsk_prepared *prepared, bski_wide *wide)
{
    wide->prepared.problem = &wide->problem;
    TRY(bski_cuda_kernel(device, sm90a_wide_f8, 0, "sm90a_wide_f8"));
    TRY(wide->entry->prepare(device, &wide->prepared));
    prepared->workspace_bytes = wide->prepared.workspace_bytes;
    prepared->workspace_alignment = larger(wide->prepared.workspace_alignment, ALIGNMENT);
    prepared->packed_alignment = larger(wide->prepared.packed_alignment, ALIGNMENT);
    return BSK_OK;
}

void bski_wide_release(void *device, bsk_prepared *prepared)
{
    const bski_cuda_device *d = device;
    bski_wide *wide = prepared->state;
    if (!wide)
        return;
    wide->entry->release(device, &wide->prepared);
    state_free(&d->simt, prepared);
}

/* --- Running --- */

bsk_status bski_wide_run(const bski_cuda_queue *queue, wide_arg *arg)
{
    int64_t blocks = 0;
    for (int32_t i = 0; i < arg->parts; i++) {
        arg->part[i].first = (uint32_t)blocks;
        blocks += bski_ceil_div(arg->part[i].runs, WIDE_BLOCK);
    }
    arg->gates.first = (uint32_t)blocks;
    blocks += bski_ceil_div(arg->gates.count, WIDE_THREADS);
    void *arguments[] = {arg};
    const bski_cuda_run run = {.function = sm90a_wide_f8,
                               .name = "sm90a_wide_f8",
                               .grid = {(unsigned)blocks, 1, 1},
                               .threads = WIDE_THREADS,
                               .arguments = arguments,
                               .early = true};
    return bski_cuda_launch(queue, &run);
}
