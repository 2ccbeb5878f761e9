/* Bytes to a layout: whatever is accepted must hold all invariants and serialize to the same bytes.
 *
 * Random bytes seldom pass the checksum, so an input serves twice: as it is, and as the recipe of a
 * small layout whose serialized form is then damaged and given a right checksum. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/layout.h"
#include "tests/unit/layout_twin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "fuzz_layout: %s\n", what);
    abort();
}

static void try_bytes(const uint8_t *data, size_t size)
{
    bsk_layout *layout = NULL;
    bsk_status status = bsk_layout_deserialize(NULL, data, size, &layout);
    require((status == BSK_OK) == (layout != NULL), "status and layout disagree");
    if (!layout)
        return;
    const char *why = twin_invariants(&layout->tables);
    require(!why, why);
    size_t bytes = size;
    uint8_t *again = malloc(size);
    require(again != NULL, "no memory");
    require(bsk_layout_serialize(layout, again, &bytes) == BSK_OK && bytes == size &&
                memcmp(again, data, size) == 0,
            "another serialized form");
    free(again);
    bsk_layout_release(&layout);
}

/* A layout of up to 2 x 4 x 4 blocks: four bytes of geometry, then one byte per block. */
static bsk_layout *layout_make(const uint8_t *recipe)
{
    bsk_layout_params params = BSK_INIT(bsk_layout_params);
    params.rows = 1 + recipe[0] % 8;
    params.cols = 1 + recipe[1] % 8;
    params.block_rows = params.block_cols = 2;
    params.heads = 1 + recipe[2] % 2;
    params.order = (bsk_order)(recipe[3] % 4);
    uint8_t mask[32];
    for (size_t i = 0; i < sizeof mask; i++)
        mask[i] = recipe[4 + i] & 1;
    bsk_layout *layout = NULL;
    require(bsk_layout_from_mask(NULL, &params, mask, &layout) == BSK_OK, "from_mask");
    return layout;
}

/* Applies pairs of (place, change) and repairs the checksum. */
static void damage(uint8_t *bytes, size_t count, const uint8_t *pairs, size_t size)
{
    for (size_t i = 0; i + 1 < size; i += 2)
        bytes[pairs[i] % count] ^= pairs[i + 1];
    uint32_t crc = bski_crc32c(bytes, count - 4);
    for (size_t i = 0; i < 4; i++)
        bytes[count - 4 + i] = (uint8_t)(crc >> 8 * i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { RECIPE = 36 };
    static const uint8_t none[1] = {0};
    try_bytes(size ? data : none, size);
    if (size < RECIPE)
        return 0;
    bsk_layout *layout = layout_make(data);
    size_t count = 0;
    bsk_layout_serialize(layout, NULL, &count);
    uint8_t *bytes = malloc(count);
    require(bytes != NULL, "no memory");
    require(bsk_layout_serialize(layout, bytes, &count) == BSK_OK, "serialize");
    bsk_layout_release(&layout);
    damage(bytes, count, data + RECIPE, size - RECIPE);
    try_bytes(bytes, count);
    free(bytes);
    return 0;
}
