/* sdd by cp.async pipelines and mma.sync. One thread block computes, side by side, as many
 * kept blocks of one block row as fill TN columns: the samples run along the depth of the products,
 * the blocks' columns along the rows of the tensor core's products, and their rows along its
 * columns, so that blocks of 8 are not padded. Long sums are cut in parts, which a second kernel
 * adds up in their order. */
#ifndef BSKI_CUDA_SM80_SDD_MMA_H
#define BSKI_CUDA_SM80_SDD_MMA_H

#include <backends/cuda/sm80/mma_tile.h>
#include <backends/cuda/sm80/sdd_arg.h>

/* A thread block's tile: TI rows of a block by TN columns of several, in warps of WARP_I x WARP_N;
 * KC samples, 64 bytes, a stage, STAGES under way. */
template <typename T_, int TI_, int TN_, int WARP_I_, int WARP_N_> struct tile {
    typedef T_ T;
    enum {
        THREADS = 256,
        TI = TI_,
        TN = TN_,
        WARP_I = WARP_I_,
        WARP_N = WARP_N_,
        RUN = 16 / sizeof(T),
        KC = 4 * RUN,
        STAGES = 4,
        ROWS_BYTES = TN * KC * sizeof(T),
        STAGE_BYTES = ROWS_BYTES + TI * KC * sizeof(T),
        MT = WARP_N / 16,
        NT = WARP_I / 8
    };
};

/* Where the copies are: samples of a member of a pair. */
typedef struct cursor {
    int64_t n;
    int32_t pair, member;
} cursor;

MMA_DEVICE void advance(const sdd_arg *a, cursor *at, int samples)
{
    at->n += samples;
    if (at->n < a->n)
        return;
    at->n = 0;
    if (++at->member == a->members) {
        at->member = 0;
        at->pair++;
    }
}

/* The cursor of stage number `stage` over all pairs and members. */
MMA_DEVICE cursor cursor_at(const sdd_arg *a, int64_t stage, int samples)
{
    const int64_t stages = (a->n + samples - 1) / samples, lot = stages ? stage / stages : 0;
    return cursor{(stage - lot * stages) * samples, (int32_t)(lot / a->members),
                  (int32_t)(lot % a->members)};
}

/* One operand's copies, as far as they are one thread's: runs of samples of a feature, or of
 * features of a sample, which a thread takes at the same places of every stage. WIDTH features. */
template <class C, int WIDTH> struct lane_copies {
    enum {
        ALL = C::KC * WIDTH / C::RUN,
        TURNS = (ALL + C::THREADS - 1) / C::THREADS,
        CHUNKS = WIDTH / C::RUN,
        CHUNKS_K = C::KC / C::RUN
    };
    int64_t at[TURNS]; /* bytes from the operand's first element; across k only the first */
    int64_t turn;      /* across k: bytes to the next turn */
    int32_t features;  /* that are left: across k of the run, along k a mask of turns */
    int32_t sample;    /* of the first turn, in the stage */
    int32_t along_k;
};

/* origin: the first feature of each run of 8, -1: none. */
template <class C, int WIDTH>
MMA_DEVICE lane_copies<C, WIDTH> lane_open(const int32_t *origin, int64_t features,
                                           int64_t feature_step, int64_t sample_step, bool along_k)
{
    typedef lane_copies<C, WIDTH> L;
    enum { SIZE = sizeof(typename C::T) };
    L l;
    l.along_k = along_k;
    l.features = 0;
    l.turn = 0;
    if (along_k) {
        l.sample = threadIdx.x % L::CHUNKS_K * C::RUN;
#pragma unroll
        for (int i = 0; i < L::TURNS; i++) {
            const int row = ((int)threadIdx.x + i * C::THREADS) / L::CHUNKS_K;
            const int32_t first = row < WIDTH ? origin[row / DSD_RUN] : -1;
            const int64_t feature = first + row % DSD_RUN;
            l.at[i] = (feature * feature_step + l.sample) * SIZE;
            l.features |= (first >= 0 && feature < features) << i;
        }
    } else {
        const int at = threadIdx.x % L::CHUNKS * C::RUN;
        const int32_t start = origin[at / DSD_RUN], first = start < 0 ? -1 : start + at % DSD_RUN;
        l.sample = threadIdx.x / L::CHUNKS;
        l.at[0] = (l.sample * sample_step + first) * SIZE;
        l.turn = C::THREADS / L::CHUNKS * sample_step * SIZE;
        l.features = first >= 0 && l.sample < C::KC ? run_left<C::RUN>(features, first) * SIZE : 0;
    }
    return l;
}

/* data: the operand at the stage's first sample, of which `samples` are left. Runs without features
 * are not written: they reach no result. */
template <class C, int WIDTH, bool VECTOR>
MMA_DEVICE void lane_copy(const lane_copies<C, WIDTH> *l, uint32_t to, const char *data,
                          int64_t samples)
{
    typedef lane_copies<C, WIDTH> L;
    typedef typename C::T T;
    if (l->along_k) {
        const int bytes = run_left<C::RUN>(samples, l->sample) * (int)sizeof(T);
#pragma unroll
        for (int i = 0; i < L::TURNS; i++)
            if (l->features >> i & 1)
                copy_run<T, VECTOR>(
                    to + place<L::CHUNKS_K>(threadIdx.x / L::CHUNKS_K, threadIdx.x % L::CHUNKS_K) +
                        i * C::THREADS * 16,
                    data + l->at[i], bytes);
    } else if (l->features) {
        const int left = samples < C::KC ? (int)samples : C::KC;
        const char *from = data + l->at[0];
#pragma unroll
        for (int i = 0; i < L::TURNS; i++) {
            const int row = l->sample + i * (C::THREADS / L::CHUNKS);
            copy_run<T, VECTOR>(to + place<L::CHUNKS, sizeof(T)>(row, threadIdx.x % L::CHUNKS),
                                from, row < left ? l->features : 0);
            from += l->turn;
        }
    }
}

/* A thread's copies of both operands. */
template <class C> struct copies {
    lane_copies<C, C::TN> right;
    lane_copies<C, C::TI> left;
    int64_t first_member;
};

template <class C, bool VECTOR>
MMA_DEVICE void copy_stage(const sdd_arg *a, const copies<C> *c, uint32_t to, const cursor *at)
{
    typedef typename C::T T;
    const int64_t member = c->first_member + (int64_t)at->member * a->heads;
    const T *right = (const T *)a->b[at->pair] + member * a->b_batch + at->n * a->b_k;
    const T *left = (const T *)a->a[at->pair] + member * a->a_batch + at->n * a->a_k;
    lane_copy<C, C::TN, VECTOR>(&c->right, to, (const char *)right, a->n - at->n);
    lane_copy<C, C::TI, VECTOR>(&c->left, to + C::ROWS_BYTES, (const char *)left, a->n - at->n);
}

/* Stores a run of 8 neighbours of a row of a block; i, j: the first in the block. */
MMA_DEVICE void store_run(const sdd_arg *a, float (&v)[DSD_RUN], sdd_block block, int32_t row,
                          int i, int j, int64_t group, int64_t split)
{
    const int64_t size = (int64_t)a->block_rows * a->block_cols;
    const int64_t inside = (int64_t)i * a->block_cols + j;
    const int count = run_left(a->cols, (int64_t)block.column * a->block_cols + j);
    if (!count || (int64_t)row * a->block_rows + i >= a->rows)
        return;
    if (!a->direct) {
        float4 *part =
            (float4 *)(a->parts + ((split * a->groups + group) * a->nnz + block.slot) * size +
                       inside);
        part[0] = make_float4(v[0], v[1], v[2], v[3]);
        part[1] = make_float4(v[4], v[5], v[6], v[7]);
        return;
    }
    const float gate = a->gate ? a->gate[block.slot] : 1;
    const bool zero = a->gate_mode != BSK_GATE_IGNORE && gate == 0;
    const float scale = a->gate_mode == BSK_GATE_SCALE ? a->alpha * gate : a->alpha;
    const int64_t at = group * a->s_group + block.slot * size + inside;
    float old[DSD_RUN];
    if (a->beta != 0)
        dsd_read(a->s, at, count, old);
#pragma unroll
    for (int e = 0; e < DSD_RUN; e++) {
        v[e] = zero ? 0 : scale * v[e];
        if (a->beta != 0)
            v[e] += a->beta * old[e];
    }
    dsd_write(a->s, at, count, v);
}

/* Stores a warp's sums, through 32 columns of shared memory, in runs along the blocks' rows. */
template <class C>
MMA_DEVICE void store_tile(const sdd_arg *a, const sdd_tile *tile, const float *acc, float *scratch,
                           int warp_i, int warp_n)
{
    enum { PITCH = C::WARP_I + 1 };
    const int lane = threadIdx.x % 32, mask = (1 << a->column_shift) - 1;
#pragma unroll
    for (int part = 0; part < C::MT / 2; part++) {
        put_sums<C, PITCH>(scratch, acc, part, a->b_along_k, a->a_along_k);
        __syncwarp();
#pragma unroll 1
        for (int at = lane; at < 4 * C::WARP_I; at += 32) {
            const int n = at % 4 * DSD_RUN, i = at / 4;
            const int run = (warp_n + 32 * part + n) / DSD_RUN, entry = run >> a->column_shift;
            if (entry >= tile->count)
                continue;
            float v[DSD_RUN];
#pragma unroll
            for (int e = 0; e < DSD_RUN; e++)
                v[e] = scratch[(n + e) * PITCH + i];
            store_run(a, v, a->blocks[tile->first + entry], tile->row, warp_i + i,
                      (run & mask) * DSD_RUN, blockIdx.z, blockIdx.y);
        }
        __syncwarp();
    }
}

/* Adds up a warp's sums over so many stages from `at` on. */
template <class C, bool VECTOR>
MMA_DEVICE void add_up(const sdd_arg *a, const copies<C> *c, uint32_t memory, cursor at, int stages,
                       bool active, int warp_n, int warp_i, float *acc)
{
#pragma unroll 1
    for (int stage = 0; stage < C::STAGES - 1; stage++) {
        if (stage < stages) {
            copy_stage<C, VECTOR>(a, c, memory + stage * C::STAGE_BYTES, &at);
            advance(a, &at, C::KC);
        }
        cp_async_commit();
    }
#pragma unroll 1
    for (int stage = 0; stage < stages; stage++) {
        cp_async_wait<C::STAGES - 2>();
        __syncthreads();
        const int copied = stage + C::STAGES - 1;
        if (copied < stages) {
            copy_stage<C, VECTOR>(a, c, memory + copied % C::STAGES * C::STAGE_BYTES, &at);
            advance(a, &at, C::KC);
        }
        cp_async_commit();
        if (active)
            compute_stage<C>(a->b_along_k, a->a_along_k,
                             memory + stage % C::STAGES * C::STAGE_BYTES, NULL, warp_n, warp_i,
                             acc);
    }
    cp_async_wait<0>();
    __syncthreads();
}

template <class C> MMA_DEVICE void sdd_blocks(const sdd_arg *a)
{
    extern __shared__ __align__(128) uint4 pool[];
    __shared__ int32_t origin[(C::TN + C::TI) / DSD_RUN];
    const sdd_tile tile = a->tiles[blockIdx.x];
    const int64_t group = blockIdx.z, split = blockIdx.y;
    const uint32_t memory = mma_shared(pool);
    const int warp = threadIdx.x / 32;
    const int warp_i = warp % (C::TI / C::WARP_I) * C::WARP_I;
    const int warp_n = warp / (C::TI / C::WARP_I) * C::WARP_N;
    const bool active = warp_n / DSD_RUN >> a->column_shift < tile.count;

    for (int x = threadIdx.x; x < (C::TN + C::TI) / DSD_RUN; x += C::THREADS) {
        const int entry = x >> a->column_shift, in_block = x & ((1 << a->column_shift) - 1);
        if (x >= C::TN / DSD_RUN)
            origin[x] = tile.row * C::TI + (x - C::TN / DSD_RUN) * DSD_RUN;
        else
            origin[x] = entry < tile.count ? a->blocks[tile.first + entry].column * a->block_cols +
                                                 in_block * DSD_RUN
                                           : -1;
    }
    __syncthreads();

    copies<C> c;
    c.right = lane_open<C, C::TN>(origin, a->cols, a->b_col, a->b_k, a->b_along_k);
    c.left = lane_open<C, C::TI>(origin + C::TN / DSD_RUN, a->rows, a->a_row, a->a_k, a->a_along_k);
    c.first_member = a->groups > 1 ? group * a->heads + tile.head : tile.head;

    const int64_t all = (a->n + C::KC - 1) / C::KC * a->members * a->pairs;
    const int64_t from = all / a->splits * split + all % a->splits * split / a->splits;
    const int64_t to = all / a->splits * (split + 1) + all % a->splits * (split + 1) / a->splits;
    const cursor at = cursor_at(a, from, C::KC);
    float acc[4 * C::MT * C::NT];
#pragma unroll
    for (int i = 0; i < 4 * C::MT * C::NT; i++)
        acc[i] = 0;
    if (a->a_vector && a->b_vector)
        add_up<C, true>(a, &c, memory, at, (int)(to - from), active, warp_n, warp_i, acc);
    else
        add_up<C, false>(a, &c, memory, at, (int)(to - from), active, warp_n, warp_i, acc);
    scale_sums<typename C::T, 4 * C::MT * C::NT>(acc, a->scales);
    store_tile<C>(a, &tile, acc, (float *)pool + warp * 32 * (C::WARP_I + 1), warp_i, warp_n);
}

#define SDD_MMA(name, type, ...)                                                                   \
    extern "C" __global__ void __launch_bounds__(256, 2) name(const __grid_constant__ sdd_arg a)   \
    {                                                                                              \
        sdd_blocks<tile<type, __VA_ARGS__>>(&a);                                                   \
    }

#endif
