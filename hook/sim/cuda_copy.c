/* Simulated CUDA driver: copies. Nothing is moved and it takes no time, but it happens in order: what is not
 * asynchronous waits for what is before it on the legacy stream.
 */
#include "captures.h"
#include "execution.h"

static CUresult copy_now(const char *function, CUdeviceptr address, const void *host, size_t bytes)
{
    struct stream_call call;
    bool capturing = false;
    CUresult result = stream_begin(&call, function, NULL, false);
    if (result == CUDA_SUCCESS && bytes && (!address || !host))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = capture_work(call.stream, &capturing);
    uint32_t row = result == CUDA_SUCCESS && functions_take_time(call.call.node) ? stream_row(&call) : 0;
    uint64_t pushed = row ? stream_push(&call, 0, NO_MEETING) : 0;
    result = cuda_end(&call.call, result);
    if (row)
        execution_wait(row, pushed);
    return result;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    return copy_now(__func__, to, from, bytes);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    return copy_now(__func__, from, to, bytes);
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
    return copy_now(__func__, to, &value, count);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    struct stream_call call;
    bool capturing = false;
    CUresult result = stream_begin(&call, __func__, stream, false);
    if (result == CUDA_SUCCESS && bytes && (!to || !from))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = capture_work(call.stream, &capturing);
    if (result == CUDA_SUCCESS && capturing)
        result = capture_node(call.stream, (struct node_content){.kind = GRAPH_NODE_COPY}, NULL);
    else if (result == CUDA_SUCCESS && functions_take_time(call.call.node))
        result = stream_push(&call, 0, NO_MEETING) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    return cuda_end(&call.call, result);
}
