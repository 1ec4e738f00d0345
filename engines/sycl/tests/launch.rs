//! Launches: every kind of argument, every geometry, and every refusal before anything runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Random, basic, device, refusal};
use ns_sycl::{Arg, ErrorKind};

#[test]
fn axpy_is_exact_on_odd_sizes() {
    let d = device();
    let q = d.queue().unwrap();
    let k = basic(&d).kernel("axpy").unwrap();
    let mut random = Random(7);
    for n in [1usize, 63, 64, 65, 1000, 4099] {
        let (x, y) = (random.units(n), random.units(n));
        let a = random.unit();
        let (bx, by) = (d.alloc(4 * n).unwrap(), d.alloc(4 * n).unwrap());
        q.write_slice(&bx, 0, &x).unwrap();
        q.write_slice(&by, 0, &y).unwrap();
        let args = [Arg::F32(a), Arg::Buffer(&bx, 0), Arg::Buffer(&by, 0), Arg::I32(n as i32)];
        q.launch(&k, [n.next_multiple_of(64), 1, 1], [64, 1, 1], &args).unwrap();
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| a.mul_add(*x, *y)).collect();
        assert_eq!(q.read_vec::<f32>(&by, 0, n).unwrap(), expected, "n = {n}");
    }
}

#[test]
fn offsets_are_bytes_from_the_start_of_the_buffer() {
    let d = device();
    let q = d.queue().unwrap();
    let k = basic(&d).kernel("axpy").unwrap();
    let b = d.alloc(4 * 256).unwrap();
    let numbers: Vec<f32> = (0..256).map(|i| i as f32).collect();
    q.write_slice(&b, 0, &numbers).unwrap();
    let args = [Arg::F32(1.0), Arg::Buffer(&b, 4 * 10), Arg::Buffer(&b, 4 * 128), Arg::I32(100)];
    q.launch(&k, [128, 1, 1], [64, 1, 1], &args).unwrap();
    let got = q.read_vec::<f32>(&b, 0, 256).unwrap();
    for (i, v) in got.iter().enumerate() {
        let expected = match i {
            128..228 => i as f32 + (i - 118) as f32,
            _ => i as f32,
        };
        assert_eq!(*v, expected, "at {i}");
    }
}

#[test]
fn x_is_the_last_dimension_of_a_kernel() {
    let d = device();
    let q = d.queue().unwrap();
    let m = basic(&d);
    let (width, rows) = (48, 5);
    let out = d.alloc(4 * width * rows).unwrap();
    let args = [Arg::Buffer(&out, 0), Arg::I32(width as i32)];
    let k = m.kernel("rows_and_columns").unwrap();
    q.launch(&k, [width, rows, 1], [16, 1, 1], &args).unwrap();
    let got = q.read_vec::<i32>(&out, 0, width * rows).unwrap();
    for row in 0..rows {
        for column in 0..width {
            assert_eq!(got[row * width + column], (1000 * row + column) as i32);
        }
    }
    // One row must work like many: the number of dimensions is the kernel's, not the launch's.
    q.fill(&out, 0, 4 * width * rows, 0xff).unwrap();
    q.launch(&k, [width, 1, 1], [16, 1, 1], &args).unwrap();
    let got = q.read_vec::<i32>(&out, 0, width * rows).unwrap();
    assert!((0..width).all(|c| got[c] == c as i32));
    assert!(got[width..].iter().all(|v| *v == -1));

    let (x, y, z) = (32, 3, 2);
    let out = d.alloc(4 * x * y * z).unwrap();
    let k = m.kernel("three_dimensions").unwrap();
    q.launch(&k, [x, y, z], [16, 1, 1], &[Arg::Buffer(&out, 0)]).unwrap();
    let got = q.read_vec::<i32>(&out, 0, x * y * z).unwrap();
    for (i, v) in got.iter().enumerate() {
        let expected = 10000 * (i / (x * y)) + 100 * (i / x % y) + i % x;
        assert_eq!(*v, expected as i32);
    }
}

#[test]
fn local_memory_struct_and_64_bit_arguments_arrive() {
    let d = device();
    let q = d.queue().unwrap();
    let m = basic(&d);
    let x: Vec<f32> = (0..256).map(|i| (i % 17) as f32).collect();
    let (bx, by) = (d.alloc(1024).unwrap(), d.alloc(1024).unwrap());
    q.write_slice(&bx, 0, &x).unwrap();
    let sums = m.kernel("group_sums").unwrap();
    let args = [Arg::Buffer(&bx, 0), Arg::Buffer(&by, 0), Arg::Local(256)];
    q.launch(&sums, [256, 1, 1], [64, 1, 1], &args).unwrap();
    let expected: Vec<f32> = x.chunks(64).map(|c| c.iter().sum()).collect();
    assert_eq!(q.read_vec::<f32>(&by, 0, 4).unwrap(), expected);

    let mut line = Vec::new();
    line.extend(3i32.to_le_bytes());
    line.extend(0.5f32.to_le_bytes());
    line.extend(4i64.to_le_bytes());
    let k = m.kernel("line").unwrap();
    q.launch(&k, [64, 1, 1], [64, 1, 1], &[Arg::Bytes(&line), Arg::Buffer(&by, 0)]).unwrap();
    let got = q.read_vec::<f32>(&by, 0, 64).unwrap();
    assert!(got.iter().enumerate().all(|(i, v)| *v == (3 * i) as f32 * 4.0 + 2.0));

    let k = m.kernel("steps").unwrap();
    let (start, step) = (-5_000_000_000_i64, 7_000_000_000_u64);
    let args = [Arg::Buffer(&by, 0), Arg::I64(start), Arg::U64(step)];
    q.launch(&k, [16, 1, 1], [16, 1, 1], &args).unwrap();
    let got = q.read_vec::<i64>(&by, 0, 16).unwrap();
    assert!((0..16i64).all(|i| got[i as usize] == start + i * step as i64));
}

#[test]
fn pinned_memory_is_an_argument_too() {
    let d = device();
    let q = d.queue().unwrap();
    let k = basic(&d).kernel("axpy").unwrap();
    let mut host = d.alloc_host(400).unwrap();
    for (i, c) in host.write().unwrap().chunks_mut(4).enumerate() {
        c.copy_from_slice(&(i as f32).to_le_bytes());
    }
    let y = d.alloc(400).unwrap();
    q.fill(&y, 0, 400, 0).unwrap();
    let args = [Arg::F32(2.0), Arg::Host(&host, 0), Arg::Buffer(&y, 0), Arg::I32(100)];
    q.launch(&k, [128, 1, 1], [64, 1, 1], &args).unwrap();
    q.copy(&host, 0, &y, 0, 400).unwrap();
    let got = host.read().unwrap();
    for (i, c) in got.chunks(4).enumerate() {
        assert_eq!(c, (2.0 * i as f32).to_le_bytes());
    }
}

#[test]
fn division_and_root_are_correctly_rounded() {
    let d = device();
    let q = d.queue().unwrap();
    let k = basic(&d).kernel("divide_and_root").unwrap();
    let n = 5000;
    let mut random = Random(99);
    let x: Vec<f32> = random.units(n).iter().map(|v| v.abs() * 1e3).collect();
    let y = random.units(n);
    let buffers: Vec<_> = (0..4).map(|_| d.alloc(4 * n).unwrap()).collect();
    q.write_slice(&buffers[0], 0, &x).unwrap();
    q.write_slice(&buffers[1], 0, &y).unwrap();
    let mut args: Vec<Arg> = buffers.iter().map(|b| Arg::Buffer(b, 0)).collect();
    args.push(Arg::I32(n as i32));
    q.launch(&k, [n.next_multiple_of(64), 1, 1], [64, 1, 1], &args).unwrap();
    let quotient = q.read_vec::<f32>(&buffers[2], 0, n).unwrap();
    let root = q.read_vec::<f32>(&buffers[3], 0, n).unwrap();
    for i in 0..n {
        assert_eq!(quotient[i], x[i] / y[i], "{} / {}", x[i], y[i]);
        assert_eq!(root[i], x[i].sqrt(), "root of {}", x[i]);
    }
}

#[test]
fn wrong_arguments_are_refused_by_kernel_and_index() {
    let d = device();
    let q = d.queue().unwrap();
    let m = basic(&d);
    let k = m.kernel("axpy").unwrap();
    let (x, y) = (d.alloc(256).unwrap(), d.alloc(256).unwrap());
    q.fill(&x, 0, 256, 0).unwrap(); // a fresh block holds anything, NaN too
    q.fill(&y, 0, 256, 0).unwrap();
    let good = [Arg::F32(1.0), Arg::Buffer(&x, 0), Arg::Buffer(&y, 0), Arg::I32(64)];
    let launch = |args: &[Arg]| q.launch(&k, [64, 1, 1], [64, 1, 1], args);
    let with = |i: usize, a| {
        let mut args = good;
        args[i] = a;
        refusal(launch(&args))
    };
    let who = "kernel axpy (module basic): ";
    assert_eq!(refusal(launch(&good[..3])), format!("{who}it takes 4 arguments, 3 were given"));
    let five: Vec<Arg> = good.iter().copied().chain([Arg::I32(1)]).collect();
    assert_eq!(refusal(launch(&five)), format!("{who}it takes 4 arguments, 5 were given"));
    let hundred = vec![Arg::I32(1); 100];
    assert_eq!(refusal(launch(&hundred)), format!("{who}takes 4 arguments, 100 were given"));
    assert_eq!(with(3, Arg::F32(64.0)), format!("{who}argument 3 (n) must be an integer, a float was given"));
    assert_eq!(with(0, Arg::I32(1)), format!("{who}argument 0 (a) must be a float, an integer was given"));
    assert_eq!(with(1, Arg::I64(0)), format!("{who}argument 1 (x) must be a pointer, an integer was given"));
    assert_eq!(with(3, Arg::Buffer(&x, 0)), format!("{who}argument 3 (n) must be an integer, a pointer was given"));
    assert_eq!(with(3, Arg::I64(64)), format!("{who}argument 3 (n) must have 4 bytes, 8 were given"));
    assert_eq!(with(3, Arg::Bytes(&[0; 3])), format!("{who}argument 3 (n) must have 4 bytes, 3 were given"));
    assert_eq!(with(1, Arg::Local(64)), format!("{who}argument 1 (x) must be a pointer, local memory was given"));
    assert_eq!(with(1, Arg::Buffer(&x, 256)), format!("{who}argument 1 starts at byte 256 of a block of 256 bytes"));
    assert_eq!(
        with(2, Arg::Buffer(&y, 1 << 40)),
        format!("{who}argument 2 starts at byte 1099511627776 of a block of 256 bytes")
    );
    let error = launch(&good[..3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    // A value by its bytes is fine, and nothing of the above has run.
    launch(&[Arg::Bytes(&0f32.to_le_bytes()), good[1], good[2], Arg::Bytes(&64i32.to_le_bytes())]).unwrap();
    assert_eq!(q.read_vec::<u8>(&y, 0, 256).unwrap(), vec![0; 256]);
}

#[test]
fn wrong_geometry_is_refused() {
    let d = device();
    let q = d.queue().unwrap();
    let m = basic(&d);
    let k = m.kernel("three_dimensions").unwrap();
    let out = d.alloc(4096).unwrap();
    let launch = |g, l| refusal(q.launch(&k, g, l, &[Arg::Buffer(&out, 0)]));
    let who = "kernel three_dimensions (module basic): ";
    assert_eq!(
        launch([100, 1, 1], [64, 1, 1]),
        format!("{who}the work-group size 64 does not divide the 100 work-items of dimension x")
    );
    assert_eq!(
        launch([64, 3, 1], [16, 2, 1]),
        format!("{who}the work-group size 2 does not divide the 3 work-items of dimension y")
    );
    assert_eq!(
        launch([64, 1, 0], [16, 1, 1]),
        format!("{who}the work-group size 1 does not divide the 0 work-items of dimension z")
    );
    assert_eq!(
        launch([64, 1, 1], [0, 1, 1]),
        format!("{who}the work-group size 0 does not divide the 64 work-items of dimension x")
    );
    let most = d.info().max_work_group as usize;
    assert!(launch([most, 2, 1], [most, 2, 1]).contains("is more than the device's"));
    let sums = m.kernel("group_sums").unwrap();
    let much = d.info().local_memory as usize + 1;
    let text = refusal(q.launch(
        &sums,
        [64, 1, 1],
        [64, 1, 1],
        &[Arg::Buffer(&out, 0), Arg::Buffer(&out, 0), Arg::Local(much)],
    ));
    assert!(text.contains("of local memory is more than the device's"), "{text}");
    let text =
        refusal(q.launch(&sums, [64, 1, 1], [64, 1, 1], &[Arg::Buffer(&out, 0), Arg::Buffer(&out, 0), Arg::Local(0)]));
    assert!(text.ends_with("argument 2 (scratch) is local memory of 0 bytes"), "{text}");
}

#[test]
fn a_copy_queue_takes_copies_and_no_kernels() {
    let d = device();
    let (q, copies) = (d.queue().unwrap(), d.copy_queue().unwrap());
    let k = basic(&d).kernel("collatz").unwrap();
    let (a, b) = (d.alloc(4096).unwrap(), d.alloc(4096).unwrap());
    let numbers: Vec<u32> = (0..1024).collect();
    q.write_slice(&a, 0, &numbers).unwrap();
    copies.after(&q).unwrap();
    copies.copy(&b, 0, &a, 0, 4096).unwrap();
    q.after(&copies).unwrap();
    assert_eq!(q.read_vec::<u32>(&b, 0, 1024).unwrap(), numbers);
    let text = refusal(copies.launch(&k, [16, 1, 1], [16, 1, 1], &[Arg::Buffer(&a, 0)]));
    assert!(text.ends_with("this queue is for copies only"), "{text}");
}

#[test]
fn threads_with_queues_of_their_own_do_not_disturb_each_other() {
    let d = device();
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let d = d.clone();
            scope.spawn(move || {
                let q = d.queue().unwrap();
                let k = basic(&d).kernel("axpy").unwrap();
                let mut random = Random(t + 1);
                for _ in 0..40 {
                    let n = 1 + (random.bits() % 3000) as usize;
                    let (x, y) = (random.units(n), random.units(n));
                    let (bx, by) = (d.alloc(4 * n).unwrap(), d.alloc(4 * n).unwrap());
                    q.write_slice(&bx, 0, &x).unwrap();
                    q.write_slice(&by, 0, &y).unwrap();
                    let args = [Arg::F32(0.5), Arg::Buffer(&bx, 0), Arg::Buffer(&by, 0), Arg::I32(n as i32)];
                    q.launch(&k, [n.next_multiple_of(64), 1, 1], [64, 1, 1], &args).unwrap();
                    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 0.5f32.mul_add(*x, *y)).collect();
                    assert_eq!(q.read_vec::<f32>(&by, 0, n).unwrap(), expected);
                }
            });
        }
    });
}
