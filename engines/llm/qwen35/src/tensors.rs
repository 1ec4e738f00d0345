//! The tensors of a qwen35 file: names, shapes, and facts for people.

use crate::params::{DraftBlock, Params, STATE, TAPS, model_error};
use ns_llm::{ModelInfo, Result, RoleInfo};
use ns_weights::{ModelFile, Tensor, TensorType};
use std::collections::BTreeMap;

/// What a tensor must look like.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// A matrix of any stored type, `[in, out]`.
    Matrix(u64, u64),
    /// Values stored as F32.
    Vector(Vec<u64>),
}

type Expected = BTreeMap<String, Kind>;

fn matrix(columns: usize, rows: usize) -> Kind {
    Kind::Matrix(columns as u64, rows as u64)
}

fn vector(len: usize) -> Kind {
    Kind::Vector(vec![len as u64])
}

fn full_layer(p: &Params, index: usize, out: &mut Expected) {
    let mut add = |role: &str, kind| out.insert(format!("blk.{index}.{role}.weight"), kind);
    let (d, q, kv) = (p.hidden_size, p.n_heads * p.head_dim, p.n_kv * p.head_dim);
    add("attn_q", matrix(d, 2 * q));
    add("attn_k", matrix(d, kv));
    add("attn_v", matrix(d, kv));
    add("attn_output", matrix(q, d));
    add("attn_q_norm", vector(p.head_dim));
    add("attn_k_norm", vector(p.head_dim));
}

fn recurrent_layer(p: &Params, index: usize, out: &mut Expected) {
    let (d, hv) = (p.hidden_size, p.n_value_heads);
    out.insert(format!("blk.{index}.ssm_a"), vector(hv));
    out.insert(format!("blk.{index}.ssm_dt.bias"), vector(hv));
    let mut add = |role: &str, kind| out.insert(format!("blk.{index}.{role}.weight"), kind);
    add("attn_qkv", matrix(d, p.shape().channels()));
    add("attn_gate", matrix(d, p.shape().value_cols()));
    add("ssm_conv1d", Kind::Vector(vec![TAPS as u64, p.shape().channels() as u64]));
    add("ssm_alpha", matrix(d, hv));
    add("ssm_beta", matrix(d, hv));
    add("ssm_norm", vector(STATE));
    add("ssm_out", matrix(p.shape().value_cols(), d));
}

fn common_layer(p: &Params, index: usize, out: &mut Expected) {
    let mut add = |role: &str, kind| out.insert(format!("blk.{index}.{role}.weight"), kind);
    add("attn_norm", vector(p.hidden_size));
    add("post_attention_norm", vector(p.hidden_size));
    add("ffn_gate", matrix(p.hidden_size, p.n_ff));
    add("ffn_up", matrix(p.hidden_size, p.n_ff));
    add("ffn_down", matrix(p.n_ff, p.hidden_size));
}

fn draft_block(p: &Params, draft: DraftBlock, out: &mut Expected) {
    common_layer(p, draft.index, out);
    full_layer(p, draft.index, out);
    let d = p.hidden_size;
    let mut add = |role: &str, kind| out.insert(format!("blk.{}.nextn.{role}.weight", draft.index), kind);
    add("eh_proj", matrix(2 * d, d));
    add("enorm", vector(d));
    add("hnorm", vector(d));
    if draft.own_norm {
        add("shared_head_norm", vector(d));
    }
    if draft.own_embedding {
        add("embed_tokens", matrix(d, p.n_vocab));
    }
    if draft.own_head {
        add("shared_head_head", matrix(d, p.n_vocab));
    }
}

/// Every expected tensor is there with its shape, and no other: an unknown one is a feature this engine lacks.
pub fn check_model(file: &ModelFile, p: &Params) -> Result<()> {
    let mut expected = Expected::new();
    if p.n_vocab == 0 || p.n_vocab > 1 << 24 {
        return Err(model_error(format!("token_embd.weight has {} rows", p.n_vocab)));
    }
    expected.insert("token_embd.weight".into(), matrix(p.hidden_size, p.n_vocab));
    expected.insert("output_norm.weight".into(), vector(p.hidden_size));
    if !p.tied {
        expected.insert("output.weight".into(), matrix(p.hidden_size, p.n_vocab));
    }
    for (index, recurrent) in p.recurrent.iter().enumerate() {
        common_layer(p, index, &mut expected);
        if *recurrent {
            recurrent_layer(p, index, &mut expected);
        } else {
            full_layer(p, index, &mut expected);
        }
    }
    if let Some(draft) = p.draft {
        draft_block(p, draft, &mut expected);
    }
    check(file, &expected, &[])
}

/// The same for a file with the draft block alone; it may repeat the main file's embedding, norm and head.
pub fn check_draft(file: &ModelFile, p: &Params, draft: DraftBlock) -> Result<()> {
    let mut expected = Expected::new();
    draft_block(p, draft, &mut expected);
    check(file, &expected, &["token_embd.weight", "output_norm.weight", "output.weight"])
}

fn check(file: &ModelFile, expected: &Expected, ignored: &[&str]) -> Result<()> {
    let trimmed = |shape: &[u64]| shape[..shape.iter().rposition(|&n| n != 1).map_or(0, |i| i + 1)].to_vec();
    for (name, kind) in expected {
        let tensor = file.tensor(name).ok_or_else(|| model_error(format!("tensor {name} is missing")))?;
        let shape = match kind {
            Kind::Matrix(columns, rows) => vec![*columns, *rows],
            Kind::Vector(shape) => shape.clone(),
        };
        if trimmed(tensor.shape) != trimmed(&shape) {
            let found = tensor.shape;
            return Err(model_error(format!("tensor {name} has shape {found:?}, expected {shape:?}")));
        }
        if matches!(kind, Kind::Vector(_)) && tensor.ty != TensorType::F32 {
            return Err(model_error(format!("tensor {name} is {}, expected F32", tensor.ty.name())));
        }
    }
    for extra in file.tensors().filter(|t| !expected.contains_key(t.name) && !ignored.contains(&t.name)) {
        check_extra(file, expected, &extra)?;
    }
    Ok(())
}

/// What a file may have beside the tensors of every model, as the files of llama.cpp's own generator do: factors of matrices of
/// floats, biases of the attention's products, and what a text model never uses.
fn check_extra(file: &ModelFile, expected: &Expected, extra: &Tensor<'_>) -> Result<()> {
    let matrix = |stem: &str| match expected.get(&format!("{stem}.weight")) {
        Some(Kind::Matrix(_, rows)) if stem.starts_with("blk.") => Some(*rows),
        _ => None,
    };
    if extra.name.starts_with("cls.") {
        return Ok(());
    }
    if let Some(rows) = extra.name.strip_suffix(".bias").and_then(matrix)
        && BIASED.iter().any(|role| extra.name.ends_with(&format!(".{role}.bias")))
    {
        f32_values(extra, rows as usize)?;
        return Ok(());
    }
    if extra.name.strip_suffix(".input_scale").and_then(matrix).is_some() {
        return Ok(()); // for activations of fewer bits; ours are not
    }
    if let Some(stem) = extra.name.strip_suffix(".scale").filter(|stem| matrix(stem).is_some()) {
        let factor = f32_values(extra, 1)?[0];
        let ty = file.tensor(&format!("{stem}.weight")).map(|t| t.ty);
        if factor == 1.0 || (factor.is_finite() && ty == Some(TensorType::F32)) {
            return Ok(());
        }
        return Err(model_error(format!("tensor {}: this engine scales matrices of F32 only", extra.name)));
    }
    Err(model_error(format!("tensor {} is not part of what the qwen35 engine supports", extra.name)))
}

/// Products that may have a bias.
pub const BIASED: [&str; 3] = ["attn_q", "attn_k", "attn_v"];

/// The factor of a matrix, 1 where the file has none.
pub fn factor(file: &ModelFile, matrix: &str) -> f32 {
    let stem = matrix.strip_suffix(".weight").unwrap_or(matrix);
    let values = file.tensor(&format!("{stem}.scale")).and_then(|t| f32_values(&t, 1).ok());
    values.and_then(|v| v.first().copied()).unwrap_or(1.0)
}

/// Values stored as F32.
pub fn f32_values(tensor: &Tensor<'_>, len: usize) -> Result<Vec<f32>> {
    if tensor.ty != TensorType::F32 || tensor.data.len() != len * 4 {
        return Err(model_error(format!("tensor {} is not {len} values of F32", tensor.name)));
    }
    Ok(tensor.data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// Facts of a model without a device; `draft` is the file of the draft block where it is beside the main one.
pub fn info(file: &ModelFile, p: &Params, draft: Option<&ModelFile>) -> ModelInfo {
    let mut roles: BTreeMap<String, RoleInfo> = BTreeMap::new();
    let (mut bytes, mut count) = (0_u64, 0_usize);
    for tensor in file.tensors() {
        let stem = tensor.name.strip_suffix(".weight").unwrap_or(tensor.name);
        let role = stem.strip_prefix("blk.").and_then(|s| s.split_once('.')).map_or(stem, |(_, r)| r);
        let entry = roles.entry(role.to_owned()).or_insert_with(|| RoleInfo {
            role: role.to_owned(),
            count: 0,
            types: Vec::new(),
            bytes: 0,
        });
        entry.count += 1;
        entry.bytes += tensor.data.len() as u64;
        let ty = tensor.ty.name().to_owned();
        if !entry.types.contains(&ty) {
            entry.types.push(ty);
        }
        bytes += tensor.data.len() as u64;
        count += 1;
    }
    let full = p.full_layers(0..p.n_layers);
    let drafts = match (p.draft, draft) {
        (_, Some(file)) => format!("1 block, in {}", file.stem()),
        (Some(_), None) => "1 block, in the file".into(),
        (None, None) => "none".into(),
    };
    let geometry = [
        ("layers", format!("{} ({} DeltaNet, {full} full attention)", p.n_layers, p.n_layers - full)),
        ("hidden size", p.hidden_size.to_string()),
        ("heads", format!("{} ({} key heads) x {}, gated", p.n_heads, p.n_kv, p.head_dim)),
        ("DeltaNet heads", format!("{} ({} key heads) x {STATE}", p.n_value_heads, p.n_key_heads)),
        ("feed forward", p.n_ff.to_string()),
        ("vocabulary", p.n_vocab.to_string()),
        ("context", p.context_length.to_string()),
        ("rope", format!("theta {}, {} of {} values, split pairs", p.rope_theta, p.rot_dim, p.head_dim)),
        ("head", if p.tied { "tied to the embedding".into() } else { "own".into() }),
        ("draft", drafts),
    ];
    ModelInfo {
        architecture: "qwen35".into(),
        name: file.get_str("general.name").map_or_else(|| file.stem(), str::to_owned),
        files: file.paths().iter().chain(draft.into_iter().flat_map(ModelFile::paths)).cloned().collect(),
        tensor_bytes: bytes,
        tensor_count: count,
        context_length: p.context_length,
        geometry: geometry.map(|(k, v)| (k.to_owned(), v)).to_vec(),
        roles: roles.into_values().collect(),
    }
}
