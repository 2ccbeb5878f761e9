/* The HIP backend: its entries and its functions. */
#include <backends/hip/arch.h>
#include <backends/hip/hip.h>

#define SIMT_ENTRY(op, OP, types)                                                                  \
    bsk_reason simt_##op##_accept(const bsk_problem *problem, const bsk_device_props *props);      \
    bsk_status simt_##op##_prepare(void *device, bsk_prepared *prepared);                          \
    bsk_status simt_##op##_launch(const bsk_prepared *prepared, void *queue, const void *args);    \
    void simt_##op##_release(void *device, bsk_prepared *prepared);
#include <backends/hip/kernels.inc>
#undef SIMT_ENTRY

#define SIMT_ENTRY(lower, OP, types)                                                               \
    {.name = #lower "_simt",                                                                       \
     .op = BSK_OP_##OP,                                                                            \
     .dtypes = (types),                                                                            \
     .accept = simt_##lower##_accept,                                                              \
     .prepare = simt_##lower##_prepare,                                                            \
     .launch = simt_##lower##_launch,                                                              \
     .release = simt_##lower##_release},
static const bsk_entry entries[] = {
#include <backends/hip/kernels.inc>
};
#undef SIMT_ENTRY

static const bsk_backend backend = {
    .struct_size = sizeof backend,
    .abi = BSK_BACKEND_ABI,
    .name = "hip",
    .archs = bski_hip_archs,
    .arch_count = BSKI_HIP_ARCHS,
    .entries = entries,
    .entry_count = sizeof entries / sizeof *entries,
    .probe = bski_hip_probe,
    .device_open = bski_hip_device_open,
    .device_close = bski_hip_device_close,
    .queue_create = bski_hip_queue_create,
    .queue_wrap = bski_hip_queue_wrap,
    .queue_destroy = bski_hip_queue_destroy,
    .queue_sync = bski_hip_queue_sync,
    .mem_alloc = bski_hip_mem_alloc,
    .mem_free = bski_hip_mem_free,
    .mem_upload = bski_hip_mem_upload,
    .mem_download = bski_hip_mem_download,
    .mem_fill = bski_hip_mem_fill,
    .event_create = bski_hip_event_create,
    .event_destroy = bski_hip_event_destroy,
    .event_record = bski_hip_event_record,
    .event_elapsed = bski_hip_event_elapsed,
    .lend = bski_hip_lend,
};

BSK_API const bsk_backend *bsk_backend_query_v1(const bsk_host *host);

const bsk_backend *bsk_backend_query_v1(const bsk_host *host)
{
    return host->abi == BSK_BACKEND_ABI ? &backend : NULL;
}
