//! Files that must be refused, each by name, with the message beside it. Numbers are those of reported faults.

#![allow(clippy::unwrap_used)]

use ns_weights::{ErrorKind, ModelFile, decode_row, shard_paths, total_bytes};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/weights").join(name)
}

/// A file's bytes, put together piece by piece.
#[derive(Clone)]
struct Bytes(Vec<u8>);

impl Bytes {
    /// A version 3 header.
    fn header(tensors: u64, keys: u64) -> Self {
        Self(b"GGUF\x03\0\0\0".to_vec()).u64(tensors).u64(keys)
    }

    fn u32(mut self, n: u32) -> Self {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn u64(mut self, n: u64) -> Self {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn text(mut self, text: &str) -> Self {
        self = self.u64(text.len() as u64);
        self.0.extend(text.as_bytes());
        self
    }

    fn info(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let head = self.text(name).u32(dims.len() as u32);
        dims.iter().fold(head, |b, &n| b.u64(n)).u32(ty).u64(offset)
    }

    /// Fills up to the data section and appends it.
    fn data(mut self, len: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + len, 0);
        self
    }
}

fn open(bytes: &[u8]) -> Result<(), (ErrorKind, String)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    match ModelFile::open(&path) {
        Ok(_) => Ok(()),
        Err(e) => {
            assert_eq!(e.path(), path);
            let message = e.to_string();
            let message = message.strip_prefix(&format!("{}: ", path.display())).unwrap();
            Err((e.kind(), message.to_owned()))
        }
    }
}

fn refused(bytes: &Bytes, kind: ErrorKind, message: &str) {
    assert_eq!(open(&bytes.0), Err((kind, message.to_owned())));
}

fn invalid(bytes: &Bytes, message: &str) {
    refused(bytes, ErrorKind::Invalid, message);
}

/// A07: a dimension of 0 caused a division by zero.
#[test]
fn a07_a_dimension_of_0() {
    let file = Bytes::header(1, 0).info("t", &[32, 0], 0, 0).data(32);
    invalid(&file, "tensor `t` has dimension 1 of size 0");
    let file = Bytes::header(1, 0).info("t", &[0, 32], 2, 0).data(32);
    invalid(&file, "tensor `t` has dimension 0 of size 0");
}

/// A07: an empty key passed.
#[test]
fn a07_an_empty_key() {
    let file = Bytes::header(0, 2).text("a").u32(4).u32(1).text("").u32(4).u32(1).data(32);
    invalid(&file, "metadata key 1 has an empty name");
    let file = Bytes::header(1, 0).info("", &[8], 0, 0).data(32);
    invalid(&file, "tensor 0 has an empty name");
}

/// A09: arrays of arrays recursed without limit.
#[test]
fn a09_arrays_nested_10000_deep() {
    let file = (0..10_000).fold(Bytes::header(0, 1).text("deep").u32(9), |b, _| b.u32(9).u64(1));
    invalid(&file.u32(4).u64(0), "metadata key `deep`: arrays are nested more than 4 deep");
}

#[test]
fn arrays_nested_as_deep_as_allowed() {
    let file = (0..3).fold(Bytes::header(0, 1).text("deep").u32(9), |b, _| b.u32(9).u64(1));
    assert_eq!(open(&file.u32(4).u64(1).u32(7).0), Ok(()));
}

/// A09: unknown value types crashed.
#[test]
fn a09_unknown_value_types() {
    for id in [13, 255] {
        let message = format!("metadata key `k`: unknown value type {id}");
        refused(&Bytes::header(0, 1).text("k").u32(id).u64(0), ErrorKind::Unsupported, &message);
        refused(&Bytes::header(0, 1).text("k").u32(9).u32(id).u64(0), ErrorKind::Unsupported, &message);
    }
}

/// A11: the second tensor at offset 32, the first at 0.
#[test]
fn a11_offsets_0_and_32() {
    let file = Bytes::header(2, 0).info("a", &[8], 0, 0).info("b", &[8], 0, 32).data(64);
    assert_eq!(open(&file.0), Ok(()));
}

/// A13: a cut download was marked ready.
#[test]
fn a13_a_cut_file() {
    let whole = std::fs::read(fixture("blocks.gguf")).unwrap();
    assert_eq!(open(&whole), Ok(()));
    for missing in [1, 100, 700] {
        let (kind, message) = open(&whole[..whole.len() - missing]).unwrap_err();
        assert_eq!(kind, ErrorKind::Truncated);
        let tensor = if missing == 700 { "IQ1_M.expected" } else { "BF16.expected" };
        assert_eq!(message, format!("tensor `{tensor}`: the file is cut short, {missing} bytes missing"));
    }
    let file = Bytes::header(1, 0).info("t", &[8], 0, 0).data(12);
    refused(&file, ErrorKind::Truncated, "tensor `t`: the file is cut short, 20 bytes missing");
    // Within the header.
    for (len, message) in
        [(6, "header: the file is cut short, 2 bytes missing"), (20, "header: the file is cut short, 4 bytes missing")]
    {
        assert_eq!(open(&whole[..len]), Err((ErrorKind::Truncated, message.to_owned())));
    }
}

#[test]
fn lengths_are_not_trusted() {
    let most = u64::MAX;
    let truncated = |bytes: Bytes, message: &str| refused(&bytes, ErrorKind::Truncated, message);
    truncated(Bytes::header(0, most), &format!("{most} metadata keys: the file is cut short, {most} bytes missing"));
    truncated(Bytes::header(most, 0), &format!("{most} tensors: the file is cut short, {most} bytes missing"));
    truncated(Bytes::header(0, 1).u64(100).u64(0), "metadata key 0: the file is cut short, 92 bytes missing");
    truncated(
        Bytes::header(0, 1).text("k").u32(8).u64(100).u64(0),
        "metadata key `k`: the file is cut short, 92 bytes missing",
    );
    truncated(
        Bytes::header(0, 1).text("k").u32(9).u32(4).u64(1 << 62),
        &format!("metadata key `k`: the file is cut short, {most} bytes missing"),
    );
    truncated(
        Bytes::header(0, 1).text("k").u32(9).u32(8).u64(1 << 40),
        &format!("metadata key `k`: the file is cut short, {} bytes missing", (1_u64 << 43)),
    );
}

#[test]
fn impossible_tensors() {
    let one = |dims: &[u64], ty: u32, offset: u64| Bytes::header(1, 0).info("t", dims, ty, offset).data(64);
    invalid(&one(&[1, 1, 1, 1, 1], 0, 0), "tensor `t` has 5 dimensions, not 1 to 4");
    invalid(&one(&[], 0, 0), "tensor `t` has 0 dimensions, not 1 to 4");
    invalid(&one(&[33], 2, 0), "tensor `t` is Q4_0 with rows of 33 values, which is no multiple of 32");
    invalid(&one(&[8], 0, 8), "tensor `t` lies at offset 8, which is no multiple of 32");
    let huge = 1 << 40;
    invalid(&one(&[huge, huge], 0, 0), &format!("tensor `t` has an impossible shape [{huge}, {huge}]"));
    let offset = u64::MAX - 31;
    invalid(&one(&[8], 0, offset), &format!("tensor `t` has the impossible offset {offset}"));
    refused(&one(&[8], 4, 0), ErrorKind::Unsupported, "tensor `t` has the unknown type 4");
    refused(&one(&[8], 999, 0), ErrorKind::Unsupported, "tensor `t` has the unknown type 999");
    let two = |name: &str, offset: u64| Bytes::header(2, 0).info("a", &[16], 0, 0).info(name, &[8], 0, offset).data(96);
    assert_eq!(open(&two("b", 64).0), Ok(()));
    invalid(&two("b", 32), "tensors `a` and `b` overlap");
    invalid(&two("b", 0), "tensors `b` and `a` overlap");
    invalid(&two("a", 64), "tensor `a` appears twice");
}

#[test]
fn impossible_headers() {
    invalid(&Bytes(b"GGML\x03\0\0\0".to_vec()), "not a GGUF file: it starts with `GGML`, not `GGUF`");
    invalid(&Bytes(Vec::new()), "not a GGUF file: it starts with ``, not `GGUF`");
    let version = |n: u32| Bytes(b"GGUF".to_vec()).u32(n).u64(0).u64(0);
    assert_eq!(open(&version(2).0), Ok(()));
    refused(&version(1), ErrorKind::Unsupported, "GGUF version 1: only 2 and 3 can be read");
    refused(&version(4), ErrorKind::Unsupported, "GGUF version 4: only 2 and 3 can be read");
    refused(
        &version(3_u32.swap_bytes()),
        ErrorKind::Unsupported,
        "GGUF version 50331648 (a big-endian file): only 2 and 3 can be read",
    );
    let key = |key: &str, kind: u32, value: u32| Bytes::header(0, 1).text(key).u32(kind).u32(value);
    invalid(&key("general.alignment", 4, 24), "metadata key `general.alignment` is 24, not a power of two");
    invalid(&key("general.alignment", 4, 0), "metadata key `general.alignment` is 0, not a power of two");
    invalid(
        &key("general.alignment", 6, 0),
        "metadata key `general.alignment` is a real number, not an unsigned integer",
    );
    invalid(&key("k", 7, 2), "metadata key `k`: a truth value is neither 0 nor 1");
    let twice = Bytes::header(0, 2).text("k").u32(4).u32(1).text("k").u32(4).u32(1);
    invalid(&twice, "metadata key `k` appears twice");
    let mut text = Bytes::header(0, 1).text("k").u32(8).u64(1);
    text.0.push(0xFF);
    invalid(&text, "metadata key `k`: a string is not UTF-8");
}

/// A01 and A03: parts that are missing, mixed up, or not named as parts.
#[test]
fn a01_broken_sets_of_parts() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let part = |n: usize| format!("split-{n:05}-of-00003.gguf");
    let copy = |from: usize, to: &str| std::fs::copy(fixture(&part(from)), at(to)).unwrap();
    let message = |name: &str| {
        let text = ModelFile::open(at(name)).unwrap_err().to_string();
        text.replace(&format!("{}/", folder.path().display()), "")
    };
    copy(2, &part(2));
    copy(3, &part(3));
    assert_eq!(
        message(&part(2)),
        "split-00002-of-00003.gguf: part 1 of 3 is missing: split-00001-of-00003.gguf is not there (a split model needs \
         all its parts in one folder)"
    );
    assert!(total_bytes(&at(&part(3))).is_err());
    copy(2, &part(1));
    assert_eq!(
        message(&part(3)),
        "split-00001-of-00003.gguf: metadata key `split.no` is 1, but the name says part 1 of 3"
    );
    copy(1, "model.gguf");
    assert_eq!(
        message("model.gguf"),
        "model.gguf: this is part 1 of a model of 3 parts, but its name does not end in -00001-of-00003.gguf"
    );
    copy(1, "two-00001-of-00002.gguf");
    copy(2, "two-00002-of-00002.gguf");
    assert_eq!(
        message("two-00001-of-00002.gguf"),
        "two-00001-of-00002.gguf: metadata key `split.count` is 3, but the name says 2 parts"
    );
}

/// A01: a single file that is numbered 1 of 1 is an ordinary one.
#[test]
fn a01_one_of_one_is_an_ordinary_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m-00001-of-00001.gguf");
    std::fs::copy(fixture("blocks.gguf"), &path).unwrap();
    let file = ModelFile::open(&path).unwrap();
    assert_eq!((file.paths(), file.stem().as_str()), (&[path.clone()][..], "m"));
    assert_eq!(shard_paths(&path).unwrap(), [path]);
}

/// A01: the folder of a split model.
#[test]
fn a01_a_folder_is_its_only_model() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let message = || ModelFile::open(root).unwrap_err().to_string().replace(&root.display().to_string(), "DIR");
    assert_eq!(message(), "DIR: a folder without a GGUF model (or without its first part)");
    for n in 1..=3 {
        let name = format!("split-{n:05}-of-00003.gguf");
        std::fs::copy(fixture(&name), root.join(name)).unwrap();
    }
    assert_eq!(ModelFile::open(root).unwrap().tensors().len(), 5);
    std::fs::copy(fixture("blocks.gguf"), root.join("blocks.gguf")).unwrap();
    assert_eq!(
        message(),
        "DIR: a folder with several models, such as DIR/blocks.gguf and DIR/split-00001-of-00003.gguf: name the file"
    );
}

#[test]
fn what_is_no_file() {
    let error = ModelFile::open("/absent/m.gguf").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!(error.to_string(), "/absent/m.gguf: cannot open: No such file or directory (os error 2)");
    assert_eq!(ModelFile::open("/dev/null").unwrap_err().to_string(), "/dev/null: not a regular file");
}

/// Opens, and where that succeeds reads everything: either is an error with a message or whole.
fn read_all(bytes: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    match ModelFile::open(&path) {
        Err(error) => assert!(error.to_string().len() > path.display().to_string().len() + 2),
        Ok(file) => {
            for key in file.keys() {
                let value = file.value(key).unwrap();
                let kinds = [
                    file.get_i64(key).is_some() || file.get_u64(key).is_some(),
                    file.get_f32(key).is_some(),
                    file.get_bool(key).is_some(),
                    file.get_str(key).is_some(),
                    file.get_array_i64(key).is_some() || file.get_array_u64(key).is_some(),
                    file.get_array_f32(key).is_some(),
                    file.get_array_bool(key).is_some(),
                    file.get_array_str(key).is_some(),
                ];
                let nested = value.kind().ends_with("array");
                assert!(kinds.iter().filter(|&&k| k).count() == 1 || nested, "{key}: {kinds:?}");
            }
            for tensor in file.tensors() {
                assert_eq!(Some(tensor.data.len()), tensor.ty.row_bytes(tensor.elements()), "{}", tensor.name);
                let mut row = vec![0.0; tensor.columns()];
                for i in 0..tensor.rows() {
                    decode_row(tensor.ty, tensor.row(i).unwrap(), &mut row).unwrap();
                }
                assert_eq!(file.tensor(tensor.name).unwrap().data.as_ptr(), tensor.data.as_ptr());
            }
        }
    }
}

/// Where the fixture's tensor data begin: all before is header.
const HEADER: usize = 2752;

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_files_are_read_or_refused(
        changes in prop::collection::vec((0..HEADER, prop_oneof![any::<u8>(), Just(0), Just(255)]), 1..6),
    ) {
        let mut bytes = std::fs::read(fixture("blocks.gguf")).unwrap();
        for (at, value) in changes {
            bytes[at] = value;
        }
        read_all(&bytes);
    }

    #[test]
    fn changed_lengths_are_read_or_refused(at in 0..HEADER, value in any::<u64>(), shift in 0..64_u32) {
        let mut bytes = std::fs::read(fixture("blocks.gguf")).unwrap();
        bytes[at..at + 8].copy_from_slice(&(value >> shift).to_le_bytes());
        read_all(&bytes);
    }

    #[test]
    fn cut_files_are_refused(len in 0..107_400_usize) {
        let bytes = std::fs::read(fixture("blocks.gguf")).unwrap();
        let (kind, message) = open(&bytes[..len]).unwrap_err();
        let whole = kind == ErrorKind::Truncated && message.ends_with(" bytes missing");
        prop_assert!(whole || (len < 4 && message.starts_with("not a GGUF file")), "{len}: {message}");
    }

    #[test]
    fn pieces_taken_out_or_put_in_are_read_or_refused(
        at in 0..HEADER, out in 0..64_usize, put in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut bytes = std::fs::read(fixture("blocks.gguf")).unwrap();
        bytes.splice(at..at + out, put);
        read_all(&bytes);
    }
}
