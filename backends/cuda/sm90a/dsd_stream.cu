/* dsd for so few samples that only reading the kept weights should take time: lanes multiply what they
 * copied themselves, in f32, without matrix instructions, and without a barrier before the end;
 * dsd_pieces.c plans what the tables say.
 *
 * A lane's pieces of the values are 16 bytes, E elements: of E features at one k where values lie across
 * the depth, of E neighbours along the depth of one feature where they lie along it. A run, E of the
 * depth, of a tile of TI features is TI pieces, a step of four runs TI / 8 loads of a warp. Each lane
 * has a ring of its own in shared memory, which holds SLOTS of its loads. */
#include <backends/cuda/sm90a/dsd_narrow_device.h>
#include <backends/cuda/sm90a/f8_device.h>

/* --- Storage types: a piece and its elements as f32 --- */

template <typename T> struct storage;

template <> struct storage<float> {
    static constexpr int BYTES = 4, E = 4;
    static __device__ __forceinline__ void widen(const uint32_t (&word)[4], int, float (&to)[E])
    {
#pragma unroll
        for (int i = 0; i < E; i++)
            to[i] = __uint_as_float(word[i]);
    }
    static __device__ __forceinline__ float load(const char *from, int)
    {
        return *(const float *)from;
    }
};

/* f8 of either type. */
struct f8 {
    uint8_t bits;
};
template <> struct storage<f8> {
    static constexpr int BYTES = 1, E = 16;
    static __device__ __forceinline__ void widen(const uint32_t (&word)[4], int e5m2,
                                                 float (&to)[E])
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint2 four = f8_to_f16(word[i], e5m2);
            const float2 low = dsd_unpack(false, four.x), high = dsd_unpack(false, four.y);
            to[4 * i] = low.x;
            to[4 * i + 1] = low.y;
            to[4 * i + 2] = high.x;
            to[4 * i + 3] = high.y;
        }
    }
    static __device__ __forceinline__ float load(const char *from, int e5m2)
    {
        return dsd_unpack(false, f8_to_f16(*(const uint8_t *)from, e5m2).x).x;
    }
};

/* A tile of TI features by up to SAMPLES samples. */
template <typename T_, dsd_piece_order ORDER_, int TI_, int SAMPLES_> struct config {
    typedef T_ T;
    typedef storage<T> S;
    static constexpr dsd_piece_order ORDER = ORDER_;
    static constexpr bool ACROSS = ORDER == DSD_COLS;
    static constexpr int TI = TI_, SAMPLES = SAMPLES_;
    static constexpr int TN = 8, NT = TI / 8, ROWS = 1;
    static constexpr int SCRATCH = DSD_NARROW_SCRATCH(TI, TN);
    static constexpr int EACH = ACROSS ? S::E : 1; /* features of a piece */
    static constexpr int SUMS = SAMPLES * EACH;
    static __device__ __forceinline__ void sum(const dsd_narrow_arg &a,
                                               const dsd_narrow_piece &piece, float *scratch);
};

/* Where a lane's operands lie, but for the run. */
struct place {
    const char *s, *b;
    int32_t b_pitch; /* from a sample to the next: bytes */
    int samples;
    int s_e5m2, b_e5m2;
};

/* A lane's number among the runs of a load, and of its pieces of a run. */
template <class C> FN int lane_run(int lane)
{
    return C::ORDER == DSD_RUNS ? lane % DSD_FEW_STEP : lane / C::TI;
}

template <class C> FN int lane_piece(int lane)
{
    return C::ORDER == DSD_RUNS ? lane / DSD_FEW_STEP : lane % C::TI;
}

/* The lane's run of load number `load`. */
template <class C> FN dsd_few_run run_find(const dsd_few_run *runs, int load, int loads)
{
    if (load >= loads)
        return {0, DSD_FEW_NONE};
    const uint2 v = __ldg((const uint2 *)(runs + load * (32 / C::TI)));
    return {v.x, v.y};
}

template <class C> FN void piece_copy(uint32_t slot, const place &p, const dsd_few_run &run)
{
    const char *from = weights_address(p.s, run.s);
    const uint32_t bytes = run.s != DSD_FEW_NONE ? 16 : 0;
    /* Of lines along the depth the load has but a part. */
    if (C::ORDER == DSD_RUNS)
        cp_async_16_near(slot, from, bytes);
    else
        cp_async_16(slot, from, bytes);
}

/* Adds what a piece and its run make of all samples. */
template <class C>
FN void piece_multiply(const uint4 &piece, uint32_t run, const place &p, float (&sum)[C::SUMS])
{
    typedef typename C::S S;
    const uint32_t word[4] = {piece.x, piece.y, piece.z, piece.w};
    const char *b = lines_address(p.b, run);
    const int samples = run >> DSD_FEW_PLACE ? p.samples : 0;
    float w[S::E];
    if constexpr (C::ACROSS) {
        float x[C::SAMPLES] = {};
#pragma unroll
        for (int n = 0; n < C::SAMPLES; n++)
            if (n < samples)
                x[n] = S::load(b + n * p.b_pitch, p.b_e5m2);
        S::widen(word, p.s_e5m2, w);
#pragma unroll
        for (int n = 0; n < C::SAMPLES; n++)
#pragma unroll
            for (int e = 0; e < S::E; e++)
                sum[n * S::E + e] = fmaf(w[e], x[n], sum[n * S::E + e]);
    } else {
        uint32_t x[C::SAMPLES][4] = {};
#pragma unroll
        for (int n = 0; n < C::SAMPLES; n++)
            if (n < samples)
                load_global<8, true>(x[n], b + n * p.b_pitch);
        S::widen(word, p.s_e5m2, w);
#pragma unroll
        for (int n = 0; n < C::SAMPLES; n++) {
            float by[S::E];
            S::widen(x[n], p.b_e5m2, by);
#pragma unroll
            for (int e = 0; e < S::E; e++)
                sum[n] = fmaf(w[e], by[e], sum[n]);
        }
    }
}

/* Adds up COUNT sums of lanes whose numbers differ in MASK and the bits above, below END. Each keeps its
 * share of them, the upper half where its own bit is set; the number of the first is added to at. */
template <int COUNT, int MASK, int END> FN void lanes_add(float *v, int &at)
{
    if constexpr (MASK < END && COUNT > 1) {
        enum { HALF = COUNT / 2 };
        const bool upper = threadIdx.x & MASK;
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            const float keep = upper ? v[i + HALF] : v[i], give = upper ? v[i] : v[i + HALF];
            v[i] = keep + __shfl_xor_sync(~0u, give, MASK);
        }
        at += upper ? HALF : 0;
        lanes_add<HALF, 2 * MASK, END>(v, at);
    } else if constexpr (MASK < END) {
        v[0] += __shfl_xor_sync(~0u, v[0], MASK);
        lanes_add<1, 2 * MASK, END>(v, at);
    }
}

/* How many sums that leaves a lane with. */
template <int COUNT, int MASK, int END> FN constexpr int sums_left(void)
{
    if constexpr (MASK >= END || COUNT == 1)
        return COUNT;
    else
        return sums_left<COUNT / 2, 2 * MASK, END>();
}

/* The sums of all lanes, to the scratch; of samples that the tile has no sums of zeros. */
template <class C> FN void sums_put(float (&v)[C::SUMS], float *scratch)
{
    enum { LINE = C::TI / C::EACH, FIRST = C::ORDER == DSD_RUNS ? 1 : LINE };
    enum { END = C::ORDER == DSD_RUNS ? (int)DSD_FEW_STEP : 32 };
    enum { LEFT = sums_left<C::SUMS, FIRST, END>() };
    const int lane = threadIdx.x % 32, feature = lane_piece<C>(lane) % LINE * C::EACH;
    int at = 0;
    lanes_add<C::SUMS, FIRST, END>(v, at);
#pragma unroll
    for (int i = 0; i < LEFT; i++)
        scratch[row_at<C>((at + i) / C::EACH) + feature + (at + i) % C::EACH] = v[i];
    for (int i = lane; i < (C::TN - C::SAMPLES) * C::TI; i += 32)
        scratch[row_at<C>(C::SAMPLES + i / C::TI) + i % C::TI] = 0;
}

template <class C> FN place place_lane(const dsd_narrow_arg &a, int lane)
{
    enum { LINE = C::TI / C::EACH };
    const dsd_few_operands &o = a.operands;
    const int line = lane_piece<C>(lane) / (C::ACROSS ? LINE : 1);
    place p;
    p.s = (const char *)o.s + (int64_t)line * o.s_pitch;
    p.b = (const char *)o.b;
    if (C::ACROSS) {
        p.s += lane_piece<C>(lane) % LINE * 16;
        p.b += (int64_t)line * a.k_pitch;
    }
    p.b_pitch = a.n_pitch;
    p.samples = (int)o.end.n;
    p.s_e5m2 = a.s_e5m2;
    p.b_e5m2 = a.b_e5m2;
    return p;
}

template <typename T, dsd_piece_order ORDER, int TI, int SAMPLES>
__device__ __forceinline__ void config<T, ORDER, TI, SAMPLES>::sum(const dsd_narrow_arg &a,
                                                                   const dsd_narrow_piece &piece,
                                                                   float *scratch)
{
    typedef config C;
    enum { SLOTS = DSD_STREAM_SLOTS, TURN = SLOTS * DSD_NARROW_WARPS };
    enum { AT_ONCE = 2, PENDING = SLOTS / AT_ONCE - 1 };
    extern __shared__ float shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const place p = place_lane<C>(a, lane);
    const dsd_few_run *runs = a.runs + (int64_t)piece.first * DSD_FEW_STEP + lane_run<C>(lane);
    const int loads = piece.steps * (TI / 8);
    const uint32_t ring = shared_address(shared + DSD_NARROW_WARPS * SCRATCH) +
                          (uint32_t)(warp * SLOTS * DSD_STREAM_SLOT_BYTES + lane * 16);
    float v[SUMS] = {};
    uint32_t b[SLOTS]; /* of the runs under way */
    dsd_few_run next[SLOTS];
    int load = warp * SLOTS;
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
        next[i] = run_find<C>(runs, load + i, loads);
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
        if (next[i].s != DSD_FEW_NONE)
            prefetch_global(weights_address(p.s, next[i].s));
    grid_wait();
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        b[i] = next[i].b;
        piece_copy<C>(ring + i * DSD_STREAM_SLOT_BYTES, p, next[i]);
        if (i % AT_ONCE == AT_ONCE - 1)
            cp_async_commit();
        next[i] = run_find<C>(runs, load + TURN + i, loads);
    }
#pragma unroll 1
    for (; load < loads; load += TURN)
#pragma unroll
        for (int i = 0; i < SLOTS; i += AT_ONCE) {
            cp_async_wait<PENDING>();
#pragma unroll
            for (int j = i; j < i + AT_ONCE; j++)
                piece_multiply<C>(shared_load_16(ring + j * DSD_STREAM_SLOT_BYTES), b[j], p, v);
#pragma unroll
            for (int j = i; j < i + AT_ONCE; j++) {
                b[j] = next[j].b;
                piece_copy<C>(ring + j * DSD_STREAM_SLOT_BYTES, p, next[j]);
                next[j] = run_find<C>(runs, load + 2 * TURN + j, loads);
            }
            cp_async_commit();
        }
    cp_async_wait<0>();
    sums_put<C>(v, scratch);
}

#define STREAM(type, T, order, name, ti, samples, blocks)                                          \
    extern "C" __global__ void __launch_bounds__(DSD_NARROW_THREADS, blocks)                       \
        dsd_sm90a_stream_##ti##_##samples##_##name##_##type(                                       \
            const __grid_constant__ dsd_narrow_arg a)                                              \
    {                                                                                              \
        narrow<config<T, order, ti, samples>>(a);                                                  \
    }
DSD_STREAM_F32(STREAM, f32, float)
DSD_STREAM_F8(STREAM, f8, f8)
