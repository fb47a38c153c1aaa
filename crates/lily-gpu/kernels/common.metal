// What every kernel file starts from: the inputs of a step, elementwise functions, and reductions over a threadgroup.
//
// Geometry (HIDDEN, EXPERTS, ...), storage of each matrix (QKV_BITS, QKV_GROUP, ...) and thread organisation
// (MATVEC_SIMDS, ...) are macros that the host puts in front of this text; no kernel takes a shape at run time except
// the number of rows.

#include <metal_stdlib>
using namespace metal;

// Counts of the step at hand. A grid may be larger than the step: every kernel leaves rows past `rows` alone.
struct Step {
    uint rows;
    uint logit_rows;
    uint previous;  // not 0: tokens come from the argmax of the step before
    uint segments;
};

// One row of a step: where it stands in its sequence, and where that sequence's state is.
struct Row {
    uint position;
    uint slot;
    uint segment_first;  // first row of the same sequence in this step
    uint segment_rows;
    uint table;  // where its block table starts in `pages`
};

// Storage of a matrix: 16 bytes of weights as one load, wherever the checkpoint aligns them to 16.
typedef WEIGHT_VECTOR WeightVec;

#define MATRIX(NAME, W, S, B)                                                             \
    device const WeightVec *NAME##_weight [[buffer(W)]], device const bfloat *NAME##_scales [[buffer(S)]], \
        device const bfloat *NAME##_biases [[buffer(B)]]

// One instance of a kernel template under a name of its own.
#define INSTANTIATE(NAME, ...) template [[host_name(NAME)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;

#define POSITIONS                                                                                  \
    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]], \
        uint simd [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]

// The lower and the upper bf16 of a word.
inline float bf16_low(uint word) { return as_type<float>(word << 16); }
inline float bf16_high(uint word) { return as_type<float>(word & 0xffff0000u); }

inline float sigmoid(float x) { return 1.0f / (1.0f + precise::exp(-x)); }
inline float silu(float x) { return x / (1.0f + precise::exp(-x)); }

// log(1 + e^x). Metal has no log1p: below e^-9 two terms of its series are exact in f32.
inline float softplus(float x) {
    float e = precise::exp(-fabs(x));
    float log1p = e < 1.0e-4f ? e - 0.5f * e * e : precise::log(1.0f + e);
    return max(x, 0.0f) + log1p;
}

// Rounds to the form of a matrix input.
inline float rounded(float x) { return float(bfloat(x)); }

// Rotates a pair by the angle of `position` at frequency `pair`. ROPE holds 1/(2 pi) * theta^(-2 pair / rotary_dim) as a
// sum of two floats, so that the fraction of a turn is exact to 1e-7 at every position and sin and cos see small angles.
inline float2 rope(float a, float b, uint position, uint pair) {
    float p = float(position);
    float whole = p * ROPE[2 * pair];
    float below = fma(p, ROPE[2 * pair], -whole) + p * ROPE[2 * pair + 1];
    float turn = (whole - precise::floor(whole)) + below;
    float angle = turn * 6.28318530717958648f;
    float c = precise::cos(angle);
    float s = precise::sin(angle);
    return float2(a * c - b * s, b * c + a * s);
}

// Sum of a value over the threadgroup, in every thread. `scratch` has one float a simdgroup and may be reused at once.
inline float threadgroup_sum(float value, threadgroup float *scratch, uint simds, uint simd, uint lane) {
    value = simd_sum(value);
    if (lane == 0) {
        scratch[simd] = value;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < simds; i++) {
        total += scratch[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
}

// Sum over each group of LANES adjacent lanes, in all of them.
template <int LANES>
inline float lanes_sum(float value) {
    if (LANES == 32) {
        return simd_sum(value);
    }
    for (ushort offset = LANES / 2; offset > 0; offset /= 2) {
        value += simd_shuffle_xor(value, offset);
    }
    return value;
}

// Data that one threadgroup hands to another inside a dispatch goes through relaxed atomics: they pass by the caches of
// a core that nothing keeps coherent.
inline float shared_load(device const atomic_uint *at) {
    return as_type<float>(atomic_load_explicit(at, memory_order_relaxed));
}
inline void shared_store(device atomic_uint *at, float value) {
    atomic_store_explicit(at, as_type<uint>(value), memory_order_relaxed);
}

// True in every thread of the threadgroup that arrives last of `total`; what the others stored before is then visible.
// The last one sets the counter back to 0 for the next use.
inline bool last_to_arrive(device atomic_uint *counter, uint total, threadgroup uint *flag, uint thread_index) {
    threadgroup_barrier(mem_flags::mem_device);
    if (thread_index == 0) {
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
        uint before = atomic_fetch_add_explicit(counter, 1u, memory_order_relaxed);
        bool last = before + 1 == total;
        if (last) {
            atomic_store_explicit(counter, 0u, memory_order_relaxed);
        }
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
        *flag = last ? 1u : 0u;
    }
    threadgroup_barrier(mem_flags::mem_device_and_threadgroup);
    return *flag != 0;
}
