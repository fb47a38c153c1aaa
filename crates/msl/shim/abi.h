// The structures shared with Rust (emulate/abi.rs mirrors them field by field) and with the kernels' thunks.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long u64;

// Byte-granular access history of 4096 bytes of a buffer.
struct ShadowPage {
    u64 generation;
    u64 wrote[4096];
    u64 read[4096];
};
struct Shadow {
    u64 base, length;
    ShadowPage** pages;
    u32 initialized;  // whether bytes without a page hold values the host wrote
    u32 readonly;     // memory the host never lets kernels write; needs no history
};
// A byte range of a bound buffer that the dispatch may access.
struct Region {
    u64 low, high;
    Shadow* shadow;
    u32 buffer;
    u32 rights;  // 1 read, 2 write
};
struct Report {
    u32 kind, buffer;
    u64 offset;
    u32 size, threadgroup, thread, other_threadgroup, other_thread, line;
    const char* file;
    const char* name;
    u64 pc;
};
struct Dispatch {
    void (*thunk)(void* const* buffers, const void* thread);
    void* const* buffers;
    u32 grid[3], size[3];
    u64 first, last;  // linear threadgroup range
    const Region* regions;
    u32 region_count;
    u32 check;
    u32 id, window;  // number of this dispatch in the pass; first number not yet ordered by a barrier
    u64 generation;
    Report* reports;
    u32 report_capacity;
    u32 report_count;
};
enum Kind : u32 {
    OUT_OF_BOUNDS = 1,
    THREADGROUP_OUT_OF_BOUNDS,
    UNINITIALIZED,
    THREADGROUP_UNINITIALIZED,
    RACE,
    THREADGROUP_RACE,
    CROSS_THREADGROUP_RACE,
    MISSING_DISPATCH_BARRIER,
    DIVERGENT_BARRIER,
    PARTIAL_SIMDGROUP,
    UNDECLARED_READ,
    UNDECLARED_WRITE,
    SCOPE_MISMATCH,
    THREADGROUP_TOO_LARGE,
};
