//! Dimensions of a model, from its file.

use crate::error::{Error, Result};
use ns_weights::ModelFile;

/// Dimensions of a qwen35 model.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // the names say it
pub struct Params {
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head: usize,
    pub rotary: usize,
    pub base: f64,
    pub eps: f64,
    /// Key heads, value heads and features of a head of a DeltaNet layer.
    pub key_heads: usize,
    pub value_heads: usize,
    pub state: usize,
    pub taps: usize,
    /// Which layers are DeltaNet layers.
    pub recurrent: Vec<bool>,
    /// Whether a draft block is behind them.
    pub draft: bool,
}

impl Params {
    pub(super) fn read(file: &ModelFile) -> Result<Self> {
        if file.architecture() != "qwen35" {
            return Err(Error::Table(format!("the reference knows qwen35, not `{}`", file.architecture())));
        }
        let lacking = |key: &str| Error::Table(format!("the file has no key `qwen35.{key}`"));
        let number = |key: &str| file.get_u64(&format!("qwen35.{key}")).map(|n| n as usize);
        let needed = |key: &str| number(key).ok_or_else(|| lacking(key));
        let real = |key: &str| file.get_f32(&format!("qwen35.{key}")).map(f64::from).ok_or_else(|| lacking(key));
        let drafts = number("nextn_predict_layers").unwrap_or(0);
        let layers = needed("block_count")?.checked_sub(drafts).ok_or_else(|| lacking("block_count"))?;
        let key = "qwen35.attention.recurrent_layers";
        let listed = file
            .get_array_bool(key)
            .or_else(|| file.get_array_i64(key).map(|flags| flags.into_iter().map(|f| f != 0).collect::<Vec<_>>()));
        let interval = number("full_attention_interval").unwrap_or(4).max(1);
        let recurrent = listed.unwrap_or_else(|| (1..=layers).map(|n| !n.is_multiple_of(interval)).collect());
        if recurrent.len() < layers {
            return Err(Error::Table(format!("`{key}` has {} entries for {layers} layers", recurrent.len())));
        }
        Ok(Self {
            layers,
            heads: needed("attention.head_count")?,
            kv_heads: needed("attention.head_count_kv")?,
            head: needed("attention.key_length")?,
            rotary: needed("rope.dimension_count")?,
            base: real("rope.freq_base")?,
            eps: real("attention.layer_norm_rms_epsilon")?,
            key_heads: needed("ssm.group_count")?,
            value_heads: needed("ssm.time_step_rank")?,
            state: needed("ssm.state_size")?,
            taps: needed("ssm.conv_kernel")?,
            recurrent,
            draft: drafts > 0,
        })
    }
}
