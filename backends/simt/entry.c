/* What the host sides of the portable kernels share. */
#include <backends/simt/entry.h>

#include <backends/simt/halves.h> /* of the build */
#include <backends/simt/plan.h>

bsk_status bski_simt_table(void *device, bsk_prepared *prepared, int table, const void *data,
                           i64 count, size_t size)
{
    static const i64 nothing = 0; /* an empty table still has an address */
    simt_device *d = device;
    simt_state *s = prepared->state;
    bsk_status status = count > 0 ? d->api->table(d, data, (size_t)count * size, &s->table[table])
                                  : d->api->table(d, &nothing, sizeof nothing, &s->table[table]);
    if (status)
        bski_simt_release(device, prepared);
    return status;
}

static bsk_status tables_make(void *device, bsk_prepared *prepared, const simt_need *need)
{
    const bsk_layout_tables *t = prepared->problem->layout;
    if (need->slots) {
        TRY(bski_simt_table(device, prepared, SLOT_ROW, t->slot_row, t->nnz, sizeof(i32)));
        TRY(bski_simt_table(device, prepared, SLOT_COL, t->slot_col, t->nnz, sizeof(i32)));
    }
    if (need->rows) {
        const i64 starts = (i64)t->heads * ((i64)t->grid_rows + 1);
        TRY(bski_simt_table(device, prepared, ROW_START, t->row_start, starts, sizeof(i64)));
        TRY(bski_simt_table(device, prepared, ROW_COL, t->row_col, t->nnz, sizeof(i32)));
        TRY(bski_simt_table(device, prepared, ROW_SLOT, t->row_slot, t->nnz, sizeof(i32)));
    }
    if (need->cols) {
        const i64 starts = (i64)t->heads * ((i64)t->grid_cols + 1);
        TRY(bski_simt_table(device, prepared, COL_START, t->col_start, starts, sizeof(i64)));
        TRY(bski_simt_table(device, prepared, COL_ROW, t->col_row, t->nnz, sizeof(i32)));
        TRY(bski_simt_table(device, prepared, COL_SLOT, t->col_slot, t->nnz, sizeof(i32)));
    }
    return BSK_OK;
}

/* Devices whose groups are too small for LONG_LANES must not see a kernel that has it. */
static const char *variant_of(const simt_device *d)
{
    return d->wide ? "-DWIDE=1" : d->props.max_group < SIMT_LONG_LANES ? "-DLONG_LANES=256" : "";
}

/* Of the kernels of a file. The build lists those that define SIMT_HALVES alone. */
static bsk_dtype own_type(const char *file, bsk_dtype type)
{
    static const char *const halves[] = {SIMT_HALVES_FILES};
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        if (!strcmp(file, halves[i]))
            return simt_half(type);
    return type;
}

bsk_status bski_simt_prepare(void *device, bsk_prepared *prepared, const simt_need *need)
{
    simt_device *d = device;
    TRY(state_new(d, sizeof(simt_state), prepared));
    simt_state *s = prepared->state;
    const bsk_dtype dtype = prepared->problem->dtype, type = need->type     ? need->type
                                                             : need->single ? simt_single(dtype)
                                                             : dtype == BSK_U16
                                                                 ? need->u16_as
                                                                 : own_type(need->file, dtype);
    for (int k = 0; k < SIMT_MAX_NEEDS && need->kernels[k]; k++) {
        bsk_status status =
            d->api->kernel(d, need->file, need->kernels[k], type,
                           need->variant ? need->variant : variant_of(d), &s->kernel[k]);
        if (status) {
            bski_simt_release(device, prepared);
            return status;
        }
    }
    return tables_make(device, prepared, need);
}

void bski_simt_release(void *device, bsk_prepared *prepared)
{
    simt_device *d = device;
    simt_state *s = prepared->state;
    if (!s)
        return;
    for (int i = 0; i < SIMT_TABLES; i++)
        table_drop(d, &s->table[i]);
    state_free(d, prepared);
}

bsk_status bski_simt_run(const simt_run *run)
{
    simt_queue *q = run->queue;
    const simt_device *d = q->device;
    const simt_launch l = {
        .groups = {run->x, run->y, 1},
        .group_size = run->lanes ? run->lanes : simt_lanes(d),
        .buffer_count = (int32_t)run->buffer_count,
        .buffers = run->buffers,
        .scalars = run->scalars,
        .scalar_bytes = run->scalar_bytes,
    };
    return d->api->launch(q, state_of(run->prepared)->kernel[run->kernel], &l);
}

bsk_status bski_simt_unplanned(const void *queue, const char *op)
{
    const bsk_host *host = queue_device(queue)->host;
    return host->fail(host->context, BSK_E_INTERNAL,
                      "%s_simt: the sizes of the launch are not those of its plan", op);
}

/* Enough groups to fill the device a few times over; more would only repeat what each sets up. */
i64 bski_simt_groups(const simt_device *d, i64 items)
{
    const i64 each = d->wide ? 64 : SIMT_LANES;
    return bski_simt_groups_most(d, bski_ceil_div(items, each), d->wide ? 4 : 16);
}

i64 bski_simt_groups_most(const simt_device *d, i64 most, i64 resident)
{
    const i64 units = d->props.compute_units > 0 ? d->props.compute_units : 1;
    return most < units * resident ? most : units * resident;
}

simt_shares bski_simt_shares(const simt_device *d, i64 length, i64 at_once, i64 across,
                             i64 resident)
{
    const i64 most = bski_ceil_div(length, 4 * at_once);
    const i64 wanted =
        bski_ceil_div(bski_simt_groups_most(d, INT32_MAX, resident), across > 0 ? across : 1);
    const i64 shares = most < wanted ? most : wanted;
    const i64 share = bski_ceil_div(length, shares > 0 ? shares : 1);
    return (simt_shares){.share = share, .shares = share > 0 ? bski_ceil_div(length, share) : 0};
}

i64 bski_simt_num(bsk_dtype type, double v)
{
    i64 bits;
    if (type != BSK_F64)
        return (i64)bski_f32_bits((float)v);
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

bool bski_simt_vector(const simt_device *d, bsk_dtype type, const bsk_tensor *t, bsk_mem mem,
                      int inner)
{
    if (t->dtype == BSK_NONE)
        return true;
    bool vector = (t->dims[inner] <= 1 || t->strides[inner] == 1) && (d->wide || simt_aligned(mem));
    for (int i = 0; i < t->rank; i++)
        vector &=
            i == inner || d->wide || t->dims[i] <= 1 || t->strides[i] % simt_vec(d, type) == 0;
    return vector;
}

bool bski_simt_vector_rows(const simt_device *d, bsk_dtype type, bsk_mem mem, i64 rows, i64 cols)
{
    return d->wide || mem.kind == BSK_MEM_NULL ||
           (simt_aligned(mem) && (rows <= 1 || cols % simt_vec(d, type) == 0));
}

int bski_simt_inner(const bsk_tensor *const *tensors, int count)
{
    int units[2] = {0, 0};
    for (int i = 0; i < count; i++)
        for (int axis = 0; tensors[i]->dtype != BSK_NONE && axis < 2; axis++)
            units[axis] += tensors[i]->dims[axis] > 1 && tensors[i]->strides[axis] == 1;
    return units[0] > units[1] ? 0 : 1;
}

bsk_reason bski_simt_accept(const bsk_device_props *props, const bsk_tensor *const *tensors,
                            size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (BSK_DTYPE_BIT(tensors[i]->dtype) & BSKI_FLOATS & ~props->dtypes)
            return BSK_REFUSE_DTYPE;
    return props->max_group < SIMT_LANES ? BSK_REFUSE_LIMIT : BSK_ACCEPT;
}

bool bski_simt_space(size_t *total, i64 count, size_t size, size_t *at)
{
    size_t bytes, end;
    if (!bski_mul_size((size_t)count, size, &bytes) || !bski_add_size(*total, bytes, &end) ||
        !bski_add_size(end, 255, &end))
        return false;
    *at = *total;
    *total = end & ~(size_t)255;
    return true;
}
