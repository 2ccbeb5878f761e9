/* Tiles between memory of any type and strides and buffers of T, and the epilogue that works on
 * them. Included once for each arithmetic type, after T (its name), V (its vector) and FN (the
 * name of an instance) are defined. */

enum { FN(VL) = VEC_BYTES / (int)sizeof(T), FN(RUN) = 64, FN(TURN) = 16, FN(FETCH) = 64 };

OMP_INLINE V FN(vload)(const T *p)
{
    return *(const FN(vec_mem) *)p;
}

OMP_INLINE void FN(vstore)(T *p, V v)
{
    *(FN(vec_mem) *)p = v;
}

/* dst[r * dst_ld + c] = src[c * src_ld + r]. ahead: where src is fetched meanwhile, as there are too
 * many runs of it for the processor to foresee; or 0. */
OMP_INLINE void FN(transpose_ahead)(T *restrict dst, int64_t dst_ld, const T *restrict src,
                                    int64_t src_ld, int64_t rows, int64_t cols, int64_t ahead)
{
    int64_t c = 0;
    (void)ahead;
#ifdef TRANSPOSE_LARGE
    for (; rows % LARGE_f32 == 0 && c + LARGE_f32 <= cols; c += LARGE_f32)
        for (int64_t r = 0; r < rows; r += LARGE_f32) {
            const T *s = src + c * src_ld + r;
            for (int64_t i = 0; ahead && i < LARGE_f32; i++)
                __builtin_prefetch(s + i * src_ld + ahead);
            TRANSPOSE_LARGE(dst + r * dst_ld + c, dst_ld, s, src_ld);
        }
#endif
    for (; c + FN(SQUARE) <= cols; c += FN(SQUARE)) {
        const T *s = src + c * src_ld;
        int64_t r = 0;
        for (; r + FN(SQUARE) <= rows; r += FN(SQUARE))
            FN(transpose_square)(dst + r * dst_ld + c, dst_ld, s + r, src_ld);
#ifdef TRANSPOSE_QUAD
        for (; r + 4 <= rows; r += 4)
            for (int64_t k = 0; k < FN(SQUARE); k += 4)
                TRANSPOSE_QUAD(dst + r * dst_ld + c + k, dst_ld, s + k * src_ld + r, src_ld);
#endif
        for (; r < rows; r++)
            for (int64_t k = 0; k < FN(SQUARE); k++)
                dst[r * dst_ld + c + k] = s[k * src_ld + r];
    }
#ifdef TRANSPOSE_QUAD
    for (; rows % 4 == 0 && c + 4 <= cols; c += 4)
        for (int64_t r = 0; r < rows; r += 4)
            TRANSPOSE_QUAD(dst + r * dst_ld + c, dst_ld, src + c * src_ld + r, src_ld);
#endif
    for (; c < cols; c++)
        for (int64_t r = 0; r < rows; r++)
            dst[r * dst_ld + c] = src[c * src_ld + r];
}

static void FN(transpose)(T *restrict dst, int64_t dst_ld, const T *restrict src, int64_t src_ld,
                          int64_t rows, int64_t cols)
{
    FN(transpose_ahead)(dst, dst_ld, src, src_ld, rows, cols, 0);
}

/* A matrix in memory: element (r, c) at index r * row_stride + c * col_stride. */
typedef struct FN(matrix) {
    bsk_dtype type;
    int64_t row_stride, col_stride;
    char *data;
    bool past; /* the caches: stores, where that is possible */
} FN(matrix);

/* The last two dimensions of a tensor; *member receives the stride of the one before. */
static FN(matrix) FN(matrix_of)(const bsk_tensor *t, bsk_mem mem, int64_t *member)
{
    const int32_t axis = t->rank - 2;
    FN(matrix) m = {BSK_NONE, 0, 0, NULL, false};
    if (t->dtype == BSK_NONE)
        return m;
    *member = axis ? t->strides[0] : 0;
    m.type = t->dtype;
    m.row_stride = t->strides[axis];
    m.col_stride = t->strides[axis + 1];
    m.data = bsk_mem_address(mem);
    return m;
}

static void FN(tile_load)(T *restrict dst, int64_t ld, const FN(matrix) * m, int64_t row,
                          int64_t col, int64_t rows, int64_t cols)
{
    const int64_t rs = m->row_stride, cs = m->col_stride, origin = row * rs + col * cs;
    const bool own = m->type == OWN;

#ifdef QUADS_LOAD
    if (QUADS_LOAD(dst, ld, m->type, m->data, origin, rs, cs, rows, cols))
        return;
#endif
    if (cs == 1 || cols == 1) {
        for (int64_t r = 0; r < rows; r++)
            FN(row_load)(dst + r * ld, m->type, m->data, origin + r * rs, cols);
    } else if (rs == 1 && own) {
        FN(transpose_ahead)
        (dst, ld, (const T *)(const void *)m->data + origin, cs, rows, cols, FN(FETCH));
    } else if (rs == 1 || rows == 1) {
        T run[FN(TURN) * FN(RUN)];
        for (int64_t c = 0; c < cols; c += FN(TURN))
            for (int64_t r = 0; r < rows; r += FN(RUN)) {
                const int64_t n = min_i64(FN(RUN), rows - r), w = min_i64(FN(TURN), cols - c);
                for (int64_t k = 0; k < w; k++)
                    FN(row_load)(run + k * FN(RUN), m->type, m->data, origin + r + (c + k) * cs, n);
                FN(transpose)(dst + r * ld + c, ld, run, FN(RUN), n, w);
            }
    } else {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++)
                FN(row_load)(dst + r * ld + c, m->type, m->data, origin + r * rs + c * cs, 1);
    }
}

#if UNIT == 1
OMP_INLINE V FN(vsplat)(T x)
{
    return x - (V){0}; /* exact, -0 included */
}

OMP_INLINE V FN(madd)(V sum, V x, V y)
{
    return sum + x * y;
}

/* Rows along the depth, of which each holds UNIT elements; `end` counts the elements that exist. */
static void FN(depth_load)(T *restrict dst, int64_t ld, const FN(matrix) * m, int64_t row,
                           int64_t col, int64_t rows, int64_t cols, int64_t end)
{
    (void)end;
    FN(tile_load)(dst, ld, m, row, col, rows, cols);
}
#endif

#ifdef INTEGER
/* `count` sums as numbers, less shift. */
OMP_INLINE void FN(numbers)(T *restrict x, int64_t count, int32_t shift)
{
    const int_sum *sum = (const int_sum *)x;
    for (int64_t i = 0; i < count; i++)
        x[i] = (T)(int32_t)((uint32_t)sum[i] - (uint32_t)shift);
}
#else
/* The sum of two sums, and a sum as a number. */
OMP_INLINE T FN(plus)(T x, T y)
{
    return x + y;
}

OMP_INLINE T FN(number)(T sum)
{
    return sum;
}
#endif

/* The product of the numbers that scale operands of 8 bits; an absent one is 1. */
static inline T FN(operand_scale)(bsk_mem x, bsk_mem y)
{
    const float *a = bsk_mem_address(x), *b = bsk_mem_address(y);
    return (T)(a ? *a : 1) * (T)(b ? *b : 1);
}

static void FN(tile_store)(const T *restrict src, int64_t ld, const FN(matrix) * m, int64_t row,
                           int64_t col, int64_t rows, int64_t cols)
{
    const int64_t rs = m->row_stride, cs = m->col_stride, origin = row * rs + col * cs;
    const bool own = m->type == OWN;

#ifdef TRANSPOSE_LARGE
    if (m->past && own && lines_f32((float *)(void *)m->data + origin, cs == 1 ? rs : cs) &&
        (cs == 1   ? cols
         : rs == 1 ? rows
                   : 1) %
                LARGE_f32 ==
            0) {
        stream_to_f32((float *)(void *)m->data + origin, cs == 1 ? rs : cs, src, ld, rows, cols,
                      cs != 1);
        return;
    }
    uint16_t *line = (uint16_t *)(void *)m->data + origin;
    if (m->past && cs == 1 && m->type == BSK_BF16 && cols % BF16_LINE == 0 &&
        lines_bf16(line, rs)) {
        stream_to_bf16(line, rs, src, ld, rows, cols);
        return;
    }
#endif
    if (cs == 1 || cols == 1) {
        for (int64_t r = 0; r < rows; r++)
            FN(row_store)(src + r * ld, m->type, m->data, origin + r * rs, cols);
    } else if (rs == 1 && own) {
        FN(transpose)((T *)(void *)m->data + origin, cs, src, ld, cols, rows);
#ifdef TRANSPOSE_LARGE
    } else if (rs == 1 && m->type == BSK_BF16 && rows % BF16_LINE == 0 && cols % LARGE_f32 == 0 &&
               cs % 2 == 0 && (uintptr_t)m->data % 4 == 0 && origin % 2 == 0) {
        turn_to_bf16((uint16_t *)(void *)m->data + origin, cs, src, ld, rows, cols, m->past);
#endif
    } else if (rs == 1 || rows == 1) {
        T run[FN(TURN) * FN(RUN)];
        for (int64_t c = 0; c < cols; c += FN(TURN))
            for (int64_t r = 0; r < rows; r += FN(RUN)) {
                const int64_t n = min_i64(FN(RUN), rows - r), w = min_i64(FN(TURN), cols - c);
                FN(transpose)(run, FN(RUN), src + r * ld + c, ld, w, n);
                for (int64_t k = 0; k < w; k++)
                    FN(row_store)
                (run + k * FN(RUN), m->type, m->data, origin + r + (c + k) * cs, n);
            }
    } else {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++)
                FN(row_store)(src + r * ld + c, m->type, m->data, origin + r * rs + c * cs, 1);
    }
}
