/* The parameters of a model in flat arrays, one for each of: values, gradients, Adam's moments,
 * average. So one launch updates everything, and a checkpoint is a few arrays.
 *
 * Masters, gradients and moments are f32 (f64 in tests); where products run in 16 bits, matrices
 * have a rounded copy that Adam keeps up to date, and vectors are read from the masters. */
#ifndef PARAMS_H
#define PARAMS_H

#include "program.h"

typedef enum param_kind { PARAM_MATRIX, PARAM_VECTOR, PARAM_GATES } param_kind;

typedef struct param {
    param_kind kind;
    bsk_layout *layout; /* owned; NULL: dense */
    bsk_tensor desc;
    size_t at, count; /* elements in the flat arrays */
    double init;      /* standard deviation of a matrix, value of a vector */
    int gates;        /* the number of the parameter with the gates of its blocks; 0: none */
} param;

enum { MAX_PARAMS = 640 };

/* Which values: those that are trained, or those that are evaluated (the average, if there is
 * one). */
typedef enum param_set { SET_TRAIN, SET_EVAL } param_set;

typedef struct optimizer {
    double beta2, weight_decay, clip, ema; /* 0: library's default, none, none, none */
    double lasso;                          /* group lasso of sparse layers' blocks; 0: none */
} optimizer;

typedef struct param_store {
    machine *machine;
    bsk_dtype compute, master;
    int scaled; /* the loss is scaled: f16 ends where gradients may begin, bf16 has the range of f32 */
    param list[MAX_PARAMS];
    int count;
    size_t total;
    optimizer options;
    tensor value, grad, m, v, average, copy, eval_copy;
    tensor scale, good, steps, norm, norm_scale; /* one element each, on the device */
    program update, evaluate;
    struct bsk_adam_args *adam;
    struct bsk_block_l2_decay_args *decay[MAX_PARAMS]; /* NULL where no block decays */
} param_store;

void params_create(param_store *p, machine *m, bsk_dtype compute, const optimizer *options);
void params_destroy(param_store *p);

/* Declare a parameter; return its number. The layout becomes the parameter's own. */
int params_add_sparse(param_store *p, bsk_layout *layout, double init);
int params_add_dense(param_store *p, int64_t rows, int64_t cols, double init);
int params_add_vector(param_store *p, int64_t count, double init);
/* After these: gates for all layers that lack blocks. */
void params_add_gates(param_store *p);
/* Whether a layer lacks blocks, so that they may be dropped and moved. */
int param_is_sparse(const param *x);
/* The square root of the elements of a block. */
double param_block_root(const param *x);

/* After the last declaration: memory, initial values, the optimizer's program. */
void params_allocate(param_store *p, uint64_t seed);

tensor param_value(const param_store *p, int i, param_set set);
tensor param_grad(const param_store *p, int i);

void params_clear_grad(param_store *p);
/* One step of Adam and of the average. The gradients are those of scale * loss. Steps with a
 * gradient that is not finite are skipped, and not counted. */
void params_update(param_store *p, double lr);
/* Brings copies that are not trained up to date, before an evaluation or after a load. */
void params_refresh(param_store *p);
void params_prepare_eval(param_store *p);

/* The arrays that a checkpoint holds, in its order, and what numbers they may hold. Returns 0, or -1
 * past the end. */
typedef struct param_state {
    const tensor *tensor;
    double low, high;
} param_state;

int params_state(const param_store *p, int i, param_state *state);

#endif
