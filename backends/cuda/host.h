/* What the host sides of tuned CUDA families share: memory of plans (simt/plan.h), and who gets the
 * next piece of work. */
#ifndef BSKI_CUDA_HOST_H
#define BSKI_CUDA_HOST_H

#include <backends/cuda/cuda.h>
#include <backends/simt/plan.h>

/* sdd in f32 with so few samples, of all pairs, is left to the portable kernels, which are bound by
 * writing S: on an H200 they are faster than its own in tf32. */
static inline bool sdd_is_portable(const bsk_sdd_params *p)
{
    enum { FEW = 8 };
    return p->a.rank == 2 && p->a.dims[1] <= FEW / p->pairs;
}

/* What a worker has to do so far. */
typedef struct load {
    double work;
    int32_t worker;
} load;

/* An array of loads is a heap: the first is of the worker with the least to do, of several with as
 * little the one with the lowest number. */
static inline void loads_open(load *loads, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        loads[i] = (load){0, i};
}

static inline bool load_less(const load *x, const load *y)
{
    return x->work < y->work || (x->work <= y->work && x->worker < y->worker);
}

/* Gives the first worker more, and answers its number. */
static inline int32_t loads_give(load *loads, int32_t count, double work)
{
    load mine = loads[0];
    int32_t at = 0;
    mine.work += work;
    for (int32_t next = 1; next < count; next = 2 * at + 1) {
        if (next + 1 < count && load_less(&loads[next + 1], &loads[next]))
            next++;
        if (load_less(&mine, &loads[next]))
            break;
        loads[at] = loads[next];
        at = next;
    }
    loads[at] = mine;
    return mine.worker;
}

/* Which tile is handed out as number i: a row of them along the samples, and the rank of what it
 * multiplies with. So many rows go together, rank by rank: what runs at a time then meets the same
 * weights as well as the same samples, and starts on them together. */
typedef struct tile_place {
    int64_t row, rank;
} tile_place;

static inline tile_place tile_place_of(int64_t i, int64_t rows, int64_t ranks, int64_t together)
{
    const int64_t first = i / (together * ranks) * together;
    const int64_t high = rows - first < together ? rows - first : together;
    i -= first * ranks;
    return (tile_place){first + i % high, i / high};
}

#endif
