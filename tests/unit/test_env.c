/* Settings: every environment variable, its legal and illegal values, and who wins when the
 * program says something else. */
#include <bsk/bsk.h>

#include "unit.h"

static const char *const variables[] = {
    "BSK_BACKEND", "BSK_DEVICE",    "BSK_MAX_ARCH",    "BSK_KERNEL",      "BSK_FALLBACK",
    "BSK_VERBOSE", "BSK_CACHE_DIR", "BSK_PLUGIN_PATH", "BSK_NUM_THREADS", "BSK_TUNING",
};

static void environment_clear(void)
{
    for (size_t i = 0; i < UNIT_COUNT(variables); i++)
        unsetenv(variables[i]);
}

/* The message for a bad value names the variable, the value, and what would have been legal. */
static const struct {
    const char *variable, *value, *legal;
} bad[] = {
    {"BSK_BACKEND", "", "cpu"},
    {"BSK_BACKEND", "cpu,,fake", "cpu"},
    {"BSK_BACKEND", "cpu;cuda", "cpu"},
    {"BSK_DEVICE", "", "cpu:0"},
    {"BSK_DEVICE", "cpu", "cpu:0"},
    {"BSK_DEVICE", "cpu:", "cpu:0"},
    {"BSK_DEVICE", "cpu:x", "cpu:0"},
    {"BSK_DEVICE", "cpu:-1", "cpu:0"},
    {"BSK_DEVICE", "cpu:7", "cpu:0"},
    {"BSK_DEVICE", "cuda:0", "cpu:0"},
    {"BSK_DEVICE", "cpu:99999999999999999999", "cpu:0"},
    {"BSK_MAX_ARCH", "", "avx2"},
    {"BSK_MAX_ARCH", "i386", "base"},
    {"BSK_MAX_ARCH", "avx2;", "avx2"},
    {"BSK_KERNEL", "", "-glob"},
    {"BSK_KERNEL", "ref_*", "-glob"},
    {"BSK_KERNEL", "+", "-glob"},
    {"BSK_KERNEL", "+ref_dsd,", "-glob"},
    {"BSK_KERNEL", "+no_such_entry", "no_such_entry"},
    {"BSK_KERNEL", "-no_such_*", "no_such_"},
    {"BSK_FALLBACK", "", "forbid"},
    {"BSK_FALLBACK", "Allow", "forbid"},
    {"BSK_FALLBACK", "1", "forbid"},
    {"BSK_VERBOSE", "", "dispatch"},
    {"BSK_VERBOSE", "verbose", "dispatch"},
    {"BSK_VERBOSE", "2", "dispatch"},
    {"BSK_CACHE_DIR", "", "absolute"},
    {"BSK_CACHE_DIR", "cache", "absolute"},
    {"BSK_TUNING", "", "absolute"},
    {"BSK_TUNING", "records", "absolute"},
    {"BSK_PLUGIN_PATH", "", "absolute"},
    {"BSK_PLUGIN_PATH", ".", "absolute"},
    {"BSK_PLUGIN_PATH", "plugins", "absolute"},
    {"BSK_PLUGIN_PATH", "/usr:../lib", "absolute"},
    {"BSK_NUM_THREADS", "", "1 to "},
    {"BSK_NUM_THREADS", "0", "1 to "},
    {"BSK_NUM_THREADS", "-3", "1 to "},
    {"BSK_NUM_THREADS", "4x", "1 to "},
    {"BSK_NUM_THREADS", " 4", "1 to "},
    {"BSK_NUM_THREADS", "+4", "1 to "},
    {"BSK_NUM_THREADS", "1000000", "1 to "},
    {"BSK_NUM_THREADS", "99999999999999999999", "1 to "},
};

static void test_bad_values(void)
{
    for (size_t i = 0; i < UNIT_COUNT(bad); i++) {
        int failed = atomic_load(&unit_failed);
        bsk_context *context = (bsk_context *)&context;
        setenv(bad[i].variable, bad[i].value, 1);
        CHECK_ERROR(bsk_context_create(NULL, &context), BSK_E_ENVIRONMENT, bad[i].variable);
        CHECK(!context);
        CHECK_TEXT(bsk_last_error(), bad[i].legal);

        /* Unread, the same value harms nobody. */
        bsk_context_params params = unit_params();
        CHECK_OK(bsk_context_create(&params, &context));
        CHECK(context);
        bsk_context_destroy(&context);
        unsetenv(bad[i].variable);
        if (atomic_load(&unit_failed) != failed)
            fprintf(stderr, "  with %s=%s\n", bad[i].variable, bad[i].value);
    }
}

static const struct {
    const char *variable, *value;
} good[] = {
    {"BSK_BACKEND", "cpu"},
    {"BSK_DEVICE", "cpu:0"},
    {"BSK_KERNEL", "+ref_dsd"},
    {"BSK_KERNEL", "-ref_prune*,+ref_dsd"},
    {"BSK_FALLBACK", "allow"},
    {"BSK_FALLBACK", "device"},
    {"BSK_FALLBACK", "forbid"},
    {"BSK_VERBOSE", "error"},
    {"BSK_VERBOSE", "warn"},
    {"BSK_CACHE_DIR", "off"},
    {"BSK_CACHE_DIR", "/nonexistent"},
    {"BSK_TUNING", "off"},
    {"BSK_TUNING", "/nonexistent/records"},
    {"BSK_PLUGIN_PATH", "/nonexistent:/usr"},
    {"BSK_NUM_THREADS", "1"},
    {"BSK_NUM_THREADS", "4096"},
    {"BSK_TUNE", "of no meaning"},
};

static void test_good_values(void)
{
    for (size_t i = 0; i < UNIT_COUNT(good); i++) {
        bsk_context *context = NULL;
        setenv(good[i].variable, good[i].value, 1);
        if (!CHECK_OK(bsk_context_create(NULL, &context)))
            fprintf(stderr, "  with %s=%s\n", good[i].variable, good[i].value);
        bsk_context_destroy(&context);
        unsetenv(good[i].variable);
    }
}

/* Bad texts in the parameters are INVALID and name the parameter. */
static void test_bad_params(void)
{
    enum { ROWS = 14 };
    bsk_context_params rows[ROWS];
    const char *names[ROWS];
    int n = 0;
#define ROW(field, value)                                                                          \
    do {                                                                                           \
        rows[n] = unit_params();                                                                   \
        rows[n].field = value;                                                                     \
        names[n++] = #field;                                                                       \
    } while (0)
    ROW(backends, "cpu cuda");
    ROW(device, "cpu");
    ROW(device, "cpu:3");
    ROW(max_arch, "m68k");
    ROW(kernels, "dsd");
    ROW(kernels, "+no_such_entry");
    ROW(fallback, (bsk_fallback)4);
    ROW(fallback, (bsk_fallback)-1);
    ROW(plugin_path, "relative");
    ROW(cache_dir, "relative");
    ROW(log_level, (bsk_log_level)6);
    ROW(log_level, (bsk_log_level)-1);
    ROW(num_threads, -1);
    ROW(num_threads, 1 << 20);
#undef ROW
    CHECK(n == ROWS);
    for (int i = 0; i < n; i++) {
        bsk_context *context = NULL;
        CHECK_ERROR(bsk_context_create(&rows[i], &context), BSK_E_INVALID, names[i]);
        CHECK(!context);
        bsk_context_destroy(&context);
    }
}

static int32_t units(const bsk_context *context)
{
    bsk_device_info info = BSK_INIT(bsk_device_info);
    CHECK_OK(bsk_device_query(bsk_context_device(context, 0), &info));
    return info.compute_units;
}

/* What the program sets wins over the environment, field by field. */
static void test_precedence(void)
{
    bsk_context *context = NULL;
    char name[64];
    bsk_context_params params = BSK_INIT(bsk_context_params);

    setenv("BSK_KERNEL", "+ref_bias_act", 1);
    CHECK_OK(bsk_context_create(NULL, &context));
    CHECK(
        !strcmp(unit_chosen(bsk_context_device(context, 0), NULL, BSK_F32, name), "ref_bias_act"));
    bsk_context_destroy(&context);

    params.kernels = "-ref_prune_*";
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK(*unit_chosen(bsk_context_device(context, 0), NULL, BSK_F32, name));
#ifdef UNIT_CPU_TUNED
    CHECK(strcmp(name, "ref_bias_act"));
#endif
    bsk_context_destroy(&context);
    unsetenv("BSK_KERNEL");

    /* forbid rules out the reference entries, which are all that serve f64. */
    params = (bsk_context_params)BSK_INIT(bsk_context_params);
    setenv("BSK_FALLBACK", "forbid", 1);
    CHECK_OK(bsk_context_create(NULL, &context));
    CHECK(!*unit_chosen(bsk_context_device(context, 0), NULL, BSK_F64, name));
    bsk_context_destroy(&context);
    params.fallback = BSK_FALLBACK_DEVICE;
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK(
        !strcmp(unit_chosen(bsk_context_device(context, 0), NULL, BSK_F64, name), "ref_bias_act"));
    bsk_context_destroy(&context);
    setenv("BSK_FALLBACK", "nonsense", 1);
    setenv("BSK_NUM_THREADS", "many", 1);
    params.num_threads = 1;
    CHECK_OK(bsk_context_create(&params, &context));
    bsk_context_destroy(&context);
    unsetenv("BSK_NUM_THREADS");
    unsetenv("BSK_FALLBACK");

    /* The environment asks for a backend that is not there; the program asks for one that is. */
    params = (bsk_context_params)BSK_INIT(bsk_context_params);
    setenv("BSK_BACKEND", "nosuch", 1);
    CHECK_ERROR(bsk_context_create(NULL, &context), BSK_E_PLUGIN, "nosuch");
    params.backends = "cpu";
    CHECK_OK(bsk_context_create(&params, &context));
    bsk_context_destroy(&context);
    unsetenv("BSK_BACKEND");

    /* The environment's log level does not silence a level that the program asked for. */
    unit_log *log = unit_log_new();
    params = (bsk_context_params)BSK_INIT(bsk_context_params);
    params.log = unit_log_line;
    params.log_user = log;
    setenv("BSK_VERBOSE", "dispatch", 1);
    CHECK_OK(bsk_context_create(&params, &context));
    unit_chosen(bsk_context_device(context, 0), NULL, BSK_F32, name);
    CHECK(log->lines[BSK_LOG_DISPATCH] > 0);
    bsk_context_destroy(&context);
    unit_log_clear(log);
    params.log_level = BSK_LOG_ERROR;
    CHECK_OK(bsk_context_create(&params, &context));
    unit_chosen(bsk_context_device(context, 0), NULL, BSK_F32, name);
    CHECK(log->length == 0);
    bsk_context_destroy(&context);
    unit_log_free(log);
    unsetenv("BSK_VERBOSE");

    params = (bsk_context_params)BSK_INIT(bsk_context_params);
    setenv("BSK_NUM_THREADS", "3", 1);
    CHECK_OK(bsk_context_create(NULL, &context));
    int32_t from_environment = units(context);
    bsk_context_destroy(&context);
    params.num_threads = 2;
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK(units(context) == 2 || units(context) == from_environment);
    bsk_context_destroy(&context);
    unsetenv("BSK_NUM_THREADS");
}

/* Settings are read once: a later change of the environment changes nothing. */
static void test_frozen(void)
{
    bsk_context *context = NULL;
    char before[64], after[64];
    CHECK_OK(bsk_context_create(NULL, &context));
    unit_chosen(bsk_context_device(context, 0), NULL, BSK_F64, before);
    CHECK(!strcmp(before, "ref_bias_act"));
    setenv("BSK_FALLBACK", "forbid", 1);
    setenv("BSK_KERNEL", "-ref_bias_act", 1);
    unit_chosen(bsk_context_device(context, 0), NULL, BSK_F64, after);
    CHECK(!strcmp(before, after));
    bsk_context_destroy(&context);
    environment_clear();
}

/* Texts in the parameters are copied. */
static void test_copied(void)
{
    bsk_context *context = NULL;
    bsk_context_params params = unit_params();
    char kernels[] = "+ref_bias_act", device[] = "cpu:0", name[64];
    params.kernels = kernels;
    params.device = device;
    CHECK_OK(bsk_context_create(&params, &context));
    memset(kernels, 'x', sizeof kernels - 1);
    memset(device, 'x', sizeof device - 1);
    CHECK(
        !strcmp(unit_chosen(bsk_context_device(context, 0), NULL, BSK_F32, name), "ref_bias_act"));
    bsk_context_destroy(&context);
}

int main(void)
{
    environment_clear();
    test_bad_values();
    test_good_values();
    test_bad_params();
    test_precedence();
    test_frozen();
    test_copied();
    return unit_report();
}
