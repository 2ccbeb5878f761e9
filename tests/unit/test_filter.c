/* Filters of the tool: words, globs, what `!` bans, alternatives, several filters at once. */
#include "unit.h"

#include "tests/harness/test.h"

static const char name[] = "matmul f32 b8x16 n19 k24 nc int seed1 @cpu:0 dsd_f32_avx2";

static const struct {
    const char *filters[3];
    bool matches;
} rows[] = {
    {{NULL}, true},
    {{""}, true},
    {{"matmul"}, true},
    {{"mat"}, false},
    {{"matmul b8"}, false},
    {{"b8* matmul"}, true},
    {{"matmul bf16"}, false},
    {{"matmul", "f32"}, true},
    {{"matmul", "bf16"}, false},
    {{"!bf16"}, true},
    {{"!f32"}, false},
    {{"matmul !n1?"}, false},
    {{"matmul !n2?"}, true},
    {{"!*_avx2"}, false},
    {{"@cpu:0 *_avx2"}, true},
    {{"bf16|f32"}, true},
    {{"bf16|f16"}, false},
    {{"matmul bf16|sdd f32"}, false},
    {{"sdd f32|matmul f32"}, true},
    {{"matmul f32|sdd f32"}, true},
    {{"matmul !f32|matmul !bf16"}, true},
    {{"f32|f16", "n19|n20"}, true},
    {{"f32|f16", "n20|n21"}, false},
    {{"bf16|f16", "n19"}, false},
    {{"a|b|matmul"}, true},
};

int main(void)
{
    for (size_t i = 0; i < UNIT_COUNT(rows); i++) {
        char *filters[3];
        int count = 0;
        while (count < 3 && rows[i].filters[count]) {
            filters[count] = (char *)rows[i].filters[count];
            count++;
        }
        if (test_filter(name, filters, count) != rows[i].matches)
            fprintf(stderr, "row %zu\n", i);
        CHECK(test_filter(name, filters, count) == rows[i].matches);
    }
    return unit_report();
}
