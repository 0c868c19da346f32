//! A fitted descriptor as a file.
use super::{CalibrateError, Calibration};
use crate::Descriptor;

/// The descriptor's text with the fitted values, and with the clock that was seen: its comments stay, each line with a new
/// value says where that is from and what it was, and the name ends in `-calibrated`.
///
/// # Errors
/// When `base` is not the text that the calibration began with.
pub fn descriptor_text(base: &str, calibration: &Calibration) -> Result<String, CalibrateError> {
    let name = match calibration.descriptor.name.strip_suffix("-calibrated") {
        Some(name) => name,
        None => &calibration.descriptor.name,
    };
    let mut out = format!(
        "# Fitted to {} measurements of {} shapes; lines that were fitted or seen say so, and their comments above\n# are the starting values'.\n",
        calibration.measurements, calibration.shapes
    );
    let mut section = "";
    for line in base.lines() {
        if line.starts_with('[') {
            section = line.trim();
        }
        // A spread has its rate's name.
        let key = if section == "[spread]" { "" } else { line.split('=').next().unwrap_or("").trim() };
        if key == "name" {
            out.push_str(&format!("name = {:?}\n", format!("{name}-calibrated")));
            continue;
        }
        // The fit began with the clock that was seen: it stands here even where the measurements do not determine a better one.
        let seen = calibration.clock.as_ref().filter(|_| key == "clock_mhz");
        let fitted = calibration.scalars.iter().find(|s| s.name == key && s.determined);
        let new = match (fitted, seen) {
            (None, None) => {
                out.push_str(line);
                out.push('\n');
                continue;
            }
            (None, Some(clock)) => {
                format!("{} # seen while measuring; was {}", short(clock.seen), short(clock.before))
            }
            (Some(s), seen) => {
                let was = match seen {
                    Some(c) => format!("{} seen while measuring; was {}", short(c.seen), short(c.before)),
                    None => format!("was {}", short(s.before)),
                };
                format!("{} # fitted, standard error {:.1}%; {was}", short(s.after), 100.0 * s.error)
            }
        };
        out.push_str(&format!("{key} = {new}\n"));
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
