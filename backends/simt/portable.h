/* The portable kernels of one file in all variants of instances.inc, for compilers ahead of time.
 * The build sets SIMT_FILE (the file, <backends/simt/ops.h>), SIMT_T for one storage type, else it is
 * all that the file has, and SIMT_TILES for a file whose kernels come in tile sizes. */
#include <backends/simt/simt.h>

#ifdef SIMT_T
#include <backends/simt/type.h>

#include SIMT_FILE

#ifdef SIMT_TILES
#define TM 8
#include SIMT_FILE
#undef TM
#define TM 16
#include SIMT_FILE
#undef TM
#define TM 32
#include SIMT_FILE
#undef TM
#define TM 64
#include SIMT_FILE
#endif

#else
#define SIMT_T f32
#include <backends/simt/type.h>

#include SIMT_FILE
#undef SIMT_T
#if !defined(SIMT_SINGLES) && !defined(SIMT_HALVES)
#define SIMT_T f16
#include <backends/simt/type.h>

#include SIMT_FILE
#undef SIMT_T
#endif
#ifndef SIMT_SINGLES
#define SIMT_T bf16
#include <backends/simt/type.h>

#include SIMT_FILE
#undef SIMT_T
#endif
#define SIMT_T f64
#include <backends/simt/type.h>

#include SIMT_FILE
#endif
