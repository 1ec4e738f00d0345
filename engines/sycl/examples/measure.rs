//! Measures what the runtime costs on a device: opening, loading, launching, replaying, copying, multiplying.
//! `measure SELECTOR KERNELS`, KERNELS being the folder with the compiled test kernels. Best of several runs each.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use ns_sycl::{Arg, Device, Gemm, GemmLibrary, Result};

/// The shortest of some runs.
fn best(runs: usize, mut f: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut shortest = Duration::MAX;
    for _ in 0..runs {
        let start = Instant::now();
        f()?;
        shortest = shortest.min(start.elapsed());
    }
    Ok(shortest)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    let mut args = std::env::args().skip(1);
    let (Some(selector), Some(kernels)) = (args.next(), args.next()) else {
        return Err("measure SELECTOR KERNELS".into());
    };
    let micro = |d: Duration| d.as_secs_f64() * 1e6;
    let start = Instant::now();
    let d = Device::open(&selector)?;
    writeln!(out, "{}: open {:.0} ms", d.info().name, start.elapsed().as_secs_f64() * 1e3)?;
    let q = d.queue()?;
    let start = Instant::now();
    let m = d.load_module(Path::new(&kernels), "basic")?;
    writeln!(out, "module from {}: {:.1} ms", m.source()?, start.elapsed().as_secs_f64() * 1e3)?;
    let k = m.kernel("axpy")?;
    let n = 64usize;
    let (x, y) = (d.alloc(4 * n)?, d.alloc(4 * n)?);
    let step = || {
        let args = [Arg::F32(1.0), Arg::Buffer(&x, 0), Arg::Buffer(&y, 0), Arg::I32(64)];
        q.launch(&k, [n, 1, 1], [n, 1, 1], &args)
    };
    let single = best(50, || {
        step()?;
        q.wait()
    })?;
    let many = best(20, || {
        (0..1000).try_for_each(|_| step())?;
        q.wait()
    })?;
    q.begin_graph()?;
    (0..300).try_for_each(|_| step())?;
    let start = Instant::now();
    let graph = q.end_graph()?;
    let finalize = start.elapsed();
    let replay = best(30, || {
        q.replay(&graph)?;
        q.wait()
    })?;
    writeln!(
        out,
        "launch + wait {:.1} us, launch {:.2} us, graph node {:.2} us ({}; finalize 300 nodes {:.1} ms)",
        micro(single),
        micro(many) / 1e3,
        micro(replay) / 300.0,
        graph.form(),
        finalize.as_secs_f64() * 1e3
    )?;
    let mut bytes = [0u8; 256];
    let small = best(50, || q.read(&y, 0, &mut bytes))?;
    let big = 256 << 20;
    let (a, b) = (d.alloc(big)?, d.alloc(big)?);
    q.fill(&a, 0, big, 1)?;
    let copy = best(5, || {
        q.copy(&b, 0, &a, 0, big)?;
        q.wait()
    })?;
    let host = vec![1u8; big];
    let write = best(5, || q.write(&a, 0, &host))?;
    let rate = |d: Duration| big as f64 / d.as_secs_f64() / 1e9;
    writeln!(out, "read 256 bytes {:.1} us, copy {:.1} GB/s, write {:.1} GB/s", micro(small), rate(copy), rate(write))?;
    for library in [GemmLibrary::OneDnn, GemmLibrary::OneMkl] {
        let start = Instant::now();
        let Ok(gemm) = Gemm::open_with(&d, library) else {
            continue;
        };
        writeln!(out, "{library:?}: open {:.0} ms", start.elapsed().as_secs_f64() * 1e3)?;
        for (m, n, k) in [(512, 4096, 4096), (512, 1536, 576), (512, 576, 1536), (16, 1536, 576), (1, 16, 16)] {
            let (x, w, y) = (d.alloc(4 * m * k)?, d.alloc(4 * n * k)?, d.alloc(4 * m * n)?);
            q.fill(&x, 0, x.len(), 0)?;
            q.fill(&w, 0, w.len(), 0)?;
            let run = || gemm.f32(&q, m, n, k, (&x, 0), k, (&w, 0), k, (&y, 0), n, 0.0);
            let first = best(1, || {
                run()?;
                q.wait()
            })?;
            let ten = best(5, || {
                (0..10).try_for_each(|_| run())?;
                q.wait()
            })?;
            let flops = 2.0 * (m * n * k) as f64;
            writeln!(
                out,
                "  f32 {m}x{n}x{k}: {:.0} GFLOP/s, {:.1} us each, first {:.1} ms",
                flops * 10.0 / ten.as_secs_f64() / 1e9,
                micro(ten) / 10.0,
                first.as_secs_f64() * 1e3
            )?;
        }
    }
    Ok(())
}
