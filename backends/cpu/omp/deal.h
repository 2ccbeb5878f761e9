/* Tasks that are dealt to threads. They come in runs whose tasks use the same data, such as one group of
 * panels: a thread begins with a run that few others have, whose data its second-level cache keeps, and
 * when none of that is left takes tasks of others, so that a slow processor holds nobody up. */
#ifndef BSKI_OMP_DEAL_H
#define BSKI_OMP_DEAL_H

#include <stdint.h>

enum { DEAL_HANDS = 64 };

typedef struct deal {
    int64_t runs, length; /* tasks of each */
    int64_t hands;        /* neighbouring runs, about as many each */
    struct {
        _Alignas(64) int64_t next; /* task */
    } hand[DEAL_HANDS];
} deal;

static inline int64_t deal_first(const deal *d, int64_t hand)
{
    return hand * d->runs / d->hands * d->length;
}

/* By one thread, before a barrier. */
static inline void deal_open(deal *d, int64_t runs, int64_t length, int threads)
{
    const int64_t most = threads < DEAL_HANDS ? threads : DEAL_HANDS;
    d->runs = runs;
    d->length = length;
    d->hands = runs < most ? runs : most;
    for (int64_t h = 0; h < d->hands; h++)
        d->hand[h].next = deal_first(d, h);
}

/* The next task of a thread, or -1. hands: those that it has emptied, at first 0. */
static inline int64_t deal_take(deal *d, int thread, int threads, int64_t *hands)
{
    for (; *hands < d->hands; ++*hands) {
        const int64_t h = (thread * d->hands / threads + *hands) % d->hands;
        int64_t task;
#pragma omp atomic capture
        task = d->hand[h].next++;
        if (task < deal_first(d, h + 1))
            return task;
    }
    return -1;
}

#endif
