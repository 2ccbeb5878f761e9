/* The gradients of all kinds of models against finite differences, in f64 at tiny sizes: the loss as
 * a function of each of a sample of numbers from every parameter. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "model.h"

enum { SAMPLES = 6, TEXT_SIZE = 600 };

static const struct test_row {
    const char *name;
    config c;
} tests[] = {
#define TRANSFORMER                                                                                \
    .kind = 0, .time = 12, .layers = 2, .width = 16, .hidden = 32, .heads = 2, .block = 8,         \
    .attention_block = 4, .stride = 4, .batch = 2
    {"transformer all", {TRANSFORMER, .pattern = PATTERN_ALL, .density = 1}},
    {"transformer local", {TRANSFORMER, .pattern = PATTERN_LOCAL, .density = 0.5}},
    {"transformer strided", {TRANSFORMER, .pattern = PATTERN_STRIDED, .density = 0.5}},
    {"transformer fixed", {TRANSFORMER, .pattern = PATTERN_FIXED, .density = 0.5}},
    {"transformer bigbird", {TRANSFORMER, .pattern = PATTERN_BIGBIRD, .density = 0.5}},
    {"transformer dropout",
     {TRANSFORMER, .pattern = PATTERN_STRIDED, .density = 0.5, .dropout = 0.25}},
    {"transformer l0",
     {TRANSFORMER, .pattern = PATTERN_ALL, .density = 0.5, .prune_by = PRUNE_L0,
      .prune_rate = 0.5}},
#define LSTM                                                                                       \
    .kind = 1, .time = 5, .layers = 2, .width = 8, .hidden = 16, .heads = 1, .block = 8,           \
    .attention_block = 4, .stride = 4, .batch = 3, .density = 0.5
    {"lstm", {LSTM, .dropout = 0.25}},
    {"lstm l0", {LSTM, .prune_by = PRUNE_L0, .prune_rate = 0.5}},
    {"mlp",
     {.kind = 2,
      .time = 1,
      .layers = 2,
      .width = 4,
      .hidden = 16,
      .heads = 1,
      .block = 4,
      .attention_block = 4,
      .stride = 4,
      .context = 3,
      .buckets_log2 = 4,
      .batch = 8,
      .density = 0.5}},
};

/* The loss of the first step's batch, and its gradient in the model's memory. */
static double loss(model *m, const text_part *part)
{
    m->step = 0;
    for (int i = 0; i < m->train.states; i++)
        CHECK(bsk_mem_fill(m->machine->queue, m->train.state[i].mem, 0,
                           tensor_size(&m->train.state[i]) * sizeof(double)));
    const double nats = model_step(m, part, 0);
    return nats;
}

static double element(model *m, const tensor *t, size_t i)
{
    double value;
    machine_download(m->machine, &value, bsk_mem_at(t->mem, i * sizeof value), sizeof value);
    return value;
}

static double loss_with(model *m, const text_part *part, size_t i, double value)
{
    machine_upload(m->machine, bsk_mem_at(m->p.value.mem, i * sizeof value), &value, sizeof value);
    return loss(m, part);
}

/* What the rate adds to the loss for a gate: the chance that it is open. */
static double penalty(const model *m, const param *x, double loga)
{
    const double shifted = loga + 2.0 / 3 * log(11);
    return x->kind == PARAM_GATES ? m->c.prune_rate / (double)x->count / (1 + exp(-shifted)) : 0;
}

/* Returns the number of mistakes. */
static int check_model(machine *on, const struct test_row *test, const text_part *part)
{
    config c = test->c;
    c.dtype = BSK_F64;
    c.accumulate = 1;
    c.seed = 7;
    model m;
    if (model_declare(&m, on, &c, NULL, 0))
        exit(1);
    model_allocate(&m);
    loss(&m, part);
    double *grad = check_alloc(m.p.total * sizeof *grad);
    machine_download(on, grad, m.p.grad.mem, m.p.total * sizeof *grad);

    int wrong = 0;
    double worst = 0;
    for (int i = 0; i < m.p.count; i++) {
        const param *x = &m.p.list[i];
        double largest = 0;
        size_t top = 0;
        for (size_t k = 0; k < x->count; k++)
            if (fabs(grad[x->at + k]) > largest)
                largest = fabs(grad[x->at + (top = k)]);
        if (!(largest > 0)) {
            printf("%s: parameter %d has no gradient\n", test->name, i);
            wrong++;
        }
        for (int sample = 0; sample < SAMPLES; sample++) {
            // The largest one, and others anywhere.
            const size_t at =
                x->at + (sample ? seed_mix((uint64_t)i, (uint64_t)sample) % x->count : top);
            const double h = 1e-5, value = element(&m, &m.p.value, at);
            const double above = loss_with(&m, part, at, value + h) + penalty(&m, x, value + h);
            const double below = loss_with(&m, part, at, value - h) + penalty(&m, x, value - h);
            const double numeric = (above - below) / (2 * h);
            loss_with(&m, part, at, value);
            const double error = fabs(numeric - grad[at]) / (1e-7 + 1e-6 * largest);
            worst = error > worst ? error : worst;
            if (!(error <= 1)) {
                printf("%s: parameter %d, element %zu: %.9g, but %.9g by differences\n", test->name,
                       i, at - x->at, grad[at], numeric);
                wrong++;
            }
        }
    }
    printf("%-20s %zu numbers, worst error %.3f of the bound, %d wrong\n", test->name, m.p.total,
           worst, wrong);
    free(grad);
    model_destroy(&m);
    return wrong;
}

int main(int argc, char **argv)
{
    machine on;
    machine_create(&on, argc > 1 ? argv[1] : "cpu:0");
    text_part part = {check_alloc(TEXT_SIZE * sizeof(uint16_t)), TEXT_SIZE, 0};
    for (size_t i = 0; i < TEXT_SIZE; i++)
        part.code[i] = i < TEXT_PAD ? TEXT_NONE : (uint16_t)(seed_mix(3, i) % 16 + 'a');
    int wrong = 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        wrong += check_model(&on, &tests[i], &part);
    free(part.code);
    machine_destroy(&on);
    return wrong != 0;
}
