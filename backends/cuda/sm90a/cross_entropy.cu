/* cross_entropy with its gradient for sm90a: long rows of 16-bit logits, each read once. One warp
 * copies rows into a ring in shared memory, as far ahead as it has room. The others find the largest
 * logit and the sum of exp of a row while it comes, and then make its gradient of what still lies in
 * the ring. With beta each run of dlogits is read where it is written. */
#include <backends/cuda/sm90a/cross_entropy.h>
#include <backends/cuda/sm90a/ring.h>
#include <backends/cuda/sm90a/run.h>

/* A thread takes one run of each piece. */
enum { BAR_BYTES = 16 };
enum { SUMS_AT = CROSS_SLOTS * BAR_BYTES, SUMS = 3 };
static_assert(SUMS_AT + 2 * SUMS * CROSS_WARPS * 4 <= CROSS_HEAD, "what lies before the ring");

/* Logits below it may be multiplied by LOG2_E before they are compared. */
#define NEAR 0x1p126f

typedef cursor<CROSS_SLOTS> place;

PTX_FN uint32_t slot_full(uint32_t base, int slot)
{
    return base + slot * BAR_BYTES;
}

PTX_FN uint32_t slot_empty(uint32_t base, int slot)
{
    return base + slot * BAR_BYTES + 8;
}

PTX_FN uint32_t slot_data(uint32_t base, int slot)
{
    return base + CROSS_HEAD + slot * CROSS_PIECE;
}

/* The label of a row, or -1: the row does not count. */
PTX_FN int32_t label_of(const cross_entropy_arg &a, int64_t row)
{
    if (row >= a.rows)
        return -1;
    const int64_t label = a.label_bytes == 8   ? ((const int64_t *)a.labels)[row]
                          : a.label_bytes == 4 ? ((const int32_t *)a.labels)[row]
                          : a.label_bytes == 2 ? ((const uint16_t *)a.labels)[row]
                                               : ((const uint8_t *)a.labels)[row];
    const bool counts =
        label >= 0 && label < a.classes && !(a.use_ignore_index && label == a.ignore_index);
    return counts ? (int32_t)label : -1;
}

/* Copies the pieces of this thread block's rows, but for those that do not count. */
PTX_FN void copy_rows(const cross_entropy_arg &a, uint32_t base)
{
    const int32_t bytes = a.classes * 2;
    place at = {0, 1};
    int32_t next = label_of(a, blockIdx.x);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const int32_t label = next;
        const char *from = (const char *)a.logits + row * a.logits_row;
        next = label_of(a, row + gridDim.x);
        for (int32_t first = 0; label >= 0 && first < bytes; first += CROSS_PIECE, at.next()) {
            const uint32_t full = slot_full(base, at.slot);
            const int32_t size = min(bytes - first, (int32_t)CROSS_PIECE);
            mbar_wait(slot_empty(base, at.slot), at.parity);
            mbar_expect(full, size);
            bulk_load(slot_data(base, at.slot), from + first, size, full);
        }
    }
}

/* What has been met of a row: the largest logit, the sum of exp about it, the sum of logits. A NaN
 * does not count as larger, and makes the sum NaN. */
struct row_sums {
    float most, sum, total;
};

/* The sum of exp of two parts about the larger one of their largest logits. */
PTX_FN void sums_join(row_sums &s, float most, float sum, float total)
{
    const float high = fmaxf(s.most, most), mine = s.most - high, other = most - high;
    s.sum = mine < 0 ? s.sum * power_of_two(mine * LOG2_E) : s.sum;
    s.sum += other < 0 ? sum * power_of_two(other * LOG2_E) : sum;
    s.total += total;
    s.most = high;
}

PTX_FN void sums_join_lanes(row_sums &s)
{
#pragma unroll
    for (int reach = 16; reach > 0; reach /= 2) {
        const float most = __shfl_xor_sync(~0u, s.most, reach);
        const float sum = __shfl_xor_sync(~0u, s.sum, reach);
        const float total = __shfl_xor_sync(~0u, s.total, reach);
        sums_join(s, most, sum, total);
    }
}

/* The sums of all warps in every thread. Rows take turns, 0 and 1, so that one barrier is enough. */
PTX_FN void sums_join_warps(float *scratch, int turn, row_sums &s)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *const place = scratch + turn * SUMS * CROSS_WARPS;
    sums_join_lanes(s);
    if (lane == 0) {
        place[warp] = s.most;
        place[CROSS_WARPS + warp] = s.sum;
        place[2 * CROSS_WARPS + warp] = s.total;
    }
    named_barrier(1, CROSS_THREADS);
    s.most = lane < CROSS_WARPS ? place[lane] : -INFINITY;
    s.sum = lane < CROSS_WARPS ? place[CROSS_WARPS + lane] : 0;
    s.total = lane < CROSS_WARPS ? place[2 * CROSS_WARPS + lane] : 0;
    sums_join_lanes(s);
}

/* exp(v - shift), which is not below any v: by one instruction before the power, but for logits near
 * the largest number. */
PTX_FN void exp_run(const float *v, float shift, float *x)
{
    const float scaled = shift * LOG2_E;
    if (shift < NEAR) {
#pragma unroll
        for (int e = 0; e < RUN; e++)
            x[e] = power_of_two(fmaf(v[e], LOG2_E, -scaled));
    } else {
#pragma unroll
        for (int e = 0; e < RUN; e++)
            x[e] = power_of_two((v[e] - shift) * LOG2_E);
    }
}

/* share: of half of what each logit is above the pivot, in the total; all of it may be beyond f32. */
template <class T> PTX_FN void sums_add(row_sums &s, uint4 q, float share, float pivot)
{
    float v[RUN], high[RUN / 2];
    unpack_run<T>(q, v);
#pragma unroll
    for (int e = 0; e < RUN / 2; e++)
        high[e] = fmaxf(v[e], v[e + RUN / 2]);
    const float most = fmaxf(fmaxf(fmaxf(high[0], high[1]), fmaxf(high[2], high[3])), s.most);
    if (most > s.most) {
        s.sum *= power_of_two((s.most - most) * LOG2_E);
        s.most = most;
    }
    const float shift = s.most == -INFINITY ? 0 : s.most;
    float x[RUN];
    exp_run(v, shift, x);
    s.sum += ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7]));
    if (share > 0) {
#pragma unroll
        for (int e = 0; e < RUN; e++)
            s.total += share * fmaf(v[e], 0.5f, -0.5f * pivot);
    }
}

/* Reads a row from `at` on as it comes, and leaves it in the ring. */
template <class T>
PTX_FN row_sums row_read(const cross_entropy_arg &a, uint32_t base, place at, float pivot)
{
    const int32_t runs = a.classes / RUN, thread = threadIdx.x;
    const float share = 2 * (a.smoothing / (float)a.classes);
    row_sums s = {-INFINITY, 0, 0};
    for (int32_t run = thread; run - thread < runs; run += CROSS_THREADS, at.next()) {
        mbar_wait(slot_full(base, at.slot), at.parity);
        if (run < runs)
            sums_add<T>(s, shared_load_16(slot_data(base, at.slot) + thread * RUN_BYTES), share,
                        pivot);
    }
    return s;
}

/* What the gradient of a row takes: factor * (exp(x - most) / sum - t), where t is `base` but for
 * the label. A label of -RUN is none. */
struct row_slope {
    float most, factor, scale, base, label_t;
    int32_t label;
};

PTX_FN row_slope slope_of(const cross_entropy_arg &a, const row_sums &s, int32_t label,
                          float factor)
{
    const float base = label < 0 ? 0 : a.smoothing / (float)a.classes, scale = 1 / s.sum;
    return {s.most, factor, scale, base, base + (1 - a.smoothing), label};
}

/* The gradient v of run number `run`. At the label it is a difference, so exp is exact there. PLAIN:
 * the factor is finite. */
template <class T, bool PLAIN>
PTX_FN void slope_run(const row_slope &s, int32_t run, uint4 q, float *v)
{
    const float gain = s.factor * s.scale, lift = s.factor * s.base;
    unpack_run<T>(q, v);
    if (run == s.label / RUN) {
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            const float p = exp2f((v[e] - s.most) * LOG2_E) * s.scale;
            v[e] = s.factor * (p - (e == s.label % RUN ? s.label_t : s.base));
        }
    } else {
        exp_run(v, s.most, v);
#pragma unroll
        for (int e = 0; e < RUN; e++)
            v[e] = PLAIN ? v[e] * gain - lift : s.factor * (v[e] * s.scale - s.base);
    }
}

/* v + beta * what is at `to`, there. */
template <class T> PTX_FN void run_write(const cross_entropy_arg &a, uint4 *to, float *v)
{
    if (a.beta != 0) {
        float old[RUN];
        unpack_run<T>(*to, old);
#pragma unroll
        for (int e = 0; e < RUN; e++)
            v[e] = fmaf(a.beta, old[e], v[e]);
    }
    store_global_16(to, pack_run<T>(v));
}

/* Makes the gradient of a row, and hands its slots back. PLAIN: with a finite factor, and no beta. */
template <class T, bool PLAIN>
PTX_FN void row_write(const cross_entropy_arg &a, uint32_t base, const row_slope &s, uint4 *to,
                      place &at)
{
    const int32_t runs = a.classes / RUN, thread = threadIdx.x;
    for (int32_t run = thread; run - thread < runs; run += CROSS_THREADS, at.next()) {
        const uint32_t from = slot_data(base, at.slot) + thread * RUN_BYTES;
        if (run < runs) {
            float v[RUN];
            slope_run<T, PLAIN>(s, run, shared_load_16(from), v);
            if (PLAIN)
                store_global_16(to + run, pack_run<T>(v));
            else
                run_write<T>(a, to + run, v);
        }
        __syncwarp();
        if (thread % 32 == 0)
            mbar_arrive(slot_empty(base, at.slot));
    }
}

/* What smoothing sums logits about: that of the label, read ahead, if it is a number. */
template <class T> PTX_FN float row_pivot(const cross_entropy_arg &a, int64_t row, int32_t label)
{
    if (!(a.smoothing > 0))
        return 0;
    const char *logits = (const char *)a.logits + row * a.logits_row;
    float v[2];
    unpack_two<T>(((const uint32_t *)logits)[label / 2], v);
    const float chosen = label % 2 ? v[1] : v[0];
    return fabsf(chosen) < INFINITY ? chosen : 0;
}

/* The logit of a label in the ring, for a row that begins at `at`. */
template <class T> PTX_FN float row_chosen(uint32_t base, place at, int32_t label)
{
    const int slot = (at.slot + label * 2 / CROSS_PIECE) % CROSS_SLOTS;
    float v[2];
    unpack_two<T>(shared_load_4(slot_data(base, slot) + label * 2 % CROSS_PIECE / 4 * 4), v);
    return label % 2 ? v[1] : v[0];
}

template <class T>
PTX_FN void compute_rows(const cross_entropy_arg &a, uint32_t base, float *scratch)
{
    place at = {0, 0};
    int32_t next = label_of(a, blockIdx.x);
    int turn = 0;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const int32_t label = next;
        uint4 *const to = (uint4 *)((char *)a.dlogits + row * a.dlogits_row);
        next = label_of(a, row + gridDim.x);
        if (label < 0) {
            for (int32_t run = threadIdx.x; run < a.classes / RUN; run += CROSS_THREADS) {
                float v[RUN] = {0};
                run_write<T>(a, to + run, v);
            }
            if (a.loss && threadIdx.x == 0)
                a.loss[row] = 0;
            continue;
        }
        const float pivot = row_pivot<T>(a, row, label);
        row_sums s = row_read<T>(a, base, at, pivot);
        sums_join_warps(scratch, turn, s);
        turn ^= 1;
        float factor = a.dloss ? a.alpha * a.dloss[row] : a.alpha;
        const bool masked = s.sum == 0; /* only -infinity: zeros */
        if (a.loss && threadIdx.x == 0 && masked) {
            a.loss[row] = 0;
        } else if (a.loss && threadIdx.x == 0) {
            const float chosen = row_chosen<T>(base, at, label);
            a.loss[row] = logf(s.sum) - (1 - a.smoothing) * (chosen - s.most);
            if (a.smoothing > 0)
                a.loss[row] -= s.total + a.smoothing * (pivot - s.most);
        }
        if (masked) {
            s = {0, 1, 0};
            factor = 0;
        }
        const row_slope slope = slope_of(a, s, masked ? -RUN : label, factor);
        if (a.beta == 0 && fabsf(factor) < INFINITY)
            row_write<T, true>(a, base, slope, to, at);
        else
            row_write<T, false>(a, base, slope, to, at);
    }
}

template <class T> PTX_FN void cross_entropy(const cross_entropy_arg &a)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t base = shared_address(shared);
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < CROSS_SLOTS; slot++) {
            mbar_init(slot_full(base, slot), 1);
            mbar_init(slot_empty(base, slot), CROSS_WARPS);
        }
        mbar_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < CROSS_THREADS)
        compute_rows<T>(a, base, (float *)(shared + SUMS_AT));
    else if (threadIdx.x == CROSS_THREADS)
        copy_rows(a, base);
}

#define CROSS_ENTROPY(T, type)                                                                     \
    extern "C" __global__ void __launch_bounds__(CROSS_THREADS + 32, 1)                            \
        sm90a_cross_entropy_##type(const __grid_constant__ cross_entropy_arg a)                    \
    {                                                                                              \
        cross_entropy<T>(a);                                                                       \
    }
CROSS_ENTROPY(__half, f16)
CROSS_ENTROPY(__nv_bfloat16, bf16)
