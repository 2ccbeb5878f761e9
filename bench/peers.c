/* Dense peers: loading their modules, operands of the same shape, verification. */
#include <dlfcn.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"

static const char *const peer_names[] = {"openblas", "onednn"};

/* --- Loading ------------------------------------------------------------------------------- */

/* The module beside the tool (build folder), or in the install directory. */
static const bench_peer *peer_load(const char *name)
{
    char self[512], path[700];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    void *module = NULL;
    if (n > 0) {
        self[n] = 0;
        snprintf(path, sizeof path, "%s/peers/bsk-peer-%s.so", dirname(self), name);
        module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (!module) {
        snprintf(path, sizeof path, "%s/bsk-peer-%s.so", BSK_PEER_DIR, name);
        module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (!module)
        return NULL;
    bench_peer_query_fn query;
    void *symbol = dlsym(module, BENCH_PEER_SYMBOL);
    memcpy(&query, &symbol, sizeof query);
    return symbol ? query() : NULL;
}

bool bench_peers_load(const char *which, const bench_peer *peers[BENCH_PEERS], int *count)
{
    *count = 0;
    if (!which)
        return true;
    bool all = strcmp(which, "all") == 0, known = all;
    for (int i = 0; i < TEST_COUNT(peer_names); i++) {
        if (!all && strcmp(peer_names[i], which) != 0)
            continue;
        known = true;
        const bench_peer *peer = peer_load(peer_names[i]);
        if (peer)
            peers[(*count)++] = peer;
        else
            fprintf(stderr, "bsk: peer %s is not installed\n", peer_names[i]);
    }
    return known;
}

/* --- Operands ------------------------------------------------------------------------------ */

/* The block matrix as a dense row-major [rows, cols] one. */
static void densify(test_case *c, const char *name, uint8_t *out)
{
    const test_tensor *t = test_arg_at(c, name);
    size_t size = bsk_dtype_size(t->desc.dtype);
    memset(out, 0, (size_t)(c->info.rows * c->info.cols) * size);
    for (int64_t slot = 0; slot < c->info.nnz; slot++)
        for (int32_t i = 0; i < test_valid_rows(c, slot); i++) {
            int64_t row = (int64_t)c->row[slot] * c->spec.br + i;
            int64_t col = (int64_t)c->col[slot] * c->spec.bc;
            int64_t from = (slot * c->spec.br + i) * c->spec.bc;
            memcpy(out + (size_t)(row * c->info.cols + col) * size, t->init + (size_t)from * size,
                   (size_t)test_valid_cols(c, slot) * size);
        }
}

typedef struct shape {
    const char *op;
    bsk_axis axis;
    const char *a, *b; /* arguments that are the operands */
    bool trans_a, trans_b;
    char m, n, k; /* which of k, m, n of the case */
} shape;

/* Row-major: NC has the samples as rows, CN as columns. */
static const shape shapes[] = {
    {"matmul", BSK_NC, "x", "w", false, false, 'n', 'm', 'k'},
    {"matmul", BSK_CN, "w", "x", true, false, 'm', 'n', 'k'},
    {"matmul_dgrad", BSK_NC, "dy", "w", false, true, 'n', 'k', 'm'},
    {"matmul_dgrad", BSK_CN, "w", "dy", false, false, 'k', 'n', 'm'},
    {"matmul_wgrad", BSK_NC, "x", "dy", true, false, 'k', 'm', 'n'},
    {"matmul_wgrad", BSK_CN, "x", "dy", false, true, 'k', 'm', 'n'},
};

static int64_t extent(const test_spec *s, char which)
{
    return which == 'n' ? s->n : which == 'k' ? s->k : s->m;
}

static const shape *shape_find(const test_spec *s)
{
    /* only plain problems have an equal dense one */
    if (s->transpose || s->options || s->act || s->beta != 0 || (s->out && s->out != s->dtype))
        return NULL;
    for (int i = 0; i < TEST_COUNT(shapes); i++)
        if (strcmp(shapes[i].op, s->op) == 0 && shapes[i].axis == s->axis)
            return &shapes[i];
    return NULL;
}

static void operand(test_case *c, const char *name, uint8_t *out, size_t bytes, int copies)
{
    if (test_arg_at(c, name)->blocks)
        densify(c, name, out);
    else
        memcpy(out, test_arg_at(c, name)->init, bytes);
    for (int i = 1; i < copies; i++)
        memcpy(out + (size_t)i * bytes, out, bytes);
}

void bench_race_open(bench_race *race, test_case *c, const bench_peer *const *peers, int count,
                     int threads, size_t cache)
{
    const shape *s = shape_find(&c->spec);
    memset(race, 0, sizeof *race);
    if (!s || !count)
        return;
    size_t size = bsk_dtype_size(c->spec.dtype);
    race->gemm = (bench_gemm){c->spec.dtype,
                              extent(&c->spec, s->m),
                              extent(&c->spec, s->n),
                              extent(&c->spec, s->k),
                              s->trans_a,
                              s->trans_b,
                              threads};
    race->a_bytes = (size_t)(race->gemm.m * race->gemm.k) * size;
    race->b_bytes = (size_t)(race->gemm.k * race->gemm.n) * size;
    race->c_bytes = (size_t)(race->gemm.m * race->gemm.n) * size;
    size_t all = race->a_bytes + race->b_bytes + race->c_bytes;
    race->copies = (int)(2 * cache / all) + 1;
    race->copies = race->copies > 64 ? 64 : race->copies < 2 ? 2 : race->copies;
    race->a = aligned_alloc(64, (race->a_bytes * (size_t)race->copies + 63) / 64 * 64);
    race->b = aligned_alloc(64, (race->b_bytes * (size_t)race->copies + 63) / 64 * 64);
    if (!race->a || !race->b)
        return;
    operand(c, s->a, race->a, race->a_bytes, race->copies);
    operand(c, s->b, race->b, race->b_bytes, race->copies);
    race->dense = true;
    race->count = count;
    for (int i = 0; i < count; i++) {
        bench_racer *r = &race->racers[i];
        r->peer = peers[i];
        r->c = aligned_alloc(64, (race->c_bytes * (size_t)race->copies + 63) / 64 * 64);
        r->state = r->c ? peers[i]->prepare(&race->gemm) : NULL;
        if (r->c)
            memset(r->c, 0xff, race->c_bytes * (size_t)race->copies);
    }
}

bool bench_race_run(bench_race *race, int i, int turn)
{
    bench_racer *r = &race->racers[i];
    size_t at = (size_t)(turn % race->copies);
    return r->peer->run(r->state, race->a + at * race->a_bytes, race->b + at * race->b_bytes,
                        r->c + at * race->c_bytes);
}

/* --- Verification -------------------------------------------------------------------------- */

/* |a - b| for operands in [-1, 1] and T products: twice the bound of either side. */
static bool close_enough(const bench_race *race, double x, double y, double terms)
{
    double u = race->gemm.dtype == BSK_F64 ? 0x1p-53 : 0x1p-24;
    double bound = 2 * (terms + 8) * u * terms;
    bound += 2 * bski_epsilon(race->gemm.dtype) * (fabs(x) + bound);
    return fabs(x - y) <= bound;
}

void bench_race_verify(bench_race *race, int i, const test_case *c, const uint8_t *payload)
{
    bench_racer *r = &race->racers[i];
    const test_tensor *out = NULL;
    for (int32_t k = 0; k < c->about->arg_count; k++)
        if (c->t[k].output && c->t[k].desc.dtype)
            out = &c->t[k];
    r->verified = out != NULL;
    for (int64_t e = 0; r->verified && e < out->elems; e++) {
        int64_t at = e;
        if (out->at[e] < 0)
            continue;
        if (out->blocks) {
            int64_t block = (int64_t)c->spec.br * c->spec.bc, slot = e / block;
            int64_t row = (int64_t)c->row[slot] * c->spec.br + e % block / c->spec.bc;
            at = row * c->info.cols + (int64_t)c->col[slot] * c->spec.bc + e % c->spec.bc;
        }
        double mine = bski_load(out->desc.dtype, payload, out->at[e]);
        double other = bski_load(race->gemm.dtype, r->c, at);
        r->verified = close_enough(race, mine, other, (double)race->gemm.k);
    }
}

void bench_race_close(bench_race *race)
{
    for (int i = 0; i < race->count; i++) {
        if (race->racers[i].state)
            race->racers[i].peer->release(race->racers[i].state);
        free(race->racers[i].c);
    }
    free(race->a);
    free(race->b);
    memset(race, 0, sizeof *race);
}

double bench_gemm_flops(const bench_gemm *g)
{
    return 2 * (double)g->m * (double)g->n * (double)g->k;
}
