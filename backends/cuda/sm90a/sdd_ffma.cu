/* sdd on Hopper in f32, by FFMA, for small blocks: as sdd_mma.cu, but every lane owns a cell of 8 x 8,
 * whose 64 sums are in its registers. Of each sample it reads 8 numbers of either operand, 16 bytes at
 * a time. */
#include <backends/cuda/sm90a/sdd_mma_device.h>

struct ffma_shape {
    static constexpr int nc = 1, warps = SDD_FFMA_WARPS, registers = 112;
    static constexpr int features = SDD_PANEL / 2; /* of a panel, whose rows are 128 bytes */
    static constexpr int panels = SDD_FFMA_PANELS * SDD_PANEL / features;
    static constexpr int slice = SDD_FFMA_SAMPLES / 2;
    static constexpr int panel_bytes = slice * 128, stage_bytes = 2 * panels * panel_bytes;
};

/* Whether a lane has the second halves of its cell's rows and columns first. */
PTX_FN bool halves_turned(void)
{
    return threadIdx.x & 4;
}

/* Eight numbers of sample `n`, the lane's first four first. place: of the first of them in sample 0. */
PTX_FN void load_eight(float *v, uint32_t place, int n)
{
    const uint32_t at = (place ^ (n % 8) << 4) + n * 128;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint4 four = shared_load_16(at ^ h << 4);
        v[4 * h] = __uint_as_float(four.x);
        v[4 * h + 1] = __uint_as_float(four.y);
        v[4 * h + 2] = __uint_as_float(four.z);
        v[4 * h + 3] = __uint_as_float(four.w);
    }
}

/* acc[8][8] += the products of a stage's samples. */
PTX_FN void cell_add(float *acc, uint32_t row_at, uint32_t col_at)
{
#pragma unroll
    for (int n = 0; n < ffma_shape::slice; n++) {
        float rows[8], cols[8];
        load_eight(rows, row_at, n);
        load_eight(cols, col_at, n);
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                acc[8 * i + j] = fmaf(rows[i], cols[j], acc[8 * i + j]);
    }
}

/* A whole cell that needs alpha alone, of f32. */
PTX_FN void cell_store_plain(const sdd_output &o, const float *acc, int place)
{
    float *const to = (float *)o.s + (int64_t)place * 8;
    const int turn = halves_turned() ? 4 : 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
            const float *v = acc + 8 * i + j;
            store_global_16(
                to + (i ^ turn) * o.block_cols + (j ^ turn),
                make_uint4(__float_as_uint(o.alpha * v[0]), __float_as_uint(o.alpha * v[1]),
                           __float_as_uint(o.alpha * v[2]), __float_as_uint(o.alpha * v[3])));
        }
}

/* Any other, two sums at a time. */
PTX_FN void cell_store(const sdd_output &o, float *acc, int place, int row, int col)
{
    const int turn = halves_turned() ? 4 : 0;
#pragma unroll 1
    for (int i = 0; i < 32; i++) {
        const int r = i / 4 ^ turn, c = i % 4 * 2 ^ turn;
        const bool second = col + c + 1 < o.cols;
        const int64_t at = (int64_t)place * 8 + r * o.block_cols + c;
        if (row + r < o.rows && col + c < o.cols)
            output_store(o, at, output_value(o, at, make_float2(acc[0], acc[1]), second), second);
        rotate<64, 2>(acc);
    }
}

template <typename S>
PTX_FN void consume(const sdd_mma_arg &arg, sdd_ring &ring, int begin, int end)
{
    constexpr uint32_t mask = sdd_mma_mask(SDD_MMA_NC_F32, SDD_FFMA_PANELS, SDD_FFMA_SAMPLES);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t first = halves_turned() << 4;
    for (int i = begin; i < end; i++) {
        const sdd_segment s = segment_mine(arg, i);
        const size_t owner = (size_t)s.unit * S::warps + warp;
        const int count = __ldg(arg.heads + owner) >> 16;
        const uint32_t entry = __ldg(arg.entries + owner * 32 + lane);
        const uint32_t row_field = entry & mask, col_field = entry >> SDD_MMA_B & mask;
        float acc[64];
#pragma unroll
        for (int j = 0; j < 64; j++)
            acc[j] = 0;
        for (int t = 0; t < s.count; t++) {
            mbar_wait(ring_full(ring, ring.at), ring.parity);
            const uint32_t stage = ring_stage(ring);
            if (count)
                cell_add(acc, stage + (row_field ^ first),
                         stage + S::stage_bytes / 2 + (col_field ^ first));
            __syncwarp();
            stage_release(ring, 1);
            ring_next(ring);
        }
        const int2 corner = __ldg((const int2 *)arg.corners + s.unit);
        const int row8 = corner.x / 8 + sdd_mma_eighth(SDD_MMA_NC_F32, SDD_FFMA_SAMPLES, row_field);
        const int col8 = corner.y / 8 + sdd_mma_eighth(SDD_MMA_NC_F32, SDD_FFMA_SAMPLES, col_field);
        const int place = lane < count ? place_load(arg.out, row8, col8) : -1;
        if (!count || !parts_add<64>(acc, arg.work, s, warp, S::warps, 64) || place < 0)
            continue;
        if (output_rows(arg.out) && arg.out.type == BSK_F32)
            cell_store_plain(arg.out, acc, place);
        else
            cell_store(arg.out, acc, place, row8 * 8, col8 * 8);
    }
}

extern "C" __global__ void __launch_bounds__(SDD_FFMA_WARPS * 32 + 128, 1)
    sdd_ffma_f32(const __grid_constant__ sdd_mma_arg arg)
{
    run<ffma_shape>(arg);
}
