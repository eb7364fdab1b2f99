/* A thread is cancelled while it gives back unused memory of a pool, which is destroyed then. Waits for a line
 * before the thread begins and before it is waited for; prints "cancelled", and what destroying gave.
 */
#include "cuda_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define CUDA(name, ...)                                                        \
  ((CUresult(*)())dlsym(dlopen("libcuda.so.1", RTLD_LAZY), name))(__VA_ARGS__)

static CUcontext context;

static void *ask(void *unused) {
  CUdeviceptr memory;
  (void)unused;
  CUDA("cuCtxSetCurrent", context);
  CUDA("cuMemAlloc_v2", &memory, 900 * MIB);
  return NULL;
}

static void await_line(void) {
  char line[8];
  if (!fgets(line, sizeof line, stdin))
    _exit(1);
}

int main(void) {
  CUmemPoolProps properties = {.allocType = 1, .location = {.type = 1}};
  unsigned long long keep = 1024 * MIB;
  CUstream stream = NULL;
  CUmemoryPool pool;
  CUdeviceptr memory;
  pthread_t thread;
  setbuf(stdout, NULL);
  if (CUDA("cuInit", 0) || CUDA("cuDevicePrimaryCtxRetain", &context, 0) ||
      CUDA("cuCtxSetCurrent", context) ||
      CUDA("cuMemPoolCreate", &pool, &properties) ||
      CUDA("cuMemPoolSetAttribute", pool, 4, &keep) ||
      CUDA("cuMemAllocFromPoolAsync", &memory, 512 * MIB, pool, stream) ||
      CUDA("cuMemFreeAsync", memory, stream) || CUDA("cuCtxSynchronize"))
    return 1;
  puts("kept");
  await_line();
  if (pthread_create(&thread, NULL, ask, NULL) != 0)
    return 1;
  usleep(300000); /* not to be there by then is no failure */
  pthread_cancel(thread);
  puts("cancelled");
  await_line();
  pthread_join(thread, NULL);
  printf("destroyed %d\n", CUDA("cuMemPoolDestroy", pool));
  return 0;
}
