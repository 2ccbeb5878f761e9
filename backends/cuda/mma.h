/* Instructions of sm75 and sm80 that C++ has no words for: matrix loads from shared memory,
 * products of a warp and asynchronous copies. Device code only.
 *
 * Fragments of one lane, with g = lane / 4 and t = lane % 4; a register of 16-bit elements holds
 * two neighbours along k, the lower one in the lower half:
 *
 *     product    a (rows x k)                             b (k x columns)     d (f32)
 *     m16n8k16   a[0] = (g, 2t)     a[2] = (g, 2t+8)      b[0] = (2t, g)      d[0] = (g, 2t)
 *                a[1] = (g+8, 2t)   a[3] = (g+8, 2t+8)    b[1] = (2t+8, g)    d[1] = (g, 2t+1)
 *     m16n8k8    a[0] = (g, 2t)     a[1] = (g+8, 2t)      b[0] = (2t, g)      d[2] = (g+8, 2t)
 *     the same   a[0] = (g, t)      a[2] = (g, t+4)       b[0] = (t, g)       d[3] = (g+8, 2t+1)
 *     for tf32   a[1] = (g+8, t)    a[3] = (g+8, t+4)     b[1] = (t+4, g)
 *     m16n8k32   a[0] = (g, 4t)     a[2] = (g, 4t+16)     b[0] = (4t, g)      four neighbours along
 *     for f8     a[1] = (g+8, 4t)   a[3] = (g+8, 4t+16)   b[1] = (4t+16, g)   k in a register
 *
 * ldmatrix reads 8 x 8 matrices of 16-bit elements by rows of 16 bytes: lane l gives the address of
 * row l % 8 of matrix l / 8, and gets elements (g, 2t) and (g, 2t+1) of each; with trans, elements
 * (2t, g) and (2t+1, g). So a matrix whose rows run along k is loaded as it is, for a and b alike,
 * and one whose rows run across k is loaded with trans. */
#ifndef BSKI_CUDA_MMA_H
#define BSKI_CUDA_MMA_H

#include <stdint.h>

#include <backends/cuda/halves.h>

#define MMA_DEVICE static __device__ __forceinline__

/* The address that instructions on shared memory take. */
MMA_DEVICE uint32_t mma_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* --- Loads --- */

MMA_DEVICE void ldmatrix_x1(uint32_t *r, uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(address)
                 : "memory");
}

MMA_DEVICE void ldmatrix_x2(uint32_t *r, uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
}

MMA_DEVICE void ldmatrix_x4(uint32_t *r, uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

MMA_DEVICE void ldmatrix_x1_trans(uint32_t *r, uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(address)
                 : "memory");
}

MMA_DEVICE void ldmatrix_x2_trans(uint32_t *r, uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
}

MMA_DEVICE void ldmatrix_x4_trans(uint32_t *r, uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* Transposes a matrix: from elements (g, 2t) and (g, 2t+1) of a lane to (2t, g) and (2t+1, g). */
MMA_DEVICE uint32_t movmatrix_trans(uint32_t v)
{
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}

MMA_DEVICE uint32_t load_shared(uint32_t address)
{
    uint32_t r;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(r) : "r"(address) : "memory");
    return r;
}

MMA_DEVICE void store_shared_16(uint32_t address, const uint32_t *v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v[0]), "r"(v[1]),
                 "r"(v[2]), "r"(v[3])
                 : "memory");
}

/* --- Products: d += a b, in f32 --- */

/* By the type of a and b: halves (sm80), or with MMA_SM75 defined __half. With that, what sm75 has is
 * all that is used: k16 is two products of k8, and copies are loads and stores. */
template <typename T> MMA_DEVICE void mma_m16n8k16(float *d, const uint32_t *a, const uint32_t *b);
template <typename T> MMA_DEVICE void mma_m16n8k8(float *d, const uint32_t *a, const uint32_t *b);

#ifdef MMA_SM75

template <>
__device__ __forceinline__ void mma_m16n8k8<__half>(float *d, const uint32_t *a, const uint32_t *b)
{
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float *d, const uint32_t *a, const uint32_t *b)
{
    mma_m16n8k8<__half>(d, a, b);
    mma_m16n8k8<__half>(d, a + 2, b + 1);
}

#else

template <>
__device__ __forceinline__ void mma_m16n8k8<halves>(float *d, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, "
                 "{%6}, {%0, %1, %2, %3};" TYPE_MARK
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<halves>(float *d, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" TYPE_MARK
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif

/* Elements are f32 bits that mma_tf32 has rounded. */
MMA_DEVICE void mma_m16n8k8_tf32(float *d, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

MMA_DEVICE void mma_m16n8k4_tf32(float *d, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5}, "
                 "{%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

/* A pair of 8-bit types (sm89), of a and of b: here the first for all (FOR_F8_PAIRS). */
template <bool A_E5M2, bool B_E5M2> struct mma_f8 {
    uint8_t bits;
};

template <typename T> MMA_DEVICE void mma_m16n8k32(float *d, const uint32_t *a, const uint32_t *b);

template <>
__device__ __forceinline__ void mma_m16n8k32<mma_f8<false, false>>(float *d, const uint32_t *a,
                                                                   const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" TYPE_MARK
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* To the nearest tf32, ties away from zero, in the upper 19 bits: products do not look at the rest.
 * cvt.rna.tf32 clears it by an instruction more. */
MMA_DEVICE uint32_t mma_tf32(float v)
{
    const uint32_t u = __float_as_uint(v), half = 1u << 12;
    /* The largest numbers would become infinite; a NaN may have all its bits below. */
    return fabsf(v) < __uint_as_float(0x7f7ff000u) ? u + half : v == v ? u : 0x7fffffffu;
}

/* Two numbers rounded to 16 bits each: lo in the lower half. */
template <typename T> MMA_DEVICE uint32_t mma_pack(float lo, float hi);

template <> __device__ __forceinline__ uint32_t mma_pack<__nv_bfloat16>(float lo, float hi)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *(const uint32_t *)&v;
}

template <> __device__ __forceinline__ uint32_t mma_pack<__half>(float lo, float hi)
{
    const __half2 v = __floats2half2_rn(lo, hi);
    return *(const uint32_t *)&v;
}

template <> __device__ __forceinline__ uint32_t mma_pack<halves>(float lo, float hi)
{
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" TYPE_MARK : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}

/* --- Asynchronous copies (sm80): global to shared memory, in groups that a lane waits for --- */

#ifdef MMA_SM75

MMA_DEVICE void cp_async_16(uint32_t shared, const void *global, uint32_t bytes)
{
    const unsigned short *p = (const unsigned short *)global;
    uint32_t word[4] = {0, 0, 0, 0};
    if (bytes == 16) {
        const uint4 v = *(const uint4 *)p;
        word[0] = v.x;
        word[1] = v.y;
        word[2] = v.z;
        word[3] = v.w;
    } else if (bytes) {
#pragma unroll
        for (uint32_t e = 0; e < 8; e++)
            if (2 * e < bytes)
                word[e / 2] |= (uint32_t)p[e] << 16 * (e % 2);
    }
    store_shared_16(shared, word);
}

MMA_DEVICE void cp_async_commit(void)
{
}

template <int PENDING> MMA_DEVICE void cp_async_wait(void)
{
}

#else

/* 16 bytes past the first-level cache; of the source only `bytes` are read, the rest is zeros. */
MMA_DEVICE void cp_async_16(uint32_t shared, const void *global, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}

/* The same; the second-level cache may fetch the 128 bytes around them, which others read soon. */
MMA_DEVICE void cp_async_16_near(uint32_t shared, const void *global, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}

/* The same through the first-level cache: 4, 8 or 16 bytes. */
template <int SIZE> MMA_DEVICE void cp_async_ca(uint32_t shared, const void *global, uint32_t bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared),
                 "l"(__cvta_generic_to_global(global)), "n"(SIZE), "r"(bytes)
                 : "memory");
}

MMA_DEVICE void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most PENDING of this lane's latest groups are under way. */
template <int PENDING> MMA_DEVICE void cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif

/* --- Launches that overlap (sm90; nothing before) --- */

/* Lets the queue's next kernel start, as far as it may start early. */
MMA_DEVICE void grid_allow_next(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Waits for the queue's earlier kernels, and for their stores. The assembler moves read-only loads
 * (__ldg) across it: they are for tables of a plan, and plain ones for what earlier work may write. */
MMA_DEVICE void grid_wait(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif
