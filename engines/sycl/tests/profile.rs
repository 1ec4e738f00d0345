//! Times of kernels. One test: it owns the device's profile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{basic, device};
use ns_sycl::Arg;

#[test]
fn every_kernel_is_counted_also_in_graphs() {
    let d = device();
    d.profile_enable(true).unwrap();
    let q = d.queue().unwrap();
    let m = basic(&d);
    let (axpy, collatz) = (m.kernel("axpy").unwrap(), m.kernel("collatz").unwrap());
    let n = 1 << 20;
    let (x, y, c) = (d.alloc(4 * n).unwrap(), d.alloc(4 * n).unwrap(), d.alloc(4).unwrap());
    q.fill(&x, 0, 4 * n, 0).unwrap();
    q.fill(&y, 0, 4 * n, 0).unwrap();
    q.write_slice(&c, 0, &[1u32]).unwrap();
    d.profile_reset().unwrap();
    let step = || {
        let args = [Arg::F32(1.0), Arg::Buffer(&x, 0), Arg::Buffer(&y, 0), Arg::I32(n as i32)];
        q.section("sums");
        q.cost(12 * n, 2 * n);
        // a library that knows less comes second
        q.cost(1, 1);
        q.launch(&axpy, [n, 1, 1], [64, 1, 1], &args).unwrap();
        q.section("numbers");
        for _ in 0..2 {
            q.launch(&collatz, [16, 1, 1], [16, 1, 1], &[Arg::Buffer(&c, 0)]).unwrap();
        }
    };
    step();
    q.begin_graph().unwrap();
    step();
    let graph = q.end_graph().unwrap();
    assert_eq!(graph.form(), "replayed");
    for _ in 0..4 {
        q.replay(&graph).unwrap();
    }
    assert_eq!(q.read_vec::<u32>(&c, 0, 1).unwrap(), [(3u32.pow(10) * 3 - 1) / 2]);
    let times = d.profile().unwrap();
    let count = |name: &str| times.iter().find(|t| t.name == name).map(|t| t.count);
    assert_eq!(count("axpy"), Some(5));
    assert_eq!(count("collatz"), Some(10));
    let of = |name: &str| times.iter().find(|t| t.name == name).unwrap();
    // a replay counts what was told when it was recorded; a command that tells nothing has no cost
    let sums = of("axpy");
    assert_eq!((sums.section.as_str(), sums.bytes, sums.operations), ("sums", 60 * n as u64, 10 * n as u64));
    let numbers = of("collatz");
    assert_eq!((numbers.section.as_str(), numbers.bytes, numbers.operations), ("numbers", 0, 0));
    assert!(times.iter().all(|t| t.nanoseconds > 0), "{times:?}");
    assert!(times.windows(2).all(|w| w[0].nanoseconds >= w[1].nanoseconds));
    d.profile_reset().unwrap();
    assert!(d.profile().unwrap().is_empty());
}
