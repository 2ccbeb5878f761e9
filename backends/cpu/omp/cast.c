/* Casts between numbers, copies of any type, and transposes of both. */
#include "walk.h"

OMP_DECLARE(cast);
OMP_PREPARE_NONE(cast)

enum { TILE = 64 };

/* Either rows along which both are contiguous, or matrices whose columns are the rows of x. */
typedef struct cast_plan {
    walk w;
    bool transposes;
    int32_t across; /* the dimension along which x is contiguous */
} cast_plan;

static bool cast_make(cast_plan *c, const bsk_cast_params *p)
{
    const bsk_tensor *const tensors[] = {&p->y, &p->x};
    walk *w = &c->w;
    c->across = 0;
    c->transposes = !walk_make(w, tensors, 2);
    if (!c->transposes)
        return w->step[1] == 1 || w->inner <= 1; /* repeated elements are rare */
    if (w->step[0] != 1)
        return false;
    while (c->across < w->rank && w->strides[1][c->across] != 1)
        c->across++;
    return c->across < w->rank;
}

static bool is_number(bsk_dtype type)
{
    return (BSKI_FLOATS | BSKI_SCALED) >> type & 1;
}

/* Whether f32 holds the numbers of both. */
static bool cast_is_narrow(const bsk_cast_params *p)
{
    const uint32_t both = BSK_DTYPE_BIT(p->x.dtype) | BSK_DTYPE_BIT(p->y.dtype);
    return !(both & ~((BSKI_FLOATS | BSKI_SCALED) & ~BSK_DTYPE_BIT(BSK_F64)));
}

OMP_ACCEPT(cast)
{
    const bsk_cast_params *p = problem->params;
    cast_plan c;
    (void)props;
    if (p->x.dtype != p->y.dtype && !(is_number(p->x.dtype) && is_number(p->y.dtype)))
        return BSK_REFUSE_DTYPE;
    if (!cast_make(&c, p))
        return BSK_REFUSE_STRIDE;
    if (c.transposes && !cast_is_narrow(p) && p->x.dtype != p->y.dtype)
        return BSK_REFUSE_DTYPE;
    return BSK_ACCEPT;
}

/* --- f8: bski_f8e4m3_to_f32 and its like without branches, of which compilers make vectors ------- */

OMP_INLINE float f8_to_f32(uint32_t b, bool e4m3)
{
    const int shift = e4m3 ? 20 : 21;
    const uint32_t a = b & 0x7f, bias = e4m3 ? 120 : 112, special = e4m3 ? 0x7f : 0x7c;
    const uint32_t small = bski_f32_bits((float)(int32_t)a * (e4m3 ? 0x1p-9f : 0x1p-16f));
    const uint32_t nan = e4m3 || a > special ? 0x7fc00000u : 0x7f800000u;
    uint32_t u = (a << shift) + (bias << 23);
    u = a >> (23 - shift) ? u : small;
    u = a >= special ? nan | (e4m3 ? 0 : a << shift) : u;
    return bski_bits_f32(u | (b & 0x80) << 24);
}

OMP_INLINE uint8_t f32_to_f8(float v, bool e4m3)
{
    const int shift = e4m3 ? 20 : 21;
    const uint32_t u = bski_f32_bits(v), a = u & 0x7fffffffu, low = e4m3 ? 121 : 113;
    const uint32_t grid = (low + (uint32_t)shift) << 23;
    const uint32_t small = bski_f32_bits(bski_bits_f32(a) + bski_bits_f32(grid)) - grid;
    uint32_t b = (a + (1u << (shift - 1)) - 1 + (a >> shift & 1) - ((low - 1) << 23)) >> shift;
    b = a < low << 23 ? small : b;
    b = a >= (e4m3 ? 0x43e00000u : 0x47600000u) ? (e4m3 ? 0x7e : 0x7b) : b;
    b = a > 0x7f800000u ? 0x7f : b;
    return (uint8_t)(b | (u >> 24 & 0x80));
}

static void numbers_load(float *restrict row, bsk_dtype type, const void *x, int64_t at,
                         int64_t count)
{
    const uint8_t *bytes = (const uint8_t *)x + at;
    if (type == BSK_F8E4M3)
        for (int64_t i = 0; i < count; i++)
            row[i] = f8_to_f32(bytes[i], true);
    else if (type == BSK_F8E5M2)
        for (int64_t i = 0; i < count; i++)
            row[i] = f8_to_f32(bytes[i], false);
    else
        row_load_f32(row, type, x, at, count);
}

static void numbers_store(const float *restrict row, bsk_dtype type, void *y, int64_t at,
                          int64_t count, bool stream)
{
    uint8_t *restrict bytes = (uint8_t *)y + at;
    if (type == BSK_F8E4M3)
        for (int64_t i = 0; i < count; i++)
            bytes[i] = f32_to_f8(row[i], true);
    else if (type == BSK_F8E5M2)
        for (int64_t i = 0; i < count; i++)
            bytes[i] = f32_to_f8(row[i], false);
    else
        row_put(row, type, y, at, count, stream);
}

/* --- transposes ------------------------------------------------------------------------------- */

/* A square of elements. Floats that change their type pass as f32; else the elements' bits do, in
 * words of 4 or 8 bytes. */
typedef union cast_tile {
    float f32[TILE * TILE];
    uint32_t bits[TILE * TILE];
    double f64[TILE * TILE];
} cast_tile;

static void tile_load(cast_tile *tile, int64_t row, const bsk_cast_params *p, const void *x,
                      int64_t at, int64_t count)
{
    uint32_t *bits = tile->bits + row * TILE;
    switch (p->x.dtype == p->y.dtype ? element_size(p->x.dtype) : 0) {
    case 1:
        for (int64_t i = 0; i < count; i++)
            bits[i] = ((const uint8_t *)x)[at + i];
        break;
    case 2:
        for (int64_t i = 0; i < count; i++)
            bits[i] = ((const uint16_t *)x)[at + i];
        break;
    case 4:
        row_copy(bits, (const uint32_t *)x + at, (size_t)count * 4);
        break;
    case 8:
        row_copy(tile->f64 + row * TILE, (const double *)x + at, (size_t)count * 8);
        break;
    default:
        numbers_load(tile->f32 + row * TILE, p->x.dtype, x, at, count);
    }
}

static void tile_store(const cast_tile *tile, int64_t row, const bsk_cast_params *p, void *y,
                       int64_t at, int64_t count)
{
    const uint32_t *bits = tile->bits + row * TILE;
    switch (p->x.dtype == p->y.dtype ? element_size(p->x.dtype) : 0) {
    case 1:
        for (int64_t i = 0; i < count; i++)
            ((uint8_t *)y)[at + i] = (uint8_t)bits[i];
        break;
    case 2:
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)y)[at + i] = (uint16_t)bits[i];
        break;
    case 4:
        row_copy((uint32_t *)y + at, bits, (size_t)count * 4);
        break;
    case 8:
        row_copy((double *)y + at, tile->f64 + row * TILE, (size_t)count * 8);
        break;
    default:
        numbers_store(tile->f32 + row * TILE, p->y.dtype, y, at, count, false);
    }
}

static void tile_turn(cast_tile *to, const cast_tile *from, int64_t rows, int64_t columns,
                      bool wide)
{
    const int64_t square = wide ? SQUARE_f64 : SQUARE_f32;
    for (int64_t r = 0; r < rows; r += square)
        for (int64_t c = 0; c < columns; c += square)
            if (wide)
                transpose_square_f64(to->f64 + r * TILE + c, TILE, from->f64 + c * TILE + r, TILE);
            else
                transpose_square_f32(to->f32 + r * TILE + c, TILE, from->f32 + c * TILE + r, TILE);
}

static int64_t cast_tiles(const cast_plan *c)
{
    const int64_t across = c->w.dims[c->across];
    const int64_t tiles = bski_ceil_div(across, TILE) * bski_ceil_div(c->w.inner, TILE);
    return across && c->w.rows ? c->w.rows / across * tiles : 0;
}

/* Tile number i, matrix by matrix. */
static void cast_tile_run(const cast_plan *c, const bsk_cast_params *p, const void *x, void *y,
                          int64_t i, cast_tile *from, cast_tile *to)
{
    const walk *w = &c->w;
    const int64_t down = bski_ceil_div(w->dims[c->across], TILE);
    const int64_t right = bski_ceil_div(w->inner, TILE);
    const int64_t row = i / right % down * TILE, column = i % right * TILE;
    const int64_t rows = min_i64(TILE, w->dims[c->across] - row);
    const int64_t columns = min_i64(TILE, w->inner - column);
    const int64_t y_row = w->strides[0][c->across], x_column = w->strides[1][w->rank];
    int64_t x_at = row + column * x_column, y_at = row * y_row + column;
    i /= down * right;
    for (int32_t d = w->rank - 1; d >= 0; d--) {
        if (d == c->across)
            continue;
        x_at += i % w->dims[d] * w->strides[1][d];
        y_at += i % w->dims[d] * w->strides[0][d];
        i /= w->dims[d];
    }
    for (int64_t k = 0; k < columns; k++)
        tile_load(from, k, p, x, x_at + k * x_column, rows);
    tile_turn(to, from, rows, columns, element_size(p->x.dtype) == 8);
    for (int64_t k = 0; k < rows; k++)
        tile_store(to, k, p, y, y_at + k * y_row, columns);
}

OMP_LAUNCH(cast)
{
    const bsk_cast_params *p = prepared->problem->params;
    const bsk_cast_args *a = args;
    const void *x = bsk_mem_address(a->x);
    void *y = bsk_mem_address(a->y);
    cast_plan c;

    cast_make(&c, p);
    const bool narrow = p->x.dtype != p->y.dtype && p->x.dtype != BSK_F64;
    const bool stream =
        is_narrow(&p->x) && is_narrow(&p->y) && streams(p->y.dtype, c.w.rows, c.w.inner);
#pragma omp parallel num_threads(queue_threads(queue))
    if (c.transposes) {
        cast_tile from, to;
        memset(&from, 0, sizeof from);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < cast_tiles(&c); i++)
            cast_tile_run(&c, p, x, y, i, &from, &to);
    } else {
        float row[CHUNK];
#pragma omp for schedule(static)
        for (int64_t i = 0; i < walk_pieces(&c.w); i++) {
            const walk_piece at = walk_at(&c.w, i);
            if (narrow) {
                numbers_load(row, p->x.dtype, x, at.at[1], at.count);
                numbers_store(row, p->y.dtype, y, at.at[0], at.count, stream);
            } else {
                row_convert(p->x.dtype, x, at.at[1], p->y.dtype, y, at.at[0], at.count);
            }
        }
        stream_fence();
    }
    return BSK_OK;
}
