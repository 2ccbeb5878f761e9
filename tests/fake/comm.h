/* Control of the fake transport: a communicator of any size whose ranks all have what this one has. It
 * records its calls and fails on command. */
#ifndef FAKE_COMM_H
#define FAKE_COMM_H

#include <stdbool.h>

#include <bsk/transport.h>

enum { FAKE_COMM_CALLS = 256 };

typedef struct fake_comm {
    int32_t rank, size; /* of the next communicator without an id */
    uint32_t sums;      /* types that it adds: F32, F64 and I32 at first */
    int32_t abi_off, synchronous;
    bsk_status fail_create, fail_run; /* what the next call answers; OK: it succeeds */
    int skip;                         /* runs that succeed before fail_run */
    bool silent;                      /* failures leave no message */
    int live;                         /* communicators */
    int runs;
    int count; /* of calls, of which the first are recorded */
    bsk_transport_call calls[FAKE_COMM_CALLS];
    bsk_transport_request request; /* the last one */
    void *stream;
} fake_comm;

#define FAKE_COMM_SYMBOL "bsk_fake_comm"
typedef fake_comm *(*fake_comm_fn)(void);

#endif
