/* A library that answers as NVML's documentation says, from files: DIR/0.power holds what device 0 answers, DIR is
 * FAKE_NVML. A file that is not there is "not supported". DIR/0.fails holds a code with which every call for device 0
 * fails, DIR/0.power.fails one for that call alone; DIR/0.stuck lets a call never return.
 * DIR/init.fails is for the beginning, DIR/0.handle.fails for the handle of device 0. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;
enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, TIMEOUT = 10 };
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } nvmlProcessInfo_t;
typedef struct { nvmlDevice_t device; unsigned long long type, data; unsigned int gi, ci; } nvmlEventData_t;

static int there(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML"), name);
    return access(path, F_OK) == 0;
}

/* The code in a file, 0 where there is none. */
static nvmlReturn_t code_in(const char *name) {
    char path[512];
    int code = SUCCESS;
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML"), name);
    FILE *file = fopen(path, "r");
    if (!file) return SUCCESS;
    if (fscanf(file, "%d", &code) != 1) code = 999;
    fclose(file);
    return code;
}

static void wait_if_stuck(long index) {
    char name[64];
    snprintf(name, sizeof name, "%ld.stuck", index);
    if (there(name)) for (;;) pause();
}

static nvmlReturn_t text(nvmlDevice_t device, const char *what, char *out, unsigned int size) {
    char path[512], name[64];
    wait_if_stuck((long)device - 1);
    snprintf(name, sizeof name, "%ld.fails", (long)device - 1);
    if (code_in(name)) return code_in(name);
    snprintf(name, sizeof name, "%ld.%s.fails", (long)device - 1, what);
    if (code_in(name)) return code_in(name);
    snprintf(path, sizeof path, "%s/%ld.%s", getenv("FAKE_NVML"), (long)device - 1, what);
    FILE *file = fopen(path, "r");
    if (!file) return NOT_SUPPORTED;
    if (!fgets(out, size, file)) out[0] = 0;
    out[strcspn(out, "\n")] = 0;
    fclose(file);
    return SUCCESS;
}

static nvmlReturn_t number(nvmlDevice_t device, const char *what, unsigned long long *out) {
    char buffer[64] = "";
    nvmlReturn_t code = text(device, what, buffer, sizeof buffer);
    if (code == SUCCESS) *out = strtoull(buffer, NULL, 10);
    return code;
}

static nvmlReturn_t small(nvmlDevice_t device, const char *what, unsigned int *out) {
    unsigned long long value = 0;
    nvmlReturn_t code = number(device, what, &value);
    if (code == SUCCESS) *out = (unsigned int)value;
    return code;
}

nvmlReturn_t nvmlInit_v2(void) { return code_in("init.fails"); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    for (*count = 0; *count < 64; ++*count) {
        char name[32];
        snprintf(name, sizeof name, "%u.name", *count);
        if (!there(name)) break;
    }
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    char name[64];
    snprintf(name, sizeof name, "%u.handle.fails", index);
    *device = (nvmlDevice_t)((long)index + 1);
    return code_in(name);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int size) { return text(device, "name", name, size); }
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int size) { return text(device, "uuid", uuid, size); }
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *mw) { return small(device, "power", mw); }
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *mj) {
    return number(device, "energy", mj);
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *mhz) {
    return small(device, type == 1 ? "clock" : type == 2 ? "memory_clock" : "none", mhz);
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *degrees) {
    return sensor == 0 ? small(device, "temperature", degrees) : INVALID;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    rates->memory = 0;
    return small(device, "used", &rates->gpu);
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    memory->total = 80ull << 30;
    nvmlReturn_t code = number(device, "memory", &memory->used);
    memory->free = memory->total - memory->used;
    return code;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return number(device, "reasons", reasons);
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *count) {
    return type == 1 && counter == 0 ? number(device, "ecc", count) : INVALID;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
    unsigned int pid;
    *count = 0;
    if (small(device, "pid", &pid) == SUCCESS) infos[(*count)++].pid = pid;
    return SUCCESS;
}
nvmlReturn_t nvmlEventSetCreate(void **set) { *set = (void *)7; return SUCCESS; }
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, void *set) {
    char name[64];
    snprintf(name, sizeof name, "%ld.events.fails", (long)device - 1);
    return device && types == 8 && set == (void *)7 ? code_in(name) : INVALID;
}
nvmlReturn_t nvmlEventSetWait_v2(void *set, nvmlEventData_t *data, unsigned int milliseconds) {
    char path[512];
    snprintf(path, sizeof path, "%s/0.xid", getenv("FAKE_NVML"));
    if (set != (void *)7 || milliseconds) return INVALID;
    if (number((nvmlDevice_t)1, "xid", &data->data) != SUCCESS) return TIMEOUT;
    data->device = (nvmlDevice_t)1;
    data->type = 8;
    unlink(path);
    return SUCCESS;
}
