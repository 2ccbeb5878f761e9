/* Reports of the bench: text, JSON, and a page that needs nothing else. */
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "bench/bench.h"

static double tflops(const bench_row *r)
{
    return r->ms > 0 ? r->flops / r->ms * 1e-9 : 0;
}

static double dense_tflops(const bench_row *r)
{
    return r->dense_ms > 0 ? r->dense_flops / r->dense_ms * 1e-9 : 0;
}

/* How many times faster than the dense product. */
static double speedup(const bench_row *r)
{
    return r->dense_ms > 0 && r->ms > 0 ? r->dense_ms / r->ms : 0;
}

static double gbps(const bench_row *r)
{
    return r->ms > 0 ? r->bytes / r->ms * 1e-6 : 0;
}

/* Both figures are measured; a device's arithmetic is compared with a dense peer's in the row. */
static void roof_text(const bench_host *h, char *text, size_t size)
{
    char copy[64] = "copy rate not measured";
    if (h->roof_read > 0)
        snprintf(copy, sizeof copy, "%.1f GB/s copy, %.1f GB/s read (measured)",
                 h->roof_bytes * 1e-9, h->roof_read * 1e-9);
    else if (h->roof_bytes > 0)
        snprintf(copy, sizeof copy, "%.1f GB/s copy (measured)", h->roof_bytes * 1e-9);
    if (h->roof_f32 > 0)
        snprintf(text, size, "GFLOP/s: %.1f f32, %.1f bf16, %.1f i8, %.1f f64; %s",
                 h->roof_f32 * 1e-9, h->roof_bf16 * 1e-9, h->roof_i8 * 1e-9, h->roof_f64 * 1e-9,
                 copy);
    else
        snprintf(text, size, "%s", copy);
}

/* --- Text ---------------------------------------------------------------------------------- */

/* The device in a line. */
static void device_text(const bench_host *h, char *text, size_t size)
{
    snprintf(text, size, "%s, %s, %s, %d %s%s%s", h->device.id, h->device.name, h->device.arch,
             h->threads, h->device.host_memory ? "threads" : "units",
             h->device.driver[0] ? ", driver " : "", h->device.driver);
}

void bench_host_print(const bench_host *h, FILE *to)
{
    char text[512];
    fprintf(to, "bsk %s (%s)\n", bsk_version(), h->commit);
    fprintf(to, "host    %s, %s, %.0f MHz, governor %s, last-level cache %zu MiB\n", h->cpu,
            h->kernel, h->clock_mhz, h->governor, h->cache >> 20);
    device_text(h, text, sizeof text);
    fprintf(to, "device  %s\n", text);
    if (h->peers[0])
        fprintf(to, "peers   %s\n", h->peers);
    roof_text(h, text, sizeof text);
    fprintf(to, "roof    %s\n\n", text);
}

void bench_heading_print(FILE *to)
{
    fprintf(to, "%-62s %-28s %9s %9s %6s %8s %7s %6s %6s %8s %6s  %s\n", "case", "entry", "ms",
            "least", "+-%", "TFLOP/s", "GB/s", "roof%", "eta", "dense", "times", "peers: ms");
}

/* eta, the dense peer's TFLOP/s and the speed-up over it; - where no dense peer ran. */
static void dense_print(const bench_row *r, FILE *to)
{
    if (r->dense_ms > 0)
        fprintf(to, " %6.3f %8.4g %6.2f ", r->eta, dense_tflops(r), speedup(r));
    else
        fprintf(to, " %6s %8s %6s ", "-", "-", "-");
}

void bench_row_print(const bench_row *r, FILE *to)
{
    char entry[96];
    snprintf(entry, sizeof entry, "%s%s", r->entry, r->packed ? " packed" : "");
    fprintf(to, "%-62s %-28s %9.4f %9.4f %6.1f %8.4g %7.1f %6.1f", r->name, entry, r->ms, r->least,
            100 * r->spread, tflops(r), gbps(r), 100 * r->roof);
    dense_print(r, to);
    for (int i = 0; i < r->peer_count; i++)
        fprintf(to, " %s %.4f%s", r->peers[i].name, r->peers[i].ms,
                r->peers[i].verified || r->peers[i].told ? "" : " WRONG");
    fputc('\n', to);
}

/* --- JSON ---------------------------------------------------------------------------------- */

static void json_host(cJSON *root, const bench_host *h)
{
    cJSON *host = cJSON_AddObjectToObject(root, "host");
    cJSON_AddStringToObject(host, "cpu", h->cpu);
    cJSON_AddStringToObject(host, "kernel", h->kernel);
    cJSON_AddStringToObject(host, "governor", h->governor);
    cJSON_AddStringToObject(host, "version", bsk_version());
    cJSON_AddStringToObject(host, "commit", h->commit);
    cJSON_AddStringToObject(host, "peers", h->peers);
    cJSON_AddNumberToObject(host, "clock_mhz", h->clock_mhz);
    cJSON_AddNumberToObject(host, "threads", h->threads);
    cJSON_AddNumberToObject(host, "cache_bytes", (double)h->cache);
    cJSON_AddNumberToObject(host, "roof_f32_flops", h->roof_f32);
    cJSON_AddNumberToObject(host, "roof_bf16_flops", h->roof_bf16);
    cJSON_AddNumberToObject(host, "roof_i8_flops", h->roof_i8);
    cJSON_AddNumberToObject(host, "roof_f64_flops", h->roof_f64);
    cJSON_AddNumberToObject(host, "roof_bytes", h->roof_bytes);
    cJSON_AddNumberToObject(host, "roof_read_bytes", h->roof_read);
    cJSON *device = cJSON_AddObjectToObject(root, "device");
    cJSON_AddStringToObject(device, "id", h->device.id);
    cJSON_AddStringToObject(device, "backend", h->device.backend);
    cJSON_AddStringToObject(device, "name", h->device.name);
    cJSON_AddStringToObject(device, "arch", h->device.arch);
    cJSON_AddStringToObject(device, "driver", h->device.driver);
}

/* Names of the patterns, in the order of test_pattern. */
static const char *const pattern_names[] = {"random",   "full",     "empty", "one",
                                            "diagonal", "barabasi", "watts", "uneven",
                                            "banded",   "skewed",   "text"};

static void json_peers(cJSON *row, const bench_row *r)
{
    cJSON *peers = cJSON_AddObjectToObject(row, "peers");
    for (int i = 0; i < r->peer_count; i++) {
        cJSON *peer = cJSON_AddObjectToObject(peers, r->peers[i].name);
        cJSON_AddNumberToObject(peer, "ms", r->peers[i].ms);
        cJSON_AddNumberToObject(peer, "ms_least", r->peers[i].least);
        cJSON_AddNumberToObject(peer, "spread", r->peers[i].spread);
        if (r->peers[i].told)
            cJSON_AddNullToObject(peer, "verified");
        else
            cJSON_AddBoolToObject(peer, "verified", r->peers[i].verified);
        cJSON_AddBoolToObject(peer, "sparse", r->peers[i].sparse);
    }
}

/* A number that is not known where it is 0. */
static void json_known(cJSON *row, const char *name, double value)
{
    if (value > 0)
        cJSON_AddNumberToObject(row, name, value);
    else
        cJSON_AddNullToObject(row, name);
}

static void json_row(cJSON *rows, const bench_row *r)
{
    cJSON *row = cJSON_CreateObject();
    const test_spec *s = &r->spec;
    char block[32];
    if (s->br == s->bc)
        snprintf(block, sizeof block, "%d", s->br);
    else
        snprintf(block, sizeof block, "%dx%d", s->br, s->bc);
    cJSON_AddStringToObject(row, "name", r->name);
    cJSON_AddStringToObject(row, "op", s->op);
    cJSON_AddStringToObject(row, "device", r->device);
    cJSON_AddStringToObject(row, "entry", r->entry);
    cJSON_AddBoolToObject(row, "packed", r->packed);
    cJSON_AddStringToObject(row, "dtype", bsk_dtype_name(s->dtype));
    cJSON_AddStringToObject(row, "axis", s->axis == BSK_NC ? "nc" : "cn");
    cJSON_AddStringToObject(row, "pattern",
                            s->layout ? s->layout
                            : s->br   ? pattern_names[s->pattern]
                                      : "");
    cJSON_AddStringToObject(row, "block", block);
    cJSON_AddNumberToObject(row, "n", (double)s->n);
    cJSON_AddNumberToObject(row, "k", (double)s->k);
    cJSON_AddNumberToObject(row, "m", (double)s->m);
    cJSON_AddNumberToObject(row, "density", r->density);
    cJSON_AddNumberToObject(row, "ms", r->ms);
    cJSON_AddNumberToObject(row, "ms_least", r->least);
    cJSON_AddNumberToObject(row, "spread", r->spread);
    cJSON_AddNumberToObject(row, "samples", r->samples);
    cJSON_AddNumberToObject(row, "calm", r->calm);
    cJSON_AddNumberToObject(row, "launches", r->launches);
    cJSON_AddNumberToObject(row, "host_us", r->host_us);
    cJSON_AddNumberToObject(row, "tflops", tflops(r));
    cJSON_AddNumberToObject(row, "gbps", gbps(r));
    json_known(row, "dense_tflops", dense_tflops(r));
    json_known(row, "eta", r->eta);
    json_known(row, "speedup", speedup(r));
    cJSON_AddNumberToObject(row, "roof", r->roof);
    json_known(row, r->beside_reads ? "read_gbps" : "copy_gbps", r->beside * 1e-9);
    json_peers(row, r);
    cJSON_AddItemToArray(rows, row);
}

bool bench_write_json(const char *path, const bench_host *host, const bench_row *rows, int count)
{
    cJSON *root = cJSON_CreateObject();
    json_host(root, host);
    cJSON *list = cJSON_AddArrayToObject(root, "rows");
    for (int i = 0; i < count; i++)
        json_row(list, &rows[i]);
    char *text = cJSON_Print(root);
    FILE *f = fopen(path, "w");
    bool good = f && text && fputs(text, f) >= 0 && fputc('\n', f) != EOF;
    if (f && fclose(f))
        good = false;
    if (!good)
        perror(path);
    free(text);
    cJSON_Delete(root);
    return good;
}

/* --- HTML ---------------------------------------------------------------------------------- */

static const char page_head[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>bsk bench</title>\n"
    "<style>\nbody{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1200px;"
    "color:#1c2733;background:#fff}\nh1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}\n"
    "table{border-collapse:collapse;width:100%}th,td{padding:3px 8px;text-align:right;"
    "border-bottom:1px solid #e3e8ee;white-space:nowrap}\nth{font-weight:600;background:#f4f6f9}"
    "td.l,th.l{text-align:left;font-family:ui-monospace,monospace;font-size:12px}\n"
    ".bar{display:inline-block;width:120px;height:9px;background:#e3e8ee;border-radius:2px;"
    "vertical-align:middle;overflow:hidden}\n.bar i{display:block;height:100%;background:#2f6fb3}\n"
    ".bar.eta i{background:#3c9a5f}\n.wrong{color:#b3261e;font-weight:600}\n"
    "dl{display:grid;grid-template-columns:max-content auto;gap:2px 16px}dt{color:#5a6877}"
    "dd{margin:0}\n</style></head><body>\n<h1>bsk bench</h1>\n";

static void escape(FILE *f, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '&':
            fputs("&amp;", f);
            break;
        default:
            fputc(*text, f);
        }
}

static void item(FILE *f, const char *term, const char *text)
{
    fprintf(f, "<dt>%s</dt><dd>", term);
    escape(f, text);
    fputs("</dd>\n", f);
}

static void html_host(FILE *f, const bench_host *h)
{
    char text[512];
    fputs("<dl>\n", f);
    snprintf(text, sizeof text, "%s (%s)", bsk_version(), h->commit);
    item(f, "version", text);
    snprintf(text, sizeof text, "%s, %s, %.0f MHz, governor %s, last-level cache %zu MiB", h->cpu,
             h->kernel, h->clock_mhz, h->governor, h->cache >> 20);
    item(f, "host", text);
    device_text(h, text, sizeof text);
    item(f, "device", text);
    if (h->peers[0])
        item(f, "peers", h->peers);
    roof_text(h, text, sizeof text);
    item(f, "roof", text);
    fputs("</dl>\n", f);
}

static void bar(FILE *f, const char *kind, double share)
{
    double width = share < 0 ? 0 : share > 1 ? 1 : share;
    fprintf(f, "<td>%.2f <span class=\"bar %s\"><i style=\"width:%.1f%%\"></i></span></td>", share,
            kind, 100 * width);
}

static void html_row(FILE *f, const bench_row *r)
{
    fputs("<tr><td class=\"l\">", f);
    escape(f, r->name);
    fputs("</td><td class=\"l\">", f);
    escape(f, r->entry);
    fputs(r->packed ? " packed" : "", f);
    fprintf(f, "</td><td>%.4f</td><td>%.1f</td><td>%.4f</td><td>%.1f</td>", r->ms, 100 * r->spread,
            tflops(r), gbps(r));
    if (r->eta > 0)
        bar(f, "eta", r->eta);
    else
        fputs("<td>-</td>", f);
    bar(f, "roof", r->roof);
    fputs("<td class=\"l\">", f);
    for (int i = 0; i < r->peer_count; i++)
        fprintf(f, "%s%s %.4f ms%s", i ? ", " : "", r->peers[i].name, r->peers[i].ms,
                r->peers[i].verified || r->peers[i].told
                    ? ""
                    : " <span class=\"wrong\">wrong result</span>");
    fputs("</td></tr>\n", f);
}

static const char table_head[] =
    "<table><tr><th class=\"l\">case</th><th class=\"l\">entry</th><th>ms</th><th>&plusmn; %</th>"
    "<th>TFLOP/s</th><th>GB/s</th><th>eta</th><th>share of roof</th><th class=\"l\">peers</th></tr>"
    "\n";

bool bench_write_html(const char *path, const bench_host *host, const bench_row *rows, int count)
{
    FILE *f = fopen(path, "w");
    if (!f) {
        perror(path);
        return false;
    }
    fputs(page_head, f);
    html_host(f, host);
    fputs("<p>ms is the median of interleaved samples, &plusmn; half the distance between the "
          "quartiles. packed: the weights were packed before, and packing them is not in the "
          "time. eta is the useful rate over the best dense peer's rate at the same shape; "
          "above 0.5 at density 0.5, say, the sparse product is the faster one. The share of the "
          "roof counts only kept blocks.</p>\n",
          f);
    for (int i = 0; i < count; i++) {
        if (i == 0 || strcmp(rows[i].spec.op, rows[i - 1].spec.op) != 0) {
            bool first = true;
            for (int k = 0; k < i; k++)
                first &= strcmp(rows[k].spec.op, rows[i].spec.op) != 0;
            if (!first)
                continue;
            fprintf(f, "<h2>%s</h2>\n%s", rows[i].spec.op, table_head);
            for (int k = i; k < count; k++)
                if (strcmp(rows[k].spec.op, rows[i].spec.op) == 0)
                    html_row(f, &rows[k]);
            fputs("</table>\n", f);
        }
    }
    fputs("</body></html>\n", f);
    bool good = !ferror(f);
    if (fclose(f) || !good) {
        perror(path);
        return false;
    }
    return true;
}
