/* Collectives over NCCL: one rank on each CUDA device, driven by a thread of its own. Arguments: the
 * module bsk_comm_nccl.so, and bsk_cuda.so if it is built. */
#include "comm_checks.h"
#include "fake_use.h"

enum { MAX_RANKS = 4 };

typedef struct rank_of {
    comm_ranks ranks;
    const bsk_comm_id *id;
} rank_of;

static void *rank_main(void *argument)
{
    rank_of *own = argument;
    comm_ranks *r = &own->ranks;
    bsk_comm_params p = BSK_INIT(bsk_comm_params);
    bsk_comm_info info = BSK_INIT(bsk_comm_info);
    p.id = own->id;
    p.rank = r->rank;
    p.size = r->size;
    if (!CHECK_OK(bsk_comm_create(r->device, &p, &r->comm)))
        return NULL;
    CHECK_OK(bsk_comm_query(r->comm, &info));
    CHECK(info.rank == r->rank && info.size == r->size && !info.synchronous);
    CHECK_OK(bsk_queue_create(r->device, &r->queue));
    comm_check_all(r);
    bsk_queue_destroy(&r->queue);
    bsk_comm_destroy(&r->comm);
    return NULL;
}

static void run_ranks(const bsk_context *context, const bsk_comm_id *id, int size)
{
    pthread_t threads[MAX_RANKS];
    rank_of ranks[MAX_RANKS];
    for (int i = 0; i < size; i++) {
        ranks[i] = (rank_of){{.rank = i, .size = size}, id};
        ranks[i].ranks.device = bsk_context_device(context, (size_t)i);
        if (pthread_create(&threads[i], NULL, rank_main, &ranks[i]))
            abort();
    }
    for (int i = 0; i < size; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    fake_directory directory = fake_directory_new();
    bsk_context_params params = unit_params();
    bsk_context *context = NULL;
    bsk_comm_id id;
    if (argc < 2)
        return 2;
    fake_directory_link(&directory, argv[1], "bsk_comm_nccl.so");
    if (argc > 2)
        fake_directory_link(&directory, argv[2], "bsk_cuda.so");
    params.plugin_path = directory.path;
    params.backends = "cuda";
    if (bsk_context_create(&params, &context) ||
        bsk_comm_id_create(bsk_context_device(context, 0), NULL, &id)) {
        fprintf(stderr, "skipped: %s\n", bsk_last_error());
    } else {
        const size_t devices = bsk_context_device_count(context);
        run_ranks(context, &id, devices < MAX_RANKS ? (int)devices : MAX_RANKS);
    }
    bsk_context_destroy(&context);
    fake_directory_remove(&directory);
    return unit_report();
}
