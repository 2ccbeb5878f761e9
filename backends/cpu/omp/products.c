/* The block-sparse products, dsd and sdd, in f32 and in f64 arithmetic. */
#include <stdbool.h>

#include "act.h"
#include "deal.h"
#include "isa.h"
#include "rows.h"

/* Bytes: of packed operands at a time, and of those of dsd, which are used at once; of S in one task
 * of dsd; of outputs that go past the caches, as they would be read and swept out for nothing. */
enum { PACKED = 64 << 20, DSD_PACKED = 8 << 20, DSD_TASK = 256 << 10, DSD_PAST = 2 << 20 };

/* The first block row of one of `ranges` ranges with about equal numbers of blocks. Each row counts
 * as one more block, so that empty rows are shared out as well. start: the rows' lists. */
static int64_t range_start(const int64_t *start, int64_t grid, int64_t range, int64_t ranges)
{
    const int64_t total = start[grid] - start[0] + grid;
    const int64_t target = (int64_t)((double)total * (double)range / (double)ranges);
    int64_t low = 0, high = grid;

    if (range >= ranges)
        return grid;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (start[middle] - start[0] + middle < target)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The first entry of a sorted list whose column is not below col. */
static int64_t list_find(const int32_t *row_col, int64_t low, int64_t high, int64_t col)
{
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (row_col[middle] < col)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#if VEC_PAIRS
/* Two elements, over and over. */
OMP_INLINE vec_f32 splat_pair_f32(const float *two)
{
    typedef int64_t wide __attribute__((vector_size(VEC_BYTES)));
    int64_t bits;
    memcpy(&bits, two, sizeof bits);
    return (vec_f32)(bits - (wide){0});
}
#endif

#ifdef BSK_ISA_AVX512
#define TRANSPOSE_LARGE transpose_large_f32
#endif
#if defined(BSK_ISA_AVX512) || defined(BSK_ISA_AVX2)
#define TRANSPOSE_QUAD transpose_quad_f32
#define QUADS_LOAD     quads_load_f32
#endif
#if !defined(MATRIX_TILES)
#define GEMV
#ifdef BSK_ISA_AVX512
#define FEW
#endif
#endif

#ifdef PRODUCTS_WIDE
#define UNIT     1
#define T        float
#define V        vec_f32
#define FN(name) name##_f32
#define OWN      BSK_F32
#define STORED   OWN
#define S_STORED T
#define PAIRS    VEC_PAIRS
#define GEMV_HALVES
#include "tile.h"
#define PANELS_SPREAD rows_spread_f32
#include "dsd.h"
#include "sdd.h"
#undef PANELS_SPREAD
#undef GEMV_HALVES
#undef T
#undef V
#undef OWN
#undef STORED
#undef S_STORED
#undef PAIRS
#undef FN
#undef UNIT
#endif

#ifdef PRODUCTS_BF16
#include "pairs.h"

#define UNIT         2
#define T            float
#define V            vec_f32
#define FN(name)     name##_bf16
#define OWN          BSK_F32
#define STORED       BSK_BF16
#define S_STORED     uint16_t
#define PAIRS        VEC_PAIRS
#define TILE_PRODUCT _tile_dpbf16ps
#include "tile.h"

static void depth_load_bf16(float *restrict dst, int64_t ld, const matrix_bf16 *m, int64_t row,
                            int64_t col, int64_t rows, int64_t cols, int64_t end)
{
    const int64_t whole = min_i64(rows, end / 2 - row);
    const uint16_t *src = (const uint16_t *)(const void *)m->data + col * m->col_stride;
    int64_t done = 0;
    /* Where the depth is contiguous, pairs lie in memory as they are wanted. */
    if (m->row_stride == 1 && m->col_stride % 2 == 0 && whole > 0 &&
        (uintptr_t)m->data % sizeof(pair_bits) == 0 && col * m->col_stride % 2 == 0) {
        const matrix_bf16 pairs = {BSK_F32, 1, m->col_stride / 2, m->data};
        tile_load_bf16(dst, ld, &pairs, row, col, whole, cols);
        done = whole;
    }
    pairs_load((pair_bits *)dst + done * ld, ld, src + 2 * (row + done) * m->row_stride,
               m->row_stride, m->col_stride, rows - done, cols, end - 2 * (row + done));
}

#define PANELS_SPREAD pairs_spread
#ifdef BSK_ISA_AMX
#define TURNS
#endif
#include "dsd.h"
#include "sdd.h"
#undef PANELS_SPREAD
#undef TURNS
#undef T
#undef V
#undef OWN
#undef STORED
#undef S_STORED
#undef PAIRS
#undef FN
#undef UNIT
#undef TILE_PRODUCT
#endif

#ifdef PRODUCTS_I8
#include "ints.h"

#undef GEMV
#undef FEW
#define INTEGER
#define UNIT         INT_UNIT
#define T            float
#define V            vec_f32
#define FN(name)     name##_i8
#define OWN          BSK_F32
#define STORED       BSK_I8
#define S_STORED     int8_t
#define PAIRS        VEC_PAIRS
#define TILE_PRODUCT _tile_dpbssd
#include "tile.h"

static void depth_load_i8(float *restrict dst, int64_t ld, const matrix_i8 *m, int64_t row,
                          int64_t col, int64_t rows, int64_t cols, int64_t end)
{
    const int64_t rs = m->row_stride, cs = m->col_stride;
    const int64_t whole = max_i64(0, min_i64(rows, end / UNIT - row));
    const int8_t *src = (const int8_t *)m->data + row * UNIT * rs + col * cs;
    float run[TURN_i8 * RUN_i8];

    if (cs == 1)
        for (int64_t r = 0; r < whole; r++)
            units_load_i8((int_bits *)dst + r * ld, src + r * UNIT * rs, rs, cols);
    else if (rs == 1 && UNIT == sizeof(float) && cs % UNIT == 0 && (uintptr_t)src % UNIT == 0)
        transpose_i8(dst, ld, (const float *)(const void *)src, cs / UNIT, whole, cols);
    else if (rs == 1)
        for (int64_t c = 0; c < cols; c += TURN_i8)
            for (int64_t r = 0; r < whole; r += RUN_i8) {
                const int64_t n = min_i64(RUN_i8, whole - r), w = min_i64(TURN_i8, cols - c);
                for (int64_t k = 0; k < w; k++)
                    run_load_i8((int_bits *)run + k * RUN_i8, src + r * UNIT + (c + k) * cs, n);
                transpose_i8(dst + r * ld + c, ld, run, RUN_i8, n, w);
            }
    for (int64_t r = cs == 1 || rs == 1 ? whole : 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            ((int_bits *)dst)[r * ld + c] =
                unit_of_i8(src + r * UNIT * rs + c * cs, rs, end - (row + r) * UNIT);
}

#include "dsd.h"
#include "sdd.h"
#undef INTEGER
#undef T
#undef V
#undef OWN
#undef STORED
#undef S_STORED
#undef PAIRS
#undef FN
#undef UNIT
#endif

#ifdef PRODUCTS_WIDE
#undef TRANSPOSE_LARGE
#undef TRANSPOSE_QUAD
#undef QUADS_LOAD
#undef FEW
#define GEMV
#define UNIT     1
#define T        double
#define V        vec_f64
#define FN(name) name##_f64
#define OWN      BSK_F64
#define STORED   OWN
#define S_STORED T
#define PAIRS    0
#include "tile.h"
#include "dsd.h"
#include "sdd.h"
#endif

/* few: whether another entry is the faster one for so few columns. */
#define PRODUCT_FUNCTIONS(op, type, gates, few)                                                    \
    OMP_DECLARE(op##_##type);                                                                      \
    OMP_ACCEPT(op##_##type)                                                                        \
    {                                                                                              \
        const bsk_##op##_params *p = problem->params;                                              \
        op##_##type shape;                                                                         \
        size_t bytes;                                                                              \
        (void)props;                                                                               \
        if (!(gates) && p->gate.dtype != BSK_NONE)                                                 \
            return BSK_REFUSE_OPTION;                                                              \
        if (!op##_shape_##type(problem, &shape, &bytes))                                           \
            return BSK_REFUSE_LIMIT;                                                               \
        return (few) ? BSK_REFUSE_SHAPE : BSK_ACCEPT;                                              \
    }                                                                                              \
    OMP_LAUNCH(op##_##type)                                                                        \
    {                                                                                              \
        op##_run_##type(prepared, queue_threads(queue), args);                                     \
        return BSK_OK;                                                                             \
    }

#define DSD_ENTRY(type, gates)                                                                     \
    PRODUCT_FUNCTIONS(dsd, type, gates, dsd_gemv_##type(&shape))                                   \
    OMP_PREPARE(dsd_##type)                                                                        \
    {                                                                                              \
        dsd_##type d;                                                                              \
        size_t *bytes = &prepared->workspace_bytes;                                                \
        (void)device;                                                                              \
        if (!dsd_shape_##type(prepared->problem, &d, bytes) || !gemv_room_##type(&d, bytes))       \
            return BSK_E_UNSUPPORTED;                                                              \
        prepared->packed_bytes = image_bytes_##type(&d);                                           \
        return !image_own_##type(&d) || bski_add_size(*bytes, prepared->packed_bytes, bytes)       \
                   ? BSK_OK                                                                        \
                   : BSK_E_UNSUPPORTED;                                                            \
    }                                                                                              \
    OMP_DECLARE_PACK(dsd_##type);                                                                  \
    OMP_PACK(dsd_##type)                                                                           \
    {                                                                                              \
        dsd_pack_##type(prepared, queue_threads(queue), s, packed);                                \
        return BSK_OK;                                                                             \
    }

#define SDD_ENTRY(type)                                                                            \
    PRODUCT_FUNCTIONS(sdd, type, true, false)                                                      \
    OMP_PREPARE(sdd_##type)                                                                        \
    {                                                                                              \
        sdd_##type shape;                                                                          \
        (void)device;                                                                              \
        return sdd_shape_##type(prepared->problem, &shape, &prepared->workspace_bytes)             \
                   ? BSK_OK                                                                        \
                   : BSK_E_UNSUPPORTED;                                                            \
    }

#ifdef PRODUCTS_WIDE
DSD_ENTRY(f32, true)
DSD_ENTRY(f64, true)
SDD_ENTRY(f32)
SDD_ENTRY(f64)
#endif
#ifdef PRODUCTS_BF16
DSD_ENTRY(bf16, false)
SDD_ENTRY(bf16)
#endif
#ifdef PRODUCTS_I8
DSD_ENTRY(i8, false)
SDD_ENTRY(i8)
#endif
