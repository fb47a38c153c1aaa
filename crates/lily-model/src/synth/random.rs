//! Random numbers by position: the n-th number of a stream depends on the stream's key and on n alone, so any thread may
//! compute any part.

/// A stream of random numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream(u64);

impl Stream {
    /// The stream called `name` of a seed.
    pub fn new(seed: u64, name: &str) -> Self {
        Stream(name.bytes().fold(mix(seed), |key, byte| mix(key ^ u64::from(byte))))
    }

    /// 64 random bits.
    #[inline(always)]
    pub fn bits(self, index: u64) -> u64 {
        mix(self.0.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Uniform in [0, 1).
    #[inline(always)]
    pub fn unit(self, index: u64) -> f32 {
        (self.bits(index) >> 40) as f32 / (1u32 << 24) as f32
    }

    /// Mean 0, variance 1, bell-shaped within ±3.5 (the sum of four uniform numbers).
    pub fn bell(self, index: u64) -> f32 {
        let bits = self.bits(index);
        let sum: u32 = (0..4).map(|i| (bits >> (16 * i)) as u32 & 0xffff).sum();
        // A uniform 16-bit number has mean 65535/2 and variance (2^32 - 1)/12.
        (sum as f32 - 131_070.0) / (4.0 * 4_294_967_295.0_f32 / 12.0).sqrt()
    }
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014).
#[inline(always)]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
