#include "text.h"

#include <ctype.h>
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
        fprintf(stderr, "textmodel: %s: %s\n", path, strerror(errno));
        return -1;
    }
    int result = -1;
    for (size_t room = 1 << 16;; room *= 2) {
        uint8_t *grown = room < limit + 1 ? realloc(t->bytes, t->size + room) : NULL;
        if (!grown) {
            fprintf(stderr, "textmodel: %s: too large\n", path);
            break;
        }
        t->bytes = grown;
        const size_t got = fread(t->bytes + t->size, 1, room, file);
        t->size += got;
        if (got < room) {
            result = ferror(file) ? -1 : 0;
            if (result)
                fprintf(stderr, "textmodel: %s: cannot be read\n", path);
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
        fprintf(stderr, "textmodel: %s: %s\n", path, strerror(errno));
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

static void alphabet_build(alphabet *a, const text *t)
{
    int seen[256] = {0};
    for (size_t i = 0; i < t->size; i++)
        if (!chunk_is_held(i / TEXT_CHUNK))
            seen[t->bytes[i]] = 1;
    a->escape = 0;
    for (int b = 0; b < 256; b++)
        if (seen[b])
            a->byte_of[a->escape++] = (uint8_t)b;
    for (int b = 0; b < 256; b++)
        a->class_of[b] = (uint16_t)a->escape;
    for (int c = 0; c < a->escape; c++)
        a->class_of[a->byte_of[c]] = (uint16_t)c;
}

static int part_build(text_part *p, const text *t, const alphabet *a, int held)
{
    const size_t chunks = t->size / TEXT_CHUNK + 1;
    p->code = malloc((t->size + chunks * TEXT_PAD) * sizeof *p->code);
    p->position = malloc((t->size + 1) * sizeof *p->position);
    if (!p->code || !p->position)
        return -1;
    p->size = p->count = p->escapes = 0;
    size_t last = 0; // one past the previous byte of this part
    for (size_t i = 0; i < t->size; i++) {
        if (chunk_is_held(i / TEXT_CHUNK) != held)
            continue;
        if (p->count == 0 || last != i)
            for (int k = 0; k < TEXT_PAD; k++)
                p->code[p->size++] = (uint16_t)(a->escape + 1);
        last = i + 1;
        p->code[p->size] = a->class_of[t->bytes[i]];
        p->escapes += p->code[p->size] == a->escape;
        p->position[p->count++] = (uint32_t)p->size++;
    }
    return 0;
}

int text_split(const text *t, alphabet *a, int known, text_part *train, text_part *held,
               uint8_t **held_bytes, size_t *held_size)
{
    if (!known)
        alphabet_build(a, t);
    *held_bytes = malloc(t->size + 1);
    if (!*held_bytes || part_build(train, t, a, 0) || part_build(held, t, a, 1)) {
        fprintf(stderr, "textmodel: out of memory\n");
        return -1;
    }
    *held_size = 0;
    for (size_t i = 0; i < t->size; i++)
        if (chunk_is_held(i / TEXT_CHUNK))
            (*held_bytes)[(*held_size)++] = t->bytes[i];
    return 0;
}

void text_part_free(text_part *p)
{
    free(p->code);
    free(p->position);
    memset(p, 0, sizeof *p);
}

enum { FIRST_ORDER = 2, LAST_ORDER = 6, WORD_FEATURES = 3 };
enum { HASHED = LAST_ORDER - FIRST_ORDER + 1 + WORD_FEATURES };

int features_count(const features *f)
{
    return f->context + HASHED;
}

int64_t features_rows(const features *f)
{
    return (int64_t)f->context * f->codes + ((int64_t)HASHED << f->buckets_log2);
}

static uint32_t hash_add(uint32_t h, uint32_t value)
{
    h = (h ^ (value + 1)) * 0x9e3779b1u;
    return h ^ h >> 15;
}

static int code_is_word(const alphabet *a, uint32_t code)
{
    if ((int)code >= a->escape)
        return 0;
    const uint8_t b = a->byte_of[code];
    return isalnum(b) || b == '_' || b >= 0x80;
}

/* Hashes the word that ends before *back, of at most `limit` characters, and moves *back before
 * it; the padding bounds the walk. */
static uint32_t hash_word(const alphabet *a, const uint16_t *code, size_t *back, uint32_t h)
{
    for (int k = 0; k < TEXT_PAD / 4 && code_is_word(a, code[*back - 1]); k++)
        h = hash_add(h, code[--*back]);
    return h;
}

void features_fill(const features *f, const alphabet *a, const uint16_t *code, size_t position,
                   int32_t *row)
{
    for (int k = 0; k < f->context; k++)
        *row++ = k * f->codes + code[position - 1 - (size_t)k];

    uint32_t hashes[HASHED];
    int count = 0;
    uint32_t h = 0;
    for (int k = 1; k <= LAST_ORDER; k++) {
        h = hash_add(h, code[position - (size_t)k]);
        if (k >= FIRST_ORDER)
            hashes[count++] = h;
    }
    // The word so far, with the character before it, and with the word before that.
    size_t back = position;
    const uint32_t word = hash_word(a, code, &back, 1);
    hashes[count++] = word;
    hashes[count++] = hash_add(word, code[back - 1]);
    for (int k = 0;
         k < TEXT_PAD / 4 && !code_is_word(a, code[back - 1]) && code[back - 1] != a->escape + 1;
         k++)
        back--;
    hashes[count++] = hash_word(a, code, &back, hash_add(word, 0x10000));

    const int64_t base = (int64_t)f->context * f->codes;
    for (int k = 0; k < HASHED; k++)
        *row++ = (int32_t)(base + ((int64_t)k << f->buckets_log2) +
                           (hashes[k] * 0x85ebca6bu >> (32 - f->buckets_log2)));
}
