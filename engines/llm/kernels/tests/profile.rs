//! The kernels that measure a device, and what launches say they cost. One device's profile: tests of this file run one by one.

#![allow(clippy::unwrap_used, reason = "tests stop at the first failure")]

use std::sync::Mutex;

use ns_llm_kernels::attention::{Heads, KvPrecision, split_cost};
use ns_llm_kernels::{Ceilings, Kernels, Matrix, RawRows, act, at};
use ns_sycl::{Arg, Device, Locations, bytes_of};
use ns_weights::TensorType;

static ONE_BY_ONE: Mutex<()> = Mutex::new(());

fn device() -> Device {
    Device::open(std::env::var("NS_TEST_DEVICE").as_deref().unwrap_or("cpu")).unwrap()
}

/// What is measured is really done: sums of all that is read, copies of every value, chains of known numbers.
#[test]
fn the_measures_do_their_work() {
    let _alone = ONE_BY_ONE.lock();
    let (d, folder) = (device(), Locations::discover().kernels);
    let q = d.queue().unwrap();
    let m = d.load_module(&folder.join("llm"), "ceilings").unwrap();
    let (subs, part) = (8_usize, 768_usize);
    let numbers: Vec<f32> = (0..subs * part).map(|i| (i % 7) as f32).collect();
    let (x, y) = (d.alloc(4 * subs * part).unwrap(), d.alloc(4 * subs * part).unwrap());
    q.write_slice(&x, 0, &numbers).unwrap();
    let run = |name: &str| {
        let args = [Arg::Buffer(&x, 0), Arg::Buffer(&y, 0), Arg::I64(part as i64)];
        q.launch(&m.kernel(name).unwrap(), [subs * 16, 1, 1], [64, 1, 1], &args).unwrap();
    };
    run("ceiling_read");
    let sums: Vec<f32> = numbers.chunks(part).map(|c| c.iter().sum()).collect();
    assert_eq!(q.read_vec::<f32>(&y, 0, subs).unwrap(), sums);
    run("ceiling_copy");
    assert_eq!(q.read_vec::<f32>(&y, 0, subs * part).unwrap(), numbers);
    let rounds = 3;
    let args = [Arg::Buffer(&y, 0), Arg::F32(0.5), Arg::F32(1.0), Arg::I32(rounds)];
    q.launch(&m.kernel("ceiling_fma").unwrap(), [128, 1, 1], [64, 1, 1], &args).unwrap();
    let chain = |begin: usize| (0..8 * rounds).fold(begin as f32, |v, _| v.mul_add(0.5, 1.0));
    let expected: Vec<f32> = (0..128).map(|i| (0..8).map(|k| chain(i % 16 + k)).sum()).collect();
    let got: Vec<f32> = q.read_vec(&y, 0, 128).unwrap();
    assert!(got.iter().zip(&expected).all(|(g, e)| (g - e).abs() < 1e-5), "{got:?} {expected:?}");
}

#[test]
fn a_device_has_ceilings() {
    let _alone = ONE_BY_ONE.lock();
    let d = device();
    let c = Ceilings::measure(&d, &Locations::discover().kernels).unwrap();
    // no machine is slower than this or faster than that
    assert!((1e7..1e14).contains(&c.read) && (1e7..1e14).contains(&c.copy) && (1e7..1e16).contains(&c.fma), "{c:?}");
    assert!(d.profile().unwrap().is_empty());
}

#[test]
fn launches_tell_their_cost() {
    let _alone = ONE_BY_ONE.lock();
    let d = device();
    d.profile_enable(true).unwrap();
    let kernels = Kernels::load(&d, &Locations::discover().kernels).unwrap();
    let q = d.queue().unwrap();
    let (rows, cols, count) = (33_usize, 96_usize, 11_usize);
    let weights = vec![1.0_f32; rows * cols];
    let parts = [RawRows { rows, data: bytes_of(&weights) }];
    let w = Matrix::pack(&kernels, &q, TensorType::F32, cols, &parts).unwrap();
    let stride = act::stride(cols, d.class());
    let (x, row, y) =
        (d.alloc(count * cols * 4).unwrap(), d.alloc(count * stride).unwrap(), d.alloc(count * rows * 4).unwrap());
    q.write_slice(&x, 0, &vec![0.0_f32; count * cols]).unwrap();
    d.profile_reset().unwrap();
    q.section("a test");
    kernels.rows.to_act(&q, at(&x, cols), at(&row, stride), (count, cols)).unwrap();
    w.matvec(&q, at(&row, stride), count, at(&y, rows), false).unwrap();
    let times = d.profile().unwrap();
    let of = |name: &str| times.iter().find(|t| t.name == name).unwrap();
    assert!(times.iter().all(|t| t.section == "a test"), "{times:?}");
    assert_eq!(of("to_act").bytes, (count * (cols * 4 + stride)) as u64);
    // eleven rows are launches of eight and of three, each of which reads the matrix
    for (name, now) in [("matvec_f32_r8", 8), ("matvec_f32_r3", 3)] {
        let t = of(name);
        assert_eq!(t.bytes, (w.bytes() + now * (stride + rows * 4)) as u64, "{name}");
        assert_eq!(t.operations, (2 * now * rows * cols) as u64, "{name}");
    }
    let heads = Heads { n_heads: 8, n_kv: 2, head_dim: 64 };
    assert_eq!(split_cost(heads, KvPrecision::F16, 100), (100 * 2 * 2 * 64 * 2, 100 * 8 * 64 * 4));
}
