/* The emulator finds what is wrong with the kernels of planted.h, and nothing else.
 *     test_emu [OTHER]             OTHER: this program built with AddressSanitizer
 *     test_emu kernel NAME USE     runs one kernel: how OTHER is called
 * Built with EMU_CHECKED, launches report faults; without, results show them. */
#include <stdint.h>

#include <tests/unit/unit.h>

#include "emu.h"

typedef int64_t i64;
typedef int32_t i32;

#include "planted.h"

enum { LANES = 64, GROUPS = 5, COUNT = LANES * GROUPS, SHIFT = 3 };

static const emu_schedule schedules[] = {
    {EMU_FORWARD, 0}, {EMU_REVERSE, 0}, {EMU_RANDOM, 1}, {EMU_RANDOM, 2}, {EMU_RANDOM, 3}};

/* Buffers of COUNT numbers: x counts up, tile and y were never written. */
typedef struct buffers {
    float *x, *tile, *y;
} buffers;

static buffers buffers_make(void)
{
    buffers b = {emu_memory_make(COUNT * sizeof(float)), emu_memory_make(COUNT * sizeof(float)),
                 emu_memory_make(COUNT * sizeof(float))};
    for (int i = 0; i < COUNT; i++)
        b.x[i] = (float)i;
    emu_memory_written(b.x, COUNT * sizeof(float));
    return b;
}

static void buffers_free(buffers *b)
{
    emu_memory_free(b->x);
    emu_memory_free(b->tile);
    emu_memory_free(b->y);
}

/* Runs a kernel on `use`, a list of the letters x, t and y. */
static bool launch(const char *name, const char *use, const buffers *b, int groups,
                   const emu_schedule *schedule, char message[EMU_MESSAGE])
{
    const simt_kernel *kernel = emu_kernel_find("planted", name, "f32", "");
    const planted_arg a = {.count = COUNT, .shift = SHIFT, .limit = LANES / 2};
    bsk_mem views[SIMT_MAX_BUFFERS];
    const simt_launch l = {.groups = {groups, 1, 1},
                           .group_size = LANES,
                           .buffer_count = (int32_t)strlen(use),
                           .buffers = views,
                           .scalars = &a,
                           .scalar_bytes = sizeof a};
    for (int32_t i = 0; i < l.buffer_count; i++)
        views[i] = bsk_device_ptr(use[i] == 'x' ? b->x : use[i] == 't' ? b->tile : b->y);
    *message = 0;
    return CHECK(kernel != NULL) && emu_launch(kernel, &l, schedule, message);
}

/* y[i] is x[i + steps * SHIFT] of the same group. */
static bool shifted(const float *y, int steps)
{
    for (int i = 0; i < COUNT; i++)
        if (y[i] != (float)(i / LANES * LANES + (i % LANES + steps * SHIFT) % LANES))
            return false;
    return true;
}

static void sound(const char *name, const char *use)
{
    char message[EMU_MESSAGE];
    for (size_t s = 0; s < UNIT_COUNT(schedules); s++) {
        buffers b = buffers_make();
        if (!CHECK(launch(name, use, &b, GROUPS, &schedules[s], message)))
            fprintf(stderr, "    %s\n", message);
        CHECK(shifted(b.y, 1));
        buffers_free(&b);
    }
}

#ifdef EMU_CHECKED
/* Every schedule stops the kernel with a message that contains part. */
static void faulty(const char *name, const char *use, int groups, const char *part)
{
    char message[EMU_MESSAGE];
    for (size_t s = 0; s < UNIT_COUNT(schedules); s++) {
        buffers b = buffers_make();
        if (strcmp(name, "in_place") == 0)
            emu_memory_written(b.y, COUNT * sizeof(float));
        CHECK(!launch(name, use, &b, groups, &schedules[s], message));
        CHECK_TEXT(message, part);
        CHECK_TEXT(message, name);
        /* and the next launch is as good as ever */
        buffers next = buffers_make();
        CHECK(launch("shift", "xy", &next, GROUPS, &schedules[s], message));
        CHECK(shifted(next.y, 1));
        buffers_free(&next);
        buffers_free(&b);
    }
}

static void test_faults(void)
{
    faulty("shift_bare", "xy", GROUPS, "load of what nothing has written");
    faulty("shift_twice", "xy", GROUPS, "race: ");
    faulty("shift_twice", "xy", GROUPS, " since the last barrier by lane ");
    faulty("shift_wrong", "xty", GROUPS, "race: load of what was stored since the last barrier");
    faulty("one_place", "xy", GROUPS, "race: store over what another group stored");
    faulty("in_place", "y", GROUPS, "race: ");
    faulty("in_place", "y", GROUPS, "another group");
    faulty("store_past", "y", 1, "store out of bounds: byte 1280 of buffer 0 of 1280 bytes");
    faulty("load_past", "xy", 1, "load out of bounds: byte 1280 of buffer 0 of 1280 bytes");
    faulty("shift", "ty", 1, "load of what nothing has written: byte");
    faulty("local_unset", "xy", 1, "load of what nothing has written: byte");
    faulty("local_past", "y", 1, "store out of bounds: byte 256 of a local array of 256 bytes");
    faulty("misaligned", "xy", 1, "misaligned access: an address that is 12 modulo 16");

    /* Which access comes second depends on the schedule. */
    char message[EMU_MESSAGE];
    buffers b = buffers_make();
    CHECK(!launch("shift_twice", "xy", &b, 1, &schedules[0], message));
    CHECK_TEXT(message,
               "lane 3: race: store over what was loaded since the last barrier by lane 0");
    CHECK(!launch("shift_twice", "xy", &b, 1, &schedules[1], message));
    CHECK_TEXT(message, "lane 60: race: load of what was stored since the last barrier by lane 63");
    buffers_free(&b);
}

#else

static bool same_launch(const char *name, const emu_schedule *s, float y[COUNT])
{
    char message[EMU_MESSAGE];
    buffers b = buffers_make();
    const bool good = launch(name, "xy", &b, GROUPS, s, message);
    memcpy(y, b.y, COUNT * sizeof(float));
    buffers_free(&b);
    return good;
}

/* Without the barrier results depend on the schedule, and are wrong under all of them. */
static void test_faults(void)
{
    float y[UNIT_COUNT(schedules)][COUNT];
    for (size_t s = 0; s < UNIT_COUNT(schedules); s++) {
        CHECK(same_launch("shift_bare", &schedules[s], y[s]));
        CHECK(!shifted(y[s], 1));
    }
    CHECK(memcmp(y[0], y[1], sizeof y[0]) != 0);
    CHECK(memcmp(y[0], y[2], sizeof y[0]) != 0);
    for (size_t s = 0; s < UNIT_COUNT(schedules); s++) {
        CHECK(same_launch("shift_twice", &schedules[s], y[s]));
        CHECK(!shifted(y[s], 2));
    }
    /* groups in another order: the last one differs */
    CHECK(same_launch("one_place", &schedules[0], y[0]));
    CHECK(same_launch("one_place", &schedules[1], y[1]));
    CHECK(y[0][0] == (COUNT - LANES + SHIFT) % COUNT && y[1][0] == SHIFT);
    /* what nobody stored is NaN */
    char message[EMU_MESSAGE];
    buffers b = buffers_make();
    CHECK(launch("local_unset", "xy", &b, 1, &schedules[0], message));
#ifndef EMU_ASAN
    CHECK(b.y[0] != b.y[0] && b.y[LANES - 1] == 0);
#endif
    buffers_free(&b);
}
#endif

static void test_divergence(void)
{
    char message[EMU_MESSAGE];
    for (size_t s = 0; s < UNIT_COUNT(schedules); s++) {
        buffers b = buffers_make();
        CHECK(!launch("returns", "xy", &b, GROUPS, &schedules[s], message));
        CHECK_TEXT(message, "returns_f32, group 1 0 0, divergent barrier: 32 of 64 lanes wait at ");
        CHECK_TEXT(message, "planted.h:");
        CHECK(!launch("branches", "y", &b, GROUPS, &schedules[s], message));
        CHECK_TEXT(message, "divergent barrier: 32 of 64 lanes wait elsewhere than at ");
        CHECK(launch("shift", "xy", &b, GROUPS, &schedules[s], message));
        buffers_free(&b);
    }
}

/* Lanes of a wave get each other's numbers, and all have to take part. */
static void test_waves(void)
{
    char message[EMU_MESSAGE];
    for (size_t s = 0; s < UNIT_COUNT(schedules); s++) {
        buffers b = buffers_make();
        int wrong = 0;
        CHECK(launch("across", "xy", &b, GROUPS, &schedules[s], message));
        for (int i = 0; i < COUNT; i++)
            wrong += b.y[i] != (float)(i ^ SHIFT);
        CHECK(wrong == 0);
        CHECK(!launch("across_some", "xy", &b, GROUPS, &schedules[s], message));
        CHECK_TEXT(message, "divergent exchange: 3 of 32 lanes of a wave do not take part");
        CHECK(launch("shift", "xy", &b, GROUPS, &schedules[s], message));
        buffers_free(&b);
    }
}

static void test_requests(void)
{
    char message[EMU_MESSAGE];
    emu_schedule s;
    CHECK(emu_schedule_parse(NULL, &s) && s.order == EMU_FORWARD);
    CHECK(emu_schedule_parse("forward", &s) && s.order == EMU_FORWARD);
    CHECK(emu_schedule_parse("reverse", &s) && s.order == EMU_REVERSE);
    CHECK(emu_schedule_parse("random", &s) && s.order == EMU_RANDOM);
    CHECK(emu_schedule_parse("random:17", &s) && s.order == EMU_RANDOM && s.seed == 17);
    CHECK(!emu_schedule_parse("", &s) && !emu_schedule_parse("random:", &s));
    CHECK(!emu_schedule_parse("random:1x", &s) && !emu_schedule_parse("backward", &s));
    CHECK(!emu_kernel_find("planted", "shift", "f64", ""));

    buffers b = buffers_make();
    CHECK(!launch("shift", "xty", &b, 1, &schedules[0], message));
    CHECK_TEXT(message, "shift_f32 takes 2 buffers");
    float mine[COUNT];
    const buffers foreign = {mine, b.tile, b.y};
    CHECK(!launch("shift", "xy", &foreign, 1, &schedules[0], message));
    CHECK_TEXT(message, "buffer 0 is not memory of the device");
    CHECK(launch("shift", "xy", &b, 0, &schedules[0], message));
#ifndef EMU_ASAN
    CHECK(!launch("local_large", "y", &b, 1, &schedules[0], message));
    CHECK_TEXT(message, "local memory");
#endif
    buffers_free(&b);
}

/* A kernel in the other program: with a part, it must die there with AddressSanitizer's report. */
static void test_other(const char *program, const char *kernel, const char *part)
{
    char command[4096], text[1 << 16];
    snprintf(command, sizeof command, "'%s' kernel %s 2>&1", program, kernel);
    FILE *pipe = popen(command, "r");
    if (!CHECK(pipe != NULL))
        return;
    const size_t n = fread(text, 1, sizeof text - 1, pipe);
    text[n] = 0;
    CHECK((pclose(pipe) != 0) == (part != NULL));
    if (part)
        CHECK_TEXT(text, part);
    else
        CHECK(!strstr(text, "AddressSanitizer"));
}

static int kernel_main(const char *kernel, const char *use)
{
    char message[EMU_MESSAGE];
    buffers b = buffers_make();
    const bool good = launch(kernel, use, &b, 1, &schedules[0], message);
    fprintf(stderr, "%s\n", message);
    buffers_free(&b);
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "kernel"))
        return kernel_main(argv[2], argv[3]);
    sound("shift", "xy");
    sound("shift_global", "xty");
    test_faults();
    test_divergence();
    test_waves();
    test_requests();
    if (argc == 2) {
        test_other(argv[1], "shift xy", NULL);
        test_other(argv[1], "store_past y", "heap-buffer-overflow");
        test_other(argv[1], "load_past xy", "heap-buffer-overflow");
        test_other(argv[1], "local_past y", "global-buffer-overflow");
    }
    return unit_report();
}
