/* What the tuned dsd kernels do with a sum before they store it, shared by all of them:
 *
 *   pre = alpha * scales * sum * row_scale * col_scale + bias + beta * C_old,
 *   C = act(pre) + residual.
 *
 * The host fills a dsd_epilogue at plan time, and adds addresses and scalars at launch; kernels
 * get it as an argument. In the words of dsd, C is [features, n]; features or n are contiguous. */
#ifndef BSKI_CUDA_EPILOGUE_H
#define BSKI_CUDA_EPILOGUE_H

#include <stdbool.h>
#include <stdint.h>

#include <bsk/backend.h>

/* Elements that dsd_finish handles at once: 16 bytes of a 16-bit type. */
enum { DSD_RUN = 8 };

typedef struct dsd_matrix {
    char *data;
    int64_t feature, n, batch; /* strides, elements */
    int32_t type;              /* bsk_dtype; BSK_NONE: absent */
    int32_t wide;              /* runs of DSD_RUN elements are aligned to 16 bytes */
} dsd_matrix;

typedef struct dsd_epilogue {
    dsd_matrix c, residual;
    const float *bias, *row_scale, *col_scale; /* [features], [features], [n]; NULL: none */
    const float *scales[2];                    /* of 8-bit operands; each NULL: 1 */
    int64_t features, n;
    float alpha, beta;
    int32_t act;     /* bsk_act */
    int32_t along_n; /* C's contiguous axis is n */
    int32_t plain;   /* C = act(alpha * sum + bias), 16-bit, runs along features that are aligned */
    int32_t plain_n; /* the same with runs along n */
    int32_t plain_f32; /* the same of f32, along either */
    int32_t bare;      /* of 16 bits without bias, activation and scales: C = alpha * sum */
    int32_t lines; /* runs along features, aligned in all matrices; no scales by row or column, no
                          gelu_erf */
    /* Activations but gelu_erf: x * sigmoid(x * (linear + cubic * x * x)) in units of log 2, or
     * with linear = 0 relu. */
    float linear, cubic;
} dsd_epilogue;

#ifndef __CUDACC__

/* Whether the kernels do what the problem, of op dsd, asks for. */
bsk_reason bski_cuda_epilogue_accept(const bsk_problem *problem);
void bski_cuda_epilogue_fill(const bsk_problem *problem, dsd_epilogue *epilogue);
/* Adds one run's addresses and scalars. */
void bski_cuda_epilogue_bind(const bsk_dsd_args *args, dsd_epilogue *epilogue);

/* A plain end without activation, and without scales on the device. */
static inline bool bski_cuda_epilogue_linear(const dsd_epilogue *e)
{
    return (e->plain || e->plain_n) && e->act == BSK_ACT_NONE && !e->scales[0] && !e->scales[1];
}

#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <backends/cuda/approx.h>

#define EPILOGUE_FN static __device__ __forceinline__

/* Two numbers rounded to a 16-bit type; the first is the lower half. */
EPILOGUE_FN uint32_t dsd_pack(bool bf16, float low, float high)
{
    uint32_t both;
    if (bf16) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        memcpy(&both, &pair, sizeof both);
    } else {
        const __half2 pair = __floats2half2_rn(low, high);
        memcpy(&both, &pair, sizeof both);
    }
    return both;
}

EPILOGUE_FN uint4 dsd_pack_run(bool bf16, const float (&v)[DSD_RUN])
{
    return make_uint4(dsd_pack(bf16, v[0], v[1]), dsd_pack(bf16, v[2], v[3]),
                      dsd_pack(bf16, v[4], v[5]), dsd_pack(bf16, v[6], v[7]));
}

/* Whether a number of a 16-bit type is NaN or infinite. */
EPILOGUE_FN bool dsd_is_wild(bool bf16, uint16_t bits)
{
    const uint32_t exponent = bf16 ? 0x7f80 : 0x7c00;
    return (bits & exponent) == exponent;
}

EPILOGUE_FN float2 dsd_unpack(bool bf16, uint32_t both)
{
    if (bf16)
        return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
    __half2 pair;
    memcpy(&pair, &both, sizeof pair);
    return __half22float2(pair);
}

/* The activation of a run, which is not gelu_erf: without a branch for each number, so that the
 * chains of the eight run side by side. */
EPILOGUE_FN void dsd_activate_plain(const dsd_epilogue &e, float (&v)[DSD_RUN])
{
    if (e.linear == 0) {
#pragma unroll
        for (int i = 0; i < DSD_RUN; i++)
            v[i] = v[i] <= 0 ? 0 : v[i]; /* keeps NaN */
        return;
    }
#pragma unroll
    for (int i = 0; i < DSD_RUN; i++) {
        const float square = fminf(v[i] * v[i], 1e30f); /* not infinite: cubic may be 0 */
        v[i] *= reciprocal(1 + power_of_two(-v[i] * (e.linear + e.cubic * square)));
    }
}

EPILOGUE_FN void dsd_activate(const dsd_epilogue &e, float (&v)[DSD_RUN])
{
    if (e.act != BSK_ACT_GELU_ERF) {
        dsd_activate_plain(e, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < DSD_RUN; i++)
        v[i] = 0.5f * v[i] * erfcf(-v[i] * 0.70710678118654752f);
}

/* A run of f32, aligned to 16 bytes. */
EPILOGUE_FN void dsd_load(const float *p, float (&v)[DSD_RUN])
{
    const float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

/* Numbers at .. at + count - 1 of a vector; those of `each` false are all the first. */
EPILOGUE_FN void dsd_vector(const float *p, int64_t at, int count, bool each, float (&v)[DSD_RUN])
{
    p += at;
    if (each && count == DSD_RUN && (uintptr_t)p % sizeof(float4) == 0) {
        dsd_load(p, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < DSD_RUN; i++)
        v[i] = each ? i < count ? p[i] : 0 : i ? v[0] : p[0];
}

/* Reads and writes elements at .. at + count - 1 of a contiguous axis; the rest of v is left. */
EPILOGUE_FN void dsd_read(const dsd_matrix &m, int64_t at, int count, float (&v)[DSD_RUN])
{
    if (m.type == BSK_F32) {
        const float *p = (const float *)m.data + at;
        if (m.wide && count == DSD_RUN) {
            dsd_load(p, v);
            return;
        }
#pragma unroll
        for (int i = 0; i < DSD_RUN; i++)
            if (i < count)
                v[i] = p[i];
        return;
    }
    const bool bf16 = m.type == BSK_BF16;
    const uint16_t *p = (const uint16_t *)m.data + at;
    if (m.wide && count == DSD_RUN) {
        const uint4 all = *(const uint4 *)p;
        const uint32_t word[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 pair = dsd_unpack(bf16, word[i]);
            v[2 * i] = pair.x;
            v[2 * i + 1] = pair.y;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < DSD_RUN; i++)
        if (i < count)
            v[i] = dsd_unpack(bf16, p[i]).x;
}

EPILOGUE_FN void dsd_write(const dsd_matrix &m, int64_t at, int count, const float (&v)[DSD_RUN])
{
    if (m.type == BSK_F32) {
        float *p = (float *)m.data + at;
        if (m.wide && count == DSD_RUN) {
            *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
            *(float4 *)(p + 4) = make_float4(v[4], v[5], v[6], v[7]);
            return;
        }
#pragma unroll
        for (int i = 0; i < DSD_RUN; i++)
            if (i < count)
                p[i] = v[i];
        return;
    }
    const bool bf16 = m.type == BSK_BF16;
    uint16_t *p = (uint16_t *)m.data + at;
    if (m.wide && count == DSD_RUN) {
        *(uint4 *)p = dsd_pack_run(bf16, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < DSD_RUN; i++)
        if (i < count)
            p[i] = (uint16_t)dsd_pack(bf16, v[i], 0);
}

/* What sums are multiplied with. */
EPILOGUE_FN float dsd_alpha(const dsd_epilogue &e)
{
    float alpha = e.alpha;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (e.scales[i])
            alpha *= *e.scales[i]; /* not read-only: earlier work may write it */
    return alpha;
}

/* What a plain end adds to DSD_RUN features from `feature` on, a multiple of so many. */
EPILOGUE_FN void dsd_bias(const dsd_epilogue &e, int64_t feature, float (&v)[DSD_RUN])
{
    if (e.bias && feature + DSD_RUN <= e.features) {
        dsd_load(e.bias + feature, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < DSD_RUN; i++)
        v[i] = e.bias && feature + i < e.features ? e.bias[feature + i] : 0;
}

/* A plain end of a run of sums, which has these biases. ACT: there may be an activation, and scales. */
template <bool ACT>
EPILOGUE_FN void dsd_finish_plain(const dsd_epilogue &e, const float (&bias)[DSD_RUN],
                                  float (&v)[DSD_RUN])
{
    const float alpha = ACT ? dsd_alpha(e) : e.alpha;
#pragma unroll
    for (int i = 0; i < DSD_RUN; i++)
        v[i] = fmaf(alpha, v[i], bias[i]);
    if (ACT && e.act != BSK_ACT_NONE)
        dsd_activate_plain(e, v);
}

/* Finishes and stores alpha * sum + bias, DSD_RUN features from `feature` on, where an epilogue is
 * `lines`. */
EPILOGUE_FN void dsd_finish_line(const dsd_epilogue &e, float (&v)[DSD_RUN], int64_t feature,
                                 int64_t n, int64_t batch)
{
    if (feature >= e.features || n >= e.n)
        return;
    const int64_t at = batch * e.c.batch + n * e.c.n + feature;
    float other[DSD_RUN];
    if (e.beta != 0) {
        dsd_read(e.c, at, DSD_RUN, other);
#pragma unroll
        for (int i = 0; i < DSD_RUN; i++)
            v[i] += e.beta * other[i];
    }
    if (e.act != BSK_ACT_NONE)
        dsd_activate_plain(e, v);
    if (e.residual.type != BSK_NONE) {
        const dsd_matrix &r = e.residual;
        dsd_read(r, batch * r.batch + n * r.n + feature, DSD_RUN, other);
#pragma unroll
        for (int i = 0; i < DSD_RUN; i++)
            v[i] += other[i];
    }
    dsd_write(e.c, at, DSD_RUN, v);
}

/* Finishes and stores a run of sums: of DSD_RUN features from `feature` on at sample n, or with
 * along_n of one feature at DSD_RUN samples from n on. Elements outside of C are left out; runs
 * begin at multiples of DSD_RUN. */
EPILOGUE_FN void dsd_finish(const dsd_epilogue &e, float (&v)[DSD_RUN], int64_t feature, int64_t n,
                            int64_t batch)
{
    const int64_t begin = e.along_n ? n : feature, end = e.along_n ? e.n : e.features;
    const int count = end - begin < DSD_RUN ? (int)(end - begin) : DSD_RUN;
    if (count <= 0 || feature >= e.features || n >= e.n)
        return;
    const int64_t at = batch * e.c.batch + feature * e.c.feature + n * e.c.n;
    float old[DSD_RUN], extra[DSD_RUN];
    if (e.beta != 0)
        dsd_read(e.c, at, count, old);
    if (e.residual.type != BSK_NONE) {
        const dsd_matrix &r = e.residual;
        const int64_t from = batch * r.batch + feature * r.feature + n * r.n;
        const int64_t step = e.along_n ? r.n : r.feature;
        if (step == 1)
            dsd_read(r, from, count, extra);
        else
#pragma unroll
            for (int i = 0; i < DSD_RUN; i++) {
                float one[DSD_RUN];
                if (i < count)
                    dsd_read(r, from + i * step, 1, one);
                extra[i] = one[0];
            }
    }
    /* Options outside of the loops: a branch of each for every number would be most of the time. */
    float by[DSD_RUN];
    const float alpha = dsd_alpha(e);
#pragma unroll
    for (int i = 0; i < DSD_RUN; i++)
        v[i] *= alpha;
    if (e.row_scale) {
        dsd_vector(e.row_scale, feature, count, !e.along_n, by);
#pragma unroll
        for (int i = 0; i < DSD_RUN; i++)
            v[i] *= by[i];
    }
    if (e.col_scale) {
        dsd_vector(e.col_scale, n, count, e.along_n, by);
#pragma unroll
        for (int i = 0; i < DSD_RUN; i++)
            v[i] *= by[i];
    }
    if (e.bias) {
        dsd_vector(e.bias, feature, count, !e.along_n, by);
#pragma unroll
        for (int i = 0; i < DSD_RUN; i++)
            v[i] += by[i];
    }
    if (e.beta != 0)
#pragma unroll
        for (int i = 0; i < DSD_RUN; i++)
            v[i] += e.beta * old[i];
    if (e.act != BSK_ACT_NONE)
        dsd_activate(e, v);
    if (e.residual.type != BSK_NONE)
#pragma unroll
        for (int i = 0; i < DSD_RUN; i++)
            v[i] += extra[i];
    dsd_write(e.c, at, count, v);
}

#endif
#endif
