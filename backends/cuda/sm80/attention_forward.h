/* Attention with a running softmax, in units of the binary logarithm. */
#ifndef BSKI_CUDA_SM80_ATTENTION_FORWARD_H
#define BSKI_CUDA_SM80_ATTENTION_FORWARD_H

#include <backends/cuda/sm80/attention_tile.h>

/* Scores of a warp's products where more than a scale makes them. The sums are turned round a short
 * loop, so that one element's code serves all. */
template <class C>
MMA_DEVICE void scores_make(float (*sums)[C::NT][4], const uint32_t *seen, const rules_arg *a,
                            const rules_data *data, const rules_member *m, i32 head,
                            const lane_own<C> &own, const step_lines<C> *step)
{
    float *all = &sums[0][0][0];
#pragma unroll 1
    for (int n = 0; n < C::M * C::NT; n++) {
        const bool low = n >= C::NT;
        const int col = n % C::NT * 8 + threadIdx.x % 4 * 2;
        const uint32_t bits = (low ? seen[C::M - 1] : seen[0]) >> n % C::NT * 4;
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const i32 time = low ? own.time[C::M - 1][e / 2] : own.time[0][e / 2];
            v[e] = bits >> e & 1 ? LOG2_E * rules_score_f32(a, data, m, head, time,
                                                            step->time[col + e % 2], all[e])
                                 : 0;
        }
#pragma unroll
        for (int i = 0; i < 4 * (C::M * C::NT - 1); i++)
            all[i] = all[i + 4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            all[4 * (C::M * C::NT - 1) + e] = v[e];
    }
}

/* A lane's state of its rows; sum is the lane's part. */
template <class C> struct row_state {
    float most[C::M][2], sum[C::M][2];
};

MMA_DEVICE float quad_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}

MMA_DEVICE float quad_sum(float v)
{
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
}

/* Scores become shares of the largest so far, and the result so far is scaled to that. */
template <class C>
MMA_DEVICE void shares_make(float (*sums)[C::NT][4], float (*out)[C::DT][4], row_state<C> *state)
{
#pragma unroll
    for (int m = 0; m < C::M; m++) {
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = -INFINITY, sum = 0;
#pragma unroll
            for (int n = 0; n < C::NT; n++)
                most = fmaxf(most, fmaxf(sums[m][n][2 * half], sums[m][n][2 * half + 1]));
            most = fmaxf(state->most[m][half], quad_max(most));
            const float from = most == -INFINITY ? 0 : most;
            factor[half] = FAST_EXP2(state->most[m][half] - from);
#pragma unroll
            for (int n = 0; n < C::NT; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    sums[m][n][e] = FAST_EXP2(sums[m][n][e] - from);
                    sum += sums[m][n][e];
                }
            state->most[m][half] = most;
            state->sum[m][half] = state->sum[m][half] * factor[half] + sum;
        }
        if (__any_sync(~0u, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
            for (int f = 0; f < C::DT; f++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    out[m][f][e] *= factor[e / 2];
        }
    }
}

template <class C>
MMA_DEVICE void forward_store(const attention80_arg &a, const own_tile &own,
                              const lane_own<C> &lane, const float (*out)[C::DT][4],
                              const row_state<C> &state)
{
    const i64 row0 = ((i64)own.b * a.rules.heads + own.head) * a.rules.q_time;
#pragma unroll
    for (int i = 0; i < 2 * C::M; i++) {
        const int m = i / 2, half = i % 2, line = lane.line + i * 8;
        const float sum = quad_sum(state.sum[m][half]), most = state.most[m][half];
        const bool none = most == -INFINITY && sum == 0; /* scores of NaN leave no maximum */
        const float factor = none ? 0 : 1 / sum;
        const i32 time = line_time(a.rules.rows, a.rules.interleave, a.rules.q_time, line);
        if (time < 0)
            continue;
        if (a.lse && threadIdx.x % 4 == 0)
            a.lse[row0 + time] = none ? -INFINITY : LN_2 * (most + log2f(sum));
        const i64 at = heads_at(a.o, own.b, own.head) + time * a.o.time;
#pragma unroll
        for (int f = 0; f < C::DT; f++) {
            const int feature = f * 8 + threadIdx.x % 4 * 2;
            const float *v = out[m][f] + 2 * half;
            if (feature < a.dv)
                store_pair(a.o.type, a.o_data, at + feature, none ? 0 : factor * v[0],
                           none ? 0 : factor * v[1]);
        }
    }
}

template <class C> MMA_DEVICE void attention_forward(const attention80_arg &a)
{
    enum { LINE_BYTES = C::N * C::D * 2 };
    extern __shared__ __align__(128) uint4 pool[];
    __shared__ step_lines<C> steps[ATTENTION_STEPS];
    __shared__ i32 own_time[C::OWN];
    const rules_data data = RULES_DATA(a);
    own_tile own;
    if (!own_open<C>(a.tiles, a.group, a.rules.per_head, own_lines<C>(), &own))
        return;
    rules_member member;
    rules_member_of(&a.rules, &data, own.b, &member);
    const lane_own<C> lane = lane_own_of<C>(&a.rules, &member, a.tiles, own);
    const uint32_t memory = mma_shared(pool);
    const uint32_t others = memory + own_lines<C>() * C::D * 2;
    const i32 kv_head = own.head / a.group;
    const u16 *k = a.k_data + heads_at(a.k, own.b, kv_head);
    const u16 *v = a.v_data + heads_at(a.v, own.b, kv_head);
    walk_place walk = walk_open<C>(a.tiles, a.group, a.rules.per_head, own);
    row_state<C> state;
    float out[C::M][C::DT][4];
#pragma unroll
    for (int m = 0; m < C::M; m++) {
#pragma unroll
        for (int f = 0; f < C::DT; f++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[m][f][e] = 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            state.most[m][half] = -INFINITY;
            state.sum[m][half] = 0;
        }
    }
    for (int n = threadIdx.x; n < own_lines<C>(); n += blockDim.x)
        own_time[n] = line_time(a.rules.rows, a.rules.interleave, member.queries, own.first + n);
    walk_step<C>(&steps[0], &walk, &a.rules, &data, &member, a.tiles, own);
    walk_step<C>(&steps[1], &walk, &a.rules, &data, &member, a.tiles, own);
    __syncthreads();
    copy_lines<C, C::M * SQUARE, true>(memory, a.q_data + heads_at(a.q, own.b, own.head), a.q.time,
                                       a.d, own_time);
    if (steps[0].head >= 0) {
        copy_lines<C, C::N, false>(others, k, a.k.time, a.d, steps[0].time);
        copy_lines<C, C::N, false>(others + LINE_BYTES, v, a.v.time, a.dv, steps[0].time);
    }
    cp_async_commit();

    const lane_lines q = lines_down<C>(memory + threadIdx.x / 32 * C::M * SQUARE * C::D * 2);
#pragma unroll 1
    for (int n = 0;; n++) {
        const step_lines<C> *step = &steps[n % ATTENTION_STEPS];
        const step_lines<C> *next = &steps[(n + 1) % ATTENTION_STEPS];
        const uint32_t stage = others + n % ATTENTION_STAGES * 2 * LINE_BYTES;
        cp_async_wait<0>();
        __syncthreads();
        if (step->head < 0)
            break;
        if (next->head >= 0) {
            const uint32_t to = others + (n + 1) % ATTENTION_STAGES * 2 * LINE_BYTES;
            copy_lines<C, C::N, false>(to, k, a.k.time, a.d, next->time);
            copy_lines<C, C::N, false>(to + LINE_BYTES, v, a.v.time, a.dv, next->time);
            cp_async_commit();
        }
        walk_step<C>(&steps[(n + 2) % ATTENTION_STEPS], &walk, &a.rules, &data, &member, a.tiles,
                     own);
        const warp_view<C> view = warp_view_of<C>(step);
        if (view.none)
            continue;
        float sums[C::M][C::NT][4];
        line_products<C>(sums, q, lines_along<C>(stage), view);
        const bool plain = !(NUM(a.rules.softcap) > 0) && !a.slopes;
        if (plain) {
#pragma unroll
            for (int m = 0; m < C::M; m++)
#pragma unroll
                for (int j = 0; j < C::NT; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sums[m][j][e] *= a.scale;
        }
        if (!plain || !view.full) {
            uint32_t seen[C::M];
#pragma unroll
            for (int m = 0; m < C::M; m++)
                seen[m] = lane_sees<C>(step, m, view.row[m], &a.rules, &data, &member, a.tiles,
                                       lane.time[m][0], lane.time[m][1], lane.line + m * SQUARE);
            if (!plain)
                scores_make<C>(sums, seen, &a.rules, &data, &member, own.head, lane, step);
#pragma unroll
            for (int m = 0; m < C::M; m++)
#pragma unroll
                for (int j = 0; j < C::NT; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (!(seen[m] >> (4 * j + e) & 1))
                            sums[m][j][e] = -INFINITY;
            __syncwarp();
        }
        shares_make<C>(sums, out, &state);
        result_add<C>(out, sums, lines_down<C>(stage + LINE_BYTES), view);
    }
    forward_store<C>(a, own, lane, out, state);
}

#endif
