/* What products with packed weights have in common on the host: lists on the device, a kernel that
 * packs the weights into an image, and one that multiplies with it. */
#ifndef BSKI_CUDA_DSD_IMAGE_H
#define BSKI_CUDA_DSD_IMAGE_H

#include <backends/cuda/host.h>
#include <backends/cuda/tensor_map.h>

enum { DSD_IMAGE_TABLES = 7, DSD_IMAGE_ALIGNMENT = 128 };

/* Whether 32 bits count the weights, of so many bytes each, and an image of up to twice their size,
 * by 16 bytes. */
static inline bool bski_dsd_image_counts(const bsk_layout_tables *t, int32_t size)
{
    return t->nnz * t->block_rows * t->block_cols / (16 / size) <= INT32_MAX;
}

/* What packing an image of so many bytes, at a rate of reading and writing, adds to the time of a
 * product. */
static inline double bski_dsd_image_seconds(const bsk_problem *problem, double bytes, double rate)
{
    static const double launch = 2e-6;
    return problem->packed ? 0 : launch + bytes / rate;
}

/* A plan's state begins with it. */
typedef struct dsd_image {
    bski_cuda_encoder encoder;
    bski_cuda_tensor b; /* the activations as the copy engine reads them */
    bsk_mem table[DSD_IMAGE_TABLES];
    bski_cuda_run pack, plain, any; /* all but the arguments; products by their ends */
    size_t at;                      /* of an image in the workspace */
} dsd_image;

/* A list to upload. */
typedef struct dsd_image_table {
    const void *data;
    int64_t count;
    size_t size; /* of an element */
} dsd_image_table;

/* Uploads the lists, finds the kernels, and states the size of the image, and of a workspace that
 * has so much else before it. */
bsk_status bski_dsd_image_prepare(bski_cuda_device *device, bsk_prepared *prepared,
                                  const dsd_image_table *tables, int32_t count, size_t bytes,
                                  size_t before);
void bski_dsd_image_release(void *device, bsk_prepared *prepared);

/* The image of a run: the caller's, or one that `pack` makes in the workspace. */
typedef bsk_status (*dsd_image_pack)(const bsk_prepared *prepared, void *queue, bsk_mem s,
                                     bsk_mem packed);
bsk_status bski_dsd_image_find(const bsk_prepared *prepared, void *queue, const bsk_dsd_args *args,
                               dsd_image_pack pack, const char **image);

/* Launches the product with the kernel's argument, after the tensor map of the activations. plain:
 * its end is a plain one without activation, or left to another kernel. */
bsk_status bski_dsd_image_run(const dsd_image *image, void *queue, bsk_mem b, bool plain,
                              void *argument);

#endif
