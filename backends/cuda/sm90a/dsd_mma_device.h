/* dsd for blocks of 8, 16 and 32 by mma.sync, of 16-bit types and of f32 rounded to tf32, of which a
 * step or a row has half as many features in as many bytes; dsd_mma.c plans what the tables say.
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
#ifndef BSKI_CUDA_DSD_MMA_DEVICE_H
#define BSKI_CUDA_DSD_MMA_DEVICE_H

#include <string.h>

#include <backends/cuda/mma.h>
#include <backends/cuda/ptx.h>
#include <backends/cuda/sm90a/dsd_mma.h>

#define FN static __device__ __forceinline__

enum { LANES = 32, FULL_AT = 0, EMPTY_AT = 128 };
enum {
    WARP_OUTPUTS = DSD_MMA_WARP_OUTPUTS,
    WARP_TILES = WARP_OUTPUTS / 8,
    BAND = 16 /* samples of a product */
};
enum { PRODUCER_REGISTERS = 32 };

/* f32 that tensor copies and the packing have rounded. */
struct tf32 {
    uint32_t bits;
};

/* UNIT: outputs of a unit of weights. CN: activations have samples contiguous. PLAIN: as the
 * epilogue has it, without activation, along either axis, of f32 that of the activations; kernels of
 * their own, because what any other end needs in registers costs the products theirs. */
template <typename TYPE, int UNIT_, bool CN_, int TILE_, bool PLAIN_> struct config {
    typedef TYPE type;
    static constexpr bool TF32 = sizeof(TYPE) == 4, CN = CN_, PLAIN = PLAIN_;
    static constexpr bool WORDS = TF32 && CN; /* ldmatrix does not turn activations of 32 bits */
    static constexpr int UNIT = UNIT_, TILE = TILE_;
    static constexpr bool FEW = TILE >= DSD_MMA_FEW;
    static constexpr int WARPS = DSD_MMA_WARPS(TILE), THREADS = DSD_MMA_THREADS(TILE);
    /* With those of the producers what the launch gives. */
    static constexpr int REGISTERS = TILE == DSD_MMA_TALL ? 160 : 112;
    static constexpr int WR = TILE == DSD_MMA_SQUARE ? 2 : 1, WC = WARPS / WR;
    static constexpr int WARP_SAMPLES = DSD_MMA_WARP_SAMPLES(TILE), BANDS = WARP_SAMPLES / BAND;
    static constexpr int SUMS = WARP_SAMPLES * WARP_OUTPUTS / LANES, RUNS = SUMS / DSD_RUN;
    static constexpr int T = WARP_OUTPUTS / UNIT; /* units of a warp */
    /* Outputs that are in the order of a unit of so many. */
    static constexpr int ORDER = TF32 && UNIT == 32 ? 16 : UNIT, COLUMNS = WARP_OUTPUTS / ORDER;
    /* Of a row of activations in a slot, of few samples all of 128 bytes. */
    static constexpr int SAMPLES = FEW && CN ? 64 : WARP_SAMPLES * WR;
    static constexpr int ROW = 128 / sizeof(TYPE);    /* features of a row in a slot; CN: samples */
    static constexpr int PANEL_BYTES = SAMPLES * 128; /* ROW features wide; CN: ROW samples wide,
                                                         or of tf32 ROW features of all */
    /* Samples of an ldmatrix: 8 features of 16 bits are half of an operand. */
    static constexpr int MATRIX = UNIT == 8 && !TF32 ? 32 : 16, MATRICES = WARP_SAMPLES / MATRIX;
    static constexpr int WEIGHTS = MATRIX == 32 ? 1 : 2;   /* registers, of a product */
    static constexpr int STEP_BYTES = UNIT * 16 * WEIGHTS; /* of weights */
    static constexpr int CODE_BYTES =
        UNIT == 8 && !FEW ? DSD_MMA_CODE_BYTES(WC) : 0; /* of a stage */
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

/* tf32 with samples contiguous: which four of each 32 samples a lane has, as its rows of two
 * products. The first product has the first two of them, or where the number of the four is odd the
 * others: so the pairs that 16 lanes read, of 4 features, lie in different banks. */
FN int four_of(int lane)
{
    return lane / 8 + lane / 4 % 2 * 4;
}

template <class C> FN lane_place place_of(int warp_row, uint32_t lane, uint32_t depth)
{
    /* ldmatrix of 32 samples x 16 bytes, or of 16 x 32. */
    const uint32_t samples = C::MATRIX;
    lane_place p;
    p.lane = lane;
    p.turn = (C::CN ? lane % samples / 8 ^ lane % 8 : lane % 8) << 4;
    p.x = C::CN ? warp_row * depth * 128 + lane % 8 * 128 + p.turn
                : (warp_row * C::WARP_SAMPLES + lane % samples) * 128;
    p.w = lane * (C::WEIGHTS * 4);
    if (C::WORDS) {
        const uint32_t four = four_of(lane), feature = lane % 4;
        p.x =
            warp_row * C::WARP_SAMPLES * 128 + feature * 128 + (four ^ feature) * 16 + four % 2 * 8;
    } else if (C::MATRIX == 16 && lane >= 16) { /* the other 16 bytes of a step */
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
    const int samples = C::MATRIX;
    return C::CN ? from ^ m * samples * 2 : from + m * samples * 128;
}

/* The m-th operand of a step, or with units of 8 of a slice; or half of two. */
template <class C> FN void samples_load(uint32_t on, uint32_t (&a)[4], uint32_t from, int m)
{
    if constexpr (C::WORDS) {
        /* Pairs of samples, of a feature and of the fourth after it. */
        const uint32_t at = from ^ m % 2 * 8;
        shared_load_8_if(on, a, at + m / 2 * (C::ROW * 128));
        shared_load_8_if(on, a + 2, (at ^ 64) + 512 + m / 2 * (C::ROW * 128));
    } else {
        load_matrix_x4_if<C::CN>(on, a, sample_at<C>(from, m));
    }
}

enum { HALF_BYTES = 256 /* weights of 8 outputs by 32 bytes */, HALVES_BYTES = 2 * HALF_BYTES };

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
        samples_load<C>(1, f.a[m], from, m);
#pragma unroll
    for (int half = 0; half < 2; half++)
        shared_load_8_if(1, f.b[half], w + half * HALF_BYTES);
    return f;
}

/* A product of a step: of 16 features, of tf32 of 8. */
template <class C> FN void product_add(float *sum, const uint32_t *a, const uint32_t *b)
{
    if constexpr (C::TF32)
        mma_m16n8k8_tf32(sum, a, b);
    else
        mma_m16n8k16<typename C::type>(sum, a, b);
}

/* What follows in the registers of operands: nothing, the step's other weights, the next step's
 * operands. */
enum follow { NOTHING, WEIGHTS, STEP };

/* The products of a step's weights for the first eight of 16 outputs, from 8 * tile on. While they run,
 * what follows is found. */
template <class C> FN void eight_multiply(float (&sum)[C::SUMS], const step<C> &f, int tile)
{
#pragma unroll
    for (int m = 0; m < C::BANDS; m++)
        product_add<C>(sum + (m * WARP_TILES + tile) * 4, f.a[m], f.b[0]);
}

/* Those of the second eight. What follows is loaded as soon as the last product has read a register:
 * weights from w on, activations from `next` on. Nothing is loaded by a predicate: a load that is off
 * takes its turn on the path of loads too. */
template <class C, follow FOLLOW>
FN void step_multiply(float (&sum)[C::SUMS], step<C> &f, int tile, uint32_t w = 0,
                      uint32_t next = 0)
{
    if (FOLLOW != NOTHING)
        shared_load_8_if(1, f.b[0], w);
#pragma unroll
    for (int m = 0; m < C::BANDS; m++) {
        product_add<C>(sum + (m * WARP_TILES + tile + 1) * 4, f.a[m], f.b[1]);
        if (FOLLOW == STEP)
            samples_load<C>(1, f.a[m], next, m);
    }
    if (FOLLOW != NOTHING)
        shared_load_8_if(1, f.b[1], w + HALF_BYTES);
}

/* Where a lane's activations of the lowest bit's step lie. */
template <class C> FN uint32_t bit_place(uint32_t bits, uint32_t x, const lane_place &p)
{
    const uint32_t k = __ffs(bits) - 1 & DSD_MMA_KIND_BITS - 1;
    if (C::WORDS)
        return x + k / 4 * C::PANEL_BYTES + k % 4 * 1024;
    return x + (C::CN ? k * 2048 : (k / 4 * C::PANEL_BYTES + k % 4 * 32) ^ p.turn);
}

/* x is computed before what follows, and not behind the next branch. */
FN void compute_now(uint32_t &x)
{
    asm volatile("" : "+r"(x));
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
            const uint32_t left = alone ? alone : both;
            uint32_t next = bit_place<C>(left, x, p);
            eight_multiply<C>(sum, f, 2 * half);
            compute_now(next);
            if (left)
                step_multiply<C, STEP>(sum, f, 2 * half, w += HALVES_BYTES, next);
            else
                step_multiply<C, NOTHING>(sum, f, 2 * half);
        }
#pragma unroll 1
    while (both) {
        both &= both - 1;
        uint32_t next = bit_place<C>(both, x, p);
        eight_multiply<C>(sum, f, 0);
        step_multiply<C, WEIGHTS>(sum, f, 0, w += HALVES_BYTES);
        eight_multiply<C>(sum, f, 2);
        compute_now(next);
        if (both)
            step_multiply<C, STEP>(sum, f, 2, w += HALVES_BYTES, next);
        else
            step_multiply<C, NOTHING>(sum, f, 2);
    }
}

/* The products of a unit of 8 with a slice, of which one ldmatrix in `a` has 32 samples, or of tf32
 * 16. */
template <class C>
FN void slice_multiply(float (&sum)[C::SUMS], const uint32_t (&a)[4], int m, int unit,
                       const uint32_t (&b)[C::WEIGHTS])
{
    if constexpr (C::TF32)
        mma_m16n8k8_tf32(sum + (m * WARP_TILES + unit) * 4, a, b);
    else
#pragma unroll
        for (int h = 0; h < 2; h++)
            mma_m16n8k8<typename C::type>(sum + ((2 * m + h) * WARP_TILES + unit) * 4, a + 2 * h,
                                          b);
}

/* The weights of a slice and a unit of 8. */
template <class C> FN void slice_weights(uint32_t (&b)[C::WEIGHTS], uint32_t w)
{
    if constexpr (C::WEIGHTS == 1) {
        b[0] = shared_load_4(w);
    } else {
        const uint2 both = shared_load_8(w);
        b[0] = both.x;
        b[1] = both.y;
    }
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
    uint32_t a[C::MATRICES][4] = {}, b[C::WEIGHTS];
    slice_weights<C>(b, w);
#pragma unroll
    for (int m = 0; m < C::MATRICES; m++)
        samples_load<C>(1, a[m], next, m);
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
                        uint32_t other[C::WEIGHTS];
                        slice_weights<C>(other, w += C::STEP_BYTES);
#pragma unroll
                        for (int m = 0; m < C::MATRICES; m++)
                            slice_multiply<C>(sum, a[m], m, i, other);
                    }
            w += left ? C::STEP_BYTES : 0;
            uint32_t b_next[C::WEIGHTS];
            slice_weights<C>(b_next, w);
#pragma unroll
            for (int m = 0; m < C::MATRICES; m++) {
                slice_multiply<C>(sum, a[m], m, unit, b);
                samples_load<C>(left, a[m], next, m);
            }
#pragma unroll
            for (int i = 0; i < C::WEIGHTS; i++)
                b[i] = b_next[i];
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

/* Makes of four numbers of units of 8 four neighbours, which begin at 4 (q / 2) of units q % 2 and
 * q % 2 + 2, where q = lane % 4. */
FN void fours_sort(float (&v)[DSD_RUN], int lane)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        exchange(v[i / 2 * 4 + i % 2], v[i / 2 * 4 + i % 2 + 2], lane & 1, 1);
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
        fours_sort(v, lane);
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

/* The k-th sum of run i. */
FN constexpr int run_place(int i, int k)
{
    return (i / 2 * WARP_TILES + k / 2) * 4 + i % 2 * 2 + k % 2;
}

/* Run i: eight of a lane's sums of one sample. */
template <class C> FN void run_take(float (&v)[DSD_RUN], const float (&sum)[C::SUMS], int i)
{
#pragma unroll
    for (int k = 0; k < DSD_RUN; k++)
        v[k] = sum[run_place(i, k)];
}

/* The sample of a lane's run i, of the warp's. */
template <class C> FN int run_sample(int i, int lane)
{
    const int four = four_of(lane);
    return C::WORDS ? i / 4 * 32 + four * 4 + (i / 2 % 2 ^ four % 2) * 2 + i % 2 : i * 8 + lane / 4;
}

/* Of a lane's four samples of the i-th 32 the k-th sums, and then those after: see four_of(). */
template <class C>
FN void fours_take(float (&v)[DSD_RUN], const float (&sum)[C::SUMS], int i, int k, int lane)
{
    const bool odd = four_of(lane) % 2;
#pragma unroll
    for (int two = 0; two < 4; two++) {
        const int output = k + two / 2, at = two / 2 * 4 + two % 2;
        const float low = sum[run_place(i * 4 + two % 2, output)];
        const float high = sum[run_place(i * 4 + two % 2 + 2, output)];
        v[at] = odd ? high : low;
        v[at + 2] = odd ? low : high;
    }
}

/* What is added to a lane's numbers in the order of the sums. */
template <class C>
FN void sums_bias(const dsd_epilogue &e, const int32_t *columns, int lane, float (&bias)[DSD_RUN])
{
    constexpr int EACH = DSD_RUN / C::COLUMNS;
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

FN void store_four(float *to, const float *v)
{
    store_global_16(to, make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]),
                                   __float_as_uint(v[2]), __float_as_uint(v[3])));
}

/* A plain end of f32 with features contiguous: units' outputs are in the order in which a lane has
 * four neighbours, or of units of 8 two. */
template <class C>
FN void store_f32(const dsd_epilogue &e, const int32_t *columns, const float (&sum)[C::SUMS],
                  int64_t n0, int lane)
{
    constexpr bool PAIRS = C::ORDER == 8;
    const int q = lane % 4, within = PAIRS ? q / 2 * 4 : q * 4;
    const int64_t first = n0 + lane / 4;
    float *to = (float *)e.c.data + first * e.c.n + within;
    float bias[DSD_RUN];
    int column[2];
    sums_bias<C>(e, columns, lane, bias);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int at = __ldg(columns + (PAIRS ? 2 * h + q % 2 : h));
        column[h] = at + within < e.features ? at : -1;
    }
#pragma unroll
    for (int i = 0; i < C::RUNS; i++) {
        float v[DSD_RUN];
        run_take<C>(v, sum, i);
        dsd_finish_plain<!C::PLAIN>(e, bias, v);
        if (PAIRS)
            fours_sort(v, lane);
        if (first + i * 8 < e.n)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (column[h] >= 0)
                    store_four(to + i * 8 * e.c.n + column[h], v + 4 * h);
    }
}

/* The same with samples contiguous, of which a lane has four neighbours, eight lanes 128 bytes. */
template <class C>
FN void store_f32_n(const dsd_epilogue &e, const int32_t *columns, const float (&sum)[C::SUMS],
                    int64_t n0, int lane)
{
    constexpr int EACH = DSD_RUN / C::COLUMNS;
    const int64_t first = n0 + four_of(lane) * 4;
    float bias[DSD_RUN];
    sums_bias<C>(e, columns, lane, bias);
#pragma unroll
    for (int k = 0; k < DSD_RUN; k += 2) {
        const int column = __ldg(columns + k / EACH);
        const int feature = column + lane % 4 * EACH + k % EACH;
        float *to = (float *)e.c.data + feature * e.c.feature + first;
#pragma unroll
        for (int i = 0; i < C::RUNS / 4; i++) {
            float v[DSD_RUN], pair[DSD_RUN];
            fours_take<C>(v, sum, i, k, lane);
#pragma unroll
            for (int m = 0; m < DSD_RUN; m++)
                pair[m] = bias[k + m / 4];
            dsd_finish_plain<!C::PLAIN>(e, pair, v);
            if (column >= 0 && first + i * 32 < e.n)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    if (feature + h < e.features)
                        store_four(to + h * e.c.feature + i * 32, v + 4 * h);
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

/* Any end where a lane has four neighbouring samples: with C along the samples of two outputs, which
 * two lanes exchange for a run each, else of run i. */
template <class C>
FN void words_finish(const dsd_epilogue &e, const int32_t *columns, float (&v)[DSD_RUN], int output,
                     int64_t n0, int i, int lane)
{
    constexpr int EACH = DSD_RUN / C::COLUMNS;
    if (!e.along_n) {
        run_sort<C::ORDER>(v, lane);
        if (output >= 0)
            dsd_finish(e, v, output, n0 + run_sample<C>(i, lane), 0);
        return;
    }
    const int k = i % 4 * 2, column = __ldg(columns + k / EACH), upper = four_of(lane) % 2;
#pragma unroll
    for (int m = 0; m < 4; m++)
        exchange(v[m], v[m + 4], upper, 8);
    if (column >= 0)
        dsd_finish(e, v, column + lane % 4 * EACH + k % EACH + upper,
                   n0 + i / 4 * 32 + (four_of(lane) - upper) * 4, 0);
}

/* A warp's sums of a part of a tile, for the kernel that adds them up. */
template <class C> FN void sums_store(float *to, const float (&sum)[C::SUMS], int lane)
{
#pragma unroll
    for (int i = 0; i < C::RUNS; i++) {
        float v[DSD_RUN];
        run_take<C>(v, sum, i);
        const int sample = run_sample<C>(i, lane);
        const int place =
            C::WORDS ? sample / 8 * 2 * LANES + sample % 8 * 4 + lane % 4 : 2 * i * LANES + lane;
        float4 *at = (float4 *)to + place;
        at[0] = make_float4(v[0], v[1], v[2], v[3]);
        at[LANES] = make_float4(v[4], v[5], v[6], v[7]);
    }
}

/* One copy of the code for all runs, which are taken out of the sums by selection. */
template <class C>
FN void runs_finish(const dsd_epilogue &e, const int32_t *columns, const float (&sum)[C::SUMS],
                    int output, int64_t n0, int lane)
{
#pragma unroll 1
    for (int i = 0; i < C::RUNS; i++) {
        float v[DSD_RUN];
#pragma unroll
        for (int k = 0; k < C::RUNS; k++)
            if (k == i) {
                if (C::WORDS && e.along_n)
                    fours_take<C>(v, sum, k / 4, k % 4 * 2, lane);
                else
                    run_take<C>(v, sum, k);
            }
        if constexpr (C::WORDS)
            words_finish<C>(e, columns, v, output, n0, i, lane);
        else
            run_finish<C::ORDER>(e, v, output, n0 + i * 8, lane);
    }
}

template <class C>
FN void tile_store(const dsd_mma_arg &a, const int32_t *columns, const float (&sum)[C::SUMS],
                   int output, int64_t n0, int lane)
{
    const dsd_epilogue &e = a.epilogue;
    if constexpr (C::TF32) {
        if (C::PLAIN || (e.plain_f32 && (e.along_n != 0) == C::CN)) {
            if constexpr (C::CN)
                store_f32_n<C>(e, columns, sum, n0, lane);
            else
                store_f32<C>(e, columns, sum, n0, lane);
            return;
        }
    } else if (C::PLAIN || e.plain || e.plain_n) {
        if (e.plain)
            store_plain<C>(e, columns, sum, output, n0, lane);
        else
            store_plain_n<C>(e, columns, sum, n0, lane);
        return;
    }
    if constexpr (!C::PLAIN)
        runs_finish<C>(e, columns, sum, output, n0, lane);
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
    const uint32_t to = r.slots + r.slot * r.slot_bytes;
    const uint32_t x_bytes = C::SAMPLES * a.depth * sizeof(typename C::type);
    wait_patiently(r.barriers + EMPTY_AT + 8 * r.slot, r.phase);
    mbar_expect(full, x_bytes + stage.z);
    for (uint32_t at = 0; at < a.depth; at += C::ROW) {
        const uint32_t panel = at / C::ROW * C::PANEL_BYTES;
        if (C::CN)
            for (int p = 0; p < C::SAMPLES / C::ROW; p++)
                tensor_load_2d(to +
                                   (C::WORDS ? panel + p * C::ROW * 128 : (p * a.depth + at) * 128),
                               x, sample + p * C::ROW, stage.x + at, full);
        else
            tensor_load_2d(to + panel, x, stage.x + at, sample, full);
    }
    bulk_load(to + x_bytes, a.image + (size_t)stage.y * 16, stage.z, full);
}

/* The stages of a tile that are a producer's turn. ahead: lanes' share of the first 32. */
template <class C>
FN void tile_produce(const CUtensorMap *x, const dsd_mma_arg &a, ring &r, const dsd_mma_tile &tile,
                     uint4 ahead, int &turn, int producers, int producer, int lane)
{
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
        tile_produce<C>(x, a, r, tile, ahead, turn, producers, producer, lane);
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
        const int32_t *columns = a.columns + (size_t)(tile.panel * C::WC + column) * C::COLUMNS;
        const int output = run_output<C::ORDER>(columns, lane);
        float sum[C::SUMS];
#pragma unroll
        for (int k = 0; k < C::SUMS; k++)
            sum[k] = 0;
        tile_multiply<C>(sum, parts_of(tile), now, tile.stages, r, column,
                         C::SAMPLES * a.depth * sizeof(typename C::type), place);
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

#define DSD_MMA_KERNEL(type, T, unit, axis, cn, name, tile, end, plain)                            \
    extern "C" __global__ void __launch_bounds__(DSD_MMA_THREADS(tile), 1)                         \
        dsd_sm90a_mma_##type##_##unit##_##axis##_##name##_##end(                                   \
            const __grid_constant__ CUtensorMap x, const __grid_constant__ dsd_mma_arg a)          \
    {                                                                                              \
        product<config<T, unit, cn, tile, plain>>(&x, a);                                          \
    }
/* With both ends. */
#define DSD_MMA_KERNELS(type, T, unit, axis, cn, name, tile)                                       \
    DSD_MMA_KERNEL(type, T, unit, axis, cn, name, tile, plain, true)                               \
    DSD_MMA_KERNEL(type, T, unit, axis, cn, name, tile, any, false)

#endif
