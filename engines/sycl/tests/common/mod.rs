//! What the tests share. They need the built libraries: `NS_LIB`, `NS_ONEAPI`, and `NS_TEST_KERNELS` with the compiled `tests/kernels`.
//! `NS_TEST_DEVICE` picks another device than "cpu" (a pretended card).
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;

use ns_sycl::{Device, Module};

/// The device under test.
pub fn device() -> Device {
    let selector = std::env::var("NS_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
    Device::open(&selector).expect("the device under test opens")
}

/// Where the compiled test kernels are.
pub fn kernels() -> PathBuf {
    PathBuf::from(std::env::var_os("NS_TEST_KERNELS").expect("NS_TEST_KERNELS names the compiled kernels"))
}

/// The module with the test kernels.
pub fn basic(device: &Device) -> Module {
    device.load_module(&kernels(), "basic").expect("the test kernels load")
}

/// Reproducible numbers: xorshift64*.
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Uniform in [-1, 1).
    pub fn unit(&mut self) -> f32 {
        ((self.bits() >> 40) as f32) / ((1u32 << 23) as f32) - 1.0
    }

    /// Many of them.
    pub fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// The error text of a call that must fail.
pub fn refusal<T: std::fmt::Debug>(result: ns_sycl::Result<T>) -> String {
    result.expect_err("this must be refused").to_string()
}
