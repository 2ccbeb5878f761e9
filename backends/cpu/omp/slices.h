/* Products on matrix tiles, slice by slice of the lists: S is read from its packed form, or from where it
 * lies, or is packed while the slice before it is multiplied. STREAMED sets have it.
 * Included by dsd.h after its types, once for each kind of arithmetic. */

/* Where the tiles of B for `count` blocks of a list lie in a panel; returns their number, or 0 if one
 * of these is cut by the edge of the matrix. */
static int64_t FN(steps_list)(const FN(dsd) * d, const int32_t *other, int64_t count, int64_t *at)
{
    const int64_t block = d->block_j, deep = d->deep;
    int64_t steps = 0;
    for (int64_t e = 0; e < count; e++) {
        const int64_t first = other[e] * block;
        if (first + block > d->J)
            return 0;
        for (int64_t k = 0; k < block; k += deep)
            at[steps++] = (first + k) * FN(NR);
    }
    return steps;
}

/* Whether tiles of S can be loaded from where they lie. */
static bool FN(tiles_lie)(const FN(dsd) * d)
{
    return d->stride_j == 1 && d->p->s.dtype == STORED && (uintptr_t)d->s % sizeof(T) == 0;
}

/* Whether all of the next `count` blocks' depth is inside the matrix; lists are sorted. */
static bool FN(depth_whole)(const FN(dsd) * d, const FN(band) * band, int64_t count)
{
    return (d->other[band->list + count - 1] + 1) * d->block_j * UNIT <= d->depth_end;
}

/* Lists where in S the steps of `count` blocks begin. */
static void FN(steps_from)(const FN(dsd) * d, const FN(band) * band, int64_t count, const T **from)
{
    const int64_t block = d->block_i * d->block_j * UNIT, step = d->deep * UNIT * d->stride_j;
    const S_STORED *s = (const S_STORED *)(const void *)band->s + band->row * d->stride_i;

    for (int64_t e = 0; e < count; e++)
        for (int64_t k = 0; k * d->deep < d->block_j; k++)
            *from++ = (const T *)(const void *)(s + d->slot[band->list + e] * block + k * step);
}

/* Blocks of a slice, of which a list has some of about the same length. */
static int64_t FN(slice_count)(const FN(dsd) * d, const FN(band) * band)
{
    const int64_t most = min_i64(DSD_SLICE / (d->tall * (int64_t)sizeof(T)),
                                 FN(AWAKE) / min_i64(d->tall, DSD_MR) * d->deep);
    const int64_t total = max_i64(1, band->end - band->first);
    return min_i64(band->end - band->list,
                   bski_ceil_div(total, bski_ceil_div(total * d->block_j, most)));
}

/* Moves the walk `count` blocks on: along the list, to the block's next row group, or to the next block
 * row of the range that has blocks. Returns those of the slice there; 0: there is none. */
static int64_t FN(slice_next)(const FN(dsd) * d, FN(band) * band, int64_t count)
{
    band->list += count;
    if (band->list == band->end && band->row + FN(BAND) < d->block_i) {
        band->row += FN(BAND);
        band->list = band->first;
    } else if (band->list == band->end) {
        band->row = 0;
        do {
            if (band->after-- <= 0)
                return 0;
            band->first = band->list = *band->next++;
            band->end = *band->next;
        } while (band->first == band->end);
    }
    return FN(slice_count)(d, band);
}

/* The tiles of S for the next `count` blocks: in the image, or where they lie, or in a packed form made
 * here, or before by slice_ahead. Returns the Ts from row to row of a tile. */
static int64_t FN(slice_find)(const FN(dsd) * d, const FN(band) * band, FN(scratch) * scratch,
                              int64_t count)
{
    const int64_t size = d->tall * d->deep, steps = count * bski_ceil_div(d->block_j, d->deep);
    const int32_t *slot = d->slot + band->list, *other = d->other + band->list;
    const T *s = scratch->own[scratch->turn ^= 1];

    if (!d->image && FN(tiles_lie)(d) && FN(depth_whole)(d, band, count)) {
        FN(steps_from)(d, band, count, scratch->tile);
        return d->block_j;
    }
    if (d->image)
        s = FN(image_of)(d, band) + (band->list - band->first) * d->block_j * d->tall;
    else if (band->list != scratch->made_list || band->row != scratch->made_row)
        for (int64_t e = 0; e < count; e++) {
            const int64_t first = other[e] * d->block_j;
            const FN(piece) piece = {.first = first,
                                     .depth = (int32_t)min_i64(d->block_j, d->J - first),
                                     .slot = slot[e]};
            FN(image_put)
            (d, band, &piece, band->row, band->rows, scratch->own[scratch->turn], e * d->block_j,
             e + 1 == count);
        }
    for (int64_t i = 0; i < steps; i++)
        scratch->tile[i] = s + i * size;
    return d->deep;
}

/* What is done for the slices that follow while `passes` passes over this one's steps are made: the
 * next one is packed, if it has to be, and lines of what is needed then are asked for. False if that
 * lies behind this slice's in memory. */
static bool FN(slice_ahead)(const FN(dsd) * d, const FN(band) * band, FN(scratch) * scratch,
                            int64_t count, int64_t passes, FN(turning) * turning)
{
    const int64_t per_block = bski_ceil_div(d->block_j, d->deep);
    const int64_t row =
        (d->stride_j == 1 ? d->block_j * UNIT : d->block_i) * (int64_t)sizeof(S_STORED);
    const int64_t lines = d->tall * d->deep * (int64_t)sizeof(T) / TILE_BYTES;
    const int32_t *slot = d->slot + band->list;
    FN(band) next = *band;

    if (d->image || (FN(tiles_lie)(d) && d->tall == d->block_i && d->deep == d->block_j &&
                     slot[count - 1] - slot[0] == count - 1))
        return false;
    memset(turning, 0, sizeof *turning);
    turning->line_step = max_i64(TILE_BYTES, row) / (int64_t)sizeof(T);
    turning->lines = bski_ceil_div(lines, passes);
    turning->from = scratch->from;
    turning->then = scratch->then;
    scratch->made_list = -1;
    int64_t more = FN(slice_next)(d, &next, count);
#ifdef TURNS
    if (d->stride_j != 1 && more > 0 && FN(depth_whole)(d, &next, more)) {
        FN(steps_from)(d, &next, more, scratch->from);
        turning->rows = d->tall;
        turning->deep = d->deep;
        turning->most = FN(turn_rows)(d->tall, d->deep * UNIT, d->block_i);
        turning->ld = d->block_i;
        turning->to = scratch->own[scratch->turn ^ 1];
        turning->parts = more * per_block * d->tall / turning->most;
        turning->rate = bski_ceil_div(turning->parts, count * per_block * passes);
        scratch->made_list = next.list;
        scratch->made_row = next.row;
        more = FN(slice_next)(d, &next, more);
    }
#endif
    FN(steps_from)(d, &next, more, scratch->then);
    turning->then_steps = more * per_block;
    return true;
}

/* A row group times `count` blocks from the walk's position on, for each panel of a group: results go
 * to, or are added to, strip + filled rows. Its part of the packed S stays in the first-level cache
 * from panel to panel, and each fetches its share of what follows. */
static void FN(slice_compute)(const FN(dsd) * d, const FN(band) * band, FN(scratch) * scratch,
                              int64_t count, int64_t filled, const T *packed, int64_t panel0,
                              int64_t panels, bool resume)
{
    const int64_t size = d->tall * d->deep, steps = count * bski_ceil_div(d->block_j, d->deep);
    const int64_t turn = d->tall == DSD_TALL ? 1 : 2; /* panels at once */
    const int64_t lines =
        bski_ceil_div(size * (int64_t)sizeof(T), TILE_BYTES * bski_ceil_div(panels, turn));
    FN(piece) *piece = scratch->piece, *copy = scratch->copy;
    FN(band) walk = *band;
    FN(turning) turning;
    int64_t first = 0, s_row = 0;
    bool ahead = false;

    if (count > 0) {
        const bool whole = FN(steps_list)(d, d->other + band->list, count, scratch->at) > 0;
        first = whole ? panels - (FN(panel_cols)(d, panel0 + panels - 1) <= FN(VL)) : 0;
        first -= first % turn;
        s_row = FN(slice_find)(d, band, scratch, count);
        ahead = FN(slice_ahead)(d, band, scratch, count, max_i64(1, first / turn), &turning);
    }
    if (first > 0) {
        const FN(slice) slice = {scratch->tile, s_row, steps, size,   packed,
                                 d->J * FN(NR), first, lines, resume, ahead ? &turning : NULL};
        T *strips = scratch->strip[0] + filled * FN(NR);
        const int64_t strip_size = scratch->strip[1] - scratch->strip[0];
        if (turn == 1)
            FN(tall_multiply)(&slice, strips, strip_size, scratch->at);
        else
            FN(low_multiply)(&slice, strips, strip_size, scratch->at);
    }
    if (ahead)
        FN(turn_rest)(&turning, first == 0);
    if (first == panels)
        return;
    walk.end = band->list + count;
    FN(slice_locate)(d, scratch->tile, band->list, piece, FN(pieces_list)(d, &walk, piece), copy);
    if (count > 0)
        copy[0].fetch = scratch->tile[0] + steps * size;
    for (int64_t q = first; q < panels; q++)
        FN(tile_choose)
    (d, true, bski_ceil_div(FN(panel_cols)(d, panel0 + q), FN(VL)))(
        scratch->strip[q] + filled * FN(NR), copy, count, packed + q * d->J * FN(NR), s_row,
        d->block_j, q / turn * steps * lines * FN(PER_LINE), ahead ? 0 : lines, resume);
}
