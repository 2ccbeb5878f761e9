/* Launches the last step of sums by feature. */
#include <backends/cuda/sm90a/rows.h>

extern const char sm90a_column_sums[];

bsk_status bski_cuda_column_sums_prepare(void *device)
{
    return bski_cuda_kernel(device, sm90a_column_sums, 0, "sm90a_column_sums");
}

bsk_status bski_cuda_column_sums(const bski_cuda_queue *queue, const column_sums_arg *arg)
{
    column_sums_arg copy = *arg;
    void *arguments[] = {&copy};
    const unsigned blocks = (unsigned)(arg->features + COLUMN_WIDE - 1) / COLUMN_WIDE;
    const bski_cuda_run run = {.function = sm90a_column_sums,
                               .name = "sm90a_column_sums",
                               .grid = {blocks, arg->out[1] ? 2 : 1, 1},
                               .threads = COLUMN_WIDE * COLUMN_PARTS,
                               .arguments = arguments,
                               .early = true};
    return bski_cuda_launch(queue, &run);
}
