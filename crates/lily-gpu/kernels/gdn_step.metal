// Decode: one token of one value head a threadgroup. Convolution, l2 norms, gates, the delta rule on a state that is read
// once and written once, and the gated norm.
//
// State [slot][value head][DV][DK] f32: a simdgroup takes rows of DK keys. With r = S'k and p = S'q of the decayed state
// S', the new state is S' + d k and the output p + d (q.k), d = (v - r) * beta, so one pass is enough.

#define STEP_KEYS (DK / 32)

// The keys of a row of the state that a lane holds: 16 bytes a load and a store where the row is long enough.
#if DK % 128 == 0
inline void load_state(device const float *row, uint lane, thread float (&s)[STEP_KEYS]) {
    device const float4 *from = (device const float4 *)row + lane * (STEP_KEYS / 4);
    for (int i = 0; i < STEP_KEYS / 4; i++) {
        float4 v = from[i];
        s[4 * i] = v.x;
        s[4 * i + 1] = v.y;
        s[4 * i + 2] = v.z;
        s[4 * i + 3] = v.w;
    }
}
inline void store_state(device float *row, uint lane, thread const float (&s)[STEP_KEYS]) {
    device float4 *to = (device float4 *)row + lane * (STEP_KEYS / 4);
    for (int i = 0; i < STEP_KEYS / 4; i++) {
        to[i] = float4(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]);
    }
}
#else
inline void load_state(device const float *row, uint lane, thread float (&s)[STEP_KEYS]) {
    for (int i = 0; i < STEP_KEYS; i++) {
        s[i] = row[lane * STEP_KEYS + uint(i)];
    }
}
inline void store_state(device float *row, uint lane, thread const float (&s)[STEP_KEYS]) {
    for (int i = 0; i < STEP_KEYS; i++) {
        row[lane * STEP_KEYS + uint(i)] = s[i];
    }
}
#endif

kernel void gdn_step(
    device const float *qkv [[buffer(0)]],
    device const float *z [[buffer(1)]],
    device const float *ba [[buffer(2)]],
    device const Row *rows [[buffer(3)]],
    constant Step &step [[buffer(4)]],
    device const float *taps [[buffer(5)]],
    device const float *a_log [[buffer(6)]],
    device const float *dt_bias [[buffer(7)]],
    device const float *gain [[buffer(8)]],
    device float *window [[buffer(9)]],
    device float *state [[buffer(10)]],
    device bfloat *output [[buffer(11)]],
    POSITIONS) {
    threadgroup float mixed[2 * DK + DV];
    threadgroup float out[DV];
    threadgroup float scratch[GDN_SIMDS];
    uint head = group.x;
    uint row = group.y;
    if (row >= step.rows) {
        return;
    }
    uint position = rows[row].position;
    uint slot = rows[row].slot;
    uint key_head = head / (VALUE_HEADS / KEY_HEADS);
    bool first_of_key_head = head % (VALUE_HEADS / KEY_HEADS) == 0;
    device const float *before0 = window_entry(window, slot, position + CONV_TAPS - 1);
    device const float *before1 = window_entry(window, slot, position + CONV_TAPS - 2);
    device const float *before2 = window_entry(window, slot, position + CONV_TAPS - 3);
    device float *now = window + ulong(slot * CONV_TAPS + position % CONV_TAPS) * CONV_DIM;
    for (uint i = thread_index; i < 2 * DK + DV; i += 32 * GDN_SIMDS) {
        uint channel = i < DK ? key_head * DK + i
                     : i < 2 * DK ? KEY_DIM + key_head * DK + i - DK
                                  : 2 * KEY_DIM + head * DV + i - 2 * DK;
        float value = qkv[row * CONV_DIM + channel];
        mixed[i] = convolved(taps, channel, value, before0[channel], before1[channel], before2[channel]);
        if (i >= 2 * DK || first_of_key_head) {
            now[channel] = value;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float q[STEP_KEYS];
    float k[STEP_KEYS];
    float qq = 0.0f;
    float kk = 0.0f;
    float qk = 0.0f;
    for (int i = 0; i < STEP_KEYS; i++) {
        q[i] = mixed[lane * STEP_KEYS + i];
        k[i] = mixed[DK + lane * STEP_KEYS + i];
        qq = fma(q[i], q[i], qq);
        kk = fma(k[i], k[i], kk);
        qk = fma(q[i], k[i], qk);
    }
    float q_scale = precise::rsqrt(simd_sum(qq) + 1.0e-6f) * precise::rsqrt(float(DK));
    float k_scale = precise::rsqrt(simd_sum(kk) + 1.0e-6f);
    qk = simd_sum(qk) * q_scale * k_scale;
    for (int i = 0; i < STEP_KEYS; i++) {
        q[i] *= q_scale;
        k[i] *= k_scale;
    }
    float beta = sigmoid(ba[row * 2 * VALUE_HEADS + head]);
    float decay = decay_of(ba[row * 2 * VALUE_HEADS + VALUE_HEADS + head], a_log[head], dt_bias[head]);

    device float *s_head = state + ulong(slot * VALUE_HEADS + head) * (DV * DK);
    for (uint base = simd * GDN_AHEAD; base < DV; base += GDN_SIMDS * GDN_AHEAD) {
        float s[GDN_AHEAD][STEP_KEYS];
        for (int j = 0; j < GDN_AHEAD; j++) {
            load_state(s_head + (base + uint(j)) * DK, lane, s[j]);
        }
        for (int j = 0; j < GDN_AHEAD; j++) {
            float r = 0.0f;
            float p = 0.0f;
            for (int i = 0; i < STEP_KEYS; i++) {
                s[j][i] *= decay;
                r = fma(s[j][i], k[i], r);
                p = fma(s[j][i], q[i], p);
            }
            r = simd_sum(r);
            p = simd_sum(p);
            float d = (mixed[2 * DK + base + uint(j)] - r) * beta;
            for (int i = 0; i < STEP_KEYS; i++) {
                s[j][i] = fma(d, k[i], s[j][i]);
            }
            store_state(s_head + (base + uint(j)) * DK, lane, s[j]);
            if (lane == 0) {
                out[base + uint(j)] = fma(d, qk, p);
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float square = 0.0f;
    for (uint i = thread_index; i < DV; i += 32 * GDN_SIMDS) {
        square = fma(out[i], out[i], square);
    }
    square = threadgroup_sum(square, scratch, GDN_SIMDS, simd, lane);
    float scale = precise::rsqrt(square / float(DV) + EPSILON);
    for (uint i = thread_index; i < DV; i += 32 * GDN_SIMDS) {
        uint at = row * VALUE_DIM + head * DV + i;
        output[at] = bfloat(out[i] * scale * gain[i] * silu(z[at]));
    }
}
