#include "roof.h"

#include <backends/cpu/cpu.h>
#include <bench/pages.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

enum { REPEATS = 12, CHAINS = 12, STREAM_REPEATS = 5 };

/* About 10 ms of work: shorter runs miss the clock's ramp, longer ones meet the scheduler. */
static const double run_seconds = 10e-3;

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Independent chains of multiply-adds, enough for the latency times the width of the units. The
 * values stay near 1. The empty asm keeps the compiler from seeing that the chains are equal. */
#define FMA_LOOP(name, type, vec, splat, fma, target)                                              \
    target static double name(int64_t steps)                                                       \
    {                                                                                              \
        const vec a = splat((type)0.9999999), b = splat((type)1e-7);                               \
        vec x0 = splat((type)1), x1 = x0, x2 = x0, x3 = x0, x4 = x0, x5 = x0;                      \
        vec x6 = x0, x7 = x0, x8 = x0, x9 = x0, x10 = x0, x11 = x0;                                \
        type out[sizeof(vec) / sizeof(type)];                                                      \
        for (int64_t i = 0; i < steps; i++) {                                                      \
            x0 = fma(x0, a, b), x1 = fma(x1, a, b), x2 = fma(x2, a, b);                            \
            x3 = fma(x3, a, b), x4 = fma(x4, a, b), x5 = fma(x5, a, b);                            \
            x6 = fma(x6, a, b), x7 = fma(x7, a, b), x8 = fma(x8, a, b);                            \
            x9 = fma(x9, a, b), x10 = fma(x10, a, b), x11 = fma(x11, a, b);                        \
            FMA_KEEP(x0, x1, x2, x3, x4, x5);                                                      \
            FMA_KEEP(x6, x7, x8, x9, x10, x11);                                                    \
        }                                                                                          \
        x0 = fma(x0, x1, fma(x2, x3, fma(x4, x5, x6)));                                            \
        x0 = fma(x0, x7, fma(x8, x9, fma(x10, x11, x11)));                                         \
        memcpy(out, &x0, sizeof out);                                                              \
        return (double)out[0];                                                                     \
    }

#define FMA_KEEP_IN(where, a, b, c, d, e, f)                                                       \
    __asm__ volatile(""                                                                            \
                     : "+" where(a), "+" where(b), "+" where(c), "+" where(d), "+" where(e),       \
                       "+" where(f))

#if defined(__x86_64__)
#define FMA_KEEP(...)       FMA_KEEP_IN("x", __VA_ARGS__)
#define MUL_ADD_PS(x, a, b) _mm_add_ps(_mm_mul_ps(x, a), b)
#define MUL_ADD_PD(x, a, b) _mm_add_pd(_mm_mul_pd(x, a), b)
FMA_LOOP(fma_f32_base, float, __m128, _mm_set1_ps, MUL_ADD_PS, )
FMA_LOOP(fma_f64_base, double, __m128d, _mm_set1_pd, MUL_ADD_PD, )
#define TARGET __attribute__((target("avx2,fma")))
FMA_LOOP(fma_f32_avx2, float, __m256, _mm256_set1_ps, _mm256_fmadd_ps, TARGET)
FMA_LOOP(fma_f64_avx2, double, __m256d, _mm256_set1_pd, _mm256_fmadd_pd, TARGET)
#undef TARGET
#define TARGET __attribute__((target("avx512f")))
FMA_LOOP(fma_f32_avx512, float, __m512, _mm512_set1_ps, _mm512_fmadd_ps, TARGET)
FMA_LOOP(fma_f64_avx512, double, __m512d, _mm512_set1_pd, _mm512_fmadd_pd, TARGET)
#undef TARGET
/* Products of bf16 pairs, added to f32. The operands are 2^-10 in both halves. */
#define TARGET                __attribute__((target("avx512f,avx512bf16")))
#define PAIR_SPLAT(value)     _mm512_castsi512_ps(_mm512_set1_epi32(0x3a803a80))
#define PAIR_MUL_ADD(x, a, b) _mm512_dpbf16_ps(x, (__m512bh)(a), (__m512bh)(b))
FMA_LOOP(fma_bf16_avx512, float, __m512, PAIR_SPLAT, PAIR_MUL_ADD, TARGET)
#undef TARGET
/* Products of four bytes, added to i32. The operands are 1. */
#define TARGET                __attribute__((target("avx512f,avx512vnni")))
#define BYTE_SPLAT(value)     _mm512_set1_epi8(1)
#define BYTE_MUL_ADD(x, a, b) _mm512_dpbusd_epi32(x, a, b)
FMA_LOOP(fma_i8_avx512, int32_t, __m512i, BYTE_SPLAT, BYTE_MUL_ADD, TARGET)
#undef TARGET

/* Products of matrix tiles, 16 x 64 bytes by 64 x 16, in six chains. The operands are `word`. */
#define TARGET __attribute__((target("amx-tile,amx-bf16,amx-int8")))
#define TILE_LOOP(name, product, word)                                                             \
    TARGET static double name(int64_t steps)                                                       \
    {                                                                                              \
        struct {                                                                                   \
            uint8_t palette, start_row, reserved[14];                                              \
            uint16_t bytes[16];                                                                    \
            uint8_t rows[16];                                                                      \
        } config = {.palette = 1};                                                                 \
        int32_t data[16][16];                                                                      \
        for (int i = 0; i < 8; i++)                                                                \
            config.bytes[i] = 64, config.rows[i] = 16;                                             \
        for (int i = 0; i < 256; i++)                                                              \
            data[i / 16][i % 16] = (word);                                                         \
        _tile_loadconfig(&config);                                                                 \
        _tile_zero(0);                                                                             \
        _tile_zero(1);                                                                             \
        _tile_zero(2);                                                                             \
        _tile_zero(3);                                                                             \
        _tile_zero(4);                                                                             \
        _tile_zero(5);                                                                             \
        _tile_loadd(6, data, 64);                                                                  \
        _tile_loadd(7, data, 64);                                                                  \
        for (int64_t i = 0; i < steps; i++) {                                                      \
            product(0, 6, 7);                                                                      \
            product(1, 6, 7);                                                                      \
            product(2, 6, 7);                                                                      \
            product(3, 6, 7);                                                                      \
            product(4, 6, 7);                                                                      \
            product(5, 6, 7);                                                                      \
        }                                                                                          \
        _tile_stored(0, data, 64);                                                                 \
        _tile_release();                                                                           \
        return (double)data[0][0];                                                                 \
    }
TILE_LOOP(tiles_bf16, _tile_dpbf16ps, 0x3a803a80)
TILE_LOOP(tiles_i8, _tile_dpbssd, 0x01010101)
#undef TARGET
#define TILE_FLOPS (6 * 2.0 * 16 * 16 * 16) /* times the numbers in a word */

/* The processor has matrix tiles, and the system lets this process use them. */
static bool has_tiles(void)
{
    unsigned eax, ebx, ecx, edx;
    const unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & wanted) == wanted &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#elif defined(__aarch64__)
#define FMA_KEEP(...)       FMA_KEEP_IN("w", __VA_ARGS__)
#define FMA_PS(x, a, b)     vfmaq_f32(b, x, a)
#define FMA_PD(x, a, b)     vfmaq_f64(b, x, a)
FMA_LOOP(fma_f32_base, float, float32x4_t, vdupq_n_f32, FMA_PS, )
FMA_LOOP(fma_f64_base, double, float64x2_t, vdupq_n_f64, FMA_PD, )
/* Products of bf16 matrices 2 x 4 by 4 x 2, added to f32. The operands are 2^-10. */
#define TARGET              __attribute__((target("arch=armv8.2-a+bf16")))
#define MATRIX_SPLAT(value) vreinterpretq_f32_u32(vdupq_n_u32(0x3a803a80))
#define AS_BF16(x)          vreinterpretq_bf16_f32(x)
#define MATRIX_ADD(x, a, b) vbfmmlaq_f32(x, AS_BF16(a), AS_BF16(b))
FMA_LOOP(fma_bf16_neon, float, float32x4_t, MATRIX_SPLAT, MATRIX_ADD, TARGET)
#undef TARGET
#else
#define FMA_KEEP(...)       FMA_KEEP_IN("m", __VA_ARGS__)
#define FMA_SCALAR(x, a, b) ((x) * (a) + (b))
FMA_LOOP(fma_f32_base, float, float, (float), FMA_SCALAR, )
FMA_LOOP(fma_f64_base, double, double, (double), FMA_SCALAR, )
#endif

/* A loop and the floating-point operations of one of its steps. */
typedef struct fma_kind {
    double (*run)(int64_t steps);
    double flops;
} fma_kind;

#define FMA_KIND(name, lanes)                                                                      \
    {                                                                                              \
        name, 2.0 * CHAINS *(lanes)                                                                \
    }

/* The loops that this processor can run with what `arch` allows; returns how many. */
static int fma_kinds(bsk_dtype type, int32_t arch, fma_kind kinds[5])
{
    const int f64 = type == BSK_F64;
    int count = 0;
#if defined(__x86_64__)
    if (type == BSK_BF16 && arch >= BSK_CPU_AMX && has_tiles())
        kinds[count++] = (fma_kind){tiles_bf16, 2 * TILE_FLOPS};
    if (type == BSK_I8 && arch >= BSK_CPU_AMX && has_tiles())
        kinds[count++] = (fma_kind){tiles_i8, 4 * TILE_FLOPS};
    if (type == BSK_I8 && arch >= BSK_CPU_AVX512VNNI && __builtin_cpu_supports("avx512vnni"))
        kinds[count++] = (fma_kind)FMA_KIND(fma_i8_avx512, 64);
    if (type == BSK_BF16 && arch >= BSK_CPU_AVX512BF16 && __builtin_cpu_supports("avx512bf16"))
        kinds[count++] = (fma_kind)FMA_KIND(fma_bf16_avx512, 32);
    if (arch >= BSK_CPU_AVX512 && __builtin_cpu_supports("avx512f"))
        kinds[count++] =
            f64 ? (fma_kind)FMA_KIND(fma_f64_avx512, 8) : (fma_kind)FMA_KIND(fma_f32_avx512, 16);
    if (arch >= BSK_CPU_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        kinds[count++] =
            f64 ? (fma_kind)FMA_KIND(fma_f64_avx2, 4) : (fma_kind)FMA_KIND(fma_f32_avx2, 8);
    kinds[count++] =
        f64 ? (fma_kind)FMA_KIND(fma_f64_base, 2) : (fma_kind)FMA_KIND(fma_f32_base, 4);
#elif defined(__aarch64__)
    if (type == BSK_BF16 && arch >= BSK_CPU_NEONBF16 && getauxval(AT_HWCAP2) & HWCAP2_BF16)
        kinds[count++] = (fma_kind)FMA_KIND(fma_bf16_neon, 16);
    kinds[count++] =
        f64 ? (fma_kind)FMA_KIND(fma_f64_base, 2) : (fma_kind)FMA_KIND(fma_f32_base, 4);
#else
    (void)arch;
    kinds[count++] =
        f64 ? (fma_kind)FMA_KIND(fma_f64_base, 1) : (fma_kind)FMA_KIND(fma_f32_base, 1);
#endif
    return count;
}

/* Seconds that `threads` threads need for steps each. */
static double fma_seconds(const fma_kind *kind, int threads, int64_t steps)
{
    const double start = seconds_now();
    double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum += kind->run(steps);
    (void)threads;
    /* A test on the results, so that they are needed. */
    return sum == 0.125 ? 1e30 : seconds_now() - start;
}

/* Processor time of one thread: on a busy machine the clock would count its waiting, too, and the
 * runs would become too short to measure. */
static double fma_busy_seconds(const fma_kind *kind, int64_t steps)
{
    struct timespec start, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    const double sum = kind->run(steps);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    if (sum == 0.125)
        return 1e30;
    return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}

double bski_roof_flops(int threads, bsk_dtype type, int32_t arch)
{
    fma_kind kinds[5];
    const int count = fma_kinds(type, arch, kinds);
    double best = 0;

    for (int k = 0; k < count; k++) {
        int64_t steps = 1024;
        while (fma_busy_seconds(&kinds[k], steps) < run_seconds)
            steps *= 2;
        for (int r = 0; r < REPEATS; r++) {
            const double rate =
                kinds[k].flops * (double)steps * threads / fma_seconds(&kinds[k], threads, steps);
            best = rate > best ? rate : best;
        }
    }
    return best;
}

/* Past the caches where `past`: the C library's copy does so only beyond a size that grows with the
 * last-level cache, but operations do for all large outputs. */
static void copy_part(char *dst, const char *src, size_t bytes, bool past)
{
#if defined(__x86_64__)
    if (past) {
        for (size_t i = 0; i + 64 <= bytes; i += 64)
            for (size_t k = i; k < i + 64; k += 16)
                _mm_stream_si128((void *)(dst + k), _mm_load_si128((const void *)(src + k)));
        _mm_sfence();
        return;
    }
#endif
    (void)past;
    memcpy(dst, src, bytes);
}

/* ahead: words from what is read to what is fetched, or 0. */
static uint64_t read_part(const uint64_t *from, size_t words, size_t ahead)
{
    enum { LINES = 4, LINE = 64 / sizeof *from };
    uint64_t sum[LINE] = {0}, all = 0;
    for (size_t i = 0; i + LINES * LINE <= words; i += LINES * LINE) {
        for (size_t k = 0; ahead && k < LINES * LINE; k += LINE)
            __builtin_prefetch(from + i + ahead + k, 0, 2);
        for (size_t k = 0; k < LINES * LINE; k += LINE)
            for (size_t j = 0; j < LINE; j++)
                sum[j] += from[i + k + j];
    }
    for (size_t j = 0; j < LINE; j++)
        all += sum[j];
    return all;
}

enum { STREAM_BYTES = 256 << 20, READ_AHEAD = 2048 };

bool bski_stream_open(bski_stream *s, int threads)
{
    *s = (bski_stream){.threads = threads, .part = STREAM_BYTES / (size_t)threads & ~(size_t)63};
    s->from = pages_alloc(STREAM_BYTES);
    s->to = pages_alloc(STREAM_BYTES);
    if (!s->from || !s->to) {
        bski_stream_close(s);
        return false;
    }
    /* each thread's pages are near it */
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int t = 0; t < threads; t++) {
        memset(s->from + (size_t)t * s->part, t + 1, s->part);
        memset(s->to + (size_t)t * s->part, t + 1, s->part);
    }
    return true;
}

void bski_stream_close(bski_stream *s)
{
    free(s->from);
    free(s->to);
    *s = (bski_stream){0};
}

void bski_stream_run(const bski_stream *s, bski_pass pass)
{
    uint64_t sum = 0;
#pragma omp parallel for num_threads(s->threads) schedule(static) reduction(+ : sum)
    for (int t = 0; t < s->threads; t++) {
        char *from = s->from + (size_t)t * s->part, *to = s->to + (size_t)t * s->part;
        if (pass == BSKI_COPY || pass == BSKI_COPY_PAST)
            copy_part(to, from, s->part, pass == BSKI_COPY_PAST);
        else
            sum += read_part((uint64_t *)(void *)from, s->part / sizeof sum,
                             pass == BSKI_READ_AHEAD ? READ_AHEAD / sizeof sum : 0);
    }
    if (sum == 1) /* the sum is needed */
        s->to[0] = 1;
}

double bski_stream_bytes(const bski_stream *s, bski_pass pass)
{
    return (pass == BSKI_COPY || pass == BSKI_COPY_PAST ? 2 : 1) * (double)s->part * s->threads;
}

double bski_stream_rate(const bski_stream *s, bski_pass pass)
{
    double best = 0;
    for (int r = 0; s->from && r < 2 * STREAM_REPEATS; r++) {
        const double start = seconds_now();
        bski_stream_run(s, pass + r % 2);
        const double rate = bski_stream_bytes(s, pass) / (seconds_now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}
