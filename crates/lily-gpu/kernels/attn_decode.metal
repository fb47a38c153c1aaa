// Decode: attention of one token over one block of PAGE keys. A threadgroup serves PACKED query heads of one KV head, so each
// row of keys and of values is read from memory once.
//
// group.x block, group.y KV head (times the packs it takes), group.z row. q is normed and rotated by every threadgroup of a
// row. The threadgroup of the newest block also makes the new key and value, uses them out of threadgroup memory, and
// stores them (the first pack does). Partials of a block: [Q_HEADS][HEAD_DIM] unnormalized sums, then [Q_HEADS][2]
// maximum and weight.

#define PACKS (Q_HEADS / KV_HEADS / PACKED)
// Lanes that read one key: 8 dims (16 bytes) each.
#define KEY_LANES (HEAD_DIM > 128 ? 32 : HEAD_DIM > 64 ? 16 : HEAD_DIM > 32 ? 8 : 4)
#define KEYS_ABREAST (32 / KEY_LANES)
#define PACKED_POW2 (PACKED > 4 ? 8 : PACKED > 2 ? 4 : PACKED)
// The weighted sum of values is divided by dims and by heads over simdgroups.
#define VALUE_LANES (HEAD_DIM % 64 == 0 ? 8 : 4)
#define VALUES_ABREAST (32 / VALUE_LANES)
#define VALUE_PARTS (HEAD_DIM / 8 / VALUE_LANES)
#define VALUE_HEADS_EACH (PACKED > 4 ? 4 : PACKED)
#define VALUE_UNITS (VALUE_PARTS * ((PACKED + VALUE_HEADS_EACH - 1) / VALUE_HEADS_EACH))

// Sums each of N values over KEY_LANES adjacent lanes with a halving exchange: fewer shuffles than N sums. Lane i of the
// group gets the sum of value i / (KEY_LANES / N).
template <int N>
inline float sum_transposed(thread float (&v)[N], uint lane) {
    int n = N;
    for (int offset = KEY_LANES / 2; offset >= 1; offset /= 2) {
        if (n > 1) {
            n /= 2;
            bool upper = (lane & uint(offset)) != 0;
            for (int i = 0; i < n; i++) {
                float send = upper ? v[i] : v[i + n];
                float keep = upper ? v[i + n] : v[i];
                v[i] = keep + simd_shuffle_xor(send, ushort(offset));
            }
        } else {
            v[0] += simd_shuffle_xor(v[0], ushort(offset));
        }
    }
    return v[0];
}

kernel void attn_decode(
    device const float *qg [[buffer(0)]],
    device const float *kv [[buffer(1)]],
    device const float *q_gain [[buffer(2)]],
    device const float *k_gain [[buffer(3)]],
    device const Row *rows [[buffer(4)]],
    device const uint *pages [[buffer(5)]],
    constant Step &step [[buffer(6)]],
    device bfloat *cache [[buffer(7)]],
    device float *partials [[buffer(8)]],
    POSITIONS) {
    threadgroup float q[PACKED * HEAD_DIM];
    threadgroup float scores[PACKED * PAGE];
    threadgroup float new_key[HEAD_DIM];
    threadgroup float new_value[HEAD_DIM];
    uint block = group.x;
    uint kv_head = group.y / PACKS;
    uint pack = group.y % PACKS;
    uint row = group.z;
    if (row >= step.rows) {
        return;
    }
    uint position = rows[row].position;
    if (block * PAGE > position) {
        return;
    }
    uint table = rows[row].table;
    uint page = pages[table + block];
    uint first_head = (kv_head * PACKS + pack) * PACKED;
    bool newest = position / PAGE == block;
    // Keys that the cache holds, and keys in all.
    uint cached = newest ? position % PAGE : uint(PAGE);
    uint keys = newest ? cached + 1 : cached;

    for (uint h = simd; h < PACKED; h += ATTN_SIMDS) {
        norm_rope(
            qg + row * (2 * Q_DIM) + (first_head + h) * (2 * HEAD_DIM), q_gain, position, q + h * HEAD_DIM, lane);
    }
    if (newest) {
        if (simd == ATTN_SIMDS - 1) {
            norm_rope(kv + row * (2 * KV_DIM) + kv_head * HEAD_DIM, k_gain, position, new_key, lane);
        }
        for (uint i = thread_index; i < HEAD_DIM; i += 32 * ATTN_SIMDS) {
            new_value[i] = rounded(kv[row * (2 * KV_DIM) + KV_DIM + kv_head * HEAD_DIM + i]);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (newest && pack == 0) {
        device bfloat *key_row = page_rows(cache, page, kv_head, 0) + cached * HEAD_DIM;
        device bfloat *value_row = page_rows(cache, page, kv_head, 1) + cached * HEAD_DIM;
        for (uint i = thread_index; i < HEAD_DIM; i += 32 * ATTN_SIMDS) {
            key_row[i] = bfloat(new_key[i]);
            value_row[i] = bfloat(new_value[i]);
        }
    }

    // Scores of every key for every packed head.
    {
        uint sub = lane % KEY_LANES;
        bool holds = sub * 8 < HEAD_DIM;
        float mine[PACKED_POW2][8];
        for (int h = 0; h < PACKED_POW2; h++) {
            for (int i = 0; i < 8; i++) {
                mine[h][i] = 0.0f;
                if (h < PACKED && holds) {
                    mine[h][i] = q[uint(h) * HEAD_DIM + sub * 8 + uint(i)];
                }
            }
        }
        device const bfloat *key_rows = page_rows((device const bfloat *)cache, page, kv_head, 0);
        constexpr uint STRIDE = ATTN_SIMDS * KEYS_ABREAST;
        for (uint base = simd * KEYS_ABREAST; base < cached; base += STRIDE * ATTN_AHEAD) {
            uint4 raw[ATTN_AHEAD];
            for (int j = 0; j < ATTN_AHEAD; j++) {
                uint key = min(base + uint(j) * STRIDE + lane / KEY_LANES, cached - 1);
                raw[j] = uint4(0u);
                if (holds) {
                    raw[j] = *(device const uint4 *)(key_rows + key * HEAD_DIM + sub * 8);
                }
            }
            for (int j = 0; j < ATTN_AHEAD; j++) {
                float dots[PACKED_POW2];
                for (int h = 0; h < PACKED_POW2; h++) {
                    dots[h] = 0.0f;
                    for (int i = 0; i < 4; i++) {
                        dots[h] = fma(mine[h][2 * i], bf16_low(raw[j][i]), dots[h]);
                        dots[h] = fma(mine[h][2 * i + 1], bf16_high(raw[j][i]), dots[h]);
                    }
                }
                float dot = sum_transposed<PACKED_POW2>(dots, lane);
                uint key = base + uint(j) * STRIDE + lane / KEY_LANES;
                uint h = sub / (KEY_LANES / PACKED_POW2);
                if (sub % (KEY_LANES / PACKED_POW2) == 0 && h < PACKED && key < cached) {
                    scores[h * PAGE + key] = dot * ATTN_SCALE;
                }
            }
        }
        if (newest) {
            for (uint h = simd; h < PACKED; h += ATTN_SIMDS) {
                float dot = 0.0f;
                for (uint i = lane; i < HEAD_DIM; i += 32) {
                    dot = fma(q[h * HEAD_DIM + i], new_key[i], dot);
                }
                dot = simd_sum(dot);
                if (lane == 0) {
                    scores[h * PAGE + cached] = dot * ATTN_SCALE;
                }
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // Softmax inside the block.
    device float *sums = partials + ulong(table + block) * (Q_HEADS * (HEAD_DIM + 2));
    device float *weights = sums + Q_HEADS * HEAD_DIM;
    for (uint h = simd; h < PACKED; h += ATTN_SIMDS) {
        float largest = MASKED;
        for (uint key = lane; key < keys; key += 32) {
            largest = max(largest, scores[h * PAGE + key]);
        }
        largest = simd_max(largest);
        float weight = 0.0f;
        for (uint key = lane; key < keys; key += 32) {
            float e = precise::exp(scores[h * PAGE + key] - largest);
            scores[h * PAGE + key] = e;
            weight += e;
        }
        weight = simd_sum(weight);
        if (lane == 0) {
            weights[(first_head + h) * 2] = largest;
            weights[(first_head + h) * 2 + 1] = weight;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // Weighted sum of the values.
    device const bfloat *value_rows = page_rows((device const bfloat *)cache, page, kv_head, 1);
    for (uint unit = simd; unit < VALUE_UNITS; unit += ATTN_SIMDS) {
        uint dim = (unit % VALUE_PARTS) * (8 * VALUE_LANES) + (lane % VALUE_LANES) * 8;
        uint head0 = unit / VALUE_PARTS * VALUE_HEADS_EACH;
        float sum[VALUE_HEADS_EACH][8];
        for (int h = 0; h < VALUE_HEADS_EACH; h++) {
            for (int i = 0; i < 8; i++) {
                sum[h][i] = 0.0f;
            }
        }
        for (uint base = lane / VALUE_LANES; base < cached; base += VALUES_ABREAST * ATTN_AHEAD) {
            uint4 raw[ATTN_AHEAD];
            for (int j = 0; j < ATTN_AHEAD; j++) {
                uint key = min(base + uint(j * VALUES_ABREAST), cached - 1);
                raw[j] = *(device const uint4 *)(value_rows + key * HEAD_DIM + dim);
            }
            for (int j = 0; j < ATTN_AHEAD; j++) {
                uint key = base + uint(j * VALUES_ABREAST);
                for (int h = 0; h < VALUE_HEADS_EACH; h++) {
                    float p = 0.0f;
                    if (key < cached && head0 + uint(h) < PACKED) {
                        p = scores[(head0 + uint(h)) * PAGE + key];
                    }
                    for (int i = 0; i < 4; i++) {
                        sum[h][2 * i] = fma(p, bf16_low(raw[j][i]), sum[h][2 * i]);
                        sum[h][2 * i + 1] = fma(p, bf16_high(raw[j][i]), sum[h][2 * i + 1]);
                    }
                }
            }
        }
        for (int h = 0; h < VALUE_HEADS_EACH; h++) {
            uint head = head0 + uint(h);
            float p = 0.0f;
            if (newest && head < PACKED) {
                p = scores[head * PAGE + cached];
            }
            for (int i = 0; i < 8; i++) {
                float total = sum[h][i];
                for (ushort offset = VALUE_LANES; offset < 32; offset *= 2) {
                    total += simd_shuffle_xor(total, offset);
                }
                if (newest) {
                    total = fma(p, new_value[dim + uint(i)], total);
                }
                if (lane < VALUE_LANES && head < PACKED) {
                    sums[(first_head + head) * HEAD_DIM + dim + uint(i)] = total;
                }
            }
        }
    }
}
