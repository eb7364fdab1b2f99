/* Simulated CUDA driver: arrays and mipmaps. A row takes whole 512 bytes, a sparse or deferred one nothing.
 */
#include "contents.h"
#include "cuda_call.h"

#include <stdlib.h>

enum { ROW_GRANULE = 512, ARRAY_LAYERED = 1, RESOURCE_ARRAY = 0, MARK = 0x61727279 };

struct CUarray_st {
    unsigned mark;
    struct sim_content content;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
};

/* Of one texel; 0: a format that this driver does not know. */
static uint64_t texel_bytes(int format, unsigned channels)
{
    switch (format) {
    case 0x01: /* integers of 8 bits */
    case 0x08:
        return channels;
    case 0x02: /* of 16, and half precision */
    case 0x09:
    case 0x10:
        return 2 * (uint64_t)channels;
    case 0x03: /* of 32, and single precision */
    case 0x0a:
    case 0x20:
        return 4 * (uint64_t)channels;
    default:
        return 0;
    }
}

static size_t halved(size_t extent, unsigned level)
{
    size_t left = level < 64 ? extent >> level : 0;
    return extent && !left ? 1 : left;
}

static uint64_t at_least_one(uint64_t extent)
{
    return extent ? extent : 1;
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels)
{
    uint64_t total = 0;
    bool layered = array->Flags & (ARRAY_LAYERED | ARRAY_CUBEMAP);
    if (array->Flags & (ARRAY_SPARSE | ARRAY_DEFERRED_MAPPING))
        return 0;
    for (unsigned level = 0; level < levels; level++) {
        uint64_t row = halved(array->Width, level) * texel_bytes(array->Format, array->NumChannels);
        row = (row + ROW_GRANULE - 1) / ROW_GRANULE * ROW_GRANULE;
        uint64_t depth = layered ? array->Depth : halved(array->Depth, level);
        total += row * at_least_one(halved(array->Height, level)) * at_least_one(depth);
        if (array->Width >> level <= 1 && array->Height >> level <= 1
            && (layered || array->Depth >> level <= 1))
            break;
    }
    return total;
}

static CUresult create(const char *function, CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                       unsigned levels)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, function);
    if (result == CUDA_SUCCESS
        && (!array || !descriptor || !descriptor->Width
            || !texel_bytes(descriptor->Format, descriptor->NumChannels) || descriptor->Width > 1 << 20
            || descriptor->Height > 1 << 20 || descriptor->Depth > 1 << 14))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return cuda_end(&call, result);
    uint64_t bytes = array_bytes(descriptor, levels ? levels : 1);
    CUarray made = calloc(1, sizeof *made);
    if (!made || !sim_content_take(&call, &made->content, bytes)) {
        free(made);
        return cuda_end(&call, CUDA_ERROR_OUT_OF_MEMORY);
    }
    made->mark = MARK;
    made->descriptor = *descriptor;
    *array = made;
    return cuda_end(&call, CUDA_SUCCESS);
}

static CUresult destroy(const char *function, CUarray array)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, function);
    if (result == CUDA_SUCCESS && (!array || array->mark != MARK))
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) {
        sim_content_give(&array->content);
        array->mark = 0;
        free(array);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *flat)
{
    FAIL_IF_TOLD;
    if (!flat)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {.Width = flat->Width,
                                          .Height = flat->Height,
                                          .Format = flat->Format,
                                          .NumChannels = flat->NumChannels};
    return create(__func__, array, &descriptor, 1);
}

EXPORT CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *flat)
{
    FAIL_IF_TOLD;
    if (!flat)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {.Width = flat->Width,
                                          .Height = flat->Height,
                                          .Format = flat->Format,
                                          .NumChannels = flat->NumChannels};
    return create(__func__, array, &descriptor, 1);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    return create(__func__, array, descriptor, 1);
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *old)
{
    FAIL_IF_TOLD;
    if (!old)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {.Width = old->Width,
                                          .Height = old->Height,
                                          .Depth = old->Depth,
                                          .Format = old->Format,
                                          .NumChannels = old->NumChannels,
                                          .Flags = old->Flags};
    return create(__func__, array, &descriptor, 1);
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
    return destroy(__func__, array);
}

/* A view of an array or of linear memory, which takes none itself. The description begins with its kind. */
EXPORT CUresult cuTexObjectCreate(CUtexObject *object, const CUDA_RESOURCE_DESC *resource,
                                  const CUDA_TEXTURE_DESC *texture, const CUDA_RESOURCE_VIEW_DESC *view)
{
    static _Atomic CUtexObject objects;
    const struct {
        int kind;
        CUarray array;
    } *of = (const void *)resource;
    (void)view;
    FAIL_IF_TOLD;
    if (!object || !of || !texture || (of->kind == RESOURCE_ARRAY && (!of->array || of->array->mark != MARK)))
        return CUDA_ERROR_INVALID_VALUE;
    *object = ++objects;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuTexObjectDestroy(CUtexObject object)
{
    FAIL_IF_TOLD;
    return object ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                       unsigned levels)
{
    CUarray made = NULL;
    CUresult result = create(__func__, array ? &made : NULL, descriptor, levels);
    if (result == CUDA_SUCCESS)
        *array = (CUmipmappedArray)(void *)made;
    return result;
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return destroy(__func__, (CUarray)(void *)array);
}

EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array)
{
    FAIL_IF_TOLD;
    if (!descriptor || !array || array->mark != MARK)
        return CUDA_ERROR_INVALID_VALUE;
    *descriptor = array->descriptor;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *descriptor, CUarray array)
{
    FAIL_IF_TOLD;
    CUDA_ARRAY3D_DESCRIPTOR full;
    CUresult result = descriptor ? cuArray3DGetDescriptor_v2(&full, array) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *descriptor = (CUDA_ARRAY_DESCRIPTOR){full.Width, full.Height, full.Format, full.NumChannels};
    return result;
}
