// Names that all CUDA texts use.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define FN static __device__ __forceinline__
