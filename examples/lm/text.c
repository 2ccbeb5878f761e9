#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_FILE = 1 << 20, MAX_TEXT = 1 << 30, MAX_DEPTH = 32, MAX_PATH_BYTES = 4096 };

static int text_append(text *t, const char *path, size_t limit)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "lm: %s: %s\n", path, strerror(errno));
        return -1;
    }
    int result = -1;
    for (size_t room = 1 << 16;; room *= 2) {
        uint8_t *grown = room < limit + 1 ? realloc(t->bytes, t->size + room) : NULL;
        if (!grown) {
            fprintf(stderr, "lm: %s: too large\n", path);
            break;
        }
        t->bytes = grown;
        const size_t got = fread(t->bytes + t->size, 1, room, file);
        t->size += got;
        if (got < room) {
            result = ferror(file) ? -1 : 0;
            if (result)
                fprintf(stderr, "lm: %s: cannot be read\n", path);
            break;
        }
    }
    fclose(file);
    return result;
}

int text_read_file(text *t, const char *path)
{
    t->files = 1;
    return text_append(t, path, MAX_TEXT);
}

/* What counts as a source or a document. */
static int name_is_text(const char *name)
{
    static const char *const suffixes[] = {".c",  ".h",  ".inc",   ".cu",  ".hip", ".cl",
                                           ".py", ".sh", ".build", ".txt", ".md",  ".map"};
    const char *dot = strrchr(name, '.');
    if (!dot)
        return strcmp(name, "LICENSE") == 0;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (strcmp(dot, suffixes[i]) == 0)
            return 1;
    return 0;
}

/* Build folders hold generated files, which would make the corpus depend on the machine. */
static int folder_is_skipped(const char *name)
{
    return name[0] == '.' || strncmp(name, "build", 5) == 0 || strcmp(name, "subprojects") == 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_free(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

/* The names in a folder in byte order, which no locale changes. */
static char **folder_list(const char *path, size_t *count)
{
    DIR *dir = opendir(path);
    if (!dir)
        return NULL;
    size_t room = 0;
    char **names = NULL;
    int failed = 0;
    *count = 0;
    for (struct dirent *e; !failed && (e = readdir(dir));) {
        if (*count == room) {
            room = 2 * room + 64;
            char **grown = realloc(names, room * sizeof *names);
            failed = !grown;
            if (failed)
                break;
            names = grown;
        }
        names[*count] = strdup(e->d_name);
        failed = !names[*count];
        *count += !failed;
    }
    closedir(dir);
    if (failed) {
        names_free(names, *count);
        return NULL;
    }
    qsort(names, *count, sizeof *names, compare_names); // "." is always there
    return names;
}

static int text_walk(text *t, const char *path, int depth)
{
    size_t count = 0;
    char **names = folder_list(path, &count);
    if (!names) {
        fprintf(stderr, "lm: %s: %s\n", path, strerror(errno));
        return -1;
    }
    int result = 0;
    for (size_t i = 0; i < count; i++) {
        char child[MAX_PATH_BYTES];
        struct stat info;
        const int length = snprintf(child, sizeof child, "%s/%s", path, names[i]);
        // lstat: links are left out, so that the walk ends and no file counts twice.
        if (result == 0 && length < (int)sizeof child && lstat(child, &info) == 0) {
            if (S_ISDIR(info.st_mode) && !folder_is_skipped(names[i]) && depth < MAX_DEPTH) {
                result = text_walk(t, child, depth + 1);
            } else if (S_ISREG(info.st_mode) && name_is_text(names[i]) &&
                       info.st_size <= MAX_FILE) {
                result = text_append(t, child, MAX_TEXT);
                t->files++;
            }
        }
    }
    names_free(names, count);
    return result;
}

int text_read_tree(text *t, const char *root)
{
    t->files = 0;
    return text_walk(t, root, 0);
}

void text_free(text *t)
{
    free(t->bytes);
    memset(t, 0, sizeof *t);
}

static int chunk_is_held(size_t chunk)
{
    return chunk % TEXT_EVERY == TEXT_EVERY - 1;
}

static int part_build(text_part *p, const text *t, int held, size_t slack)
{
    const size_t chunks = t->size / TEXT_CHUNK + 1;
    p->code = malloc((t->size + chunks * TEXT_PAD + slack) * sizeof *p->code);
    if (!p->code)
        return -1;
    p->size = p->count = 0;
    size_t last = 0; // one past the previous byte of this part
    for (size_t i = 0; i < t->size; i++) {
        if (chunk_is_held(i / TEXT_CHUNK) != held)
            continue;
        if (p->count == 0 || last != i)
            for (int k = 0; k < TEXT_PAD; k++)
                p->code[p->size++] = TEXT_NONE;
        last = i + 1;
        p->code[p->size++] = t->bytes[i];
        p->count++;
    }
    for (size_t i = 0; i < slack; i++)
        p->code[p->size + i] = TEXT_NONE;
    return 0;
}

int text_split(const text *t, size_t slack, text_part *train, text_part *held, uint8_t **held_bytes)
{
    *held_bytes = malloc(t->size + 1);
    if (!*held_bytes || part_build(train, t, 0, slack) || part_build(held, t, 1, slack)) {
        fprintf(stderr, "lm: out of memory\n");
        return -1;
    }
    size_t size = 0;
    for (size_t i = 0; i < t->size; i++)
        if (chunk_is_held(i / TEXT_CHUNK))
            (*held_bytes)[size++] = t->bytes[i];
    return 0;
}

void text_part_free(text_part *p)
{
    free(p->code);
    memset(p, 0, sizeof *p);
}
