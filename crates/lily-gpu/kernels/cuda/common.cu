// What every native variant starts from. Constants of the model stand in front of this text, as for the Metal kernels, whose
// names, arguments and results the variants share. Compute capability 9.0; compiled by NVRTC without headers.

// Tokens of a page of the KV cache, and taps of the convolution.
#define PAGE 256
#define CONV_TAPS 4

// Counts of the step, and one row of it: as in common.metal.
struct Step {
    u32 rows, logit_rows, previous, segments;
};
struct Row {
    u32 position, slot, segment_first, segment_rows, table;
};

// A grid may start while the one before it runs. What does not depend on that one may be read before `enter`.
FN void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
FN void enter() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

FN float bf16_low(u32 word) { return __uint_as_float(word << 16); }
FN float bf16_high(u32 word) { return __uint_as_float(word & 0xffff0000u); }
FN float bf16(u16 value) { return __uint_as_float((u32)value << 16); }
FN u32 bf16_pair(float low, float high) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
FN u16 to_bf16(float value) { return (u16)bf16_pair(value, 0.0f); }

FN float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
FN float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
FN float silu(float x) { return x / (1.0f + expf(-x)); }

FN float warp_sum(float v) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}
FN float warp_max(float v) {
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

// 16 bytes that no kernel writes, read once: not kept in the first-level cache.
FN uint4 load_once(const void *at) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}
// 16 bytes that no kernel writes, read again soon.
FN uint4 load_kept(const void *at) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

// d += a b on the tensor core: a 16 x 16 bf16 by rows, b 16 x 8 bf16 by columns, d 16 x 8 f32.
FN void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Dynamic shared memory. Products of a warpgroup round its start up to 1,024 bytes themselves.
extern __shared__ __align__(128) u8 arena_raw[];

FN u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

FN void copy_async16(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
FN void copy_async16_or_zero(u32 to, const void *from, bool copy) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(copy ? 16 : 0) : "memory");
}
FN void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> FN void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// True in every thread of the block that arrives last of `total`; what the others wrote before is then visible. The
// last one sets the counter back.
FN bool last_to_arrive(u32 *counter, u32 total) {
    __shared__ u32 last;
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 before;
        // Releases what the block wrote, which the barrier ordered before it, and acquires what the others did.
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
        last = before + 1 == total;
        if (last) *counter = 0;
    }
    __syncthreads();
    return last != 0;
}

// normed = rms(residual row) * gain, by the whole block; the row was just written by other blocks.
template <int THREADS> FN void norm_row(const float *residual, const float *gain, u16 *normed) {
    __shared__ float parts[THREADS / 32];
    constexpr int VECTORS = HIDDEN / 4, EACH = (VECTORS + THREADS - 1) / THREADS;
    float4 v[EACH], gains[EACH];
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        u32 at = threadIdx.x + i * THREADS;
        v[i] = gains[i] = float4{0.0f, 0.0f, 0.0f, 0.0f};
        if (at < VECTORS) {
            v[i] = __ldcg((const float4 *)residual + at);
            gains[i] = ((const float4 *)gain)[at];
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) square += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
    square = warp_sum(square);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = square;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) total += parts[i];
    float scale = rsqrtf(total / (float)HIDDEN + EPSILON);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        u32 at = threadIdx.x + i * THREADS;
        if (at < VECTORS) {
            uint2 out = {bf16_pair(v[i].x * scale * gains[i].x, v[i].y * scale * gains[i].y),
                         bf16_pair(v[i].z * scale * gains[i].z, v[i].w * scale * gains[i].w)};
            ((uint2 *)normed)[at] = out;
        }
    }
    __syncthreads();
}
