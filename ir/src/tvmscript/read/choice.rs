//! Which function of a file is meant, and what its scalar parameters are: `file.py::name(n=128, m=64)`.
use super::super::error::{Fail, Res};

/// A choice of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Its name; the only function, or `main`, without it.
    pub function: Option<String>,
    /// Names and values of scalars, as they are written.
    pub values: Vec<(String, String)>,
}

/// A file's name without the choice behind it.
pub fn file_of(name: &str) -> &str {
    name.split_once("::").map_or(name, |(file, _)| file)
}

impl Choice {
    /// The choice that a file's name ends with.
    pub fn of(name: &str) -> Res<Choice> {
        let Some((_, rest)) = name.split_once("::") else { return Ok(Choice::default()) };
        let fail = |what: &str| {
            Fail::at(0..0, format!("{what} in {name:?}")).help("write FILE::function, or FILE::function(n=128, m=64)")
        };
        let (function, values) = match rest.split_once('(') {
            None => (rest, ""),
            Some((function, values)) => {
                (function, values.strip_suffix(')').ok_or_else(|| fail("a bracket is not closed"))?)
            }
        };
        let mut out =
            Choice { function: Some(function.trim().to_string()).filter(|f| !f.is_empty()), ..Choice::default() };
        for part in values.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| fail("a value lacks its name"))?;
            let (name, value) = (name.trim().to_string(), value.trim().to_string());
            if out.values.iter().any(|(n, _)| *n == name) {
                return Err(fail("a name has two values"));
            }
            out.values.push((name, value));
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_choices() {
        let choice = |text: &str| Choice::of(text).map_err(drop);
        let named = |f: Option<&str>, values: &[(&str, &str)]| Choice {
            function: f.map(str::to_string),
            values: values.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect(),
        };
        assert_eq!(choice("a.py"), Ok(named(None, &[])));
        assert_eq!(choice("a.py::f"), Ok(named(Some("f"), &[])));
        assert_eq!(choice("a.py::f(n=128, m = 6)"), Ok(named(Some("f"), &[("n", "128"), ("m", "6")])));
        assert_eq!(choice("a.py::(x=0.5)"), Ok(named(None, &[("x", "0.5")])));
        for wrong in ["a.py::f(n=1", "a.py::f(n)", "a.py::f(n=1, n=2)"] {
            assert!(choice(wrong).is_err(), "{wrong}");
        }
        assert_eq!(file_of("dir/a.py::f(n=1)"), "dir/a.py");
    }
}
