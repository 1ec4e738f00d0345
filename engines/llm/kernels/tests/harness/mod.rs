//! What every test of the kernels uses: the CPU device, seeded numbers, poisoned buffers.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by tests that each use a part of it")]

use std::sync::OnceLock;

use ns_llm_kernels::Kernels;
use ns_sycl::{Buffer, Device, Locations, Plain, Queue, bytes_of};

struct Shared {
    device: Device,
    kernels: Kernels,
}

static SHARED: OnceLock<Shared> = OnceLock::new();

/// The CPU device with its kernels, and a queue of this test's own. `NS_TEST_DEVICE` names another device.
pub struct Bench {
    pub device: &'static Device,
    pub kernels: &'static Kernels,
    pub queue: Queue,
}

pub fn bench() -> Bench {
    let shared = SHARED.get_or_init(|| {
        let selector = std::env::var("NS_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
        let device = Device::open(&selector).unwrap();
        let kernels = Kernels::load(&device, &Locations::discover().kernels).unwrap();
        Shared { device, kernels }
    });
    Bench { device: &shared.device, kernels: &shared.kernels, queue: shared.device.queue().unwrap() }
}

impl Bench {
    /// A block with these numbers.
    pub fn put<T: Plain>(&self, numbers: &[T]) -> Buffer {
        let buffer = self.device.alloc(size_of_val(numbers)).unwrap();
        self.queue.write(&buffer, 0, bytes_of(numbers)).unwrap();
        buffer
    }

    /// A block of NaN (every byte 255).
    pub fn poisoned(&self, bytes: usize) -> Buffer {
        let buffer = self.device.alloc(bytes).unwrap();
        self.queue.fill(&buffer, 0, bytes, 0xff).unwrap();
        buffer
    }

    pub fn read<T: Plain>(&self, buffer: &Buffer, count: usize) -> Vec<T> {
        self.queue.read_vec(buffer, 0, count).unwrap()
    }
}

/// splitmix64.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// About normal: sum of 12 uniforms less 6.
    pub fn normal(&mut self) -> f32 {
        ((0..12).map(|_| self.unit()).sum::<f64>() - 6.0) as f32
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Largest |got - want| / (|want| + floor); NaN counts as infinite.
pub fn error(got: &[f32], want: &[f64], floor: f64) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).fold(0.0, |worst, (&g, &w)| {
        let e = (f64::from(g) - w).abs() / (w.abs() + floor);
        if e.is_nan() { f64::INFINITY } else { worst.max(e) }
    })
}

/// Bit patterns, for exact comparisons.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
