// One threadgroup a row: dequantizes the token's embedding into the residual stream and norms it for the first layer.

kernel void embed(
    MATRIX(table, 0, 1, 2),
    device const float *gain [[buffer(3)]],
    device const uint *tokens [[buffer(4)]],
    device const uint *previous [[buffer(5)]],
    constant Step &step [[buffer(6)]],
    device float *residual [[buffer(7)]],
    device bfloat *normed [[buffer(8)]],
    POSITIONS) {
    threadgroup float scratch[ROW_SIMDS];
    uint row = group.x;
    if (row >= step.rows) {
        return;
    }
    uint token = step.previous != 0 ? previous[row] : tokens[row];
    token = min(token, uint(VOCAB) - 1u);
    device const uint *words =
        (device const uint *)(table_weight + ulong(token) * ulong(MatvecShape<EMBED_BITS, HIDDEN>::VECTORS));
    float values[RMS_VALUES(ROW_SIMDS)];
    for (int i = 0; i < RMS_VALUES(ROW_SIMDS); i++) {
        uint column = thread_index + uint(i * 32 * ROW_SIMDS);
        values[i] = 0.0f;
        if (column < HIDDEN) {
            uint bit = column * EMBED_BITS;
            uint word = words[bit / 32u] >> (bit % 32u);
            if (EMBED_BITS == 16) {
                values[i] = bf16_low(word);
            } else {
                ulong place = ulong(token) * ulong(HIDDEN / EMBED_GROUP) + ulong(column / EMBED_GROUP);
                float q = float(word & uint((1 << (EMBED_BITS & 15)) - 1));
                values[i] = fma(q, float(table_scales[place]), float(table_biases[place]));
            }
            residual[row * HIDDEN + column] = values[i];
        }
    }
    rms_store<ROW_SIMDS>(values, gain, normed + row * HIDDEN, scratch, thread_index, simd, lane);
}
