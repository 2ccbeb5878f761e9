/* dsd for blocks of 8, 16 and 32 by mma.sync; dsd_mma.c plans what the tables say.
 *
 * A block of threads computes tiles of 64 x 512, 128 x 256 or 96 x 384 sums (samples x outputs),
 * one after the other. For each stage of up to 256 features in which one of the tile's outputs has
 * weights, a warp of producers copies the activations and the weights of the stage into a ring.
 * Each of 16 warps owns 64 x 32 sums, or each of 12 96 x 32, and walks through the steps that its
 * own outputs have in the stage: a step is its samples by 16 features by a unit of 16 or 32 outputs,
 * that is 8 or 16 products for 64 samples, or by 8 features and the units of 8 outputs that have a
 * block there, 4 products each.
 * So what counts is short code, and other warps to run while one waits: 8 warps with twice the
 * sums, and the registers to load steps ahead, were 5 to 30 % slower. The operands of the next
 * step are loaded into the registers of this one's as its products release them. */
#include <string.h>

#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/dsd_mma.h>

#define FN static __device__ __forceinline__

enum { LANES = 32, FULL_AT = 0, EMPTY_AT = 128 };
enum { WARP_OUTPUTS = 32, WARP_TILES = WARP_OUTPUTS / 8, BAND = 16 /* samples of a product */ };
enum { PRODUCER_REGISTERS = 32 };

/* UNIT: outputs of a unit of weights. CN: activations have samples contiguous. PLAIN: as the
 * epilogue has it, without activation, along either axis; kernels of their own, because what any
 * other end needs in registers costs the products theirs. */
template <typename TYPE, int UNIT_, bool CN_, int TILE_, bool PLAIN_> struct config {
    typedef TYPE type;
    static constexpr bool CN = CN_, PLAIN = PLAIN_;
    static constexpr int UNIT = UNIT_, TILE = TILE_;
    static constexpr int WARPS = DSD_MMA_WARPS(TILE), THREADS = DSD_MMA_THREADS(TILE);
    /* With those of the producers what the launch gives. */
    static constexpr int REGISTERS = TILE == DSD_MMA_TALL ? 160 : 112;
    static constexpr int WR = TILE == DSD_MMA_SQUARE ? 2 : 1, WC = WARPS / WR;
    static constexpr int WARP_SAMPLES = DSD_MMA_WARP_SAMPLES(TILE), BANDS = WARP_SAMPLES / BAND;
    static constexpr int SUMS = WARP_SAMPLES * WARP_OUTPUTS / LANES, RUNS = SUMS / DSD_RUN;
    static constexpr int T = WARP_OUTPUTS / UNIT; /* units of a warp */
    static constexpr int SAMPLES = WARP_SAMPLES * WR;
    static constexpr int PANEL_BYTES = SAMPLES * 128; /* 64 features wide; CN: 64 samples wide */
    static constexpr int STEP_BYTES = UNIT == 8 ? 128 : UNIT * 32;            /* of weights */
    static constexpr int CODE_BYTES = UNIT == 8 ? DSD_MMA_CODE_BYTES(WC) : 0; /* of a stage */
};

/* --- The ring --- */

/* Waits long enough in each try not to take the multiplying warps' issue slots. */
FN void wait_patiently(uint32_t bar, uint32_t parity)
{
    while (!mbar_try_wait_long(bar, parity))
        __nanosleep(64);
}

/* The ring, as a warp sees it. */
struct ring {
    uint32_t barriers, slots, slot_bytes, count;
    uint32_t slot, phase; /* where it goes on */
};

FN void ring_step(ring &r)
{
    if (++r.slot == r.count) {
        r.slot = 0;
        r.phase ^= 1;
    }
}

/* --- What a warp does in a stage --- */

/* Where a lane reads in every stage, in bytes. */
struct lane_place {
    uint32_t lane;
    uint32_t x;    /* of the activations: the row of a sample, or CN of a feature */
    uint32_t turn; /* what the place in the row is combined with: the swizzle */
    uint32_t w;    /* of the weights of a step */
};

template <class C> FN lane_place place_of(int warp_row, uint32_t lane, uint32_t depth)
{
    /* ldmatrix of 32 samples x 8 features, or of 16 x 16. */
    const uint32_t samples = C::UNIT == 8 ? 32 : 16;
    lane_place p;
    p.lane = lane;
    p.turn = (C::CN ? lane % samples / 8 ^ lane % 8 : lane % 8) << 4;
    p.x = C::CN ? warp_row * depth * 128 + lane % 8 * 128 + p.turn
                : (warp_row * C::WARP_SAMPLES + lane % samples) * 128;
    p.w = lane * (C::UNIT == 8 ? 4 : 8);
    if (C::UNIT > 8 && lane >= 16) { /* the other 8 features of a step */
        p.x += C::CN ? 1024 : 0;
        p.turn ^= 16;
    }
    /* Through a shuffle: else the compiler would compute them anew from the thread's index. */
    p.x = __shfl_xor_sync(~0u, p.x, 0);
    p.turn = __shfl_xor_sync(~0u, p.turn, 0);
    p.w = __shfl_xor_sync(~0u, p.w, 0);
    return p;
}

/* Where the samples of the m-th ldmatrix of a step lie, from where those of the first do. CN: 16
 * samples are 32 bytes of the swizzled row of a feature. */
template <class C> FN uint32_t sample_at(uint32_t from, int m)
{
    const int samples = C::UNIT == 8 ? 32 : 16;
    return C::CN ? from ^ m * samples * 2 : from + m * samples * 128;
}

enum { HALF_BYTES = 256 /* weights of 8 outputs by 16 features */, HALVES_BYTES = 2 * HALF_BYTES };

/* Operands of a step: its weights for 16 outputs, of which units of 32 have two. */
template <class C> struct step {
    uint32_t a[C::BANDS][4];
    uint32_t b[2][2];
};

/* The first step's, from where its activations and a lane's weights lie. */
template <class C> FN step<C> step_load(uint32_t from, uint32_t w)
{
    step<C> f = {};
#pragma unroll
    for (int m = 0; m < C::BANDS; m++)
        load_matrix_x4_if<C::CN>(1, f.a[m], sample_at<C>(from, m));
#pragma unroll
    for (int half = 0; half < 2; half++)
        shared_load_8_if(1, f.b[half], w + half * HALF_BYTES);
    return f;
}

/* What follows in the registers of operands: nothing, the step's other weights, the next step's
 * operands. */
enum follow { NOTHING, WEIGHTS, STEP };

/* The products of a step's weights for outputs from 8 * tile on. What follows is loaded as soon as
 * the last product has read a register: weights from w on, activations from `next` on. Nothing is
 * loaded by a predicate: a load that is off takes its turn on the path of loads too. */
template <class C, follow FOLLOW>
FN void step_multiply(float (&sum)[C::SUMS], step<C> &f, int tile, uint32_t w = 0,
                      uint32_t next = 0)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int m = 0; m < C::BANDS; m++) {
            mma_m16n8k16<typename C::type>(sum + (m * WARP_TILES + tile + half) * 4, f.a[m],
                                           f.b[half]);
            if (FOLLOW == STEP && half)
                load_matrix_x4_if<C::CN>(1, f.a[m], sample_at<C>(next, m));
        }
        if (FOLLOW != NOTHING)
            shared_load_8_if(1, f.b[half], w + half * HALF_BYTES);
    }
}

/* Where a lane's activations of the lowest bit's step lie. */
template <class C> FN uint32_t bit_place(uint32_t bits, uint32_t x, const lane_place &p)
{
    const uint32_t k = __ffs(bits) - 1 & DSD_MMA_KIND_BITS - 1;
    return x + (C::CN ? k * 2048 : (k / 4 * C::PANEL_BYTES + k % 4 * 32) ^ p.turn);
}

/* A warp's steps of a stage with units of 16 and 32, which are bits: the lowest is next. Those of
 * its first 16 outputs alone, then those of the others alone, then those of both. first: where the
 * activations of the first lie. */
template <class C>
FN void bits_multiply(float (&sum)[C::SUMS], uint32_t alone, uint32_t both, uint32_t x,
                      uint32_t first, uint32_t w, const lane_place &p)
{
    step<C> f = step_load<C>(first, w);
#pragma unroll
    for (int half = 0; half < (C::UNIT == 32 ? 0 : 2); half++)
#pragma unroll 1
        while (half ? alone : alone & DSD_MMA_KIND) {
            alone &= alone - 1;
            const uint32_t left = alone ? alone : both, next = bit_place<C>(left, x, p);
            if (left)
                step_multiply<C, STEP>(sum, f, 2 * half, w += HALVES_BYTES, next);
            else
                step_multiply<C, NOTHING>(sum, f, 2 * half);
        }
#pragma unroll 1
    while (both) {
        both &= both - 1;
        const uint32_t next = bit_place<C>(both, x, p);
        step_multiply<C, WEIGHTS>(sum, f, 0, w += HALVES_BYTES);
        if (both)
            step_multiply<C, STEP>(sum, f, 2, w += HALVES_BYTES, next);
        else
            step_multiply<C, NOTHING>(sum, f, 2);
    }
}

/* The products of a unit of 8 with a slice, of which one ldmatrix in `a` has 32 samples. */
template <class C>
FN void slice_multiply(float (&sum)[C::SUMS], const uint32_t (&a)[4], int m, int unit, uint32_t b)
{
#pragma unroll
    for (int h = 0; h < 2; h++)
        mma_m16n8k8<typename C::type>(sum + ((2 * m + h) * WARP_TILES + unit) * 4, a + 2 * h, &b);
}

/* Where a lane's activations of a slice lie. */
FN uint32_t slice_place(uint32_t code, uint32_t x, uint32_t turn)
{
    return x + ((code & DSD_MMA_PLACE) ^ turn);
}

/* A warp's steps of a stage with units of 8: slices of 8 features in which any of them has a block.
 * First those of the first unit, then those of the second that the first has not, and so on: so one
 * branch tells whether others have a block there too. Two codes more are read than there are. */
template <class C>
FN void slices_multiply(float (&sum)[C::SUMS], uint32_t counts, uint32_t x, uint32_t w,
                        uint32_t codes, const lane_place &p)
{
    const uint32_t turn = C::CN ? 0 : p.turn;
    uint32_t code = shared_load_4(codes), next = slice_place(code, x, turn), left = 0;
    uint32_t following = shared_load_4(codes + 4);
    uint32_t a[C::BANDS / 2][4] = {}, b = shared_load_4(w);
#pragma unroll
    for (int m = 0; m < C::BANDS / 2; m++)
        load_matrix_x4_if<C::CN>(1, a[m], sample_at<C>(next, m));
#pragma unroll
    for (int unit = 0; unit < C::T; unit++)
        left += counts >> unit * DSD_MMA_COUNT_BITS & DSD_MMA_COUNT;
#pragma unroll
    for (int unit = 0; unit < C::T; unit++)
#pragma unroll 1
        for (uint32_t n = counts >> unit * DSD_MMA_COUNT_BITS & DSD_MMA_COUNT; n; n--) {
            const uint32_t others = code >> DSD_MMA_OTHERS_AT;
            next = slice_place(following, x, turn);
            code = following;
            following = shared_load_4(codes + 8);
            codes += 4;
            left--;
            if (unit + 1 < C::T && others)
#pragma unroll
                for (int i = unit + 1; i < C::T; i++)
                    if (others >> i & 1) {
                        const uint32_t other = shared_load_4(w += C::STEP_BYTES);
#pragma unroll
                        for (int m = 0; m < C::BANDS / 2; m++)
                            slice_multiply<C>(sum, a[m], m, i, other);
                    }
            w += left ? C::STEP_BYTES : 0;
            const uint32_t b_next = shared_load_4(w);
#pragma unroll
            for (int m = 0; m < C::BANDS / 2; m++) {
                slice_multiply<C>(sum, a[m], m, unit, b);
                load_matrix_x4_if<C::CN>(left, a[m], sample_at<C>(next, m));
            }
            b = b_next;
        }
}

/* What lanes find in 32 stages from one on. */
FN uint2 parts_load(const uint32_t *parts, int at, int stages)
{
    return at < stages ? __ldg((const uint2 *)parts + at) : make_uint2(0, 0);
}

/* Lane i's word, past the path of loads, on which a shuffle takes a turn. */
FN uint32_t word_of(uint32_t word, int i, uint32_t lane)
{
    return __reduce_or_sync(~0u, lane == i ? word : 0);
}

/* A warp's steps of the stage in the ring's slot, if it has any; what they are is found before the
 * stage has come. part: a lane's of 32 stages, of which this is the i-th. x_bytes: of activations,
 * after which the codes begin, and then the weights. column: of the warp. */
template <class C>
FN void part_multiply(float (&sum)[C::SUMS], uint2 part, int i, const ring &r, int column,
                      uint32_t x_bytes, const lane_place &p)
{
    const uint32_t slot = r.slots + r.slot * r.slot_bytes, at = slot + x_bytes, x = slot + p.x;
    const uint32_t one = word_of(part.x, i, p.lane), two = word_of(part.y, i, p.lane);
    const uint32_t weights = at + C::CODE_BYTES + p.w, full = r.barriers + FULL_AT + 8 * r.slot;
    if constexpr (C::UNIT == 8) {
        mbar_wait(full, r.phase);
        if (one)
            slices_multiply<C>(sum, one, x, weights + two * C::STEP_BYTES,
                               at + column * DSD_MMA_WARP_CODES, p);
    } else {
        const uint32_t both = two & DSD_MMA_KIND;
        const uint32_t first = bit_place<C>(one ? one : both, x, p);
        const uint32_t w = weights + (two >> DSD_MMA_KIND_BITS) * C::STEP_BYTES;
        mbar_wait(full, r.phase);
        if (one | both)
            bits_multiply<C>(sum, one, both, x, first, w, p);
    }
}

/* All stages of a tile. now: of the first 32. */
template <class C>
FN void tile_multiply(float (&sum)[C::SUMS], const uint32_t *parts, uint2 now, int stages, ring &r,
                      int column, uint32_t x_bytes, const lane_place &p)
{
    for (int first = 0; first < stages; first += LANES) {
        const uint2 next = parts_load(parts, first + LANES + p.lane, stages);
        const int count = stages - first < LANES ? stages - first : LANES;
        for (int i = 0; i < count; i++) {
            part_multiply<C>(sum, now, i, r, column, x_bytes, p);
            /* each lane gives back what it has read: see racecheck in docs/cuda.md */
            mbar_arrive(r.barriers + EMPTY_AT + 8 * r.slot);
            ring_step(r);
        }
        now = next;
    }
}

/* --- The end of a tile --- */

/* Transposes the 2 x 2 matrix of a pair of lanes that differ in `bit`. */
template <class V> FN void exchange(V &low, V &high, bool upper, int bit)
{
    const V got = __shfl_xor_sync(~0u, upper ? low : high, bit);
    if (upper)
        low = got;
    else
        high = got;
}

/* Makes of eight numbers in the order of the sums the outputs of a run, in their order: that of
 * units of 32 begins at 8 q of its unit, of 16 at 8 (q / 2) of unit q % 2, of 8 at 0 of unit q,
 * where q = lane % 4. The packing puts the outputs of a unit in the order that this needs. */
template <int UNIT> FN void run_sort(float (&v)[DSD_RUN], int lane)
{
    if (UNIT == 16)
#pragma unroll
        for (int i = 0; i < 4; i++)
            exchange(v[i], v[i + 4], lane & 1, 1);
    if (UNIT == 8) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            exchange(v[i / 2 * 4 + i % 2], v[i / 2 * 4 + i % 2 + 2], lane & 1, 1);
#pragma unroll
        for (int i = 0; i < 4; i++)
            exchange(v[i], v[i + 4], lane & 2, 2);
    }
}

/* The same for pairs of outputs, which are neighbours before and after. */
template <int UNIT> FN void pairs_sort(uint32_t (&w)[DSD_RUN / 2], int lane)
{
    if (UNIT == 8) {
        exchange(w[0], w[1], lane & 1, 1);
        exchange(w[2], w[3], lane & 1, 1);
    }
    if (UNIT < 32) {
        const int bit = UNIT == 8 ? 2 : 1;
        exchange(w[0], w[2], lane & bit, bit);
        exchange(w[1], w[3], lane & bit, bit);
    }
}

/* From runs of 8 outputs, for one of 8 neighbouring samples in each of 8 lanes, to runs of 8
 * samples, for one output in each lane. */
FN void run_transpose(float (&v)[DSD_RUN], int lane)
{
#pragma unroll
    for (int bit = 1; bit < 8; bit *= 2)
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (!(i & bit))
                exchange(v[i], v[i + bit], lane / 4 & bit, bit * 4);
}

/* The first output of this lane's runs, -1 where the tile has none. */
template <int UNIT> FN int run_output(const int32_t *columns, int lane)
{
    const int q = lane % 4;
    const int unit = UNIT == 32 ? 0 : UNIT == 16 ? q % 2 : q;
    const int within = UNIT == 32 ? 8 * q : UNIT == 16 ? q / 2 * 8 : 0;
    const int column = __ldg(columns + unit);
    return column < 0 ? -1 : column + within;
}

/* Run i: eight of a lane's sums of one sample. */
template <class C> FN void run_take(float (&v)[DSD_RUN], const float (&sum)[C::SUMS], int i)
{
#pragma unroll
    for (int k = 0; k < DSD_RUN; k++)
        v[k] = sum[(i / 2 * WARP_TILES + k / 2) * 4 + i % 2 * 2 + k % 2];
}

/* What is added to a lane's numbers in the order of the sums. */
template <class C>
FN void sums_bias(const dsd_epilogue &e, const int32_t *columns, int lane, float (&bias)[DSD_RUN])
{
    constexpr int EACH = DSD_RUN / C::T; /* of a unit */
#pragma unroll
    for (int k = 0; k < DSD_RUN; k++) {
        bias[k] = 0;
        if (e.bias) {
            const int column = __ldg(columns + k / EACH);
            const int feature = column + lane % 4 * EACH + k % EACH;
            bias[k] = column >= 0 && feature < e.features ? e.bias[feature] : 0;
        }
    }
}

/* A plain end with features contiguous: what lanes exchange is rounded already. */
template <class C>
FN void store_plain(const dsd_epilogue &e, const int32_t *columns, const float (&sum)[C::SUMS],
                    int output, int64_t n0, int lane)
{
    const bool bf16 = e.c.type == BSK_BF16;
    const int64_t first = n0 + lane / 4;
    uint16_t *to = (uint16_t *)e.c.data + output + first * e.c.n;
    float bias[DSD_RUN];
    sums_bias<C>(e, columns, lane, bias);
#pragma unroll
    for (int i = 0; i < C::RUNS; i++) {
        float v[DSD_RUN];
        uint32_t w[DSD_RUN / 2];
        run_take<C>(v, sum, i);
        dsd_finish_plain<!C::PLAIN>(e, bias, v);
#pragma unroll
        for (int k = 0; k < DSD_RUN; k += 2)
            w[k / 2] = dsd_pack(bf16, v[k], v[k + 1]);
        pairs_sort<C::UNIT>(w, lane);
        if (output >= 0 && output < e.features && first + i * 8 < e.n)
            store_global_16(to + i * 8 * e.c.n, make_uint4(w[0], w[1], w[2], w[3]));
    }
}

/* The same with samples contiguous: matrices of 8 samples x 8 outputs are transposed, and each four
 * lanes exchange what they have of four, so that they store 64 bytes of an output. */
template <class C>
FN void store_plain_n(const dsd_epilogue &e, const int32_t *columns, const float (&sum)[C::SUMS],
                      int64_t n0, int lane)
{
    enum { EACH = DSD_RUN / C::T /* of a unit */, FOUR = 4 };
    const bool bf16 = e.c.type == BSK_BF16;
    const int64_t first = n0 + lane % 4 * 8;
    float bias[DSD_RUN];
    sums_bias<C>(e, columns, lane, bias);
#pragma unroll
    for (int k = 0; k < DSD_RUN; k += 2) {
        const int column = __ldg(columns + k / EACH);
        const int feature = column + lane / 8 * EACH + k % EACH + lane / 4 % 2;
        uint16_t *to = (uint16_t *)e.c.data + feature * e.c.feature + first;
#pragma unroll
        for (int i = 0; i < C::RUNS; i += FOUR) {
            uint32_t w[FOUR];
            float v[DSD_RUN], pair[DSD_RUN]; /* two outputs of four runs, and their biases */
#pragma unroll
            for (int m = 0; m < DSD_RUN; m++) {
                float run[DSD_RUN];
                run_take<C>(run, sum, i + m / 2);
                v[m] = run[k + m % 2];
                pair[m] = bias[k + m % 2];
            }
            dsd_finish_plain<!C::PLAIN>(e, pair, v);
#pragma unroll
            for (int m = 0; m < FOUR; m++)
                w[m] = movmatrix_trans(dsd_pack(bf16, v[2 * m], v[2 * m + 1]));
#pragma unroll
            for (int bit = 1; bit < FOUR; bit *= 2)
#pragma unroll
                for (int m = 0; m < FOUR; m++)
                    if (!(m & bit))
                        exchange(w[m], w[m + bit], lane & bit, bit);
            if (column >= 0 && feature < e.features && first + i * 8 < e.n)
                store_global_16(to + i * 8, make_uint4(w[0], w[1], w[2], w[3]));
        }
    }
}

/* Any end of a run of this lane, of the samples from n on. */
template <int UNIT>
FN void run_finish(const dsd_epilogue &e, float (&v)[DSD_RUN], int64_t feature, int64_t n, int lane)
{
    const bool any = feature >= 0;
    run_sort<UNIT>(v, lane);
    if (e.along_n) {
        run_transpose(v, lane);
        feature += lane / 4;
    } else {
        n += lane / 4;
    }
    if (any)
        dsd_finish(e, v, feature, n, 0);
}

/* A warp's sums of a part of a tile, for the kernel that adds them up. */
template <class C> FN void sums_store(float *to, const float (&sum)[C::SUMS], int lane)
{
#pragma unroll
    for (int i = 0; i < C::RUNS; i++) {
        float v[DSD_RUN];
        run_take<C>(v, sum, i);
        float4 *at = (float4 *)to + 2 * i * LANES + lane;
        at[0] = make_float4(v[0], v[1], v[2], v[3]);
        at[LANES] = make_float4(v[4], v[5], v[6], v[7]);
    }
}

template <class C>
FN void tile_store(const dsd_mma_arg &a, const int32_t *columns, const float (&sum)[C::SUMS],
                   int output, int64_t n0, int lane)
{
    const dsd_epilogue &e = a.epilogue;
    if (C::PLAIN || e.plain || e.plain_n) {
        if (e.plain)
            store_plain<C>(e, columns, sum, output, n0, lane);
        else
            store_plain_n<C>(e, columns, sum, n0, lane);
    } else if constexpr (!C::PLAIN) {
        /* One copy of the code for all runs, which are taken out of the sums by selection. */
#pragma unroll 1
        for (int i = 0; i < C::RUNS; i++) {
            float v[DSD_RUN];
#pragma unroll
            for (int k = 0; k < C::RUNS; k++)
                if (k == i)
                    run_take<C>(v, sum, k);
            run_finish<C::UNIT>(e, v, output, n0 + i * 8, lane);
        }
    }
}

/* --- A block's work --- */

FN dsd_mma_tile tile_load(const dsd_mma_tile *tiles, int at, int end)
{
    const int4 v = at < end ? __ldg((const int4 *)(tiles + at)) : make_int4(0, 0, 0, 0);
    return {v.x, v.y, v.z, v.w};
}

/* Lanes' share of 32 stages of a tile. */
FN uint4 stages_load(const dsd_mma_arg &a, const dsd_mma_tile &tile, int at)
{
    return at < tile.stages ? __ldg((const uint4 *)(a.stages + tile.stage + at))
                            : make_uint4(0, 0, 0, 0);
}

template <class C>
FN void stage_copy(const CUtensorMap *x, const dsd_mma_arg &a, const ring &r, int sample,
                   uint4 stage)
{
    const uint32_t full = r.barriers + FULL_AT + 8 * r.slot;
    const uint32_t to = r.slots + r.slot * r.slot_bytes, x_bytes = C::SAMPLES * a.depth * 2;
    wait_patiently(r.barriers + EMPTY_AT + 8 * r.slot, r.phase);
    mbar_expect(full, x_bytes + stage.z);
    for (uint32_t at = 0; at < a.depth; at += 64) {
        if (C::CN)
            for (int p = 0; p < C::WR; p++)
                tensor_load_2d(to + (p * a.depth + at) * 128, x, sample + p * 64, stage.x + at,
                               full);
        else
            tensor_load_2d(to + at / 64 * C::PANEL_BYTES, x, stage.x + at, sample, full);
    }
    bulk_load(to + x_bytes, a.image + (size_t)stage.y * 16, stage.z, full);
}

template <class C>
FN void produce(const CUtensorMap *x, const dsd_mma_arg &a, ring r, int producer, int lane)
{
    /* More producers than slots would wait for phases that they cannot tell apart. */
    const int producers = a.slots < DSD_MMA_PRODUCERS ? a.slots : DSD_MMA_PRODUCERS;
    const int begin = a.tile_start[blockIdx.x], end = a.tile_start[blockIdx.x + 1];
    dsd_mma_tile next = tile_load(a.tiles, begin, end);
    uint4 ahead = stages_load(a, next, lane);
    grid_wait();
    int turn = 0;
    r.phase = 1; /* the slots are empty */
    for (int i = begin; i < end; i++) {
        const dsd_mma_tile tile = next;
        next = tile_load(a.tiles, i + 1, end);
        for (int t = 0; t < tile.stages; t += LANES) {
            const uint4 mine = ahead;
            const int count = tile.stages - t < LANES ? tile.stages - t : LANES;
            if (t + LANES < tile.stages)
                ahead = stages_load(a, tile, t + LANES + lane);
            for (int at = 0; at < count; at++) {
                const uint4 stage = {__shfl_sync(~0u, mine.x, at), __shfl_sync(~0u, mine.y, at),
                                     __shfl_sync(~0u, mine.z, at), 0};
                if (lane == 0 && turn == producer)
                    stage_copy<C>(x, a, r, tile.sample, stage);
                __syncwarp();
                turn = turn + 1 == producers ? 0 : turn + 1;
                ring_step(r);
            }
        }
        ahead = stages_load(a, next, lane);
    }
}

/* A tile of which each lane has a word. */
FN uint32_t tile_word(const dsd_mma_tile *tiles, int at, int end, int lane)
{
    return at < end ? __ldg((const uint32_t *)(tiles + at) + lane % 4) : 0;
}

FN dsd_mma_tile tile_of(uint32_t word)
{
    return {(int)__shfl_sync(~0u, word, 0), (int)__shfl_sync(~0u, word, 1),
            (int)__shfl_sync(~0u, word, 2), (int)__shfl_sync(~0u, word, 3)};
}

template <class C> FN void consume(const dsd_mma_arg &a, ring r, int warp, int lane)
{
    const int column = warp % C::WC, row = warp / C::WC;
    const int begin = a.tile_start[blockIdx.x], end = a.tile_start[blockIdx.x + 1];
    const lane_place place = place_of<C>(row, lane, a.depth);
    dsd_mma_tile tile = tile_of(tile_word(a.tiles, begin, end, lane));
    const auto parts_of = [&](const dsd_mma_tile &t) {
        return a.parts + ((size_t)t.stage * C::WC + (size_t)t.stages * column) * DSD_MMA_PART_WORDS;
    };
    uint2 now = parts_load(parts_of(tile), lane, tile.stages);
    grid_wait();
    for (int i = begin; i < end; i++) {
        /* What the end of the tile needs is on its way meanwhile. */
        const uint32_t next = tile_word(a.tiles, i + 1, end, lane);
        const int32_t *columns = a.columns + (size_t)(tile.panel * C::WC + column) * C::T;
        const int output = run_output<C::UNIT>(columns, lane);
        float sum[C::SUMS];
#pragma unroll
        for (int k = 0; k < C::SUMS; k++)
            sum[k] = 0;
        tile_multiply<C>(sum, parts_of(tile), now, tile.stages, r, column, C::SAMPLES * a.depth * 2,
                         place);
        const int64_t n0 = (int64_t)tile.sample + row * C::WARP_SAMPLES;
        const int64_t number = (int64_t)tile.sample / C::SAMPLES * a.panels + tile.panel;
        tile = tile_of(next);
        now = parts_load(parts_of(tile), lane, tile.stages);
        if (C::PLAIN && C::TILE != DSD_MMA_TALL && a.sums)
            sums_store<C>(a.sums + (number * C::WARPS + warp) * (C::SUMS * LANES), sum, lane);
        else
            tile_store<C>(a, columns, sum, output, n0, lane);
    }
}

template <class C> FN void product(const CUtensorMap *x, const dsd_mma_arg &a)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    /* By a shuffle: so the compiler sees that it, and what follows from it, is uniform. */
    const int warp = __shfl_sync(~0u, threadIdx.x / LANES, 0), lane = threadIdx.x % LANES;
    const uint32_t barriers = __shfl_sync(~0u, shared_address(shared), 0);
    const ring r = {barriers, barriers + DSD_MMA_RING, a.slot_bytes, (uint32_t)a.slots, 0, 0};
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.slots; i++) {
            mbar_init(barriers + FULL_AT + 8 * i, 1);
            mbar_init(barriers + EMPTY_AT + 8 * i, LANES * C::WARPS);
        }
        mbar_init_fence();
    }
    __syncthreads();
    grid_allow_next();
    if (warp >= C::WARPS) {
        registers_lower<PRODUCER_REGISTERS>();
        produce<C>(x, a, r, warp - C::WARPS, lane);
    } else {
        registers_raise<C::REGISTERS>();
        consume<C>(a, r, warp, lane);
    }
}

/* --- Adding up the parts of the depth --- */

/* A thread block has what a warp of a tile had: runs of 8 samples, one of each of its warps. */
template <int UNIT> FN void sums_add(const dsd_mma_sums_arg &a)
{
    constexpr int WARPS = DSD_MMA_WARPS(DSD_MMA_WIDE), EACH = DSD_MMA_WARP_SAMPLES(DSD_MMA_WIDE);
    const int lane = threadIdx.x % LANES, run = threadIdx.x / LANES, warp = blockIdx.x;
    const int panel = blockIdx.y, tile = blockIdx.z, column = warp % a.warp_cols;
    const int64_t panels = (int64_t)a.across * a.parts;
    const int64_t part = (int64_t)a.across * DSD_MMA_PART_SUMS / 4;
    const int samples = EACH * WARPS / a.warp_cols;
    const int32_t *columns =
        a.columns + (size_t)(panel * a.warp_cols + column) * (WARP_OUTPUTS / UNIT);
    const float4 *from =
        (const float4 *)a.sums +
        ((tile * panels + panel) * WARPS + warp) * (DSD_MMA_PART_SUMS / WARPS / 4) +
        2 * run * LANES + lane;
    float v[DSD_RUN] = {0};
    const int output = run_output<UNIT>(columns, lane);
    grid_allow_next();
    grid_wait();
#pragma unroll 4
    for (int p = 0; p < a.parts; p++, from += part) {
        const float4 low = from[0], high = from[LANES];
        v[0] += low.x, v[1] += low.y, v[2] += low.z, v[3] += low.w;
        v[4] += high.x, v[5] += high.y, v[6] += high.z, v[7] += high.w;
    }
    run_finish<UNIT>(a.epilogue, v, output,
                     (int64_t)tile * samples + warp / a.warp_cols * EACH + run * 8, lane);
}

#define SUMS_KERNEL(unit)                                                                          \
    extern "C" __global__ void __launch_bounds__(DSD_MMA_SUMS_THREADS)                             \
        dsd_sm90a_mma_sums_##unit(const __grid_constant__ dsd_mma_sums_arg a)                      \
    {                                                                                              \
        sums_add<unit>(a);                                                                         \
    }
SUMS_KERNEL(8)
SUMS_KERNEL(16)
SUMS_KERNEL(32)

/* --- Packing --- */

/* Which output of a unit is in a row of its w-th matrix of 8 x 8: the order that makes a lane's sums
 * neighbours, see run_sort. */
template <int UNIT> FN int pack_output(int row, int w)
{
    return UNIT == 8 ? row : row / 2 * (UNIT / 4) + w / 4 * 4 + row % 2 + w / 2 % 2 * 2;
}

/* Two neighbours in memory of the w-th matrix, of features that are there. ALONG: two of an output, as
 * the product wants them; else of a feature, for outputs that lanes turn the matrix for. */
template <int UNIT, bool ALONG>
FN uint32_t pack_load(const dsd_mma_pack_arg &a, const uint16_t *from, int w, int valid, int lane)
{
    const int row = lane / 4, two = lane % 4 * 2;
    const int feature = w % 2 * 8 + (ALONG ? two : row);
    const uint16_t *p = from + (ALONG ? pack_output<UNIT>(row, w) * a.row_stride + feature
                                      : pack_output<UNIT>(two, w) + feature * a.feature_stride);
    if (ALONG && feature + 1 == valid)
        return *p;
    return feature < valid ? *(const uint32_t *)p : 0;
}

/* Writes some steps a warp: operands of products in the order in which lanes load them. All of a warp's
 * loads are under way before the first store. */
template <int UNIT, bool ALONG> FN void pack_steps(const dsd_mma_pack_arg &a, uint4 own, int count)
{
    constexpr int STEPS = DSD_MMA_PACK_STEPS(UNIT), WORDS = UNIT == 8 ? 1 : UNIT / 4;
    const int lane = threadIdx.x % LANES;
    uint32_t word[STEPS][WORDS];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint32_t source = __shfl_sync(~0u, own.y, i);
        const int valid = (int)__shfl_sync(~0u, own.z, i);
        const uint16_t *from = (const uint16_t *)a.source + (size_t)source * 8;
        if (UNIT == 8 && !valid)
            word[i][0] = __ldg(a.codes + (size_t)source * LANES + lane);
        else
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                word[i][w] = pack_load<UNIT, ALONG>(a, from, w, valid, lane);
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        char *to = (char *)a.image + (size_t)__shfl_sync(~0u, own.x, i) * 16;
        if (i >= count)
            break;
        if (!ALONG && (UNIT > 8 || __shfl_sync(~0u, own.z, i)))
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                word[i][w] = movmatrix_trans(word[i][w]);
        if constexpr (UNIT == 8) {
            ((uint32_t *)to)[lane] = word[i][0];
        } else {
#pragma unroll
            for (int w = 0; w < WORDS; w += 2)
                ((uint2 *)to)[w / 2 * LANES + lane] = make_uint2(word[i][w], word[i][w + 1]);
        }
    }
}

template <int UNIT> FN void pack(const dsd_mma_pack_arg &a)
{
    constexpr int STEPS = DSD_MMA_PACK_STEPS(UNIT);
    const int lane = threadIdx.x % LANES;
    const int64_t first = ((int64_t)blockIdx.x * DSD_MMA_PACK_WARPS + threadIdx.x / LANES) * STEPS;
    grid_allow_next();
    if (first >= a.count)
        return;
    const int count = a.count - first < STEPS ? (int)(a.count - first) : STEPS;
    /* to, source, valid: a plain load, which stays before the wait */
    const uint4 own = *(const uint4 *)(a.steps + first + (lane < count ? lane : count - 1));
    grid_wait();
    if (a.feature_stride == 1)
        pack_steps<UNIT, true>(a, own, count);
    else
        pack_steps<UNIT, false>(a, own, count);
}

#define PACK(unit)                                                                                 \
    extern "C" __global__ void __launch_bounds__(DSD_MMA_PACK_WARPS * 32)                          \
        dsd_sm90a_mma_pack_##unit(const __grid_constant__ dsd_mma_pack_arg a)                      \
    {                                                                                              \
        pack<unit>(a);                                                                             \
    }
PACK(8)
PACK(16)
PACK(32)

/* --- Kernels --- */

#define KERNEL(type, T, unit, axis, cn, name, tile, end, plain)                                    \
    extern "C" __global__ void __launch_bounds__(DSD_MMA_THREADS(tile), 1)                         \
        dsd_sm90a_mma_##type##_##unit##_##axis##_##name##_##end(                                   \
            const __grid_constant__ CUtensorMap x, const __grid_constant__ dsd_mma_arg a)          \
    {                                                                                              \
        product<config<T, unit, cn, tile, plain>>(&x, a);                                          \
    }
#define KERNELS_END(type, T, unit, axis, cn, name, tile)                                           \
    KERNEL(type, T, unit, axis, cn, name, tile, plain, true)                                       \
    KERNEL(type, T, unit, axis, cn, name, tile, any, false)
#define KERNELS_TILE(type, T, unit, axis, cn)                                                      \
    KERNELS_END(type, T, unit, axis, cn, wide, DSD_MMA_WIDE)                                       \
    KERNELS_END(type, T, unit, axis, cn, square, DSD_MMA_SQUARE)
#define KERNELS_UNIT(type, T, axis, cn)                                                            \
    KERNELS_TILE(type, T, 8, axis, cn)                                                             \
    KERNELS_TILE(type, T, 16, axis, cn)                                                            \
    KERNELS_TILE(type, T, 32, axis, cn)
#define KERNELS(type, T)                                                                           \
    KERNELS_UNIT(type, T, nc, false)                                                               \
    KERNELS_UNIT(type, T, cn, true)                                                                \
    KERNELS_END(type, T, 16, nc, false, tall, DSD_MMA_TALL)
FOR_HALVES(KERNELS)
