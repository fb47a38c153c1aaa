// Prefill: norms and rotates q and k, stores k and v to their pages. group.x takes 4 heads (q heads, then KV heads), a
// simdgroup each; group.y is the row.
//
// q is laid out [KV head][rows][query head of it][HEAD_DIM] bf16, so that the queries of a KV head are rows of one matrix.

kernel void qk_norm_rope_store(
    device const float *qg [[buffer(0)]],
    device const float *kv [[buffer(1)]],
    device const float *q_gain [[buffer(2)]],
    device const float *k_gain [[buffer(3)]],
    device const Row *rows [[buffer(4)]],
    device const uint *pages [[buffer(5)]],
    constant Step &step [[buffer(6)]],
    device bfloat *cache [[buffer(7)]],
    device bfloat *q_out [[buffer(8)]],
    POSITIONS) {
    threadgroup float heads[4 * HEAD_DIM];
    uint unit = group.x * 4 + simd;
    uint row = group.y;
    if (row >= step.rows || unit >= Q_HEADS + KV_HEADS) {
        return;
    }
    uint position = rows[row].position;
    threadgroup float *head = heads + simd * HEAD_DIM;
    if (unit < Q_HEADS) {
        constexpr uint GROUPED = Q_HEADS / KV_HEADS;
        norm_rope(qg + row * (2 * Q_DIM) + unit * (2 * HEAD_DIM), q_gain, position, head, lane);
        device bfloat *out =
            q_out + ((unit / GROUPED * ulong(step.rows) + row) * GROUPED + unit % GROUPED) * ulong(HEAD_DIM);
        for (uint i = lane; i < HEAD_DIM; i += 32) {
            out[i] = bfloat(head[i]);
        }
    } else {
        uint kv_head = unit - Q_HEADS;
        uint page = pages[rows[row].table + position / PAGE];
        norm_rope(kv + row * (2 * KV_DIM) + kv_head * HEAD_DIM, k_gain, position, head, lane);
        device bfloat *key_row = page_rows(cache, page, kv_head, 0) + (position % PAGE) * HEAD_DIM;
        device bfloat *value_row = page_rows(cache, page, kv_head, 1) + (position % PAGE) * HEAD_DIM;
        for (uint i = lane; i < HEAD_DIM; i += 32) {
            key_row[i] = bfloat(head[i]);
            value_row[i] = bfloat(kv[row * (2 * KV_DIM) + KV_DIM + kv_head * HEAD_DIM + i]);
        }
    }
}
