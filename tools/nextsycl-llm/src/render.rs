//! Numbers and names in the one form they are shown in.

/// `45s`, `1m15s`, `2h05m`.
pub fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        _ => format!("{}h{:02}m", s / 3600, s / 60 % 60),
    }
}

/// `1.8GiB`.
pub fn gib(bytes: u64) -> String {
    format!("{:.1}GiB", bytes as f64 / (1_u64 << 30) as f64)
}

/// `12.3 MiB`, or GiB from one GiB on: for files.
pub fn size(bytes: u64) -> String {
    if bytes >= 1 << 30 {
        format!("{:.2} GiB", bytes as f64 / (1_u64 << 30) as f64)
    } else {
        format!("{:.1} MiB", bytes as f64 / (1_u64 << 20) as f64)
    }
}

/// `840 J` below 10,000 J, else `12.3 kJ`; `-` when unknown.
pub fn energy(joules: Option<f64>) -> String {
    match joules {
        None => "-".to_owned(),
        Some(j) if j < 10_000.0 => format!("{j:.0} J"),
        Some(j) => format!("{:.1} kJ", j / 1000.0),
    }
}

/// A card's short name: `Arc Pro B70`.
pub fn card(name: &str) -> String {
    let mut short = name.to_owned();
    for part in ["Intel(R) ", "(TM)", "(R)", " Graphics"] {
        short = short.replace(part, "");
    }
    short.trim().to_owned()
}

/// Columns, each as wide as its widest cell; the marked ones are right-aligned. No blanks at line ends.
pub fn table(right: &[bool], rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (c, cell) in row.iter().enumerate() {
            let width = widths[c];
            if c > 0 {
                line.push_str("  ");
            }
            if right.get(c).copied().unwrap_or(false) {
                line.push_str(&format!("{cell:>width$}"));
            } else {
                line.push_str(&format!("{cell:<width$}"));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        assert_eq!([0.9, 45.0, 75.2, 7500.0].map(duration), ["0s", "45s", "1m15s", "2h05m"]);
        assert_eq!(gib(1_932_735_283), "1.8GiB");
        assert_eq!([Some(840.0), Some(12_345.0), None].map(energy), ["840 J", "12.3 kJ", "-"]);
        assert_eq!(card("Intel(R) Arc(TM) Pro B70 Graphics"), "Arc Pro B70");
        let rows = [["A", "LONG"], ["bb", "1"]].map(|r| r.map(str::to_owned).to_vec());
        assert_eq!(table(&[false, true], &rows), "A   LONG\nbb     1\n");
    }
}
