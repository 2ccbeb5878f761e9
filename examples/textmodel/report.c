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
    "svg{max-width:100%;height:auto}figure{margin:1.5rem 0}figcaption{color:#555}";

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
        default:
            fputc(*s, page);
        }
    }
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
        fprintf(page, "<figure>%s<figcaption>%s</figcaption></figure>\n", drawing, caption);
    else
        fprintf(page, "<p>No plot (%s): gnuplot is missing or failed.</p>\n", caption);
    free(svg);
}

static void page_curves(FILE *page, const report *r)
{
    FILE *script = tmpfile();
    if (!script)
        return;
    fputs("set terminal svg size 900,460 font 'sans,14' noenhanced background '#ffffff'\n"
          "set xlabel 'seconds of training'\nset ylabel 'bits per held-out character'\n"
          "set grid lc '#dddddd'\nset key top right\n",
          script);
    double top = 4; // the fall from the first, random guess would flatten the rest
    for (int i = 0; i < r->run_count; i++) {
        if (top < 1.2 * r->runs[i].held_bits)
            top = 1.2 * r->runs[i].held_bits;
        fprintf(script, "$run%d << EOD\n", i);
        for (int k = 0; k < r->runs[i].point_count; k++)
            fprintf(script, "%.3f %.5f\n", r->runs[i].points[k].seconds, r->runs[i].points[k].bits);
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

/* The kept blocks of the two hidden layers of one run, input blocks down, unit blocks across. */
static void page_layouts(FILE *page, const run *r, const char *colour)
{
    FILE *script = tmpfile();
    if (!script)
        return;
    fputs("set terminal svg size 900,400 font 'sans,13' noenhanced background '#ffffff'\n"
          "set style fill solid noborder\nunset key\nset tics out nomirror\n",
          script);
    for (int i = 0; i < LAYERS - 1; i++) {
        bsk_layout_info info = BSK_INIT(bsk_layout_info);
        CHECK(bsk_layout_query(r->model.layers[i].layout, &info));
        fprintf(script, "$layout%d << EOD\n", i);
        for (int64_t slot = 0; slot < info.nnz; slot++) {
            int32_t row, col;
            CHECK(bsk_layout_block_coord(r->model.layers[i].layout, slot, NULL, &row, &col));
            fprintf(script, "%d %d\n", col, row);
        }
        fputs("EOD\n", script);
    }
    fputs("set multiplot layout 1,2\n", script);
    for (int i = 0; i < LAYERS - 1; i++) {
        bsk_layout_info info = BSK_INIT(bsk_layout_info);
        CHECK(bsk_layout_query(r->model.layers[i].layout, &info));
        fprintf(script,
                "set title 'W%d: %lld x %lld, %lld blocks of %d x %d, density %.2f'\n"
                "set xrange [-0.5:%g]\nset yrange [%g:-0.5]\n"
                "plot $layout%d using 1:2:(0.46):(0.46) with boxxyerror lc '%s'\n",
                i + 1, (long long)info.rows, (long long)info.cols, (long long)info.nnz,
                info.block_rows, info.block_cols, info.density, info.grid_cols - 0.5,
                info.grid_rows - 0.5, i, colour);
    }
    fputs("unset multiplot\n", script);
    page_plot(page, script, r->name);
    fclose(script);
}

static void page_table(FILE *page, const report *r)
{
    fputs("<table><tr><th>model</th><th>hidden</th><th>density</th><th>parameters of the layers"
          "</th><th>seconds</th><th>characters/s</th><th>bits/char, training</th>"
          "<th>bits/char, held out</th></tr>\n",
          page);
    for (int i = 0; i < r->run_count; i++) {
        const run *x = &r->runs[i];
        fprintf(page,
                "<tr><td>%s</td><td>%d</td><td>%.2f</td><td>%.0f</td><td>%.1f</td><td>%.0f</td>"
                "<td>%.3f</td><td><b>%.3f</b></td></tr>\n",
                x->name, x->model.shape.hidden, x->model.shape.density, model_parameters(&x->model),
                x->seconds, x->seconds > 0 ? x->tokens / x->seconds : 0, x->train_bits,
                x->held_bits);
    }
    if (r->gzip_bits > 0)
        fprintf(page,
                "<tr><td>gzip -9</td><td></td><td></td><td></td><td></td><td></td><td></td>"
                "<td><b>%.3f</b></td></tr>\n",
                r->gzip_bits);
    fputs("</table>\n", page);
}

int report_write(const char *path, const report *r)
{
    FILE *page = fopen(path, "w");
    if (!page) {
        fprintf(stderr, "textmodel: %s: %s\n", path, strerror(errno));
        return -1;
    }
    fprintf(page,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
            "<meta name=\"viewport\" content=\"width=device-width\">"
            "<title>bsk: a character model</title><style>%s</style></head><body>\n"
            "<h1>A character model with block-sparse layers</h1>\n<p>bsk %s on ",
            style, bsk_version());
    html_text(page, r->device);
    fputs(", kernel ", page);
    html_text(page, r->entry);
    fprintf(page,
            ". Text: %d files, %zu bytes, of which %zu (every %dth chunk of %d bytes) are held "
            "out: no training step saw them. gzip compressed exactly these bytes.</p>\n",
            r->files, r->text_size, r->held_size, TEXT_EVERY, TEXT_CHUNK);
    page_table(page, r);
    page_curves(page, r);
    fputs("<h2>Layouts</h2>\n<p>Each square is a kept block of weights: blocks of inputs from top "
          "to bottom, blocks of units from left to right.</p>\n",
          page);
    for (int i = 0; i < r->run_count; i++)
        page_layouts(page, &r->runs[i], colours[i]);
    fputs("</body></html>\n", page);
    const int failed = ferror(page) != 0;
    if (fclose(page) || failed) {
        fprintf(stderr, "textmodel: %s: cannot be written\n", path);
        return -1;
    }
    return 0;
}
