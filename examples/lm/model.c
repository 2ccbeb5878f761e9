#include "model.h"

#include <math.h>
#include <string.h>

#include "check.h"

const model_kind *const model_kinds[MODEL_KINDS] = {&transformer_kind, &lstm_kind, &mlp_kind};

bsk_layout *model_layout(model *m, int64_t rows, int64_t cols, double density)
{
    if (!m->given)
        return layout_weights(m->machine->context, rows, cols, m->c.block, density,
                              seed_mix((uint64_t)m->c.seed, 1000 + (uint64_t)m->p.count));
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    bsk_layout *layout = m->given_next < m->given_count ? m->given[m->given_next] : NULL;
    if (!layout || bsk_layout_query(layout, &info) || info.rows != rows || info.cols != cols ||
        info.block_rows != m->c.block || info.block_cols != m->c.block || info.heads != 1 ||
        info.nnz == 0) {
        fprintf(stderr, "lm: the layouts are not those of the model\n");
        return NULL;
    }
    m->given[m->given_next++] = NULL;
    return layout;
}

static block_gates gates_make(const model *m, pass *x, int gates)
{
    program *p = &x->program;
    block_gates g = {.loga = param_value(&m->p, gates, x->train ? SET_TRAIN : SET_EVAL)};
    g.value = program_tensor(p, g.loga.desc);
    if (!x->train) {
        op_gates_infer(p, g.loga, g.value);
        return g;
    }
    g.dloga = param_grad(&m->p, gates);
    g.dvalue = program_tensor(p, g.loga.desc);
    g.concrete = program_tensor(p, g.loga.desc);
    g.scale = m->p.scale;
    g.penalty = m->c.prune_rate / m->c.accumulate;
    op_gates(p, &g, ++x->streams);
    return g;
}

linear model_linear(const model *m, pass *x, int w, int bias)
{
    const param_set set = x->train ? SET_TRAIN : SET_EVAL;
    linear l = {
        .layout = m->p.list[w].layout, .w = param_value(&m->p, w, set), .dw = param_grad(&m->p, w)};
    if (bias >= 0) {
        l.bias = param_value(&m->p, bias, set);
        l.dbias = param_grad(&m->p, bias);
    }
    if (m->p.list[w].gates)
        l.gates = gates_make(m, x, m->p.list[w].gates);
    return l;
}

tensor pass_activation(const model *m, pass *x, int64_t rows, int64_t cols)
{
    return program_tensor(&x->program, bsk_tensor_2d(m->p.compute, rows, cols));
}

tensor pass_exact(const model *m, pass *x, int64_t rows, int64_t cols)
{
    return program_tensor(&x->program, bsk_tensor_2d(m->p.master, rows, cols));
}

static void pass_create(model *m, pass *x, int rows, int train)
{
    memset(x, 0, sizeof *x);
    const config *c = &m->c;
    program *p = &x->program;
    program_create(p, m->machine);
    x->rows = rows;
    x->train = train;
    x->labels_count = (int64_t)rows * m->kind->row_labels(c);
    const int64_t inputs = (int64_t)rows * m->kind->row_inputs(c);
    x->input = program_tensor(p, bsk_tensor_1d(BSK_I32, inputs));
    x->labels = program_tensor(p, bsk_tensor_1d(BSK_I32, x->labels_count));
    x->loss = program_tensor(p, bsk_tensor_1d(m->p.master, x->labels_count));
    x->logits = pass_exact(m, x, x->labels_count, 256);
    x->host_input = check_alloc((size_t)(inputs + m->kind->row_inputs(c)) * sizeof *x->host_input);
    x->host_labels = check_alloc((size_t)x->labels_count * sizeof *x->host_labels);
    x->host_loss = check_alloc((size_t)x->labels_count * sizeof *x->host_loss);

    m->kind->record_forward(m, x);
    const double alpha = 1.0 / (double)x->labels_count / c->accumulate;
    if (!train) {
        op_cross_entropy(p, alpha, x->logits, x->labels, absent, x->loss, absent);
        return;
    }
    x->dloss = absent;
    if (m->p.scaled) { // for each row
        const tensor zeros = program_tensor(p, bsk_tensor_1d(BSK_F32, x->labels_count));
        x->dloss = program_tensor(p, zeros.desc);
        op_add(p, zeros, m->p.scale, x->dloss);
    }
    x->dlogits = pass_activation(m, x, x->labels_count, 256);
    op_cross_entropy(p, alpha, x->logits, x->labels, x->dloss, x->loss, x->dlogits);
    m->kind->record_backward(m, x);
}

static void pass_destroy(pass *x)
{
    program_destroy(&x->program);
    free(x->host_input);
    free(x->host_labels);
    free(x->host_loss);
    free(x->detail);
    memset(x, 0, sizeof *x);
}

/* What the rows remember is kept, as far as it has the same shape. */
static void pass_renew(model *m, pass *x, int rows, int train)
{
    pass old = *x;
    pass_create(m, x, rows, train);
    program copy;
    program_create(&copy, m->machine);
    for (int i = 0; i < old.states; i++)
        op_cast(&copy, old.state[i], x->state[i]);
    program_run(&copy, 0);
    program_destroy(&copy);
    pass_destroy(&old);
}

void model_record(model *m)
{
    pass_renew(m, &m->train, m->c.batch, 1);
    pass_renew(m, &m->eval, m->c.batch, 0);
    pass_renew(m, &m->one, 1, 0);
}

int model_declare(model *m, machine *on, const config *c, bsk_layout **given, int given_count)
{
    memset(m, 0, sizeof *m);
    m->machine = on;
    m->c = *c;
    m->kind = model_kinds[c->kind];
    m->given = given;
    m->given_count = given_count;
    const double lasso = c->prune_by == PRUNE_LASSO ? c->prune_rate : 0;
    const optimizer options = {c->beta2, c->weight_decay, c->clip, c->ema, lasso};
    params_create(&m->p, on, (bsk_dtype)c->dtype, &options);
    if (m->kind->declare(m))
        return -1;
    if (c->prune_by == PRUNE_L0)
        params_add_gates(&m->p);
    return 0;
}

void model_allocate(model *m)
{
    params_allocate(&m->p, (uint64_t)m->c.seed);
    model_record(m);
}

void model_destroy(model *m)
{
    if (!m->machine)
        return;
    pass_destroy(&m->train);
    pass_destroy(&m->eval);
    pass_destroy(&m->one);
    params_destroy(&m->p);
    for (int i = 0; i < m->group_count; i++)
        bsk_layout_release(&m->groups[i].layout);
    memset(m, 0, sizeof *m);
}

double model_parameters(const model *m)
{
    double count = 0;
    for (int i = 0; i < m->p.count; i++) {
        const param *x = &m->p.list[i];
        if (x->layout)
            count += layout_elements(x->layout);
        else if (x->kind == PARAM_VECTOR)
            count += (double)x->count;
    }
    return count;
}

double model_step_flops(const model *m)
{
    return m->train.program.flops * m->c.accumulate;
}

/* Puts the prediction of `part` from `at` on into a row; labels before `from` do not count. */
static void pass_fill(const model *m, pass *x, int row, const text_part *part, size_t at, int from)
{
    const int labels = m->kind->row_labels(&m->c);
    const int inputs = m->kind->row_inputs(&m->c);
    int32_t *input = x->host_input + (size_t)row * (size_t)inputs;
    if (m->kind->sequential) // time first: through the spare row
        input = x->host_input + (size_t)x->rows * (size_t)inputs;
    if (at < part->size) {
        m->kind->fill(&m->c, part->code + at, input);
    } else {
        memset(input, 0, (size_t)inputs * sizeof *input);
        from = labels;
    }
    for (int t = 0; t < labels; t++) {
        const size_t k = m->kind->sequential ? (size_t)t * (size_t)x->rows + (size_t)row
                                             : (size_t)row * (size_t)labels + (size_t)t;
        const int known =
            t >= from && at + (size_t)t < part->size && part->code[at + (size_t)t] != TEXT_NONE;
        x->host_labels[k] = known ? part->code[at + (size_t)t] : -1;
        if (m->kind->sequential)
            x->host_input[k] = input[t];
    }
}

/* Runs the pass; adds up the losses, in nats, and the labels that counted. */
static void pass_run(model *m, pass *x, uint64_t seed, double *nats, size_t *counted)
{
    const size_t n = (size_t)x->labels_count;
    CHECK(bsk_mem_upload(m->machine->queue, x->input.mem, x->host_input,
                         tensor_size(&x->input) * sizeof *x->host_input));
    CHECK(bsk_mem_upload(m->machine->queue, x->labels.mem, x->host_labels,
                         n * sizeof *x->host_labels));
    program_run(&x->program, seed);
    const size_t size = bsk_dtype_size(m->p.master);
    machine_download(m->machine, x->host_loss, x->loss.mem, n * size);
    for (size_t i = 0; i < n; i++) {
        float single;
        memcpy(&single, (const char *)x->host_loss + i * sizeof single, sizeof single);
        *nats += m->p.master == BSK_F64 ? x->host_loss[i] : (double)single;
        *counted += x->host_labels[i] >= 0;
    }
}

/* Where row `row` of batch number `batch` begins in the text. */
static size_t row_position(const model *m, const text_part *part, uint64_t batch, int row)
{
    const size_t labels = (size_t)m->kind->row_labels(&m->c);
    const size_t usable = part->size - TEXT_PAD - labels;
    if (!m->kind->sequential)
        return TEXT_PAD + seed_mix(seed_mix((uint64_t)m->c.seed, batch), (uint64_t)row) % usable;
    const size_t share = usable / (size_t)m->c.batch / labels * labels;
    return TEXT_PAD + (size_t)row * share + (share ? batch * labels % share : 0);
}

double model_step(model *m, const text_part *part, double lr)
{
    double nats = 0;
    size_t counted = 0;
    params_clear_grad(&m->p);
    for (int k = 0; k < m->c.accumulate; k++) {
        const uint64_t batch = (uint64_t)m->step * (uint64_t)m->c.accumulate + (uint64_t)k;
        for (int row = 0; row < m->c.batch; row++)
            pass_fill(m, &m->train, row, part, row_position(m, part, batch, row), 0);
        pass_run(m, &m->train, seed_mix((uint64_t)m->c.seed + 1, batch), &nats, &counted);
    }
    m->lr = lr;
    params_update(&m->p, lr);
    double norm = 0;
    float single;
    machine_download(m->machine, &norm, m->p.norm.mem, bsk_dtype_size(m->p.master));
    memcpy(&single, &norm, sizeof single);
    m->norm = m->p.master == BSK_F64 ? norm : (double)single;
    m->step++;
    return counted ? nats / (double)counted : 0;
}

static void pass_forget(model *m, pass *x)
{
    for (int i = 0; i < x->states; i++)
        CHECK(bsk_mem_fill(m->machine->queue, x->state[i].mem, 0,
                           tensor_size(&x->state[i]) * bsk_dtype_size(x->state[i].desc.dtype)));
}

double model_bits(model *m, const text_part *part, size_t limit)
{
    pass *x = &m->eval;
    const size_t labels = (size_t)m->kind->row_labels(&m->c);
    // Windows overlap, so that every byte but the first ones has a quarter of a window before it.
    const size_t overlap = m->kind->sequential ? 0 : labels / 4;
    const size_t hop = labels - overlap;
    const size_t windows = (part->size - TEXT_PAD + hop - 1) / hop;
    const size_t rows = (size_t)x->rows;
    const size_t batches = (windows + rows - 1) / rows;
    size_t wanted = (limit + hop * rows - 1) / (hop * rows);
    wanted = wanted < 1 ? 1 : wanted > batches ? batches : wanted;
    double nats = 0;
    size_t counted = 0;
    params_prepare_eval(&m->p);
    pass_forget(m, x);
    for (size_t i = 0; i < wanted; i++) {
        for (size_t row = 0; row < rows; row++) {
            // A sample is spread over the text; streams begin at equal distances.
            const size_t window =
                m->kind->sequential ? row * batches + i : (i * batches / wanted) * rows + row;
            const size_t at = TEXT_PAD + window * hop;
            const size_t back = window ? overlap : 0;
            pass_fill(m, x, (int)row, part, at - back, (int)back);
        }
        pass_run(m, x, 0, &nats, &counted);
    }
    return counted ? nats / log(2.0) / (double)counted : 0;
}

/* A byte drawn from softmax(logits / temperature). */
static int sample(const double *logits, double temperature, double uniform)
{
    double top = logits[0], sum = 0, chance[256];
    for (int i = 1; i < 256; i++)
        top = logits[i] > top ? logits[i] : top;
    for (int i = 0; i < 256; i++)
        sum += chance[i] = exp((logits[i] - top) / temperature);
    double left = uniform * sum;
    for (int i = 0; i < 255; i++)
        if ((left -= chance[i]) < 0)
            return i;
    return 255;
}

void model_generate(model *m, const char *prompt, int count, double temperature, uint64_t seed)
{
    pass *x = &m->one;
    const size_t labels = (size_t)m->kind->row_labels(&m->c);
    const size_t given = strlen(prompt);
    const size_t size = TEXT_PAD + given + (size_t)count;
    text_part part = {check_alloc((size + labels) * sizeof(uint16_t)), size + labels, 0};
    for (size_t i = 0; i < size + labels; i++)
        part.code[i] = TEXT_NONE;
    for (size_t i = 0; i < given; i++)
        part.code[TEXT_PAD + i] = (uint8_t)prompt[i];
    params_prepare_eval(&m->p);
    for (size_t at = TEXT_PAD + given; at < size; at++) {
        // The window's second half moves on; a single label is the byte itself.
        size_t start = TEXT_PAD;
        while (at - start >= labels)
            start += (labels + 1) / 2;
        pass_fill(m, x, 0, &part, start, 0);
        pass_forget(m, x);
        double nats = 0;
        size_t counted = 0;
        pass_run(m, x, 0, &nats, &counted);
        double logits[256];
        float single[256];
        const tensor row = tensor_view(x->logits, (at - start) * 256, bsk_tensor_1d(BSK_F32, 256));
        machine_download(m->machine, m->p.master == BSK_F64 ? (void *)logits : (void *)single,
                         row.mem, 256 * bsk_dtype_size(m->p.master));
        for (int i = 0; i < 256 && m->p.master != BSK_F64; i++)
            logits[i] = single[i];
        const double uniform = (double)(seed_mix(seed, at) >> 11) * 0x1p-53;
        part.code[at] = (uint16_t)sample(logits, temperature, uniform);
        putchar(part.code[at]);
    }
    putchar('\n');
    free(part.code);
}
