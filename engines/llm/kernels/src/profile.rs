//! Where the time of a device goes, and how near that is to what the device can do.

use std::path::Path;
use std::time::{Duration, Instant};

use ns_sycl::{Arg, Buffer, Device, DeviceClass, Gemm, Kernel, KernelTime, Queue};

use crate::Result;

/// Largest block that is read and copied.
const BLOCK: usize = 256 << 20;
/// A measurement is long enough to trust, in nanoseconds on the device.
const ENOUGH: u64 = 4_000_000;
/// And never longer than about this, whatever the device says.
const PATIENCE: Duration = Duration::from_millis(500);
/// Times each measurement is repeated; the best counts.
const RUNS: usize = 3;
/// Floats a sub-group reads in one round of its loop.
const ROUND: usize = 256;
/// Operations of a work-item in one round of `ceiling_fma`.
const FMA_ROUND: u64 = 8 * 8 * 2;
/// Rows and columns of the largest product.
const PRODUCT: usize = 4096;

/// What a device was seen to do at most. Rates are per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Bytes read.
    pub read: f64,
    /// Bytes read and written by a copy, both counted.
    pub copy: f64,
    /// Operations of float32 multiply-adds, two each.
    pub fma: f64,
    /// Operations of a product of half matrices by the vendor's library; none where there is none.
    pub product: Option<f64>,
}

struct Meter<'a> {
    device: &'a Device,
    queue: Queue,
}

impl Meter<'_> {
    /// The shortest time of what `run` starts, in nanoseconds on the device.
    fn best(&self, run: &dyn Fn(&Queue) -> Result<()>) -> Result<u64> {
        let mut best = u64::MAX;
        for _ in 0..RUNS {
            self.device.profile_reset()?;
            run(&self.queue)?;
            best = best.min(self.device.profile()?.iter().map(|k| k.nanoseconds).sum());
        }
        Ok(best.max(1))
    }

    /// The rate at a size that grows until a run takes long enough: `run` starts the work of a size, `work` is its amount.
    fn rate(
        &self,
        sizes: impl Iterator<Item = usize>,
        work: &dyn Fn(usize) -> u64,
        run: &dyn Fn(&Queue, usize) -> Result<()>,
    ) -> Result<f64> {
        let (mut rate, begun) = (0.0, Instant::now());
        for size in sizes {
            let time = self.best(&|q| run(q, size))?;
            rate = work(size) as f64 / time as f64 * 1e9;
            if time >= ENOUGH || begun.elapsed() > PATIENCE {
                break;
            }
        }
        Ok(rate)
    }

    fn stream(&self, kernel: &Kernel, (x, y): (&Buffer, &Buffer), subs: usize, factor: u64) -> Result<f64> {
        let largest = x.len() / 4 / subs / ROUND;
        let rounds = (0..).map(|i| 4_usize << (2 * i)).take_while(|n| *n < largest).chain([largest]);
        self.rate(rounds, &|n| (n * ROUND * subs * 4) as u64 * factor, &|q, n| {
            let args = [Arg::Buffer(x, 0), Arg::Buffer(y, 0), Arg::I64((n * ROUND) as i64)];
            Ok(q.launch(kernel, [subs * 16, 1, 1], [64, 1, 1], &args)?)
        })
    }
}

impl Ceilings {
    /// Measures a device that nothing else uses, by modules in the folder of compiled kernels. What the device's profile had is
    /// forgotten.
    ///
    /// # Errors
    /// A module is missing, there is no memory, or the driver failed.
    pub fn measure(device: &Device, kernels: &Path) -> Result<Self> {
        device.profile_enable(true)?;
        let meter = Meter { device, queue: device.queue()? };
        let module = device.load_module(&kernels.join("llm"), "ceilings")?;
        let units = device.info().compute_units.max(1) as usize;
        // the processor's work-groups are heavy, a card wants many
        let subs = 4 * units * if device.class() == DeviceClass::Cpu { 4 } else { 16 };
        let room = (device.free_memory()?.saturating_sub(device.margin()?) / 4).min(BLOCK as u64);
        let bytes = usize::try_from(room).unwrap_or(BLOCK).max(subs * ROUND * 4);
        let (x, y) = (device.alloc(bytes)?, device.alloc(bytes)?);
        meter.queue.fill(&x, 0, bytes, 0)?;
        meter.queue.fill(&y, 0, bytes, 0)?;
        let read = meter.stream(&module.kernel("ceiling_read")?, (&x, &y), subs, 1)?;
        let copy = meter.stream(&module.kernel("ceiling_copy")?, (&x, &y), subs, 2)?;
        let items = subs * 16;
        let kernel = module.kernel("ceiling_fma")?;
        let fma = meter.rate((4..16).map(|i| 1_usize << i), &|n| n as u64 * FMA_ROUND * items as u64, &|q, n| {
            let args = [Arg::Buffer(&y, 0), Arg::F32(0.5), Arg::F32(1.0), Arg::I32(n as i32)];
            Ok(q.launch(&kernel, [items, 1, 1], [64, 1, 1], &args)?)
        })?;
        let product = match Gemm::open(device) {
            Ok(gemm) if device.class() == DeviceClass::Gpu => Some(product(&meter, &gemm, (&x, &y))?),
            _ => None,
        };
        device.profile_reset()?;
        Ok(Self { read, copy, fma, product })
    }

    /// Operations a second that nothing here exceeded.
    #[must_use]
    pub fn operations(&self) -> f64 {
        self.product.map_or(self.fma, |p| p.max(self.fma))
    }

    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        let product = self.product.map_or_else(String::new, |p| format!(", half products {:.2} TFLOP/s", p / 1e12));
        format!(
            "reading {:.1} GB/s, copying {:.1} GB/s, float32 {:.3} TFLOP/s{product}",
            self.read / 1e9,
            self.copy / 1e9,
            self.fma / 1e12
        )
    }
}

/// The rate of square products of half matrices that lie one behind the other in `x`.
fn product(meter: &Meter<'_>, gemm: &Gemm, (x, y): (&Buffer, &Buffer)) -> Result<f64> {
    let fits = |n: &usize| 4 * n * n <= x.len() && 4 * n * n <= y.len();
    let sizes = (0..).map(|i| 256_usize << i).take_while(|n| *n <= PRODUCT).filter(fits);
    meter.rate(sizes, &|n| 2 * (n * n * n) as u64, &|q, n| {
        Ok(gemm.f16(q, n, n, n, (x, 0), n, (x, 2 * n * n), n, (y, 0), n, 0.0)?)
    })
}

/// How finely a profile is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// A line a section.
    Sections,
    /// A line a kernel of a section.
    Kernels,
}

/// The profile of one device.
pub struct Profile {
    device: Device,
    detail: Detail,
    ceilings: Ceilings,
    begun: Instant,
}

impl Profile {
    /// Begins one where `NS_PROFILE` asks for it: the device's ceilings are measured, and queues created from now on are timed.
    ///
    /// # Errors
    /// The measurement failed.
    pub fn start(device: &Device, kernels: &Path) -> Result<Option<Self>> {
        let detail = match std::env::var("NS_PROFILE").as_deref() {
            Ok("1") => Detail::Sections,
            Ok("gpu") => Detail::Kernels,
            _ => return Ok(None),
        };
        let ceilings = Ceilings::measure(device, kernels)?;
        Ok(Some(Self { device: device.clone(), detail, ceilings, begun: Instant::now() }))
    }

    /// What is to be told, the longest first.
    ///
    /// # Errors
    /// The driver failed.
    pub fn lines(&self) -> Result<Vec<String>> {
        let times = self.device.profile()?;
        let passed = self.begun.elapsed().as_secs_f64();
        Ok(table(&times, self.detail, &self.ceilings, &self.device.info().name, passed))
    }
}

/// Lines of equal sections, or of all kernels.
fn table(times: &[KernelTime], detail: Detail, ceilings: &Ceilings, device: &str, passed: f64) -> Vec<String> {
    let whole: u64 = times.iter().map(|t| t.nanoseconds).sum();
    let mut rows: Vec<KernelTime> = Vec::new();
    for time in times {
        let same = |r: &&mut KernelTime| r.section == time.section;
        match rows.iter_mut().find(same).filter(|_| detail == Detail::Sections) {
            Some(row) => {
                row.count += time.count;
                row.nanoseconds += time.nanoseconds;
                row.bytes += time.bytes;
                row.operations += time.operations;
            }
            None => rows.push(time.clone()),
        }
    }
    rows.sort_by_key(|r| std::cmp::Reverse(r.nanoseconds));
    let commands: u64 = rows.iter().map(|r| r.count).sum();
    let mut lines = vec![
        format!(
            "profile of {device}: {:.1} ms on the device in {commands} commands, {:.1} ms passed",
            whole as f64 / 1e6,
            passed * 1e3
        ),
        format!("ceilings, measured before: {}", ceilings.words()),
    ];
    let kernel = |name: &str| if detail == Detail::Kernels { format!("{name:<32} ") } else { String::new() };
    lines.push(format!(
        "{:<22} {}{:>10} {:>6} {:>8} {:>10} {:>9} {:>9} {:>8} {:>8}  {}",
        "SECTION",
        kernel("KERNEL"),
        "TIME MS",
        "SHARE",
        "CALLS",
        "AVG US",
        "MB",
        "MFLOP",
        "GB/S",
        "TFLOP/S",
        "OF CEILING"
    ));
    for r in &rows {
        let seconds = r.nanoseconds.max(1) as f64 / 1e9;
        let (bytes, operations) = (r.bytes as f64 / seconds, r.operations as f64 / seconds);
        let (memory, arithmetic) = (bytes / ceilings.read.max(ceilings.copy), operations / ceilings.operations());
        let bound = match (r.bytes, r.operations) {
            (0, 0) => "-".to_owned(),
            _ if memory >= arithmetic => format!("{:.0}% memory", memory * 100.0),
            _ => format!("{:.0}% arithmetic", arithmetic * 100.0),
        };
        let or_dash = |n: u64, text: String| if n == 0 { "-".to_owned() } else { text };
        lines.push(format!(
            "{:<22} {}{:>10.3} {:>5.1}% {:>8} {:>10.1} {:>9} {:>9} {:>8} {:>8}  {bound}",
            if r.section.is_empty() { "-" } else { &r.section },
            kernel(&r.name),
            r.nanoseconds as f64 / 1e6,
            r.nanoseconds as f64 / whole.max(1) as f64 * 100.0,
            r.count,
            r.nanoseconds as f64 / r.count.max(1) as f64 / 1e3,
            or_dash(r.bytes, format!("{:.1}", r.bytes as f64 / 1e6)),
            or_dash(r.operations, format!("{:.1}", r.operations as f64 / 1e6)),
            or_dash(r.bytes, format!("{:.1}", bytes / 1e9)),
            or_dash(r.operations, format!("{:.3}", operations / 1e12)),
        ));
    }
    if lines.iter().any(|l| above(l)) {
        lines.push(
            "above 100%: data from the device's caches, or a device that was busier when it was measured".to_owned(),
        );
    }
    lines
}

/// Whether a line's last column is above 100%.
fn above(line: &str) -> bool {
    let number = line.rsplit_once('%').map(|(head, _)| head.rsplit(' ').next().unwrap_or_default());
    number.and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n > 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(section: &str, name: &str, count: u64, ms: u64, mb: u64, mflop: u64) -> KernelTime {
        KernelTime {
            section: section.into(),
            name: name.into(),
            count,
            nanoseconds: ms * 1_000_000,
            bytes: mb * 1_000_000,
            operations: mflop * 1_000_000,
        }
    }

    #[test]
    fn rates_are_told_against_the_ceilings() {
        let ceilings = Ceilings { read: 100e9, copy: 80e9, fma: 1e12, product: Some(10e12) };
        let times = [
            time("decode: head", "matvec", 4, 20, 1000, 2000),
            time("decode: ffn", "matvec", 2, 15, 10, 75_000),
            time("decode: head", "argmax", 4, 5, 0, 0),
        ];
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let lines = table(&times, Detail::Kernels, &ceilings, "Card", 0.1);
        assert_eq!(lines[0], "profile of Card: 40.0 ms on the device in 10 commands, 100.0 ms passed");
        assert_eq!(
            lines[1],
            "ceilings, measured before: reading 100.0 GB/s, copying 80.0 GB/s, float32 1.000 TFLOP/s, half products 10.00 TFLOP/s"
        );
        let first = "decode: head matvec 20.000 50.0% 4 5000.0 1000.0 2000.0 50.0 0.100 50% memory";
        assert_eq!(cells(&lines[3]).join(" "), first);
        assert!(
            lines[4].ends_with("  50% arithmetic") && lines[5].ends_with("        -         -        -        -  -")
        );
        let lines = table(&[time("cached", "add", 1, 1, 101, 0)], Detail::Kernels, &ceilings, "Card", 0.1);
        assert!(lines[3].ends_with(" 101% memory") && lines[4].starts_with("above 100%: "), "{lines:?}");
        let lines = table(&times, Detail::Sections, &ceilings, "Card", 0.1);
        assert_eq!(lines.len(), 5);
        assert_eq!(
            cells(&lines[3]).join(" "),
            "decode: head 25.000 62.5% 8 3125.0 1000.0 2000.0 40.0 0.080 40% memory"
        );
    }
}
