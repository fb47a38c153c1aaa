// Prefill: the weighted sum of what the experts of a row gave, in the order of the slots and the shared expert last, added
// to the residual stream; then the norm for the next layer. One threadgroup a row.

kernel void combine(
    device const float *down [[buffer(0)]],
    device const float *scales [[buffer(1)]],
    device const float *gain [[buffer(2)]],
    constant Step &step [[buffer(3)]],
    device float *residual [[buffer(4)]],
    device bfloat *normed [[buffer(5)]],
    POSITIONS) {
    threadgroup float scratch[ROW_SIMDS];
    uint row = group.x;
    if (row >= step.rows) {
        return;
    }
    float values[RMS_VALUES(ROW_SIMDS)];
    for (int i = 0; i < RMS_VALUES(ROW_SIMDS); i++) {
        uint column = thread_index + uint(i * 32 * ROW_SIMDS);
        values[i] = 0.0f;
        if (column < HIDDEN) {
            float sum = 0.0f;
            for (uint slot = 0; slot <= TOP_K; slot++) {
                float scale = scales[row * (TOP_K + 1) + slot];
                sum = fma(scale, down[ulong(row * (TOP_K + 1) + slot) * HIDDEN + column], sum);
            }
            values[i] = residual[row * HIDDEN + column] + sum;
            residual[row * HIDDEN + column] = values[i];
        }
    }
    rms_store<ROW_SIMDS>(values, gain, normed + row * HIDDEN, scratch, thread_index, simd, lane);
}
