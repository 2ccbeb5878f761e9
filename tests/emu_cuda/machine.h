/* Between the emulator's files: lanes, blocks, memory. */
#ifndef BSK_EMU_CUDA_MACHINE_H
#define BSK_EMU_CUDA_MACHINE_H

#include "../emu/fiber.h"
#include "gpu.h"

typedef struct gpu_lane gpu_lane;
typedef struct gpu_warp gpu_warp;
typedef struct gpu_block gpu_block;
typedef struct gpu_copies gpu_copies;
typedef struct gpu_products gpu_products;
typedef struct gpu_mbar gpu_mbar;
typedef struct gpu_tensor_memory gpu_tensor_memory;

struct gpu_lane {
    emu_fiber fiber;
    gpu_warp *warp;
    uint32_t number; /* in the block; its place in the warp is number % 32 */
    bool done;
    const char *waits; /* for what; NULL: it can run */
    uint64_t detail;   /* an address, a number of threads */
    gpu_mbar *bar;     /* that it waits for */
    bool polls;        /* goes on when nobody else can */
    bool fenced;       /* since its last wait for wgmma */
    int products, product_groups;
    gpu_copies *copies; /* its own, in groups */
    int stores, store_group;
    uint64_t tensor_before, tensor_after; /* when it last did these fences of tcgen05 */
};

/* Lanes of a warp that meet. */
typedef struct gpu_meeting {
    const char *what;
    uint32_t mask, arrived;
} gpu_meeting;

enum { GPU_MEETINGS = 4, GPU_BARRIERS = 16 };

struct gpu_warp {
    gpu_block *block;
    gpu_lane *lanes;
    int number; /* in the cluster */
    uint32_t ready, running;
    bool reverse;
    gpu_meeting meetings[GPU_MEETINGS];
    void *slots[GPU_LANES];
    gpu_meeting *last;
    uint32_t registers; /* of a lane */
    gpu_products *products;
};

typedef struct gpu_barrier_state {
    uint32_t arrived, threads;
    bool any, result;
} gpu_barrier_state;

struct gpu_block {
    uint3 index;
    uint32_t rank;
    uint32_t live; /* lanes that have not returned */
    char *shared;  /* dynamic */
    gpu_barrier_state barriers[GPU_BARRIERS];
    gpu_mbar *bars;
    int bar_count;
    uint32_t free_registers;
    gpu_tensor_memory *tensor; /* NULL until it is used */
};

/* What runs: one cluster at a time. */
typedef struct gpu_machine {
    const gpu_kernel *kernel;
    gpu_lane *lane;
    gpu_block blocks[GPU_MAX_CLUSTER];
    uint32_t cluster, threads, shared_bytes;
    uint64_t step; /* counts the changes from warp to warp */
    bool fault;
    char message[GPU_MESSAGE];
} gpu_machine;

extern gpu_machine gpu;

/* Where dynamic shared memory begins, as a number; and static. Above, from the bit on, is the number
 * of the block in its cluster, as on the chip; descriptors, which have no room for it, break unless
 * it is cut off. */
enum { GPU_DYNAMIC = 0x400, GPU_STATIC = 0x40000, GPU_WINDOW_AT = 24 };

_Noreturn void gpu_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint32_t gpu_random(uint32_t below);

/* The running lane waits until another wakes it. */
void gpu_sleep(const char *what, uint64_t detail);
void gpu_wake(gpu_lane *lane);
/* Bytes of a copy have come; products are done. */
void gpu_mbar_complete(gpu_block *block, uint32_t bar, uint32_t bytes);
void gpu_mbar_arrive_at(gpu_block *block, uint32_t bar);

/* False if a launch is not one that the device takes; else gpu.fault says how it ended. */
bool gpu_launch(const gpu_kernel *kernel, dim3 grid, uint32_t threads, uint32_t cluster,
                uint32_t shared_bytes, void **arguments);
void gpu_schedule(uint64_t seed);

/* copies.c */
bool gpu_copies_advance(bool idle); /* whether any was done */
void gpu_copies_check(const gpu_lane *lane);
void gpu_copies_begin(void);
bool gpu_copies_end(void);
void gpu_lane_copies_begin(gpu_lane *lane);

/* products.c */
void gpu_products_begin(gpu_warp *warp, int number);
void gpu_products_check(const gpu_lane *lane);

enum { GPU_ROWS = 16 };

/* How an operand lies in shared memory: bytes from one step to the next along its own axis (rows
 * of a or columns of b) and along k, each in two levels. */
typedef struct gpu_operand {
    gpu_type type;
    bool trans;
    uint32_t start, swizzle;
    uint32_t unit, step, unit_step;       /* own axis: `unit` elements a step apart, then units */
    uint32_t k_unit, k_step, k_unit_step; /* along k */
} gpu_operand;

/* width: of rows, in bytes; 16: no swizzle. */
gpu_operand gpu_operand_form(gpu_type type, bool trans, uint32_t start, uint32_t leading,
                             uint32_t stride, uint32_t width);
/* Elements [count][16 k] of a block's operand as floats, or [16 k][GPU_ROWS], of tf32 8 k: of the own
 * axis from `first` on. */
void gpu_operand_load(float *to, const gpu_operand *form, uint32_t rank, int first, int count,
                      bool k_major);
/* d, columns `pitch` apart, += a b: 16 rows, n columns. */
void gpu_multiply_rows(float *d, int pitch, const float *a, const float *b, int n, int k);

/* tensor_memory.c */
void gpu_tensor_begin(gpu_block *block);
bool gpu_tensor_advance(bool idle); /* whether any product or arrival was done */
void gpu_tensor_check(const gpu_lane *lane);

/* runtime.c: whether device memory has these bytes. */
bool gpu_global_has(const void *p, size_t bytes);

#endif
