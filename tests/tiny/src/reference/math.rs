//! Functions of rows.

/// The product of a row of a matrix with a row.
pub(super) fn dot(w: &[f32], x: &[f64]) -> f64 {
    let (w8, w_rest) = w.as_chunks::<8>();
    let (x8, x_rest) = x.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (w, x) in w8.iter().zip(x8) {
        for i in 0..8 {
            sums[i] += f64::from(w[i]) * x[i];
        }
    }
    let rest: f64 = w_rest.iter().zip(x_rest).map(|(&w, x)| f64::from(w) * x).sum();
    sums.iter().sum::<f64>() + rest
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

pub(super) fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// x over its root mean square, times gamma.
pub(super) fn rms(x: &[f64], gamma: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + eps).sqrt();
    x.iter().zip(gamma).map(|(x, g)| x * factor * g).collect()
}

/// x over its length.
pub(super) fn unit(x: &[f64]) -> Vec<f64> {
    let length = (x.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
    x.iter().map(|v| v / length).collect()
}

/// Turns the first `features` of x by the angles of a position: pairs are half of the features apart.
pub(super) fn rotate(x: &mut [f64], position: usize, features: usize, base: f64) {
    let half = features / 2;
    for j in 0..half {
        let angle = position as f64 * base.powf(-2.0 * j as f64 / features as f64);
        let (sin, cos) = angle.sin_cos();
        let (a, b) = (x[j], x[j + half]);
        x[j] = a * cos - b * sin;
        x[j + half] = a * sin + b * cos;
    }
}

/// Weights that add up to 1.
pub(super) fn softmax(scores: &mut [f64]) {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    scores.iter_mut().for_each(|s| *s = (*s - most).exp());
    let sum: f64 = scores.iter().sum();
    scores.iter_mut().for_each(|s| *s /= sum);
}

pub(super) fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
