/* libxsmm: the kept blocks of each block row by the library's batch-reduce kernel, in f32 and bf16.
 * The library gives the kernel only: the loop around it, its tiles and the packing of the samples
 * are tried out for each case, and the fastest is taken. Packing the samples is timed; the blocks
 * are given as the kernel wants them. */
#define _DEFAULT_SOURCE /* madvise */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libxsmm.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <bench/pages.h>
#include "bench/peers/peer.h"

/* The library sees matrices by columns: c [vector, .] += a [vector, depth] b [depth, .], so with
 * samples as rows the vectors run along the features of a block, else along the samples. */
typedef union xsmm_kernel {
    libxsmm_smmfunction_reducebatch_addr f32;
    libxsmm_bmmfunction_reducebatch_addr bf16;
} xsmm_kernel;

/* The blocks lie in as many copies, which runs use in turn as the tool does with the operands. */
enum { MEMORY = 512 << 20, MOST_COPIES = 64 };

typedef struct xsmm_way {
    int64_t tile; /* samples of a call */
    bool pack;    /* the samples' tiles are copied first */
} xsmm_way;

typedef struct xsmm_state {
    bench_gemm gemm;
    bool rows; /* samples are rows */
    int64_t size, grid, width, samples, features, depth;
    int64_t *start; /* block rows in the lists */
    int32_t *col;
    char *values, *packed;
    size_t image; /* bytes of the values */
    int copies, turn;
    const void **list; /* [threads][2][width] */
    xsmm_way way;
    xsmm_kernel kernel[2]; /* a whole tile, and what is left */
    size_t bytes;          /* of an element */
} xsmm_state;

static const char *xsmm_version(void)
{
    static char text[64];
    libxsmm_init();
    strcpy(text, LIBXSMM_VERSION " ");
    strncat(text, libxsmm_get_target_arch(), sizeof text - sizeof LIBXSMM_VERSION - 2);
    return text;
}

static void xsmm_release(void *p)
{
    xsmm_state *s = p;
    if (!s)
        return;
    free(s->start);
    free(s->col);
    free(s->values);
    free(s->packed);
    free(s->list);
    free(s);
}

/* Where samples first .. first + count - 1 meet block column `col`: in the operand, or in the
 * tiles, which hold [block column][count][size] if samples are rows, else [depth][count], and
 * pairs of bf16 along the depth beside each other. */
static size_t samples_at(const xsmm_state *s, int64_t first, int64_t count, int64_t col)
{
    int64_t at = s->rows ? first * s->depth + col * s->size : col * s->size * s->samples + first;
    if (s->way.pack)
        at = first * s->depth + col * s->size * count;
    return (size_t)at * s->bytes;
}

static bool kernel_make(const xsmm_state *s, int64_t count, xsmm_kernel *kernel)
{
    const bool pack = s->way.pack;
    const libxsmm_blasint size = (libxsmm_blasint)s->size, n = (libxsmm_blasint)count;
    const libxsmm_blasint line = (libxsmm_blasint)(s->rows ? s->depth : s->samples);
    const libxsmm_blasint out = (libxsmm_blasint)(s->rows ? s->features : s->samples);
    const libxsmm_blasint lda = s->rows ? size : pack ? n : line;
    const libxsmm_blasint ldb = s->rows && !pack ? line : size;
    const int flags = s->gemm.dtype == BSK_BF16 ? LIBXSMM_GEMM_FLAG_VNNI_A : 0;
    const int prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
    const float beta = 0;
    const libxsmm_blasint m = s->rows ? size : n, other = s->rows ? n : size;
    if (s->gemm.dtype == BSK_F32) {
        kernel->f32 = libxsmm_smmdispatch_reducebatch_addr(m, other, size, &lda, &ldb, &out, NULL,
                                                           &beta, &flags, &prefetch);
        return kernel->f32 != NULL;
    }
    kernel->bf16 = libxsmm_bmmdispatch_reducebatch_addr(m, other, size, &lda, &ldb, &out, NULL,
                                                        &beta, &flags, &prefetch);
    return kernel->bf16 != NULL;
}

/* A part of a tile's depth: one block column. */
static void tile_pack(const xsmm_state *s, const char *x, int64_t first, int64_t count, int64_t col)
{
    const int64_t step = s->rows ? s->depth : s->samples, size = s->size;
    const int64_t from = s->rows ? first * step + col * size : col * size * step + first;
    const char *src = x + (size_t)from * s->bytes;
    char *dst = s->packed + samples_at(s, first, count, col);
    const int64_t lines = s->rows ? count : size, length = s->rows ? size : count;
    if (!s->rows && s->gemm.dtype == BSK_BF16) {
        const uint16_t *low = (const uint16_t *)(const void *)src;
        uint16_t *restrict pair = (uint16_t *)(void *)dst;
        for (int64_t k = 0; k < size; k += 2)
            for (int64_t j = 0; j < count; j++) {
                pair[k * count + 2 * j] = low[k * step + j];
                pair[k * count + 2 * j + 1] = low[(k + 1) * step + j];
            }
        return;
    }
    for (int64_t i = 0; i < lines; i++)
        memcpy(dst + (size_t)(i * length) * s->bytes, src + (size_t)(i * step) * s->bytes,
               (size_t)length * s->bytes);
}

/* One block row by one tile of samples. list: what the kernel walks, [2][width]. */
static void tile_run(const xsmm_state *s, const char *x, char *c, int64_t row, int64_t first,
                     const void **list)
{
    const char *values = s->values + s->image * (size_t)(s->turn % s->copies);
    const int64_t left = s->samples - first, count = left < s->way.tile ? left : s->way.tile;
    const xsmm_kernel kernel = s->kernel[count < s->way.tile];
    const unsigned long long kept = (unsigned long long)(s->start[row + 1] - s->start[row]);
    const void **blocks = list + (s->rows ? 0 : s->width), **samples = list + s->width;
    const size_t block = (size_t)(s->size * s->size) * s->bytes;
    if (!s->rows)
        samples = list;
    for (unsigned long long e = 0; e < kept; e++) {
        const int64_t at = s->start[row] + (int64_t)e;
        blocks[e] = values + (size_t)at * block;
        samples[e] = (s->way.pack ? s->packed : x) + samples_at(s, first, count, s->col[at]);
    }
    const int64_t out =
        s->rows ? first * s->features + row * s->size : row * s->size * s->samples + first;
    char *to = c + (size_t)out * s->bytes;
    if (!kept) {
        const int64_t lines = s->rows ? count : s->size, length = s->rows ? s->size : count;
        const int64_t step = s->rows ? s->features : s->samples;
        for (int64_t i = 0; i < lines; i++)
            memset(to + (size_t)(i * step) * s->bytes, 0, (size_t)length * s->bytes);
    } else if (s->gemm.dtype == BSK_F32) {
        kernel.f32((const float **)list, (const float **)(list + s->width), (float *)(void *)to,
                   &kept);
    } else {
        kernel.bf16((const libxsmm_bfloat16 **)list, (const libxsmm_bfloat16 **)(list + s->width),
                    (libxsmm_bfloat16 *)(void *)to, &kept);
    }
}

static bool xsmm_run(void *p, const void *a, const void *b, void *c)
{
    xsmm_state *s = p;
    const char *x = s->rows ? a : b;
    s->turn++;
    const int64_t tiles = (s->samples + s->way.tile - 1) / s->way.tile;
    const int64_t columns = s->depth / s->size;
#pragma omp parallel num_threads(s->gemm.threads)
    {
        const void **list = s->list;
#ifdef _OPENMP
        list += 2 * s->width * omp_get_thread_num();
#endif
        if (s->way.pack) {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < tiles * columns; i++) {
                const int64_t first = i / columns * s->way.tile, left = s->samples - first;
                tile_pack(s, x, first, left < s->way.tile ? left : s->way.tile, i % columns);
            }
        }
#pragma omp for schedule(dynamic, 8)
        for (int64_t i = 0; i < tiles * s->grid; i++)
            tile_run(s, x, c, i % s->grid, i / s->grid * s->way.tile, list);
    }
    return true;
}

/* The blocks in the kernel's form: vectors along the features, in pairs of the depth for bf16; or,
 * where they are the second operand, as they come. */
static void values_make(xsmm_state *s, const bench_blocks *blocks)
{
    const int64_t size = s->size, count = s->start[s->grid] * size * size;
    const int64_t unit = s->gemm.dtype == BSK_BF16 ? 2 : 1;
    for (int64_t e = 0; e < count; e++) {
        const int64_t i = e / size % size, k = e % size, block = e - i * size - k;
        const int64_t at = s->rows ? block + k / unit * unit * size + i * unit + k % unit : e;
        memcpy(s->values + (size_t)at * s->bytes, blocks->values + (size_t)e * s->bytes, s->bytes);
    }
    for (int i = 1; i < s->copies; i++)
        memcpy(s->values + s->image * (size_t)i, s->values, s->image);
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool way_set(xsmm_state *s, xsmm_way way)
{
    const int64_t rest = s->samples % way.tile;
    s->way = way;
    return kernel_make(s, way.tile, &s->kernel[0]) &&
           (!rest || kernel_make(s, rest, &s->kernel[1]));
}

/* Takes the fastest way on operands of ones. False if there is none. */
static bool way_choose(xsmm_state *s)
{
    const size_t in = (size_t)(s->samples * s->depth) * s->bytes;
    char *x = malloc(in), *c = malloc((size_t)(s->samples * s->features) * s->bytes);
    double best = 0;
    xsmm_way chosen = {0};
    if (x && c) {
        memset(x, 0x3f, in);
        for (int64_t tile = 16; tile <= 256; tile *= 2)
            for (int pack = 0; pack < 2; pack++) {
                const xsmm_way way = {tile < s->samples ? tile : s->samples, pack != 0};
                const bool pairs = s->gemm.dtype == BSK_BF16 && !s->rows; /* must be packed */
                if ((tile > 16 && tile >= 2 * s->samples) || (pairs && !pack) || !way_set(s, way))
                    continue;
                for (int turn = 0; turn < 3; turn++) {
                    const double start = seconds_now();
                    xsmm_run(s, x, x, c);
                    const double took = seconds_now() - start;
                    if (best == 0 || took < best) {
                        best = took;
                        chosen = way;
                    }
                }
            }
    }
    free(x);
    free(c);
    return chosen.tile > 0 && way_set(s, chosen);
}

static void *xsmm_prepare(void *library, const bench_gemm *g, const bench_blocks *blocks)
{
    (void)library;
    if (!blocks || (g->dtype != BSK_F32 && g->dtype != BSK_BF16))
        return NULL;
    const int64_t features = blocks->is_b ? g->n : g->m, samples = blocks->is_b ? g->m : g->n;
    const int64_t size = blocks->size, grid = blocks->grid_rows;
    const size_t bytes = g->dtype == BSK_F32 ? 4 : 2, kept = (size_t)blocks->row_start[grid];
    if (features != grid * size || g->k != blocks->grid_cols * size || g->k > INT32_MAX ||
        features > INT32_MAX || samples > INT32_MAX)
        return NULL;
    xsmm_state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (xsmm_state){.gemm = *g,
                      .rows = blocks->is_b,
                      .size = size,
                      .grid = grid,
                      .width = blocks->width,
                      .samples = samples,
                      .features = features,
                      .depth = g->k,
                      .bytes = bytes};
    s->start = malloc(((size_t)grid + 1) * sizeof *s->start);
    s->col = malloc((kept + 1) * sizeof *s->col);
    s->image = kept * (size_t)(size * size) * bytes;
    s->copies = (int)(MEMORY / (s->image + MEMORY / MOST_COPIES)) + 1;
    s->values = pages_alloc(s->image * (size_t)s->copies + 1);
    s->packed = pages_alloc((size_t)(samples * g->k) * bytes);
    s->list = malloc(((size_t)g->threads * 2 * (size_t)s->width + 1) * sizeof *s->list);
    bool good = s->start && s->col && s->values && s->packed && s->list;
    for (int64_t r = 0; good && r <= grid; r++)
        s->start[r] = blocks->row_start[r];
    if (good) {
        memcpy(s->col, blocks->col, kept * sizeof *s->col);
        values_make(s, blocks);
        good = way_choose(s);
    }
    if (!good) {
        xsmm_release(s);
        s = NULL;
    }
    return s;
}

const bench_peer *bench_peer_query(int index)
{
    static const bench_peer peer = {.name = "libxsmm",
                                    .backend = "cpu",
                                    .sparse = true,
                                    .version = xsmm_version,
                                    .prepare = xsmm_prepare,
                                    .run = xsmm_run,
                                    .release = xsmm_release};
    return index ? NULL : &peer;
}
