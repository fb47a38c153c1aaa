//! Which matrix route a Mac runs: a pure function of its GPU family, its system and whether a probe compiles.

use lily_model::device::DeviceError;

use super::NAME;
use crate::route::MatrixRoute;

/// A Mac as far as the choice depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hardware {
    /// Newest Apple GPU family it supports: 7 = M1, 8 = M2, 9 = M3 and M4, 10 = M5.
    pub family: u32,
    /// Version of macOS, major and minor.
    pub macos: (u32, u32),
}

/// A route and why it was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The route.
    pub route: MatrixRoute,
    /// Why, in words.
    pub reason: String,
}

/// First system with residency sets and MSL 3.2.
pub const OLDEST_MACOS: (u32, u32) = (15, 0);
/// First GPU family with simdgroup matrices.
pub const OLDEST_FAMILY: u32 = 7;
/// First GPU family with a matrix unit. Metal 4 alone says nothing: M1 has it too.
pub const TENSOR_FAMILY: u32 = 10;
/// First system whose tensor operations are used.
pub const TENSOR_MACOS: (u32, u32) = (26, 1);

/// A kernel that compiles exactly where tensor operations can be used.
pub const PROBE: &str = "\
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;
[[kernel]] void probe(device bfloat *a [[buffer(0)]], device bfloat *b [[buffer(1)]], device float *c [[buffer(2)]]) {
    auto left = tensor<device bfloat, dextents<int32_t, 2>, tensor_inline>(a, dextents<int32_t, 2>(32, 32));
    auto right = tensor<device bfloat, dextents<int32_t, 2>, tensor_inline>(b, dextents<int32_t, 2>(32, 32));
    auto out = tensor<device float, dextents<int32_t, 2>, tensor_inline>(c, dextents<int32_t, 2>(32, 32));
    constexpr auto form = matmul2d_descriptor(32, 32, 32, false, false, false, matmul2d_descriptor::mode::multiply);
    matmul2d<form, execution_simdgroup> product;
    product.run(left, right, out);
}
";

/// Chooses. `wanted` insists on a route; `probe` compiles [`PROBE`] and gives the compiler's words where it fails.
///
/// # Errors
/// [`DeviceError::Unsupported`] for a system or GPU that is too old, or that lacks the wanted route.
pub fn choose(
    hardware: Hardware,
    wanted: Option<MatrixRoute>,
    probe: impl FnOnce() -> Result<(), String>,
) -> Result<Choice, DeviceError> {
    let unsupported = |what: &str, value: String, accepted: &str| {
        Err(DeviceError::Unsupported { device: NAME, what: what.into(), value, accepted: accepted.into() })
    };
    let Hardware { family, macos } = hardware;
    if macos < OLDEST_MACOS {
        return unsupported("macOS", format!("{}.{}", macos.0, macos.1), "15.0 or later");
    }
    if family < OLDEST_FAMILY {
        return unsupported("GPU family", format!("Apple{family}"), "Apple7 (M1) or later");
    }
    if wanted == Some(MatrixRoute::Simdgroup) {
        return Ok(Choice { route: MatrixRoute::Simdgroup, reason: "asked for".into() });
    }
    let missing = if family < TENSOR_FAMILY {
        Some(format!("the GPU is Apple{family}, a matrix unit came with Apple10 (M5)"))
    } else if macos < TENSOR_MACOS {
        Some(format!("macOS is {}.{}, tensor operations need 26.1", macos.0, macos.1))
    } else {
        probe().err().map(|words| format!("the compiler refused tensor operations: {words}"))
    };
    match (missing, wanted) {
        (None, _) => {
            Ok(Choice { route: MatrixRoute::Tensor, reason: format!("Apple{family}, and the probe compiled") })
        }
        (Some(reason), Some(_)) => unsupported("matrix route", MatrixRoute::Tensor.name().into(), &{
            format!("{}, because {reason}", MatrixRoute::Simdgroup.name())
        }),
        (Some(reason), None) => Ok(Choice { route: MatrixRoute::Simdgroup, reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M5: Hardware = Hardware { family: 10, macos: (26, 1) };

    fn route(hardware: Hardware) -> MatrixRoute {
        choose(hardware, None, || Ok(())).expect("supported").route
    }

    #[test]
    fn tensor_operations_run_from_apple10_on() {
        assert_eq!(route(M5), MatrixRoute::Tensor);
        assert_eq!(route(Hardware { family: 9, ..M5 }), MatrixRoute::Simdgroup);
    }

    #[test]
    fn tensor_operations_run_from_macos_26_1_on() {
        assert_eq!(route(Hardware { macos: (26, 0), ..M5 }), MatrixRoute::Simdgroup);
        assert_eq!(route(Hardware { macos: (27, 0), ..M5 }), MatrixRoute::Tensor);
    }

    #[test]
    fn a_probe_that_does_not_compile_is_said() {
        let choice = choose(M5, None, || Err("no header".into())).expect("supported");
        assert_eq!(choice.route, MatrixRoute::Simdgroup);
        assert!(choice.reason.contains("no header"), "{}", choice.reason);
    }

    #[test]
    fn a_route_that_was_asked_for_is_taken_or_refused() {
        let simd = choose(M5, Some(MatrixRoute::Simdgroup), || panic!("not needed")).expect("supported");
        assert_eq!(simd.route, MatrixRoute::Simdgroup);
        let refused = choose(Hardware { family: 8, ..M5 }, Some(MatrixRoute::Tensor), || Ok(()));
        assert!(refused.expect_err("no matrix unit").to_string().contains("Apple8"));
    }

    #[test]
    fn macos_15_and_apple7_are_the_oldest_accepted() {
        let m1 = Hardware { family: 7, macos: (15, 0) };
        assert_eq!(route(m1), MatrixRoute::Simdgroup);
        for old in [Hardware { family: 6, ..m1 }, Hardware { macos: (14, 7), ..m1 }] {
            assert!(choose(old, None, || Ok(())).is_err(), "{old:?}");
        }
    }
}
