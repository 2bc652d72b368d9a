/* Kernels: what a launch may ask for, and the walk over the blocks of a grid. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <link.h>
#include <map>
#include <string>
#include <sys/mman.h>

#include "cuda_runtime.h"
#include "fiber.h"
#include "state.h"

#if CUSIM_ASAN
#include <sanitizer/asan_interface.h>
#endif

extern "C" void *__tls_get_addr(size_t *module_and_offset);

namespace cusim {

namespace {

enum { PAGE = 4096, MOST_SHARED = 256 << 10 };

struct span {
    char *begin = nullptr;
    size_t bytes = 0;
};

/* ---- shared memory ------------------------------------------------------------------------------
 */
struct tls_search {
    const char *kernel;
    span found;
};

int look_at_object(dl_phdr_info *info, size_t, void *arg) {
    tls_search *s = static_cast<tls_search *>(arg);
    const char *base = reinterpret_cast<const char *>(info->dlpi_addr);
    bool here = false;
    size_t tls = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &part = info->dlpi_phdr[i];
        if (part.p_type == PT_TLS) tls = part.p_memsz;
        if (part.p_type == PT_LOAD && s->kernel >= base + part.p_vaddr &&
            s->kernel < base + part.p_vaddr + part.p_memsz)
            here = true;
    }
    if (!here) return 0;
    if (tls > 0) {
        size_t start[2] = {info->dlpi_tls_modid, 0}; /* makes the block where there is none yet */
        s->found = {static_cast<char *>(__tls_get_addr(start)), tls};
    }
    return 1;
}

/* The __shared__ variables of the module that a kernel is in: its thread-local memory. */
span static_shared(const void *kernel) {
    tls_search s = {static_cast<const char *>(kernel), {}};
    if (!CUSIM_ASAN) dl_iterate_phdr(look_at_object, &s);
    return s.found;
}

/* Dynamic shared memory: ends before a page that nobody may touch. */
span dynamic_shared_of(size_t bytes) {
    static char *region;
    if (region == nullptr) {
        region = static_cast<char *>(mmap(nullptr, MOST_SHARED + PAGE, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (region == MAP_FAILED || mprotect(region + MOST_SHARED, PAGE, PROT_NONE) != 0)
            die("no memory for shared memory");
    }
    const size_t rounded = (bytes + 15) & ~(size_t)15;
    return {region + MOST_SHARED - rounded, bytes};
}

void guard_dynamic(const span &s, bool on) {
#if CUSIM_ASAN
    char *end = s.begin + ((s.bytes + 15) & ~(size_t)15);
    if (on) {
        __asan_poison_memory_region(end - MOST_SHARED, MOST_SHARED);
        __asan_unpoison_memory_region(s.begin, s.bytes);
    } else
        __asan_unpoison_memory_region(end - MOST_SHARED, MOST_SHARED);
#else
    (void)s, (void)on;
#endif
}

/* ---- the grid -----------------------------------------------------------------------------------
 */
/* Block number `i` in the order asked for: a random order is a walk with a random stride. */
struct block_order {
    uint64_t count, first = 0, stride = 1;
    explicit block_order(uint64_t n) : count(n) {
        if (config().order == thread_order::reverse) {
            first = n - 1;
            stride = n - 1;
        }
        if (config().order != thread_order::random || n < 3) return;
        random_source random;
        random.seed(config().order_seed + n);
        first = random.next() % n;
        do stride = 1 + random.next() % (n - 1);
        while (divisor(stride, n) != 1);
    }
    static uint64_t divisor(uint64_t a, uint64_t b) { return b == 0 ? a : divisor(b, a % b); }
    uint64_t at(uint64_t i) const {
        return (uint64_t)((first + (unsigned __int128)stride * i) % count);
    }
};

void run_grid(const kernel_call &k, const std::function<void()> &body) {
    const double start = seconds();
    const int threads = (int)(k.block.x * k.block.y * k.block.z);
    const uint64_t blocks = (uint64_t)k.grid.x * k.grid.y * k.grid.z;
    const block_order order(blocks);
    const span fixed = static_shared(k.address), dynamic = dynamic_shared_of(k.shared_bytes);
    prepare_threads(threads);
    set_dynamic_shared(dynamic.begin);
    expose(device_of_stream(k.stream));
    guard_dynamic(dynamic, true);
    if (config().race_grid) {
        race_ignore(fixed.begin, fixed.bytes);
        race_ignore(dynamic.begin, dynamic.bytes);
    }
    blockDim = k.block;
    gridDim = k.grid;
    for (uint64_t i = 0; i < blocks; i++) {
        const uint64_t n = order.at(i);
        blockIdx.x = (unsigned)(n % k.grid.x);
        blockIdx.y = (unsigned)(n / k.grid.x % k.grid.y);
        blockIdx.z = (unsigned)(n / k.grid.x / k.grid.y);
        if (fixed.bytes > 0) memset(fixed.begin, 0xff, fixed.bytes);
        if (dynamic.bytes > 0) memset(dynamic.begin, 0xff, dynamic.bytes);
        run_block(k.name, body);
    }
    race_join_blocks();
    guard_dynamic(dynamic, false);
    counts.kernels++;
    counts.threads += blocks * (uint64_t)threads;
    if (config().trace)
        fprintf(stderr, "cusim: %s, grid (%u,%u,%u), block (%u,%u,%u), %zu bytes: %.3f ms\n",
                k.name, k.grid.x, k.grid.y, k.grid.z, k.block.x, k.block.y, k.block.z,
                k.shared_bytes, 1e3 * (seconds() - start));
}

/* ---- what was launched: CUSIM_LAUNCHES names a file for it, read by ci/cuda_table.sh ------------
 */
struct largest_launch {
    unsigned threads = 0;
    size_t shared_bytes = 0;
};
using all_launches = std::map<std::string, largest_launch>;
all_launches *launches; /* by the kernel's name with its template arguments */

void write_launches() {
    FILE *f = fopen(getenv("CUSIM_LAUNCHES"), "w");
    if (f == nullptr) return;
    for (const auto &l : *launches)
        fprintf(f, "%u %zu %s\n", l.second.threads, l.second.shared_bytes, l.first.c_str());
    fclose(f);
}

void note_launch(const kernel_call &k) {
    if (getenv("CUSIM_LAUNCHES") == nullptr) return;
    if (launches == nullptr) {
        launches = new all_launches;
        atexit(write_launches);
    }
    largest_launch &l = (*launches)[k.name];
    l.threads = std::max(l.threads, k.block.x * k.block.y * k.block.z);
    l.shared_bytes = std::max(l.shared_bytes, k.shared_bytes);
}

/* ---- what a launch may ask for ------------------------------------------------------------------
 */
cudaError_t check(const kernel_call &k) {
    const uint64_t threads = (uint64_t)k.block.x * k.block.y * k.block.z;
    if (!known(k.stream)) return cudaErrorInvalidResourceHandle;
    if (!image_for(arch_of(device_of_stream(k.stream)))) return cudaErrorNoKernelImageForDevice;
    if (threads == 0 || threads > 1024 || k.block.x > 1024 || k.block.y > 1024 || k.block.z > 64)
        return cudaErrorInvalidConfiguration;
    if (k.grid.x == 0 || k.grid.y == 0 || k.grid.z == 0 || k.grid.x > 0x7fffffff ||
        k.grid.y > 65535 || k.grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (k.shared_bytes > shared_allowed(k.address)) return cudaErrorInvalidValue;
    return cudaSuccess;
}

} // namespace

void enqueue(const kernel_call &call, std::function<void()> body) {
    api_call entered;
    if (entered.refused != cudaSuccess) return;
    cudaError_t wrong = check(call);
    if (++counts.launches == config().fail_launch) wrong = cudaErrorLaunchOutOfResources;
    if (wrong != cudaSuccess) {
        raise(wrong);
        return;
    }
    note_launch(call);
    submit(call.stream, [call, body = std::move(body)] {
        if (counts.kernels + 1 == config().fail_kernel) {
            counts.kernels++;
            raise_sticky(cudaErrorLaunchFailure);
        } else if (counts.kernels + 1 == config().wrong) {
            counts.kernels++;
        } else if (sticky_error() == cudaSuccess)
            run_grid(call, body);
    });
}

} // namespace cusim
