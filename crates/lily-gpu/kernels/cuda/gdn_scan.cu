// Prefill: the gated delta rule over chunks of 64 tokens, as matrix products. Factors are the sum of two tf32 (21 bits), sums
// and the state are f32.
//
// With G_t the sum of the log decays up to token t of a chunk that starts from state S, the rule's d (here u) solves
//   u_t = beta_t (v_t - e^G_t S'k_t - sum_{i<t} e^(G_t - G_i) (k_t . k_i) u_i),
// a unit lower triangular system: U = T diag(beta) (V - e^G K S). Then
//   o_t = e^G_t S'q_t + sum_{i<=t} e^(G_t - G_i) (q_t . k_i) u_i = e^G_t S'q_t + (M U)_t,
//   S   = e^G_64 S + sum_i e^(G_64 - G_i) k_i u_i'.
// T and M do not depend on the state: a first kernel makes them for all chunks at once. The second walks the chunks, a block
// for 32 value columns of a head.

#ifdef NATIVE_GDN_SCAN
#define CHUNK 64
#define COLUMNS 32
// Row strides in floats: two adjacent rows of 16-byte reads by four lanes meet in no bank.
#define KEY_STRIDE (DK + 16)
#define CHUNK_STRIDE (CHUNK + 16)
// T and M of a token: [row][value head][T 64 | M 64].
#define FACTORS (2 * CHUNK)

FN u32 tf32(float v) {
    u32 out;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(v));
    return out;
}
FN void mma_tf32(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A factor as a tf32 and what that leaves.
struct Split {
    u32 upper, lower;
};
FN Split split(float v) {
    u32 upper = tf32(v);
    return {upper, __float_as_uint(v - __uint_as_float(upper))};
}

// d += a b over 8 inputs; the product of the two rests is below what is kept.
FN void mma_split(float (&d)[4], Split a0, Split a1, Split a2, Split a3, Split b0, Split b1) {
    mma_tf32(d, a0.lower, a1.lower, a2.lower, a3.lower, b0.upper, b1.upper);
    mma_tf32(d, a0.upper, a1.upper, a2.upper, a3.upper, b0.lower, b1.lower);
    mma_tf32(d, a0.upper, a1.upper, a2.upper, a3.upper, b0.upper, b1.upper);
}

// d[i] += rows `a` (16 of them from this lane's g on) times columns `b + 8 i`, both with the inputs side by side. Lane t of a
// quad takes inputs 4 t .. 4 t + 3 of 16; the order of inputs is the same on both sides.
template <int INPUTS, int TILES, int STRIDE>
FN void multiply_split(float (&d)[TILES][4], const float *a, const float *b) {
    u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll 2
    for (int k = 0; k < INPUTS; k += 16) {
        float4 upper = *(const float4 *)(a + g * STRIDE + k + 4 * t);
        float4 lower = *(const float4 *)(a + (g + 8) * STRIDE + k + 4 * t);
        Split ux = split(upper.x), uy = split(upper.y), uz = split(upper.z), uw = split(upper.w);
        Split lx = split(lower.x), ly = split(lower.y), lz = split(lower.z), lw = split(lower.w);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            float4 v = *(const float4 *)(b + (8 * i + g) * STRIDE + k + 4 * t);
            mma_split(d[i], ux, lx, uy, ly, split(v.x), split(v.y));
            mma_split(d[i], uz, lz, uw, lw, split(v.z), split(v.w));
        }
    }
}

// Log decays of a chunk summed up to each token, by the first warp. Tokens past the last decay nothing.
FN void sum_decays(const float *gates, u32 head, u32 row, u32 count, float *sums) {
    u32 lane = threadIdx.x % 32;
    float a = 0.0f, b = 0.0f;
    if (2 * lane < count) a = logf(fmaxf(gates[(u64)(row + 2 * lane) * (2 * VALUE_HEADS) + head], 1.0e-37f));
    if (2 * lane + 1 < count) b = logf(fmaxf(gates[(u64)(row + 2 * lane + 1) * (2 * VALUE_HEADS) + head], 1.0e-37f));
    float total = a + b;
    for (int o = 1; o < 32; o <<= 1) {
        float other = __shfl_up_sync(~0u, total, o);
        if (lane >= o) total += other;
    }
    sums[2 * lane] = total - b;
    sums[2 * lane + 1] = total;
}

// Copies q or k of a chunk's tokens; rows past the last are zeros.
template <int THREADS> FN void fetch_keys(float *to, const float *mixed, u32 row, u32 count, u32 channel) {
    for (u32 i = threadIdx.x; i < CHUNK * (DK / 4); i += THREADS) {
        u32 t = i / (DK / 4), c = i % (DK / 4) * 4;
        copy_async16_or_zero(shared_address(to + t * KEY_STRIDE + c),
                             mixed + (u64)(row + min(t, count - 1)) * CONV_DIM + channel + c, t < count);
    }
}

// blockIdx.x chunk, y value head, z segment.
extern "C" __global__ void __launch_bounds__(128) native_gdn_scan_factors(
    const float *mixed, const float *gates, const Row *rows, const u32 *segments, const Step *step, float *, float *,
    float *factors) {
    float *keys = (float *)arena_raw, *queries = keys + CHUNK * KEY_STRIDE, *a = queries + CHUNK * KEY_STRIDE;
    __shared__ float sums[CHUNK], betas[CHUNK];
    u32 head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    let_next_start();
    enter();
    if (blockIdx.z >= step->segments) return;
    u32 first = segments[blockIdx.z], total = rows[first].segment_rows;
    if (blockIdx.x * CHUNK >= total) return;
    u32 row = first + blockIdx.x * CHUNK, count = min(total - blockIdx.x * CHUNK, (u32)CHUNK);
    u32 key_head = head / (VALUE_HEADS / KEY_HEADS);
    fetch_keys<128>(queries, mixed, row, count, key_head * DK);
    fetch_keys<128>(keys, mixed, row, count, KEY_DIM + key_head * DK);
    copies_commit();
    if (warp == 0) sum_decays(gates, head, row, count, sums);
    if (threadIdx.x < CHUNK) {
        float beta = 0.0f;
        if (threadIdx.x < count) beta = gates[(u64)(row + threadIdx.x) * (2 * VALUE_HEADS) + VALUE_HEADS + head];
        betas[threadIdx.x] = beta;
    }
    copies_wait<0>();
    __syncthreads();
    float *out = factors + ((u64)row * VALUE_HEADS + head) * FACTORS;
    {
        float kk[8][4] = {}, qk[8][4] = {};
        multiply_split<DK, 8, KEY_STRIDE>(kk, keys + warp * 16 * KEY_STRIDE, keys);
        multiply_split<DK, 8, KEY_STRIDE>(qk, queries + warp * 16 * KEY_STRIDE, keys);
#pragma unroll
        for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 r = warp * 16 + g + j / 2 * 8, c = i * 8 + 2 * t + j % 2;
                float decay = expf(sums[r] - sums[c]);
                a[r * (CHUNK + 4) + c] = c < r ? betas[r] * decay * kk[i][j] : 0.0f;
                if (r < count) out[(u64)r * (VALUE_HEADS * FACTORS) + CHUNK + c] = c <= r ? decay * qk[i][j] : 0.0f;
            }
        }
    }
    __syncthreads();
    // T by columns: column c of the inverse of I + A, a thread each.
    if (threadIdx.x < CHUNK) {
        u32 c = threadIdx.x;
        float x[CHUNK], beta = betas[c];
#pragma unroll
        for (int r = 0; r < CHUNK; r++) {
            float part[4] = {r == c ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < r; i += 4) {
                float4 v = *(const float4 *)(a + r * (CHUNK + 4) + i);
                part[0] = fmaf(-v.x, x[i], part[0]);
                if (i + 1 < r) part[1] = fmaf(-v.y, x[i + 1], part[1]);
                if (i + 2 < r) part[2] = fmaf(-v.z, x[i + 2], part[2]);
                if (i + 3 < r) part[3] = fmaf(-v.w, x[i + 3], part[3]);
            }
            x[r] = (part[0] + part[1]) + (part[2] + part[3]);
            if (r < count) out[(u64)r * (VALUE_HEADS * FACTORS) + c] = x[r] * beta;
        }
    }
}

struct ScanMemory {
    float keys[2][2][CHUNK * KEY_STRIDE];  // of two chunks: q and k
    float inverse[CHUNK * CHUNK_STRIDE], products[CHUNK * CHUNK_STRIDE];
    float state[COLUMNS * KEY_STRIDE];  // [column][key]
    float rest[COLUMNS * CHUNK_STRIDE], u[COLUMNS * CHUNK_STRIDE];  // [column][token]
};

// blockIdx.x value head, y 32 of its columns, z segment. Output f32 [rows][VALUE_DIM], not yet normed.
extern "C" __global__ void __launch_bounds__(256, 1) native_gdn_scan(
    const float *mixed, const float *gates, const Row *rows, const u32 *segments, const Step *step, float *state,
    float *output, const float *factors) {
    ScanMemory &m = *(ScanMemory *)arena_raw;
    __shared__ float sums[CHUNK];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    u32 head = blockIdx.x, column0 = blockIdx.y * COLUMNS;
    let_next_start();
    enter();
    if (blockIdx.z >= step->segments) return;
    u32 first = segments[blockIdx.z], total = rows[first].segment_rows;
    u32 key_head = head / (VALUE_HEADS / KEY_HEADS);
    float *home = state + ((u64)rows[first].slot * VALUE_HEADS + head) * (DV * DK) + column0 * DK;

    // The state stays in registers: keys 16 warp + g (+ 8), columns 8 i + 2 t (+ 1); a copy for products is shared.
    float s[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 key = warp * 16 + g + j / 2 * 8, column = i * 8 + 2 * t + j % 2;
            s[i][j] = home[column * DK + key];
            m.state[column * KEY_STRIDE + key] = s[i][j];
        }
    }
    u32 chunks = (total + CHUNK - 1) / CHUNK;
    auto fetch = [&](u32 chunk) {
        u32 row = first + chunk * CHUNK, count = min(total - chunk * CHUNK, (u32)CHUNK);
        fetch_keys<256>(m.keys[chunk % 2][0], mixed, row, count, key_head * DK);
        fetch_keys<256>(m.keys[chunk % 2][1], mixed, row, count, KEY_DIM + key_head * DK);
    };
    fetch(0);
    copies_commit();
    // Of the products over a chunk's tokens this warp has tokens 16 `tile` .. + 16 and columns 16 `half` .. + 16.
    u32 tile = warp % 4, half = warp / 4;
    for (u32 chunk = 0; chunk < chunks; chunk++) {
        u32 row = first + chunk * CHUNK, count = min(total - chunk * CHUNK, (u32)CHUNK);
        if (warp == 0) sum_decays(gates, head, row, count, sums);
        copies_wait<0>();
        __syncthreads();
        for (u32 i = threadIdx.x; i < CHUNK * (FACTORS / 4); i += 256) {
            u32 r = i / (FACTORS / 4), c = i % (FACTORS / 4) * 4;
            float *to = c < CHUNK ? m.inverse + r * CHUNK_STRIDE + c : m.products + r * CHUNK_STRIDE + c - CHUNK;
            copy_async16_or_zero(shared_address(to),
                                 factors + ((u64)(row + min(r, count - 1)) * VALUE_HEADS + head) * FACTORS + c, r < count);
        }
        copies_commit();
        if (chunk + 1 < chunks) fetch(chunk + 1);
        copies_commit();
        const float *queries = m.keys[chunk % 2][0], *keys = m.keys[chunk % 2][1];
        float v[2][4];
        u32 token[2] = {tile * 16 + g, tile * 16 + g + 8};
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float *from = mixed + (u64)(row + min(token[j], count - 1)) * CONV_DIM + 2 * KEY_DIM + head * DV +
                                    column0 + half * 16 + i * 8 + 2 * t;
                float2 both = *(const float2 *)from;
                v[i][2 * j] = both.x;
                v[i][2 * j + 1] = both.y;
            }
        }
        float ks[2][4] = {}, qs[2][4] = {};
        const float *columns = m.state + half * 16 * KEY_STRIDE;
        multiply_split<DK, 2, KEY_STRIDE>(ks, keys + tile * 16 * KEY_STRIDE, columns);
        multiply_split<DK, 2, KEY_STRIDE>(qs, queries + tile * 16 * KEY_STRIDE, columns);
        float decay[2] = {expf(sums[token[0]]), expf(sums[token[1]])};
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 column = half * 16 + i * 8 + 2 * t + j % 2;
                m.rest[column * CHUNK_STRIDE + token[j / 2]] = v[i][j] - decay[j / 2] * ks[i][j];
                qs[i][j] *= decay[j / 2];
            }
        }
        copies_wait<1>();
        __syncthreads();
        float u[2][4] = {};
        multiply_split<CHUNK, 2, CHUNK_STRIDE>(
            u, m.inverse + tile * 16 * CHUNK_STRIDE, m.rest + half * 16 * CHUNK_STRIDE);
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                m.u[(half * 16 + i * 8 + 2 * t + j % 2) * CHUNK_STRIDE + token[j / 2]] = u[i][j];
            }
        }
        __syncthreads();
        multiply_split<CHUNK, 2, CHUNK_STRIDE>(
            qs, m.products + tile * 16 * CHUNK_STRIDE, m.u + half * 16 * CHUNK_STRIDE);
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                if (token[j] < count) {
                    float2 both = {qs[i][2 * j], qs[i][2 * j + 1]};
                    *(float2 *)(output + (u64)(row + token[j]) * VALUE_DIM + head * DV + column0 + half * 16 + i * 8 + 2 * t) =
                        both;
                }
            }
        }
        // The state: keys by tokens times tokens by columns, each token by what is left of it at the end.
        float end = sums[CHUNK - 1], all = expf(end);
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) s[i][j] *= all;
        }
#pragma unroll
        for (int k = 0; k < CHUNK; k += 16) {
            Split at[4][2];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 i = k + 4 * t + j;
                float left = expf(end - sums[i]);
                at[j][0] = split(keys[i * KEY_STRIDE + warp * 16 + g] * left);
                at[j][1] = split(keys[i * KEY_STRIDE + warp * 16 + g + 8] * left);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float4 w = *(const float4 *)(m.u + (8 * i + g) * CHUNK_STRIDE + k + 4 * t);
                mma_split(s[i], at[0][0], at[0][1], at[1][0], at[1][1], split(w.x), split(w.y));
                mma_split(s[i], at[2][0], at[2][1], at[3][0], at[3][1], split(w.z), split(w.w));
            }
        }
        // All have read the shared copy: two barriers lie between.
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                m.state[(i * 8 + 2 * t + j % 2) * KEY_STRIDE + warp * 16 + g + j / 2 * 8] = s[i][j];
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) home[(i * 8 + 2 * t + j % 2) * DK + warp * 16 + g + j / 2 * 8] = s[i][j];
    }
}
#endif
