// Metal 4 tensors and the types of mpp::tensor_ops::matmul2d, shared by both backends.
// Extents are fastest-first: a row-major matrix of R rows and C columns has extents (C, R). Slices keep their parent's end,
// so tiles at an edge read zeros beyond it and drop writes.

namespace metal {

constexpr int dynamic_extent = -1;
template <class I, int R> struct dextents {
    static_assert(R == 2, "only tensors of rank 2 are supported");
    int msl_n[2];
    dextents() = default;
    MSL_FN constexpr dextents(int inner, int outer) : msl_n{inner, outer} {}
};
template <class I, int A, int B> struct extents {
    MSL_FN constexpr operator dextents<I, 2>() const { return dextents<I, 2>(A, B); }
};
struct tensor_inline {};
struct tensor_handle {};
struct tensor_offset {};

template <class T, class E, class Tag = tensor_inline> struct tensor {
    static_assert(is_same_v<Tag, tensor_inline>, "only inline tensors (pointer and extents) are supported");
    typedef remove_cv_t<T> value_type;
    typedef T element_type;
    static constexpr bool msl_is_tensor = true;
    T* msl_at;
    int msl_n[2];
    long msl_stride;
    MSL_FN tensor(T* at, dextents<int, 2> e) : msl_at(at), msl_n{e.msl_n[0], e.msl_n[1]}, msl_stride(e.msl_n[0]) {}
    MSL_FN tensor(T* at, dextents<int, 2> e, array<int, 2> strides)
        : msl_at(at), msl_n{e.msl_n[0], e.msl_n[1]}, msl_stride(strides[1]) {}
    MSL_FN int get_extent(int d) const { return msl_n[d]; }
    MSL_FN static constexpr int get_rank() { return 2; }
    MSL_FN tensor slice(int inner, int outer) const {
        return tensor(msl_at + inner + outer * msl_stride, dextents<int, 2>(msl_n[0] - inner, msl_n[1] - outer), msl_stride);
    }
    template <int A, int B> MSL_FN tensor static_slice(int inner, int outer) const {
        return tensor(msl_at + inner + outer * msl_stride, dextents<int, 2>(A, B), msl_stride);
    }
    template <int A, int B> MSL_FN tensor slice(int inner, int outer) const {
        int a = msl_n[0] - inner < A ? msl_n[0] - inner : A, b = msl_n[1] - outer < B ? msl_n[1] - outer : B;
        return tensor(msl_at + inner + outer * msl_stride, dextents<int, 2>(a, b), msl_stride);
    }
    MSL_FN bool msl_inside(int inner, int outer) const { return inner < msl_n[0] && outer < msl_n[1]; }
    MSL_FN T& msl_element(int inner, int outer) const { return msl_at[inner + outer * msl_stride]; }

  private:
    MSL_FN tensor(T* at, dextents<int, 2> e, long stride) : msl_at(at), msl_n{e.msl_n[0], e.msl_n[1]}, msl_stride(stride) {}
};

struct execution_simdgroup {
    static constexpr int msl_simdgroups = 1;
};
template <int N> struct execution_simdgroups {
    static constexpr int msl_simdgroups = N;
};

}  // namespace metal

namespace mpp {
namespace tensor_ops {

using metal::execution_simdgroup;
using metal::execution_simdgroups;

struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
    int m, n, k;
    bool transpose_left, transpose_right, relaxed_precision;
    mode matmul_mode;
    MSL_FN constexpr matmul2d_descriptor(int m, int n, int k = metal::dynamic_extent, bool left = false, bool right = false,
                                         bool relaxed = false, mode how = mode::multiply)
        : m(m), n(n), k(k), transpose_left(left), transpose_right(right), relaxed_precision(relaxed), matmul_mode(how) {}
#ifdef MSL_STRICT
    // Classes as template arguments are C++20; the type check packs m, n and k into a number instead.
    constexpr operator unsigned long() const {
        return (unsigned long)m | (unsigned long)n << 12 | (unsigned long)(k + 1) << 24;
    }
#endif
};

enum class MslRole { Left, Right, Destination };

// A matrix spread over the registers of the threads of a scope, in a layout only the backend knows.
template <class T, int Rows, int Columns, int Simdgroups, MslRole Role> struct cooperative_tensor {
    typedef MslLayout<Rows, Columns, Simdgroups, Role == MslRole::Left ? 0 : Role == MslRole::Right ? 1 : 2> Layout;
    typedef T element_type;
    typedef T value_type;
    static constexpr bool msl_is_tensor = false;
    T msl_e[Layout::capacity];
    MSL_FN static constexpr metal::ushort get_capacity() { return Layout::capacity; }
    MSL_FN T& operator[](int i) { return msl_e[i]; }
    MSL_FN const T& operator[](int i) const { return msl_e[i]; }
    MSL_FN bool is_valid_element(int i) const { return Layout::valid(i, Layout::rank()); }
    MSL_FN bool get_mask(int i) const { return is_valid_element(i); }
    MSL_FN metal::array<int, 2> get_multidimensional_index(int i) const {
        return metal::array<int, 2>{{Layout::column(i, Layout::rank()), Layout::row(i, Layout::rank())}};
    }
    template <class S> MSL_FN void load(const S& from) {
        for (int i = 0; i < Layout::capacity; i++) {
            int row = Layout::row(i, Layout::rank()), column = Layout::column(i, Layout::rank());
            msl_e[i] = is_valid_element(i) && from.msl_inside(column, row) ? T(from.msl_element(column, row)) : T(0.0f);
        }
    }
    template <class S> MSL_FN void store(const S& to) const {
        for (int i = 0; i < Layout::capacity; i++) {
            int row = Layout::row(i, Layout::rank()), column = Layout::column(i, Layout::rank());
            if (is_valid_element(i) && to.msl_inside(column, row)) {
                to.msl_element(column, row) = typename S::value_type(msl_e[i]);
            }
        }
    }
};

}  // namespace tensor_ops
}  // namespace mpp
