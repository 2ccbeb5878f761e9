/* Launches of maps. */
#include <backends/simt/maps.h>

bsk_dtype bski_simt_map_type(const bsk_prepared *prepared, const bsk_tensor *const *tensors,
                             size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (tensors[i]->dtype == BSK_F64)
            return BSK_F64;
    return prepared->problem->dtype;
}

bsk_status bski_simt_map_prepare(void *device, bsk_prepared *prepared, const simt_need *need,
                                 const bsk_tensor *const *tensors, size_t count)
{
    simt_need typed = *need;
    typed.type = bski_simt_map_type(prepared, tensors, count);
    typed.type = need->single ? simt_single(typed.type) : typed.type;
    TRY(bski_simt_prepare(device, prepared, &typed));
    ((simt_state *)prepared->state)->number[0] = (i64)typed.type;
    return BSK_OK;
}

i64 bski_simt_map_num(const bsk_prepared *prepared, double v)
{
    return bski_simt_num(simt_map_kernel_type(prepared), v);
}

map_arg bski_simt_map(const bsk_prepared *prepared, void *queue, const simt_map *m)
{
    static const bsk_tensor none = {.dtype = BSK_NONE};
    const simt_device *d = queue_device(queue);
    const bsk_dtype type = simt_map_kernel_type(prepared);
    simt_dims s = bski_simt_dims(m->y.tensor);
    bski_simt_dims_add(&s, m->y.tensor);
    for (int k = 0; k < m->inputs; k++)
        bski_simt_dims_add(&s, m->x[k].tensor ? m->x[k].tensor : &none);
    if (m->random)
        bski_simt_dims_add_numbers(&s, m->shared);
    bski_simt_dims_join(&s, bski_simt_dims_inner(&s));

    map_arg arg = {
        .shape = bski_simt_dims_shape(&s),
        .y = bski_simt_dims_view(&s, 0, d, type, m->y.tensor, m->y.mem),
    };
    bool whole =
        !d->wide && arg.shape.rank == 1 && arg.y.run == RUN_VECTOR && arg.y.type == (i32)type;
    for (int k = 0; k < m->inputs; k++) {
        const bsk_tensor *t = m->x[k].tensor ? m->x[k].tensor : &none;
        arg.x[k] = bski_simt_dims_view(&s, k + 1, d, type, t, m->x[k].mem);
        whole &= arg.x[k].run == RUN_VECTOR && arg.x[k].type == (i32)type;
    }
    if (whole)
        arg.whole = arg.shape.size[SHAPE_LAST] / simt_vec(d, type);
    for (int i = 0; m->random && i < s.rank; i++)
        arg.number[i + SHAPE_RANK - s.rank] = s.stride[m->inputs + 1][i];
    return arg;
}

i64 bski_simt_map_groups(const simt_device *d, bsk_dtype type, const shape_arg *shape)
{
    i64 runs = simt_runs(shape->size[SHAPE_LAST], simt_vec(d, type));
    for (int i = 0; i < SHAPE_LAST; i++)
        runs *= shape->size[i];
    return bski_simt_groups(d, runs);
}

/* Whether kernels of MAP_WHOLE may run: they have no beta, and count runs of random numbers by 32
 * bits. */
static bool map_whole(const simt_map *m, const map_arg *arg, i64 vec, i64 groups)
{
    const i64 count = arg->shape.size[SHAPE_LAST];
    return arg->whole > 0 && arg->whole * vec == count && arg->beta == 0 &&
           groups <= SIMT_MAX_GROUPS &&
           (!m->random || (arg->number[SHAPE_LAST] == 1 && arg->whole <= UINT32_MAX));
}

bsk_status bski_simt_map_launch(const bsk_prepared *prepared, void *queue, const simt_map *m,
                                const map_arg *arg)
{
    const simt_device *d = queue_device(queue);
    const bsk_dtype type = simt_map_kernel_type(prepared);
    const i64 groups = bski_ceil_div(arg->whole, MAP_RUNS * SIMT_LANES);
    if (m->whole && state_of(prepared)->kernel[1] && map_whole(m, arg, simt_vec(d, type), groups))
        return LAUNCH(1, groups, 1, *arg, m->x[0].mem, m->inputs > 1 ? m->x[1].mem : mem_none(),
                      m->y.mem);
    bsk_mem x[MAP_INPUTS];
    for (int k = 0; k < MAP_INPUTS; k++)
        x[k] = k < m->inputs && m->x[k].tensor ? mem_of(m->x[k].tensor, m->x[k].mem) : mem_none();
    return LAUNCH(0, bski_simt_map_groups(d, type, &arg->shape), 1, *arg, x[0], x[1], x[2], x[3],
                  m->y.mem);
}
