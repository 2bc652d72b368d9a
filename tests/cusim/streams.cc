/* Streams, events and copies. Work that a stream is given is done when somebody waits for it, in
 * its order: as late as CUDA may, so that a missing synchronisation shows. CUSIM_ASYNC has other
 * ways. Under ThreadSanitizer a stream is a thread of its own, ordered by what CUDA orders by. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <set>

#include "fiber.h"
#include "state.h"

using namespace cusim;

namespace {

struct task {
    std::function<void()> work;
    cudaEvent_t record = nullptr, wait = nullptr;
    uint64_t number = 0; /* which recording of the event */
    char token = 0;      /* ThreadSanitizer: orders the host's past before it */
};

} // namespace

struct CUstream_st {
    int device;
    bool blocking; /* waits for the default stream and is waited for by it */
    std::deque<std::unique_ptr<task>> queue;
    void *race;
    char token; /* what the stream did */
};

struct CUevent_st {
    uint64_t recorded, done;
    cudaStream_t stream;
    double time;
    bool timing;
    char token;
};

namespace {

struct all_streams {
    std::set<cudaStream_t> made;
    std::set<cudaEvent_t> events;
    std::vector<cudaStream_t> standard; /* the default stream of each device */
    random_source random;
    bool seeded = false;
};
all_streams &s = *new all_streams;

cudaStream_t make(int device, bool blocking) {
    return new CUstream_st{device, blocking, {}, race_fiber_new(), 0};
}

cudaStream_t standard(int device) {
    while (s.standard.size() <= (size_t)device)
        s.standard.push_back(make((int)s.standard.size(), true));
    return s.standard[(size_t)device];
}

bool is_standard(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy; }
cudaStream_t resolve(cudaStream_t stream) {
    return is_standard(stream) ? standard(current_device()) : stream;
}

void run_until(cudaStream_t stream, cudaEvent_t event, uint64_t number);

/* The next task of a stream. */
void step(cudaStream_t stream) {
    std::unique_ptr<task> t = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (t->wait != nullptr) run_until(t->wait->stream, t->wait, t->number);
    void *caller = race_fiber_now();
    race_become(stream->race);
    race_acquire(&t->token);
    if (t->wait != nullptr) race_acquire(&t->wait->token);
    if (t->work) t->work();
    t->work = nullptr; /* what it holds ends as the stream's, not as the caller's */
    if (t->record != nullptr) {
        t->record->done = t->number;
        t->record->time = seconds();
        race_release(&t->record->token);
    }
    race_release(&stream->token);
    race_become(caller);
}

/* Up to that recording of `event`; all of it where event is null. */
void run_until(cudaStream_t stream, cudaEvent_t event, uint64_t number) {
    while (!stream->queue.empty() && (event == nullptr || event->done < number)) step(stream);
}

void settle(cudaStream_t stream) {
    run_until(stream, nullptr, 0);
    race_acquire(&stream->token);
}

void push(cudaStream_t given, std::unique_ptr<task> t) {
    cudaStream_t stream = resolve(given);
    if (is_standard(given)) {
        for (cudaStream_t other : s.made)
            if (other->blocking && other->device == stream->device) settle(other);
    } else if (stream->blocking)
        settle(standard(stream->device));
    race_release(&t->token);
    stream->queue.push_back(std::move(t));
    if (config().async == 0) settle(stream);
}

bool known(cudaEvent_t event) { return s.events.count(event) > 0; }

} // namespace

namespace cusim {

bool known(cudaStream_t stream) { return is_standard(stream) || s.made.count(stream) > 0; }
int device_of_stream(cudaStream_t stream) { return resolve(stream)->device; }

void submit(cudaStream_t stream, std::function<void()> work) {
    std::unique_ptr<task> t(new task);
    t->work = std::move(work);
    push(stream, std::move(t));
}

void finish(cudaStream_t stream) { settle(resolve(stream)); }

void finish_all() {
    for (cudaStream_t stream : s.made) settle(stream);
    for (cudaStream_t stream : s.standard) settle(stream);
}

void some_progress() {
    if (config().async < 2) return;
    if (!s.seeded) s.random.seed(config().async);
    s.seeded = true;
    for (cudaStream_t stream : s.made)
        for (uint64_t n = s.random.next() % 4; n > 0 && !stream->queue.empty(); n--) step(stream);
}

void abandon_streams() {
    for (cudaStream_t stream : s.standard) stream->queue.clear();
    for (cudaStream_t stream : s.made) {
        race_fiber_free(stream->race);
        delete stream;
    }
    for (cudaEvent_t event : s.events) delete event;
    s.made.clear();
    s.events.clear();
}

void forget_streams() {
    if (!s.made.empty()) die("%zu streams are still there", s.made.size());
    if (!s.events.empty()) die("%zu events are still there", s.events.size());
    for (cudaStream_t stream : s.standard) {
        race_fiber_free(stream->race);
        delete stream;
    }
    s.standard.clear();
    s.seeded = false;
}

} // namespace cusim

/* ---- copies -------------------------------------------------------------------------------------
 */
namespace {

/* Both ends must be inside one buffer each, of the kind that the copy says. */
cudaError_t check_copy(const void *dst, const void *src, size_t bytes, cudaMemcpyKind kind) {
    const int to = device_of(dst, bytes), from = device_of(src, bytes);
    if (to == -2 || from == -2) return cudaErrorInvalidValue;
    const bool out = to >= 0, in = from >= 0;
    if (kind == cudaMemcpyDefault) return cudaSuccess;
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault ||
        out != (kind == cudaMemcpyHostToDevice) || in != (kind == cudaMemcpyDeviceToHost))
        return cudaErrorInvalidMemcpyDirection;
    return cudaSuccess;
}

void copy_now(void *dst, const void *src, size_t bytes) {
    expose(SIGHT_ALL);
    memmove(dst, src, bytes);
    counts.copies++;
}

/* Memory that is not pinned is read at once, and has been written when the call returns. */
void enqueue_copy(void *dst, const void *src, size_t bytes, cudaStream_t stream) {
    const bool to_host = device_of(dst, bytes) < 0, from_host = device_of(src, bytes) < 0;
    if (from_host && !pinned(src, bytes)) {
        std::shared_ptr<char> kept(static_cast<char *>(malloc(bytes)), free);
        if (kept == nullptr) die("no memory for a copy of %zu bytes", bytes);
        memcpy(kept.get(), src, bytes);
        submit(stream, [=] { copy_now(dst, kept.get(), bytes); });
    } else
        submit(stream, [=] { copy_now(dst, src, bytes); });
    if (to_host && !pinned(dst, bytes)) finish(stream);
}

} // namespace

extern "C" {

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    CUSIM_API();
    if (!known(stream)) return raise(cudaErrorInvalidResourceHandle);
    if (bytes == 0) return cudaSuccess;
    const cudaError_t wrong = check_copy(dst, src, bytes, kind);
    if (wrong != cudaSuccess) return raise(wrong);
    enqueue_copy(dst, src, bytes, stream);
    return sticky_error();
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind) {
    const cudaError_t error = cudaMemcpyAsync(dst, src, bytes, kind, nullptr);
    return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
    CUSIM_API();
    if (!known(stream)) return raise(cudaErrorInvalidResourceHandle);
    if (width > dst_pitch || width > src_pitch) return raise(cudaErrorInvalidValue);
    if (width == 0 || height == 0) return cudaSuccess;
    const cudaError_t wrong = check_copy(dst, src, width, kind);
    const cudaError_t last =
        check_copy(static_cast<char *>(dst) + (height - 1) * dst_pitch,
                   static_cast<const char *>(src) + (height - 1) * src_pitch, width, kind);
    if (wrong != cudaSuccess || last != cudaSuccess) return raise(wrong ? wrong : last);
    for (size_t row = 0; row < height; row++)
        enqueue_copy(static_cast<char *>(dst) + row * dst_pitch,
                     static_cast<const char *>(src) + row * src_pitch, width, stream);
    return sticky_error();
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream) {
    CUSIM_API();
    if (!known(stream)) return raise(cudaErrorInvalidResourceHandle);
    if (bytes == 0) return cudaSuccess;
    if (device_of(p, bytes) < 0) return raise(cudaErrorInvalidValue);
    submit(stream, [=] {
        expose(SIGHT_ALL);
        memset(p, value, bytes);
        counts.copies++;
    });
    return sticky_error();
}
cudaError_t cudaMemset(void *p, int value, size_t bytes) {
    return cudaMemsetAsync(p, value, bytes, nullptr);
}

/* ---- streams ------------------------------------------------------------------------------------
 */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    CUSIM_API();
    *stream = make(current_device(), (flags & cudaStreamNonBlocking) == 0);
    s.made.insert(*stream);
    counts.streams++;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    CUSIM_API();
    if (s.made.count(stream) == 0) return raise(cudaErrorInvalidResourceHandle);
    settle(stream);
    s.made.erase(stream);
    for (cudaEvent_t event : s.events)
        if (event->stream == stream) event->stream = nullptr;
    race_fiber_free(stream->race);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    CUSIM_API();
    if (!known(stream)) return raise(cudaErrorInvalidResourceHandle);
    counts.syncs++;
    finish(stream);
    return sticky_error();
}

/* Never waits, but tells the truth one task later: whoever asks in a loop gets there. */
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    CUSIM_API();
    if (!known(stream)) return raise(cudaErrorInvalidResourceHandle);
    cudaStream_t at = resolve(stream);
    if (at->queue.empty()) {
        race_acquire(&at->token);
        return sticky_error();
    }
    step(at);
    return cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize(void) {
    CUSIM_API();
    counts.syncs++;
    finish_all();
    return sticky_error();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
    CUSIM_API();
    if (!known(stream) || !known(event)) return raise(cudaErrorInvalidResourceHandle);
    if (event->recorded == 0) return cudaSuccess;
    std::unique_ptr<task> t(new task);
    t->wait = event;
    t->number = event->recorded;
    push(stream, std::move(t));
    return sticky_error();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data) {
    CUSIM_API();
    if (!known(stream)) return raise(cudaErrorInvalidResourceHandle);
    submit(stream, [=] {
        expose(SIGHT_NONE);
        fn(data);
    });
    return sticky_error();
}

/* ---- events -------------------------------------------------------------------------------------
 */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    CUSIM_API();
    *event = new CUevent_st{0, 0, nullptr, 0, (flags & cudaEventDisableTiming) == 0, 0};
    s.events.insert(*event);
    counts.events++;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    CUSIM_API();
    if (s.events.erase(event) == 0) return raise(cudaErrorInvalidResourceHandle);
    finish_all(); /* nobody may hold it in a queue */
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    CUSIM_API();
    if (!known(stream) || !known(event)) return raise(cudaErrorInvalidResourceHandle);
    /* Waits for an earlier recording on another stream, which would be lost from sight. */
    if (event->stream != nullptr && event->stream != resolve(stream))
        run_until(event->stream, event, event->recorded);
    event->stream = resolve(stream);
    event->recorded++;
    std::unique_ptr<task> t(new task);
    t->record = event;
    t->number = event->recorded;
    push(stream, std::move(t));
    return sticky_error();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    CUSIM_API();
    if (!known(event)) return raise(cudaErrorInvalidResourceHandle);
    counts.syncs++;
    if (event->stream != nullptr) run_until(event->stream, event, event->recorded);
    race_acquire(&event->token);
    return sticky_error();
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    CUSIM_API();
    if (!known(event)) return raise(cudaErrorInvalidResourceHandle);
    if (event->done < event->recorded) {
        step(event->stream);
        return cudaErrorNotReady;
    }
    race_acquire(&event->token);
    return sticky_error();
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    CUSIM_API();
    if (!known(start) || !known(end) || !start->timing || !end->timing || start->recorded == 0 ||
        end->recorded == 0)
        return raise(cudaErrorInvalidResourceHandle);
    if (start->done < start->recorded || end->done < end->recorded) return raise(cudaErrorNotReady);
    *ms = (float)((end->time - start->time) * 1e3);
    return cudaSuccess;
}

} // extern "C"
