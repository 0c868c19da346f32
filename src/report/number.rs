//! Numbers as people read them.

/// A time that is given in ms.
pub(super) fn ms(value: f64) -> String {
    match value {
        v if v.is_nan() => "-".into(),
        v if v.abs() >= 1000.0 => format!("{:.3} s", v / 1000.0),
        v if v.abs() >= 0.1 => format!("{} ms", digits(v)),
        v if v.abs() >= 1e-5 => format!("{} µs", digits(v * 1e3)),
        _ => "0".into(),
    }
}

/// Four digits that count.
pub(super) fn digits(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        v if v >= 1.0 => 3,
        _ => 4,
    };
    format!("{value:.places$}")
}

/// Bytes with a decimal prefix.
pub(super) fn bytes(value: f64) -> String {
    scaled(value, "B")
}

/// A number with a decimal prefix and a unit.
pub(super) fn scaled(value: f64, unit: &str) -> String {
    let (factor, prefix) = match value.abs() {
        v if v >= 1e12 => (1e12, "T"),
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let value = value / factor;
    let places = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ if factor == 1.0 && value.fract() == 0.0 => 0,
        _ => 2,
    };
    format!("{value:.places$} {prefix}{unit}")
}

/// Bytes of an on-chip memory, in KiB where they are many.
pub(super) fn kib(bytes: i64) -> String {
    if bytes >= 1024 {
        let value = bytes as f64 / 1024.0;
        if value.fract() == 0.0 {
            format!("{value:.0} KiB")
        } else {
            format!("{value:.1} KiB")
        }
    } else {
        format!("{bytes} B")
    }
}

/// A whole number in groups of three digits.
pub(super) fn grouped(value: usize) -> String {
    let text = value.to_string();
    let mut out = String::new();
    for (i, digit) in text.chars().enumerate() {
        if i > 0 && (text.len() - i) % 3 == 0 {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// A decimal of any length as (mantissa, power of ten); the power is `None` where the number is short.
pub(super) fn large(decimal: &str) -> (String, Option<usize>) {
    let digits = if decimal.len() > 7 { decimal.get(..4).and_then(|d| d.parse::<u32>().ok()) } else { None };
    match digits {
        Some(digits) if decimal.bytes().all(|b| b.is_ascii_digit()) => {
            let (rounded, power) = ((digits + 5) / 10, decimal.len() - 1);
            // 9.996 is 10.00, which is 1.00 of the next power.
            let (rounded, power) = if rounded >= 1000 { (100, power + 1) } else { (rounded, power) };
            (format!("{}.{:02}", rounded / 100, rounded % 100), Some(power))
        }
        _ => (decimal.into(), None),
    }
}

/// A part of the time as people call it.
pub(super) fn part(name: &str) -> &str {
    match name {
        "issue" => "instruction issue",
        "tensor_cores" => "tensor cores",
        "multiply_add" => "multiply-add units",
        "shared_memory" => "shared memory",
        "load_store" => "load/store units",
        "power" => "power limit",
        "l1" => "L1",
        "l2" => "L2",
        "dram" => "DRAM",
        "latency" => "uncovered latency",
        "prologue" => "copies above the k loop",
        "epilogue" => "epilogue",
        "launch" => "launch",
        "add_parts" => "adding the parts of k",
        "align_rows" => "copying operands first",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(ms(3.201_686), "3.202 ms");
        assert_eq!(ms(0.003), "3.000 µs");
        assert_eq!(ms(2.6e-16), "0");
        assert_eq!(bytes(335_544_320.0), "336 MB");
        assert_eq!(kib(49_152), "48 KiB");
        assert_eq!(grouped(503_745), "503\u{202f}745");
        assert_eq!(large("4589728142492"), ("4.59".into(), Some(12)));
        assert_eq!(large("99960000"), ("1.00".into(), Some(8)));
        assert_eq!(large("123"), ("123".into(), None));
    }
}
