/* Plans and launches the entries of dsd for f8: both operands become f16, and a family of f16 multiplies
 * them, whose end (epilogue.h) has the scales of the operands. An image of weights is the family's,
 * behind which the weights in f16 have room to be packed from, or these themselves where it has none. */
#include <backends/cuda/sm90a/wide_host.h>
#include <common/checked.h>

enum { OF_B, OF_S, PARTS };

typedef struct dsd_f8 {
    bski_wide wide;
    bsk_dsd_params params; /* in f16 */
    size_t at[PARTS];      /* in the workspace */
    size_t packed_s;       /* weights in f16, in an image */
} dsd_f8;

/* The problem in f16; false where its copies cannot be counted. */
static bool f16_fill(const bsk_problem *problem, dsd_f8 *f)
{
    const bsk_dsd_params *p = problem->params;
    f->params = *p;
    f->wide.problem = *problem;
    f->wide.problem.dtype = BSK_F16;
    f->wide.problem.params = &f->params;
    return bski_wide_matrix(&p->b, &f->params.b, &f->wide.arg.part[OF_B]) &&
           bski_wide_blocks(&p->s, &f->params.s, &f->wide.arg.part[OF_S]);
}

/* --- What is taken --- */

static bsk_reason f8_accept(const bsk_entry *entry, const bsk_problem *problem,
                            const bsk_device_props *props)
{
    dsd_f8 f = {0};
    return f16_fill(problem, &f) ? entry->accept(&f.wide.problem, props) : BSK_REFUSE_LIMIT;
}

static double f8_seconds(const bsk_entry *entry, const bsk_problem *problem,
                         const bsk_device_props *props)
{
    dsd_f8 f = {0};
    f16_fill(problem, &f);
    double bytes = (double)bski_wide_bytes(&f.wide.arg.part[OF_B]);
    if (!problem->packed)
        bytes += (double)bski_wide_bytes(&f.wide.arg.part[OF_S]);
    return entry->seconds(&f.wide.problem, props) + bski_wide_seconds(bytes);
}

/* --- Plans --- */

static bool room_make(bsk_prepared *prepared, dsd_f8 *f)
{
    const bsk_prepared *own = &f->wide.prepared;
    const wide_part *part = f->wide.arg.part;
    size_t *end = &prepared->workspace_bytes;
    bool fits = bski_wide_room(bski_wide_bytes(&part[OF_B]), end, &f->at[OF_B]) &&
                bski_wide_room(bski_wide_bytes(&part[OF_S]), end, &f->at[OF_S]);
    if (f->wide.entry->pack && !own->packed_bytes) /* none for this plan */
        return fits;
    prepared->packed_bytes = own->packed_bytes;
    return fits &&
           bski_wide_room(bski_wide_bytes(&part[OF_S]), &prepared->packed_bytes, &f->packed_s);
}

static bsk_status plan_make(bski_cuda_device *device, bsk_prepared *prepared, dsd_f8 *f)
{
    if (!f16_fill(prepared->problem, f))
        return bski_wide_uncounted(device);
    TRY(bski_wide_prepare(device, prepared, &f->wide));
    return room_make(prepared, f) ? BSK_OK : bski_wide_uncounted(device);
}

static bsk_status f8_prepare(const bsk_entry *entry, void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    TRY(state_new(&d->simt, sizeof(dsd_f8), prepared));
    dsd_f8 *f = prepared->state;
    f->wide.entry = entry;
    const bsk_status status = plan_make(d, prepared, f);
    if (status)
        bski_wide_release(device, prepared);
    return status;
}

/* --- Running --- */

static bsk_status f8_pack(const bsk_prepared *prepared, void *queue, bsk_mem s, bsk_mem packed)
{
    const dsd_f8 *f = prepared->state;
    const bsk_mem wide = bsk_mem_at(packed, f->packed_s);
    wide_arg arg = {.part = {f->wide.arg.part[OF_S]}, .parts = 1};
    arg.part[0].from = bsk_mem_address(s);
    arg.part[0].to = bsk_mem_address(wide);
    TRY(bski_wide_run(queue, &arg));
    const bsk_entry *entry = f->wide.entry;
    return entry->pack ? entry->pack(&f->wide.prepared, queue, wide, packed) : BSK_OK;
}

/* The arguments of the product in f16: copies in the workspace, but for weights that are packed. */
static bsk_dsd_args args_make(const dsd_f8 *f, const bsk_dsd_args *from)
{
    const bool packed = from->packed.kind != BSK_MEM_NULL;
    bsk_dsd_args a = *from;
    a.b = bsk_mem_at(from->workspace, f->at[OF_B]);
    a.s = packed ? from->packed : bsk_mem_at(from->workspace, f->at[OF_S]);
    if (!f->wide.entry->pack)
        a.packed = (bsk_mem){BSK_MEM_NULL, NULL, 0, 0};
    return a;
}

static bsk_status f8_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    const bsk_dsd_args *from = args;
    const dsd_f8 *f = prepared->state;
    const bsk_dsd_args to = args_make(f, from);
    wide_arg arg = f->wide.arg;
    arg.parts = from->packed.kind == BSK_MEM_NULL ? PARTS : PARTS - 1;
    arg.part[OF_B].from = bsk_mem_address(from->b);
    arg.part[OF_B].to = bsk_mem_address(to.b);
    arg.part[OF_S].from = bsk_mem_address(from->s);
    arg.part[OF_S].to = bsk_mem_address(to.s);
    TRY(bski_wide_run(queue, &arg));
    return f->wide.entry->launch(&f->wide.prepared, queue, &to);
}

/* --- Entries --- */

/* functions: CUDA_FUNCTIONS or CUDA_PACKED_FUNCTIONS, and `packs` of what the family of f16 has. */
#define DSD_F8(family, functions, packs)                                                           \
    functions(family) CUDA_PACKED_FUNCTIONS(family##_f8) static const bsk_entry family##_f16 = {   \
        WIDE_FAMILY(family), .pack = (packs)};                                                     \
    WIDE_ENTRY(family)                                                                             \
    bsk_status cuda_##family##_f8_pack(const bsk_prepared *prepared, void *queue, bsk_mem s,       \
                                       bsk_mem packed)                                             \
    {                                                                                              \
        return f8_pack(prepared, queue, s, packed);                                                \
    }
DSD_F8(dsd_wgmma, CUDA_PACKED_FUNCTIONS, cuda_dsd_wgmma_pack)
DSD_F8(sm90a_dsd_pair, CUDA_PACKED_FUNCTIONS, cuda_sm90a_dsd_pair_pack)
DSD_F8(sm90a_dsd_mma, CUDA_PACKED_FUNCTIONS, cuda_sm90a_dsd_mma_pack)
DSD_F8(sm90a_dsd_narrow, CUDA_FUNCTIONS, NULL)
DSD_F8(sm90a_dsd_ring, CUDA_FUNCTIONS, NULL)
