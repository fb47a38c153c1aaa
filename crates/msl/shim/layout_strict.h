// Cooperative tensors in the type check have one element a place and no layout.

template <int Rows, int Columns, int Simdgroups, int Role> struct MslLayout {
    static constexpr int capacity = 8;
    static int rank() { return 0; }
    static bool valid(int, int) { return true; }
    static int row(int, int) { return 0; }
    static int column(int, int) { return 0; }
};
