//! Dependencies between the crates of the workspace point down only (CONTRIBUTING.md).

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::process::Command;

/// A crate's layer from its folder; a crate may depend on lower layers only.
fn layer(folder: &str) -> u32 {
    match folder {
        f if f.starts_with("tools/lib/") => 1,
        f if f.starts_with("tools/") => 4,
        "engines/sycl" | "engines/weights" | "engines/tokenizer" | "engines/diffusion" => 0,
        f if f.ends_with("/contract") => 1,
        f if f.ends_with("/kernels") => 1,
        f if f.starts_with("engines/") => 3,
        other => panic!("no layer for {other}: name it in this test"),
    }
}

#[test]
fn arrows_point_down() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(format!("{root}/Cargo.toml"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let workspace = metadata["workspace_root"].as_str().unwrap();
    let mut folders = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap() {
        let manifest = package["manifest_path"].as_str().unwrap();
        let folder = manifest.strip_prefix(workspace).unwrap().trim_start_matches('/').trim_end_matches("/Cargo.toml");
        folders.insert(package["name"].as_str().unwrap(), (folder, package));
    }
    let mut checked = 0;
    for (name, (folder, package)) in &folders {
        if folder.starts_with("tests/") {
            continue; // tests may use anything
        }
        for dependency in package["dependencies"].as_array().unwrap().iter().filter(|d| d["kind"].is_null()) {
            let Some((target, _)) = folders.get(dependency["name"].as_str().unwrap()) else { continue };
            assert!(!target.starts_with("tests/"), "{name} depends on {target} outside its tests");
            // libraries of one shelf may use each other; cargo refuses circles
            let same_shelf = folder.starts_with("tools/lib/") && target.starts_with("tools/lib/")
                || layer(folder) == 0 && layer(target) == 0;
            assert!(layer(target) < layer(folder) || same_shelf, "{name} ({folder}) may not depend on {target}");
            let kind =
                |f: &str| f.strip_prefix("engines/").and_then(|f| f.split_once('/')).map(|(kind, _)| kind.to_owned());
            if let (Some(a), Some(b)) = (kind(folder), kind(target)) {
                assert_eq!(a, b, "{name} ({folder}) sees another kind: {target}");
            }
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} dependencies were seen");
}
