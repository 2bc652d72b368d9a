/* One include for every file of kernels: CUDA's headers, or the simulator's (tests/cusim/include),
 * which come under the same names and bring their own LAUNCH and DYN_SHARED. nvcc builds the
 * kernels for a card, a plain C++17 compiler builds the same text for the simulator. So a kernel
 * - is launched by LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...); one with more
 *   than one template argument goes in parentheses: LAUNCH((norm<float, 64>), ...);
 * - takes shared memory whose size is known at launch by DYN_SHARED(type, name), once in a kernel,
 *   aligned to 16 bytes; __shared__ arrays of fixed size and trivial type as ever;
 * - uses no inline PTX, no warp-synchronous code without _sync, no texture, no cooperative group.
 *   What needs more than that (tensor cores, cp.async) has a plain path beside it.
 * Compute capability 3.7 has no half arithmetic: half and bfloat16 are storage, through the
 * conversions of cuda_fp16.h and cuda_bf16.h. */
#ifndef BANTAM_KERNELS_CUDA_PORT_H
#define BANTAM_KERNELS_CUDA_PORT_H

#include <cuda_runtime.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef LAUNCH
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
#define DYN_SHARED(type, name) \
    extern __shared__ __align__(16) unsigned char btcu_dynamic_shared[]; \
    type *name = reinterpret_cast<type *>(btcu_dynamic_shared)
#endif

#endif
