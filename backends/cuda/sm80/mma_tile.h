/* The parts of the sm80 products below the level of an op: a stage of shared memory with TN rows
 * and TI features by KC of the depth, [n][KC] or [KC][n] and behind them [i][KC] or [KC][i],
 * whichever way the operands lie in device memory, and a warp's products from it.
 *
 * Operands are halves (sm75: __half), float that is rounded to tf32 on its way to the tensor cores,
 * or a pair of 8-bit types. A run of them is 16 bytes: C::RUN is 8, 4 or 16. What a stage's bytes
 * are and how they move is the same for all; only rows across k of other elements than those of 16
 * bits are read in another way, which wants another order of the runs. */
#ifndef BSKI_CUDA_SM80_MMA_TILE_H
#define BSKI_CUDA_SM80_MMA_TILE_H

#include <backends/cuda/epilogue.h>
#include <backends/cuda/mma.h>

/* The number of elements, 0 to RUN, that are left of `size` at `at`. */
template <int RUN = DSD_RUN> MMA_DEVICE int run_left(int64_t size, int64_t at)
{
    const int64_t left = size - at;
    return left >= RUN ? RUN : left > 0 ? (int)left : 0;
}

/* By how much the 16-byte runs of a row are exchanged in a matrix of CHUNKS runs a row, so that
 * what is read at a time lies in different banks: equal runs of 8 rows. Across k, for 32-bit
 * elements, equal pairs of runs of 4 rows; for 8-bit ones equal runs of two rows of each of 4
 * fours. */
template <int CHUNKS, int SIZE = 2> MMA_DEVICE int turn_of(int row)
{
    enum { TURNS = CHUNKS < 8 ? CHUNKS : 8, ROWS = 8 / TURNS };
    if (SIZE == 4)
        return row / ROWS % (TURNS > 1 ? TURNS / 2 : 1) * 2;
    if (SIZE == 1)
        return CHUNKS >= 8 ? row / 4 % 4 * 2 + row % 2 : row / 4 % TURNS;
    return row / ROWS % TURNS;
}

/* The byte offset of a run. */
template <int CHUNKS, int SIZE = 2> MMA_DEVICE uint32_t place(int row, int chunk)
{
    return (uint32_t)(row * CHUNKS + (chunk ^ turn_of<CHUNKS, SIZE>(row))) * 16;
}

/* Copies a run of which only `bytes` count and the rest becomes zeros. Without VECTOR, from any
 * address. */
template <typename T, bool VECTOR>
MMA_DEVICE void copy_run(uint32_t to, const char *from, int bytes)
{
    if (VECTOR) {
        cp_async_16(to, from, (uint32_t)bytes);
        return;
    }
    const unsigned short *p = (const unsigned short *)from;
    const uint32_t *words = (const uint32_t *)from;
    uint32_t v[4];
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (sizeof(T) == 4) {
            v[e] = 4 * e < bytes ? words[e] : 0;
        } else if (sizeof(T) == 1) {
            v[e] = 0;
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[e] |= 4 * e + i < bytes ? (uint32_t)(uint8_t)from[4 * e + i] << 8 * i : 0;
        } else {
            const uint32_t lo = 4 * e < bytes ? p[2 * e] : 0;
            const uint32_t hi = 4 * e + 2 < bytes ? p[2 * e + 1] : 0;
            v[e] = lo | hi << 16;
        }
    store_shared_16(to, v);
}

/* One operand's copies into a stage, as far as they are one thread's. It stays with one of the RUNS
 * runs of a stage's depth, and shares it with ACROSS threads in all. Along k neighbouring
 * threads take a row's runs, across k the rows of one run. Element (w, k) lies at w * stride + k,
 * or across k at k * stride + w. */
template <class C, int WIDTH> struct feed {
    enum {
        TURNS = (WIDTH + C::ACROSS - 1) / C::ACROSS,
        CHUNKS = WIDTH / C::RUN,
        DOWN = C::ACROSS > CHUNKS ? C::ACROSS / CHUNKS : 1 /* rows from a turn to the next */
    };
    const char *from; /* the first copy's source, but for the run's place */
    int64_t step;     /* bytes from a turn's source to the next */
    uint32_t to;      /* the first copy's place in the stage */
    int32_t run, along_k;
    int32_t bound; /* along k: rows that are left; across k: bytes of each copy */
    int32_t row;   /* across k: the first one in the run */
};

template <class C> MMA_DEVICE int own_run(bool along_k)
{
    const int t = threadIdx.x % C::THREADS;
    return along_k ? t % C::RUNS : t / C::ACROSS;
}

/* left: how many of WIDTH there are. */
template <class C, int WIDTH>
MMA_DEVICE feed<C, WIDTH> feed_open(const typename C::T *data, int64_t stride, bool along_k,
                                    int64_t left)
{
    typedef feed<C, WIDTH> F;
    enum { SIZE = sizeof(typename C::T) };
    const int t = threadIdx.x % C::THREADS;
    const int limit = left < WIDTH ? (int)left : WIDTH;
    F f;
    f.along_k = along_k;
    f.run = own_run<C>(along_k);
    if (along_k) {
        const int row = t / C::RUNS;
        f.from = (const char *)(data + row * stride);
        f.step = C::ACROSS * stride * SIZE;
        f.to = place<C::RUNS>(row, f.run);
        f.bound = limit - row;
        f.row = 0;
    } else {
        const int x = t % C::ACROSS, chunk = x % F::CHUNKS;
        f.row = x / F::CHUNKS;
        f.from = (const char *)(data + f.row * stride + chunk * C::RUN);
        f.step = F::DOWN * stride * SIZE;
        f.to = place<F::CHUNKS, SIZE>(f.run * C::RUN + f.row, chunk);
        f.bound = run_left<C::RUN>(limit, chunk * C::RUN) * SIZE;
    }
    return f;
}

/* Copies a run: `at` is its place in bytes, of which `depth` rows count. */
template <class C, int WIDTH, bool VECTOR>
MMA_DEVICE void feed_copy(const feed<C, WIDTH> *f, uint32_t stage, int64_t at, int depth)
{
    typedef feed<C, WIDTH> F;
    typedef typename C::T T;
    const char *from = f->from + at;
    if (f->along_k) {
        const int bytes = depth * (int)sizeof(T);
#pragma unroll
        for (int i = 0; i < F::TURNS; i++) {
            const int count = i * C::ACROSS < f->bound ? bytes : 0;
            if (WIDTH % C::ACROSS == 0 || f->bound > 0)
                copy_run<T, VECTOR>(stage + f->to + i * C::ACROSS * C::RUNS * 16, from, count);
            from += f->step;
        }
    } else {
#pragma unroll
        for (int i = 0; i < F::TURNS; i++) {
            const int count = f->row + i * F::DOWN < depth ? f->bound : 0;
            if (WIDTH % C::ACROSS == 0 || f->row < C::RUN)
                copy_run<T, VECTOR>(stage +
                                        (f->to ^ turn_of<F::CHUNKS, sizeof(T)>(i * F::DOWN) * 16) +
                                        i * F::DOWN * F::CHUNKS * 16,
                                    from, count);
            from += f->step;
        }
    }
}

/* This lane's word of 4 rows across k of 32-bit elements from k0 on, by 8 columns: number `eight`
 * of those from x0 on, which is a multiple of 32 where there are so many. */
template <int CHUNKS> MMA_DEVICE uint32_t load_word(uint32_t stage, int k0, int x0, int eight)
{
    const int k = threadIdx.x % 4, x = threadIdx.x % 32 / 4;
    const int chunk = (eight % 4 * 2 + x / 4) ^ turn_of<CHUNKS, 4>(k);
    return load_shared(stage + (k0 + k) * CHUNKS * 16 + (x0 + eight / 4 * 32) * 4 + chunk * 16 +
                       x % 4 * 4);
}

/* The same of 8-bit elements: 32 of the depth from k0 on, by the 16 columns of a run. The two
 * columns of a 16-bit element are taken apart: r[0] and r[1], for two halves of the depth, are of
 * even columns, r[2] and r[3] of odd ones. */
template <int CHUNKS> MMA_DEVICE void load_bytes(uint32_t *r, uint32_t stage, int k0, int chunk)
{
    enum { EVEN = 0x6420, ODD = 0x7531 };
    const int lane = threadIdx.x % 32;
    /* four neighbours along k are rows of two matrices */
    const int k = k0 + lane / 16 * 16 + lane / 8 % 2 * 2 + lane % 8 / 2 * 4 + lane % 2;
    uint32_t v[4];
    ldmatrix_x4_trans(v, stage + place<CHUNKS, 1>(k, chunk));
    r[0] = __byte_perm(v[0], v[1], EVEN);
    r[1] = __byte_perm(v[2], v[3], EVEN);
    r[2] = __byte_perm(v[0], v[1], ODD);
    r[3] = __byte_perm(v[2], v[3], ODD);
}

/* Where a sum lies among a warp's rows and columns: number e of the product m, j. Of 8-bit rows
 * across k neighbours are even and odd rows or products. */
template <typename T> MMA_DEVICE int sum_row(int m, int e, bool along_k)
{
    const int g = threadIdx.x % 32 / 4;
    return 16 * m + (sizeof(T) == 1 && !along_k ? 2 * g + e / 2 : g + e / 2 * 8);
}

template <typename T> MMA_DEVICE int sum_column(int j, int e, bool along_k)
{
    const int c = threadIdx.x % 4 * 2 + e % 2;
    return sizeof(T) == 1 && !along_k ? j / 2 * 16 + 2 * c + j % 2 : 8 * j + c;
}

/* Puts number `part` of 32 rows of a warp's sums into memory, PITCH from a row to the next. */
template <class C, int PITCH>
MMA_DEVICE void put_sums(float *to, const float *acc, int part, bool rows_along_k,
                         bool features_along_k)
{
    typedef typename C::T T;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < C::NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                to[sum_row<T>(m, e, rows_along_k) * PITCH + sum_column<T>(j, e, features_along_k)] =
                    acc[4 * ((2 * part + m) * C::NT + j) + e];
}

/* Fragments of one step, which is two runs of the depth: 4 registers for 16 rows of the minibatch,
 * 2 for 8 features. */
template <typename T, int CHUNKS_N, int CHUNKS_K, int COUNT>
MMA_DEVICE void load_rows(uint32_t *x, uint32_t stage, int n0, int step, bool along_k)
{
    const int lane = threadIdx.x % 32;
    if (along_k) {
#pragma unroll
        for (int m = 0; m < COUNT; m++)
            ldmatrix_x4(x + 4 * m,
                        stage + place<CHUNKS_K>(n0 + 16 * m + lane % 16, 2 * step + lane / 16));
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int r = 0; r < 4 * COUNT; r++)
            x[r] = load_word<CHUNKS_N>(stage, 8 * step + r / 2 % 2 * 4, n0, r / 4 * 2 + r % 2);
    } else if constexpr (sizeof(T) == 1) {
#pragma unroll
        for (int m = 0; m < COUNT; m++) {
            uint32_t r[4];
            load_bytes<CHUNKS_N>(r, stage, 32 * step, n0 / 16 + m);
            x[4 * m] = r[0], x[4 * m + 1] = r[2], x[4 * m + 2] = r[1], x[4 * m + 3] = r[3];
        }
    } else {
#pragma unroll
        for (int m = 0; m < COUNT; m++)
            ldmatrix_x4_trans(x + 4 * m,
                              stage + place<CHUNKS_N>(16 * step + lane % 8 + lane / 16 * 8,
                                                      n0 / DSD_RUN + 2 * m + lane / 8 % 2));
    }
}

template <typename T, int CHUNKS_I, int CHUNKS_K, int COUNT>
MMA_DEVICE void load_features(uint32_t *w, uint32_t stage, int i0, int step, bool along_k)
{
    const int lane = threadIdx.x % 32;
    if constexpr (sizeof(T) == 4) {
        if (!along_k) {
#pragma unroll
            for (int r = 0; r < 2 * COUNT; r++)
                w[r] = load_word<CHUNKS_I>(stage, 8 * step + r % 2 * 4, i0, r / 2);
            return;
        }
    }
    if constexpr (sizeof(T) == 1) {
        if (!along_k) {
#pragma unroll
            for (int j = 0; j < COUNT; j += 2)
                load_bytes<CHUNKS_I>(w + 2 * j, stage, 32 * step, (i0 + 8 * j) / 16);
            return;
        }
    }
    if constexpr (COUNT == 1) {
        if (along_k)
            ldmatrix_x2(w, stage + place<CHUNKS_K>(i0 + lane % 8, 2 * step + lane / 8 % 2));
        else
            ldmatrix_x2_trans(w, stage + place<CHUNKS_I>(16 * step + lane % 16, i0 / DSD_RUN));
    } else if (along_k) {
#pragma unroll
        for (int j = 0; j < COUNT; j += 2)
            ldmatrix_x4(w + 2 * j,
                        stage + place<CHUNKS_K>(i0 + DSD_RUN * j + lane % 8 + lane / 16 * 8,
                                                2 * step + lane / 8 % 2));
    } else {
#pragma unroll
        for (int j = 0; j < COUNT; j += 2)
            ldmatrix_x4_trans(w + 2 * j, stage + place<CHUNKS_I>(16 * step + lane % 16,
                                                                 i0 / DSD_RUN + j + lane / 16));
    }
}

/* Rounds what is not in the products' type yet. */
template <typename T, int COUNT> MMA_DEVICE void round_words(uint32_t *v)
{
    if (sizeof(T) == 4)
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            v[i] = mma_tf32(__uint_as_float(v[i]));
}

/* d += a b over a step, and over one run: a step whose other half is nothing. */
template <typename T> MMA_DEVICE void mma_step(float *d, const uint32_t *a, const uint32_t *b)
{
    if constexpr (sizeof(T) == 4)
        mma_m16n8k8_tf32(d, a, b);
    else if constexpr (sizeof(T) == 1)
        mma_m16n8k32<T>(d, a, b);
    else
        mma_m16n8k16<T>(d, a, b);
}

template <typename T> MMA_DEVICE void mma_run(float *d, const uint32_t *a, const uint32_t *b)
{
    if constexpr (sizeof(T) == 4) {
        mma_m16n8k4_tf32(d, a, b);
    } else if constexpr (sizeof(T) == 1) {
        const uint32_t half_a[4] = {a[0], a[1], 0, 0}, half_b[2] = {b[0], 0};
        mma_m16n8k32<T>(d, half_a, half_b);
    } else {
        mma_m16n8k8<T>(d, a, b);
    }
}

/* acc[MT][NT][4] += x w */
template <typename T, int MT, int NT>
MMA_DEVICE void multiply(float *acc, const uint32_t *x, const uint32_t *w)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < NT; j++)
            mma_step<T>(acc + 4 * (m * NT + j), x + 4 * m, w + 2 * j);
}

/* The same with each run's product multiplied by the gate of its block. */
template <typename T, int MT, int NT>
MMA_DEVICE void multiply_gated(float *acc, const uint32_t *x, const uint32_t *w, float first,
                               float second)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            float p[4] = {0, 0, 0, 0}, q[4] = {0, 0, 0, 0};
            mma_run<T>(p, x + 4 * m, w + 2 * j);
            mma_run<T>(q, x + 4 * m + 2, w + 2 * j + 1);
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[4 * (m * NT + j) + e] += first * p[e] + second * q[e];
        }
}

/* Multiplies sums by the scales of 8-bit operands, as far as there are any. */
template <typename T, int COUNT>
MMA_DEVICE void scale_sums(float *acc, const float *const (&scales)[2])
{
    if (sizeof(T) != 1)
        return;
    const float scale = (scales[0] ? *scales[0] : 1) * (scales[1] ? *scales[1] : 1);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        acc[i] *= scale;
}

/* Adds up a warp's share of a stage: WARP_N by WARP_I from n0, i0 on. gates: of the stage's runs;
 * NULL: none. */
template <class C>
MMA_DEVICE void compute_stage(bool rows_along_k, bool features_along_k, uint32_t stage,
                              const float *gates, int n0, int i0, float *acc)
{
#pragma unroll
    for (int step = 0; step < C::KC / (2 * C::RUN); step++) {
        typedef typename C::T T;
        uint32_t x[4 * C::MT], w[2 * C::NT];
        load_rows<T, C::TN / C::RUN, C::KC / C::RUN, C::MT>(x, stage, n0, step, rows_along_k);
        load_features<T, C::TI / C::RUN, C::KC / C::RUN, C::NT>(w, stage + C::ROWS_BYTES, i0, step,
                                                                features_along_k);
        round_words<T, 4 * C::MT>(x);
        round_words<T, 2 * C::NT>(w);
        if (gates)
            multiply_gated<T, C::MT, C::NT>(acc, x, w, gates[2 * step], gates[2 * step + 1]);
        else
            multiply<T, C::MT, C::NT>(acc, x, w);
    }
}

#endif
