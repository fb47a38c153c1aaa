// 8x8 simdgroup matrices on the CPU. Lane l holds elements 2l and 2l+1 in row-major order; kernels must not know that.
// A product is one rendezvous: each lane leaves the addresses of its fragments, the last one computes for all.

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

template <class T> MSL_FN T* msl_element(T* at, ulong stride, ulong2 origin, bool transpose, uint index) {
    ulong row = index / 8, column = index % 8;
    return transpose ? at + (column + origin.y) * stride + row + origin.x : at + (row + origin.y) * stride + column + origin.x;
}
template <class T> MSL_PLAIN void msl_move(T* e, T* at, ulong stride, ulong2 origin, bool transpose, bool store) {
    for (uint i = 0; i < 2; i++) {
        T* element = msl_element(at, stride, origin, transpose, 2 * msl_rt_lane() + i);
        if (store) {
            __builtin_memcpy(element, e + i, sizeof(T));
        } else {
            __builtin_memcpy(e + i, element, sizeof(T));
        }
    }
}
// In the check build a load or store is an access of the whole simdgroup to eight runs of eight elements.
template <class T> MSL_FN void msl_note_matrix(const T* at, ulong stride, ulong2 origin, bool store MSL_SITE) {
#ifdef MSL_CHECK
    if (msl_rt_gather(1, at MSL_HERE)) {
        for (ulong row = 0; row < 8; row++) msl_rt_note(at + (row + origin.y) * stride + origin.x, 8 * sizeof(T), store);
        msl_rt_release();
    }
#endif
}

template <class T>
MSL_FN void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const T* at, ulong stride = 8, ulong2 origin = ulong2(0),
                           bool transpose = false MSL_SITE) {
    msl_note_matrix(at, stride, origin, false MSL_HERE);
    msl_move(d.msl_e, const_cast<T*>(at), stride, origin, transpose, false);
}
template <class T>
MSL_FN void simdgroup_store(simdgroup_matrix<T, 8, 8> s, T* at, ulong stride = 8, ulong2 origin = ulong2(0),
                            bool transpose = false MSL_SITE) {
    msl_note_matrix(at, stride, origin, true MSL_HERE);
    msl_move(s.msl_e, at, stride, origin, transpose, true);
}

template <class D, class A, class B, class C> struct MslProduct {
    D* d;
    const A* a;
    const B* b;
    const C* c;
};
template <class D, class A, class B, class C>
MSL_PLAIN void msl_multiply_all() {
    typedef MslProduct<D, A, B, C> Product;
    float a[64], b[64], c[64];
    const Product* lanes[32];
    for (uint lane = 0; lane < 32; lane++) {
        const Product& p = *(lanes[lane] = static_cast<const Product*>(msl_rt_deposit(lane)));
        for (uint i = 0; i < 2; i++) {
            a[2 * lane + i] = msl_value(p.a + i);
            b[2 * lane + i] = msl_value(p.b + i);
            c[2 * lane + i] = p.c ? msl_value(p.c + i) : 0.0f;
        }
    }
    for (uint row = 0; row < 8; row++) {
        for (uint k = 0; k < 8; k++) {
            for (uint column = 0; column < 8; column++) c[row * 8 + column] += a[row * 8 + k] * b[k * 8 + column];
        }
    }
    for (uint lane = 0; lane < 32; lane++) {
        for (uint i = 0; i < 2; i++) lanes[lane]->d[i] = D(c[2 * lane + i]);
    }
}

template <class D, class A, class B, class C>
MSL_FN void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                          simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c MSL_SITE) {
    static_assert(is_same_v<A, B> && is_same_v<C, D>, "both inputs have one type, result and addend have one type");
    MslProduct<D, A, B, C> mine{d.msl_e, a.msl_e, b.msl_e, c.msl_e};
    if (msl_rt_gather(1, &mine MSL_HERE)) {
        msl_multiply_all<D, A, B, C>();
        msl_rt_release();
    }
}
template <class D, class A, class B>
MSL_FN void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b MSL_SITE) {
    static_assert(is_same_v<A, B>, "both inputs have one type");
    MslProduct<D, A, B, D> mine{d.msl_e, a.msl_e, b.msl_e, nullptr};
    if (msl_rt_gather(1, &mine MSL_HERE)) {
        msl_multiply_all<D, A, B, D>();
        msl_rt_release();
    }
}

}  // namespace metal
