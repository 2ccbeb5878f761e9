#include "process.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

extern char **environ;

static int process_run(const char *const argv[], FILE *in, FILE *out)
{
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions))
        return -1;
    pid_t pid = -1;
    int status = -1;
    if (posix_spawn_file_actions_adddup2(&actions, fileno(in), 0) == 0 &&
        posix_spawn_file_actions_adddup2(&actions, fileno(out), 1) == 0 &&
        posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0) == 0 &&
        // posix_spawn does not write to argv; its type predates const.
        posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv, environ) == 0)
        if (waitpid(pid, &status, 0) != pid)
            status = -1;
    posix_spawn_file_actions_destroy(&actions);
    return status == 0 ? 0 : -1;
}

static int file_content(FILE *file, uint8_t **bytes, size_t *size)
{
    long end;
    if (fseek(file, 0, SEEK_END) || (end = ftell(file)) < 0)
        return -1;
    rewind(file);
    *bytes = malloc((size_t)end + 1);
    if (!*bytes)
        return -1;
    *size = fread(*bytes, 1, (size_t)end, file);
    (*bytes)[*size] = 0;
    return *size == (size_t)end ? 0 : -1;
}

int process_filter(const char *const argv[], const void *input, size_t input_size, uint8_t **output,
                   size_t *output_size)
{
    // Files instead of pipes: nobody has to read and write at the same time.
    FILE *in = tmpfile();
    FILE *out = tmpfile();
    int result = -1;
    *output = NULL;
    *output_size = 0;
    if (in && out && fwrite(input, 1, input_size, in) == input_size && fflush(in) == 0) {
        rewind(in);
        result = process_run(argv, in, out);
        if (result == 0)
            result = file_content(out, output, output_size);
    }
    if (in)
        fclose(in);
    if (out)
        fclose(out);
    if (result) {
        free(*output);
        *output = NULL;
    }
    return result;
}
