// Simdgroup functions and atomics on top of a backend's few primitives (exchange, reduce, ballot, atomic).
// All of them need every lane of the simdgroup; sums and shuffles take float, int and uint (rule 6), shuffles also vectors.

#ifdef MSL_CUDA
#define MSL_SITE
#define MSL_HERE
#endif

namespace metal {

enum : uint { MSL_SUM, MSL_PRODUCT, MSL_MIN, MSL_MAX, MSL_AND, MSL_OR, MSL_XOR };

#define MSL_REDUCE(N, OP, W, T) MSL_FN T N(T v MSL_SITE) { return msl_reduce(v, OP, W MSL_HERE); }
#define MSL_REDUCE_ALL(N, OP, W)                                                                                          \
    MSL_REDUCE(N, OP, W, float) MSL_REDUCE(N, OP, W, int) MSL_REDUCE(N, OP, W, uint)                                       \
    half N(half) = delete;                                                                                                \
    bfloat N(bfloat) = delete;
MSL_REDUCE_ALL(simd_sum, MSL_SUM, 32) MSL_REDUCE_ALL(simd_product, MSL_PRODUCT, 32)
MSL_REDUCE_ALL(simd_min, MSL_MIN, 32) MSL_REDUCE_ALL(simd_max, MSL_MAX, 32)
MSL_REDUCE_ALL(quad_sum, MSL_SUM, 4) MSL_REDUCE_ALL(quad_min, MSL_MIN, 4) MSL_REDUCE_ALL(quad_max, MSL_MAX, 4)
MSL_REDUCE(simd_and, MSL_AND, 32, uint) MSL_REDUCE(simd_or, MSL_OR, 32, uint) MSL_REDUCE(simd_xor, MSL_XOR, 32, uint)
MSL_REDUCE(simd_and, MSL_AND, 32, int) MSL_REDUCE(simd_or, MSL_OR, 32, int) MSL_REDUCE(simd_xor, MSL_XOR, 32, int)

template <class T> constexpr bool msl_shuffles = is_same_v<T, float> || is_same_v<T, int> || is_same_v<T, uint>;
template <class T, int N> constexpr bool msl_shuffles<vec<T, N>> = msl_shuffles<T>;
#define MSL_SHUFFLE(N, FROM)                                                                                              \
    template <class T> MSL_FN T N(T v, ushort n MSL_SITE) {                                                          \
        static_assert(msl_shuffles<T>, "simd shuffles take float, int, uint and their vectors");                          \
        uint lane = msl_lane();                                                                                           \
        return msl_exchange(v, (FROM) & 31u MSL_HERE);                                                                    \
    }
MSL_SHUFFLE(simd_shuffle, (void(lane), uint(n)))
MSL_SHUFFLE(simd_broadcast, (void(lane), uint(n)))
MSL_SHUFFLE(simd_shuffle_xor, lane ^ n)
MSL_SHUFFLE(simd_shuffle_up, lane >= n ? lane - n : lane)
MSL_SHUFFLE(simd_shuffle_down, lane + n < 32u ? lane + n : lane)
MSL_SHUFFLE(simd_shuffle_rotate_up, lane - n)
MSL_SHUFFLE(simd_shuffle_rotate_down, lane + n)
MSL_SHUFFLE(quad_shuffle, (lane & ~3u) | (n & 3u))
MSL_SHUFFLE(quad_broadcast, (lane & ~3u) | (n & 3u))
MSL_SHUFFLE(quad_shuffle_xor, (lane & ~3u) | ((lane ^ n) & 3u))
template <class T> MSL_FN T simd_broadcast_first(T v MSL_SITE) { return msl_exchange(v, 0u MSL_HERE); }
template <class T> MSL_FN T simd_shuffle_and_fill_up(T v, T fill, ushort n MSL_SITE) {
    uint lane = msl_lane();
    T got = msl_exchange(v, (lane - n) & 31u MSL_HERE);
    T filled = msl_exchange(fill, (lane - n) & 31u MSL_HERE);
    return lane >= n ? got : filled;
}
template <class T> MSL_FN T simd_shuffle_and_fill_down(T v, T fill, ushort n MSL_SITE) {
    uint lane = msl_lane();
    T got = msl_exchange(v, (lane + n) & 31u MSL_HERE);
    T filled = msl_exchange(fill, (lane + n) & 31u MSL_HERE);
    return lane + n < 32u ? got : filled;
}
template <class T> MSL_FN T simd_prefix_inclusive_sum(T v MSL_SITE) {
    uint lane = msl_lane();
    for (uint d = 1; d < 32u; d *= 2u) {
        T got = msl_exchange(v, (lane - d) & 31u MSL_HERE);
        if (lane >= d) v = v + got;
    }
    return v;
}
template <class T> MSL_FN T simd_prefix_exclusive_sum(T v MSL_SITE) {
    T sum = simd_prefix_inclusive_sum(v MSL_HERE);
    T got = msl_exchange(sum, (msl_lane() - 1u) & 31u MSL_HERE);
    return msl_lane() == 0u ? T(0) : got;
}

struct simd_vote {
    typedef ulong vote_t;
    vote_t msl_votes;
    explicit MSL_FN operator vote_t() const { return msl_votes; }
    MSL_FN bool all() const { return msl_votes == 0xfffffffful; }
    MSL_FN bool any() const { return msl_votes != 0ul; }
};
MSL_FN simd_vote simd_ballot(bool v MSL_SITE) { return simd_vote{msl_ballot(v MSL_HERE)}; }
MSL_FN bool simd_all(bool v MSL_SITE) { return msl_ballot(v MSL_HERE) == 0xfffffffful; }
MSL_FN bool simd_any(bool v MSL_SITE) { return msl_ballot(v MSL_HERE) != 0ul; }
#define simd_is_first() (metal::msl_lane() == 0u)

// Atomics: 32-bit, relaxed.
template <class T> struct atomic {
    static_assert(is_same_v<T, int> || is_same_v<T, uint> || is_same_v<T, float>, "atomics are int, uint or float");
    T msl_value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
enum : uint { MSL_LOAD, MSL_STORE, MSL_EXCHANGE, MSL_COMPARE, MSL_ADD, MSL_SUB, MSL_AMIN, MSL_AMAX, MSL_AAND, MSL_AOR, MSL_AXOR };
template <class T> struct msl_same { typedef T type; };
template <class T> using msl_same_t = typename msl_same<T>::type;
template <class T> MSL_FN T atomic_load_explicit(const volatile atomic<T>* p, memory_order MSL_SITE) {
    return msl_atomic(const_cast<T*>(&p->msl_value), MSL_LOAD, T(0), T(0) MSL_HERE);
}
template <class T> MSL_FN void atomic_store_explicit(volatile atomic<T>* p, msl_same_t<T> v, memory_order MSL_SITE) {
    msl_atomic(const_cast<T*>(&p->msl_value), MSL_STORE, v, T(0) MSL_HERE);
}
#define MSL_RMW(N, OP)                                                                                                    \
    template <class T> MSL_FN T N(volatile atomic<T>* p, msl_same_t<T> v, memory_order MSL_SITE) {                   \
        return msl_atomic(const_cast<T*>(&p->msl_value), OP, v, T(0) MSL_HERE);                                           \
    }
MSL_RMW(atomic_exchange_explicit, MSL_EXCHANGE) MSL_RMW(atomic_fetch_add_explicit, MSL_ADD)
MSL_RMW(atomic_fetch_sub_explicit, MSL_SUB) MSL_RMW(atomic_fetch_min_explicit, MSL_AMIN)
MSL_RMW(atomic_fetch_max_explicit, MSL_AMAX) MSL_RMW(atomic_fetch_and_explicit, MSL_AAND)
MSL_RMW(atomic_fetch_or_explicit, MSL_AOR) MSL_RMW(atomic_fetch_xor_explicit, MSL_AXOR)
template <class T>
MSL_FN bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* p, T* expected, msl_same_t<T> desired, memory_order,
                                                  memory_order MSL_SITE) {
    T old = msl_atomic(const_cast<T*>(&p->msl_value), MSL_COMPARE, desired, *expected MSL_HERE);
    bool same = as_type<uint>(old) == as_type<uint>(*expected);
    *expected = old;
    return same;
}

}  // namespace metal
