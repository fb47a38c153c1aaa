// Matrix products of prefill, whatever the route: where the rows of a tile come from, how the weights of a tile are
// dequantized, and how results leave it.
//
// A threadgroup of 4 simdgroups computes TILE_ROWS x 64 outputs: simdgroup s the half s / 2 of the rows and s % 2 of the
// columns. The weights of a tile exist in threadgroup memory only, one slab of inputs at a time. `gemm_tile` (in the
// route's own file) leaves the products as f32 [TILE_ROWS][64] at the start of the arena.

// What the route multiplies: f32 or bf16.
typedef GEMM_WEIGHT GemmWeight;
#define GEMM_COLUMNS 64
#define GEMM_THREADS 128

// The rows of a tile, from a matrix of consecutive rows. Past the last row it is read again; nobody stores the result.
struct DenseRows {
    device const bfloat *input;
    uint first;
    uint rows;
    uint stride;
    device const bfloat *row(uint m) const { return input + ulong(min(first + m, rows - 1u)) * stride; }
};

// Weights of 16 inputs from `k` on of one output, in the form the route multiplies.
template <int BITS, int GROUP, int INPUTS>
inline void dequantize16(
    device const WeightVec *weight,
    device const bfloat *scales,
    device const bfloat *biases,
    uint output,
    uint k,
    threadgroup GemmWeight *out) {
    constexpr int WORDS = BITS / 2;
    device const uint *words =
        (device const uint *)weight + ulong(output) * ulong(INPUTS * BITS / 32) + ulong(k * BITS / 32);
    float scale = 1.0f;
    float bias = 0.0f;
    if (BITS != 16) {
        ulong group = ulong(output) * ulong(INPUTS / GROUP) + ulong(k / GROUP);
        scale = float(scales[group]);
        bias = float(biases[group]);
    }
    for (int w = 0; w < WORDS; w++) {
        uint word = words[w];
        if (BITS == 4) {
            for (int i = 0; i < 8; i++) {
                out[8 * w + i] = GemmWeight(fma(float((word >> (4 * i)) & 0xfu), scale, bias));
            }
        } else if (BITS == 8) {
            for (int i = 0; i < 4; i++) {
                out[4 * w + i] = GemmWeight(fma(float((word >> (8 * i)) & 0xffu), scale, bias));
            }
        } else {
            out[2 * w] = GemmWeight(bf16_low(word));
            out[2 * w + 1] = GemmWeight(bf16_high(word));
        }
    }
}

// The columns of a tile: consecutive outputs of one matrix.
template <int BITS, int GROUP, int INPUTS>
struct MatrixColumns {
    device const WeightVec *weight;
    device const bfloat *scales;
    device const bfloat *biases;
    uint first;
    uint outputs;
    void fill(uint n, uint k, threadgroup GemmWeight *out) const {
        dequantize16<BITS, GROUP, INPUTS>(weight, scales, biases, min(first + n, outputs - 1u), k, out);
    }
};

// The columns of a tile of gate and up: 32 outputs of the one, then the same 32 of the other.
template <int GATE, int GATE_GROUPED, int UP, int UP_GROUPED, int INPUTS>
struct GateUpColumns {
    device const WeightVec *gate_weight;
    device const bfloat *gate_scales;
    device const bfloat *gate_biases;
    device const WeightVec *up_weight;
    device const bfloat *up_scales;
    device const bfloat *up_biases;
    uint first;
    void fill(uint n, uint k, threadgroup GemmWeight *out) const {
        if (n < 32) {
            dequantize16<GATE, GATE_GROUPED, INPUTS>(gate_weight, gate_scales, gate_biases, first + n, k, out);
        } else {
            dequantize16<UP, UP_GROUPED, INPUTS>(up_weight, up_scales, up_biases, first + n - 32, k, out);
        }
    }
};

// Stores a tile of products as f32 rows.
template <int TILE_ROWS>
inline void store_tile(
    threadgroup const float *tile,
    device float *output,
    uint first_row,
    uint rows,
    uint first_column,
    uint columns,
    uint stride,
    uint thread_index) {
    for (uint i = thread_index; i < TILE_ROWS * GEMM_COLUMNS; i += GEMM_THREADS) {
        uint row = first_row + i / GEMM_COLUMNS;
        uint column = first_column + i % GEMM_COLUMNS;
        if (row < rows && column < columns) {
            output[ulong(row) * stride + column] = tile[i];
        }
    }
}
