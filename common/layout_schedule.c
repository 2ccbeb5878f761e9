/* Orders of work, derived from the tables. */
#include <string.h>

#include "common/layout.h"

/* --- groups of similar lines ------------------------------------------------------------------ */

/* A bijection of 32-bit numbers that looks random. */
static uint32_t scramble(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Two lists share their smallest scrambled position with a probability equal to their Jaccard
 * similarity: sorting by two such minima brings similar lines near each other. Empty lines come
 * last. */
static void lines_by_hash(const bski_lines *lines, const int64_t *start, bski_pair *pairs)
{
    for (int32_t i = 0; i < lines->grid; i++) {
        uint32_t low = UINT32_MAX, high = UINT32_MAX;
        for (int64_t e = start[i]; e < start[i + 1]; e++) {
            uint32_t a = scramble((uint32_t)lines->index[e]);
            uint32_t b = scramble((uint32_t)lines->index[e] + 0x9e3779b9u);
            low = b < low ? b : low;
            high = a < high ? a : high;
        }
        pairs[i] = (bski_pair){(uint64_t)high << 32 | low, (uint32_t)i};
    }
    bski_sort_pairs(pairs, pairs + lines->grid, lines->grid, 64);
}

/* The group that grows: seen[position] is its number if the position is in its union. */
typedef struct line_group {
    const bski_lines *lines;
    const int64_t *start;
    int32_t *seen;
    int32_t number;
    int64_t size; /* of the union */
} line_group;

static void group_add(line_group *g, int32_t line)
{
    for (int64_t e = g->start[line]; e < g->start[line + 1]; e++) {
        int32_t *seen = &g->seen[g->lines->index[e]];
        g->size += *seen != g->number;
        *seen = g->number;
    }
}

/* Positions of the line that the union has. */
static int64_t group_overlap(const line_group *g, int32_t line)
{
    int64_t n = 0;
    for (int64_t e = g->start[line]; e < g->start[line + 1]; e++)
        n += g->seen[g->lines->index[e]] == g->number;
    return n;
}

/* Among the first `window` lines of a chain that are left, the place before the most similar one.
 * next[i] is the place after place i; places are those of the sorted lines. */
static int32_t group_choose(const line_group *g, const bski_pair *sorted, const int32_t *next,
                            int32_t head, int32_t window)
{
    int32_t best = head;
    int64_t best_part = -1, best_whole = 1;
    for (int32_t before = head; window > 0 && next[before] >= 0; window--) {
        int32_t line = (int32_t)sorted[next[before]].value;
        int64_t part = group_overlap(g, line);
        int64_t whole = g->size + g->start[line + 1] - g->start[line] - part;
        whole = whole ? whole : 1;
        if (part * best_whole > best_part * whole) { /* part / whole is larger */
            best = before;
            best_part = part;
            best_whole = whole;
        }
        before = next[before];
    }
    return best;
}

/* Fills order from the sorted lines. next has grid + 1 elements; the last is the chain's head. */
static void groups_fill(line_group *g, const bski_pair *sorted, int32_t *next, int32_t group,
                        int32_t window, int32_t *order)
{
    int32_t grid = g->lines->grid;
    for (int32_t i = 0; i < grid; i++)
        next[i] = i + 1 < grid ? i + 1 : -1;
    next[grid] = 0;
    for (int32_t n = 0; n < grid; n++) {
        int32_t before = grid;
        if (n % group == 0) {
            g->number = n / group;
            g->size = 0;
        } else {
            before = group_choose(g, sorted, next, grid, window);
        }
        order[n] = (int32_t)sorted[next[before]].value;
        next[before] = next[next[before]];
        group_add(g, order[n]);
    }
}

bsk_status bski_schedule_groups(const bsk_layout_tables *tables, bool by_cols, int32_t head,
                                int32_t group, int32_t window, const bsk_allocator *allocator,
                                int32_t *order, bski_diag *diag)
{
    bski_lines lines = bski_layout_lines(tables, by_cols);
    const int64_t *start = lines.start + head * ((int64_t)lines.grid + 1);
    bski_pair *pairs = bski_table_alloc(allocator, 2 * (int64_t)lines.grid, sizeof *pairs);
    int32_t *next =
        bski_table_alloc(allocator, (int64_t)lines.grid + 1 + lines.other, sizeof *next);
    bsk_status status = BSK_OK;
    if (pairs && next) {
        line_group g = {&lines, start, next + lines.grid + 1, 0, 0};
        memset(g.seen, -1, (size_t)lines.other * sizeof *g.seen);
        lines_by_hash(&lines, start, pairs);
        groups_fill(&g, pairs, next, group, window, order);
    } else {
        status = bski_diag_set(diag, BSK_E_NOMEM, "no memory to group %d lines", lines.grid);
    }
    bski_table_free(allocator, next);
    bski_table_free(allocator, pairs);
    return status;
}

bsk_status bski_schedule_group_cost(const bsk_layout_tables *tables, bool by_cols, int32_t head,
                                    int32_t group, const int32_t *order,
                                    const bsk_allocator *allocator, int64_t *cost, bski_diag *diag)
{
    bski_lines lines = bski_layout_lines(tables, by_cols);
    line_group g = {.lines = &lines, .start = lines.start + head * ((int64_t)lines.grid + 1)};
    g.seen = bski_table_alloc(allocator, lines.other, sizeof *g.seen);
    if (!g.seen)
        return bski_diag_set(diag, BSK_E_NOMEM, "no memory for the union of %d lines", group);
    memset(g.seen, -1, (size_t)lines.other * sizeof *g.seen);
    for (int32_t i = 0; i < lines.grid; i++) {
        g.number = i / group;
        group_add(&g, order ? order[i] : i);
    }
    bski_table_free(allocator, g.seen);
    *cost = g.size;
    return BSK_OK;
}
