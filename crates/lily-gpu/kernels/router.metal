// Logits of the experts and of the shared expert's gate in f32; the threadgroup that arrives last picks the TOP_K largest
// (ties to the lowest id) and softmaxes over them, which is the softmax over all renormalized.
//
// group.x output tile (the experts', then one for the shared gate), group.y row tile; one arrival counter a row tile.
// Both phases run this kernel, so a row is routed alike in both.

#define ROUTER_STRIDE (EXPERTS + 1)
#define ROUTER_VALUES ((EXPERTS + 31) / 32)

template <int BITS, int GROUP, int TOKENS>
inline void router_logits(
    device const WeightVec *weight,
    device const bfloat *scales,
    device const bfloat *biases,
    device const bfloat *input,
    device atomic_uint *logits,
    uint tile,
    uint outputs,
    uint row,
    uint rows,
    uint simd,
    uint lane) {
    typedef MatvecShape<BITS, HIDDEN> Shape;
    Inputs<TOKENS> x;
    float sum[ROUTER_OUT][TOKENS];
    for (int t = 0; t < TOKENS; t++) {
        x.row[t] = input + min(row + uint(t), rows - 1u) * HIDDEN;
        for (int o = 0; o < ROUTER_OUT; o++) {
            sum[o][t] = 0.0f;
        }
    }
    uint first = (tile * ROUTER_SIMDS + simd) * uint(ROUTER_OUT * Shape::SIDE);
    matvec_add<BITS, GROUP, HIDDEN, ROUTER_OUT, TOKENS>(
        weight, scales, biases, first, outputs, x, 1.0f, lane, sum);
    matvec_reduce<BITS, HIDDEN, ROUTER_OUT, TOKENS>(sum);
    if (lane % uint(Shape::LANES) == 0) {
        for (int o = 0; o < ROUTER_OUT; o++) {
            uint n = first + uint(o * Shape::SIDE) + lane / uint(Shape::LANES);
            for (int t = 0; t < TOKENS; t++) {
                if (n < outputs && row + uint(t) < rows) {
                    shared_store(logits + (row + uint(t)) * ROUTER_STRIDE + n, sum[o][t]);
                }
            }
        }
    }
}

// One simdgroup: the largest TOP_K of a row.
inline void router_choose(
    device const atomic_uint *logits,
    device uint *experts,
    device float *scales,
    uint lane) {
    float values[ROUTER_VALUES];
    for (int i = 0; i < ROUTER_VALUES; i++) {
        uint id = lane + uint(32 * i);
        values[i] = MASKED;
        if (id < EXPERTS) {
            values[i] = shared_load(logits + id);
        }
    }
    float top = 0.0f;
    float total = 0.0f;
    float mine = 0.0f;
    for (int k = 0; k < TOP_K; k++) {
        float best = values[0];
        int id = int(lane);
        for (int i = 1; i < ROUTER_VALUES; i++) {
            bool above = values[i] > best;
            best = above ? values[i] : best;
            id = above ? int(lane) + 32 * i : id;
        }
        float largest = simd_max(best);
        int chosen = simd_min(best == largest ? id : EXPERTS - 1);
        for (int i = 0; i < ROUTER_VALUES; i++) {
            values[i] = int(lane) + 32 * i == chosen ? MASKED : values[i];
        }
        top = k == 0 ? largest : top;
        float e = precise::exp(largest - top);
        total += e;
        if (int(lane) == k) {
            mine = e;
            experts[k] = uint(chosen);
        }
    }
    if (lane < TOP_K) {
        scales[lane] = mine / total;
    }
    if (lane == 0) {
        scales[TOP_K] = sigmoid(shared_load(logits + EXPERTS));
    }
}

kernel void router(
    MATRIX(gate, 0, 1, 2),
    MATRIX(shared, 3, 4, 5),
    device const bfloat *input [[buffer(6)]],
    constant Step &step [[buffer(7)]],
    device uint *experts [[buffer(8)]],
    device float *scales [[buffer(9)]],
    device atomic_uint *logits [[buffer(10)]],
    device atomic_uint *arrivals [[buffer(11)]],
    POSITIONS) {
    threadgroup uint flag[1];
    constexpr uint GATE_TILES = MATVEC_TILES(EXPERTS, MATVEC_TILE(GATE_BITS, HIDDEN, ROUTER_OUT, ROUTER_SIMDS));
    uint row = group.y * ROW_TILE;
    if (row >= step.rows) {
        return;
    }
    uint tile = group.x;
    bool single = row + 1 == step.rows;
    if (tile < GATE_TILES && single) {
        router_logits<GATE_BITS, GATE_GROUP, 1>(
            gate_weight, gate_scales, gate_biases, input, logits, tile, EXPERTS, row, step.rows, simd, lane);
    } else if (tile < GATE_TILES) {
        router_logits<GATE_BITS, GATE_GROUP, ROW_TILE>(
            gate_weight, gate_scales, gate_biases, input, logits, tile, EXPERTS, row, step.rows, simd, lane);
    } else if (single) {
        router_logits<SHARED_GATE_BITS, SHARED_GATE_GROUP, 1>(
            shared_weight, shared_scales, shared_biases, input, logits + EXPERTS, 0, 1, row, step.rows, simd, lane);
    } else {
        router_logits<SHARED_GATE_BITS, SHARED_GATE_GROUP, ROW_TILE>(
            shared_weight, shared_scales, shared_biases, input, logits + EXPERTS, 0, 1, row, step.rows, simd, lane);
    }
    if (last_to_arrive(arrivals + group.y, GATE_TILES + 1, flag, thread_index)) {
        for (uint r = row + simd; r < min(row + ROW_TILE, step.rows); r += ROUTER_SIMDS) {
            router_choose(logits + r * ROUTER_STRIDE, experts + r * TOP_K, scales + r * (TOP_K + 1), lane);
        }
    }
}
