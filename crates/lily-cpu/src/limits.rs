//! What the machine could do: memory bandwidth and integer products, measured, to set speeds beside.

use std::time::Instant;

/// What a number of threads reach together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Bytes read from memory a second.
    pub bandwidth: f64,
    /// Multiply-adds of integers a second: of 16 bits, as the fast path multiplies, where SIMD lanes are known; else of 32.
    pub products: f64,
}

/// Measures what `threads` threads (at least one) reach; takes about a second.
pub fn limits(threads: usize) -> Limits {
    let threads = threads.max(1);
    const WORDS: usize = 1 << 26;
    let on_all = |work: &(dyn Fn(usize) -> u64 + Sync)| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || std::hint::black_box(work(thread)));
            }
        });
        start.elapsed().as_secs_f64()
    };
    let words: Vec<u64> = (0..WORDS as u64).collect();
    let part = WORDS / threads;
    let read = |thread: usize| {
        let mut sums = [0u64; 8];
        for chunk in words[thread * part..(thread + 1) * part].chunks_exact(8) {
            for (sum, word) in sums.iter_mut().zip(chunk) {
                *sum = sum.wrapping_add(*word);
            }
        }
        sums.iter().fold(0, |a, b| a ^ b)
    };
    let seconds = (0..3).map(|_| on_all(&read)).fold(f64::INFINITY, f64::min);
    let bandwidth = (part * threads * 8) as f64 / seconds;
    let rounds = 4_000_000;
    let seconds = (0..3).map(|_| on_all(&|_| integer_peak(rounds))).fold(f64::INFINITY, f64::min);
    let products = (threads * rounds * PRODUCTS * lanes()) as f64 / seconds;
    Limits { bandwidth, products }
}

/// Independent products of a round.
const PRODUCTS: usize = 8;

/// Multiply-adds of one instruction.
fn lanes() -> usize {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512vnni") {
        return 32;
    }
    16
}

fn integer_peak(rounds: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512vnni") {
            // SAFETY: detected.
            return unsafe { peak_avx512(rounds) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: detected.
            return unsafe { peak_avx2(rounds) };
        }
    }
    let mut sums = [1i32; PRODUCTS * 16];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = sum.wrapping_mul(3).wrapping_add(1);
        }
    }
    sums.iter().fold(0, |a, b| a ^ *b as u64)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn peak_avx512(rounds: usize) -> u64 {
    use std::arch::x86_64::*;
    let (a, b) = (_mm512_set1_epi16(std::hint::black_box(3)), _mm512_set1_epi16(std::hint::black_box(5)));
    let mut sums = [_mm512_setzero_si512(); PRODUCTS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpwssd_epi32(*sum, a, b);
        }
    }
    sums.iter().map(|s| _mm512_reduce_add_epi32(*s) as u64).fold(0, |a, b| a ^ b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn peak_avx2(rounds: usize) -> u64 {
    use std::arch::x86_64::*;
    let a = _mm256_set1_epi16(std::hint::black_box(3));
    let mut b = _mm256_set1_epi16(std::hint::black_box(5));
    let mut sums = [_mm256_setzero_si256(); PRODUCTS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(a, b));
        }
        // Without a change from round to round the products would be computed once.
        b = _mm256_xor_si256(b, sums[0]);
    }
    sums.iter().map(|s| _mm256_extract_epi32::<0>(*s) as u64).fold(0, |a, b| a ^ b)
}
