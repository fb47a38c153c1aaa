// How a cooperative tensor lies over the threads of a scope on the CPU: element e belongs to thread e % threads.

template <int Rows, int Columns, int Simdgroups, int Role> struct MslLayout {
    static constexpr int threads = 32 * Simdgroups;
    static constexpr int columns = Columns;
    static constexpr int capacity = (Rows * Columns + threads - 1) / threads;
    static int rank() { return int(msl_rt_lane()) + (Simdgroups == 1 ? 0 : int(msl_rt_simdgroup()) * 32); }
    static bool valid(int i, int rank) { return i * threads + rank < Rows * Columns; }
    static int row(int i, int rank) { return (i * threads + rank) / Columns; }
    static int column(int i, int rank) { return (i * threads + rank) % Columns; }
};
