/* The OpenCL backend: its entries and its functions. */
#include <string.h>

#include <backends/opencl/opencl.h>

#define SIMT_ENTRY(op, OP, types)                                                                  \
    bsk_reason simt_##op##_accept(const bsk_problem *problem, const bsk_device_props *props);      \
    bsk_status simt_##op##_prepare(void *device, bsk_prepared *prepared);                          \
    bsk_status simt_##op##_launch(const bsk_prepared *prepared, void *queue, const void *args);    \
    void simt_##op##_release(void *device, bsk_prepared *prepared);
#include <backends/opencl/kernels.inc>
#undef SIMT_ENTRY

/* Platforms whose compiler breaks kernels of an op. */
typedef struct defect {
    const char *device, *driver; /* what their names begin with */
    bsk_op op;
} defect;

static const defect defects[] = {
    /* Mesa 22: its compiler crashes on these, and says of the others that it miscompiles them, as it
     * does */
    {"llvmpipe", "22.", BSK_OP_BINARY},
    {"llvmpipe", "22.", BSK_OP_BINARY_GRAD},
    {"llvmpipe", "22.", BSK_OP_CWISE_LINEAR},
    {"llvmpipe", "22.", BSK_OP_CWISE_LINEAR_GRAD},
    {"llvmpipe", "22.", BSK_OP_LSTM_GATES},
    {"llvmpipe", "22.", BSK_OP_LSTM_GATES_GRAD},
    {"llvmpipe", "22.", BSK_OP_PROJ_GATHER},
    {"llvmpipe", "22.", BSK_OP_PROJ_SCATTER},
    {"llvmpipe", "22.", BSK_OP_PROJ_SCATTER_ADD},
    {"llvmpipe", "22.", BSK_OP_PROJ_SCATTER_MUL},
    {"llvmpipe", "22.", BSK_OP_PROJ_SCATTER_MUL_GRAD},
    {"llvmpipe", "22.", BSK_OP_UNARY_GRAD},
    {"llvmpipe", "22.", BSK_OP_WEIGHT_ORTHOGONAL},
};

static bool is_broken(const bsk_device_props *props, bsk_op op)
{
    for (size_t i = 0; i < sizeof defects / sizeof *defects; i++) {
        const defect *d = &defects[i];
        if (d->op == op && !strncmp(props->name, d->device, strlen(d->device)) &&
            !strncmp(props->driver, d->driver, strlen(d->driver)))
            return true;
    }
    return false;
}

#define SIMT_ENTRY(lower, OP, types)                                                               \
    static bsk_reason lower##_accept(const bsk_problem *problem, const bsk_device_props *props)    \
    {                                                                                              \
        return is_broken(props, BSK_OP_##OP) ? BSK_REFUSE_ARCH                                     \
                                             : simt_##lower##_accept(problem, props);              \
    }
#include <backends/opencl/kernels.inc>
#undef SIMT_ENTRY

#define SIMT_ENTRY(lower, OP, types)                                                               \
    {.name = #lower "_simt",                                                                       \
     .op = BSK_OP_##OP,                                                                            \
     .dtypes = (types),                                                                            \
     .accept = lower##_accept,                                                                     \
     .prepare = simt_##lower##_prepare,                                                            \
     .launch = simt_##lower##_launch,                                                              \
     .release = simt_##lower##_release},
static const bsk_entry entries[] = {
#include <backends/opencl/kernels.inc>
};
#undef SIMT_ENTRY

static const bsk_arch archs[] = {{"opencl", 1}};

static const bsk_backend backend = {
    .struct_size = sizeof backend,
    .abi = BSK_BACKEND_ABI,
    .name = "opencl",
    .archs = archs,
    .arch_count = sizeof archs / sizeof *archs,
    .entries = entries,
    .entry_count = sizeof entries / sizeof *entries,
    .probe = bski_cl_probe,
    .device_open = bski_cl_device_open,
    .device_close = bski_cl_device_close,
    .queue_create = bski_cl_queue_create,
    .queue_wrap = bski_cl_queue_wrap,
    .queue_destroy = bski_cl_queue_destroy,
    .queue_sync = bski_cl_queue_sync,
    .mem_alloc = bski_cl_mem_alloc,
    .mem_free = bski_cl_mem_free,
    .mem_upload = bski_cl_mem_upload,
    .mem_download = bski_cl_mem_download,
    .mem_fill = bski_cl_mem_fill,
    .event_create = bski_cl_event_create,
    .event_destroy = bski_cl_event_destroy,
    .event_record = bski_cl_event_record,
    .event_elapsed = bski_cl_event_elapsed,
};

BSK_API const bsk_backend *bsk_backend_query_v1(const bsk_host *host);

const bsk_backend *bsk_backend_query_v1(const bsk_host *host)
{
    return host->abi == BSK_BACKEND_ABI ? &backend : NULL;
}
