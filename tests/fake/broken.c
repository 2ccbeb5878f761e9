/* Modules that must be refused. One source; FAKE_BROKEN selects what is wrong. */
#include <bsk/backend.h>

#define EXPORT __attribute__((visibility("default")))

#define BROKEN_ABI    1 /* the table is of another ABI */
#define BROKEN_SYMBOL 2 /* the symbol of another version */
#define BROKEN_NULL   3 /* the query declines */
#define BROKEN_SLOTS  4 /* functions are missing */

#if FAKE_BROKEN == BROKEN_SYMBOL
#define QUERY bsk_backend_query_v0
#else
#define QUERY bsk_backend_query_v1
#endif

EXPORT const bsk_backend *QUERY(const bsk_host *host);

#if FAKE_BROKEN == BROKEN_NULL
const bsk_backend *QUERY(const bsk_host *host)
{
    (void)host;
    return NULL;
}
#else
static const bsk_backend backend = {
    .struct_size = sizeof(bsk_backend),
    .abi = BSK_BACKEND_ABI + (FAKE_BROKEN == BROKEN_ABI),
    .name = "broken",
};

const bsk_backend *QUERY(const bsk_host *host)
{
    (void)host;
    return &backend;
}
#endif
