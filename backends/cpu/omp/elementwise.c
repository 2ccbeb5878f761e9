/* Functions of one number, and dropout. */
#include "lines.h"
#include "random.h"
#include "walk.h"

/* row[i] = expression of x = row[i], for whole vectors. */
#define ROW_OF(expression)                                                                         \
    EACH_VECTOR(i_, count)                                                                         \
    {                                                                                              \
        const vec_f32 x = load_f32(row + i_);                                                      \
        store_f32(row + i_, expression);                                                           \
    }                                                                                              \
    break

/* --- unary ------------------------------------------------------------------------------------ */

static void sqrt_row(float *row, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        row[i] = sqrtf(row[i]);
}

static void unary_row(bsk_unary_kind kind, float c, float *row, int64_t count)
{
    const vec_f32 zero = {0};
    switch (kind) {
    case BSK_UNARY_NEG:
        ROW_OF(-x);
    case BSK_UNARY_RCP:
        ROW_OF(1.0f / x);
    case BSK_UNARY_SQR:
        ROW_OF((x * x));
    case BSK_UNARY_SQRT:
        sqrt_row(row, count);
        break;
    case BSK_UNARY_EXP:
        ROW_OF(exp_f32(x));
    case BSK_UNARY_LOG:
        ROW_OF(log_f32(x));
    case BSK_UNARY_SIGMOID:
        ROW_OF(sigmoid_f32(x));
    case BSK_UNARY_TANH:
        ROW_OF(tanh_f32(x));
    case BSK_UNARY_RELU:
        ROW_OF(select_f32(x <= zero, zero, x));
    case BSK_UNARY_ELU:
        ROW_OF(select_f32(x > zero, x, c * expm1_f32(select_f32(x > zero, zero, x))));
    case BSK_UNARY_GELU:
        act_row_f32(BSK_ACT_GELU, row, count);
        break;
    case BSK_UNARY_GELU_ERF:
        act_row_f32(BSK_ACT_GELU_ERF, row, count);
        break;
    default: /* BSK_UNARY_SWISH */
        ROW_OF(gated_f32(x, c * LOG_BASE * x));
    }
}

/* e^-|x| / (1 + e^-|x|)^2, the derivative of the sigmoid. */
OMP_INLINE vec_f32 sigmoid_slope(vec_f32 x)
{
    const vec_f32 e = exp_f32(-abs_f32(x)), s = 1.0f / (e + 1.0f);
    return e * s * s;
}

/* The derivative, from the input; of what unary_grad_row does not divide. */
static void unary_slope_row(bsk_unary_kind kind, float c, float *row, int64_t count)
{
    const vec_f32 zero = {0}, one = splat_f32(1);
    switch (kind) {
    case BSK_UNARY_NEG:
        EACH_VECTOR(i, count) store_f32(row + i, -one);
        break;
    case BSK_UNARY_SQR:
        ROW_OF(x + x);
    case BSK_UNARY_SQRT:
        sqrt_row(row, count);
        ROW_OF(0.5f / x);
    case BSK_UNARY_EXP:
        ROW_OF(exp_f32(x));
    case BSK_UNARY_SIGMOID:
        ROW_OF(sigmoid_slope(x));
    case BSK_UNARY_TANH:
        ROW_OF(4.0f * sigmoid_slope(x + x));
    case BSK_UNARY_RELU:
        act_slope_row_f32(BSK_ACT_RELU, row, count);
        break;
    case BSK_UNARY_ELU:
        ROW_OF(select_f32(x > zero, one, c * exp_f32(x)));
    case BSK_UNARY_GELU:
        act_slope_row_f32(BSK_ACT_GELU, row, count);
        break;
    case BSK_UNARY_GELU_ERF:
        act_slope_row_f32(BSK_ACT_GELU_ERF, row, count);
        break;
    default: /* BSK_UNARY_SWISH */
        ROW_OF(gated_slope(x, c * LOG_BASE * x, splat_f32(c)));
    }
}

/* The same from the output. */
static void unary_output_slope_row(bsk_unary_kind kind, float c, float *row, int64_t count)
{
    const vec_f32 zero = {0}, one = splat_f32(1);
    switch (kind) {
    case BSK_UNARY_EXP:
        break;
    case BSK_UNARY_SIGMOID:
        ROW_OF(x * (one - x));
    case BSK_UNARY_TANH:
        ROW_OF((one - x) * (one + x));
    case BSK_UNARY_ELU:
        ROW_OF(select_f32(x > zero, one, x + c));
    default: /* BSK_UNARY_NEG and BSK_UNARY_RELU, which need not tell the two apart */
        unary_slope_row(kind, c, row, count);
    }
}

/* dy times the derivative from x or, with output, from y. Where the derivative may be beyond f32 and
 * the product is not, dy is divided instead. */
static void unary_grad_row(bsk_unary_kind kind, bool output, float c, float *row, float *slope,
                           int64_t count)
{
    if (kind == BSK_UNARY_RCP && output) {
        EACH_VECTOR(i, count)
        {
            const vec_f32 y = load_f32(slope + i);
            store_f32(row + i, -(load_f32(row + i) * y) * y);
        }
    } else if (kind == BSK_UNARY_RCP) {
        EACH_VECTOR(i, count)
        {
            const vec_f32 x = load_f32(slope + i);
            store_f32(row + i, -(load_f32(row + i) / x) / x);
        }
    } else if (kind == BSK_UNARY_LOG) {
        EACH_VECTOR(i, count) store_f32(row + i, load_f32(row + i) / load_f32(slope + i));
    } else if (kind == BSK_UNARY_SQRT && output) {
        EACH_VECTOR(i, count) store_f32(row + i, 0.5f * load_f32(row + i) / load_f32(slope + i));
    } else {
        (output ? unary_output_slope_row : unary_slope_row)(kind, c, slope, count);
        EACH_VECTOR(i, count) store_f32(row + i, load_f32(row + i) * load_f32(slope + i));
    }
}

OMP_WALK(unary, &p->y, &p->x)

OMP_LAUNCH(unary)
{
    const bsk_unary_params *p = prepared->problem->params;
    const bsk_unary_args *a = args;
    const void *x = bsk_mem_address(a->x);
    void *y = bsk_mem_address(a->y);
    walk w;

    unary_walk(p, &w);
    const bool stream = streams(p->y.dtype, w.rows, w.inner);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        float row[CHUNK];
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < walk_pieces(&w); i++) {
            const walk_piece whole = walk_at(&w, i), later = walk_ahead(&w, i);
            for (int64_t k = 0; k < whole.count; k += STRETCH) {
                const walk_piece at = walk_part(&w, &whole, k);
                walk_load(&w, &at, 1, p->x.dtype, x, row);
                row_fetch(p->x.dtype, x, later.at[1] + k * w.step[1], at.count);
                unary_row(p->kind, (float)p->coefficient, row, at.count);
                row_put(row, p->y.dtype, y, at.at[0], at.count, stream);
            }
        }
        stream_fence();
    }
    return BSK_OK;
}

OMP_WALK(unary_grad, &p->dx, &p->dy, &p->x, &p->y)

OMP_LAUNCH(unary_grad)
{
    const bsk_unary_grad_params *p = prepared->problem->params;
    const bsk_unary_grad_args *a = args;
    const void *dy = bsk_mem_address(a->dy);
    void *dx = bsk_mem_address(a->dx);
    const bool output = p->y.dtype != BSK_NONE, other = output || p->x.dtype != BSK_NONE;
    const bsk_dtype saved_type = output ? p->y.dtype : p->x.dtype;
    const void *saved_at = bsk_mem_address(output ? a->y : a->x);
    const int32_t saved = output ? 3 : 2; /* among the tensors of the walk */
    const float c = (float)p->coefficient;
    walk w;

    unary_grad_walk(p, &w);
    const bool stream = a->beta == 0 && streams(p->dx.dtype, w.rows, w.inner);
#pragma omp parallel num_threads(queue_threads(queue))
    {
        float row[CHUNK], slope[CHUNK] = {0};
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < walk_pieces(&w); i++) {
            const walk_piece whole = walk_at(&w, i), later = walk_ahead(&w, i);
            for (int64_t k = 0; k < whole.count; k += STRETCH) {
                const walk_piece at = walk_part(&w, &whole, k);
                walk_load(&w, &at, 1, p->dy.dtype, dy, row);
                row_fetch(p->dy.dtype, dy, later.at[1] + k * w.step[1], at.count);
                if (other) {
                    walk_load(&w, &at, saved, saved_type, saved_at, slope);
                    row_fetch(saved_type, saved_at, later.at[saved] + k * w.step[saved], at.count);
                }
                unary_grad_row(p->kind, output, c, row, slope, at.count);
                row_blend(row, a->alpha, a->beta, p->dx.dtype, dx, at.at[0], at.count);
                row_put(row, p->dx.dtype, dx, at.at[0], at.count, stream);
            }
        }
        stream_fence();
    }
    return BSK_OK;
}

/* --- dropout ---------------------------------------------------------------------------------- */

OMP_DECLARE(dropout);
OMP_PREPARE_NONE(dropout)

OMP_ACCEPT(dropout)
{
    const bsk_dropout_params *p = problem->params;
    walk w;
    (void)props;
    if (!is_narrow(&p->x) || !is_narrow(&p->y))
        return BSK_REFUSE_DTYPE;
    return walk_numbered(&w, &p->y, &p->x, p->shared) ? BSK_ACCEPT : BSK_REFUSE_STRIDE;
}

/* Words of a stretch of elements, and of one before them. */
enum { DROP_WORDS = STRETCH / 2 + 2 + RANDOM_SLACK };

typedef struct drop_job drop_job;
typedef int64_t drop_batches_fn(const drop_job *d, const walk_piece *at, int64_t ahead);

struct drop_job {
    drop_batches_fn *batches;
    const void *x;
    void *y;
    bsk_dtype x_type, y_type;
    int32_t limit;
    float scale;
    uint64_t seed, offset;
    bool stream;
#if defined(BSK_ISA_AVX512)
    random_batch words; /* of the lowest counters */
#endif
};

#if defined(BSK_ISA_AVX512)
/* Elements of a batch: two for each word. */
enum { BATCH = 2 * BATCH_PAIRS * PAIR };

/* A batch: its words, then loads and stores, while the words of the next are computed. */
OMP_INLINE void drop_batch(const random_batch *b, uint64_t counter, const void *x, void *y,
                           const void *ahead, bsk_dtype x_type, bsk_dtype y_type, __m512i last,
                           float scale, bool split, bool stream)
{
    __m512i words[BATCH_PAIRS][2];
    random_pairs(b, counter, words);
    lines_fetch(x_type, ahead, 0, BATCH);
    _Pragma("GCC unroll 8") for (int i = 0; i < 2 * BATCH_PAIRS; i++)
    {
        const __mmask32 kept = _mm512_cmple_epu16_mask(words[i / 2][i % 2], last);
        line_pair p = pair_load(x_type, x, i * PAIR, split);
        if (split) {
            p.v[0] *= scale;
            p.v[1] *= scale;
            const __m512i joined = _mm512_maskz_mov_epi16(kept, (__m512i)pair_join(p));
            vector_put((uint16_t *)y + i * PAIR, &joined, stream);
        } else {
            for (int j = 0; j < 2; j++)
                p.v[j] = (vec_f32)_mm512_maskz_mul_ps((__mmask16)(kept >> 16 * j), (__m512)p.v[j],
                                                      _mm512_set1_ps(scale));
            pair_put(y_type, y, i * PAIR, p, false, stream);
        }
    }
}

/* How many elements at the beginning of a part, each with a number of its own, went by batches. */
OMP_INLINE int64_t drop_batches(const drop_job *d, const walk_piece *at, int64_t ahead,
                                bsk_dtype x_type, bsk_dtype y_type, bool split, bool stream)
{
    const uint64_t first = (uint64_t)at->at[2];
    const __m512i last = _mm512_set1_epi16((short)(d->limit - 1));
    const float scale = d->scale;
    const char *x = line_at(x_type, d->x, at->at[1]), *next = line_at(x_type, d->x, ahead);
    char *y = line_at(y_type, d->y, at->at[0]);
    int64_t k = 0;
    if (first % 8 || !d->limit || first / 8 >> 32 != d->words.upper ||
        (first + (uint64_t)at->count) / 8 >> 32 != d->words.upper)
        return 0;
    for (; k + BATCH <= at->count; k += BATCH)
        drop_batch(&d->words, (first + (uint64_t)k) / 8, x + k * (int64_t)type_size(x_type),
                   y + k * (int64_t)type_size(y_type), next + k * (int64_t)type_size(x_type),
                   x_type, y_type, last, scale, split, stream);
    return k;
}
#elif defined(BSK_ISA_AVX2)
/* The same by words in memory. */
OMP_INLINE int64_t drop_batches(const drop_job *d, const walk_piece *at, int64_t ahead,
                                bsk_dtype x_type, bsk_dtype y_type, bool split, bool stream)
{
    uint32_t buffer[DROP_WORDS] __attribute__((aligned(64)));
    const uint64_t first = (uint64_t)at->at[2];
    const __m256i last = _mm256_set1_epi16((short)(d->limit - 1));
    int64_t k = 0;
    if (first % 2 || !d->limit)
        return 0;
    for (; k + STRETCH <= at->count; k += STRETCH) {
        const uint32_t *word =
            random_words(d->seed, d->offset, (first + (uint64_t)k) / 2, STRETCH / 2, buffer);
        lines_fetch(x_type, d->x, ahead + k, STRETCH);
        for (int64_t i = 0; i < STRETCH; i += PAIR) {
            const __m256i number = _mm256_loadu_si256((const void *)(word + i / 2));
            const __m256i kept = _mm256_cmpeq_epi16(_mm256_min_epu16(number, last), number);
            line_pair p = pair_load(x_type, d->x, at->at[1] + k + i, split);
            p.v[0] *= d->scale;
            p.v[1] *= d->scale;
            if (split) {
                const __m256i joined = _mm256_and_si256(kept, (__m256i)pair_join(p));
                vector_put((uint16_t *)d->y + at->at[0] + k + i, &joined, stream);
                continue;
            }
            const __m256i low = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(kept));
            const __m256i high = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(kept, 1));
            p.v[0] = (vec_f32)((__m256i)p.v[0] & low);
            p.v[1] = (vec_f32)((__m256i)p.v[1] & high);
            pair_put(y_type, d->y, at->at[0] + k + i, p, false, stream);
        }
    }
    return k;
}
#else
/* The same by numbers in memory. */
OMP_INLINE int64_t drop_batches(const drop_job *d, const walk_piece *at, int64_t ahead,
                                bsk_dtype x_type, bsk_dtype y_type, bool split, bool stream)
{
    uint32_t words[DROP_WORDS] __attribute__((aligned(64)));
    uint32_t numbers[STRETCH] __attribute__((aligned(64)));
    int64_t k = 0;
    (void)split;
    for (; k + STRETCH <= at->count; k += STRETCH) {
        random_halves(d->seed, d->offset, (uint64_t)(at->at[2] + k), STRETCH, words, numbers);
        for (int64_t i = 0; i < STRETCH; i += PAIR) {
            line_pair p = pair_load(x_type, d->x, at->at[1] + k + i, false);
            line_fetch(x_type, d->x, ahead + k + i);
            for (int j = 0; j < 2; j++) {
                vec_i32 number;
                memcpy(&number, numbers + i + j * F32_LANES, sizeof number);
                p.v[j] = (vec_f32)((vec_i32)(p.v[j] * d->scale) & (number < d->limit));
            }
            pair_put(y_type, d->y, at->at[0] + k + i, p, false, stream);
        }
    }
    return k;
}
#endif

#define DROP_BATCHES(name, x_type, y_type, split)                                                  \
    static int64_t name(const drop_job *d, const walk_piece *at, int64_t ahead)                    \
    {                                                                                              \
        return d->stream ? drop_batches(d, at, ahead, x_type, y_type, split, true)                 \
                         : drop_batches(d, at, ahead, x_type, y_type, split, false);               \
    }
DROP_BATCHES(drop_batches_f32, BSK_F32, BSK_F32, false)
DROP_BATCHES(drop_batches_bf16, BSK_BF16, BSK_BF16, true)
DROP_BATCHES(drop_batches_mixed, d->x_type, d->y_type, false)

static drop_batches_fn *drop_batches_of(const bsk_dropout_params *p)
{
    if (p->x.dtype != p->y.dtype)
        return drop_batches_mixed;
    return p->x.dtype == BSK_F32    ? drop_batches_f32
           : p->x.dtype == BSK_BF16 ? drop_batches_bf16
                                    : drop_batches_mixed;
}

/* A part in a buffer, each element with a number of its own. */
static void drop_own(const drop_job *d, float *row, uint64_t element, int64_t count)
{
    uint32_t words[DROP_WORDS], numbers[STRETCH];
    random_halves(d->seed, d->offset, element, count, words, numbers);
    for (int64_t k = 0; k < count; k++)
        row[k] = (int32_t)numbers[k] < d->limit ? row[k] * d->scale : 0;
}

/* A part of which all elements share a number, or which repeats one element of x. */
static void drop_row(const drop_job *d, float *row, const bsk_dropout_args *a, uint64_t element,
                     bool own, int64_t count)
{
    uint32_t number = bski_philox_u16(a->seed, a->offset, element);
    for (int64_t k = 0; k < count; k++) {
        if (own && k)
            number = bski_philox_u16(a->seed, a->offset, element + (uint64_t)k);
        row[k] = (int32_t)number < d->limit ? row[k] * d->scale : 0;
    }
}

OMP_LAUNCH(dropout)
{
    const bsk_dropout_params *p = prepared->problem->params;
    const bsk_dropout_args *a = args;
    walk w;

    walk_numbered(&w, &p->y, &p->x, p->shared);
    drop_job d = {.batches = drop_batches_of(p),
                  .x = bsk_mem_address(a->x),
                  .y = bsk_mem_address(a->y),
                  .x_type = p->x.dtype,
                  .y_type = p->y.dtype,
                  .limit = (int32_t)bski_dropout_limit(a->keep),
                  .scale = a->keep > 0 ? (float)(1 / a->keep) : 0,
                  .seed = a->seed,
                  .offset = a->offset,
                  .stream = streams(p->y.dtype, w.rows, w.inner) &&
                            walk_whole(&w, 0, p->y.dtype, bsk_mem_address(a->y))};
#if defined(BSK_ISA_AVX512)
    random_batch_begin(&d.words, a->seed, a->offset, 0);
#endif
#pragma omp parallel num_threads(queue_threads(queue))
    {
        float row[STRETCH];
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < walk_pieces(&w); i++) {
            const walk_piece piece = walk_at(&w, i), ahead = walk_ahead(&w, i);
            const bool own = w.step[1] && w.step[2]; /* of every element, and a number for it */
            const int64_t done = own ? d.batches(&d, &piece, ahead.at[1]) : 0;
            for (int64_t k = done; k < piece.count; k += STRETCH) {
                const walk_piece at = walk_part(&w, &piece, k);
                const uint64_t element = (uint64_t)at.at[2];
                walk_load(&w, &at, 1, d.x_type, d.x, row);
                if (own)
                    drop_own(&d, row, element, at.count);
                else
                    drop_row(&d, row, a, element, w.step[2] != 0, at.count);
                row_put(row, d.y_type, d.y, at.at[0], at.count, d.stream);
            }
        }
        stream_fence();
    }
    return BSK_OK;
}
