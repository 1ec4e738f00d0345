//! A DeltaNet layer after its products, in float64.

use super::harness::Numbers;
use ns_llm_qwen35::kernels::delta::{HEAD, Shape, TAPS};

pub struct Layer {
    pub shape: Shape,
    /// `[C][4]`, as in the file.
    pub conv: Vec<f32>,
    pub a: Vec<f32>,
    pub dt_bias: Vec<f32>,
}

impl Layer {
    pub fn new(n: &mut Numbers, shape: Shape) -> Self {
        Self {
            shape,
            conv: n.normals(shape.channels() * TAPS),
            // -exp of 0 .. 1.5
            a: (0..shape.value_heads).map(|_| -((n.unit() * 1.5).exp() as f32)).collect(),
            dt_bias: n.normals(shape.value_heads),
        }
    }
}

/// A row's product. Some heads forget nothing, some everything.
pub fn product(n: &mut Numbers, shape: Shape) -> Vec<f32> {
    let mut row = n.normals(shape.product_cols());
    let alpha = shape.channels() + shape.value_cols();
    for v in &mut row[alpha..alpha + shape.value_heads] {
        *v = match n.word() % 16 {
            0 => 30.0,
            1 => -30.0,
            _ => *v * 2.0 - 3.0,
        };
    }
    row
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

#[derive(Clone)]
pub struct Session {
    shape: Shape,
    /// `[3][C]`.
    pub history: Vec<f32>,
    /// `[h][key][value]`.
    s: Vec<f64>,
}

impl Session {
    pub fn new(layer: &Layer) -> Self {
        Self {
            shape: layer.shape,
            history: vec![0.0; layer.shape.history_floats()],
            s: vec![0.0; layer.shape.state_floats()],
        }
    }

    /// Reads a row: the outputs of all value heads.
    pub fn step(&mut self, layer: &Layer, product: &[f32]) -> Vec<f64> {
        let shape = self.shape;
        let channels = shape.channels();
        let mut window = self.history.clone();
        window.extend(&product[..channels]);
        let mut c: Vec<f64> = (0..channels)
            .map(|ch| {
                let tap = |t: usize| f64::from(layer.conv[ch * TAPS + t]) * f64::from(window[t * channels + ch]);
                silu((0..TAPS).map(tap).sum())
            })
            .collect();
        self.history = window[channels..].to_vec();
        for head in 0..2 * shape.key_heads {
            let x = &mut c[head * HEAD..][..HEAD];
            let norm = (x.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
            let scale = if head < shape.key_heads { norm * 128_f64.sqrt() } else { norm };
            x.iter_mut().for_each(|v| *v /= scale);
        }
        let gates = channels + shape.value_cols();
        let mut out = Vec::new();
        for h in 0..shape.value_heads {
            let x = f64::from(product[gates + h]) + f64::from(layer.dt_bias[h]);
            let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
            let decay = (f64::from(layer.a[h]) * softplus).exp();
            let beta = 1.0 / (1.0 + (-f64::from(product[gates + shape.value_heads + h])).exp());
            let kh = h % shape.key_heads;
            let q = &c[kh * HEAD..][..HEAD];
            let k = &c[(shape.key_heads + kh) * HEAD..][..HEAD];
            let v = &c[(2 * shape.key_heads + h) * HEAD..][..HEAD];
            let s = &mut self.s[h * HEAD * HEAD..][..HEAD * HEAD];
            s.iter_mut().for_each(|x| *x *= decay);
            let delta: Vec<f64> =
                (0..HEAD).map(|j| beta * (v[j] - (0..HEAD).map(|i| s[i * HEAD + j] * k[i]).sum::<f64>())).collect();
            for i in 0..HEAD {
                for j in 0..HEAD {
                    s[i * HEAD + j] += k[i] * delta[j];
                }
            }
            out.extend((0..HEAD).map(|j| (0..HEAD).map(|i| s[i * HEAD + j] * q[i]).sum::<f64>()));
        }
        out
    }

    /// The state in the device's order.
    pub fn state(&self) -> Vec<f64> {
        let at = |i: usize| {
            let (h, block, key, column) = (i / (HEAD * HEAD), i / (16 * HEAD) % 8, i / 16 % HEAD, i % 16);
            self.s[(h * HEAD + key) * HEAD + block * 16 + column]
        };
        (0..self.s.len()).map(at).collect()
    }
}

/// `rms(o; eps) * weight * silu(z)` of a row.
pub fn gated_norm(shape: Shape, o: &[f32], product: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let z = &product[shape.channels()..];
    let mut y = Vec::new();
    for (h, head) in o.chunks_exact(HEAD).enumerate() {
        let mean = head.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / HEAD as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        y.extend(
            (0..HEAD).map(|i| f64::from(head[i]) * scale * f64::from(weight[i]) * silu(f64::from(z[h * HEAD + i]))),
        );
    }
    y
}
