/* The parts of the sm80 products below the level of an op: a stage of shared memory with TN rows
 * and TI features by KC of the depth, [n][KC] or [KC][n] and behind them [i][KC] or [KC][i],
 * whichever way the operands lie in device memory, and a warp's products from it. */
#ifndef BSKI_CUDA_SM80_MMA_TILE_H
#define BSKI_CUDA_SM80_MMA_TILE_H

#include <backends/cuda/epilogue.h>
#include <backends/cuda/mma.h>

/* The number of elements, 0 to 8, that are left of `size` at `at`. */
MMA_DEVICE int run_left(int64_t size, int64_t at)
{
    const int64_t left = size - at;
    return left >= DSD_RUN ? DSD_RUN : left > 0 ? (int)left : 0;
}

/* By how much the 16-byte runs of a row are exchanged in a matrix of CHUNKS runs a row, so that
 * equal runs of 8 rows lie in different banks. */
template <int CHUNKS> MMA_DEVICE int turn_of(int row)
{
    return CHUNKS >= 8 ? row % 8 : row / (8 / (CHUNKS < 8 ? CHUNKS : 8)) % CHUNKS;
}

/* The byte offset of a run. */
template <int CHUNKS> MMA_DEVICE uint32_t place(int row, int chunk)
{
    return (uint32_t)(row * CHUNKS + (chunk ^ turn_of<CHUNKS>(row))) * 16;
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
    uint32_t v[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const uint32_t lo = 4 * e < bytes ? p[2 * e] : 0, hi = 4 * e + 2 < bytes ? p[2 * e + 1] : 0;
        v[e] = lo | hi << 16;
    }
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
                 "r"(v[2]), "r"(v[3])
                 : "memory");
}

/* One operand's copies into a stage, as far as they are one thread's. It stays with one of the RUNS
 * runs of 8 of a stage's depth, and shares it with ACROSS threads in all. Along k neighbouring
 * threads take a row's runs, across k the rows of one run. Element (w, k) lies at w * stride + k,
 * or across k at k * stride + w. */
template <class C, int WIDTH> struct feed {
    enum {
        TURNS = (WIDTH + C::ACROSS - 1) / C::ACROSS,
        CHUNKS = WIDTH / DSD_RUN,
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
        f.from = (const char *)(data + f.row * stride + chunk * DSD_RUN);
        f.step = F::DOWN * stride * SIZE;
        f.to = place<F::CHUNKS>(f.run * DSD_RUN + f.row, chunk);
        f.bound = run_left(limit, chunk * DSD_RUN) * SIZE;
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
            if (WIDTH % C::ACROSS == 0 || f->row < DSD_RUN)
                copy_run<T, VECTOR>(stage + (f->to ^ turn_of<F::CHUNKS>(i * F::DOWN) * 16) +
                                        i * F::DOWN * F::CHUNKS * 16,
                                    from, count);
            from += f->step;
        }
    }
}

/* Fragments of one step of k16: 4 registers for 16 rows of the minibatch, 2 for 8 features. */
template <int CHUNKS_N, int CHUNKS_K, int COUNT>
MMA_DEVICE void load_rows(uint32_t *x, uint32_t stage, int n0, int step, bool along_k)
{
    const int lane = threadIdx.x % 32;
    if (along_k) {
#pragma unroll
        for (int m = 0; m < COUNT; m++)
            ldmatrix_x4(x + 4 * m,
                        stage + place<CHUNKS_K>(n0 + 16 * m + lane % 16, 2 * step + lane / 16));
    } else {
#pragma unroll
        for (int m = 0; m < COUNT; m++)
            ldmatrix_x4_trans(x + 4 * m,
                              stage + place<CHUNKS_N>(16 * step + lane % 8 + lane / 16 * 8,
                                                      n0 / DSD_RUN + 2 * m + lane / 8 % 2));
    }
}

template <int CHUNKS_I, int CHUNKS_K, int COUNT>
MMA_DEVICE void load_features(uint32_t *w, uint32_t stage, int i0, int step, bool along_k)
{
    const int lane = threadIdx.x % 32;
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

/* acc[MT][NT][4] += x w */
template <typename T, int MT, int NT>
MMA_DEVICE void multiply(float *acc, const uint32_t *x, const uint32_t *w)
{
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < NT; j++)
            mma_m16n8k16<T>(acc + 4 * (m * NT + j), x + 4 * m, w + 2 * j);
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
            mma_m16n8k8<T>(p, x + 4 * m, w + 2 * j);
            mma_m16n8k8<T>(q, x + 4 * m + 2, w + 2 * j + 1);
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[4 * (m * NT + j) + e] += first * p[e] + second * q[e];
        }
}

/* Adds up a warp's share of a stage: WARP_N by WARP_I from n0, i0 on. gates: of the stage's runs;
 * NULL: none. */
template <class C>
MMA_DEVICE void compute_stage(bool rows_along_k, bool features_along_k, uint32_t stage,
                              const float *gates, int n0, int i0, float *acc)
{
#pragma unroll
    for (int step = 0; step < C::KC / 16; step++) {
        uint32_t x[4 * C::MT], w[2 * C::NT];
        load_rows<C::TN / DSD_RUN, C::KC / DSD_RUN, C::MT>(x, stage, n0, step, rows_along_k);
        load_features<C::TI / DSD_RUN, C::KC / DSD_RUN, C::NT>(w, stage + C::ROWS_BYTES, i0, step,
                                                               features_along_k);
        if (gates)
            multiply_gated<typename C::T, C::MT, C::NT>(acc, x, w, gates[2 * step],
                                                        gates[2 * step + 1]);
        else
            multiply<typename C::T, C::MT, C::NT>(acc, x, w);
    }
}

#endif
