/* The gradient of attention for own lines: dQ of query rows, or dK and dV of key columns. */
#ifndef BSKI_CUDA_SM80_ATTENTION_GRAD_H
#define BSKI_CUDA_SM80_ATTENTION_GRAD_H

#include <backends/cuda/sm80/attention_tile.h>

/* The logarithm of a row's sum and delta, of queries: a lane's own rows, or a step's columns. */
struct query_sums {
    float lse, delta;
};

template <class C> struct grad_query {
    float lse[C::M][2], delta[C::M][2]; /* of own rows */
    const float *step_lse, *step_delta; /* of other lines */
};

/* Of number e of sum n in row m of squares. */
template <class C> MMA_DEVICE query_sums query_of(const grad_query<C> &q, int m, int n, int e)
{
    const int col = n * 8 + threadIdx.x % 4 * 2 + e % 2;
    query_sums s;
    s.lse = C::TURNED ? row_bound(q.step_lse[col]) : q.lse[m][e / 2];
    s.delta = C::TURNED ? q.step_delta[col] : q.delta[m][e / 2];
    return s;
}

/* Products x y and x2 y2 become probabilities and the gradients of scores, times slope. */
template <class C>
MMA_DEVICE void grad_plain(float (*sums)[C::NT][4], float (*slopes)[C::NT][4], float scale,
                           float slope, const grad_query<C> &q)
{
#pragma unroll
    for (int n = 0; n < C::NT; n++)
#pragma unroll
        for (int m = 0; m < C::M; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const query_sums s = query_of<C>(q, m, n, e);
                const float p = FAST_EXP2(sums[m][n][e] * scale - s.lse);
                sums[m][n][e] = p;
                slopes[m][n][e] = p * fmaf(slope, slopes[m][n][e], -slope * s.delta);
            }
}

/* The same where more than a scale makes scores. The sums are turned round a short loop, so that
 * one element's code serves all. */
template <class C>
MMA_DEVICE void grad_make(float (*sums)[C::NT][4], float (*slopes)[C::NT][4], const uint32_t *seen,
                          const rules_arg *a, const rules_data *data, const rules_member *m,
                          i32 head, const lane_own<C> &own, const step_lines<C> *step, float rest,
                          const grad_query<C> &q)
{
    enum { LAST = 4 * (C::M * C::NT - 1) };
    float *p = &sums[0][0][0], *ds = &slopes[0][0][0];
#pragma unroll 1
    for (int n = 0; n < C::M * C::NT; n++) {
        const bool low = n >= C::NT;
        const int col = n % C::NT * 8 + threadIdx.x % 4 * 2;
        const uint32_t bits = (low ? seen[C::M - 1] : seen[0]) >> n % C::NT * 4;
        float share[4], slope[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const i32 line = low ? own.time[C::M - 1][e / 2] : own.time[0][e / 2];
            const i32 other = step->time[col + e % 2];
            const query_sums low_sums = query_of<C>(q, C::M - 1, n % C::NT, e);
            const query_sums s = low ? low_sums : query_of<C>(q, 0, n % C::NT, e);
            share[e] = slope[e] = 0;
            if (bits >> e & 1) {
                const float score = rules_score_f32(a, data, m, head, C::TURNED ? other : line,
                                                    C::TURNED ? line : other, p[e]);
                share[e] = FAST_EXP2(score * LOG2_E - s.lse);
                slope[e] = share[e] * (ds[e] - s.delta) * (rules_slope_f32(a, p[e]) / rest);
            }
        }
#pragma unroll
        for (int i = 0; i < LAST; i++) {
            p[i] = p[i + 4];
            ds[i] = ds[i + 4];
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            p[LAST + e] = share[e];
            ds[LAST + e] = slope[e];
        }
    }
}

template <class C>
MMA_DEVICE void grad_store(const attention80_grad_arg &a, const attention80_heads &h, u8 *to,
                           i32 width, float factor, const own_tile &own, const lane_own<C> &lane,
                           const float (*sums)[C::DT][4])
{
    const i32 times = C::TURNED ? a.rules.k_time : a.rules.q_time;
#pragma unroll
    for (int i = 0; i < 2 * C::M; i++) {
        const i32 time = line_time(a.tiles.lines, a.rules.interleave, times, lane.line + i * 8);
        if (time < 0)
            continue;
        const i64 at = heads_at(h, own.b, own.head) + time * h.time;
#pragma unroll
        for (int f = 0; f < C::DT; f++) {
            const int feature = f * 8 + threadIdx.x % 4 * 2;
            if (feature >= width)
                continue;
            float x = factor * sums[i / 2][f][i % 2 * 2];
            float y = factor * sums[i / 2][f][i % 2 * 2 + 1];
            if (a.beta != 0) {
                const float2 old = load_pair(h.type, to, at + feature);
                x += a.beta * old.x;
                y += a.beta * old.y;
            }
            store_pair(h.type, to, at + feature, x, y);
        }
    }
}

/* Copies what a step needs: y, y2, and of other lines that are queries their sums. */
template <class C>
MMA_DEVICE void grad_copy(const attention80_grad_arg &a, const own_tile &own,
                          const step_lines<C> *step, uint32_t y, uint32_t sums)
{
    const i32 head = C::TURNED ? step->head : own.head / a.group;
    copy_lines<C, C::N, false>(y, a.y_data + heads_at(a.y, own.b, head), a.y.time, a.d, step->time);
    copy_lines<C, C::N, false>(y + C::N * C::D * 2, a.y2_data + heads_at(a.y2, own.b, head),
                               a.y2.time, a.dv, step->time);
    if (C::TURNED) {
        const i64 row0 = ((i64)own.b * a.rules.heads + step->head) * a.rules.q_time;
        for (int n = threadIdx.x; n < 2 * C::N; n += blockDim.x) {
            const i32 time = step->time[n % C::N];
            const float *from = n < C::N ? a.lse : a.delta;
            cp_async_ca<4>(sums + n * 4, from + (time < 0 ? 0 : row0 + time), time < 0 ? 0 : 4);
        }
    }
    cp_async_commit();
}

template <class C> MMA_DEVICE void attention_grad(const attention80_grad_arg &a)
{
    enum { LINE_BYTES = C::N * C::D * 2 };
    extern __shared__ __align__(128) uint4 pool[];
    __shared__ step_lines<C> steps[ATTENTION_STEPS];
    __shared__ float step_sums[ATTENTION_STAGES][2][C::TURNED ? C::N : 1];
    __shared__ i32 own_time[C::OWN];
    const rules_data data = RULES_DATA(a);
    own_tile own;
    const i32 per_head = a.rules.per_head;
    if (!own_open<C>(a.tiles, a.group, per_head, own_lines<C>(), &own))
        return;
    rules_member member;
    rules_member_of(&a.rules, &data, own.b, &member);
    const lane_own<C> lane = lane_own_of<C>(&a.rules, &member, a.tiles, own);
    const uint32_t own_bytes = own_lines<C>() * C::D * 2;
    const uint32_t memory = mma_shared(pool), others = memory + 2 * own_bytes;
    walk_place walk = walk_open<C>(a.tiles, a.group, per_head, own);
    grad_query<C> query;
    float out[C::M][C::DT][4], out2[C::TURNED ? C::M : 1][C::TURNED ? C::DT : 1][4];
#pragma unroll
    for (int m = 0; m < C::M; m++)
#pragma unroll
        for (int f = 0; f < C::DT; f++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                out[m][f][e] = 0;
                if (C::TURNED)
                    out2[m][f][e] = 0;
            }
    if (!C::TURNED) {
        const i64 row0 = ((i64)own.b * a.rules.heads + own.head) * a.rules.q_time;
#pragma unroll
        for (int i = 0; i < 2 * C::M; i++) {
            const i32 time = lane.time[i / 2][i % 2];
            query.lse[i / 2][i % 2] = time < 0 ? INFINITY : row_bound(a.lse[row0 + time]);
            query.delta[i / 2][i % 2] = time < 0 ? 0 : a.delta[row0 + time];
        }
    }
    for (int n = threadIdx.x; n < own_lines<C>(); n += blockDim.x)
        own_time[n] = line_time(a.tiles.lines, a.rules.interleave,
                                C::TURNED ? member.keys : member.queries, own.first + n);
    walk_step<C>(&steps[0], &walk, &a.rules, &data, &member, a.tiles, own);
    walk_step<C>(&steps[1], &walk, &a.rules, &data, &member, a.tiles, own);
    __syncthreads();
    copy_lines<C, C::M * SQUARE, true>(memory, a.x_data + heads_at(a.x, own.b, own.head), a.x.time,
                                       a.d, own_time);
    copy_lines<C, C::M * SQUARE, true>(
        memory + own_bytes, a.x2_data + heads_at(a.x2, own.b, own.head), a.x2.time, a.dv, own_time);
    if (steps[0].head >= 0)
        grad_copy<C>(a, own, &steps[0], others, mma_shared(step_sums[0]));
    cp_async_commit();

    const uint32_t warp = threadIdx.x / 32 * C::M * SQUARE * C::D * 2;
    const lane_lines x = lines_down<C>(memory + warp),
                     x2 = lines_down<C>(memory + own_bytes + warp);
#pragma unroll 1
    for (int n = 0;; n++) {
        const step_lines<C> *step = &steps[n % ATTENTION_STEPS];
        const step_lines<C> *next = &steps[(n + 1) % ATTENTION_STEPS];
        const int now = n % ATTENTION_STAGES, then = (n + 1) % ATTENTION_STAGES;
        const uint32_t y = others + now * 2 * LINE_BYTES, y2 = y + LINE_BYTES;
        cp_async_wait<0>();
        __syncthreads();
        if (step->head < 0)
            break;
        if (next->head >= 0)
            grad_copy<C>(a, own, next, others + then * 2 * LINE_BYTES, mma_shared(step_sums[then]));
        walk_step<C>(&steps[(n + 2) % ATTENTION_STEPS], &walk, &a.rules, &data, &member, a.tiles,
                     own);
        const warp_view<C> view = warp_view_of<C>(step);
        if (view.none)
            continue;
        float sums[C::M][C::NT][4], slopes[C::M][C::NT][4];
        line_products<C>(sums, x, lines_along<C>(y), view);
        line_products<C>(slopes, x2, lines_along<C>(y2), view);
        query.step_lse = step_sums[now][0];
        query.step_delta = step_sums[now][1];
        const bool plain = !(NUM(a.rules.softcap) > 0) && !a.slopes;
        if (plain)
            grad_plain<C>(sums, slopes, a.scale, a.slope, query);
        if (!plain || !view.full) {
            uint32_t seen[C::M];
#pragma unroll
            for (int m = 0; m < C::M; m++)
                seen[m] = lane_sees<C>(step, m, view.row[m], &a.rules, &data, &member, a.tiles,
                                       lane.time[m][0], lane.time[m][1], lane.line + m * SQUARE);
            if (!plain)
                grad_make<C>(sums, slopes, seen, &a.rules, &data, &member, step->head, lane, step,
                             a.rest, query);
#pragma unroll
            for (int m = 0; m < C::M; m++)
#pragma unroll
                for (int j = 0; j < C::NT; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (!(seen[m] >> (4 * j + e) & 1))
                            sums[m][j][e] = slopes[m][j][e] = 0;
            __syncwarp();
        }
        if (C::TURNED)
            result_add<C>((float(*)[C::DT][4])out2, sums, lines_down<C>(y2), view);
        result_add<C>(out, slopes, lines_down<C>(y), view);
    }
    grad_store<C>(a, a.out, a.out_data, a.d, a.alpha * a.rest, own, lane, out);
    if (C::TURNED)
        grad_store<C>(a, a.out2, a.out2_data, a.dv, a.alpha, own, lane,
                      (const float(*)[C::DT][4])out2);
}

#endif
