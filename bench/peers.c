/* Peers: loading their modules, operands of the same shape, verification. */
#include <dlfcn.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"

/* --- Loading ------------------------------------------------------------------------------- */

/* Peers by module; a module may have several. */
static const struct {
    const char *module, *name, *backend;
} known_peers[] = {
    {"openblas", "openblas", "cpu"},      {"onednn", "onednn", "cpu"},
    {"libxsmm", "libxsmm", "cpu"},        {"cublas", "cublas", "cuda"},
    {"cublas", "cublas-tf32", "cuda"},    {"cusparse", "cusparse-ell", "cuda"},
    {"cusparse", "cusparse-bsr", "cuda"},
};

/* Whether a list of names with commas has the name, or is "all". */
static bool is_named(const char *list, const char *name)
{
    const size_t n = strlen(name);
    if (strcmp(list, "all") == 0)
        return true;
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == n && strncmp(p, name, n) == 0)
            return true;
    return false;
}

static bool names_known(const char *list)
{
    for (const char *p = list; strcmp(list, "all") != 0 && *p;) {
        const size_t n = strcspn(p, ",");
        bool known = false;
        for (int i = 0; i < TEST_COUNT(known_peers); i++)
            known |= strlen(known_peers[i].name) == n && strncmp(p, known_peers[i].name, n) == 0;
        if (!known) {
            fprintf(stderr, "bsk: there is no peer %.*s\n", (int)n, p);
            return false;
        }
        p += n + (p[n] == ',');
    }
    return true;
}

/* The module beside the tool (build folder), or in the install directory. */
static void *module_open(const char *name)
{
    char self[512], path[2][700];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    snprintf(path[0], sizeof path[0], "%s/peers/bsk-peer-%s.so", dirname(self), name);
    snprintf(path[1], sizeof path[1], "%s/bsk-peer-%s.so", BSK_PEER_DIR, name);
    for (int i = 0; i < 2; i++) {
        if (access(path[i], F_OK) != 0)
            continue;
        void *module = dlopen(path[i], RTLD_NOW | RTLD_LOCAL);
        if (!module)
            fprintf(stderr, "bsk: peer %s: %s\n", name, dlerror());
        return module;
    }
    fprintf(stderr, "bsk: peer %s is not installed\n", name);
    return NULL;
}

static const bench_peer *peer_find(void *module, const char *name)
{
    bench_peer_query_fn query;
    void *symbol = dlsym(module, BENCH_PEER_SYMBOL);
    const bench_peer *peer = NULL;
    memcpy(&query, &symbol, sizeof query);
    for (int i = 0; symbol && (peer = query(i)) && strcmp(peer->name, name) != 0; i++)
        continue;
    return peer;
}

/* The number in an id such as "cuda:1". */
static int device_number(const bsk_device_info *device)
{
    const char *colon = strchr(device->id, ':');
    return colon ? atoi(colon + 1) : 0;
}

static void team_add(bench_team *team, const bench_peer *peer, const bsk_device_info *device)
{
    void *library = NULL;
    if (peer->streams && !team->stream &&
        !(team->stream = peer->streams->create(device_number(device)))) {
        fprintf(stderr, "bsk: peer %s cannot use %s\n", peer->name, device->id);
        return;
    }
    if (peer->open && !(library = peer->open(team->stream))) {
        fprintf(stderr, "bsk: peer %s does not start\n", peer->name);
        return;
    }
    team->library[team->count] = library;
    team->peer[team->count++] = peer;
}

bool bench_team_open(bench_team *team, const char *which, const bsk_device_info *device)
{
    const char *opened = "";
    void *module = NULL;
    memset(team, 0, sizeof *team);
    if (!which)
        return true;
    if (!names_known(which))
        return false;
    for (int i = 0; i < TEST_COUNT(known_peers); i++) {
        if (!is_named(which, known_peers[i].name))
            continue;
        if (strcmp(known_peers[i].backend, device->backend) != 0) {
            if (strcmp(which, "all") != 0)
                fprintf(stderr, "bsk: peer %s does not work on %s\n", known_peers[i].name,
                        device->id);
            continue;
        }
        if (strcmp(opened, known_peers[i].module) != 0)
            module = module_open(known_peers[i].module);
        opened = known_peers[i].module;
        const bench_peer *peer = module ? peer_find(module, known_peers[i].name) : NULL;
        if (peer)
            team_add(team, peer, device);
        else if (module)
            fprintf(stderr, "bsk: peer %s is not in this version of its library\n",
                    known_peers[i].name);
    }
    return true;
}

void bench_team_close(bench_team *team)
{
    const bench_streams *streams = team->count ? team->peer[0]->streams : NULL;
    for (int i = 0; i < team->count; i++)
        if (team->library[i])
            team->peer[i]->close(team->library[i]);
    if (streams && team->stream)
        streams->destroy(team->stream);
    memset(team, 0, sizeof *team);
}

/* A copy of `bytes` bytes by the peers' library, or where there is none as the device negates them. */
typedef struct copier {
    const bench_team *team;
    bsk_queue *queue;
    bsk_plan *plan;
    bsk_unary_args args;
    size_t bytes;
} copier;

static bool copier_open(copier *c, const bench_team *team, const bsk_device *device,
                        bsk_queue *queue, bsk_mem from, bsk_mem to, size_t bytes)
{
    const bsk_tensor whole = bsk_tensor_1d(BSK_F32, (int64_t)(bytes / sizeof(float)));
    bsk_unary_params params = BSK_INIT(bsk_unary_params);
    bsk_plan_options options = BSK_INIT(bsk_plan_options);
    *c = (copier){.team = team, .queue = queue, .bytes = bytes};
    c->args = (bsk_unary_args)BSK_INIT(bsk_unary_args);
    c->args.x = from;
    c->args.y = to;
    params.kind = BSK_UNARY_NEG;
    params.x = params.y = whole;
    options.fallback = BSK_FALLBACK_FORBID;
    return team->stream || !bsk_unary_plan(device, &params, &options, &c->plan);
}

static bool copier_run(const copier *c)
{
    return c->plan ? !bsk_unary_run(c->plan, c->queue, &c->args)
                   : c->team->peer[0]->streams->copy(c->team->stream, bsk_mem_address(c->args.y),
                                                     bsk_mem_address(c->args.x), c->bytes);
}

static double copy_rate(const bench_team *team, const bsk_device *device, bsk_queue *queue,
                        size_t bytes)
{
    enum { SAMPLES = 7, REPEAT = 4 };
    bsk_mem from = {0}, to = {0};
    bench_timer timer;
    copier c = {0};
    double best = 0, host;
    bench_timer_open(&timer, device, queue);
    if (!bsk_mem_alloc(device, bytes, &from) && !bsk_mem_alloc(device, bytes, &to) &&
        !bsk_mem_fill(queue, from, 0x5a, bytes) &&
        copier_open(&c, team, device, queue, from, to, bytes))
        for (int s = 0; s < SAMPLES && bench_timer_start(&timer); s++) {
            bool good = true;
            for (int i = 0; good && i < REPEAT; i++)
                good = copier_run(&c);
            const double ms = good ? bench_timer_stop(&timer, &host) : 0;
            const double rate = ms > 0 ? 2e3 * (double)bytes * REPEAT / ms : 0;
            best = s && rate > best ? rate : best;
        }
    bsk_plan_destroy(&c.plan);
    if (from.kind)
        bsk_mem_free(device, &from);
    if (to.kind)
        bsk_mem_free(device, &to);
    bench_timer_close(&timer);
    return best;
}

/* A small one first: what only emulates a device would take minutes over the other. */
double bench_team_copy_rate(const bench_team *team, const bsk_device *device, bsk_queue *queue)
{
    const double rate = copy_rate(team, device, queue, (size_t)1 << 20);
    return rate > 2e10 ? copy_rate(team, device, queue, (size_t)1 << 30) : 0;
}

/* --- Operands ------------------------------------------------------------------------------ */

/* The block matrix as a dense row-major [rows, cols] one. */
static void densify(const test_case *c, const test_tensor *t, uint8_t *out)
{
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

/* The case's blocks as the left factor that sparse libraries want. The products with x need W
 * transposed, those with dy need W. */
typedef struct left_factor {
    bench_blocks blocks;
    int32_t *row_start, *col;
    uint8_t *values;
} left_factor;

static bool left_make(left_factor *l, const test_case *c, const test_tensor *t, bool transposed)
{
    const int32_t b = c->spec.br, rows = transposed ? c->info.grid_cols : c->info.grid_rows;
    const size_t size = bsk_dtype_size(t->desc.dtype), block = (size_t)b * b * size;
    const size_t nnz = (size_t)c->info.nnz;
    bsk_layout *layout = c->layout, *turned = NULL;
    memset(l, 0, sizeof *l);
    if (c->spec.br != c->spec.bc || c->info.heads > 1 || nnz > INT32_MAX ||
        (transposed && bsk_layout_transpose(c->layout, &turned)))
        return false;
    int64_t *start = malloc(((size_t)rows + 1) * sizeof *start);
    int32_t *slot = malloc((nnz + 1) * sizeof *slot);
    l->row_start = malloc(((size_t)rows + 1) * sizeof *l->row_start);
    l->col = malloc((nnz + 1) * sizeof *l->col);
    l->values = malloc((nnz + 1) * block);
    bool good = start && slot && l->row_start && l->col && l->values &&
                bsk_layout_to_bsr(turned ? turned : layout, start, l->col, slot) == BSK_OK;
    for (int32_t r = 0; good && r <= rows; r++) {
        l->row_start[r] = (int32_t)start[r];
        if (r && start[r] - start[r - 1] > l->blocks.width)
            l->blocks.width = (int32_t)(start[r] - start[r - 1]);
    }
    for (size_t e = 0; good && e < nnz; e++) {
        const uint8_t *from = t->init + (size_t)slot[e] * block;
        uint8_t *to = l->values + e * block;
        if (!transposed)
            memcpy(to, from, block);
        for (int32_t i = 0; transposed && i < b * b; i++)
            memcpy(to + (size_t)i * size, from + (size_t)(i % b * b + i / b) * size, size);
    }
    l->blocks.size = b;
    l->blocks.grid_rows = rows;
    l->blocks.grid_cols = transposed ? c->info.grid_rows : c->info.grid_cols;
    l->blocks.row_start = l->row_start;
    l->blocks.col = l->col;
    l->blocks.values = l->values;
    bsk_layout_release(&turned);
    free(start);
    free(slot);
    return good;
}

static void left_free(left_factor *l)
{
    free(l->row_start);
    free(l->col);
    free(l->values);
}

/* Uploads as many copies of the dense form as the race rotates. */
static bool dense_make(bench_race *race, const test_case *c, const test_tensor *t, bsk_queue *queue)
{
    uint8_t *host = malloc(race->dense_bytes);
    bool good = host && !bsk_mem_alloc(race->device, race->dense_bytes * (size_t)race->copies,
                                       &race->dense);
    if (good)
        densify(c, t, host);
    for (int i = 0; good && i < race->copies; i++)
        good = !bsk_mem_upload(queue, bsk_mem_at(race->dense, race->dense_bytes * (size_t)i), host,
                               race->dense_bytes);
    good = bsk_queue_sync(queue) == BSK_OK && good;
    free(host);
    return good;
}

/* As in race_open: which operand is not an argument, but the blocks' dense form. */
static int operand_argument(test_case *c, const char *name)
{
    return test_arg_at(c, name)->blocks ? -1 : test_index(c, name);
}

static void racer_open(bench_race *race, bench_racer *r, const bench_peer *peer, void *library,
                       const bench_blocks *blocks, bsk_queue *queue)
{
    const size_t bytes = race->c_bytes * (size_t)race->copies;
    r->peer = peer;
    if (bsk_mem_alloc(race->device, bytes, &r->c) || bsk_mem_fill(queue, r->c, 0xff, bytes) ||
        bsk_queue_sync(queue))
        return;
    r->state = peer->prepare(library, &race->gemm, blocks);
}

void bench_race_open(bench_race *race, test_case *c, const bench_team *team,
                     const bench_rotation *rotation, bsk_queue *queue, int threads)
{
    const shape *s = shape_find(&c->spec);
    left_factor left = {0};
    bool has_left = false;
    memset(race, 0, sizeof *race);
    if (!s || !team->count || c->spec.n < 1)
        return;
    const size_t size = bsk_dtype_size(c->spec.dtype);
    race->gemm = (bench_gemm){c->spec.dtype,
                              extent(&c->spec, s->m),
                              extent(&c->spec, s->n),
                              extent(&c->spec, s->k),
                              s->trans_a,
                              s->trans_b,
                              threads};
    race->device = rotation->device;
    race->rotation = rotation;
    race->copies = rotation->count;
    race->a_arg = operand_argument(c, s->a);
    race->b_arg = operand_argument(c, s->b);
    race->c_bytes = (size_t)(race->gemm.m * race->gemm.n) * size;
    race->dense_bytes = (size_t)(c->spec.k * c->spec.m) * size;
    /* dense operands are larger than blocks: fewer copies than the case's exceed the cache */
    while (race->copies > 2 && race->dense_bytes * (size_t)(race->copies - 1) > (size_t)1 << 30)
        race->copies--;
    if (race->a_arg < 0 || race->b_arg < 0) {
        const test_tensor *w = test_arg_at(c, race->a_arg < 0 ? s->a : s->b);
        bool sparse = false;
        for (int i = 0; i < team->count; i++)
            sparse |= team->peer[i]->sparse;
        if (!dense_make(race, c, w, queue))
            return;
        has_left = sparse && left_make(&left, c, w, strcmp(c->spec.op, "matmul") == 0);
        left.blocks.is_b = race->b_arg < 0;
    }
    race->count = team->count;
    for (int i = 0; i < team->count; i++)
        racer_open(race, &race->racers[i], team->peer[i], team->library[i],
                   has_left ? &left.blocks : NULL, queue);
    left_free(&left);
}

static const void *operand_at(const bench_race *race, int arg, int copy)
{
    if (arg < 0)
        return bsk_mem_address(bsk_mem_at(race->dense, race->dense_bytes * (size_t)copy));
    return bsk_mem_address(race->rotation->copies[copy].views[arg][0]);
}

bool bench_race_run(bench_race *race, int i, int turn)
{
    bench_racer *r = &race->racers[i];
    const int copy = turn % race->copies;
    return r->peer->run(r->state, operand_at(race, race->a_arg, copy),
                        operand_at(race, race->b_arg, copy),
                        bsk_mem_address(bsk_mem_at(r->c, race->c_bytes * (size_t)copy)));
}

/* --- Verification -------------------------------------------------------------------------- */

/* |x - y| for sums of T products of operands drawn evenly from [-1, 1]: partial sums stay within
 * sqrt(T), three times their deviation, and each of T additions rounds once on either side. */
static bool close_enough(const bench_race *race, double operand_error, double x, double y)
{
    const double terms = (double)race->gemm.k;
    const double u = race->gemm.dtype == BSK_F64 ? 0x1p-53 : 0x1p-24;
    double bound = 2 * (terms + 8) * u * sqrt(terms) + 4 * operand_error * sqrt(terms);
    bound += 2 * bski_epsilon(race->gemm.dtype) * (fabs(x) + bound);
    return fabs(x - y) <= bound;
}

/* Large outputs are compared at about this many elements, evenly spread. */
enum { VERIFIED_ELEMENTS = 1 << 21 };

bool bench_race_verify(bench_race *race, int i, const test_case *c, const uint8_t *payload,
                       bsk_queue *queue)
{
    bench_racer *r = &race->racers[i];
    const test_tensor *out = NULL;
    for (int32_t k = 0; k < c->about->arg_count; k++)
        if (c->t[k].output && c->t[k].desc.dtype)
            out = &c->t[k];
    uint8_t *theirs = malloc(race->c_bytes + 1);
    r->verified = out && theirs && !bsk_mem_download(queue, theirs, r->c, race->c_bytes) &&
                  !bsk_queue_sync(queue);
    const bool tf32 = c->spec.precision == BSK_PRECISION_TF32 && race->gemm.dtype == BSK_F32;
    const double operand_error = r->peer->operand_error + (tf32 ? 0x1p-11 : 0);
    /* an odd step meets all rows and columns */
    const int64_t step = r->verified ? (out->elems / VERIFIED_ELEMENTS) | 1 : 1;
    for (int64_t e = 0; r->verified && e < out->elems; e += step) {
        int64_t at = e;
        if (out->blocks) {
            const int64_t block = (int64_t)c->spec.br * c->spec.bc, slot = e / block;
            const int64_t row = e % block / c->spec.bc, col = e % c->spec.bc;
            if (row >= test_valid_rows(c, slot) || col >= test_valid_cols(c, slot))
                continue;
            at = ((int64_t)c->row[slot] * c->spec.br + row) * c->info.cols +
                 (int64_t)c->col[slot] * c->spec.bc + col;
        }
        r->verified = close_enough(race, operand_error, bski_load(out->desc.dtype, payload, e),
                                   bski_load(race->gemm.dtype, theirs, at));
    }
    free(theirs);
    return r->verified;
}

void bench_race_close(bench_race *race)
{
    for (int i = 0; i < race->count; i++) {
        bench_racer *r = &race->racers[i];
        if (r->state)
            r->peer->release(r->state);
        if (r->c.kind)
            bsk_mem_free(race->device, &r->c);
    }
    if (race->dense.kind)
        bsk_mem_free(race->device, &race->dense);
    memset(race, 0, sizeof *race);
}

double bench_gemm_flops(const bench_gemm *g)
{
    return 2 * (double)g->m * (double)g->n * (double)g->k;
}
