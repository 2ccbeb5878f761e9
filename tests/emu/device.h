/* The emulator as a backend: its functions of bsk_backend. */
#ifndef BSK_EMU_DEVICE_H
#define BSK_EMU_DEVICE_H

#include "emu.h"

bsk_status emu_probe(const bsk_host *host, int32_t *count);
bsk_status emu_device_open(const bsk_host *host, int32_t index, void **device,
                           bsk_device_props *props);
void emu_device_close(void *device);
bsk_status emu_queue_create(void *device, void **queue);
void emu_queue_destroy(void *queue);
bsk_status emu_queue_sync(void *queue);
bsk_status emu_mem_alloc(void *device, size_t bytes, bsk_mem *mem);
void emu_mem_free(void *device, bsk_mem mem);
bsk_status emu_mem_upload(void *queue, bsk_mem dst, const void *src, size_t bytes);
bsk_status emu_mem_download(void *queue, void *dst, bsk_mem src, size_t bytes);
bsk_status emu_mem_fill(void *queue, bsk_mem dst, uint8_t byte, size_t bytes);

#endif
