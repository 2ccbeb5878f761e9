/* What the hosts and the kernels of sdd on Hopper share: tables of work and the scalars of a launch.
 *
 * The operands are cut into panels of 64 features by 64 samples, of f32 32: 8 KB of shared memory
 * each. A
 * *unit* is what a thread block keeps in accumulators while it sweeps over the samples; a *slice*
 * is one step of that sweep. Slices are numbered through all pairs. A *segment* is an arithmetic
 * sequence of slices of one unit, computed by one thread block; where a unit has several, each
 * leaves a partial sum in the workspace, and the last to arrive adds them in order of their
 * numbers. */
#ifndef BSKI_CUDA_SM90A_SDD_H
#define BSKI_CUDA_SM90A_SDD_H

#include <stdint.h>

#include <cuda.h> /* CUtensorMap */

enum {
    SDD_PANEL = 64,     /* features of a panel, and samples of 16-bit elements */
    SDD_PANEL_F32 = 32, /* samples of f32 */
    SDD_PANEL_BYTES = 8192,
    SDD_MAX_PAIRS = 8,
    SDD_MAX_STAGES = 16,
    SDD_PACE = 4,           /* slices of a round of sweeps that wait for each other */
    SDD_PRODUCERS = 4,      /* warps that copy, after those that compute */
    SDD_CLEAR_THREADS = 32, /* each of 16 bytes of the counters */
    SDD_TURN_TILE = 64,     /* features, and samples, of a thread block that turns */
    SDD_TURN_THREADS = 256,
    SDD_HEAD_BYTES = 1024,    /* of shared memory before the stages: barriers */
    SDD_SHARED_BYTES = 232448 /* that a thread block may have */
};

typedef struct sdd_segment {
    int32_t unit;
    int32_t first, count, step; /* slices */
    int32_t part, parts;        /* the number of this partial sum, and of all; 1: there is none */
    int32_t place;              /* of the unit's part 0 in the workspace */
    int32_t counter;            /* of the unit's finished parts */
} sdd_segment;

/* A unit of the wgmma kernels: panels of both operands, of which each of two warpgroups multiplies
 * one of A with up to four neighbouring ones of B. The two thread blocks of a cluster have one each,
 * side by side. A panel that both need, at the same place, has SDD_SHARED: either copies every other
 * one for both. */
enum { SDD_MAX_PANELS = 9, SDD_OF_B = 1 << 30, SDD_SHARED = 1 << 29, SDD_FEATURE = SDD_SHARED - 1 };

typedef struct sdd_unit {
    int32_t panels;                  /* of a stage */
    int32_t a[2];                    /* by warpgroup: its panel of A, */
    int32_t b[2];                    /* the first of its panels of B */
    int32_t count[2];                /* and how many: 0 to 4 */
    int32_t feature[SDD_MAX_PANELS]; /* the first of each panel, and what it is */
} sdd_unit;

/* The output and what happens to the sums on the way there. */
typedef struct sdd_output {
    void *s;
    const float *gate;    /* NULL: none */
    const int32_t *where; /* [ceil(rows / 128) * 16][where_cols]: the place in s of each tile of
                             8 x 8 elements, in units of 8 elements; -1: not kept */
    int64_t rows, cols;
    float alpha, beta;
    int32_t where_cols; /* ceil(cols / 256) * 32 */
    int32_t block_cols;
    int32_t block_eighth; /* elements of a block / 8 */
    int32_t type;         /* bsk_dtype */
    int32_t gate_mode;    /* bsk_gate_mode; IGNORE without a gate */
} sdd_output;

/* What a thread block sweeps over, and where partial sums go. */
typedef struct sdd_work {
    const sdd_segment *segments;
    const int32_t *start; /* [blocks + 1]: segments of each thread block, or cluster */
    float *parts;
    uint32_t *counters; /* zero at the start; the last arriver of a unit needs no reset */
    uint32_t *progress; /* zero at the start: rounds (SDD_PACE) that all blocks have begun */
    int32_t slices;     /* of a pair */
    int32_t stages;
    int32_t lead;   /* rounds that a block may be ahead of the mean; 0: any */
    int32_t rounds; /* of the longest block */
} sdd_work;

/* An operand in f32 with features contiguous, and its copy, whose rows are features, longer than the
 * samples with zeros; of each eight samples those of even number come first. */
typedef struct sdd_turn_arg {
    const float *from;
    float *to;
    int64_t features, samples;
    int64_t from_row, to_row; /* elements */
} sdd_turn_arg;

typedef struct sdd_wgmma_arg {
    CUtensorMap a[SDD_MAX_PAIRS], b[SDD_MAX_PAIRS];
    const sdd_unit *units;
    int32_t stage_bytes;
    int32_t pad;
    sdd_work work;
    sdd_output out;
} sdd_wgmma_arg;

#endif
