// The machine that kernels run on: one fibre per thread, rendezvous at simdgroup operations, barriers and collectives.
// Compiled without instrumentation and linked with the translated kernels. Knows nothing of Metal's types.
// Scheduling: lanes of one simdgroup run round-robin from rendezvous to rendezvous, so an operation costs one switch a lane;
// the last lane to arrive finishes the operation and keeps running.

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "abi.h"

#if !defined(__x86_64__)
#error "the emulator's context switch is written for x86-64"
#endif

constexpr u32 MAX_THREADS = 1024, STACK = 128 * 1024, GUARD = 4096, ARENA = 64 * 1024, SCRATCH = 1 << 20;

struct ThreadInfo {
    u32 grid[3], group[3], local[3], size[3], index;
};
enum Wait : u8 { RUNNING, SIMD, SIMD_BARRIER, BARRIER, GATHER, DONE };
struct Fiber {
    void* sp;
    ThreadInfo info;
    Wait wait;
    u8 fenced;
    u32 line;
    const char* file;
    const void* deposit;
    u64 pending_location;  // last atomic this thread modified since its last device fence
    u64 pending_count;
};
struct Simdgroup {
    u32 ready, arrived, lanes, parity;
    u32 line;
    const char* file;
    u32 epoch_device, epoch_threadgroup;
    u32 result[2];
    alignas(16) u8 slots[2][32][16];
};
struct Variable {
    u32 offset, size;
    const char* name;
};
struct Worker {
    u8* area;
    u64 area_size;
    u8* stacks;
    u8* scratch;
    u8* arena;
    u64* arena_wrote;
    u64* arena_read;
    void* main_sp;
    Dispatch* job;
    Fiber* now;
    u32 threads, simdgroups, finished, arrived, line, flags;
    const char* file;
    bool aborted;
    u32 group_index;
    u32 epoch_device, epoch_threadgroup;
    u32 collective;  // 0: one thread's accesses; 1: a simdgroup's; 2: a threadgroup's
    u32 scope_first;
    u32 variable_count;
    Variable variables[64];
    void* history;  // release/acquire records of the check (checker.cpp part)
    void* buffers[32];
    Simdgroup groups[32];
    Fiber fibers[MAX_THREADS];
};

static __thread Worker* current __attribute__((tls_model("initial-exec")));

extern "C" void msl_switch(void** from, void* to);
asm(R"(
.text
.globl msl_switch
.hidden msl_switch
.type msl_switch,@function
msl_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size msl_switch,.-msl_switch
)");

static void run_on(Worker* w, Fiber* next) {
    Fiber* self = w->now;
    w->now = next;
    msl_switch(&self->sp, next->sp);
}

static Fiber* pick(Worker* w, u32 group) {
    for (u32 step = 0; step < w->simdgroups; step++) {
        u32 g = group + step < w->simdgroups ? group + step : group + step - w->simdgroups;
        u32 ready = w->groups[g].ready;
        if (ready) return &w->fibers[g * 32 + u32(__builtin_ctz(ready))];
    }
    return nullptr;
}

// Leaves the current fibre, which must have cleared its ready bit, until somebody makes it ready again.
static void block(Worker* w) {
    Fiber* self = w->now;
    Fiber* next = pick(w, self->info.index / 32);
    if (next) {
        run_on(w, next);
    } else {
        w->now = nullptr;
        msl_switch(&self->sp, w->main_sp);
    }
}

[[noreturn]] static void abandon(Worker* w) {
    Fiber* self = w->now;
    w->aborted = true;
    w->now = nullptr;
    msl_switch(&self->sp, w->main_sp);
    __builtin_unreachable();
}

static Report* report(Worker* w, u32 kind, const char* file, u32 line, u64 pc, u32 buffer) {
    Dispatch* d = w->job;
    u32 count = __atomic_load_n(&d->report_count, __ATOMIC_RELAXED);
    for (u32 i = 0; i < count && i < d->report_capacity; i++) {
        Report& r = d->reports[i];
        if (r.kind == kind && r.buffer == buffer && r.pc == pc && r.line == line) return nullptr;
    }
    u32 at = __atomic_fetch_add(&d->report_count, 1, __ATOMIC_RELAXED);
    if (at >= d->report_capacity) return nullptr;
    Report& r = d->reports[at];
    r = Report{};
    r.kind = kind;
    r.buffer = buffer;
    r.threadgroup = r.other_threadgroup = w->group_index;
    r.thread = r.other_thread = w->now ? w->now->info.index : 0;
    r.file = file;
    r.line = line;
    r.pc = pc;
    return &r;
}

static void wait_here(Worker* w, Wait wait, const char* file, u32 line) {
    Fiber* f = w->now;
    Simdgroup& g = w->groups[f->info.index / 32];
    f->wait = wait;
    f->file = file;
    f->line = line;
    g.ready &= ~(1u << (f->info.index % 32));
    block(w);
    f->wait = RUNNING;
}

// Arrival of the current lane at an operation of its simdgroup; true for the last one, which has not blocked.
static bool arrive_simd(Worker* w, Wait wait, const char* file, u32 line) {
    Simdgroup& g = w->groups[w->now->info.index / 32];
    if (g.arrived == 0) {
        g.file = file;
        g.line = line;
    } else if (g.line != line || g.file != file) {
        report(w, PARTIAL_SIMDGROUP, file, line, 0, ~0u);
        abandon(w);
    }
    if (++g.arrived == g.lanes) {
        g.arrived = 0;
        return true;
    }
    wait_here(w, wait, file, line);
    return false;
}
static u32 mask_of(const Simdgroup& g) { return g.lanes == 32 ? ~0u : (1u << g.lanes) - 1; }

static bool arrive_all(Worker* w, Wait wait, const char* file, u32 line) {
    if (w->arrived == 0) {
        w->file = file;
        w->line = line;
    } else if (w->line != line || w->file != file) {
        report(w, DIVERGENT_BARRIER, file, line, 0, ~0u);
        abandon(w);
    }
    if (++w->arrived == w->threads) {
        w->arrived = 0;
        return true;
    }
    wait_here(w, wait, file, line);
    return false;
}
static void release_all(Worker* w) {
    for (u32 g = 0; g < w->simdgroups; g++) w->groups[g].ready = mask_of(w->groups[g]);
}

extern "C" {

unsigned msl_rt_lane() { return current->now->info.index % 32; }
unsigned msl_rt_simdgroup() { return current->now->info.index / 32; }

void msl_rt_barrier(unsigned flags, const char* file, unsigned line) {
    Worker* w = current;
    w->flags = flags;
    if (arrive_all(w, BARRIER, file, line)) {
        if (flags & 1) w->epoch_device++;
        if (flags & 2) w->epoch_threadgroup++;
        release_all(w);
    }
}

void msl_rt_simd_barrier(unsigned flags, const char* file, unsigned line) {
    Worker* w = current;
    Simdgroup& g = w->groups[w->now->info.index / 32];
    if (arrive_simd(w, SIMD_BARRIER, file, line)) {
        if (flags & 1) g.epoch_device++;
        if (flags & 2) g.epoch_threadgroup++;
        g.ready = mask_of(g);
    }
}

void msl_rt_exchange(void* out, const void* in, unsigned size, unsigned from, const char* file, unsigned line) {
    Worker* w = current;
    Simdgroup& g = w->groups[w->now->info.index / 32];
    u32 lane = w->now->info.index % 32, parity = g.parity;
    memcpy(g.slots[parity][lane], in, size);
    if (arrive_simd(w, SIMD, file, line)) {
        g.parity ^= 1;
        g.ready = mask_of(g);
    }
    memcpy(out, g.slots[parity][from], size);
}

}  // extern "C"

template <class T> static T combine(u32 op, T a, T b) {
    switch (op) {
        case 0: return T(a + b);
        case 1: return T(a * b);
        case 2: return b < a ? b : a;
        default: return a < b ? b : a;
    }
}
static u32 combine_bits(u32 op, u32 a, u32 b) { return op == 4 ? a & b : op == 5 ? a | b : a ^ b; }

// Tree over lane distance, the order a butterfly of shuffles has on a GPU.
template <class T> static T reduce(T value, u32 op, u32 width, const char* file, u32 line) {
    Worker* w = current;
    Simdgroup& g = w->groups[w->now->info.index / 32];
    u32 lane = w->now->info.index % 32, parity = g.parity;
    T* slots = reinterpret_cast<T*>(&g.slots[parity][0][0]);
    slots[lane] = value;
    if (arrive_simd(w, SIMD, file, line)) {
        for (u32 first = 0; first < 32; first += width) {
            for (u32 d = width / 2; d; d /= 2) {
                for (u32 i = 0; i < d; i++) {
                    T a = slots[first + i], b = slots[first + i + d];
                    if (op < 4) {
                        slots[first + i] = combine<T>(op, a, b);
                    } else {
                        u32 x, y;
                        memcpy(&x, &a, 4);
                        memcpy(&y, &b, 4);
                        x = combine_bits(op, x, y);
                        memcpy(&slots[first + i], &x, 4);
                    }
                }
            }
        }
        g.parity ^= 1;
        g.ready = mask_of(g);
    }
    return slots[lane / width * width];
}

extern "C" {

float msl_rt_reduce_f32(float v, unsigned op, unsigned width, const char* f, unsigned l) { return reduce(v, op, width, f, l); }
int msl_rt_reduce_i32(int v, unsigned op, unsigned width, const char* f, unsigned l) { return reduce(v, op, width, f, l); }
unsigned msl_rt_reduce_u32(unsigned v, unsigned op, unsigned width, const char* f, unsigned l) {
    return reduce(v, op, width, f, l);
}

unsigned msl_rt_ballot(bool value, const char* file, unsigned line) {
    return reduce<u32>(value ? 1u << (current->now->info.index % 32) : 0u, 5, 32, file, line);
}

bool msl_rt_gather(unsigned simdgroups, const void* deposit, const char* file, unsigned line) {
    Worker* w = current;
    if (simdgroups != 1 && simdgroups != w->simdgroups) {
        report(w, SCOPE_MISMATCH, file, line, 0, ~0u);
        abandon(w);
    }
    w->now->deposit = deposit;
    bool whole = simdgroups == w->simdgroups && simdgroups != 1;
    bool last = whole ? arrive_all(w, GATHER, file, line) : arrive_simd(w, GATHER, file, line);
    if (last) {
        w->scope_first = whole ? 0 : w->now->info.index / 32 * 32;
        w->collective = whole ? 2 : 1;
    }
    return last;
}
const void* msl_rt_deposit(unsigned thread) { return current->fibers[current->scope_first + thread].deposit; }
float* msl_rt_scratch() { return reinterpret_cast<float*>(current->scratch); }
void msl_rt_release() {
    Worker* w = current;
    if (w->collective == 2) {
        release_all(w);
    } else {
        Simdgroup& g = w->groups[w->now->info.index / 32];
        g.ready = mask_of(g);
    }
    w->collective = 0;
}

}  // extern "C"

#include "checker.inc"

static void finish(Worker* w) {
    Fiber* self = w->now;
    self->wait = DONE;
    w->finished++;
    w->groups[self->info.index / 32].ready &= ~(1u << (self->info.index % 32));
    block(w);
    __builtin_unreachable();
}

static void fiber_main() {
    Worker* w = current;
    w->job->thunk(w->buffers, &w->now->info);
    finish(w);
}

static void stuck(Worker* w) {
    // Nobody can run and not all have returned: some wait for threads that wait elsewhere or are gone.
    Fiber* simd = nullptr;
    Fiber* barrier = nullptr;
    for (u32 i = 0; i < w->threads; i++) {
        Fiber& f = w->fibers[i];
        if ((f.wait == SIMD || f.wait == SIMD_BARRIER || f.wait == GATHER) && !simd) simd = &f;
        if (f.wait == BARRIER && !barrier) barrier = &f;
    }
    Fiber* shown = simd ? simd : barrier;
    if (!shown) return;
    w->now = shown;
    report(w, simd ? PARTIAL_SIMDGROUP : DIVERGENT_BARRIER, shown->file, shown->line, 0, ~0u);
    w->now = nullptr;
}

static void run_group(Worker* w, u64 index) {
    Dispatch* d = w->job;
    u32 gx = u32(index % d->grid[0]), gy = u32(index / d->grid[0] % d->grid[1]);
    u32 gz = u32(index / (u64(d->grid[0]) * d->grid[1]));
    w->group_index = u32(index);
    w->finished = w->arrived = w->epoch_device = w->epoch_threadgroup = w->collective = w->variable_count = 0;
    check_group_begin(w);
    for (u32 g = 0; g < w->simdgroups; g++) {
        Simdgroup& s = w->groups[g];
        s.lanes = w->threads - g * 32 < 32 ? w->threads - g * 32 : 32;
        s.ready = mask_of(s);
        s.arrived = s.parity = s.epoch_device = s.epoch_threadgroup = 0;
    }
    for (u32 i = 0; i < w->threads; i++) {
        Fiber& f = w->fibers[i];
        f.wait = RUNNING;
        f.fenced = 0;
        f.pending_location = 0;
        ThreadInfo& t = f.info;
        t.group[0] = gx;
        t.group[1] = gy;
        t.group[2] = gz;
        void** sp = reinterpret_cast<void**>(w->stacks + u64(i + 1) * STACK - 64);
        *--sp = nullptr;  // keeps the ABI's alignment at the entry of fiber_main
        *--sp = reinterpret_cast<void*>(fiber_main);
        sp -= 6;
        f.sp = sp;
    }
    w->now = &w->fibers[0];
    msl_switch(&w->main_sp, w->now->sp);
    if (!w->aborted && w->finished != w->threads) {
        stuck(w);
        w->aborted = true;
    }
}

extern "C" {

__attribute__((visibility("default"))) void* msl_worker_new() {
    u64 head = (sizeof(Worker) + 4095) / 4096 * 4096;
    u64 size = head + SCRATCH + u64(MAX_THREADS) * STACK;
    void* area = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED) return nullptr;
    Worker* w = static_cast<Worker*>(area);
    w->area = static_cast<u8*>(area);
    w->area_size = size;
    w->scratch = w->area + head;
    w->stacks = w->scratch + SCRATCH;
    for (u32 i = 0; i < MAX_THREADS; i++) mprotect(w->stacks + u64(i) * STACK, GUARD, PROT_NONE);
    w->arena = static_cast<u8*>(aligned_alloc(4096, ARENA));
    memset(w->arena, 0xff, ARENA);
    return w;
}

__attribute__((visibility("default"))) void msl_worker_free(void* worker) {
    Worker* w = static_cast<Worker*>(worker);
    check_free(w);
    free(w->arena);
    munmap(w->area, w->area_size);
}

// Runs threadgroups first..last of a dispatch on the calling thread; false when one had to be abandoned.
__attribute__((visibility("default"))) bool msl_run(void* worker, Dispatch* job, u64 first, u64 last) {
    Worker* w = static_cast<Worker*>(worker);
    Worker* outer = current;
    current = w;
    w->job = job;
    w->aborted = false;
    memcpy(w->buffers, job->buffers, sizeof w->buffers);
    w->threads = job->size[0] * job->size[1] * job->size[2];
    w->simdgroups = (w->threads + 31) / 32;
    for (u32 i = 0; i < w->threads; i++) {
        ThreadInfo& t = w->fibers[i].info;
        for (u32 a = 0; a < 3; a++) {
            t.grid[a] = job->grid[a];
            t.size[a] = job->size[a];
        }
        t.index = i;
        t.local[0] = i % t.size[0];
        t.local[1] = i / t.size[0] % t.size[1];
        t.local[2] = i / (t.size[0] * t.size[1]);
    }
    check_dispatch_begin(w);
    for (u64 index = first; index < last && !w->aborted; index++) run_group(w, index);
    current = outer;
    return !w->aborted;
}

}  // extern "C"
