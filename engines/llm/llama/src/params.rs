//! Dimensions of a llama model, read from the file and checked, and the tensors it must have.

use ns_llm::{Error, ErrorKind, ModelInfo, Result, RoleInfo};
use ns_weights::{ModelFile, Tensor, TensorType};
use std::collections::BTreeMap;

/// Dimensions of one model. Names as in the file's metadata.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// Layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward block.
    pub n_ff: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; query head `a` reads `a / (n_heads / n_kv)`.
    pub n_kv: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Rotated values of a head, from its start.
    pub rot_dim: usize,
    /// Base of the rotation frequencies.
    pub rope_theta: f64,
    /// Epsilon of the norms.
    pub rms_eps: f32,
    /// Longest context of the training.
    pub context_length: usize,
    /// Vocabulary.
    pub n_vocab: usize,
    /// Whether the head shares the embedding's tensor.
    pub tied: bool,
    /// Divisors of the rotation frequencies (`rope_freqs.weight`), one a pair.
    pub rope_factors: Option<Vec<f32>>,
}

/// Largest sizes accepted: far above any model, small enough that no product overflows.
const LARGEST: u64 = 1 << 24;

fn model_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Model, message)
}

impl Params {
    /// Reads and checks the dimensions; refuses features this engine lacks.
    pub fn read(file: &ModelFile) -> Result<Self> {
        let key = |name: &str| format!("llama.{name}");
        let optional = |name: &str| -> Result<Option<usize>> {
            match file.get_u64(&key(name)) {
                Some(v) if v <= LARGEST => Ok(Some(v as usize)),
                Some(v) => Err(model_error(format!("{} is {v}: out of range", key(name)))),
                None if file.has(&key(name)) => {
                    Err(model_error(format!("{} is not one number: this engine takes equal layers only", key(name))))
                }
                None => Ok(None),
            }
        };
        let required = |name: &str| -> Result<usize> {
            match optional(name)? {
                Some(0) => Err(model_error(format!("{} is 0", key(name)))),
                Some(v) => Ok(v),
                None => Err(model_error(format!("{} is missing", key(name)))),
            }
        };
        let real = |name: &str, default: f32| file.get_f32(&key(name)).unwrap_or(default);

        if let Some(kind) = file.get_str(&key("rope.scaling.type")).filter(|&kind| kind != "none") {
            return Err(model_error(format!("rope scaling `{kind}` is not supported by the llama engine")));
        }
        for lacking in ["expert_count", "expert_used_count", "attention.sliding_window"] {
            if optional(lacking)?.unwrap_or(0) > 0 {
                return Err(model_error(format!("{} is set: the llama engine does not support it", key(lacking))));
            }
        }
        for lacking in ["logit_scale", "embedding_scale", "residual_scale", "attention.scale"] {
            if file.get_f32(&key(lacking)).is_some_and(|v| v != 0.0 && v != 1.0) {
                return Err(model_error(format!("{} is set: the llama engine does not support it", key(lacking))));
            }
        }
        let hidden_size = required("embedding_length")?;
        let n_heads = required("attention.head_count")?;
        let n_kv = optional("attention.head_count_kv")?.unwrap_or(n_heads);
        let head_dim = match optional("attention.key_length")? {
            Some(v) => v,
            None => hidden_size / n_heads,
        };
        if optional("attention.value_length")?.is_some_and(|v| v != head_dim) {
            return Err(model_error("keys and values of different widths are not supported by the llama engine"));
        }
        let embedding =
            file.tensor("token_embd.weight").ok_or_else(|| model_error("tensor token_embd.weight is missing"))?;
        let n_vocab = usize::try_from(embedding.shape.get(1).copied().unwrap_or(0)).unwrap_or(0);
        let params = Self {
            n_layers: required("block_count")?,
            hidden_size,
            n_ff: required("feed_forward_length")?,
            n_heads,
            n_kv,
            head_dim,
            rot_dim: optional("rope.dimension_count")?.unwrap_or(head_dim),
            rope_theta: f64::from(real("rope.freq_base", 10_000.0)),
            rms_eps: real("attention.layer_norm_rms_epsilon", 1e-5),
            context_length: required("context_length")?,
            n_vocab,
            tied: file.tensor("output.weight").is_none(),
            rope_factors: None,
        };
        params.check()?;
        let params = Self { rope_factors: params.read_rope_factors(file)?, ..params };
        params.check_tensors(file)?;
        Ok(params)
    }

    fn check(&self) -> Result<()> {
        let fail = |what: String| Err(model_error(what));
        if self.n_layers > 1024 {
            return fail(format!("llama.block_count is {}: out of range", self.n_layers));
        }
        if self.n_kv == 0 || !self.n_heads.is_multiple_of(self.n_kv) {
            return fail(format!("{} heads cannot share {} key heads", self.n_heads, self.n_kv));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(16) || self.head_dim > 256 {
            return fail(format!("head width {} is not supported (a multiple of 16 up to 256)", self.head_dim));
        }
        if self.rot_dim == 0 || !self.rot_dim.is_multiple_of(2) || self.rot_dim > self.head_dim {
            return fail(format!("llama.rope.dimension_count is {}: not an even part of a head", self.rot_dim));
        }
        if self.n_vocab == 0 || self.n_vocab as u64 > LARGEST {
            return fail(format!("token_embd.weight has {} rows", self.n_vocab));
        }
        if !(self.rope_theta.is_finite() && self.rope_theta > 0.0 && self.rms_eps.is_finite() && self.rms_eps >= 0.0) {
            return fail("rope.freq_base or layer_norm_rms_epsilon is not a usable number".into());
        }
        Ok(())
    }

    /// Rows of the fused query, key and value product.
    pub fn qkv_rows(&self) -> usize {
        (self.n_heads + 2 * self.n_kv) * self.head_dim
    }

    /// Rotation per position of each pair: `theta^(-2j / rot_dim)`, over the pair's factor where the file has one.
    pub fn inv_freq(&self) -> Vec<f32> {
        (0..self.rot_dim / 2)
            .map(|j| {
                let freq = self.rope_theta.powf(-2.0 * j as f64 / self.rot_dim as f64);
                let factor = self.rope_factors.as_ref().and_then(|f| f.get(j)).map_or(1.0, |&f| f64::from(f));
                (freq / factor) as f32
            })
            .collect()
    }

    fn read_rope_factors(&self, file: &ModelFile) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = file.tensor("rope_freqs.weight") else { return Ok(None) };
        let factors = f32_vector(&tensor, self.rot_dim / 2)?;
        if factors.iter().any(|f| !f.is_finite() || *f <= 0.0) {
            return Err(model_error("rope_freqs.weight has a factor that is not positive"));
        }
        Ok(Some(factors))
    }

    /// `(role, rows, columns)` of a layer's matrices, as stored: `[in, out]` innermost first.
    pub fn layer_matrices(&self) -> [(&'static str, usize, usize); 7] {
        let (d, q, kv) = (self.hidden_size, self.n_heads * self.head_dim, self.n_kv * self.head_dim);
        [
            ("attn_q", q, d),
            ("attn_k", kv, d),
            ("attn_v", kv, d),
            ("attn_output", d, q),
            ("ffn_gate", self.n_ff, d),
            ("ffn_up", self.n_ff, d),
            ("ffn_down", d, self.n_ff),
        ]
    }

    /// Every expected tensor is there with its shape, and no other: an unknown one is a feature this engine lacks.
    fn check_tensors(&self, file: &ModelFile) -> Result<()> {
        let mut expected: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let (d, v) = (self.hidden_size as u64, self.n_vocab as u64);
        expected.insert("token_embd.weight".into(), vec![d, v]);
        expected.insert("output_norm.weight".into(), vec![d]);
        if !self.tied {
            expected.insert("output.weight".into(), vec![d, v]);
        }
        if self.rope_factors.is_some() {
            expected.insert("rope_freqs.weight".into(), vec![self.rot_dim as u64 / 2]);
        }
        for layer in 0..self.n_layers {
            for norm in ["attn_norm", "ffn_norm"] {
                expected.insert(format!("blk.{layer}.{norm}.weight"), vec![d]);
            }
            for (role, rows, columns) in self.layer_matrices() {
                expected.insert(format!("blk.{layer}.{role}.weight"), vec![columns as u64, rows as u64]);
            }
        }
        for (name, shape) in &expected {
            let tensor = file.tensor(name).ok_or_else(|| model_error(format!("tensor {name} is missing")))?;
            let found: Vec<u64> = tensor.shape.to_vec();
            let trimmed = &found[..found.iter().rposition(|&n| n != 1).map_or(0, |i| i + 1)];
            let wanted = &shape[..shape.iter().rposition(|&n| n != 1).map_or(0, |i| i + 1)];
            if trimmed != wanted {
                return Err(model_error(format!("tensor {name} has shape {found:?}, expected {shape:?}")));
            }
            if shape.len() == 1 && tensor.ty != TensorType::F32 {
                return Err(model_error(format!("tensor {name} is {}, expected F32", tensor.ty.name())));
            }
        }
        if let Some(extra) = file.tensors().find(|t| !expected.contains_key(t.name)) {
            return Err(model_error(format!("tensor {} is not part of what the llama engine supports", extra.name)));
        }
        Ok(())
    }
}

/// A vector stored as F32.
pub fn f32_vector(tensor: &Tensor<'_>, len: usize) -> Result<Vec<f32>> {
    if tensor.ty != TensorType::F32 || tensor.data.len() != len * 4 {
        return Err(model_error(format!("tensor {} is not {len} values of F32", tensor.name)));
    }
    Ok(tensor.data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// Facts of a file without a device.
pub fn info(file: &ModelFile) -> Result<ModelInfo> {
    let p = Params::read(file)?;
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
    let geometry = [
        ("layers", p.n_layers.to_string()),
        ("hidden size", p.hidden_size.to_string()),
        ("heads", format!("{} ({} key heads) x {}", p.n_heads, p.n_kv, p.head_dim)),
        ("feed forward", p.n_ff.to_string()),
        ("vocabulary", p.n_vocab.to_string()),
        ("context", p.context_length.to_string()),
        ("rope", format!("theta {}, {} of {} values, adjacent pairs", p.rope_theta, p.rot_dim, p.head_dim)),
        ("head", if p.tied { "tied to the embedding".into() } else { "own".into() }),
    ];
    Ok(ModelInfo {
        architecture: "llama".into(),
        name: file.get_str("general.name").map_or_else(|| file.stem(), str::to_owned),
        files: file.paths().to_vec(),
        tensor_bytes: bytes,
        tensor_count: count,
        context_length: p.context_length,
        geometry: geometry.map(|(k, v)| (k.to_owned(), v)).to_vec(),
        roles: roles.into_values().collect(),
    })
}
