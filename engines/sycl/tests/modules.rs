//! Modules: what is missing, damaged or made for something else is refused with its name.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::Path;

use common::{basic, device, kernels, refusal};
use ns_sycl::{Arg, ErrorKind};

/// A copy of the test module that a test may damage.
fn copy(to: &Path) {
    let variant = device().class().variant();
    for extension in ["json", "spv"] {
        let name = format!("basic.{variant}.{extension}");
        std::fs::copy(kernels().join(&name), to.join(&name)).unwrap();
    }
}

fn description(dir: &Path) -> std::path::PathBuf {
    dir.join(format!("basic.{}.json", device().class().variant()))
}

#[test]
fn an_unknown_kernel_lists_the_known_ones() {
    let m = basic(&device());
    let error = m.kernel("axpyy").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownKernel);
    let text = error.to_string();
    assert!(text.starts_with("module basic has no kernel axpyy; it has: "), "{text}");
    for name in m.kernel_names().unwrap() {
        assert!(text.contains(&name), "{text}");
        assert_eq!(m.kernel(&name).unwrap().sub_group_size(), 16);
    }
    assert_eq!(m.kernel("axpy").unwrap().arg_count(), 4);
}

#[test]
fn a_missing_module_names_its_file() {
    let d = device();
    let text = refusal(d.load_module(&kernels(), "nothing"));
    let path = kernels().join(format!("nothing.{}.json", d.class().variant()));
    assert_eq!(text, format!("{}: No such file or directory", path.display()));
    assert_eq!(refusal(d.load_module(&kernels(), "../basic")), "module name \"../basic\" is not a plain name");
}

#[test]
fn damaged_code_is_refused() {
    let d = device();
    let dir = tempfile::tempdir().unwrap();
    copy(dir.path());
    let spv = dir.path().join(format!("basic.{}.spv", d.class().variant()));
    let good = std::fs::read(&spv).unwrap();
    for (what, bytes) in [
        ("one bit", {
            let mut b = good.clone();
            let n = b.len();
            b[n / 2] ^= 1;
            b
        }),
        ("cut short", good[..good.len() - 4].to_vec()),
        ("empty", Vec::new()),
    ] {
        std::fs::write(&spv, bytes).unwrap();
        let error = d.load_module(dir.path(), "basic").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::File, "{what}");
        assert_eq!(
            error.to_string(),
            format!(
                "{}: damaged (its SHA-256 is not the one in the module description): rebuild the kernels",
                spv.display()
            ),
            "{what}"
        );
    }
    std::fs::write(&spv, &good).unwrap();
    d.load_module(dir.path(), "basic").unwrap();
}

#[test]
fn code_that_is_no_spirv_is_refused_even_with_the_right_digest() {
    use sha2::Digest;
    let d = device();
    let dir = tempfile::tempdir().unwrap();
    copy(dir.path());
    let bytes = b"this is text and no SPIR-V at all";
    std::fs::write(dir.path().join(format!("basic.{}.spv", d.class().variant())), bytes).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(description(dir.path())).unwrap()).unwrap();
    let digest: String = sha2::Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    json["spirv"]["sha256"] = digest.into();
    std::fs::write(description(dir.path()), json.to_string()).unwrap();
    assert_eq!(refusal(d.load_module(dir.path(), "basic")), "module basic: this is no SPIR-V");
}

#[test]
fn a_damaged_description_is_refused() {
    let d = device();
    let dir = tempfile::tempdir().unwrap();
    copy(dir.path());
    let path = description(dir.path());
    let good = std::fs::read_to_string(&path).unwrap();
    let other_variant = if d.class().variant() == "cpu" { "gpu" } else { "cpu" };
    let edit = |f: &dyn Fn(&mut serde_json::Value)| {
        let mut json: serde_json::Value = serde_json::from_str(&good).unwrap();
        f(&mut json);
        json.to_string()
    };
    let cases: Vec<(String, &str)> = vec![
        (String::new(), "it ends too early"),
        (good[..good.len() / 2].to_owned(), ""),
        (good.replace('{', "["), "unexpected character"),
        ("[".repeat(10_000), "nested too deeply"),
        ("[]".to_owned(), "it is no object"),
        (edit(&|j| j["format"] = 2.into()), "format 2, this runtime reads format 1"),
        (edit(&|j| j["module"] = "rows".into()), "it describes module rows."),
        (edit(&|j| j["variant"] = other_variant.into()), "it describes module basic."),
        (edit(&|j| j["spirv"]["file"] = "../x.spv".into()), "is not a plain name"),
        (edit(&|j| j["spirv"] = 3.into()), "\"spirv\" is missing or of the wrong kind"),
        (edit(&|j| j["kernels"][0]["args"][0]["kind"] = "image".into()), "unknown kind \"image\""),
        (
            edit(&|j| j["kernels"][0]["args"][0] = serde_json::json!({"kind": "value", "type": "f32", "size": 3})),
            "a value of 3 bytes",
        ),
        (edit(&|j| j["kernels"][1]["name"] = j["kernels"][0]["name"].clone()), "is there twice"),
        (edit(&|j| j["kernels"][0]["sub_group_size"] = serde_json::json!(-1)), "out of range"),
        (format!("{good}x"), "text after the end"),
    ];
    for (text, expected) in cases {
        std::fs::write(&path, &text).unwrap();
        let error = d.load_module(dir.path(), "basic").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::File, "{error}");
        let message = error.to_string();
        assert!(message.contains(expected), "{message} should contain {expected}");
        assert!(message.contains(path.to_str().unwrap()), "{message}");
    }
}

#[test]
fn a_description_of_other_kernels_is_refused_at_lookup() {
    let d = device();
    let dir = tempfile::tempdir().unwrap();
    copy(dir.path());
    let path = description(dir.path());
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for k in json["kernels"].as_array_mut().unwrap() {
        match k["name"].as_str().unwrap() {
            "axpy" => k["args"].as_array_mut().unwrap().truncate(3),
            "steps" => k["entry"] = "__sycl_kernel_nowhere".into(),
            "collatz" => k["sub_group_size"] = 13.into(),
            _ => {}
        }
    }
    std::fs::write(&path, json.to_string()).unwrap();
    let m = d.load_module(dir.path(), "basic").unwrap();
    let text = refusal(m.kernel("axpy"));
    assert!(
        text.contains("kernel axpy (module basic): the code takes 4 arguments, the module description says 3"),
        "{text}"
    );
    assert!(refusal(m.kernel("steps")).contains("__sycl_kernel_nowhere"));
    let error = m.kernel("collatz").unwrap_err();
    assert!(error.is_unsupported());
    assert!(error.to_string().contains("kernel collatz (module basic) needs sub-groups of 13"), "{error}");
    m.kernel("line").unwrap();
    // What only describes may hold any text.
    json["kernels"][0]["comment"] = "\u{e9}\u{4e2d}\u{1f600}\n\"".into();
    let ascii: String = json
        .to_string()
        .encode_utf16()
        .map(|u| if u < 0x80 { char::from(u as u8).to_string() } else { format!("\\u{u:04x}") })
        .collect();
    std::fs::write(&path, ascii).unwrap();
    d.load_module(dir.path(), "basic").unwrap();
}

#[test]
fn modules_kernels_and_devices_may_go_in_any_order() {
    let d = device();
    let m = basic(&d);
    let k = m.kernel("collatz").unwrap();
    let again = m.kernel("collatz").unwrap();
    let q = d.queue().unwrap();
    let b = d.alloc(64).unwrap();
    drop(m);
    drop(d);
    drop(k);
    q.write_slice(&b, 0, &[1u32]).unwrap();
    q.launch(&again, [16, 1, 1], [16, 1, 1], &[Arg::Buffer(&b, 0)]).unwrap();
    drop(again);
    assert_eq!(q.read_vec::<u32>(&b, 0, 1).unwrap(), [4]);
    drop(q);
    drop(b);
}
