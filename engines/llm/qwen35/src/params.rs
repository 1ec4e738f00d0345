//! Dimensions of a qwen35 model, read from the file and checked, and the tensors it must have.

use crate::kernels::{delta::Shape, gated};
use crate::tensors;
use ns_llm::{Error, ErrorKind, Result};
use ns_llm_kernels::attention::Heads;
use ns_weights::ModelFile;

pub use crate::kernels::delta::{HEAD as STATE, TAPS};

/// Where the draft block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftBlock {
    /// Its block index.
    pub index: usize,
    /// Whether it has a head norm of its own; else it uses the output norm.
    pub own_norm: bool,
    /// Whether it has an embedding of its own.
    pub own_embedding: bool,
    /// Whether it has a head of its own.
    pub own_head: bool,
}

/// Dimensions of one model. Names as in the file's metadata.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// Layers of the trunk, without draft blocks.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward block.
    pub n_ff: usize,
    /// Query heads of a full-attention layer.
    pub n_heads: usize,
    /// Key and value heads; query head `a` reads `a / (n_heads / n_kv)`.
    pub n_kv: usize,
    /// Width of an attention head.
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
    /// Key heads of a DeltaNet layer.
    pub n_key_heads: usize,
    /// Value heads of a DeltaNet layer; value head `h` uses key head `h % n_key_heads`.
    pub n_value_heads: usize,
    /// Whether each layer is a DeltaNet layer.
    pub recurrent: Vec<bool>,
    /// Whether the head shares the embedding's tensor.
    pub tied: bool,
    /// The draft block in this file.
    pub draft: Option<DraftBlock>,
}

/// Largest sizes accepted: far above any model, small enough that no product overflows.
const LARGEST: u64 = 1 << 24;

pub(crate) fn model_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Model, message)
}

/// A file's keys below the architecture's prefix.
struct Keys<'a>(&'a ModelFile);

impl Keys<'_> {
    fn name(name: &str) -> String {
        format!("qwen35.{name}")
    }

    /// A whole number; a list of equal ones counts as one.
    fn optional(&self, name: &str) -> Result<Option<usize>> {
        let key = Self::name(name);
        let value = match (self.0.get_u64(&key), self.0.get_array_u64(&key)) {
            (Some(v), _) => v,
            (None, Some(list)) if !list.is_empty() && list.iter().all(|v| *v == list[0]) => list[0],
            (None, None) if !self.0.has(&key) => return Ok(None),
            _ => return Err(model_error(format!("{key} is not one number: this engine takes equal layers only"))),
        };
        if value > LARGEST {
            return Err(model_error(format!("{key} is {value}: out of range")));
        }
        Ok(Some(value as usize))
    }

    fn required(&self, name: &str) -> Result<usize> {
        match self.optional(name)? {
            Some(0) => Err(model_error(format!("{} is 0", Self::name(name)))),
            Some(v) => Ok(v),
            None => Err(model_error(format!("{} is missing", Self::name(name)))),
        }
    }

    fn real(&self, name: &str) -> Result<f32> {
        let key = Self::name(name);
        let value = self.0.get_f32(&key).ok_or_else(|| model_error(format!("{key} is missing")))?;
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(model_error(format!("{key} is {value}: not a usable number")))
        }
    }

    /// Features that this engine does not compute.
    fn refuse_others(&self) -> Result<()> {
        // linear scaling by no factor is none
        let factor = self.0.get_f32(&Self::name("rope.scaling.factor")).unwrap_or(0.0);
        let none = |kind: &str| kind == "none" || (kind == "linear" && (factor == 0.0 || factor == 1.0));
        if let Some(kind) = self.0.get_str(&Self::name("rope.scaling.type")).filter(|kind| !none(kind)) {
            return Err(model_error(format!("rope scaling `{kind}` is not supported by the qwen35 engine")));
        }
        for name in ["expert_count", "expert_used_count", "attention.sliding_window"] {
            if self.optional(name)?.unwrap_or(0) > 0 {
                let key = Self::name(name);
                return Err(model_error(format!("{key} is set: the qwen35 engine does not support it")));
            }
        }
        for name in ["logit_scale", "embedding_scale", "residual_scale", "attention.scale"] {
            if self.0.get_f32(&Self::name(name)).is_some_and(|v| v != 0.0 && v != 1.0) {
                let key = Self::name(name);
                return Err(model_error(format!("{key} is set: the qwen35 engine does not support it")));
            }
        }
        Ok(())
    }

    /// Which layers are DeltaNet layers: a list with one entry a block (or a trunk layer), or every layer but each
    /// `full_attention_interval`-th.
    fn pattern(&self, n_layers: usize, blocks: usize) -> Result<Vec<bool>> {
        let key = Self::name("attention.recurrent_layers");
        let list = self
            .0
            .get_array_bool(&key)
            .or_else(|| Some(self.0.get_array_u64(&key)?.into_iter().map(|v| v != 0).collect()));
        match list {
            Some(list) if list.len() == n_layers || list.len() == blocks => Ok(list[..n_layers].to_vec()),
            Some(list) => Err(model_error(format!("{key} has {} entries for {n_layers} layers", list.len()))),
            None if self.0.has(&key) => Err(model_error(format!("{key} is not a list of truth values"))),
            None => {
                let interval = self.optional("full_attention_interval")?.unwrap_or(4);
                if interval == 0 {
                    return Err(model_error(format!("{} is 0", Self::name("full_attention_interval"))));
                }
                Ok((0..n_layers).map(|i| !(i + 1).is_multiple_of(interval)).collect())
            }
        }
    }

    /// M-RoPE's sections: for text the three positions are equal, so they only have to make sense.
    fn check_sections(&self, rot_dim: usize) -> Result<()> {
        let key = Self::name("rope.dimension_sections");
        let sections = self.0.get_array_u64(&key).ok_or_else(|| model_error(format!("{key} is missing")))?;
        let sum = sections.iter().try_fold(0_u64, |n, s| n.checked_add(*s));
        if sections.len() != 4 || sum.is_none_or(|n| n == 0 || n > rot_dim as u64) {
            return Err(model_error(format!("{key} is {sections:?}: not four parts of {rot_dim} rotated values")));
        }
        Ok(())
    }
}

impl Params {
    /// Reads and checks the dimensions of a whole model; refuses features this engine lacks.
    pub fn read(file: &ModelFile) -> Result<Self> {
        let params = Self::read_keys(file)?;
        if file.tensor("blk.0.attn_norm.weight").is_none() && params.draft.is_some() {
            return Err(model_error(
                "this file has a draft block only: open the main file, with this one beside it or named by NS_Q35_MTP",
            ));
        }
        tensors::check_model(file, &params)?;
        Ok(params)
    }

    /// Reads a file that has the draft block alone; it must belong to a model of these dimensions.
    pub fn read_draft(file: &ModelFile, main: &Self) -> Result<Self> {
        let params = Self::read_keys(file)?;
        let Some(draft) = params.draft else { return Err(model_error("the file has no draft block")) };
        let same = |p: &Self| {
            (
                p.hidden_size,
                p.n_ff,
                p.n_heads,
                p.n_kv,
                p.head_dim,
                p.rot_dim,
                p.rope_theta.to_bits(),
                p.rms_eps.to_bits(),
            )
        };
        let vocabulary = file.tensor("token_embd.weight").map(|t| t.rows());
        if same(&params) != same(main) || vocabulary.is_some_and(|n| n != main.n_vocab) {
            return Err(model_error("the draft block is of a model with other dimensions"));
        }
        tensors::check_draft(file, main, draft)?;
        Ok(params)
    }

    fn read_keys(file: &ModelFile) -> Result<Self> {
        let keys = Keys(file);
        keys.refuse_others()?;
        let blocks = keys.required("block_count")?;
        let drafts = keys.optional("nextn_predict_layers")?.unwrap_or(0);
        if blocks > 1024 {
            return Err(model_error(format!("qwen35.block_count is {blocks}: out of range")));
        }
        if drafts > 1 || drafts >= blocks {
            return Err(model_error(format!(
                "{drafts} draft blocks of {blocks} blocks: this engine takes one at most"
            )));
        }
        let n_layers = blocks - drafts;
        let hidden_size = keys.required("embedding_length")?;
        let n_heads = keys.required("attention.head_count")?;
        let head_dim = keys.required("attention.key_length")?;
        if keys.optional("attention.value_length")?.is_some_and(|v| v != head_dim) {
            return Err(model_error("keys and values of different widths are not supported by the qwen35 engine"));
        }
        let rot_dim = keys.required("rope.dimension_count")?;
        keys.check_sections(rot_dim)?;
        for (name, wanted) in [("ssm.conv_kernel", TAPS), ("ssm.state_size", STATE)] {
            let found = keys.required(name)?;
            if found != wanted {
                return Err(model_error(format!("qwen35.{name} is {found}: this engine takes {wanted}")));
            }
        }
        let n_value_heads = keys.required("ssm.time_step_rank")?;
        if keys.required("ssm.inner_size")? != n_value_heads * STATE {
            return Err(model_error(format!("qwen35.ssm.inner_size is not {n_value_heads} heads of {STATE}")));
        }
        let draft = (drafts == 1).then(|| {
            let has = |role: &str| file.tensor(&format!("blk.{n_layers}.nextn.{role}.weight")).is_some();
            DraftBlock {
                index: n_layers,
                own_norm: has("shared_head_norm"),
                own_embedding: has("embed_tokens"),
                own_head: has("shared_head_head"),
            }
        });
        let params = Self {
            n_layers,
            hidden_size,
            n_ff: keys.required("feed_forward_length")?,
            n_heads,
            n_kv: keys.optional("attention.head_count_kv")?.unwrap_or(n_heads),
            head_dim,
            rot_dim,
            rope_theta: f64::from(keys.real("rope.freq_base")?),
            rms_eps: keys.real("attention.layer_norm_rms_epsilon")?,
            context_length: keys.required("context_length")?,
            n_vocab: file.tensor("token_embd.weight").map_or(0, |t| t.rows()),
            n_key_heads: keys.required("ssm.group_count")?,
            n_value_heads,
            recurrent: keys.pattern(n_layers, blocks)?,
            tied: file.tensor("output.weight").is_none(),
            draft,
        };
        params.check()?;
        Ok(params)
    }

    fn check(&self) -> Result<()> {
        let fail = |what: String| Err(model_error(what));
        if self.n_kv == 0 || !self.n_heads.is_multiple_of(self.n_kv) {
            return fail(format!("{} heads cannot share {} key heads", self.n_heads, self.n_kv));
        }
        if !self.head_dim.is_multiple_of(16) || self.head_dim > 256 {
            return fail(format!("head width {} is not supported (a multiple of 16 up to 256)", self.head_dim));
        }
        if !self.rot_dim.is_multiple_of(2) || self.rot_dim > self.head_dim {
            return fail(format!("qwen35.rope.dimension_count is {}: not an even part of a head", self.rot_dim));
        }
        if !self.n_value_heads.is_multiple_of(self.n_key_heads) {
            let (k, v) = (self.n_key_heads, self.n_value_heads);
            return fail(format!("{v} value heads cannot share {k} key heads of a DeltaNet layer"));
        }
        if self.n_heads > 1024 || self.n_value_heads > 1024 {
            return fail(format!("{} heads or {} value heads: out of range", self.n_heads, self.n_value_heads));
        }
        Ok(())
    }

    /// Heads of a full-attention layer as the kernels take them.
    pub fn heads(&self) -> Heads {
        Heads { n_heads: self.n_heads, n_kv: self.n_kv, head_dim: self.head_dim }
    }

    /// Heads of a DeltaNet layer as the kernels take them.
    pub fn shape(&self) -> Shape {
        Shape { key_heads: self.n_key_heads, value_heads: self.n_value_heads }
    }

    /// Width of all query heads.
    pub fn query_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Columns of the widest mixer product.
    pub fn product_columns(&self) -> usize {
        gated::product_cols(self.heads()).max(self.shape().product_cols())
    }

    /// Widest input of any product, with or without a draft block.
    pub fn widest(&self, draft: bool) -> usize {
        let draft = if draft { 2 * self.hidden_size } else { 0 };
        self.query_width().max(self.shape().value_cols()).max(self.hidden_size).max(self.n_ff).max(draft)
    }

    /// Full-attention layers among `layers`.
    pub fn full_layers(&self, layers: std::ops::Range<usize>) -> usize {
        self.recurrent[layers].iter().filter(|r| !**r).count()
    }

    /// Rotation per position of each pair: `theta^(-2j / rot_dim)`.
    pub fn inv_freq(&self) -> Vec<f32> {
        (0..self.rot_dim / 2).map(|j| self.rope_theta.powf(-2.0 * j as f64 / self.rot_dim as f64) as f32).collect()
    }
}
