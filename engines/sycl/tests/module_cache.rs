//! The cache of built modules. One test: it owns the process's environment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{device, kernels};
use ns_sycl::{Arg, Device, Module};

fn works(d: &Device, m: &Module) {
    let q = d.queue().unwrap();
    let b = d.alloc(64).unwrap();
    q.write_slice(&b, 0, &[1u32]).unwrap();
    let k = m.kernel("collatz").unwrap();
    q.launch(&k, [16, 1, 1], [16, 1, 1], &[Arg::Buffer(&b, 0)]).unwrap();
    assert_eq!(q.read_vec::<u32>(&b, 0, 1).unwrap(), [4]);
}

#[test]
fn builds_are_kept_and_damaged_ones_are_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("deep/er");
    // SAFETY: the only test of this program, before any other thread looks at the environment.
    unsafe {
        std::env::set_var("NS_MODULE_CACHE", &cache);
        std::env::remove_var("NS_NATIVE");
    }
    let d = device();
    let load = || {
        let m = d.load_module(&kernels(), "basic").unwrap();
        let source = m.source().unwrap();
        works(&d, &m);
        source
    };
    assert_eq!(load(), "spirv");
    let files: Vec<_> = std::fs::read_dir(&cache).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(load(), "cache");
    let good = std::fs::read(&files[0]).unwrap();
    let changed = |f: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        f(&mut bytes);
        bytes
    };
    let half = good.len() / 2;
    let cases = [
        ("a bit of the content", changed(&|b| b[half] ^= 4)),
        ("cut short", changed(&|b| b.truncate(half))),
        ("cut in the header", changed(&|b| b.truncate(50))),
        ("longer", changed(&|b| b.push(0))),
        ("another key", changed(&|b| b[8] = if b[8] == b'0' { b'1' } else { b'0' })),
        ("empty", Vec::new()),
    ];
    for (what, bytes) in cases {
        std::fs::write(&files[0], bytes).unwrap();
        assert_eq!(load(), "spirv", "{what}");
        assert_eq!(load(), "cache", "{what}: written again");
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 1, "{what}: nothing left behind");
    }
    // A well-formed file whose content the driver refuses.
    let mut forged = good.clone();
    forged[144..].reverse();
    let digest: String =
        sha2::Digest::finalize(sha2::Digest::chain_update(<sha2::Sha256 as sha2::Digest>::new(), &forged[144..]))
            .iter()
            .map(|b: &u8| format!("{b:02x}"))
            .collect();
    forged[72..136].copy_from_slice(digest.as_bytes());
    std::fs::write(&files[0], forged).unwrap();
    assert_eq!(load(), "spirv");
    assert_eq!(load(), "cache");

    // SAFETY: as above; the loads before have finished.
    unsafe { std::env::set_var("NS_MODULE_CACHE", "off") };
    assert_eq!(load(), "spirv");
    // SAFETY: as above. A folder that cannot be made is no error.
    unsafe { std::env::set_var("NS_MODULE_CACHE", files[0].join("below-a-file")) };
    assert_eq!(load(), "spirv");
}
