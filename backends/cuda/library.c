/* Loads kernels: the code of a file when a plan first needs one of its kernels, once for the
 * process. The runtime brings it to each device where a kernel is used. */
#include <pthread.h>

#include <backends/cuda/cuda.h>
#include <backends/cuda/library.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bski_cuda_library *loaded;

static cudaError_t library_load(bski_cuda_library *library)
{
    if (library->handle)
        return cudaSuccess;
    const cudaError_t error =
        cudaLibraryLoadData(&library->handle, library->image, NULL, NULL, 0, NULL, NULL, 0);
    if (error) {
        library->handle = NULL;
        return error;
    }
    library->next = loaded;
    loaded = library;
    return cudaSuccess;
}

static cudaError_t symbol_load(bski_cuda_symbol *symbol)
{
    cudaKernel_t kernel = symbol->handle;
    cudaError_t error = kernel ? cudaSuccess : library_load(symbol->library);
    if (!error && !kernel)
        error = cudaLibraryGetKernel(&kernel, symbol->library->handle, symbol->name);
    if (!error)
        __atomic_store_n(&symbol->handle, kernel, __ATOMIC_RELEASE);
    return error;
}

cudaError_t bski_cuda_load(const void *function)
{
    pthread_mutex_lock(&lock);
    const cudaError_t error = symbol_load((bski_cuda_symbol *)(uintptr_t)function);
    pthread_mutex_unlock(&lock);
    return error;
}

const void *bski_cuda_loaded(const void *function)
{
    const bski_cuda_symbol *symbol = function;
    return __atomic_load_n(&symbol->handle, __ATOMIC_ACQUIRE);
}

/* When the module goes. A runtime that has ended before it has no code any more, and says so. */
__attribute__((destructor)) static void libraries_unload(void)
{
    for (; loaded; loaded = loaded->next)
        cudaLibraryUnload(loaded->handle);
}
