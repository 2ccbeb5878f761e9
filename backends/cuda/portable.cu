/* The portable kernels of one file for one storage type, in all variants of instances.inc.
 * The build sets SIMT_FILE (the file, <backends/simt/ops.h>), SIMT_T, and SIMT_TILES for a file
 * whose kernels come in tile sizes. */
#include <backends/simt/simt.h>

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
