// The product of a tile with Metal 4 tensor operations: bf16 operands in threadgroup memory, f32 sums in a cooperative
// tensor. The weights are rounded to bf16, as the matrix unit takes them.

#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

#define GEMM_STRIDE 72
// In floats: both operands at 64 inputs a slab, or the products.
#define GEMM_ARENA(TILE_ROWS) \
    (((TILE_ROWS) + 64) * GEMM_STRIDE / 2 > (TILE_ROWS) * 64 ? ((TILE_ROWS) + 64) * GEMM_STRIDE / 2 : (TILE_ROWS) * 64)

template <int TILE_ROWS, int INPUTS, class Rows, class Columns>
inline void gemm_tile(
    thread const Rows &rows,
    thread const Columns &columns,
    uint live,
    threadgroup float *arena,
    uint thread_index,
    uint simd) {
    constexpr int SLAB = INPUTS % 64 == 0 ? 64 : 32;
    constexpr int M = TILE_ROWS / 2;
    threadgroup bfloat *a_tile = (threadgroup bfloat *)arena;
    threadgroup bfloat *b_tile = a_tile + TILE_ROWS * GEMM_STRIDE;
    uint m0 = (simd / 2) * M;
    uint n0 = (simd % 2) * 32;
    constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
        M, 32, SLAB, false, true, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
    mpp::tensor_ops::matmul2d<descriptor, execution_simdgroup> product;
    typedef tensor<threadgroup bfloat, dextents<int32_t, 2>, tensor_inline> Operand;
    Operand a(a_tile + m0 * GEMM_STRIDE, dextents<int32_t, 2>(SLAB, M), array<int32_t, 2>{1, GEMM_STRIDE});
    Operand b(b_tile + n0 * GEMM_STRIDE, dextents<int32_t, 2>(SLAB, 32), array<int32_t, 2>{1, GEMM_STRIDE});
    auto sums = product.template get_destination_cooperative_tensor<Operand, Operand, float>();
    for (uint i = 0; i < uint(sums.get_capacity()); i++) {
        if (sums.is_valid_element(i)) {
            sums[i] = 0.0f;
        }
    }
    for (uint k = 0; k < INPUTS; k += SLAB) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_index; i < TILE_ROWS * (SLAB / 8); i += GEMM_THREADS) {
            uint row = i / (SLAB / 8);
            uint at = i % (SLAB / 8) * 8;
            *(threadgroup uint4 *)(a_tile + row * GEMM_STRIDE + at) =
                *(device const uint4 *)(rows.row(row) + k + at);
        }
        for (uint i = thread_index; i < GEMM_COLUMNS * (SLAB / 16); i += GEMM_THREADS) {
            uint column = i / (SLAB / 16);
            uint at = i % (SLAB / 16) * 16;
            columns.fill(column, k + at, b_tile + column * GEMM_STRIDE + at);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // Rows past the last live one are not worth a product.
        if (m0 < live) {
            product.run(a, b, sums);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    tensor<threadgroup float, dextents<int32_t, 2>, tensor_inline> out(
        arena + m0 * GEMM_COLUMNS + n0, dextents<int32_t, 2>(32, M), array<int32_t, 2>{1, GEMM_COLUMNS});
    sums.store(out);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
