/* Recorded calls of the library. Shapes and memory of a training step never change, so that the
 * plan and the arguments of each op are made once, side by side, and a step runs down the list. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include "profile.h"

/* A device with its queue. Calls run one after the other and share one workspace. */
typedef struct machine {
    bsk_context *context;
    const bsk_device *device;
    bsk_queue *queue;
    bsk_mem workspace;
    size_t workspace_bytes;
    size_t bytes, peak_bytes; /* of device memory, without what the library keeps for itself */
    size_t limit;             /* of bytes; beyond it the program ends with a message */
    profile *profile;         /* of what runs now; NULL: it is not timed */
} machine;

void machine_create(machine *m, const char *device_id);
void machine_destroy(machine *m);

/* Device memory, filled with zeros. */
bsk_mem machine_alloc(machine *m, size_t bytes);
void machine_free(machine *m, bsk_mem *mem, size_t bytes);
void machine_workspace(machine *m, const bsk_plan *plan);

/* Blocking copies. */
void machine_upload(machine *m, bsk_mem dst, const void *src, size_t bytes);
void machine_download(machine *m, void *dst, bsk_mem src, size_t bytes);

/* A description with memory. dtype BSK_NONE: absent. */
typedef struct tensor {
    bsk_tensor desc;
    bsk_mem mem;
} tensor;

/* The same memory from element `at` on, as something else of the same type. */
tensor tensor_view(tensor t, size_t at, bsk_tensor desc);
size_t tensor_size(const tensor *t); /* elements */

typedef bsk_status (*call_run)(const bsk_plan *plan, bsk_queue *queue, const void *args);

typedef struct op_call {
    bsk_plan *plan;
    call_run run;
    void *args;
    size_t workspace_at, seed_at; /* where in args; seed_at 0: no random numbers */
    uint64_t stream;              /* calls of one stream draw the same numbers */
} op_call;

typedef struct program {
    machine *machine;
    op_call *calls;
    int count, room;
    double flops;
    struct owned {
        void *host;
        bsk_mem mem;
        size_t bytes;
    } * owned; /* memory that lives as long as the calls */
    int owned_count, owned_room;
} program;

void program_create(program *p, machine *m);
void program_destroy(program *p);

/* Memory of the program. */
tensor program_tensor(program *p, bsk_tensor desc);
tensor program_data(program *p, bsk_tensor desc, const void *values);
/* One element. */
tensor program_constant(program *p, bsk_dtype dtype, double value);
void *program_keep(program *p, const void *data, size_t bytes);

/* Appends a call and returns its copy of args, in which scalars may be changed between runs. */
void *program_add(program *p, const op_call *c, size_t args_bytes);

/* Enqueues all calls. Equal seeds give equal random numbers. */
void program_run(program *p, uint64_t seed);

/* A hash of two numbers: independent seeds from one. */
uint64_t seed_mix(uint64_t a, uint64_t b);

#endif
