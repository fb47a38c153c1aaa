// Scalar and vector types of Metal Shading Language as C++ classes, for g++, clang++ and NVRTC.
// Knows no threads and no memory model. Stricter than Metal where Metal's own rules are easy to break: conversions to half
// and bfloat and between vector types are explicit, swizzles longer than one letter are calls (the translator writes them).

#ifdef MSL_CUDA
#define MSL_FN __device__ __forceinline__
#define MSL_COPY ::memcpy
#else
#define MSL_FN inline __attribute__((always_inline))
#define MSL_COPY __builtin_memcpy
#endif

#ifdef MSL_STRICT
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#else
#define device
#define constant
#define threadgroup
#define thread
#endif

namespace metal {

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;

template <bool C, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool C, class T = void> using enable_if_t = typename enable_if<C, T>::type;
template <class A, class B> struct is_same { static constexpr bool value = false; };
template <class A> struct is_same<A, A> { static constexpr bool value = true; };
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <bool C, class A, class B> struct conditional { typedef A type; };
template <class A, class B> struct conditional<false, A, B> { typedef B type; };
template <bool C, class A, class B> using conditional_t = typename conditional<C, A, B>::type;
template <class T> struct remove_cv { typedef T type; };
template <class T> struct remove_cv<const T> { typedef T type; };
template <class T> struct remove_cv<volatile T> { typedef T type; };
template <class T> struct remove_cv<const volatile T> { typedef T type; };
#ifdef MSL_STRICT
#define MSL_REMOVE_SPACE(SPACE)                                                                                           \
    template <class T> struct remove_cv<SPACE T> { typedef T type; };                                                     \
    template <class T> struct remove_cv<const SPACE T> { typedef T type; };
MSL_REMOVE_SPACE(__global) MSL_REMOVE_SPACE(__local) MSL_REMOVE_SPACE(__constant)
#endif
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> using remove_addrspace_t = T;
#define __remove_addrspace_t(T) T

template <class T> struct is_integral { static constexpr bool value = false; };
#define MSL_INTEGRAL(T) template <> struct is_integral<T> { static constexpr bool value = true; };
MSL_INTEGRAL(bool) MSL_INTEGRAL(char) MSL_INTEGRAL(signed char) MSL_INTEGRAL(unsigned char) MSL_INTEGRAL(short)
MSL_INTEGRAL(unsigned short) MSL_INTEGRAL(int) MSL_INTEGRAL(unsigned int) MSL_INTEGRAL(long) MSL_INTEGRAL(unsigned long)
MSL_INTEGRAL(long long) MSL_INTEGRAL(unsigned long long)
template <class T> constexpr bool is_integral_v = is_integral<T>::value;
template <class T> constexpr bool is_builtin_v = is_integral_v<T> || is_same_v<T, float>;
template <class T> constexpr bool is_floating_point_v = is_same_v<T, float>;

template <class To, class From> MSL_FN To as_type(From value) {
    static_assert(sizeof(To) == sizeof(From), "as_type needs types of one size");
    To out;
    MSL_COPY(&out, &value, sizeof(To));
    return out;
}

MSL_FN float msl_half_to_float(ushort bits) {
#ifdef MSL_CUDA
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
    return out;
#else
    return float(as_type<_Float16>(bits));
#endif
}
MSL_FN ushort msl_float_to_half(float value) {
#ifdef MSL_CUDA
    ushort out;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(value));
    return out;
#else
    return as_type<ushort>(_Float16(value));
#endif
}
MSL_FN float msl_bfloat_to_float(ushort bits) { return as_type<float>(uint(bits) << 16); }
MSL_FN ushort msl_float_to_bfloat(float value) {
#ifdef MSL_CUDA
    ushort out;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(value));
    return out;
#else
    uint bits = as_type<uint>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return ushort((bits >> 16) | 64u);
    return ushort((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

// 16-bit floats: storage is the bit pattern, arithmetic is one f32 operation rounded once.
#define MSL_HALF_TYPE(H, TO, FROM)                                                                                        \
    struct H {                                                                                                            \
        ushort msl_bits;                                                                                                  \
        H() = default;                                                                                                    \
        template <class T, class = enable_if_t<is_builtin_v<T>>>                                                          \
        explicit MSL_FN H(T value) : msl_bits(FROM(float(value))) {}                                                      \
        MSL_FN operator float() const { return TO(msl_bits); }                                                            \
        MSL_FN H& operator+=(H b) { return *this = H(float(*this) + float(b)); }                                          \
        MSL_FN H& operator-=(H b) { return *this = H(float(*this) - float(b)); }                                          \
        MSL_FN H& operator*=(H b) { return *this = H(float(*this) * float(b)); }                                          \
        MSL_FN H& operator/=(H b) { return *this = H(float(*this) / float(b)); }                                          \
    };                                                                                                                    \
    MSL_FN H operator-(H a) { return as_type<H>(ushort(a.msl_bits ^ 0x8000)); }                                           \
    MSL_HALF_OP(H, +) MSL_HALF_OP(H, -) MSL_HALF_OP(H, *) MSL_HALF_OP(H, /)
#define MSL_HALF_OP(H, OP)                                                                                                \
    MSL_FN H operator OP(H a, H b) { return H(float(a) OP float(b)); }                                                    \
    template <class I, class = enable_if_t<is_integral_v<I>>> MSL_FN H operator OP(H a, I b) {                            \
        return H(float(a) OP float(b));                                                                                   \
    }                                                                                                                     \
    template <class I, class = enable_if_t<is_integral_v<I>>> MSL_FN H operator OP(I a, H b) {                            \
        return H(float(a) OP float(b));                                                                                   \
    }
MSL_HALF_TYPE(half, msl_half_to_float, msl_float_to_half)
MSL_HALF_TYPE(bfloat, msl_bfloat_to_float, msl_float_to_bfloat)
typedef bfloat bfloat16_t;

template <class T, int N> struct vec;

// A selection of components as the target of an assignment; reading a selection gives a vec.
template <class T, int A, int B> struct msl_swizzle2 {
    T* at;
    MSL_FN vec<T, 2> read() const { return vec<T, 2>(at[A], at[B]); }
    MSL_FN void operator=(vec<T, 2> v) { at[A] = v.x; at[B] = v.y; }
    MSL_FN void operator+=(vec<T, 2> v) { *this = read() + v; }
    MSL_FN void operator-=(vec<T, 2> v) { *this = read() - v; }
    MSL_FN void operator*=(vec<T, 2> v) { *this = read() * v; }
    MSL_FN void operator/=(vec<T, 2> v) { *this = read() / v; }
};

#define MSL_ARITH_FRIENDS(V, OP, E)                                                                                       \
    friend MSL_FN V operator OP(V a, V b) { return E; }                                                                   \
    friend MSL_FN V operator OP(V a, T s) { return a OP V(s); }                                                           \
    friend MSL_FN V operator OP(T s, V b) { return V(s) OP b; }                                                           \
    MSL_FN V& operator OP##=(V b) { return *this = *this OP b; }                                                          \
    MSL_FN V& operator OP##=(T s) { return *this = *this OP V(s); }
#define MSL_COMPARE_FRIENDS(V, B, OP, E)                                                                                  \
    friend MSL_FN B operator OP(V a, V b) { return E; }                                                                   \
    friend MSL_FN B operator OP(V a, T s) { return a OP V(s); }                                                           \
    friend MSL_FN B operator OP(T s, V b) { return V(s) OP b; }

#define MSL_E2(OP) V(T(a.x OP b.x), T(a.y OP b.y))
#define MSL_E3(OP) V(T(a.x OP b.x), T(a.y OP b.y), T(a.z OP b.z))
#define MSL_E4(OP) V(T(a.x OP b.x), T(a.y OP b.y), T(a.z OP b.z), T(a.w OP b.w))
#define MSL_B2(OP) B(a.x OP b.x, a.y OP b.y)
#define MSL_B3(OP) B(a.x OP b.x, a.y OP b.y, a.z OP b.z)
#define MSL_B4(OP) B(a.x OP b.x, a.y OP b.y, a.z OP b.z, a.w OP b.w)
#define MSL_VEC_OPERATORS(E, C)                                                                                           \
    MSL_ARITH_FRIENDS(V, +, E(+)) MSL_ARITH_FRIENDS(V, -, E(-)) MSL_ARITH_FRIENDS(V, *, E(*)) MSL_ARITH_FRIENDS(V, /, E(/)) \
    MSL_ARITH_FRIENDS(V, %, E(%)) MSL_ARITH_FRIENDS(V, &, E(&)) MSL_ARITH_FRIENDS(V, |, E(|)) MSL_ARITH_FRIENDS(V, ^, E(^)) \
    MSL_ARITH_FRIENDS(V, <<, E(<<)) MSL_ARITH_FRIENDS(V, >>, E(>>))                                                        \
    MSL_COMPARE_FRIENDS(V, B, <, C(<)) MSL_COMPARE_FRIENDS(V, B, >, C(>)) MSL_COMPARE_FRIENDS(V, B, <=, C(<=))             \
    MSL_COMPARE_FRIENDS(V, B, >=, C(>=)) MSL_COMPARE_FRIENDS(V, B, ==, C(==)) MSL_COMPARE_FRIENDS(V, B, !=, C(!=))         \
    friend MSL_FN V operator-(V a) { return V(T(0)) - a; }                                                                \
    friend MSL_FN V operator~(V a) { return a ^ V(T(-1)); }                                                               \
    friend MSL_FN B operator!(V a) { return a == V(T(0)); }                                                               \
    MSL_FN T& operator[](int i) { return reinterpret_cast<T*>(this)[i]; }                                                 \
    MSL_FN const T& operator[](int i) const { return reinterpret_cast<const T*>(this)[i]; }

#define MSL_READ2(N, A, B) MSL_FN vec<T, 2> N() const { return vec<T, 2>(A, B); }
#define MSL_READ3(N, A, B, C) MSL_FN vec<T, 3> N() const { return vec<T, 3>(A, B, C); }
#define MSL_READ4(N, A, B, C, D) MSL_FN vec<T, 4> N() const { return vec<T, 4>(A, B, C, D); }
#define MSL_WRITE2(N, A, B) MSL_FN msl_swizzle2<T, A, B> msl_to_##N() { return {reinterpret_cast<T*>(this)}; }

template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
    typedef vec V;
    typedef vec<bool, 2> B;
    T x, y;
    vec() = default;
    MSL_FN constexpr vec(T s) : x(s), y(s) {}
    MSL_FN constexpr vec(T a, T b) : x(a), y(b) {}
    template <class U> explicit MSL_FN vec(vec<U, 2> v) : x(T(v.x)), y(T(v.y)) {}
    MSL_VEC_OPERATORS(MSL_E2, MSL_B2)
    MSL_READ2(xy, x, y) MSL_WRITE2(xy, 0, 1) MSL_READ2(yx, y, x) MSL_WRITE2(yx, 1, 0) MSL_READ2(xx, x, x) MSL_READ2(yy, y, y)
    MSL_READ4(xxyy, x, x, y, y) MSL_READ4(xyxy, x, y, x, y)
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
    typedef vec V;
    typedef vec<bool, 3> B;
    T x, y, z;
    vec() = default;
    MSL_FN constexpr vec(T s) : x(s), y(s), z(s) {}
    MSL_FN constexpr vec(T a, T b, T c) : x(a), y(b), z(c) {}
    MSL_FN constexpr vec(vec<T, 2> a, T c) : x(a.x), y(a.y), z(c) {}
    MSL_FN constexpr vec(T a, vec<T, 2> b) : x(a), y(b.x), z(b.y) {}
    template <class U> explicit MSL_FN vec(vec<U, 3> v) : x(T(v.x)), y(T(v.y)), z(T(v.z)) {}
    MSL_VEC_OPERATORS(MSL_E3, MSL_B3)
    MSL_READ2(xy, x, y) MSL_WRITE2(xy, 0, 1) MSL_READ2(yz, y, z) MSL_WRITE2(yz, 1, 2) MSL_READ2(xz, x, z)
    MSL_READ3(xyz, x, y, z) MSL_READ3(zyx, z, y, x) MSL_READ3(yzx, y, z, x) MSL_READ3(zxy, z, x, y)
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
    typedef vec V;
    typedef vec<bool, 4> B;
    T x, y, z, w;
    vec() = default;
    MSL_FN constexpr vec(T s) : x(s), y(s), z(s), w(s) {}
    MSL_FN constexpr vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
    MSL_FN constexpr vec(vec<T, 2> a, vec<T, 2> b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
    MSL_FN constexpr vec(vec<T, 2> a, T c, T d) : x(a.x), y(a.y), z(c), w(d) {}
    MSL_FN constexpr vec(T a, T b, vec<T, 2> c) : x(a), y(b), z(c.x), w(c.y) {}
    MSL_FN constexpr vec(vec<T, 3> a, T d) : x(a.x), y(a.y), z(a.z), w(d) {}
    MSL_FN constexpr vec(T a, vec<T, 3> b) : x(a), y(b.x), z(b.y), w(b.z) {}
    template <class U> explicit MSL_FN vec(vec<U, 4> v) : x(T(v.x)), y(T(v.y)), z(T(v.z)), w(T(v.w)) {}
    MSL_VEC_OPERATORS(MSL_E4, MSL_B4)
    MSL_READ2(xy, x, y) MSL_WRITE2(xy, 0, 1) MSL_READ2(zw, z, w) MSL_WRITE2(zw, 2, 3) MSL_READ2(yz, y, z) MSL_WRITE2(yz, 1, 2)
    MSL_READ2(xz, x, z) MSL_WRITE2(xz, 0, 2) MSL_READ2(yw, y, w) MSL_WRITE2(yw, 1, 3) MSL_READ2(xw, x, w) MSL_READ2(yx, y, x)
    MSL_READ2(wz, w, z)
    MSL_READ3(xyz, x, y, z) MSL_READ3(yzw, y, z, w) MSL_READ4(xyzw, x, y, z, w) MSL_READ4(wzyx, w, z, y, x)
    MSL_READ4(yxwz, y, x, w, z) MSL_READ4(zwxy, z, w, x, y)
};

// Vectors without alignment padding, for structures and odd strides.
template <class T, int N> struct msl_packed {
    T s[N];
    msl_packed() = default;
    MSL_FN msl_packed(vec<T, N> v) { for (int i = 0; i < N; i++) s[i] = v[i]; }
    MSL_FN operator vec<T, N>() const { vec<T, N> v; for (int i = 0; i < N; i++) v[i] = s[i]; return v; }
    MSL_FN T& operator[](int i) { return s[i]; }
    MSL_FN const T& operator[](int i) const { return s[i]; }
};

#define MSL_VECTOR_NAMES(T)                                                                                               \
    typedef vec<T, 2> T##2;                                                                                               \
    typedef vec<T, 3> T##3;                                                                                               \
    typedef vec<T, 4> T##4;                                                                                               \
    typedef msl_packed<T, 2> packed_##T##2;                                                                               \
    typedef msl_packed<T, 3> packed_##T##3;                                                                               \
    typedef msl_packed<T, 4> packed_##T##4;
MSL_VECTOR_NAMES(bool) MSL_VECTOR_NAMES(char) MSL_VECTOR_NAMES(uchar) MSL_VECTOR_NAMES(short) MSL_VECTOR_NAMES(ushort)
MSL_VECTOR_NAMES(int) MSL_VECTOR_NAMES(uint) MSL_VECTOR_NAMES(long) MSL_VECTOR_NAMES(ulong) MSL_VECTOR_NAMES(float)
MSL_VECTOR_NAMES(half) MSL_VECTOR_NAMES(bfloat)

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4, mem_device_and_threadgroup = 3 };
MSL_FN constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
enum memory_order { memory_order_relaxed = 0, memory_order_seq_cst = 5 };
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };

template <class T, size_t N> struct array {
    T msl_items[N];
    MSL_FN constexpr T& operator[](size_t i) { return msl_items[i]; }
    MSL_FN constexpr const T& operator[](size_t i) const { return msl_items[i]; }
    MSL_FN constexpr size_t size() const { return N; }
};

}  // namespace metal
