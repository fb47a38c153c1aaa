// Prefill attention on the warpgroup tensor core: a block has 128 query rows (all heads of a KV head of 128 / heads tokens),
// each of its two warpgroups 64 of them, and walks the keys in tiles of 64. Weights go in as the sum of two bf16. The scores of the next tile are computed while
// the values of this one are summed, and their softmax while the tensor core is at the sums.

#ifdef NATIVE_ATTN_PREFILL
#define FLASH_HEADS (Q_HEADS / KV_HEADS)
#define KEY_TILE 64
// Blocks of 64 dims: rows of 128 bytes, swizzled.
#define QUERY_BLOCK (128 * 128)
#define KEY_BLOCK (KEY_TILE * 128)
#define KEY_BYTES (4 * KEY_BLOCK)

struct RowSums {
    float largest, weight;
};

// Turns scores (of rows g and g + 8) into weights relative to the new largest score; gives what the old sums are multiplied
// by. `limit` is the number of keys a row sees.
FN void soften(float (&s)[32], RowSums (&sums)[2], float (&factor)[2], u32 key0, const u32 (&limit)[2], bool masks) {
    u32 t = threadIdx.x % 4;
    constexpr float SCALE = ATTN_SCALE * 1.44269504088896f;
    float top[2] = {sums[0].largest, sums[1].largest};
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int r = i / 2 % 2;
        s[i] *= SCALE;
        if (masks && key0 + i / 4 * 8 + 2 * t + i % 2 >= limit[r]) s[i] = MASKED;
        top[r] = fmaxf(top[r], s[i]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
        factor[r] = exp2f(sums[r].largest - top[r]);
        sums[r].largest = top[r];
        sums[r].weight *= factor[r];
    }
#pragma unroll
    for (int i = 0; i < 32; i++) {
        int r = i / 2 % 2;
        s[i] = exp2f(s[i] - top[r]);
        sums[r].weight += s[i];
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) native_attn_prefill(
    const u16 *q, const float *qg, const Row *rows, const u32 *segments, const u32 *pages, const Step *step,
    const u16 *cache, u16 *output) {
    let_next_start();
    enter();
    if (blockIdx.z >= step->segments) return;
    u32 first = segments[blockIdx.z];
    Row segment = rows[first];
    u32 live = segment.segment_rows * FLASH_HEADS;
    // The last rows see the most keys: they go first.
    u32 m0 = (gridDim.x - 1 - blockIdx.x) * 128;
    if (m0 >= live) return;
    u32 kv_head = blockIdx.y;
    u32 base = (shared_address(arena_raw) + 1023) & ~1023u;
    u32 keys_at = base + 4 * QUERY_BLOCK, values_at = keys_at + 2 * KEY_BYTES;
    u32 thread = threadIdx.x, group = thread / 128, warp = thread % 128 / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    u32 last_token = min((m0 + 127) / FLASH_HEADS, segment.segment_rows - 1);
    u32 keys = segment.position + last_token + 1, tiles = (keys + KEY_TILE - 1) / KEY_TILE;

    const u16 *queries = q + ((u64)kv_head * step->rows + first) * FLASH_HEADS * HEAD_DIM;
    u32 chunk = thread % 32, block = chunk / 8;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        u32 m = thread / 32 + i * 8;
        copy_async16(base + block * QUERY_BLOCK + m * 128 + ((chunk ^ m) & 7) * 16,
                     queries + (u64)min(m0 + m, live - 1) * HEAD_DIM + chunk * 8);
    }
    auto fetch = [&](u32 tile, u32 values) {
        u32 key0 = tile * KEY_TILE, page = pages[segment.table + key0 / PAGE];
        const u16 *from = cache + (u64)page * (2 * KV_DIM * PAGE) + (kv_head * 2 + values) * (PAGE * HEAD_DIM) +
                          (key0 % PAGE) * HEAD_DIM + chunk * 8;
        u32 to = (values ? values_at : keys_at) + tile % 2 * KEY_BYTES + block * KEY_BLOCK;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 key = thread / 32 + i * 8;
            // Rows past the last key are zeros: what a page holds there need not be a number.
            copy_async16_or_zero(to + key * 128 + ((chunk ^ key) & 7) * 16, from + key * HEAD_DIM, key0 + key < keys);
        }
    };
    auto scores = [&](u32 tile, float (&s)[32]) {
        u32 a = base + group * 64 * 128, b = keys_at + tile % 2 * KEY_BYTES;
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++) {
            product_ss64(s, descriptor(a + k / 4 * QUERY_BLOCK + k % 4 * 32, 16, 1024),
                         descriptor(b + k / 4 * KEY_BLOCK + k % 4 * 32, 16, 1024), k > 0);
        }
        products_commit();
    };
    fetch(0, 0);
    copies_commit();
    if (tiles > 1) fetch(1, 0);
    fetch(0, 1);
    copies_commit();

    u32 limit[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        u32 token = min((m0 + group * 64 + warp * 16 + g + 8 * r) / FLASH_HEADS, segment.segment_rows - 1);
        limit[r] = segment.position + token + 1;
    }
    u32 least = segment.position + min((m0 + group * 64) / FLASH_HEADS, segment.segment_rows - 1) + 1;

    float o[128] = {}, s[32] = {};
    u32 p[4][4], rest[4][4];
    RowSums sums[2] = {{MASKED, 0.0f}, {MASKED, 0.0f}};
    float factor[2];
    auto pack = [&]() {
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float a = s[8 * k + 2 * i], b = s[8 * k + 2 * i + 1];
                p[k][i] = bf16_pair(a, b);
                rest[k][i] = bf16_pair(a - bf16_low(p[k][i]), b - bf16_high(p[k][i]));
            }
        }
    };
    copies_wait<1>();
    shared_visible();
    __syncthreads();
    products_begin();
    scores(0, s);
    products_wait<0>();
    soften(s, sums, factor, 0, limit, KEY_TILE > least);
    pack();
    auto values = [&](u32 tile) {
        u32 v = values_at + tile % 2 * KEY_BYTES;
#pragma unroll
        for (int k = 0; k < KEY_TILE / 16; k++) {
            u64 b = descriptor(v + k * 16 * 128, KEY_BLOCK, 1024);
            product_rs256_values(o, p[k], b, 1);
            product_rs256_values(o, rest[k], b, 1);
        }
        products_commit();
    };
    for (u32 tile = 0; tile + 1 < tiles; tile++) {
        copies_wait<0>();
        shared_visible();
        __syncthreads();
        if (tile + 2 < tiles) fetch(tile + 2, 0);
        fetch(tile + 1, 1);
        copies_commit();
        products_begin();
        scores(tile + 1, s);
        values(tile);
        u32 key0 = (tile + 1) * KEY_TILE;
        products_wait<1>();
        soften(s, sums, factor, key0, limit, key0 + KEY_TILE > least);
        products_wait<0>();
        pack();
        if (factor[0] != 1.0f || factor[1] != 1.0f) {
#pragma unroll
            for (int i = 0; i < 128; i++) o[i] *= factor[i / 2 % 2];
        }
    }
    copies_wait<0>();
    shared_visible();
    __syncthreads();
    products_begin();
    values(tiles - 1);
    products_wait<0>();

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float weight = sums[r].weight;
        weight += __shfl_xor_sync(~0u, weight, 1);
        weight += __shfl_xor_sync(~0u, weight, 2);
        u32 m = m0 + group * 64 + warp * 16 + g + 8 * r;
        if (m >= live) continue;
        u64 row = first + m / FLASH_HEADS;
        u32 head = kv_head * FLASH_HEADS + m % FLASH_HEADS;
        const float *gate = qg + row * (2 * Q_DIM) + head * (2 * HEAD_DIM) + HEAD_DIM;
        u16 *out = output + row * Q_DIM + head * HEAD_DIM;
        float scale = 1.0f / weight;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            u32 dim = i * 8 + 2 * t;
            float2 gates = *(const float2 *)(gate + dim);
            *(u32 *)(out + dim) = bf16_pair(o[4 * i + 2 * r] * scale * sigmoid(gates.x),
                                            o[4 * i + 2 * r + 1] * scale * sigmoid(gates.y));
        }
    }
}
#endif
