// Decode: q with its gate, k and v in one grid. group.x walks the output tiles of q|gate, k and v; group.y the row tiles.

#define ATTN_TILE(ROLE) MATVEC_TILE(ROLE##_BITS, HIDDEN, MATVEC_OUT, MATVEC_SIMDS)
#define ATTN_PROJECT(ROLE, NAME, TILE, OUTPUTS, OUTPUT, STRIDE)                                    \
    project<ROLE##_BITS, ROLE##_GROUP, HIDDEN, MATVEC_OUT, MATVEC_SIMDS>(                          \
        NAME##_weight, NAME##_scales, NAME##_biases, TILE, OUTPUTS, row, step.rows, input, OUTPUT, \
        STRIDE, simd, lane)

kernel void attn_in_proj(
    MATRIX(q, 0, 1, 2),
    MATRIX(k, 3, 4, 5),
    MATRIX(v, 6, 7, 8),
    device const bfloat *input [[buffer(9)]],
    constant Step &step [[buffer(10)]],
    device float *qg_out [[buffer(11)]],
    device float *kv_out [[buffer(12)]],
    POSITIONS) {
    constexpr uint QG_TILES = MATVEC_TILES(2 * Q_DIM, ATTN_TILE(Q));
    constexpr uint K_TILES = MATVEC_TILES(KV_DIM, ATTN_TILE(K));
    uint row = group.y * ROW_TILE;
    uint tile = group.x;
    if (tile < QG_TILES) {
        ATTN_PROJECT(Q, q, tile, 2 * Q_DIM, qg_out, 2 * Q_DIM);
    } else if (tile < QG_TILES + K_TILES) {
        ATTN_PROJECT(K, k, tile - QG_TILES, KV_DIM, kv_out, 2 * KV_DIM);
    } else {
        ATTN_PROJECT(V, v, tile - QG_TILES - K_TILES, KV_DIM, kv_out + KV_DIM, 2 * KV_DIM);
    }
}
