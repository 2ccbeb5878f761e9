/* bsk info: devices, architectures, entries. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tests/harness/pattern.h"
#include "tests/harness/test.h"

typedef struct request {
    bool json;
    const char *layout, *svg;
} request;

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    request *r = state->input;
    switch (key) {
    case 'j':
        r->json = true;
        break;
    case 'l':
        r->layout = arg;
        break;
    case 's':
        r->svg = arg;
        break;
    case ARGP_KEY_ARG:
        argp_error(state, "info takes no arguments");
        break;
    case ARGP_KEY_END:
        if (r->svg && !r->layout)
            argp_error(state, "--svg needs --layout");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* Patterns and keys behind the options, from their own tables. */
static char *help_filter(int key, const char *text, void *input)
{
    char *help = NULL;
    size_t size;
    (void)input;
    FILE *f = key == ARGP_KEY_HELP_POST_DOC ? open_memstream(&help, &size) : NULL;
    if (!f)
        return (char *)(uintptr_t)text;
    fputs("A layout is NAME[:KEY=VALUE,...], as in local:time=128,block=8,window=32. Names and "
          "their keys:\n",
          f);
    test_layout_help(f);
    fclose(f);
    return help;
}

static const struct argp_option options[] = {
    {"json", 'j', 0, 0, "Print JSON", 0},
    {"layout", 'l', "LAYOUT", 0, "Say what this layout keeps, instead of the list", 0},
    {"svg", 's', "FILE", 0, "Draw the layout into FILE", 0},
    {0},
};
static const struct argp parser = {
    options, parse_option, "",  "Lists devices, architectures and kernel entries.\v",
    NULL,    help_filter,  NULL};

static const int32_t block_sizes[] = {8, 16, 32, 64, 128};

/* All types for an entry without a mask. */
static uint32_t dtype_mask(const bsk_entry_info *e)
{
    return e->dtypes ? e->dtypes : BSKI_FLOATS;
}

static bool block_admitted(const bsk_entry_info *e, int32_t size)
{
    return !e->blocks || (e->blocks & bsk_block_bit(size));
}

static void json_entry(cJSON *list, const bsk_entry_info *e)
{
    cJSON *row = cJSON_CreateObject(), *dtypes, *blocks;
    cJSON_AddStringToObject(row, "name", e->name);
    cJSON_AddStringToObject(row, "op", e->op);
    cJSON_AddStringToObject(row, "backend", e->backend);
    cJSON_AddStringToObject(row, "arch", e->arch);
    dtypes = cJSON_AddArrayToObject(row, "dtypes");
    for (int t = 1; t < BSK_DTYPE_COUNT; t++)
        if (dtype_mask(e) >> t & 1)
            cJSON_AddItemToArray(dtypes, cJSON_CreateString(bsk_dtype_name((bsk_dtype)t)));
    blocks = cJSON_AddArrayToObject(row, "blocks");
    for (int i = 0; i < TEST_COUNT(block_sizes); i++)
        if (block_admitted(e, block_sizes[i]))
            cJSON_AddItemToArray(blocks, cJSON_CreateNumber(block_sizes[i]));
    cJSON_AddBoolToObject(row, "other_blocks", !e->blocks || (e->blocks & 1));
    cJSON_AddBoolToObject(row, "reference", e->reference != 0);
    cJSON_AddBoolToObject(row, "by_name", e->by_name != 0);
    cJSON_AddItemToArray(list, row);
}

static void print_json(const bsk_context *context)
{
    cJSON *root = cJSON_CreateObject(), *devices, *entries;
    cJSON_AddStringToObject(root, "version", bsk_version());
    devices = cJSON_AddArrayToObject(root, "devices");
    for (size_t i = 0; i < bsk_context_device_count(context); i++) {
        bsk_device_info d = BSK_INIT(bsk_device_info);
        cJSON *row = cJSON_CreateObject();
        bsk_device_query(bsk_context_device(context, i), &d);
        cJSON_AddStringToObject(row, "id", d.id);
        cJSON_AddStringToObject(row, "backend", d.backend);
        cJSON_AddStringToObject(row, "name", d.name);
        cJSON_AddStringToObject(row, "arch", d.arch);
        cJSON_AddStringToObject(row, "driver", d.driver);
        cJSON_AddNumberToObject(row, "compute_units", d.compute_units);
        cJSON_AddNumberToObject(row, "memory_bytes", (double)d.memory_bytes);
        cJSON_AddItemToArray(devices, row);
    }
    entries = cJSON_AddArrayToObject(root, "entries");
    bsk_entry_info e = BSK_INIT(bsk_entry_info);
    for (size_t i = 0; bsk_context_entry(context, i, &e) == BSK_OK; i++)
        json_entry(entries, &e);
    cJSON *ops = cJSON_AddArrayToObject(root, "ops");
    for (size_t i = 0; i < bski_op_count; i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "op", bski_ops[i]->name);
        cJSON_AddStringToObject(row, "kernel_op", bski_kernel_op(bski_ops[i]->kernel_op)->name);
        cJSON_AddItemToArray(ops, row);
    }
    char *text = cJSON_Print(root);
    puts(text ? text : "{}");
    free(text);
    cJSON_Delete(root);
}

static void print_entry(const bsk_entry_info *e)
{
    char dtypes[64] = "", blocks[64] = "";
    for (int t = 1; t < BSK_DTYPE_COUNT; t++)
        if (dtype_mask(e) >> t & 1)
            snprintf(dtypes + strlen(dtypes), sizeof dtypes - strlen(dtypes), "%s%s",
                     dtypes[0] ? " " : "", bsk_dtype_name((bsk_dtype)t));
    for (int i = 0; e->blocks && i < TEST_COUNT(block_sizes); i++)
        if (block_admitted(e, block_sizes[i]))
            snprintf(blocks + strlen(blocks), sizeof blocks - strlen(blocks), "%s%d",
                     blocks[0] ? " " : "", block_sizes[i]);
    printf("  %-28s %-22s %-7s %-7s %-18s %s\n", e->name, e->op, e->backend,
           e->arch[0] ? e->arch : "any", dtypes, e->blocks ? blocks : "any block");
}

static void print_text(const bsk_context *context)
{
    printf("bsk %s\n\ndevices\n", bsk_version());
    for (size_t i = 0; i < bsk_context_device_count(context); i++) {
        bsk_device_info d = BSK_INIT(bsk_device_info);
        bsk_device_query(bsk_context_device(context, i), &d);
        printf("  %-10s %-8s %-8s %s, %d units, %.1f GiB%s%s\n", d.id, d.backend, d.arch, d.name,
               d.compute_units, (double)d.memory_bytes / (double)(1 << 30), d.driver[0] ? ", " : "",
               d.driver);
    }
    printf("\nentries\n");
    bsk_entry_info e = BSK_INIT(bsk_entry_info);
    for (size_t i = 0; bsk_context_entry(context, i, &e) == BSK_OK; i++)
        print_entry(&e);
    const char *notes = bsk_context_backend_notes(context);
    if (notes[0])
        printf("\nnotes\n%s\n", notes);
}

int bsk_info_main(int argc, char **argv)
{
    request r = {0};
    bsk_context *context = NULL;
    argp_err_exit_status = 2;
    argp_parse(&parser, argc, argv, 0, NULL, &r);
    if (r.layout)
        return test_layout_info(r.layout, r.svg, r.json);
    if (bsk_context_create(NULL, &context)) {
        fprintf(stderr, "bsk: %s\n", bsk_last_error());
        return 1;
    }
    if (r.json)
        print_json(context);
    else
        print_text(context);
    bsk_context_destroy(&context);
    return 0;
}
