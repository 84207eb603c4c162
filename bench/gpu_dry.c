/* A CUDA runtime with one card that runs nothing: `bench/gpu_dry.py` lets torch trace a step of fake tensors on it.
 * Every other function of the runtime that torch takes is made beside these; it returns success. */
#include <cuda_runtime_api.h>
#include <string.h>
#include <sys/mman.h>

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 0; return cudaSuccess; }

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

/* Memory that nobody writes to takes none. */
cudaError_t cudaMalloc(void **at, size_t size) {
  *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *at == MAP_FAILED ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  *free = *total = (size_t)141 << 30;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
  return cudaSuccess;
}

/* What torch and its compiler ask of an H200. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *card, int device) {
  memset(card, 0, sizeof *card);
  strcpy(card->name, "NVIDIA H200");
  card->major = 9;
  card->multiProcessorCount = 132;
  card->totalGlobalMem = (size_t)141 << 30;
  card->warpSize = 32;
  card->maxThreadsPerBlock = 1024;
  card->maxThreadsPerMultiProcessor = 2048;
  card->regsPerBlock = card->regsPerMultiprocessor = 65536;
  card->sharedMemPerBlock = 49152;
  card->sharedMemPerBlockOptin = 232448;
  card->sharedMemPerMultiprocessor = 233472;
  card->l2CacheSize = 50 << 20;
  return cudaSuccess;
}
