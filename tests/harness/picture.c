/* bsk info --layout: what a layout keeps, as text, JSON and a picture. */
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tests/harness/pattern.h"

enum { FULL = 1, PARTIAL = 2, CLASSES = 3 };

typedef struct view {
    const char *text;
    test_layout_text pattern;
    bsk_layout *layout;
    bsk_layout_info info;
    int32_t *head, *row, *col;
    int32_t *mask; /* by slot; -1: all elements are visible */
    int64_t partial;
} view;

static void view_close(view *v)
{
    bsk_layout_release(&v->layout);
    free(v->head);
    free(v->row);
    free(v->col);
    free(v->mask);
}

/* Which blocks are visible in part. */
static bsk_status view_masks(view *v)
{
    int64_t masks = 0;
    for (int64_t s = 0; s < v->info.nnz; s++)
        v->mask[s] = -1;
    if (test_layout_has_rule(&v->pattern) &&
        bsk_layout_element_bits(v->layout, test_layout_visible, &v->pattern, v->mask, NULL, &masks))
        return BSK_E_INVALID;
    for (int64_t s = 0; s < v->info.nnz; s++)
        v->partial += v->mask[s] >= 0;
    return BSK_OK;
}

static bool view_open(view *v, const char *text)
{
    char why[160];
    v->text = text;
    if (!test_layout_read(text, NULL, &v->pattern, why, sizeof why)) {
        fprintf(stderr, "bsk: --layout %s: %s; 'bsk info --help' lists patterns and keys\n", text,
                why);
        return false;
    }
    v->info.struct_size = sizeof v->info;
    if (test_layout_make(&v->pattern, &v->layout) || bsk_layout_query(v->layout, &v->info)) {
        fprintf(stderr, "bsk: --layout %s: %s\n", text, bsk_last_error());
        return false;
    }
    const size_t bytes = (size_t)v->info.nnz * 4 + 4;
    v->head = malloc(bytes);
    v->row = malloc(bytes);
    v->col = malloc(bytes);
    v->mask = malloc(bytes);
    if (!v->head || !v->row || !v->col || !v->mask) {
        fprintf(stderr, "bsk: --layout %s: no memory\n", text);
        return false;
    }
    if (bsk_layout_to_coo(v->layout, v->head, v->row, v->col) || view_masks(v)) {
        fprintf(stderr, "bsk: --layout %s: %s\n", text, bsk_last_error());
        return false;
    }
    return true;
}

/* --- Text and JSON --------------------------------------------------------------------------- */

static void view_print(const view *v)
{
    const bsk_layout_info *l = &v->info;
    printf("layout      %s\n", v->text);
    printf("matrix      %lld x %lld elements, %d head%s\n", (long long)l->rows, (long long)l->cols,
           l->heads, l->heads == 1 ? "" : "s");
    printf("blocks      %d x %d elements, a grid of %d x %d\n", l->block_rows, l->block_cols,
           l->grid_rows, l->grid_cols);
    printf("kept        %lld: %lld visible in full, %lld in part\n", (long long)l->nnz,
           (long long)(l->nnz - v->partial), (long long)v->partial);
    printf("density     %.6g\n", l->density);
    printf("longest     %d blocks in a row, %d in a column\n", l->max_row_blocks,
           l->max_col_blocks);
    printf("empty       %d rows, %d columns\n", l->empty_rows, l->empty_cols);
}

static void view_json(const view *v)
{
    const bsk_layout_info *l = &v->info;
    const struct {
        const char *name;
        double value;
    } numbers[] = {
        {"rows", (double)l->rows},
        {"cols", (double)l->cols},
        {"block_rows", l->block_rows},
        {"block_cols", l->block_cols},
        {"grid_rows", l->grid_rows},
        {"grid_cols", l->grid_cols},
        {"heads", l->heads},
        {"nnz", (double)l->nnz},
        {"full", (double)(l->nnz - v->partial)},
        {"partial", (double)v->partial},
        {"density", l->density},
        {"max_row_blocks", l->max_row_blocks},
        {"max_col_blocks", l->max_col_blocks},
        {"empty_rows", l->empty_rows},
        {"empty_cols", l->empty_cols},
    };
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "layout", v->text);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        cJSON_AddNumberToObject(root, numbers[i].name, numbers[i].value);
    char *text = cJSON_Print(root);
    puts(text ? text : "{}");
    free(text);
    cJSON_Delete(root);
}

/* --- Picture --------------------------------------------------------------------------------- */

/* Sizes in pixels. Blocks are drawn in units of the grid, which each head's transform scales. */
enum { HEAD = 256, MARGIN = 12, TITLE = 20, LEGEND = 26, MOST_GRID = 4096 };

static const struct {
    const char *name, *color, *words;
} classes[CLASSES] = {
    {"empty", "#e9edf2", "not stored"},
    {"full", "#2b6cb0", "visible in full"},
    {"partial", "#f0a03c", "visible in part"},
};

/* Rectangles of one class in a head's cells, as one path: runs of a row, continued downwards as far
 * as they repeat. */
static void draw_class(FILE *f, const bsk_layout_info *l, const uint8_t *cells, uint8_t *done,
                       int class)
{
    const int32_t rows = l->grid_rows, cols = l->grid_cols;
    bool begun = false;
    for (int32_t i = 0; i < rows; i++)
        for (int32_t j = 0, end; j < cols; j = end) {
            const size_t at = (size_t)i * (size_t)cols;
            end = j + 1;
            if (cells[at + j] != class || done[at + j])
                continue;
            while (end < cols && cells[at + end] == class && !done[at + end])
                end++;
            const size_t width = (size_t)(end - j);
            int32_t down = i + 1;
            for (; down < rows; down++)
                if (memcmp(cells + (size_t)down * (size_t)cols + j, cells + at + j, width) != 0)
                    break;
            for (int32_t k = i; k < down; k++)
                memset(done + (size_t)k * (size_t)cols + j, 1, width);
            if (!begun)
                fprintf(f, "<path class=\"%s\" fill=\"%s\" d=\"", classes[class].name,
                        classes[class].color);
            begun = true;
            fprintf(f, "M%d %dh%dv%dh-%dz", j, i, end - j, down - i, end - j);
        }
    if (begun)
        fputs("\"/>\n", f);
}

static void draw_lines(FILE *f, const bsk_layout_info *l)
{
    fputs("<path class=\"lines\" stroke=\"#fff\" fill=\"none\" "
          "vector-effect=\"non-scaling-stroke\" d=\"",
          f);
    for (int32_t i = 1; i < l->grid_rows; i++)
        fprintf(f, "M0 %dh%d", i, l->grid_cols);
    for (int32_t j = 1; j < l->grid_cols; j++)
        fprintf(f, "M%d 0v%d", j, l->grid_rows);
    fputs("\"/>\n", f);
}

static void draw_head(FILE *f, const view *v, int32_t head, double width, double height,
                      uint8_t *cells, uint8_t *done)
{
    const bsk_layout_info *l = &v->info;
    const size_t count = (size_t)l->grid_rows * (size_t)l->grid_cols;
    memset(cells, 0, count);
    memset(done, 0, count);
    for (int64_t s = 0; s < l->nnz; s++)
        if (v->head[s] == head)
            cells[(size_t)v->row[s] * (size_t)l->grid_cols + (size_t)v->col[s]] =
                v->mask[s] < 0 ? FULL : PARTIAL;
    const double left = MARGIN + head * (width + MARGIN);
    if (l->heads > 1)
        fprintf(f, "<text x=\"%.6g\" y=\"%d\">head %d</text>\n", left, MARGIN + TITLE + 10, head);
    fprintf(f, "<g transform=\"translate(%.6g %d) scale(%.6g %.6g)\">\n", left,
            MARGIN + TITLE * (l->heads > 1 ? 2 : 1), width / l->grid_cols, height / l->grid_rows);
    fprintf(f, "<path class=\"empty\" fill=\"%s\" d=\"M0 0h%dv%dh-%dz\"/>\n", classes[0].color,
            l->grid_cols, l->grid_rows, l->grid_cols);
    for (int class = FULL; class < CLASSES; class ++)
        draw_class(f, l, cells, done, class);
    if (width / l->grid_cols >= 5 && height / l->grid_rows >= 5)
        draw_lines(f, l);
    fputs("</g>\n", f);
}

/* One line of swatches and words. */
static void draw_legend(FILE *f, const view *v, double top)
{
    const int64_t counts[CLASSES] = {0, v->info.nnz - v->partial, v->partial};
    double left = MARGIN;
    for (int c = CLASSES - 1; c >= 0; c--) {
        char words[64];
        if (c && !counts[c])
            continue;
        snprintf(words, sizeof words, "%s", classes[c].words);
        if (c)
            snprintf(words, sizeof words, "%s: %lld", classes[c].words, (long long)counts[c]);
        fprintf(f,
                "<rect x=\"%.6g\" y=\"%.6g\" width=\"11\" height=\"11\" fill=\"%s\"/>\n"
                "<text x=\"%.6g\" y=\"%.6g\">%s</text>\n",
                left, top, classes[c].color, left + 15, top + 10, words);
        left += 15 + 6.2 * (double)strlen(words) + MARGIN;
    }
}

static bool view_draw(const view *v, const char *path)
{
    const bsk_layout_info *l = &v->info;
    const size_t count = (size_t)l->grid_rows * (size_t)l->grid_cols;
    const double rows = (double)l->grid_rows * l->block_rows;
    const double cols = (double)l->grid_cols * l->block_cols;
    const double scale = HEAD / (rows > cols ? rows : cols);
    const double width = cols * scale, height = rows * scale;
    if (l->grid_rows > MOST_GRID || l->grid_cols > MOST_GRID) {
        fprintf(stderr, "bsk: a picture has at most %d x %d blocks, not %d x %d\n", MOST_GRID,
                MOST_GRID, l->grid_rows, l->grid_cols);
        return false;
    }
    uint8_t *cells = malloc(2 * count);
    FILE *f = cells ? fopen(path, "w") : NULL;
    if (!f) {
        perror(path);
        free(cells);
        return false;
    }
    const double top = MARGIN + TITLE * (l->heads > 1 ? 2 : 1) + height + MARGIN;
    double all = MARGIN + l->heads * (width + MARGIN);
    const double words = 2 * MARGIN + 6.2 * (double)strlen(v->text), least = 400;
    all = all < least ? least : all;
    all = all < words ? words : all;
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.6g\" height=\"%.6g\" "
            "font-family=\"sans-serif\" font-size=\"11\" fill=\"#1c2733\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"%d\" y=\"%d\">%s</text>\n",
            all, top + LEGEND, MARGIN, MARGIN + 10, v->text);
    for (int32_t h = 0; h < l->heads; h++)
        draw_head(f, v, h, width, height, cells, cells + count);
    draw_legend(f, v, top);
    fputs("</svg>\n", f);
    free(cells);
    bool good = !ferror(f);
    if (fclose(f) || !good) {
        perror(path);
        return false;
    }
    return true;
}

int test_layout_info(const char *text, const char *svg, bool json)
{
    view v = {0};
    const bool read = view_open(&v, text);
    const bool drawn = read && (!svg || view_draw(&v, svg));
    if (drawn && json)
        view_json(&v);
    else if (drawn)
        view_print(&v);
    view_close(&v);
    return !read ? 2 : !drawn;
}
