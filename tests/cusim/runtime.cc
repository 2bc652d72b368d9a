/* The calls of the CUDA runtime that are about devices and errors, and the faults that can be
 * played: a call that fails, a device that is lost, a call that never returns. */
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unistd.h>

#include "fiber.h"
#include "state.h"

namespace cusim {

cusim_counts &counts = *new cusim_counts();

namespace {

std::recursive_mutex &lock = *new std::recursive_mutex;
int depth; /* of calls within calls */
cudaError_t broken = cudaSuccess;
thread_local cudaError_t last = cudaSuccess;
thread_local int device;
std::map<const void *, int> &opted_in = *new std::map<const void *, int>;

/* CUSIM_STATS names a file that gets the counts when the process ends. */
void write_counts() {
    const char *path = getenv("CUSIM_STATS");
    FILE *f = path != nullptr ? fopen(path, "w") : nullptr;
    if (f == nullptr) return;
    const cusim_counts &c = counts;
#define WRITE(name) fprintf(f, #name " %llu\n", (unsigned long long)c.name)
    WRITE(calls), WRITE(mallocs), WRITE(host_mallocs), WRITE(streams), WRITE(events);
    WRITE(launches), WRITE(kernels), WRITE(threads), WRITE(switches), WRITE(copies);
    WRITE(syncs), WRITE(products), WRITE(workspaces), WRITE(live_bytes), WRITE(peak_bytes);
#undef WRITE
    fprintf(f, "last_device %d\n", last_device());
    fclose(f);
}

struct card {
    int arch, processors;
    size_t shared_optin, shared_processor;
    int clock_khz, memory_khz, bus_bits, l2_bytes;
    const char *name;
};
const card cards[] = {
    {37, 13, 49152, 114688, 823500, 2505000, 384, 1572864, "Tesla K80"},
    {52, 24, 49152, 98304, 1076000, 3505000, 384, 3145728, "sm_52"},
    {60, 56, 49152, 65536, 1328500, 715000, 4096, 4194304, "Tesla P100"},
    {70, 80, 98304, 98304, 1380000, 877000, 4096, 6291456, "Tesla V100"},
    {75, 40, 65536, 65536, 1590000, 5001000, 256, 4194304, "Tesla T4"},
    {80, 108, 166912, 167936, 1410000, 1215000, 5120, 41943040, "A100"},
    {86, 82, 101376, 102400, 1695000, 9751000, 384, 6291456, "GeForce RTX 3090"},
    {90, 132, 232448, 233472, 1980000, 2619000, 5120, 52428800, "H100"},
};
/* The newest that is no newer than asked for. */
const card &card_of(int arch) {
    const card *best = &cards[0];
    for (const card &c : cards)
        if (c.arch <= arch) best = &c;
    return *best;
}

} // namespace

/* What is done once. */
static void begin() {
    static bool begun;
    if (begun) return;
    begun = true;
    atexit(write_counts);
    watch_faults();
}

api_call::api_call() {
    if (config().hang != 0 && counts.calls + 1 >= config().hang)
        for (;;) pause();
    lock.lock();
    depth++;
    counts.calls++;
    begin();
    some_progress();
    refused = broken;
    if (config().lost != 0 && counts.calls >= config().lost) {
        raise_sticky(cudaErrorUnknown);
        refused = cudaErrorUnknown;
    } else if (counts.calls == config().fail_call)
        refused = cudaErrorUnknown;
    if (refused != cudaSuccess) raise(refused);
}

api_call::~api_call() {
    if (--depth == 0) expose(SIGHT_NONE);
    lock.unlock();
}

cudaError_t raise(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}
void raise_sticky(cudaError_t error) { broken = last = error; }
cudaError_t sticky_error() { return broken; }
int current_device() { return device; }
int arch_of(int) { return config().arch; }

/* Machine code runs on its own capability and later ones of the same generation. */
bool image_for(int arch) {
    if (config().images.empty()) return true;
    for (int built : config().images)
        if (built / 10 == arch / 10 && built <= arch) return true;
    return false;
}

size_t shared_optin_bytes(int d) { return card_of(arch_of(d)).shared_optin; }
size_t shared_allowed(const void *kernel) {
    auto it = opted_in.find(kernel);
    return it == opted_in.end() ? 49152 : (size_t)it->second;
}

void forget_errors() {
    broken = last = cudaSuccess;
    opted_in.clear();
}

/* ---- segmentation faults ------------------------------------------------------------------------
 */
static void tell_fault(int sig, siginfo_t *info, void *) {
    char runner[256], address[256];
    describe_runner(runner, sizeof runner);
    describe_address(info->si_addr, address, sizeof address);
    if (in_fiber_guard(info->si_addr)) snprintf(address, sizeof address, "its stack is full");
    fflush(stdout);
    fprintf(stderr, "cusim: %s touches %p: %s\n", runner, info->si_addr,
            address[0] != 0 ? address : "no device memory");
    signal(sig, SIG_DFL); /* the access is made again, and ends the process */
}

void watch_faults() {
    if (CUSIM_ASAN || CUSIM_TSAN) return; /* they have reports of their own */
    static char stack[65536];
    stack_t alternate = {};
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof stack;
    struct sigaction action = {};
    action.sa_sigaction = tell_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    if (sigaltstack(&alternate, nullptr) != 0 || sigaction(SIGSEGV, &action, nullptr) != 0 ||
        sigaction(SIGBUS, &action, nullptr) != 0)
        die("cannot watch for faults");
}

} // namespace cusim

/* ---- the API ------------------------------------------------------------------------------------
 */
using namespace cusim;

extern "C" {

void cusim_read_counts(cusim_counts *out) {
    std::lock_guard<std::recursive_mutex> held(lock);
    *out = counts;
}

void cusim_abandon(void) {
    std::lock_guard<std::recursive_mutex> held(lock);
    abandon_streams();
    abandon_memory();
}

void cusim_restart(void) {
    std::lock_guard<std::recursive_mutex> held(lock);
    check_nothing_is_alive();
    forget_streams();
    forget_errors();
    read_settings();
    device = 0;
    counts = cusim_counts();
}

cudaError_t cudaGetLastError(void) {
    std::lock_guard<std::recursive_mutex> held(lock);
    const cudaError_t error = broken != cudaSuccess ? broken : last;
    last = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError(void) {
    std::lock_guard<std::recursive_mutex> held(lock);
    return broken != cudaSuccess ? broken : last;
}

/* X(name without cudaError, text) */
#define ERRORS(X) \
    X(InvalidValue, "invalid argument") \
    X(MemoryAllocation, "out of memory") \
    X(InitializationError, "initialization error") \
    X(InvalidConfiguration, "invalid configuration argument") \
    X(InvalidDevicePointer, "invalid device pointer") \
    X(InvalidMemcpyDirection, "invalid copy direction for memcpy") \
    X(StubLibrary, "CUDA driver is a stub library") \
    X(InsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version") \
    X(DevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable") \
    X(InvalidDeviceFunction, "invalid device function") \
    X(NoDevice, "no CUDA-capable device is detected") \
    X(InvalidDevice, "invalid device ordinal") \
    X(NoKernelImageForDevice, "no kernel image is available for execution on the device") \
    X(ECCUncorrectable, "uncorrectable ECC error encountered") \
    X(UnsupportedPtxVersion, "the provided PTX was compiled with an unsupported toolchain.") \
    X(OperatingSystem, "OS call failed or operation not supported on this OS") \
    X(InvalidResourceHandle, "invalid resource handle") \
    X(NotReady, "device not ready") \
    X(IllegalAddress, "an illegal memory access was encountered") \
    X(LaunchOutOfResources, "too many resources requested for launch") \
    X(LaunchTimeout, "the launch timed out and was terminated") \
    X(HostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped") \
    X(HostMemoryNotRegistered, "pointer does not correspond to a registered memory region") \
    X(MisalignedAddress, "misaligned address") \
    X(LaunchFailure, "unspecified launch failure") \
    X(NotPermitted, "operation not permitted") \
    X(NotSupported, "operation not supported") \
    X(SystemNotReady, "system not yet initialized") \
    X(SystemDriverMismatch, "system has unsupported display driver / cuda driver combination") \
    X(Unknown, "unknown error")

const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
    case cudaSuccess:
        return "cudaSuccess";
#define X(name, text) \
    case cudaError##name: \
        return "cudaError" #name;
        ERRORS(X)
#undef X
    default:
        return "unrecognized error code";
    }
}
const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess:
        return "no error";
#define X(name, text) \
    case cudaError##name: \
        return text;
        ERRORS(X)
#undef X
    default:
        return "unrecognized error code";
    }
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    CUSIM_API();
    *version = config().driver;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    CUSIM_API();
    if (config().count_error != 0) return raise((cudaError_t)config().count_error);
    /* A driver runs what later releases of its own major version made. */
    if (config().driver / 1000 < CUDART_VERSION / 1000) return raise(cudaErrorInsufficientDriver);
    if (config().devices == 0) return raise(cudaErrorNoDevice);
    *count = config().devices;
    return cudaSuccess;
}

static bool exists(int d) { return d >= 0 && d < config().devices && config().count_error == 0; }

cudaError_t cudaSetDevice(int d) {
    CUSIM_API();
    if (!exists(d)) return raise(cudaErrorInvalidDevice);
    device = d;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *d) {
    CUSIM_API();
    *d = device;
    return cudaSuccess;
}
cudaError_t cudaSetDeviceFlags(unsigned int) {
    CUSIM_API();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
    CUSIM_API();
    if (!exists(d)) return raise(cudaErrorInvalidDevice);
    const card &c = card_of(arch_of(d));
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s (simulated)", c.name);
    p->totalGlobalMem = config().memory;
    p->sharedMemPerBlock = 49152;
    p->sharedMemPerBlockOptin = c.shared_optin;
    p->sharedMemPerMultiprocessor = c.shared_processor;
    p->regsPerBlock = 65536;
    p->regsPerMultiprocessor = c.arch == 37 ? 131072 : 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = arch_of(d) / 10;
    p->minor = arch_of(d) % 10;
    p->multiProcessorCount = c.processors;
    p->maxThreadsPerMultiProcessor = c.arch == 75 ? 1024 : c.arch == 86 ? 1536 : 2048;
    p->memoryBusWidth = c.bus_bits;
    p->l2CacheSize = c.l2_bytes;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = 1;
    p->asyncEngineCount = 2;
    p->pciBusID = d + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int d) {
    CUSIM_API();
    struct cudaDeviceProp p;
    const cudaError_t error = cudaGetDeviceProperties(&p, d);
    if (error != cudaSuccess) return error;
    const card &c = card_of(arch_of(d));
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = p.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxGridDimX:
        *value = p.maxGridSize[0];
        break;
    case cudaDevAttrMaxGridDimY:
        *value = p.maxGridSize[1];
        break;
    case cudaDevAttrMaxGridDimZ:
        *value = p.maxGridSize[2];
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)p.sharedMemPerBlock;
        break;
    case cudaDevAttrWarpSize:
        *value = p.warpSize;
        break;
    case cudaDevAttrMaxRegistersPerBlock:
        *value = p.regsPerBlock;
        break;
    case cudaDevAttrClockRate:
        *value = c.clock_khz;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrComputeMode:
        *value = 0;
        break;
    case cudaDevAttrMemoryClockRate:
        *value = c.memory_khz;
        break;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = c.bus_bits;
        break;
    case cudaDevAttrL2CacheSize:
        *value = c.l2_bytes;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = p.maxThreadsPerMultiProcessor;
        break;
    case cudaDevAttrAsyncEngineCount:
        *value = p.asyncEngineCount;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)p.sharedMemPerMultiprocessor;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)p.sharedMemPerBlockOptin;
        break;
    default:
        return raise(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int d) {
    CUSIM_API();
    if (!exists(d)) return raise(cudaErrorInvalidDevice);
    snprintf(id, (size_t)size, "0000:%02x:00.0", d + 1);
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) {
    CUSIM_API();
    *can = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned int) {
    CUSIM_API();
    return raise(cudaErrorNotSupported);
}
cudaError_t cudaDeviceReset(void) {
    CUSIM_API();
    finish_all();
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attr, int value) {
    CUSIM_API();
    if (!image_for(arch_of(device))) return raise(cudaErrorNoKernelImageForDevice);
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || (size_t)value > shared_optin_bytes(device))
        return raise(cudaErrorInvalidValue);
    opted_in[kernel] = value;
    return cudaSuccess;
}

/* Registers and fixed shared memory are the compiler's to know: not told here. */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *kernel) {
    CUSIM_API();
    if (!image_for(arch_of(device))) return raise(cudaErrorNoKernelImageForDevice);
    memset(attr, 0, sizeof *attr);
    attr->maxThreadsPerBlock = 1024;
    attr->ptxVersion = attr->binaryVersion = arch_of(device);
    attr->maxDynamicSharedSizeBytes = (int)shared_allowed(kernel);
    return cudaSuccess;
}

} // extern "C"
