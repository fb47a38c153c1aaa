// Decode: the weighted sum of the chosen experts' and the shared expert's down projections, added to the residual stream in
// the fixed order of the slots; the threadgroup that arrives last norms the row for the next layer.
// group.x output tile, group.y row; one arrival counter a row.

kernel void expert_down_norm(
    MATRIX(down, 0, 1, 2),
    MATRIX(shared, 3, 4, 5),
    device const float *gain [[buffer(6)]],
    device const bfloat *input [[buffer(7)]],
    device const uint *experts [[buffer(8)]],
    device const float *scales [[buffer(9)]],
    constant Step &step [[buffer(10)]],
    device atomic_uint *residual [[buffer(11)]],
    device bfloat *normed [[buffer(12)]],
    device atomic_uint *arrivals [[buffer(13)]],
    POSITIONS) {
    typedef MatvecShape<SWITCH_DOWN_BITS, INNER> Shape;
    typedef MatvecShape<SHARED_DOWN_BITS, SHARED_INNER> SharedShape;
    threadgroup float scratch[DOWN_SIMDS];
    threadgroup uint flag[1];
    constexpr uint TILES = MATVEC_TILES(HIDDEN, MATVEC_TILE(SWITCH_DOWN_BITS, INNER, DOWN_OUT, DOWN_SIMDS));
    uint row = group.y;
    if (row >= step.rows) {
        return;
    }
    device const bfloat *act = input + row * ACT_WIDTH;
    uint first = (group.x * DOWN_SIMDS + simd) * uint(DOWN_OUT * Shape::SIDE);
    Inputs<1> x;
    float sum[DOWN_OUT][1];
    for (int o = 0; o < DOWN_OUT; o++) {
        sum[o][0] = 0.0f;
    }
    for (uint slot = 0; slot < TOP_K; slot++) {
        ulong expert = experts[row * TOP_K + slot];
        ulong groups = expert * ulong(HIDDEN * (INNER / SWITCH_DOWN_GROUP));
        x.row[0] = act + slot * INNER;
        matvec_add<SWITCH_DOWN_BITS, SWITCH_DOWN_GROUP, INNER, DOWN_OUT, 1>(
            down_weight + expert * ulong(HIDDEN * Shape::VECTORS), down_scales + groups, down_biases + groups, first,
            HIDDEN, x, scales[row * (TOP_K + 1) + slot], lane, sum);
    }
    matvec_reduce<SWITCH_DOWN_BITS, INNER, DOWN_OUT, 1>(sum);
    // The shared expert may be wider, so that its rows lie over more lanes: each simdgroup computes the same outputs for it.
    float shared_scale = scales[row * (TOP_K + 1) + TOP_K];
    x.row[0] = act + TOP_K * INNER;
    constexpr int SHARED_OUT = (DOWN_OUT * Shape::SIDE + SharedShape::SIDE - 1) / SharedShape::SIDE;
    float shared_sum[SHARED_OUT][1];
    for (int o = 0; o < SHARED_OUT; o++) {
        shared_sum[o][0] = 0.0f;
    }
    matvec_add<SHARED_DOWN_BITS, SHARED_DOWN_GROUP, SHARED_INNER, SHARED_OUT, 1>(
        shared_weight, shared_scales, shared_biases, first, HIDDEN, x, shared_scale, lane, shared_sum);
    matvec_reduce<SHARED_DOWN_BITS, SHARED_INNER, SHARED_OUT, 1>(shared_sum);
    for (int o = 0; o < DOWN_OUT; o++) {
        // Output n of the routed layout: where the shared layout holds the same one.
        uint offset = uint(o * Shape::SIDE) + lane / uint(Shape::LANES);
        float shared_value = 0.0f;
        for (int s = 0; s < SHARED_OUT; s++) {
            ushort from = ushort((offset % uint(SharedShape::SIDE)) * uint(SharedShape::LANES));
            float value = simd_shuffle(shared_sum[s][0], from);
            shared_value = uint(s) == offset / uint(SharedShape::SIDE) ? value : shared_value;
        }
        uint n = first + offset;
        if (lane % uint(Shape::LANES) == 0 && n < HIDDEN) {
            device atomic_uint *at = residual + row * HIDDEN + n;
            shared_store(at, shared_load(at) + (sum[o][0] + shared_value));
        }
    }
    if (last_to_arrive(arrivals + row, TILES, flag, thread_index)) {
        rms_of_shared<DOWN_SIMDS>(
            residual + row * HIDDEN, gain, normed + row * HIDDEN, scratch, thread_index, simd, lane);
    }
}
