//! Memory: transfers in bounds, the fit check, and errors that say the sizes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Random, device, refusal};
use ns_sycl::ErrorKind;

#[test]
fn transfers_of_every_size_come_back() {
    let d = device();
    let q = d.queue().unwrap();
    let mut random = Random(3);
    // Below and above what is staged, and more than the staging ring holds without a wait between.
    for n in [1usize, 7, 4096, 65536, 65537, 3_000_001] {
        let data: Vec<u8> = (0..n).map(|_| random.bits() as u8).collect();
        let b = d.alloc(n).unwrap();
        q.write(&b, 0, &data).unwrap();
        assert_eq!(q.read_vec::<u8>(&b, 0, n).unwrap(), data);
    }
    let b = d.alloc(64 * 50_000).unwrap();
    let parts: Vec<Vec<u8>> = (0..64).map(|_| (0..50_000).map(|_| random.bits() as u8).collect()).collect();
    for (i, part) in parts.iter().enumerate() {
        q.write(&b, i * 50_000, part).unwrap();
    }
    assert_eq!(q.read_vec::<u8>(&b, 0, 64 * 50_000).unwrap(), parts.concat());
}

#[test]
fn fill_and_copy_touch_their_range_only() {
    let d = device();
    let q = d.queue().unwrap();
    let (a, b) = (d.alloc(1000).unwrap(), d.alloc(1000).unwrap());
    q.fill(&a, 0, 1000, 0x11).unwrap();
    q.fill(&a, 100, 33, 0xee).unwrap();
    q.fill(&b, 0, 1000, 0x22).unwrap();
    q.copy(&b, 501, &a, 90, 50).unwrap();
    let mut expected = vec![0x22u8; 1000];
    for (i, v) in expected[501..551].iter_mut().enumerate() {
        *v = if (10..43).contains(&i) { 0xee } else { 0x11 };
    }
    assert_eq!(q.read_vec::<u8>(&b, 0, 1000).unwrap(), expected);
}

#[test]
fn ranges_outside_a_block_are_refused() {
    let d = device();
    let q = d.queue().unwrap();
    let (a, b) = (d.alloc(100).unwrap(), d.alloc(200).unwrap());
    let name = &d.info().name;
    assert_eq!(
        refusal(q.write(&a, 90, &[0; 11])),
        format!("write: 11 bytes from byte 90 on do not fit a block of 100 bytes on {name}")
    );
    assert_eq!(
        refusal(q.read(&a, 101, &mut [])),
        format!("read: 0 bytes from byte 101 on do not fit a block of 100 bytes on {name}")
    );
    assert_eq!(
        refusal(q.copy(&a, 0, &b, 0, 101)),
        format!("copy to: 101 bytes from byte 0 on do not fit a block of 100 bytes on {name}")
    );
    assert_eq!(
        refusal(q.copy(&a, 0, &b, 150, 60)),
        format!("copy from: 60 bytes from byte 150 on do not fit a block of 200 bytes on {name}")
    );
    assert_eq!(
        refusal(q.fill(&b, usize::MAX, 2, 0)),
        format!("fill: 2 bytes from byte {} on do not fit a block of 200 bytes on {name}", usize::MAX)
    );
    assert_eq!(refusal(d.alloc(0)), format!("an allocation of 0 bytes was asked on {name}"));
}

#[test]
fn what_does_not_fit_is_refused_with_the_sizes() {
    let d = device();
    let total = d.info().total_memory;
    let error = d.alloc(1 << 46).unwrap_err();
    assert!(error.is_out_of_memory());
    let text = error.to_string();
    assert!(text.starts_with(&format!("out of memory on {}: 65536.00 GiB asked, ", d.info().name)), "{text}");
    assert!(
        text.contains("free of") && text.contains("are kept free") && text.contains("this program holds"),
        "{text}"
    );
    assert_eq!(d.reserve(total).unwrap_err().kind(), ErrorKind::OutOfMemory);
    d.reserve(1 << 20).unwrap();
    // The same queue and device go on working.
    let b = d.alloc(1 << 20).unwrap();
    assert_eq!(b.len(), 1 << 20);
    let (now, peak) = d.memory_used().unwrap();
    assert!(now >= 1 << 20 && peak >= now);
}

#[test]
fn selectors_say_what_is_wrong() {
    let error = ns_sycl::Device::open("gpu:99").unwrap_err();
    assert!(error.is_no_device());
    assert!(error.to_string().starts_with("no device \"gpu:99\""), "{error}");
    for bad in ["", "gpux", "gpu:", "gpu:x", "cpu:-1", "cpu:99999999999999999999"] {
        let error = ns_sycl::devices(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument, "{bad}: {error}");
        assert!(error.to_string().contains("device selector"), "{bad}: {error}");
    }
    assert_eq!(ns_sycl::devices("gpu\0").unwrap_err().kind(), ErrorKind::Argument);
}

#[test]
fn the_device_says_its_facts() {
    let d = device();
    let info = d.info();
    let listed = ns_sycl::devices(&info.selector).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].name, info.name);
    assert!(info.total_memory > 1 << 30 && info.free_memory <= info.total_memory);
    assert!(info.sub_group_sizes.contains(&16), "{info:?}");
    assert!(info.compute_units > 0 && info.max_work_group >= 256 && info.local_memory >= 32 << 10);
    assert!(!info.name.is_empty() && !info.driver.is_empty() && !info.backend.is_empty());
}

/// What stays free is what the fit check keeps back.
#[test]
fn the_margin_is_told() {
    let d = device();
    let (free, margin) = (d.free_memory().unwrap(), d.margin().unwrap());
    assert!(margin >= 1 << 20 && margin < free, "{margin} of {free}");
    // other programs take and give memory meanwhile: a tenth either way
    d.reserve((free - margin) / 10 * 9).unwrap();
    let error = d.reserve(d.info().total_memory - margin / 2).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
}
