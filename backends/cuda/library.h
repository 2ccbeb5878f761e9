/* Kernels as the host has them: what kernels.sh makes of a file of kernels, and library.c loads. */
#ifndef BSKI_CUDA_LIBRARY_H
#define BSKI_CUDA_LIBRARY_H

/* The code of a file's kernels for all architectures. */
typedef struct bski_cuda_library {
    const void *image;
    struct CUlib_st *handle;        /* a cudaLibrary_t; NULL: not loaded */
    struct bski_cuda_library *next; /* of those that are loaded */
} bski_cuda_library;

/* A kernel. Entries name it by its address alone, as `const void *function`. */
typedef struct bski_cuda_symbol {
    const char *name;
    bski_cuda_library *library;
    struct CUkern_st *handle; /* a cudaKernel_t; NULL: not loaded. Read and written as atomic */
} bski_cuda_symbol;

#endif
