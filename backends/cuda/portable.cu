/* The portable kernels of one file. */
#include <backends/simt/portable.h>
