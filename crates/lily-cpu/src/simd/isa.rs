//! Which instruction set computes, and the one way to run a kernel on it.

/// Instruction sets with a path of their own. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512 F, BW, DQ, VL and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// NEON with fused multiply-add: every 64-bit Arm.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Plain Rust.
    Portable,
}

#[cfg(target_arch = "x86_64")]
fn native() -> Vec<Isa> {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni");
    [(avx512, Isa::Avx512), (avx2, Isa::Avx2)].into_iter().filter_map(|(there, isa)| there.then_some(isa)).collect()
}

#[cfg(target_arch = "aarch64")]
fn native() -> Vec<Isa> {
    vec![Isa::Neon]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn native() -> Vec<Isa> {
    Vec::new()
}

impl Isa {
    /// Every path that this processor can run, the fastest first.
    pub fn available() -> Vec<Isa> {
        let mut found = native();
        found.push(Isa::Portable);
        found
    }

    /// The fastest path of this processor.
    pub fn best() -> Isa {
        Self::available()[0]
    }

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "AVX-512 VNNI",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "AVX2",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "NEON",
            Isa::Portable => "portable",
        }
    }
}

/// Defines a function that runs the same body, generic over [`super::Vector`], compiled for each instruction set.
///
/// `fn name<V>(arguments) -> result { body }` becomes `fn name(isa: Isa, arguments) -> result`.
macro_rules! per_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$v:ident>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(isa: $crate::simd::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body<$v: $crate::simd::Vector>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[allow(clippy::too_many_arguments)]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
            fn avx512($($arg: $ty),*) $(-> $ret)? { body::<$crate::simd::Avx512>($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[allow(clippy::too_many_arguments)]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? { body::<$crate::simd::Avx2>($($arg),*) }
            match isa {
                // SAFETY: an `Isa` other than `Portable` exists only where its instructions were detected.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                $crate::simd::Isa::Neon => body::<$crate::simd::Portable>($($arg),*),
                $crate::simd::Isa::Portable => body::<$crate::simd::Portable>($($arg),*),
            }
        }
    };
}
pub(crate) use per_isa;
