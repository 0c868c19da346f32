//! Index maps: functions from indices to indices, as `transform_layout` and its relatives take them.
//!
//! Written as TVM's Python users write them: `lambda i, j: (i // 4, j, i % 4)`, `lambda i, j: (i, j ^ (i % 8))`.
use crate::arith::{constant, Domains};
use crate::simplify::simplified;
use satune_ir::{visit, BinOp, DType, Expr, Var, VarId};
use std::collections::HashMap;
use std::sync::Arc;

mod layout;
mod swizzle;

pub use layout::{MapError, MappedBox};

/// Deepest nesting of a map's text; deeper text is refused instead of exhausting the stack.
const NESTING: usize = 64;

/// A function from indices to indices.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexMap {
    /// Names of the parameters; parameter `k` is the variable of id `k`.
    pub params: Vec<String>,
    /// The outputs, over the parameters.
    pub outputs: Vec<Expr>,
}

/// A function from a block's iterators to a box: per dimension its first index and the one behind its last, or one index
/// alone. Written `lambda vi, vj: ((vi - 1, vi + 2), vj)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranges {
    /// Names of the parameters; parameter `k` is the variable of id `k`.
    pub params: Vec<String>,
    /// First index and end, over the parameters.
    pub ranges: Vec<(Expr, Option<Expr>)>,
}

impl Ranges {
    /// Reads a Python lambda of a tuple or list of indices and pairs.
    pub fn parse(text: &str) -> Result<Ranges, ParseError> {
        let mut parser = Parser::of(text);
        parser.params()?;
        let close = if parser.eat("[") {
            "]"
        } else {
            parser.expect("(")?;
            ")"
        };
        let mut ranges = Vec::new();
        while !parser.eat(close) {
            ranges.push(parser.range()?);
            if !parser.eat(",") {
                parser.expect(close)?;
                break;
            }
        }
        parser.end()?;
        Ok(Ranges { params: parser.params, ranges })
    }
}

/// What is wrong with a map's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} at character {at} of `{text}`")]
pub struct ParseError {
    /// What was expected or found.
    pub message: String,
    /// Where, in characters from the start.
    pub at: usize,
    /// The text.
    pub text: String,
}

impl IndexMap {
    /// Reads a Python lambda of one index or a tuple or list of indices.
    pub fn parse(text: &str) -> Result<IndexMap, ParseError> {
        Parser::of(text).map()
    }

    /// The parameter of a position.
    pub fn param(&self, k: usize) -> Var {
        let name = self.params.get(k).map_or("axis", String::as_str);
        Var { id: VarId(k as u32), name: name.into(), dtype: DType::I32 }
    }

    /// The outputs for given indices, simplified. None where there are more or fewer indices than parameters.
    pub fn apply(&self, indices: &[Expr]) -> Option<Vec<Expr>> {
        if indices.len() != self.params.len() {
            return None;
        }
        let map: HashMap<VarId, Expr> = indices.iter().enumerate().map(|(k, e)| (VarId(k as u32), e.clone())).collect();
        let none = Domains::new();
        Some(self.outputs.iter().map(|e| simplified(&visit::substitute(e, &map), &none)).collect())
    }
}

impl std::fmt::Display for IndexMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let outputs: Vec<String> = self.outputs.iter().map(crate::text::expr).collect();
        let comma = if outputs.len() == 1 { "," } else { "" };
        write!(f, "T.index_map(lambda {}: ({}{comma}))", self.params.join(", "), outputs.join(", "))
    }
}

/// Recursive descent over the text.
struct Parser<'a> {
    text: &'a str,
    chars: Vec<char>,
    at: usize,
    depth: usize,
    params: Vec<String>,
}

/// Binary operators from the loosest to the tightest.
const LEVELS: &[&[(&str, BinOp)]] = &[
    &[("|", BinOp::BitOr)],
    &[("^", BinOp::BitXor)],
    &[("&", BinOp::BitAnd)],
    &[("<<", BinOp::Shl), (">>", BinOp::Shr)],
    &[("+", BinOp::Add), ("-", BinOp::Sub)],
    &[("*", BinOp::Mul), ("//", BinOp::FloorDiv), ("%", BinOp::FloorMod)],
];

impl<'a> Parser<'a> {
    fn of(text: &'a str) -> Parser<'a> {
        Parser { text, chars: text.chars().collect(), at: 0, depth: 0, params: Vec::new() }
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T, ParseError> {
        Err(ParseError { message: message.into(), at: self.at, text: self.text.to_string() })
    }

    fn space(&mut self) {
        while self.chars.get(self.at).is_some_and(|c| c.is_whitespace()) {
            self.at += 1;
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        self.space();
        let length = token.chars().count();
        let found = self.chars.get(self.at..self.at + length).is_some_and(|c| c.iter().copied().eq(token.chars()));
        if found {
            self.at += length;
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), ParseError> {
        if self.eat(token) {
            Ok(())
        } else {
            self.fail(format!("expected `{token}`"))
        }
    }

    fn word(&mut self) -> Option<String> {
        self.space();
        let start = self.at;
        let letter = |c: &char| c.is_alphabetic() || *c == '_';
        if !self.chars.get(start).is_some_and(letter) {
            return None;
        }
        while self.chars.get(self.at).is_some_and(|c| letter(c) || c.is_ascii_digit()) {
            self.at += 1;
        }
        Some(self.chars[start..self.at].iter().collect())
    }

    /// `lambda i, j:`.
    fn params(&mut self) -> Result<(), ParseError> {
        if self.word().as_deref() != Some("lambda") {
            return self.fail("expected `lambda`");
        }
        while !self.eat(":") {
            if !self.params.is_empty() {
                self.expect(",")?;
            }
            match self.word() {
                Some(name) if self.params.contains(&name) => {
                    return self.fail(format!("`{name}` is a parameter twice"))
                }
                Some(name) => self.params.push(name),
                None if self.eat("*") => return self.fail("write the parameters out: `*` is not understood"),
                None => return self.fail("expected a parameter"),
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), ParseError> {
        self.space();
        if self.at < self.chars.len() {
            return self.fail("the map ends here, but the text goes on");
        }
        Ok(())
    }

    fn map(mut self) -> Result<IndexMap, ParseError> {
        self.params()?;
        let outputs = self.outputs()?;
        self.end()?;
        Ok(IndexMap { params: self.params, outputs })
    }

    /// `(begin, end)`, or one index.
    fn range(&mut self) -> Result<(Expr, Option<Expr>), ParseError> {
        let start = self.at;
        for (open, close) in [("(", ")"), ("[", "]")] {
            if self.eat(open) {
                let begin = self.level(0)?;
                if self.eat(",") {
                    let end = self.level(0)?;
                    self.eat(",");
                    self.expect(close)?;
                    return Ok((begin, Some(end)));
                }
                // The bracket belonged to the index.
                self.at = start;
            }
        }
        Ok((self.level(0)?, None))
    }

    /// One index, or several in parentheses, brackets or bare.
    fn outputs(&mut self) -> Result<Vec<Expr>, ParseError> {
        let start = self.at;
        for (open, close) in [("(", ")"), ("[", "]")] {
            if self.eat(open) {
                let list = self.list(close)?;
                self.space();
                if self.eat(close) {
                    self.space();
                    if self.at == self.chars.len() {
                        return Ok(list);
                    }
                }
                // The bracket belonged to the first index only.
                self.at = start;
            }
        }
        self.list("")
    }

    fn list(&mut self, close: &str) -> Result<Vec<Expr>, ParseError> {
        let mut out = Vec::new();
        loop {
            self.space();
            let at_end = self.at == self.chars.len()
                || (!close.is_empty() && self.chars.get(self.at).copied() == close.chars().next());
            if at_end && !out.is_empty() {
                return Ok(out);
            }
            out.push(self.level(0)?);
            if !self.eat(",") {
                return Ok(out);
            }
        }
    }

    fn operator(&mut self, level: usize) -> Option<BinOp> {
        self.space();
        // `/` alone would be a float division; `//` must not be read as two of them.
        LEVELS[level].iter().find(|(token, _)| self.eat(token)).map(|(_, op)| *op)
    }

    fn level(&mut self, level: usize) -> Result<Expr, ParseError> {
        if level == LEVELS.len() {
            return self.unary();
        }
        let mut left = self.level(level + 1)?;
        while let Some(op) = self.operator(level) {
            let right = self.level(level + 1)?;
            if matches!(op, BinOp::FloorDiv | BinOp::FloorMod) && constant(&right) == Some(0) {
                return self.fail("division by zero");
            }
            left = Expr::Binary(op, Arc::new(left), Arc::new(right));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, ParseError> {
        self.depth += 1;
        if self.depth > NESTING {
            return self.fail(format!("more than {NESTING} nested brackets or signs"));
        }
        let out = self.atom();
        self.depth -= 1;
        out
    }

    /// A constant of a type, after `T.`.
    fn typed(&mut self) -> Result<Expr, ParseError> {
        let dtype = match self.word().as_deref() {
            Some("int32") => DType::I32,
            Some("int64") => DType::I64,
            _ => return self.fail("expected `int32` or `int64`"),
        };
        self.expect("(")?;
        let inner = self.level(0)?;
        self.expect(")")?;
        match inner {
            Expr::Int(v, _) => Ok(Expr::Int(v, dtype)),
            _ => self.fail("expected a number"),
        }
    }

    fn atom(&mut self) -> Result<Expr, ParseError> {
        self.space();
        if self.eat("(") {
            let inner = self.level(0)?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.eat("-") {
            let inner = self.unary()?;
            return Ok(match inner {
                Expr::Int(v, t) if v.checked_neg().is_some() => Expr::Int(-v, t),
                other => Expr::Binary(BinOp::Sub, Arc::new(Expr::Int(0, DType::I32)), Arc::new(other)),
            });
        }
        if self.eat("+") {
            return self.unary();
        }
        let start = self.at;
        if self.chars.get(start).is_some_and(char::is_ascii_digit) {
            while self.chars.get(self.at).is_some_and(|c| c.is_ascii_digit() || *c == '_') {
                self.at += 1;
            }
            let digits: String = self.chars[start..self.at].iter().filter(|c| **c != '_').collect();
            return match digits.parse::<i32>() {
                Ok(v) => Ok(Expr::Int(v.into(), DType::I32)),
                Err(_) => self.fail(format!("`{digits}` is no 32-bit integer")),
            };
        }
        match self.word() {
            // `T.int64(0)`, as TVM prints constants of other widths.
            Some(name) if name == "T" && !self.params.contains(&name) && self.eat(".") => self.typed(),
            Some(name) => match self.params.iter().position(|p| *p == name) {
                Some(k) => Ok(Expr::Var(Var { id: VarId(k as u32), name: name.as_str().into(), dtype: DType::I32 })),
                None => self.fail(format!("`{name}` is no parameter")),
            },
            None => self.fail("expected an index"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(map: &str) -> String {
        IndexMap::parse(map).unwrap().to_string()
    }

    #[test]
    fn reads_lambdas() {
        for (given, read) in [
            ("lambda i, j: (j, i)", "T.index_map(lambda i, j: (j, i))"),
            ("lambda i,j: (i//4, j, i%4)", "T.index_map(lambda i, j: (i // 4, j, i % 4))"),
            ("lambda i, j: (i, j ^ (i % 8))", "T.index_map(lambda i, j: (i, j ^ i % 8))"),
            ("lambda i: i", "T.index_map(lambda i: (i,))"),
            ("lambda i: (i,)", "T.index_map(lambda i: (i,))"),
            ("lambda i, j: [i * 16 + j]", "T.index_map(lambda i, j: (i * 16 + j,))"),
            ("lambda i, j: (i + 1) * 2, j", "T.index_map(lambda i, j: ((i + 1) * 2, j))"),
            ("lambda i, j: (i + 1) * 2", "T.index_map(lambda i, j: ((i + 1) * 2,))"),
            ("lambda i: (-3 - i,)", "T.index_map(lambda i: (-3 - i,))"),
        ] {
            assert_eq!(text(given), read, "{given}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        let nested = format!("lambda i: {}i{}", "(".repeat(100), ")".repeat(100));
        for (given, message) in [
            ("i, j", "expected `lambda`"),
            ("lambda i, i: i", "`i` is a parameter twice"),
            ("lambda *ax: ax", "write the parameters out: `*` is not understood"),
            ("lambda i: (i, k)", "`k` is no parameter"),
            ("lambda i: i / 2", "the map ends here, but the text goes on"),
            ("lambda i: i // 0", "division by zero"),
            ("lambda i: (i", "expected `)`"),
            ("lambda i: 99999999999", "`99999999999` is no 32-bit integer"),
            ("lambda i:", "expected an index"),
            (nested.as_str(), "more than 64 nested brackets or signs"),
        ] {
            assert_eq!(IndexMap::parse(given).unwrap_err().message, message, "{given}");
        }
    }

    #[test]
    fn applies_and_simplifies() {
        let map = IndexMap::parse("lambda i, j: (i // 4, j, i % 4)").unwrap();
        let i = Expr::Var(Var { id: VarId(70), name: "vi".into(), dtype: DType::I32 });
        let four = |e: &Expr| Expr::Binary(BinOp::Mul, Arc::new(e.clone()), Arc::new(Expr::Int(4, DType::I32)));
        let out = map.apply(&[four(&i), Expr::Int(3, DType::I32)]).unwrap();
        assert_eq!(out, vec![i, Expr::Int(3, DType::I32), Expr::Int(0, DType::I32)]);
        assert_eq!(map.apply(&[Expr::Int(3, DType::I32)]), None);
    }

    proptest! {
        #[test]
        fn never_panics(text in "lambda [ij, ]{0,4}:[ij0-9()+*/% ^,-]{0,24}") {
            let _ = IndexMap::parse(&text);
        }
    }
}
