/* The portable kernels of a backend into whose module they are linked. Included by its device.c
 * alone, once per module. */
#ifndef BSKI_SIMT_LINKED_H
#define BSKI_SIMT_LINKED_H

#include <string.h>

#include <backends/simt/launch.h>

/* The address of the symbol that the compiler makes for a kernel stands for it. */
struct simt_kernel {
    const char *name; /* with its type */
    const char *variant;
    const void *function;
};

#define SIMT_KERNEL(file, kernel, type, variant) extern const char kernel##_##type[];
#include <backends/simt/instances.inc>
#undef SIMT_KERNEL

#define SIMT_KERNEL(file, kernel, type, variant) {#kernel "_" #type, variant, kernel##_##type},
static const simt_kernel linked_kernels[] = {
#include <backends/simt/instances.inc>
};
#undef SIMT_KERNEL

/* Names of the storage types in the dialect. */
static const char *const linked_types[BSK_DTYPE_COUNT] = {
    [BSK_F64] = "f64", [BSK_F32] = "f32", [BSK_F16] = "f16", [BSK_BF16] = "bf16"};

/* Whether a kernel is `name` for the type. */
static bool linked_is(const simt_kernel *k, const char *name, const char *type)
{
    const size_t n = strlen(name);
    return !strncmp(k->name, name, n) && k->name[n] == '_' && !strcmp(k->name + n + 1, type);
}

/* A kernel of simt_api.kernel, or NULL and a message that begins with the backend's name. */
static const simt_kernel *linked_find(const bsk_host *host, const char *backend, const char *file,
                                      const char *name, bsk_dtype type, const char *variant)
{
    const char *type_name = (unsigned)type < BSK_DTYPE_COUNT ? linked_types[type] : NULL;
    for (size_t i = 0; type_name && i < sizeof linked_kernels / sizeof *linked_kernels; i++) {
        const simt_kernel *k = &linked_kernels[i];
        if (linked_is(k, name, type_name) && !strcmp(k->variant, variant))
            return k;
    }
    host->fail(host->context, BSK_E_INTERNAL, "%s: no kernel %s (%s) for type %d in %s", backend,
               name, variant, (int)type, file);
    return NULL;
}

#endif
