// How a cooperative tensor lies over the warps of a scope: the fragments of mma.m16n8k16.
// Role 0 is a left input (16x16 fragments), 1 a right input (16x8), 2 a destination (16x8). A destination is cut into a grid
// of warp tiles; where no grid divides the tile evenly, the first warp holds all of it.

template <int Rows, int Columns, int Simdgroups> struct MslWarpGrid {
    MSL_FN static constexpr int rows() {
        int best = 0, cost = 1 << 30;
        for (int wm = 1; wm <= Simdgroups; wm++) {
            if (Simdgroups % wm) continue;
            int wn = Simdgroups / wm;
            if (Rows % (16 * wm) || Columns % (8 * wn)) continue;
            if (Rows / wm + Columns / wn < cost) {
                cost = Rows / wm + Columns / wn;
                best = wm;
            }
        }
        return best;
    }
    static constexpr int wm = rows() ? rows() : 1;
    static constexpr int wn = rows() ? Simdgroups / wm : 1;
    static constexpr int tm = Rows / wm / 16;
    static constexpr int tn = Columns / wn / 8;
};

template <int Rows, int Columns, int Simdgroups, int Role> struct MslLayout;

template <int Rows, int Columns, int Simdgroups> struct MslLayout<Rows, Columns, Simdgroups, 2> {
    typedef MslWarpGrid<Rows, Columns, Simdgroups> Grid;
    static constexpr int capacity = Grid::tm * Grid::tn * 4;
    MSL_FN static int rank() { return int(Simdgroups == 1 ? metal::msl_lane() : metal::msl_simdgroup() * 32 + metal::msl_lane()); }
    MSL_FN static bool valid(int, int rank) { return rank / 32 < Grid::wm * Grid::wn; }
    MSL_FN static int row(int i, int rank) {
        return (rank / 32 / Grid::wn * Grid::tm + i / 4 / Grid::tn) * 16 + rank % 32 / 4 + (i % 4 / 2) * 8;
    }
    MSL_FN static int column(int i, int rank) {
        return (rank / 32 % Grid::wn * Grid::tn + i / 4 % Grid::tn) * 8 + rank % 4 * 2 + i % 2;
    }
};
template <int Rows, int Columns> struct MslLayout<Rows, Columns, 1, 0> {
    static_assert(Rows % 16 == 0 && Columns % 16 == 0, "left input: m and k are multiples of 16");
    static constexpr int capacity = Rows * Columns / 32;
    static constexpr int msl_columns = Columns;
    MSL_FN static int rank() { return int(metal::msl_lane()); }
    MSL_FN static bool valid(int, int) { return true; }
    MSL_FN static int row(int i, int rank) { return i / 8 / (Columns / 16) * 16 + rank / 4 + (i % 8 / 2 % 2) * 8; }
    MSL_FN static int column(int i, int rank) { return i / 8 % (Columns / 16) * 16 + rank % 4 * 2 + i % 2 + (i % 8 / 4) * 8; }
};
template <int Rows, int Columns> struct MslLayout<Rows, Columns, 1, 1> {
    static_assert(Rows % 16 == 0 && Columns % 8 == 0, "right input: k is a multiple of 16, n of 8");
    static constexpr int capacity = Rows * Columns / 32;
    static constexpr int msl_columns = Columns;
    MSL_FN static int rank() { return int(metal::msl_lane()); }
    MSL_FN static bool valid(int, int) { return true; }
    MSL_FN static int row(int i, int rank) { return i / 4 / (Columns / 8) * 16 + rank % 4 * 2 + i % 2 + (i % 4 / 2) * 8; }
    MSL_FN static int column(int i, int rank) { return i / 4 % (Columns / 8) * 8 + rank / 4; }
};
