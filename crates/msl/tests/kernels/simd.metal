#include <metal_stdlib>
using namespace metal;

constant constexpr int PARTS = 8;

// Every simdgroup function once; out[lane][k].
kernel void simd_functions(const device float* x [[buffer(0)]],
                           device float* out [[buffer(1)]],
                           uint lane [[thread_index_in_simdgroup]]) {
    float v = x[lane];
    device float* to = out + lane * 16;
    to[0] = simd_sum(v);
    to[1] = simd_max(v);
    to[2] = simd_min(v);
    to[3] = simd_shuffle_xor(v, 5);
    to[4] = simd_shuffle_down(v, 3);
    to[5] = simd_shuffle_up(v, 3);
    to[6] = simd_broadcast(v, 7);
    to[7] = simd_shuffle(v, ushort((lane * 7) % 32));
    to[8] = simd_prefix_inclusive_sum(v);
    to[9] = simd_prefix_exclusive_sum(v);
    to[10] = float(popcount(uint(ulong(simd_ballot(v > 0.0f)))));
    to[11] = quad_sum(v);
    to[12] = simd_any(v > 0.99f) ? 1.0f : 0.0f;
    to[13] = float(simd_sum(int(lane)));
    to[14] = simd_shuffle_and_fill_down(v, -1.0f, ushort(2));
    float2 pair = simd_shuffle_xor(float2(v, float(lane)), 1);
    to[15] = pair.x + pair.y;
}

// Sum over threadgroups: each writes a partial, the last to arrive adds them up in order.
kernel void last_arriver(const device float* x [[buffer(0)]],
                         device float* partials [[buffer(1)]],
                         device atomic_uint* arrived [[buffer(2)]],
                         device float* out [[buffer(3)]],
                         uint group [[threadgroup_position_in_grid]],
                         uint tid [[thread_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint sg [[simdgroup_index_in_threadgroup]]) {
    threadgroup float sums[4];
    threadgroup uint last;
    float sum = simd_sum(x[group * 128 + tid]);
    if (lane == 0) {
        sums[sg] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid == 0) {
        partials[group] = sums[0] + sums[1] + sums[2] + sums[3];
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
        last = atomic_fetch_add_explicit(arrived, 1u, memory_order_relaxed) == PARTS - 1 ? 1 : 0;
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (last != 0) {
        float part = tid < PARTS ? partials[tid] : 0.0f;
        float total = simd_sum(part);
        if (tid == 0) {
            out[0] = total;
        }
    }
}

// Histogram with device and threadgroup atomics.
kernel void histogram(const device uint* x [[buffer(0)]],
                      device atomic_uint* counts [[buffer(1)]],
                      device atomic_float* sum [[buffer(2)]],
                      uint gid [[thread_position_in_grid]],
                      uint tid [[thread_index_in_threadgroup]]) {
    threadgroup atomic_uint local[8];
    if (tid < 8) {
        atomic_store_explicit(&local[tid], 0u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&local[x[gid] % 8], 1u, memory_order_relaxed);
    atomic_fetch_add_explicit(sum, 0.5f, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < 8) {
        atomic_fetch_add_explicit(&counts[tid], atomic_load_explicit(&local[tid], memory_order_relaxed), memory_order_relaxed);
    }
}
