// Prefill: what is done row by row, 16 bytes a lane.

#ifdef NATIVE_COMBINE
// The weighted sum of a row's experts added to the residual stream, and its norm. blockIdx.x row.
extern "C" __global__ void __launch_bounds__(HIDDEN / 4) native_combine(
    const float *down, const float *scales, const float *gain, const Step *step, float *residual, u16 *normed) {
    __shared__ float parts[HIDDEN / 128];
    let_next_start();
    enter();
    u32 row = blockIdx.x, at = threadIdx.x;
    if (row >= step->rows) return;
    const float4 *from = (const float4 *)(down + (u64)row * (TOP_K + 1) * HIDDEN) + at;
    float4 *to = (float4 *)(residual + (u64)row * HIDDEN) + at;
    float4 v = *to, parts_of[TOP_K + 1];
#pragma unroll
    for (int slot = 0; slot <= TOP_K; slot++) parts_of[slot] = __ldcs(from + slot * (HIDDEN / 4));
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int slot = 0; slot <= TOP_K; slot++) {
        float scale = scales[row * (TOP_K + 1) + slot];
        sum.x = fmaf(scale, parts_of[slot].x, sum.x), sum.y = fmaf(scale, parts_of[slot].y, sum.y);
        sum.z = fmaf(scale, parts_of[slot].z, sum.z), sum.w = fmaf(scale, parts_of[slot].w, sum.w);
    }
    v.x += sum.x, v.y += sum.y, v.z += sum.z, v.w += sum.w;
    *to = v;
    float square = warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
    if (at % 32 == 0) parts[at / 32] = square;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < HIDDEN / 128; i++) total += parts[i];
    float scale = rsqrtf(total / (float)HIDDEN + EPSILON);
    float4 g = ((const float4 *)gain)[at];
    ((uint2 *)(normed + (u64)row * HIDDEN))[at] =
        uint2{bf16_pair(v.x * scale * g.x, v.y * scale * g.y), bf16_pair(v.z * scale * g.z, v.w * scale * g.w)};
}
#endif

#ifdef NATIVE_GDN_CONV
// Rows that a warp walks with the inputs before them in registers.
#define CONV_ROWS 8

FN float4 convolved4(const float4 *taps, float4 now, float4 b0, float4 b1, float4 b2) {
    float4 t[4] = {taps[0], taps[1], taps[2], taps[3]}, out;
    out.x = silu(fmaf(t[0].w, now.x, fmaf(t[0].z, b0.x, fmaf(t[0].y, b1.x, t[0].x * b2.x))));
    out.y = silu(fmaf(t[1].w, now.y, fmaf(t[1].z, b0.y, fmaf(t[1].y, b1.y, t[1].x * b2.y))));
    out.z = silu(fmaf(t[2].w, now.z, fmaf(t[2].z, b0.z, fmaf(t[2].y, b1.z, t[2].x * b2.z))));
    out.w = silu(fmaf(t[3].w, now.w, fmaf(t[3].z, b0.w, fmaf(t[3].y, b1.w, t[3].x * b2.w))));
    return out;
}

// Heads of 128: a warp has one, four channels a lane. blockIdx.x 4 heads (q, k, v), y CONV_ROWS rows.
extern "C" __global__ void __launch_bounds__(128) native_gdn_conv(
    const float *qkv, const float *ba, const Row *rows, const Step *step, const float *taps, const float *a_log,
    const float *dt_bias, const float *window, float *mixed, float *gates) {
    let_next_start();
    enter();
    u32 head = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32, channel = head * 128 + lane * 4;
    u32 count = step->rows, end = min(blockIdx.y * CONV_ROWS + CONV_ROWS, count);
    if (head >= 2 * KEY_HEADS + VALUE_HEADS) return;
    float4 before[3] = {};
    bool fresh = true;
    for (u32 row = blockIdx.y * CONV_ROWS; row < end; row++) {
        Row at = rows[row];
        u32 into = row - at.segment_first;
        if (fresh || into == 0) {
            const float *ring = window + (u64)at.slot * (CONV_TAPS * CONV_DIM);
#pragma unroll
            for (u32 j = 1; j < CONV_TAPS; j++) {
                const float *from = into >= j ? qkv + (u64)(row - j) * CONV_DIM
                                              : ring + (at.position + CONV_TAPS - j) % CONV_TAPS * CONV_DIM;
                before[j - 1] = *(const float4 *)(from + channel);
            }
            fresh = false;
        }
        float4 now = *(const float4 *)(qkv + (u64)row * CONV_DIM + channel);
        float4 v = convolved4((const float4 *)taps + channel, now, before[0], before[1], before[2]);
        before[2] = before[1], before[1] = before[0], before[0] = now;
        if (head < 2 * KEY_HEADS) {
            float scale = rsqrtf(warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w) + 1.0e-6f);
            if (head < KEY_HEADS) scale *= rsqrtf((float)DK);
            v.x *= scale, v.y *= scale, v.z *= scale, v.w *= scale;
        } else if (lane == 0) {
            u32 h = head - 2 * KEY_HEADS;
            const float *in = ba + (u64)row * (2 * VALUE_HEADS);
            gates[(u64)row * (2 * VALUE_HEADS) + h] = expf(-expf(a_log[h]) * softplus(in[VALUE_HEADS + h] + dt_bias[h]));
            gates[(u64)row * (2 * VALUE_HEADS) + VALUE_HEADS + h] = sigmoid(in[h]);
        }
        *(float4 *)(mixed + (u64)row * CONV_DIM + channel) = v;
    }
}
#endif

#ifdef NATIVE_ROUTE_PLACE_64
#define SORT_WARPS 8

// As in route_sort.metal, every pair of the step in one pass of 16 bytes a lane. blockIdx.x expert.
template <int TILE_ROWS>
FN void route_place(
    const u32 *experts, const u32 *counts, const Step *step, u32 *offsets, u32 *order, uint4 *tiles) {
    __shared__ u32 parts[SORT_WARPS], sums[2];
    let_next_start();
    enter();
    u32 expert = blockIdx.x, pairs = step->rows * TOP_K, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 0) {
        u32 before = 0, tiles_before = 0;
        for (u32 e = lane; e < expert; e += 32) {
            u32 count = counts[e];
            before += count;
            tiles_before += (count + TILE_ROWS - 1) / TILE_ROWS;
        }
        before = __reduce_add_sync(~0u, before);
        tiles_before = __reduce_add_sync(~0u, tiles_before);
        if (lane == 0) sums[0] = before, sums[1] = tiles_before;
    }
    // A warp has consecutive pairs, a lane four side by side of 128: so the order is kept.
    u32 part = (pairs + SORT_WARPS * 128 - 1) / (SORT_WARPS * 128) * 128, from = warp * part;
    u32 to = min(from + part, pairs), found = 0;
    for (u32 base = from; base < to; base += 128) {
        u32 at = base + lane * 4;
        uint4 v = {EXPERTS, EXPERTS, EXPERTS, EXPERTS};
        if (at < to) v = *(const uint4 *)(experts + at);
        found += (v.x == expert) + (v.y == expert) + (v.z == expert) + (v.w == expert);
    }
    found = __reduce_add_sync(~0u, found);
    if (lane == 0) parts[warp] = found;
    __syncthreads();
    u32 before = sums[0], tiles_before = sums[1], mine = counts[expert], my_tiles = (mine + TILE_ROWS - 1) / TILE_ROWS;
    for (u32 t = threadIdx.x; t < my_tiles; t += SORT_WARPS * 32) {
        u32 done = t * TILE_ROWS;
        tiles[1 + tiles_before + t] = uint4{expert, before + done, min((u32)TILE_ROWS, mine - done), 0u};
    }
    if (threadIdx.x == 0) {
        offsets[expert] = before;
        if (expert == EXPERTS - 1) {
            offsets[EXPERTS] = before + mine;
            tiles[0] = uint4{tiles_before + my_tiles, 0u, 0u, 0u};
        }
    }
    u32 place = before;
    for (u32 w = 0; w < warp; w++) place += parts[w];
    if (parts[warp] == 0) return;
    for (u32 base = from; base < to; base += 128) {
        u32 at = base + lane * 4;
        uint4 v = {EXPERTS, EXPERTS, EXPERTS, EXPERTS};
        if (at < to) v = *(const uint4 *)(experts + at);
        u32 hits = (v.x == expert) | (v.y == expert) << 1 | (v.z == expert) << 2 | (v.w == expert) << 3;
        if (!__any_sync(~0u, hits)) continue;
        u32 count = __popc(hits), rank = count;
        for (int o = 1; o < 32; o <<= 1) {
            u32 other = __shfl_up_sync(~0u, rank, o);
            if (lane >= o) rank += other;
        }
        u32 next = place + rank - count;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (hits >> i & 1) order[next++] = at + i;
        }
        place += __shfl_sync(~0u, rank, 31);
    }
}

#define ROUTE_PLACE(NAME, TILE_ROWS)                                                                          \
    extern "C" __global__ void __launch_bounds__(SORT_WARPS * 32) NAME(                                       \
        const u32 *experts, const u32 *counts, const Step *step, u32 *offsets, u32 *order, uint4 *tiles) {    \
        route_place<TILE_ROWS>(experts, counts, step, offsets, order, tiles);                                 \
    }
ROUTE_PLACE(native_route_place_32, 32)
ROUTE_PLACE(native_route_place_64, 64)
#endif
