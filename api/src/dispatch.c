/* The choice of an entry: forced name, then priority, with every refusal explained. */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "api/src/internal.h"

static const char *const reasons[BSK_REASON_COUNT] = {
    [BSK_ACCEPT] = "accepted",
    [BSK_REFUSE_DTYPE] = "dtype",
    [BSK_REFUSE_BLOCK] = "block size",
    [BSK_REFUSE_ARCH] = "architecture",
    [BSK_REFUSE_BANNED] = "banned or not among the forced entries",
    [BSK_REFUSE_REFERENCE] = "reference entry under policy forbid",
    [BSK_REFUSE_ALIGNMENT] = "alignment",
    [BSK_REFUSE_STRIDE] = "stride",
    [BSK_REFUSE_RANK] = "rank",
    [BSK_REFUSE_SHAPE] = "shape",
    [BSK_REFUSE_LAYOUT] = "layout",
    [BSK_REFUSE_EPILOGUE] = "epilogue",
    [BSK_REFUSE_OPTION] = "option",
    [BSK_REFUSE_LIMIT] = "device limit",
    [BSK_REFUSE_UNPROVEN] = "unproven, by name only",
};

const char *bski_reason_name(bsk_reason reason)
{
    return (unsigned)reason < BSK_REASON_COUNT ? reasons[reason] : "unknown reason";
}

enum { MAX_GLOB = 127 };

/* One item of a list "+glob,-glob". */
typedef struct item {
    char sign;
    char glob[MAX_GLOB + 1];
} item;

/* Reads the item at *list, which was checked, and moves past it. False at the end. */
static bool next_item(const char **list, item *out)
{
    const char *p = *list;
    if (!p || !*p)
        return false;
    size_t n = strcspn(p, ",");
    out->sign = *p;
    memcpy(out->glob, p + 1, n - 1);
    out->glob[n - 1] = 0;
    *list = p + n + (p[n] == ',');
    return true;
}

static bool item_matches(const item *i, const char *name)
{
    return fnmatch(i->glob, name, 0) == 0;
}

/* Whether the lists force an entry, or force another one for this op, or ban it. */
typedef enum verdict { NEUTRAL, FORCED, BANNED } verdict;

static verdict judge_list(const char *list, const char *name, bool others_forced)
{
    verdict v = others_forced ? BANNED : NEUTRAL;
    item i;
    while (next_item(&list, &i))
        if (item_matches(&i, name))
            v = i.sign == '+' ? FORCED : BANNED;
    return v;
}

/* Whether a list forces any entry of op. */
static bool list_forces(const char *list, const bski_backend *backend, bsk_op op)
{
    item i;
    while (next_item(&list, &i))
        for (size_t e = 0; i.sign == '+' && e < backend->api->entry_count; e++)
            if (backend->entries[e]->op == op && item_matches(&i, backend->entries[e]->name))
                return true;
    return false;
}

/* Checks the form of a list, so that its items can be read. */
static bsk_status check_form(const char *kernels, bsk_status error, const char *name)
{
    for (const char *p = kernels;; p++) {
        const bool sign = *p == '+' || *p == '-';
        const size_t n = sign ? strcspn(p + 1, ",+- ") : 0;
        if (!n || (p[1 + n] && p[1 + n] != ','))
            return bski_fail(error,
                             "%s is \"%s\"; legal are \"+glob\" and \"-glob\" separated by ','",
                             name, kernels);
        if (n > MAX_GLOB)
            return bski_fail(error,
                             "%s: \"%.20s...\" is too long a glob of %zu characters; legal "
                             "are up to %d",
                             name, p, n, MAX_GLOB);
        p += 1 + n;
        if (!*p)
            return BSK_OK;
    }
}

bsk_status bski_kernels_check(const bsk_context *context, const char *kernels, bsk_status error,
                              const char *name)
{
    item i;
    BSKI_TRY(check_form(kernels, error, name));
    for (const char *list = kernels; next_item(&list, &i);) {
        bool found = false;
        for (size_t b = 0; b < context->backend_count; b++)
            for (size_t e = 0; e < context->backends[b].api->entry_count; e++)
                found |= item_matches(&i, context->backends[b].entries[e]->name);
        if (!found)
            return bski_fail(error,
                             "%s: \"%c%s\" matches no entry; legal are '+' or '-' and the name of "
                             "an entry or a glob",
                             name, i.sign, i.glob);
    }
    return BSK_OK;
}

/* The part of the decision that the entry's data makes. */
static bsk_reason data_reason(const bsk_entry *e, const bsk_device *d, const bsk_problem *p,
                              int32_t alignment)
{
    if (e->arch_min > d->props.arch || e->arch_min > d->backend->max_arch ||
        (e->arch_max && e->arch_max < d->props.arch))
        return BSK_REFUSE_ARCH;
    if (e->dtypes && !(e->dtypes & BSK_DTYPE_BIT(p->dtype)))
        return BSK_REFUSE_DTYPE;
    if (e->blocks && p->layout) {
        uint32_t bits = bsk_block_bit(p->layout->block_rows) | bsk_block_bit(p->layout->block_cols);
        if (bits & ~e->blocks)
            return BSK_REFUSE_BLOCK;
    }
    if (e->alignment > alignment)
        return BSK_REFUSE_ALIGNMENT;
    return BSK_ACCEPT;
}

/* A request: what entries are judged by. */
typedef struct request {
    const bsk_device *device;
    const bsk_problem *problem;
    const bsk_plan_options *options;
    bsk_fallback fallback;
    bool forced_here, forced_extra; /* the context's list, the plan's list forces an entry */
} request;

static bsk_reason judge(const request *r, const bsk_entry *e)
{
    /* The plan's own list speaks last. */
    verdict v = judge_list(r->options->kernels, e->name, r->forced_extra);
    if (v == NEUTRAL)
        v = judge_list(r->device->context->settings.kernels, e->name, r->forced_here);
    bsk_reason reason = data_reason(e, r->device, r->problem, r->options->alignment);
    if (v == BANNED)
        return BSK_REFUSE_BANNED;
    if (v == NEUTRAL && !reason && r->fallback == BSK_FALLBACK_FORBID &&
        (e->flags & BSK_ENTRY_REFERENCE))
        return BSK_REFUSE_REFERENCE;
    if (v == NEUTRAL && !reason && e->priority < 0)
        return BSK_REFUSE_UNPROVEN;
    return !reason && e->accept ? e->accept(r->problem, &r->device->props) : reason;
}

/* The entry that a tuning record prefers, if it is there and accepts. */
static const bsk_entry *tuned_entry(const request *r)
{
    const bski_backend *b = r->device->backend;
    const char *name = bski_tuning_find(r->device, r->problem);
    for (size_t i = 0; name && i < b->api->entry_count; i++) {
        const bsk_entry *e = b->entries[i];
        if (e->op == r->problem->op && !strcmp(e->name, name) && judge(r, e) == BSK_ACCEPT)
            return e;
    }
    return NULL;
}

bsk_status bski_dispatch(const bsk_device *device, const bsk_problem *problem,
                         const bsk_plan_options *options, bsk_fallback fallback,
                         const bsk_entry **entry)
{
    const bsk_context *c = device->context;
    const bski_backend *b = device->backend;
    const char *op = bski_kernel_op(problem->op)->name, *type = bsk_dtype_name(problem->dtype);
    const request r = {
        .device = device,
        .problem = problem,
        .options = options,
        .fallback = fallback,
        .forced_here = list_forces(c->settings.kernels, b, problem->op),
        .forced_extra = list_forces(options->kernels, b, problem->op),
    };
    char why[384] = "";
    const bsk_entry *best = tuned_entry(&r);
    double best_seconds = 0;
    const bool tuned = best != NULL;

    for (size_t i = 0; !tuned && i < b->api->entry_count; i++) {
        const bsk_entry *e = b->entries[i];
        if (e->op != problem->op)
            continue;
        /* Only estimates compare entries, and only those of one priority. */
        if (best && (!best->seconds || e->priority < best->priority))
            break;
        const bsk_reason reason = judge(&r, e);
        if (reason == BSK_ACCEPT) {
            const double seconds = e->seconds ? e->seconds(problem, &device->props) : 0;
            if (e->seconds)
                bski_log(c, BSK_LOG_DISPATCH, "%s %s on %s: %s accepts: about %.3g us", op, type,
                         device->id, e->name, 1e6 * seconds);
            if (!best || (e->seconds && seconds < best_seconds)) {
                best = e;
                best_seconds = seconds;
            }
            continue;
        }
        bski_log(c, BSK_LOG_DISPATCH, "%s %s on %s: %s refuses: %s", op, type, device->id, e->name,
                 bski_reason_name(reason));
        size_t used = strlen(why);
        snprintf(why + used, sizeof(why) - used, "%s%s: %s", used ? "; " : "", e->name,
                 bski_reason_name(reason));
    }
    if (!best)
        return bski_fail(BSK_E_UNSUPPORTED, "%s %s on %s: no entry accepts (%s)", op, type,
                         device->id, *why ? why : "none is there");
    bski_log(c, BSK_LOG_DISPATCH, "%s %s on %s: %s%s", op, type, device->id, best->name,
             tuned ? ", by a tuning record" : "");
    *entry = best;
    return BSK_OK;
}
