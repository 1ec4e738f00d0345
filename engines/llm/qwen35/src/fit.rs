//! What goes on which device, and whether it fits there; decided before anything is loaded.

use crate::device_error;
use crate::options::Options;
use crate::params::Params;
use crate::stage::{scratch, silo_scratch};
use crate::weights::{Share, Source};
use crate::work::{Plan, Sizes};
use ns_llm::{DevicePlan, Error, ErrorKind, LoadOptions, Result};
use ns_llm_kernels::attention::CELL_ALIGN;
use ns_llm_kernels::silo::Silo;
use ns_sycl::{Device, DeviceClass};

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
    pub plan: DevicePlan,
}

/// Whether placements fit on their devices together: two may be of one device.
fn fits(placements: &[Placement]) -> bool {
    memory_plan(placements).fits()
}

fn memory_plan(placements: &[Placement]) -> ns_llm::Plan {
    ns_llm::Plan { devices: placements.iter().map(|one| one.plan.clone()).collect() }
}

/// A device of the load's list.
struct Given {
    selector: String,
    device: Device,
    free: u64,
    margin: u64,
}

/// The devices of a load, in its order.
fn devices(load: &LoadOptions) -> Result<Vec<Given>> {
    if load.devices.is_empty() {
        return Err(Error::new(ErrorKind::Option, "the qwen35 engine needs at least one device"));
    }
    let known = |what: ns_sycl::Result<u64>| what.map_err(|e| device_error("cannot tell the device's memory", e));
    let open = |selector: &String| {
        let device = Device::open(selector).map_err(|e| device_error("cannot open the device", e))?;
        let (free, margin) = (known(device.free_memory())?, known(device.margin())?);
        Ok(Given { selector: selector.clone(), device, free, margin })
    };
    load.devices.iter().map(open).collect()
}

/// First layers of the devices, for a given first layer of the last one.
fn starts(n_layers: usize, n_devices: usize, last: usize) -> Vec<usize> {
    let before = n_devices - 1;
    (0..before).map(|i| last * i / before.max(1)).chain([last.min(n_layers)]).collect()
}

struct Planner<'a> {
    source: &'a Source<'a>,
    options: &'a Options,
    /// Tokens of the sessions.
    contexts: &'a [usize],
    /// In the load's order: the last holds the head and the draft block.
    devices: Vec<&'a Given>,
}

impl Planner<'_> {
    fn one(&self, plan: Plan, given: &Given, layers: std::ops::Range<usize>) -> Placement {
        let p = self.source.p;
        let share = Share { first: layers.start == 0, last: layers.end == p.n_layers, layers };
        let (device, class) = (&given.device, given.device.class());
        let sizes = Sizes::new(p, plan, &share, class, self.options.precision(class));
        let mut products = if self.options.own_gemm { 0 } else { scratch(p, &sizes).bytes(class) };
        if !self.options.own_gemm && Silo::wanted(device) {
            products += silo_scratch(p, &sizes).bytes();
        }
        let part = |has: bool, name: &str| has.then(|| name.to_owned());
        let parts =
            [part(share.first, "embedding"), part(share.last, "head"), part(share.last && plan.draft, "draft block")];
        let plan = DevicePlan {
            selector: given.selector.clone(),
            name: device.info().name.clone(),
            layers: (share.layers.start, share.layers.end),
            parts: parts.into_iter().flatten().collect(),
            weights: self.source.bytes(&share, class).1,
            caches: self.contexts.iter().map(|c| sizes.session(p, c.next_multiple_of(CELL_ALIGN))).collect(),
            work: sizes.work(p) + products as u64,
            total: device.info().total_memory,
            free: given.free,
            margin: given.margin,
        };
        Placement { device: device.clone(), share, sizes, plan }
    }

    /// Devices with their first layers, in order.
    fn place(&self, plan: Plan, parts: &[(&Given, usize)]) -> Vec<Placement> {
        let end = |i: usize| parts.get(i + 1).map_or(self.source.p.n_layers, |next| next.1);
        parts.iter().enumerate().map(|(i, part)| self.one(plan, part.0, part.1..end(i))).collect()
    }

    fn at_starts(&self, plan: Plan, starts: &[usize]) -> Vec<Placement> {
        let parts: Vec<(&Given, usize)> = self.devices.iter().copied().zip(starts.iter().copied()).collect();
        self.place(plan, &parts)
    }

    /// As many layers as fit on the last device, then on the one before it, and so on; devices without any are left out. Even
    /// parts where the model does not fit at all.
    fn fill(&self, plan: Plan) -> Vec<Placement> {
        let mut used: Vec<(&Given, usize)> = Vec::new();
        for &given in self.devices.iter().rev() {
            let end = used.first().map_or(self.source.p.n_layers, |u| u.1);
            let with = |start| [(given, start)].into_iter().chain(used.iter().copied()).collect::<Vec<_>>();
            let Some(start) = (0..end).find(|&start| fits(&self.place(plan, &with(start)))) else {
                if used.is_empty() {
                    break;
                }
                continue;
            };
            used = with(start);
            if start == 0 {
                return self.place(plan, &used);
            }
        }
        let (n, devices) = (self.source.p.n_layers, self.devices.len());
        self.at_starts(plan, &starts(n, devices, n * (devices - 1) / devices))
    }

    fn placements(&self, plan: Plan) -> Result<Vec<Placement>> {
        let (n, layers) = (self.devices.len(), self.source.p.n_layers);
        let wrong = |what| Err(Error::new(ErrorKind::Option, what));
        match self.options.split {
            Some(split) if n == 1 => wrong(format!("a split at layer {split} needs several devices, one was given")),
            Some(split) if split < n - 1 || split >= layers => {
                wrong(format!("a split at layer {split} is not possible: {n} devices share {layers} layers"))
            }
            Some(split) => Ok(self.at_starts(plan, &starts(layers, n, split))),
            None if n == 1 => Ok(self.at_starts(plan, &[0])),
            None => Ok(self.fill(plan)),
        }
    }
}

/// Decides what goes where, and tells the memory of every device in the load's order. A plan that does not fit is no error here.
pub fn plan(source: &Source<'_>, options: &Options, load: &LoadOptions) -> Result<(Vec<Placement>, ns_llm::Plan)> {
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
    let given = devices(load)?;
    for one in &given {
        crate::weights::check_types(source, one.device.class())?;
    }
    let chunks = match options.chunk {
        Some(chunk) => vec![chunk],
        None if given.iter().any(|g| g.device.class() == DeviceClass::Gpu) => vec![2048, 1024, 512],
        None => vec![512],
    };
    let planner = Planner { source, options, contexts: &load.contexts, devices: given.iter().collect() };
    let mut found = Vec::new();
    for chunk in chunks {
        let cells = load.contexts.iter().map(|c| c.next_multiple_of(CELL_ALIGN)).sum();
        let plan = Plan { chunk, cells, slots: load.contexts.len(), draft: source.draft.is_some() };
        found = planner.placements(plan)?;
        if fits(&found) {
            break;
        }
    }
    // devices that take nothing are told as well; of two lines of one device, the first placement is the first line
    let mut left: Vec<DevicePlan> = memory_plan(&found).devices;
    let mut lines = Vec::with_capacity(given.len());
    for one in &given {
        lines.push(match left.iter().position(|l| l.selector == one.selector) {
            Some(place) => left.remove(place),
            None => DevicePlan {
                selector: one.selector.clone(),
                name: one.device.info().name.clone(),
                layers: (0, 0),
                parts: Vec::new(),
                weights: 0,
                caches: vec![0; load.contexts.len()],
                work: 0,
                total: one.device.info().total_memory,
                free: one.free,
                margin: one.margin,
            },
        });
    }
    Ok((found, ns_llm::Plan { devices: lines }))
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
