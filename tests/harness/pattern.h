/* Layouts by text: NAME[:KEY[=VALUE],...]. pattern.c has the names and the keys. */
#ifndef BSK_TEST_PATTERN_H
#define BSK_TEST_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <bsk/bsk.h>

enum { TEST_LIST = 16 };

typedef struct test_list_value {
    int32_t count, value[TEST_LIST];
} test_list_value;

/* What a text says. Fields that its pattern does not have are 0. */
typedef struct test_layout_text {
    const struct test_layout_kind *kind;
    bsk_layout_params params;
    int64_t shift, sink, window, stride; /* in elements */
    int32_t blocks, causal, m, k;
    double density, p;
    uint64_t seed;
    bsk_fixed_pattern fixed;
    bsk_global_pattern global;
    bsk_conv_pattern conv;
    test_list_value start, end, windows;
} test_layout_text;

/* Reads a text. The geometry is *geometry unless the text has keys for it; NULL: 128 x 128 elements
 * in blocks of 8 x 8. False with the reason. */
bool test_layout_read(const char *text, const bsk_layout_params *geometry, test_layout_text *out,
                      char *why, size_t size);
bsk_status test_layout_make(const test_layout_text *t, bsk_layout **layout);
/* Whether elements of kept blocks may be hidden, and a bsk_element_fn that says which; user is the
 * test_layout_text. Causal patterns of blocks are seen through the causal mask of the ops. */
bool test_layout_has_rule(const test_layout_text *t);
int test_layout_visible(void *user, int32_t head, int64_t row, int64_t col);
/* The patterns and their keys, a line each. */
void test_layout_help(FILE *to);

/* bsk info --layout: prints what the layout keeps, as text or JSON, and draws it if svg is not
 * NULL. Returns the exit status. */
int test_layout_info(const char *text, const char *svg, bool json);

#endif
