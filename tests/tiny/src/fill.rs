//! The rule that makes weights from a seed.
//!
//! Word `i` of tensor `name` is word `i mod 4` of Philox4x32-10 with counter `(i div 4, 0, 0, 0)` and key
//! `(seed, CRC-32 of the name)`. With `z` the sum of the word's four bytes less 510, the value is
//! `f32(mean) + f32(f32(z) * f32(std / sqrt(21845)))`: the division in 64 bits and rounded once, product and sum rounded
//! separately.

/// Ten rounds of Philox4x32.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..10 {
        let p0 = 0xD251_1F53_u64 * u64::from(c0);
        let p1 = 0xCD9E_8D57_u64 * u64::from(c2);
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [c0, c1, c2, c3]
}

/// The stream of one tensor.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    key: [u32; 2],
    mean: f32,
    scale: f32,
}

impl Stream {
    /// The stream of a tensor: its name, the checkpoint's seed, and mean and standard deviation of its values.
    pub fn new(name: &str, seed: u32, mean: f64, std: f64) -> Self {
        let scale = (std / 21845_f64.sqrt()) as f32;
        Self { key: [seed, crc32fast::hash(name.as_bytes())], mean: mean as f32, scale }
    }

    /// Words of block `block`: numbers `4 block ..` of the stream. The counter has 32 bits, so the stream has 2^34.
    pub fn words(&self, block: u32) -> [u32; 4] {
        philox([block, 0, 0, 0], self.key)
    }

    /// Random bits beside the values: 128 of them.
    pub fn bits(&self, block: u32) -> [u32; 4] {
        philox([block, 1, 0, 0], self.key)
    }

    fn value(&self, word: u32) -> f32 {
        let z = word.to_le_bytes().iter().map(|&b| i32::from(b)).sum::<i32>() - 510;
        let product = z as f32 * self.scale;
        self.mean + product
    }

    /// Writes the values from number `4 first_block` on.
    pub fn values(&self, first_block: u32, out: &mut [f32]) {
        for (block, out) in (first_block..).zip(out.chunks_mut(4)) {
            for (value, word) in out.iter_mut().zip(self.words(block)) {
                *value = self.value(word);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors published with the generator (Random123).
    #[test]
    fn philox_gives_the_published_words() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn the_known_answer_is_reproduced() {
        let stream = Stream::new("x", 1, 0.0, 1.0);
        assert_eq!(stream.key, [1, 0x8cdc_1683]);
        assert_eq!(stream.words(0), [0xe0ba_88ef, 0xedb4_6f3e, 0x85c9_f59f, 0x7976_f921]);
        assert_eq!(stream.words(1), [0x94a6_d4ce, 0xdfd7_8e40, 0x7d2f_343d, 0x6086_ea37]);
        let mut values = [f32::NAN; 8];
        stream.values(0, &mut values);
        assert_eq!(
            values.map(f32::to_bits),
            [0x3fee_28a7, 0x3f0a_90ac, 0x3fc5_748e, 0x3d98_6bf0, 0x3fc0_4255, 0x3f68_18b9, 0xbfc2_db72, 0x3d79_6acf]
        );
    }

    #[test]
    fn a_stream_can_be_entered_anywhere() {
        let stream = Stream::new("blk.0.attn_q.weight", 7, 0.5, 0.25);
        let (mut all, mut tail) = ([0.0; 23], [0.0; 11]);
        stream.values(0, &mut all);
        stream.values(3, &mut tail);
        assert_eq!(all[12..], tail);
    }
}
