/* The command line tool: bsk info | check | bench | tune. */
#include <stdio.h>
#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <string.h>
#include <unistd.h>

#include "tests/harness/test.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"info", bsk_info_main, "devices, architectures and kernel entries"},
    {"check", bsk_check_main, "correctness of every kernel entry"},
    {"bench", bsk_bench_main, "speed of the kernel entries beside other libraries"},
    {"tune", bsk_tune_main, "measures and records the fastest entries"},
};

static void usage(FILE *to)
{
    fprintf(to, "bsk %s\nUsage: bsk COMMAND [OPTION...]\n\n", bsk_version());
    for (int i = 0; i < TEST_COUNT(commands); i++)
        fprintf(to, "  %-6s %s\n", commands[i].name, commands[i].help);
    fprintf(to, "\n'bsk COMMAND --help' lists the options of a command.\n");
}

/* Threads that spin between short parallel regions take the processor from each other when it is
 * shared. The OpenMP runtime reads its policy before main, so the tool starts itself again. The
 * bench keeps the default, as programs do. */
static void wait_politely(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "check") != 0 || getenv("OMP_WAIT_POLICY"))
        return;
    if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0)
        execv("/proc/self/exe", argv); /* where that fails, the check is only slower */
}

/* A test allocates its operands and frees them: to give the pages back to the system each time, and
 * to get them anew, would be a quarter of the time. */
static void keep_pages(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the largest that is legal */
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 64 << 20);
#endif
}

int main(int argc, char **argv)
{
    wait_politely(argc, argv);
    if (argc > 1 && strcmp(argv[1], "check") == 0)
        keep_pages();
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0)) {
        usage(stdout);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("bsk %s\n", bsk_version());
        return 0;
    }
    for (int i = 0; argc > 1 && i < TEST_COUNT(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0) {
            char name[32];
            snprintf(name, sizeof name, "bsk %s", argv[1]);
            argv[1] = name;
            return commands[i].run(argc - 1, argv + 1);
        }
    if (argc > 1)
        fprintf(stderr, "bsk: there is no command %s\n\n", argv[1]);
    usage(stderr);
    return 2;
}
