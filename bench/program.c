/* Programs that time other libraries beside the rows of a run. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"

extern char **environ;

/* Starts a shell with its input and output at the given ends of pipes. */
static bool spawn(pid_t *pid, char *command, int input, int output)
{
    char shell[] = "sh", option[] = "-c", *const argv[] = {shell, option, command, NULL};
    posix_spawn_file_actions_t files;
    if (posix_spawn_file_actions_init(&files))
        return false;
    if (!(errno = posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO)) &&
        !(errno = posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO)))
        errno = posix_spawn(pid, "/bin/sh", &files, NULL, argv, environ);
    const int error = errno;
    posix_spawn_file_actions_destroy(&files);
    errno = error;
    return error == 0;
}

bool bench_program_open(bench_program *p, char *command)
{
    int to[2] = {-1, -1}, from[2] = {-1, -1};
    *p = (bench_program){0};
    signal(SIGPIPE, SIG_IGN); /* a program that ended is a message, not the tool's end */
    const bool good = !pipe2(to, O_CLOEXEC) && !pipe2(from, O_CLOEXEC) &&
                      spawn(&p->pid, command, to[0], from[1]) && (p->ask = fdopen(to[1], "w")) &&
                      (p->answer = fdopen(from[0], "r"));
    if (!good)
        perror(command);
    close(to[0]);
    close(from[1]);
    return good;
}

bool bench_program_ask(bench_program *p, bench_row *row)
{
    char line[200];
    if (!p->ask)
        return true;
    fprintf(p->ask, "%s\n", row->name);
    fflush(p->ask);
    while (fgets(line, sizeof line, p->answer)) {
        const int k = row->peer_count;
        if (strcmp(line, "\n") == 0)
            return true;
        if (k == TEST_COUNT(row->peers) ||
            sscanf(line, "%31s %lf %lf %lf", row->peers[k].name, &row->peers[k].ms,
                   &row->peers[k].least, &row->peers[k].spread) != 4)
            break;
        row->peers[k].told = true;
        row->peer_count++;
    }
    fprintf(stderr, "bsk: %s: the program that was asked %s\n", row->name,
            feof(p->answer) ? "ended" : "answers something else");
    bench_program_close(p);
    return false;
}

int bench_program_close(bench_program *p)
{
    int status = 0;
    if (!p->ask)
        return 0;
    fclose(p->ask);
    fclose(p->answer);
    waitpid(p->pid, &status, 0);
    *p = (bench_program){0};
    return status;
}
