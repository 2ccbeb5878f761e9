/* Part of a build of the OpenCL backend whose calls of the driver fail on command. The linker turns
 * the backend's calls into those of the __wrap functions (--wrap). */
#include <pthread.h>
#include <string.h>

#include <backends/opencl/opencl.h>

#include "opencl_faults.h"

static struct {
    pthread_mutex_t lock;
    char call[64];
    cl_int error;
    int skip;
    int met; /* calls since the fault was set */
} fault = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void fault_set(const char *call, int error, int skip)
{
    pthread_mutex_lock(&fault.lock);
    strncpy(fault.call, call, sizeof fault.call - 1);
    fault.error = error;
    fault.skip = skip;
    fault.met = 0;
    pthread_mutex_unlock(&fault.lock);
}

static int fault_met(void)
{
    pthread_mutex_lock(&fault.lock);
    int met = fault.met;
    pthread_mutex_unlock(&fault.lock);
    return met;
}

static cl_int fault_of(const char *call)
{
    pthread_mutex_lock(&fault.lock);
    cl_int error = CL_SUCCESS;
    if (!strcmp(call, fault.call) && fault.met++ >= fault.skip)
        error = fault.error;
    pthread_mutex_unlock(&fault.lock);
    return error;
}

/* A call that answers an error, and one that answers an object and leaves an error. */
#define STATUS(name, parameters, arguments)                                                        \
    cl_int __real_##name parameters;                                                               \
    cl_int __wrap_##name parameters;                                                               \
    cl_int __wrap_##name parameters                                                                \
    {                                                                                              \
        cl_int failed = fault_of(#name);                                                           \
        return failed ? failed : __real_##name arguments;                                          \
    }
#define OBJECT(type, name, parameters, arguments)                                                  \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        cl_int failed = fault_of(#name);                                                           \
        if (!failed)                                                                               \
            return __real_##name arguments;                                                        \
        *error = failed;                                                                           \
        return NULL;                                                                               \
    }

STATUS(clGetPlatformIDs, (cl_uint n, cl_platform_id *ids, cl_uint *count), (n, ids, count))
STATUS(clGetDeviceIDs,
       (cl_platform_id platform, cl_device_type type, cl_uint n, cl_device_id *ids, cl_uint *count),
       (platform, type, n, ids, count))
OBJECT(cl_context, clCreateContext,
       (const cl_context_properties *properties, cl_uint n, const cl_device_id *ids,
        void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *user,
        cl_int *error),
       (properties, n, ids, notify, user, error))
OBJECT(cl_command_queue, clCreateCommandQueue,
       (cl_context context, cl_device_id id, cl_command_queue_properties properties, cl_int *error),
       (context, id, properties, error))
OBJECT(cl_mem, clCreateBuffer,
       (cl_context context, cl_mem_flags flags, size_t bytes, void *host, cl_int *error),
       (context, flags, bytes, host, error))
OBJECT(cl_program, clCreateProgramWithSource,
       (cl_context context, cl_uint n, const char **texts, const size_t *bytes, cl_int *error),
       (context, n, texts, bytes, error))
OBJECT(cl_program, clCreateProgramWithBinary,
       (cl_context context, cl_uint n, const cl_device_id *ids, const size_t *bytes,
        const unsigned char **binaries, cl_int *states, cl_int *error),
       (context, n, ids, bytes, binaries, states, error))
STATUS(clBuildProgram,
       (cl_program program, cl_uint n, const cl_device_id *ids, const char *options,
        void(CL_CALLBACK *notify)(cl_program, void *), void *user),
       (program, n, ids, options, notify, user))
OBJECT(cl_kernel, clCreateKernel, (cl_program program, const char *name, cl_int *error),
       (program, name, error))
STATUS(clGetKernelInfo,
       (cl_kernel kernel, cl_kernel_info what, size_t size, void *value, size_t *need),
       (kernel, what, size, value, need))
STATUS(clGetKernelWorkGroupInfo,
       (cl_kernel kernel, cl_device_id id, cl_kernel_work_group_info what, size_t size, void *value,
        size_t *need),
       (kernel, id, what, size, value, need))
STATUS(clSetKernelArg, (cl_kernel kernel, cl_uint index, size_t bytes, const void *value),
       (kernel, index, bytes, value))
STATUS(clEnqueueNDRangeKernel,
       (cl_command_queue queue, cl_kernel kernel, cl_uint axes, const size_t *offset,
        const size_t *global, const size_t *local, cl_uint n, const cl_event *before,
        cl_event *event),
       (queue, kernel, axes, offset, global, local, n, before, event))
STATUS(clEnqueueWriteBuffer,
       (cl_command_queue queue, cl_mem to, cl_bool wait, size_t at, size_t bytes, const void *from,
        cl_uint n, const cl_event *before, cl_event *event),
       (queue, to, wait, at, bytes, from, n, before, event))
STATUS(clEnqueueReadBuffer,
       (cl_command_queue queue, cl_mem from, cl_bool wait, size_t at, size_t bytes, void *to,
        cl_uint n, const cl_event *before, cl_event *event),
       (queue, from, wait, at, bytes, to, n, before, event))
STATUS(clEnqueueFillBuffer,
       (cl_command_queue queue, cl_mem to, const void *pattern, size_t size, size_t at,
        size_t bytes, cl_uint n, const cl_event *before, cl_event *event),
       (queue, to, pattern, size, at, bytes, n, before, event))
STATUS(clEnqueueMarkerWithWaitList,
       (cl_command_queue queue, cl_uint n, const cl_event *before, cl_event *event),
       (queue, n, before, event))

/* Work of a queue that answers an error has ended one way or the other. It is waited for, or it
 * would reach into memory that its owner rightly gave back. */
cl_int __real_clFinish(cl_command_queue queue);
cl_int __wrap_clFinish(cl_command_queue queue);
cl_int __wrap_clFinish(cl_command_queue queue)
{
    cl_int failed = fault_of("clFinish"), error = __real_clFinish(queue);
    return failed ? failed : error;
}

static const opencl_faults control = {fault_set, fault_met};

__attribute__((visibility("default"))) const opencl_faults *bsk_opencl_faults(void);
const opencl_faults *bsk_opencl_faults(void)
{
    return &control;
}
