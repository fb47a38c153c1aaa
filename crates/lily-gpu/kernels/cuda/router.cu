// The router: 8-bit logits of the experts and of the shared gate, then the largest TOP_K, ties to the lowest id.
//
// A few rows: a warp has one output and HIDDEN / 32 inputs a lane, 16 at a time; the block that arrives last chooses. Many
// rows: a block has 32 of them and all outputs, as products of bf16 (a q of 8 bits is one, exactly) whose sums over a group
// are scaled in f32; it chooses for its own rows.

#ifdef NATIVE_ROUTER
#define ROUTER_STRIDE (EXPERTS + 1)
#define ROUTER_STEPS (HIDDEN / 512)

// A float as an integer of the same order.
FN u32 ordered(float v) {
    u32 bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// One warp: the largest of a row's logits, EXPERTS and the shared gate's.
FN void choose(const float *logits, u32 *experts, float *scales) {
    u32 lane = threadIdx.x % 32;
    u32 keys[EXPERTS / 32];
#pragma unroll
    for (int i = 0; i < EXPERTS / 32; i++) keys[i] = ordered(logits[lane + 32 * i]);
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
    if (lane == 0) scales[TOP_K] = sigmoid(logits[EXPERTS]);
}

#define ROUTER_ROWS 32
#define ROUTER_X (HIDDEN + 8)
#define ROUTER_GROUPS (HIDDEN / 64)

struct RouterMemory {
    u16 x[ROUTER_ROWS * ROUTER_X];
    float totals[ROUTER_ROWS * (ROUTER_GROUPS + 1)];  // sum of each group's inputs
    float logits[ROUTER_ROWS * (ROUTER_STRIDE + 3)];
};

// Bytes 2 i and 2 i + 1 of a word as a bf16 pair.
template <int I> FN u32 bytes_as_bf16(u32 word) {
    float low = __uint_as_float(__byte_perm(word, 0x4b000000u, I == 0 ? 0x7440 : 0x7442)) - 8388608.0f;
    float high = __uint_as_float(__byte_perm(word, 0x4b000000u, I == 0 ? 0x7441 : 0x7443)) - 8388608.0f;
    return bf16_pair(low, high);
}

// blockIdx.x 32 rows.
extern "C" __global__ void __launch_bounds__(256) native_router_many(
    const u32 *gate, const u16 *gate_s, const u16 *gate_b, const u32 *shared, const u16 *shared_s, const u16 *shared_b,
    const u16 *input, const Step *step, u32 *experts, float *scales, float *, u32 *) {
    RouterMemory &m = *(RouterMemory *)arena_raw;
    let_next_start();
    enter();
    u32 rows = step->rows;
    u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    u32 row = blockIdx.x * ROUTER_ROWS;
    if (row >= rows) return;
    for (u32 i = thread; i < ROUTER_ROWS * (HIDDEN / 8); i += 256) {
        u32 r = i / (HIDDEN / 8), c = i % (HIDDEN / 8) * 8;
        copy_async16(shared_address(m.x + r * ROUTER_X + c), input + (u64)min(row + r, rows - 1) * HIDDEN + c);
    }
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    for (u32 i = thread; i < ROUTER_ROWS * ROUTER_GROUPS; i += 256) {
        u32 r = i / ROUTER_GROUPS, group = i % ROUTER_GROUPS;
        float total = 0.0f;
        for (int k = 0; k < 8; k++) {
            uint4 v = *(const uint4 *)(m.x + r * ROUTER_X + group * 64 + k * 8);
            for (int j = 0; j < 4; j++) total += bf16_low(word_of(v, j)) + bf16_high(word_of(v, j));
        }
        m.totals[r * (ROUTER_GROUPS + 1) + group] = total;
    }
    __syncthreads();
    // A warp has every eighth tile of 16 outputs; the shared gate is alone in the last.
    for (u32 tile = warp; tile <= EXPERTS / 16; tile += 8) {
        u32 low = tile * 16 + g, high = low + 8;
        bool last = tile == EXPERTS / 16;
        const u32 *wl = last ? shared : gate + (u64)low * (HIDDEN / 4), *wh = last ? shared : gate + (u64)high * (HIDDEN / 4);
        u64 at_low = last ? 0 : (u64)low * ROUTER_GROUPS, at_high = last ? 0 : (u64)high * ROUTER_GROUPS;
        const u16 *s = last ? shared_s : gate_s, *b = last ? shared_b : gate_b;
        float sum[ROUTER_ROWS / 8][4] = {};
        uint4 next_low = load_kept(wl + t * 4), next_high = load_kept(wh + t * 4);
        for (u32 group = 0; group < ROUTER_GROUPS; group++) {
            uint4 ql = next_low, qh = next_high;
            u32 ahead = min(group + 1, ROUTER_GROUPS - 1) * 16 + t * 4;
            next_low = load_kept(wl + ahead);
            next_high = load_kept(wh + ahead);
            float scale[2] = {bf16(s[at_low + group]), bf16(s[at_high + group])};
            float bias[2] = {bf16(b[at_low + group]), bf16(b[at_high + group])};
            u32 a[4][4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                a[k][0] = bytes_as_bf16<0>(word_of(ql, k));
                a[k][1] = bytes_as_bf16<0>(word_of(qh, k));
                a[k][2] = bytes_as_bf16<1>(word_of(ql, k));
                a[k][3] = bytes_as_bf16<1>(word_of(qh, k));
            }
#pragma unroll
            for (int n = 0; n < ROUTER_ROWS / 8; n++) {
                const uint4 *x = (const uint4 *)(m.x + (n * 8 + g) * ROUTER_X + group * 64 + t * 16);
                uint4 first = x[0], second = x[1];
                float d[4] = {};
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const uint4 &v = k < 2 ? first : second;
                    mma(d, a[k][0], a[k][1], a[k][2], a[k][3], word_of(v, k % 2 * 2), word_of(v, k % 2 * 2 + 1));
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float total = m.totals[(n * 8 + 2 * t + i % 2) * (ROUTER_GROUPS + 1) + group];
                    sum[n][i] = fmaf(scale[i / 2], d[i], fmaf(bias[i / 2], total, sum[n][i]));
                }
            }
        }
#pragma unroll
        for (int n = 0; n < ROUTER_ROWS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 output = tile * 16 + g + i / 2 * 8;
                if (output <= EXPERTS) m.logits[(n * 8 + 2 * t + i % 2) * (ROUTER_STRIDE + 3) + output] = sum[n][i];
            }
        }
    }
    __syncthreads();
    for (u32 r = warp; r < min(rows - row, (u32)ROUTER_ROWS); r += 8) {
        choose(m.logits + r * (ROUTER_STRIDE + 3), experts + (row + r) * TOP_K, scales + (row + r) * (TOP_K + 1));
    }
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
        __shared__ float copies[4][ROUTER_STRIDE];
        for (u32 r = row + warp; r < end; r += 8) {
            for (u32 i = lane; i < ROUTER_STRIDE; i += 32) copies[r - row][i] = __ldcg(logits + r * ROUTER_STRIDE + i);
            __syncwarp();
            choose(copies[r - row], experts + r * TOP_K, scales + r * (TOP_K + 1));
        }
    }
}
#endif
