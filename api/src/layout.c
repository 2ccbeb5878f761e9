/* The public functions of bsk/layout.h and bsk/patterns.h: they check handles and pointers, and
 * turn the layout core's diagnosis into a status and a message. */
#include <string.h>

#include "api/src/internal.h"
#include "common/layout.h"

/* Prefixes the diagnosis with the public function's name. */
static bsk_status layout_report(const char *function, bsk_status status, const bski_diag *diag)
{
    return status == BSK_OK ? status : bski_fail(status, "%s: %s", function, diag->text);
}

static bsk_status null_argument(const char *function, const char *name)
{
    return bski_fail(BSK_E_INVALID, "%s: %s must not be NULL", function, name);
}

#define REQUIRE(argument)                                                                          \
    do {                                                                                           \
        if (!(argument))                                                                           \
            return null_argument(__func__, #argument);                                             \
    } while (0)

/* For functions that make a layout: clears the result first. */
#define REQUIRE_RESULT(layout)                                                                     \
    do {                                                                                           \
        REQUIRE(layout);                                                                           \
        *(layout) = NULL;                                                                          \
    } while (0)

/* --- lifetime --------------------------------------------------------------------------------- */

bsk_layout *bsk_layout_retain(bsk_layout *layout)
{
    if (layout)
        __atomic_fetch_add(&layout->refs, 1, __ATOMIC_RELAXED);
    return layout;
}

void bsk_layout_release(bsk_layout **layout)
{
    if (!layout || !*layout)
        return;
    bsk_layout *l = *layout;
    *layout = NULL;
    if (__atomic_fetch_sub(&l->refs, 1, __ATOMIC_ACQ_REL) == 1)
        bski_layout_free(l);
}

/* --- constructors ----------------------------------------------------------------------------- */

/* What every constructor starts with. */
typedef struct setup {
    const bsk_allocator *allocator;
    bski_geometry geometry;
    bsk_order order;
    bski_diag diag;
} setup;

static bsk_status setup_read(setup *s, const char *function, const bsk_context *context,
                             const bsk_layout_params *params)
{
    bsk_layout_params full;
    if (!params)
        return null_argument(function, "params");
    bsk_status status = bski_struct_read("bsk_layout_params", params, sizeof full, &full);
    if (status != BSK_OK)
        return status;
    s->allocator = bski_context_allocator(context);
    s->order = full.order;
    return layout_report(function, bski_geometry_set(&s->geometry, &full, &s->diag), &s->diag);
}

/* The rest of a constructor: by a function of the layout core, with the arguments of its own. */
#define BUILD(core, ...)                                                                           \
    do {                                                                                           \
        setup s_;                                                                                  \
        REQUIRE_RESULT(layout);                                                                    \
        BSKI_TRY(setup_read(&s_, __func__, context, params));                                      \
        return layout_report(                                                                      \
            __func__, core(s_.allocator, &s_.geometry, s_.order, __VA_ARGS__, layout, &s_.diag),   \
            &s_.diag);                                                                             \
    } while (0)

bsk_status bsk_layout_from_mask(bsk_context *context, const bsk_layout_params *params,
                                const uint8_t *mask, bsk_layout **layout)
{
    BUILD(bski_layout_from_mask, mask);
}

bsk_status bsk_layout_from_coo(bsk_context *context, const bsk_layout_params *params, int64_t count,
                               const int32_t *head, const int32_t *row, const int32_t *col,
                               bsk_layout **layout)
{
    BUILD(bski_layout_from_coo, count, head, row, col);
}

bsk_status bsk_layout_from_bsr(bsk_context *context, const bsk_layout_params *params,
                               const int64_t *row_start, const int32_t *col, const int32_t *slot,
                               bsk_layout **layout)
{
    BUILD(bski_layout_from_lists, false, row_start, col, slot);
}

bsk_status bsk_layout_from_csc(bsk_context *context, const bsk_layout_params *params,
                               const int64_t *col_start, const int32_t *row, const int32_t *slot,
                               bsk_layout **layout)
{
    BUILD(bski_layout_from_lists, true, col_start, row, slot);
}

bsk_status bsk_layout_from_dense(bsk_context *context, const bsk_layout_params *params,
                                 const bsk_tensor *desc, const void *data, bsk_norm norm,
                                 double threshold, int64_t keep, bsk_layout **layout)
{
    BUILD(bski_layout_from_dense, desc, data, norm, threshold, keep);
}

bsk_status bsk_layout_random(bsk_context *context, const bsk_layout_params *params, double density,
                             uint64_t seed, bsk_layout **layout)
{
    BUILD(bski_layout_random, density, seed);
}

bsk_status bsk_layout_barabasi_albert(bsk_context *context, const bsk_layout_params *params,
                                      int32_t m, uint64_t seed, bsk_layout **layout)
{
    BUILD(bski_layout_barabasi_albert, m, seed);
}

bsk_status bsk_layout_watts_strogatz(bsk_context *context, const bsk_layout_params *params,
                                     int32_t k, double p, uint64_t seed, bsk_layout **layout)
{
    BUILD(bski_layout_watts_strogatz, k, p, seed);
}

bsk_status bsk_layout_deserialize(bsk_context *context, const void *data, size_t bytes,
                                  bsk_layout **layout)
{
    REQUIRE_RESULT(layout);
    REQUIRE(data);
    bski_diag diag;
    bsk_status status =
        bski_layout_deserialize(bski_context_allocator(context), data, bytes, layout, &diag);
    return layout_report(__func__, status, &diag);
}

/* --- attention patterns: bsk/patterns.h --------------------------------------------------------- */

bsk_status bsk_layout_causal(bsk_context *context, const bsk_layout_params *params, int64_t shift,
                             bsk_layout **layout)
{
    BUILD(bski_layout_causal, shift);
}

bsk_status bsk_layout_local(bsk_context *context, const bsk_layout_params *params, int64_t window,
                            int64_t shift, bsk_layout **layout)
{
    BUILD(bski_layout_local, 0, window, shift);
}

bsk_status bsk_layout_sink_local(bsk_context *context, const bsk_layout_params *params,
                                 int64_t sink, int64_t window, int64_t shift, bsk_layout **layout)
{
    BUILD(bski_layout_local, sink, window, shift);
}

bsk_status bsk_layout_strided(bsk_context *context, const bsk_layout_params *params, int64_t stride,
                              bsk_layout **layout)
{
    BUILD(bski_layout_strided, stride);
}

bsk_status bsk_layout_sliding(bsk_context *context, const bsk_layout_params *params, int32_t blocks,
                              int32_t causal, bsk_layout **layout)
{
    BUILD(bski_layout_sliding, blocks, causal);
}

/* Reads the struct that describes a pattern into `full`. */
#define READ_PATTERN(type)                                                                         \
    type full;                                                                                     \
    REQUIRE_RESULT(layout);                                                                        \
    REQUIRE(pattern);                                                                              \
    BSKI_TRY(bski_struct_read(#type, pattern, sizeof full, &full))

bsk_status bsk_layout_fixed(bsk_context *context, const bsk_layout_params *params,
                            const bsk_fixed_pattern *pattern, bsk_layout **layout)
{
    READ_PATTERN(bsk_fixed_pattern);
    BUILD(bski_layout_fixed, &full);
}

bsk_status bsk_layout_bigbird(bsk_context *context, const bsk_layout_params *params,
                              const bsk_global_pattern *pattern, bsk_layout **layout)
{
    READ_PATTERN(bsk_global_pattern);
    BUILD(bski_layout_global, BSKI_BIGBIRD, &full);
}

bsk_status bsk_layout_longformer(bsk_context *context, const bsk_layout_params *params,
                                 const bsk_global_pattern *pattern, bsk_layout **layout)
{
    READ_PATTERN(bsk_global_pattern);
    BUILD(bski_layout_global, BSKI_LONGFORMER, &full);
}

bsk_status bsk_layout_variable(bsk_context *context, const bsk_layout_params *params,
                               const bsk_global_pattern *pattern, bsk_layout **layout)
{
    READ_PATTERN(bsk_global_pattern);
    BUILD(bski_layout_global, BSKI_VARIABLE, &full);
}

int bsk_conv_visible(void *user, int32_t head, int64_t row, int64_t col)
{
    (void)head;
    return bski_conv_visible(user, false, row, col);
}

int bsk_deconv_visible(void *user, int32_t head, int64_t row, int64_t col)
{
    (void)head;
    return bski_conv_visible(user, true, row, col);
}

static bsk_status conv_make(const bsk_allocator *allocator, const bski_geometry *geometry,
                            bsk_order order, bool turned, bsk_conv_pattern *pattern,
                            bsk_layout **layout, bski_diag *diag)
{
    BSKI_TRY(bski_conv_check(geometry, pattern, turned, diag));
    return bski_layout_from_elements(allocator, geometry, order,
                                     turned ? bsk_deconv_visible : bsk_conv_visible, pattern,
                                     layout, diag);
}

bsk_status bsk_layout_conv(bsk_context *context, const bsk_layout_params *params,
                           const bsk_conv_pattern *pattern, bsk_layout **layout)
{
    READ_PATTERN(bsk_conv_pattern);
    BUILD(conv_make, false, &full);
}

bsk_status bsk_layout_deconv(bsk_context *context, const bsk_layout_params *params,
                             const bsk_conv_pattern *pattern, bsk_layout **layout)
{
    READ_PATTERN(bsk_conv_pattern);
    BUILD(conv_make, true, &full);
}

bsk_status bsk_layout_from_elements(bsk_context *context, const bsk_layout_params *params,
                                    bsk_element_fn visible, void *user, bsk_layout **layout)
{
    REQUIRE_RESULT(layout);
    REQUIRE(visible);
    BUILD(bski_layout_from_elements, visible, user);
}

bsk_status bsk_layout_element_bits(const bsk_layout *layout, bsk_element_fn visible, void *user,
                                   int32_t *index, uint8_t *bits, int64_t *masks)
{
    bski_diag diag;
    REQUIRE(layout);
    REQUIRE(visible);
    REQUIRE(masks);
    if (layout->tables.nnz)
        REQUIRE(index);
    return layout_report(__func__,
                         bski_layout_element_bits(layout, visible, user, index, bits, masks, &diag),
                         &diag);
}

/* --- algebra ---------------------------------------------------------------------------------- */

static bsk_status combine(const char *function, const bsk_layout *a, const bsk_layout *b,
                          bool intersect, bsk_layout **layout)
{
    if (!layout)
        return null_argument(function, "layout");
    *layout = NULL;
    if (!a || !b)
        return null_argument(function, a ? "b" : "a");
    bski_diag diag;
    return layout_report(function, bski_layout_combine(a, b, intersect, layout, &diag), &diag);
}

bsk_status bsk_layout_union(const bsk_layout *a, const bsk_layout *b, bsk_layout **layout)
{
    return combine(__func__, a, b, false, layout);
}

bsk_status bsk_layout_intersect(const bsk_layout *a, const bsk_layout *b, bsk_layout **layout)
{
    return combine(__func__, a, b, true, layout);
}

bsk_status bsk_layout_crop(const bsk_layout *source, int32_t row, int32_t rows, int32_t col,
                           int32_t cols, int32_t *source_slot, bsk_layout **layout)
{
    REQUIRE_RESULT(layout);
    REQUIRE(source);
    bski_diag diag;
    bsk_status status = bski_layout_crop(source, row, rows, col, cols, source_slot, layout, &diag);
    return layout_report(__func__, status, &diag);
}

bsk_status bsk_layout_split(const bsk_layout *source, int32_t by_cols, int32_t parts,
                            int32_t *first)
{
    REQUIRE(source);
    REQUIRE(first);
    bski_diag diag;
    bsk_status status = bski_layout_split(&source->tables, by_cols != 0, parts, first, &diag);
    return layout_report(__func__, status, &diag);
}

bsk_status bsk_layout_transpose(const bsk_layout *source, bsk_layout **layout)
{
    REQUIRE_RESULT(layout);
    REQUIRE(source);
    bski_diag diag;
    return layout_report(__func__, bski_layout_transpose(source, layout, &diag), &diag);
}

bsk_status bsk_layout_broadcast(const bsk_layout *source, int32_t heads, bsk_layout **layout)
{
    REQUIRE_RESULT(layout);
    REQUIRE(source);
    bski_diag diag;
    return layout_report(__func__, bski_layout_broadcast(source, heads, layout, &diag), &diag);
}

bsk_status bsk_layout_move_blocks(const bsk_layout *source, int64_t count, const int32_t *slot,
                                  const int32_t *row, const int32_t *col, bsk_layout **layout)
{
    REQUIRE_RESULT(layout);
    REQUIRE(source);
    bski_diag diag;
    bsk_status status = bski_layout_move_blocks(source, count, slot, row, col, layout, &diag);
    return layout_report(__func__, status, &diag);
}

bsk_status bsk_layout_compact(const bsk_layout *source, const float *gate, int32_t *source_slot,
                              bsk_layout **layout)
{
    REQUIRE_RESULT(layout);
    REQUIRE(source);
    bski_diag diag;
    bsk_status status = bski_layout_compact(source, gate, source_slot, layout, &diag);
    return layout_report(__func__, status, &diag);
}

/* --- queries ---------------------------------------------------------------------------------- */

bsk_status bsk_layout_query(const bsk_layout *layout, bsk_layout_info *info)
{
    REQUIRE(layout);
    REQUIRE(info);
    bsk_layout_info full = BSK_INIT(bsk_layout_info);
    bski_layout_describe(&layout->tables, &full);
    return bski_struct_write("bsk_layout_query: info", &full, sizeof full, info);
}

bsk_status bsk_layout_block_coord(const bsk_layout *layout, int64_t slot, int32_t *head,
                                  int32_t *row, int32_t *col)
{
    REQUIRE(layout);
    const bsk_layout_tables *t = &layout->tables;
    if (!t->nnz)
        return bski_fail(BSK_E_INVALID, "%s: slot = %lld, but the layout has no blocks", __func__,
                         (long long)slot);
    if (slot < 0 || slot >= t->nnz)
        return bski_fail(BSK_E_INVALID, "%s: slot = %lld must be in [0, %lld]", __func__,
                         (long long)slot, (long long)t->nnz - 1);
    if (head)
        *head = bski_layout_head(t, slot);
    if (row)
        *row = t->slot_row[slot];
    if (col)
        *col = t->slot_col[slot];
    return BSK_OK;
}

bsk_status bsk_layout_find(const bsk_layout *layout, int32_t head, int32_t row, int32_t col,
                           int64_t *slot)
{
    REQUIRE(layout);
    REQUIRE(slot);
    const bsk_layout_tables *t = &layout->tables;
    const struct {
        const char *name;
        int32_t value, limit;
    } inputs[] = {
        {"head", head, t->heads},
        {"row", row, t->grid_rows},
        {"col", col, t->grid_cols},
    };
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        if (inputs[i].value < 0 || inputs[i].value >= inputs[i].limit)
            return bski_fail(BSK_E_INVALID, "%s: %s = %d must be in [0, %d]", __func__,
                             inputs[i].name, inputs[i].value, inputs[i].limit - 1);
    *slot = bski_layout_find(t, head, row, col);
    return BSK_OK;
}

bsk_status bsk_layout_reach(const bsk_layout *layout, int32_t row, int32_t rows, uint8_t *cols)
{
    REQUIRE(layout);
    REQUIRE(cols);
    bski_diag diag;
    return layout_report(__func__, bski_layout_reach(&layout->tables, row, rows, cols, &diag),
                         &diag);
}

/* --- export ----------------------------------------------------------------------------------- */

bsk_status bsk_layout_to_bsr(const bsk_layout *layout, int64_t *row_start, int32_t *col,
                             int32_t *slot)
{
    REQUIRE(layout);
    bski_layout_to_bsr(&layout->tables, row_start, col, slot);
    return BSK_OK;
}

bsk_status bsk_layout_to_coo(const bsk_layout *layout, int32_t *head, int32_t *row, int32_t *col)
{
    REQUIRE(layout);
    bski_layout_to_coo(&layout->tables, head, row, col);
    return BSK_OK;
}

bsk_status bsk_layout_to_mask(const bsk_layout *layout, uint8_t *mask)
{
    REQUIRE(layout);
    if (mask)
        bski_layout_to_mask(&layout->tables, mask);
    return BSK_OK;
}

bsk_status bsk_layout_to_ell(const bsk_layout *layout, int32_t width, int32_t *col, int32_t *slot)
{
    REQUIRE(layout);
    bski_diag diag;
    return layout_report(__func__, bski_layout_to_ell(&layout->tables, width, col, slot, &diag),
                         &diag);
}

bsk_status bsk_layout_serialize(const bsk_layout *layout, void *data, size_t *bytes)
{
    REQUIRE(layout);
    REQUIRE(bytes);
    size_t given = *bytes, needed = bski_layout_bytes(&layout->tables);
    *bytes = needed;
    if (!data)
        return BSK_OK;
    if (given < needed)
        return bski_fail(BSK_E_INVALID, "%s: *bytes = %zu must be at least %zu", __func__, given,
                         needed);
    bski_layout_serialize(&layout->tables, data);
    return BSK_OK;
}
