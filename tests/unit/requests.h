/* A small valid request for every public op, made through the op table. Used by the tests of the
 * fallback and by the fuzzer of descriptors, which starts from it. */
#ifndef REQUESTS_H
#define REQUESTS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/src/op.h"
#include "common/dtype.h"

/* Sizes that the shapes below are written in. The layout is K x M in blocks of r x c. */
enum {
    REQUEST_N = 6,
    REQUEST_K = 24,
    REQUEST_M = 20,
    REQUEST_BLOCK = 8,
    REQUEST_SMALL = 5,
    REQUEST_PAIRS = 2
};

/* Shapes by letters: N, K, M; Z kept blocks, B block side, R and C grid, S a small number, G one less,
 * L = N * G, Q = 4, 1. A type follows where it is not the request's: i i32, l i64, u u8, f f32. '!'
 * marks what is optional for the op, but not for such a small request. */
static const struct {
    const char *op, *shapes;
} request_shapes[] = {
    {"matmul", "x=NK w=ZBB y=NM bias=Mf gate=Zf residual=NM row_scale=Nf col_scale=Mf"},
    {"matmul_dgrad", "dy=NM w=ZBB dx=NK gate=Zf"},
    {"matmul_wgrad", "x=NK dy=NM dw=ZBB gate=!Zf w=ZBB dgate=Zf dbias=Mf"},
    {"dsd", "s=ZBB b=MN c=KN bias=Kf gate=Zf residual=KN"},
    {"dds", "a=NK s=ZBB c=NM bias=Mf row_scale=Nf"},
    {"sdd", "a=KN b=NM s=ZBB gate=!Zf bsum=Mf"},
    {"reduced_wgrad", "x=NK dy=NM g=RCf"},
    {"weight_identity", "w=ZBB"},
    {"weight_orthogonal", "w=ZBB"},
    {"weight_normal", "w=ZBB"},
    {"weight_checker", "w=Zf"},
    {"l2_normalize", "w=ZBB y=ZBB gain=Mf saved=Mf"},
    {"l2_normalize_grad", "dy=ZBB w=ZBB saved=Mf dw=ZBB gain=Mf dgain=Mf"},
    {"block_norm", "w=ZBB norm=Zf"},
    {"prune_sparsity", "norm=Zf gate=Zf"},
    {"prune_threshold", "norm=Zf gate=Zf"},
    {"block_l2_decay", "w=ZBB gate=Zf"},
    {"concrete_gate", "loga=Zf gate=Zf concrete=Zf"},
    {"concrete_gate_grad", "dgate=Zf concrete=Zf dloga=Zf"},
    {"concrete_gate_infer", "loga=Zf gate=Zf"},
    {"block_renew", "w=ZBB keep=Zu"},
    {"block_gather", "x=ZBB index=Si y=SBB"},
    {"proj_gather", "x=NM index=Si y=NS"},
    {"proj_scatter", "x=NS index=Si y=NM"},
    {"proj_scatter_add", "x=NM v=NS index=Si y=NM"},
    {"proj_scatter_mul", "x=NM v=NS index=Si y=NM"},
    {"proj_scatter_mul_grad", "dy=NM x=NM v=NS index=Si dx=NM dv=NS"},
    {"embedding", "table=KM index=Ni y=NM"},
    {"embedding_grad", "dy=NM index=Ni dtable=KM"},
    {"dense_wgrad", "x=NK dy=NM dw=KM"},
    {"bias_act", "x=NM y=NM bias=Mf"},
    {"bias_act_grad", "dy=NM x=!NM bias=Mf dx=!NM dbias=Mf"},
    {"cross_entropy", "logits=NM labels=Ni loss=Nf dlogits=!NM dloss=Nf"},
    {"adam", "param=KMf grad=KM m=KMf v=KMf norm_scale=1f gate=Kf copy=KM steps=1l"},
    {"adam_n", "param=KMf grad=KM m=KMf v=KMf norm_scale=1f copy=KM steps=1l"},
    {"binary", "x=NM y=NM z=NM"},
    {"binary_grad", "dz=NM x=!NM y=!NM dx=!NM dy=NM"},
    {"unary", "x=NM y=NM"},
    {"unary_grad", "dy=NM x=NM dx=NM"},
    {"add_n", "x=NM y=NM"},
    {"assign_add", "x=NM y=NM"},
    {"cast", "x=NM y=NMf"},
    {"transpose_2d", "x=NM y=MN"},
    {"transpose_0213", "x=1NSM y=1SNM"},
    {"cwise_linear", "x=NMS y=NMS gain=!Mf bias=Mf"},
    {"cwise_linear_grad", "dy=NMS x=NMS gain=Mf bias=Mf dx=!NMS dgain=Mf dbias=Mf"},
    {"filter", "x=NM y=NM"},
    {"sparse_relu", "x=NM y=NM"},
    {"sparse_relu_grad", "dy=NM x=NM dx=NM"},
    {"dropout", "x=NM y=NM"},
    {"reduce_max", "x=NMS y=NS argmax=NSi"},
    {"reduce_max_grad", "dy=NS argmax=NSi dx=NMS"},
    {"take_along", "x=NMK index=NSKi y=NSK"},
    {"take_along_grad", "dy=NSK index=NSKi dx=NMK"},
    {"fancy_gather", "x=NMS index=Ni y=NS"},
    {"fancy_gather_grad", "dy=NS index=Ni dx=NMS"},
    {"topk", "x=NM values=NS index=NSi"},
    {"topk_grad", "dy=NS index=NSi dx=NM"},
    {"rectified_topk", "x=NM y=NM"},
    {"rectified_topk_grad", "dy=NM x=NM dx=NM"},
    {"layer_norm", "x=NM y=NM gain=Mf bias=Mf mean=1Nf rstd=1Nf"},
    {"layer_norm_grad", "dy=NM x=NM rstd=1Nf mean=!1Nf gain=Mf bias=Mf dx=!NM dgain=Mf dbias=Mf"},
    {"rms_norm", "x=NM y=NM gain=Mf bias=Mf rstd=1Nf"},
    {"rms_norm_grad", "dy=NM x=NM rstd=1Nf gain=Mf bias=Mf dx=!NM dgain=Mf dbias=Mf"},
    {"batch_norm", "x=NMS y=NMS mean=Mf var=Mf gain=Mf bias=Mf"},
    {"batch_norm_infer", "x=NMS y=NMS mean=Mf var=Mf gain=Mf bias=Mf"},
    {"batch_norm_grad", "dy=NMS x=NMS mean=Mf var=Mf gain=Mf dx=!NMS dgain=Mf dbias=Mf"},
    {"masked_softmax", "x=NM y=NM mask=NM"},
    {"masked_topk_softmax", "x=NM y=NM mask=NM"},
    {"masked_softmax_grad", "dy=NM y=NM dx=NM mask=NM"},
    {"attn_scores", "q=1SKN k=1SMN s=1SZBB"},
    {"attn_apply", "s=1SZBB v=1SMN y=1SKN"},
    {"attn_apply_t", "s=1SZBB v=1SKN y=1SMN"},
    {"block_softmax", "x=1SZBB y=1SZBB lse=1SKf bias=1SKM slopes=Sf prefix=1i q_segment=1Ki "
                      "k_segment=1Mi bits=ZB1u bits_index=Zi"},
    {"block_softmax_grad", "dy=1SZBB y=1SZBB dx=1SZBB"},
    {"attention", "q=1SKN k=1SMN v=1SMN o=1SKN lse=1SKf bias=1SKM slopes=Sf prefix=1i "
                  "q_segment=1Ki k_segment=1Mi bits=ZB1u bits_index=Zi"},
    {"attention_grad", "q=1SKN k=1SMN v=1SMN o=1SKN dout=1SKN lse=1SKf dq=!1SKN dk=!1SMN dv=!1SMN "
                       "bias=1SKM slopes=Sf prefix=1i q_segment=1Ki k_segment=1Mi bits=ZB1u "
                       "bits_index=Zi"},
    {"attention_decode", "q=1SKN k=RSBN v=RSBN o=1SKN lse=1SKf slopes=Sf table=!1Ci "
                         "block_index=1S1Si block_count=1S1i"},
    {"layout_topk", "scores=SNM index=SNSi count=SNi limit=SNi"},
    {"layout_mask", "mask=SNMu index=SNSi count=SNi"},
    {"grouped_matmul", "x=NK offsets=Si w=GKM y=NM bias=GMf"},
    {"grouped_wgrad", "x=NK offsets=Si dy=NM dw=GKM dbias=GMf"},
    {"conv", "x=NSN w=Q y=NSN"},
    {"conv_dgrad", "dy=NSN w=Q dx=NSN"},
    {"conv_wgrad", "x=NSN dy=NSN dw=Q"},
    {"conv_edge_bias", "x=NSN edges=Ni gain=SGf bias=SGf y=NSN"},
    {"conv_edge_bias_grad", "dy=NSN x=NSN edges=Ni gain=SGf dx=NSN dgain=SGf dbias=SGf"},
    {"moe_route", "experts=NGi offsets=Si order=Li token=Li place=NGi"},
    {"lstm_gates", "c=NS c_next=NS h_next=NS gates=!NM bias=Mf"},
    {"lstm_gates_grad", "dh=NS c=NS dc_next=NS dc=NS gates=!NM bias=Mf dgates=!NM"},
    {"split4", "x=NM y0=NS y1=NS y2=NS y3=NS"},
    {"concat4", "x0=NS x1=NS x2=NS x3=NS y=NM"},
    {"quantize", "x=NM y=NM exponent=1i"},
    {"tensor_stats", "x=NM stats=Sf exponent=1i"},
    {"adafactor", "param=KMf grad=KM col=Mf row=!Kf norm_scale=1f steps=1l"},
    {"ema", "average=KM param=KM gate=Kf"},
    {"global_norm", "x=KM sum=1f norm=1f norm_scale=1f"},
    {"loss_scale", "scale=1f norm_scale=1f good=1i norm=1f"},
};

/* Fields that zero does not suit. The first whose name fits counts. */
static const struct {
    const char *field;
    double value;
} request_fields[] = {
    {"pairs", REQUEST_PAIRS},
    {"block_rows", REQUEST_BLOCK},
    {"block_cols", REQUEST_BLOCK},
    {"act", BSK_ACT_RELU},
    {"gate_mode", BSK_GATE_SCALE},
    {"precision", BSK_PRECISION_TF32},
    {"norm", BSK_NORM_L2},
    {"renew", BSK_RENEW_NORMAL},
    {"alpha", 1},
    {"beta", 0.5},
    {"value", 0.25},
    {"rate", 0.125},
    {"temperature", 0.75},
    {"lr", 0.01},
    {"step", 3},
    {"seed", 11},
    {"smoothing", 0.1},
    {"keep", 0.5},
    {"k", 2},
    {"ebits", 4},
    {"fbits", 3},
    {"decay", 0.25},
};

typedef union request_struct {
    max_align_t align;
    unsigned char bytes[BSKI_MAX_STRUCT];
} request_struct;

/* A layout with empty rows, full rows and ragged edges. */
static inline bsk_status request_layout(bsk_context *context, bsk_layout **layout)
{
    bsk_layout_params p = BSK_INIT(bsk_layout_params);
    p.rows = REQUEST_K;
    p.cols = REQUEST_M;
    p.block_rows = p.block_cols = REQUEST_BLOCK;
    static const uint8_t mask[3 * 3] = {1, 0, 1, 0, 0, 0, 1, 1, 1};
    return bsk_layout_from_mask(context, &p, mask, layout);
}

static inline void request_set(void *base, const bski_field *f)
{
    for (size_t i = 0; i < sizeof request_fields / sizeof *request_fields; i++) {
        if (strcmp(request_fields[i].field, f->name))
            continue;
        double v = request_fields[i].value;
        int32_t v32 = (int32_t)v;
        int64_t v64 = (int64_t)v;
        char *to = (char *)base + f->offset;
        if (f->kind == BSKI_F64)
            memcpy(to, &v, sizeof v);
        else if (f->kind == BSKI_I32)
            memcpy(to, &v32, sizeof v32);
        else
            memcpy(to, &v64, sizeof v64);
        return;
    }
}

/* The sizes behind the letters; the layout has nnz kept blocks. */
typedef struct request_size {
    int64_t n, k, m, block, nnz;
} request_size;

static inline request_size request_small(int64_t nnz)
{
    return (request_size){REQUEST_N, REQUEST_K, REQUEST_M, REQUEST_BLOCK, nnz};
}

static inline int64_t request_dim(char letter, const request_size *size)
{
    switch (letter) {
    case 'N':
        return size->n;
    case 'K':
        return size->k;
    case 'M':
        return size->m;
    case 'Z':
        return size->nnz;
    case 'B':
        return size->block;
    case 'R':
        return (size->k + size->block - 1) / size->block;
    case 'C':
        return (size->m + size->block - 1) / size->block;
    case 'S':
        return REQUEST_SMALL;
    case 'G':
        return REQUEST_SMALL - 1;
    case 'Q':
        return 4;
    case 'L':
        return size->n * (REQUEST_SMALL - 1);
    default:
        return 1;
    }
}

static inline bsk_tensor request_tensor(const char *shape, bsk_dtype dtype,
                                        const request_size *size)
{
    bsk_tensor t = {dtype, 0, {0}, {0}};
    for (; *shape && *shape != ' '; shape++) {
        if (*shape == 'i' || *shape == 'u')
            t.dtype = *shape == 'i' ? BSK_I32 : BSK_U8;
        else if (*shape == 'l')
            t.dtype = BSK_I64;
        else if (*shape == 'f')
            t.dtype = dtype == BSK_F64 ? BSK_F64 : BSK_F32;
        else
            t.dims[t.rank++] = request_dim(*shape, size);
    }
    return t;
}

/* Fills params for op; with optional = false only with what the op requires. False if the table
 * above has no row for it. */
static inline bool request_fill_sized(const bski_op_info *op, const bsk_layout *layout,
                                      const request_size *sizes, bsk_dtype dtype, bool optional,
                                      request_struct *params)
{
    const char *shapes = NULL;
    for (size_t i = 0; i < sizeof request_shapes / sizeof *request_shapes; i++)
        if (!strcmp(request_shapes[i].op, op->name))
            shapes = request_shapes[i].shapes;
    size_t size = op->params_size;
    memset(params, 0, sizeof *params);
    memcpy(params->bytes, &size, sizeof size);
    if (!shapes || size > sizeof *params || op->args_size > sizeof *params)
        return false;
    if (op->layout)
        memcpy(params->bytes + op->layout, &layout, sizeof layout);
    if (op->list) {
        static const int32_t list[] = {2, 2, 0, 1, 1, 0};
        const int32_t *first = list;
        const int64_t count = sizeof list / sizeof *list;
        memcpy(params->bytes + op->list, &first, sizeof first);
        memcpy(params->bytes + op->list_size, &count, sizeof count);
    }
    for (int i = 0; i < op->attr_count; i++)
        request_set(params->bytes, &op->attrs[i]);
    for (const char *s = shapes; *s; s += *s == ' ') {
        size_t name = strcspn(s, "=");
        for (int i = 0; i < op->arg_count; i++) {
            const bski_arg *a = &op->args[i];
            const char *shape = s + name + 1;
            if (strlen(a->name) != name || strncmp(a->name, s, name) ||
                (a->optional && !optional && *shape != '!'))
                continue;
            bsk_tensor t = request_tensor(shape + (*shape == '!'), dtype, sizes);
            if (t.dtype == dtype && 1u << dtype & BSKI_SCALED &&
                !(a->dtypes & (1u << dtype | BSKI_SAME)))
                t.dtype = BSK_F32; /* results of 8-bit operands */
            memcpy(params->bytes + a->desc, &t, sizeof t);
        }
        s += strcspn(s, " ");
    }
    return true;
}

static inline bool request_fill(const bski_op_info *op, const bsk_layout *layout, int64_t nnz,
                                bsk_dtype dtype, bool optional, request_struct *params)
{
    const request_size small = request_small(nnz);
    return request_fill_sized(op, layout, &small, dtype, optional, params);
}

/* Fills args with the scalars; memory is the caller's matter. */
static inline void request_scalars(const bski_op_info *op, request_struct *args)
{
    size_t size = op->args_size;
    memset(args, 0, sizeof *args);
    memcpy(args->bytes, &size, sizeof size);
    for (int i = 0; i < op->scalar_count; i++)
        request_set(args->bytes, &op->scalars[i]);
}

/* Puts harmless numbers in memory of a tensor: floats between 1/8 and 1, distinct indices. */
static inline void request_numbers(const bsk_tensor *t, void *memory, size_t bytes, unsigned salt)
{
    size_t size = bsk_dtype_size(t->dtype);
    for (size_t i = 0; size && i < bytes / size; i++) {
        double v = (double)(1 + (i * 5 + salt * 3) % 8) / 8;
        if (1u << t->dtype & (BSKI_FLOATS | BSKI_SCALED)) {
            bski_store(t->dtype, memory, (int64_t)i, v);
        } else {
            uint64_t n = t->dtype == BSK_U8 ? i % 2 : i;
            memcpy((char *)memory + i * size, &n, size); /* little-endian */
        }
    }
}

#endif
