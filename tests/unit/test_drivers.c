/* Backend modules on a machine that may lack their driver: they load all the same, say what is
 * missing, and leave the others alone. Arguments: modules, named bsk_<backend>.so. */
#include "fake_use.h"
#include "unit.h"

static void host_log(void *user, bsk_log_level level, const char *line)
{
    unit_log_line(user, level, line);
}

static void module_check(const char *path)
{
    const char *file = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    char backend[32] = "", id[40], said[40];
    fake_directory directory = fake_directory_new();
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    const bsk_device *device = NULL;
    unit_log *log = unit_log_new();

    CHECK(sscanf(file, "bsk_%31[a-z].so", backend) == 1);
    snprintf(id, sizeof id, "%s:0", backend);
    snprintf(said, sizeof said, "%s: ", backend);
    fake_directory_link(&directory, path, file);
    params.plugin_path = directory.path;
    params.cache_dir = "off";
    params.log = host_log;
    params.log_user = log;
    params.log_level = BSK_LOG_INFO;
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK_OK(fake_compute(fake_device_find(context, "cpu:0")));
    const char *line = NULL; /* the last one of this backend */
    if (bsk_context_find_device(context, id, &device)) {
        for (char *p = log->text; (p = strstr(p, said)); p++)
            line = p;
        CHECK(line != NULL);
    } else
        CHECK_OK(fake_compute(device));
    bsk_context_destroy(&context);

    /* Asked for, its absence is an error that names the reason. */
    params.backends = backend;
    bsk_status status = bsk_context_create(&params, &context);
    CHECK(!status == !!device);
    if (status) {
        CHECK(!context);
        char reason[128] = "";
        snprintf(reason, sizeof reason, "%.*s", line ? (int)strcspn(line, "\n") : 0, line);
        CHECK_TEXT(bsk_last_error(), reason);
    }
    bsk_context_destroy(&context);
    unit_log_free(log);
    fake_directory_remove(&directory);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        module_check(argv[i]);
    if (argc < 2)
        atomic_fetch_add(&unit_skipped, 1);
    return unit_report();
}
