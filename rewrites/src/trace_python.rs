//! Reads traces as Python text: what TVM prints for a trace (`Trace.show`), and what [`Trace::to_python`] writes.
//!
//! Of Python, this is: a `def` with one parameter, and lines `a, b = sch.split(loop=l, factors=[2, None])`, where arguments
//! are constants, names, elements of names, lists, tuples, dictionaries and lambdas.
use crate::trace::{Call, Out, Trace, TraceError, NORMALIZE, NORMALIZED, REGISTER};
use serde_json::{json, Map, Number, Value};
use std::collections::HashSet;

/// Deepest nesting of lists.
const DEEPEST: usize = 64;

/// Reads the text.
pub(crate) fn read(text: &str) -> Result<Trace, TraceError> {
    let mut reader = Reader { text, at: 0, names: HashSet::new(), schedule: None };
    let mut calls = Vec::new();
    loop {
        reader.blank_lines();
        if reader.rest().is_empty() {
            return Ok(Trace { calls });
        }
        calls.extend(reader.statement()?);
        reader.space();
        reader.eat(";");
        reader.space();
        if !(reader.rest().is_empty() || reader.rest().starts_with('\n')) {
            return reader.fail("the line should end here");
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    /// In bytes.
    at: usize,
    /// What earlier calls bound.
    names: HashSet<String>,
    /// What the schedule is called.
    schedule: Option<String>,
}

impl<'a> Reader<'a> {
    fn fail<T>(&self, message: impl Into<String>) -> Result<T, TraceError> {
        let line = self.text[..self.at].matches('\n').count() + 1;
        Err(TraceError::Python { line, message: message.into() })
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn take(&mut self, while_: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|c| !while_(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// Spaces and a comment, within a line.
    fn space(&mut self) {
        self.take(|c| matches!(c, ' ' | '\t' | '\r'));
        if self.rest().starts_with('#') {
            self.take(|c| c != '\n');
        }
    }

    /// Spaces, comments and line breaks.
    fn blank_lines(&mut self) {
        loop {
            self.space();
            if !self.eat("\n") {
                return;
            }
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), TraceError> {
        self.blank_lines();
        if self.eat(token) {
            return Ok(());
        }
        let found: String = self.rest().chars().take(20).collect();
        self.fail(format!("expected `{token}`, found `{}`", found.escape_debug()))
    }

    fn word(&mut self) -> Option<&'a str> {
        if self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        Some(self.take(|c| c.is_alphanumeric() || c == '_')).filter(|w| !w.is_empty())
    }

    fn name(&mut self) -> Result<&'a str, TraceError> {
        self.space();
        self.word().map_or_else(|| self.fail("expected a name"), Ok)
    }

    /// A line; None where it makes no call.
    fn statement(&mut self) -> Result<Option<Call>, TraceError> {
        if self.rest().starts_with(REGISTER) {
            self.take(|c| c != '\n');
            return Ok(None);
        }
        let mut words = vec![self.name()?];
        match words[0] {
            "import" | "from" | "pass" | "return" => {
                self.take(|c| c != '\n');
                return Ok(None);
            }
            "def" => {
                self.name()?;
                self.expect("(")?;
                self.schedule = Some(self.name()?.to_string());
                // Annotations of types say nothing.
                self.take(|c| c != '\n');
                return Ok(None);
            }
            _ => {}
        }
        self.space();
        let mut several = false;
        while self.eat(",") {
            several = true;
            self.space();
            if let Some(word) = self.word() {
                words.push(word);
                self.space();
            }
        }
        let mut out = None;
        let object = if several || self.rest().starts_with('=') {
            self.expect("=")?;
            let names: Vec<String> = words.iter().map(|w| (*w).to_string()).collect();
            out = Some(match &names[..] {
                [one] if !several => Out::One(one.clone()),
                _ => Out::Many(names),
            });
            self.space();
            if self.eat(NORMALIZED) {
                return self.normalized(out).map(Some);
            }
            self.name()?
        } else {
            words[0]
        };
        if self.schedule.get_or_insert_with(|| object.to_string()) != object {
            return self.fail(format!("`{object}` is not the schedule; a line calls one of its methods"));
        }
        self.expect(".")?;
        let op = self.name()?;
        let mut call = Call::new(op, []);
        self.expect("(")?;
        while !self.close(")")? {
            let start = self.at;
            if let Some(key) = self.word() {
                self.blank_lines();
                if self.rest().starts_with('=') {
                    self.at += 1;
                    let value = self.value(0)?;
                    call.kwargs.insert(key.to_string(), if key == "pad_value" { constant(value) } else { value });
                    self.comma(")")?;
                    continue;
                }
                self.at = start;
            }
            if !call.kwargs.is_empty() {
                return self.fail("a positional argument after a named one");
            }
            let value = self.value(0)?;
            call.args.push(value);
            self.comma(")")?;
        }
        Ok(Some(self.bound(call, out)))
    }

    /// The rest of a call of `normalize_prim_func`.
    fn normalized(&mut self, out: Option<Out>) -> Result<Call, TraceError> {
        let object = self.name()?;
        if self.schedule.get_or_insert_with(|| object.to_string()) != object {
            return self.fail(format!("`{object}` is not the schedule"));
        }
        self.expect(")")?;
        self.expect("]")?;
        Ok(self.bound(Call::new(NORMALIZE, []), out))
    }

    /// A call with the names of its results, which are known from here on.
    fn bound(&mut self, mut call: Call, out: Option<Out>) -> Call {
        match &out {
            Some(Out::One(name)) => drop(self.names.insert(name.clone())),
            Some(Out::Many(names)) => self.names.extend(names.iter().cloned()),
            None => {}
        }
        call.out = out;
        call
    }

    fn close(&mut self, token: &str) -> Result<bool, TraceError> {
        self.blank_lines();
        if self.rest().is_empty() {
            return self.fail(format!("`{token}` is missing"));
        }
        Ok(self.eat(token))
    }

    /// A comma, or the end of the list ahead.
    fn comma(&mut self, end: &str) -> Result<(), TraceError> {
        self.blank_lines();
        if self.rest().starts_with(end) {
            return Ok(());
        }
        self.expect(",")
    }

    fn list(&mut self, end: &str, depth: usize) -> Result<Vec<Value>, TraceError> {
        let mut items = Vec::new();
        while !self.close(end)? {
            items.push(self.value(depth + 1)?);
            self.comma(end)?;
        }
        Ok(items)
    }

    fn value(&mut self, depth: usize) -> Result<Value, TraceError> {
        if depth > DEEPEST {
            return self.fail(format!("brackets are nested more than {DEEPEST} deep"));
        }
        self.blank_lines();
        match self.rest().chars().next() {
            Some('"' | '\'') => self.string().map(Value::String),
            Some(c) if c.is_ascii_digit() || c == '-' || c == '.' => self.number(),
            Some('[') => {
                self.at += 1;
                self.list("]", depth).map(Value::Array)
            }
            Some('(') => {
                self.at += 1;
                self.list(")", depth).map(Value::Array)
            }
            Some('{') => {
                self.at += 1;
                let mut map = Map::new();
                while !self.close("}")? {
                    let key = self.string()?;
                    self.expect(":")?;
                    map.insert(key, self.value(depth + 1)?);
                    self.comma("}")?;
                }
                Ok(map.into())
            }
            _ => self.named(depth),
        }
    }

    /// What begins with a word.
    fn named(&mut self, depth: usize) -> Result<Value, TraceError> {
        let start = self.at;
        let Some(word) = self.word() else { return self.fail("expected a value") };
        match word {
            "None" => return Ok(Value::Null),
            "True" => return Ok(true.into()),
            "False" => return Ok(false.into()),
            "lambda" => {
                self.at = start;
                return self.lambda();
            }
            _ => {}
        }
        if self.names.contains(word) {
            if !self.eat("[") {
                return Ok(format!("${word}").into());
            }
            let index = self.value(depth + 1)?;
            self.expect("]")?;
            return match index.as_i64() {
                Some(index) => Ok(format!("${word}[{index}]").into()),
                None => self.fail("an element is named by a number"),
            };
        }
        // `T.float32(0.5)` is the number.
        if word == "T" && self.eat(".") {
            self.name()?;
            self.expect("(")?;
            let value = self.value(depth + 1)?;
            self.expect(")")?;
            return Ok(value);
        }
        self.at = start;
        self.fail(format!("`{word}` is not bound to anything"))
    }

    /// A lambda, up to the comma or bracket that ends it.
    fn lambda(&mut self) -> Result<Value, TraceError> {
        let rest = self.rest();
        let mut depth = 0usize;
        let mut body = false;
        let mut end = rest.len();
        for (at, c) in rest.char_indices() {
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' if depth == 0 => {
                    end = at;
                    break;
                }
                ')' | ']' | '}' => depth -= 1,
                ':' => body = true,
                ',' if depth == 0 && body => {
                    end = at;
                    break;
                }
                _ => {}
            }
        }
        self.at += end;
        Ok(json!({"index_map": rest[..end].trim_end()}))
    }

    fn number(&mut self) -> Result<Value, TraceError> {
        let start = self.at;
        self.eat("-");
        self.take(|c| c.is_ascii_digit() || c == '.' || c == '_');
        if self.rest().starts_with(['e', 'E']) {
            self.at += 1;
            if !self.eat("-") {
                self.eat("+");
            }
            self.take(|c| c.is_ascii_digit());
        }
        let text = self.text[start..self.at].replace('_', "");
        let number = text.parse::<i64>().ok().map(Number::from);
        match number.or_else(|| text.parse::<f64>().ok().and_then(Number::from_f64)) {
            Some(number) => Ok(number.into()),
            None => self.fail(format!("`{text}` is no number that Satune reads")),
        }
    }

    fn string(&mut self) -> Result<String, TraceError> {
        self.blank_lines();
        let mut chars = self.rest().char_indices();
        let quote = match chars.next() {
            Some((_, quote @ ('"' | '\''))) => quote,
            _ => return self.fail("expected a text in quotes"),
        };
        let mut out = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                '\n' => break,
                '\\' => match chars.next() {
                    Some((_, 'n')) => out.push('\n'),
                    Some((_, 't')) => out.push('\t'),
                    Some((_, c @ ('\\' | '"' | '\''))) => out.push(c),
                    _ => return self.fail("an escape that Satune does not read"),
                },
                c if c == quote => {
                    self.at += at + 1;
                    return Ok(out);
                }
                c => out.push(c),
            }
        }
        self.fail("the text does not end")
    }
}

/// A padding value is printed as a function of the indices; one that is constant is a number.
fn constant(value: Value) -> Value {
    let body = value.get("index_map").and_then(Value::as_str).and_then(|text| text.split_once(':'));
    let Some((_, body)) = body else { return value };
    let inner = body.trim().trim_start_matches('(').trim_end_matches([')', ',', ' ']);
    let number = inner.split_once('(').map_or(inner, |(_, number)| number);
    match serde_json::from_str::<Number>(number) {
        Ok(number) => number.into(),
        Err(_) => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes_and_what_tvm_prints() {
        let text = r#"# from tvm import s_tir
def apply_trace(sch: s_tir.Schedule) -> None:
  b0 = sch.get_sblock(name="C", func_name="main")
  l1, l2, l3 = sch.get_loops(block=b0)
  v4, v5 = sch.sample_perfect_tile(loop=l1, n=2, max_innermost_factor=16, decision=[64, 2])
  l6, l7 = sch.split(loop=l1, factors=[v4, None], preserve_unit_iters=True)
  l8, = sch.get_loops(block="D")
  sch.transform_layout(block=b0, buffer=("read", 0), index_map=lambda i, j: (j // 8, i,), pad_value=lambda i, j: (T.float32(0.5),))
"#;
        let trace = Trace::read(text).unwrap();
        let [_, loops, sample, split, one, layout] = &trace.calls[..] else { panic!("{trace:?}") };
        assert_eq!(loops.kwargs["block"], json!("$b0"));
        assert_eq!(sample.kwargs["decision"], json!([64, 2]));
        assert_eq!(split.kwargs["factors"], json!(["$v4", null]));
        assert_eq!(one.out, Some(Out::Many(vec!["l8".into()])));
        assert_eq!(layout.kwargs["index_map"], json!({"index_map": "lambda i, j: (j // 8, i,)"}));
        assert_eq!(layout.kwargs["pad_value"], json!(0.5));
        assert_eq!(layout.kwargs["buffer"], json!(["read", 0]));
        assert_eq!(Trace::read(&trace.to_python("f")).unwrap(), trace);
    }

    #[test]
    fn says_where_text_is_no_trace() {
        let error = |text: &str| Trace::read(text).unwrap_err().to_string();
        assert_eq!(error("b = sch.get_sblock('C')\nsch.unroll(c)\n"), "line 2: `c` is not bound to anything");
        assert_eq!(error("sch.unroll(\n"), "line 2: `)` is missing");
        assert!(error("for i in range(3):\n").starts_with("line 1: "));
        assert!(error(&format!("sch.f({}", "[".repeat(100_000))).contains("nested more than"));
        assert!(error("sch.f('a").contains("does not end"));
    }
}
