/* What the sources of this folder know about the instruction set that they are compiled for. Each
 * is compiled once per instruction set; BSK_ISA names it, and ends up in every external symbol. */
#ifndef BSKI_OMP_ISA_H
#define BSKI_OMP_ISA_H

#include <stdint.h>
#include <string.h>

#include <backends/cpu/cpu.h>
#include <common/checked.h>
#include <common/dtype.h>

/* Has all that its name's first part stands for. PRODUCTS_WIDE, _BF16, _I8: which products there are
 * instructions for; INT_UNIT: i8 numbers along the depth in one element of a vector. */
#if defined(BSK_ISA_AMX)
#define BSK_ISA_AVX512
#define PRODUCTS_BF16
#define PRODUCTS_I8
#define INT_UNIT 4
#elif defined(BSK_ISA_AVX512BF16)
#define BSK_ISA_AVX512
#define PRODUCTS_BF16
#elif defined(BSK_ISA_AVX512VNNI)
#define BSK_ISA_AVX512
#define PRODUCTS_I8
#define INT_UNIT  4
#define INT_SHIFT 1
#elif defined(BSK_ISA_NEONBF16)
#define BSK_ISA_NEON
#define PRODUCTS_BF16
#else
#define PRODUCTS_WIDE
#define PRODUCTS_I8
#define INT_UNIT 2
#endif
#ifndef INT_SHIFT
#define INT_SHIFT 0
#endif

#include <backends/cpu/omp/pch/intrinsics.h>

#define OMP_JOIN_(a, b) a##_##b
#define OMP_JOIN(a, b)  OMP_JOIN_(a, b)
#define OMP_NAME(stem)  OMP_JOIN(stem, BSK_ISA)

/* The three functions of an entry, and their prototypes. */
#define OMP_ACCEPT_(name)      BSKI_CPU_ACCEPT(name)
#define OMP_PREPARE_(name)     BSKI_CPU_PREPARE(name)
#define OMP_LAUNCH_(name)      BSKI_CPU_LAUNCH(name)
#define OMP_ACCEPT(stem)       OMP_ACCEPT_(OMP_NAME(stem))
#define OMP_PREPARE(stem)      OMP_PREPARE_(OMP_NAME(stem))
#define OMP_LAUNCH(stem)       OMP_LAUNCH_(OMP_NAME(stem))
#define OMP_PACK_(name)        BSKI_CPU_PACK(name)
#define OMP_PACK(stem)         OMP_PACK_(OMP_NAME(stem))
#define OMP_DECLARE_PACK(stem) OMP_PACK(stem)
#define OMP_DECLARE(stem)                                                                          \
    OMP_ACCEPT(stem);                                                                              \
    OMP_PREPARE(stem);                                                                             \
    OMP_LAUNCH(stem)

/* Registers decide the tiles. A tile of the dsd kernel has DSD_MR features of S and DSD_NV vectors
 * along n; one of the sdd kernel SDD_MR rows and two vectors of columns. NEAR is the packed data,
 * in bytes, that should stay in the second-level cache while the rest streams past, DSD_SLICE that
 * of dsd (where it is STREAMED, of S) in the first, beside the lines of S that meet it. VEC_PAIRS:
 * blocks narrower than a vector may take two steps of a sum side by side. TILE_DEPTH: steps of a
 * sum in a matrix tile, where the processor has those; MATRIX_TILES: the kernels on them. STREAMED:
 * dsd's take DSD_TALL features at once, where blocks have as many, and a part of S for all panels,
 * while those pass by the first-level cache. */
#if defined(BSK_ISA_AMX)
#define VEC_PAIRS    0
#define MATRIX_TILES "amx.h"
enum { VEC_BYTES = 64, DSD_MR = 16, SDD_MR = 16, TILE_DEPTH = 16 };
enum { NEAR = 1 << 20, DSD_SLICE = 28 << 10 };
enum { TILE_BYTES = 64 }; /* a row of a tile */
#define DSD_NV   2
#define STREAMED 1
#define DSD_TALL 32
#elif defined(BSK_ISA_AVX512)
#define VEC_PAIRS 1
#ifdef PRODUCTS_WIDE
#define DSD_NV 3
#else
#define DSD_NV 2
#endif
enum { VEC_BYTES = 64, DSD_MR = 8, SDD_MR = 8, TILE_DEPTH = 1 };
enum { NEAR = 1 << 20, DSD_SLICE = 24 << 10 };
#elif defined(BSK_ISA_AVX2)
#define VEC_PAIRS 1
#define DSD_NV    3
enum { VEC_BYTES = 32, DSD_MR = 4, SDD_MR = 4, TILE_DEPTH = 1 };
enum { NEAR = 1 << 19, DSD_SLICE = 9 << 10 };
#elif defined(BSK_ISA_NEONBF16)
#define VEC_PAIRS    0
#define MATRIX_TILES "mmla.h"
#define DSD_NV       2
enum { VEC_BYTES = 16, DSD_MR = 8, SDD_MR = 8, TILE_DEPTH = 2 };
enum { NEAR = 1 << 19, DSD_SLICE = 24 << 10 };
#elif defined(BSK_ISA_NEON)
#define VEC_PAIRS 0
#define DSD_NV    2
enum { VEC_BYTES = 16, DSD_MR = 8, SDD_MR = 8, TILE_DEPTH = 1 };
enum { NEAR = 1 << 19, DSD_SLICE = 24 << 10 };
#else
#define VEC_PAIRS 0
#define DSD_NV    2
enum { VEC_BYTES = 16, DSD_MR = 4, SDD_MR = 4, TILE_DEPTH = 1 };
enum { NEAR = 1 << 18, DSD_SLICE = 24 << 10 };
#endif

#if defined(BSK_ISA_AVX512) || defined(BSK_ISA_NEON)
#define REGISTERS 32 /* of vectors */
#else
#define REGISTERS 16
#endif

/* Makes GCC hold a vector in a register, where it knows that it is also in memory. */
#if defined(BSK_ISA_AVX2)
#define KEEP_VECTOR(v) __asm__("" : "+x"(v))
#else
#define KEEP_VECTOR(v) (void)(v)
#endif

#ifndef STREAMED
#define STREAMED 0
#define DSD_TALL DSD_MR
#endif

typedef float vec_f32 __attribute__((vector_size(VEC_BYTES)));
typedef double vec_f64 __attribute__((vector_size(VEC_BYTES)));
typedef int32_t vec_i32 __attribute__((vector_size(VEC_BYTES)));

/* The same in memory, where only the element's alignment holds. */
typedef float vec_mem_f32 __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));
typedef double vec_mem_f64 __attribute__((vector_size(VEC_BYTES), aligned(8), may_alias));

#define OMP_INLINE static inline __attribute__((always_inline))

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
