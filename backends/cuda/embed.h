/* The object that a file of kernels becomes. kernels.sh writes a C file that sets IMAGE, the name of
 * the file with their code, includes this, and has a line KERNEL(name) for each. */
#ifndef BSKI_CUDA_EMBED_H
#define BSKI_CUDA_EMBED_H

#include <backends/cuda/library.h>

/* The section is where CUDA's tools look for code. */
__asm__(".pushsection .nv_fatbin, \"a\"\n"
        ".balign 8\n"
        "image: .incbin \"" IMAGE "\"\n"
        ".popsection\n");
extern const char image[] __attribute__((visibility("hidden")));

static bski_cuda_library library = {.image = image};

#define KERNEL(symbol) bski_cuda_symbol symbol = {.name = #symbol, .library = &library};

#endif
