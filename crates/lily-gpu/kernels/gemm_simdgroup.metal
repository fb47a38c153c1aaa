// The product of a tile with 8x8 simdgroup matrices. Both operands are f32 in threadgroup memory: the weights are then those
// of the decode kernels to the last bit but one, and f32 runs at the rate of half on these GPUs.

#define GEMM_SLAB 32
#define GEMM_STRIDE 36
#define GEMM_ARENA(TILE_ROWS) \
    (((TILE_ROWS) + 64) * GEMM_STRIDE > (TILE_ROWS) * 64 ? ((TILE_ROWS) + 64) * GEMM_STRIDE : (TILE_ROWS) * 64)

template <int TILE_ROWS, int INPUTS, class Rows, class Columns>
inline void gemm_tile(
    thread const Rows &rows,
    thread const Columns &columns,
    uint live,
    threadgroup float *arena,
    uint thread_index,
    uint simd) {
    constexpr int BLOCKS = TILE_ROWS / 16;
    threadgroup float *a_tile = arena;
    threadgroup float *b_tile = arena + TILE_ROWS * GEMM_STRIDE;
    uint m0 = (simd / 2) * (TILE_ROWS / 2);
    uint n0 = (simd % 2) * 32;
    simdgroup_float8x8 sums[BLOCKS][4];
    for (int i = 0; i < BLOCKS; i++) {
        for (int j = 0; j < 4; j++) {
            sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
    for (uint k = 0; k < INPUTS; k += GEMM_SLAB) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_index; i < TILE_ROWS * 4; i += GEMM_THREADS) {
            float x[8];
            load8(rows.row(i / 4) + k + (i % 4) * 8, x);
            for (int e = 0; e < 8; e++) {
                a_tile[(i / 4) * GEMM_STRIDE + (i % 4) * 8 + uint(e)] = x[e];
            }
        }
        for (uint i = thread_index; i < GEMM_COLUMNS * 2; i += GEMM_THREADS) {
            columns.fill(i / 2, k + (i % 2) * 16, b_tile + (i / 2) * GEMM_STRIDE + (i % 2) * 16);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // Rows past the last live one are not worth a product.
        if (m0 < live) {
            for (uint kk = 0; kk < GEMM_SLAB; kk += 8) {
                simdgroup_float8x8 a[BLOCKS];
                simdgroup_float8x8 b[4];
                for (int i = 0; i < BLOCKS; i++) {
                    simdgroup_load(a[i], a_tile + (m0 + uint(8 * i)) * GEMM_STRIDE + kk, GEMM_STRIDE);
                }
                for (int j = 0; j < 4; j++) {
                    simdgroup_load(
                        b[j], b_tile + (n0 + uint(8 * j)) * GEMM_STRIDE + kk, GEMM_STRIDE, ulong2(0, 0), true);
                }
                for (int i = 0; i < BLOCKS; i++) {
                    for (int j = 0; j < 4; j++) {
                        simdgroup_multiply_accumulate(sums[i][j], a[i], b[j], sums[i][j]);
                    }
                }
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < BLOCKS; i++) {
        for (int j = 0; j < 4; j++) {
            simdgroup_store(sums[i][j], arena + (m0 + uint(8 * i)) * GEMM_COLUMNS + n0 + uint(8 * j), GEMM_COLUMNS);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
