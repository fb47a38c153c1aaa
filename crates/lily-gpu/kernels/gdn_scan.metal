// Prefill: the delta rule over a chunk with the state in registers, and the gated norm of what it gives.
//
// SCAN_LANES lanes carry SCAN_COLUMNS value columns of DK keys, so that one exchange over 8 lanes serves the four lane
// groups of a simdgroup. The keys and queries of the next row are read before the current row is computed.

#define SCAN_LANES 8
#define SCAN_VECTORS (DK / (4 * SCAN_LANES))
// Value columns of a threadgroup.
#define SCAN_TILE (SCAN_SIMDS * (32 / SCAN_LANES) * SCAN_COLUMNS)

inline float scan_sum(float value) {
    value += simd_shuffle_xor(value, ushort(1));
    value += simd_shuffle_xor(value, ushort(2));
    value += simd_shuffle_xor(value, ushort(4));
    return value;
}

// group.x value head, group.y tile of its columns, group.z segment. Output f32 [rows][VALUE_DIM], not yet normed.
kernel void gdn_scan(
    device const float *mixed [[buffer(0)]],
    device const float *gates [[buffer(1)]],
    device const Row *rows [[buffer(2)]],
    device const uint *segments [[buffer(3)]],
    constant Step &step [[buffer(4)]],
    device float *state [[buffer(5)]],
    device float *output [[buffer(6)]],
    POSITIONS) {
    if (group.z >= step.segments) {
        return;
    }
    uint first = segments[group.z];
    uint end = first + rows[first].segment_rows;
    uint head = group.x;
    uint key_head = head / (VALUE_HEADS / KEY_HEADS);
    uint sub = lane % SCAN_LANES;
    uint column0 = group.y * SCAN_TILE + (simd * (32 / SCAN_LANES) + lane / SCAN_LANES) * SCAN_COLUMNS;
    // A ragged last tile computes its last column several times and stores it once.
    uint column[SCAN_COLUMNS];
    for (int c = 0; c < SCAN_COLUMNS; c++) {
        column[c] = min(column0 + uint(c), uint(DV) - 1u);
    }
    device float4 *s_head = (device float4 *)(state + ulong(rows[first].slot * VALUE_HEADS + head) * (DV * DK));
    float4 s[SCAN_COLUMNS][SCAN_VECTORS];
    float4 next_q[SCAN_VECTORS];
    float4 next_k[SCAN_VECTORS];
    device const float4 *at = (device const float4 *)(mixed + ulong(first) * CONV_DIM);
    for (int i = 0; i < SCAN_VECTORS; i++) {
        uint vector = uint(i * SCAN_LANES) + sub;
        for (int c = 0; c < SCAN_COLUMNS; c++) {
            s[c][i] = s_head[column[c] * (DK / 4) + vector];
        }
        next_q[i] = at[key_head * (DK / 4) + vector];
        next_k[i] = at[KEY_DIM / 4 + key_head * (DK / 4) + vector];
    }
    for (uint row = first; row < end; row++) {
        float4 q[SCAN_VECTORS];
        float4 k[SCAN_VECTORS];
        float v[SCAN_COLUMNS];
        float decay = gates[row * (2 * VALUE_HEADS) + head];
        float beta = gates[row * (2 * VALUE_HEADS) + VALUE_HEADS + head];
        for (int c = 0; c < SCAN_COLUMNS; c++) {
            v[c] = mixed[ulong(row) * CONV_DIM + 2 * KEY_DIM + head * DV + column[c]];
        }
        at = (device const float4 *)(mixed + ulong(min(row + 1, end - 1)) * CONV_DIM);
        for (int i = 0; i < SCAN_VECTORS; i++) {
            q[i] = next_q[i];
            k[i] = next_k[i];
            uint vector = uint(i * SCAN_LANES) + sub;
            next_q[i] = at[key_head * (DK / 4) + vector];
            next_k[i] = at[KEY_DIM / 4 + key_head * (DK / 4) + vector];
        }
        float qk = 0.0f;
        for (int i = 0; i < SCAN_VECTORS; i++) {
            qk += dot(q[i], k[i]);
        }
        qk = scan_sum(qk);
        for (int c = 0; c < SCAN_COLUMNS; c++) {
            float r = 0.0f;
            float p = 0.0f;
            for (int i = 0; i < SCAN_VECTORS; i++) {
                s[c][i] *= decay;
                r += dot(s[c][i], k[i]);
                p += dot(s[c][i], q[i]);
            }
            r = scan_sum(r);
            p = scan_sum(p);
            float d = (v[c] - r) * beta;
            for (int i = 0; i < SCAN_VECTORS; i++) {
                s[c][i] = fma(float4(d), k[i], s[c][i]);
            }
            if (sub == 0 && column0 + uint(c) < DV) {
                output[ulong(row) * VALUE_DIM + head * DV + column[c]] = fma(d, qk, p);
            }
        }
    }
    for (int c = 0; c < SCAN_COLUMNS; c++) {
        if (column0 + uint(c) < DV) {
            for (int i = 0; i < SCAN_VECTORS; i++) {
                s_head[column[c] * (DK / 4) + uint(i * SCAN_LANES) + sub] = s[c][i];
            }
        }
    }
}

// group.x takes 4 value heads, a simdgroup each; group.y is the row: rms(o, gain) * silu(z).
kernel void gdn_gated_norm(
    device const float *scanned [[buffer(0)]],
    device const float *z [[buffer(1)]],
    device const float *gain [[buffer(2)]],
    constant Step &step [[buffer(3)]],
    device bfloat *output [[buffer(4)]],
    POSITIONS) {
    uint head = group.x * 4 + simd;
    uint row = group.y;
    if (row >= step.rows || head >= VALUE_HEADS) {
        return;
    }
    uint first = row * VALUE_DIM + head * DV;
    float values[DV / 32];
    float square = 0.0f;
    for (int i = 0; i < DV / 32; i++) {
        values[i] = scanned[first + lane + uint(32 * i)];
        square = fma(values[i], values[i], square);
    }
    float scale = precise::rsqrt(simd_sum(square) / float(DV) + EPSILON);
    for (int i = 0; i < DV / 32; i++) {
        uint d = lane + uint(32 * i);
        output[first + d] = bfloat(values[i] * scale * gain[d] * silu(z[first + d]));
    }
}
