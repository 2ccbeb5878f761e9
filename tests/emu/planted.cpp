/* The kernels of planted.h as an emulator's object file. */
#include <backends/simt/simt.h>

#include <backends/simt/type.h>

#include "planted.h"

#define ROW(kernel) EMU_ROW(planted, kernel, f32, "")

static const simt_kernel rows[] = {
    ROW(shift) ROW(shift_bare) ROW(shift_twice) ROW(shift_global) ROW(shift_wrong) ROW(one_place)
        ROW(in_place) ROW(returns) ROW(branches) ROW(across) ROW(across_some) ROW(store_past)
            ROW(load_past) ROW(local_unset)
            ROW(local_past) ROW(local_large) ROW(misaligned)};

EMU_UNIT_JOIN(rows)
