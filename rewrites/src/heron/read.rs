//! Rows as text: numbers in order, JSON, or names with values.
use super::{Row, RowError, COLUMNS};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::fmt;

/// Longest text that is looked at, in bytes.
const LONGEST: usize = 64 << 10;
/// Most entries of a row. There are a few more than columns, for errors about single ones.
const MOST: usize = 64;
/// What stands beside the columns of a row.
const BESIDE: [&str; 3] = ["id", "perf", "performance"];

impl Row {
    /// Reads a row: 37 numbers in the order of [`COLUMNS`] (after an id and the performance, or the performance), JSON as
    /// `{"param": {"wmma_m": 16, ...}, "perf": 8.9}` or the map alone, or `wmma_m=16, ...` (`:` for `=`). Names have `.` or `_`.
    /// None where the text is something else.
    pub fn read(text: &str) -> Option<Result<Row, RowError>> {
        let text = text.trim();
        if text.len() > LONGEST {
            return None;
        }
        if text.starts_with('{') {
            let record = serde_json::from_str(text).map(|Record { param }| param);
            let Pairs(pairs) = record.or_else(|_| serde_json::from_str(text)).ok()?;
            return named(&pairs);
        }
        numbers(text).or_else(|| {
            let entries = text.split([',', ';', '\n']).map(str::trim).filter(|entry| !entry.is_empty());
            let pair = |entry: &str| {
                let (name, value) = entry.split_once(['=', ':']).unwrap_or((entry, ""));
                (name.trim().to_string(), value.trim().to_string())
            };
            named(&entries.map(pair).collect::<Vec<_>>())
        })
    }
}

/// A list of numbers.
fn numbers(text: &str) -> Option<Result<Row, RowError>> {
    let entries: Vec<&str> = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|e| !e.is_empty()).collect();
    let is_number = |entry: &&str| entry.parse::<f64>().is_ok_and(f64::is_finite);
    let before = entries.len().checked_sub(COLUMNS.len()).filter(|more| *more <= 2);
    // One number is no list; one that is wrong in a list as long as a row is told.
    if entries.len() < 2 || !is_number(&entries[0]) || (before.is_none() && !entries.iter().all(is_number)) {
        return None;
    }
    let Some(before) = before else { return Some(Err(RowError::Count(entries.len()))) };
    let mut values = [0; COLUMNS.len()];
    for ((value, name), entry) in values.iter_mut().zip(COLUMNS).zip(&entries[before..]) {
        *value = match number(name, entry) {
            Ok(number) => number,
            Err(error) => return Some(Err(error)),
        };
    }
    Some(Ok(Row::of(values)))
}

/// The value of a column: tables have whole numbers as `16` and as `16.0`.
fn number(name: &str, text: &str) -> Result<i64, RowError> {
    let whole = text.strip_suffix(".0").unwrap_or(text).parse::<u32>().ok();
    let fits = whole.filter(|value| *value <= i32::MAX.unsigned_abs()).map(i64::from);
    fits.ok_or_else(|| RowError::Value { name: name.into(), value: format!("`{text}`") })
}

/// The column of a name.
fn column(name: &str) -> Option<usize> {
    let plain = |name: &str| name.replace('.', "_");
    COLUMNS.iter().position(|column| plain(column) == plain(name))
}

/// The row of names and values; none where no name is a column's.
fn named(pairs: &[(String, String)]) -> Option<Result<Row, RowError>> {
    pairs.iter().any(|(name, _)| column(name).is_some()).then(|| {
        if pairs.len() > MOST {
            return Err(RowError::Count(pairs.len()));
        }
        let mut found = [None; COLUMNS.len()];
        for (name, value) in pairs.iter().filter(|(name, _)| !BESIDE.contains(&name.as_str())) {
            let at = column(name).ok_or_else(|| RowError::Unknown(format!("`{name}`")))?;
            if found[at].replace(number(COLUMNS[at], value)?).is_some() {
                return Err(RowError::Twice(COLUMNS[at].into()));
            }
        }
        let missing = |(value, name): (&Option<i64>, &'static str)| value.is_none().then_some(name);
        let missing: Vec<&str> = found.iter().zip(COLUMNS).filter_map(missing).collect();
        if !missing.is_empty() {
            return Err(RowError::Missing(missing.join(", ")));
        }
        Ok(Row::of(found.map(Option::unwrap_or_default)))
    })
}

/// A line of Heron's log.
#[derive(Deserialize)]
struct Record {
    param: Pairs,
}

/// A JSON object with all of its entries: a map would keep one of two with the same name.
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs, D::Error> {
        deserializer.deserialize_map(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Pairs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
        let mut pairs = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            pairs.push((name, value.to_string()));
        }
        Ok(Pairs(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heron::testing::{row, ROW_77};

    /// The columns with the values of row 77, as a text has each of them.
    fn entries(entry: impl Fn(&str, &str) -> String) -> Vec<String> {
        COLUMNS.iter().zip(ROW_77.split(',')).map(|(name, value)| entry(name, value.trim())).collect()
    }

    #[test]
    fn every_form_is_the_same_row() {
        let expected = row(ROW_77);
        assert_eq!((expected.wmma, expected.threads_y, expected.a.pitch()), ([16, 16, 16], 16, 40));
        let json = entries(|name, value| format!("\"{}\": {value}", name.replace('.', "_"))).join(", ");
        for text in [
            format!("8.906950110460233, {ROW_77}"),
            format!("77,8.906950110460233, {ROW_77}\n"),
            ROW_77.replace(',', " "),
            ROW_77.replace("16", "16.0"),
            format!("{{{json}}}"),
            format!("{{\"param\": {{{json}}}, \"perf\": 8.9}}"),
            entries(|name, value| format!("{name}={value}")).join(", "),
            entries(|name, value| format!("{}: {value}", name.replace('.', "_"))).join(",\n"),
        ] {
            assert_eq!(Row::read(&text), Some(Ok(expected.clone())), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        let told = |text: &str| Row::read(text).unwrap().unwrap_err().to_string();
        assert!(told("1, 2, 3").contains("here are 3"));
        assert!(told(&ROW_77.replacen("16", "-16", 1)).starts_with("wmma_m is `-16`; it is a whole number from 0 to"));
        assert!(told(&ROW_77.replacen("16", "many", 2).replacen("many", "16", 1)).contains("wmma_k is `many`"));
        let pairs = entries(|name, value| format!("{name}={value}"));
        assert!(told(&pairs[2..].join(",")).contains("wmma_m, wmma_k"));
        assert!(told(&format!("{},wmma_x=1", pairs.join(","))).contains("`wmma_x` is no column"));
        assert!(told(&format!("{},threadIdx_y=16", pairs.join(","))).contains("threadIdx.y has two values"));
        assert!(told("{\"wmma_m\": 16, \"wmma_m\": 16}").contains("wmma_m has two values"));
        assert!(told("{\"wmma_m\": \"16\"}").contains("wmma_m is `\"16\"`"));
        assert!(told(&vec!["wmma_m=1"; 65].join(",")).contains("here are 65"));
        for other in
            ["", "128", "3 stages", "tile=128x128", "{\"calls\": []}", "[16]", "b = sch.get_sblock(\"C\")", "{"]
        {
            assert_eq!(Row::read(other), None, "{other}");
        }
    }
}
