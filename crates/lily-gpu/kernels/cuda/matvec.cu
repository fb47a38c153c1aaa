// Decode: 4-bit matrices times up to four rows, on the tensor core.
//
// A warp multiplies 16 outputs by 512 inputs. A lane reads 16 bytes (32 weights) of an output at a time, so the four lanes of
// a quad read 64 adjacent bytes: inputs of two groups of 64. A nibble under the exponent of 128 is the bf16 128 + q, from
// which 128 is taken exactly. In a product of 16 outputs by 16 inputs by 8 columns, column 2 r + p takes row r and is zero outside groups of parity p: so
// the sums of the two groups stay apart, and lane t of a quad ends up with both sums of row t, to which it applies their
// scales: w = q * scale + bias, so a group gives scale * sum + bias * sum(x), in f32.
//
// Weights and scales are read before `enter`: nothing the grid before writes.

#define PART 512
#define CHUNKS (PART / 128)
#define GROUPS (PART / 64)

// What a lane holds of 16 outputs by PART inputs. `upper` is output g + 8.
struct Weights {
    uint4 lower[CHUNKS], upper[CHUNKS];
    uint4 lower_scales, upper_scales, lower_biases, upper_biases;  // GROUPS bf16 each
};

// `weight` [outputs][inputs / 8] words, scales and biases [outputs][inputs / 64]; rows past the last are read as the last.
FN void load_weights(
    Weights &w, const u32 *weight, const u16 *scales, const u16 *biases, u32 first, u32 outputs, u32 inputs, u32 part) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    u32 low = min(first + g, outputs - 1), high = min(first + g + 8, outputs - 1);
    const u32 *a = weight + (u64)low * (inputs / 8) + part * (PART / 8) + t * 4;
    const u32 *b = weight + (u64)high * (inputs / 8) + part * (PART / 8) + t * 4;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        w.lower[c] = load_once(a + c * 16);
        w.upper[c] = load_once(b + c * 16);
    }
    u64 group = (u64)low * (inputs / 64) + part * GROUPS, upper = (u64)high * (inputs / 64) + part * GROUPS;
    w.lower_scales = load_kept(scales + group);
    w.lower_biases = load_kept(biases + group);
    w.upper_scales = load_kept(scales + upper);
    w.upper_biases = load_kept(biases + upper);
}

FN u32 word_of(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Nibbles i and i + 4 of a word as a bf16 pair.
template <int I> FN u32 nibbles(u32 word) {
    u32 out;
    asm("{\n\t.reg .b32 q;\n\tlop3.b32 q, %1, 0x000f000f, 0x43004300, 0xea;\n\tsub.rn.bf16x2 %0, q, %2;\n\t}"
        : "=r"(out) : "r"(word >> (4 * I)), "r"(0x43004300u));
    return out;
}

FN float group_value(const uint4 &v, int i) {
    u32 word = word_of(v, i / 2);
    return i % 2 == 0 ? bf16_low(word) : bf16_high(word);
}

// sum[0] += this lane's row times output g, sum[1] the same for output g + 8: lane t has row t. `x[r]` is where row r has
// the first input of the part.
template <int ROWS> FN void multiply(const Weights &w, const u16 *const (&x)[ROWS], float (&sum)[2]) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    // Sums of each group's inputs: lane l sums inputs 16 l .. 16 l + 16, four lanes a group.
    float totals[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const uint4 *at = (const uint4 *)(x[r] + lane * 16);
        uint4 a = at[0], b = at[1];
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            total += bf16_low(word_of(a, i)) + bf16_high(word_of(a, i));
            total += bf16_low(word_of(b, i)) + bf16_high(word_of(b, i));
        }
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        totals[r] = total;
    }
    // The column of this lane in the right operand: row g / 2, groups of parity g % 2.
    u32 row = g / 2;
    bool live = row < ROWS && t / 2 == g % 2;
    const u16 *mine = x[0];
#pragma unroll
    for (int r = 1; r < ROWS; r++) mine = row == r ? x[r] : mine;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint4 v = {0, 0, 0, 0};
            if (live) v = *(const uint4 *)(mine + c * 128 + t * 32 + i * 8);
            u32 lo = word_of(w.lower[c], i), hi = word_of(w.upper[c], i);
            mma(d, nibbles<0>(lo), nibbles<0>(hi), nibbles<1>(lo), nibbles<1>(hi),
                __byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632));
            mma(d, nibbles<2>(lo), nibbles<2>(hi), nibbles<3>(lo), nibbles<3>(hi),
                __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632));
        }
#pragma unroll
        for (int p = 0; p < 2; p++) {
            int group = 2 * c + p;
            float total = __shfl_sync(~0u, totals[0], 4 * group);
#pragma unroll
            for (int r = 1; r < ROWS; r++) {
                float other = __shfl_sync(~0u, totals[r], 4 * group);
                total = t == r ? other : total;
            }
            float ls = group_value(w.lower_scales, group), us = group_value(w.upper_scales, group);
            float lb = group_value(w.lower_biases, group), ub = group_value(w.upper_biases, group);
            sum[0] = fmaf(ls, d[p], fmaf(lb, total, sum[0]));
            sum[1] = fmaf(us, d[2 + p], fmaf(ub, total, sum[1]));
        }
    }
}

// The block's warps have one part each of the same 16 outputs: gives their sums to `store(row, output, value)`, both
// counted from 0.
template <int WARPS, int ROWS, class Store> FN void meet(const float (&sum)[2], const Store &store) {
    __shared__ float parts[WARPS][16 * ROWS];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (t < ROWS) {
        parts[warp][t * 16 + g] = sum[0];
        parts[warp][t * 16 + g + 8] = sum[1];
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < 16 * ROWS; at += WARPS * 32) {
        float value = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) value += parts[i][at];
        store(at / 16, at % 16, value);
    }
}

// Products of 16 outputs with rows `row` .. of the step; gives them to `store(row, output, value)`.
template <int INPUTS, int ROWS, class Store>
FN void project_rows(const Weights &w, const u16 *input, u32 row, u32 rows, u32 first, u32 outputs, const Store &store) {
    u32 part = threadIdx.x / 32;
    const u16 *x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) x[r] = input + (u64)min(row + r, rows - 1) * INPUTS + part * PART;
    float sum[2] = {0.0f, 0.0f};
    multiply<ROWS>(w, x, sum);
    meet<INPUTS / PART, ROWS>(sum, [&](u32 r, u32 n, float value) {
        if (row + r < rows && first + n < outputs) store(row + r, first + n, value);
    });
}

template <int INPUTS, class Store>
FN void project(
    const u32 *weight, const u16 *scales, const u16 *biases, u32 first, u32 outputs, const u16 *input, const Step *step,
    const Store &store) {
    Weights w;
    load_weights(w, weight, scales, biases, first, outputs, INPUTS, threadIdx.x / 32);
    let_next_start();
    enter();
    u32 rows = step->rows, row = blockIdx.y * 4;
    if (row + 1 == rows) {
        project_rows<INPUTS, 1>(w, input, row, rows, first, outputs, store);
    } else if (row < rows) {
        project_rows<INPUTS, 4>(w, input, row, rows, first, outputs, store);
    }
}

#define TILES(OUTPUTS) (((OUTPUTS) + 15) / 16)

#ifdef NATIVE_GDN_IN_PROJ
// Six blocks a multiprocessor hold all 772 blocks of the published geometry at once.
extern "C" __global__ void __launch_bounds__(HIDDEN / PART * 32, HIDDEN == 2048 ? 6 : 1) native_gdn_in_proj(
    const u32 *qkv, const u16 *qkv_s, const u16 *qkv_b, const u32 *z, const u16 *z_s, const u16 *z_b, const u32 *b,
    const u16 *b_s, const u16 *b_b, const u32 *a, const u16 *a_s, const u16 *a_b, const u16 *input, const Step *step,
    float *qkv_out, float *z_out, float *ba_out) {
    u32 tile = blockIdx.x, outputs = CONV_DIM, stride = CONV_DIM;
    const u32 *w = qkv;
    const u16 *s = qkv_s, *bias = qkv_b;
    float *out = qkv_out;
    if (tile >= TILES(CONV_DIM)) {
        tile -= TILES(CONV_DIM);
        if (tile < TILES(VALUE_DIM)) {
            w = z, s = z_s, bias = z_b, out = z_out, outputs = stride = VALUE_DIM;
        } else {
            tile -= TILES(VALUE_DIM);
            outputs = VALUE_HEADS, stride = 2 * VALUE_HEADS;
            w = b, s = b_s, bias = b_b, out = ba_out;
            if (tile >= TILES(VALUE_HEADS)) {
                tile -= TILES(VALUE_HEADS);
                w = a, s = a_s, bias = a_b, out = ba_out + VALUE_HEADS;
            }
        }
    }
    project<HIDDEN>(w, s, bias, tile * 16, outputs, input, step, [&](u32 row, u32 n, float v) {
        out[row * stride + n] = v;
    });
}
#endif

#ifdef NATIVE_ATTN_IN_PROJ
extern "C" __global__ void __launch_bounds__(HIDDEN / PART * 32) native_attn_in_proj(
    const u32 *q, const u16 *q_s, const u16 *q_b, const u32 *k, const u16 *k_s, const u16 *k_b, const u32 *v,
    const u16 *v_s, const u16 *v_b, const u16 *input, const Step *step, float *qg_out, float *kv_out) {
    u32 tile = blockIdx.x, outputs = 2 * Q_DIM, stride = 2 * Q_DIM;
    const u32 *w = q;
    const u16 *s = q_s, *bias = q_b;
    float *out = qg_out;
    if (tile >= TILES(2 * Q_DIM)) {
        tile -= TILES(2 * Q_DIM);
        outputs = KV_DIM, stride = 2 * KV_DIM;
        w = k, s = k_s, bias = k_b, out = kv_out;
        if (tile >= TILES(KV_DIM)) {
            tile -= TILES(KV_DIM);
            w = v, s = v_s, bias = v_b, out = kv_out + KV_DIM;
        }
    }
    project<HIDDEN>(w, s, bias, tile * 16, outputs, input, step, [&](u32 row, u32 n, float value) {
        out[row * stride + n] = value;
    });
}
#endif

// Adds to the residual stream; the block that arrives last norms the rows.
template <int INPUTS>
FN void out_proj_norm(
    const u32 *w, const u16 *s, const u16 *b, const float *gain, const u16 *input, const Step *step, float *residual,
    u16 *normed, u32 *arrivals) {
    project<INPUTS>(w, s, b, blockIdx.x * 16, HIDDEN, input, step, [&](u32 row, u32 n, float v) {
        // An addition at the memory, by the only block that adds there: nothing waits for the old value.
        asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(residual + row * HIDDEN + n), "f"(v) : "memory");
    });
    u32 first = blockIdx.y * 4;
    if (first < step->rows && last_to_arrive(arrivals + blockIdx.y, gridDim.x)) {
        for (u32 r = first; r < min(first + 4, step->rows); r++) {
            norm_row<INPUTS / PART * 32>(residual + r * HIDDEN, gain, normed + r * HIDDEN);
        }
    }
}

#define OUT_PROJ_NORM(NAME, INPUTS)                                                                                \
    extern "C" __global__ void __launch_bounds__((INPUTS) / PART * 32) NAME(                                       \
        const u32 *w, const u16 *s, const u16 *b, const float *gain, const u16 *input, const Step *step,            \
        float *residual, u16 *normed, u32 *arrivals) {                                                             \
        out_proj_norm<INPUTS>(w, s, b, gain, input, step, residual, normed, arrivals);                             \
    }
#ifdef NATIVE_OUT_PROJ_NORM_GDN
OUT_PROJ_NORM(native_out_proj_norm_gdn, VALUE_DIM)
#endif
#ifdef NATIVE_OUT_PROJ_NORM_ATTN
OUT_PROJ_NORM(native_out_proj_norm_attn, Q_DIM)
#endif

#ifdef NATIVE_LM_HEAD
template <int ROWS>
FN void lm_head_rows(const Weights &w, const u16 *input, const u32 *logit_rows, u32 index, u32 count, float *logits) {
    const u16 *x[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        x[r] = input + (u64)logit_rows[min(index + r, count - 1)] * HIDDEN + threadIdx.x / 32 * PART;
    }
    float sum[2] = {0.0f, 0.0f};
    multiply<ROWS>(w, x, sum);
    meet<HIDDEN / PART, ROWS>(sum, [&](u32 r, u32 n, float value) {
        n += blockIdx.x * 16;
        if (index + r < count && n < VOCAB) logits[(u64)(index + r) * VOCAB + n] = value;
    });
}

extern "C" __global__ void __launch_bounds__(HIDDEN / PART * 32) native_lm_head(
    const u32 *head, const u16 *s, const u16 *b, const u16 *input, const u32 *logit_rows, const Step *step,
    float *logits) {
    Weights w;
    load_weights(w, head, s, b, blockIdx.x * 16, VOCAB, HIDDEN, threadIdx.x / 32);
    let_next_start();
    enter();
    u32 count = step->logit_rows, index = blockIdx.y * 4;
    if (index + 1 == count) {
        lm_head_rows<1>(w, input, logit_rows, index, count, logits);
    } else if (index < count) {
        lm_head_rows<4>(w, input, logit_rows, index, count, logits);
    }
}
#endif
