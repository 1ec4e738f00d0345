//! What the cards draw, where their driver counts it.

use crate::failure::Outcome;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Energy over a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Energy {
    /// Energy of all cards together.
    pub joules: f64,
    /// The time.
    pub seconds: f64,
}

/// The counters of some cards.
pub struct Meter {
    /// One counter a card; none when a card has none.
    counters: Option<Vec<PathBuf>>,
}

impl Meter {
    /// The counters of the cards at PCI addresses.
    pub fn of(pci: &[String]) -> Self {
        Self::in_folder(Path::new("/sys/bus/pci/devices"), pci)
    }

    fn in_folder(folder: &Path, pci: &[String]) -> Self {
        // Of a card's counters the first is the whole card's, the second the chip's.
        let counter = |address: &String| {
            let monitors = folder.join(address).join("hwmon");
            let all = std::fs::read_dir(monitors).ok()?.filter_map(Result::ok).map(|e| e.path());
            let mut found: Vec<PathBuf> =
                all.flat_map(|m| ["energy1_input", "energy2_input"].map(|name| m.join(name))).collect();
            found.sort();
            found.into_iter().find(|path| microjoules(path).is_some())
        };
        let known = !pci.is_empty() && pci.iter().all(|address| !address.is_empty());
        Self { counters: if known { pci.iter().map(counter).collect() } else { None } }
    }

    fn read(&self) -> Option<f64> {
        self.counters.as_ref()?.iter().map(|path| microjoules(path)).sum()
    }

    /// Does something; what it took, where that can be told.
    pub fn around<T>(&self, work: impl FnOnce() -> T) -> Outcome<(T, Option<Energy>)> {
        let (before, begun) = (self.read(), Instant::now());
        let result = work();
        let energy = self.between(before, begun.elapsed());
        Ok((result, energy))
    }

    fn between(&self, before: Option<f64>, passed: Duration) -> Option<Energy> {
        let joules = (self.read()? - before?) / 1e6;
        // A counter that began anew says nothing.
        (joules >= 0.0).then_some(Energy { joules, seconds: passed.as_secs_f64().max(1e-9) })
    }
}

fn microjoules(path: &Path) -> Option<f64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_and_summed() {
        let folder = tempfile::tempdir().unwrap();
        let put = |card: &str, name: &str, value: &str| {
            let path = folder.path().join(card).join("hwmon/hwmon3");
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join(name), value).unwrap();
        };
        put("0000:03:00.0", "energy1_input", "5000000\n");
        put("0000:03:00.0", "energy2_input", "1\n");
        put("0000:07:00.0", "energy2_input", "1000000\n");
        let cards = ["0000:03:00.0".to_owned(), "0000:07:00.0".to_owned()];
        let meter = Meter::in_folder(folder.path(), &cards);
        assert_eq!(meter.read(), Some(6_000_000.0));
        put("0000:03:00.0", "energy1_input", "9000000\n");
        let energy = meter.between(Some(6_000_000.0), Duration::from_secs(2)).unwrap();
        assert_eq!((energy.joules, energy.seconds), (4.0, 2.0));
        assert_eq!(meter.between(Some(2e7), Duration::from_secs(2)), None);
        // a card without a counter, no address, no card: nothing is told
        for none in [vec!["0000:09:00.0".to_owned()], vec![String::new()], Vec::new()] {
            assert_eq!(Meter::in_folder(folder.path(), &none).read(), None);
        }
        let both = [cards[0].clone(), "0000:09:00.0".to_owned()];
        assert_eq!(Meter::in_folder(folder.path(), &both).read(), None);
    }
}
