// Prefill: 4-bit matrices times tiles of rows, on the warpgroup tensor core.
//
// A block has four warpgroups of 64 outputs (of each of MATRICES matrices) and a tile of TOKENS rows. The outputs are the
// rows of the product: their weights are dequantized to bf16 in the registers of the lanes that feed them, and never exist
// in memory. The tile of rows is the right operand, in shared memory. A stage holds 64 inputs, that is one group, of both.
//
// In a product over 16 inputs lane t of a quad feeds inputs 2 t, 2 t + 1 and 8 more of each: byte t of a word of weights.

#define GEMM_STAGES 5
#define GEMM_THREADS 512

template <int MATRICES, int TOKENS, int INPUTS> struct Gemm {
    static constexpr int OUTPUTS = 256 * MATRICES;
    static constexpr int ROW_BYTES = TOKENS * 128;
    static constexpr int STAGE = ROW_BYTES + OUTPUTS * 32;
    static constexpr int SCALE_STRIDE = INPUTS / 64 * 2 + 16;
    static constexpr int STEPS = INPUTS / 64;
};

// One matrix of a block: where its first output starts, and how many there are from there on.
struct Matrix {
    const u32 *weight;
    const u16 *scales, *biases;
    u32 outputs;
};

FN u32 sub_fma(u32 q, u32 scale, u32 bias) {
    u32 out;
    asm("{\n\t.reg .b32 v;\n\tsub.rn.bf16x2 v, %1, %2;\n\tfma.rn.bf16x2 %0, v, %3, %4;\n\t}"
        : "=r"(out) : "r"(q), "r"(0x43004300u), "r"(scale), "r"(bias));
    return out;
}

// A byte of two weights as a bf16 pair: byte `select` says which.
FN u32 dequantized(u32 word, u32 select, u32 scale, u32 bias) {
    u32 bytes = __byte_perm(word, word >> 4, select), q;
    asm("lop3.b32 %0, %1, 0x000f000f, 0x43004300, 0xea;" : "=r"(q) : "r"(bytes));
    return sub_fma(q, scale, bias);
}

template <int TOKENS> FN void product(float (&d)[TOKENS / 2], const u32 (&a)[4], u64 b, u32 keep) {
    if constexpr (TOKENS == 32) product_rs32(d, a, b, keep);
    if constexpr (TOKENS == 64) product_rs64(d, a, b, keep);
    if constexpr (TOKENS == 128) product_rs128(d, a, b, keep);
}

// Sums of a block: `row(m)` gives the address of tile row m. Thread (warpgroup w, warp i, lane g t) gets for matrix x in
// d[x][4 j ..]: outputs 64 w + 16 i + g (first two) and + 8 (last two), rows 8 j + 2 t and + 1.
template <int MATRICES, int TOKENS, int INPUTS, class Rows>
FN void gemm(const Matrix (&matrix)[MATRICES], const Rows &row, float (&d)[MATRICES][TOKENS / 2]) {
    typedef Gemm<MATRICES, TOKENS, INPUTS> G;
    u8 *arena = arena_raw + (1024 - (shared_address(arena_raw) & 1023)) % 1024;
    u32 base = shared_address(arena);
    u8 *scales = arena + GEMM_STAGES * G::STAGE;
    u8 *biases = scales + G::OUTPUTS * G::SCALE_STRIDE;
    u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;

    // Which 16 bytes of a stage this thread copies.
    constexpr int ROW_COPIES = (TOKENS * 8 + GEMM_THREADS - 1) / GEMM_THREADS;
    const u8 *row_from[ROW_COPIES];
    u32 row_to[ROW_COPIES];
#pragma unroll
    for (int i = 0; i < ROW_COPIES; i++) {
        u32 at = thread + i * GEMM_THREADS, m = at / 8 % TOKENS, chunk = at % 8;
        row_from[i] = (const u8 *)row(m) + chunk * 16;
        row_to[i] = m * 128 + ((chunk ^ (m & 7)) * 16);
    }
    const u8 *weight_from[MATRICES];
#pragma unroll
    for (int x = 0; x < MATRICES; x++) {
        u32 n = min(thread / 2, matrix[x].outputs - 1);
        weight_from[x] = (const u8 *)(matrix[x].weight + (u64)n * (INPUTS / 8)) + thread % 2 * 16;
    }
    auto fetch = [&](int step) {
        u32 stage = base + step % GEMM_STAGES * G::STAGE;
#pragma unroll
        for (int i = 0; i < ROW_COPIES; i++) {
            if (TOKENS * 8 >= GEMM_THREADS || thread < TOKENS * 8) copy_async16(stage + row_to[i], row_from[i] + step * 128);
        }
#pragma unroll
        for (int x = 0; x < MATRICES; x++) {
            // The two halves of an output change places every fourth output, so that 8 outputs read side by side do not
            // meet in a bank.
            u32 n = thread / 2, half = (thread & 1) ^ (n >> 2 & 1);
            copy_async16(stage + G::ROW_BYTES + (x * 256 + n) * 32 + half * 16, weight_from[x] + step * 32);
        }
    };
    // Scales and biases of all groups, once, with the first stage.
    constexpr int VECTORS = INPUTS / 64 / 8;
#pragma unroll
    for (int x = 0; x < MATRICES; x++) {
        for (u32 i = thread; i < 256 * VECTORS; i += GEMM_THREADS) {
            u32 n = i / VECTORS, to = (x * 256 + n) * G::SCALE_STRIDE + i % VECTORS * 16;
            u64 from = (u64)min(n, matrix[x].outputs - 1) * (INPUTS / 64) + i % VECTORS * 8;
            copy_async16(shared_address(scales + to), matrix[x].scales + from);
            copy_async16(shared_address(biases + to), matrix[x].biases + from);
        }
    }
#pragma unroll
    for (int step = 0; step < GEMM_STAGES - 2; step++) {
        if (step < G::STEPS) fetch(step);
        copies_commit();
    }

    u32 select = t | (4 + t) << 8;
    u32 mine = warp * 16 + g;
    // Two products of 16 inputs at a time: while they run, the weights of the next two are dequantized.
    u32 a[2][MATRICES][2][4];
    for (int step = 0; step < G::STEPS; step++) {
        copies_wait<GEMM_STAGES - 3>();
        shared_visible();
        __syncthreads();
        u32 rows = base + step % GEMM_STAGES * G::STAGE;
        const u8 *weights = arena + step % GEMM_STAGES * G::STAGE + G::ROW_BYTES;
        u32 scale[MATRICES][2], bias[MATRICES][2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int x = 0; x < MATRICES; x++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    u32 n = x * 256 + mine + h * 8, flip = n >> 2 & 1;
                    if (half == 0) {
                        scale[x][h] = *(const u16 *)(scales + n * G::SCALE_STRIDE + step * 2) * 0x10001u;
                        bias[x][h] = *(const u16 *)(biases + n * G::SCALE_STRIDE + step * 2) * 0x10001u;
                    }
                    uint4 words = ((const uint4 *)(weights + n * 32))[half ^ flip];
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        a[half][x][k][h] = dequantized(word_of(words, 2 * k), select, scale[x][h], bias[x][h]);
                        a[half][x][k][2 + h] = dequantized(word_of(words, 2 * k + 1), select, scale[x][h], bias[x][h]);
                    }
                }
            }
            products_wait<0>();
            products_begin();
#pragma unroll
            for (int k = 0; k < 2; k++) {
                u64 b = descriptor(rows + (2 * half + k) * 32, 16, 1024);
#pragma unroll
                for (int x = 0; x < MATRICES; x++) product<TOKENS>(d[x], a[half][x][k], b, 1);
            }
            products_commit();
        }
        // Its stage was read by the products of two steps ago, which every thread has waited for before it came here.
        if (step + GEMM_STAGES - 2 < G::STEPS) fetch(step + GEMM_STAGES - 2);
        copies_commit();
    }
    products_wait<0>();
}

// Calls store(m, n, x, value) for every sum of this thread: tile row m, output n of the block.
template <int MATRICES, int TOKENS, class Store>
FN void each_sum(const float (&d)[MATRICES][TOKENS / 2], const Store &store) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = warp * 16 + lane / 4, m = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < TOKENS / 8; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) store(j, i, m + j * 8 + i % 2, n + i / 2 * 8);
    }
}

#define GEMM_TILES(OUTPUTS) (((OUTPUTS) + 255) / 256)

// A dense product: block y has 256 outputs, block x 128 rows.
template <int INPUTS>
FN void dense(Matrix m, u32 first, u32 outputs, const u16 *input, u32 rows, float *out, u32 stride) {
    u32 first_row = blockIdx.x * 128;
    if (first_row >= rows) return;
    m.weight += (u64)first * (INPUTS / 8);
    m.scales += (u64)first * (INPUTS / 64);
    m.biases += (u64)first * (INPUTS / 64);
    m.outputs = min(outputs - first, 256u);
    Matrix matrix[1] = {m};
    float d[1][64] = {};
    gemm<1, 128, INPUTS>(matrix, [&](u32 i) { return input + (u64)min(first_row + i, rows - 1) * INPUTS; }, d);
    each_sum<1, 128>(d, [&](int j, int i, u32 row, u32 n) {
        if (first_row + row < rows && n < m.outputs) out[(u64)(first_row + row) * stride + first + n] = d[0][4 * j + i];
    });
}

#ifdef NATIVE_GDN_IN_PROJ_GEMM
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1) native_gdn_in_proj_gemm(
    const u32 *qkv, const u16 *qkv_s, const u16 *qkv_b, const u32 *z, const u16 *z_s, const u16 *z_b, const u32 *b,
    const u16 *b_s, const u16 *b_b, const u32 *a, const u16 *a_s, const u16 *a_b, const u16 *input, const Step *step,
    float *qkv_out, float *z_out, float *ba_out) {
    let_next_start();
    enter();
    u32 at = blockIdx.y, outputs = CONV_DIM, stride = CONV_DIM;
    Matrix m = {qkv, qkv_s, qkv_b, 0};
    float *out = qkv_out;
    if (at >= GEMM_TILES(CONV_DIM)) {
        at -= GEMM_TILES(CONV_DIM);
        if (at < GEMM_TILES(VALUE_DIM)) {
            m = {z, z_s, z_b, 0};
            out = z_out, outputs = stride = VALUE_DIM;
        } else {
            at -= GEMM_TILES(VALUE_DIM);
            m = {b, b_s, b_b, 0};
            out = ba_out, outputs = VALUE_HEADS, stride = 2 * VALUE_HEADS;
            if (at >= GEMM_TILES(VALUE_HEADS)) {
                at -= GEMM_TILES(VALUE_HEADS);
                m = {a, a_s, a_b, 0};
                out = ba_out + VALUE_HEADS;
            }
        }
    }
    dense<HIDDEN>(m, at * 256, outputs, input, step->rows, out, stride);
}
#endif

#ifdef NATIVE_ATTN_IN_PROJ_GEMM
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1) native_attn_in_proj_gemm(
    const u32 *q, const u16 *q_s, const u16 *q_b, const u32 *k, const u16 *k_s, const u16 *k_b, const u32 *v,
    const u16 *v_s, const u16 *v_b, const u16 *input, const Step *step, float *qg_out, float *kv_out) {
    let_next_start();
    enter();
    u32 at = blockIdx.y, outputs = 2 * Q_DIM, stride = 2 * Q_DIM;
    Matrix m = {q, q_s, q_b, 0};
    float *out = qg_out;
    if (at >= GEMM_TILES(2 * Q_DIM)) {
        at -= GEMM_TILES(2 * Q_DIM);
        outputs = KV_DIM, stride = 2 * KV_DIM;
        m = {k, k_s, k_b, 0};
        out = kv_out;
        if (at >= GEMM_TILES(KV_DIM)) {
            at -= GEMM_TILES(KV_DIM);
            m = {v, v_s, v_b, 0};
            out = kv_out + KV_DIM;
        }
    }
    dense<HIDDEN>(m, at * 256, outputs, input, step->rows, out, stride);
}
#endif

#define OUT_PROJ_GEMM(NAME, INPUTS)                                                                               \
    extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1) NAME(                                           \
        const u32 *w, const u16 *s, const u16 *b, const u16 *input, const Step *step, float *output) {            \
        let_next_start();                                                                                         \
        enter();                                                                                                  \
        Matrix m = {w, s, b, 0};                                                                                  \
        dense<INPUTS>(m, blockIdx.y * 256, HIDDEN, input, step->rows, output, HIDDEN);                            \
    }
#ifdef NATIVE_OUT_PROJ_GEMM_GDN
OUT_PROJ_GEMM(native_out_proj_gemm_gdn, VALUE_DIM)
#endif
#ifdef NATIVE_OUT_PROJ_GEMM_ATTN
OUT_PROJ_GEMM(native_out_proj_gemm_attn, Q_DIM)
#endif

// Gate and up of 256 outputs each, and SwiGLU where their sums meet. `to(m)` is where row m's activations start, or null.
template <int TOKENS, class Rows, class To>
FN void gate_up(Matrix gate, Matrix up, const Rows &row, const To &to) {
    u32 first = blockIdx.x * 256;
    Matrix matrix[2] = {gate, up};
    for (int x = 0; x < 2; x++) {
        matrix[x].weight += (u64)first * (HIDDEN / 8);
        matrix[x].scales += (u64)first * (HIDDEN / 64);
        matrix[x].biases += (u64)first * (HIDDEN / 64);
        matrix[x].outputs = 256;
    }
    float d[2][TOKENS / 2] = {};
    gemm<2, TOKENS, HIDDEN>(matrix, row, d);
    each_sum<2, TOKENS>(d, [&](int j, int i, u32 m, u32 n) {
        u16 *out = to(m);
        if (out != 0) out[first + n] = to_bf16(silu(d[0][4 * j + i]) * d[1][4 * j + i]);
    });
}

// Tiles of pairs, as in route_sort.metal: count, then (expert, first place in `order`, rows, 0).
#define GROUPED_GATE_UP(NAME, TOKENS)                                                                                 \
    extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1) NAME(                                               \
        const u32 *gate, const u16 *gate_s, const u16 *gate_b, const u32 *up, const u16 *up_s, const u16 *up_b,       \
        const u16 *input, const u32 *order, const uint4 *tiles, u16 *act) {                                           \
        let_next_start();                                                                                             \
        enter();                                                                                                      \
        if (blockIdx.y >= tiles[0].x) return;                                                                         \
        uint4 tile = tiles[1 + blockIdx.y];                                                                           \
        const u32 *pairs = order + tile.y;                                                                            \
        u64 words = tile.x * ((u64)INNER * (HIDDEN / 8)), groups = tile.x * ((u64)INNER * (HIDDEN / 64));             \
        gate_up<TOKENS>(                                                                                              \
            Matrix{gate + words, gate_s + groups, gate_b + groups, 0},                                                \
            Matrix{up + words, up_s + groups, up_b + groups, 0},                                                      \
            [&](u32 m) { return input + (u64)(pairs[min(m, tile.z - 1)] / TOP_K) * HIDDEN; },                         \
            [&](u32 m) -> u16 * {                                                                                     \
                if (m >= tile.z) return 0;                                                                            \
                u32 pair = pairs[m];                                                                                  \
                return act + (u64)(pair / TOP_K) * ACT_WIDTH + pair % TOP_K * INNER;                                  \
            });                                                                                                       \
    }
#ifdef NATIVE_GROUPED_GATE_UP_32
GROUPED_GATE_UP(native_grouped_gate_up_32, 32)
#endif
#ifdef NATIVE_GROUPED_GATE_UP_64
GROUPED_GATE_UP(native_grouped_gate_up_64, 64)
#endif

#ifdef NATIVE_SHARED_GATE_UP
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1) native_shared_gate_up(
    const u32 *gate, const u16 *gate_s, const u16 *gate_b, const u32 *up, const u16 *up_s, const u16 *up_b,
    const u16 *input, const Step *step, u16 *act) {
    let_next_start();
    enter();
    u32 rows = step->rows, first_row = blockIdx.y * 64;
    if (first_row >= rows) return;
    gate_up<64>(
        Matrix{gate, gate_s, gate_b, 0}, Matrix{up, up_s, up_b, 0},
        [&](u32 m) { return input + (u64)min(first_row + m, rows - 1) * HIDDEN; },
        [&](u32 m) -> u16 * {
            return first_row + m < rows ? act + (u64)(first_row + m) * ACT_WIDTH + TOP_K * INNER : 0;
        });
}
#endif

// 512 outputs of a down projection, as two matrices of 256. `to(m)` is where row m's results start, or null.
template <int TOKENS, int INPUTS, class Rows, class To>
FN void down_proj(Matrix down, const Rows &row, const To &to) {
    u32 first = blockIdx.x * 512;
    Matrix matrix[2];
    for (int x = 0; x < 2; x++) {
        u64 n = first + x * 256;
        matrix[x] = {down.weight + n * (INPUTS / 8), down.scales + n * (INPUTS / 64), down.biases + n * (INPUTS / 64), 256};
    }
    float d[2][TOKENS / 2] = {};
    gemm<2, TOKENS, INPUTS>(matrix, row, d);
    each_sum<2, TOKENS>(d, [&](int j, int i, u32 m, u32 n) {
        float *out = to(m);
        if (out != 0) {
            out[first + n] = d[0][4 * j + i];
            out[first + 256 + n] = d[1][4 * j + i];
        }
    });
}

#define GROUPED_DOWN(NAME, TOKENS)                                                                                  \
    extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1) NAME(                                             \
        const u32 *down, const u16 *down_s, const u16 *down_b, const u16 *act, const u32 *order, const uint4 *tiles, \
        float *output) {                                                                                            \
        let_next_start();                                                                                           \
        enter();                                                                                                    \
        if (blockIdx.y >= tiles[0].x) return;                                                                       \
        uint4 tile = tiles[1 + blockIdx.y];                                                                         \
        const u32 *pairs = order + tile.y;                                                                          \
        u64 words = tile.x * ((u64)HIDDEN * (INNER / 8)), groups = tile.x * ((u64)HIDDEN * (INNER / 64));           \
        down_proj<TOKENS, INNER>(                                                                                   \
            Matrix{down + words, down_s + groups, down_b + groups, 0},                                              \
            [&](u32 m) {                                                                                            \
                u32 pair = pairs[min(m, tile.z - 1)];                                                               \
                return act + (u64)(pair / TOP_K) * ACT_WIDTH + pair % TOP_K * INNER;                                \
            },                                                                                                      \
            [&](u32 m) -> float * {                                                                                 \
                if (m >= tile.z) return 0;                                                                          \
                u32 pair = pairs[m];                                                                                \
                return output + ((u64)(pair / TOP_K) * (TOP_K + 1) + pair % TOP_K) * HIDDEN;                        \
            });                                                                                                     \
    }
#ifdef NATIVE_GROUPED_DOWN_32
GROUPED_DOWN(native_grouped_down_32, 32)
#endif
#ifdef NATIVE_GROUPED_DOWN_64
GROUPED_DOWN(native_grouped_down_64, 64)
#endif

#ifdef NATIVE_SHARED_DOWN
extern "C" __global__ void __launch_bounds__(GEMM_THREADS, 1) native_shared_down(
    const u32 *down, const u16 *down_s, const u16 *down_b, const u16 *act, const Step *step, float *output) {
    let_next_start();
    enter();
    u32 rows = step->rows, first_row = blockIdx.y * 64;
    if (first_row >= rows) return;
    down_proj<64, SHARED_INNER>(
        Matrix{down, down_s, down_b, 0},
        [&](u32 m) { return act + (u64)min(first_row + m, rows - 1) * ACT_WIDTH + TOP_K * INNER; },
        [&](u32 m) -> float * {
            return first_row + m < rows ? output + ((u64)(first_row + m) * (TOP_K + 1) + TOP_K) * HIDDEN : 0;
        });
}
#endif
