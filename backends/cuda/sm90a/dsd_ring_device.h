/* dsd for a small minibatch: bound by reading the kept weights, and the activations that they meet,
 * once; dsd_ring.c plans what the tables say. dsd_ring.cu has the kernels of 16-bit types,
 * dsd_ring_tf32.cu those of f32 that is rounded to tf32.
 *
 * A team of one, two or four warps has steps of its own, and a ring of them in shared memory, which it
 * fills with asynchronous copies and waits for alone. A step is four runs of 16 bytes of the depth, 8
 * of it or of f32 4, whose blocks need not be neighbours: lines of 64 bytes of four runs where an
 * operand is contiguous along the depth, else 32 (16) lines of a tile's width. 16-byte pieces of a line
 * are exchanged so that ldmatrix meets all banks; or of f32 across the depth, which that cannot turn,
 * loads of words and, of samples, of two neighbours, which are rows g and g + 8 of a lane. */
#ifndef BSKI_CUDA_DSD_RING_DEVICE_H
#define BSKI_CUDA_DSD_RING_DEVICE_H

#include <backends/cuda/sm90a/dsd_few_device.h>
#include <backends/cuda/sm90a/dsd_ring.h>

#define FN static __device__ __forceinline__

/* An operand's lines: contiguous along the depth it has one of four pieces for each of WIDTH, else one
 * of WIDTH for each of a step's depth. After eight lines pieces lie in the same order again. */
template <typename T, bool ACROSS_, int WIDTH_> struct lines {
    static constexpr bool ACROSS = ACROSS_;
    static constexpr int BYTES = sizeof(T), RUN = 16 / BYTES; /* of an element; elements of a run */
    static constexpr int WIDTH = WIDTH_;
    static constexpr int PIECES = ACROSS ? WIDTH / RUN : DSD_FEW_STEP;
    static constexpr bool WORDS = ACROSS && BYTES == 4; /* loaded word by word */
};

/* A tile of TILE features by COLUMNS samples, of which a warp of a team has TI by TN. FLIP: blocks
 * are stored by columns of op(S). ALONG_K: b is contiguous along the depth, else along its columns. */
template <typename T_, bool FLIP_, bool ALONG_K_, int TILE_, int COLUMNS_> struct config {
    typedef T_ T;
    static constexpr bool FLIP = FLIP_, ALONG_K = ALONG_K_;
    static constexpr int TILE = TILE_, COLUMNS = COLUMNS_;
    static constexpr bool WIDE = DSD_RING_WIDE(TILE);
    static constexpr int TEAM = DSD_RING_TEAM(TILE, COLUMNS), TEAMS = DSD_RING_TEAMS(TILE);
    static constexpr int ACROSS = WIDE ? 2 : 1, ALONG = TEAM / ACROSS; /* warps of a team */
    static constexpr int TI = TILE / ACROSS, TN = COLUMNS / ALONG, NT = TI / 8, ROWS = TN / 16;
    typedef lines<T, FLIP, TI> S; /* of a warp */
    typedef lines<T, !ALONG_K, COLUMNS> B;
    static constexpr bool ROUND = sizeof(T) == 4; /* operands, to tf32 */
    static constexpr int SLOTS = DSD_RING_SLOTS(TILE, COLUMNS);
    /* Whether copies of weights bring the lines beside them to the second-level cache: those of the
     * next step along the depth; across it those of another multiprocessor, where samples are many,
     * else where the plan says so. */
    static constexpr bool NEAR = !FLIP || COLUMNS == 64;
    /* Steps whose weights are fetched ahead of the queue's earlier work. */
    static constexpr bool PAIR = DSD_RING_PAIR(TILE, COLUMNS);
    static constexpr int AHEAD = PAIR ? 2 : 3;
    /* Whether all others may be, while that work runs. */
    static constexpr bool LATER = PAIR && !WIDE;
    static constexpr int SLOT_BYTES = DSD_RING_SLOT_BYTES(TILE, COLUMNS);
    static constexpr int TEAM_BYTES = DSD_RING_TEAM_BYTES(TILE, COLUMNS);
    static constexpr int PART_BYTES = DSD_RING_PART_BYTES(TI, TN); /* of a warp */
    static constexpr int PARTS = WIDE ? 2 : 4;                     /* that are read at once */
    static constexpr int PART_AT = SLOTS * SLOT_BYTES;
    static constexpr int LINE_AT = PART_AT + TEAM * PART_BYTES; /* WIDE: in a slot instead */
    static constexpr int PITCH = WIDE ? TI : TI + 1;            /* of a line of sums, elements */
    static constexpr int LINE_BYTES = WIDE ? 16 * PITCH * 4 : DSD_RING_LINE_BYTES(TILE, COLUMNS);
    /* Parts of 16 samples that are stored at once, in 16 bits. */
    static constexpr int FIT = LINE_BYTES / (32 * TI), STORED = WIDE ? 1 : ROWS < FIT ? ROWS : FIT;
    static constexpr int BARRIER_AT = LINE_AT + LINE_BYTES;
    static_assert(PART_AT >= TEAM * PART_BYTES, "a part fits into the ring");
    static_assert(!LATER || BARRIER_AT + 8 <= TEAM_BYTES, "a barrier fits behind the line");
    static_assert(WIDE || ROWS % STORED == 0, "as many at a time");
    static_assert(!WIDE || TEAM * LINE_BYTES <= SLOT_BYTES, "lines fit into a slot");
    static_assert(!WIDE || TEAM * PART_BYTES <= (SLOTS - 1) * SLOT_BYTES,
                  "a part leaves the last slot free");
};

/* Which of its team a warp is, and which part it has of the features and of the samples. */
template <class C> FN int member(void)
{
    return threadIdx.x / 32 % C::TEAM;
}
template <class C> FN int features_part(void)
{
    return member<C>() % C::ACROSS;
}
template <class C> FN int samples_part(void)
{
    return member<C>() / C::ACROSS;
}

/* --- Operands in shared memory --- */

/* What the number of a piece is exchanged by in a line of so many: any eight lines at a piece have all
 * banks, or with PAIRS four lines at a pair. */
template <int PIECES, bool PAIRS = false> FN constexpr int turn_of(int line)
{
    constexpr int LINES = PIECES < 8 ? 8 / PIECES : 1, MOST = 8 / LINES; /* in 128 bytes */
    if constexpr (PAIRS)
        return line / LINES % (MOST / 2) * 2;
    else
        return line / LINES % MOST;
}

/* Where piece number `piece` of line number `line` lies. */
template <int PIECES, bool PAIRS = false> FN constexpr int place_at(int line, int piece)
{
    return (line * PIECES + (piece ^ turn_of<PIECES, PAIRS>(line))) * 16;
}

template <class L> FN constexpr int piece_at(int line, int piece)
{
    return place_at<L::PIECES, L::WORDS>(line, piece);
}

/* The run that a lane needs, of a step of those in the warp's registers. */
FN uint32_t run_of(uint32_t runs, int step, int run)
{
    return __shfl_sync(~0u, runs, step % DSD_RING_BATCH * DSD_FEW_STEP + run);
}

/* What a lane does of each step's copy of an operand, of which PARTS warps have as many lines each,
 * and where it begins. */
template <class L_, int UNIT_, int PARTS_> struct copier {
    typedef L_ L;
    static constexpr int UNIT = UNIT_; /* elements that are copied at once */
    static constexpr int UNITS = L::ACROSS ? L::WIDTH / UNIT : DSD_FEW_STEP, LINES = 32 / UNITS;
    /* lines of a warp */
    static constexpr int PARTS = PARTS_, OWN = (L::ACROSS ? 4 * L::RUN : L::WIDTH) / PARTS;
    static_assert(!L::ACROSS || OWN % LINES == 0, "lanes have whole lines");
    const char *from;
    int32_t pitch;
    uint32_t to; /* from the operand's begin in a slot */
    int run;     /* of a step: the one that it copies of, ACROSS the first */
    uint32_t on; /* bits: ACROSS, of a run's bits that of the lane's samples; else, its lines */
    int place;   /* not ACROSS: of a run's bits that of the first line */
};

/* For part number `part` of the copy. */
template <class P> FN P copier_open(const void *from, int32_t pitch, int count, int part)
{
    typedef typename P::L L;
    const int lane = threadIdx.x % 32, unit = lane % P::UNITS, line = lane / P::UNITS;
    P p;
    p.pitch = pitch;
    if (L::ACROSS) {
        const int first = unit * P::UNIT, at = part * P::OWN + line;
        p.from = (const char *)from + (int64_t)(line % L::RUN) * pitch + first * L::BYTES;
        p.to = piece_at<L>(at, first / L::RUN) + first % L::RUN * L::BYTES;
        p.run = at / L::RUN;
        p.on = first < count ? 1u << (DSD_FEW_PLACE + first / 16) : 0;
        p.place = 0;
    } else {
        const int first = part * P::OWN;
        p.from = (const char *)from + (int64_t)(first + line) * pitch;
        p.to = piece_at<L>(line, unit) + first * 64;
        p.run = unit;
        p.on = 0;
        for (int i = 0; i < P::OWN / 8; i++)
            p.on |= (uint32_t)(first + line + 8 * i < count) << i;
        p.place = DSD_FEW_PLACE + first / 16;
    }
    return p;
}

FN void weights_copy_16(uint32_t to, const char *from, uint32_t run, bool near)
{
    const uint32_t bytes = run == DSD_FEW_NONE ? 0 : 16;
    if (near)
        cp_async_16_near(to, from, bytes);
    else
        cp_async_16(to, from, bytes);
}

/* Copies a step's weights, or its zeros. */
template <class P> FN void weights_copy(const P &p, uint32_t to, uint32_t runs, int step, bool near)
{
    typedef typename P::L L;
    if (L::ACROSS) {
#pragma unroll
        for (int i = 0; i < P::OWN; i += P::LINES) {
            const uint32_t run = run_of(runs, step, p.run + i / L::RUN);
            weights_copy_16(to + p.to + i * P::UNITS * 16, weights_address(p.from, run), run, near);
        }
        return;
    }
    const uint32_t run = run_of(runs, step, p.run);
    const char *from = weights_address(p.from, run);
#pragma unroll
    for (int i = 0; i < P::OWN; i += 8)
        weights_copy_16(to + p.to + i * 64, from + (int64_t)i * p.pitch, run, near);
}

/* Copies a step's lines of b, and zeros where there are none. */
template <class P> FN void lines_copy(const P &p, uint32_t to, uint32_t runs, int step)
{
    typedef typename P::L L;
    if (L::ACROSS) {
        uint32_t run = 0;
#pragma unroll
        for (int i = 0; i < P::OWN; i += P::LINES) {
            if (i % L::RUN == 0)
                run = run_of(runs, step, p.run + i / L::RUN);
            const char *from = lines_address(p.from, run) + (int64_t)(i % L::RUN) * p.pitch;
            const uint32_t place =
                to + (p.to ^ turn_of<L::PIECES, L::WORDS>(i) * 16) + i * L::WIDTH * L::BYTES;
            if (P::UNIT == L::RUN)
                cp_async_16(place, from, run & p.on ? 16 : 0);
            else
                cp_async_ca<P::UNIT * L::BYTES>(place, from, run & p.on ? P::UNIT * L::BYTES : 0);
        }
        return;
    }
    const uint32_t run = run_of(runs, step, p.run);
    const char *from = lines_address(p.from, run);
#pragma unroll
    for (int i = 0; i < P::OWN; i += 8)
        cp_async_16(to + p.to + i * 64, from + (int64_t)i * p.pitch,
                    run >> (p.place + i / 16) & p.on >> i / 8 & 1 ? 16 : 0);
}

/* Where a lane's line of the first of four matrices lies, of 8 of WIDTH by a run. The others are the
 * next of WIDTH and of the runs; for the products' rows the former changes first, for their columns
 * the latter. Of words, where its own of the first matrix is: for rows two neighbours, of which the
 * other is of the next one, that is row g + 8. */
template <class L, bool AS_ROWS> FN uint32_t matrix_lane(void)
{
    const int lane = threadIdx.x % 32;
    if constexpr (L::WORDS) {
        const int first = lane / 4 * (AS_ROWS ? 2 : 1);
        return piece_at<L>(lane % 4, first / L::RUN) + first % L::RUN * L::BYTES;
    } else {
        const int i = lane % 8, low = lane / 8 % 2, high = lane / 16;
        const int tile = L::WIDTH == 8 ? 0 : AS_ROWS ? low : high, run = AS_ROWS ? high : low;
        return L::ACROSS ? piece_at<L>(8 * run + i, tile) : piece_at<L>(8 * tile + i, run);
    }
}

/* The same for matrices from `tile` and `run` on, both even but for words. Pieces are
 * exchanged in the 128 bytes that slots are aligned to. */
template <class L> FN uint32_t matrix_at(uint32_t lane, int tile, int run)
{
    const int at = tile * 8 * L::BYTES;
    return L::ACROSS ? (lane ^ at % 128) + at / 128 * 128 + run * L::WIDTH * 16
                     : (lane ^ run * 16) + tile * 512;
}

template <bool ACROSS> FN void matrices_load(uint32_t (&to)[4], uint32_t from)
{
    if (ACROSS)
        ldmatrix_x4_trans(to, from);
    else
        ldmatrix_x4(to, from);
}

/* --- A step --- */

/* What a lane knows of all steps. */
template <class C> struct lane_places {
    copier<typename C::S, C::S::RUN, C::ALONG> s;
    copier<typename C::B, C::COLUMNS == 16 && !C::ALONG_K ? 4 : C::B::RUN, C::TEAM> b;
    uint32_t w, x; /* of matrices, from the operands' begin in a slot */
    bool near;
};

/* Where in a slot the warp's weights begin; b's lines follow those of all. */
template <class C> FN uint32_t weights_at(void)
{
    return features_part<C>() * C::TI * 64;
}

/* A place among b's lines, from the warp's samples on. */
template <class C> FN uint32_t samples_at(uint32_t lane)
{
    return matrix_at<typename C::B>(lane, samples_part<C>() * C::ROWS * 2, 0);
}

template <class C> FN void step_copy(const lane_places<C> &p, uint32_t slot, uint2 runs, int step)
{
    weights_copy(p.s, slot + weights_at<C>(), runs.y, step, p.near);
    lines_copy(p.b, slot + C::TILE * 64, runs.x, step);
    cp_async_commit();
}

/* Of a warp's features two runs of the weights, two registers for each 8. */
template <class C> FN void weights_load(uint32_t (&w)[(C::NT + 1) / 2][4], uint32_t w_at, int run)
{
    typedef typename C::S S;
    if constexpr (S::WORDS) {
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int j = 0; j < C::NT; j++)
                w[j / 2][j % 2 * 2 + r] = shared_load_4(matrix_at<S>(w_at, j, run + r));
    } else {
#pragma unroll
        for (int j = 0; j < C::NT; j += 2) {
            const uint32_t from = matrix_at<S>(w_at, j, run);
            if (C::NT > 1)
                matrices_load<C::FLIP>(w[j / 2], from);
            else if (C::FLIP)
                ldmatrix_x2_trans(w[0], from);
            else
                ldmatrix_x2(w[0], from);
        }
    }
    if constexpr (C::ROUND)
#pragma unroll
        for (int i = 0; i < 2 * C::NT; i++)
            w[i / 4][i % 4] = to_tf32(w[i / 4][i % 4]);
}

/* Two runs of 16 samples. */
template <class C> FN void samples_load(uint32_t (&x)[4], uint32_t x_at, int tile, int run)
{
    typedef typename C::B B;
    if constexpr (B::WORDS) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint2 v = shared_load_8(matrix_at<B>(x_at, tile, run + r));
            x[2 * r] = v.x, x[2 * r + 1] = v.y;
        }
    } else {
        matrices_load<!C::ALONG_K>(x, matrix_at<B>(x_at, tile, run));
    }
    if constexpr (C::ROUND)
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = to_tf32(x[i]);
}

template <class C>
FN void step_multiply(const lane_places<C> &p, uint32_t slot, float (&sum)[C::ROWS][C::NT][4])
{
    const uint32_t w_at = slot + weights_at<C>() + p.w, x_at = slot + C::TILE * 64 + p.x;
#pragma unroll
    for (int run = 0; run < DSD_FEW_STEP; run += 2) {
        uint32_t w[(C::NT + 1) / 2][4];
        weights_load<C>(w, w_at, run);
#pragma unroll
        for (int i = 0; i < C::ROWS; i++) {
            uint32_t x[4];
            samples_load<C>(x, x_at, 2 * i, run);
#pragma unroll
            for (int j = 0; j < C::NT; j++)
                if constexpr (C::ROUND)
                    mma_m16n8k8_tf32(sum[i][j], x, w[j / 2] + j % 2 * 2);
                else
                    mma_m16n8k16<typename C::T>(sum[i][j], x, w[j / 2] + j % 2 * 2);
        }
    }
}

/* Where the weights of the warp's features begin. */
template <class C> FN const char *weights_of(const dsd_few_operands &o)
{
    return (const char *)o.s +
           (int64_t)(features_part<C>() * C::TI) * (C::FLIP ? C::S::BYTES : o.s_pitch);
}

/* Starts to bring a step's weights into the second-level cache. Nothing is read, so this may go
 * ahead of the queue's earlier work. Many steps, or b, would delay what is needed first. */
template <class C> FN void step_prefetch(const dsd_few_operands &o, uint32_t runs, int step)
{
    const int lane = threadIdx.x % 32;
    const uint32_t run = run_of(runs, step, lane % 4);
    if (run == DSD_FEW_NONE || (C::WIDE && step % C::ALONG != samples_part<C>()))
        return;
    if (C::FLIP && lane / 4 >= C::S::RUN)
        return;
    const char *from = weights_address(weights_of<C>(o), run) + (int64_t)(lane / 4) * o.s_pitch;
#pragma unroll
    for (int i = 0; i < (C::FLIP ? 8 : C::TI); i += 8)
        prefetch_global(from + (int64_t)i * o.s_pitch);
}

/* The same for its lines of b, where these are few. */
template <class C> FN void lines_prefetch(const dsd_few_operands &o, uint32_t runs, int step)
{
    enum { RUN = C::B::RUN };
    const int lane = threadIdx.x % 32, line = C::ALONG_K ? lane / 4 : lane % RUN;
    const uint32_t run = run_of(runs, step, C::ALONG_K ? lane % 4 : lane / RUN % 4);
    const char *from = lines_address((const char *)o.b, run) + (int64_t)line * o.b_pitch;
#pragma unroll
    for (int i = 0; i < (C::ALONG_K ? C::COLUMNS : 8); i += 8)
        if (!C::ALONG_K || line + i < o.end.n)
            prefetch_global(from + (int64_t)i * o.b_pitch);
}

/* The same for the weights of all steps of the thread block but the first, at half of the time that
 * the earlier work is expected to take: before, they would delay what that reads itself. One warp does
 * it, if the others do not say that the earlier work has ended. */
template <class C> FN void rest_prefetch(const dsd_ring_arg &a, uint32_t barrier)
{
    static_assert(DSD_RING_BATCH == DSD_RING_WARPS, "a step's runs of all warps are a batch");
    const int lane = threadIdx.x % 32;
    if (threadIdx.x / 32 != DSD_RING_WARPS - 1 || mbar_wait_for(barrier, 0, a.later))
        return;
    const int64_t warp = blockIdx.x * DSD_RING_WARPS + lane / 4;
#pragma unroll 1
    for (int step = C::AHEAD; step < a.stride; step++) {
        const uint32_t runs = __ldg(&a.runs[(warp * a.stride + step) * DSD_FEW_STEP + lane % 4].s);
#pragma unroll
        for (int of = 0; of < DSD_RING_WARPS; of++)
            step_prefetch<C>(a.operands, runs, of);
    }
}

/* --- Results --- */

/* Which of 16 samples row g + 8 * half is: of words as they are loaded. */
template <class C> FN int sample_of(int g, int half)
{
    return C::B::WORDS ? 2 * g + half : g + 8 * half;
}

/* Where in a line of sums one is. */
template <class C> FN int line_at(int sample, int feature)
{
    return sample * C::PITCH + (C::WIDE ? feature ^ sample % 8 * 4 : feature);
}

/* Finishes and stores sums of 16 samples from n on, through the warp's line. */
template <class C>
FN void rows_finish(const dsd_ring_arg &a, char *to, const float (&sum)[C::NT][4], int64_t feature,
                    int n)
{
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    float *line = (float *)to;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < C::NT; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            line[line_at<C>(sample_of<C>(g, e / 2), 8 * j + 2 * q + e % 2)] = sum[j][e];
    __syncwarp();
#pragma unroll 1
    for (int x = lane; x < 16 * C::NT; x += 32) {
        const bool along_n = a.operands.end.along_n;
        const int i = along_n ? x / 2 : x % C::NT * DSD_RUN;
        const int at = along_n ? x % 2 * DSD_RUN : x / C::NT;
        float v[DSD_RUN];
#pragma unroll
        for (int e = 0; e < DSD_RUN; e++)
            v[e] = line[C::WIDE ? along_n ? line_at<C>(at + e, i) : line_at<C>(at, i + e)
                                : at * C::PITCH + i + e * (along_n ? C::PITCH : 1)];
        if (n + at < a.operands.end.n)
            dsd_finish(a.operands.end, v, feature + i, n + at, 0);
    }
}

/* Whether C = alpha * sum is of the type and along the axis of b. */
template <class C> FN bool is_plain(const dsd_epilogue &e)
{
    return !C::ROUND && (C::ALONG_K ? e.plain : e.plain_n) && e.bare &&
           e.c.type == dtype_of<typename C::T>();
}

/* Stores such sums of COUNT times 16 samples, of which C has those in `rows`: numbers are rounded as they
 * come from the products, and turned as they go to the line, [samples][features] or [features][samples]
 * of 16 samples each. */
template <class C, int COUNT>
FN void rows_store(const dsd_ring_arg &a, char *line, const float (*sum)[C::NT][4], int64_t feature,
                   int n, uint32_t rows)
{
    enum { PIECES = C::ALONG_K ? C::NT : 2, LAST = C::NT - 1, BYTES = 32 * C::TI };
    const dsd_epilogue &e = a.operands.end;
    const int lane = threadIdx.x % 32, row = lane % 8, half = lane / 8 % 2, next = lane / 16;
    const uint32_t to = shared_address(line);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < COUNT; i++)
#pragma unroll
        for (int j = 0; j < C::NT; j += 2) {
            uint32_t v[4];
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const float *s = sum[i][j + t / 2 < LAST ? j + t / 2 : LAST] + t % 2 * 2;
                v[t] = mma_pack<typename C::T>(s[0] * e.alpha, s[1] * e.alpha);
            }
            const int tile = j + next < LAST ? j + next : LAST; /* a lone one is stored twice */
            const int at = C::ALONG_K ? place_at<PIECES>(8 * half + row, tile)
                                      : place_at<PIECES>(8 * tile + row, half);
            if (C::ALONG_K)
                store_matrix_x4(to + i * BYTES + at, v[0], v[1], v[2], v[3]);
            else
                store_matrix_x4_trans(to + i * BYTES + at, v[0], v[1], v[2], v[3]);
        }
    __syncwarp();
    /* Across the features all of one's samples at once. */
    enum { BATCH = C::ALONG_K ? 2 * C::TI : 2 * COUNT };
#pragma unroll
    for (int x = lane; x < 2 * C::TI * COUNT; x += 32) {
        const int part = C::ALONG_K ? x / BATCH : x % BATCH / 2;
        const int piece = C::ALONG_K ? x % BATCH : x / BATCH * 2 + x % 2;
        const int i = C::ALONG_K ? piece % C::NT * DSD_RUN : piece / 2;
        const int at = 16 * part + (C::ALONG_K ? piece / C::NT : piece % 2 * DSD_RUN);
        const uint4 v = *(const uint4 *)(line + part * BYTES +
                                         place_at<PIECES>(piece / PIECES, piece % PIECES));
        if (n + at < e.n && feature + i < e.features && rows >> part & 1)
            *(uint4 *)(e.c.data + ((feature + i) * e.c.feature + (n + at) * e.c.n) * 2) = v;
    }
}

/* The same of f32: lanes have two neighbours of features, or of samples that they have loaded so. */
template <class C>
FN void pairs_store(const dsd_ring_arg &a, const float (&sum)[C::NT][4], int64_t feature, int n)
{
    static_assert(C::ALONG_K || C::B::WORDS, "samples are neighbours");
    const dsd_epilogue &e = a.operands.end;
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = n + sample_of<C>(g, C::ALONG_K ? half : 0);
        int64_t i = feature + 2 * q + (C::ALONG_K ? 0 : half);
        float *to = (float *)e.c.data + (C::ALONG_K ? at * e.c.n + i : i * e.c.feature + at);
#pragma unroll
        for (int j = 0; j < C::NT; j++, i += 8, to += C::ALONG_K ? 8 : 8 * e.c.feature) {
            const float x = sum[j][C::ALONG_K ? 2 * half : half];
            const float y = sum[j][C::ALONG_K ? 2 * half + 1 : half + 2];
            if (i < e.features && at < e.n)
                *(float2 *)to = make_float2(x * e.alpha, y * e.alpha);
        }
    }
}

template <class C>
FN void rows_end(const dsd_ring_arg &a, char *lines, const float (&sum)[C::NT][4], int64_t feature,
                 int n)
{
    const dsd_epilogue &e = a.operands.end;
    char *const line = lines + member<C>() * C::LINE_BYTES;
    feature += features_part<C>() * C::TI;
    if constexpr (C::ROUND) {
        if (e.plain_f32 && e.along_n != C::ALONG_K && e.act == BSK_ACT_NONE && !e.bias) {
            pairs_store<C>(a, sum, feature, n);
            return;
        }
    } else if (is_plain<C>(e)) {
        rows_store<C, 1>(a, line, &sum, feature, n, 1);
        return;
    }
    rows_finish<C>(a, line, sum, feature, n);
}

/* The next 16 samples' sums come first: a loop over these takes registers by constant numbers. */
template <class C> FN void rows_turn(float (&sum)[C::ROWS][C::NT][4])
{
#pragma unroll
    for (int i = 0; i + 1 < C::ROWS; i++)
#pragma unroll
        for (int j = 0; j < C::NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[i][j][e] = sum[i + 1][j][e];
}

/* Leaves a warp's sums for those that add up the parts. */
template <class C> FN void part_put(char *to, const float (&sum)[C::ROWS][C::NT][4])
{
    float4 *part = (float4 *)(to + member<C>() * C::PART_BYTES) + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < C::ROWS; i++)
#pragma unroll
        for (int j = 0; j < C::NT; j++)
            part[(i * C::NT + j) * 32] =
                make_float4(sum[i][j][0], sum[i][j][1], sum[i][j][2], sum[i][j][3]);
}

/* Adds up the parts of a tile in their order; teams that have them share its samples. The first part
 * lies in its team's ring, the others beside theirs, some maybe in another thread block of the
 * cluster. */
template <class C> FN void parts_add(const dsd_ring_arg &a, char *block, const dsd_ring_segment &s)
{
    const int team = threadIdx.x / 32 / C::TEAM, row = samples_part<C>() * C::ROWS;
    const int lane = threadIdx.x % 32, rank = C::WIDE ? (int)cluster_rank() : 0;
    char *const lines =
        block + team * C::TEAM_BYTES + (C::WIDE ? (C::SLOTS - 1) * C::SLOT_BYTES : C::LINE_AT);
    const char *parts = block + member<C>() * C::PART_BYTES;
#pragma unroll 1
    for (int i = s.part; i < C::ROWS && 16 * (row + i) < a.operands.end.n; i += s.adders) {
        float sum[C::NT][4] = {};
        if (!(s.rows >> (row + i) & 1))
            continue;
#pragma unroll(C::PARTS)
        for (int p = 0; p < s.parts; p++) {
            const int other = team - s.part + p + rank * C::TEAMS;
            const int of = C::WIDE ? other % (unsigned)C::TEAMS : other;
            const float4 *from =
                (const float4 *)(parts + of * C::TEAM_BYTES + (p ? C::PART_AT : 0)) +
                i * C::NT * 32 + lane;
#pragma unroll
            for (int j = 0; j < C::NT; j++) {
                const float4 v =
                    C::WIDE && other / C::TEAMS != rank
                        ? cluster_load_16(shared_address(from + j * 32), other / C::TEAMS)
                        : from[j * 32];
                sum[j][0] += v.x, sum[j][1] += v.y, sum[j][2] += v.z, sum[j][3] += v.w;
            }
        }
        rows_end<C>(a, lines, sum, s.feature, 16 * (row + i));
    }
}

/* --- A team --- */

/* Its steps: those from `step` to `copied` are on their way to the ring, or there. */
struct stream {
    uint32_t ring;
    int number, slot; /* of the team; of `step` */
    int step, copied, steps;
    uint2 runs, next; /* of the batch of steps that `copied` is of, and of the next one */
};

/* The runs of the batch of steps that begins at `step`. */
FN uint2 runs_load(const dsd_ring_arg &a, int number, int step)
{
    const int at = step * DSD_FEW_STEP + threadIdx.x % 32;
    return at < a.stride * DSD_FEW_STEP
               ? __ldg((const uint2 *)a.runs + (int64_t)number * a.stride * DSD_FEW_STEP + at)
               : make_uint2(0, DSD_FEW_NONE);
}

FN dsd_ring_segment segment_load(const dsd_ring_segment *from)
{
    const int4 v = __ldg((const int4 *)from);
    return {v.x, v.y, (int16_t)v.z, (int16_t)(v.z >> 16), (int16_t)v.w, (int16_t)(v.w >> 16)};
}

/* Starts to copy the next step, if there is one, to a slot. */
template <class C>
FN void stream_copy(const dsd_ring_arg &a, const lane_places<C> &p, stream &s, int slot)
{
    if (s.copied < s.steps)
        step_copy<C>(p, s.ring + slot * C::SLOT_BYTES, s.runs, s.copied);
    else
        cp_async_commit();
    if (++s.copied % DSD_RING_BATCH == 0) {
        s.runs = s.next;
        s.next = runs_load(a, s.number, s.copied + DSD_RING_BATCH);
    }
}

/* Waits for the team's other warps, too. */
template <class C> FN void team_sync(void)
{
    if (C::WIDE)
        named_barrier(1 + threadIdx.x / 32 / C::TEAM, C::TEAM * 32);
    else
        __syncwarp();
}

/* The slot before that of the next step, which is copied to when all of the team wait for that. */
template <class C> FN int slot_before(int slot)
{
    return (slot ? slot : C::SLOTS) - 1;
}

/* Adds up the products of a segment's steps. */
template <class C>
FN void segment_multiply(const dsd_ring_arg &a, const lane_places<C> &p,
                         const dsd_ring_segment &segment, stream &s,
                         float (&sum)[C::ROWS][C::NT][4])
{
#pragma unroll 1
    for (const int end = s.step + segment.steps; s.step < end; s.step++) {
        const uint32_t slot = s.ring + s.slot * C::SLOT_BYTES;
        cp_async_wait<C::SLOTS - (C::WIDE ? 2 : 1)>();
        team_sync<C>();
        /* Of several warps all have multiplied the step before now. */
        if (C::WIDE)
            stream_copy<C>(a, p, s, slot_before<C>(s.slot));
        step_multiply<C>(p, slot, sum);
        if (C::TEAM == 1) {
            __syncwarp();
            stream_copy<C>(a, p, s, s.slot);
        }
        s.slot = s.slot + 1 < C::SLOTS ? s.slot + 1 : 0;
    }
}

/* Stores the sums of a tile that one team has. */
template <class C>
FN void tile_store(const dsd_ring_arg &a, char *lines, const dsd_ring_segment &segment,
                   float (&sum)[C::ROWS][C::NT][4])
{
    const int first = samples_part<C>() * C::TN;
    if constexpr (!C::WIDE && !C::ROUND) {
        if (is_plain<C>(a.operands.end)) {
#pragma unroll
            for (int i = 0; i < C::ROWS; i += C::STORED)
                if (16 * i < a.operands.end.n)
                    rows_store<C, C::STORED>(a, lines, sum + i, segment.feature, 16 * i,
                                             (uint32_t)segment.rows >> i);
            return;
        }
    }
#pragma unroll 1
    for (int n = first; n < a.operands.end.n && (!C::WIDE || n < first + C::TN); n += 16) {
        if (segment.rows >> n / 16 & 1)
            rows_end<C>(a, lines, sum[0], segment.feature, n);
        rows_turn<C>(sum);
    }
}

/* Of narrow tiles: leaves a warp's part for others, and adds up what it has to do of it as soon as all
 * are there. The barrier of a tile is that of its first warp, which has no other one that ends there;
 * the others come there with their first segments, and so have waited for none before. */
template <class C>
FN void part_end(const dsd_ring_arg &a, char *block, const dsd_ring_segment &segment,
                 float (&sum)[C::ROWS][C::NT][4])
{
    const int warp = threadIdx.x / 32;
    const uint32_t barrier = 1 + warp - segment.part, threads = 32 * segment.parts;
    char *const own = block + warp * C::TEAM_BYTES;
    if (segment.part >= segment.adders) {
        part_put<C>(own + C::PART_AT, sum);
        named_barrier_arrive(barrier, threads);
        return;
    }
    if (segment.adders > 1) {
        /* The first part is of the last segment: the ring is free. */
        part_put<C>(own + (segment.part ? C::PART_AT : 0), sum);
        named_barrier(barrier, threads);
        parts_add<C>(a, block, segment);
        return;
    }
    /* Of two parts the other one is added to what the warp has. */
    named_barrier(barrier, threads);
    const float4 *part = (const float4 *)(own + C::TEAM_BYTES + C::PART_AT) + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < C::ROWS; i++)
#pragma unroll
        for (int j = 0; j < C::NT; j++) {
            const float4 v = part[(i * C::NT + j) * 32];
            sum[i][j][0] += v.x, sum[i][j][1] += v.y, sum[i][j][2] += v.z, sum[i][j][3] += v.w;
        }
    tile_store<C>(a, own + C::LINE_AT, segment, sum);
}

template <class C> FN void product(const dsd_ring_arg &a)
{
    extern __shared__ __align__(128) char shared[];
    const int number = (int)(blockIdx.x * C::TEAMS + threadIdx.x / 32 / C::TEAM);
    char *const team = shared + threadIdx.x / 32 / C::TEAM * C::TEAM_BYTES;
    grid_allow_next();
    /* All at once: nothing here waits for anything else. */
    const int4 share = __ldg((const int4 *)(a.shares + number));
    dsd_ring_segment segment = segment_load(&a.shares[number].head);
    stream s = {shared_address(team), number, 0, 0, 0, share.x};
    s.runs = runs_load(a, number, 0);
    s.next = runs_load(a, number, DSD_RING_BATCH);
#pragma unroll
    for (int i = 0; i < C::AHEAD; i++)
        step_prefetch<C>(a.operands, s.runs.y, i);
#pragma unroll
    for (int i = 0; i < (C::COLUMNS == 16 ? C::AHEAD : 0); i++)
        if (i < s.steps)
            lines_prefetch<C>(a.operands, s.runs.x, i);
    const lane_places<C> p = {
        copier_open<decltype(lane_places<C>::s)>(weights_of<C>(a.operands), a.operands.s_pitch,
                                                 C::TI, samples_part<C>()),
        copier_open<decltype(lane_places<C>::b)>(a.operands.b, a.operands.b_pitch,
                                                 (int)a.operands.end.n, member<C>()),
        matrix_lane<typename C::S, false>(), samples_at<C>(matrix_lane<typename C::B, true>()),
        C::NEAR || a.near};
    const uint32_t ended = shared_address(shared) + C::BARRIER_AT;
    if (C::LATER && a.later) {
        if (threadIdx.x == 0)
            mbar_init(ended, 1);
        __syncthreads();
        rest_prefetch<C>(a, ended);
    }
    grid_wait();
    if (C::LATER && a.later && threadIdx.x == 0)
        mbar_arrive(ended);
#pragma unroll 1
    for (int slot = 0; slot + C::WIDE < C::SLOTS; slot++)
        stream_copy<C>(a, p, s, slot);
    dsd_ring_segment head = {}, tail = {};
#pragma unroll 1
    for (int i = 0; i < share.y; i++) {
        const dsd_ring_segment coming =
            i + 1 < share.y ? segment_load(a.segments + share.z + i) : dsd_ring_segment{};
        float sum[C::ROWS][C::NT][4] = {};
        segment_multiply<C>(a, p, segment, s, sum);
        if (C::WIDE && !segment.part)
            team_sync<C>();
        if (segment.parts == 1) {
            tile_store<C>(a, team + (C::WIDE ? slot_before<C>(s.slot) * C::SLOT_BYTES : C::LINE_AT),
                          segment, sum);
        } else if (!C::WIDE) {
            part_end<C>(a, shared, segment, sum);
        } else {
            /* The first part is of the last segment: the ring is free. */
            part_put<C>(team + (segment.part ? C::PART_AT : 0), sum);
            (segment.part ? head : tail) = segment;
        }
        segment = coming;
    }
    if (!C::WIDE)
        return;
    __syncthreads();
    cluster_sync();
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        if (head.parts)
            parts_add<C>(a, shared, head);
        head = tail;
    }
    __syncwarp();
    cluster_sync(); /* others may still read the parts */
}

#define RING(T, type, flip, order, along_k, axis, ti, tn)                                          \
    extern "C" __global__ void __launch_bounds__(DSD_RING_THREADS(ti, tn),                         \
                                                 DSD_RING_PAIR(ti, tn) ? 2 : 1)                    \
        dsd_sm90a_ring_##ti##_##tn##_##order##_##axis##_##type(                                    \
            const __grid_constant__ dsd_ring_arg a)                                                \
    {                                                                                              \
        product<config<T, flip, along_k, ti, tn>>(a);                                              \
    }
#define RING_SIZES(T, type, flip, order, along_k, axis, ti)                                        \
    RING(T, type, flip, order, along_k, axis, ti, 16)                                              \
    RING(T, type, flip, order, along_k, axis, ti, 32)                                              \
    RING(T, type, flip, order, along_k, axis, ti, 64)
#define RING_TILES(T, type, flip, order, along_k, axis)                                            \
    RING_SIZES(T, type, flip, order, along_k, axis, 16)                                            \
    RING_SIZES(T, type, flip, order, along_k, axis, 32)
#define RING_NARROW(type, T)                                                                       \
    RING_TILES(T, type, false, rows, true, nc)                                                     \
    RING_TILES(T, type, true, cols, true, nc)                                                      \
    RING_TILES(T, type, false, rows, false, cn)                                                    \
    RING_TILES(T, type, true, cols, false, cn)                                                     \
    RING_SIZES(T, type, false, rows, false, cn, 8)                                                 \
    RING_SIZES(T, type, true, cols, false, cn, 8)

#endif
