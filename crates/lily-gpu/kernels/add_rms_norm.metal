// Prefill: residual += delta, then its norm. One threadgroup a row.

kernel void add_rms_norm(
    device const float *delta [[buffer(0)]],
    device const float *gain [[buffer(1)]],
    constant Step &step [[buffer(2)]],
    device float *residual [[buffer(3)]],
    device bfloat *normed [[buffer(4)]],
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
            values[i] = residual[row * HIDDEN + column] + delta[row * HIDDEN + column];
            residual[row * HIDDEN + column] = values[i];
        }
    }
    rms_store<ROW_SIMDS>(values, gain, normed + row * HIDDEN, scratch, thread_index, simd, lane);
}
