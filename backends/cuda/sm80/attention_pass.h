/* What the hosts of attention share that have the lists and the arguments of sm80. Include where
 * attention_host.h is. */
#ifndef BSKI_CUDA_SM80_ATTENTION_PASS_H
#define BSKI_CUDA_SM80_ATTENTION_PASS_H

#include <backends/cuda/host.h>
#include <backends/cuda/sm80/attention_host.h>
#include <backends/cuda/sm80/attention_plan.h>

/* The members that arguments of attention and its gradient have, for params p and args a. */
#define ATTENTION80_RULES(problem, p, a)                                                           \
    .rules = RULES_ARG((p)->q.dtype, (problem)->layout, p, (p)->q.dims[1], (p)->q.dims[2],         \
                       (p)->k.dims[2], attention_scale((a)->scale, (p)->q.dims[3])),               \
    .q_len = address_of(&(p)->q_len, (a)->q_len), .k_len = address_of(&(p)->k_len, (a)->k_len),    \
    .prefix = address_of(&(p)->prefix, (a)->prefix),                                               \
    .q_segment = address_of(&(p)->q_segment, (a)->q_segment),                                      \
    .k_segment = address_of(&(p)->k_segment, (a)->k_segment),                                      \
    .bits = address_of(&(p)->bits, (a)->bits),                                                     \
    .bits_index = address_of(&(p)->bits_index, (a)->bits_index),                                   \
    .slopes = address_of(&(p)->slopes, (a)->slopes),                                               \
    .scale = (float)(attention_scale((a)->scale, (p)->q.dims[3]) * 1.44269504088896340736),        \
    .d = (i32)(p)->q.dims[3], .dv = (i32)(p)->v.dims[3],                                           \
    .group = attention_group(&(p)->q, &(p)->k)

/* The argument of attention. */
#define ATTENTION80_ARG(problem, p, a, tables)                                                     \
    {                                                                                              \
        ATTENTION80_RULES(problem, p, a),                                                          \
            .tiles = tables, .q = heads_of(&(p)->q), .k = heads_of(&(p)->k),                       \
            .v = heads_of(&(p)->v), .o = heads_of(&(p)->o), .q_data = bsk_mem_address((a)->q),     \
            .k_data = bsk_mem_address((a)->k), .v_data = bsk_mem_address((a)->v),                  \
            .o_data = bsk_mem_address((a)->o), .lse = (f32 *)address_of(&(p)->lse, (a)->lse),      \
    }

/* The lists of a pass in device memory, as a kernel sees them, and its thread blocks. */
typedef struct attention80_tables {
    bsk_mem memory;
    attention80_tiles tiles;
    unsigned grid;
} attention80_tables;

/* Fills lists that were measured, and puts them there. result: by which heads are counted. */
bsk_status bski_attention80_tables(simt_device *device, const bsk_layout_tables *t,
                                   attention80_lists *lists, const bsk_tensor *result,
                                   attention80_tables *to);

#endif
