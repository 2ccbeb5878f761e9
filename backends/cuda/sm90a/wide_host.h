/* The host side that the entries of f8 on Hopper share: operands become f16 in the workspace, and one of
 * the folder's entries of f16 multiplies them. */
#ifndef BSKI_CUDA_SM90A_WIDE_HOST_H
#define BSKI_CUDA_SM90A_WIDE_HOST_H

#include <backends/cuda/host.h>
#include <backends/cuda/sm90a/wide_f8.h>

/* The functions of a family of f16. */
#define WIDE_FAMILY(family)                                                                        \
    .accept = cuda_##family##_accept, .seconds = cuda_##family##_seconds,                          \
    .prepare = cuda_##family##_prepare, .launch = cuda_##family##_launch,                          \
    .release = cuda_##family##_release

/* The functions of a family's entry of f8, by those of the file that has it. */
#define WIDE_ENTRY(family)                                                                         \
    bsk_reason cuda_##family##_f8_accept(const bsk_problem *problem,                               \
                                         const bsk_device_props *props)                            \
    {                                                                                              \
        return f8_accept(&family##_f16, problem, props);                                           \
    }                                                                                              \
    double cuda_##family##_f8_seconds(const bsk_problem *problem, const bsk_device_props *props)   \
    {                                                                                              \
        return f8_seconds(&family##_f16, problem, props);                                          \
    }                                                                                              \
    bsk_status cuda_##family##_f8_prepare(void *device, bsk_prepared *prepared)                    \
    {                                                                                              \
        return f8_prepare(&family##_f16, device, prepared);                                        \
    }                                                                                              \
    bsk_status cuda_##family##_f8_launch(const bsk_prepared *prepared, void *queue,                \
                                         const void *args)                                         \
    {                                                                                              \
        return f8_launch(prepared, queue, args);                                                   \
    }                                                                                              \
    void cuda_##family##_f8_release(void *device, bsk_prepared *prepared)                          \
    {                                                                                              \
        bski_wide_release(device, prepared);                                                       \
    }

/* A plan's state begins with it. */
typedef struct bski_wide {
    const bsk_entry *entry; /* of f16: its functions alone */
    bsk_problem problem;    /* in f16 */
    bsk_prepared prepared;  /* by the entry */
    wide_arg arg;           /* all but addresses, and the numbers of thread blocks */
} bski_wide;

/* A matrix of f8, or a batch of them, as f16: lines along the same axis, of whole runs. False where the
 * copy's numbers or runs cannot be counted. */
bool bski_wide_matrix(const bsk_tensor *from, bsk_tensor *to, wide_part *part);

/* The same of blocks, one after the other. */
bool bski_wide_blocks(const bsk_tensor *from, bsk_tensor *to, wide_part *part);

size_t bski_wide_bytes(const wide_part *part);

/* Seconds of copies of so many bytes in all. */
double bski_wide_seconds(double bytes);

/* Room for so many bytes at the end of a workspace, or of an image. */
bool bski_wide_room(size_t bytes, size_t *end, size_t *at);

/* Has the entry prepare its problem, and begins the workspace with its. */
bsk_status bski_wide_prepare(bski_cuda_device *device, bsk_prepared *prepared, bski_wide *wide);
/* Where `prepare` finds that not all can be counted. */
bsk_status bski_wide_uncounted(const bski_cuda_device *device);
void bski_wide_release(void *device, bsk_prepared *prepared);

/* Copies the parts of an argument, and fills its gates if it has any. */
bsk_status bski_wide_run(const bski_cuda_queue *queue, wide_arg *arg);

#endif
