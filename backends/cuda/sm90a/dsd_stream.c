/* Plans dsd_sm90a_stream, _f32 and _f8: minibatches so small that reading the weights, as they are,
 * should be all that takes time. Of 16-bit types dsd_ring has the larger blocks. */
#include <backends/cuda/sm90a/dsd_pieces.h>

CUDA_FUNCTIONS(sm90a_dsd_stream)

/* --- Kernels --- */

/* The address of the symbol that the compiler makes for a kernel stands for it. */
#define KERNEL(type, name, ti, samples) dsd_sm90a_stream_##ti##_##samples##_##name##_##type
#define HALVES(X)                                                                                  \
    DSD_STREAM_HALVES(X, bf16, BSK_BF16)                                                           \
    DSD_STREAM_HALVES(X, f16, BSK_F16)
#define OTHERS(X)                                                                                  \
    DSD_STREAM_F32(X, f32, BSK_F32)                                                                \
    DSD_STREAM_F8(X, f8, BSK_F8E4M3)
#define DECLARE(type, dtype, order, name, ti, samples, blocks)                                     \
    extern const char KERNEL(type, name, ti, samples)[];
#define HALVES_DECLARE(type, dtype, flip, name, samples, blocks)                                   \
    DECLARE(type, dtype, flip, name, 8, samples, blocks)
HALVES(HALVES_DECLARE)
OTHERS(DECLARE)
#define ROW(type, dtype, order, name, ti, samples, blocks)                                         \
    {order,                                                                                        \
     {KERNEL(type, name, ti, samples), "dsd_sm90a_stream_" #ti "_" #samples "_" #name "_" #type,   \
      dtype, (order) == DSD_COLS, true, ti, samples, blocks}},
#define HALVES_ROW(type, dtype, flip, name, samples, blocks)                                       \
    ROW(type, dtype, (flip) ? DSD_COLS : DSD_ROWS, name, 8, samples, blocks)
static const struct {
    dsd_piece_order order;
    dsd_few_kernel kernel;
} kernels[] = {HALVES(HALVES_ROW) OTHERS(ROW)};

/* Values along the depth: runs of one feature side by side, where a line of a block has several. */
static dsd_piece_order order_of(const dsd_few_shape *s)
{
    return s->flip ? DSD_COLS : s->bytes != 2 && s->block_k > s->run ? DSD_RUNS : DSD_ROWS;
}

/* Of values across the depth as wide as a block, but of f32 with blocks of 32, which took 27 us and not
 * 24 so (8192 x 8192, density 0.25, on an H200). */
static int32_t tile_of(const dsd_few_shape *s)
{
    enum { NARROW = 8, HALF = 16 };
    return !s->flip ? NARROW : s->bytes == 4 && s->block_i == 2 * HALF ? HALF : s->tile;
}

/* The kernel for the fewest samples. NULL: there is none. */
static const dsd_few_kernel *kernel_of(const bsk_problem *problem)
{
    const bsk_dsd_params *p = problem->params;
    const dsd_few_shape s = bski_dsd_few_shape(problem);
    const bsk_dtype dtype = s.bytes == 1 ? BSK_F8E4M3 : problem->dtype;
    const dsd_piece_order order = order_of(&s);
    const int32_t tile = tile_of(&s);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        const dsd_few_kernel *k = &kernels[i].kernel;
        if (k->dtype == dtype && kernels[i].order == order && k->tile == tile &&
            k->columns >= p->c.dims[1])
            return k;
    }
    return NULL;
}

/* --- What is taken --- */

bsk_reason cuda_sm90a_dsd_stream_accept(const bsk_problem *problem, const bsk_device_props *props)
{
    enum { MOST_SAMPLES = 16, HALVES_TILE = 8 };
    const bsk_layout_tables *t = problem->layout;
    (void)props;
    const bsk_reason reason = bski_dsd_few_refusal(problem, MOST_SAMPLES);
    if (reason)
        return reason;
    const dsd_few_shape s = bski_dsd_few_shape(problem);
    if (s.block_k % s.run || (s.bytes == 2 && s.block_i != HALVES_TILE))
        return BSK_REFUSE_BLOCK;
    if ((!s.flip || s.bytes == 2) && !s.along_k)
        return BSK_REFUSE_STRIDE;
    const dsd_few_kernel *k = kernel_of(problem);
    if (!k)
        return BSK_REFUSE_SHAPE;
    const double runs = (double)t->nnz * (s.block_k / s.run) * (s.block_i / k->tile);
    return runs < INT32_MAX / 4 ? BSK_ACCEPT : BSK_REFUSE_LIMIT;
}

double cuda_sm90a_dsd_stream_seconds(const bsk_problem *problem, const bsk_device_props *props)
{
    /* A launch and the chain of accesses of a thread block; bytes a second from memory; for a sample,
     * what a multiprocessor needs for 128 bytes of 16-bit weights, and, beside that, for 16 of f8.
     * Measured. */
    static const double launch = 2.8e-6, memory = 3.8e12, line = 0.54e-9, piece = 0.47e-9;
    const bsk_layout_tables *t = problem->layout;
    const bsk_dsd_params *p = problem->params;
    const int32_t type = bski_dsd_few_shape(problem).bytes;
    const double bytes = (double)t->nnz * t->block_rows * t->block_cols * type;
    const double reading = bytes / memory;
    const double each = bytes / props->compute_units * (double)p->c.dims[1];
    if (type == 1)
        return launch + reading + each / 16 * piece;
    const double work = type == 2 ? each / 128 * line : 0;
    return launch + (work > reading ? work : reading);
}

/* --- Plans --- */

bsk_status cuda_sm90a_dsd_stream_prepare(void *device, bsk_prepared *prepared)
{
    return bski_dsd_pieces_prepare(device, prepared, kernel_of(prepared->problem),
                                   DSD_STREAM_SLOTS);
}

void cuda_sm90a_dsd_stream_release(void *device, bsk_prepared *prepared)
{
    bski_dsd_pieces_release(device, prepared);
}

bsk_status cuda_sm90a_dsd_stream_launch(const bsk_prepared *prepared, void *queue, const void *args)
{
    return bski_dsd_pieces_launch(prepared, queue, args);
}
