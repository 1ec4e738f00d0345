//! The aliasing check of big allocations. One test: it owns the process's environment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Random, device};

#[test]
fn big_blocks_are_checked_and_other_blocks_keep_their_content() {
    // SAFETY: the only test of this program, before any other thread looks at the environment.
    unsafe { std::env::set_var("NS_GUARD", "always") };
    let d = device();
    let q = d.queue().unwrap();
    let bytes = (32 << 20) + 12_345;
    let first = d.alloc(bytes).unwrap();
    let data: Vec<u8> = {
        let mut random = Random(5);
        (0..bytes).map(|_| random.bits() as u8).collect()
    };
    q.write(&first, 0, &data).unwrap();
    let second = d.alloc(bytes).unwrap();
    q.fill(&second, 0, bytes, 0x5a).unwrap();
    assert!(q.read_vec::<u8>(&first, 0, bytes).unwrap() == data);

    // Three bad blocks are given back, the fourth is taken; four are an error that says so.
    // SAFETY: as above.
    unsafe { std::env::set_var("NS_GUARD_INJECT", "3") };
    let third = d.alloc(bytes).unwrap();
    q.fill(&third, 0, bytes, 1).unwrap();
    // SAFETY: as above.
    unsafe { std::env::set_var("NS_GUARD_INJECT", "4") };
    let error = d.alloc(bytes).unwrap_err();
    assert!(error.is_out_of_memory());
    assert!(error.to_string().contains("gave memory that is used twice for a block of 32.0 MiB, 4 times"), "{error}");
    // SAFETY: as above.
    unsafe { std::env::remove_var("NS_GUARD_INJECT") };
    let held = d.memory_used().unwrap().0;
    assert_eq!(held, 3 * bytes as u64, "spacers and refused blocks are free again");
    assert!(q.read_vec::<u8>(&first, 0, bytes).unwrap() == data);
    assert!(q.read_vec::<u8>(&second, 0, bytes).unwrap().iter().all(|b| *b == 0x5a));
}
