// matmul2d on the CPU: the last thread of the scope to arrive multiplies for all. Operands are packed to f32 in slabs of K
// (instrumented, so the checker sees every read as the scope's), then multiplied by plain loops.

struct MslOperands {
    void* left;
    void* right;
    void* destination;
};

// Reads element (row, column) of an operand of the collective: of the tensor all threads share, or from the register of the
// thread that holds it.
template <int Which, class O> float msl_operand(const O& mine, int row, int column, bool transpose, bool strict) {
    if constexpr (O::msl_is_tensor) {
        int inner = transpose ? row : column, outer = transpose ? column : row;
        if (mine.msl_inside(inner, outer)) return float(mine.msl_element(inner, outer));
        return strict ? __builtin_nanf("") : 0.0f;
    } else {
        typedef typename O::Layout Layout;
        constexpr int columns = Layout::columns;
        int linear = row * columns + column;
        const MslOperands& o = *static_cast<const MslOperands*>(msl_rt_deposit(linear % Layout::threads));
        const O* held = static_cast<const O*>(Which == 0 ? o.left : o.right);
        return float(held->msl_e[linear / Layout::threads]);
    }
}

template <int M, int N>
__attribute__((noinline, no_sanitize("thread"))) void msl_slab(const float* a, const float* b, float* c, int depth) {
    for (int row = 0; row < M; row++) {
        float* out = c + row * N;
        for (int k = 0; k < depth; k++) {
            float left = a[row * 64 + k];
            const float* right = b + k * N;
            for (int column = 0; column < N; column++) out[column] += left * right[column];
        }
    }
}

template <mpp::tensor_ops::matmul2d_descriptor D, int S, class L, class R, class C>
void msl_matmul_all(L& left, R& right) {
    constexpr int M = D.m, N = D.n;
    static_assert((M * 64 + 64 * N + M * N) * 4 <= 1 << 20, "matmul2d tile too large");
    float* a = msl_rt_scratch();
    float* b = a + M * 64;
    float* c = b + 64 * N;
    int depth = D.k;
    if constexpr (L::msl_is_tensor) {
        if (D.k == metal::dynamic_extent) depth = left.msl_n[D.transpose_left ? 1 : 0];
    }
    for (int i = 0; i < M * N; i++) c[i] = 0.0f;
    for (int from = 0; from < depth; from += 64) {
        int slab = depth - from < 64 ? depth - from : 64;
        // A static k beyond the operand's end reads garbage on the device; here it reads NaN.
        for (int row = 0; row < M; row++) {
            for (int k = 0; k < slab; k++) {
                bool strict = false;
                if constexpr (L::msl_is_tensor) strict = from + k >= left.msl_n[D.transpose_left ? 1 : 0];
                a[row * 64 + k] = msl_operand<0>(left, row, from + k, D.transpose_left, strict);
            }
        }
        for (int k = 0; k < slab; k++) {
            bool strict = false;
            if constexpr (R::msl_is_tensor) strict = from + k >= right.msl_n[D.transpose_right ? 0 : 1];
            for (int column = 0; column < N; column++) {
                b[k * N + column] = msl_operand<1>(right, from + k, column, D.transpose_right, strict);
            }
        }
        msl_slab<M, N>(a, b, c, slab);
    }
    constexpr bool add = D.matmul_mode == mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate;
    if constexpr (C::msl_is_tensor) {
        const MslOperands& o = *static_cast<const MslOperands*>(msl_rt_deposit(0));
        const C& out = *static_cast<const C*>(o.destination);
        for (int row = 0; row < M; row++) {
            for (int column = 0; column < N; column++) {
                if (!out.msl_inside(column, row)) continue;
                auto& element = out.msl_element(column, row);
                float old = 0.0f;
                if constexpr (add) old = float(element);
                element = typename C::value_type(old + c[row * N + column]);
            }
        }
    } else {
        typedef typename C::Layout Layout;
        for (int rank = 0; rank < Layout::threads; rank++) {
            const MslOperands& o = *static_cast<const MslOperands*>(msl_rt_deposit(rank));
            C& out = *static_cast<C*>(o.destination);
            for (int i = 0; i < Layout::capacity && Layout::valid(i, rank); i++) {
                float value = c[i * Layout::threads + rank];
                if constexpr (add) value += float(out.msl_e[i]);
                out.msl_e[i] = typename C::value_type(value);
            }
        }
    }
}

template <mpp::tensor_ops::matmul2d_descriptor D, int S, class L, class R, class C>
MSL_FN void msl_matmul(L& left, R& right, C& destination, const char* msl_file, unsigned msl_line) {
    MslOperands mine{&left, &right, &destination};
    if (msl_rt_gather(S, &mine MSL_HERE)) {
        msl_matmul_all<D, S, L, R, C>(left, right);
        msl_rt_release();
    }
}
