// What kernels need from the machine, on an NVIDIA GPU: a simdgroup is a warp, a threadgroup is a block.
// Memory orders are at least as strong as Metal's: block barriers order device and shared memory for the block.

namespace metal {

struct MslThread {
    unsigned grid[3], group[3], local[3], size[3], index;
};
MSL_FN MslThread msl_this_thread() {
    return {{gridDim.x, gridDim.y, gridDim.z},
            {blockIdx.x, blockIdx.y, blockIdx.z},
            {threadIdx.x, threadIdx.y, threadIdx.z},
            {blockDim.x, blockDim.y, blockDim.z},
            (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x};
}
MSL_FN uint msl_lane() {
    uint lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
MSL_FN uint msl_simdgroup() { return ((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x) / 32; }

// A grid may be launched while the one before it still runs; it then waits here for what that one writes, and lets the next
// be launched.
#ifdef MSL_DEPENDENT_LAUNCH
#define MSL_ENTER asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#else
#define MSL_ENTER
#endif

MSL_FN void threadgroup_barrier(mem_flags) { __syncthreads(); }
MSL_FN void simdgroup_barrier(mem_flags) { __syncwarp(); }
MSL_FN void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) { __threadfence(); }

MSL_FN uint msl_exchange(uint value, uint from) { return __shfl_sync(0xffffffffu, value, int(from)); }
MSL_FN int msl_exchange(int value, uint from) { return __shfl_sync(0xffffffffu, value, int(from)); }
MSL_FN float msl_exchange(float value, uint from) { return __shfl_sync(0xffffffffu, value, int(from)); }
template <class T, int N> MSL_FN vec<T, N> msl_exchange(vec<T, N> value, uint from) {
    vec<T, N> out;
    for (int i = 0; i < N; i++) out[i] = msl_exchange(value[i], from);
    return out;
}
template <class T> MSL_FN T msl_combine(T a, T b, uint op) {
    switch (op) {
        case 0: return a + b;
        case 1: return a * b;
        case 2: return b < a ? b : a;
        default: return a < b ? b : a;
    }
}
template <class T> MSL_FN T msl_reduce(T v, uint op, uint width) {
    for (uint d = width / 2; d; d /= 2) {
        T other = __shfl_xor_sync(0xffffffffu, v, int(d));
        if constexpr (is_same_v<T, float>) {
            v = msl_combine(v, other, op);
        } else {
            v = op == 4 ? v & other : op == 5 ? v | other : op == 6 ? v ^ other : msl_combine(v, other, op);
        }
    }
    return v;
}
MSL_FN ulong msl_ballot(bool v) { return __ballot_sync(0xffffffffu, v); }

template <class T> MSL_FN T msl_atomic(T* at, uint op, T a, T b) {
    switch (op) {
        case 0: return *const_cast<volatile T*>(at);
        case 1: *const_cast<volatile T*>(at) = a; return a;
        case 2: return atomicExch(at, a);
        case 3: return as_type<T>(atomicCAS(reinterpret_cast<uint*>(at), as_type<uint>(b), as_type<uint>(a)));
        case 4: return atomicAdd(at, a);
        case 5: return atomicAdd(at, T(-a));
    }
    if constexpr (is_same_v<T, float>) {
        uint* bits = reinterpret_cast<uint*>(at);
        uint old = *const_cast<volatile uint*>(bits), seen;
        do {
            seen = old;
            float now = as_type<float>(seen);
            float next = op == 6 ? (a < now ? a : now) : (a > now ? a : now);
            old = atomicCAS(bits, seen, as_type<uint>(next));
        } while (old != seen);
        return as_type<float>(old);
    } else {
        switch (op) {
            case 6: return atomicMin(at, a);
            case 7: return atomicMax(at, a);
            case 8: return atomicAnd(at, a);
            case 9: return atomicOr(at, a);
            default: return atomicXor(at, a);
        }
    }
}

}  // namespace metal
