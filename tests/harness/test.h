/* The engine behind `bsk check` and `bsk bench`: cases, their tensors on the host, expected
 * results with error bounds, and runs of one entry between red zones.
 *
 * A case is a test_spec: an op, its shapes and options. Its name is made from the spec, and is at
 * the same time the filter and the repro line. */
#ifndef BSK_TEST_H
#define BSK_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <bsk/backend.h>

#include "api/src/op.h"
#include "common/dtype.h"
#include "tests/harness/pattern.h"

enum { TEST_ARGS = BSKI_MAX_ARGS, TEST_NAME = 256, TEST_VIEWS = 16 };

/* --- What a case is ----------------------------------------------------------------------- */

typedef enum test_tier { TIER_QUICK, TIER_CI, TIER_FULL, TIER_BENCH } test_tier;

/* How the inputs are filled, and with that how the outputs are compared. */
typedef enum test_fill {
    FILL_REAL,    /* uniform reals: error bound from sums of magnitudes */
    FILL_INT,     /* small integers whose sums are exact: bit-equal after one rounding */
    FILL_SPECIAL, /* reals with a few NaN and infinities: they reach the right outputs only */
    FILL_HUGE,    /* products beyond the output type: overflow goes to infinity */
    FILL_BITS,    /* inputs: all bits of 8, any bits of others, often near halves of f8 */
    FILL_NEAR     /* powers of two; one input just below what tf32 has: the first, by even seeds any
                     but that */
} test_fill;

typedef enum test_pattern {
    PATTERN_RANDOM, /* pattern_value is the density */
    PATTERN_FULL,
    PATTERN_EMPTY,
    PATTERN_ONE, /* one block, in the last row and column */
    PATTERN_DIAGONAL,
    PATTERN_BARABASI, /* pattern_value is m */
    PATTERN_WATTS,    /* pattern_value is k */
    PATTERN_UNEVEN,   /* heads of rising density, the first one empty */
    PATTERN_BANDED,   /* around the diagonal; pattern_value is the density */
    PATTERN_SKEWED,   /* few long rows: the longest has 20 times the mean, or all; by density */
    PATTERN_TEXT      /* what test_spec.layout says (pattern.h) */
} test_pattern;

/* Options; name.c has the words for them. */
enum {
    OPT_GATE = 1 << 0,
    OPT_BIAS = 1 << 1,
    OPT_RESIDUAL = 1 << 2,
    OPT_ROW_SCALE = 1 << 3,
    OPT_COL_SCALE = 1 << 4,
    OPT_LD = 1 << 5,      /* padded leading dimensions */
    OPT_TRANS = 1 << 6,   /* dense operands stored the other way round */
    OPT_INPLACE = 1 << 7, /* the op's "In place" line */
    OPT_OFFSET = 1 << 8,  /* every buffer starts one element after an aligned address */
    OPT_DGATE = 1 << 9,
    OPT_DBIAS = 1 << 10,
    OPT_GAIN = 1 << 11,
    OPT_SAVED = 1 << 12,
    OPT_LAZY = 1 << 13,
    OPT_COPY = 1 << 14,
    OPT_NORM_SCALE = 1 << 15,
    OPT_SKIP = 1 << 16, /* adam: norm_scale is 0 */
    OPT_CLIP = 1 << 17,
    OPT_DECAY = 1 << 18,
    OPT_SMOOTH = 1 << 19,
    OPT_IGNORE = 1 << 20,
    OPT_DLOSS = 1 << 21,
    OPT_NO_LOSS = 1 << 22,
    OPT_NO_GRAD = 1 << 23, /* cross_entropy: loss only; bias_act_grad: dbias only */
    OPT_SHARED = 1 << 24,  /* one group of S for the whole batch */
    OPT_TINY = 1 << 25,    /* norms below eps */
    OPT_LD8 = 1 << 26,     /* leading dimensions padded by 8 elements: rows stay aligned */
    OPT_SCALES = 1 << 27,  /* of 8-bit operands */
    OPT_REPEAT = 1 << 28,  /* inputs with a stride of 0 along the first axis */
    OPT_SPLAT = 1 << 29,   /* the same along the last axis */
    OPT_BLEND = 1 << 30    /* dx_blend, where dx_beta is not 0 if beta is not */
};

/* What attention sees, how it makes scores, and how heads lie; name.c has the words. */
enum {
    RULE_CAUSAL = 1 << 0,
    RULE_END = 1 << 1, /* aligned at the end */
    RULE_WINDOW = 1 << 2,
    RULE_PREFIX = 1 << 3,
    RULE_DOCUMENTS = 1 << 4,
    RULE_KEY_MASK = 1 << 5,
    RULE_RAGGED = 1 << 6, /* lengths by member of the batch */
    RULE_BITS = 1 << 7,
    RULE_BITS_INDEX = 1 << 8,
    RULE_ROW_BIAS = 1 << 9, /* a bias that repeats along heads and queries */
    RULE_ALIBI = 1 << 10,
    RULE_SOFTCAP = 1 << 11,
    RULE_DROPOUT = 1 << 12,
    RULE_PACKED = 1 << 13, /* heads inside rows */
    RULE_GQA = 1 << 14,    /* half as many key/value heads */
    RULE_MQA = 1 << 15,    /* one key/value head */
    RULE_DV = 1 << 16,     /* values of another size than keys */
    RULE_INTERLEAVE = 1 << 17,
    RULE_SHORT = 1 << 18,   /* times that the interleave does not divide */
    RULE_ADDITIVE = 1 << 19 /* a bias that is a mask: near the lowest number for early keys */
};

typedef struct test_op test_op;

typedef struct test_spec {
    const char *op;
    bsk_dtype dtype;
    bsk_dtype out;   /* type of the outputs; BSK_NONE: dtype */
    bsk_dtype other; /* of a product's second operand; BSK_NONE: dtype */
    bsk_dtype index; /* of labels and indices */
    int32_t br, bc;  /* block; 0: the op has no layout */
    int64_t k, m;    /* matrix size: rows, cols; or the op's own two sizes */
    int64_t n;
    test_pattern pattern;
    double pattern_value;
    const char *layout; /* of PATTERN_TEXT, without geometry */
    int32_t heads;      /* 0: 1 */
    int32_t groups;     /* dsd, dds, sdd: 0 means rank 2, else batch = heads * groups */
    bsk_order order;
    bsk_axis axis;
    int32_t transpose;
    bsk_act act;
    bsk_gate_mode gate_mode;
    bsk_precision precision;
    bsk_norm norm;
    bsk_renew renew;
    int32_t pairs; /* 0: 1 */
    int32_t kind;  /* the op's own choice; name.c has the words */
    int32_t count; /* the op's own small number */
    uint32_t options;
    uint32_t rules;     /* of attention */
    double alpha, beta; /* alpha 0 means 1 */
    double value;       /* the op's own scalar */
    test_fill fill;
    uint64_t seed;
} test_spec;

/* --- Ops ---------------------------------------------------------------------------------- */

typedef struct test_case test_case;

/* What the engine knows about a public op beyond its descriptor (api/src/op.h). */
struct test_op {
    const char *name;
    bsk_status (*plan)(const bsk_device *device, const void *params,
                       const bsk_plan_options *options, bsk_plan **plan);
    bsk_status (*run)(const bsk_plan *plan, bsk_queue *queue, const void *args);
    /* NULL: the op has no packed form. */
    bsk_status (*prepack)(const bsk_plan *plan, bsk_queue *queue, bsk_mem unpacked, bsk_mem packed);
    /* Describes the tensors and sets attributes and scalars. */
    void (*build)(test_case *c);
    /* Fills want and bound of every output from the values of the inputs: an independent
     * computation in f64. */
    void (*oracle)(test_case *c);
    /* Instead of an oracle: judges the outputs, got[i] for argument i; false with a reason. */
    bool (*judge)(const test_case *c, double *const *got, char *why, size_t why_size);
};

#define TEST_CALLS(op)                                                                             \
    static bsk_status op##_plan_any(const bsk_device *device, const void *params,                  \
                                    const bsk_plan_options *options, bsk_plan **plan)              \
    {                                                                                              \
        return bsk_##op##_plan(device, params, options, plan);                                     \
    }                                                                                              \
    static bsk_status op##_run_any(const bsk_plan *plan, bsk_queue *queue, const void *args)       \
    {                                                                                              \
        return bsk_##op##_run(plan, queue, args);                                                  \
    }
#define TEST_OP(op, build, oracle, judge)                                                          \
    {                                                                                              \
#op, op##_plan_any, op##_run_any, NULL, build, oracle, judge                               \
    }
#define TEST_OP_PACKED(op, build, oracle, judge)                                                   \
    {                                                                                              \
#op, op##_plan_any, op##_run_any, bsk_##op##_prepack, build, oracle, judge                 \
    }
#define TEST_COUNT(array) ((int32_t)(sizeof(array) / sizeof((array)[0])))

/* The ops of the families, and the op of a name (NULL if there is none). */
extern const test_op test_products[], test_weights[], test_ops[], test_optim[];
extern const int32_t test_products_count, test_weights_count, test_ops_count, test_optim_count;
extern const test_op test_elementwise[], test_select[], test_norms[], test_training[];
extern const test_op test_attention[], test_decode[], test_grouped[], test_conv[];
extern const int32_t test_elementwise_count, test_select_count, test_norms_count,
    test_training_count, test_attention_count, test_decode_count, test_grouped_count,
    test_conv_count;
const test_op *test_op_find(const char *name);
const test_op *test_op_at(int32_t index); /* NULL past the end */

/* --- Case lists --------------------------------------------------------------------------- */

typedef struct test_list {
    test_spec *specs;
    size_t count, capacity;
    test_tier tier;
} test_list;

void test_emit(test_list *list, test_spec spec);
void cases_products(test_list *list);
void cases_products_tiles(test_list *list);
void cases_products_formats(test_list *list);
void cases_weights(test_list *list);
void cases_ops(test_list *list);
void cases_optim(test_list *list);
void cases_elementwise(test_list *list);
void cases_select(test_list *list);
void cases_norms(test_list *list);
void cases_training(test_list *list);
void cases_specials(test_list *list);
void cases_attention(test_list *list);
void cases_decode(test_list *list);
void cases_grouped(test_list *list);
void cases_conv(test_list *list);

void test_spec_name(const test_spec *spec, char name[TEST_NAME]);
/* Every filter has an alternative, between `|`, of which every word, a glob, matches some word of name, or,
 * where `!` precedes it, none. */
bool test_filter(const char *name, char *const *filters, int count);

/* --- A case with its tensors -------------------------------------------------------------- */

/* What an input holds, where the case's fill does not say it all. */
typedef enum test_content {
    CONTENT_DEFAULT,
    CONTENT_GATE,     /* 0, 0.5, 1, 2: zero with probability 1/4, never all zero */
    CONTENT_SCALE,    /* powers of two with either sign */
    CONTENT_INDEX,    /* in [0, limit), a few outside */
    CONTENT_DISTINCT, /* distinct numbers in [0, limit), a few outside */
    CONTENT_FLAG,     /* 0 or 1 */
    CONTENT_UNIT,     /* reals in (0, 1) */
    CONTENT_POSITIVE, /* reals in [0, 1) */
    CONTENT_ROWS,     /* every third row is zero */
    CONTENT_VALUE,    /* all elements are test_tensor.constant */
    CONTENT_ABOUT,    /* reals within 1 of it */
    CONTENT_ADDITIVE, /* 0, but near the lowest number in the first 3/4 of each row */
    CONTENT_MASKED,   /* every third row is -infinity */
    CONTENT_OFFSETS   /* of rows 0 to limit - 1, by the case's kind */
} test_content;

/* How rows are shared out among groups, as kind of an op on groups says. */
enum {
    GROUPS_ANY,    /* somehow, and often none to some */
    GROUPS_ONE,    /* one has them all */
    GROUPS_SHORT,  /* a few rows are of no group */
    GROUPS_ASTRAY, /* offsets descend, and lie outside the rows */
    GROUPS_EVEN,
    GROUPS_KINDS
};

typedef struct test_tensor {
    const bski_arg *info;
    bool blocks; /* the last three dimensions are the layout's blocks */
    bool output;
    bsk_tensor desc; /* BSK_NONE where absent */
    test_content content;
    int64_t limit;
    double constant;
    int32_t views; /* 1, or the number of pairs */
    int32_t alias; /* index of the tensor whose memory this output shares, or -1 */
    bool zero_ok;  /* an all-zero result is no reason for mistrust */
    int64_t elems; /* of one view */
    size_t bytes;  /* of one view, gaps included */
    uint8_t *init; /* [views][bytes] memory before the run; NULL for bulk that is only written */
    double *value; /* [views][elems] the same as numbers in index order; NaN outside the matrix */
    int64_t *at;   /* [elems] element offsets, -1 for padding of edge blocks; NULL for bulk */
    double *want;  /* [views][elems] outputs only */
    double *bound; /* [views][elems] */
} test_tensor;

struct test_case {
    char name[TEST_NAME];
    test_spec spec;
    const test_op *op;
    const bski_op_info *about;
    bsk_layout *layout;
    bsk_layout_info info;
    test_layout_text text;     /* of PATTERN_TEXT */
    int32_t *head, *row, *col; /* [nnz] by slot */
    test_tensor t[TEST_ARGS];
    uint64_t rng;
    bool expected; /* expectations are there, or there are none */
    _Alignas(16) unsigned char params[BSKI_MAX_STRUCT];
    _Alignas(16) unsigned char args[BSKI_MAX_STRUCT];
};

/* Builds a case; light leaves out values and expectations, and treats large tensors as bulk, whose
 * contents repeat after a million elements (for the bench). NULL with a message on stderr if the
 * case itself is wrong. */
test_case *test_case_make(const test_spec *spec, bool light);
/* Computes the expectations, unless they are there: what takes longest, and is for cases that run. */
void test_case_expect(test_case *c);
void test_case_free(test_case *c);
/* Recomputes value from init after a change of memory. */
void test_values_refresh(test_tensor *t);

/* Used by build functions. */
test_tensor *test_arg_at(test_case *c, const char *name);
int32_t test_index(const test_case *c, const char *name);
test_tensor *test_set(test_case *c, const char *name, bsk_tensor desc);
test_tensor *test_set_blocks(test_case *c, const char *name, bsk_dtype dtype); /* [nnz, r, c] */
bsk_tensor test_act(const test_case *c, bsk_dtype dtype, int64_t features);    /* by axis */
/* [heads, groups, n, k, m] without those that are 0; n stays. */
bsk_tensor test_shape(const test_case *c, bsk_dtype dtype);
bsk_dtype test_scalar_type(const test_case *c); /* f64 with f64, else f32 */
bsk_dtype test_out_type(const test_case *c);
/* Feature f of row n of activations with spec.m features, by axis. */
int64_t test_row_element(const test_case *c, int64_t n, int64_t f);
/* alpha, and beta * dst of element e. */
double test_alpha(const test_case *c);
double test_old(const test_case *c, const test_tensor *t, int64_t e);
/* Expects alpha * v + beta * dst, where v is known within error. */
void test_expect_blend(const test_case *c, test_tensor *dst, int64_t e, double v, double error);
/* The same for dx beside other gradients, blended with OPT_BLEND; and what that sets. */
void test_blend(const test_case *c, int32_t *dx_blend, double *dx_alpha, double *dx_beta);
void test_expect_dx(const test_case *c, test_tensor *dx, int64_t e, double v, double error);
/* Rows and columns of a block that lie inside the matrix. */
int32_t test_valid_rows(const test_case *c, int64_t slot);
int32_t test_valid_cols(const test_case *c, int64_t slot);
/* Rounding unit of the arithmetic; its smallest normal number, below which exponentials may be 0;
 * and the error of a store of v to type t. */
double test_arith_eps(const test_case *c);
double test_arith_tiny(const test_case *c);
double test_store_error(bsk_dtype t, double v);
/* Element i of an array of any type as a number, and the store of one. */
double test_number(bsk_dtype t, const void *p, int64_t i);
void test_store(bsk_dtype t, void *p, int64_t i, double v);

/* act(v) in f64. */
double test_activation(bsk_act act, double v);
double test_slope(bsk_act act, double v); /* its derivative */
/* Sets want and bound of an element. error is that before the store; 0 means that the result is
 * exact before the store, and must be bit-equal after it. */
void test_expect(test_tensor *t, int64_t at, double want, double error);

/* Random numbers (splitmix64). */
uint64_t test_random(uint64_t *state);
double test_uniform(uint64_t *state, double low, double high);

/* --- Running ------------------------------------------------------------------------------ */

typedef struct test_device {
    const bsk_device *device, *device_one; /* all threads, and one thread */
    bsk_queue *queue, *queue_one;          /* _one: NULL where threads are not the backend's */
    bsk_device_info info;
} test_device;

typedef enum test_status { TEST_PASS, TEST_FAIL, TEST_NA } test_status;

typedef struct test_result {
    test_status status;
    char why[512];
    double error, bound; /* at the element that comes closest to its bound */
} test_result;

/* Runs one entry on one case: plan, red zones, comparison, repeat, one thread. */
test_result test_run(test_case *c, const test_device *d, const char *entry);

bool test_fail(test_result *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A plan of one forced entry, fallback forbidden. */
bsk_status test_plan(test_case *c, const bsk_device *device, const char *entry, bsk_plan **plan);

/* One buffer between red zones on a device, and its image on the host. */
typedef struct test_buffer {
    bsk_mem whole, view; /* view: the payload between the guards */
    size_t bytes;
    uint8_t *image; /* as uploaded, then as downloaded */
    size_t lead;    /* offset of the payload in image */
    size_t total;
} test_buffer;

/* The buffers of a case's arguments and workspace on one device. */
typedef struct test_memory {
    const bsk_device *device;
    test_buffer buffer[TEST_ARGS][TEST_VIEWS];
    bsk_mem views[TEST_ARGS][TEST_VIEWS];
    test_buffer workspace;
} test_memory;

bool test_memory_make(test_memory *m, test_case *c, const bsk_device *device, size_t workspace);
void test_memory_free(test_memory *m);
/* Uploads contents and poison, and writes the views into the case's args. */
bsk_status test_memory_load(test_memory *m, test_case *c, bsk_queue *queue, int poison);
/* After test_run's download: the first byte of an argument's payload. */
const uint8_t *test_memory_payload(const test_memory *m, const test_case *c, int32_t arg);
/* Whether the op reads what the tensor held before. */
bool test_reads_old(const test_case *c, const test_tensor *t);

/* --- Suites beside the cases ---------------------------------------------------------------- */

typedef struct test_session test_session;

/* Counts and prints one result. */
void test_report(test_session *s, const char *name, const test_device *d, const char *entry,
                 const test_result *result);
/* Whether the filters admit a name; with --list the name is printed and the answer is no. */
bool test_wanted(test_session *s, const char *name);
/* Whether the device's backend has an entry for an op. */
bool test_has_entry(const test_device *d, const char *op);
void suite_arguments(test_session *s, const test_device *d);
void suite_allocation(test_session *s, const test_device *d);
void suite_gradients(test_session *s, const test_device *d);

/* A gradient op and the forward op whose finite differences judge it. */
typedef struct test_gradient {
    test_spec forward;
    const char *backward;
    uint32_t options;              /* of the backward op */
    const char *input, *output;    /* x and y of the forward op */
    const char *upstream, *result; /* dy and dx of the backward op */
    const char *shared[12]; /* inputs of both; "a=b" copies output a of the forward to input b */
} test_gradient;

extern const test_gradient test_gradients_dense[], test_gradients_attention[];
extern const int32_t test_gradients_dense_count, test_gradients_attention_count;

/* The subcommands; argv[0] is the command's name. */
int bsk_info_main(int argc, char **argv);
int bsk_check_main(int argc, char **argv);
int bsk_bench_main(int argc, char **argv);
int bsk_tune_main(int argc, char **argv);

#endif
