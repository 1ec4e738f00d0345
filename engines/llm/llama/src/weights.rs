//! The model's tensors on the device, packed for its class.

use crate::device_error;
use crate::params::{Params, f32_vector};
use ns_llm::{Error, ErrorKind, Progress, Result};
use ns_llm_kernels::{Kernels, Matrix, RawRows};
use ns_sycl::{Buffer, Device, Queue};
use ns_weights::{ModelFile, Tensor, TensorType};

/// Matrices whose products have the same input and lie side by side in the output. One matrix where all parts have
/// the same type, else one for each run of equal types.
pub struct Fused {
    /// The matrices with their first column in the output.
    pub parts: Vec<(Matrix, usize)>,
}

/// One layer.
pub struct Layer {
    /// Norm before attention, `[hidden_size]`.
    pub attn_norm: Buffer,
    /// Queries, keys and values.
    pub qkv: Fused,
    /// Attention output.
    pub output: Matrix,
    /// Norm before the feed-forward block.
    pub ffn_norm: Buffer,
    /// Gate, then up.
    pub gate_up: Fused,
    /// Down.
    pub down: Matrix,
}

/// All tensors.
pub struct Weights {
    /// Token embedding, and the head where it is tied.
    pub embedding: Matrix,
    /// The head where it is not.
    pub head: Option<Matrix>,
    /// Norm before the head.
    pub output_norm: Buffer,
    /// Layers in order.
    pub layers: Vec<Layer>,
}

impl Weights {
    /// The matrix that gives the logits.
    pub fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

struct Loader<'a> {
    file: &'a ModelFile,
    device: &'a Device,
    queue: &'a Queue,
    kernels: &'a Kernels,
    done: u64,
    total: u64,
    progress: Progress<'a>,
}

impl<'a> Loader<'a> {
    fn tensor(&self, name: &str) -> Result<Tensor<'a>> {
        self.file.tensor(name).ok_or_else(|| Error::new(ErrorKind::Model, format!("tensor {name} is missing")))
    }

    fn advance(&mut self, bytes: usize) {
        self.done += bytes as u64;
        (self.progress)(self.done, self.total);
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Buffer> {
        let tensor = self.tensor(name)?;
        let values = f32_vector(&tensor, len)?;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let buffer = self.device.alloc(bytes.len()).map_err(|e| device_error(name, e))?;
        self.queue.write(&buffer, 0, &bytes).map_err(|e| device_error(name, e))?;
        self.advance(bytes.len());
        Ok(buffer)
    }

    /// Tensors of equal width, stacked; runs of equal types become one matrix each.
    fn fused(&mut self, names: &[String]) -> Result<Fused> {
        let tensors = names.iter().map(|n| self.tensor(n)).collect::<Result<Vec<_>>>()?;
        let (mut parts, mut rows, mut at) = (Vec::new(), 0, 0);
        while at < tensors.len() {
            let run = tensors[at..].iter().take_while(|t| t.ty == tensors[at].ty).count();
            let group = &tensors[at..at + run];
            let raw: Vec<RawRows<'_>> = group.iter().map(|t| RawRows { rows: t.rows(), data: t.data }).collect();
            let matrix = Matrix::pack(self.kernels, self.queue, group[0].ty, group[0].columns(), &raw)
                .map_err(|e| device_kernel_error(group[0].name, e))?;
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
        let fused = self.fused(&[name.to_owned()])?;
        fused
            .parts
            .into_iter()
            .next()
            .map(|(m, _)| m)
            .ok_or_else(|| Error::new(ErrorKind::Model, format!("tensor {name} is empty")))
    }
}

fn device_kernel_error(what: &str, error: ns_llm_kernels::Error) -> Error {
    crate::kernel_error(&format!("cannot pack {what}"), error)
}

/// Bytes on the device that all tensors will take, packed.
pub fn packed_bytes(file: &ModelFile, class: ns_sycl::DeviceClass) -> u64 {
    file.tensors()
        .map(|t| match t.ty {
            TensorType::F32 if t.shape.len() < 2 || t.rows() == 1 => t.data.len() as u64,
            ty => Matrix::packed_bytes(ty, t.rows(), t.columns(), class).unwrap_or(0),
        })
        .sum()
}

/// Packs every tensor.
pub fn load(
    file: &ModelFile,
    p: &Params,
    device: &Device,
    queue: &Queue,
    kernels: &Kernels,
    progress: Progress<'_>,
) -> Result<Weights> {
    let total = file.tensors().map(|t| t.data.len() as u64).sum();
    let mut l = Loader { file, device, queue, kernels, done: 0, total, progress };
    let embedding = l.matrix("token_embd.weight")?;
    let head = if p.tied { None } else { Some(l.matrix("output.weight")?) };
    let output_norm = l.vector("output_norm.weight", p.hidden_size)?;
    let mut layers = Vec::with_capacity(p.n_layers);
    for i in 0..p.n_layers {
        let name = |role: &str| format!("blk.{i}.{role}.weight");
        layers.push(Layer {
            attn_norm: l.vector(&name("attn_norm"), p.hidden_size)?,
            qkv: l.fused(&[name("attn_q"), name("attn_k"), name("attn_v")])?,
            output: l.matrix(&name("attn_output"))?,
            ffn_norm: l.vector(&name("ffn_norm"), p.hidden_size)?,
            gate_up: l.fused(&[name("ffn_gate"), name("ffn_up")])?,
            down: l.matrix(&name("ffn_down"))?,
        });
    }
    kernels.matrices.release_staging();
    queue.wait().map_err(|e| device_error("packing the weights", e))?;
    Ok(Weights { embedding, head, output_norm, layers })
}
