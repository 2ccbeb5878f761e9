/* Plans and launches the entries of sdd for f8: the operands of all pairs become f16, and a family of f16
 * multiplies them. The scales of the operands become gates of the blocks. */
#include <backends/cuda/sm90a/wide_host.h>
#include <common/checked.h>

/* Of each pair. */
enum { OF_A, OF_B, SIDES };

typedef struct sdd_f8 {
    bski_wide wide;        /* parts: of the first pair */
    bsk_sdd_params params; /* in f16 */
    size_t at[WIDE_PARTS]; /* in the workspace: pair by pair */
    size_t gates_at;       /* the same */
    bool scaled;
} sdd_f8;

/* The problem in f16; false where its copies cannot be counted. */
static bool f16_fill(const bsk_problem *problem, sdd_f8 *f)
{
    const bsk_sdd_params *p = problem->params;
    f->params = *p;
    f->wide.problem = *problem;
    f->wide.problem.dtype = BSK_F16;
    f->wide.problem.params = &f->params;
    f->scaled = p->a_scale.dtype != BSK_NONE || p->b_scale.dtype != BSK_NONE;
    f->params.a_scale = f->params.b_scale = (bsk_tensor){0};
    if (f->scaled) {
        f->params.gate = bsk_tensor_1d(BSK_F32, problem->layout->nnz);
        f->params.gate_mode = BSK_GATE_SCALE;
    }
    return bski_wide_matrix(&p->a, &f->params.a, &f->wide.arg.part[OF_A]) &&
           bski_wide_matrix(&p->b, &f->params.b, &f->wide.arg.part[OF_B]);
}

/* --- What is taken --- */

static bsk_reason f8_accept(const bsk_entry *entry, const bsk_problem *problem,
                            const bsk_device_props *props)
{
    const bsk_sdd_params *p = problem->params;
    sdd_f8 f = {0};
    if (p->a.rank != 2)
        return BSK_REFUSE_RANK;
    if (p->pairs > SDD_MAX_PAIRS || !f16_fill(problem, &f))
        return BSK_REFUSE_LIMIT;
    return entry->accept(&f.wide.problem, props);
}

static double f8_seconds(const bsk_entry *entry, const bsk_problem *problem,
                         const bsk_device_props *props)
{
    sdd_f8 f = {0};
    f16_fill(problem, &f);
    const wide_part *part = f.wide.arg.part;
    const double bytes =
        (double)bski_wide_bytes(&part[OF_A]) + (double)bski_wide_bytes(&part[OF_B]);
    return entry->seconds(&f.wide.problem, props) + bski_wide_seconds(f.params.pairs * bytes);
}

/* --- Plans --- */

static bool room_make(bsk_prepared *prepared, sdd_f8 *f)
{
    size_t *end = &prepared->workspace_bytes;
    bool fits = true;
    for (int32_t i = 0; i < f->wide.arg.parts; i++)
        fits =
            fits && bski_wide_room(bski_wide_bytes(&f->wide.arg.part[i % SIDES]), end, &f->at[i]);
    return fits && bski_wide_room(f->wide.arg.gates.count * sizeof(float), end, &f->gates_at);
}

static bsk_status plan_make(bski_cuda_device *device, bsk_prepared *prepared, sdd_f8 *f)
{
    const bsk_sdd_params *p = prepared->problem->params;
    wide_arg *arg = &f->wide.arg;
    if (!f16_fill(prepared->problem, f))
        return bski_wide_uncounted(device);
    arg->parts = SIDES * p->pairs;
    arg->gates.count = f->scaled ? (uint32_t)prepared->problem->layout->nnz : 0;
    arg->gates.skip = p->gate_mode == BSK_GATE_SKIP;
    TRY(bski_wide_prepare(device, prepared, &f->wide));
    return room_make(prepared, f) ? BSK_OK : bski_wide_uncounted(device);
}

static bsk_status f8_prepare(const bsk_entry *entry, void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    TRY(state_new(&d->simt, sizeof(sdd_f8), prepared));
    sdd_f8 *f = prepared->state;
    f->wide.entry = entry;
    const bsk_status status = plan_make(d, prepared, f);
    if (status)
        bski_wide_release(device, prepared);
    return status;
}

/* --- Running --- */

static bsk_status f8_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_sdd_args *from = args;
    const sdd_f8 *f = prepared->state;
    bsk_mem to[SIDES][SDD_MAX_PAIRS];
    bsk_sdd_args inner = *from;
    wide_arg arg = f->wide.arg;
    for (int32_t i = 0; i < arg.parts; i++) {
        const int32_t pair = i / SIDES, side = i % SIDES;
        to[side][pair] = bsk_mem_at(from->workspace, f->at[i]);
        arg.part[i] = f->wide.arg.part[side];
        arg.part[i].from = bsk_mem_address(side == OF_A ? from->a[pair] : from->b[pair]);
        arg.part[i].to = bsk_mem_address(to[side][pair]);
    }
    inner.a = to[OF_A];
    inner.b = to[OF_B];
    inner.a_scale = inner.b_scale = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
    if (f->scaled) {
        const bsk_sdd_params *p = prepared->problem->params;
        const bool gated = p->gate_mode != BSK_GATE_IGNORE;
        inner.gate = bsk_mem_at(from->workspace, f->gates_at);
        arg.gates.scale[0] = bsk_mem_address(from->a_scale);
        arg.gates.scale[1] = bsk_mem_address(from->b_scale);
        arg.gates.gate = gated ? bsk_mem_address(from->gate) : NULL;
        arg.gates.to = bsk_mem_address(inner.gate);
    }
    TRY(bski_wide_run(queue, &arg));
    return f->wide.entry->launch(&f->wide.prepared, queue, &inner);
}

/* --- Entries --- */

#define SDD_F8(family)                                                                             \
    CUDA_FUNCTIONS(family)                                                                         \
    CUDA_FUNCTIONS(family##_f8) static const bsk_entry family##_f16 = {WIDE_FAMILY(family)};       \
    WIDE_ENTRY(family)
SDD_F8(sdd_wgmma)
SDD_F8(sdd_mma)
SDD_F8(sdd_pair)
