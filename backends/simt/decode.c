/* Host side of attention over a paged cache. */
#include <backends/simt/attention_host.h>

#include <backends/simt/decode.h>

/* Groups that keep a large device busy, and keys that are worth one. */
enum { DECODE_GROUPS = 2048, PART_KEYS = 256 };

/* Rows of the result, groups that make their parts, and numbers of the workspace; false: more than
 * a grid has. */
static bool decode_sizes(const bsk_attention_decode_params *p, decode_arg *arg, i64 *rows,
                         i64 *groups, i64 *numbers)
{
    const bool listed = p->block_index.dtype != BSK_NONE;
    const i64 q_time = p->q.dims[2];
    i64 keys, listed_keys;
    *arg = (decode_arg){.kv_heads = (i32)p->k.dims[1],
                        .group = attention_group(&p->q, &p->k),
                        .pages = p->k.dims[0],
                        .page = p->k.dims[2],
                        .columns = p->table.dtype != BSK_NONE ? p->table.dims[1] : 1};
    arg->q_block = p->q_block > 0 && p->q_block < q_time ? p->q_block : q_time > 0 ? q_time : 1;
    arg->lists = bski_ceil_div(q_time, arg->q_block);
    if (!bski_mul_i64(arg->columns, arg->page, &keys) || keys >= RULES_TIMES)
        return false;
    arg->block = !listed ? DECODE_KEYS : p->block > 0 ? p->block : arg->page;
    if (listed && arg->block > keys) /* nothing of a block lies beyond the keys */
        arg->block = keys;
    arg->block = arg->block > 0 ? arg->block : 1;
    arg->blocks = bski_ceil_div(keys, arg->block);
    arg->capacity = listed ? p->block_index.dims[3] : arg->blocks;
    arg->part_entries = bski_ceil_div(PART_KEYS, arg->block);
    if (!attention_rows(&p->q, rows) || !bski_mul_i64(arg->group, arg->q_block, &arg->tiles) ||
        !bski_mul_i64(arg->capacity, arg->block, &listed_keys))
        return false;
    arg->tiles = bski_ceil_div(arg->tiles, DECODE_ROWS);
    if (!bski_mul_i64(p->q.dims[0], p->k.dims[1], groups) ||
        !bski_mul_i64(*groups, arg->lists, groups) || !bski_mul_i64(*groups, arg->tiles, groups))
        return false;
    arg->parts = *groups > 0 ? bski_ceil_div(DECODE_GROUPS, *groups) : 1;
    if (arg->parts > listed_keys / PART_KEYS)
        arg->parts = listed_keys / PART_KEYS;
    if (arg->parts < 1)
        arg->parts = 1;
    return *rows <= SIMT_MAX_GROUPS && bski_mul_i64(*groups, arg->parts, groups) &&
           *groups <= SIMT_MAX_GROUPS && bski_mul_i64(*rows, arg->parts, numbers) &&
           bski_mul_i64(*numbers, p->v.dims[3] + 2, numbers);
}

SIMT_RELEASE(attention_decode)

SIMT_ACCEPT(attention_decode)
{
    const bsk_attention_decode_params *p = problem->params;
    const bsk_reason reason = ACCEPT(&p->q, &p->o);
    decode_arg arg;
    i64 rows, groups, numbers;
    if (reason != BSK_ACCEPT)
        return reason;
    return p->q.dims[3] <= DECODE_HEAD && p->v.dims[3] <= DECODE_HEAD &&
                   p->q.dims[1] <= INT32_MAX && p->k.dims[1] <= INT32_MAX &&
                   p->q.dims[2] < RULES_TIMES && decode_sizes(p, &arg, &rows, &groups, &numbers)
               ? BSK_ACCEPT
               : BSK_REFUSE_LIMIT;
}

SIMT_PREPARE(attention_decode)
{
    static const simt_need need = {
        .file = "decode", .kernels = {"decode_parts", "decode_join"}, .single = true};
    const bsk_attention_decode_params *p = prepared->problem->params;
    decode_arg arg;
    i64 rows, groups, numbers = 0;
    size_t at;
    if (!decode_sizes(p, &arg, &rows, &groups, &numbers) ||
        !bski_simt_space(&prepared->workspace_bytes, numbers, simt_num_size(p->q.dtype), &at))
        return BSK_E_NOMEM;
    return bski_simt_prepare(device, prepared, &need);
}

static void set_strides(i64 *to, const bsk_tensor *t, int count)
{
    for (int i = 0; i < count; i++)
        to[i] = t->dtype == BSK_NONE || t->dims[i] == 1 ? 0 : t->strides[i];
}

SIMT_LAUNCH(attention_decode)
{
    const bsk_attention_decode_params *p = prepared->problem->params;
    const bsk_attention_decode_args *a = args;
    const bsk_dtype type = p->q.dtype;
    const i64 d = p->q.dims[3];
    decode_arg arg;
    i64 rows, groups, numbers;
    decode_sizes(p, &arg, &rows, &groups, &numbers); /* as accepted */
    arg.rules = (rules_arg){.scale = bski_simt_num(type, attention_scale(a->scale, d)),
                            .softcap = bski_simt_num(type, p->softcap),
                            .q_time = (i32)p->q.dims[2],
                            .k_time = (i32)(arg.columns * arg.page),
                            .heads = (i32)p->q.dims[1],
                            .interleave = 1,
                            .window = p->window < INT32_MAX ? (i32)p->window : 0,
                            .causal = p->causal,
                            .align_end = 1};
    set_strides(arg.q, &p->q, 3);
    set_strides(arg.k, &p->k, 3);
    set_strides(arg.v, &p->v, 3);
    set_strides(arg.o, &p->o, 3);
    set_strides(arg.index, &p->block_index, 4);
    set_strides(arg.count, &p->block_count, 3);
    arg.d = (i32)d;
    arg.dv = (i32)p->v.dims[3];
    arg.type = (i32)type;
    arg.o_type = (i32)p->o.dtype;
    arg.vector = simt_aligned(a->k);
    for (int i = 0; i < 3; i++)
        arg.vector &= arg.k[i] % (16 / (i64)simt_size(type)) == 0;
    TRY(LAUNCH(0, groups, 1, arg, a->q, a->k, a->v, mem_of(&p->slopes, a->slopes),
               mem_of(&p->q_len, a->q_len), mem_of(&p->k_len, a->k_len),
               mem_of(&p->table, a->table), mem_of(&p->block_index, a->block_index),
               mem_of(&p->block_count, a->block_count), a->workspace));
    return LAUNCH(1, rows, 1, arg, a->workspace, a->o, mem_of(&p->lse, a->lse));
}
