// What the GPU could do: bytes read, and products of bf16 on the tensor core. To set speeds beside; no part of a model.

extern "C" __global__ void __launch_bounds__(512) limits_read(const uint4 *data, u64 vectors, u32 *never) {
    u64 at = (u64)blockIdx.x * 512 + threadIdx.x, step = (u64)gridDim.x * 512;
    u32 mixed = 0;
    for (; at + 7 * step < vectors; at += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w) : "l"(data + at + i * step));
        }
#pragma unroll
        for (int i = 0; i < 8; i++) mixed ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    for (; at < vectors; at += step) mixed ^= data[at].x ^ data[at].y ^ data[at].z ^ data[at].w;
    if (mixed == 0x9e3779b9u) *never = mixed;
}

// Every warpgroup: `rounds` times four products of 64 x 256 by 16 inputs.
extern "C" __global__ void __launch_bounds__(256, 1) limits_products(u32 rounds, float *sums) {
    extern __shared__ unsigned char raw[];
    u32 base = ((u32)__cvta_generic_to_shared(raw) + 1023) & ~1023u;
    // Numbers of either sign and of size 1 to 2, none like the next: products of zeros would cost less power, and clock higher.
    for (u32 i = threadIdx.x; i < (48 << 10) / 4; i += 256) {
        u32 pair = (i + blockIdx.x) * 2654435761u & 0x807f807fu | 0x3f803f80u;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(base + i * 4), "r"(pair));
    }
    shared_visible();
    __syncthreads();
    u64 a = descriptor(base, 16, 1024), b = descriptor(base + (16 << 10), 16, 1024);
    float d[128] = {};
    for (u32 round = 0; round < rounds; round++) {
        products_begin();
#pragma unroll
        for (int k = 0; k < 4; k++) product_ss256(d, a + k * 2, b + k * 2, 1);
        products_commit();
        products_wait<0>();
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 128; i++) sum += d[i];
    if (sum != 0.0f) *sums = sum;
}
