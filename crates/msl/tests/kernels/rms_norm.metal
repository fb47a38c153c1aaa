#include <metal_stdlib>
using namespace metal;

// out[row][i] = x[row][i] * rsqrt(mean(x[row]^2) + eps) * weight[i]; one threadgroup a row.
kernel void rms_norm(const device float* x [[buffer(0)]],
                     const device bfloat* weight [[buffer(1)]],
                     device float* out [[buffer(2)]],
                     constant float& eps [[buffer(3)]],
                     uint row [[threadgroup_position_in_grid]],
                     uint tid [[thread_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]],
                     uint sg [[simdgroup_index_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]]) {
    threadgroup float partial[32];
    const device float* in = x + size_t(row) * N;
    float sum = 0.0;
    for (uint i = tid; i < N; i += threads) {
        sum += in[i] * in[i];
    }
    sum = simd_sum(sum);
    if (lane == 0) {
        partial[sg] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0;
    for (uint i = 0; i < threads / 32; i++) {
        total += partial[i];
    }
    float scale = precise::rsqrt(total / N + eps);
    for (uint i = tid; i < N; i += threads) {
        out[size_t(row) * N + i] = in[i] * scale * float(weight[i]);
    }
}
