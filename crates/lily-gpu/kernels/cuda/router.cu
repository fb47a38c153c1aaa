// The router: 8-bit logits of the experts and of the shared gate; the block that arrives last picks the largest TOP_K, ties
// to the lowest id. A warp has one output and HIDDEN / 32 inputs a lane, 16 at a time.

#ifdef NATIVE_ROUTER
#define ROUTER_STRIDE (EXPERTS + 1)
#define ROUTER_STEPS (HIDDEN / 512)

// A float as an integer of the same order.
FN u32 ordered(float v) {
    u32 bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

FN void choose(const float *logits, u32 *experts, float *scales) {
    u32 lane = threadIdx.x % 32;
    float values[EXPERTS / 32];
    u32 keys[EXPERTS / 32];
#pragma unroll
    for (int i = 0; i < EXPERTS / 32; i++) {
        values[i] = __ldcg(logits + lane + 32 * i);
        keys[i] = ordered(values[i]);
    }
    float top = 0.0f, total = 0.0f, mine = 0.0f;
    for (int k = 0; k < TOP_K; k++) {
        u32 best = 0;
#pragma unroll
        for (int i = 0; i < EXPERTS / 32; i++) best = max(best, keys[i]);
        u32 largest;
        asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(largest) : "r"(best));
        u32 id = EXPERTS;
#pragma unroll
        for (int i = EXPERTS / 32 - 1; i >= 0; i--) id = keys[i] == largest ? lane + 32 * i : id;
        u32 chosen;
        asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(chosen) : "r"(id));
#pragma unroll
        for (int i = 0; i < EXPERTS / 32; i++) keys[i] = lane + 32 * i == chosen ? 0 : keys[i];
        float value = largest & 0x80000000u ? __uint_as_float(largest & 0x7fffffffu) : __uint_as_float(~largest);
        top = k == 0 ? value : top;
        float e = expf(value - top);
        total += e;
        if (lane == k) {
            mine = e;
            experts[k] = chosen;
        }
    }
    if (lane < TOP_K) scales[lane] = mine / total;
    if (lane == 0) scales[TOP_K] = sigmoid(__ldcg(logits + EXPERTS));
}

extern "C" __global__ void __launch_bounds__(256) native_router(
    const u32 *gate, const u16 *gate_s, const u16 *gate_b, const u32 *shared, const u16 *shared_s, const u16 *shared_b,
    const u16 *input, const Step *step, u32 *experts, float *scales, float *logits, u32 *arrivals) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 output = blockIdx.x * 8 + warp;
    bool live = output <= EXPERTS;
    const u32 *w = gate + (u64)min(output, EXPERTS - 1) * (HIDDEN / 4);
    const u16 *s = gate_s + (u64)min(output, EXPERTS - 1) * (HIDDEN / 64);
    const u16 *b = gate_b + (u64)min(output, EXPERTS - 1) * (HIDDEN / 64);
    if (output == EXPERTS) w = shared, s = shared_s, b = shared_b;
    uint4 q[ROUTER_STEPS];
    float scale[ROUTER_STEPS], bias[ROUTER_STEPS];
#pragma unroll
    for (int i = 0; i < ROUTER_STEPS; i++) {
        u32 at = i * 512 + lane * 16;
        q[i] = load_kept(w + at / 4);
        scale[i] = bf16(s[at / 64]);
        bias[i] = bf16(b[at / 64]);
    }
    let_next_start();
    enter();
    u32 rows = step->rows, row = blockIdx.y * 4;
    if (row >= rows) return;
    u32 end = min(row + 4, rows);
    for (u32 r = row; r < end; r++) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < ROUTER_STEPS; i++) {
            const uint4 *x = (const uint4 *)(input + (u64)r * HIDDEN + i * 512 + lane * 16);
            uint4 lo = x[0], hi = x[1];
            float part = 0.0f, total = 0.0f;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                u32 pair = j < 4 ? word_of(lo, j) : word_of(hi, j - 4);
                u32 word = word_of(q[i], j / 2) >> (j % 2 * 16);
                float a = bf16_low(pair), c = bf16_high(pair);
                part = fmaf((float)(word & 0xff), a, part);
                part = fmaf((float)((word >> 8) & 0xff), c, part);
                total += a + c;
            }
            sum = fmaf(scale[i], part, fmaf(bias[i], total, sum));
        }
        sum = warp_sum(sum);
        if (lane == 0 && live) logits[r * ROUTER_STRIDE + output] = sum;
    }
    if (last_to_arrive(arrivals + blockIdx.y, gridDim.x)) {
        for (u32 r = row + warp; r < end; r += 8) {
            choose(logits + r * ROUTER_STRIDE, experts + r * TOP_K, scales + r * (TOP_K + 1));
        }
    }
}
#endif
