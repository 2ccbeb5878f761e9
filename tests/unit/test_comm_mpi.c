/* Collectives over MPI, run by mpirun. Arguments: the module bsk_comm_mpi.so. */
#include <mpi.h>

#include "comm_checks.h"
#include "fake_use.h"

static void check_errors(const bsk_device *device)
{
    bsk_comm_params p = BSK_INIT(bsk_comm_params);
    bsk_comm *comm = NULL;
    bsk_comm_id id;
    CHECK_ERROR(bsk_comm_id_create(device, NULL, &id), BSK_E_UNSUPPORTED, "mpi has no ids");
    memset(&id, 1, sizeof id);
    p.id = &id;
    p.size = 1;
    CHECK_ERROR(bsk_comm_create(device, &p, &comm), BSK_E_UNSUPPORTED, "no ids");
    CHECK(!comm);
}

/* Of a communicator of the caller's in which ranks go backwards. */
static void check_native(comm_ranks *r)
{
    MPI_Comm backwards;
    bsk_comm_params p = BSK_INIT(bsk_comm_params);
    bsk_comm_info info = BSK_INIT(bsk_comm_info);
    const bsk_comm *before = r->comm;
    const int rank = r->rank;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &backwards);
    p.native = &backwards;
    CHECK_OK(bsk_comm_create(r->device, &p, &r->comm));
    MPI_Comm_free(&backwards); /* ours is a duplicate */
    CHECK_OK(bsk_comm_query(r->comm, &info));
    CHECK(info.size == r->size && info.rank == r->size - 1 - rank);
    r->rank = info.rank;
    comm_check_pair(r, 2, BSK_F32, 5, 0);
    comm_check_list(r, BSK_NONE, 0, 0);
    bsk_comm_destroy(&r->comm);
    CHECK(!r->comm);
    r->comm = (bsk_comm *)(uintptr_t)before;
    r->rank = rank;
}

int main(int argc, char **argv)
{
    fake_directory directory = fake_directory_new();
    bsk_context_params params = unit_params();
    bsk_comm_info info = BSK_INIT(bsk_comm_info);
    bsk_context *context = NULL;
    comm_ranks r = {.widened = 1};
    if (argc != 2)
        return 2;
    fake_directory_link(&directory, argv[1], "bsk_comm_mpi.so");
    params.plugin_path = directory.path;
    CHECK_OK(bsk_context_create(&params, &context));
    CHECK(!strcmp(bsk_context_backend_notes(context), "")); /* no backend, and not tried as one */
    CHECK_OK(bsk_context_find_device(context, "cpu:0", &r.device));
    CHECK_ERROR(bsk_comm_create(r.device, NULL, &r.comm), BSK_E_INVALID, "not initialised");
    MPI_Init(&argc, &argv);
    CHECK_OK(bsk_comm_create(r.device, NULL, &r.comm));
    CHECK_OK(bsk_comm_query(r.comm, &info));
    MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &r.size);
    CHECK(info.rank == r.rank && info.size == r.size && info.synchronous);
    CHECK(!strcmp(info.transport, "mpi"));
    CHECK_OK(bsk_queue_create(r.device, &r.queue));
    comm_check_all(&r);
    check_native(&r);
    check_errors(r.device);
    bsk_queue_destroy(&r.queue);
    bsk_comm_destroy(&r.comm);
    /* One line for all ranks. */
    int own[3] = {unit_passed, unit_failed, unit_skipped}, all[3];
    MPI_Reduce(own, all, 3, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    CHECK_ERROR(bsk_comm_create(r.device, NULL, &r.comm), BSK_E_INVALID, "finalised");
    bsk_context_destroy(&context);
    fake_directory_remove(&directory);
    if (!r.rank)
        printf("%d passed, %d failed, %d skipped\n", all[0], all[1], all[2]);
    return unit_failed ? 1 : 0;
}
