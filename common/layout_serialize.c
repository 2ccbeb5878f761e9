/* Layouts as bytes, and as other libraries' formats.
 *
 * The serialized form. All numbers are little-endian.
 *
 *     offset  size  what
 *          0     8  magic: 'b' 's' 'k' 'L' 'A' 'Y' CR LF (shows damage by text conversion)
 *          8     4  version: 1
 *         12     4  flags: bit 0 = a list of slots follows; other bits are 0
 *         16     8  rows, elements
 *         24     8  cols, elements
 *         32     4  block_rows
 *         36     4  block_cols
 *         40     4  heads
 *         44     4  nnz
 *         48        row counts: u32 [heads][grid_rows], kept blocks of each block row
 *                   column counts: u32 [heads][grid_cols]
 *                   columns: u32 [nnz], row by row, ascending within a row
 *                   slots: u32 [nnz] if flags bit 0; absent if block i is in slot i
 *      end - 4   4  CRC-32C (Castagnoli) of all bytes before
 *
 * A layout has exactly one such form. The counts of both directions are there so that no table is
 * larger than a small multiple of the bytes that describe it. */
#include <string.h>

#include "common/checked.h"
#include "common/layout.h"

enum { HEADER_BYTES = 48, CHECKSUM_BYTES = 4, FORMAT_VERSION = 1, FLAG_SLOTS = 1 };

static const uint8_t format_magic[8] = {'b', 's', 'k', 'L', 'A', 'Y', '\r', '\n'};

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get64(const uint8_t *p)
{
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}

static uint8_t *put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
    return p + 4;
}

static uint8_t *put64(uint8_t *p, uint64_t v)
{
    return put32(put32(p, (uint32_t)v), (uint32_t)(v >> 32));
}

uint32_t bski_crc32c(const uint8_t *data, size_t bytes)
{
    /* four bits at a time: the remainders of 0 to 15 by the reflected polynomial 0x82f63b78 */
    static const uint32_t nibble[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        crc = crc >> 4 ^ nibble[crc & 15u];
        crc = crc >> 4 ^ nibble[crc & 15u];
    }
    return ~crc;
}

/* --- writing ---------------------------------------------------------------------------------- */

size_t bski_layout_bytes(const bsk_layout_tables *tables)
{
    /* less than the tables in memory, so it cannot overflow */
    const bsk_layout_tables *t = tables;
    size_t lines = (size_t)t->heads * ((size_t)t->grid_rows + (size_t)t->grid_cols);
    size_t lists = (size_t)t->nnz * (t->ordered ? 1 : 2);
    return HEADER_BYTES + 4 * (lines + lists) + CHECKSUM_BYTES;
}

static uint8_t *put_counts(uint8_t *p, const bsk_layout_tables *t, bool by_cols)
{
    bski_lines lines = bski_layout_lines(t, by_cols);
    for (int64_t h = 0; h < t->heads; h++) {
        const int64_t *start = lines.start + h * ((int64_t)lines.grid + 1);
        for (int32_t i = 0; i < lines.grid; i++)
            p = put32(p, (uint32_t)(start[i + 1] - start[i]));
    }
    return p;
}

static uint8_t *put_list(uint8_t *p, const int32_t *list, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        p = put32(p, (uint32_t)list[i]);
    return p;
}

void bski_layout_serialize(const bsk_layout_tables *tables, uint8_t *data)
{
    const bsk_layout_tables *t = tables;
    memcpy(data, format_magic, sizeof format_magic);
    uint8_t *p = put32(data + sizeof format_magic, FORMAT_VERSION);
    p = put32(p, t->ordered ? 0 : FLAG_SLOTS);
    p = put64(p, (uint64_t)t->rows);
    p = put64(p, (uint64_t)t->cols);
    p = put32(p, (uint32_t)t->block_rows);
    p = put32(p, (uint32_t)t->block_cols);
    p = put32(p, (uint32_t)t->heads);
    p = put32(p, (uint32_t)t->nnz);
    p = put_counts(p, t, false);
    p = put_counts(p, t, true);
    p = put_list(p, t->row_col, t->nnz);
    if (!t->ordered)
        p = put_list(p, t->row_slot, t->nnz);
    put32(p, bski_crc32c(data, (size_t)(p - data)));
}

/* --- reading ---------------------------------------------------------------------------------- */

/* The parts of a serialized layout. */
typedef struct reader {
    bski_geometry g;
    int64_t nnz;
    const uint8_t *row_counts, *col_counts, *cols;
    const uint8_t *slots; /* NULL if slots are in order */
} reader;

static bsk_status corrupt(bski_diag *diag, const char *what)
{
    return bski_diag_set(diag, BSK_E_CORRUPT, "data: %s", what);
}

/* Finds the parts; their sizes add up to bytes. */
static bsk_status reader_split(reader *r, const uint8_t *data, size_t bytes, uint32_t flags,
                               bski_diag *diag)
{
    size_t rows, cols, lines, lists, body;
    bool fits = bski_mul_size((size_t)r->g.heads, (size_t)r->g.grid_rows, &rows) &&
                bski_mul_size((size_t)r->g.heads, (size_t)r->g.grid_cols, &cols) &&
                bski_add_size(rows, cols, &lines) &&
                bski_mul_size((size_t)r->nnz, flags & FLAG_SLOTS ? 2 : 1, &lists) &&
                bski_add_size(lines, lists, &body) && bski_mul_size(body, 4, &body);
    if (!fits || body != bytes - HEADER_BYTES - CHECKSUM_BYTES)
        return bski_diag_set(diag, BSK_E_CORRUPT,
                             "data: %zu bytes do not hold %d x %d x %d blocks with %lld kept",
                             bytes, r->g.heads, r->g.grid_rows, r->g.grid_cols, (long long)r->nnz);
    r->row_counts = data + HEADER_BYTES;
    r->col_counts = r->row_counts + 4 * rows;
    r->cols = r->col_counts + 4 * cols;
    r->slots = flags & FLAG_SLOTS ? r->cols + 4 * (size_t)r->nnz : NULL;
    return BSK_OK;
}

/* Checks the header and the checksum. */
static bsk_status reader_open(reader *r, const uint8_t *data, size_t bytes, bski_diag *diag)
{
    if (bytes < HEADER_BYTES + CHECKSUM_BYTES)
        return bski_diag_set(diag, BSK_E_CORRUPT, "data: %zu bytes are fewer than a header", bytes);
    if (memcmp(data, format_magic, sizeof format_magic) != 0)
        return corrupt(diag, "no layout: the magic bytes are missing");
    uint32_t version = get32(data + 8), flags = get32(data + 12);
    if (version > FORMAT_VERSION)
        return bski_diag_set(diag, BSK_E_VERSION,
                             "data: format version %u is newer than this library's, %d", version,
                             FORMAT_VERSION);
    if (get32(data + bytes - CHECKSUM_BYTES) != bski_crc32c(data, bytes - CHECKSUM_BYTES))
        return corrupt(diag, "the checksum does not match");
    uint32_t heads = get32(data + 40), nnz = get32(data + 44);
    if (version < 1 || flags > FLAG_SLOTS || heads < 1 || nnz > INT32_MAX)
        return corrupt(diag, "bad version, flags, heads or nnz");
    bsk_layout_params params = {
        .struct_size = sizeof params,
        .rows = (int64_t)get64(data + 16),
        .cols = (int64_t)get64(data + 24),
        .block_rows = (int32_t)get32(data + 32),
        .block_cols = (int32_t)get32(data + 36),
        .heads = (int32_t)heads,
    };
    bski_diag why;
    if (bski_geometry_set(&r->g, &params, &why) != BSK_OK)
        return corrupt(diag, why.text);
    r->nnz = nnz;
    return reader_split(r, data, bytes, flags, diag);
}

/* Writes one block row of the result: columns to their slots. e is the first entry. */
static bsk_status reader_row(const reader *r, bsk_layout *l, int32_t row, int64_t e, int64_t end,
                             int64_t head_first, int64_t head_end, bski_diag *diag)
{
    bski_writable w = bski_layout_writable(l);
    for (int64_t last = -1; e < end; e++) {
        uint32_t col = get32(r->cols + 4 * e);
        uint32_t slot = r->slots ? get32(r->slots + 4 * e) : (uint32_t)e;
        if (col >= (uint32_t)r->g.grid_cols || (int64_t)col <= last)
            return corrupt(diag, "columns are out of range or not ascending");
        if (slot < head_first || slot >= head_end || w.slot_row[slot] >= 0)
            return corrupt(diag, "slots are not a permutation");
        w.slot_row[slot] = row;
        w.slot_col[slot] = (int32_t)col;
        last = col;
    }
    return BSK_OK;
}

/* The number of kept blocks of head h, or more than nnz. */
static int64_t reader_head_count(const reader *r, int64_t h)
{
    int64_t sum = 0;
    for (int64_t i = h * r->g.grid_rows; i < (h + 1) * r->g.grid_rows && sum <= r->nnz; i++)
        sum += get32(r->row_counts + 4 * i);
    return sum;
}

static bsk_status reader_fill(const reader *r, bsk_layout *l, bski_diag *diag)
{
    bski_writable w = bski_layout_writable(l);
    for (int64_t s = 0; s < r->nnz; s++)
        w.slot_row[s] = -1;
    int64_t e = 0;
    w.head_start[0] = 0;
    for (int32_t h = 0; h < r->g.heads; h++) {
        int64_t first = e, end = e + reader_head_count(r, h);
        if (end > r->nnz)
            return corrupt(diag, "row counts exceed nnz");
        for (int32_t i = 0; i < r->g.grid_rows; i++) {
            int64_t count = get32(r->row_counts + 4 * ((int64_t)h * r->g.grid_rows + i));
            bsk_status status = reader_row(r, l, i, e, e + count, first, end, diag);
            if (status != BSK_OK)
                return status;
            e += count;
        }
        w.head_start[h + 1] = e;
    }
    return e == r->nnz ? BSK_OK : corrupt(diag, "row counts do not add up to nnz");
}

/* The rest of the checks: column counts, and that the form is the one that we would write. */
static bsk_status reader_verify(const reader *r, const bsk_layout_tables *t, bski_diag *diag)
{
    if (r->slots && t->ordered)
        return corrupt(diag, "a list of slots that are in order");
    const uint8_t *count = r->col_counts;
    for (int64_t h = 0; h < t->heads; h++) {
        const int64_t *start = t->col_start + h * ((int64_t)t->grid_cols + 1);
        for (int32_t c = 0; c < t->grid_cols; c++, count += 4)
            if (start[c + 1] - start[c] != get32(count))
                return corrupt(diag, "column counts do not match the columns");
    }
    return BSK_OK;
}

bsk_status bski_layout_deserialize(const bsk_allocator *allocator, const uint8_t *data,
                                   size_t bytes, bsk_layout **layout, bski_diag *diag)
{
    *layout = NULL;
    reader r;
    bsk_layout *l = NULL;
    bsk_status status = reader_open(&r, data, bytes, diag);
    if (status == BSK_OK)
        status = bski_layout_new(allocator, &r.g, r.nnz, &l, diag);
    if (status == BSK_OK)
        status = reader_fill(&r, l, diag);
    if (status == BSK_OK) {
        bski_duplicate duplicate; /* cannot be: columns ascend */
        status = bski_layout_index(l, BSK_ORDER_GIVEN, &duplicate, diag);
    }
    if (status == BSK_OK)
        status = reader_verify(&r, &l->tables, diag);
    if (status != BSK_OK) {
        bski_layout_free(l);
        return status;
    }
    *layout = l;
    return BSK_OK;
}

/* --- export ----------------------------------------------------------------------------------- */

static void copy_list(int32_t *to, const int32_t *from, int64_t count)
{
    if (to && count)
        memcpy(to, from, (size_t)count * sizeof *to);
}

void bski_layout_to_bsr(const bsk_layout_tables *tables, int64_t *row_start, int32_t *col,
                        int32_t *slot)
{
    size_t starts = (size_t)tables->heads * ((size_t)tables->grid_rows + 1);
    if (row_start)
        memcpy(row_start, tables->row_start, starts * sizeof *row_start);
    copy_list(col, tables->row_col, tables->nnz);
    copy_list(slot, tables->row_slot, tables->nnz);
}

void bski_layout_to_coo(const bsk_layout_tables *tables, int32_t *head, int32_t *row, int32_t *col)
{
    for (int32_t h = 0; head && h < tables->heads; h++)
        for (int64_t s = tables->head_start[h]; s < tables->head_start[h + 1]; s++)
            head[s] = h;
    copy_list(row, tables->slot_row, tables->nnz);
    copy_list(col, tables->slot_col, tables->nnz);
}

void bski_layout_to_mask(const bsk_layout_tables *tables, uint8_t *mask)
{
    size_t grid = (size_t)tables->grid_rows * (size_t)tables->grid_cols;
    for (int32_t h = 0; h < tables->heads; h++, mask += grid) {
        memset(mask, 0, grid);
        for (int64_t s = tables->head_start[h]; s < tables->head_start[h + 1]; s++)
            mask[(size_t)tables->slot_row[s] * (size_t)tables->grid_cols +
                 (size_t)tables->slot_col[s]] = 1;
    }
}

bsk_status bski_layout_to_ell(const bsk_layout_tables *tables, int32_t width, int32_t *col,
                              int32_t *slot, bski_diag *diag)
{
    const bsk_layout_tables *t = tables;
    bsk_layout_info info;
    bski_layout_describe(t, &info);
    if (width < info.max_row_blocks)
        return bski_diag_set(diag, BSK_E_INVALID, "width = %d must be at least max_row_blocks = %d",
                             width, info.max_row_blocks);
    int64_t at = 0;
    for (int64_t h = 0; h < t->heads; h++) {
        const int64_t *start = t->row_start + h * ((int64_t)t->grid_rows + 1);
        for (int32_t i = 0; i < t->grid_rows; i++)
            for (int32_t k = 0; k < width; k++, at++) {
                bool kept = k < start[i + 1] - start[i];
                if (col)
                    col[at] = kept ? t->row_col[start[i] + k] : -1;
                if (slot)
                    slot[at] = kept ? t->row_slot[start[i] + k] : -1;
            }
    }
    return BSK_OK;
}
