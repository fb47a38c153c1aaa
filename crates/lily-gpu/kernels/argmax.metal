// The id of the largest logit of each logit row, ties to the lowest id. ARGMAX_PARTS threadgroups a row look through a part
// each; the last to arrive compares the parts and writes the token for the host and for the next step's embedding. Where
// all logits are NaN or the largest is beyond MASKED's size, the host gets NO_TOKEN and the next step a valid id.
// group.x part, group.y logit row.

// Keeps the better of two candidates in every lane: the larger value, or the lower id.
inline void better(thread float &value, thread int &id, float other, int other_id) {
    bool take = other > value || (other == value && other_id < id);
    value = take ? other : value;
    id = take ? other_id : id;
}

inline void best_of_simdgroup(thread float &value, thread int &id) {
    for (ushort offset = 16; offset > 0; offset /= 2) {
        float other = simd_shuffle_xor(value, offset);
        int other_id = simd_shuffle_xor(id, offset);
        better(value, id, other, other_id);
    }
}

kernel void argmax(
    device const float *logits [[buffer(0)]],
    constant Step &step [[buffer(1)]],
    device uint *next [[buffer(2)]],
    device uint *chosen [[buffer(3)]],
    device atomic_uint *parts [[buffer(4)]],
    device atomic_uint *arrivals [[buffer(5)]],
    POSITIONS) {
    threadgroup float values[ARGMAX_SIMDS];
    threadgroup int ids[ARGMAX_SIMDS];
    threadgroup uint flag[1];
    uint index = group.y;
    if (index >= step.logit_rows) {
        return;
    }
    constexpr uint EACH = (VOCAB + ARGMAX_PARTS - 1) / ARGMAX_PARTS;
    uint from = group.x * EACH;
    uint to = min(from + EACH, uint(VOCAB));
    float value = MASKED;
    int id = int(min(from, uint(VOCAB) - 1u));
    for (uint n = from + thread_index; n < to; n += 32 * ARGMAX_SIMDS) {
        better(value, id, logits[ulong(index) * VOCAB + n], int(n));
    }
    best_of_simdgroup(value, id);
    if (lane == 0) {
        values[simd] = value;
        ids[simd] = id;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index == 0) {
        for (uint s = 1; s < ARGMAX_SIMDS; s++) {
            better(value, id, values[s], ids[s]);
        }
        device atomic_uint *part = parts + (index * ARGMAX_PARTS + group.x) * 2;
        shared_store(part, value);
        atomic_store_explicit(part + 1, uint(id), memory_order_relaxed);
    }
    if (last_to_arrive(arrivals + index, ARGMAX_PARTS, flag, thread_index) && simd == 0) {
        value = MASKED;
        id = VOCAB - 1;
        for (uint p = lane; p < ARGMAX_PARTS; p += 32) {
            device atomic_uint *part = parts + (index * ARGMAX_PARTS + p) * 2;
            better(value, id, shared_load(part), int(atomic_load_explicit(part + 1, memory_order_relaxed)));
        }
        best_of_simdgroup(value, id);
        if (lane == 0) {
            next[index] = uint(id);
            chosen[index] = value > MASKED && value < -MASKED ? uint(id) : NO_TOKEN;
        }
    }
}
