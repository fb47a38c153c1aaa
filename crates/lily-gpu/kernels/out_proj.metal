// Prefill: the output projection of a mixer as f32, over tiles of 64 rows by products or, for a few rows, by matvecs.
// group.x column tile, group.y row tile.

template <int MIXER, int BITS, int GROUP, int INPUTS>
kernel void out_proj_gemm(
    MATRIX(proj, 0, 1, 2),
    device const bfloat *input [[buffer(3)]],
    constant Step &step [[buffer(4)]],
    device float *output [[buffer(5)]],
    POSITIONS) {
    threadgroup float arena[GEMM_ARENA(64)];
    uint first_row = group.y * 64;
    if (first_row >= step.rows) {
        return;
    }
    DenseRows rows = {input, first_row, step.rows, INPUTS};
    MatrixColumns<BITS, GROUP, INPUTS> columns = {
        proj_weight, proj_scales, proj_biases, group.x * GEMM_COLUMNS, HIDDEN};
    gemm_tile<64, INPUTS>(rows, columns, step.rows - first_row, arena, thread_index, simd);
    store_tile<64>(arena, output, first_row, step.rows, group.x * GEMM_COLUMNS, HIDDEN, HIDDEN, thread_index);
}

template <int MIXER, int BITS, int GROUP, int INPUTS>
kernel void out_proj(
    MATRIX(proj, 0, 1, 2),
    device const bfloat *input [[buffer(3)]],
    constant Step &step [[buffer(4)]],
    device float *output [[buffer(5)]],
    POSITIONS) {
    project<BITS, GROUP, INPUTS, OUT_PROJ_OUT, OUT_PROJ_SIMDS>(
        proj_weight, proj_scales, proj_biases, group.x, HIDDEN, group.y * ROW_TILE, step.rows, input, output, HIDDEN,
        simd, lane);
}

INSTANTIATE("out_proj_gemm_gdn", out_proj_gemm<MIXER_GDN, GDN_OUT_BITS, GDN_OUT_GROUP, VALUE_DIM>)
INSTANTIATE("out_proj_gemm_attn", out_proj_gemm<MIXER_ATTENTION, O_BITS, O_GROUP, Q_DIM>)
INSTANTIATE("out_proj_gdn", out_proj<MIXER_GDN, GDN_OUT_BITS, GDN_OUT_GROUP, VALUE_DIM>)
INSTANTIATE("out_proj_attn", out_proj<MIXER_ATTENTION, O_BITS, O_GROUP, Q_DIM>)
