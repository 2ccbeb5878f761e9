/* Host side of cast. */
#include <backends/simt/maps.h>

#include <backends/simt/cast.h>

enum { RUNS, TILES };

SIMT_ACCEPT(cast)
{
    const bsk_cast_params *p = problem->params;
    return ACCEPT(&p->x, &p->y);
}

SIMT_RELEASE(cast)

/* A tensor by the types that kernels see: bytes that stay as they are pass as i8, all bits of which do. */
static bsk_tensor seen_as(const bsk_cast_params *p, const bsk_tensor *t)
{
    bsk_tensor seen = *t;
    if (p->x.dtype == p->y.dtype && BSK_DTYPE_BIT(t->dtype) & (BSKI_SCALED | BSK_DTYPE_BIT(BSK_U8)))
        seen.dtype = BSK_I8;
    return seen;
}

/* Wide devices walk through the gaps of one tensor: they have caches for that. */
SIMT_PREPARE(cast)
{
    static const simt_need need = {
        .file = "cast", .kernels = {"cast", "cast_tile"}, .single = true};
    static const simt_need need_wide = {.file = "cast", .kernels = {"cast"}, .single = true};
    static const simt_need need_whole = {
        .file = "cast", .kernels = {"cast_whole"}, .type = BSK_F32};
    const simt_device *d = device;
    const bsk_cast_params *p = prepared->problem->params;
    const bool whole = BSK_DTYPE_BIT(seen_as(p, &p->x).dtype) & BSKI_INDICES;
    TRY(bski_simt_prepare(device, prepared, whole ? &need_whole : d->wide ? &need_wide : &need));
    ((simt_state *)prepared->state)->number[0] = (i64)(whole ? BSK_F32 : simt_single(p->x.dtype));
    return BSK_OK;
}

/* Whether x has its neighbours along another dimension than y, both of some length; puts that of x
 * last and that of y before it. */
static bool tile_of(simt_dims *s)
{
    int x = -1, y = -1;
    for (int d = 0; d < s->rank; d++) {
        y = s->stride[0][d] == 1 && s->size[d] > 1 ? d : y;
        x = s->stride[1][d] == 1 && s->size[d] > 1 ? d : x;
    }
    if (x < 0 || y < 0 || x == y || s->size[x] < 8 || s->size[y] < 8)
        return false;
    const simt_dims all = *s;
    int to = 0;
    for (int pass = 0; pass < 3; pass++)
        for (int d = 0; d < all.rank; d++) {
            if (pass != (d == x ? 2 : d == y ? 1 : 0))
                continue;
            s->size[to] = all.size[d];
            s->stride[0][to] = all.stride[0][d];
            s->stride[1][to++] = all.stride[1][d];
        }
    return true;
}

static i64 tile_groups(const simt_dims *s, bsk_dtype type)
{
    const i64 side = type == BSK_F64 ? TILE_SIDE_F64 : TILE_SIDE;
    i64 groups = 1;
    for (int d = 0; d < s->rank; d++)
        groups *= d < s->rank - 2 ? s->size[d] : bski_ceil_div(s->size[d], side);
    return groups;
}

static bsk_status tiles_launch(const bsk_prepared *prepared, void *queue, const simt_dims *s,
                               const simt_map *m)
{
    const bsk_dtype type = m->x[0].tensor->dtype;
    const int missing = SHAPE_RANK - s->rank;
    cast_tile_arg arg = {.x_type = (i32)type, .y_type = (i32)m->y.tensor->dtype};
    for (int i = 0; i < SHAPE_RANK; i++) {
        arg.size[i] = i < missing ? 1 : s->size[i - missing];
        arg.y[i] = i < missing ? 0 : s->stride[0][i - missing];
        arg.x[i] = i < missing ? 0 : s->stride[1][i - missing];
    }
    return LAUNCH(TILES, tile_groups(s, type), 1, arg, m->x[0].mem, m->y.mem);
}

SIMT_LAUNCH(cast)
{
    const simt_device *d = queue_device(queue);
    const bsk_cast_params *p = prepared->problem->params;
    const bsk_cast_args *a = args;
    const bsk_tensor x = seen_as(p, &p->x), y = seen_as(p, &p->y);
    const uint32_t both = BSK_DTYPE_BIT(x.dtype) | BSK_DTYPE_BIT(y.dtype);
    const simt_map m = {.y = {&y, a->y}, .x = {{&x, a->x}}, .inputs = 1};
    simt_dims s = bski_simt_dims(&y);
    bski_simt_dims_add(&s, &y);
    bski_simt_dims_add(&s, &x);
    bski_simt_dims_join(&s, bski_simt_dims_inner(&s));
    if (!d->wide && !(both & BSKI_INDICES) && tile_of(&s) &&
        tile_groups(&s, x.dtype) <= SIMT_MAX_GROUPS)
        return tiles_launch(prepared, queue, &s, &m);
    const map_arg arg = bski_simt_map(prepared, queue, &m);
    return LAUNCH(RUNS, bski_simt_map_groups(d, simt_map_kernel_type(prepared), &arg.shape), 1, arg,
                  a->x, a->y);
}
