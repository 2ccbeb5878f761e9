/* Memory in large pages where the system has them, as the CPU backend's buffers are. Who includes
 * this defines _DEFAULT_SOURCE before, for madvise. */
#ifndef BSK_BENCH_PAGES_H
#define BSK_BENCH_PAGES_H

#include <stdlib.h>
#include <sys/mman.h>

/* To be freed by free(). */
static inline void *pages_alloc(size_t bytes)
{
    const size_t page = (size_t)2 << 20, whole = (bytes + page - 1) / page * page;
    void *data = aligned_alloc(page, whole);
#ifdef MADV_HUGEPAGE
    if (data)
        (void)madvise(data, whole, MADV_HUGEPAGE);
#endif
    return data;
}

#endif
