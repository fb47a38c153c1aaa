#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#if __METAL_VERSION__ >= 400
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace mpp::tensor_ops;
#endif
using namespace metal;

#define INSTANTIATE(name, func, ...) \
    template [[host_name(name)]] [[kernel]] decltype(func<__VA_ARGS__>) func<__VA_ARGS__>;

// c[M][N] = a[M][K] * b[N][K]^T with 8x8 simdgroup matrices; a 32x32 tile a threadgroup of 4 simdgroups, bf16 or f32 inputs.
template <typename T>
[[kernel]] void gemm8x8(const device T* a [[buffer(0)]],
                        const device T* b [[buffer(1)]],
                        device float* c [[buffer(2)]],
                        uint2 tile [[threadgroup_position_in_grid]],
                        uint tid [[thread_index_in_threadgroup]],
                        uint sg [[simdgroup_index_in_threadgroup]]) {
    threadgroup T at[32 * 32];
    threadgroup T bt[32 * 32];
    simdgroup_float8x8 acc[4];
    for (int i = 0; i < 4; i++) {
        acc[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    for (int k = 0; k < K; k += 32) {
        for (uint i = tid; i < 32 * 32; i += 128) {
            at[i] = a[(tile.y * 32 + i / 32) * K + k + i % 32];
            bt[i] = b[(tile.x * 32 + i / 32) * K + k + i % 32];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int kk = 0; kk < 32; kk += 8) {
            simdgroup_matrix<T, 8, 8> left;
            simdgroup_load(left, &at[sg * 8 * 32 + kk], 32);
            for (int i = 0; i < 4; i++) {
                simdgroup_matrix<T, 8, 8> right;
                simdgroup_load(right, bt + i * 8 * 32 + kk, 32, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(acc[i], left, right, acc[i]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (int i = 0; i < 4; i++) {
        simdgroup_store(acc[i], c + (tile.y * 32 + sg * 8) * N + tile.x * 32 + i * 8, N);
    }
}
INSTANTIATE("gemm8x8_bfloat", gemm8x8, bfloat)
INSTANTIATE("gemm8x8_float", gemm8x8, float)

#if __METAL_VERSION__ >= 400
// The same product with a tensor operation straight from device memory; ragged M and N are cut by the extents.
kernel void gemm_tensor(const device bfloat* a [[buffer(0)]],
                        const device bfloat* b [[buffer(1)]],
                        device float* c [[buffer(2)]],
                        uint2 tile [[threadgroup_position_in_grid]]) {
    constexpr auto desc = matmul2d_descriptor(32, 64, static_cast<int>(dynamic_extent), false, true, true,
                                              matmul2d_descriptor::mode::multiply);
    matmul2d<desc, execution_simdgroups<4>> op;
    tensor<const device bfloat, dextents<int32_t, 2>, tensor_inline> ta(a, dextents<int32_t, 2>(K, M));
    tensor<const device bfloat, dextents<int32_t, 2>, tensor_inline> tb(b, dextents<int32_t, 2>(K, N));
    tensor<device float, dextents<int32_t, 2>, tensor_inline> tc(c, dextents<int32_t, 2>(N, M));
    auto left = ta.slice(0, tile.y * 32);
    auto right = tb.slice(0, tile.x * 64);
    auto out = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
    op.run(left, right, out);
    auto place = tc.slice(tile.x * 64, tile.y * 32);
    out.store(place);
}

// K in slabs of 32 staged in threadgroup memory, accumulated in a cooperative tensor, doubled by element index.
kernel void gemm_staged(const device bfloat* a [[buffer(0)]],
                        const device bfloat* b [[buffer(1)]],
                        device float* c [[buffer(2)]],
                        uint2 tile [[threadgroup_position_in_grid]],
                        uint tid [[thread_index_in_threadgroup]]) {
    threadgroup bfloat bt[64 * 32];
    constexpr auto desc = matmul2d_descriptor(32, 64, 32, false, true, true, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<desc, execution_simdgroups<4>> op;
    tensor<const device bfloat, dextents<int32_t, 2>, tensor_inline> ta(a, dextents<int32_t, 2>(K, M));
    tensor<threadgroup bfloat, dextents<int32_t, 2>, tensor_inline> tb(bt, dextents<int32_t, 2>(32, 64));
    auto first = ta.slice(0, tile.y * 32);
    auto out = op.get_destination_cooperative_tensor<decltype(first), decltype(tb), float>();
    for (uint16_t i = 0; i < out.get_capacity(); i++) {
        if (out.is_valid_element(i)) {
            out[i] = 0.0f;
        }
    }
    for (int k = 0; k < K; k += 32) {
        for (uint i = tid; i < 64 * 32; i += 128) {
            uint row = tile.x * 64 + i / 32;
            bt[i] = row < N ? bfloat(b[row * K + k + i % 32]) : bfloat(0.0f);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        auto left = ta.slice(k, tile.y * 32);
        op.run(left, tb, out);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint16_t i = 0; i < out.get_capacity(); i++) {
        if (out.is_valid_element(i)) {
            auto at = out.get_multidimensional_index(i);
            int row = int(tile.y) * 32 + at[1];
            int column = int(tile.x) * 64 + at[0];
            if (row < M && column < N) {
                c[row * N + column] = 2.0f * out[i];
            }
        }
    }
}

// Both operands staged in threadgroup memory with padded rows, one simdgroup a 32x32 tile; the right one lies as [N][K] or,
// transposed on the way, as [K][N].
template <bool ROWS_OF_N>
[[kernel]] void gemm_tiles(const device bfloat* a [[buffer(0)]],
                           const device bfloat* b [[buffer(1)]],
                           device float* c [[buffer(2)]],
                           uint2 tile [[threadgroup_position_in_grid]],
                           uint tid [[thread_index_in_threadgroup]],
                           uint sg [[simdgroup_index_in_threadgroup]]) {
    threadgroup bfloat at[64 * 40];
    threadgroup bfloat bt[32 * 40];
    constexpr auto desc =
        matmul2d_descriptor(32, 32, 32, false, ROWS_OF_N, true, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<desc, execution_simdgroup> op;
    typedef tensor<threadgroup bfloat, dextents<int32_t, 2>, tensor_inline> Operand;
    Operand left(at + sg * 32 * 40, dextents<int32_t, 2>(32, 32), array<int32_t, 2>{1, 40});
    Operand right(bt, dextents<int32_t, 2>(32, 32), array<int32_t, 2>{1, 40});
    auto out = op.template get_destination_cooperative_tensor<Operand, Operand, float>();
    for (uint16_t i = 0; i < out.get_capacity(); i++) {
        out[i] = 0.0f;
    }
    for (int k = 0; k < K; k += 32) {
        for (uint i = tid; i < 64 * 32; i += 64) {
            uint row = tile.y * 64 + i / 32;
            at[i / 32 * 40 + i % 32] = row < M ? bfloat(a[row * K + k + i % 32]) : bfloat(0.0f);
        }
        for (uint i = tid; i < 32 * 32; i += 64) {
            uint row = tile.x * 32 + i / 32;
            bfloat value = row < N ? bfloat(b[row * K + k + i % 32]) : bfloat(0.0f);
            bt[ROWS_OF_N ? i / 32 * 40 + i % 32 : i % 32 * 40 + i / 32] = value;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        op.run(left, right, out);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    tensor<device float, dextents<int32_t, 2>, tensor_inline> tc(c, dextents<int32_t, 2>(N, M));
    auto place = tc.slice(tile.x * 32, tile.y * 64 + sg * 32);
    out.store(place);
}
INSTANTIATE("gemm_tiles_nk", gemm_tiles, true)
INSTANTIATE("gemm_tiles_kn", gemm_tiles, false)

// One simdgroup a 16x32 tile, both inputs in cooperative tensors loaded from memory.
kernel void gemm_cooperative(const device bfloat* a [[buffer(0)]],
                             const device bfloat* b [[buffer(1)]],
                             device float* c [[buffer(2)]],
                             uint2 tile [[threadgroup_position_in_grid]]) {
    constexpr auto desc = matmul2d_descriptor(16, 32, 16, false, false, true, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<desc, execution_simdgroup> op;
    auto left = op.get_left_input_cooperative_tensor<bfloat, bfloat, float>();
    auto right = op.get_right_input_cooperative_tensor<bfloat, bfloat, float>();
    auto out = op.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
    for (uint16_t i = 0; i < out.get_capacity(); i++) {
        out[i] = 0.0f;
    }
    tensor<const device bfloat, dextents<int32_t, 2>, tensor_inline> ta(a, dextents<int32_t, 2>(K, M));
    tensor<device float, dextents<int32_t, 2>, tensor_inline> tc(c, dextents<int32_t, 2>(N, M));
    for (int k = 0; k < K; k += 16) {
        auto block = ta.slice(k, tile.y * 16);
        left.load(block);
        for (uint16_t i = 0; i < right.get_capacity(); i++) {
            auto at = right.get_multidimensional_index(i);
            int column = int(tile.x) * 32 + at[0];
            right[i] = column < N ? bfloat(b[column * K + k + at[1]]) : bfloat(0.0f);
        }
        op.run(left, right, out);
    }
    auto place = tc.slice(tile.x * 32, tile.y * 16);
    out.store(place);
}
#endif
