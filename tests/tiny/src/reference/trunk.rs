//! The trunk: a row at a time over what the rows before left behind.

use super::math::{add, rms, rotate, sigmoid, silu, softmax, softplus, unit};
use super::{Model, Tap};
use crate::error::Result;

/// Keys and values of a layer with full attention, a row a position.
#[derive(Debug, Clone, Default)]
pub(super) struct Cells {
    pub(super) keys: Vec<Vec<f64>>,
    pub(super) values: Vec<Vec<f64>>,
}

impl Cells {
    pub(super) fn truncate(&mut self, len: usize) {
        self.keys.truncate(len);
        self.values.truncate(len);
    }
}

/// What a DeltaNet layer knows of the rows before: the last inputs of its convolution, and for each value head a matrix
/// from key features to value features.
#[derive(Debug, Clone)]
struct Recurrence {
    inputs: Vec<Vec<f64>>,
    states: Vec<Vec<f64>>,
}

#[derive(Debug, Clone)]
enum Memory {
    Full(Cells),
    Delta(Recurrence),
}

/// A sequence of tokens.
#[derive(Clone)]
pub struct Sequence<'m> {
    pub(super) model: &'m Model,
    memories: Vec<Memory>,
    /// Number of tokens.
    pub(super) len: usize,
}

impl<'m> Sequence<'m> {
    pub(super) fn new(model: &'m Model) -> Self {
        let p = &model.params;
        let memory = |layer: usize| {
            if !p.recurrent[layer] {
                return Memory::Full(Cells::default());
            }
            let channels = (2 * p.key_heads + p.value_heads) * p.state;
            Memory::Delta(Recurrence {
                inputs: vec![vec![0.0; channels]; p.taps - 1],
                states: vec![vec![0.0; p.state * p.state]; p.value_heads],
            })
        };
        Self { model, memories: (0..p.layers).map(memory).collect(), len: 0 }
    }

    /// Appends a token. Gives its row after the last norm, which logits and drafts are made of.
    pub fn push(&mut self, token: u32) -> Result<Vec<f64>> {
        self.push_tapped(token, &mut |_, _, _| {})
    }

    /// Appends a token and shows the rows on the way.
    pub fn push_tapped(&mut self, token: u32, tap: Tap<'_>) -> Result<Vec<f64>> {
        let model = self.model;
        let mut x = model.row("token_embd.weight", token as usize)?;
        for (layer, memory) in self.memories.iter_mut().enumerate() {
            let block = format!("blk.{layer}.");
            let h = model.norm(&format!("{block}attn_norm"), &x)?;
            tap("attn_norm", Some(layer), &h);
            let mixed = match memory {
                Memory::Full(cells) => model.full_attention(&block, Some(layer), cells, &h, self.len, tap)?,
                Memory::Delta(recurrence) => model.delta_net(&block, layer, recurrence, &h, tap)?,
            };
            add(&mut x, &mixed);
            tap("attn_residual", Some(layer), &x);
            let h = model.norm(&format!("{block}post_attention_norm"), &x)?;
            tap("attn_post_norm", Some(layer), &h);
            let y = model.feed_forward(&block, &h)?;
            tap("ffn_out", Some(layer), &y);
            add(&mut x, &y);
            tap("l_out", Some(layer), &x);
        }
        self.len += 1;
        let n = model.norm("output_norm", &x)?;
        tap("result_norm", None, &n);
        Ok(n)
    }
}

impl Model {
    /// Full attention with an output gate, of a layer or the draft block.
    pub(super) fn full_attention(
        &self,
        block: &str,
        layer: Option<usize>,
        cells: &mut Cells,
        h: &[f64],
        position: usize,
        tap: Tap<'_>,
    ) -> Result<Vec<f64>> {
        let p = &self.params;
        let d = p.head;
        let name = |role: &str| format!("{block}{role}");
        let both = self.linear(&name("attn_q"), h)?;
        let query_norm = self.vector(&name("attn_q_norm.weight"))?;
        let key_norm = self.vector(&name("attn_k_norm.weight"))?;
        let ready = |head: &[f64], gamma: &[f64]| {
            let mut head = rms(head, gamma, p.eps);
            rotate(&mut head, position, p.rotary, p.base);
            head
        };
        // of each head first the query, then its gate
        let queries: Vec<f64> = both.chunks(2 * d).flat_map(|head| ready(&head[..d], &query_norm)).collect();
        let keys: Vec<f64> =
            self.linear(&name("attn_k"), h)?.chunks(d).flat_map(|head| ready(head, &key_norm)).collect();
        tap("Qcur", layer, &queries);
        tap("Kcur", layer, &keys);
        cells.keys.push(keys);
        cells.values.push(self.linear(&name("attn_v"), h)?);
        let mut gated = Vec::with_capacity(p.heads * d);
        for (head, query) in queries.chunks(d).enumerate() {
            let shared = head / (p.heads / p.kv_heads) * d;
            let part = |row: &'_ Vec<f64>| row[shared..shared + d].to_vec();
            let mut weights: Vec<f64> = cells
                .keys
                .iter()
                .map(|k| k[shared..shared + d].iter().zip(query).map(|(k, q)| k * q).sum::<f64>() / (d as f64).sqrt())
                .collect();
            softmax(&mut weights);
            let mut out = vec![0.0; d];
            for (weight, value) in weights.iter().zip(&cells.values) {
                out.iter_mut().zip(part(value)).for_each(|(o, v)| *o += weight * v);
            }
            let gate = &both[(2 * head + 1) * d..(2 * head + 2) * d];
            gated.extend(out.iter().zip(gate).map(|(o, g)| o * sigmoid(*g)));
        }
        tap("attn_gated", layer, &gated);
        let y = self.linear(&name("attn_output"), &gated)?;
        tap("attn_output", layer, &y);
        Ok(y)
    }

    fn delta_net(
        &self,
        block: &str,
        layer: usize,
        memory: &mut Recurrence,
        h: &[f64],
        tap: Tap<'_>,
    ) -> Result<Vec<f64>> {
        let p = &self.params;
        let (d, tap_at) = (p.state, Some(layer));
        let name = |role: &str| format!("{block}{role}");
        let mixed = self.linear(&name("attn_qkv"), h)?;
        tap("linear_attn_qkv_mixed", tap_at, &mixed);
        // a convolution of its own for every channel, over this row and the ones before
        let taps = self.vector(&name("ssm_conv1d.weight"))?;
        memory.inputs.push(mixed);
        let channel = |c: usize| {
            let weights = &taps[c * p.taps..(c + 1) * p.taps];
            silu(weights.iter().zip(&memory.inputs).map(|(w, row)| w * row[c]).sum())
        };
        let convolved: Vec<f64> = (0..memory.inputs[0].len()).map(channel).collect();
        memory.inputs.remove(0);
        tap("conv_output_silu", tap_at, &convolved);
        let (queries, rest) = convolved.split_at(p.key_heads * d);
        let (keys, values) = rest.split_at(p.key_heads * d);
        let queries: Vec<Vec<f64>> = queries.chunks(d).map(unit).collect();
        let keys: Vec<Vec<f64>> = keys.chunks(d).map(unit).collect();

        let beta: Vec<f64> = self.linear(&name("ssm_beta"), h)?.into_iter().map(sigmoid).collect();
        tap("beta_sigmoid", tap_at, &beta);
        let (a, dt) = (self.vector(&name("ssm_a"))?, self.vector(&name("ssm_dt.bias"))?);
        let alpha = self.linear(&name("ssm_alpha"), h)?;
        let decay: Vec<f64> = (0..p.value_heads).map(|v| a[v] * softplus(alpha[v] + dt[v])).collect();
        tap("gate", tap_at, &decay);
        let gate = self.linear(&name("attn_gate"), h)?;
        let gamma = self.vector(&name("ssm_norm.weight"))?;
        let mut y = Vec::with_capacity(p.value_heads * d);
        for (v, state) in memory.states.iter_mut().enumerate() {
            let (query, key) = (&queries[v % p.key_heads], &keys[v % p.key_heads]);
            let fade = decay[v].exp();
            state.iter_mut().for_each(|s| *s *= fade);
            let mut change: Vec<f64> = values[v * d..(v + 1) * d].to_vec();
            for (row, k) in state.chunks(d).zip(key) {
                change.iter_mut().zip(row).for_each(|(c, s)| *c -= s * k);
            }
            change.iter_mut().for_each(|c| *c *= beta[v]);
            let mut out = vec![0.0; d];
            for ((row, k), q) in state.chunks_mut(d).zip(key).zip(query) {
                row.iter_mut().zip(&change).for_each(|(s, c)| *s += k * c);
                out.iter_mut().zip(row).for_each(|(o, s)| *o += *s * q / (d as f64).sqrt());
            }
            let gates = &gate[v * d..(v + 1) * d];
            y.extend(rms(&out, &gamma, p.eps).into_iter().zip(gates).map(|(o, z)| o * silu(*z)));
        }
        tap("final_output", tap_at, &y);
        let y = self.linear(&name("ssm_out"), &y)?;
        tap("linear_attn_out", tap_at, &y);
        Ok(y)
    }

    pub(super) fn feed_forward(&self, block: &str, h: &[f64]) -> Result<Vec<f64>> {
        let gate = self.linear(&format!("{block}ffn_gate"), h)?;
        let up = self.linear(&format!("{block}ffn_up"), h)?;
        let inner: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| silu(*g) * u).collect();
        self.linear(&format!("{block}ffn_down"), &inner)
    }
}
