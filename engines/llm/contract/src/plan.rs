//! What opening a model takes of each device, told before anything is loaded.

use crate::{Error, ErrorKind, Result};

/// The memory of every device a model will be opened on.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Plan {
    /// One for each of [`crate::LoadOptions::devices`], in the same order.
    pub devices: Vec<DevicePlan>,
}

/// The memory of one device. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct DevicePlan {
    /// The device's selector, as in [`crate::LoadOptions::devices`].
    pub selector: String,
    /// The device's own name.
    pub name: String,
    /// Layers `[first, last)` that will live there.
    pub layers: (usize, usize),
    /// What else will: for example `embedding`, `head`, `draft block`.
    pub parts: Vec<String>,
    /// Weights, as they are packed on the device.
    pub weights: u64,
    /// Caches and other state of each planned session, in the order of [`crate::LoadOptions::contexts`].
    pub caches: Vec<u64>,
    /// Buffers of the passes.
    pub work: u64,
    /// Memory of the device.
    pub total: u64,
    /// What is free of it now.
    pub free: u64,
    /// What stays free.
    pub margin: u64,
}

impl DevicePlan {
    /// Caches of all sessions.
    pub fn cache(&self) -> u64 {
        self.caches.iter().sum()
    }

    /// Weights, caches and buffers.
    pub fn needed(&self) -> u64 {
        self.weights + self.cache() + self.work
    }
}

fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.1} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

impl Plan {
    /// What is missing on a device that two or more lines may share; 0 when it fits.
    fn missing(&self, selector: &str) -> u64 {
        let mut shared = self.devices.iter().filter(|d| d.selector == selector).peekable();
        let room = shared.peek().map_or(0, |d| d.free.saturating_sub(d.margin));
        shared.map(DevicePlan::needed).sum::<u64>().saturating_sub(room)
    }

    /// Whether every device has the room.
    pub fn fits(&self) -> bool {
        self.devices.iter().all(|d| self.missing(&d.selector) == 0)
    }

    /// Refuses a plan that does not fit, with the numbers of every device it does not fit on.
    pub fn check(&self) -> Result<()> {
        let told = |d: &DevicePlan| {
            format!(
                "{} ({}): layers {}: weights {} + caches of {} session(s) {} + buffers {} = {}, but {} are free, of which {} must stay free",
                d.name,
                d.selector,
                if d.layers.0 < d.layers.1 { format!("{}-{}", d.layers.0, d.layers.1 - 1) } else { "none".to_owned() },
                size(d.weights),
                d.caches.len(),
                size(d.cache()),
                size(d.work),
                size(d.needed()),
                size(d.free),
                size(d.margin),
            )
        };
        let bad: Vec<String> = self.devices.iter().filter(|d| self.missing(&d.selector) > 0).map(told).collect();
        if bad.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Memory,
            format!(
                "the model does not fit on {}; a shorter context (--ctx) or fewer sessions (--parallel) need less",
                bad.join("; ")
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn device(selector: &str, weights: u64, free: u64) -> DevicePlan {
        DevicePlan {
            selector: selector.into(),
            name: "Card".into(),
            layers: (0, 4),
            parts: vec!["head".into()],
            weights: weights * GIB,
            caches: vec![GIB, GIB],
            work: GIB,
            total: 32 * GIB,
            free: free * GIB,
            margin: GIB,
        }
    }

    #[test]
    fn each_device_that_lacks_room_is_told() {
        let plan = Plan { devices: vec![device("gpu:0", 10, 20), device("gpu:1", 10, 14)] };
        assert!(plan.fits() && plan.check().is_ok());
        let plan = Plan { devices: vec![device("gpu:0", 10, 20), device("gpu:1", 11, 14)] };
        let error = plan.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory);
        assert_eq!(
            error.to_string(),
            "the model does not fit on Card (gpu:1): layers 0-3: weights 11.00 GiB + caches of 2 session(s) 2.00 GiB + \
             buffers 1.00 GiB = 14.00 GiB, but 14.00 GiB are free, of which 1.00 GiB must stay free; \
             a shorter context (--ctx) or fewer sessions (--parallel) need less"
        );
    }

    /// The same device twice has its memory once.
    #[test]
    fn a_device_named_twice_is_one_memory() {
        let twice = |free| Plan { devices: vec![device("cpu", 5, free), device("cpu", 5, free)] };
        assert!(twice(17).fits());
        assert!(!twice(16).fits());
    }
}
