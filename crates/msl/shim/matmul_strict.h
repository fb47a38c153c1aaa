// matmul2d in the type check: shape rules and operand types, no product.

namespace mpp {
namespace tensor_ops {

template <unsigned long Code, class Scope> struct matmul2d {
    static constexpr int m = int(Code & 4095), n = int(Code >> 12 & 4095), k = int(Code >> 24) - 1;
    static_assert(m % 16 == 0 && n % 8 == 0, "matmul2d: m must be a multiple of 16, n of 8");
    static_assert(k == metal::dynamic_extent || k % 16 == 0, "matmul2d: k must be dynamic or a multiple of 16");
    static constexpr int S = Scope::msl_simdgroups;

    template <class L, class R, class T> MSL_FN cooperative_tensor<T, m, n, S, MslRole::Destination>
    get_destination_cooperative_tensor() const {
        return {};
    }
    template <class L, class R, class T> MSL_FN cooperative_tensor<L, m, k, S, MslRole::Left>
    get_left_input_cooperative_tensor() const {
        static_assert(S == 1, "cooperative inputs need execution_simdgroup");
        static_assert(k != metal::dynamic_extent, "cooperative inputs need a static k");
        return {};
    }
    template <class L, class R, class T> MSL_FN cooperative_tensor<R, k, n, S, MslRole::Right>
    get_right_input_cooperative_tensor() const {
        static_assert(S == 1, "cooperative inputs need execution_simdgroup");
        static_assert(k != metal::dynamic_extent, "cooperative inputs need a static k");
        return {};
    }
    // Operands are named objects: Metal takes them by non-const reference, so a temporary slice does not bind.
    template <class L, class R, class C> MSL_FN void run(__private L& left, __private R& right, __private C& destination) const {
        typedef typename L::value_type A;
        typedef typename R::value_type B;
        static_assert(metal::is_same_v<A, B>, "matmul2d: both inputs have one type");
        static_assert(metal::is_same_v<A, metal::half> || metal::is_same_v<A, metal::bfloat>,
                      "matmul2d: inputs are half or bfloat");
    }
};

}  // namespace tensor_ops
}  // namespace mpp
