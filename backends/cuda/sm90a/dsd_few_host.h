/* The host side that the entries of dsd for a small minibatch share: what they take, their tiles,
 * and what is read for each of these. */
#ifndef BSKI_CUDA_SM90A_DSD_FEW_HOST_H
#define BSKI_CUDA_SM90A_DSD_FEW_HOST_H

#include <backends/cuda/host.h>
#include <backends/cuda/sm90a/dsd_few.h>
#include <common/layout.h>

typedef struct dsd_few_shape {
    int32_t block_i, block_k; /* of op(S) */
    int32_t tile, columns;    /* features and samples of a tile */
    int32_t bytes, run;       /* of an element; elements of the depth in a run */
    bool flip;                /* blocks are stored by columns of op(S) */
    bool along_k;             /* b is contiguous along the depth, else along its columns */
} dsd_few_shape;

dsd_few_shape bski_dsd_few_shape(const bsk_problem *problem);

/* What an entry for up to so many samples does not take. */
bsk_reason bski_dsd_few_refusal(const bsk_problem *problem, int64_t samples);

/* Steps of all tiles, those of uneven rows apart. */
double bski_dsd_few_steps(const bsk_problem *problem);

/* --- Kernels --- */

typedef struct dsd_few_kernel {
    const void *function;
    const char *name;
    bsk_dtype dtype;
    bool flip, along_k;
    int32_t tile, columns;
    int32_t blocks; /* of a multiprocessor at a time */
} dsd_few_kernel;

/* NULL: there is none for tiles of this shape. */
const dsd_few_kernel *bski_dsd_few_find(const dsd_few_kernel *kernels, size_t count,
                                        bsk_dtype dtype, const dsd_few_shape *shape);

/* --- Plans --- */

/* The steps of a tile of block row number `row`. */
int32_t bski_dsd_few_row_steps(const bsk_problem *problem, const bski_lines *lines, int32_t row);

/* Writes the runs of these steps, of tile number `tile` and its parts of 16 samples. Runs beyond the
 * depth are left out. */
void bski_dsd_few_runs(const bsk_problem *problem, const dsd_few_shape *shape,
                       const bski_lines *lines, int32_t row, int32_t tile, int32_t parts,
                       dsd_few_run *to);

void bski_dsd_few_fill(const bsk_problem *problem, dsd_few_operands *o);
/* Adds one run's addresses and scalars. */
void bski_dsd_few_bind(const bsk_dsd_args *args, dsd_few_operands *o);
/* Leaves the samples from number `first` on, a multiple of DSD_FEW_COLUMNS, up to so many. */
void bski_dsd_few_part(const bsk_problem *problem, int64_t first, dsd_few_operands *o);

#endif
