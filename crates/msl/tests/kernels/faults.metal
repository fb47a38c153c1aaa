#include <metal_stdlib>
using namespace metal;

#define INSTANTIATE(name, func, ...) \
    template [[host_name(name)]] [[kernel]] decltype(func<__VA_ARGS__>) func<__VA_ARGS__>;

enum Fault {
    NONE,
    UNWRITTEN_THREADGROUP,
    NO_BARRIER,
    WRONG_FLAGS,
    WEAK_BARRIER,
    DIVERGENT,
    RETURN_BEFORE_BARRIER,
    THREADGROUP_BOUNDS,
    BOUNDS,
    CROSS_GROUP,
    PARTIAL_SIMD,
    DEVICE_WRONG_FLAGS,
    WRITE_AFTER_READ,
    LANES_NO_BARRIER,
    ARRIVE_NO_BARRIER,
    ARRIVE_NO_FENCE,
    MIXED_ATOMIC,
    MATMUL_NO_BARRIER,
    MATMUL_BOUNDS,
    MATMUL_SCOPE
};

// Kernels that are clean with FAULT == NONE and have one fault each otherwise.
template <int FAULT>
[[kernel]] void reverse(const device float* x [[buffer(0)]],
                    device float* out [[buffer(1)]],
                    uint group [[threadgroup_position_in_grid]],
                    uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float tile[64];
    if constexpr (FAULT != UNWRITTEN_THREADGROUP) {
        tile[tid] = x[group * 64 + tid];
    } else {
        if (tid != 5) {
            tile[tid] = x[group * 64 + tid];
        }
    }
    if constexpr (FAULT == NO_BARRIER) {
    } else if constexpr (FAULT == WRONG_FLAGS) {
        threadgroup_barrier(mem_flags::mem_device);
    } else if constexpr (FAULT == WEAK_BARRIER) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
    } else if constexpr (FAULT == DIVERGENT) {
        if (tid < 40) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
    } else if constexpr (FAULT == RETURN_BEFORE_BARRIER) {
        if (tid == 63) {
            return;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    } else {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if constexpr (FAULT == THREADGROUP_BOUNDS) {
        out[group * 64 + tid] = tile[64 - tid];
    } else {
        out[group * 64 + tid] = tile[63 - tid];
    }
    if constexpr (FAULT == BOUNDS) {
        out[group * 64 + tid + 1] = 0.0f;
    }
    if constexpr (FAULT == CROSS_GROUP) {
        out[(group + 1) % 4 * 64 + tid] = 0.0f;
    }
    if constexpr (FAULT == PARTIAL_SIMD) {
        if (tid % 32 < 16) {
            out[group * 64 + tid] = simd_sum(x[tid]);
        }
    }
}

// Threads hand values to their neighbour through device memory.
template <int FAULT>
[[kernel]] void neighbour(device float* out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    out[tid] = float(tid);
    if constexpr (FAULT == DEVICE_WRONG_FLAGS) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    } else {
        threadgroup_barrier(mem_flags::mem_device);
    }
    float next = out[(tid + 1) % 64];
    if constexpr (FAULT != WRITE_AFTER_READ) {
        threadgroup_barrier(mem_flags::mem_device);
    }
    out[tid] = next;
}

// Threads of one simdgroup hand values over; a simdgroup barrier is enough.
template <int FAULT>
[[kernel]] void lanes(device float* out [[buffer(0)]],
                  uint lane [[thread_index_in_simdgroup]],
                  uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float tile[64];
    tile[tid] = float(lane);
    if constexpr (FAULT != LANES_NO_BARRIER) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    out[tid] = tile[tid ^ 1];
}

// The last threadgroup adds up partial sums; the hand-over needs fences and a barrier for device memory.
template <int FAULT>
[[kernel]] void arrive(device float* partials [[buffer(0)]],
                   device atomic_uint* arrived [[buffer(1)]],
                   device float* out [[buffer(2)]],
                   uint group [[threadgroup_position_in_grid]],
                   uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint last;
    partials[group * 64 + tid] = float(tid);
    if constexpr (FAULT != ARRIVE_NO_BARRIER) {
        threadgroup_barrier(mem_flags::mem_device);
    }
    if (tid == 0) {
    if constexpr (FAULT != ARRIVE_NO_FENCE) {
            atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    }
        last = atomic_fetch_add_explicit(arrived, 1u, memory_order_relaxed) == 3 ? 1 : 0;
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (last != 0) {
        float sum = 0.0f;
        for (uint i = 0; i < 4; i++) {
            sum += partials[i * 64 + tid];
        }
        out[tid] = sum;
    }
}

// A counter that some threads update without an atomic.
template <int FAULT>
[[kernel]] void counter(device atomic_uint* count [[buffer(0)]],
                    device uint* plain [[buffer(1)]],
                    uint tid [[thread_index_in_threadgroup]]) {
    atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);
    if constexpr (FAULT == MIXED_ATOMIC) {
        plain[0] = tid;
    } else {
        if (tid == 0) {
            plain[1] = tid;
        }
    }
}

kernel void copy(const device float* x [[buffer(0)]], device float* out [[buffer(1)]], uint gid [[thread_position_in_grid]]) {
    out[gid] = x[gid];
}

INSTANTIATE("reverse/NONE", reverse, NONE)
INSTANTIATE("reverse/UNWRITTEN_THREADGROUP", reverse, UNWRITTEN_THREADGROUP)
INSTANTIATE("reverse/NO_BARRIER", reverse, NO_BARRIER)
INSTANTIATE("reverse/WRONG_FLAGS", reverse, WRONG_FLAGS)
INSTANTIATE("reverse/WEAK_BARRIER", reverse, WEAK_BARRIER)
INSTANTIATE("reverse/DIVERGENT", reverse, DIVERGENT)
INSTANTIATE("reverse/RETURN_BEFORE_BARRIER", reverse, RETURN_BEFORE_BARRIER)
INSTANTIATE("reverse/THREADGROUP_BOUNDS", reverse, THREADGROUP_BOUNDS)
INSTANTIATE("reverse/BOUNDS", reverse, BOUNDS)
INSTANTIATE("reverse/CROSS_GROUP", reverse, CROSS_GROUP)
INSTANTIATE("reverse/PARTIAL_SIMD", reverse, PARTIAL_SIMD)
INSTANTIATE("neighbour/NONE", neighbour, NONE)
INSTANTIATE("neighbour/DEVICE_WRONG_FLAGS", neighbour, DEVICE_WRONG_FLAGS)
INSTANTIATE("neighbour/WRITE_AFTER_READ", neighbour, WRITE_AFTER_READ)
INSTANTIATE("lanes/NONE", lanes, NONE)
INSTANTIATE("lanes/LANES_NO_BARRIER", lanes, LANES_NO_BARRIER)
INSTANTIATE("arrive/NONE", arrive, NONE)
INSTANTIATE("arrive/ARRIVE_NO_BARRIER", arrive, ARRIVE_NO_BARRIER)
INSTANTIATE("arrive/ARRIVE_NO_FENCE", arrive, ARRIVE_NO_FENCE)
INSTANTIATE("counter/NONE", counter, NONE)
INSTANTIATE("counter/MIXED_ATOMIC", counter, MIXED_ATOMIC)

#if __METAL_VERSION__ >= 400
// A tensor operation over threadgroup memory that the simdgroups fill.
template <int FAULT>
[[kernel]] void multiply(const device bfloat* a [[buffer(0)]],
                     device float* c [[buffer(1)]],
                     uint tid [[thread_index_in_threadgroup]]) {
    threadgroup bfloat at[16 * 32];
    threadgroup bfloat bt[32 * 16];
    for (uint i = tid; i < 16 * 32; i += 64) {
        at[i] = a[i];
        bt[i] = a[i];
    }
    if constexpr (FAULT != MATMUL_NO_BARRIER) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    constexpr auto desc = mpp::tensor_ops::matmul2d_descriptor(16, 16, 32, false, false, false,
                                                               mpp::tensor_ops::matmul2d_descriptor::mode::multiply);
    mpp::tensor_ops::matmul2d<desc, execution_simdgroups<FAULT == MATMUL_SCOPE ? 4 : 2>> op;
    tensor<threadgroup bfloat, dextents<int32_t, 2>, tensor_inline> left(at, dextents<int32_t, 2>(32, 16));
    tensor<threadgroup bfloat, dextents<int32_t, 2>, tensor_inline> right(bt, dextents<int32_t, 2>(16, 32));
    constexpr int STRIDE = FAULT == MATMUL_BOUNDS ? 20 : 16;
    tensor<device float, dextents<int32_t, 2>, tensor_inline> out(c, dextents<int32_t, 2>(16, 16), array<int, 2>{1, STRIDE});
    op.run(left, right, out);
}
INSTANTIATE("multiply/NONE", multiply, NONE)
INSTANTIATE("multiply/MATMUL_NO_BARRIER", multiply, MATMUL_NO_BARRIER)
INSTANTIATE("multiply/MATMUL_BOUNDS", multiply, MATMUL_BOUNDS)
INSTANTIATE("multiply/MATMUL_SCOPE", multiply, MATMUL_SCOPE)
#endif
