//! Sixteen f32 lanes on every instruction set: one AVX-512 register, two AVX2, four NEON, or an array.
//!
//! Kernels are generic over [`Vector`] and use nothing but these operations. Each is an IEEE operation on every lane (fused
//! where it says so), so that all instruction sets give the same bits.

/// Lanes of a vector.
pub const LANES: usize = 16;

/// Adding this to a small float rounds it to an integer, which then is in the low bits.
const ROUNDING: f32 = 12_582_912.0;

/// Sixteen f32 lanes. Loads and stores need no alignment.
///
/// # Safety
/// A type may be used only on a processor that has its instructions; [`super::Isa`] sees to that.
pub trait Vector: Copy {
    /// All lanes `x`.
    fn splat(x: f32) -> Self;
    /// # Safety
    /// 16 readable f32 at `from`.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// 16 readable bf16 at `from`.
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// # Safety
    /// 16 writable f32 at `to`.
    unsafe fn store(self, to: *mut f32);
    /// `self + other`.
    fn add(self, other: Self) -> Self;
    /// `self - other`.
    fn sub(self, other: Self) -> Self;
    /// `self * other`.
    fn mul(self, other: Self) -> Self;
    /// `self / other`.
    fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    fn fma(self, factor: Self, addend: Self) -> Self;
    /// The larger; `other` where either is NaN.
    fn max(self, other: Self) -> Self;
    /// The smaller; `other` where either is NaN.
    fn min(self, other: Self) -> Self;
    /// The bits moved left by 23.
    fn shift_into_exponent(self) -> Self;

    /// The lanes.
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut out = [0f32; LANES];
        // SAFETY: `out` has 16 elements.
        unsafe { self.store(out.as_mut_ptr()) };
        out
    }

    /// Sum of the lanes, in a fixed tree.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut a = self.to_array();
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                a[i] += a[i + half];
            }
        }
        a[0]
    }

    /// Largest lane.
    #[inline(always)]
    fn largest(self) -> f32 {
        let a = self.to_array();
        a.iter().copied().fold(f32::NEG_INFINITY, |m, v| if v > m { v } else { m })
    }

    /// `e^x` to about 1e-7 relative; arguments are held in [-87, 88].
    #[inline(always)]
    fn exp(self) -> Self {
        let x = self.max(Self::splat(-87.0)).min(Self::splat(88.0));
        let shifted = x.fma(Self::splat(std::f32::consts::LOG2_E), Self::splat(ROUNDING));
        let n = shifted.sub(Self::splat(ROUNDING));
        // ln 2 in two parts: the first has few bits, so that n times it is exact.
        let r = n.fma(Self::splat(-0.693_359_4), x);
        let r = n.fma(Self::splat(2.121_944_4e-4), r);
        let p = Self::splat(1.987_569_1e-4).fma(r, Self::splat(1.398_199_9e-3));
        let p = p.fma(r, Self::splat(8.333_452e-3));
        let p = p.fma(r, Self::splat(4.166_579_6e-2));
        let p = p.fma(r, Self::splat(1.666_666_5e-1));
        let p = p.fma(r, Self::splat(0.5));
        let p = p.fma(r.mul(r), r).add(Self::splat(1.0));
        let power = n.add(Self::splat(ROUNDING + 127.0)).shift_into_exponent();
        p.mul(power)
    }

    /// `1 / (1 + e^-x)`.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        Self::splat(1.0).div(Self::splat(1.0).add(Self::splat(0.0).sub(self).exp()))
    }

    /// `x * sigmoid(x)`.
    #[inline(always)]
    fn silu(self) -> Self {
        self.div(Self::splat(1.0).add(Self::splat(0.0).sub(self).exp()))
    }
}

/// Lanes as an array: for processors without a path of their own, and the meaning of the others.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Portable(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Vector for Portable {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Portable([x; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for 16 elements.
        Portable(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: the caller vouches for 16 elements.
        let halves = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        Portable(halves.map(|h| f32::from_bits(u32::from(h) << 16)))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller vouches for 16 elements.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        Portable(std::array::from_fn(|i| self.0[i].mul_add(factor.0[i], addend.0[i])))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn shift_into_exponent(self) -> Self {
        Portable(self.0.map(|v| f32::from_bits(v.to_bits() << 23)))
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LANES, Vector};
    use std::arch::x86_64::*;

    /// Two AVX2 registers.
    #[derive(Clone, Copy)]
    pub struct Avx2(__m256, __m256);

    // SAFETY (all methods): AVX2 and FMA are there, see the trait; pointers are the caller's word.
    impl Vector for Avx2 {
        #[inline(always)]
        fn splat(x: f32) -> Self {
            // SAFETY: see above.
            unsafe { Avx2(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: see above.
            unsafe { Avx2(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
        }
        #[inline(always)]
        unsafe fn load_bf16(from: *const u16) -> Self {
            // SAFETY: see above.
            unsafe {
                let widen = |p: *const u16| {
                    let h = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(h))
                };
                Avx2(widen(from), widen(from.add(8)))
            }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: see above.
            unsafe {
                _mm256_storeu_ps(to, self.0);
                _mm256_storeu_ps(to.add(8), self.1);
            }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx2(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx2(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)) }
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx2(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx2(_mm256_div_ps(self.0, other.0), _mm256_div_ps(self.1, other.1)) }
        }
        #[inline(always)]
        fn fma(self, factor: Self, addend: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx2(_mm256_fmadd_ps(self.0, factor.0, addend.0), _mm256_fmadd_ps(self.1, factor.1, addend.1)) }
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx2(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
        }
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx2(_mm256_min_ps(self.0, other.0), _mm256_min_ps(self.1, other.1)) }
        }
        #[inline(always)]
        fn shift_into_exponent(self) -> Self {
            // SAFETY: see above.
            unsafe {
                let shift = |v| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(v)));
                Avx2(shift(self.0), shift(self.1))
            }
        }
    }

    /// One AVX-512 register.
    #[derive(Clone, Copy)]
    pub struct Avx512(__m512);

    const _: () = assert!(LANES == 16);

    // SAFETY (all methods): AVX-512F is there, see the trait; pointers are the caller's word.
    impl Vector for Avx512 {
        #[inline(always)]
        fn splat(x: f32) -> Self {
            // SAFETY: see above.
            unsafe { Avx512(_mm512_set1_ps(x)) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: see above.
            unsafe { Avx512(_mm512_loadu_ps(from)) }
        }
        #[inline(always)]
        unsafe fn load_bf16(from: *const u16) -> Self {
            // SAFETY: see above.
            unsafe {
                let h = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(h)))
            }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(to, self.0) }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx512(_mm512_add_ps(self.0, other.0)) }
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx512(_mm512_sub_ps(self.0, other.0)) }
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx512(_mm512_mul_ps(self.0, other.0)) }
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx512(_mm512_div_ps(self.0, other.0)) }
        }
        #[inline(always)]
        fn fma(self, factor: Self, addend: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx512(_mm512_fmadd_ps(self.0, factor.0, addend.0)) }
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx512(_mm512_max_ps(self.0, other.0)) }
        }
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe { Avx512(_mm512_min_ps(self.0, other.0)) }
        }
        #[inline(always)]
        fn shift_into_exponent(self) -> Self {
            // SAFETY: see above.
            unsafe { Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(self.0)))) }
        }
    }
}
