/* What the host and the kernels of sdd by mma.sync, for small blocks, share.
 *
 * A unit is a tile of the matrix with a corner (its first row and column). Its kept cells are dealt
 * to the warps in lists of up to SLOTS entries. Cells of 16 x 16 or 32 x 32 are in the order of a
 * walk from cell to cell of one row or column. Cells of 8 x 8 are taken in pairs of one column,
 * sorted by columns. An entry holds three fields
 * side by side: the place of the cell's rows in a stage from bit 0 on, that of the second cell's
 * from `second` on (that of the first again if there is none), that of the columns from SDD_MMA_B
 * on. */
#ifndef BSKI_CUDA_SM90A_SDD_MMA_H
#define BSKI_CUDA_SM90A_SDD_MMA_H

#include <backends/cuda/sm90a/sdd.h>

/* X(id, cell, panels, samples, warps, slots): the shapes that are compiled. Tiles are panels x 64
 * features square; samples are those of 16 bits in a stage, of f32 there are half as many. */
#define SDD_MMA_SHAPES(X)                                                                          \
    X(8, 8, 8, 32, 16, 16)                                                                         \
    X(16, 16, 8, 32, 16, 8)                                                                        \
    X(16d, 16, 4, 64, 16, 5)                                                                       \
    X(32, 32, 8, 32, 12, 3)

/* Of f32 by FFMA, cells of 8 x 8 with features contiguous: a lane has one, an entry each. Lanes of the same
 * number of four read different chunks of a panel's rows where `row` and `column` are of different
 * eights, and the second four take the halves of eight the other way round, so that eight lanes meet all
 * banks. */
enum { SDD_FFMA_CELL = 8, SDD_FFMA_PANELS = 8, SDD_FFMA_SAMPLES = 32, SDD_FFMA_WARPS = 16 };

enum { SDD_MMA_B = 17 };
/* Of a head: the bits for columns; of pairs there are none. */
enum { SDD_MMA_KEPT_B = 8 };

#ifdef __cplusplus
#define SDD_MMA_FN static __host__ __device__ constexpr
#else
#define SDD_MMA_FN static inline
#endif

/* What a field is. Features contiguous: an address, 8 features being a chunk of 16 bytes of rows of
 * 128, and 8 chunks a panel of 128 x samples bytes; of f32, two chunks, and 4 such a panel of half as
 * many samples. Samples contiguous: an address, 8 features being 8 rows of 2 x samples bytes. */
typedef enum sdd_mma_form { SDD_MMA_NC, SDD_MMA_CN, SDD_MMA_NC_F32 } sdd_mma_form;

SDD_MMA_FN uint32_t sdd_mma_field(sdd_mma_form form, int samples, uint32_t eighth)
{
    if (form == SDD_MMA_NC_F32)
        return eighth / 4 * 64 * (uint32_t)samples + eighth % 4 * 32;
    return form == SDD_MMA_NC ? eighth / 8 * 128 * (uint32_t)samples + eighth % 8 * 16
                              : eighth * 16 * (uint32_t)samples;
}

/* The field's number of eight features. */
SDD_MMA_FN uint32_t sdd_mma_eighth(sdd_mma_form form, int samples, uint32_t field)
{
    if (form == SDD_MMA_NC_F32)
        return field / (64 * (uint32_t)samples) * 4 + field / 32 % 4;
    return form == SDD_MMA_NC ? field / (128 * (uint32_t)samples) * 8 + field / 16 % 8
                              : field / (16 * (uint32_t)samples);
}

/* The bits of a field of `panels` panels of 64 features at most. */
SDD_MMA_FN uint32_t sdd_mma_mask(sdd_mma_form form, int panels, int samples)
{
    if (form == SDD_MMA_NC_F32)
        return (2 * (uint32_t)panels - 1) * 64 * (uint32_t)samples + 3 * 32;
    return form == SDD_MMA_NC ? ((uint32_t)panels - 1) * 128 * (uint32_t)samples + 7 * 16
                              : (8 * (uint32_t)panels - 1) * 16 * (uint32_t)samples;
}

/* Where the second field starts: past the first's bits, or between them. */
SDD_MMA_FN int sdd_mma_second(sdd_mma_form form, int samples)
{
    return form == SDD_MMA_NC ? 3 : form == SDD_MMA_NC_F32 ? 4 : samples == 32 ? 6 : 5;
}

typedef struct sdd_mma_arg {
    CUtensorMap a[SDD_MAX_PAIRS], b[SDD_MAX_PAIRS];
    int32_t cluster;         /* thread blocks that share rows: 1, or 2, which have units that follow
                                each other; what both need of these either copies half of */
    const int32_t *corners;  /* [units][2] */
    const uint32_t *heads;   /* [units][warps]: the number of entries << 16, and a bit for each
                                whose row (of pairs: column) is that of the entry before; from
                                SDD_MMA_KEPT_B on whose column is */
    const uint32_t *entries; /* [units][warps][slots]; unused ones are 0 */
    sdd_work work;
    sdd_output out;
} sdd_mma_arg;

#endif
