//! Files written by another program: the Python gguf package (tests/reference/make_weights.py).

#![allow(clippy::unwrap_used)]

use ns_weights::{ErrorKind, ModelFile, TensorType, decode_row, shard_paths, total_bytes};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/weights").join(name)
}

fn blocks() -> ModelFile {
    ModelFile::open(fixture("blocks.gguf")).unwrap()
}

/// A05: the magic number of the reader was wrong, and so was that of the fixtures, so tests passed and files failed.
#[test]
fn a05_reads_files_of_a_foreign_writer() {
    let file = blocks();
    assert_eq!(file.version(), 3);
    assert_eq!(file.architecture(), "llama");
    assert_eq!(file.get_str("general.name"), Some("blocks"));
    assert_eq!(file.stem(), "blocks");
    assert_eq!(file.file_bytes(), std::fs::metadata(fixture("blocks.gguf")).unwrap().len());
    assert_eq!(file.tensors().len(), 2 + 2 * 20);
}

/// A11: a tensor at offset 0 was taken for a missing one and skipped.
#[test]
fn a11_a_tensor_at_offset_0_is_there() {
    let file = blocks();
    assert_eq!(file.tensors().next().unwrap().name, "first");
    let first = file.tensor("first").unwrap();
    assert_eq!(first.to_f32(), [0., 1., 2., 3., 4., 5., 6., 7.]);
    let second = file.tensor("F16").unwrap();
    assert_eq!(second.data.as_ptr() as usize - first.data.as_ptr() as usize, 32);
    assert_eq!((second.shape, second.rows(), second.columns()), (&[8_u64, 3][..], 3, 8));
}

#[test]
fn integers_are_read_whatever_their_width() {
    let file = blocks();
    for (key, value) in [("t.u8", 200), ("t.u16", 60_000), ("t.u32", 4_000_000_000), ("t.u64", u64::MAX)] {
        assert_eq!(file.get_u64(key), Some(value), "{key}");
    }
    for (key, value) in [("t.i8", -100), ("t.i16", -30_000), ("t.i32", -2_000_000_000), ("t.i64", i64::MIN)] {
        assert_eq!((file.get_i64(key), file.get_u64(key)), (Some(value), None), "{key}");
    }
    assert_eq!(file.get_i64("t.u64"), None);
    assert_eq!(file.get_f32("t.f32"), Some(0.1));
    assert_eq!(file.get_f32("t.f64"), Some(0.1));
    assert_eq!((file.get_bool("t.true"), file.get_bool("t.false")), (Some(true), Some(false)));
    assert_eq!((file.get_str("t.str"), file.get_str("t.empty")), (Some("Grüße, 世界"), Some("")));
    assert_eq!(file.get_str("t.u8"), None);
    assert!(file.has("a.nested") && !file.has("absent"));
}

#[test]
fn arrays_are_read_by_kind() {
    let file = blocks();
    assert_eq!(file.get_array_u64("a.u16"), Some(vec![1, 60_000]));
    assert_eq!(file.get_array_i64("a.i32"), Some(vec![-1, 2, 3]));
    assert_eq!(file.get_array_u64("a.i32"), None);
    assert_eq!(file.get_array_f32("a.f32"), Some(vec![0.5, -2.0]));
    assert_eq!(file.get_array_bool("a.bool"), Some(vec![true, false, true]));
    assert_eq!(file.get_array_str("a.str"), Some(vec!["", "b", "Ġc"]));
    assert_eq!(file.get_array_str("a.nested"), None);
}

#[test]
fn keys_of_layers_may_be_one_number_or_many() {
    let file = blocks();
    assert_eq!(file.get_u64_per_layer("t.u8", 3), Some(vec![200; 3]));
    assert_eq!(file.get_u64_per_layer("a.u16", 2), Some(vec![1, 60_000]));
    assert_eq!(file.get_u64_per_layer("a.u16", 3), None);
    assert_eq!(file.get_f32_per_layer("t.f32", 2), Some(vec![0.1; 2]));
    assert_eq!(file.get_f32_per_layer("a.f32", 2), Some(vec![0.5, -2.0]));
}

#[test]
fn a_missing_or_mistyped_key_is_named() {
    let file = blocks();
    let path = fixture("blocks.gguf").display().to_string();
    for (error, message) in [
        (file.require_u64("absent").unwrap_err(), "metadata key `absent` is missing"),
        (
            file.require_u64("t.i8").unwrap_err(),
            "metadata key `t.i8` is an integer, not a whole number that is not negative",
        ),
        (file.require_str("a.u16").unwrap_err(), "metadata key `a.u16` is an array of 2 x u16, not a string"),
        (file.require_f32("t.str").unwrap_err(), "metadata key `t.str` is a string, not a real number"),
        (file.require_tensor("absent").unwrap_err(), "tensor `absent` is missing"),
    ] {
        assert_eq!(error.to_string(), format!("{path}: {message}"));
        assert_eq!(error.kind(), ErrorKind::Missing);
    }
}

/// Every block type, bit for bit as the Python package decodes it.
#[test]
fn every_block_type_decodes_exactly() {
    let file = blocks();
    let mut seen = 0;
    for &ty in TensorType::ALL {
        if matches!(ty, TensorType::F32 | TensorType::F16) {
            continue;
        }
        let tensor = file.tensor(ty.name()).unwrap();
        let expected = file.tensor(&format!("{}.expected", ty.name())).unwrap();
        assert_eq!((tensor.ty, tensor.shape), (ty, expected.shape), "{ty}");
        let mut got = vec![f32::NAN; tensor.elements()];
        decode_row(ty, tensor.data, &mut got).unwrap();
        for (i, (got, expected)) in got.iter().zip(expected.to_f32()).enumerate() {
            assert_eq!(got.to_bits(), expected.to_bits(), "{ty} value {i}: {got} and {expected}");
        }
        // By rows: the same.
        let mut row = vec![f32::NAN; tensor.columns()];
        decode_row(ty, tensor.row(1).unwrap(), &mut row).unwrap();
        assert_eq!(row, got[tensor.columns()..], "{ty}");
        assert!(tensor.row(2).is_none());
        seen += 1;
    }
    assert_eq!(seen, 20);
}

#[test]
fn every_half_decodes_exactly() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for len in [1, 7, 255, 257, 65_536] {
        let mut values = vec![f32::NAN; len];
        decode_row(TensorType::F16, &bytes[..2 * len], &mut values).unwrap();
        for (bits, value) in (0_u16..=u16::MAX).zip(values) {
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
            let size = match exponent {
                0 => fraction / 1024.0 * 2_f64.powi(-14),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
            };
            let expected = if bits >> 15 == 1 { -size } else { size };
            assert!(f64::from(value) == expected || value.is_nan() && expected.is_nan(), "{bits:04x}: {value}");
        }
    }
}

#[test]
fn a_scale_that_is_no_number_gives_values_that_are_none() {
    for &ty in TensorType::ALL {
        let bytes = vec![0xFF; ty.block_bytes()];
        let mut values = vec![0.0; ty.block_elements()];
        decode_row(ty, &bytes, &mut values).unwrap();
        assert!(values.iter().all(|v| v.is_nan()), "{ty}");
    }
}

#[test]
fn a_row_of_the_wrong_size_is_refused() {
    for &ty in TensorType::ALL {
        let mut values = vec![0.0; ty.block_elements()];
        for bytes in [ty.block_bytes() - 1, ty.block_bytes() + 1, 2 * ty.block_bytes(), 0] {
            assert!(decode_row(ty, &vec![0; bytes], &mut values).is_err(), "{ty} {bytes}");
        }
        assert_eq!(TensorType::from_id(ty.id()), Some(ty));
        assert_eq!(TensorType::from_name(&ty.name().to_lowercase()), Some(ty));
    }
    assert_eq!(TensorType::Q4_0.row_bytes(33), None);
    assert_eq!(TensorType::Q4_0.row_bytes(64), Some(36));
    assert_eq!(decode_row(TensorType::Q4_0, &[0; 18], &mut [0.0; 32]), Ok(()));
}

/// A01: a split model failed with a puzzling error when any part but the first was named.
#[test]
fn a01_a_split_model_opens_from_any_part() {
    for part in 1..=3 {
        let file = ModelFile::open(fixture(&format!("split-{part:05}-of-00003.gguf"))).unwrap();
        assert_eq!(file.architecture(), "llama");
        assert_eq!(file.stem(), "split");
        assert_eq!(file.paths().len(), 3);
        let names: Vec<&str> = file.tensors().map(|t| t.name).collect();
        assert_eq!(names, ["t0", "t1", "t2", "t3", "t4"]);
        for i in 0..5_u8 {
            let values = file.tensor(&format!("t{i}")).unwrap().to_f32();
            assert_eq!(values, (0..16_u8).map(|n| f32::from(n) + 100.0 * f32::from(i)).collect::<Vec<_>>());
        }
    }
}

/// A03: a tool read only the first part of a model.
#[test]
fn a03_size_and_files_are_those_of_all_parts() {
    let first = fixture("split-00001-of-00003.gguf");
    let paths = shard_paths(&fixture("split-00002-of-00003.gguf")).unwrap();
    assert_eq!(paths.len(), 3);
    assert_eq!(paths[0], first);
    let sum: u64 = paths.iter().map(|p| std::fs::metadata(p).unwrap().len()).sum();
    assert_eq!(total_bytes(&paths[2]).unwrap(), sum);
    assert_eq!(ModelFile::open(&first).unwrap().file_bytes(), sum);
}
