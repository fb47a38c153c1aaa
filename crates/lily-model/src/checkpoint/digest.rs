//! A fast 128-bit digest that stays the same across builds and machines. It tells checkpoints apart; it does not resist
//! someone who wants two to collide.

/// Absorbs bytes, then gives 128 bits. The pieces in which bytes arrive do not matter.
#[derive(Clone)]
pub(crate) struct Digest {
    lanes: [u64; 4],
    pending: [u8; 32],
    len: u64,
}

/// Odd constants with well-spread bits (from the fractional parts of square roots of primes).
const MULTIPLIERS: [u64; 4] =
    [0x6a09_e667_f3bc_c909, 0xbb67_ae85_84ca_a73b, 0x3c6e_f372_fe94_f82b, 0xa54f_f53a_5f1d_36f1];

impl Default for Digest {
    fn default() -> Self {
        Digest { lanes: MULTIPLIERS, pending: [0; 32], len: 0 }
    }
}

impl Digest {
    /// Absorbs bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        let filled = (self.len % 32) as usize;
        self.len += bytes.len() as u64;
        if filled > 0 {
            let (head, tail) = bytes.split_at(bytes.len().min(32 - filled));
            self.pending[filled..filled + head.len()].copy_from_slice(head);
            if filled + head.len() < 32 {
                return;
            }
            let block = self.pending;
            self.block(&block);
            bytes = tail;
        }
        let (blocks, rest) = bytes.as_chunks::<32>();
        for block in blocks {
            self.block(block);
        }
        self.pending[..rest.len()].copy_from_slice(rest);
    }

    /// Absorbs bytes with their length, so that two fields in a row cannot be cut differently and look the same.
    pub fn field(&mut self, bytes: &[u8]) {
        self.update(&(bytes.len() as u64).to_le_bytes());
        self.update(bytes);
    }

    fn block(&mut self, block: &[u8; 32]) {
        let (words, _) = block.as_chunks::<8>();
        for ((lane, word), multiplier) in self.lanes.iter_mut().zip(words).zip(MULTIPLIERS) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(multiplier);
            *lane ^= *lane >> 29;
        }
    }

    /// The digest of everything absorbed.
    pub fn finish(mut self) -> u128 {
        let filled = (self.len % 32) as usize;
        self.pending[filled..].fill(0);
        let block = self.pending;
        self.block(&block);
        let mut halves = [self.len, !self.len];
        for lane in self.lanes {
            for (half, multiplier) in halves.iter_mut().zip(MULTIPLIERS) {
                *half = (*half ^ lane).wrapping_mul(multiplier);
                *half ^= *half >> 32;
            }
        }
        u128::from(halves[0]) << 64 | u128::from(halves[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_depends_on_every_bit_and_not_on_how_the_bytes_arrive() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8).collect();
        let whole = |bytes: &[u8]| {
            let mut digest = Digest::default();
            digest.update(bytes);
            digest.finish()
        };
        let expected = whole(&bytes);
        for piece in [1, 3, 31, 32, 33, 64, 999] {
            let mut digest = Digest::default();
            bytes.chunks(piece).for_each(|chunk| digest.update(chunk));
            assert_eq!(digest.finish(), expected, "pieces of {piece}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(whole(&changed), expected, "bit {bit}");
        }
        assert_ne!(whole(&bytes[..999]), expected);
        assert_ne!(whole(&[]), whole(&[0]));
    }

    #[test]
    fn the_digest_is_the_same_in_every_build() {
        let mut digest = Digest::default();
        digest.field(b"lily");
        assert_eq!(format!("{:032x}", digest.finish()), "84eb976db950b002ea5e109499d511e8");
    }
}
