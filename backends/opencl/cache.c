/* Compiled programs in files: one for each key, in a directory that only its owner can write. When
 * they have grown too many, those that were not used for the longest time are removed.
 *
 * A file is a header and the driver's binary. It is used only if it is a regular file of the
 * process's own user that nobody else can write, and if magic, key, size and checksum are right;
 * anything else counts as absent, and the program is compiled again. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <backends/opencl/opencl.h>
#include <common/parents.h>

/* Bytes of one program, and of all files. */
enum { MAX_PAYLOAD = 64 << 20, MAX_FILES = 512 << 20 };

/* --- SHA-256 (FIPS 180-4) --- */

typedef struct sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
} sha256;

static const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void sha256_block(uint32_t state[8], const uint8_t *p)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t e = s[4], a = s[0];
        uint32_t t1 = s[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                      ((e & s[5]) ^ (~e & s[6])) + sha256_k[i] + w[i];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                      ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[0] = t1 + t2;
        s[4] += t1;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

static void sha256_start(sha256 *h)
{
    *h = (sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                            0x1f83d9ab, 0x5be0cd19}};
}

static void sha256_add(sha256 *h, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    while (bytes) {
        size_t at = h->bytes % 64, n = bytes < 64 - at ? bytes : 64 - at;
        memcpy(h->block + at, p, n);
        h->bytes += n;
        p += n;
        bytes -= n;
        if (h->bytes % 64 == 0)
            sha256_block(h->state, h->block);
    }
}

static bski_cl_key sha256_end(sha256 *h)
{
    static const uint8_t padding[64] = {0x80};
    uint64_t bits = h->bytes * 8;
    sha256_add(h, padding, 1 + (119 - h->bytes % 64) % 64);
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(h, length, sizeof length);
    bski_cl_key out;
    for (int i = 0; i < BSKI_CL_KEY_BYTES; i++)
        out.bytes[i] = (uint8_t)(h->state[i / 4] >> (24 - 8 * (i % 4)));
    return out;
}

bski_cl_key bski_cl_key_make(const bski_cl_part *parts, size_t count)
{
    sha256 h;
    sha256_start(&h);
    for (size_t i = 0; i < count; i++) {
        /* With its length, so that text cannot move from one part to the next. */
        uint64_t length = parts[i].bytes;
        sha256_add(&h, &length, sizeof length);
        sha256_add(&h, parts[i].data, parts[i].bytes);
    }
    return sha256_end(&h);
}

static bski_cl_key checksum(const void *data, size_t bytes)
{
    sha256 h;
    sha256_start(&h);
    sha256_add(&h, data, bytes);
    return sha256_end(&h);
}

/* --- the directory --- */

static void note(const bsk_host *host, const char *what, const char *name, const char *why)
{
    host->log(host->context, BSK_LOG_INFO, "opencl: cache %s %s: %s", what, name, why);
}

/* Own, and nobody else can write. */
static bool is_private(const struct stat *s)
{
    return s->st_uid == geteuid() && !(s->st_mode & (S_IWGRP | S_IWOTH));
}

/* Makes the directory and what lies above it. */
static void make_directory(const char *path)
{
    char part[4096];
    size_t n = strlen(path);
    if (n >= sizeof part)
        return;
    memcpy(part, path, n + 1);
    bski_make_parents(part);
    mkdir(part, 0700);
}

/* A descriptor of the cache directory, or -1 where there is none to use. */
static int open_directory(const bsk_host *host, bool make)
{
    const char *path = host->cache_dir;
    if (!path || !strcmp(path, "off"))
        return -1;
    if (make)
        make_directory(path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        if (make || errno != ENOENT)
            note(host, "directory", path, strerror(errno));
        return -1;
    }
    struct stat s;
    if (fstat(fd, &s) || !is_private(&s)) {
        note(host, "directory", path, "others can write to it; not used");
        close(fd);
        return -1;
    }
    return fd;
}

/* --- files --- */

static const char file_magic[8] = "bskcl\n\1";

typedef struct file_header {
    char magic[8];
    bski_cl_key key;
    uint64_t bytes;
    bski_cl_key sum;
} file_header;

enum { FILE_NAME = 2 * BSKI_CL_KEY_BYTES + 5 };

static void file_name(const bski_cl_key *key, char name[FILE_NAME])
{
    for (int i = 0; i < BSKI_CL_KEY_BYTES; i++)
        snprintf(name + 2 * i, 3, "%02x", key->bytes[i]);
    snprintf(name + 2 * BSKI_CL_KEY_BYTES, 5, ".bin");
}

static bool read_all(int fd, void *data, size_t bytes)
{
    for (char *p = data; bytes;) {
        ssize_t n = read(fd, p, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    for (const char *p = data; bytes;) {
        ssize_t n = write(fd, p, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* NULL and the reason in *why, or the payload. */
static unsigned char *file_read(const bsk_host *host, int fd, const bski_cl_key *key, size_t *bytes,
                                const char **why)
{
    struct stat s;
    file_header h;
    *why = "not a private regular file";
    if (fstat(fd, &s) || !S_ISREG(s.st_mode) || !is_private(&s))
        return NULL;
    *why = "bad header";
    if (!read_all(fd, &h, sizeof h) || memcmp(h.magic, file_magic, sizeof h.magic) ||
        memcmp(&h.key, key, sizeof *key))
        return NULL;
    *why = "bad size";
    if (!h.bytes || h.bytes > MAX_PAYLOAD || (uint64_t)s.st_size != sizeof h + h.bytes)
        return NULL;
    *why = "no memory";
    unsigned char *payload = bski_cl_alloc(host, h.bytes);
    if (!payload)
        return NULL;
    *why = "bad checksum";
    if (read_all(fd, payload, h.bytes)) {
        bski_cl_key sum = checksum(payload, h.bytes);
        if (!memcmp(&sum, &h.sum, sizeof sum)) {
            *bytes = h.bytes;
            return payload;
        }
    }
    bski_cl_free(host, payload);
    return NULL;
}

unsigned char *bski_cl_cache_read(const bsk_host *host, const bski_cl_key *key, size_t *bytes)
{
    int directory = open_directory(host, false);
    if (directory < 0)
        return NULL;
    char name[FILE_NAME];
    file_name(key, name);
    /* Without waiting, should the name be that of a pipe. */
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    unsigned char *payload = NULL;
    if (fd >= 0) {
        const char *why;
        payload = file_read(host, fd, key, bytes, &why);
        if (!payload)
            note(host, "file", name, why);
        else
            futimens(fd, NULL); /* used now; where that fails it only goes sooner */
        close(fd);
    } else if (errno != ENOENT) {
        note(host, "file", name, strerror(errno));
    }
    close(directory);
    return payload;
}

/* Whether a file is the cache's, whole or left behind by a process that ended. */
static bool is_own_name(const char *name)
{
    return !strncmp(name, "tmp-", 4) ||
           (strlen(name) == FILE_NAME - 1 && !strcmp(name + 2 * BSKI_CL_KEY_BYTES, ".bin"));
}

/* The bytes of all files, and the name of the one that was not used for the longest time. */
static int64_t files_bytes(int directory, char oldest[NAME_MAX + 1])
{
    struct timespec least = {0};
    struct stat s;
    int64_t bytes = 0;
    int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    *oldest = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!is_own_name(e->d_name) || fstatat(directory, e->d_name, &s, AT_SYMLINK_NOFOLLOW) ||
            !S_ISREG(s.st_mode))
            continue;
        bytes += s.st_size;
        if (!*oldest || s.st_mtim.tv_sec < least.tv_sec ||
            (s.st_mtim.tv_sec == least.tv_sec && s.st_mtim.tv_nsec < least.tv_nsec)) {
            least = s.st_mtim;
            snprintf(oldest, NAME_MAX + 1, "%s", e->d_name);
        }
    }
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    return bytes;
}

static void make_room(const bsk_host *host, int directory)
{
    char oldest[NAME_MAX + 1];
    while (files_bytes(directory, oldest) > MAX_FILES) {
        const bool gone = !unlinkat(directory, oldest, 0);
        note(host, "file", oldest, gone ? "removed, to make room" : strerror(errno));
        if (!gone)
            return;
    }
}

void bski_cl_cache_write(const bsk_host *host, const bski_cl_key *key, const unsigned char *payload,
                         size_t bytes)
{
    if (!bytes || bytes > MAX_PAYLOAD)
        return;
    int directory = open_directory(host, true);
    if (directory < 0)
        return;
    file_header h = {.key = *key, .bytes = bytes, .sum = checksum(payload, bytes)};
    memcpy(h.magic, file_magic, sizeof h.magic);
    char name[FILE_NAME], temporary[80];
    file_name(key, name);
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    /* The address of a local variable differs between threads. */
    snprintf(temporary, sizeof temporary, "tmp-%ld-%p-%09ld", (long)getpid(), (void *)&now,
             now.tv_nsec);
    int fd =
        openat(directory, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool good = fd >= 0 && write_all(fd, &h, sizeof h) && write_all(fd, payload, bytes);
    if (fd >= 0)
        good = !close(fd) && good;
    good = good && !renameat(directory, temporary, directory, name);
    if (!good) {
        note(host, "file", name, strerror(errno));
        if (fd >= 0)
            unlinkat(directory, temporary, 0);
    }
    make_room(host, directory);
    close(directory);
}
