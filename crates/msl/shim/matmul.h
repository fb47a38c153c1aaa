// matmul2d for both backends: shape rules here, the product in tensor_host.h and tensor_cuda.h.

template <mpp::tensor_ops::matmul2d_descriptor D, int S, class L, class R, class C>
MSL_FN void msl_matmul(L& left, R& right, C& destination MSL_SITE);

namespace mpp {
namespace tensor_ops {

template <matmul2d_descriptor D, class Scope> struct matmul2d {
    static_assert(D.m % 16 == 0 && D.n % 8 == 0, "matmul2d: m must be a multiple of 16, n of 8");
    static_assert(D.k == metal::dynamic_extent || D.k % 16 == 0, "matmul2d: k must be dynamic or a multiple of 16");
    static constexpr int S = Scope::msl_simdgroups;

    template <class L, class R, class T> MSL_FN cooperative_tensor<T, D.m, D.n, S, MslRole::Destination>
    get_destination_cooperative_tensor() const {
        return {};
    }
    template <class L, class R, class T> MSL_FN cooperative_tensor<L, D.m, D.k, S, MslRole::Left>
    get_left_input_cooperative_tensor() const {
        static_assert(S == 1, "cooperative inputs need execution_simdgroup");
        static_assert(D.k != metal::dynamic_extent, "cooperative inputs need a static k");
        return {};
    }
    template <class L, class R, class T> MSL_FN cooperative_tensor<R, D.k, D.n, S, MslRole::Right>
    get_right_input_cooperative_tensor() const {
        static_assert(S == 1, "cooperative inputs need execution_simdgroup");
        static_assert(D.k != metal::dynamic_extent, "cooperative inputs need a static k");
        return {};
    }
    // Operands are named objects: Metal takes them by non-const reference, so a temporary slice does not bind.
    template <class L, class R, class C> MSL_FN void run(L& left, R& right, C& destination MSL_SITE) const {
        typedef typename L::value_type A;
        typedef typename R::value_type B;
        static_assert(metal::is_same_v<A, B>, "matmul2d: both inputs have one type");
        static_assert(metal::is_same_v<A, metal::half> || metal::is_same_v<A, metal::bfloat>,
                      "matmul2d: inputs are half or bfloat");
        msl_matmul<D, S>(left, right, destination MSL_HERE);
    }
};

}  // namespace tensor_ops
}  // namespace mpp
