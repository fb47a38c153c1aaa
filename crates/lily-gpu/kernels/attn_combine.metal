// Decode: merges the blocks of one head of one row and multiplies by the sigmoid of the gate. Simdgroups take blocks in
// turn, lanes take dims; the simdgroups' sums meet in threadgroup memory.

kernel void attn_combine(
    device const float *partials [[buffer(0)]],
    device const float *qg [[buffer(1)]],
    device const Row *rows [[buffer(2)]],
    constant Step &step [[buffer(3)]],
    device bfloat *output [[buffer(4)]],
    POSITIONS) {
    threadgroup float sums[COMBINE_SIMDS * HEAD_DIM];
    threadgroup float largests[COMBINE_SIMDS];
    threadgroup float weights[COMBINE_SIMDS];
    uint head = group.x;
    uint row = group.y;
    if (row >= step.rows) {
        return;
    }
    uint blocks = rows[row].position / PAGE + 1;
    device const float *first = partials + ulong(rows[row].table) * (Q_HEADS * (HEAD_DIM + 2));
    float sum[HEAD_VALUES];
    for (int i = 0; i < HEAD_VALUES; i++) {
        sum[i] = 0.0f;
    }
    float largest = MASKED;
    float weight = 0.0f;
    for (uint block = simd; block < blocks; block += COMBINE_SIMDS) {
        device const float *at = first + ulong(block) * (Q_HEADS * (HEAD_DIM + 2));
        float block_largest = at[Q_HEADS * HEAD_DIM + head * 2];
        float block_weight = at[Q_HEADS * HEAD_DIM + head * 2 + 1];
        float together = max(largest, block_largest);
        float keep = precise::exp(largest - together);
        float add = precise::exp(block_largest - together);
        weight = weight * keep + block_weight * add;
        for (int i = 0; i < HEAD_VALUES; i++) {
            sum[i] = fma(at[head * HEAD_DIM + lane + uint(32 * i)], add, sum[i] * keep);
        }
        largest = together;
    }
    for (int i = 0; i < HEAD_VALUES; i++) {
        sums[simd * HEAD_DIM + lane + uint(32 * i)] = sum[i];
    }
    if (lane == 0) {
        largests[simd] = largest;
        weights[simd] = weight;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float top = MASKED;
    for (uint s = 0; s < COMBINE_SIMDS; s++) {
        top = max(top, largests[s]);
    }
    float total = 0.0f;
    for (uint s = 0; s < COMBINE_SIMDS; s++) {
        total = fma(weights[s], precise::exp(largests[s] - top), total);
    }
    for (uint i = thread_index; i < HEAD_DIM; i += 32 * COMBINE_SIMDS) {
        float value = 0.0f;
        for (uint s = 0; s < COMBINE_SIMDS; s++) {
            value = fma(sums[s * HEAD_DIM + i], precise::exp(largests[s] - top), value);
        }
        float gate = qg[row * (2 * Q_DIM) + head * (2 * HEAD_DIM) + HEAD_DIM + i];
        output[row * Q_DIM + head * HEAD_DIM + i] = bfloat(value / total * sigmoid(gate));
    }
}
