// Decode: the four input projections of a Gated DeltaNet mixer in one grid. group.x walks the output tiles of qkv, z, b and
// a, one matrix after another; group.y the row tiles.

#define GDN_TILE(ROLE) MATVEC_TILE(ROLE##_BITS, HIDDEN, MATVEC_OUT, MATVEC_SIMDS)
#define GDN_PROJECT(ROLE, NAME, TILE, OUTPUTS, OUTPUT, STRIDE)                                     \
    project<ROLE##_BITS, ROLE##_GROUP, HIDDEN, MATVEC_OUT, MATVEC_SIMDS>(                          \
        NAME##_weight, NAME##_scales, NAME##_biases, TILE, OUTPUTS, row, step.rows, input, OUTPUT, \
        STRIDE, simd, lane)

kernel void gdn_in_proj(
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
    constexpr uint QKV_TILES = MATVEC_TILES(CONV_DIM, GDN_TILE(QKV));
    constexpr uint Z_TILES = MATVEC_TILES(VALUE_DIM, GDN_TILE(Z));
    constexpr uint B_TILES = MATVEC_TILES(VALUE_HEADS, GDN_TILE(B));
    uint row = group.y * ROW_TILE;
    uint tile = group.x;
    if (tile < QKV_TILES) {
        GDN_PROJECT(QKV, qkv, tile, CONV_DIM, qkv_out, CONV_DIM);
    } else if (tile < QKV_TILES + Z_TILES) {
        GDN_PROJECT(Z, z, tile - QKV_TILES, VALUE_DIM, z_out, VALUE_DIM);
    } else if (tile < QKV_TILES + Z_TILES + B_TILES) {
        GDN_PROJECT(B, b, tile - QKV_TILES - Z_TILES, VALUE_HEADS, ba_out, 2 * VALUE_HEADS);
    } else {
        GDN_PROJECT(A, a, tile - QKV_TILES - Z_TILES - B_TILES, VALUE_HEADS, ba_out + VALUE_HEADS, 2 * VALUE_HEADS);
    }
}
