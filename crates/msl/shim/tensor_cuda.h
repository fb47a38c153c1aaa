// matmul2d on warps: mma.m16n8k16 with f32 accumulators, operands read straight from device or shared memory.
// Two neighbours along K make one register; they are one 32-bit load where they lie side by side at an even address.
// Operands that both lie in shared memory, in aligned rows and without an edge inside the tile, are read by ldmatrix.

template <class T> MSL_FN metal::uint msl_pack(T a, T b) { return metal::uint(a.msl_bits) | (metal::uint(b.msl_bits) << 16); }

MSL_FN void msl_mma_m16n8k16(float* c, const metal::uint* a, const metal::uint* b, metal::half) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
MSL_FN void msl_mma_m16n8k16(float* c, const metal::uint* a, const metal::uint* b, metal::bfloat) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Elements k and k+1 of line `line`; `along` says that K is the contiguous direction. Zero outside the tensor.
template <bool Along, class T> MSL_FN metal::uint msl_load_pair(const T& t, int line, int k) {
    typedef typename T::value_type V;
    if constexpr (Along) {
        if (line >= t.msl_n[1]) return 0;
        const V* at = &t.msl_element(k, line);
        if (k + 1 < t.msl_n[0] && (reinterpret_cast<metal::ulong>(at) & 3) == 0) {
            return *reinterpret_cast<const metal::uint*>(at);
        }
        V zero(0.0f);
        return msl_pack(k < t.msl_n[0] ? at[0] : zero, k + 1 < t.msl_n[0] ? at[1] : zero);
    } else {
        if (line >= t.msl_n[0]) return 0;
        V zero(0.0f);
        return msl_pack<V>(k < t.msl_n[1] ? t.msl_element(line, k) : zero, k + 1 < t.msl_n[1] ? t.msl_element(line, k + 1) : zero);
    }
}

template <bool Transposed, class L> MSL_FN void msl_left_fragment(const L& left, int row, int k, int lane, metal::uint* a) {
    if constexpr (L::msl_is_tensor) {
        for (int r = 0; r < 4; r++) {
            a[r] = msl_load_pair<!Transposed>(left, row + lane / 4 + (r & 1) * 8, k + lane % 4 * 2 + (r >> 1) * 8);
        }
    } else {
        typedef typename L::Layout Layout;
        const auto* e = left.msl_e + (row / 16 * (Layout::msl_columns / 16) + k / 16) * 8;
        for (int r = 0; r < 4; r++) a[r] = msl_pack(e[2 * r], e[2 * r + 1]);
    }
}
template <bool Transposed, class R> MSL_FN void msl_right_fragment(const R& right, int k, int column, int lane, metal::uint* b) {
    if constexpr (R::msl_is_tensor) {
        for (int r = 0; r < 2; r++) {
            b[r] = msl_load_pair<Transposed>(right, column + lane / 4, k + lane % 4 * 2 + r * 8);
        }
    } else {
        typedef typename R::Layout Layout;
        const auto* e = right.msl_e + (k / 16 * (Layout::msl_columns / 8) + column / 8) * 4;
        for (int r = 0; r < 2; r++) b[r] = msl_pack(e[2 * r], e[2 * r + 1]);
    }
}

// Whether ldmatrix can read the whole of a tile of `inner` by `outer` elements.
template <class T> MSL_FN bool msl_matrix_loads(const T& t, int inner, int outer) {
    return __isShared(t.msl_at) && (reinterpret_cast<metal::ulong>(t.msl_at) & 15) == 0 && t.msl_stride % 8 == 0 &&
           t.msl_n[0] >= inner && t.msl_n[1] >= outer;
}
template <bool Transpose> MSL_FN void msl_ldmatrix(metal::uint* r, const void* at) {
    metal::uint address = metal::uint(__cvta_generic_to_shared(at));
    if constexpr (Transpose) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    }
}

// One step of 16 along K for a warp's tile, both operands by ldmatrix: A in fragments of 16x16, B two fragments of 16x8 at
// a time.
template <mpp::tensor_ops::matmul2d_descriptor D, class Grid, class L, class R>
MSL_FN void msl_step(const L& left, const R& right, int row0, int column0, int k, int lane, float* c) {
    typedef typename L::value_type V;
    metal::uint b[Grid::tn][2];
#pragma unroll
    for (int n = 0; n < Grid::tn; n += 2) {
        int column = column0 + n * 8;
        if constexpr (D.transpose_right) {
            msl_ldmatrix<false>(b[n], &right.msl_element(k + lane / 8 % 2 * 8, column + lane / 16 * 8 + lane % 8));
        } else {
            msl_ldmatrix<true>(b[n], &right.msl_element(column + lane / 16 * 8, k + lane % 16));
        }
    }
#pragma unroll
    for (int m = 0; m < Grid::tm; m++) {
        metal::uint a[4];
        msl_ldmatrix<false>(a, &left.msl_element(k + lane / 16 * 8, row0 + m * 16 + lane % 16));
#pragma unroll
        for (int n = 0; n < Grid::tn; n++) msl_mma_m16n8k16(c + (m * Grid::tn + n) * 4, a, b[n], V(0.0f));
    }
}

template <mpp::tensor_ops::matmul2d_descriptor D, int S, class L, class R, class C>
MSL_FN void msl_matmul(L& left, R& right, C& destination) {
    typedef MslLayout<D.m, D.n, S, 2> Layout;
    typedef typename Layout::Grid Grid;
    typedef typename L::value_type V;
    const int lane = int(metal::msl_lane()), warp = Layout::rank() / 32;
    if (warp >= Grid::wm * Grid::wn) return;
    const int row0 = warp / Grid::wn * Grid::tm * 16, column0 = warp % Grid::wn * Grid::tn * 8;
    float c[Layout::capacity];
    constexpr bool add = D.matmul_mode == mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate;
#pragma unroll
    for (int i = 0; i < Layout::capacity; i++) {
        c[i] = 0.0f;
        if constexpr (add && !C::msl_is_tensor) c[i] = float(destination.msl_e[i]);
    }
    int depth = D.k;
    if constexpr (L::msl_is_tensor) {
        if (D.k == metal::dynamic_extent) depth = left.msl_n[D.transpose_left ? 1 : 0];
    }
    bool done = false;
    if constexpr (L::msl_is_tensor && R::msl_is_tensor && !D.transpose_left && Grid::tn % 2 == 0) {
        done = depth % 16 == 0 && msl_matrix_loads(left, depth, D.m) &&
               msl_matrix_loads(right, D.transpose_right ? depth : D.n, D.transpose_right ? D.n : depth);
        if (done) {
            if constexpr (D.k != metal::dynamic_extent) {
#pragma unroll
                for (int k = 0; k < D.k; k += 16) msl_step<D, Grid>(left, right, row0, column0, k, lane, c);
            } else {
                for (int k = 0; k < depth; k += 16) msl_step<D, Grid>(left, right, row0, column0, k, lane, c);
            }
        }
    }
#pragma unroll 1
    for (int k = 0; k < depth && !done; k += 16) {
        metal::uint b[Grid::tn][2];
#pragma unroll
        for (int n = 0; n < Grid::tn; n++) msl_right_fragment<D.transpose_right>(right, k, column0 + n * 8, lane, b[n]);
#pragma unroll
        for (int m = 0; m < Grid::tm; m++) {
            metal::uint a[4];
            msl_left_fragment<D.transpose_left>(left, row0 + m * 16, k, lane, a);
#pragma unroll
            for (int n = 0; n < Grid::tn; n++) msl_mma_m16n8k16(c + (m * Grid::tn + n) * 4, a, b[n], V(0.0f));
        }
    }
#pragma unroll
    for (int i = 0; i < Layout::capacity; i++) {
        if constexpr (C::msl_is_tensor) {
            int row = Layout::row(i, Layout::rank()), column = Layout::column(i, Layout::rank());
            if (destination.msl_inside(column, row)) {
                auto& element = destination.msl_element(column, row);
                float old = 0.0f;
                if constexpr (add) old = float(element);
                element = typename C::value_type(old + c[i]);
            }
        } else {
            destination.msl_e[i] = typename C::value_type(c[i]);
        }
    }
}
