// Decode: one token of a value head by a cluster of four blocks, 32 value rows each. State and window are read before
// `enter`: the grids before this one in the step touch neither. The blocks meet once, for the norm.

#ifdef NATIVE_GDN_STEP
#define STEP_ROWS 32

FN float convolved(float4 taps, float now, float before0, float before1, float before2) {
    return silu(fmaf(taps.w, now, fmaf(taps.z, before0, fmaf(taps.y, before1, taps.x * before2))));
}

// Adds up a value of each block of the cluster, in every thread of each.
FN float cluster_sum(float value, u32 rank) {
    __shared__ float parts[4];
    // The others must have started before their memory is written.
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x == 0) {
        for (u32 other = 0; other < 4; other++) {
            u32 to;
            asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(parts + rank)), "r"(other));
            asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
        }
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    return parts[0] + parts[1] + parts[2] + parts[3];
}

// blockIdx.x part of the head, y value head, z row.
extern "C" __global__ void __attribute__((cluster_dims(4, 1, 1))) __launch_bounds__(256) native_gdn_step(
    const float *qkv, const float *z, const float *ba, const Row *rows, const Step *step, const float *taps,
    const float *a_log, const float *dt_bias, const float *gain, float *window, float *state, u16 *output) {
    __shared__ __align__(16) float mixed[2 * DK + STEP_ROWS];
    __shared__ float out[STEP_ROWS], square;
    u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    u32 part = blockIdx.x, head = blockIdx.y, row = blockIdx.z;
    let_next_start();
    if (row >= step->rows) return;
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    u32 key_head = head / (VALUE_HEADS / KEY_HEADS);
    Row at = rows[row];
    bool stores_keys = part == 0 && head % (VALUE_HEADS / KEY_HEADS) == 0;
    float *home = state + ((u64)at.slot * VALUE_HEADS + head) * (DV * DK) + (part * STEP_ROWS + warp * 4) * DK + lane * 4;
    float4 s[4];
#pragma unroll
    for (int j = 0; j < 4; j++) s[j] = __ldcg((const float4 *)(home + j * DK));
    // Channels: q and k of the key head, a thread each; v of this block's rows, by the first warp.
    u32 channel[2] = {thread < DK ? key_head * DK + thread : KEY_DIM + key_head * DK + thread - DK,
                      2 * KEY_DIM + head * DV + part * STEP_ROWS + lane};
    float before[2][3];
    float4 tap[2];
    float *ring = window + (u64)at.slot * (CONV_TAPS * CONV_DIM);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (i == 0 || warp == 0) {
            tap[i] = ((const float4 *)taps)[channel[i]];
#pragma unroll
            for (u32 j = 0; j < 3; j++) {
                before[i][j] = __ldcg(ring + (at.position + CONV_TAPS - 1 - j) % CONV_TAPS * CONV_DIM + channel[i]);
            }
        }
    }
    float decay_rate = expf(a_log[head]), decay_bias = dt_bias[head];
    enter();
    float *now = ring + at.position % CONV_TAPS * CONV_DIM;
    float beta = sigmoid(ba[row * 2 * VALUE_HEADS + head]);
    float decay = expf(-decay_rate * softplus(ba[row * 2 * VALUE_HEADS + VALUE_HEADS + head] + decay_bias));
    u32 place = row * VALUE_DIM + head * DV + part * STEP_ROWS + lane;
    float gate = z[place];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (i == 0 || warp == 0) {
            float value = qkv[row * CONV_DIM + channel[i]];
            mixed[i == 0 ? thread : 2 * DK + lane] = convolved(tap[i], value, before[i][0], before[i][1], before[i][2]);
            if (i == 1 || stores_keys) now[channel[i]] = value;
        }
    }
    __syncthreads();
    float4 q = *(const float4 *)(mixed + lane * 4), k = *(const float4 *)(mixed + DK + lane * 4);
    float qq = warp_sum(q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w);
    float kk = warp_sum(k.x * k.x + k.y * k.y + k.z * k.z + k.w * k.w);
    float qk = warp_sum(q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w);
    float q_scale = rsqrtf(qq + 1.0e-6f) * rsqrtf((float)DK), k_scale = rsqrtf(kk + 1.0e-6f);
    qk *= q_scale * k_scale;
    k.x *= k_scale, k.y *= k_scale, k.z *= k_scale, k.w *= k_scale;
    float r[4], p[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        s[j].x *= decay, s[j].y *= decay, s[j].z *= decay, s[j].w *= decay;
        r[j] = s[j].x * k.x + s[j].y * k.y + s[j].z * k.z + s[j].w * k.w;
        p[j] = s[j].x * q.x + s[j].y * q.y + s[j].z * q.z + s[j].w * q.w;
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            r[j] += __shfl_xor_sync(~0u, r[j], o);
            p[j] += __shfl_xor_sync(~0u, p[j], o);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float d = (mixed[2 * DK + warp * 4 + j] - r[j]) * beta;
        s[j].x = fmaf(d, k.x, s[j].x), s[j].y = fmaf(d, k.y, s[j].y);
        s[j].z = fmaf(d, k.z, s[j].z), s[j].w = fmaf(d, k.w, s[j].w);
        *(float4 *)(home + j * DK) = s[j];
        if (lane == 0) out[warp * 4 + j] = fmaf(d, qk, p[j] * q_scale);
    }
    __syncthreads();
    if (warp == 0) {
        float sum = warp_sum(out[lane] * out[lane]);
        if (lane == 0) square = sum;
    }
    __syncthreads();
    float total = cluster_sum(square, part);
    if (warp == 0) {
        float scale = rsqrtf(total / (float)DV + EPSILON);
        output[place] = to_bf16(out[lane] * scale * gain[part * STEP_ROWS + lane] * silu(gate));
    }
}
#endif
