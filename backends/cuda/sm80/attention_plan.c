/* The lists of the attention kernels of sm80. */
#include <stdbool.h>
#include <stdlib.h>

#include <backends/cuda/sm80/attention_plan.h>
#include <backends/simt/plan.h>
#include <common/checked.h>

enum { SIDE_MIN = 16, MAX_SUBS = ATTENTION80_OWN_MAX / SIDE_MIN };

/* The sorted lists of one axis of a layout. */
typedef struct axis {
    const int64_t *start;
    const int32_t *index, *slot;
    int32_t grid, side, other_side;
    int64_t others;
} axis;

static axis axis_of(const bsk_layout_tables *t, bool turned)
{
    return turned ? (axis){t->col_start,  t->col_row,    t->col_slot, t->grid_cols,
                           t->block_cols, t->block_rows, t->rows}
                  : (axis){t->row_start,  t->row_col,    t->row_slot, t->grid_rows,
                           t->block_rows, t->block_cols, t->cols};
}

/* The lists of a tile's blocks, walked together in the order of their other blocks. */
typedef struct merge {
    int64_t at[MAX_SUBS], end[MAX_SUBS];
    int32_t count;
} merge;

static merge merge_open(const axis *x, const attention80_lists *l, int32_t head, int32_t list)
{
    merge m = {.count = 0};
    for (int32_t s = 0; s < l->subs && list * l->subs + s < x->grid; s++, m.count++) {
        const int64_t *start = x->start + (int64_t)head * (x->grid + 1) + list * l->subs + s;
        m.at[s] = start[0];
        m.end[s] = start[1];
    }
    return m;
}

/* The next other block, and the slot of each of the tile's blocks in it or -1; false: the end. */
static bool merge_next(merge *m, const axis *x, int32_t subs, int32_t *block, int32_t *slot)
{
    bool any = false;
    for (int32_t s = 0; s < m->count; s++)
        if (m->at[s] < m->end[s] && (!any || x->index[m->at[s]] < *block)) {
            *block = x->index[m->at[s]];
            any = true;
        }
    for (int32_t s = 0; s < subs; s++) {
        slot[s] = -1;
        if (any && s < m->count && m->at[s] < m->end[s] && x->index[m->at[s]] == *block)
            slot[s] = x->slot[m->at[s]++];
    }
    return any;
}

/* Pieces of a block of other lines: those that hold some. */
static int32_t piece_count(const axis *x, const attention80_lists *l, int32_t block)
{
    const int64_t left = x->others - (int64_t)block * x->other_side;
    return (int32_t)bski_ceil_div(left < x->other_side ? left : x->other_side, l->piece);
}

bool bski_attention80_fits(const bsk_layout_tables *t)
{
    for (int turned = 0; turned < 2; turned++) {
        const axis x = axis_of(t, turned);
        const int64_t tiles =
            ((int64_t)x.grid * x.side + ATTENTION80_OWN_MAX) / ATTENTION80_OWN_MIN;
        const int64_t subs = x.side < ATTENTION80_OWN_MAX ? ATTENTION80_OWN_MAX / x.side : 1;
        const int64_t pieces = bski_ceil_div(x.other_side, ATTENTION80_STEP_MIN);
        if (tiles > INT32_MAX / t->heads || t->nnz > INT32_MAX / (pieces * subs))
            return false;
    }
    return true;
}

attention80_lists bski_attention80_measure(const bsk_layout_tables *t, bool turned, int32_t own,
                                           int32_t step)
{
    const axis x = axis_of(t, turned);
    int32_t block = 0, slot[MAX_SUBS];
    attention80_lists l = {.turned = turned, .own = own};
    l.piece = x.other_side < step ? x.other_side : step;
    l.each = x.side > own ? x.side / own : 1;
    l.subs = x.side < own ? own / x.side : 1;
    l.lists = (int32_t)bski_ceil_div(x.grid, l.subs);
    l.tiles = l.lists * l.each;
    for (int32_t h = 0; h < t->heads; h++)
        for (int32_t list = 0; list < l.lists; list++) {
            merge m = merge_open(&x, &l, h, list);
            while (merge_next(&m, &x, l.subs, &block, slot))
                l.pieces += piece_count(&x, &l, block);
        }
    return l;
}

/* A tile and the length of its list. */
typedef struct ranked {
    int32_t tile, length;
} ranked;

static int by_length(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->length != y->length ? (x->length < y->length ? 1 : -1)
                                  : (x->tile > y->tile) - (x->tile < y->tile);
}

static void order_fill(const attention80_lists *l, int32_t heads, ranked *rank)
{
    for (int32_t h = 0; h < heads; h++) {
        for (int32_t tile = 0; tile < l->tiles; tile++) {
            const int32_t *start = l->start + (int64_t)h * l->lists + tile / l->each;
            rank[tile] = (ranked){tile, start[1] - start[0]};
        }
        qsort(rank, (size_t)l->tiles, sizeof *rank, by_length);
        for (int32_t tile = 0; tile < l->tiles; tile++)
            l->order[(int64_t)h * l->tiles + tile] = rank[tile].tile;
    }
}

bsk_status bski_attention80_fill(const bsk_host *host, const bsk_layout_tables *t,
                                 attention80_lists *l)
{
    const axis x = axis_of(t, l->turned);
    const size_t starts = (size_t)t->heads * (size_t)l->lists + 1, pieces = (size_t)l->pieces;
    const size_t order = (size_t)t->heads * (size_t)l->tiles;
    const size_t all = starts + pieces + pieces * (size_t)l->subs + order;
    int32_t block = 0, slot[MAX_SUBS], at = 0;
    ranked *rank;
    TRY(host_array(host, &rank, l->tiles, sizeof *rank));
    const bsk_status status = host_array(host, &l->start, (int64_t)all, sizeof *l->start);
    if (status) {
        host_drop(host, rank);
        return status;
    }
    l->line = l->start + starts;
    l->slot = l->line + pieces;
    l->order = l->slot + pieces * (size_t)l->subs;
    for (int32_t h = 0; h < t->heads; h++)
        for (int32_t list = 0; list < l->lists; list++) {
            merge m = merge_open(&x, l, h, list);
            l->start[(int64_t)h * l->lists + list] = at;
            while (merge_next(&m, &x, l->subs, &block, slot))
                for (int32_t p = 0; p < piece_count(&x, l, block); p++, at++) {
                    l->line[at] = block * x.other_side + p * l->piece;
                    for (int32_t s = 0; s < l->subs; s++)
                        l->slot[(int64_t)at * l->subs + s] = slot[s];
                }
        }
    l->start[starts - 1] = at;
    order_fill(l, t->heads, rank);
    host_drop(host, rank);
    return BSK_OK;
}
