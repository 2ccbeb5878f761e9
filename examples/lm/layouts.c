#include "layouts.h"

#include <math.h>
#include <string.h>

#include "check.h"
#include "program.h"

static void shuffle(int32_t *deck, int count, uint64_t *seed)
{
    for (int i = count - 1; i > 0; i--) {
        const int j = (int)(seed_mix((*seed)++, (uint64_t)i) % (uint64_t)(i + 1));
        const int32_t t = deck[i];
        deck[i] = deck[j];
        deck[j] = t;
    }
}

bsk_layout *layout_weights(bsk_context *context, int64_t rows, int64_t cols, int block,
                           double density, uint64_t seed)
{
    bsk_layout_params params = BSK_INIT(bsk_layout_params);
    params.rows = rows;
    params.cols = cols;
    params.block_rows = params.block_cols = block;
    const int grid_rows = (int)((rows + block - 1) / block);
    const int grid_cols = (int)((cols + block - 1) / block);
    int keep = (int)lround(density * grid_rows);
    keep = keep < 1 ? 1 : keep > grid_rows ? grid_rows : keep;

    const size_t cells = (size_t)grid_rows * (size_t)grid_cols;
    uint8_t *mask = check_alloc(cells);
    memset(mask, 0, cells);
    int32_t *deck = check_alloc((size_t)grid_rows * sizeof *deck);
    for (int i = 0; i < grid_rows; i++)
        deck[i] = i;
    int next = grid_rows;
    for (int col = 0; col < grid_cols; col++) {
        for (int kept = 0; kept < keep;) {
            if (next == grid_rows) {
                shuffle(deck, grid_rows, &seed);
                next = 0;
            }
            uint8_t *cell = &mask[(size_t)deck[next++] * (size_t)grid_cols + (size_t)col];
            kept += !*cell;
            *cell = 1;
        }
    }
    bsk_layout *layout = NULL;
    CHECK(bsk_layout_from_mask(context, &params, mask, &layout));
    free(deck);
    free(mask);
    return layout;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

double layout_elements(const bsk_layout *layout)
{
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK(bsk_layout_query(layout, &info));
    double count = 0;
    for (int64_t slot = 0; slot < info.nnz; slot++) {
        int32_t row, col;
        CHECK(bsk_layout_block_coord(layout, slot, NULL, &row, &col));
        count += (double)smaller(info.block_rows, info.rows - (int64_t)row * info.block_rows) *
                 (double)smaller(info.block_cols, info.cols - (int64_t)col * info.block_cols);
    }
    return count;
}

int layout_attention(bsk_context *context, pattern kind, int heads, int64_t time, int block,
                     int stride, uint64_t seed, head_group groups[MAX_GROUPS])
{
    bsk_layout_params params = BSK_INIT(bsk_layout_params);
    params.rows = params.cols = time;
    params.block_rows = params.block_cols = block;
    memset(groups, 0, MAX_GROUPS * sizeof *groups);
    groups[0].heads = heads;
    switch (kind) {
    case PATTERN_LOCAL:
        groups[0].window = stride;
        CHECK(bsk_layout_local(context, &params, stride, 0, &groups[0].layout));
        return 1;
    case PATTERN_STRIDED:
        if (time % stride || heads < 2) {
            fprintf(stderr, "lm: --pattern strided needs 2 heads, and a --time that is a multiple "
                            "of --stride\n");
            return -1;
        }
        groups[0].heads = heads / 2;
        groups[0].window = stride;
        groups[1].heads = heads - heads / 2;
        groups[1].interleave = stride;
        CHECK(bsk_layout_local(context, &params, stride, 0, &groups[0].layout));
        CHECK(bsk_layout_strided(context, &params, stride, &groups[1].layout));
        return 2;
    case PATTERN_FIXED: {
        if (stride % block) {
            fprintf(stderr, "lm: --pattern fixed needs a --stride that is a multiple of "
                            "--attention-block\n");
            return -1;
        }
        bsk_fixed_pattern fixed = BSK_INIT(bsk_fixed_pattern);
        fixed.local = stride / block;
        fixed.global = 1;
        fixed.patterns = heads < fixed.local ? heads : fixed.local;
        params.heads = heads;
        CHECK(bsk_layout_fixed(context, &params, &fixed, &groups[0].layout));
        return 1;
    }
    case PATTERN_BIGBIRD: {
        bsk_global_pattern bigbird = BSK_INIT(bsk_global_pattern);
        bigbird.causal = 1;
        bigbird.window = 2 * ((stride + block - 1) / block);
        bigbird.first = 1;
        bigbird.random = 1;
        bigbird.seed = seed;
        params.heads = heads;
        CHECK(bsk_layout_bigbird(context, &params, &bigbird, &groups[0].layout));
        return 1;
    }
    default:
        CHECK(bsk_layout_causal(context, &params, 0, &groups[0].layout));
        return 1;
    }
}
