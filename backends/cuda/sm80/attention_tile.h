/* What the attention kernels of sm80 share. A thread block owns a tile of query rows (of key columns
 * where C::TURNED), each warp C::M times 16 of its lines, and walks along the list of the other
 * lines that the tile meets, C::N of them at a time: a step.
 *
 *     own lines    x [OWN][D]        once             ldmatrix        \  scores: 16 x 8 sums,
 *     other lines  y [2][N][D]       by cp.async      ldmatrix        /  own lines down
 *                  y2, or z the same                  ldmatrix.trans  -> the result, 16 own lines
 *                                                                        x D features
 *
 * A step's description is made two steps ahead: the times of its lines, and for each square of 16 x
 * 16 elements whether it is empty, partly or all visible. Products of empty squares are left out. */
#ifndef BSKI_CUDA_SM80_ATTENTION_TILE_H
#define BSKI_CUDA_SM80_ATTENTION_TILE_H

#include <backends/cuda/mma.h>
#include <backends/cuda/row_bound.h>

#define SIMT_T      f32 /* what the rules compute in */
#define GROUP_LANES 128
#include <backends/simt/simt.h>

#include <backends/simt/type.h>

#include <backends/simt/lanes.h>

#include <backends/simt/attention_rules.h>

#include <backends/cuda/sm80/attention_arg.h>

#undef T
#undef R
#undef LD
#undef ST

enum { ATTENTION_STAGES = 2, ATTENTION_STEPS = 3 };

#define LN_2 0.69314718055994531f

template <typename TYPE, int WIDTH, int MS, int WARP_COUNT, int OTHERS, bool TURN> struct kind {
    typedef TYPE T;
    enum {
        D = WIDTH,
        M = MS,             /* squares of a warp, one below the other */
        WARPS = WARP_COUNT, /* at most: as many as a tile has lines for */
        N = OTHERS,
        TURNED = TURN,
        THREADS = 32 * WARPS,
        OWN = SQUARE * M * WARPS, /* at most */
        NT = N / 8,               /* products of 8 columns */
        SQUARES = N / SQUARE,
        DOWN = OWN / SQUARE,
        DT = D / 8,
        RUNS = D / 8 /* of 16 bytes in a line */
    };
};

/* What the other lines of a step are. */
template <class C> struct step_lines {
    i32 head;              /* the query head; -1: behind the last step */
    i32 time[C::N];        /* -1: nothing is there */
    i32 place[C::SQUARES]; /* in their block */
    i32 slot[C::DOWN][C::SQUARES];
    alignas(4) u8 view[C::DOWN][4]; /* RULES_ */
};

/* Own lines of a tile. Tiles of all sizes have one kernel. */
template <class C> MMA_DEVICE int own_lines(void)
{
    return (int)blockDim.x / 32 * C::M * SQUARE;
}

/* A thread block's own lines. */
struct own_tile {
    i32 b, head;
    i32 tile, first;
};

/* Query heads of a result's head are counted from its number times this. */
template <class C> MMA_DEVICE i32 first_query_head(const own_tile &own, i32 group)
{
    return C::TURNED ? own.head * group : own.head;
}

/* The thread block's tile of so many lines; false: there is none. */
template <class C>
MMA_DEVICE bool own_open(const attention80_tiles &t, i32 group, i32 per_head, int lines,
                         own_tile *own)
{
    const uint32_t turns = (uint32_t)t.tiles * t.together, at = blockIdx.x % turns;
    const i32 number = (i32)(blockIdx.x / turns * t.together + at % t.together);
    if (number >= t.heads * t.batch)
        return false;
    own->b = number / t.heads;
    own->head = number % t.heads;
    own->tile =
        t.order[first_query_head<C>(*own, group) / per_head * t.tiles + (i32)(at / t.together)];
    own->first = own->tile * lines;
    return true;
}

/* The time of a line, or -1 where there is none to be read. */
MMA_DEVICE i32 line_time(i32 lines, i32 interleave, i32 there, i32 line)
{
    if (line < 0 || line >= lines)
        return -1;
    const i32 time = rules_time(lines, interleave, line);
    return time < there ? time : -1;
}

MMA_DEVICE i64 heads_at(const attention80_heads &h, i64 batch, i64 head)
{
    return batch * h.batch + head * h.head;
}

/* --- The walk --- */

struct walk_place {
    i32 head, last; /* query heads */
    i32 piece, end;
};

/* Goes on to the next list with pieces, unless there are some left. */
MMA_DEVICE void walk_settle(walk_place *w, const attention80_tiles &t, i32 per_head, i32 tile)
{
    while (w->piece >= w->end && ++w->head < w->last) {
        const i32 *start = t.start + w->head / per_head * t.lists + tile / t.each;
        w->piece = start[0];
        w->end = start[1];
    }
}

template <class C>
MMA_DEVICE walk_place walk_open(const attention80_tiles &t, i32 group, i32 per_head,
                                const own_tile &own)
{
    walk_place w;
    w.head = first_query_head<C>(own, group) - 1;
    w.last = w.head + 1 + (C::TURNED ? group : 1);
    w.piece = w.end = 0;
    walk_settle(&w, t, per_head, own.tile);
    return w;
}

/* How much is visible of OWN own lines from `own` on and OTHERS others from `other` on, of one block. */
template <class C, int OWN, int OTHERS>
MMA_DEVICE u8 lines_view(const rules_arg *a, const rules_data *data, const rules_member *m,
                         const attention80_tiles &t, i32 slot, i32 own, i32 other)
{
    const i32 own_left = t.lines - own, other_left = t.others - other;
    const i32 owns = own_left < OWN ? own_left : OWN;
    const i32 others = other_left < OTHERS ? other_left : OTHERS;
    if (slot < 0 || owns <= 0 || others <= 0)
        return RULES_EMPTY;
    const i32 view = C::TURNED ? rules_block(a, data, m, slot, other, others, own, owns)
                               : rules_block(a, data, m, slot, own, owns, other, others);
    return (u8)(view == RULES_FULL && others < OTHERS ? RULES_PARTIAL : view);
}

/* Describes the step where the walk stands, and goes on to the next. By all threads. */
template <class C>
MMA_DEVICE void walk_step(step_lines<C> *to, walk_place *w, const rules_arg *a,
                          const rules_data *data, const rules_member *m, const attention80_tiles &t,
                          const own_tile &own)
{
    const bool more = w->head < w->last;
    if (threadIdx.x == 0)
        to->head = more ? w->head : -1;
    if (!more)
        return;
    const i32 there = C::TURNED ? m->queries : m->keys, in_piece = (1 << t.piece) - 1;
    for (int n = threadIdx.x; n < C::N; n += blockDim.x) {
        const i32 piece = w->piece + (n >> t.piece);
        to->time[n] = line_time(t.others, a->interleave, there,
                                piece < w->end ? t.line[piece] + (n & in_piece) : -1);
    }
    for (int n = threadIdx.x; n < own_lines<C>() / SQUARE * C::SQUARES; n += blockDim.x) {
        const int down = n / C::SQUARES, s = n % C::SQUARES;
        const i32 piece = w->piece + (s * SQUARE >> t.piece);
        const i32 block = t.subs > 1 ? down * SQUARE / t.side : 0;
        i32 slot = -1, line = 0;
        if (piece < w->end) {
            slot = t.slot[(i64)piece * t.subs + block];
            line = t.line[piece] + (s * SQUARE & in_piece);
        }
        if (down == 0)
            to->place[s] = line & (t.other - 1);
        to->slot[down][s] = slot;
        to->view[down][s] =
            lines_view<C, SQUARE, SQUARE>(a, data, m, t, slot, own.first + down * SQUARE, line);
    }
    w->piece += C::N >> t.piece;
    walk_settle(w, t, a->per_head, own.tile);
}

/* --- Lines in shared memory --- */

/* By how much the runs of a line are exchanged, so that those of 8 lines lie in different banks. */
template <int D> MMA_DEVICE int line_turn(int line)
{
    return D % 64 == 0 ? line % 8 : line / 2 % 4;
}

/* Copies lines of a head by their times, COUNT by so many threads; zeros stand for what is not
 * there. */
template <class C, int COUNT, int THREADS>
MMA_DEVICE void copy_lines_by(uint32_t to, const u16 *from, i64 stride, i32 width, const i32 *time)
{
#pragma unroll 4
    for (int i = 0; i < COUNT * C::RUNS; i += THREADS) {
        const int n = i + (int)threadIdx.x, line = n / C::RUNS, run = n % C::RUNS;
        const i32 at = time[line];
        const bool there = at >= 0 && run * 8 < width;
        cp_async_16(to + (line * C::RUNS + (run ^ line_turn<C::D>(line))) * 16,
                    from + (there ? at * stride + run * 8 : 0), there ? 16 : 0);
    }
}

/* COUNT lines, or with OWN so many for each warp. By each number of threads apart: as a variable it
 * cost 2 percent of a kernel's time, and up to 6. */
template <class C, int COUNT, bool OWN>
MMA_DEVICE void copy_lines(uint32_t to, const u16 *from, i64 stride, i32 width, const i32 *time)
{
    if (C::WARPS >= 4 && blockDim.x == 128)
        copy_lines_by<C, OWN ? COUNT * 4 : COUNT, 128>(to, from, stride, width, time);
    else if (blockDim.x == 64)
        copy_lines_by<C, OWN ? COUNT * 2 : COUNT, 64>(to, from, stride, width, time);
    else
        copy_lines_by<C, COUNT, 32>(to, from, stride, width, time);
}

/* A lane's address of 16 lines for ldmatrix, and what is exchanged with the place of its runs. As
 * left operand, and as right operand whose lines run across k: matrices 0 and 1 are the lines 0 to 7
 * and 8 to 15 of a run, 2 and 3 those of the next. As right operand whose lines run along k: 0 and 1
 * are two runs of lines 0 to 7, 2 and 3 of lines 8 to 15. */
struct lane_lines {
    uint32_t base, turn;
};

template <class C> MMA_DEVICE lane_lines lines_down(uint32_t base)
{
    const int lane = threadIdx.x % 32, line = lane % 16;
    lane_lines l;
    l.base = base + line * C::RUNS * 16;
    l.turn = (uint32_t)(lane / 16 ^ line_turn<C::D>(line)) * 16;
    return l;
}

template <class C> MMA_DEVICE lane_lines lines_along(uint32_t base)
{
    const int lane = threadIdx.x % 32, line = lane / 16 * 8 + lane % 8;
    lane_lines l;
    l.base = base + line * C::RUNS * 16;
    l.turn = (uint32_t)(lane / 8 % 2 ^ line_turn<C::D>(line)) * 16;
    return l;
}

/* Number `square` of 16 lines from the lane's on, features 16 k to 16 k + 15. */
template <class C> MMA_DEVICE uint32_t lane_at(const lane_lines &l, int square, int k)
{
    return l.base + square * SQUARE * C::RUNS * 16 + ((uint32_t)k * 32 ^ l.turn);
}

/* --- Products --- */

/* A warp's view of a step: four squares of a row in a word. */
template <class C> struct warp_view {
    uint32_t row[C::M];
    bool none, whole, full; /* all empty, none empty, all full */
};

MMA_DEVICE int view_of(uint32_t row, int square)
{
    return row >> 8 * square & 0xff;
}

template <class C> MMA_DEVICE warp_view<C> warp_view_of(const step_lines<C> *step)
{
    const int down = threadIdx.x / 32 * C::M;
    warp_view<C> v;
    v.none = v.whole = v.full = true;
#pragma unroll
    for (int m = 0; m < C::M; m++) {
        v.row[m] = *(const uint32_t *)step->view[down + m];
#pragma unroll
        for (int s = 0; s < C::SQUARES; s++) {
            const int view = view_of(v.row[m], s);
            v.none &= view == RULES_EMPTY;
            v.whole &= view != RULES_EMPTY;
            v.full &= view == RULES_FULL;
        }
    }
    return v;
}

/* sums[m][n]: the warp's own lines times other lines 8 n to 8 n + 7; those of empty squares stay
 * undefined. */
template <class C>
MMA_DEVICE void line_products(float (*sums)[C::NT][4], const lane_lines &own,
                              const lane_lines &other, const warp_view<C> &view)
{
#pragma unroll
    for (int m = 0; m < C::M; m++)
#pragma unroll
        for (int n = 0; n < C::NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[m][n][e] = 0;
    if (view.whole) {
#pragma unroll
        for (int k = 0; k < C::D / 16; k++) {
            uint32_t a[C::M][4];
#pragma unroll
            for (int m = 0; m < C::M; m++)
                ldmatrix_x4(a[m], lane_at<C>(own, m, k));
#pragma unroll
            for (int s = 0; s < C::SQUARES; s++) {
                uint32_t b[4];
                ldmatrix_x4(b, lane_at<C>(other, s, k));
#pragma unroll
                for (int m = 0; m < C::M; m++) {
                    mma_m16n8k16<typename C::T>(sums[m][2 * s], a[m], b);
                    mma_m16n8k16<typename C::T>(sums[m][2 * s + 1], a[m], b + 2);
                }
            }
        }
        return;
    }
#pragma unroll
    for (int m = 0; m < C::M; m++)
#pragma unroll
        for (int s = 0; s < C::SQUARES; s++)
            if (view_of(view.row[m], s) != RULES_EMPTY) {
#pragma unroll
                for (int k = 0; k < C::D / 16; k++) {
                    uint32_t a[4], b[4];
                    ldmatrix_x4(a, lane_at<C>(own, m, k));
                    ldmatrix_x4(b, lane_at<C>(other, s, k));
                    mma_m16n8k16<typename C::T>(sums[m][2 * s], a, b);
                    mma_m16n8k16<typename C::T>(sums[m][2 * s + 1], a, b + 2);
                }
            }
}

/* Adds w z to a result, where w has the form of line_products' sums and is rounded to 16 bits. */
template <class C>
MMA_DEVICE void result_add(float (*sums)[C::DT][4], const float (*w)[C::NT][4], const lane_lines &z,
                           const warp_view<C> &view)
{
#pragma unroll
    for (int s = 0; s < C::SQUARES; s++) {
        uint32_t a[C::M][4];
        bool all = true;
#pragma unroll
        for (int m = 0; m < C::M; m++) {
            const float *left = w[m][2 * s], *right = w[m][2 * s + 1];
            a[m][0] = mma_pack<typename C::T>(left[0], left[1]);
            a[m][1] = mma_pack<typename C::T>(left[2], left[3]);
            a[m][2] = mma_pack<typename C::T>(right[0], right[1]);
            a[m][3] = mma_pack<typename C::T>(right[2], right[3]);
            all &= view_of(view.row[m], s) != RULES_EMPTY;
        }
        if (all) {
#pragma unroll
            for (int f = 0; f < C::D / 16; f++) {
                uint32_t b[4];
                ldmatrix_x4_trans(b, lane_at<C>(z, s, f));
#pragma unroll
                for (int m = 0; m < C::M; m++) {
                    mma_m16n8k16<typename C::T>(sums[m][2 * f], a[m], b);
                    mma_m16n8k16<typename C::T>(sums[m][2 * f + 1], a[m], b + 2);
                }
            }
        } else if (C::M > 1) {
#pragma unroll
            for (int m = 0; m < C::M; m++)
                if (view_of(view.row[m], s) != RULES_EMPTY) {
#pragma unroll
                    for (int f = 0; f < C::D / 16; f++) {
                        uint32_t b[4];
                        ldmatrix_x4_trans(b, lane_at<C>(z, s, f));
                        mma_m16n8k16<typename C::T>(sums[m][2 * f], a[m], b);
                        mma_m16n8k16<typename C::T>(sums[m][2 * f + 1], a[m], b + 2);
                    }
                }
        }
    }
}

/* --- What a lane sees --- */

/* A lane's own lines are number g and g + 8 of each square, its other lines 2 t and 2 t + 1 of each
 * eight. */
template <class C> struct lane_own {
    i32 time[C::M][2];
    i32 line; /* the first one */
};

template <class C>
MMA_DEVICE lane_own<C> lane_own_of(const rules_arg *a, const rules_member *m,
                                   const attention80_tiles &t, const own_tile &own)
{
    lane_own<C> l;
    l.line = own.first + (int)threadIdx.x / 32 * C::M * SQUARE + (int)threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2 * C::M; i++)
        l.time[i / 2][i % 2] =
            line_time(t.lines, a->interleave, C::TURNED ? m->keys : m->queries, l.line + i * 8);
    return l;
}

/* Which of a lane's elements of a row of squares are visible: bit 4 n + e for number e of sum n. */
template <class C>
MMA_DEVICE uint32_t lane_sees(const step_lines<C> *step, int m, uint32_t view, const rules_arg *a,
                              const rules_data *data, const rules_member *member,
                              const attention80_tiles &t, i32 time0, i32 time8, i32 line)
{
    const int down = threadIdx.x / 32 * C::M + m, across = threadIdx.x % 4 * 2;
    uint32_t bits = 0;
#pragma unroll 1
    for (int s = 0; s < C::SQUARES; s++) {
        const int kind = view_of(view, s);
        if (kind == RULES_FULL)
            bits |= 0xffu << 8 * s;
        if (kind != RULES_PARTIAL)
            continue;
        const i64 mask = data->bits ? rules_mask(a, data, step->slot[down][s]) : -1;
#pragma unroll 1
        for (int e = 0; e < 8; e++) {
            const int col = e / 4 * 8 + across + e % 2;
            const i32 own = e & 2 ? time8 : time0, other = step->time[s * SQUARE + col];
            const i32 own_place = (line + (e & 2 ? 8 : 0)) & (t.side - 1);
            const i32 place = step->place[s] + col;
            const i32 query = C::TURNED ? other : own, key = C::TURNED ? own : other;
            if (query >= 0 && key >= 0 && rules_visible(a, data, member, query, key) &&
                rules_bit(a, data, mask, C::TURNED ? place : own_place,
                          C::TURNED ? own_place : place))
                bits |= 1u << 8 * s + e;
        }
    }
    return bits;
}

/* --- Results --- */

/* Two neighbours of a type that is known at run time. */
MMA_DEVICE void store_pair(i32 type, u8 *to, i64 at, float x, float y)
{
    if (type == SIMT_F32)
        *(float2 *)((float *)to + at) = make_float2(x, y);
    else
        *(uint32_t *)((u16 *)to + at) =
            type == SIMT_BF16 ? mma_pack<__nv_bfloat16>(x, y) : mma_pack<__half>(x, y);
}

MMA_DEVICE float2 load_pair(i32 type, const u8 *from, i64 at)
{
    if (type == SIMT_F32)
        return *(const float2 *)((const float *)from + at);
    const uint32_t both = *(const uint32_t *)((const u16 *)from + at);
    if (type == SIMT_BF16)
        return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
    return __half22float2(*(const __half2 *)&both);
}

#define RULES_DATA(a)                                                                              \
    {                                                                                              \
        NULL, (const u8 *)(a).slopes, (a).q_len, (a).k_len, (a).prefix, (a).q_segment,             \
            (a).k_segment, (a).bits, (a).bits_index                                                \
    }

#endif
