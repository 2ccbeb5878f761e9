/* Layouts of attention, and masks inside their blocks. Part of bsk; include <bsk/bsk.h>.
 *
 * Rows are queries, columns are keys. I and J are the indices of a block, i and j those of an
 * element. All constructors follow the rules of layout.h; those that count in blocks leave it to
 * the op's masks (causal, window, bits) to exclude elements of kept blocks. */
#ifndef BSK_PATTERNS_H
#define BSK_PATTERNS_H

#include <bsk/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- Patterns of elements: a block is kept if it has a visible element. Query i stands at key
 * i + shift: 0, or cols - rows to align the ends. --- */

/* j <= i + shift. */
BSK_API bsk_status bsk_layout_causal(bsk_context *context, const bsk_layout_params *params,
                                     int64_t shift, bsk_layout **layout);

/* j <= i + shift and i + shift - j < window, window >= 1 (openai/sparse_attention local). */
BSK_API bsk_status bsk_layout_local(bsk_context *context, const bsk_layout_params *params,
                                    int64_t window, int64_t shift, bsk_layout **layout);

/* local, and the first `sink` >= 0 keys as far as they are not in the future. */
BSK_API bsk_status bsk_layout_sink_local(bsk_context *context, const bsk_layout_params *params,
                                         int64_t sink, int64_t window, int64_t shift,
                                         bsk_layout **layout);

/* j <= i and (i - j) % stride = 0, for attention with interleave = stride: rows and columns are in
 * its order of time, so that the visible elements are triangles on the diagonal. rows = cols, a
 * multiple of stride >= 1 (openai/sparse_attention strided, without its four transpositions). */
BSK_API bsk_status bsk_layout_strided(bsk_context *context, const bsk_layout_params *params,
                                      int64_t stride, bsk_layout **layout);

/* --- Patterns of blocks. --- */

/* |I - J| <= blocks / 2; with causal, J <= I (DeepSpeed sliding window). */
BSK_API bsk_status bsk_layout_sliding(bsk_context *context, const bsk_layout_params *params,
                                      int32_t blocks, int32_t causal, bsk_layout **layout);

/* Stripes of `local` block columns, and verticals: `global` block columns of each stripe, group g =
 * h % patterns of them counted from the stripe's right end, where h is the layout's head. Kept are
 * J <= I in the same stripe, and the verticals with J <= I. */
typedef struct bsk_fixed_pattern {
    size_t struct_size;
    int32_t local;         /* stripe in blocks, >= 1 */
    int32_t global;        /* verticals of a group, >= 1; patterns * global <= local */
    int32_t patterns;      /* groups; 0 means 1 */
    int32_t bidirectional; /* future blocks as well */
    int32_t horizontal;    /* also the rows of the verticals, in full */
    int32_t deepspeed;     /* a last stripe cut short has verticals as far right as they fit, and
                              future blocks inside a group of verticals are kept */
} bsk_fixed_pattern;

BSK_API bsk_status bsk_layout_fixed(bsk_context *context, const bsk_layout_params *params,
                                    const bsk_fixed_pattern *pattern, bsk_layout **layout);

/* What bigbird, longformer and variable are made of (DeepSpeed's definitions). Fields that a
 * constructor does not name below must be 0. */
typedef struct bsk_global_pattern {
    size_t struct_size;
    int32_t causal;     /* 1: unidirectional */
    int32_t window;     /* |I - J| <= window / 2 */
    int32_t first;      /* the first blocks are global */
    int32_t count;      /* ranges [start, end) of global blocks; end NULL: one block each */
    int32_t horizontal; /* rows of global blocks as well */
    int32_t random;     /* random blocks of each row */
    const int32_t *start, *end;
    const int32_t *windows; /* sizes of local windows one after another; the last one repeats */
    int32_t window_count;
    uint64_t seed;
} bsk_global_pattern;

/* window, first, random: |I - J| <= window / 2, or I < first, or J < first, or one of `random`
 * columns (with causal, of those up to I, or all if there are fewer); with causal, J <= I. */
BSK_API bsk_status bsk_layout_bigbird(bsk_context *context, const bsk_layout_params *params,
                                      const bsk_global_pattern *pattern, bsk_layout **layout);

/* window and ranges: |I - J| <= window / 2, or I or J in a range; with causal, J <= I. */
BSK_API bsk_status bsk_layout_longformer(bsk_context *context, const bsk_layout_params *params,
                                         const bsk_global_pattern *pattern, bsk_layout **layout);

/* windows, ranges, horizontal, random: blocks of a common window (with causal, J <= I); J in a
 * range (with causal, from row `start` of the range on); with horizontal, I in a range; `random`
 * columns of each row, with causal as well. */
BSK_API bsk_status bsk_layout_variable(bsk_context *context, const bsk_layout_params *params,
                                       const bsk_global_pattern *pattern, bsk_layout **layout);

/* Attention in the shape of a convolution (openai/blocksparse bst_conv_layout). Keys are the pixels
 * of height x width, row-major; queries those of height / stride x width / stride. A query sees the
 * filter's window around its pixel, with (filter - 1) / 2 pixels before it. height = 1: 1-D. */
typedef struct bsk_conv_pattern {
    size_t struct_size;
    int32_t height, width;               /* multiples of stride */
    int32_t filter_height, filter_width; /* odd, or even with stride 2 */
    int32_t stride;                      /* 0 means 1; along a height of 1 it is 1 */
    int32_t causal; /* only keys up to the query's own pixel, in raster order */
} bsk_conv_pattern;

/* The layout has rows = queries, cols = keys; deconv has them exchanged: queries at the high
 * resolution see the keys in whose window they lie (with causal, up to their own raster index). */
BSK_API bsk_status bsk_layout_conv(bsk_context *context, const bsk_layout_params *params,
                                   const bsk_conv_pattern *pattern, bsk_layout **layout);
BSK_API bsk_status bsk_layout_deconv(bsk_context *context, const bsk_layout_params *params,
                                     const bsk_conv_pattern *pattern, bsk_layout **layout);

/* --- Masks inside blocks --- */

/* Whether query row sees key col; called for elements inside the matrix only, and for some more than
 * once: its answers must not change. */
typedef int (*bsk_element_fn)(void *user, int32_t head, int64_t row, int64_t col);

/* The elements of conv and deconv; user is the bsk_conv_pattern, which must be valid. */
BSK_API int bsk_conv_visible(void *user, int32_t head, int64_t row, int64_t col);
BSK_API int bsk_deconv_visible(void *user, int32_t head, int64_t row, int64_t col);

/* Keeps the blocks that have a visible element. */
BSK_API bsk_status bsk_layout_from_elements(bsk_context *context, const bsk_layout_params *params,
                                            bsk_element_fn visible, void *user,
                                            bsk_layout **layout);

/* The bit masks of the kept blocks as attention takes them. index [nnz] receives the number of each
 * slot's mask, or -1 where the whole block is visible. Equal masks are stored once; *masks is set
 * to their count. bits, if not NULL, has room for *masks masks on entry ([masks][block_rows][ceil(
 * block_cols / 8)] bytes) and receives them: INVALID if that is too few, and then only *masks is
 * written. NOMEM: the work needs memory for a mask of each block. */
BSK_API bsk_status bsk_layout_element_bits(const bsk_layout *layout, bsk_element_fn visible,
                                           void *user, int32_t *index, uint8_t *bits,
                                           int64_t *masks);

#ifdef __cplusplus
}
#endif
#endif
