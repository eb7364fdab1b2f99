/* Leaves the driver by an exception, as C++ programs do from a callback of theirs.
 *
 * There is no C++ here, whose library would take minutes to compile, but the unwinder that it has, and what its
 * compiler writes: a routine per function that catches, which the unwinder asks twice.
 */
#include <setjmp.h>
#include <stdio.h>
#include <unwind.h>

int cuInit(unsigned), cuMemAlloc_v2(unsigned long long *, unsigned long);
int cuLogsRegisterCallback(void (*)(void *, int, char *, unsigned long), void *, void **);

enum { ODD_BYTES = 13, PIECE = 60 << 20 };

static jmp_buf handler;

_Unwind_Reason_Code catches(int version, _Unwind_Action actions, _Unwind_Exception_Class kind,
                            struct _Unwind_Exception *exception, struct _Unwind_Context *frame)
{
    (void)version, (void)kind, (void)exception, (void)frame;
    if (actions & _UA_SEARCH_PHASE)
        return _URC_HANDLER_FOUND;
    longjmp(handler, 1);
}

static void throws(void *data, int level, char *message, unsigned long length)
{
    static struct _Unwind_Exception exception;
    (void)data, (void)level, (void)message, (void)length;
    printf("not caught: %d ", _Unwind_RaiseException(&exception));
}

static __attribute__((noinline)) int caught(void)
{
    unsigned long long address = 0;
    __asm__ volatile(".cfi_personality 0x1b, catches");
    if (setjmp(handler))
        return 1;
    cuMemAlloc_v2(&address, ODD_BYTES);
    return 0;
}

int main(void)
{
    unsigned long long address = 0;
    void *handle;
    int begun = cuInit(0) | cuLogsRegisterCallback(throws, NULL, &handle);
    int first = cuMemAlloc_v2(&address, PIECE);
    printf("%d %d ", begun, first);
    printf("caught %d ", caught());
    printf("%d\n", cuMemAlloc_v2(&address, PIECE));
    return 0;
}
