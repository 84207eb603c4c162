/* A CUDA runtime with one card that runs nothing, for `bench/gpu_dry.py`. Memory, events and copies are there, kernels do
 * nothing; so a program goes its whole way, and torch's allocator counts as on a card. All other functions that torch
 * takes of CUDA's libraries are made beside these; they return 0, which is success. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MEMORY ((size_t)141 << 30)
#define LARGE ((size_t)64 << 20) /* what is copied takes memory of this machine */

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { *free = *total = MEMORY; return cudaSuccess; }

/* What torch and its compiler ask of an H200. */

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *card, int device) {
  memset(card, 0, sizeof *card);
  strcpy(card->name, "NVIDIA H200");
  card->major = 9;
  card->multiProcessorCount = 132;
  card->totalGlobalMem = MEMORY;
  card->warpSize = 32;
  card->maxGridSize[0] = 2147483647;
  card->maxGridSize[1] = card->maxGridSize[2] = 65535;
  card->maxThreadsDim[0] = card->maxThreadsDim[1] = 1024;
  card->maxThreadsDim[2] = 64;
  card->maxThreadsPerBlock = 1024;
  card->maxThreadsPerMultiProcessor = 2048;
  card->regsPerBlock = card->regsPerMultiprocessor = 65536;
  card->sharedMemPerBlock = 49152;
  card->sharedMemPerBlockOptin = 232448;
  card->sharedMemPerMultiprocessor = 233472;
  card->l2CacheSize = 50 << 20;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  switch (attribute) {
  case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
  case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
  case cudaDevAttrMultiProcessorCount: *value = 132; break;
  case cudaDevAttrWarpSize: *value = 32; break;
  case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
  case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
  case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
  default: *value = 1;
  }
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *kernel) {
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024;
  found->binaryVersion = found->ptxVersion = 90;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int size, size_t shared) {
  *blocks = 4;
  return cudaSuccess;
}

/* Streams and events: all is done at once. */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  *stream = (cudaStream_t)1;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  *event = calloc(1, sizeof(struct timespec));
  return *event ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) { free(event); return cudaSuccess; }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  clock_gettime(CLOCK_MONOTONIC, (struct timespec *)event);
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t second) {
  const struct timespec *a = (void *)first, *b = (void *)second;
  *ms = (b->tv_sec - a->tv_sec) * 1e3 + (b->tv_nsec - a->tv_nsec) / 1e6;
  return cudaSuccess;
}

/* Memory: what nobody writes to takes none. */

cudaError_t cudaMalloc(void **at, size_t size) {
  *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *at == MAP_FAILED ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaHostAlloc(void **at, size_t size, unsigned flags) {
  *at = calloc(1, size);
  return *at ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *at) { free(at); return cudaSuccess; }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *at) {
  memset(found, 0, sizeof *found);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  if (kind != cudaMemcpyDeviceToDevice && size < LARGE)
    memmove(to, from, size);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy(to, from, size, kind);
}

/* Of libraries: one product is known for all shapes, and a group has one rank. */

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *wishes,
                                   int asked, void *results, int *found) {
  *found = 1;
  return 0;
}

int ncclCommCount(void *group, int *ranks) { *ranks = 1; return 0; }
