#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "process.h"

static const char *const colours[MAX_RUNS] = {"#0b6fb8", "#d9822b"};

static const char style[] =
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#222;background:#fff}"
    "table{border-collapse:collapse}th,td{padding:.25rem .9rem;text-align:right;"
    "border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:left}"
    "img{max-width:100%;height:auto}figure{margin:1.5rem 0}figcaption{color:#555}";

static void html_text(FILE *page, const char *s)
{
    for (; *s; s++) {
        switch (*s) {
        case '<':
            fputs("&lt;", page);
            break;
        case '>':
            fputs("&gt;", page);
            break;
        case '&':
            fputs("&amp;", page);
            break;
        case '"':
            fputs("&quot;", page);
            break;
        default:
            fputc(*s, page);
        }
    }
}

/* A drawing as the source of an image: inside the page itself, the names that gnuplot gives to the
 * parts of every drawing would be there several times. */
static void html_image(FILE *page, const char *svg, const char *caption)
{
    fputs("<figure><img alt=\"", page);
    html_text(page, caption);
    fputs("\" src=\"data:image/svg+xml,", page);
    for (; *svg; svg++) {
        if (strchr("\"'#%&<>\n", *svg))
            fprintf(page, "%%%02X", (unsigned)*svg);
        else
            fputc(*svg, page);
    }
    fputs("\"><figcaption>", page);
    html_text(page, caption);
    fputs("</figcaption></figure>\n", page);
}

/* Sends the script to gnuplot and puts the drawing into the page, without its XML prologue. */
static void page_plot(FILE *page, FILE *script, const char *caption)
{
    static const char *const gnuplot[] = {"gnuplot", NULL};
    const long size = ftell(script);
    uint8_t *svg = NULL;
    size_t svg_size = 0;
    const char *drawing = NULL;
    if (size > 0) {
        char *lines = check_alloc((size_t)size);
        rewind(script);
        if (fread(lines, 1, (size_t)size, script) == (size_t)size &&
            process_filter(gnuplot, lines, (size_t)size, &svg, &svg_size) == 0)
            drawing = strstr((const char *)svg, "<svg");
        free(lines);
    }
    if (drawing)
        html_image(page, drawing, caption);
    else
        fprintf(page, "<p>No plot (%s): gnuplot is missing or failed.</p>\n", caption);
    free(svg);
}

static void page_curves(FILE *page, const report *r)
{
    FILE *script = tmpfile();
    if (!script)
        return;
    const int by_step = r->runs[0].model.c.steps > 0; // what ends the training
    fprintf(script,
            "set terminal svg size 900,460 font 'sans,14' noenhanced background '#ffffff'\n"
            "set xlabel '%s of training'\nset ylabel 'bits per held-out byte'\n"
            "set grid lc '#dddddd'\nset key top right\n",
            by_step ? "steps" : "seconds");
    double top = 4; // the fall from the first, random guess would flatten the rest
    for (int i = 0; i < r->run_count; i++) {
        if (top < 1.2 * r->runs[i].held_bits)
            top = 1.2 * r->runs[i].held_bits;
        fprintf(script, "$run%d << EOD\n", i);
        for (int k = 0; k < r->runs[i].point_count; k++) {
            const run_point *at = &r->runs[i].points[k];
            fprintf(script, "%.3f %.5f\n", by_step ? at->step : at->seconds, at->bits);
        }
        fputs("EOD\n", script);
    }
    fprintf(script, "set yrange [*:*<%g]\nplot ", top);
    for (int i = 0; i < r->run_count; i++)
        fprintf(script, "%s$run%d with linespoints pt 7 ps 0.5 lw 2 lc '%s' title '%s'",
                i ? ", " : "", i, colours[i], r->runs[i].name);
    if (r->gzip_bits > 0)
        fprintf(script, ", %.5f with lines dt 2 lw 2 lc '#666666' title 'gzip -9'", r->gzip_bits);
    fputs("\n", script);
    page_plot(page, script, "Learning curves, on a sample of the held-out text");
    fclose(script);
}

/* One head of a layout as data of the script. */
static void script_layout(FILE *script, int number, const bsk_layout *layout, int head)
{
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK(bsk_layout_query(layout, &info));
    fprintf(script, "$layout%d << EOD\n", number);
    for (int64_t slot = 0; slot < info.nnz; slot++) {
        int32_t mine, row, col;
        CHECK(bsk_layout_block_coord(layout, slot, &mine, &row, &col));
        if (mine == head)
            fprintf(script, "%d %d\n", col, row);
    }
    fputs("EOD\n", script);
}

static void script_picture(FILE *script, int number, const bsk_layout *layout, const char *name,
                           const char *colour)
{
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    CHECK(bsk_layout_query(layout, &info));
    fprintf(script,
            "set title '%s: %lld x %lld, blocks of %d, density %.2f'\n"
            "set xrange [-0.5:%g]\nset yrange [%g:-0.5]\n"
            "plot $layout%d using 1:2:(0.46):(0.46) with boxxyerror lc '%s'\n",
            name, (long long)info.rows, (long long)info.cols, info.block_rows, info.density,
            info.grid_cols - 0.5, info.grid_rows - 0.5, number, colour);
}

/* The attention of the first and of the last head, and the first two layouts of weights that do not
 * keep all blocks, or else the first ones. */
static void page_layouts(FILE *page, const run *r, const char *colour)
{
    enum { PICTURES = 4 };
    const bsk_layout *shown[PICTURES];
    int head[PICTURES] = {0}, count = 0;
    const char *names[PICTURES];
    const model *m = &r->model;
    for (int g = 0; g < m->group_count && m->c.kind == 0; g++) {
        shown[count] = m->groups[g].layout;
        names[count++] = m->group_count > 1 ? g ? "attention, strided heads" : "attention, local"
                                            : "attention, first head";
    }
    bsk_layout_info info = BSK_INIT(bsk_layout_info);
    if (count == 1) {
        CHECK(bsk_layout_query(shown[0], &info));
        if (info.heads > 1) {
            shown[count] = shown[0];
            head[count] = info.heads - 1;
            names[count++] = "attention, last head";
        }
    }
    for (int wanted = 0, dense = 0; dense < 2; dense++)
        for (int i = 0; i < m->p.count && wanted < 2; i++) {
            const bsk_layout *layout = m->p.list[i].layout;
            if (!layout)
                continue;
            CHECK(bsk_layout_query(layout, &info));
            if ((info.density == 1) != dense)
                continue;
            shown[count] = layout;
            names[count++] = wanted++ ? "weights, second layout" : "weights, first layout";
        }
    FILE *script = tmpfile();
    if (!script)
        return;
    fprintf(script,
            "set terminal svg size 900,%d font 'sans,12' noenhanced background '#ffffff'\n"
            "set style fill solid noborder\nunset key\nset tics out nomirror\n",
            count > 2 ? 800 : 400);
    for (int i = 0; i < count; i++)
        script_layout(script, i, shown[i], head[i]);
    fprintf(script, "set multiplot layout %d,2\n", (count + 1) / 2);
    for (int i = 0; i < count; i++)
        script_picture(script, i, shown[i], names[i], colour);
    fputs("unset multiplot\n", script);
    page_plot(page, script, r->name);
    fclose(script);
}

static void page_table(FILE *page, const report *r)
{
    fputs("<table><tr><th>model</th><th>hidden</th><th>density</th>"
          "<th>parameters of the "
          "layers</th><th>steps</th><th>seconds</th><th>bytes/s</th><th>GFLOP/s</th><th>of dense "
          "products</th><th>bits/byte, training"
          "</th><th>bits/byte, held out</th></tr>\n",
          page);
    for (int i = 0; i < r->run_count; i++) {
        const run *x = &r->runs[i];
        fprintf(page,
                "<tr><td>%s</td><td>%d</td><td>%.2f</td><td>%.0f</td><td>%lld</td><td>%.1f</"
                "td><td>%.0f</td>"
                "<td>%.1f</td><td>%.0f %%</td><td>%.3f</td><td><b>%.3f</b></td></tr>\n",
                x->name, x->model.c.hidden, x->model.c.density, model_parameters(&x->model),
                (long long)x->model.step, x->seconds, run_rate(x), run_gflops(x), run_share(x),
                x->train_bits, x->held_bits);
    }
    if (r->gzip_bits > 0)
        fprintf(page,
                "<tr><td>gzip "
                "-9</td><td></td><td></td><td></td><td></td><td></td><td></td><td></td><td>"
                "</td><td></td><td><b>%.3f</b></td></tr>\n",
                r->gzip_bits);
    fputs("</table>\n", page);
}

double run_rate(const run *x)
{
    const double seconds = x->seconds - x->before;
    return seconds > 0 ? x->tokens / seconds : 0;
}

double run_gflops(const run *x)
{
    const double seconds = x->seconds - x->before;
    return seconds > 0 ? 1e-9 * x->flops / seconds : 0;
}

double run_share(const run *x)
{
    return x->roof > 0 ? 100 * 1e9 * run_gflops(x) / x->roof : 0;
}

static FILE *page_open(const char *path, const char *mode)
{
    FILE *page = fopen(path, mode);
    if (!page)
        fprintf(stderr, "lm: %s: %s\n", path, strerror(errno));
    return page;
}

int report_check(const char *path)
{
    FILE *page = page_open(path, "a");
    return page && fclose(page) == 0 ? 0 : -1;
}

int report_write(const char *path, const report *r)
{
    FILE *page = page_open(path, "w");
    if (!page)
        return -1;
    fprintf(page,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
            "<meta name=\"viewport\" content=\"width=device-width\">"
            "<title>bsk: a language model</title><style>%s</style></head><body>\n"
            "<h1>A byte-level %s with block-sparse layers</h1>\n<p>bsk %s on ",
            style, r->runs[0].model.kind->name, bsk_version());
    html_text(page, r->device);
    fprintf(page,
            ". Text: %d files, %zu bytes, of which %zu (every %dth chunk of %d bytes) are held "
            "out: no training step saw them. gzip compressed exactly these bytes.</p>\n",
            r->files, r->text_size, r->held_size, TEXT_EVERY, TEXT_CHUNK);
    page_table(page, r);
    page_curves(page, r);
    fputs("<h2>Layouts</h2>\n<p>Each square is a kept block. Weights: inputs from top to bottom, "
          "units "
          "from left to right. Attention: queries from top to bottom, keys from left to right."
          "</p>\n",
          page);
    for (int i = 0; i < r->run_count; i++)
        page_layouts(page, &r->runs[i], colours[i]);
    fputs("</body></html>\n", page);
    const int failed = ferror(page) != 0;
    if (fclose(page) || failed) {
        fprintf(stderr, "lm: %s: cannot be written\n", path);
        return -1;
    }
    return 0;
}
