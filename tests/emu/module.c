/* The emulator as a module: its entries are the portable ones. */
#include "device.h"

#define SIMT_ENTRY(op, OP, types)                                                                  \
    bsk_reason simt_##op##_accept(const bsk_problem *problem, const bsk_device_props *props);      \
    bsk_status simt_##op##_prepare(void *device, bsk_prepared *prepared);                          \
    bsk_status simt_##op##_launch(const bsk_prepared *prepared, void *queue, const void *args);    \
    void simt_##op##_release(void *device, bsk_prepared *prepared);
#include <backends/simt/kernels.inc>
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
#include <backends/simt/kernels.inc>
};
#undef SIMT_ENTRY

static const bsk_arch archs[] = {{"emu", 1}};

static const bsk_backend backend = {
    .struct_size = sizeof backend,
    .abi = BSK_BACKEND_ABI,
    .name = "emu",
    .archs = archs,
    .arch_count = sizeof archs / sizeof *archs,
    .entries = entries,
    .entry_count = sizeof entries / sizeof *entries,
    .probe = emu_probe,
    .device_open = emu_device_open,
    .device_close = emu_device_close,
    .queue_create = emu_queue_create,
    .queue_destroy = emu_queue_destroy,
    .queue_sync = emu_queue_sync,
    .mem_alloc = emu_mem_alloc,
    .mem_free = emu_mem_free,
    .mem_upload = emu_mem_upload,
    .mem_download = emu_mem_download,
    .mem_fill = emu_mem_fill,
};

BSK_API const bsk_backend *bsk_backend_query_v1(const bsk_host *host);

const bsk_backend *bsk_backend_query_v1(const bsk_host *host)
{
    return host->abi == BSK_BACKEND_ABI ? &backend : NULL;
}
