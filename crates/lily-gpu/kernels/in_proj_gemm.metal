// Prefill forms of the in-projections and of the output projections: matrix products over tiles of 64 rows. group.x walks
// the column tiles of the matrices one after another, group.y the row tiles.

#define GEMM_TILES(OUTPUTS) (((OUTPUTS) + GEMM_COLUMNS - 1) / GEMM_COLUMNS)
#define PROJECT_TILE(ROLE, NAME, INPUTS, TILE, OUTPUTS, OUTPUT, STRIDE)                                        \
    {                                                                                                          \
        MatrixColumns<ROLE##_BITS, ROLE##_GROUP, INPUTS> columns = {                                           \
            NAME##_weight, NAME##_scales, NAME##_biases, (TILE) * GEMM_COLUMNS, OUTPUTS};                      \
        gemm_tile<64, INPUTS>(tile_rows, columns, step.rows - first_row, arena, thread_index, simd);           \
        store_tile<64>(                                                                                        \
            arena, OUTPUT, first_row, step.rows, (TILE) * GEMM_COLUMNS, OUTPUTS, STRIDE, thread_index);        \
    }

kernel void gdn_in_proj_gemm(
    MATRIX(qkv, 0, 1, 2),
    MATRIX(z, 3, 4, 5),
    MATRIX(b, 6, 7, 8),
    MATRIX(a, 9, 10, 11),
    device const bfloat *input [[buffer(12)]],
    constant Step &step [[buffer(13)]],
    device float *qkv_out [[buffer(14)]],
    device float *z_out [[buffer(15)]],
    device float *ba_out [[buffer(16)]],
    POSITIONS) {
    threadgroup float arena[GEMM_ARENA(64)];
    uint first_row = group.y * 64;
    uint tile = group.x;
    if (first_row >= step.rows) {
        return;
    }
    DenseRows tile_rows = {input, first_row, step.rows, HIDDEN};
    if (tile < GEMM_TILES(CONV_DIM)) {
        PROJECT_TILE(QKV, qkv, HIDDEN, tile, CONV_DIM, qkv_out, CONV_DIM)
    } else if (tile < GEMM_TILES(CONV_DIM) + GEMM_TILES(VALUE_DIM)) {
        PROJECT_TILE(Z, z, HIDDEN, tile - GEMM_TILES(CONV_DIM), VALUE_DIM, z_out, VALUE_DIM)
    } else if (tile < GEMM_TILES(CONV_DIM) + GEMM_TILES(VALUE_DIM) + GEMM_TILES(VALUE_HEADS)) {
        uint at = tile - GEMM_TILES(CONV_DIM) - GEMM_TILES(VALUE_DIM);
        PROJECT_TILE(B, b, HIDDEN, at, VALUE_HEADS, ba_out, 2 * VALUE_HEADS)
    } else {
        uint at = tile - GEMM_TILES(CONV_DIM) - GEMM_TILES(VALUE_DIM) - GEMM_TILES(VALUE_HEADS);
        PROJECT_TILE(A, a, HIDDEN, at, VALUE_HEADS, ba_out + VALUE_HEADS, 2 * VALUE_HEADS)
    }
}

kernel void attn_in_proj_gemm(
    MATRIX(q, 0, 1, 2),
    MATRIX(k, 3, 4, 5),
    MATRIX(v, 6, 7, 8),
    device const bfloat *input [[buffer(9)]],
    constant Step &step [[buffer(10)]],
    device float *qg_out [[buffer(11)]],
    device float *kv_out [[buffer(12)]],
    POSITIONS) {
    threadgroup float arena[GEMM_ARENA(64)];
    uint first_row = group.y * 64;
    uint tile = group.x;
    if (first_row >= step.rows) {
        return;
    }
    DenseRows tile_rows = {input, first_row, step.rows, HIDDEN};
    if (tile < GEMM_TILES(2 * Q_DIM)) {
        PROJECT_TILE(Q, q, HIDDEN, tile, 2 * Q_DIM, qg_out, 2 * Q_DIM)
    } else if (tile < GEMM_TILES(2 * Q_DIM) + GEMM_TILES(KV_DIM)) {
        PROJECT_TILE(K, k, HIDDEN, tile - GEMM_TILES(2 * Q_DIM), KV_DIM, kv_out, 2 * KV_DIM)
    } else {
        uint at = tile - GEMM_TILES(2 * Q_DIM) - GEMM_TILES(KV_DIM);
        PROJECT_TILE(V, v, HIDDEN, at, KV_DIM, kv_out + KV_DIM, 2 * KV_DIM)
    }
}
