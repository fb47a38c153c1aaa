// The Metal standard library's arithmetic: common, math, integer, geometric and relational functions.
// f32 goes to the compiler's own functions; 16-bit floats are computed in f32 and rounded once; vectors go lane by lane.

namespace metal {

#ifdef MSL_CUDA
#define MSL_F1(N, C) MSL_FN float msl_##N(float x) { return ::C(x); }
#define MSL_F2(N, C) MSL_FN float msl_##N(float x, float y) { return ::C(x, y); }
MSL_FN float msl_fma(float x, float y, float z) { return ::fmaf(x, y, z); }
MSL_FN float msl_rsqrt(float x) { return ::rsqrtf(x); }
MSL_FN float msl_ldexp(float x, int n) { return ::ldexpf(x, n); }
MSL_FN int msl_popcount(uint x) { return ::__popc(x); }
MSL_FN int msl_clz(uint x) { return ::__clz(int(x)); }
MSL_FN uint msl_mulhi(uint a, uint b) { return ::__umulhi(a, b); }
#else
#define MSL_F1(N, C) MSL_FN float msl_##N(float x) { return __builtin_##C(x); }
#define MSL_F2(N, C) MSL_FN float msl_##N(float x, float y) { return __builtin_##C(x, y); }
MSL_FN float msl_fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
MSL_FN float msl_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
MSL_FN float msl_ldexp(float x, int n) { return __builtin_ldexpf(x, n); }
MSL_FN int msl_popcount(uint x) { return __builtin_popcount(x); }
MSL_FN int msl_clz(uint x) { return x ? __builtin_clz(x) : 32; }
MSL_FN uint msl_mulhi(uint a, uint b) { return uint((ulong(a) * b) >> 32); }
#endif
MSL_F1(sqrt, sqrtf) MSL_F1(exp, expf) MSL_F1(exp2, exp2f) MSL_F1(log, logf) MSL_F1(log2, log2f) MSL_F1(log10, log10f)
MSL_F1(sin, sinf) MSL_F1(cos, cosf) MSL_F1(tan, tanf) MSL_F1(asin, asinf) MSL_F1(acos, acosf) MSL_F1(atan, atanf)
MSL_F1(sinh, sinhf) MSL_F1(cosh, coshf) MSL_F1(tanh, tanhf) MSL_F1(floor, floorf) MSL_F1(ceil, ceilf) MSL_F1(trunc, truncf)
MSL_F1(rint, rintf) MSL_F1(round, roundf) MSL_F1(fabs, fabsf)
MSL_F2(pow, powf) MSL_F2(atan2, atan2f) MSL_F2(fmod, fmodf) MSL_F2(fmin, fminf) MSL_F2(fmax, fmaxf)
MSL_F2(copysign, copysignf)
MSL_FN float msl_exp10(float x) { return msl_exp2(x * 3.32192809488736f); }
MSL_FN float msl_fract(float x) { return msl_fmin(x - msl_floor(x), 0.99999994f); }
MSL_FN float msl_sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }
MSL_FN float msl_saturate(float x) { return msl_fmin(msl_fmax(x, 0.0f), 1.0f); }
MSL_FN float msl_step(float e, float x) { return x < e ? 0.0f : 1.0f; }

// One-argument functions for float, half, bfloat and their vectors.
#define MSL_V1(N)                                                                                                         \
    template <class T> MSL_FN vec<T, 2> N(vec<T, 2> a) { return vec<T, 2>(N(a.x), N(a.y)); }                              \
    template <class T> MSL_FN vec<T, 3> N(vec<T, 3> a) { return vec<T, 3>(N(a.x), N(a.y), N(a.z)); }                      \
    template <class T> MSL_FN vec<T, 4> N(vec<T, 4> a) { return vec<T, 4>(N(a.x), N(a.y), N(a.z), N(a.w)); }
#define MSL_V2(N)                                                                                                         \
    template <class T> MSL_FN vec<T, 2> N(vec<T, 2> a, vec<T, 2> b) { return vec<T, 2>(N(a.x, b.x), N(a.y, b.y)); }       \
    template <class T> MSL_FN vec<T, 3> N(vec<T, 3> a, vec<T, 3> b) {                                                     \
        return vec<T, 3>(N(a.x, b.x), N(a.y, b.y), N(a.z, b.z));                                                          \
    }                                                                                                                     \
    template <class T> MSL_FN vec<T, 4> N(vec<T, 4> a, vec<T, 4> b) {                                                     \
        return vec<T, 4>(N(a.x, b.x), N(a.y, b.y), N(a.z, b.z), N(a.w, b.w));                                             \
    }
#define MSL_V3(N)                                                                                                         \
    template <class T, int L> MSL_FN vec<T, L> N(vec<T, L> a, vec<T, L> b, vec<T, L> c) {                                 \
        vec<T, L> r;                                                                                                      \
        for (int i = 0; i < L; i++) r[i] = N(a[i], b[i], c[i]);                                                           \
        return r;                                                                                                         \
    }
#define MSL_MATH1(N)                                                                                                      \
    MSL_FN float N(float x) { return msl_##N(x); }                                                                        \
    MSL_FN half N(half x) { return half(msl_##N(float(x))); }                                                             \
    MSL_FN bfloat N(bfloat x) { return bfloat(msl_##N(float(x))); }                                                       \
    MSL_V1(N)
#define MSL_MATH2(N)                                                                                                      \
    MSL_FN float N(float x, float y) { return msl_##N(x, y); }                                                            \
    MSL_FN half N(half x, half y) { return half(msl_##N(float(x), float(y))); }                                           \
    MSL_FN bfloat N(bfloat x, bfloat y) { return bfloat(msl_##N(float(x), float(y))); }                                   \
    MSL_V2(N)
MSL_MATH1(sqrt) MSL_MATH1(rsqrt) MSL_MATH1(exp) MSL_MATH1(exp2) MSL_MATH1(exp10) MSL_MATH1(log) MSL_MATH1(log2)
MSL_MATH1(log10) MSL_MATH1(sin) MSL_MATH1(cos) MSL_MATH1(tan) MSL_MATH1(asin) MSL_MATH1(acos) MSL_MATH1(atan)
MSL_MATH1(sinh) MSL_MATH1(cosh) MSL_MATH1(tanh) MSL_MATH1(floor) MSL_MATH1(ceil) MSL_MATH1(trunc) MSL_MATH1(rint)
MSL_MATH1(round) MSL_MATH1(fabs) MSL_MATH1(fract) MSL_MATH1(sign) MSL_MATH1(saturate)
MSL_MATH2(pow) MSL_MATH2(atan2) MSL_MATH2(fmod) MSL_MATH2(fmin) MSL_MATH2(fmax) MSL_MATH2(copysign) MSL_MATH2(step)
MSL_FN float powr(float x, float y) { return msl_pow(x, y); }
MSL_FN float ldexp(float x, int n) { return msl_ldexp(x, n); }
MSL_FN float fma(float x, float y, float z) { return msl_fma(x, y, z); }
MSL_FN half fma(half x, half y, half z) { return half(msl_fma(x, y, z)); }
MSL_V3(fma)

// min, max, abs and clamp for every scalar type; mixed types do not resolve, as in Metal.
#define MSL_ORDER(T)                                                                                                      \
    MSL_FN T min(T a, T b) { return b < a ? b : a; }                                                                      \
    MSL_FN T max(T a, T b) { return a < b ? b : a; }                                                                      \
    MSL_FN T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); }
MSL_ORDER(char) MSL_ORDER(signed char) MSL_ORDER(uchar) MSL_ORDER(short) MSL_ORDER(ushort) MSL_ORDER(int) MSL_ORDER(uint)
MSL_ORDER(long) MSL_ORDER(ulong) MSL_ORDER(half) MSL_ORDER(bfloat)
MSL_FN float min(float a, float b) { return msl_fmin(a, b); }
MSL_FN float max(float a, float b) { return msl_fmax(a, b); }
MSL_FN float clamp(float x, float lo, float hi) { return msl_fmin(msl_fmax(x, lo), hi); }
MSL_V2(min) MSL_V2(max) MSL_V3(clamp)
template <class T, int N> MSL_FN vec<T, N> min(vec<T, N> a, T b) { return min(a, vec<T, N>(b)); }
template <class T, int N> MSL_FN vec<T, N> max(vec<T, N> a, T b) { return max(a, vec<T, N>(b)); }
template <class T, int N> MSL_FN vec<T, N> clamp(vec<T, N> x, T lo, T hi) { return clamp(x, vec<T, N>(lo), vec<T, N>(hi)); }
MSL_FN int abs(int x) { return x < 0 ? -x : x; }
MSL_FN short abs(short x) { return short(x < 0 ? -x : x); }
MSL_FN long abs(long x) { return x < 0 ? -x : x; }
MSL_FN float abs(float x) { return msl_fabs(x); }
MSL_FN half abs(half x) { return as_type<half>(ushort(x.msl_bits & 0x7fff)); }
MSL_FN bfloat abs(bfloat x) { return as_type<bfloat>(ushort(x.msl_bits & 0x7fff)); }
MSL_V1(abs)
MSL_FN float mix(float a, float b, float t) { return a + (b - a) * t; }
MSL_FN half mix(half a, half b, half t) { return a + (b - a) * t; }
MSL_V3(mix)
template <int N> MSL_FN vec<float, N> mix(vec<float, N> a, vec<float, N> b, float t) { return a + (b - a) * t; }
MSL_FN float smoothstep(float a, float b, float x) {
    float t = msl_saturate((x - a) / (b - a));
    return t * t * (3.0f - 2.0f * t);
}

// Geometric.
template <class T> MSL_FN T dot(vec<T, 2> a, vec<T, 2> b) { return a.x * b.x + a.y * b.y; }
template <class T> MSL_FN T dot(vec<T, 3> a, vec<T, 3> b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
template <class T> MSL_FN T dot(vec<T, 4> a, vec<T, 4> b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
template <class T, int N> MSL_FN T length_squared(vec<T, N> a) { return dot(a, a); }
template <class T, int N> MSL_FN T length(vec<T, N> a) { return sqrt(dot(a, a)); }
template <class T, int N> MSL_FN vec<T, N> normalize(vec<T, N> a) { return a * rsqrt(dot(a, a)); }
template <class T> MSL_FN vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) {
    return vec<T, 3>(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}

// Integer.
MSL_FN uint popcount(uint x) { return uint(msl_popcount(x)); }
MSL_FN int popcount(int x) { return msl_popcount(uint(x)); }
MSL_FN uint clz(uint x) { return uint(msl_clz(x)); }
MSL_FN int clz(int x) { return msl_clz(uint(x)); }
MSL_FN uint ctz(uint x) { return x ? 31u - uint(msl_clz(x & (~x + 1u))) : 32u; }
MSL_FN int ctz(int x) { return int(ctz(uint(x))); }
MSL_FN uint mulhi(uint a, uint b) { return msl_mulhi(a, b); }
MSL_FN uint rotate(uint x, uint n) { n &= 31u; return n ? (x << n) | (x >> (32u - n)) : x; }
MSL_FN uint extract_bits(uint x, uint offset, uint bits) {
    return bits == 0 ? 0u : (x >> offset) & (bits >= 32u ? 0xffffffffu : (1u << bits) - 1u);
}
MSL_FN uint insert_bits(uint base, uint value, uint offset, uint bits) {
    uint mask = bits == 0 ? 0u : (bits >= 32u ? 0xffffffffu : (1u << bits) - 1u) << offset;
    return (base & ~mask) | ((value << offset) & mask);
}
MSL_FN uint reverse_bits(uint x) {
    uint r = 0;
    for (int i = 0; i < 32; i++) r |= ((x >> i) & 1u) << (31 - i);
    return r;
}

// Relational.
MSL_FN bool isnan(float x) { return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u; }
MSL_FN bool isinf(float x) { return (as_type<uint>(x) & 0x7fffffffu) == 0x7f800000u; }
MSL_FN bool isfinite(float x) { return (as_type<uint>(x) & 0x7f800000u) != 0x7f800000u; }
MSL_FN bool any(bool2 v) { return v.x || v.y; }
MSL_FN bool any(bool3 v) { return v.x || v.y || v.z; }
MSL_FN bool any(bool4 v) { return v.x || v.y || v.z || v.w; }
MSL_FN bool all(bool2 v) { return v.x && v.y; }
MSL_FN bool all(bool3 v) { return v.x && v.y && v.z; }
MSL_FN bool all(bool4 v) { return v.x && v.y && v.z && v.w; }
template <class T, class = enable_if_t<is_builtin_v<T> || is_same_v<T, half> || is_same_v<T, bfloat>>>
MSL_FN T select(T a, T b, bool c) { return c ? b : a; }
template <class T, int N> MSL_FN vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
    vec<T, N> r;
    for (int i = 0; i < N; i++) r[i] = c[i] ? b[i] : a[i];
    return r;
}

#define MSL_ALSO(N) using metal::N;
#define MSL_MATH_NAMES                                                                                                    \
    MSL_ALSO(exp) MSL_ALSO(exp2) MSL_ALSO(exp10) MSL_ALSO(log) MSL_ALSO(log2) MSL_ALSO(log10) MSL_ALSO(sin) MSL_ALSO(cos) \
    MSL_ALSO(tan) MSL_ALSO(tanh) MSL_ALSO(sqrt) MSL_ALSO(rsqrt) MSL_ALSO(pow) MSL_ALSO(powr) MSL_ALSO(fma) MSL_ALSO(fmin) \
    MSL_ALSO(fmax) MSL_ALSO(floor) MSL_ALSO(ceil) MSL_ALSO(round) MSL_ALSO(rint) MSL_ALSO(trunc) MSL_ALSO(fabs)           \
    MSL_ALSO(abs) MSL_ALSO(min) MSL_ALSO(max) MSL_ALSO(clamp) MSL_ALSO(saturate) MSL_ALSO(fmod) MSL_ALSO(sinh)            \
    MSL_ALSO(cosh) MSL_ALSO(asin) MSL_ALSO(acos) MSL_ALSO(atan) MSL_ALSO(atan2)                                           \
    MSL_FN float divide(float a, float b) { return a / b; }
namespace precise { MSL_MATH_NAMES }
namespace fast { MSL_MATH_NAMES }

}  // namespace metal

#define M_PI_F 3.14159265358979323846f
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f
#define FLT_MAX 3.402823466e38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-7f
#define HALF_MAX half(65504.0f)
#define INFINITY metal::as_type<float>(0x7f800000u)
#define NAN metal::as_type<float>(0x7fc00000u)
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
