//! Philox4x32-10, the counter-based generator behind every draw (Salmon et al., SC 2011).

/// One block of four words for a counter and a key.
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let p0 = u64::from(0xD251_1F53_u32) * u64::from(c0);
        let p1 = u64::from(0xCD9E_8D57_u32) * u64::from(c2);
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [c0, c1, c2, c3]
}

/// The uniform in [0, 1) of a position: `(word 0 >> 8) / 2^24` with counter (position, stream, 0) and the seed as key.
pub fn uniform(seed: u64, position: u64, stream: u32) -> f32 {
    let word =
        philox4x32_10([position as u32, (position >> 32) as u32, stream, 0], [seed as u32, (seed >> 32) as u32])[0];
    (word >> 8) as f32 / 16_777_216.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The generator authors' published vectors, and one computed with the reference script.
    #[test]
    fn known_answers() {
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox4x32_10([!0; 4], [!0; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            philox4x32_10([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
        assert_eq!(philox4x32_10([7, 0, 0, 0], [42, 0]), [0x5bbd83b1, 0x68784c85, 0x172067aa, 0x2e6b75b7]);
    }
}
