//! Export and import: one JSON object per line, a head first.
use super::{check, hash, insert, Row, Store, StoreError, VERSION};
use rusqlite::TransactionBehavior;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};

/// The first line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    satune: String,
    version: i64,
}

/// A line: the row's text and its hash.
#[derive(Serialize, Deserialize)]
struct Line {
    digest: String,
    row: Row,
}

/// What an import came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// Lines with rows.
    pub read: u64,
    /// Of those, new or worth more than what was known.
    pub written: u64,
}

impl Store {
    /// Writes every row as NDJSON and returns how many.
    ///
    /// # Errors
    /// When a row is damaged, the store cannot be read or the output not be written.
    pub fn export(&self, out: &mut dyn Write) -> Result<u64, StoreError> {
        let rows = self.rows()?;
        let unwritten =
            |e: std::io::Error| StoreError::Unusable { path: self.path.clone(), reason: format!("export: {e}") };
        let json = |e: serde_json::Error| StoreError::Row { path: self.path.clone(), reason: e.to_string() };
        let head = serde_json::to_string(&Head { satune: "measurements".into(), version: VERSION }).map_err(json)?;
        writeln!(out, "{head}").map_err(unwritten)?;
        for row in &rows {
            let digest = hash(&serde_json::to_string(row).map_err(json)?);
            let line = serde_json::to_string(&Line { digest, row: row.clone() }).map_err(json)?;
            writeln!(out, "{line}").map_err(unwritten)?;
        }
        out.flush().map_err(unwritten)?;
        Ok(rows.len() as u64)
    }

    /// Reads NDJSON, all of it or nothing. What is known stays unless the line is worth more.
    ///
    /// # Errors
    /// The first bad line, by its number.
    pub fn import(&mut self, input: &mut dyn BufRead, origin: &str) -> Result<Imported, StoreError> {
        let bad = |line: usize, reason: String| StoreError::Line { origin: origin.into(), line, reason };
        let mut rows = Vec::new();
        for (at, text) in input.lines().enumerate() {
            let text = text.map_err(|e| bad(at + 1, e.to_string()))?;
            if at == 0 {
                let head: Head = serde_json::from_str(&text)
                    .map_err(|e| bad(1, format!("not the head of an export of `satune db export`: {e}")))?;
                if head.satune != "measurements" || head.version > VERSION {
                    return Err(bad(1, format!("version {} of {}; known is {VERSION}", head.version, head.satune)));
                }
                continue;
            }
            if text.trim().is_empty() {
                continue;
            }
            let line: Line = serde_json::from_str(&text).map_err(|e| bad(at + 1, e.to_string()))?;
            let body = serde_json::to_string(&line.row).map_err(|e| bad(at + 1, e.to_string()))?;
            if hash(&body) != line.digest {
                return Err(bad(at + 1, "the row does not have its hash: it was changed after the export".into()));
            }
            check(&line.row).map_err(|reason| bad(at + 1, reason))?;
            rows.push(line.row);
        }
        let (path, busy) = (self.path.clone(), self.busy.as_secs());
        let mut write = || -> Result<u64, rusqlite::Error> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut written = 0;
            for row in &rows {
                written += u64::from(insert(&transaction, row)?);
            }
            transaction.commit()?;
            Ok(written)
        };
        let written = write().map_err(|e| StoreError::of(&path, busy, &e))?;
        Ok(Imported { read: rows.len() as u64, written })
    }
}
