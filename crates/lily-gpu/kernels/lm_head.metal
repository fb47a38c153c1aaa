// Logits of the rows that `logit_rows` names. group.x output tile, group.y tile of logit rows.

template <int TOKENS>
inline void lm_head_rows(
    device const WeightVec *weight,
    device const bfloat *scales,
    device const bfloat *biases,
    device const bfloat *input,
    device const uint *logit_rows,
    device float *logits,
    uint tile,
    uint index,
    uint count,
    uint simd,
    uint lane) {
    typedef MatvecShape<LM_HEAD_BITS, HIDDEN> Shape;
    Inputs<TOKENS> x;
    float sum[LM_HEAD_OUT][TOKENS];
    for (int t = 0; t < TOKENS; t++) {
        x.row[t] = input + logit_rows[min(index + uint(t), count - 1u)] * HIDDEN;
        for (int o = 0; o < LM_HEAD_OUT; o++) {
            sum[o][t] = 0.0f;
        }
    }
    uint first = (tile * LM_HEAD_SIMDS + simd) * uint(LM_HEAD_OUT * Shape::SIDE);
    matvec_add<LM_HEAD_BITS, LM_HEAD_GROUP, HIDDEN, LM_HEAD_OUT, TOKENS>(
        weight, scales, biases, first, VOCAB, x, 1.0f, lane, sum);
    matvec_reduce<LM_HEAD_BITS, HIDDEN, LM_HEAD_OUT, TOKENS>(sum);
    if (lane % uint(Shape::LANES) == 0) {
        for (int o = 0; o < LM_HEAD_OUT; o++) {
            uint n = first + uint(o * Shape::SIDE) + lane / uint(Shape::LANES);
            for (int t = 0; t < TOKENS; t++) {
                if (n < VOCAB && index + uint(t) < count) {
                    logits[ulong(index + uint(t)) * VOCAB + n] = sum[o][t];
                }
            }
        }
    }
}

kernel void lm_head(
    MATRIX(head, 0, 1, 2),
    device const bfloat *input [[buffer(3)]],
    device const uint *logit_rows [[buffer(4)]],
    constant Step &step [[buffer(5)]],
    device float *logits [[buffer(6)]],
    POSITIONS) {
    uint index = group.y * ROW_TILE;
    if (index + 1 == step.logit_rows) {
        lm_head_rows<1>(
            head_weight, head_scales, head_biases, input, logit_rows, logits, group.x, index, step.logit_rows, simd, lane);
    } else if (index < step.logit_rows) {
        lm_head_rows<ROW_TILE>(
            head_weight, head_scales, head_biases, input, logit_rows, logits, group.x, index, step.logit_rows, simd, lane);
    }
}
