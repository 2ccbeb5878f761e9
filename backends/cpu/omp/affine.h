/* Gain and bias of rows that are passed over by pieces. */
#ifndef BSKI_OMP_AFFINE_H
#define BSKI_OMP_AFFINE_H

#include "lines.h"

/* Features whose gain and bias are split once. */
enum { OWN = 4 * ROW };

/* The gain and the bias of a piece: 1 and 0 where there are none, and behind the end of a row. Rows
 * that are not too long are split once. Vectors of these are whole lines of the cache. */
typedef struct affine {
    const float *row[2];
    const float *gain, *bias; /* of the piece */
    bool split;               /* whether own holds the rows, in split pairs */
    float none[2][PIECE], piece[2][PIECE], own[2][OWN] __attribute__((aligned(64)));
} affine;

/* gain, bias: of all features, or NULL; split: whether all pieces but short ones will be. */
static void affine_begin(affine *f, const float *gain, const float *bias, int64_t features,
                         int64_t segments, bool split)
{
    const bool whole = segments == 1 || features / segments % PIECE == 0;
    f->row[0] = gain;
    f->row[1] = bias;
    f->split = split && whole && features <= OWN;
    for (int side = 0; side < 2; side++) {
        for (int64_t k = 0; k < PIECE; k++)
            f->none[side][k] = side ? 0 : 1;
        if (f->row[side] && f->split)
            pairs_split(f->own[side], f->row[side], features - features % PIECE);
    }
}

static const float *affine_side(affine *f, int side, int64_t at, int64_t count, bool split)
{
    float *piece = f->piece[side];
    if (!f->row[side])
        return f->none[side];
    if (count == PIECE && (f->split || !split))
        return (f->split ? f->own[side] : f->row[side]) + at;
    if (split) {
        pairs_split(piece, f->row[side] + at, PIECE);
        return piece;
    }
    memcpy(piece, f->row[side] + at, (size_t)count * sizeof *piece);
    for (int64_t k = count; k % PAIR; k++)
        piece[k] = f->none[side][0];
    return piece;
}

/* The features from `at` on. Not inline: whole rows seldom need it, and its vectors would take the
 * registers of loops that do. */
static __attribute__((noinline)) void affine_at(affine *f, int64_t at, int64_t count, bool split)
{
    f->gain = affine_side(f, 0, at, count, split);
    f->bias = affine_side(f, 1, at, count, split);
}

/* Where number 0 would be if number `at` is here: reckoned as an integer, since there may be none. */
OMP_INLINE const float *affine_origin(const float *here, int64_t at)
{
    return (const float *)((uintptr_t)here - (uintptr_t)at * sizeof *here);
}

/* The gain (side 0) or the bias of all features, or where there is none, such that those of the piece
 * at `at` are right. For rows that need not be split, or are. */
OMP_INLINE const float *affine_whole(const affine *f, int side, int64_t at)
{
    const float *own = f->split ? f->own[side] : f->row[side];
    return f->row[side] ? own : affine_origin(f->none[side], at);
}

/* The same as affine_at for a whole piece, but the features' own numbers are the indices. */
OMP_INLINE void affine_piece(affine *f, const float **gain, const float **bias, int64_t at,
                             bool split)
{
    if (f->split == split) {
        *gain = affine_whole(f, 0, at);
        *bias = affine_whole(f, 1, at);
        return;
    }
    affine_at(f, at, PIECE, split);
    *gain = affine_origin(f->gain, at);
    *bias = affine_origin(f->bias, at);
}

#endif
