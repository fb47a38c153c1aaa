// Arguments of a kernel as the translator passes them: objects that convert to whatever type the parameter has, so that
// nothing outside the C++ compiler has to understand types.

namespace metal {

struct MslPointer {
    void* at;
    template <class T> MSL_FN operator T*() const { return reinterpret_cast<T*>(at); }
};
struct MslReference {
    void* at;
    template <class T> MSL_FN operator T&() const { return *reinterpret_cast<T*>(at); }
};
struct MslPosition {
    uint x, y, z;
    MSL_FN operator uint() const { return x; }
    MSL_FN operator ushort() const { return ushort(x); }
    MSL_FN operator uint2() const { return uint2(x, y); }
    MSL_FN operator uint3() const { return uint3(x, y, z); }
    MSL_FN operator ushort2() const { return ushort2(ushort(x), ushort(y)); }
    MSL_FN operator ushort3() const { return ushort3(ushort(x), ushort(y), ushort(z)); }
};
struct MslIndex {
    uint x;
    MSL_FN operator uint() const { return x; }
    MSL_FN operator ushort() const { return ushort(x); }
};

#define MSL_TRIPLE(A) MslPosition { A[0], A[1], A[2] }
#define MSL_BUILTIN_thread_position_in_grid(t)                                                                            \
    MslPosition { t.group[0] * t.size[0] + t.local[0], t.group[1] * t.size[1] + t.local[1], t.group[2] * t.size[2] + t.local[2] }
#define MSL_BUILTIN_threadgroup_position_in_grid(t) MSL_TRIPLE(t.group)
#define MSL_BUILTIN_thread_position_in_threadgroup(t) MSL_TRIPLE(t.local)
#define MSL_BUILTIN_threads_per_threadgroup(t) MSL_TRIPLE(t.size)
#define MSL_BUILTIN_dispatch_threads_per_threadgroup(t) MSL_TRIPLE(t.size)
#define MSL_BUILTIN_threadgroups_per_grid(t) MSL_TRIPLE(t.grid)
#define MSL_BUILTIN_threads_per_grid(t)                                                                                   \
    MslPosition { t.grid[0] * t.size[0], t.grid[1] * t.size[1], t.grid[2] * t.size[2] }
#define MSL_BUILTIN_thread_index_in_threadgroup(t) MslIndex { t.index }
#define MSL_BUILTIN_thread_index_in_simdgroup(t) MslIndex { t.index % 32 }
#define MSL_BUILTIN_simdgroup_index_in_threadgroup(t) MslIndex { t.index / 32 }
#define MSL_BUILTIN_thread_index_in_quadgroup(t) MslIndex { t.index % 4 }
#define MSL_BUILTIN_quadgroup_index_in_threadgroup(t) MslIndex { t.index / 4 }
#define MSL_BUILTIN_threads_per_simdgroup(t) MslIndex { 32 }
#define MSL_BUILTIN_simdgroups_per_threadgroup(t) MslIndex { (t.size[0] * t.size[1] * t.size[2] + 31) / 32 }
#define MSL_BUILTIN_dispatch_simdgroups_per_threadgroup(t) MSL_BUILTIN_simdgroups_per_threadgroup(t)

}  // namespace metal
