/* The parts of `bsk bench`: sets of cases, timing, dense peers, reports. */
#ifndef BSK_BENCH_H
#define BSK_BENCH_H

#include <stdio.h>

#include "bench/peers/peer.h"
#include "tests/harness/test.h"

enum { BENCH_PEERS = 4, BENCH_SAMPLES = 2000 };

/* --- sets.c --- */

/* Adds the cases of a set; false if there is no such set. */
bool bench_set(const char *name, test_list *list);
/* "cpu, smoke ..." for messages. */
const char *bench_set_names(void);

/* --- timing.c --- */

/* Durations in milliseconds. */
typedef struct bench_samples {
    double ms[BENCH_SAMPLES];
    int count;
} bench_samples;

double bench_now(void); /* milliseconds of a clock that only goes forward */
double bench_median(bench_samples *s);
/* Half the distance between the quartiles, as a share of the median. */
double bench_spread(bench_samples *s);
/* Size of the last-level cache in bytes; a guess where the system does not tell. */
size_t bench_cache_bytes(void);

/* --- peers.c --- */

typedef struct bench_racer {
    const bench_peer *peer;
    void *state; /* of the present case; NULL: does not take part */
    uint8_t *c;  /* its results, one of `copies` */
    bool verified;
    bench_samples samples;
} bench_racer;

/* The dense product of the same shape as a case, and its operands: the block-sparse one as a dense
 * matrix with zeros, so that results can be compared. */
typedef struct bench_race {
    bench_gemm gemm;
    bool dense;     /* the op has a dense counterpart */
    uint8_t *a, *b; /* [copies] */
    size_t a_bytes, b_bytes, c_bytes;
    int copies;
    bench_racer racers[BENCH_PEERS];
    int count;
} bench_race;

/* Loads the peers named (all: "all"; NULL: none) into *count rows of peers. */
bool bench_peers_load(const char *which, const bench_peer *peers[BENCH_PEERS], int *count);
void bench_race_open(bench_race *race, test_case *c, const bench_peer *const *peers, int count,
                     int threads, size_t cache);
/* One product of racer i on copy number `turn`; false if the peer failed. */
bool bench_race_run(bench_race *race, int i, int turn);
/* Compares a racer's result with the case's own output in payload. */
void bench_race_verify(bench_race *race, int i, const test_case *c, const uint8_t *payload);
void bench_race_close(bench_race *race);
double bench_gemm_flops(const bench_gemm *gemm);

/* --- report.c --- */

typedef struct bench_row {
    char name[TEST_NAME], entry[80];
    const char *op, *device;
    bsk_dtype dtype;
    int32_t br, bc;
    double density, ms, spread, flops, bytes;
    double eta, roof; /* 0 where not known */
    int samples;
    struct {
        const char *name;
        double ms, spread;
        bool verified;
    } peers[BENCH_PEERS];
    int peer_count;
} bench_row;

typedef struct bench_host {
    char cpu[128], kernel[160], governor[40], commit[80];
    char peers[256];
    bsk_device_info device;
    int threads;
    double roof_f32, roof_f64, roof_bytes, clock_mhz;
    size_t cache;
} bench_host;

void bench_host_print(const bench_host *host, FILE *to);
void bench_row_print(const bench_row *row, FILE *to);
void bench_heading_print(FILE *to);
bool bench_write_json(const char *path, const bench_host *host, const bench_row *rows, int count);
bool bench_write_html(const char *path, const bench_host *host, const bench_row *rows, int count);

#endif
