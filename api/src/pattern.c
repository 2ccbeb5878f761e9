/* bsk_pattern_evolve of bsk/weights.h; the work is done by the layout core. */
#include "api/src/internal.h"
#include "common/layout.h"

bsk_status bsk_pattern_evolve(const bsk_layout *layout, const float *norm, double fraction,
                              uint64_t seed, uint8_t *keep, bsk_layout **evolved)
{
    if (!evolved)
        return bski_fail(BSK_E_INVALID, "%s: evolved must not be NULL", __func__);
    *evolved = NULL;
    if (!layout)
        return bski_fail(BSK_E_INVALID, "%s: layout must not be NULL", __func__);
    bski_diag diag;
    bsk_status status = bski_layout_evolve(layout, norm, fraction, seed, keep, evolved, &diag);
    return status == BSK_OK ? status : bski_fail(status, "%s: %s", __func__, diag.text);
}
