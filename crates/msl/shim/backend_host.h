// What kernels need from the machine, on the CPU: every call goes to the fibre runtime (runtime.cpp), which is compiled
// without instrumentation. Call sites pass their own file and line so that reports can name them.

#define MSL_SITE , const char* msl_file = __builtin_FILE(), unsigned msl_line = __builtin_LINE()
#define MSL_HERE , msl_file, msl_line

extern "C" {
unsigned msl_rt_lane();
unsigned msl_rt_simdgroup();
void msl_rt_barrier(unsigned flags, const char* file, unsigned line);
void msl_rt_simd_barrier(unsigned flags, const char* file, unsigned line);
void msl_rt_fence(unsigned flags, unsigned scope);
void msl_rt_exchange(void* out, const void* in, unsigned size, unsigned from, const char* file, unsigned line);
float msl_rt_reduce_f32(float value, unsigned op, unsigned width, const char* file, unsigned line);
int msl_rt_reduce_i32(int value, unsigned op, unsigned width, const char* file, unsigned line);
unsigned msl_rt_reduce_u32(unsigned value, unsigned op, unsigned width, const char* file, unsigned line);
unsigned msl_rt_ballot(bool value, const char* file, unsigned line);
unsigned msl_rt_atomic(void* at, unsigned op, unsigned type, unsigned a, unsigned b, const char* file, unsigned line);
void* msl_rt_threadgroup(unsigned offset, unsigned size, const char* name);
// Collective operations: every thread of the scope leaves a pointer; the last to arrive gets true, reads all of them with
// msl_rt_deposit, does the work, and lets the others go with msl_rt_release.
bool msl_rt_gather(unsigned simdgroups, const void* deposit, const char* file, unsigned line);
const void* msl_rt_deposit(unsigned thread);
float* msl_rt_scratch();
void msl_rt_release();
// Tells the checker about an access of a collective; the code that does it is not instrumented.
void msl_rt_note(const void* at, unsigned long size, bool writes);
}
#define MSL_PLAIN __attribute__((noinline, no_sanitize("thread")))

namespace metal {

struct MslThread {
    unsigned grid[3], group[3], local[3], size[3], index;
};

// Value of an element, without a call that might be instrumented.
template <class T> MSL_PLAIN float msl_value(const T* at) {
    if constexpr (is_same_v<T, bfloat>) {
        return __builtin_bit_cast(float, uint(*reinterpret_cast<const ushort*>(at)) << 16);
    } else if constexpr (is_same_v<T, half>) {
        return float(*reinterpret_cast<const _Float16*>(at));
    } else {
        return float(*at);
    }
}

MSL_FN uint msl_lane() { return msl_rt_lane(); }

MSL_FN void threadgroup_barrier(mem_flags flags MSL_SITE) { msl_rt_barrier(uint(flags) MSL_HERE); }
MSL_FN void simdgroup_barrier(mem_flags flags MSL_SITE) { msl_rt_simd_barrier(uint(flags) MSL_HERE); }
MSL_FN void atomic_thread_fence(mem_flags flags, memory_order, thread_scope scope = thread_scope_device) {
    msl_rt_fence(uint(flags), uint(scope));
}

template <class T> MSL_FN T msl_exchange(T value, uint from MSL_SITE) {
    static_assert(sizeof(T) <= 16, "simd shuffles move at most 16 bytes");
    T out;
    msl_rt_exchange(&out, &value, sizeof(T), from MSL_HERE);
    return out;
}
MSL_FN float msl_reduce(float v, uint op, uint width MSL_SITE) { return msl_rt_reduce_f32(v, op, width MSL_HERE); }
MSL_FN int msl_reduce(int v, uint op, uint width MSL_SITE) { return msl_rt_reduce_i32(v, op, width MSL_HERE); }
MSL_FN uint msl_reduce(uint v, uint op, uint width MSL_SITE) { return msl_rt_reduce_u32(v, op, width MSL_HERE); }
MSL_FN ulong msl_ballot(bool v MSL_SITE) { return msl_rt_ballot(v MSL_HERE); }

template <class T> MSL_FN T msl_atomic(T* at, uint op, T a, T b MSL_SITE) {
    constexpr uint type = is_same_v<T, float> ? 2 : is_same_v<T, int> ? 1 : 0;
    return as_type<T>(msl_rt_atomic(at, op, type, as_type<uint>(a), as_type<uint>(b) MSL_HERE));
}

// Threadgroup variables: offsets are compile-time, the check build leaves a gap after each.
constexpr unsigned msl_next(unsigned at, unsigned size) {
#ifdef MSL_CHECK
    return (at + size + 64 + 15) / 16 * 16;
#else
    return (at + size + 15) / 16 * 16;
#endif
}
constexpr unsigned msl_sum(unsigned sum, unsigned size) { return sum + (size + 15) / 16 * 16; }

}  // namespace metal
