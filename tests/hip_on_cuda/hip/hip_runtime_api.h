/* The HIP calls that backends/hip uses, as CUDA calls: with this header in place of HIP's the
 * backend's host code builds by nvcc and runs on an NVIDIA device. For tests only. */
#ifndef HIP_ON_CUDA_HIP_RUNTIME_API_H
#define HIP_ON_CUDA_HIP_RUNTIME_API_H

#include <stdio.h>

#include <backends/cuda/cuda.h>

/* --- Types --- */
typedef cudaError_t hipError_t;
typedef cudaStream_t hipStream_t;
typedef cudaEvent_t hipEvent_t;
typedef int hipDevice_t;
typedef enum cudaMemcpyKind hipMemcpyKind;
typedef enum cudaDeviceAttr hipDeviceAttribute_t;
typedef struct cudaFuncAttributes hipFuncAttributes;

/* --- Errors --- */
#define hipSuccess                       cudaSuccess
#define hipErrorInvalidValue             cudaErrorInvalidValue
#define hipErrorOutOfMemory              cudaErrorMemoryAllocation
#define hipErrorInsufficientDriver       cudaErrorInsufficientDriver
#define hipErrorInvalidDeviceFunction    cudaErrorInvalidDeviceFunction
#define hipErrorNoDevice                 cudaErrorNoDevice
#define hipErrorInvalidDevice            cudaErrorInvalidDevice
#define hipErrorNoBinaryForGpu           cudaErrorNoKernelImageForDevice
#define hipErrorECCNotCorrectable        cudaErrorECCUncorrectable
#define hipErrorInvalidHandle            cudaErrorInvalidResourceHandle
#define hipErrorIllegalAddress           cudaErrorIllegalAddress
#define hipErrorLaunchTimeOut            cudaErrorLaunchTimeout
#define hipErrorContextIsDestroyed       cudaErrorContextIsDestroyed
#define hipErrorAssert                   cudaErrorAssert
#define hipErrorLaunchFailure            cudaErrorLaunchFailure
#define hipErrorStreamCaptureUnsupported cudaErrorStreamCaptureUnsupported
#define hipErrorStreamCaptureInvalidated cudaErrorStreamCaptureInvalidated
#define hipErrorStreamCaptureImplicit    cudaErrorStreamCaptureImplicit
#define hipErrorCapturedEvent            cudaErrorCapturedEvent
#define hipGetErrorName                  cudaGetErrorName
#define hipGetErrorString                cudaGetErrorString
#define hipGetLastError                  cudaGetLastError

/* --- Devices --- */
#define hipDeviceAttributeComputeCapabilityMajor  cudaDevAttrComputeCapabilityMajor
#define hipDeviceAttributeComputeCapabilityMinor  cudaDevAttrComputeCapabilityMinor
#define hipDeviceAttributeMultiprocessorCount     cudaDevAttrMultiProcessorCount
#define hipDeviceAttributeMaxSharedMemoryPerBlock cudaDevAttrMaxSharedMemoryPerBlock
#define hipDeviceAttributeMaxThreadsPerBlock      cudaDevAttrMaxThreadsPerBlock
#define hipDeviceAttributeWarpSize                cudaDevAttrWarpSize
#define hipGetDeviceCount                         cudaGetDeviceCount
#define hipGetDevice                              cudaGetDevice
#define hipSetDevice                              cudaSetDevice
#define hipDeviceGetAttribute                     cudaDeviceGetAttribute
#define hipDriverGetVersion                       cudaDriverGetVersion

static inline hipError_t hipDeviceGet(hipDevice_t *device, int index)
{
    int count = 0;
    hipError_t error = cudaGetDeviceCount(&count);
    *device = index;
    return error ? error : index >= 0 && index < count ? cudaSuccess : cudaErrorInvalidDevice;
}

static inline hipError_t hipDeviceGetName(char *name, int size, hipDevice_t device)
{
    struct cudaDeviceProp p;
    hipError_t error = cudaGetDeviceProperties(&p, device);
    if (!error)
        snprintf(name, (size_t)size, "%.*s", size - 1, p.name);
    return error;
}

static inline hipError_t hipDeviceTotalMem(size_t *bytes, hipDevice_t device)
{
    struct cudaDeviceProp p;
    hipError_t error = cudaGetDeviceProperties(&p, device);
    *bytes = error ? 0 : p.totalGlobalMem;
    return error;
}

/* --- Memory --- */
#define hipMalloc             cudaMalloc
#define hipFree               cudaFree
#define hipMemcpyAsync        cudaMemcpyAsync
#define hipMemsetAsync        cudaMemsetAsync
#define hipMemcpyHostToDevice cudaMemcpyHostToDevice
#define hipMemcpyDeviceToHost cudaMemcpyDeviceToHost

/* --- Captures --- */
#define hipStreamCaptureMode               enum cudaStreamCaptureMode
#define hipStreamCaptureModeRelaxed        cudaStreamCaptureModeRelaxed
#define hipThreadExchangeStreamCaptureMode cudaThreadExchangeStreamCaptureMode

/* --- Streams and events --- */
#define hipStreamNonBlocking     cudaStreamNonBlocking
#define hipStreamCreateWithFlags cudaStreamCreateWithFlags
#define hipStreamDestroy         cudaStreamDestroy
#define hipStreamSynchronize     cudaStreamSynchronize
#define hipEventDisableTiming    cudaEventDisableTiming
#define hipEventCreate           cudaEventCreate
#define hipEventCreateWithFlags  cudaEventCreateWithFlags
#define hipEventDestroy          cudaEventDestroy
#define hipEventRecord           cudaEventRecord
#define hipEventSynchronize      cudaEventSynchronize
#define hipEventElapsedTime      cudaEventElapsedTime

/* --- Kernels --- */
static inline hipError_t hipFuncGetAttributes(hipFuncAttributes *attributes, const void *function)
{
    hipError_t error = bski_cuda_load(function);
    return error ? error : cudaFuncGetAttributes(attributes, bski_cuda_loaded(function));
}

static inline hipError_t hipLaunchKernel(const void *function, dim3 grid, dim3 group,
                                         void **arguments, size_t shared_bytes, hipStream_t stream)
{
    return cudaLaunchKernel(bski_cuda_loaded(function), grid, group, arguments, shared_bytes,
                            stream);
}

#endif
