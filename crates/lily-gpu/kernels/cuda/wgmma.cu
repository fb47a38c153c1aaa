// Warpgroup products: d (64 x N, f32) = a b, or += where `keep` is not 0. The left operand comes from registers (laid out as
// for mma) or from shared memory, the right one from shared memory, described by 128-byte swizzled tiles.

// Orders this warpgroup's register and shared memory writes before its products.
FN void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> FN void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Makes what this thread wrote to shared memory visible to products.
FN void shared_visible() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Descriptor of a tile whose rows are 128 bytes, swizzled; `leading` and `stride` in bytes: for a tile with inputs side by
// side, `stride` between groups of 8 rows; for one with outputs side by side, `leading` between blocks of 64 outputs and
// `stride` between groups of 8 inputs.
FN u64 descriptor(u32 address, u32 leading, u32 stride) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | 1ull << 62;
}

// Operands %0 to %31 of an instruction, %32 to %63 and so on, and the 4, 16 or 32 sums of `d` from `i` on.
#define OPERANDS_0 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OPERANDS_32 \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OPERANDS_64 \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OPERANDS_96 \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_4(d, i) "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3])
#define SUMS_16(d, i) SUMS_4(d, i), SUMS_4(d, i + 4), SUMS_4(d, i + 8), SUMS_4(d, i + 12)
#define SUMS_32(d, i) SUMS_16(d, i), SUMS_16(d, i + 16)

// product_rsN and product_ssN: N outputs, the left operand in registers or in shared memory. The right one has inputs side by
// side, in product_rs256_values outputs.
FN void product_rs32(float (&d)[16], const u32 (&a)[4], u64 b, u32 keep) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %21, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n\t}"
        : SUMS_16(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}

FN void product_rs64(float (&d)[32], const u32 (&a)[4], u64 b, u32 keep) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{" OPERANDS_0 "}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n\t}"
        : SUMS_32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}

FN void product_rs128(float (&d)[64], const u32 (&a)[4], u64 b, u32 keep) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %69, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{" OPERANDS_0 ", " OPERANDS_32 "}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n\t}"
        : SUMS_32(d, 0), SUMS_32(d, 32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}

FN void product_ss64(float (&d)[32], u64 a, u64 b, u32 keep) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{" OPERANDS_0 "}, "
        "%32, %33, p, 1, 1, 0, 0;\n\t}"
        : SUMS_32(d, 0)
        : "l"(a), "l"(b), "r"(keep));
}

FN void product_ss256(float (&d)[128], u64 a, u64 b, u32 keep) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{" OPERANDS_0 ", " OPERANDS_32 ", " OPERANDS_64 ", " OPERANDS_96 "}, "
        "%128, %129, p, 1, 1, 0, 0;\n\t}"
        : SUMS_32(d, 0), SUMS_32(d, 32), SUMS_32(d, 64), SUMS_32(d, 96)
        : "l"(a), "l"(b), "r"(keep));
}

FN void product_rs256_values(float (&d)[128], const u32 (&a)[4], u64 b, u32 keep) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %133, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{" OPERANDS_0 ", " OPERANDS_32 ", " OPERANDS_64 ", " OPERANDS_96 "}, "
        "{%128, %129, %130, %131}, %132, p, 1, 1, 1;\n\t}"
        : SUMS_32(d, 0), SUMS_32(d, 32), SUMS_32(d, 64), SUMS_32(d, 96)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}
