/* Gain and bias of rows that are passed over by pieces. */
#ifndef BSKI_OMP_AFFINE_H
#define BSKI_OMP_AFFINE_H

#include "lines.h"

/* The gain and the bias of a piece: 1 and 0 where there are none, and behind the end of a row. Rows
 * that are not too long are split once. */
typedef struct affine {
    const float *row[2];
    const float *gain, *bias; /* of the piece */
    bool split;               /* whether own holds the rows, in split pairs */
    float none[2][PIECE], piece[2][PIECE], own[2][ROW];
} affine;

/* gain, bias: of all features, or NULL; split: whether all pieces but short ones will be. */
static void affine_begin(affine *f, const float *gain, const float *bias, int64_t features,
                         int64_t segments, bool split)
{
    const bool whole = segments == 1 || features / segments % PIECE == 0;
    f->row[0] = gain;
    f->row[1] = bias;
    f->split = split && whole && features <= ROW;
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

/* The features from `at` on. */
static void affine_at(affine *f, int64_t at, int64_t count, bool split)
{
    f->gain = affine_side(f, 0, at, count, split);
    f->bias = affine_side(f, 1, at, count, split);
}

#endif
