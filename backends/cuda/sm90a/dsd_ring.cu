/* dsd for a small minibatch: bound by reading the kept weights, and the activations that they meet,
 * once; dsd_ring.c plans what the tables say.
 *
 * A warp has steps of its own, and a ring of them in shared memory, which it fills with
 * asynchronous copies and waits for alone. A step is 32 of the depth as four runs of 8, whose
 * blocks need not be neighbours: lines of 64 bytes of four runs where an operand is contiguous
 * along the depth, else 32 lines of a tile's width. 16-byte pieces of a line are exchanged so that
 * ldmatrix meets all banks. */
#include <backends/cuda/sm90a/dsd_few_device.h>
#include <backends/cuda/sm90a/dsd_ring.h>

#define FN static __device__ __forceinline__

/* A tile of TI features by TN samples. FLIP: blocks are stored by columns of op(S). ALONG_K: b is
 * contiguous along the depth, else along its columns. */
template <typename T_, bool FLIP_, bool ALONG_K_, int TI_, int TN_> struct config {
    typedef T_ T;
    static constexpr bool FLIP = FLIP_, ALONG_K = ALONG_K_;
    static constexpr int TI = TI_, TN = TN_, NT = TI / 8, ROWS = TN / 16;
    static constexpr int SLOTS = DSD_RING_SLOTS(TI, TN);
    /* Steps whose weights are fetched ahead of the queue's earlier work. */
    static constexpr bool PAIR = DSD_RING_PAIR(TI, TN);
    static constexpr int AHEAD = PAIR ? 2 : 3;
    static constexpr int SLOT_BYTES = DSD_RING_SLOT_BYTES(TI, TN);
    static constexpr int WARP_BYTES = DSD_RING_WARP_BYTES(TI, TN);
    static constexpr int PART_AT = SLOTS * SLOT_BYTES;
    static constexpr int LINE_AT = PART_AT + DSD_RING_PART_BYTES(TI, TN);
    static constexpr int PITCH = TI + 1; /* of a line of sums, elements */
    static constexpr int BARRIER_AT = LINE_AT + 16 * PITCH * 4;
    static_assert(PART_AT >= DSD_RING_PART_BYTES(TI, TN), "a part fits into the ring");
    static_assert(BARRIER_AT + 8 <= WARP_BYTES, "a barrier fits behind the line");
};

/* --- Operands in shared memory --- */

/* Where piece number `piece` of line number `line` lies. */
template <int PIECES> FN constexpr int place_at(int line, int piece)
{
    return (line * PIECES + (piece ^ (line / (8 / PIECES) % PIECES))) * 16;
}

/* The same of an operand: contiguous along the depth it has a line of four pieces for each of WIDTH,
 * else one of WIDTH for each of 32 of the depth. Eight lines further pieces lie in the same order. */
template <bool ACROSS, int WIDTH> FN constexpr int piece_at(int line, int piece)
{
    return place_at<(ACROSS ? WIDTH / 8 : DSD_FEW_STEP)>(line, piece);
}

/* The run that a lane needs, of a step of those in the warp's registers. */
FN uint32_t run_of(uint32_t runs, int step, int run)
{
    return __shfl_sync(~0u, runs, step % DSD_RING_BATCH * DSD_FEW_STEP + run);
}

/* What a lane does of each step's copy of an operand, and where it begins. */
template <bool ACROSS_, int WIDTH_, int UNIT_> struct copier {
    static constexpr bool ACROSS = ACROSS_;
    static constexpr int WIDTH = WIDTH_, UNIT = UNIT_; /* elements that are copied at once */
    static constexpr int UNITS = ACROSS ? WIDTH / UNIT : DSD_FEW_STEP, LINES = 32 / UNITS;
    const char *from;
    int32_t pitch;
    uint32_t to; /* from the operand's begin in a slot */
    int run;     /* ACROSS: the first of the four that it copies of */
    uint32_t on; /* bits: ACROSS, of a run's bits that of the lane's samples; else, its lines */
};

template <class P> FN P copier_open(const void *from, int32_t pitch, int count)
{
    const int lane = threadIdx.x % 32, unit = lane % P::UNITS, line = lane / P::UNITS;
    P p;
    p.pitch = pitch;
    if (P::ACROSS) {
        const int first = unit * P::UNIT;
        p.from = (const char *)from + (int64_t)(line % 8) * pitch + first * 2;
        p.to = piece_at<true, P::WIDTH>(line, first / 8) + first % 8 * 2;
        p.run = line / 8;
        p.on = first < count ? 1u << (DSD_FEW_PLACE + first / 16) : 0;
    } else {
        p.from = (const char *)from + (int64_t)line * pitch;
        p.to = piece_at<false, P::WIDTH>(line, unit);
        p.run = unit;
        p.on = 0;
        for (int i = 0; i < P::WIDTH / 8; i++)
            p.on |= (uint32_t)(line + 8 * i < count) << i;
    }
    return p;
}

/* Copies a step's weights, or its zeros. Values across the depth are lines of up to 64 bytes, beside
 * which another tile's may lie, that another multiprocessor reads at about the same time. */
template <class P> FN void weights_copy(const P &p, uint32_t to, uint32_t runs, int step)
{
    if (P::ACROSS) {
#pragma unroll
        for (int i = 0; i < 32; i += P::LINES) {
            const uint32_t run = run_of(runs, step, p.run + i / 8);
            cp_async_16_near(to + p.to + i * P::UNITS * 16, weights_address(p.from, run),
                             run == DSD_FEW_NONE ? 0 : 16);
        }
        return;
    }
    const uint32_t run = run_of(runs, step, p.run);
    const char *from = weights_address(p.from, run);
#pragma unroll
    for (int i = 0; i < P::WIDTH; i += 8)
        cp_async_16(to + p.to + i * 64, from + (int64_t)i * p.pitch, run == DSD_FEW_NONE ? 0 : 16);
}

/* Copies a step's lines of b, and zeros where there are none. */
template <class P> FN void lines_copy(const P &p, uint32_t to, uint32_t runs, int step)
{
    if (P::ACROSS) {
        uint32_t run = 0;
#pragma unroll
        for (int i = 0; i < 32; i += P::LINES) {
            if (i % 8 == 0)
                run = run_of(runs, step, p.run + i / 8);
            const char *from = lines_address(p.from, run) + (int64_t)(i % 8) * p.pitch;
            const uint32_t place = to + (p.to ^ i % 8 * 16) + i * P::WIDTH * 2;
            if (P::UNIT == 8)
                cp_async_16(place, from, run & p.on ? 16 : 0);
            else
                cp_async_ca<P::UNIT * 2>(place, from, run & p.on ? P::UNIT * 2 : 0);
        }
        return;
    }
    const uint32_t run = run_of(runs, step, p.run);
    const char *from = lines_address(p.from, run);
#pragma unroll
    for (int i = 0; i < P::WIDTH; i += 8)
        cp_async_16(to + p.to + i * 64, from + (int64_t)i * p.pitch,
                    run >> (DSD_FEW_PLACE + i / 16) & p.on >> i / 8 & 1 ? 16 : 0);
}

/* Where a lane's line of the first of four matrices lies, of 8 of WIDTH by 8 of the depth. The
 * others are the next of WIDTH and of the runs; for m16n8k16's rows the former changes first, for
 * its columns the latter. */
template <bool ACROSS, int WIDTH, bool AS_ROWS> FN uint32_t matrix_lane(void)
{
    const int lane = threadIdx.x % 32, i = lane % 8, low = lane / 8 % 2, high = lane / 16;
    const int tile = WIDTH == 8 ? 0 : AS_ROWS ? low : high, run = AS_ROWS ? high : low;
    return ACROSS ? piece_at<true, WIDTH>(8 * run + i, tile)
                  : piece_at<false, WIDTH>(8 * tile + i, run);
}

/* The same for matrices from `tile` and `run` on, both even. */
template <bool ACROSS, int WIDTH> FN uint32_t matrix_at(uint32_t lane, int tile, int run)
{
    return ACROSS ? (lane ^ tile * 16) + run * WIDTH * 16 : (lane ^ run * 16) + tile * 512;
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
    copier<C::FLIP, C::TI, 8> s;
    copier<!C::ALONG_K, C::TN, C::TN == 16 && !C::ALONG_K ? 4 : 8> b;
    uint32_t w, x; /* of matrices, from the operands' begin in a slot */
};

template <class C> FN void step_copy(const lane_places<C> &p, uint32_t slot, uint2 runs, int step)
{
    weights_copy(p.s, slot, runs.y, step);
    lines_copy(p.b, slot + C::TI * 64, runs.x, step);
    cp_async_commit();
}

template <class C>
FN void step_multiply(const lane_places<C> &p, uint32_t slot, float (&sum)[C::ROWS][C::NT][4])
{
    const uint32_t w_at = slot + p.w, x_at = slot + C::TI * 64 + p.x;
#pragma unroll
    for (int run = 0; run < DSD_FEW_STEP; run += 2) {
        uint32_t w[(C::NT + 1) / 2][4];
#pragma unroll
        for (int j = 0; j < C::NT; j += 2) {
            const uint32_t from = matrix_at<C::FLIP, C::TI>(w_at, j, run);
            if (C::NT > 1)
                matrices_load<C::FLIP>(w[j / 2], from);
            else if (C::FLIP)
                ldmatrix_x2_trans(w[0], from);
            else
                ldmatrix_x2(w[0], from);
        }
#pragma unroll
        for (int i = 0; i < C::ROWS; i++) {
            uint32_t x[4];
            matrices_load<!C::ALONG_K>(x, matrix_at<!C::ALONG_K, C::TN>(x_at, 2 * i, run));
#pragma unroll
            for (int j = 0; j < C::NT; j++)
                mma_m16n8k16<typename C::T>(sum[i][j], x, w[j / 2] + j % 2 * 2);
        }
    }
}

/* Starts to bring a step's weights into the second-level cache. Nothing is read, so this may go
 * ahead of the queue's earlier work. Many steps, or b, would delay what is needed first. */
template <class C> FN void step_prefetch(const dsd_few_operands &o, uint32_t runs, int step)
{
    const int lane = threadIdx.x % 32;
    const uint32_t run = run_of(runs, step, lane % 4);
    if (run == DSD_FEW_NONE)
        return;
    const char *from = weights_address((const char *)o.s, run) + (int64_t)(lane / 4) * o.s_pitch;
#pragma unroll
    for (int i = 0; i < (C::FLIP ? 8 : C::TI); i += 8)
        prefetch_global(from + (int64_t)i * o.s_pitch);
}

/* The same for its lines of b, where these are few. */
template <class C> FN void lines_prefetch(const dsd_few_operands &o, uint32_t runs, int step)
{
    const int lane = threadIdx.x % 32, line = C::ALONG_K ? lane / 4 : lane % 8;
    const uint32_t run = run_of(runs, step, C::ALONG_K ? lane % 4 : lane / 8);
    const char *from = lines_address((const char *)o.b, run) + (int64_t)line * o.b_pitch;
#pragma unroll
    for (int i = 0; i < (C::ALONG_K ? C::TN : 8); i += 8)
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

/* Finishes and stores sums of 16 samples from n on, through the warp's line. */
template <class C>
FN void rows_finish(const dsd_ring_arg &a, char *warp, const float (&sum)[C::NT][4],
                    int64_t feature, int n)
{
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    float *line = (float *)(warp + C::LINE_AT);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < C::NT; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            line[(g + e / 2 * 8) * C::PITCH + 8 * j + 2 * q + e % 2] = sum[j][e];
    __syncwarp();
#pragma unroll 1
    for (int x = lane; x < 16 * C::NT; x += 32) {
        const bool along_n = a.operands.end.along_n;
        const int i = along_n ? x / 2 : x % C::NT * DSD_RUN;
        const int at = along_n ? x % 2 * DSD_RUN : x / C::NT;
        float v[DSD_RUN];
#pragma unroll
        for (int e = 0; e < DSD_RUN; e++)
            v[e] = line[at * C::PITCH + i + e * (along_n ? C::PITCH : 1)];
        if (n + at < a.operands.end.n)
            dsd_finish(a.operands.end, v, feature + i, n + at, 0);
    }
}

/* The same for C = alpha * sum, of the type and along the axis of b: numbers are rounded as they come
 * from the products, and turned as they go to the line, [samples][features] or [features][samples]. */
template <class C>
FN void rows_store(const dsd_ring_arg &a, char *warp, const float (&sum)[C::NT][4], int64_t feature,
                   int n)
{
    enum { PIECES = C::ALONG_K ? C::NT : 2, LAST = C::NT - 1 };
    const dsd_epilogue &e = a.operands.end;
    const int lane = threadIdx.x % 32, row = lane % 8, half = lane / 8 % 2, next = lane / 16;
    char *const line = warp + C::LINE_AT;
    const uint32_t to = shared_address(line);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < C::NT; j += 2) {
        uint32_t v[4];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const float *s = sum[j + t / 2 < LAST ? j + t / 2 : LAST] + t % 2 * 2;
            v[t] = mma_pack<typename C::T>(s[0] * e.alpha, s[1] * e.alpha);
        }
        const int tile = j + next < LAST ? j + next : LAST; /* a lone one is stored twice */
        if (C::ALONG_K)
            store_matrix_x4(to + place_at<PIECES>(8 * half + row, tile), v[0], v[1], v[2], v[3]);
        else
            store_matrix_x4_trans(to + place_at<PIECES>(8 * tile + row, half), v[0], v[1], v[2],
                                  v[3]);
    }
    __syncwarp();
#pragma unroll
    for (int x = lane; x < 2 * C::TI; x += 32) {
        const int i = C::ALONG_K ? x % C::NT * DSD_RUN : x / 2;
        const int at = C::ALONG_K ? x / C::NT : x % 2 * DSD_RUN;
        const uint4 v = *(const uint4 *)(line + place_at<PIECES>(x / PIECES, x % PIECES));
        if (n + at < e.n && feature + i < e.features)
            *(uint4 *)(e.c.data + ((feature + i) * e.c.feature + (n + at) * e.c.n) * 2) = v;
    }
}

template <class C>
FN void rows_end(const dsd_ring_arg &a, char *warp, const float (&sum)[C::NT][4], int64_t feature,
                 int n)
{
    const dsd_epilogue &e = a.operands.end;
    if ((C::ALONG_K ? e.plain : e.plain_n) && e.bare && e.c.type == dtype_of<typename C::T>())
        rows_store<C>(a, warp, sum, feature, n);
    else
        rows_finish<C>(a, warp, sum, feature, n);
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
    float4 *part = (float4 *)to + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < C::ROWS; i++)
#pragma unroll
        for (int j = 0; j < C::NT; j++)
            part[(i * C::NT + j) * 32] =
                make_float4(sum[i][j][0], sum[i][j][1], sum[i][j][2], sum[i][j][3]);
}

/* Adds up the parts of a tile in their order; the warps that have them share its samples. The first
 * part lies in its warp's ring, the others beside theirs. */
template <class C> FN void parts_add(const dsd_ring_arg &a, char *block, const dsd_ring_segment &s)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
    for (int i = s.part; i < C::ROWS && 16 * i < a.operands.end.n; i += s.parts) {
        float sum[C::NT][4] = {};
        if (!(s.rows >> i & 1))
            continue;
#pragma unroll 4
        for (int p = 0; p < s.parts; p++) {
            const float4 *from = (const float4 *)(block + (warp - s.part + p) * C::WARP_BYTES +
                                                  (p ? C::PART_AT : 0)) +
                                 i * C::NT * 32 + lane;
#pragma unroll
            for (int j = 0; j < C::NT; j++) {
                const float4 v = from[j * 32];
                sum[j][0] += v.x, sum[j][1] += v.y, sum[j][2] += v.z, sum[j][3] += v.w;
            }
        }
        rows_end<C>(a, block + warp * C::WARP_BYTES, sum, s.feature, 16 * i);
    }
}

/* --- A warp --- */

/* Its steps: those from `step` to `copied` are on their way to the ring, or there. */
struct stream {
    uint32_t ring;
    int number, slot; /* of the warp; of `step` */
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
    return {v.x, v.y, (int16_t)v.z, (int16_t)(v.z >> 16), v.w};
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

/* Adds up the products of a segment's steps. */
template <class C>
FN void segment_multiply(const dsd_ring_arg &a, const lane_places<C> &p,
                         const dsd_ring_segment &segment, stream &s,
                         float (&sum)[C::ROWS][C::NT][4])
{
#pragma unroll 1
    for (const int end = s.step + segment.steps; s.step < end; s.step++) {
        const uint32_t slot = s.ring + s.slot * C::SLOT_BYTES;
        cp_async_wait<C::SLOTS - 1>();
        __syncwarp();
        step_multiply<C>(p, slot, sum);
        __syncwarp();
        stream_copy<C>(a, p, s, s.slot);
        s.slot = s.slot + 1 < C::SLOTS ? s.slot + 1 : 0;
    }
}

/* Stores the sums of a tile that one warp has. */
template <class C>
FN void tile_store(const dsd_ring_arg &a, char *warp, const dsd_ring_segment &segment,
                   float (&sum)[C::ROWS][C::NT][4])
{
#pragma unroll 1
    for (int n = 0; n < a.operands.end.n; n += 16) {
        if (segment.rows >> n / 16 & 1)
            rows_end<C>(a, warp, sum[0], segment.feature, n);
        rows_turn<C>(sum);
    }
}

template <class C> FN void product(const dsd_ring_arg &a)
{
    extern __shared__ __align__(128) char shared[];
    const int number = (int)(blockIdx.x * DSD_RING_WARPS + threadIdx.x / 32);
    char *const warp = shared + threadIdx.x / 32 * C::WARP_BYTES;
    grid_allow_next();
    /* All at once: nothing here waits for anything else. */
    const int4 share = __ldg((const int4 *)(a.shares + number));
    dsd_ring_segment segment = segment_load(&a.shares[number].head);
    stream s = {shared_address(warp), number, 0, 0, 0, share.x};
    s.runs = runs_load(a, number, 0);
    s.next = runs_load(a, number, DSD_RING_BATCH);
#pragma unroll
    for (int i = 0; i < C::AHEAD; i++)
        step_prefetch<C>(a.operands, s.runs.y, i);
#pragma unroll
    for (int i = 0; i < (C::TN == 16 ? C::AHEAD : 0); i++)
        if (i < s.steps)
            lines_prefetch<C>(a.operands, s.runs.x, i);
    const lane_places<C> p = {
        copier_open<decltype(lane_places<C>::s)>(a.operands.s, a.operands.s_pitch, C::TI),
        copier_open<decltype(lane_places<C>::b)>(a.operands.b, a.operands.b_pitch,
                                                 (int)a.operands.end.n),
        matrix_lane<C::FLIP, C::TI, false>(), matrix_lane<!C::ALONG_K, C::TN, true>()};
    const uint32_t ended = shared_address(shared) + C::BARRIER_AT;
    if (C::PAIR && a.later) {
        if (threadIdx.x == 0)
            mbar_init(ended, 1);
        __syncthreads();
        rest_prefetch<C>(a, ended);
    }
    grid_wait();
    if (C::PAIR && a.later && threadIdx.x == 0)
        mbar_arrive(ended);
#pragma unroll 1
    for (int slot = 0; slot < C::SLOTS; slot++)
        stream_copy<C>(a, p, s, slot);
    dsd_ring_segment head = {}, tail = {};
#pragma unroll 1
    for (int i = 0; i < share.y; i++) {
        const dsd_ring_segment coming =
            i + 1 < share.y ? segment_load(a.segments + share.z + i) : dsd_ring_segment{};
        float sum[C::ROWS][C::NT][4] = {};
        segment_multiply<C>(a, p, segment, s, sum);
        if (segment.parts == 1) {
            tile_store<C>(a, warp, segment, sum);
        } else if (segment.part) {
            part_put<C>(warp + C::PART_AT, sum);
            head = segment;
        } else {
            /* The last segment: the ring is free. */
            part_put<C>(warp, sum);
            tail = segment;
        }
        segment = coming;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        if (head.parts)
            parts_add<C>(a, shared, head);
        head = tail;
    }
}

#define RING(T, type, flip, order, along_k, axis, ti, tn)                                          \
    extern "C" __global__ void __launch_bounds__(DSD_RING_THREADS, DSD_RING_PAIR(ti, tn) ? 2 : 1)  \
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
#define RING_ORDERS(type, T)                                                                       \
    RING_TILES(T, type, false, rows, true, nc)                                                     \
    RING_TILES(T, type, true, cols, true, nc)                                                      \
    RING_TILES(T, type, false, rows, false, cn)                                                    \
    RING_TILES(T, type, true, cols, false, cn)                                                     \
    RING_SIZES(T, type, false, rows, false, cn, 8)                                                 \
    RING_SIZES(T, type, true, cols, false, cn, 8)
FOR_HALVES(RING_ORDERS)
