//! Which devices a command runs on.

use crate::cli::DeviceArgs;
use crate::failure::{Failure, Outcome};
use ns_registry::Settings;
use ns_sycl::DeviceInfo;

/// What happens when no device was asked for and there is no card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoCard {
    /// An error that says so.
    Refuse,
    /// The CPU device, saying so.
    UseCpu,
}

/// Devices in order, as the engine opens them, and their facts.
pub struct Chosen {
    /// Selectors.
    pub selectors: Vec<String>,
    /// Their facts.
    pub infos: Vec<DeviceInfo>,
}

impl Chosen {
    /// Their short names, for people.
    pub fn names(&self) -> String {
        self.infos.iter().map(|i| crate::render::card(&i.name)).collect::<Vec<_>>().join(" + ")
    }
}

/// The selectors of a command: its flags, else `registered` (the registry's list), else `NS_DEVICE`, else `NS_GPUS`; without any
/// of them all cards, and false.
pub fn asked(args: &DeviceArgs, registered: Option<&str>, settings: &Settings) -> Outcome<(Vec<String>, bool)> {
    let words = |list: &str| list.split([',', ' ']).filter(|w| !w.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let from_flags = match (args.device.as_slice(), args.gpu.as_slice()) {
        ([], []) => None,
        ([], numbers) => Some(gpu_list(numbers)?),
        (devices, _) => Some(devices.to_vec()),
    };
    let asked = match from_flags {
        Some(list) => Some(list),
        None => match registered {
            Some(list) => Some(gpu_list(&words(list))?),
            None => match (settings.get("NS_DEVICE"), settings.get("NS_GPUS")) {
                (Some(list), _) => Some(words(list)),
                (None, Some(list)) => Some(gpu_list(&words(list))?),
                (None, None) => None,
            },
        },
    };
    let (wanted, named) = match asked {
        Some(list) => (list, true),
        None => (vec!["gpu".to_owned()], false),
    };
    wanted.iter().try_for_each(|selector| check_form(selector))?;
    Ok((wanted, named))
}

/// The devices of a command (see [`asked`]). Of all cards the `most` with the largest free memory are taken; all cards come in the
/// order of their strength. What was named one by one keeps its order.
pub fn choose(
    args: &DeviceArgs,
    registered: Option<&str>,
    settings: &Settings,
    no_card: NoCard,
    most: usize,
) -> Outcome<Chosen> {
    let (wanted, named) = asked(args, registered, settings)?;
    if wanted.len() > most {
        let devices = wanted.join(", ");
        return Err(Failure::usage(format!("{devices}: this model's engine runs on at most {most} device(s)")));
    }
    let mut chosen = Chosen { selectors: Vec::new(), infos: Vec::new() };
    for selector in &wanted {
        let mut found = ns_sycl::devices(selector).map_err(|e| Failure::error(e.to_string()))?;
        by_strength(&mut found);
        if selector == "gpu" && found.len() > most {
            let all = found.len();
            found = largest(found, most);
            let names: Vec<String> =
                found.iter().map(|i| format!("{} (gpu:{})", crate::render::card(&i.name), i.index)).collect();
            crate::out::talk(&format!(
                "Of {all} cards the one with the most free memory is used: {}.",
                names.join(", ")
            ));
        }
        if found.is_empty() && !named && no_card == NoCard::UseCpu {
            return use_cpu();
        }
        if found.is_empty() {
            return Err(none(selector));
        }
        for info in found {
            chosen.selectors.push(match selector.as_str() {
                "gpu" => format!("gpu:{}", info.index),
                other => other.to_owned(),
            });
            chosen.infos.push(info);
        }
    }
    Ok(chosen)
}

/// What devices are ordered by: memory, then compute units, then their numbers.
fn strength(memory: u64, units: u32, index: u32) -> (u64, u32, u32) {
    // Cards of one kind differ by a few MiB.
    ((memory + (1 << 27)) >> 28, units, index)
}

/// The weakest first: the last one gets the most to do.
fn by_strength(devices: &mut [DeviceInfo]) {
    devices.sort_by_key(|d| strength(d.total_memory, d.compute_units, d.index));
}

/// The devices with the most free memory, in the order of their strength.
fn largest(mut devices: Vec<DeviceInfo>, most: usize) -> Vec<DeviceInfo> {
    devices.sort_by_key(|d| (std::cmp::Reverse(d.free_memory), d.index));
    devices.truncate(most);
    by_strength(&mut devices);
    devices
}

fn use_cpu() -> Outcome<Chosen> {
    let infos = ns_sycl::devices("cpu").map_err(|e| Failure::error(e.to_string()))?;
    if infos.is_empty() {
        return Err(none("cpu"));
    }
    let chosen = Chosen { selectors: vec!["cpu".to_owned()], infos };
    crate::out::talk(&format!("No Intel Arc GPU was found: running on the CPU device ({}).", chosen.names()));
    Ok(chosen)
}

fn none(selector: &str) -> Failure {
    Failure::error(match selector {
        "cpu" => "the SYCL runtime has no CPU device".to_owned(),
        "gpu" => {
            "no Intel Arc GPU was found: check the driver and /dev/dri, or run on the CPU with --device cpu".to_owned()
        }
        other => format!("there is no device {other}: `nextsycl-llm devices` lists them"),
    })
}

/// `gpu`, `gpu:N`, `cpu`, and for measurements a backend and its device.
pub fn check_form(selector: &str) -> Outcome {
    let number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let good = match selector.split_once(':') {
        None => matches!(selector, "gpu" | "cpu"),
        Some(("gpu" | "cpu", n)) => number(n),
        Some((backend, device)) => !backend.is_empty() && !device.is_empty(),
    };
    if good { Ok(()) } else { Err(Failure::usage(format!("--device {selector}: it takes gpu, gpu:N or cpu"))) }
}

/// Selectors of card numbers; `all` means every card.
fn gpu_list(numbers: &[String]) -> Outcome<Vec<String>> {
    let mut list: Vec<String> = Vec::new();
    for number in numbers.iter().filter(|n| !n.is_empty()) {
        let selector = match number.as_str() {
            "all" => "gpu".to_owned(),
            n if n.bytes().all(|b| b.is_ascii_digit()) => format!("gpu:{n}"),
            n => return Err(Failure::usage(format!("--gpu {n}: it takes card numbers or all"))),
        };
        if list.contains(&selector) {
            return Err(Failure::usage(format!("--gpu {number} is given twice")));
        }
        list.push(selector);
    }
    if list.is_empty() {
        return Err(Failure::usage("no card is named: a list has card numbers or all"));
    }
    if list.len() > 1 && list.iter().any(|s| s == "gpu") {
        return Err(Failure::usage("--gpu all already names every card"));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory counts first, then compute units; a few bytes do not.
    #[test]
    fn the_strongest_card_is_last() {
        let key = |index: u32, gib: u64, units| strength((gib << 30) + u64::from(7 - index), units, index);
        let mut cards = [key(0, 32, 256), key(1, 24, 160), key(2, 32, 256), key(3, 24, 128)];
        cards.sort_unstable();
        assert_eq!(cards.map(|c| c.2), [3, 1, 0, 2]);
    }

    #[test]
    fn card_lists() {
        let of = |s: &str| gpu_list(&s.split(',').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(of("0,2").unwrap(), ["gpu:0", "gpu:2"]);
        assert_eq!(of("all").unwrap(), ["gpu"]);
        for bad in ["0,0", "all,1", "x", "-1", ""] {
            assert!(of(bad).is_err(), "{bad}");
        }
        for good in ["gpu", "cpu", "gpu:3", "opencl:cpu"] {
            check_form(good).unwrap();
        }
        for bad in ["gpu:", "gpu:x", "", "card", "cpu:x", ":1"] {
            assert!(check_form(bad).is_err(), "{bad}");
        }
    }
}
