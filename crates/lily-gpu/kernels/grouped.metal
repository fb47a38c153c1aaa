// Prefill: the experts' products over the pairs sorted by expert, and the shared expert's over all rows.
// group.x column tile, group.y tile of rows. The grid has room for the most tiles there can be; those past the last do
// nothing.

#define EXPERT_MATRIX(ROLE, NAME, OUTPUTS, INPUTS)                                                    \
    NAME##_weight + expert * ulong((OUTPUTS) * MatvecShape<ROLE##_BITS, INPUTS>::VECTORS),            \
        NAME##_scales + expert * ulong((OUTPUTS) * ((INPUTS) / ROLE##_GROUP)),                        \
        NAME##_biases + expert * ulong((OUTPUTS) * ((INPUTS) / ROLE##_GROUP))

// Rows of a tile that are inputs of the experts: the rows of the sorted pairs.
struct PairRows {
    device const bfloat *input;
    device const uint *order;
    uint count;
    device const bfloat *row(uint m) const {
        return input + ulong(order[min(m, count - 1u)] / TOP_K) * HIDDEN;
    }
};

// Rows of a tile that are activations inside the experts.
struct PairActs {
    device const bfloat *act;
    device const uint *order;
    uint count;
    device const bfloat *row(uint m) const {
        uint pair = order[min(m, count - 1u)];
        return act + ulong(pair / TOP_K) * ACT_WIDTH + (pair % TOP_K) * INNER;
    }
};

// SwiGLU of a tile whose columns are 32 of gate and the same 32 of up.
inline float swiglu(threadgroup const float *tile, uint m, uint n) {
    return silu(tile[m * GEMM_COLUMNS + n]) * tile[m * GEMM_COLUMNS + 32 + n];
}

template <int TILE_ROWS>
kernel void grouped_gate_up(
    MATRIX(gate, 0, 1, 2),
    MATRIX(up, 3, 4, 5),
    device const bfloat *input [[buffer(6)]],
    device const uint *order [[buffer(7)]],
    device const uint4 *tiles [[buffer(8)]],
    device bfloat *act [[buffer(9)]],
    POSITIONS) {
    threadgroup float arena[GEMM_ARENA(TILE_ROWS)];
    if (group.y >= tiles[0].x) {
        return;
    }
    uint4 tile = tiles[1 + group.y];
    ulong expert = tile.x;
    PairRows rows = {input, order + tile.y, tile.z};
    GateUpColumns<SWITCH_GATE_BITS, SWITCH_GATE_GROUP, SWITCH_UP_BITS, SWITCH_UP_GROUP, HIDDEN> columns = {
        EXPERT_MATRIX(SWITCH_GATE, gate, INNER, HIDDEN), EXPERT_MATRIX(SWITCH_UP, up, INNER, HIDDEN), group.x * 32};
    gemm_tile<TILE_ROWS, HIDDEN>(rows, columns, tile.z, arena, thread_index, simd);
    for (uint i = thread_index; i < TILE_ROWS * 32; i += GEMM_THREADS) {
        uint m = i / 32;
        if (m < tile.z) {
            uint pair = order[tile.y + m];
            act[ulong(pair / TOP_K) * ACT_WIDTH + (pair % TOP_K) * INNER + group.x * 32 + i % 32] =
                bfloat(swiglu(arena, m, i % 32));
        }
    }
}

kernel void shared_gate_up(
    MATRIX(gate, 0, 1, 2),
    MATRIX(up, 3, 4, 5),
    device const bfloat *input [[buffer(6)]],
    constant Step &step [[buffer(7)]],
    device bfloat *act [[buffer(8)]],
    POSITIONS) {
    threadgroup float arena[GEMM_ARENA(64)];
    uint first_row = group.y * 64;
    if (first_row >= step.rows) {
        return;
    }
    DenseRows rows = {input, first_row, step.rows, HIDDEN};
    GateUpColumns<SHARED_GATE_PROJ_BITS, SHARED_GATE_PROJ_GROUP, SHARED_UP_BITS, SHARED_UP_GROUP, HIDDEN> columns = {
        gate_weight, gate_scales, gate_biases, up_weight, up_scales, up_biases, group.x * 32};
    gemm_tile<64, HIDDEN>(rows, columns, step.rows - first_row, arena, thread_index, simd);
    for (uint i = thread_index; i < 64 * 32; i += GEMM_THREADS) {
        uint row = first_row + i / 32;
        if (row < step.rows) {
            act[ulong(row) * ACT_WIDTH + TOP_K * INNER + group.x * 32 + i % 32] = bfloat(swiglu(arena, i / 32, i % 32));
        }
    }
}

// `down` f32 [rows][TOP_K + 1][HIDDEN].
template <int TILE_ROWS>
kernel void grouped_down(
    MATRIX(down, 0, 1, 2),
    device const bfloat *act [[buffer(3)]],
    device const uint *order [[buffer(4)]],
    device const uint4 *tiles [[buffer(5)]],
    device float *output [[buffer(6)]],
    POSITIONS) {
    threadgroup float arena[GEMM_ARENA(TILE_ROWS)];
    if (group.y >= tiles[0].x) {
        return;
    }
    uint4 tile = tiles[1 + group.y];
    ulong expert = tile.x;
    PairActs rows = {act, order + tile.y, tile.z};
    MatrixColumns<SWITCH_DOWN_BITS, SWITCH_DOWN_GROUP, INNER> columns = {
        EXPERT_MATRIX(SWITCH_DOWN, down, HIDDEN, INNER), group.x * GEMM_COLUMNS, HIDDEN};
    gemm_tile<TILE_ROWS, INNER>(rows, columns, tile.z, arena, thread_index, simd);
    for (uint i = thread_index; i < TILE_ROWS * GEMM_COLUMNS; i += GEMM_THREADS) {
        uint m = i / GEMM_COLUMNS;
        uint column = group.x * GEMM_COLUMNS + i % GEMM_COLUMNS;
        if (m < tile.z && column < HIDDEN) {
            uint pair = order[tile.y + m];
            output[(ulong(pair / TOP_K) * (TOP_K + 1) + pair % TOP_K) * HIDDEN + column] = arena[i];
        }
    }
}

kernel void shared_down(
    MATRIX(down, 0, 1, 2),
    device const bfloat *act [[buffer(3)]],
    constant Step &step [[buffer(4)]],
    device float *output [[buffer(5)]],
    POSITIONS) {
    threadgroup float arena[GEMM_ARENA(64)];
    uint first_row = group.y * 64;
    if (first_row >= step.rows) {
        return;
    }
    DenseRows rows = {act + TOP_K * INNER, first_row, step.rows, ACT_WIDTH};
    MatrixColumns<SHARED_DOWN_BITS, SHARED_DOWN_GROUP, SHARED_INNER> columns = {
        down_weight, down_scales, down_biases, group.x * GEMM_COLUMNS, HIDDEN};
    gemm_tile<64, SHARED_INNER>(rows, columns, step.rows - first_row, arena, thread_index, simd);
    store_tile<64>(
        arena, output + TOP_K * HIDDEN, first_row, step.rows, group.x * GEMM_COLUMNS, HIDDEN, (TOP_K + 1) * HIDDEN,
        thread_index);
}

INSTANTIATE("grouped_gate_up_32", grouped_gate_up<32>)
INSTANTIATE("grouped_gate_up_64", grouped_gate_up<64>)
INSTANTIATE("grouped_down_32", grouped_down<32>)
INSTANTIATE("grouped_down_64", grouped_down<64>)
