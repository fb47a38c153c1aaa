// Prefill: causal convolution and SiLU over a chunk, l2 norms of q and k, gates of the value heads; then, in a second
// dispatch because the first still reads it, the window for the next chunk.

#define CONV_HEADS (2 * KEY_HEADS + VALUE_HEADS)

// group.x takes 4 heads (the q heads, the k heads, the value heads), a simdgroup each; group.y is the row.
// `mixed` [rows][q | k | v] f32, q scaled by DK^-1/2; `gates` [rows][decay | beta].
kernel void gdn_conv(
    device const float *qkv [[buffer(0)]],
    device const float *ba [[buffer(1)]],
    device const Row *rows [[buffer(2)]],
    constant Step &step [[buffer(3)]],
    device const float *taps [[buffer(4)]],
    device const float *a_log [[buffer(5)]],
    device const float *dt_bias [[buffer(6)]],
    device const float *window [[buffer(7)]],
    device float *mixed [[buffer(8)]],
    device float *gates [[buffer(9)]],
    POSITIONS) {
    constexpr int LARGER = DK > DV ? DK : DV;
    uint head = group.x * 4 + simd;
    uint row = group.y;
    if (row >= step.rows || head >= CONV_HEADS) {
        return;
    }
    bool key = head < 2 * KEY_HEADS;
    uint width = key ? DK : DV;
    uint first = key ? head * DK : 2 * KEY_DIM + (head - 2 * KEY_HEADS) * DV;
    uint into = row - rows[row].segment_first;
    uint position = rows[row].position;
    uint slot = rows[row].slot;
    float values[LARGER / 32];
    float square = 0.0f;
    for (int i = 0; i < LARGER / 32; i++) {
        values[i] = 0.0f;
        if (uint(32 * i) < width) {
            uint channel = first + lane + uint(32 * i);
            float before[CONV_TAPS - 1];
            for (uint j = 1; j < CONV_TAPS; j++) {
                before[j - 1] = into >= j ? qkv[(row - j) * CONV_DIM + channel]
                                          : window_entry(window, slot, position + CONV_TAPS - j)[channel];
            }
            values[i] = convolved(taps, channel, qkv[row * CONV_DIM + channel], before[0], before[1], before[2]);
        }
        square = fma(values[i], values[i], square);
    }
    square = simd_sum(square);
    float scale = 1.0f;
    if (key) {
        scale = precise::rsqrt(square + 1.0e-6f);
        if (head < KEY_HEADS) {
            scale *= precise::rsqrt(float(DK));
        }
    }
    for (int i = 0; i < LARGER / 32; i++) {
        if (uint(32 * i) < width) {
            mixed[row * CONV_DIM + first + lane + uint(32 * i)] = values[i] * scale;
        }
    }
    if (!key && lane == 0) {
        uint h = head - 2 * KEY_HEADS;
        device const float *at = ba + row * (2 * VALUE_HEADS);
        gates[row * (2 * VALUE_HEADS) + h] = decay_of(at[VALUE_HEADS + h], a_log[h], dt_bias[h]);
        gates[row * (2 * VALUE_HEADS) + VALUE_HEADS + h] = sigmoid(at[h]);
    }
}

// group.x tile of 128 channels, group.y segment: the last CONV_TAPS inputs of the segment into its slot's ring.
kernel void gdn_window(
    device const float *qkv [[buffer(0)]],
    device const Row *rows [[buffer(1)]],
    device const uint *segments [[buffer(2)]],
    constant Step &step [[buffer(3)]],
    device float *window [[buffer(4)]],
    POSITIONS) {
    uint channel = group.x * 128 + thread_index;
    if (group.y >= step.segments || channel >= CONV_DIM) {
        return;
    }
    uint first = segments[group.y];
    uint count = rows[first].segment_rows;
    uint slot = rows[first].slot;
    uint end = rows[first].position + count;
    for (uint j = 1; j <= min(uint(CONV_TAPS), count); j++) {
        window[ulong(slot * CONV_TAPS + (end - j) % CONV_TAPS) * CONV_DIM + channel] =
            qkv[(first + count - j) * CONV_DIM + channel];
    }
}
