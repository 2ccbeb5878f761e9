/* Pairs of lines that need many of the same slices: what they share is loaded once. */
#include <stdbool.h>

#include <backends/cuda/sm90a/dsd_pairing.h>

typedef struct lines {
    const uint64_t *kept;
    int32_t words;
} lines;

static int32_t common_slices(const lines *l, int32_t x, int32_t y)
{
    const uint64_t *p = l->kept + (int64_t)x * l->words, *q = l->kept + (int64_t)y * l->words;
    int32_t sum = 0;
    for (int32_t i = 0; i < l->words; i++)
        sum += __builtin_popcountll(p[i] & q[i]);
    return sum;
}

/* Exchanges members of two pairs if that saves loads. */
static bool improve(const lines *l, int32_t *p, int32_t *q)
{
    const int32_t now = common_slices(l, p[0], p[1]) + common_slices(l, q[0], q[1]);
    const int32_t straight = common_slices(l, p[0], q[0]) + common_slices(l, p[1], q[1]);
    const int32_t crossed = common_slices(l, p[0], q[1]) + common_slices(l, p[1], q[0]);
    if (now >= straight && now >= crossed)
        return false;
    int32_t *partner = straight >= crossed ? &q[0] : &q[1];
    const int32_t line = p[1];
    p[1] = *partner;
    *partner = line;
    return true;
}

/* Neighbours first; then partners are exchanged until nothing is gained, or for a number of rounds,
 * within windows of pairs. */
void bski_dsd_pairing(const uint64_t *kept, int32_t words, int32_t pairs, int32_t *order)
{
    enum { ROUNDS = 16, WINDOW = 256 };
    const lines l = {kept, words};
    for (int32_t i = 0; i < 2 * pairs; i++)
        order[i] = i;
    bool better = true;
    for (int round = 0; round < ROUNDS && better; round++) {
        better = false;
        for (int32_t i = 0; i < pairs; i++)
            for (int32_t j = i + 1; j < pairs && j < i + WINDOW; j++)
                better |= improve(&l, order + 2 * i, order + 2 * j);
    }
}
