// What the decode and the prefill form of the Gated DeltaNet share: the convolution and its window, the gates.
//
// The window of a slot is a ring of the last CONV_TAPS inputs, [CONV_TAPS][CONV_DIM], the input of position p at p modulo
// CONV_TAPS: a step writes the entry that nobody reads in it. A cleared slot is all zeros, which is what stands before
// position 0.

#define CONV_TAPS 4

inline device const float *window_entry(device const float *window, uint slot, uint position) {
    return window + ulong(slot * CONV_TAPS + position % CONV_TAPS) * CONV_DIM;
}

// SiLU of the convolution at one channel; `before[i]` is the input i + 1 positions ago.
inline float convolved(device const float *taps, uint channel, float now, float before0, float before1, float before2) {
    float4 t = ((device const float4 *)taps)[channel];
    float sum = t.x * before2;
    sum = fma(t.y, before1, sum);
    sum = fma(t.z, before0, sum);
    sum = fma(t.w, now, sum);
    return silu(sum);
}

inline float decay_of(float a, float a_log, float dt_bias) {
    return precise::exp(-precise::exp(a_log) * softplus(a + dt_bias));
}
