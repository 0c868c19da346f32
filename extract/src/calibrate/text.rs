//! A fitted descriptor as a file.
use super::{CalibrateError, Calibration};
use crate::Descriptor;

/// The descriptor's text with the fitted values: its comments stay, each fitted line says what it was, and the name
/// ends in `-calibrated`.
///
/// # Errors
/// When `base` is not the text that the calibration began with.
pub fn descriptor_text(base: &str, calibration: &Calibration) -> Result<String, CalibrateError> {
    let name = match calibration.descriptor.name.strip_suffix("-calibrated") {
        Some(name) => name,
        None => &calibration.descriptor.name,
    };
    let mut out = format!(
        "# Fitted to {} measurements of {} shapes; lines that were fitted say so, and their comments above are the\n# starting values'.\n",
        calibration.measurements, calibration.shapes
    );
    for line in base.lines() {
        let key = line.split('=').next().unwrap_or("").trim();
        if key == "name" {
            out.push_str(&format!("name = {:?}\n", format!("{name}-calibrated")));
            continue;
        }
        match calibration.scalars.iter().find(|s| s.name == key && s.determined) {
            Some(s) => out.push_str(&format!(
                "{key} = {} # fitted, standard error {:.1}%; was {}\n",
                short(s.after),
                100.0 * s.error,
                short(s.before)
            )),
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    let read = Descriptor::parse(&out, "the fitted descriptor").map_err(|e| CalibrateError::Text(e.to_string()))?;
    for s in &calibration.scalars {
        let value = super::fit::SCALARS.iter().find(|f| f.name == s.name).and_then(|f| (f.get)(&read)).unwrap_or(0.0);
        if (value - s.after).abs() > 1e-4 * s.after.abs() {
            return Err(CalibrateError::Text(format!("{} reads {value}, not {}", s.name, s.after)));
        }
    }
    Ok(out)
}

/// Six digits that count.
fn short(value: f64) -> String {
    let places = (5 - value.abs().max(1e-9).log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        text
    }
}
