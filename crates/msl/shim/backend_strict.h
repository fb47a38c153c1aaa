// What kernels need from the machine, declared only.

namespace metal {

uint msl_lane();
void threadgroup_barrier(mem_flags flags);
void simdgroup_barrier(mem_flags flags);
void atomic_thread_fence(mem_flags flags, memory_order order, thread_scope scope = thread_scope_device);
template <class T> T msl_exchange(T value, uint from);
template <class T> T msl_reduce(T value, uint op, uint width);
ulong msl_ballot(bool value);
template <class P, class T> T msl_atomic(P at, uint op, T a, T b);
template <class T> __local T* msl_threadgroup();

}  // namespace metal
