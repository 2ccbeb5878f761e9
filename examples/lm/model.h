/* A language model: parameters, the recorded passes over them, and what the kinds of models share.
 * All of them predict every byte from those before it. */
#ifndef MODEL_H
#define MODEL_H

#include "layouts.h"
#include "ops.h"
#include "params.h"
#include "text.h"

/* What tells which blocks of a sparse layer are weak. */
typedef enum prune_by {
    PRUNE_NORM,  /* their norm */
    PRUNE_L0,    /* hard-concrete gates, trained with a penalty for open ones */
    PRUNE_LASSO, /* their norm, which a group lasso shortens */
    PRUNE_COUNT
} prune_by;

/* What makes the model and its training: saved with the weights. */
typedef struct config {
    int kind, time, layers, width, hidden, heads, block;
    int pattern, attention_block, stride;
    int context, buckets_log2; /* mlp */
    int dtype, batch, accumulate, seed;
    double density, dropout, ema;
    int steps, warm_up, evolve, prune_by;
    double lr, clip, beta2, weight_decay, evolve_share, prune_to, prune_rate;
} config;

typedef struct model model;
typedef struct pass pass;

typedef struct model_kind {
    const char *name;
    int sequential; /* rows of a batch go on where those of the last one ended */
    /* Makes layouts and declares parameters. Returns 0, or -1 after a message. */
    int (*declare)(model *m);
    /* Appends the forward to the pass, up to x->logits, and with x->train from x->dlogits on the
     * backward. */
    void (*record_forward)(model *m, pass *x);
    void (*record_backward)(model *m, pass *x);
    /* Bytes that a row predicts, and numbers that it reads for that. */
    int (*row_labels)(const config *c);
    int (*row_inputs)(const config *c);
    /* The row that predicts code[0] and what follows; TEXT_PAD codes before it are legal. */
    void (*fill)(const config *c, const uint16_t *code, int32_t *input);
} model_kind;

extern const model_kind transformer_kind, lstm_kind, mlp_kind;
enum { MODEL_KINDS = 3 };
extern const model_kind *const model_kinds[MODEL_KINDS];

/* A batch of one shape: its memory and its calls. Predictions are numbered label by row, or with
 * sequential kinds row by label: time comes first. */
struct pass {
    program program;
    int train, rows;
    int64_t labels_count;
    uint64_t streams; /* of random numbers that are taken */
    tensor input, labels, loss, dloss, logits, dlogits;
    tensor state[16]; /* what goes from one batch to the next */
    int states;
    int32_t *host_input, *host_labels;
    double *host_loss;
    void *detail; /* of the kind, from forward to backward */
};

struct model {
    machine *machine;
    const model_kind *kind;
    config c;
    param_store p;
    head_group groups[MAX_GROUPS];
    int group_count;
    bsk_layout **given; /* layouts from a checkpoint, in the order of declaration */
    int given_count, given_next;
    pass train, eval, one;
    int64_t step;
    double lr, norm; /* of the last step and its gradient */
};

/* Makes the layouts and counts the parameters. given: layouts of a checkpoint, which become the
 * model's; NULL: new ones. Returns 0, or -1 after a message to stderr; destroy it in both cases. */
int model_declare(model *m, machine *on, const config *c, bsk_layout **given, int given_count);
/* Then the memory, random weights and the passes. */
void model_allocate(model *m);
void model_destroy(model *m);

/* Records the passes anew, after layouts changed. */
void model_record(model *m);

/* Weights and biases, without tables of embeddings. */
double model_parameters(const model *m);
/* Floating-point operations of a training step. */
double model_step_flops(const model *m);

/* Drops and moves blocks of the sparse layers as the config says; progress, 0 to 1, is that of the
 * training. Only f32 masters. */
void model_evolve(model *m, double progress);

/* One step on `accumulate` batches, which are a function of the step's number alone; returns the
 * mean loss in nats. Waits for the device. */
double model_step(model *m, const text_part *part, double lr);

/* Bits for each byte over `part`, or over about `limit` of its bytes. */
double model_bits(model *m, const text_part *part, size_t limit);

/* Prints `count` bytes after `prompt`. */
void model_generate(model *m, const char *prompt, int count, double temperature, uint64_t seed);

/* For the kinds: a layout of weights, made or given. NULL after a message. */
bsk_layout *model_layout(model *m, int64_t rows, int64_t cols, double density);
/* A layer, whose gates, if it has any, are drawn where it is made. */
linear model_linear(const model *m, pass *x, int w, int bias);
tensor pass_activation(const model *m, pass *x, int64_t rows, int64_t cols); /* type of products */
tensor pass_exact(const model *m, pass *x, int64_t rows, int64_t cols);      /* type of masters */

#endif
