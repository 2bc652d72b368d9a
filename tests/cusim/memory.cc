/* Device memory: host memory that nobody sees but kernels of its device and the runtime's copies:
 * by a protection key of the processor where it has them (a register is all that changes), else by
 * mprotect on every buffer.
 *
 * A buffer ends (rounded to 256 bytes, as CUDA aligns) before a page that cannot be touched; what
 * lies between holds a pattern that is checked when it is freed. It starts as NaN. A freed buffer's
 * addresses are not used again for long, and cannot be touched. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <sys/mman.h>

#include "state.h"

#if CUSIM_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace cusim {

namespace {

enum { PAGE = 4096, ALIGN = 256, UNIT = 512, FREED_KEPT = 512 };
/* Larger buffers are not filled, so that they take no memory where nobody writes. */
const size_t MOST_FILLED = 256u << 20;

struct buffer {
    char *data;
    size_t bytes;
    char *pages; /* what may be touched, whole pages */
    size_t length;
};

struct memory {
    size_t used = 0;                     /* of the device: buffers and what libraries took */
    std::map<const char *, buffer> live; /* by address */
    int key = -1;                        /* protection key; -1: there is none */
};

struct freed_range {
    char *begin;
    size_t length;
};

struct all_memory {
    std::vector<memory> device;
    std::deque<freed_range> freed;
    std::map<const char *, size_t> pinned;
    std::vector<int> key; /* of each device, kept over restarts */
    int sight = SIGHT_NONE;
};

all_memory &m = *new all_memory;

memory &of(int device) {
    while (m.device.size() <= (size_t)device) {
        m.device.emplace_back();
        if (config().protect && m.key.size() < m.device.size())
            m.key.push_back(pkey_alloc(0, PKEY_DISABLE_ACCESS));
        if (config().protect) m.device.back().key = m.key[m.device.size() - 1];
    }
    return m.device[(size_t)device];
}

bool sees(int sight, int device) { return sight == SIGHT_ALL || sight == device; }

void protect(const buffer &b, int rights) {
    if (mprotect(b.pages, b.length, rights) != 0) die("mprotect failed");
}

void show(memory &d, bool visible) {
    if (d.key >= 0)
        pkey_set(d.key, visible ? 0 : PKEY_DISABLE_ACCESS);
    else
        for (const auto &entry : d.live)
            protect(entry.second, visible ? PROT_READ | PROT_WRITE : PROT_NONE);
}

const buffer *find(const memory &d, const void *p) {
    auto it = d.live.upper_bound(static_cast<const char *>(p));
    if (it == d.live.begin()) return nullptr;
    return &(--it)->second;
}

bool inside(const buffer &b, const void *p, size_t bytes) {
    const char *at = static_cast<const char *>(p);
    return at >= b.data && bytes <= b.bytes && at <= b.data + b.bytes - bytes;
}

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/* The bytes of the pages that are no part of the buffer: before and behind it. */
template <class F> void for_slack(const buffer &b, F f) {
    for (char *p = b.pages; p < b.data; p++) f(p);
    for (char *p = b.data + b.bytes; p < b.pages + b.length; p++) f(p);
}

/* For AddressSanitizer: what is around the buffer may not be touched. */
void guard(const buffer &b, bool on) {
#if CUSIM_ASAN
    if (on) __asan_poison_memory_region(b.pages, b.length);
    __asan_unpoison_memory_region(on ? b.data : b.pages, on ? b.bytes : b.length);
#else
    (void)b, (void)on;
#endif
}

const char SLACK = (char)0xff;

/* Visible: the caller sees all memory. */
buffer map_buffer(size_t bytes, int key) {
    buffer b;
    b.bytes = bytes;
    b.length = rounded(bytes, PAGE);
    char *p = static_cast<char *>(mmap(nullptr, b.length + 2 * PAGE, PROT_NONE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (p == MAP_FAILED) die("no address space for a buffer of %zu bytes", bytes);
    b.pages = p + PAGE;
    b.data = b.pages + b.length - rounded(bytes, ALIGN);
    protect(b, PROT_READ | PROT_WRITE);
    if (key >= 0 && pkey_mprotect(b.pages, b.length, PROT_READ | PROT_WRITE, key) != 0)
        die("pkey_mprotect failed");
    if (b.length <= MOST_FILLED) memset(b.pages, SLACK, b.length);
    guard(b, true);
    return b;
}

/* The caller sees all memory. */
void unmap_buffer(const buffer &b) {
    guard(b, false);
    if (b.length <= MOST_FILLED)
        for_slack(b, [&](const char *p) {
            if (*p != SLACK)
                die("a device buffer of %zu bytes was written to at offset %td", b.bytes,
                    p - b.data);
        });
    madvise(b.pages, b.length, MADV_DONTNEED);
    protect(b, PROT_NONE);
    m.freed.push_back({b.pages - PAGE, b.length + 2 * PAGE});
    if (m.freed.size() <= FREED_KEPT) return;
    munmap(m.freed.front().begin, m.freed.front().length);
    m.freed.pop_front();
}

void use(memory &d, size_t bytes) {
    d.used += bytes;
    counts.live_bytes += bytes;
    if (counts.live_bytes > counts.peak_bytes) counts.peak_bytes = counts.live_bytes;
}
void unuse(memory &d, size_t bytes) {
    d.used -= bytes;
    counts.live_bytes -= bytes;
}

size_t overhead() { return config().context + config().others; }
size_t free_bytes(int device) {
    const size_t held = of(device).used + overhead();
    return held < config().memory ? config().memory - held : 0;
}

} // namespace

void expose(int sight) {
    if (m.sight == sight || !config().protect) return;
    for (size_t d = 0; d < m.device.size(); d++)
        if (sees(sight, (int)d) != sees(m.sight, (int)d)) show(m.device[d], sees(sight, (int)d));
    m.sight = sight;
}

int device_of(const void *p, size_t bytes) {
    const char *at = static_cast<const char *>(p);
    for (size_t d = 0; d < m.device.size(); d++) {
        const buffer *b = find(m.device[d], p);
        if (b == nullptr) continue;
        if (inside(*b, p, bytes)) return (int)d;
        if (at < b->pages + b->length + PAGE) return -2;
    }
    for (const freed_range &f : m.freed)
        if (at >= f.begin && at < f.begin + f.length) return -2;
    return -1;
}

bool pinned(const void *p, size_t bytes) {
    const char *at = static_cast<const char *>(p);
    auto it = m.pinned.upper_bound(at);
    if (it == m.pinned.begin()) return false;
    --it;
    return at + bytes <= it->first + it->second;
}

bool take_bytes(int device, size_t bytes) {
    if (bytes > free_bytes(device)) return false;
    of(device).used += bytes;
    return true;
}
void give_bytes(int device, size_t bytes) { of(device).used -= bytes; }

const char *describe_address(const void *p, char *text, size_t size) {
    const char *at = static_cast<const char *>(p);
    text[0] = 0;
    for (size_t d = 0; d < m.device.size(); d++)
        for (const auto &entry : m.device[d].live) {
            const buffer &b = entry.second;
            if (at < b.pages - PAGE || at >= b.pages + b.length + PAGE) continue;
            if (inside(b, p, 1))
                snprintf(text, size, "offset %td of a buffer of %zu bytes on device %zu",
                         at - b.data, b.bytes, d);
            else
                snprintf(text, size, "offset %td, outside of a buffer of %zu bytes on device %zu",
                         at - b.data, b.bytes, d);
        }
    for (const freed_range &f : m.freed)
        if (at >= f.begin && at < f.begin + f.length)
            snprintf(text, size, "a buffer that was freed");
    return text;
}

int last_device() { return (int)m.device.size() - 1; }

void check_nothing_is_alive() {
    for (const memory &d : m.device)
        for (const auto &entry : d.live)
            die("a device buffer of %zu bytes is still there", entry.second.bytes);
    for (const auto &entry : m.pinned)
        die("pinned memory of %zu bytes is still there", entry.second);
    m.device.clear();
}

void abandon_memory() {
    for (memory &d : m.device) {
        for (const auto &entry : d.live) {
            guard(entry.second, false);
            munmap(entry.second.pages - PAGE, entry.second.length + 2 * PAGE);
        }
        d.live.clear();
    }
    for (const auto &entry : m.pinned) free(const_cast<char *>(entry.first));
    m.pinned.clear();
}

} // namespace cusim

/* ---- the API ------------------------------------------------------------------------------------
 */
using namespace cusim;

extern "C" {

cudaError_t cudaMalloc(void **p, size_t bytes) {
    CUSIM_API();
    const int device = current_device();
    const size_t held = rounded(bytes, UNIT), largest = config().largest;
    *p = nullptr;
    if (++counts.mallocs == config().fail_malloc || held > free_bytes(device) ||
        (largest > 0 && bytes > largest))
        return raise(cudaErrorMemoryAllocation);
    if (bytes == 0) return cudaSuccess;
    expose(SIGHT_ALL);
    const buffer b = map_buffer(bytes, of(device).key);
    of(device).live[b.data] = b;
    use(of(device), held);
    *p = b.data;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p) {
    CUSIM_API();
    if (p == nullptr) return cudaSuccess;
    finish_all();
    expose(SIGHT_ALL);
    for (memory &d : m.device) {
        auto it = d.live.find(static_cast<const char *>(p));
        if (it == d.live.end()) continue;
        unuse(d, rounded(it->second.bytes, UNIT));
        unmap_buffer(it->second);
        d.live.erase(it);
        return cudaSuccess;
    }
    return raise(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    CUSIM_API();
    *free = free_bytes(current_device());
    *total = config().memory;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned int) {
    CUSIM_API();
    *p = nullptr;
    if (++counts.host_mallocs == config().fail_host) return raise(cudaErrorMemoryAllocation);
    void *made = aligned_alloc(ALIGN, rounded(bytes > 0 ? bytes : 1, ALIGN));
    if (made == nullptr) return raise(cudaErrorMemoryAllocation);
    m.pinned[static_cast<char *>(made)] = bytes;
    *p = made;
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t bytes) { return cudaHostAlloc(p, bytes, 0); }

cudaError_t cudaFreeHost(void *p) {
    CUSIM_API();
    if (p == nullptr) return cudaSuccess;
    finish_all();
    if (m.pinned.erase(static_cast<const char *>(p)) == 0) return raise(cudaErrorInvalidValue);
    free(p);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned int) {
    CUSIM_API();
    if (p == nullptr || bytes == 0) return raise(cudaErrorInvalidValue);
    if (++counts.host_mallocs == config().fail_host) return raise(cudaErrorMemoryAllocation);
    if (pinned(p, 1)) return raise(cudaErrorHostMemoryAlreadyRegistered);
    m.pinned[static_cast<char *>(p)] = bytes;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p) {
    CUSIM_API();
    finish_all();
    if (m.pinned.erase(static_cast<const char *>(p)) == 0)
        return raise(cudaErrorHostMemoryNotRegistered);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *p) {
    CUSIM_API();
    const int device = device_of(p, 1);
    memset(attributes, 0, sizeof *attributes);
    attributes->device = device;
    if (device >= 0) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->devicePointer = const_cast<void *>(p);
    } else if (pinned(p, 1)) {
        attributes->type = cudaMemoryTypeHost;
        attributes->hostPointer = const_cast<void *>(p);
    }
    return cudaSuccess;
}

} // extern "C"
