// 8x8 simdgroup matrices on a warp. Lane l holds elements (l/4, 2(l%4)) and (l/4, 2(l%4)+1): the accumulator layout of
// mma.m16n8k8, whose lower eight rows stay unused. 16-bit inputs go to the tensor core, f32 inputs to shuffles and FMA.

namespace metal {

template <class T, int R, int C> struct simdgroup_matrix {
    static_assert(R == 8 && C == 8, "simdgroup matrices are 8x8");
    T msl_e[2];
    simdgroup_matrix() = default;
    explicit MSL_FN simdgroup_matrix(T diagonal) {
        uint lane = msl_lane();
        for (uint i = 0; i < 2; i++) msl_e[i] = (2 * lane + i) % 9 == 0 ? diagonal : T(0.0f);
    }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int R, int C> MSL_FN simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
    simdgroup_matrix<T, R, C> m;
    m.msl_e[0] = m.msl_e[1] = value;
    return m;
}
template <class T> MSL_FN T* msl_element(T* at, ulong stride, ulong2 origin, bool transpose, uint i) {
    ulong row = msl_lane() / 4, column = msl_lane() % 4 * 2 + i;
    return transpose ? at + (column + origin.y) * stride + row + origin.x : at + (row + origin.y) * stride + column + origin.x;
}
template <class T>
MSL_FN void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const T* at, ulong stride = 8, ulong2 origin = ulong2(0),
                           bool transpose = false) {
    for (uint i = 0; i < 2; i++) d.msl_e[i] = *msl_element(at, stride, origin, transpose, i);
}
template <class T>
MSL_FN void simdgroup_store(simdgroup_matrix<T, 8, 8> s, T* at, ulong stride = 8, ulong2 origin = ulong2(0),
                            bool transpose = false) {
    for (uint i = 0; i < 2; i++) *msl_element(at, stride, origin, transpose, i) = s.msl_e[i];
}

template <class T> MSL_FN uint msl_pair(const T* e) { return uint(e[0].msl_bits) | (uint(e[1].msl_bits) << 16); }
MSL_FN void msl_mma_m16n8k8(float* c, uint a, uint b, half) {
    float unused0 = 0.0f, unused1 = 0.0f;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(unused0), "+f"(unused1)
                 : "r"(a), "r"(0), "r"(b));
}
MSL_FN void msl_mma_m16n8k8(float* c, uint a, uint b, bfloat) {
    float unused0 = 0.0f, unused1 = 0.0f;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(unused0), "+f"(unused1)
                 : "r"(a), "r"(0), "r"(b));
}
template <class T> MSL_FN void msl_multiply(float* c, const T* a, const T* b) {
    uint transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(msl_pair(b)));
    msl_mma_m16n8k8(c, msl_pair(a), transposed, T(0.0f));
}
MSL_FN void msl_multiply(float* c, const float* a, const float* b) {
    uint lane = msl_lane();
    for (uint k = 0; k < 8; k++) {
        float even = msl_exchange(a[0], lane / 4 * 4 + k / 2), odd = msl_exchange(a[1], lane / 4 * 4 + k / 2);
        float left = k % 2 ? odd : even;
        c[0] += left * msl_exchange(b[0], k * 4 + lane % 4);
        c[1] += left * msl_exchange(b[1], k * 4 + lane % 4);
    }
}

template <class D, class A, class B, class C>
MSL_FN void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                          simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c) {
    static_assert(is_same_v<A, B> && is_same_v<C, D>, "both inputs have one type, result and addend have one type");
    float sum[2] = {float(c.msl_e[0]), float(c.msl_e[1])};
    msl_multiply(sum, a.msl_e, b.msl_e);
    d.msl_e[0] = D(sum[0]);
    d.msl_e[1] = D(sum[1]);
}
template <class D, class A, class B>
MSL_FN void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0.0f)));
}

}  // namespace metal
