/* The kernels on NEON's products of 2 x 4 by 4 x 2 bf16 matrices, over tiles of S packed as amx.h
 * takes them, as deep as one such product. A sum is a 2 x 2 matrix: two features by two columns.
 * Included by dsd.h after its types. */
#ifndef BSKI_OMP_MMLA_H
#define BSKI_OMP_MMLA_H

enum { MMLA_ROWS = DSD_MR / 2 };
_Static_assert((int)DSD_MR == (int)SDD_MR && TILE_DEPTH == 2, "one shape of tiles of S");

static void tiles_open_bf16(int64_t rows, int64_t depth)
{
    (void)rows;
    (void)depth;
}

static void tiles_close_bf16(void)
{
}

/* Two rows of two columns as two columns of a pair of rows, and back. */
OMP_INLINE void mmla_exchange(float32x4_t *x, float32x4_t *y)
{
    const float64x2_t a = vreinterpretq_f64_f32(*x), b = vreinterpretq_f64_f32(*y);
    *x = vreinterpretq_f32_f64(vzip1q_f64(a, b));
    *y = vreinterpretq_f32_f64(vzip2q_f64(a, b));
}

/* Sums of MR features by n vectors of columns, in registers; n is a constant at each call. In
 * memory, rows are row_step and vectors vector_step apart. */
typedef struct mmla_sums {
    float32x4_t of[MMLA_ROWS][2 * DSD_NV];
} mmla_sums;

OMP_INLINE void mmla_load(mmla_sums *sum, const float *out, int64_t row_step, int64_t vector_step,
                          bool resume, const int n)
{
    _Pragma("GCC unroll 8") for (int i = 0; i < MMLA_ROWS; i++)
        _Pragma("GCC unroll 4") for (int v = 0; v < n; v++)
    {
        const float *at = out + 2 * i * row_step + v * vector_step;
        float32x4_t *x = &sum->of[i][2 * v];
        x[0] = resume ? vld1q_f32(at) : vdupq_n_f32(0);
        x[1] = resume ? vld1q_f32(at + row_step) : vdupq_n_f32(0);
        mmla_exchange(&x[0], &x[1]);
    }
}

OMP_INLINE void mmla_store(mmla_sums *sum, float *out, int64_t row_step, int64_t vector_step,
                           const int n)
{
    _Pragma("GCC unroll 8") for (int i = 0; i < MMLA_ROWS; i++)
        _Pragma("GCC unroll 4") for (int v = 0; v < n; v++)
    {
        float *at = out + 2 * i * row_step + v * vector_step;
        float32x4_t *x = &sum->of[i][2 * v];
        mmla_exchange(&x[0], &x[1]);
        vst1q_f32(at, x[0]);
        vst1q_f32(at + row_step, x[1]);
    }
}

OMP_INLINE void mmla_tile(bfloat16x8_t *s, const float *tile)
{
    _Pragma("GCC unroll 8") for (int i = 0; i < MMLA_ROWS; i++) s[i] =
        vreinterpretq_bf16_f32(vld1q_f32(tile + 4 * i));
}

/* Adds a tile of S times four columns of two rows of B to the sums of vector v. */
OMP_INLINE void mmla_step(mmla_sums *sum, int v, const bfloat16x8_t *s, float32x4_t low,
                          float32x4_t high)
{
    const bfloat16x8_t left = vreinterpretq_bf16_f32(vzip1q_f32(low, high));
    const bfloat16x8_t right = vreinterpretq_bf16_f32(vzip2q_f32(low, high));
    _Pragma("GCC unroll 8") for (int i = 0; i < MMLA_ROWS; i++)
    {
        sum->of[i][2 * v] = vbfmmlaq_f32(sum->of[i][2 * v], s[i], left);
        sum->of[i][2 * v + 1] = vbfmmlaq_f32(sum->of[i][2 * v + 1], s[i], right);
    }
}

OMP_INLINE void mmla_pieces(float *restrict buffer, const piece_bf16 *piece, int64_t count,
                            const float *restrict b, int64_t shift, bool resume, const int n)
{
    bfloat16x8_t tile[MMLA_ROWS];
    mmla_sums sum;
    mmla_load(&sum, buffer, NR_bf16, VL_bf16, resume, n);
    for (int64_t e = 0; e < count; e++) {
        const float *restrict s = piece[e].s + shift;
        const float *restrict x = b + piece[e].first * NR_bf16;
        int64_t k = piece[e].depth;
        for (; k >= TILE_DEPTH; k -= TILE_DEPTH) {
            mmla_tile(tile, s);
            _Pragma("GCC unroll 4") for (int v = 0; v < n; v++) mmla_step(
                &sum, v, tile, vld1q_f32(x + v * VL_bf16), vld1q_f32(x + NR_bf16 + v * VL_bf16));
            s += TILE_DEPTH * DSD_MR;
            x += TILE_DEPTH * NR_bf16;
        }
        if (k) { /* B ends with the first row */
            mmla_tile(tile, s);
            _Pragma("GCC unroll 4") for (int v = 0; v < n; v++)
                mmla_step(&sum, v, tile, vld1q_f32(x + v * VL_bf16), vdupq_n_f32(0));
        }
    }
    mmla_store(&sum, buffer, NR_bf16, VL_bf16, n);
}

static void tile_wide_bf16(float *restrict buffer, const piece_bf16 *piece, int64_t count,
                           const float *restrict b, int64_t shift, int64_t block_depth,
                           int64_t from, int64_t lines, bool resume)
{
    (void)block_depth;
    (void)from;
    (void)lines;
    mmla_pieces(buffer, piece, count, b, shift, resume, DSD_NV);
}

static void tile_narrow_bf16(float *restrict buffer, const piece_bf16 *piece, int64_t count,
                             const float *restrict b, int64_t shift, int64_t block_depth,
                             int64_t from, int64_t lines, bool resume)
{
    (void)block_depth;
    (void)from;
    (void)lines;
    mmla_pieces(buffer, piece, count, b, shift, resume, 1);
}

static tile_fn_bf16 tile_choose_bf16(const dsd_bf16 *d, bool copy, int64_t vectors)
{
    (void)d;
    (void)copy;
    return vectors == 1 ? tile_narrow_bf16 : tile_wide_bf16;
}

/* out: tiles [MR][VL] of n strips += a b over steps, a multiple of TILE_DEPTH. */
OMP_INLINE void mmla_strips(float *restrict out, const float *restrict a, const float *restrict b0,
                            const float *restrict b1, int64_t steps, bool resume, const int n)
{
    bfloat16x8_t tile[MMLA_ROWS];
    mmla_sums sum;
    mmla_load(&sum, out, VL_bf16, SDD_MR * VL_bf16, resume, n);
    for (int64_t k = 0; k < steps; k += TILE_DEPTH) {
        mmla_tile(tile, a + k * SDD_MR);
        _Pragma("GCC unroll 2") for (int v = 0; v < n; v++)
        {
            const float *b = (v ? b1 : b0) + k * VL_bf16;
            mmla_step(&sum, v, tile, vld1q_f32(b), vld1q_f32(b + VL_bf16));
        }
    }
    mmla_store(&sum, out, VL_bf16, SDD_MR * VL_bf16, n);
}

static void sdd_tile_one_bf16(float *restrict out, const float *restrict a,
                              const float *restrict b0, const float *restrict b1, int64_t steps,
                              bool resume)
{
    mmla_strips(out, a, b0, b1, steps, resume, 1);
}

static void sdd_tile_two_bf16(float *restrict out, const float *restrict a,
                              const float *restrict b0, const float *restrict b1, int64_t steps,
                              bool resume)
{
    mmla_strips(out, a, b0, b1, steps, resume, 2);
}

#endif
