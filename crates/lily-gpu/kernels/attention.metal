// What the decode and the prefill form of attention share: where a page keeps keys and values, and how a head is normed and
// rotated.
//
// A page holds PAGE tokens of one layer: [KV head][keys, values][PAGE][HEAD_DIM] bf16, so that the keys of a head are rows
// of one matrix.

#define PAGE 256
#define HEAD_VALUES (HEAD_DIM / 32)

inline device bfloat *page_rows(device bfloat *cache, uint page, uint kv_head, uint values) {
    return cache + ulong(page) * (2 * KV_DIM * PAGE) + (kv_head * 2 + values) * (PAGE * HEAD_DIM);
}
inline device const bfloat *page_rows(device const bfloat *cache, uint page, uint kv_head, uint values) {
    return cache + ulong(page) * (2 * KV_DIM * PAGE) + (kv_head * 2 + values) * (PAGE * HEAD_DIM);
}

// One simdgroup: head = rope(rms(x, gain)) rounded to bf16, as floats. `head` is threadgroup memory of this simdgroup alone.
inline void norm_rope(
    device const float *x,
    device const float *gain,
    uint position,
    threadgroup float *head,
    uint lane) {
    float values[HEAD_VALUES];
    float square = 0.0f;
    for (int i = 0; i < HEAD_VALUES; i++) {
        values[i] = x[lane + uint(32 * i)];
        square = fma(values[i], values[i], square);
    }
    float scale = precise::rsqrt(simd_sum(square) / float(HEAD_DIM) + EPSILON);
    for (int i = 0; i < HEAD_VALUES; i++) {
        uint at = lane + uint(32 * i);
        head[at] = values[i] * scale * gain[at];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint pair = lane; pair < ROTARY_DIM / 2; pair += 32) {
        float2 turned = rope(head[pair], head[pair + ROTARY_DIM / 2], position, pair);
        head[pair] = turned.x;
        head[pair + ROTARY_DIM / 2] = turned.y;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < HEAD_VALUES; i++) {
        uint at = lane + uint(32 * i);
        head[at] = rounded(head[at]);
    }
}
