// Decode: the output projection of a mixer added to the residual stream; the threadgroup that arrives last norms the rows
// for the experts. group.x output tile, group.y row tile; one arrival counter a row tile.
// The two instances differ in the matrix: its inputs are the heads of a Gated DeltaNet or of attention. MIXER keeps them
// apart where both have the same shape and storage: a specialization may be instantiated once only.

#define MIXER_GDN 0
#define MIXER_ATTENTION 1

template <int BITS, int GROUP, int INPUTS, int TOKENS>
inline void out_proj_add(
    device const WeightVec *weight,
    device const bfloat *scales,
    device const bfloat *biases,
    device const bfloat *input,
    device atomic_uint *residual,
    uint tile,
    uint row,
    uint rows,
    uint simd,
    uint lane) {
    typedef MatvecShape<BITS, INPUTS> Shape;
    Inputs<TOKENS> x;
    float sum[OUT_PROJ_OUT][TOKENS];
    for (int t = 0; t < TOKENS; t++) {
        x.row[t] = input + min(row + uint(t), rows - 1u) * uint(INPUTS);
        for (int o = 0; o < OUT_PROJ_OUT; o++) {
            sum[o][t] = 0.0f;
        }
    }
    uint first = (tile * OUT_PROJ_SIMDS + simd) * uint(OUT_PROJ_OUT * Shape::SIDE);
    matvec_add<BITS, GROUP, INPUTS, OUT_PROJ_OUT, TOKENS>(
        weight, scales, biases, first, HIDDEN, x, 1.0f, lane, sum);
    matvec_reduce<BITS, INPUTS, OUT_PROJ_OUT, TOKENS>(sum);
    if (lane % uint(Shape::LANES) == 0) {
        for (int o = 0; o < OUT_PROJ_OUT; o++) {
            uint n = first + uint(o * Shape::SIDE) + lane / uint(Shape::LANES);
            for (int t = 0; t < TOKENS; t++) {
                if (n < HIDDEN && row + uint(t) < rows) {
                    device atomic_uint *at = residual + (row + uint(t)) * HIDDEN + n;
                    shared_store(at, shared_load(at) + sum[o][t]);
                }
            }
        }
    }
}

template <int MIXER, int BITS, int GROUP, int INPUTS>
kernel void out_proj_norm(
    MATRIX(proj, 0, 1, 2),
    device const float *gain [[buffer(3)]],
    device const bfloat *input [[buffer(4)]],
    constant Step &step [[buffer(5)]],
    device atomic_uint *residual [[buffer(6)]],
    device bfloat *normed [[buffer(7)]],
    device atomic_uint *arrivals [[buffer(8)]],
    POSITIONS) {
    threadgroup float scratch[OUT_PROJ_SIMDS];
    threadgroup uint flag[1];
    constexpr uint TILES = MATVEC_TILES(HIDDEN, MATVEC_TILE(BITS, INPUTS, OUT_PROJ_OUT, OUT_PROJ_SIMDS));
    uint row = group.y * ROW_TILE;
    if (row >= step.rows) {
        return;
    }
    if (row + 1 == step.rows) {
        out_proj_add<BITS, GROUP, INPUTS, 1>(
            proj_weight, proj_scales, proj_biases, input, residual, group.x, row, step.rows, simd, lane);
    } else {
        out_proj_add<BITS, GROUP, INPUTS, ROW_TILE>(
            proj_weight, proj_scales, proj_biases, input, residual, group.x, row, step.rows, simd, lane);
    }
    if (last_to_arrive(arrivals + group.y, TILES, flag, thread_index)) {
        for (uint r = row; r < min(row + ROW_TILE, step.rows); r++) {
            rms_of_shared<OUT_PROJ_SIMDS>(
                residual + r * HIDDEN, gain, normed + r * HIDDEN, scratch, thread_index, simd, lane);
        }
    }
}

INSTANTIATE("out_proj_norm_gdn", out_proj_norm<MIXER_GDN, GDN_OUT_BITS, GDN_OUT_GROUP, VALUE_DIM>)
INSTANTIATE("out_proj_norm_attn", out_proj_norm<MIXER_ATTENTION, O_BITS, O_GROUP, Q_DIM>)
