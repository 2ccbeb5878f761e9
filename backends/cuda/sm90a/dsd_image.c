/* Plans and launches that products with packed weights share. */
#include <backends/cuda/sm90a/dsd_image.h>
#include <common/checked.h>

bsk_status bski_dsd_image_prepare(bski_cuda_device *device, bsk_prepared *prepared,
                                  const dsd_image_table *tables, int32_t count, size_t bytes,
                                  size_t before)
{
    dsd_image *image = prepared->state;
    for (int32_t i = 0; i < count; i++)
        TRY(table_put(&device->simt, tables[i].data, tables[i].count, tables[i].size,
                      &image->table[i]));
    const bski_cuda_run *const runs[] = {&image->pack, &image->plain, &image->any};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        TRY(bski_cuda_kernel(device, runs[i]->function, runs[i]->shared_bytes, runs[i]->name));
    TRY(bski_cuda_encoder_find(&device->simt, &image->encoder));
    prepared->packed_bytes = bytes;
    prepared->workspace_alignment = prepared->packed_alignment = DSD_IMAGE_ALIGNMENT;
    image->at = before;
    if (!bski_add_size(before, bytes, &prepared->workspace_bytes))
        return device->simt.host->fail(device->simt.host->context, BSK_E_UNSUPPORTED,
                                       "dsd: too large a workspace");
    return BSK_OK;
}

void bski_dsd_image_release(void *device, bsk_prepared *prepared)
{
    bski_cuda_device *d = device;
    dsd_image *image = prepared->state;
    if (!image)
        return;
    for (int i = 0; i < DSD_IMAGE_TABLES; i++)
        table_drop(&d->simt, &image->table[i]);
    state_free(&d->simt, prepared);
}

bsk_status bski_dsd_image_find(const bsk_prepared *prepared, void *queue, const bsk_dsd_args *args,
                               dsd_image_pack pack, const char **image)
{
    const dsd_image *plan = prepared->state;
    const bool packed = args->packed.kind != BSK_MEM_NULL;
    const bsk_mem at = packed ? args->packed : bsk_mem_at(args->workspace, plan->at);
    *image = bsk_mem_address(at);
    return packed ? BSK_OK : pack(prepared, queue, args->s, at);
}

bsk_status bski_dsd_image_run(const dsd_image *image, void *queue, bsk_mem b, bool plain,
                              void *argument)
{
    const bski_cuda_queue *q = queue;
    CUtensorMap map;
    TRY(bski_cuda_tensor_map(&image->encoder, &image->b, bsk_mem_address(b), &map));
    void *arguments[] = {&map, argument};
    bski_cuda_run run = plain ? image->plain : image->any;
    run.arguments = arguments;
    return bski_cuda_launch(q, &run);
}
