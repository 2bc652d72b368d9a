/* What the simulator's files share. One lock serves all of it: every call of the API holds it
 * (api_call), so that no file takes another. */
#ifndef CUSIM_STATE_H
#define CUSIM_STATE_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cuda_runtime_api.h"
#include "cusim.h"

#if defined(__SANITIZE_ADDRESS__)
#define CUSIM_ASAN 1
#else
#define CUSIM_ASAN 0
#endif
/* The simulator's own files are not instrumented for ThreadSanitizer: the build says it. */
#ifndef CUSIM_TSAN
#define CUSIM_TSAN 0
#endif

namespace cusim {

/* ---- settings.cc: the environment, README.md says what each is ----------------------------------
 */
enum class thread_order { forward, reverse, random };

struct settings {
    int devices, arch, driver, count_error;
    std::vector<int> images; /* capabilities that kernels were built for; empty: all */
    size_t memory, context, others, largest, cublas_handle;
    thread_order order;
    uint64_t order_seed;
    uint64_t async; /* 0: at once; 1: as late as can be; more: seed of a random progress */
    bool protect, race_grid, trace;
    uint64_t fail_call, fail_malloc, fail_host, fail_launch, fail_kernel, wrong, lost, hang;
};
const settings &config();
void read_settings();

/* Prints where and what, then ends the process: what a kernel or the backend does wrong. */
[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* xorshift: orders that are random and the same in every run. */
struct random_source {
    uint64_t state = 1;
    void seed(uint64_t s) { state = s * 0x9e3779b97f4a7c15u | 1; }
    uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }
};

/* ---- runtime.cc: errors, faults, devices --------------------------------------------------------
 */
extern cusim_counts &counts;

/* Held for the length of a call: takes the lock, counts the call, plays the faults asked for. When
 * it ends, the host loses sight of device memory. */
class api_call {
  public:
    api_call();
    ~api_call();
    api_call(const api_call &) = delete;
    api_call &operator=(const api_call &) = delete;
    cudaError_t refused; /* what the call has to return at once, if not cudaSuccess */
};
#define CUSIM_API() \
    cusim::api_call entered; \
    if (entered.refused != cudaSuccess) return entered.refused

/* Keeps it for cudaGetLastError and gives it back. */
cudaError_t raise(cudaError_t error);
/* The device is broken: every call from now on gives this. */
void raise_sticky(cudaError_t error);
cudaError_t sticky_error();
int current_device();
bool image_for(int arch); /* kernels were built for it */
int arch_of(int device);
size_t shared_optin_bytes(int device); /* most dynamic shared memory after opting in */
size_t shared_allowed(const void *kernel);
void forget_errors();

/* ---- memory.cc: what devices hold ---------------------------------------------------------------
 */
/* Who may touch device memory: nobody but the simulator's own calls, kernels of one device, copies
 * between any two. */
enum { SIGHT_NONE = -1, SIGHT_ALL = -2 };
void expose(int device_or_sight);

/* The device whose buffer holds all these bytes; -1: no device memory; -2: device memory, but not
 * inside one buffer in use. */
int device_of(const void *p, size_t bytes);
bool pinned(const void *p, size_t bytes);
/* Device memory that a library takes for itself; false when there is none left. */
bool take_bytes(int device, size_t bytes);
void give_bytes(int device, size_t bytes);
/* What lies at this address, for a report; empty when it is nothing of ours. */
const char *describe_address(const void *p, char *text, size_t size);
void check_nothing_is_alive();
int last_device(); /* the largest number of those whose memory was asked for; -1: none */
void abandon_memory();

/* ---- streams.cc: what is done, and when ---------------------------------------------------------
 */
void submit(cudaStream_t stream, std::function<void()> work);
bool known(cudaStream_t stream);
int device_of_stream(cudaStream_t stream);
void finish(cudaStream_t stream); /* all that it has been given */
void finish_all();
void some_progress(); /* a random step of random streams, where asked for */
void forget_streams();
void abandon_streams();

/* ---- block.cc, launch.cc: kernels ---------------------------------------------------------------
 */
struct kernel_call;
/* Runs one block of dim3 blockDim; stops the process where its threads cannot all go on. */
void run_block(const char *kernel, const std::function<void()> &body);
void prepare_threads(int count); /* fibers for this many */
void race_join_blocks();         /* what all blocks did comes before what follows */
void set_dynamic_shared(void *p);
/* "kernel NAME, block (x,y,z), thread (x,y,z)" while one runs, else "the host". */
const char *describe_runner(char *text, size_t size);
void watch_faults(); /* names the culprit of a segmentation fault */

} // namespace cusim

#endif
