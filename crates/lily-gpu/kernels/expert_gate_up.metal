// Decode: silu(gate x) * (up x) of the chosen experts of a row and of the shared one, which is one more slot of the grid.
// group.x output tile, group.y slot, group.z row.

template <int GATE, int GATE_GROUPED, int UP, int UP_GROUPED>
inline void gate_up(
    device const WeightVec *gate_weight,
    device const bfloat *gate_scales,
    device const bfloat *gate_biases,
    device const WeightVec *up_weight,
    device const bfloat *up_scales,
    device const bfloat *up_biases,
    uint tile,
    uint outputs,
    device const bfloat *input,
    device bfloat *output,
    uint simd,
    uint lane) {
    typedef MatvecShape<GATE, HIDDEN> Shape;
    static_assert(Shape::SIDE == int(MatvecShape<UP, HIDDEN>::SIDE), "gate and up are read in step");
    uint first = (tile * EXPERT_SIMDS + simd) * uint(EXPERT_OUT * Shape::SIDE);
    if (first >= outputs) {
        return;
    }
    Inputs<1> x;
    x.row[0] = input;
    float g[EXPERT_OUT][1];
    float u[EXPERT_OUT][1];
    for (int o = 0; o < EXPERT_OUT; o++) {
        g[o][0] = 0.0f;
        u[o][0] = 0.0f;
    }
    matvec_add<GATE, GATE_GROUPED, HIDDEN, EXPERT_OUT, 1>(
        gate_weight, gate_scales, gate_biases, first, outputs, x, 1.0f, lane, g);
    matvec_add<UP, UP_GROUPED, HIDDEN, EXPERT_OUT, 1>(
        up_weight, up_scales, up_biases, first, outputs, x, 1.0f, lane, u);
    matvec_reduce<GATE, HIDDEN, EXPERT_OUT, 1>(g);
    matvec_reduce<UP, HIDDEN, EXPERT_OUT, 1>(u);
    if (lane % uint(Shape::LANES) == 0) {
        for (int o = 0; o < EXPERT_OUT; o++) {
            uint n = first + uint(o * Shape::SIDE) + lane / uint(Shape::LANES);
            if (n < outputs) {
                output[n] = bfloat(silu(g[o][0]) * u[o][0]);
            }
        }
    }
}

kernel void expert_gate_up(
    MATRIX(gate, 0, 1, 2),
    MATRIX(up, 3, 4, 5),
    MATRIX(shared_gate, 6, 7, 8),
    MATRIX(shared_up, 9, 10, 11),
    device const bfloat *input [[buffer(12)]],
    device const uint *experts [[buffer(13)]],
    constant Step &step [[buffer(14)]],
    device bfloat *output [[buffer(15)]],
    POSITIONS) {
    uint slot = group.y;
    uint row = group.z;
    if (row >= step.rows) {
        return;
    }
    device const bfloat *x = input + row * HIDDEN;
    device bfloat *out = output + row * ACT_WIDTH;
    if (slot < TOP_K) {
        ulong expert = experts[row * TOP_K + slot];
        ulong gate_groups = expert * ulong(INNER * (HIDDEN / SWITCH_GATE_GROUP));
        ulong up_groups = expert * ulong(INNER * (HIDDEN / SWITCH_UP_GROUP));
        gate_up<SWITCH_GATE_BITS, SWITCH_GATE_GROUP, SWITCH_UP_BITS, SWITCH_UP_GROUP>(
            gate_weight + expert * ulong(INNER * MatvecShape<SWITCH_GATE_BITS, HIDDEN>::VECTORS),
            gate_scales + gate_groups, gate_biases + gate_groups,
            up_weight + expert * ulong(INNER * MatvecShape<SWITCH_UP_BITS, HIDDEN>::VECTORS),
            up_scales + up_groups, up_biases + up_groups, group.x, INNER, x, out + slot * INNER, simd, lane);
    } else {
        gate_up<SHARED_GATE_PROJ_BITS, SHARED_GATE_PROJ_GROUP, SHARED_UP_BITS, SHARED_UP_GROUP>(
            shared_gate_weight, shared_gate_scales, shared_gate_biases, shared_up_weight, shared_up_scales,
            shared_up_biases, group.x, SHARED_INNER, x, out + TOP_K * INNER, simd, lane);
    }
}
