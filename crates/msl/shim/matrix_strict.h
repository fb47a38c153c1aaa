// 8x8 simdgroup matrices, declared only. Loads and stores take device and threadgroup memory.

namespace metal {

template <class T, int R, int C> struct simdgroup_matrix {
    static_assert(R == 8 && C == 8, "simdgroup matrices are 8x8");
    simdgroup_matrix() = default;
    explicit simdgroup_matrix(T diagonal);
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <class T, int R, int C> simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value);

#define MSL_MATRIX_MOVES(SPACE)                                                                                           \
    template <class T>                                                                                                    \
    void simdgroup_load(__private simdgroup_matrix<T, 8, 8>& d, const SPACE T* at, ulong stride = 8,                      \
                        ulong2 origin = ulong2(0), bool transpose = false);                                               \
    template <class T>                                                                                                    \
    void simdgroup_store(simdgroup_matrix<T, 8, 8> s, SPACE T* at, ulong stride = 8, ulong2 origin = ulong2(0),           \
                         bool transpose = false);
MSL_MATRIX_MOVES(__global)
MSL_MATRIX_MOVES(__local)

template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(__private simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                   simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c) {
    static_assert(is_same_v<A, B> && is_same_v<C, D>, "both inputs have one type, result and addend have one type");
}
template <class D, class A, class B>
void simdgroup_multiply(__private simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b) {
    static_assert(is_same_v<A, B>, "both inputs have one type");
}

}  // namespace metal
