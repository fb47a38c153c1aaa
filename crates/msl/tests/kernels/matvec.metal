#include <metal_stdlib>
using namespace metal;

#define INSTANTIATE(name, func, ...) \
    template [[host_name(name)]] [[kernel]] decltype(func<__VA_ARGS__>) func<__VA_ARGS__>;

// y[row] = sum_k w[row][k] * x[k] over 4-bit weights in groups of 64 with bf16 scale and bias; one simdgroup a row.
template <int K, bool ADD>
[[kernel]] void matvec4(const device uint4* w [[buffer(0)]],
                        const device bfloat* scales [[buffer(1)]],
                        const device bfloat* biases [[buffer(2)]],
                        const device bfloat4* x [[buffer(3)]],
                        device float* y [[buffer(4)]],
                        uint3 group [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint sg [[simdgroup_index_in_threadgroup]]) {
    uint row = group.x * 2 + sg;
    if (row >= ROWS) {
        return;
    }
    const device uint4* weights = w + size_t(row) * (K / 32);
    float sum = 0.0f;
    for (int block = int(lane); block < K / 32; block += 32) {
        uint4 packed = weights[block];
        float scale = float(scales[size_t(row) * (K / 64) + block / 2]);
        float bias = float(biases[size_t(row) * (K / 64) + block / 2]);
        for (int word = 0; word < 4; word++) {
            uint bits = packed[word];
            float4 a = float4(x[block * 8 + word * 2]);
            float4 b = float4(x[block * 8 + word * 2 + 1]);
            float4 lo = float4(float(bits & 15), float((bits >> 4) & 15), float((bits >> 8) & 15), float((bits >> 12) & 15));
            float4 hi = float4(uint4((bits >> 16) & 15, (bits >> 20) & 15, (bits >> 24) & 15, bits >> 28));
            sum += scale * (dot(lo, a) + dot(hi, b)) + bias * (a.x + a.y + a.z + a.w + dot(b.xy, float2(1)) + b.z + b.w);
        }
    }
    sum = simd_sum(sum);
    if (lane == 0) {
        y[row] = ADD ? y[row] + sum : sum;
    }
}
INSTANTIATE("matvec4_64", matvec4, 64, false)
INSTANTIATE("matvec4_2048", matvec4, 2048, false)
INSTANTIATE("matvec4_2048_add", matvec4, 2048, true)
