//! The tensors of the layers on one device, packed for its class.

use crate::device_error;
use crate::kernels::delta::{HEAD, TAPS, conv_taps};
use crate::params::Params;
use crate::tensors::{BIASED, f32_values, factor};
use ns_llm::{Error, ErrorKind, Progress, Result};
use ns_llm_kernels::{Kernels, Matrix, RawRows};
use ns_sycl::{Buffer, Device, DeviceClass, Queue, bytes_of};
use ns_weights::{ModelFile, Tensor, TensorType};
use std::borrow::Cow;
use std::ops::Range;

/// Matrices whose products have the same input and lie side by side in the output. One matrix where all parts have
/// the same type, else one for each run of equal types.
pub struct Fused {
    /// The matrices with their first column in the output.
    pub parts: Vec<(Matrix, usize)>,
}

/// The parts of a full-attention layer before its feed-forward block.
pub struct Full {
    /// Queries and gates (head by head), keys and values.
    pub qkv: Fused,
    /// Added to their product, where the file has biases.
    pub bias: Option<Buffer>,
    /// Norm of the query heads, `[head_dim]`.
    pub q_norm: Buffer,
    /// Norm of the key heads.
    pub k_norm: Buffer,
    /// Attention output.
    pub output: Matrix,
    /// Its layer of the device's cache.
    pub cache_layer: usize,
}

/// The parts of a DeltaNet layer before its feed-forward block.
pub struct Delta {
    /// Channels, gate, alpha, beta.
    pub mixer: Fused,
    /// Taps of the convolution, `[4][channels]`.
    pub conv: Buffer,
    /// Decay of each value head.
    pub a: Buffer,
    /// Added to alpha.
    pub dt: Buffer,
    /// Norm of each value head, `[128]`.
    pub norm: Buffer,
    /// Output.
    pub output: Matrix,
    /// Its layer of the device's states.
    pub state_layer: usize,
}

/// What mixes the rows of a layer.
pub enum Mixer {
    /// Gated full attention.
    Full(Full),
    /// Gated DeltaNet.
    Delta(Delta),
}

/// One layer.
pub struct Layer {
    /// Norm before the mixer, `[hidden_size]`.
    pub norm: Buffer,
    /// Attention or DeltaNet.
    pub mixer: Mixer,
    /// Norm before the feed-forward block.
    pub ffn_norm: Buffer,
    /// Gate, then up.
    pub gate_up: Fused,
    /// Down.
    pub down: Matrix,
}

/// The draft block.
pub struct Draft {
    /// Joins the next token's embedding and the trunk's row.
    pub join: Matrix,
    /// Norm of the embedding.
    pub embedding_norm: Buffer,
    /// Norm of the trunk's row.
    pub hidden_norm: Buffer,
    /// Its layer, with full attention.
    pub layer: Layer,
    /// Norm before its head, where it is not the trunk's.
    pub norm: Option<Buffer>,
    /// Embedding, where it is not the trunk's.
    pub embedding: Option<Matrix>,
    /// Head, where it is not the trunk's.
    pub head: Option<Matrix>,
}

/// Everything one device holds.
pub struct Weights {
    /// Embedding: on the first device, and where a tied head or the draft block needs it.
    pub embedding: Option<Matrix>,
    /// Head where it is not the embedding; on the last device.
    pub head: Option<Matrix>,
    /// Norm before the head; on the last device.
    pub output_norm: Option<Buffer>,
    /// Layers in order.
    pub layers: Vec<Layer>,
    /// The draft block; on the last device.
    pub draft: Option<Draft>,
}

fn missing(what: &str) -> ns_llm_kernels::Error {
    ns_llm_kernels::Error::argument(format!("this device has no {what}"))
}

impl Weights {
    /// The embedding.
    pub fn embedding(&self) -> ns_llm_kernels::Result<&Matrix> {
        self.embedding.as_ref().ok_or_else(|| missing("embedding"))
    }

    /// The matrix that gives the logits.
    pub fn head(&self) -> ns_llm_kernels::Result<&Matrix> {
        self.head.as_ref().or(self.embedding.as_ref()).ok_or_else(|| missing("head"))
    }

    /// The norm before the head.
    pub fn output_norm(&self) -> ns_llm_kernels::Result<&Buffer> {
        self.output_norm.as_ref().ok_or_else(|| missing("head norm"))
    }

    /// The draft block.
    pub fn draft(&self) -> ns_llm_kernels::Result<&Draft> {
        self.draft.as_ref().ok_or_else(|| missing("draft block"))
    }
}

/// What a device takes of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Its layers.
    pub layers: Range<usize>,
    /// Whether it embeds the tokens.
    pub first: bool,
    /// Whether it has the head, and the draft block where one is used.
    pub last: bool,
}

/// The files of a model: the draft block may be beside the main file.
pub struct Source<'a> {
    /// The main file.
    pub main: &'a ModelFile,
    /// Its dimensions.
    pub p: &'a Params,
    /// The file of the draft block and its place there, where it is used.
    pub draft: Option<(&'a ModelFile, crate::params::DraftBlock)>,
}

impl Source<'_> {
    /// Names of the tensors of a share in its file: main ones, then those of the draft block.
    fn names(&self, share: &Share) -> (Vec<String>, Vec<String>) {
        let (mut main, mut draft) = (Vec::new(), Vec::new());
        let own_embedding = self.draft.is_none_or(|(_, d)| d.own_embedding);
        if share.first || (share.last && (self.p.tied || !own_embedding)) {
            main.push("token_embd.weight".to_owned());
        }
        if share.last {
            main.push("output_norm.weight".into());
            if !self.p.tied {
                main.push("output.weight".into());
            }
        }
        let of_block = |name: &str, block: usize| {
            name.strip_prefix("blk.").is_some_and(|n| n.split_once('.').is_some_and(|(i, _)| i.parse() == Ok(block)))
        };
        for layer in share.layers.clone() {
            main.extend(self.main.tensors().filter(|t| of_block(t.name, layer)).map(|t| t.name.to_owned()));
        }
        if let (Some((file, block)), true) = (self.draft, share.last) {
            draft.extend(file.tensors().filter(|t| of_block(t.name, block.index)).map(|t| t.name.to_owned()));
        }
        (main, draft)
    }

    /// Bytes of a share in the files, and packed on a device of a class.
    pub fn bytes(&self, share: &Share, class: DeviceClass) -> (u64, u64) {
        let (main, draft) = self.names(share);
        let main = main.iter().filter_map(|n| self.main.tensor(n));
        let draft = draft.iter().filter_map(|n| self.draft.and_then(|(f, _)| f.tensor(n)));
        main.chain(draft).fold((0, 0), |(raw, packed), t| (raw + t.data.len() as u64, packed + packed_bytes(&t, class)))
    }
}

fn packed_bytes(t: &Tensor<'_>, class: DeviceClass) -> u64 {
    if t.shape.len() < 2 || t.rows() == 1 || t.name.ends_with("ssm_conv1d.weight") {
        return t.data.len() as u64;
    }
    Matrix::packed_bytes(t.ty, t.rows(), t.columns(), class).unwrap_or(0)
}

/// Whether every matrix has a type that matrices can have; names the first that has not.
pub fn check_types(source: &Source<'_>, class: DeviceClass) -> Result<()> {
    let files = [Some(source.main), source.draft.map(|d| d.0)];
    for t in files.into_iter().flatten().flat_map(ModelFile::tensors).filter(|t| t.shape.len() > 1) {
        if t.ty != TensorType::F32 && Matrix::packed_bytes(t.ty, t.rows(), t.columns(), class).is_none() {
            return Err(Error::new(
                ErrorKind::Model,
                format!("tensor {} is {} with rows of {}: not supported", t.name, t.ty.name(), t.columns()),
            ));
        }
    }
    Ok(())
}

/// Where the load is, over all devices.
pub struct Loading<'a> {
    /// Bytes packed.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Whom to tell.
    pub progress: Progress<'a>,
}

struct Loader<'a, 'b> {
    p: &'a Params,
    file: &'a ModelFile,
    device: &'a Device,
    queue: &'a Queue,
    kernels: &'a Kernels,
    loading: &'a mut Loading<'b>,
}

impl<'a> Loader<'a, '_> {
    fn tensor(&self, name: &str) -> Result<Tensor<'a>> {
        self.file.tensor(name).ok_or_else(|| Error::new(ErrorKind::Model, format!("tensor {name} is missing")))
    }

    fn advance(&mut self, bytes: usize) {
        self.loading.done += bytes as u64;
        (self.loading.progress)(self.loading.done, self.loading.total);
    }

    fn store(&mut self, name: &str, values: &[f32]) -> Result<Buffer> {
        let buffer = self.device.alloc(values.len() * 4).map_err(|e| device_error(name, e))?;
        self.queue.write(&buffer, 0, bytes_of(values)).map_err(|e| device_error(name, e))?;
        self.advance(values.len() * 4);
        Ok(buffer)
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Buffer> {
        let values = f32_values(&self.tensor(name)?, len)?;
        self.store(name, &values)
    }

    fn taps(&mut self, name: &str) -> Result<Buffer> {
        let values = f32_values(&self.tensor(name)?, self.p.shape().channels() * TAPS)?;
        self.store(name, &conv_taps(&values))
    }

    /// Tensors of equal width, stacked; runs of equal types become one matrix each.
    fn fused(&mut self, names: &[String]) -> Result<Fused> {
        let tensors = names.iter().map(|n| self.tensor(n)).collect::<Result<Vec<_>>>()?;
        let (mut parts, mut rows, mut at) = (Vec::new(), 0, 0);
        while at < tensors.len() {
            let run = tensors[at..].iter().take_while(|t| t.ty == tensors[at].ty).count();
            let group = &tensors[at..at + run];
            let data: Vec<Cow<'_, [u8]>> = group.iter().map(|t| scaled(t, factor(self.file, t.name))).collect();
            let raw: Vec<RawRows<'_>> =
                group.iter().zip(&data).map(|(t, data)| RawRows { rows: t.rows(), data }).collect();
            let matrix = Matrix::pack(self.kernels, self.queue, group[0].ty, group[0].columns(), &raw)
                .map_err(|e| crate::kernel_error(&format!("cannot pack {}", group[0].name), e))?;
            let first = rows;
            rows += matrix.rows();
            parts.push((matrix, first));
            at += run;
            for t in group {
                self.advance(t.data.len());
            }
        }
        Ok(Fused { parts })
    }

    fn matrix(&mut self, name: &str) -> Result<Matrix> {
        let mut fused = self.fused(&[name.to_owned()])?;
        fused.parts.pop().map(|(m, _)| m).ok_or_else(|| Error::new(ErrorKind::Model, format!("tensor {name} is empty")))
    }

    /// Biases of queries, keys and values side by side, zero where the file has none; `None` without any.
    fn bias(&mut self, index: usize) -> Result<Option<Buffer>> {
        let mut values = Vec::new();
        let mut any = false;
        for role in BIASED {
            let rows = self.tensor(&format!("blk.{index}.{role}.weight"))?.rows();
            match self.file.tensor(&format!("blk.{index}.{role}.bias")) {
                Some(tensor) => {
                    values.extend(f32_values(&tensor, rows)?);
                    any = true;
                }
                None => values.resize(values.len() + rows, 0.0),
            }
        }
        if any { Ok(Some(self.store("attention bias", &values)?)) } else { Ok(None) }
    }

    fn layer(&mut self, index: usize, recurrent: bool, place: usize) -> Result<Layer> {
        let name = |role: &str| format!("blk.{index}.{role}.weight");
        let p = self.p;
        let norm = self.vector(&name("attn_norm"), p.hidden_size)?;
        let mixer = if recurrent {
            Mixer::Delta(Delta {
                mixer: self.fused(&[name("attn_qkv"), name("attn_gate"), name("ssm_alpha"), name("ssm_beta")])?,
                conv: self.taps(&name("ssm_conv1d"))?,
                a: self.vector(&format!("blk.{index}.ssm_a"), p.n_value_heads)?,
                dt: self.vector(&format!("blk.{index}.ssm_dt.bias"), p.n_value_heads)?,
                norm: self.vector(&name("ssm_norm"), HEAD)?,
                output: self.matrix(&name("ssm_out"))?,
                state_layer: place,
            })
        } else {
            Mixer::Full(Full {
                qkv: self.fused(&[name("attn_q"), name("attn_k"), name("attn_v")])?,
                bias: self.bias(index)?,
                q_norm: self.vector(&name("attn_q_norm"), p.head_dim)?,
                k_norm: self.vector(&name("attn_k_norm"), p.head_dim)?,
                output: self.matrix(&name("attn_output"))?,
                cache_layer: place,
            })
        };
        Ok(Layer {
            norm,
            mixer,
            ffn_norm: self.vector(&name("post_attention_norm"), p.hidden_size)?,
            gate_up: self.fused(&[name("ffn_gate"), name("ffn_up")])?,
            down: self.matrix(&name("ffn_down"))?,
        })
    }
}

/// A matrix times its factor; only F32 has other factors than 1.
fn scaled<'a>(tensor: &Tensor<'a>, factor: f32) -> Cow<'a, [u8]> {
    if factor == 1.0 || tensor.ty != TensorType::F32 {
        return Cow::Borrowed(tensor.data);
    }
    let value = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]) * factor;
    Cow::Owned(tensor.data.chunks_exact(4).flat_map(|b| value(b).to_le_bytes()).collect())
}

/// Packs what a device takes.
pub fn load(
    source: &Source<'_>,
    share: &Share,
    (device, queue, kernels): (&Device, &Queue, &Kernels),
    loading: &mut Loading<'_>,
) -> Result<Weights> {
    let p = source.p;
    let (main, _) = source.names(share);
    let has = |name: &str| main.iter().any(|n| n == name);
    let mut l = Loader { p, file: source.main, device, queue, kernels, loading };
    let embedding = if has("token_embd.weight") { Some(l.matrix("token_embd.weight")?) } else { None };
    let head = if has("output.weight") { Some(l.matrix("output.weight")?) } else { None };
    let output_norm = if share.last { Some(l.vector("output_norm.weight", p.hidden_size)?) } else { None };
    let (mut layers, mut full, mut delta) = (Vec::with_capacity(share.layers.len()), 0, 0);
    for index in share.layers.clone() {
        let recurrent = p.recurrent[index];
        let place = if recurrent { &mut delta } else { &mut full };
        layers.push(l.layer(index, recurrent, *place)?);
        *place += 1;
    }
    let draft = match source.draft {
        Some((file, block)) if share.last => {
            l.file = file;
            let name = |role: &str| format!("blk.{}.nextn.{role}.weight", block.index);
            Some(Draft {
                join: l.matrix(&name("eh_proj"))?,
                embedding_norm: l.vector(&name("enorm"), p.hidden_size)?,
                hidden_norm: l.vector(&name("hnorm"), p.hidden_size)?,
                layer: l.layer(block.index, false, full)?,
                norm: if block.own_norm { Some(l.vector(&name("shared_head_norm"), p.hidden_size)?) } else { None },
                embedding: if block.own_embedding { Some(l.matrix(&name("embed_tokens"))?) } else { None },
                head: if block.own_head { Some(l.matrix(&name("shared_head_head"))?) } else { None },
            })
        }
        _ => None,
    };
    kernels.matrices.release_staging();
    queue.wait().map_err(|e| device_error("packing the weights", e))?;
    Ok(Weights { embedding, head, output_norm, layers, draft })
}
