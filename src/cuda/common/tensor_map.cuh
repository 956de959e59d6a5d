/* TMA descriptors: the driver's function that makes them. */
#ifndef DSVI_TENSOR_MAP_CUH
#define DSVI_TENSOR_MAP_CUH

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace dsvi::hopper {

using MapEncoder = decltype(&cuTensorMapEncodeTiled);

/* Returns the driver's function that makes TMA descriptors, found without linking to the driver; NULL if the
 * driver has none. */
inline MapEncoder find_encoder()
{
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                         cudaEnableDefault, &result);
    if (error != cudaSuccess)
        cudaGetLastError(); /* clears the error, which the check after the next launch would otherwise report
                             */
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess)
        return nullptr;
    return reinterpret_cast<MapEncoder>(entry);
}

} // namespace dsvi::hopper

#endif
