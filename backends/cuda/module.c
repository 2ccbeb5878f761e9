/* The CUDA backend: its entries and its functions. */
#include <string.h>

#include <backends/cuda/cuda.h>

/* Families are declared as often as they have entries. */
#define CUDA_SOLE_ENTRY(name, op, family, types, blocks, arch_min, arch_max, priority)             \
    CUDA_SOLE_FUNCTIONS(family)
#define CUDA_ENTRY(name, op, family, types, blocks, arch_min, arch_max, priority)                  \
    CUDA_FUNCTIONS(family)
#define CUDA_PACKED_ENTRY(name, op, family, types, blocks, arch_min, arch_max, priority)           \
    CUDA_PACKED_FUNCTIONS(family)
#define SIMT_ENTRY(op, OP, types)                                                                  \
    bsk_reason simt_##op##_accept(const bsk_problem *problem, const bsk_device_props *props);      \
    bsk_status simt_##op##_prepare(void *device, bsk_prepared *prepared);                          \
    bsk_status simt_##op##_launch(const bsk_prepared *prepared, void *queue, const void *args);    \
    void simt_##op##_release(void *device, bsk_prepared *prepared);
#include <backends/cuda/kernels.inc>
#undef CUDA_SOLE_ENTRY
#undef CUDA_ENTRY
#undef CUDA_PACKED_ENTRY
#undef SIMT_ENTRY

#define CUDA_FIELDS(entry_name, OP, family, type_bits, block_bits, min, max, rank)                 \
    .name = #entry_name, .op = BSK_OP_##OP, .dtypes = (type_bits), .blocks = (block_bits),         \
    .arch_min = (min), .arch_max = (max), .priority = (rank), .alignment = 16,                     \
    .accept = cuda_##family##_accept, .prepare = cuda_##family##_prepare,                          \
    .launch = cuda_##family##_launch, .release = cuda_##family##_release
#define CUDA_SOLE_ENTRY(name, OP, family, types, blocks, min, max, rank)                           \
    {CUDA_FIELDS(name, OP, family, types, blocks, min, max, rank)},
#define CUDA_ENTRY(name, OP, family, types, blocks, min, max, rank)                                \
    {CUDA_FIELDS(name, OP, family, types, blocks, min, max, rank),                                 \
     .seconds = cuda_##family##_seconds},
#define CUDA_PACKED_ENTRY(name, OP, family, types, blocks, min, max, rank)                         \
    {CUDA_FIELDS(name, OP, family, types, blocks, min, max, rank),                                 \
     .seconds = cuda_##family##_seconds, .pack = cuda_##family##_pack},
#define SIMT_ENTRY(lower, OP, types)                                                               \
    {.name = #lower "_simt",                                                                       \
     .op = BSK_OP_##OP,                                                                            \
     .dtypes = (types),                                                                            \
     .accept = simt_##lower##_accept,                                                              \
     .prepare = simt_##lower##_prepare,                                                            \
     .launch = simt_##lower##_launch,                                                              \
     .release = simt_##lower##_release},
static const bsk_entry entries[] = {
#include <backends/cuda/kernels.inc>
};
#undef CUDA_FIELDS
#undef CUDA_SOLE_ENTRY
#undef CUDA_ENTRY
#undef CUDA_PACKED_ENTRY
#undef SIMT_ENTRY

static const bsk_arch archs[] = {
    {"sm50", 50}, {"sm60", 60}, {"sm70", 70},  {"sm75", 75},    {"sm80", 80},
    {"sm86", 86}, {"sm89", 89}, {"sm90a", 90}, {"sm100a", 100}, {"sm120a", 120},
};

int32_t bski_cuda_arch(int capability)
{
    int32_t rank = archs[0].rank;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        const char *name = archs[i].name;
        const bool exact = name[strlen(name) - 1] == 'a';
        if (exact ? archs[i].rank == capability : archs[i].rank <= capability)
            rank = archs[i].rank;
    }
    return rank;
}

static const bsk_backend backend = {
    .struct_size = sizeof backend,
    .abi = BSK_BACKEND_ABI,
    .name = "cuda",
    .archs = archs,
    .arch_count = sizeof archs / sizeof *archs,
    .entries = entries,
    .entry_count = sizeof entries / sizeof *entries,
    .probe = bski_cuda_probe,
    .device_open = bski_cuda_device_open,
    .device_close = bski_cuda_device_close,
    .queue_create = bski_cuda_queue_create,
    .queue_wrap = bski_cuda_queue_wrap,
    .queue_destroy = bski_cuda_queue_destroy,
    .queue_sync = bski_cuda_queue_sync,
    .mem_alloc = bski_cuda_mem_alloc,
    .mem_free = bski_cuda_mem_free,
    .mem_upload = bski_cuda_mem_upload,
    .mem_download = bski_cuda_mem_download,
    .mem_fill = bski_cuda_mem_fill,
    .event_create = bski_cuda_event_create,
    .event_destroy = bski_cuda_event_destroy,
    .event_record = bski_cuda_event_record,
    .event_elapsed = bski_cuda_event_elapsed,
    .lend = bski_cuda_lend,
};

BSK_API const bsk_backend *bsk_backend_query_v1(const bsk_host *host);

const bsk_backend *bsk_backend_query_v1(const bsk_host *host)
{
    return host->abi == BSK_BACKEND_ABI ? &backend : NULL;
}
