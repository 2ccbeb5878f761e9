/* The host side that the entries of sdd on Hopper share: what they take, the schedule of their
 * units, and the tables and arguments of the output. */
#ifndef BSKI_CUDA_SM90A_SDD_HOST_H
#define BSKI_CUDA_SM90A_SDD_HOST_H

#include <backends/cuda/host.h>
#include <backends/cuda/sm90a/sdd.h>
#include <backends/cuda/tensor_map.h>

/* Whether samples are contiguous in both operands, instead of features. */
bool bski_sdd_along_n(const bsk_sdd_params *p);

/* What no sdd entry of this folder takes, whatever the blocks. exact: its products of f32 are, and not
 * of tf32. */
bsk_reason bski_sdd_refusal(const bsk_problem *problem, bool exact);

/* What a kernel wants turned first of operands in f32 with features contiguous, and the time that
 * takes. */
typedef enum bski_sdd_turns { SDD_TURNS_NONE, SDD_TURNS_B, SDD_TURNS_BOTH } bski_sdd_turns;

double bski_sdd_turn_seconds(const bsk_problem *problem, bski_sdd_turns turns);

/* Slices of `samples` samples each, of all pairs together. */
int64_t bski_sdd_slices(const bsk_sdd_params *p, int32_t samples);

/* --- Schedules --- */

/* Clock cycles that `units` which cost `cost` a slice each take on so many thread blocks: about what
 * a schedule of them would say, without making it. last_parts: as below. */
double bski_sdd_estimate(int64_t units, double cost, int64_t slices, int32_t blocks,
                         int32_t last_parts);

/* Segments of units, block by block; arrays belong to the host's allocator. */
typedef struct bski_sdd_schedule {
    sdd_segment *segments;
    int32_t *start; /* [blocks + 1] */
    int32_t count, blocks;
    int32_t split;  /* units with several parts */
    int32_t places; /* partial sums of all of these */
    int32_t rounds; /* of SDD_PACE slices, of the longest block */
    double cycles;  /* that it should take */
    bool halves;    /* lists are of two blocks, each of which has half of the slices */
} bski_sdd_schedule;

/* How units go to thread blocks. */
typedef struct bski_sdd_deal {
    bool by_cost;   /* the costliest first: a better balance, in another order */
    double tails;   /* the share of what they promise that they keep; they are cut if that pays */
    bool few_tails; /* also where there are fewer units than blocks */
    bool halves;    /* two blocks for each unit, where these are nearly half as many as blocks */
    int32_t last_parts; /* of units of an uneven last round, by interleaved slices; 0: whole */
} bski_sdd_deal;

/* cost: of a slice of each unit, in clock cycles. Units that follow each other run at the same time.
 * Where there are fewer units than blocks, the costly ones are cut in parts by interleaved slices if
 * that pays; where the last round would be uneven, its units are, or the ends of the fullest blocks'
 * work, tails, go to the idlest ones. */
bsk_status bski_sdd_schedule_make(const bsk_host *host, const double *cost, int32_t units,
                                  int32_t slices, int32_t blocks, const bski_sdd_deal *deal,
                                  bski_sdd_schedule *schedule);
void bski_sdd_schedule_free(const bsk_host *host, bski_sdd_schedule *schedule);

/* --- A plan's share --- */

/* State of a plan; the families put it first in theirs. */
typedef struct bski_sdd_plan {
    bsk_mem segments, start, where; /* tables on the device */
    bski_cuda_encoder encoder;
    bski_cuda_tensor a, b;
    sdd_work work;
    sdd_output out;
    size_t counters; /* bytes at the start of the workspace that a launch clears */
    size_t turned;   /* where in the workspace the turned operands of all pairs begin, if any */
    bski_sdd_turns turns;
    size_t shared_bytes;
    int32_t blocks;
} bski_sdd_plan;

/* What a kernel's shape means for the plan. */
typedef struct bski_sdd_kernel {
    int32_t features, samples;   /* of a panel, whose rows are as wide as its swizzle */
    int32_t warps, accumulators; /* that compute, in a block or cluster; of each of their lanes */
    int32_t stage_bytes;
    bski_sdd_turns turns;
    bool exact; /* f32 is not rounded to tf32 */
} bski_sdd_kernel;

/* Fills a plan from a schedule: tables, the operands' panels, stages and the workspace. */
bsk_status bski_sdd_plan_make(bski_cuda_device *device, bsk_prepared *prepared,
                              const bski_sdd_schedule *schedule, const bski_sdd_kernel *kernel,
                              bski_sdd_plan *plan);
void bski_sdd_plan_free(bski_cuda_device *device, bski_sdd_plan *plan);

/* The arguments of a run: the maps of all pairs, work and output. Clears the counters. */
bsk_status bski_sdd_arguments(const bski_sdd_plan *plan, const bsk_problem *problem, void *queue,
                              const bsk_sdd_args *args, CUtensorMap *a, CUtensorMap *b,
                              sdd_work *work, sdd_output *out);

#endif
