//! Rows as text: numbers in order, JSON, or names with values; one, or as many as a log or a table has.
use super::{Measured, Record, Row, RowError, COLUMNS};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::fmt;

/// Longest text that is looked at, in bytes: a log has some 7 KiB a line.
const LONGEST: usize = 16 << 20;
/// Most records of a text.
const MOST_RECORDS: usize = 1024;
/// Most entries of a row that has nothing but its columns. There are a few more, for errors about single ones.
const MOST: usize = 64;
/// What stands beside the columns of a row: its number, which pandas leaves without a name, and its performance.
const BESIDE: [&str; 4] = ["id", "", "perf", "performance"];

impl Record {
    /// Reads one record or several: 37 numbers in the order of [`COLUMNS`] (after an id and the performance, or the performance), a line
    /// of Heron's log, `{"param": {"wmma_m": 16, ...}, "perf": 8.9}`, or the map alone, or `wmma_m=16, ...` (`:` for `=`). Names have `.`
    /// or `_`. Several stand on a line each; a first line may name the columns of those below it. None where the text is something else.
    pub fn read(text: &str) -> Option<Result<Vec<Record>, RowError>> {
        let text = text.trim();
        if text.len() > LONGEST {
            return None;
        }
        match one(text) {
            Some(Ok(record)) => Some(Ok(vec![record])),
            whole => several(text).or(whole.map(|wrong| wrong.map(|record| vec![record]))),
        }
    }
}

/// A record a line, below a line with the names of columns or without one. None where no line is a record.
fn several(text: &str) -> Option<Result<Vec<Record>, RowError>> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()).peekable();
    let names = lines.peek().and_then(|(_, line)| columns(line));
    if names.is_some() {
        lines.next();
    }
    let read = |line: &str| match &names {
        None => one(line),
        Some(names) => {
            let values: Vec<String> = line.split(',').map(|value| value.trim().to_string()).collect();
            Some(match values.len() == names.len() {
                true => named(&names.iter().cloned().zip(values).collect::<Vec<_>>(), MOST)
                    .unwrap_or(Err(RowError::Count(0))),
                false => Err(RowError::Entries { names: names.len(), values: values.len() }),
            })
        }
    };
    let records: Vec<_> = lines.take(MOST_RECORDS + 1).map(|(at, line)| (at, read(line.trim()))).collect();
    if !records.iter().any(|(_, record)| matches!(record, Some(Ok(_)))) {
        return None;
    }
    if records.len() > MOST_RECORDS {
        return Some(Err(RowError::Many(MOST_RECORDS)));
    }
    let told = |(line, record): (usize, Option<Result<Record, RowError>>)| match record {
        Some(Ok(record)) => Ok(Record { line, ..record }),
        Some(Err(error)) => Err(RowError::Line { line, error: error.to_string() }),
        None => Err(RowError::Line { line, error: "it is no row of Heron's".into() }),
    };
    Some(records.into_iter().map(told).collect())
}

/// The names of a table's columns, where a line has them.
fn columns(line: &str) -> Option<Vec<String>> {
    let names: Vec<String> = line.split(',').map(|name| name.trim().trim_matches('"').to_string()).collect();
    let known = |name: &String| column(name).is_some() || BESIDE.contains(&name.as_str());
    (names.iter().all(known) && names.iter().any(|name| column(name).is_some())).then_some(names)
}

/// A text that is one record.
fn one(text: &str) -> Option<Result<Record, RowError>> {
    if text.starts_with('{') {
        // A log has all variables of Heron's search; those beside the columns follow from them.
        if let Ok(Logged { param: Pairs(pairs), perf }) = serde_json::from_str(text) {
            let own = pairs.into_iter().filter(|(name, _)| column(name).is_some());
            let beside = perf.map(|perf| ("perf".to_string(), perf.to_string()));
            return named(&own.chain(beside).collect::<Vec<_>>(), usize::MAX);
        }
        let Pairs(pairs) = serde_json::from_str(text).ok()?;
        return named(&pairs, MOST);
    }
    numbers(text).or_else(|| {
        let entries = text.split([',', ';', '\n']).map(str::trim).filter(|entry| !entry.is_empty());
        let pair = |entry: &str| {
            let (name, value) = entry.split_once(['=', ':']).unwrap_or((entry, ""));
            (name.trim().to_string(), value.trim().to_string())
        };
        named(&entries.map(pair).collect::<Vec<_>>(), MOST)
    })
}

/// A list of numbers.
fn numbers(text: &str) -> Option<Result<Record, RowError>> {
    let entries: Vec<&str> = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|e| !e.is_empty()).collect();
    let is_number = |entry: &&str| entry.parse::<f64>().is_ok_and(f64::is_finite);
    let before = entries.len().checked_sub(COLUMNS.len()).filter(|more| *more <= 2);
    // One number is no list; one that is wrong in a list as long as a row is told.
    if entries.len() < 2 || !is_number(&entries[0]) || (before.is_none() && !entries.iter().all(is_number)) {
        return None;
    }
    let Some(before) = before else { return Some(Err(RowError::Count(entries.len()))) };
    let values = COLUMNS.into_iter().zip(&entries[before..]).map(|(name, entry)| number(name, entry));
    let measured = entries[..before].last().map_or(Ok(Measured::NotSaid), |perf| measured("perf", perf));
    Some(values.collect::<Result<Vec<_>, _>>().and_then(|values| Record::of(&values, measured?)))
}

/// The value of a column: tables have whole numbers as `16` and as `16.0`.
fn number(name: &str, text: &str) -> Result<i64, RowError> {
    let whole = text.strip_suffix(".0").unwrap_or(text).parse::<u32>().ok();
    let fits = whole.filter(|value| *value <= i32::MAX.unsigned_abs()).map(i64::from);
    fits.ok_or_else(|| RowError::Value { name: name.into(), value: format!("`{text}`") })
}

/// What Heron measured: its performance is the natural logarithm of runs per second, and 0 of what did not run.
fn measured(name: &str, text: &str) -> Result<Measured, RowError> {
    match text.parse::<f64>() {
        Ok(0.0) => Ok(Measured::Failed),
        Ok(perf) if (-perf).exp().is_normal() => Ok(Measured::Seconds((-perf).exp())),
        _ => Err(RowError::Performance { name: name.into(), value: format!("`{text}`") }),
    }
}

/// The column of a name.
fn column(name: &str) -> Option<usize> {
    let plain = |name: &str| name.replace('.', "_");
    COLUMNS.iter().position(|column| plain(column) == plain(name))
}

/// The record of names and values, of which there are at most so many; none where no name is a column's.
fn named(pairs: &[(String, String)], most: usize) -> Option<Result<Record, RowError>> {
    pairs.iter().any(|(name, _)| column(name).is_some()).then(|| {
        if pairs.len() > most {
            return Err(RowError::Count(pairs.len()));
        }
        let (mut found, mut time) = ([None; COLUMNS.len()], Measured::NotSaid);
        for (name, value) in pairs {
            if BESIDE.contains(&name.as_str()) {
                if name.starts_with("perf") {
                    time = measured(name, value)?;
                }
                continue;
            }
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
        Record::of(&found.map(Option::unwrap_or_default), time)
    })
}

impl Record {
    fn of(values: &[i64], measured: Measured) -> Result<Record, RowError> {
        let values = values.try_into().map_err(|_| RowError::Count(values.len()))?;
        Ok(Record { row: Row::of(values), measured, line: 1 })
    }
}

/// A line of Heron's log.
#[derive(Deserialize)]
struct Logged {
    param: Pairs,
    perf: Option<f64>,
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
    use crate::heron::testing::{row, ROW_1190, ROW_77};

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
            let records = Record::read(&text).unwrap().unwrap();
            assert_eq!((records.len(), &records[0].row), (1, &expected), "{text}");
        }
    }

    /// As Heron's search logs them, and as tables have them.
    #[test]
    fn logs_and_tables_have_many() {
        let param = |text: &str| {
            let pairs =
                COLUMNS.iter().zip(text.split(',')).map(|(name, value)| format!("\"{name}\": {}", value.trim()));
            pairs.chain(["\"wmma_m_cand0\": 0".into(), "\"threads\": 512".into()]).collect::<Vec<_>>().join(", ")
        };
        let logged = |text: &str, perf: &str| {
            format!("{{\"code\": \"16_0\", \"perf\": {perf}, \"param\": {{{}}}}}", param(text))
        };
        let log = [logged(ROW_77, "8.9"), String::new(), logged(ROW_1190, "0.0")].join("\n");
        let table = format!("8.9, {ROW_77}\n\n0.0, {ROW_1190}");
        let names = format!(",perf,{}\n77,8.9,{ROW_77}\n1190,0.0,{ROW_1190}", COLUMNS.join(","));
        for (text, lines) in [(&log, [1, 3]), (&table, [1, 3]), (&names, [2, 3])] {
            let [first, second] = &Record::read(text).unwrap().unwrap()[..] else { panic!("{text}") };
            assert_eq!([first.line, second.line], lines);
            assert_eq!([&first.row, &second.row], [&row(ROW_77), &row(ROW_1190)]);
            assert!(matches!(first.measured, Measured::Seconds(s) if (s * 1e3 - 0.1364).abs() < 1e-4), "{first:?}");
            assert_eq!(second.measured, Measured::Failed);
        }
        let told = |text: &str| Record::read(text).unwrap().unwrap_err().to_string();
        assert!(told(&format!("{table}\n1, 2")).contains("line 4: a row of Heron's has 37 numbers"));
        assert!(told(&format!("{table}\nhello")).contains("line 4: it is no row"));
        assert!(told(&format!("{names}\n1,2")).contains("line 4: the table has 39 columns, and here are 2 values"));
        assert!(told(&format!("{ROW_77}\n").repeat(1025)).contains("more than 1024 rows"));
        assert!(told(&logged(ROW_77, "1e999").replace("1e999", "-1e300")).contains("logarithm"), "no time");
    }

    #[test]
    fn what_is_wrong_is_told() {
        let told = |text: &str| Record::read(text).unwrap().unwrap_err().to_string();
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
            assert_eq!(Record::read(other), None, "{other}");
        }
    }
}
