/* The host's side of map.h: one launch for a map of up to MAP_INPUTS tensors. */
#ifndef BSKI_SIMT_MAPS_H
#define BSKI_SIMT_MAPS_H

#include <backends/simt/dims.h>
#include <backends/simt/map.h>

typedef struct simt_map_tensor {
    const bsk_tensor *tensor; /* dimensions of 1 are repeated; absent ones may be NULL */
    bsk_mem mem;
} simt_map_tensor;

typedef struct simt_map {
    simt_map_tensor y, x[MAP_INPUTS];
    int inputs;
    bool random; /* elements have numbers, */
    i32 shared;  /* which repeat along these dimensions */
    bool whole;  /* prepared by MAP_PREPARE_WHOLE */
} simt_map;

/* The type of kernels for these tensors: f64 if one is, so that nothing is rounded before the end,
 * else the problem's. */
bsk_dtype bski_simt_map_type(const bsk_prepared *prepared, const bsk_tensor *const *tensors,
                             size_t count);
/* Prepares the kernels of a unit in that type, which simt_map_kernel_type tells from then on. */
bsk_status bski_simt_map_prepare(void *device, bsk_prepared *prepared, const simt_need *need,
                                 const bsk_tensor *const *tensors, size_t count);
#define MAP_PREPARE_OF(unit, names, ...)                                                           \
    bski_simt_map_prepare(device, prepared, &(const simt_need){.file = (unit), .kernels = names},  \
                          (const bsk_tensor *const[]){__VA_ARGS__},                                \
                          sizeof((const bsk_tensor *const[]){__VA_ARGS__}) / sizeof(bsk_tensor *))
#define MAP_PREPARE(name, ...) MAP_PREPARE_OF("elementwise", {name}, __VA_ARGS__)
/* With kernel <name>_whole, which wide devices do not have. */
#define NAMES_WHOLE(name)                                                                          \
    {                                                                                              \
        name, ((const simt_device *)device)->wide ? NULL : name "_whole"                           \
    }
#define MAP_PREPARE_WHOLE(name, ...) MAP_PREPARE_OF("elementwise", NAMES_WHOLE(name), __VA_ARGS__)

static inline bsk_dtype simt_map_kernel_type(const bsk_prepared *prepared)
{
    return (bsk_dtype)state_of(prepared)->number[0];
}

/* A scalar argument of such a kernel. */
i64 bski_simt_map_num(const bsk_prepared *prepared, double v);

/* What all maps have; the caller adds what its own has. */
map_arg bski_simt_map(const bsk_prepared *prepared, void *queue, const simt_map *m);
/* Launches kernel 0, or the one for whole tensors where the plan has it and they are. */
bsk_status bski_simt_map_launch(const bsk_prepared *prepared, void *queue, const simt_map *m,
                                const map_arg *arg);
/* gain and bias of cwise_linear, repeated along the first and the last dimension of x. */
static inline bsk_tensor simt_channels(const bsk_tensor *t)
{
    return (bsk_tensor){t->dtype, 3, {1, t->dims[0], 1}, {0, t->strides[0], 0}};
}

/* Groups for a walk over all runs of a shape. */
i64 bski_simt_map_groups(const simt_device *d, bsk_dtype type, const shape_arg *shape);

#endif
