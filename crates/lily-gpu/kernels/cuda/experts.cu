// Decode: the chosen experts and the shared one. Weights of the shared expert are read before `enter`; those of the others
// when the router's choice is known.

#ifdef NATIVE_EXPERT_GATE_UP
// blockIdx.x 16 outputs, y slot, z row; the lower half of the warps takes gate, the upper half up.
extern "C" __global__ void __launch_bounds__(HIDDEN / PART * 64) native_expert_gate_up(
    const u32 *gate, const u16 *gate_s, const u16 *gate_b, const u32 *up, const u16 *up_s, const u16 *up_b,
    const u32 *shared_gate, const u16 *shared_gate_s, const u16 *shared_gate_b, const u32 *shared_up,
    const u16 *shared_up_s, const u16 *shared_up_b, const u16 *input, const u32 *experts, const Step *step, u16 *output) {
    constexpr int PARTS = HIDDEN / PART;
    __shared__ float halves[2][16];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, slot = blockIdx.y, row = blockIdx.z;
    bool upper = warp >= PARTS;
    u32 part = upper ? warp - PARTS : warp;
    Weights w;
    if (slot == TOP_K) {
        load_weights(w, upper ? shared_up : shared_gate, upper ? shared_up_s : shared_gate_s,
                     upper ? shared_up_b : shared_gate_b, blockIdx.x * 16, SHARED_INNER, HIDDEN, part);
    }
    let_next_start();
    enter();
    if (row >= step->rows) return;
    if (slot < TOP_K) {
        u64 expert = experts[row * TOP_K + slot];
        u64 words = expert * ((u64)INNER * (HIDDEN / 8)), groups = expert * ((u64)INNER * (HIDDEN / 64));
        load_weights(w, (upper ? up : gate) + words, (upper ? up_s : gate_s) + groups, (upper ? up_b : gate_b) + groups,
                     blockIdx.x * 16, INNER, HIDDEN, part);
    }
    const u16 *x[1] = {input + (u64)row * HIDDEN + part * PART};
    float sum[2] = {0.0f, 0.0f};
    multiply<1>(w, x, sum);
    __shared__ float parts[2 * PARTS][16];
    if (lane % 4 == 0) {
        parts[warp][lane / 4] = sum[0];
        parts[warp][lane / 4 + 8] = sum[1];
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        float value = 0.0f;
        for (int i = 0; i < PARTS; i++) value += parts[threadIdx.x / 16 * PARTS + i][threadIdx.x % 16];
        halves[threadIdx.x / 16][threadIdx.x % 16] = value;
        __syncwarp();
        if (threadIdx.x < 16) {
            float g = halves[0][threadIdx.x], u = halves[1][threadIdx.x];
            output[(u64)row * ACT_WIDTH + slot * INNER + blockIdx.x * 16 + threadIdx.x] = to_bf16(silu(g) * u);
        }
    }
}
#endif

#ifdef NATIVE_EXPERT_DOWN_NORM
// blockIdx.x 16 outputs, y row; a warp has one slot.
extern "C" __global__ void __launch_bounds__((TOP_K + 1) * 32) native_expert_down_norm(
    const u32 *down, const u16 *down_s, const u16 *down_b, const u32 *shared, const u16 *shared_s, const u16 *shared_b,
    const float *gain, const u16 *input, const u32 *experts, const float *scales, const Step *step, float *residual,
    u16 *normed, u32 *arrivals) {
    __shared__ float parts[TOP_K + 1][16];
    u32 slot = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y;
    Weights w;
    if (slot == TOP_K) load_weights(w, shared, shared_s, shared_b, blockIdx.x * 16, HIDDEN, SHARED_INNER, 0);
    let_next_start();
    enter();
    if (row >= step->rows) return;
    if (slot < TOP_K) {
        u64 expert = experts[row * TOP_K + slot];
        u64 words = expert * ((u64)HIDDEN * (INNER / 8)), groups = expert * ((u64)HIDDEN * (INNER / 64));
        load_weights(w, down + words, down_s + groups, down_b + groups, blockIdx.x * 16, HIDDEN, INNER, 0);
    }
    float *to = residual + row * HIDDEN + blockIdx.x * 16 + threadIdx.x % 16;
    float before = threadIdx.x < 16 ? *to : 0.0f;
    const u16 *x[1] = {input + (u64)row * ACT_WIDTH + slot * INNER};
    float sum[2] = {0.0f, 0.0f};
    multiply<1>(w, x, sum);
    float scale = scales[row * (TOP_K + 1) + slot];
    if (lane % 4 == 0) {
        parts[slot][lane / 4] = sum[0] * scale;
        parts[slot][lane / 4 + 8] = sum[1] * scale;
    }
    __syncthreads();
    if (threadIdx.x < 16) {
        float value = 0.0f;
        for (int i = 0; i <= TOP_K; i++) value += parts[i][threadIdx.x];
        *to = before + value;
    }
    if (last_to_arrive(arrivals + row, gridDim.x)) {
        norm_row<(TOP_K + 1) * 32>(residual + row * HIDDEN, gain, normed + row * HIDDEN);
    }
}
#endif
