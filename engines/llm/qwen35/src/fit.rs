//! What goes on which device, and whether it fits there; decided before anything is loaded.

use crate::device_error;
use crate::options::Options;
use crate::params::Params;
use crate::stage::scratch;
use crate::weights::{Share, Source};
use crate::work::{Plan, Sizes};
use ns_llm::{Error, ErrorKind, LoadOptions, Result};
use ns_llm_kernels::attention::CELL_ALIGN;
use ns_sycl::{Device, DeviceClass};

/// Bytes that a share needs on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Packed weights.
    pub weights: u64,
    /// Key-value cache.
    pub cache: u64,
    /// DeltaNet states and the rows kept to take passes back.
    pub states: u64,
    /// Buffers of a pass.
    pub work: u64,
}

impl Needs {
    fn sum(self) -> u64 {
        self.weights + self.cache + self.states + self.work
    }

    fn words(self) -> String {
        let gib = |n: u64| format!("{:.2} GiB", n as f64 / f64::from(1 << 30));
        format!(
            "weights {}, key-value cache {}, states {}, buffers {}: {}",
            gib(self.weights),
            gib(self.cache),
            gib(self.states),
            gib(self.work),
            gib(self.sum())
        )
    }
}

/// A device with what it takes.
#[derive(Debug)]
pub struct Placement {
    /// The device.
    pub device: Device,
    /// What it takes of the model.
    pub share: Share,
    /// Its buffers.
    pub sizes: Sizes,
    /// Their bytes.
    pub needs: Needs,
}

impl Placement {
    fn new(
        source: &Source<'_>,
        plan: Plan,
        options: &Options,
        device: &Device,
        layers: std::ops::Range<usize>,
    ) -> Self {
        let p = source.p;
        let share = Share { first: layers.start == 0, last: layers.end == p.n_layers, layers };
        let class = device.class();
        let sizes = Sizes::new(p, plan, &share, class, options.precision(class));
        let (states, kept) = sizes.states(p);
        let products = if options.own_gemm { 0 } else { scratch(p, &sizes).bytes(class) };
        let needs = Needs {
            weights: source.bytes(&share, class).1,
            cache: sizes.cache(p),
            states: states + kept,
            work: sizes.work(p) + products as u64,
        };
        Self { device: device.clone(), share, sizes, needs }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let info = self.device.info();
        let free = self.device.free_memory().unwrap_or(info.free_memory);
        format!(
            "{} ({}): layers {} to {}{}; {} of {:.2} GiB free",
            info.selector,
            info.name,
            self.share.layers.start,
            self.share.layers.end.saturating_sub(1),
            match (self.share.last, self.sizes.plan.draft) {
                (true, true) => ", head and draft block",
                (true, false) => ", head",
                _ => "",
            },
            self.needs.words(),
            free as f64 / f64::from(1 << 30)
        )
    }
}

/// Whether placements fit on their devices together: two may be of one device.
fn fit(placements: &[Placement]) -> std::result::Result<(), ns_sycl::Error> {
    for one in placements {
        let same = placements.iter().filter(|o| o.device.info().selector == one.device.info().selector);
        one.device.reserve(same.map(|o| o.needs.sum()).sum())?;
    }
    Ok(())
}

/// The devices of a load, the weakest first: the last holds the head and the draft block.
fn devices(load: &LoadOptions) -> Result<Vec<Device>> {
    let mut devices = Vec::with_capacity(load.devices.len());
    for selector in &load.devices {
        devices.push(Device::open(selector).map_err(|e| device_error("cannot open the device", e))?);
    }
    devices.sort_by_key(|d| d.info().total_memory >> 28);
    if devices.is_empty() {
        return Err(Error::new(ErrorKind::Option, "the qwen35 engine needs at least one device"));
    }
    Ok(devices)
}

/// First layers of the devices, for a given first layer of the last one.
fn starts(n_layers: usize, n_devices: usize, last: usize) -> Vec<usize> {
    let before = n_devices - 1;
    (0..before).map(|i| last * i / before.max(1)).chain([last.min(n_layers)]).collect()
}

/// What fits, or what was tried and why it does not.
type Tried = std::result::Result<Vec<Placement>, (Vec<Placement>, ns_sycl::Error)>;

struct Planner<'a> {
    source: &'a Source<'a>,
    options: &'a Options,
    devices: Vec<Device>,
}

impl Planner<'_> {
    /// Devices with their first layers, in order.
    fn place(&self, plan: Plan, parts: &[(&Device, usize)]) -> Vec<Placement> {
        let end = |i: usize| parts.get(i + 1).map_or(self.source.p.n_layers, |next| next.1);
        let one = |(i, part): (usize, &(&Device, usize))| {
            Placement::new(self.source, plan, self.options, part.0, part.1..end(i))
        };
        parts.iter().enumerate().map(one).collect()
    }

    fn try_starts(&self, plan: Plan, starts: &[usize]) -> Tried {
        let parts: Vec<(&Device, usize)> = self.devices.iter().zip(starts.iter().copied()).collect();
        let placements = self.place(plan, &parts);
        match fit(&placements) {
            Ok(()) => Ok(placements),
            Err(error) => Err((placements, error)),
        }
    }

    /// As many layers as fit on the last device, then on the one before it, and so on; devices without any are left out.
    fn fill(&self, plan: Plan) -> Tried {
        let mut used: Vec<(&Device, usize)> = Vec::new();
        for device in self.devices.iter().rev() {
            let end = used.first().map_or(self.source.p.n_layers, |u| u.1);
            let with = |start| [(device, start)].into_iter().chain(used.iter().copied()).collect::<Vec<_>>();
            let Some(start) = (0..end).find(|&start| fit(&self.place(plan, &with(start))).is_ok()) else {
                if used.is_empty() {
                    break;
                }
                continue;
            };
            used = with(start);
            if start == 0 {
                return Ok(self.place(plan, &used));
            }
        }
        let (n, devices) = (self.source.p.n_layers, self.devices.len());
        self.try_starts(plan, &starts(n, devices, n * (devices - 1) / devices))
    }

    fn with_chunk(&self, plan: Plan) -> Result<Tried> {
        let (n, layers) = (self.devices.len(), self.source.p.n_layers);
        let starts = match self.options.split {
            Some(split) if n == 1 => {
                let what = format!("a split at layer {split} needs several devices, one was given");
                return Err(Error::new(ErrorKind::Option, what));
            }
            Some(split) if split < n - 1 || split >= layers => {
                let what = format!("a split at layer {split} is not possible: {n} devices share {layers} layers");
                return Err(Error::new(ErrorKind::Option, what));
            }
            Some(split) => starts(layers, n, split),
            None if n == 1 => vec![0],
            None => return Ok(self.fill(plan)),
        };
        Ok(self.try_starts(plan, &starts))
    }
}

/// Decides what goes where, or refuses with the numbers.
pub fn plan(source: &Source<'_>, options: &Options, load: &LoadOptions) -> Result<Vec<Placement>> {
    let p: &Params = source.p;
    if load.expert_bytes.is_some() || load.host_expert_bytes.is_some() {
        return Err(Error::new(
            ErrorKind::Option,
            "qwen35 models have no experts: leave out the memory for experts (--expert-gib, --mirror-gib)",
        ));
    }
    if load.contexts.is_empty() || load.contexts.contains(&0) {
        return Err(Error::new(ErrorKind::Option, "at least one session of at least one token is needed"));
    }
    if let Some(long) = load.contexts.iter().find(|&&c| c > p.context_length) {
        return Err(Error::new(
            ErrorKind::Option,
            format!("a context of {long} tokens is longer than the model's {}", p.context_length),
        ));
    }
    let planner = Planner { source, options, devices: devices(load)? };
    for device in &planner.devices {
        crate::weights::check_types(source, device.class())?;
    }
    let card = planner.devices.iter().any(|d| d.class() == DeviceClass::Gpu);
    let chunks = match options.chunk {
        Some(chunk) => vec![chunk],
        None if card => vec![2048, 1024, 512],
        None => vec![512],
    };
    let mut refused = None;
    for chunk in chunks {
        let cells = load.contexts.iter().map(|c| c.next_multiple_of(CELL_ALIGN)).sum();
        let plan = Plan { chunk, cells, slots: load.contexts.len(), draft: source.draft.is_some() };
        match planner.with_chunk(plan)? {
            Ok(placements) => return Ok(placements),
            Err(tried) => refused = Some((plan, tried)),
        }
    }
    let Some((plan, (tried, error))) = refused else { return Err(Error::new(ErrorKind::Option, "no chunk to try")) };
    let lines: Vec<String> = tried.iter().map(Placement::line).collect();
    let what = format!(
        "the model does not fit with {} contexts of {} tokens in all: {}; a shorter context (--ctx) needs less",
        plan.slots,
        plan.cells,
        lines.join("; ")
    );
    Err(Error::with_source(ErrorKind::Memory, what, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_before_the_last_device_are_shared_evenly() {
        assert_eq!(starts(64, 2, 20), [0, 20]);
        assert_eq!(starts(64, 3, 30), [0, 15, 30]);
        assert_eq!(starts(64, 1, 0), [0]);
    }
}
