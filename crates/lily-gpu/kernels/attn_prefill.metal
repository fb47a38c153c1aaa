// Prefill: causal attention of a tile of query rows over the pages, in tiles of FLASH_KEYS keys, times sigmoid(gate).
//
// A row of the tile is one query head of one token; all heads of a KV head are rows of one matrix, so they share the tiles
// of keys and values. group.x tile, group.y KV head, group.z segment. Simdgroup s owns rows 8 s .. 8 s + 8 of the scores
// and their softmax, and the dims 8 s, 8 (s + FLASH_SIMDS), ... of every row of the output. Weights go into the product as
// the sum of two bf16, so that they count as in decode, where they are f32.

#define FLASH_KEYS 32
#define FLASH_ROWS (8 * FLASH_SIMDS)
#define FLASH_HEADS (Q_HEADS / KV_HEADS)
#define FLASH_STRIDE (HEAD_DIM + 8)
#define FLASH_COLUMNS ((HEAD_DIM / 8 + FLASH_SIMDS - 1) / FLASH_SIMDS)

// Copies rows of FLASH_KEYS keys or values from a page; rows past `keys` are zeros.
inline void flash_fill(device const bfloat *from, uint keys, threadgroup bfloat *to, uint thread_index) {
    for (uint i = thread_index; i < FLASH_KEYS * (HEAD_DIM / 8); i += 32 * FLASH_SIMDS) {
        uint key = i / (HEAD_DIM / 8);
        uint at = i % (HEAD_DIM / 8) * 8;
        uint4 v = uint4(0u);
        if (key < keys) {
            v = *(device const uint4 *)(from + key * HEAD_DIM + at);
        }
        *(threadgroup uint4 *)(to + key * FLASH_STRIDE + at) = v;
    }
}

kernel void attn_prefill(
    device const bfloat *q [[buffer(0)]],
    device const float *qg [[buffer(1)]],
    device const Row *rows [[buffer(2)]],
    device const uint *segments [[buffer(3)]],
    device const uint *pages [[buffer(4)]],
    constant Step &step [[buffer(5)]],
    device const bfloat *cache [[buffer(6)]],
    device bfloat *output [[buffer(7)]],
    POSITIONS) {
    threadgroup bfloat tile[FLASH_KEYS * FLASH_STRIDE];
    threadgroup float scores[FLASH_ROWS * FLASH_KEYS];
    threadgroup float factors[FLASH_SIMDS * 64];
    threadgroup uint rescaled[FLASH_SIMDS];
    if (group.z >= step.segments) {
        return;
    }
    uint first = segments[group.z];
    Row segment = rows[first];
    uint live = segment.segment_rows * FLASH_HEADS;
    uint m0 = group.x * FLASH_ROWS;
    if (m0 >= live) {
        return;
    }
    uint kv_head = group.y;
    uint last_token = min((m0 + FLASH_ROWS - 1) / FLASH_HEADS, segment.segment_rows - 1);
    uint keys = segment.position + last_token + 1;
    uint block = m0 + simd * 8;
    device const bfloat *queries =
        q + ((kv_head * ulong(step.rows) + first) * FLASH_HEADS + block) * ulong(HEAD_DIM);
    bool dead = block >= live;
    bool partial = !dead && block + 8 > live;

    // Four lanes share a row of scores.
    uint my_row = lane / 4;
    uint my_token = min((block + my_row) / FLASH_HEADS, segment.segment_rows - 1);
    uint my_keys = segment.position + my_token + 1;
    float largest = MASKED;
    float weight = 0.0f;
    simdgroup_float8x8 sums[FLASH_SIMDS][FLASH_COLUMNS];
    for (int r = 0; r < FLASH_SIMDS; r++) {
        for (int c = 0; c < FLASH_COLUMNS; c++) {
            sums[r][c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
    // The weights take the place of the scores: the upper parts of a simdgroup's rows, then the lower.
    threadgroup float *my_scores = scores + simd * (8 * FLASH_KEYS);
    threadgroup bfloat *my_weights = (threadgroup bfloat *)my_scores;

    for (uint key0 = 0; key0 < keys; key0 += FLASH_KEYS) {
        uint page = pages[segment.table + key0 / PAGE];
        uint here = min(keys - key0, uint(FLASH_KEYS));
        flash_fill(
            page_rows(cache, page, kv_head, 0) + (key0 % PAGE) * HEAD_DIM, here, tile, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (!dead) {
            simdgroup_float8x8 dots[FLASH_KEYS / 8];
            for (int j = 0; j < FLASH_KEYS / 8; j++) {
                dots[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
            for (uint d = 0; d < HEAD_DIM; d += 8) {
                simdgroup_bfloat8x8 a;
                if (partial) {
                    threadgroup bfloat *some = (threadgroup bfloat *)my_scores;
                    for (uint i = lane; i < 64; i += 32) {
                        some[i] = bfloat(0.0f);
                        if (block + i / 8 < live) {
                            some[i] = queries[(i / 8) * HEAD_DIM + d + i % 8];
                        }
                    }
                    simdgroup_barrier(mem_flags::mem_threadgroup);
                    simdgroup_load(a, some, 8);
                    simdgroup_barrier(mem_flags::mem_threadgroup);
                } else {
                    simdgroup_load(a, queries + d, HEAD_DIM);
                }
                for (int j = 0; j < FLASH_KEYS / 8; j++) {
                    simdgroup_bfloat8x8 b;
                    simdgroup_load(b, tile + uint(8 * j) * FLASH_STRIDE + d, FLASH_STRIDE, ulong2(0, 0), true);
                    simdgroup_multiply_accumulate(dots[j], a, b, dots[j]);
                }
            }
            for (int j = 0; j < FLASH_KEYS / 8; j++) {
                simdgroup_store(dots[j], my_scores + 8 * j, FLASH_KEYS);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);

        // Softmax of this simdgroup's rows, eight keys a lane.
        float mine[8];
        float top = largest;
        for (int i = 0; i < 8; i++) {
            uint key = (lane % 4) * 8 + uint(i);
            mine[i] = MASKED;
            if (!dead && key0 + key < my_keys) {
                mine[i] = my_scores[my_row * FLASH_KEYS + key] * ATTN_SCALE;
            }
            top = max(top, mine[i]);
        }
        top = max(top, simd_shuffle_xor(top, ushort(1)));
        top = max(top, simd_shuffle_xor(top, ushort(2)));
        float factor = precise::exp(largest - top);
        float added = 0.0f;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (int i = 0; i < 8; i++) {
            uint key = (lane % 4) * 8 + uint(i);
            float p = key0 + key < my_keys ? precise::exp(mine[i] - top) : 0.0f;
            added += p;
            bfloat upper = bfloat(p);
            my_weights[my_row * FLASH_KEYS + key] = upper;
            my_weights[(8 + my_row) * FLASH_KEYS + key] = bfloat(p - float(upper));
        }
        added += simd_shuffle_xor(added, ushort(1));
        added += simd_shuffle_xor(added, ushort(2));
        weight = fma(weight, factor, added);
        largest = top;
        for (uint i = lane; i < 64; i += 32) {
            float at_row = simd_shuffle(factor, ushort(i / 8 * 4));
            factors[simd * 64 + i] = i / 8 == i % 8 ? at_row : 0.0f;
        }
        bool changed = simd_any(factor != 1.0f);
        if (lane == 0) {
            rescaled[simd] = changed ? 1u : 0u;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        flash_fill(
            page_rows(cache, page, kv_head, 1) + (key0 % PAGE) * HEAD_DIM, here, tile, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int c = 0; c < FLASH_COLUMNS; c++) {
            uint column = (simd + uint(c * FLASH_SIMDS)) * 8;
            if (column < HEAD_DIM) {
                simdgroup_bfloat8x8 values[FLASH_KEYS / 8];
                for (int j = 0; j < FLASH_KEYS / 8; j++) {
                    simdgroup_load(values[j], tile + uint(8 * j) * FLASH_STRIDE + column, FLASH_STRIDE);
                }
                for (int r = 0; r < FLASH_SIMDS; r++) {
                    if (m0 + uint(8 * r) < live) {
                        if (rescaled[r] != 0) {
                            simdgroup_float8x8 diagonal;
                            simdgroup_load(diagonal, factors + r * 64, 8);
                            simdgroup_float8x8 before = sums[r][c];
                            simdgroup_multiply(sums[r][c], diagonal, before);
                        }
                        threadgroup const bfloat *weights =
                            (threadgroup const bfloat *)(scores + r * (8 * FLASH_KEYS));
                        for (int j = 0; j < FLASH_KEYS / 8; j++) {
                            simdgroup_bfloat8x8 p;
                            simdgroup_load(p, weights + 8 * j, FLASH_KEYS);
                            simdgroup_multiply_accumulate(sums[r][c], p, values[j], sums[r][c]);
                            simdgroup_load(p, weights + 8 * FLASH_KEYS + 8 * j, FLASH_KEYS);
                            simdgroup_multiply_accumulate(sums[r][c], p, values[j], sums[r][c]);
                        }
                    }
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    // Division by the weights, gate, and out; a simdgroup passes its blocks through its own part of `scores`.
    for (uint i = lane; i < 8; i += 32) {
        factors[simd * 64 + i] = 0.0f;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (lane % 4 == 0) {
        factors[simd * 64 + my_row] = 1.0f / weight;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int c = 0; c < FLASH_COLUMNS; c++) {
        uint column = (simd + uint(c * FLASH_SIMDS)) * 8;
        for (int r = 0; r < FLASH_SIMDS; r++) {
            if (column < HEAD_DIM && m0 + uint(8 * r) < live) {
                simdgroup_store(sums[r][c], my_scores, 8);
                simdgroup_barrier(mem_flags::mem_threadgroup);
                for (uint i = lane; i < 64; i += 32) {
                    uint m = m0 + uint(8 * r) + i / 8;
                    if (m < live) {
                        uint row = first + m / FLASH_HEADS;
                        uint head = kv_head * FLASH_HEADS + m % FLASH_HEADS;
                        uint dim = column + i % 8;
                        float gate = qg[ulong(row) * (2 * Q_DIM) + head * (2 * HEAD_DIM) + HEAD_DIM + dim];
                        float value = my_scores[i] * factors[r * 64 + int(i / 8)];
                        output[ulong(row) * Q_DIM + head * HEAD_DIM + dim] = bfloat(value * sigmoid(gate));
                    }
                }
                simdgroup_barrier(mem_flags::mem_threadgroup);
            }
        }
    }
}
