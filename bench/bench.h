/* The parts of `bsk bench`: sets of cases, memory, timing, peers, reports. */
#ifndef BSK_BENCH_H
#define BSK_BENCH_H

#include <stdio.h>
#include <sys/types.h>

#include "bench/peers/peer.h"
#include "tests/harness/test.h"

enum { BENCH_PEERS = 6, BENCH_TOLD = 4, BENCH_SAMPLES = 2000 };

/* --- sets.c --- */

/* Adds the cases of a set; false if there is no such set. */
bool bench_set(const char *name, test_list *list);
/* "cpu, smoke ..." for messages. */
const char *bench_set_names(void);

/* --- attention.c --- */

/* Visible elements of attention as a share of those of the kept blocks; 1 for other ops, and under
 * rules other than causal, window and interleave with numbers from the layout's text. */
double bench_visible_share(const test_case *c);
/* What a forward and a backward run take, at rising lengths. Nothing is run. */
void bench_attention_memory(const bsk_device *device, FILE *to);

/* --- rotation.c --- */

/* Copies of a case's memory, together larger than the last-level cache, so that a run does not find
 * its operands there. The workspace is one, as in a program. */
typedef struct bench_rotation {
    const bsk_device *device;
    struct bench_copy *copies;
    bsk_mem workspace;
    int count;
} bench_rotation;

struct bench_copy {
    bsk_mem whole[TEST_ARGS][TEST_VIEWS]; /* as allocated */
    bsk_mem views[TEST_ARGS][TEST_VIEWS];
    bsk_mem packed;
    _Alignas(16) unsigned char args[BSKI_MAX_STRUCT];
    _Alignas(16) unsigned char packed_args[BSKI_MAX_STRUCT]; /* the image instead of the weights */
};

/* Uploads the case's inputs and poisons its outputs, for runs of a plan; and makes packed images for
 * those of another, or the same, if it has any. False with bsk_last_error. */
bool bench_rotation_open(bench_rotation *r, test_case *c, const bsk_plan *plan,
                         const bsk_plan *packed, bsk_queue *queue, size_t cache);
void bench_rotation_close(bench_rotation *r);

/* --- timing.c --- */

/* Durations in milliseconds. */
typedef struct bench_samples {
    double ms[BENCH_SAMPLES];
    int count;
} bench_samples;

double bench_now(void); /* milliseconds of a clock that only goes forward */
double bench_median(bench_samples *s);
double bench_least(bench_samples *s);
/* Half the distance between the quartiles, as a share of the median. */
double bench_spread(bench_samples *s);
/* Size of the last-level cache in bytes; a guess where the system does not tell. */
size_t bench_cache_bytes(const bsk_device_info *device);

/* Whether a core's caches are the tool's alone. On a shared host a neighbour may run on the same core:
 * loops in registers keep their rate then, but reading half of the second-level cache does not. */
typedef struct bench_calm {
    uint64_t *data; /* NULL: not watched, as for devices of their own */
    size_t bytes;   /* of each thread */
    int threads;
    double best; /* shortest time of a check */
    bool busy;   /* at the last check */
} bench_calm;

void bench_calm_open(bench_calm *c, int threads);
bool bench_calm_check(bench_calm *c);
void bench_calm_close(bench_calm *c);

/* Measures work in a queue: by the device's events where calls return before the work is done,
 * else by the host's clock. */
typedef struct bench_timer {
    bsk_queue *queue;
    bsk_event *start, *stop; /* NULL: the host's clock */
    double began, issued;
} bench_timer;

void bench_timer_open(bench_timer *t, const bsk_device *device, bsk_queue *queue);
void bench_timer_close(bench_timer *t);
bool bench_timer_start(bench_timer *t);
/* Milliseconds since the start, negative on failure; *host_ms: how long the calls took. */
double bench_timer_stop(bench_timer *t, double *host_ms);

/* --- peers.c --- */

/* A loaded peer with its library's state for one device. */
typedef struct bench_team {
    const bench_peer *peer[BENCH_PEERS];
    void *library[BENCH_PEERS];
    int count;
    void *stream; /* into which all of them enqueue; NULL: they work on host pointers */
} bench_team;

/* Loads the peers of `which` that work on the device's memory (names with commas, "all", or NULL
 * for none), and says which of them cannot be had. False if a name is unknown. */
bool bench_team_open(bench_team *team, const char *which, const bsk_device_info *device);
void bench_team_close(bench_team *team);
/* Rate of copies in the device's memory, read and written bytes counted: those of a peer's library,
 * or of the device's own entry of unary; 0 where there is neither. */
double bench_team_copy_rate(const bench_team *team, const bsk_device *device, bsk_queue *queue);

typedef struct bench_racer {
    const bench_peer *peer;
    void *state; /* of the present case; NULL: does not take part */
    bsk_mem c;   /* its results, one of `copies` after the other */
    bool verified;
} bench_racer;

/* The dense product of the same shape as a case, and its operands: the block-sparse one as a dense
 * matrix with zeros, so that results can be compared; the others are the case's own. */
typedef struct bench_race {
    bench_gemm gemm;
    const bsk_device *device;
    const bench_rotation *rotation;
    int a_arg, b_arg; /* arguments of the case; -1: the dense form of the block-sparse one */
    bsk_mem dense;    /* [copies] of it */
    size_t dense_bytes, c_bytes;
    int copies;
    bench_racer racers[BENCH_PEERS];
    int count;
} bench_race;

void bench_race_open(bench_race *race, test_case *c, const bench_team *team,
                     const bench_rotation *rotation, bsk_queue *queue, int threads);
/* One product of racer i on copy number `turn`; false if the peer failed. */
bool bench_race_run(bench_race *race, int i, int turn);
/* Compares the racers' results with the case's output in payload, which is on the host. */
bool bench_race_verify(bench_race *race, int i, const test_case *c, const uint8_t *payload,
                       bsk_queue *queue);
void bench_race_close(bench_race *race);
double bench_gemm_flops(const bench_gemm *gemm);

/* --- report.c --- */

typedef struct bench_row {
    char name[TEST_NAME], entry[80];
    test_spec spec;
    const char *device;
    bool packed; /* weights were prepacked: packing them is not in the time */
    double density, ms, least, spread, flops, host_us;
    double bytes, bytes_read;     /* operands and results once each; of these, operands */
    double dense_ms, dense_flops; /* of the fastest dense peer; 0 where there is none */
    double eta, roof;             /* 0 where not known */
    double beside;                /* bytes/s of passes over memory in turn with the row; 0: none */
    bool beside_reads;            /* these are reads, else copies */
    int samples, launches;
    double calm; /* share of the samples beside which nobody else was busy */
    struct {
        char name[32];
        double ms, least, spread;
        bool verified, sparse, told; /* told: by a program, without results to verify */
    } peers[BENCH_PEERS + BENCH_TOLD];
    int peer_count;
} bench_row;

typedef struct bench_host {
    char cpu[128], kernel[160], governor[40], commit[80];
    char peers[256];
    bsk_device_info device;
    int threads;
    double roof_f32, roof_f64, roof_bf16, roof_i8; /* 0: not measured */
    double roof_bytes, roof_read, clock_mhz;
    size_t cache;
} bench_host;

void bench_host_print(const bench_host *host, FILE *to);
void bench_row_print(const bench_row *row, FILE *to);
void bench_heading_print(FILE *to);
bool bench_write_json(const char *path, const bench_host *host, const bench_row *rows, int count);
bool bench_write_html(const char *path, const bench_host *host, const bench_row *rows, int count);

/* --- program.c --- */

/* A program that times other libraries at the same cases, in turn with the rows of this run. It reads
 * a case's name in a line, and answers "NAME MEDIAN LEAST SPREAD" (milliseconds, a share) in lines,
 * after them an empty one; that alone where it has no such case. */
typedef struct bench_program {
    FILE *ask, *answer; /* NULL: there is none */
    pid_t pid;
} bench_program;

/* False, with a message, if the command cannot be started: then the tool ends. */
bool bench_program_open(bench_program *p, char *command);
/* Adds the program's figures to a row's peers. False if it ended or answers something else. */
bool bench_program_ask(bench_program *p, bench_row *row);
/* The program's exit status; 0 if there was none. */
int bench_program_close(bench_program *p);

#endif
