/* Matrices: ldmatrix, stmatrix, mma and wgmma. Products are done in f32, one term after the other.
 *
 * Operands become arrays of floats: a as [k][16 rows], b as [column][k], d as [column][16 rows],
 * so that the rows fill vectors. A warp's part of a wgmma has 16 rows, and is done on its own. */
#include <stdlib.h>
#include <string.h>

#include "machine.h"

enum { ROWS = GPU_ROWS, MAX_K = 32, MAX_N = 256 };

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

CLONES static void multiply_rows(float *restrict d, int pitch, const float *restrict a,
                                 const float *restrict b, int n, int k)
{
    typedef float rows __attribute__((vector_size(ROWS * sizeof(float)), aligned(4)));
    for (int j = 0; j < n; j++) {
        rows sum = *(const rows *)(d + j * pitch);
        for (int i = 0; i < k; i++)
            sum += *(const rows *)(a + i * ROWS) * b[j * k + i];
        *(rows *)(d + j * pitch) = sum;
    }
}

void gpu_multiply_rows(float *d, int pitch, const float *a, const float *b, int n, int k)
{
    multiply_rows(d, pitch, a, b, n, k);
}

/* --- Numbers --- */

static float bits_float(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* A number of `exponent` and `mantissa` bits; ieee: its largest exponent is that of infinity. */
static float small_float(uint32_t bits, int exponent, int mantissa, bool ieee)
{
    const uint32_t sign = bits >> (exponent + mantissa), low = bits & ((1u << mantissa) - 1);
    const uint32_t e = bits >> mantissa & ((1u << exponent) - 1), most = (1u << exponent) - 1;
    const int bias = (1 << (exponent - 1)) - 1;
    float v;
    if (e == most && (ieee || low == (1u << mantissa) - 1))
        v = ieee && !low ? __builtin_inff() : __builtin_nanf("");
    else if (e)
        v = bits_float(((uint32_t)((int)e - bias + 127) << 23) | low << (23 - mantissa));
    else
        v = (float)low * bits_float((uint32_t)(1 - bias - mantissa + 127) << 23);
    return sign ? -v : v;
}

static float f16_table[1 << 16], f8_table[2][1 << 8];

__attribute__((constructor)) static void tables_make(void)
{
    for (uint32_t i = 0; i < 1 << 16; i++)
        f16_table[i] = small_float(i, 5, 10, true);
    for (uint32_t i = 0; i < 1 << 8; i++) {
        f8_table[0][i] = small_float(i, 4, 3, false);
        f8_table[1][i] = small_float(i, 5, 2, true);
    }
}

float gpu_element(gpu_type type, uint32_t word, int e)
{
    switch (type) {
    case GPU_F16:
        return f16_table[word >> 16 * e & 0xffff];
    case GPU_BF16:
        return bits_float((word >> 16 * e & 0xffff) << 16);
    case GPU_E4M3:
    case GPU_E5M2:
        return f8_table[type == GPU_E5M2][word >> 8 * e & 0xff];
    default: /* tf32: the lower bits are not looked at */
        return bits_float(word & ~0x1fffu);
    }
}

static int elements_of(gpu_type type)
{
    return type == GPU_TF32 ? 1 : type == GPU_F16 || type == GPU_BF16 ? 2 : 4;
}

/* --- Matrices of 8 x 8 in shared memory --- */

typedef struct matrix_slot {
    uint32_t *r;
    uint32_t address;
} matrix_slot;

/* The 16-bit element (row, column) of a matrix, whose rows' addresses lanes have given. */
static uint16_t *matrix_at(void **slots, int matrix, int row, int column)
{
    const matrix_slot *s = slots[8 * matrix + row];
    return (uint16_t *)gpu_shared(s->address, 16, 16) + column;
}

static void matrices_move(void **slots, int count, bool trans, bool store)
{
    for (int lane = 0; lane < GPU_LANES; lane++)
        for (int i = 0; i < count; i++) {
            uint32_t *r = ((const matrix_slot *)slots[lane])->r + i;
            for (int e = 0; e < 2; e++) {
                const int g = lane / 4, t = lane % 4 * 2 + e;
                uint16_t *p = trans ? matrix_at(slots, i, t, g) : matrix_at(slots, i, g, t);
                if (store)
                    *p = (uint16_t)(*r >> 16 * e);
                else
                    *r = (*r & 0xffffu << 16 * (1 - e)) | (uint32_t)*p << 16 * e;
            }
        }
}

void gpu_load_matrix(uint32_t *r, uint32_t address, int count, bool trans)
{
    matrix_slot s = {r, address};
    if (!gpu_gather(trans ? "ldmatrix.trans" : "ldmatrix", ~0u, &s))
        return;
    matrices_move(gpu_slots(), count, trans, false);
    gpu_release();
}

void gpu_store_matrix(const uint32_t *r, uint32_t address, int count, bool trans)
{
    uint32_t copy[4];
    matrix_slot s = {copy, address};
    memcpy(copy, r, (size_t)count * sizeof *r);
    if (!gpu_gather(trans ? "stmatrix.trans" : "stmatrix", ~0u, &s))
        return;
    matrices_move(gpu_slots(), count, trans, true);
    gpu_release();
}

/* --- mma --- */

typedef struct product_slot {
    float *d;
    const uint32_t *a, *b;
} product_slot;

/* The elements of a that a lane holds in registers: rows g and g + 8 in turn, then further k. */
static void spread_a(float *to, gpu_type type, const uint32_t *a, int lane, int k)
{
    const int count = elements_of(type), across = 4 * count; /* k of one register of all lanes */
    for (int i = 0; i < 2 * k / across; i++)
        for (int e = 0; e < count; e++)
            to[(i / 2 * across + lane % 4 * count + e) * ROWS + lane / 4 + i % 2 * 8] =
                gpu_element(type, a[i], e);
}

void gpu_multiply(gpu_type a_type, gpu_type b_type, int k, float *d, const uint32_t *a,
                  const uint32_t *b)
{
    product_slot slot = {d, a, b};
    if (!gpu_gather("mma", ~0u, &slot))
        return;
    void **slots = gpu_slots();
    float fa[MAX_K * ROWS], fb[8 * MAX_K], fd[8 * ROWS];
    const int count = elements_of(b_type), across = 4 * count;
    for (int lane = 0; lane < GPU_LANES; lane++) {
        const product_slot *s = slots[lane];
        const int g = lane / 4, t = lane % 4;
        spread_a(fa, a_type, s->a, lane, k);
        for (int i = 0; i < k / across; i++)
            for (int e = 0; e < count; e++)
                fb[g * k + i * across + t * count + e] = gpu_element(b_type, s->b[i], e);
        for (int i = 0; i < 4; i++)
            fd[(2 * t + i % 2) * ROWS + g + i / 2 * 8] = s->d[i];
    }
    multiply_rows(fd, ROWS, fa, fb, 8, k);
    for (int lane = 0; lane < GPU_LANES; lane++) {
        const product_slot *s = slots[lane];
        for (int i = 0; i < 4; i++)
            s->d[i] = fd[(lane % 4 * 2 + i % 2) * ROWS + lane / 4 + i / 2 * 8];
    }
    gpu_release();
}

/* --- wgmma: a warp's part --- */

enum { OPS = 512, SUMS = 16 };

/* Accumulators of a warp that products under way will change. */
typedef struct warp_sums {
    int pending; /* products that are not done */
    int n;
    bool active;
    uint32_t lanes; /* whose registers are in */
    float *registers[GPU_LANES];
    float d[MAX_N * ROWS];
} warp_sums;

typedef struct warp_op {
    gpu_product product;
    warp_sums *sums;
    bool has_a;
    uint32_t a[GPU_LANES][4];
} warp_op;

struct gpu_products {
    warp_op ops[OPS];
    warp_sums sums[SUMS];
    int ends[OPS]; /* the number of products up to the end of a group */
    int count, done, groups;
};

void gpu_products_begin(gpu_warp *w, int number)
{
    (void)number;
    if (!w->products)
        return;
    w->products->count = w->products->done = w->products->groups = 0;
    for (int i = 0; i < SUMS; i++)
        w->products->sums[i].active = false;
}

static warp_sums *sums_find(gpu_products *p, float *d, int n, int lane)
{
    warp_sums *none = NULL;
    for (int i = 0; i < SUMS; i++) {
        warp_sums *s = &p->sums[i];
        if (!s->active) {
            none = s;
        } else if (s->lanes >> lane & 1) {
            if (s->registers[lane] == d && s->n == n)
                return s;
            if (s->registers[lane] < d + n / 2 && d < s->registers[lane] + s->n / 2)
                gpu_fault("wgmma of %d columns on registers of one under way with %d", n, s->n);
        }
    }
    if (!none)
        gpu_fault("wgmma on more than %d sets of registers at once", SUMS);
    if (!gpu.lane->fenced)
        gpu_fault("wgmma without wgmma.fence on registers that the thread may have written");
    none->active = true;
    none->n = n;
    none->lanes = 0;
    none->pending = 0;
    return none;
}

/* Column and row of a lane's accumulator i. */
static int sum_at(int lane, int i)
{
    return (i / 4 * 8 + lane % 4 * 2 + i % 2) * ROWS + lane / 4 + i / 2 % 2 * 8;
}

static gpu_products *products_of(gpu_warp *w)
{
    if (!w->products)
        w->products = calloc(1, sizeof *w->products);
    return w->products;
}

void gpu_wgmma(const gpu_product *product, float *d, const uint32_t *a)
{
    gpu_lane *l = gpu.lane;
    gpu_warp *w = l->warp;
    const int lane = (int)(l->number % GPU_LANES);
    gpu_products *p = products_of(w);
    warp_op *op = &p->ops[l->products % OPS];
    if (l->products == p->count) { /* the warp's first lane here */
        if (p->count - p->done == OPS)
            gpu_fault("more than %d wgmma under way", OPS);
        p->count++;
        op->product = *product;
        op->has_a = a != NULL;
        op->sums = sums_find(p, d, product->n, lane);
        op->sums->pending++;
    } else if (memcmp(&op->product, product, sizeof *product) || op->has_a != (a != NULL)) {
        gpu_fault("lanes of a warp differ in a wgmma or its descriptors");
    }
    warp_sums *s = op->sums;
    if (!(s->lanes >> lane & 1)) {
        if (!l->fenced)
            gpu_fault("wgmma without wgmma.fence on registers that the thread may have written");
        s->lanes |= 1u << lane;
        s->registers[lane] = d;
        for (int i = 0; i < s->n / 2; i++) {
            s->d[sum_at(lane, i)] = product->accumulate ? d[i] : 0;
            memset(&d[i], 0xff, sizeof d[i]); /* nobody's until the wait */
        }
    } else if (s->registers[lane] != d) {
        gpu_fault("lanes of a warp differ in the registers of a wgmma");
    }
    if (a)
        memcpy(op->a[lane], a, sizeof op->a[lane]);
    l->products++;
}

gpu_operand gpu_operand_form(gpu_type type, bool trans, uint32_t start, uint32_t leading,
                             uint32_t stride, uint32_t width)
{
    const bool swizzled = width > 16;
    const uint32_t size = type == GPU_TF32 ? 4 : 2;
    gpu_operand f = {.type = type, .trans = trans, .start = start, .swizzle = width / 16 - 1};
    if (trans && type == GPU_TF32)
        gpu_fault("a product of tf32 with an operand that is not K-major");
    if (trans) { /* rows of `width` bytes along the own axis, one for each k */
        f.unit = width / 2;
        f.step = 2;
        f.unit_step = swizzled ? leading : stride;
        f.k_unit = 8;
        f.k_step = width;
        f.k_unit_step = swizzled ? stride : leading;
    } else {
        f.unit = 8;
        f.step = width;
        f.unit_step = stride;
        f.k_unit = width / size;
        f.k_step = size;
        f.k_unit_step = leading; /* of k beyond a row; swizzled, a product does not get there */
    }
    return f;
}

static gpu_operand form_of(uint64_t descriptor, gpu_type type, bool trans)
{
    static const uint32_t widths[] = {16, 128, 64, 32}; /* by the swizzle's number */
    if (descriptor >> 49 & 7)
        gpu_fault("a descriptor with a base offset");
    return gpu_operand_form(type, trans, (uint32_t)(descriptor & 0x3fff) << 4,
                            (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
                            (uint32_t)(descriptor >> 32 & 0x3fff) << 4, widths[descriptor >> 62]);
}

/* The elements of 16 bytes. */
static void row_floats(float *v, gpu_type type, const void *p)
{
    const uint32_t *words = p;
    const int each = elements_of(type);
    for (int e = 0; e < 4 * each; e++)
        v[e] = gpu_element(type, words[e / each], e % each);
}

/* How deep a product is. */
static int depth_of(gpu_type type)
{
    return type == GPU_TF32 ? 8 : 16;
}

void gpu_operand_load(float *to, const gpu_operand *f, uint32_t rank, int first, int count,
                      bool k_major)
{
    /* 16 bytes are neighbours along k or, with trans, along the own axis. */
    const int run = 4 * elements_of(f->type), depth = depth_of(f->type);
    for (int x = 0; x < count; x += f->trans ? run : 1)
        for (int k = 0; k < depth; k += f->trans ? 1 : run) {
            const uint32_t own = (uint32_t)(first + x), at = (uint32_t)k;
            uint32_t address = f->start + own / f->unit * f->unit_step + own % f->unit * f->step +
                               at / f->k_unit * f->k_unit_step + at % f->k_unit * f->k_step;
            address ^= (address >> 7 & f->swizzle) << 4;
            float v[8];
            row_floats(v, f->type, gpu_shared_of(rank, address, 16, 16));
            for (int e = 0; e < run; e++) {
                const int i = f->trans ? x + e : x, j = f->trans ? k : k + e;
                to[k_major ? j * ROWS + i : i * depth + j] = v[e];
            }
        }
}

static void op_do(gpu_warp *w, warp_op *op)
{
    const gpu_product *q = &op->product;
    float a[16 * ROWS], b[MAX_N * 16];
    const int depth = depth_of(q->type);
    const uint32_t rank = w->block->rank;
    const gpu_operand bf = form_of(q->b, q->type, q->trans_b);
    if (op->has_a) {
        for (int lane = 0; lane < GPU_LANES; lane++)
            spread_a(a, q->type, op->a[lane], lane, depth);
    } else {
        const gpu_operand af = form_of(q->a, q->type, q->trans_a);
        const int first = (int)(w->lanes->number / GPU_LANES % 4) * ROWS;
        gpu_operand_load(a, &af, rank, first, ROWS, true);
    }
    gpu_operand_load(b, &bf, rank, 0, q->n, false);
    if (!q->accumulate)
        memset(op->sums->d, 0, sizeof(float) * (size_t)q->n * ROWS);
    multiply_rows(op->sums->d, ROWS, a, b, q->n, depth);
}

/* The results of products that are done go into the registers. */
static void sums_give(warp_sums *s)
{
    if (s->lanes != ~0u)
        gpu_fault("wgmma by some lanes of a warp only");
    for (int lane = 0; lane < GPU_LANES; lane++)
        for (int i = 0; i < s->n / 2; i++)
            s->registers[lane][i] = s->d[sum_at(lane, i)];
    s->active = false;
}

void gpu_wgmma_fence(void)
{
    gpu.lane->fenced = true;
}

void gpu_wgmma_commit(void)
{
    gpu_lane *l = gpu.lane;
    gpu_products *p = products_of(l->warp);
    if (l->product_groups == p->groups)
        p->ends[p->groups++ % OPS] = l->products;
    else if (p->ends[l->product_groups % OPS] != l->products)
        gpu_fault("lanes of a warp differ in the products of a group");
    l->product_groups++;
}

void gpu_wgmma_wait(uint32_t pending)
{
    gpu_lane *l = gpu.lane;
    gpu_warp *w = l->warp;
    gpu_products *p = w->products;
    l->fenced = false;
    if (!p || p->done == l->products)
        return;
    if (!gpu_gather("wgmma.wait_group", ~0u, NULL))
        return;
    for (int i = 0; i < GPU_LANES; i++)
        if (w->lanes[i].product_groups != p->groups)
            gpu_fault("lanes of a warp differ in the groups that they wait for");
    const int group = p->groups - 1 - (int)pending;
    const int end = group >= 0 ? p->ends[group % OPS] : 0;
    for (; p->done < end; p->done++) {
        warp_op *op = &p->ops[p->done % OPS];
        op_do(w, op);
        if (--op->sums->pending == 0)
            sums_give(op->sums);
    }
    gpu_release();
}

void gpu_products_check(const gpu_lane *l)
{
    const gpu_products *p = l->warp->products;
    if (p && p->done < l->products)
        gpu_fault("returns while %d wgmma are under way", l->products - p->done);
}
