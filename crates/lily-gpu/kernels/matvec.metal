// Matrix times a few vectors: the core of every decode projection.
//
// A simdgroup computes OUT * SIDE outputs. Lanes read the 16-byte vectors of a row side by side (adjacent lanes, adjacent
// 16 bytes); OUT rows are loaded before the first is used (of two steps where OUT is less than 4), so that at least four
// loads a lane are in flight wherever a row is long enough. A row shorter than 32 vectors takes fewer lanes, and SIDE rows
// are read next to one another.
//
// MLX affine storage: w = q * scale + bias, so a group contributes scale * sum(q x) + bias * sum(x). A q is not shifted
// out and converted: it is masked where it lies and put under the exponent of 2^23, and x carries the inverse power of
// two, exactly. BITS is 4, 8 or 16 (bf16, no groups).

template <int BITS, int INPUTS>
struct MatvecShape {
    static constant constexpr int PER_VECTOR = 128 / BITS;
    static constant constexpr int VECTORS = INPUTS / PER_VECTOR;
    static constant constexpr int LANES = VECTORS > 16 ? 32 : VECTORS > 8 ? 16 : VECTORS > 4 ? 8 : 4;
    static constant constexpr int SIDE = 32 / LANES;
    static constant constexpr int STEPS = (VECTORS + LANES - 1) / LANES;
    static constant constexpr int CHUNKS = PER_VECTOR / 8;
};

// The vectors that one pass over the weights multiplies.
template <int TOKENS>
struct Inputs {
    device const bfloat *row[TOKENS];
};

// Outputs of a threadgroup of SIMDS simdgroups.
#define MATVEC_TILE(BITS, INPUTS, OUT, SIMDS) ((OUT) * (SIMDS) * (MatvecShape<BITS, INPUTS>::SIDE))
#define MATVEC_TILES(OUTPUTS, TILE) (((OUTPUTS) + (TILE) - 1) / (TILE))

// A masked field of a word, times the weight of its lowest bit.
inline float field(uint word, uint mask) { return as_type<float>((word & mask) | 0x4b000000u) - 8388608.0f; }

// Eight weights: chunk `c` of a vector, each times 2^p where `unshift8` takes p back.
template <int BITS>
inline void unpack8(uint4 v, int c, thread float (&q)[8]) {
    if (BITS == 4) {
        uint low = v[c];
        uint high = low >> 20;
        q[0] = field(low, 0xfu);
        q[1] = field(low, 0xf0u);
        q[2] = field(low, 0xf00u);
        q[3] = field(low, 0xf000u);
        q[4] = field(low, 0xf0000u);
        q[5] = field(high, 0xfu);
        q[6] = field(high, 0xf0u);
        q[7] = field(high, 0xf00u);
    } else if (BITS == 8) {
        for (int i = 0; i < 2; i++) {
            uint low = v[(2 * c + i) & 3];
            uint high = low >> 16;
            q[4 * i] = field(low, 0xffu);
            q[4 * i + 1] = field(low, 0xff00u);
            q[4 * i + 2] = field(high, 0xffu);
            q[4 * i + 3] = field(high, 0xff00u);
        }
    } else {
        for (int i = 0; i < 4; i++) {
            q[2 * i] = bf16_low(v[i]);
            q[2 * i + 1] = bf16_high(v[i]);
        }
    }
}

template <int BITS>
inline void unshift8(thread float (&x)[8]) {
    if (BITS == 4) {
        x[1] *= 0.0625f;
        x[2] *= 0.00390625f;
        x[3] *= 0.000244140625f;
        x[4] *= 0.0000152587890625f;
        x[6] *= 0.0625f;
        x[7] *= 0.00390625f;
    } else if (BITS == 8) {
        x[1] *= 0.00390625f;
        x[3] *= 0.00390625f;
        x[5] *= 0.00390625f;
        x[7] *= 0.00390625f;
    }
}

inline void load8(device const bfloat *at, thread float (&x)[8]) {
    uint4 v = *(device const uint4 *)at;
    for (int i = 0; i < 4; i++) {
        x[2 * i] = bf16_low(v[i]);
        x[2 * i + 1] = bf16_high(v[i]);
    }
}

// Adds factor * (one vector of each of OUT rows) * x to `sum`; `column` is the first input of the vectors.
template <int BITS, int GROUP, int INPUTS, int OUT, int TOKENS>
inline void matvec_step(
    thread const uint4 (&v)[OUT],
    device const bfloat *scales,
    device const bfloat *biases,
    thread const uint (&row)[OUT],
    uint column,
    thread const Inputs<TOKENS> &input,
    float factor,
    thread float (&sum)[OUT][TOKENS]) {
    float part[OUT][TOKENS];
    float total[TOKENS];
    for (int t = 0; t < TOKENS; t++) {
        total[t] = 0.0f;
        for (int o = 0; o < OUT; o++) {
            part[o][t] = 0.0f;
        }
    }
    for (int c = 0; c < MatvecShape<BITS, INPUTS>::CHUNKS; c++) {
        float x[TOKENS][8];
        for (int t = 0; t < TOKENS; t++) {
            load8(input.row[t] + column + uint(8 * c), x[t]);
            if (BITS != 16) {
                for (int i = 0; i < 8; i++) {
                    total[t] += x[t][i];
                }
                unshift8<BITS>(x[t]);
            }
        }
        for (int o = 0; o < OUT; o++) {
            float q[8];
            unpack8<BITS>(v[o], c, q);
            for (int t = 0; t < TOKENS; t++) {
                for (int i = 0; i < 8; i++) {
                    part[o][t] = fma(q[i], x[t][i], part[o][t]);
                }
            }
        }
    }
    for (int o = 0; o < OUT; o++) {
        float scale = factor;
        float bias = 0.0f;
        if (BITS != 16) {
            uint group = row[o] * uint(INPUTS / GROUP) + column / uint(GROUP);
            scale = factor * float(scales[group]);
            bias = factor * float(biases[group]);
        }
        for (int t = 0; t < TOKENS; t++) {
            sum[o][t] = fma(scale, part[o][t], sum[o][t]);
            sum[o][t] = fma(bias, total[t], sum[o][t]);
        }
    }
}

// Adds factor * W x to `sum`, as the part that this lane has read. Outputs first + o * SIDE + lane / LANES, o < OUT,
// of a matrix [outputs, INPUTS]; past its end the last row is computed again, and nobody stores it.
template <int BITS, int GROUP, int INPUTS, int OUT, int TOKENS>
inline void matvec_add(
    device const WeightVec *weight,
    device const bfloat *scales,
    device const bfloat *biases,
    uint first,
    uint outputs,
    thread const Inputs<TOKENS> &input,
    float factor,
    uint lane,
    thread float (&sum)[OUT][TOKENS]) {
    typedef MatvecShape<BITS, INPUTS> Shape;
    uint sub = lane % uint(Shape::LANES);
    uint row[OUT];
    for (int o = 0; o < OUT; o++) {
        row[o] = min(first + uint(o * Shape::SIDE) + lane / uint(Shape::LANES), outputs - 1u);
    }
    // Few outputs: the vectors of two steps are loaded together, so that four loads are in flight all the same.
    constexpr int AHEAD = OUT >= 4 || Shape::STEPS % 2 != 0 ? 1 : 2;
    constexpr bool RAGGED = Shape::VECTORS % Shape::LANES != 0;
    for (int step = 0; step < Shape::STEPS; step += AHEAD) {
        uint4 v[AHEAD][OUT];
        for (int a = 0; a < AHEAD; a++) {
            uint at = uint((step + a) * Shape::LANES) + sub;
            at = RAGGED ? min(at, uint(Shape::VECTORS) - 1u) : at;
            for (int o = 0; o < OUT; o++) {
                v[a][o] = uint4(weight[row[o] * uint(Shape::VECTORS) + at]);
            }
        }
        for (int a = 0; a < AHEAD; a++) {
            uint at = uint((step + a) * Shape::LANES) + sub;
            if (RAGGED && at >= uint(Shape::VECTORS)) {
                break;
            }
            matvec_step<BITS, GROUP, INPUTS, OUT, TOKENS>(
                v[a], scales, biases, row, at * uint(Shape::PER_VECTOR), input, factor, sum);
        }
    }
}

template <int BITS, int INPUTS, int OUT, int TOKENS>
inline void matvec_reduce(thread float (&sum)[OUT][TOKENS]) {
    for (int o = 0; o < OUT; o++) {
        for (int t = 0; t < TOKENS; t++) {
            sum[o][t] = lanes_sum<MatvecShape<BITS, INPUTS>::LANES>(sum[o][t]);
        }
    }
}

// output[row][n] = W input[row] for the outputs of one threadgroup tile and TOKENS rows from `row` on.
template <int BITS, int GROUP, int INPUTS, int OUT, int SIMDS, int TOKENS>
inline void project_rows(
    device const WeightVec *weight,
    device const bfloat *scales,
    device const bfloat *biases,
    uint tile,
    uint outputs,
    uint row,
    uint rows,
    device const bfloat *input,
    device float *output,
    uint stride,
    uint simd,
    uint lane) {
    typedef MatvecShape<BITS, INPUTS> Shape;
    Inputs<TOKENS> x;
    for (int t = 0; t < TOKENS; t++) {
        x.row[t] = input + min(row + uint(t), rows - 1u) * uint(INPUTS);
    }
    float sum[OUT][TOKENS];
    for (int o = 0; o < OUT; o++) {
        for (int t = 0; t < TOKENS; t++) {
            sum[o][t] = 0.0f;
        }
    }
    uint first = (tile * uint(SIMDS) + simd) * uint(OUT * Shape::SIDE);
    matvec_add<BITS, GROUP, INPUTS, OUT, TOKENS>(weight, scales, biases, first, outputs, x, 1.0f, lane, sum);
    matvec_reduce<BITS, INPUTS, OUT, TOKENS>(sum);
    if (lane % uint(Shape::LANES) == 0) {
        for (int o = 0; o < OUT; o++) {
            uint n = first + uint(o * Shape::SIDE) + lane / uint(Shape::LANES);
            for (int t = 0; t < TOKENS; t++) {
                if (n < outputs && row + uint(t) < rows) {
                    output[(row + uint(t)) * stride + n] = sum[o][t];
                }
            }
        }
    }
}

// The same for up to ROW_TILE rows; a single row does not pay for the others.
template <int BITS, int GROUP, int INPUTS, int OUT, int SIMDS>
inline void project(
    device const WeightVec *weight,
    device const bfloat *scales,
    device const bfloat *biases,
    uint tile,
    uint outputs,
    uint row,
    uint rows,
    device const bfloat *input,
    device float *output,
    uint stride,
    uint simd,
    uint lane) {
    if (row + 1 == rows) {
        project_rows<BITS, GROUP, INPUTS, OUT, SIMDS, 1>(
            weight, scales, biases, tile, outputs, row, rows, input, output, stride, simd, lane);
    } else if (row < rows) {
        project_rows<BITS, GROUP, INPUTS, OUT, SIMDS, ROW_TILE>(
            weight, scales, biases, tile, outputs, row, rows, input, output, stride, simd, lane);
    }
}
