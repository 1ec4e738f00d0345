//! Memory of a load; alone in its program, because all of a program's memory counts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{device, load_options, write};
use ns_llm_qwen35::REGISTRATION;

/// What the plan says is what the load takes, within the rounding of blocks.
#[test]
fn the_plan_is_what_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    write(&ns_tiny::shape("qwen35", "small", 1).unwrap(), "Q8_0", &path);
    let load = load_options(&[], 1, vec![512, 256]);
    let planned = (REGISTRATION.plan)(&path, &load).unwrap().devices[0].needed();
    let one = ns_sycl::Device::open(&device()).unwrap();
    let before = one.memory_used().unwrap().0;
    let engine = (REGISTRATION.load)(&path, &load, &mut |_, _| {}).unwrap();
    let taken = one.memory_used().unwrap().0 - before;
    drop(engine);
    let slack = planned / 50 + (1 << 20);
    assert!(taken <= planned + slack && planned <= taken + slack, "planned {planned}, taken {taken}");
}
