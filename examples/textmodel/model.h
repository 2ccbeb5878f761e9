/* The network, its training step and its evaluation, on the public API only.
 *
 *     x  = embedding(features)                    [N, K]
 *     h1 = relu(x W1 + b1)                        block-sparse
 *     h2 = relu(h1 W2 + b2)                       block-sparse
 *     logits = [h1 h2] W3 + b3                    dense: a layout that keeps every block
 */
#ifndef MODEL_H
#define MODEL_H

#include <bsk/bsk.h>

#include "text.h"

typedef struct model_shape {
    features input;
    int width;  /* of an embedding */
    int hidden; /* units of each hidden layer */
    int block;
    double density;
    int classes;
} model_shape;

/* The number of weights and biases if the first two layers keep the share `density` of their
 * blocks. */
double model_layer_parameters(const model_shape *s, int hidden, double density);

enum { LAYERS = 3 };

typedef struct layer {
    bsk_layout *layout;
    int64_t inputs, outputs;
    size_t weights;       /* stored elements */
    size_t at_w, at_bias; /* in the layers' memory, in elements */
    bsk_plan *forward, *dgrad, *wgrad;
} layer;

/* Values, gradients and Adam's two moments of one set of parameters. */
typedef struct tensor_set {
    size_t count;
    bsk_mem value, grad, m, v;
    bsk_plan *adam;
} tensor_set;

typedef struct model {
    const bsk_device *device;
    bsk_queue *queue;
    model_shape shape;
    int batch;
    layer layers[LAYERS];
    tensor_set table, weights;
    bsk_plan *embedding, *embedding_grad, *act_grad, *loss_grad, *loss_only;
    bsk_mem index, x, dx, h, dh, logits, labels, loss, workspace;
    size_t workspace_bytes;
    int32_t *host_index, *host_labels;
    float *host_loss;
    int64_t step;
} model;

/* Makes the layouts, unless `layouts` gives them, and then the plans; weights are random. */
void model_create(model *m, bsk_context *context, const bsk_device *device,
                  const model_shape *shape, int batch, uint64_t seed,
                  bsk_layout *const layouts[LAYERS]);
void model_destroy(model *m);

/* Weights and biases of the layers; the embedding table is the same in all models. */
double model_parameters(const model *m);

/* Writes the rows and the label of position `position` of `part` as member i of the next batch. */
void model_put(model *m, const alphabet *a, const text_part *part, int i, uint32_t position);
/* Marks member i as empty: it gives no loss. */
void model_put_nothing(model *m, int i);

/* One step of Adam on the batch; returns the mean loss in nats. */
double model_train(model *m, double lr, double table_lr);

/* Bits for each character, over every `stride`-th position of `part`. */
double model_bits(model *m, const alphabet *a, const text_part *part, size_t stride);

#endif
