// matmul2d on the CPU: the last thread of the scope to arrive multiplies for all. Operands are packed to f32 in slabs of K
// and multiplied by plain loops; the checker is told of every run of elements read or written.

struct MslOperands {
    void* left;
    void* right;
    void* destination;
};

// Tells the checker of the elements of a tensor from (inner, outer) on, `width` by `height`, as far as they exist.
template <class T> MSL_FN void msl_note_block(const T& t, int inner, int outer, int width, int height, bool writes) {
#ifdef MSL_CHECK
    int w = t.msl_n[0] - inner < width ? t.msl_n[0] - inner : width;
    int h = t.msl_n[1] - outer < height ? t.msl_n[1] - outer : height;
    for (int y = 0; y < h && w > 0; y++) msl_rt_note(&t.msl_element(inner, outer + y), metal::ulong(w) * sizeof(*t.msl_at), writes);
#endif
}

// Packs `rows` x `columns` of an operand from (row0, column0) on into `out` with `pitch`, as f32. Outside a tensor is zero;
// beyond the end of K it is NaN, because there the device reads garbage.
template <int Which, class O>
MSL_PLAIN void msl_pack_block(const O& mine, int row0, int column0, int rows, int columns, bool transpose, float* out, int pitch) {
    if constexpr (O::msl_is_tensor) {
        if (transpose) {
            msl_note_block(mine, row0, column0, rows, columns, false);
        } else {
            msl_note_block(mine, column0, row0, columns, rows, false);
        }
        typedef typename O::value_type V;
        const V* base = mine.msl_at;
        const long stride = mine.msl_stride, along = transpose ? stride : 1, across = transpose ? 1 : stride;
        const int row_end = mine.msl_n[transpose ? 0 : 1], column_end = mine.msl_n[transpose ? 1 : 0];
        for (int r = 0; r < rows; r++) {
            for (int c = 0; c < columns; c++) {
                int row = row0 + r, column = column0 + c;
                float value;
                if (row < row_end && column < column_end) {
                    value = metal::msl_value(base + row * across + column * along);
                } else {
                    value = (Which == 0 ? column >= column_end : row >= row_end) ? __builtin_nanf("") : 0.0f;
                }
                out[r * pitch + c] = value;
            }
        }
    } else {
        typedef typename O::Layout Layout;
        for (int r = 0; r < rows; r++) {
            for (int c = 0; c < columns; c++) {
                int linear = (row0 + r) * Layout::columns + column0 + c;
                const MslOperands& o = *static_cast<const MslOperands*>(msl_rt_deposit(linear % Layout::threads));
                const O* held = static_cast<const O*>(Which == 0 ? o.left : o.right);
                out[r * pitch + c] = metal::msl_value(held->msl_e + linear / Layout::threads);
            }
        }
    }
}

template <int M, int N>
MSL_PLAIN void msl_slab(const float* a, const float* b, float* c, int depth) {
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
MSL_PLAIN void msl_matmul_all(L& left, R& right) {
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
        msl_pack_block<0>(left, 0, from, M, slab, D.transpose_left, a, 64);
        msl_pack_block<1>(right, from, 0, slab, N, D.transpose_right, b, N);
        msl_slab<M, N>(a, b, c, slab);
    }
    constexpr bool add = D.matmul_mode == mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate;
    if constexpr (C::msl_is_tensor) {
        const MslOperands& o = *static_cast<const MslOperands*>(msl_rt_deposit(0));
        const C& out = *static_cast<const C*>(o.destination);
        if constexpr (add) msl_note_block(out, 0, 0, N, M, false);
        msl_note_block(out, 0, 0, N, M, true);
        for (int row = 0; row < M && row < out.msl_n[1]; row++) {
            for (int column = 0; column < N && column < out.msl_n[0]; column++) {
                auto* element = out.msl_at + row * out.msl_stride + column;
                float value = c[row * N + column];
                if constexpr (add) value += metal::msl_value(element);
                typename C::value_type rounded(value);
                __builtin_memcpy(element, &rounded, sizeof rounded);
            }
        }
    } else {
        typedef typename C::Layout Layout;
        for (int rank = 0; rank < Layout::threads; rank++) {
            const MslOperands& o = *static_cast<const MslOperands*>(msl_rt_deposit(rank));
            C& out = *static_cast<C*>(o.destination);
            for (int i = 0; i < Layout::capacity && Layout::valid(i, rank); i++) {
                float value = c[i * Layout::threads + rank];
                if constexpr (add) value += metal::msl_value(out.msl_e + i);
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
