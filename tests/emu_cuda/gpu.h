/* What emulated CUDA kernels call: one function an instruction, or a family of them. Also the
 * launch of a kernel. C, for kernels that are C++.
 *
 * Lanes run as fibers. An instruction of several lanes is a rendezvous: each deposits its operands,
 * and the last one does the work for all. Copies and products that are asynchronous on the device
 * are done as late as may be, or earlier by chance, so that a missing wait shows. A lane that uses
 * an instruction wrongly ends the launch with a message: a fault.
 *
 * Addresses in shared memory are numbers as on the device: of the running thread block. */
#ifndef BSK_EMU_CUDA_GPU_H
#define BSK_EMU_CUDA_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <vector_types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GPU_LANES = 32, GPU_MAX_CLUSTER = 8, GPU_MESSAGE = 4096 };

/* The running lane's place; what CUDA calls threadIdx and so on. */
typedef struct gpu_place {
    uint3 thread, block;
    dim3 threads, blocks;
} gpu_place;

extern gpu_place gpu_now;

/* --- Kernels --- */

/* What a cudaKernel_t is. The image of a library is an array of them, which ends with {0}. */
typedef struct gpu_kernel {
    const char *name;
    int max_threads, min_blocks; /* of __launch_bounds__ */
    void (*call)(void **arguments);
    size_t allowed; /* dynamic shared memory, where it is more than any kernel may use */
} gpu_kernel;

/* --- Rendezvous --- */

/* Deposits a lane's operands for the instruction `what` of the lanes in `mask`. True in one lane,
 * when all are there: it works on gpu_slots(), one for each lane of its warp, and then calls
 * gpu_release. False in the others, after that. */
bool gpu_gather(const char *what, uint32_t mask, void *slot);
void **gpu_slots(void);
void gpu_release(void);

/* An arrival at a barrier of `threads` threads of the block (0: all that have not returned).
 * Whether the condition holds for any of them. */
bool gpu_barrier(uint32_t id, uint32_t threads, bool condition);
/* The same without waiting for others. */
void gpu_barrier_arrive(uint32_t id, uint32_t threads);
void gpu_cluster_sync(void);
uint32_t gpu_cluster_rank(void);
/* Lets others run: for code that waits in a loop. */
void gpu_pause(void);

/* --- Shared memory --- */

uint32_t gpu_shared_address(const void *p);
/* `bytes` at an address that must be a multiple of `alignment`; of a block of the cluster. */
void *gpu_shared(uint32_t address, uint32_t bytes, uint32_t alignment);
void *gpu_shared_of(uint32_t rank, uint32_t address, uint32_t bytes, uint32_t alignment);

/* Ends the launch if these bytes are not memory of the device. */
void gpu_global_check(const void *p, size_t bytes);

/* --- Barriers in shared memory --- */

void gpu_mbar_init(uint32_t bar, uint32_t arrivals);
void gpu_mbar_arrive(uint32_t bar, uint32_t expected_bytes);
void gpu_mbar_arrive_remote(uint32_t bar, uint32_t rank);
/* False only after letting all others run. */
bool gpu_mbar_try_wait(uint32_t bar, uint32_t parity);
void gpu_mbar_wait(uint32_t bar, uint32_t parity);

/* --- Copies --- */

/* In groups of a lane. */
void gpu_async_copy(uint32_t to, const void *from, uint32_t size, uint32_t bytes);
void gpu_async_commit(void);
void gpu_async_wait(uint32_t pending);

/* mask: the blocks of the cluster that get the bytes; 0: the own one. */
void gpu_bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t bar, uint32_t mask);
void gpu_bulk_store(void *to, uint32_t from, uint32_t bytes);
void gpu_tensor_load(uint32_t to, const void *map, int rank, const int *at, uint32_t bar,
                     uint32_t mask);
void gpu_tensor_store(const void *map, int rank, const int *at, uint32_t from);
void gpu_store_commit(void);
void gpu_store_wait(uint32_t pending);

/* f32 as the hardware rounds it to tf32: to the nearest, of two the even one; large numbers to
 * infinity. */
uint32_t gpu_tf32(uint32_t bits);

/* --- Matrices --- */

/* count: 1, 2 or 4 matrices of 8 x 8 elements of 16 bits. */
void gpu_load_matrix(uint32_t *r, uint32_t address, int count, bool trans);
void gpu_store_matrix(const uint32_t *r, uint32_t address, int count, bool trans);

typedef enum gpu_type { GPU_F16, GPU_BF16, GPU_TF32, GPU_E4M3, GPU_E5M2 } gpu_type;

/* Element e of a register. */
float gpu_element(gpu_type type, uint32_t word, int e);

/* d += a b by a warp: 16 rows, 8 columns, and k of 4, 8, 16 or 32. */
void gpu_multiply(gpu_type a_type, gpu_type b_type, int k, float *d, const uint32_t *a,
                  const uint32_t *b);

/* wgmma; a: four registers, or NULL: by a descriptor. */
typedef struct gpu_product {
    gpu_type type;
    int n, trans_a, trans_b, accumulate;
    uint64_t a, b;
} gpu_product;

void gpu_wgmma(const gpu_product *product, float *d, const uint32_t *a);
void gpu_wgmma_fence(void);
void gpu_wgmma_commit(void);
void gpu_wgmma_wait(uint32_t pending);

/* --- Columns of tensor memory, and products there (tcgen05) --- */

/* By a whole warp. */
void gpu_columns_take(uint32_t to, uint32_t columns);
void gpu_columns_relinquish(void);
void gpu_columns_give(uint32_t address, uint32_t columns);
/* `count` columns of the warp's lanes; the load with the wait for it. */
void gpu_columns_load(uint32_t address, uint32_t *v, int count);
void gpu_columns_store(uint32_t address, const uint32_t *v, int count);
void gpu_columns_store_wait(void);

/* By one thread. after: the fence after a wait for other threads, else that before one. */
void gpu_tensor_fence(bool after);

/* A product; a: a descriptor, or an address in tensor memory. */
typedef struct gpu_tensor_op {
    uint32_t d, kind;
    uint64_t a, b;
    bool a_in_memory, accumulate;
} gpu_tensor_op;

void gpu_tensor_multiply(const gpu_tensor_op *op);
void gpu_tensor_commit(uint32_t bar);

/* setmaxnreg. */
void gpu_registers(uint32_t count, bool raise);

#ifdef __cplusplus
}
#endif

#endif
