//! safetensors and .pth files: those of foreign writers are read (tests/reference/make_arrays.py), hostile ones refused
//! with the message beside them.

#![allow(clippy::unwrap_used)]

use ns_weights::{ArrayFile, DType, ErrorKind};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/weights").join(name)
}

fn open(bytes: &[u8]) -> Result<(), (ErrorKind, String)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m");
    std::fs::write(&path, bytes).unwrap();
    match ArrayFile::open(&path) {
        Err(e) => Err((e.kind(), e.to_string().strip_prefix(&format!("{}: ", path.display())).unwrap().to_owned())),
        Ok(file) => {
            for array in file.arrays() {
                let elements: u64 = array.shape.iter().product();
                assert_eq!(array.data.len() as u64, elements * array.dtype.size() as u64, "{}", array.name);
                assert_eq!(array.elements() as u64, elements);
                let real = matches!(array.dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
                assert_eq!(array.to_f32().map(|v| v.len()), real.then_some(array.elements()));
                assert!(file.array(array.name).is_some());
            }
            Ok(())
        }
    }
}

fn refused(bytes: &[u8], kind: ErrorKind, message: &str) {
    assert_eq!(open(bytes), Err((kind, message.to_owned())));
}

fn check(file: &ArrayFile, prefix: &str) {
    let array = |name: &str| file.require(&format!("{prefix}{name}")).unwrap();
    assert_eq!((array("w").dtype, array("w").shape), (DType::F32, &[3, 5][..]));
    // The first values of numpy's default generator with seed 7.
    assert_eq!(array("w").to_f32().unwrap()[..3], [0.001_230_153_4, 0.298_745_54, -0.274_137_86]);
    assert_eq!((array("h").dtype, array("h").shape), (DType::F16, &[4][..]));
    assert_eq!((array("i").dtype, array("i").shape), (DType::I64, &[1, 2][..]));
    assert_eq!(array("i").data, [(-1_i64).to_le_bytes(), (1_i64 << 40).to_le_bytes()].concat());
    assert_eq!((array("b").dtype, array("b").data), (DType::Bool, &[1, 0, 1][..]));
    assert_eq!((array("scalar").shape, array("scalar").to_f32()), (&[][..], Some(vec![2.5])));
    assert_eq!((array("empty").shape, array("empty").data), (&[0, 4][..], &[][..]));
}

#[test]
fn safetensors_of_a_foreign_writer() {
    let file = ArrayFile::open(fixture("arrays.safetensors")).unwrap();
    check(&file, "");
    assert_eq!(file.metadata("format"), Some("np"));
    assert_eq!(file.arrays().len(), 6);
    assert_eq!(file.file_bytes(), std::fs::metadata(fixture("arrays.safetensors")).unwrap().len());
    let error = file.require("absent").unwrap_err();
    assert!(error.to_string().ends_with("arrays.safetensors: tensor `absent` is missing"));
}

#[test]
fn pth_of_a_foreign_writer() {
    let file = ArrayFile::open(fixture("arrays.pth")).unwrap();
    check(&file, "model.");
    let names: Vec<&str> = file.arrays().map(|a| a.name).collect();
    let model = ["w", "h", "i", "b", "scalar", "empty", "part"].map(|n| format!("model.{n}"));
    assert_eq!(names, [&model[..], &["list.0".to_owned()]].concat());
    let whole = file.array("model.w").unwrap().to_f32().unwrap();
    assert_eq!(file.array("model.part").unwrap().to_f32().unwrap(), whole[5..]);
    assert_eq!(file.array("list.0").unwrap().data, file.array("model.h").unwrap().data);
}

/// A safetensors file of a header and so many bytes.
fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn tensor(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

fn object(tensors: &[String]) -> String {
    format!("{{{}}}", tensors.join(","))
}

/// A15: the header's length.
#[test]
fn a15_header_length() {
    let mut file = safetensors(&object(&[tensor("a", "F32", "[2]", 0, 8)]), 8);
    assert_eq!(open(&file), Ok(()));
    file[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let message = "not a safetensors file: its header would be 18446744073709551615 bytes long (at most 100000000)";
    refused(&file, ErrorKind::Invalid, message);
    file[..8].copy_from_slice(&1000_u64.to_le_bytes());
    let missing = 1008 - file.len();
    refused(&file, ErrorKind::Truncated, &format!("header: the file is cut short, {missing} bytes missing"));
    refused(&file[..3], ErrorKind::Truncated, "header: the file is cut short, 5 bytes missing");
}

/// A15: offsets outside the file.
#[test]
fn a15_offsets_outside_the_file() {
    let header = object(&[tensor("a", "F32", "[2]", 0, 8), tensor("b", "F32", "[100]", 8, 408)]);
    let message = "tensor `b`: the file is cut short, 398 bytes missing";
    refused(&safetensors(&header, 10), ErrorKind::Truncated, message);
    let header = object(&[tensor("a", "F32", "[2]", 8, 0)]);
    refused(&safetensors(&header, 8), ErrorKind::Invalid, "tensor `a` ends at 0, before it begins at 8");
    let header = object(&[tensor("a", "F32", "[2]", 4, 12)]);
    refused(&safetensors(&header, 12), ErrorKind::Invalid, "4 bytes before tensor `a` belong to no tensor");
    let header = object(&[tensor("a", "F32", "[2]", 0, 8)]);
    refused(&safetensors(&header, 11), ErrorKind::Invalid, "3 bytes after the last tensor");
    let most = u64::MAX;
    let header = object(&[tensor("a", "U8", "[8]", most - 8, most)]);
    let message = format!("{} bytes before tensor `a` belong to no tensor", most - 8);
    refused(&safetensors(&header, 8), ErrorKind::Invalid, &message);
}

/// A15: overlapping ranges.
#[test]
fn a15_overlapping_ranges() {
    let header = object(&[tensor("a", "F32", "[2]", 0, 8), tensor("b", "F32", "[2]", 4, 12)]);
    refused(&safetensors(&header, 12), ErrorKind::Invalid, "tensors `a` and `b` overlap");
}

/// A15: a number of bytes that is not shape times type.
#[test]
fn a15_bytes_that_are_not_shape_times_type() {
    let header = object(&[tensor("a", "F32", "[3]", 0, 8)]);
    refused(&safetensors(&header, 8), ErrorKind::Invalid, "tensor `a` is F32 [3], which takes 12 bytes, but has 8");
    let huge = 1_u64 << 40;
    let header = object(&[tensor("a", "F32", &format!("[{huge},{huge}]"), 0, 8)]);
    let message = format!("tensor `a` has an impossible shape [{huge}, {huge}]");
    refused(&safetensors(&header, 8), ErrorKind::Invalid, &message);
}

#[test]
fn broken_headers() {
    let with = |header: &str, message: &str| refused(&safetensors(header, 8), ErrorKind::Invalid, message);
    with("[]", "not a safetensors file: its header is no JSON object");
    with(
        &object(&[tensor("a", "U8", "[4]", 0, 4), tensor("a", "U8", "[4]", 4, 8)]),
        "the header is not valid: tensor `a` appears twice at line 1 column 56",
    );
    with(
        &object(&[tensor("a", "U8", "[-8]", 0, 8)]),
        "the header is not valid: tensor `a`: invalid value: integer `-8`, expected u64 at line 1 column 31",
    );
    with(r#"{"a":{"dtype":"U8"}}"#, "the header is not valid: tensor `a`: missing field `shape` at line 1 column 20");
    with(
        &"{\"a\":".repeat(10_000),
        "the header is not valid: tensor `a`: unknown field `a`, expected one of `dtype`, `shape`, `data_offsets` at line 1 column 9",
    );
    let unknown = object(&[tensor("a", "F6_E2M3", "[4]", 0, 3)]);
    refused(&safetensors(&unknown, 3), ErrorKind::Unsupported, "tensor `a` has the unknown type `F6_E2M3`");
}

/// A stored ZIP archive.
fn zip(entries: &[(&str, &[u8])], method: u16) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    let put = |out: &mut Vec<u8>, fields: &[(u64, usize)]| {
        fields.iter().for_each(|&(value, len)| out.extend(&value.to_le_bytes()[..len]));
    };
    for (name, data) in entries {
        let (offset, size, named) = (bytes.len() as u64, data.len() as u64, name.len() as u64);
        let method = u64::from(method);
        put(
            &mut bytes,
            &[(0x0403_4b50, 4), (20, 2), (0, 2), (method, 2), (0, 8), (size, 4), (size, 4), (named, 2), (0, 2)],
        );
        bytes.extend(name.as_bytes());
        bytes.extend(*data);
        put(&mut directory, &[(0x0201_4b50, 4), (20, 2), (20, 2), (0, 2), (method, 2), (0, 8), (size, 4), (size, 4)]);
        put(&mut directory, &[(named, 2), (0, 8), (0, 4), (offset, 4)]);
        directory.extend(name.as_bytes());
    }
    let (start, count, size) = (bytes.len() as u64, entries.len() as u64, directory.len() as u64);
    bytes.extend(directory);
    put(&mut bytes, &[(0x0605_4b50, 4), (0, 4), (count, 2), (count, 2), (size, 4), (start, 4), (0, 2)]);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [&[b'X'][..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

/// A pickle of one tensor `t` of F32: length of its storage, offset, shape and strides of one dimension.
fn tensor_pickle(len: u8, offset: u8, size: u8, stride: u8) -> Vec<u8> {
    let mut p = b"\x80\x02}".to_vec();
    p.extend(text("t"));
    p.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
    p.extend(text("storage"));
    p.extend(b"ctorch\nFloatStorage\n");
    p.extend([text("0"), text("cpu")].concat());
    p.extend([b'K', len, b't', b'Q', b'K', offset, b'K', size, 0x85, b'K', stride, 0x85, 0x89]);
    p.extend(b"}tRs.");
    p
}

fn pth(pickle: &[u8], storage: usize) -> Vec<u8> {
    zip(&[("x/data.pkl", pickle), ("x/data/0", &vec![0; storage])], 0)
}

#[test]
fn broken_tensors_in_a_pickle() {
    let with = |pickle: Vec<u8>, kind, message: &str| refused(&pth(&pickle, 32), kind, message);
    assert_eq!(open(&pth(&tensor_pickle(8, 2, 6, 1), 32)), Ok(()));
    assert_eq!(open(&pth(&tensor_pickle(8, 7, 1, 9), 32)), Ok(()));
    let reaches = "tensor `t` reaches beyond its storage of 8 values";
    with(tensor_pickle(8, 3, 6, 1), ErrorKind::Invalid, reaches);
    let short = "tensor `t`: its storage should have 9 values of F32, but has 32 bytes";
    with(tensor_pickle(9, 0, 6, 1), ErrorKind::Invalid, short);
    let strided = "tensor `t` is not stored row by row (shape [4], strides [2])";
    with(tensor_pickle(8, 0, 4, 2), ErrorKind::Unsupported, strided);
    let file = zip(&[("x/data.pkl", &tensor_pickle(8, 0, 8, 1))], 0);
    refused(&file, ErrorKind::Invalid, "tensor `t`: the archive has no entry `x/data/0`");
}

#[test]
fn pickles_that_would_run_something() {
    let with = |pickle: &[u8], kind, message: &str| refused(&pth(pickle, 4), kind, message);
    with(
        b"\x80\x02cos\nsystem\nX\x04\0\0\0echo\x85R.",
        ErrorKind::Unsupported,
        "the pickle names `os.system`, which is not among the few names that tensors need",
    );
    with(
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.",
        ErrorKind::Unsupported,
        "the pickle names `builtins.eval`, which is not among the few names that tensors need",
    );
    with(b"\x80\x02i", ErrorKind::Unsupported, "the pickle has opcode 0x69 at byte 2, which tensors do not need");
    with(
        b"\x80\x02ccollections\nOrderedDict\nK\x01\x85R.",
        ErrorKind::Unsupported,
        "the pickle makes a call that tensors do not need",
    );
    with(b"\x80\x02}", ErrorKind::Invalid, "the pickle is damaged: it ends early");
    with(b"\x80\x02.", ErrorKind::Invalid, "the pickle is damaged: a value is missing");
    with(b"\x80\x02h\x05.", ErrorKind::Invalid, "the pickle is damaged: it refers to a value it does not have");
    with(b"\x80\x02X\xff\xff\xff\xffab.", ErrorKind::Invalid, "the pickle is damaged: it ends early");
}

/// A list of ten references to a list of ten references to ..., and a list within itself.
#[test]
fn pickles_that_grow_without_bound() {
    let mut bomb = b"\x80\x02]q\0".to_vec();
    for level in 0..10_u8 {
        bomb.extend(b"](");
        bomb.extend([b'h', level].repeat(10));
        bomb.extend([b'e', b'q', level + 1]);
    }
    bomb.push(b'.');
    let (kind, message) = open(&pth(&bomb, 4)).unwrap_err();
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(message.ends_with("is nested too deep or holds too much"), "{message}");
    let (_, message) = open(&pth(b"\x80\x02]q\0h\0a.", 4)).unwrap_err();
    assert!(message.ends_with("is nested too deep or holds too much"), "{message}");
}

#[test]
fn broken_archives() {
    let good = pth(&tensor_pickle(8, 0, 8, 1), 32);
    let with = |bytes: &[u8], kind, message: &str| refused(bytes, kind, message);
    with(&good[..good.len() - 1], ErrorKind::Invalid, "the archive has no directory at its end: the file is cut short");
    with(
        &zip(&[("x/data.pkl", b"\x80\x02}.")], 8),
        ErrorKind::Unsupported,
        "archive entry `x/data.pkl` is compressed, which PyTorch never does",
    );
    with(&zip(&[("a", b"b")], 0), ErrorKind::Invalid, "an archive without `data.pkl`: not a file of PyTorch");
    with(
        &zip(&[("a/data.pkl", b"."), ("a/data.pkl", b".")], 0),
        ErrorKind::Invalid,
        "archive entry `a/data.pkl` appears twice",
    );
    with(
        &zip(&[("a/data.pkl", b"."), ("b/data.pkl", b".")], 0),
        ErrorKind::Invalid,
        "an archive with more than one `data.pkl`",
    );
    with(
        &zip(&[("a/data.pkl", b"\x80\x02}."), ("a/byteorder", b"big")], 0),
        ErrorKind::Unsupported,
        "the values are not little-endian",
    );
    // The second entry's directory record says that it lies where the first does.
    let mut overlap = good.clone();
    let record = good.windows(4).rposition(|w| w == b"PK\x01\x02").unwrap();
    overlap[record + 42..record + 46].fill(0);
    with(&overlap, ErrorKind::Invalid, "archive entries `x/data/0` and `x/data.pkl` overlap");
    // It says that it is larger than the file.
    let mut large = good.clone();
    large[record + 20..record + 28].fill(0xF0);
    with(&large, ErrorKind::Invalid, "archive entry `x/data/0` does not end before the archive's directory");
    with(
        b"\x80\x02\x8a\x0al\xfc",
        ErrorKind::Unsupported,
        "a bare pickle, as old PyTorch wrote: save it again with PyTorch 1.6 or later, or convert it to safetensors",
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_files_are_read_or_refused(
        pth in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let name = if pth { "arrays.pth" } else { "arrays.safetensors" };
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Err((_, message)) = open(&bytes) {
            prop_assert!(!message.is_empty());
        }
    }

    #[test]
    fn any_pickle_is_read_or_refused(pickle in prop::collection::vec(
        prop_oneof![any::<u8>(), prop::sample::select(b"}]()\x85\x86\x87tsuaeRQbqhcK\x94.(".to_vec())], 0..200,
    )) {
        let bytes = pth(&[b"\x80\x02", &pickle[..], b"."].concat(), 16);
        if let Err((_, message)) = open(&bytes) {
            prop_assert!(!message.is_empty());
        }
    }
}
