// RMS norm of a row of the residual stream, in the shapes that operations need it. The gain is f32 and used as it is.

#define RMS_VALUES(SIMDS) ((HIDDEN + 32 * (SIMDS) - 1) / (32 * (SIMDS)))

// normed = rms(row held in `values`): thread t holds elements t, t + 32 * SIMDS, ...
template <int SIMDS>
inline void rms_store(
    thread const float (&values)[RMS_VALUES(SIMDS)],
    device const float *gain,
    device bfloat *normed,
    threadgroup float *scratch,
    uint thread_index,
    uint simd,
    uint lane) {
    float square = 0.0f;
    for (int i = 0; i < RMS_VALUES(SIMDS); i++) {
        square = fma(values[i], values[i], square);
    }
    square = threadgroup_sum(square, scratch, SIMDS, simd, lane);
    float scale = precise::rsqrt(square / float(HIDDEN) + EPSILON);
    for (int i = 0; i < RMS_VALUES(SIMDS); i++) {
        uint column = thread_index + uint(i * 32 * SIMDS);
        if (column < HIDDEN) {
            normed[column] = bfloat(values[i] * scale * gain[column]);
        }
    }
}

// The same for a row that other threadgroups have just stored.
template <int SIMDS>
inline void rms_of_shared(
    device const atomic_uint *residual,
    device const float *gain,
    device bfloat *normed,
    threadgroup float *scratch,
    uint thread_index,
    uint simd,
    uint lane) {
    float values[RMS_VALUES(SIMDS)];
    for (int i = 0; i < RMS_VALUES(SIMDS); i++) {
        uint column = thread_index + uint(i * 32 * SIMDS);
        values[i] = 0.0f;
        if (column < HIDDEN) {
            values[i] = shared_load(residual + column);
        }
    }
    rms_store<SIMDS>(values, gain, normed, scratch, thread_index, simd, lane);
}
