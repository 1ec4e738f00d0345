//! Recorded graphs: a replay is the same as launching, and one that cannot run says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Random, basic, device, refusal};
use ns_sycl::Arg;

#[test]
fn a_replay_equals_the_launches() {
    let d = device();
    let q = d.queue().unwrap();
    let m = basic(&d);
    let (axpy, collatz) = (m.kernel("axpy").unwrap(), m.kernel("collatz").unwrap());
    let n = 1003;
    let mut random = Random(11);
    let (x, y) = (random.units(n), random.units(n));
    let (bx, by, count) = (d.alloc(4 * n).unwrap(), d.alloc(4 * n).unwrap(), d.alloc(4).unwrap());
    let global = [n.next_multiple_of(64), 1, 1];
    let step = || {
        for a in [0.5, -0.25, 3.0] {
            let args = [Arg::F32(a), Arg::Buffer(&bx, 0), Arg::Buffer(&by, 0), Arg::I32(n as i32)];
            q.launch(&axpy, global, [64, 1, 1], &args).unwrap();
            q.launch(&collatz, [16, 1, 1], [16, 1, 1], &[Arg::Buffer(&count, 0)]).unwrap();
        }
        q.copy(&bx, 0, &by, 8, 4 * (n - 2)).unwrap();
        q.fill(&by, 40, 12, 0).unwrap();
    };
    let reset = || {
        q.write_slice(&bx, 0, &x).unwrap();
        q.write_slice(&by, 0, &y).unwrap();
        q.write_slice(&count, 0, &[1u32]).unwrap();
    };
    let state = || {
        let mut all = q.read_vec::<u32>(&bx, 0, n).unwrap();
        all.extend(q.read_vec::<u32>(&by, 0, n).unwrap());
        all.extend(q.read_vec::<u32>(&count, 0, 1).unwrap());
        all
    };
    reset();
    for _ in 0..5 {
        step();
    }
    let launched = state();

    reset();
    q.begin_graph().unwrap();
    step();
    let graph = q.end_graph().unwrap();
    assert_eq!(graph.size(), 8);
    let before: Vec<u32> = x.iter().chain(&y).map(|v| v.to_bits()).chain([1]).collect();
    assert_eq!(state(), before, "recording runs nothing");
    for _ in 0..5 {
        q.replay(&graph).unwrap();
    }
    assert_eq!(state(), launched);
    // Two graphs in turn, launches between.
    q.begin_graph().unwrap();
    q.launch(&collatz, [16, 1, 1], [16, 1, 1], &[Arg::Buffer(&count, 0)]).unwrap();
    let other = q.end_graph().unwrap();
    q.write_slice(&count, 0, &[1u32]).unwrap();
    q.replay(&other).unwrap();
    q.launch(&collatz, [16, 1, 1], [16, 1, 1], &[Arg::Buffer(&count, 0)]).unwrap();
    q.replay(&other).unwrap();
    assert_eq!(q.read_vec::<u32>(&count, 0, 1).unwrap(), [40]);
}

#[test]
fn what_a_recording_cannot_have_is_refused() {
    let d = device();
    let q = d.queue().unwrap();
    let k = basic(&d).kernel("collatz").unwrap();
    let b = d.alloc(64).unwrap();
    assert_eq!(refusal(q.end_graph()), "ns_graph_end: no graph is being recorded on this queue");
    q.begin_graph().unwrap();
    assert_eq!(refusal(q.begin_graph()), "a graph is already being recorded on this queue");
    assert_eq!(refusal(q.write(&b, 0, &[1; 4])), "writing host memory is not possible while a graph is recorded");
    assert_eq!(refusal(q.read(&b, 0, &mut [0; 4])), "reading to host memory is not possible while a graph is recorded");
    assert_eq!(refusal(q.wait()), "waiting is not possible while a graph is recorded");
    // A refused launch leaves the recording as it was.
    assert!(q.launch(&k, [16, 1, 1], [16, 1, 1], &[]).is_err());
    q.launch(&k, [16, 1, 1], [16, 1, 1], &[Arg::Buffer(&b, 0)]).unwrap();
    let graph = q.end_graph().unwrap();
    assert_eq!(graph.size(), 1);
    q.write_slice(&b, 0, &[5u32]).unwrap();
    q.replay(&graph).unwrap();
    assert_eq!(q.read_vec::<u32>(&b, 0, 1).unwrap(), [16]);

    q.begin_graph().unwrap();
    q.launch(&k, [16, 1, 1], [16, 1, 1], &[Arg::Buffer(&b, 0)]).unwrap();
    q.cancel_graph().unwrap();
    assert_eq!(q.read_vec::<u32>(&b, 0, 1).unwrap(), [16], "a dropped recording ran nothing");
    q.launch(&k, [16, 1, 1], [16, 1, 1], &[Arg::Buffer(&b, 0)]).unwrap();
    assert_eq!(q.read_vec::<u32>(&b, 0, 1).unwrap(), [49]);
}

#[test]
fn a_graph_whose_memory_is_gone_refuses_to_run() {
    let d = device();
    let q = d.queue().unwrap();
    let k = basic(&d).kernel("collatz").unwrap();
    let (kept, gone) = (d.alloc(64).unwrap(), d.alloc(64).unwrap());
    q.begin_graph().unwrap();
    q.launch(&k, [16, 1, 1], [16, 1, 1], &[Arg::Buffer(&kept, 0)]).unwrap();
    q.launch(&k, [16, 1, 1], [16, 1, 1], &[Arg::Buffer(&gone, 0)]).unwrap();
    let graph = q.end_graph().unwrap();
    q.replay(&graph).unwrap();
    q.replay(&graph).unwrap();
    drop(gone);
    // The allocator may give the same address again: it is another block all the same.
    let _again = d.alloc(64).unwrap();
    assert_eq!(refusal(q.replay(&graph)), "the graph uses memory that was freed after it was recorded");
}

#[test]
fn a_graph_outlives_its_kernels_and_queue() {
    let d = device();
    let b = d.alloc(64).unwrap();
    let graph = {
        let q = d.queue().unwrap();
        let k = basic(&d).kernel("collatz").unwrap();
        q.write_slice(&b, 0, &[1u32]).unwrap();
        q.begin_graph().unwrap();
        for _ in 0..3 {
            q.launch(&k, [16, 1, 1], [16, 1, 1], &[Arg::Buffer(&b, 0)]).unwrap();
        }
        q.end_graph().unwrap()
    };
    let q = d.queue().unwrap();
    q.replay(&graph).unwrap();
    assert_eq!(q.read_vec::<u32>(&b, 0, 1).unwrap(), [40]);
}
