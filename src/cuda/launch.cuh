/* Kernels that follow each other closely: on Hopper one may be brought to the multiprocessors while the one
 * before it still ends there, so that the time between them is all but nothing.
 *
 * A kernel launched by launch_next() calls await_before() in all of its threads before it reads or writes any
 * memory of the device, and before any of them leaves: then all that was put on the stream before it is done,
 * not only the kernel right before it, for that one waited likewise. What it may do sooner is to look at its
 * arguments. Behind anything but a kernel, and on GPUs that are no Hopper, it begins as any kernel does. */
#ifndef DSVI_LAUNCH_CUH
#define DSVI_LAUNCH_CUH

#include "cuda/kernel.cuh"

namespace dsvi {

/* Waits for all that was put on the stream before this kernel; from here on the next one may come. */
__device__ __forceinline__ void await_before()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Where the kernels that run are those compiled for Hopper: others do not wait. */
inline bool overlaps(const DsvStream *stream)
{
#ifdef DSVI_CUDA_SM90A
    return stream->capability == 90;
#else
    (void)stream;
    return false;
#endif
}

/* kernel<<<blocks, threads, shared>>>(args...), as above. Its failure is told by DSVI_CUDA_LAUNCHED. */
template <typename... Parameters, typename... Arguments>
void launch_next(DsvStream *stream, void (*kernel)(Parameters...), int64_t blocks, int threads, size_t shared,
                 const Arguments &...args)
{
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3((unsigned)blocks);
    launch.blockDim = dim3((unsigned)threads);
    launch.dynamicSmemBytes = shared;
    launch.stream = stream->handle;
    launch.attrs = &overlap;
    launch.numAttrs = overlaps(stream) ? 1 : 0;
    (void)cudaLaunchKernelEx(&launch, kernel, static_cast<Parameters>(args)...);
}

} // namespace dsvi

#endif
