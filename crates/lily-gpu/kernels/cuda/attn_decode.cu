// Decode attention over blocks of 256 keys, on the tensor core: the 8 query heads of a KV head are the rows of a product, so a
// key is read once for all of them. Weights of the softmax go in as a sum of two bf16, in the rows that 8 heads leave free.

#if defined(NATIVE_ATTN_DECODE) || defined(NATIVE_ATTN_COMBINE)
#define PARTIAL (Q_HEADS * (HEAD_DIM + 2))
#endif

#ifdef NATIVE_ATTN_DECODE
#define PACKS (Q_HEADS / KV_HEADS / PACKED)
#define Q_STRIDE (HEAD_DIM + 8)

FN const u16 *page_rows(const u16 *cache, u32 page, u32 kv_head, u32 values) {
    return cache + (u64)page * (2 * KV_DIM * PAGE) + (kv_head * 2 + values) * (PAGE * HEAD_DIM);
}

// One warp: out = rope(rms(x, gain)) as bf16. Lane l has dims l, l + 32, ...; the rotated pairs are dims l and l + 32.
FN void norm_rope(const float *x, const float *gain, u32 position, u16 *out) {
    u32 lane = threadIdx.x % 32;
    float v[HEAD_DIM / 32], square = 0.0f;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; i++) {
        v[i] = x[lane + 32 * i];
        square = fmaf(v[i], v[i], square);
    }
    float scale = rsqrtf(warp_sum(square) / (float)HEAD_DIM + EPSILON);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; i++) v[i] *= scale * gain[lane + 32 * i];
    // As in common.metal: the fraction of a turn, exact at every position.
    float p = (float)position, whole = p * ROPE[2 * lane];
    float below = fmaf(p, ROPE[2 * lane], -whole) + p * ROPE[2 * lane + 1];
    float sine, cosine;
    sincosf(((whole - floorf(whole)) + below) * 6.28318530717958648f, &sine, &cosine);
    float a = v[0] * cosine - v[1] * sine, b = v[1] * cosine + v[0] * sine;
    v[0] = a, v[1] = b;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; i++) out[lane + 32 * i] = to_bf16(v[i]);
}

// blockIdx.x block of keys, y KV head (times packs), z row.
extern "C" __global__ void __launch_bounds__(256) native_attn_decode(
    const float *qg, const float *kv, const float *q_gain, const float *k_gain, const Row *rows, const u32 *pages,
    const Step *step, u16 *cache, float *partials) {
    __shared__ __align__(16) u16 q[8][Q_STRIDE];
    __shared__ float scores[8][PAGE + 4];
    __shared__ __align__(16) u16 upper[8][PAGE + 8], lower[8][PAGE + 8];
    __shared__ __align__(16) u16 new_key[HEAD_DIM], new_value[HEAD_DIM];
    __shared__ float new_weight[8];
    __shared__ float half_sums[8][HEAD_DIM + 4];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    u32 block = blockIdx.x, kv_head = blockIdx.y / PACKS, pack = blockIdx.y % PACKS, row = blockIdx.z;
    let_next_start();
    // The host wrote these before the step.
    if (row >= step->rows) return;
    Row at = rows[row];
    if (block * PAGE > at.position) return;
    u32 page = pages[at.table + block], first_head = (kv_head * PACKS + pack) * 8;
    bool newest = at.position / PAGE == block;
    u32 cached = newest ? at.position % PAGE : PAGE;
    u32 last = cached == 0 ? 0 : cached - 1;
    const u16 *key_rows = page_rows(cache, page, kv_head, 0), *value_rows = page_rows(cache, page, kv_head, 1);

    // Keys of this warp: 32, in four tiles of 8; two tiles are read ahead of everything else.
    uint4 k[2][8];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const u16 *from = key_rows + min(warp * 32 + j * 8 + g, last) * HEAD_DIM + t * 8;
#pragma unroll
        for (int c = 0; c < 8; c++) k[j][c] = *(const uint4 *)(from + c * 32);
    }
    enter();
    norm_rope(qg + row * (2 * Q_DIM) + (first_head + warp) * (2 * HEAD_DIM), q_gain, at.position, q[warp]);
    if (newest) {
        if (warp == 7) norm_rope(kv + row * (2 * KV_DIM) + kv_head * HEAD_DIM, k_gain, at.position, new_key);
        new_value[threadIdx.x] = to_bf16(kv[row * (2 * KV_DIM) + KV_DIM + kv_head * HEAD_DIM + threadIdx.x]);
    }
    __syncthreads();
    if (newest && pack == 0) {
        ((u16 *)key_rows)[cached * HEAD_DIM + threadIdx.x] = new_key[threadIdx.x];
        ((u16 *)value_rows)[cached * HEAD_DIM + threadIdx.x] = new_value[threadIdx.x];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float d[2][4] = {};
#pragma unroll
        for (int c = 0; c < 8; c++) {
            uint4 a = *(const uint4 *)&q[g][c * 32 + t * 8];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                mma(d[j], a.x, 0, a.y, 0, k[j][c].x, k[j][c].y);
                mma(d[j], a.z, 0, a.w, 0, k[j][c].z, k[j][c].w);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            u32 key = warp * 32 + half * 16 + j * 8 + 2 * t;
            scores[g][key] = d[j][0] * ATTN_SCALE;
            scores[g][key + 1] = d[j][1] * ATTN_SCALE;
            if (half == 0) {
                const u16 *from = key_rows + min(warp * 32 + 16 + j * 8 + g, last) * HEAD_DIM + t * 8;
#pragma unroll
                for (int c = 0; c < 8; c++) k[j][c] = *(const uint4 *)(from + c * 32);
            }
        }
    }
    // Values of this warp: 64 dims from `dim` on, half of the keys. The first are read before the softmax.
    u32 dims = warp % 4 * 64, first_key = warp / 4 * 128;
    uint4 v[2][4];
#define VALUES(S, INTO)                                                                                    \
    _Pragma("unroll") for (int i = 0; i < 4; i++) {                                                        \
        u32 key = first_key + (S) * 16 + 2 * t + (i & 1) + (i >> 1) * 8;                                   \
        INTO[i] = uint4{0, 0, 0, 0};                                                                       \
        if (key < cached) INTO[i] = *(const uint4 *)(value_rows + key * HEAD_DIM + dims + g * 8);          \
    }
    VALUES(0, v[0])
    VALUES(1, v[1])
    __syncthreads();

    // Softmax inside the block: warp h has head h.
    {
        float dot = 0.0f;
        if (newest) {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 32; i++) dot = fmaf(bf16(q[warp][lane + 32 * i]), bf16(new_key[lane + 32 * i]), dot);
            dot = warp_sum(dot) * ATTN_SCALE;
        }
        float mine[PAGE / 32], largest = newest ? dot : MASKED;
#pragma unroll
        for (int i = 0; i < PAGE / 32; i++) {
            u32 key = lane + 32 * i;
            mine[i] = key < cached ? scores[warp][key] : MASKED;
            largest = fmaxf(largest, mine[i]);
        }
        largest = warp_max(largest);
        float weight = 0.0f;
#pragma unroll
        for (int i = 0; i < PAGE / 32; i++) {
            u32 key = lane + 32 * i;
            float e = key < cached ? expf(mine[i] - largest) : 0.0f;
            weight += e;
            u16 up = to_bf16(e);
            upper[warp][key] = up;
            lower[warp][key] = to_bf16(e - bf16(up));
        }
        weight = warp_sum(weight);
        float mine_new = newest ? expf(dot - largest) : 0.0f;
        if (lane == 0) {
            new_weight[warp] = mine_new;
            float *weights = partials + (u64)(at.table + block) * PARTIAL + Q_HEADS * HEAD_DIM + (first_head + warp) * 2;
            weights[0] = largest;
            weights[1] = weight + mine_new;
        }
    }
    __syncthreads();

    // Column g of tile i is dim 8 g + i, so that a lane's 16 bytes of a value row serve eight tiles.
    float o[8][4] = {};
#pragma unroll
    for (int s = 0; s < 8; s++) {
        u32 key = first_key + s * 16 + 2 * t;
        u32 a0 = *(const u32 *)&upper[g][key], a1 = *(const u32 *)&lower[g][key];
        u32 a2 = *(const u32 *)&upper[g][key + 8], a3 = *(const u32 *)&lower[g][key + 8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 select = i % 2 == 0 ? 0x5410 : 0x7632;
            u32 b0 = __byte_perm(word_of(v[s % 2][0], i / 2), word_of(v[s % 2][1], i / 2), select);
            u32 b1 = __byte_perm(word_of(v[s % 2][2], i / 2), word_of(v[s % 2][3], i / 2), select);
            mma(o[i], a0, a1, a2, a3, b0, b1);
        }
        if (s + 2 < 8) {
            VALUES(s + 2, v[s % 2])
        }
    }
    if (warp >= 4) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            half_sums[g][dims + 16 * t + i] = o[i][0] + o[i][2];
            half_sums[g][dims + 16 * t + 8 + i] = o[i][1] + o[i][3];
        }
    }
    __syncthreads();
    if (warp < 4) {
        float *sums = partials + (u64)(at.table + block) * PARTIAL + (first_head + g) * HEAD_DIM + dims + 16 * t;
        float weight = new_weight[g];
#pragma unroll
        for (int part = 0; part < 2; part++) {
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
                float4 out;
                float *parts = (float *)&out;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    u32 dim = dims + 16 * t + part * 8 + i + j;
                    float value = o[i + j][part] + o[i + j][2 + part] + half_sums[g][dim];
                    if (newest) value = fmaf(weight, bf16(new_value[dim]), value);
                    parts[j] = value;
                }
                *(float4 *)(sums + part * 8 + i) = out;
            }
        }
    }
}
#endif

#ifdef NATIVE_ATTN_COMBINE
// Merges the blocks of a head: blockIdx.x head, y 64 of its dims, z row. Blocks are taken 1024 at a time, a warp every eighth.
extern "C" __global__ void __launch_bounds__(256) native_attn_combine(
    const float *partials, const float *qg, const Row *rows, const Step *step, u16 *output) {
    __shared__ float factors[1024];
    __shared__ float parts[8];
    __shared__ float2 sums[8][32];
    u32 head = blockIdx.x, dim = blockIdx.y * 64 + threadIdx.x % 32 * 2, row = blockIdx.z;
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    let_next_start();
    if (row >= step->rows) return;
    Row at = rows[row];
    u32 blocks = at.position / PAGE + 1;
    const float *first = partials + (u64)at.table * PARTIAL;
    const float *weights = first + Q_HEADS * HEAD_DIM + head * 2;
    enter();
    float largest = MASKED;
    for (u32 b = threadIdx.x; b < blocks; b += 256) largest = fmaxf(largest, weights[(u64)b * PARTIAL]);
    largest = warp_max(largest);
    if (lane == 0) parts[warp] = largest;
    __syncthreads();
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, parts[i]);
    float weight = 0.0f;
    float2 sum = {0.0f, 0.0f};
    for (u32 base = 0; base < blocks; base += 1024) {
        u32 count = min(blocks - base, 1024u);
        __syncthreads();
        for (u32 b = threadIdx.x; b < count; b += 256) {
            const float *w = weights + (u64)(base + b) * PARTIAL;
            float f = expf(w[0] - largest);
            factors[b] = f;
            weight = fmaf(f, w[1], weight);
        }
        __syncthreads();
#pragma unroll 4
        for (u32 b = warp; b < count; b += 8) {
            float2 v = *(const float2 *)(first + (u64)(base + b) * PARTIAL + head * HEAD_DIM + dim);
            sum.x = fmaf(factors[b], v.x, sum.x);
            sum.y = fmaf(factors[b], v.y, sum.y);
        }
    }
    weight = warp_sum(weight);
    __syncthreads();
    if (lane == 0) parts[warp] = weight;
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0) {
        float total = 0.0f;
        float2 all = {0.0f, 0.0f};
        for (int i = 0; i < 8; i++) {
            total += parts[i];
            all.x += sums[i][lane].x;
            all.y += sums[i][lane].y;
        }
        float2 gate = *(const float2 *)(qg + row * (2 * Q_DIM) + head * (2 * HEAD_DIM) + HEAD_DIM + dim);
        u32 out = bf16_pair(all.x / total * sigmoid(gate.x), all.y / total * sigmoid(gate.y));
        *(u32 *)(output + row * Q_DIM + head * HEAD_DIM + dim) = out;
    }
}
#endif
