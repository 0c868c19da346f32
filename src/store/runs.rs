//! Runs: what was asked, so that it can be resumed, and the best so far after each step.
use super::{now, Store, StoreError};
use rusqlite::{params, Connection, OptionalExtension};
use serde::{Deserialize, Serialize};

/// A run of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its number.
    pub id: i64,
    /// What was asked, as JSON of whoever asked.
    pub request: String,
    /// Seconds since 1970.
    pub started: i64,
    /// Seconds since 1970, if it came to its end.
    pub finished: Option<i64>,
}

/// One candidate's turn in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// From 1.
    pub number: u32,
    /// Hash of the candidate's trace.
    pub trace: String,
    /// `measured`, or why not.
    pub outcome: String,
    /// Its predicted time, ms.
    pub predicted_ms: f64,
    /// Its median, ms.
    pub ms: Option<f64>,
    /// Smallest median up to here, ms.
    pub best_ms: Option<f64>,
    /// Whether the store knew it.
    pub reused: bool,
}

pub(super) fn record(connection: &Connection, run: i64, step: &Step) -> Result<(), rusqlite::Error> {
    let body = serde_json::to_string(step).map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))?;
    connection
        .prepare_cached("INSERT OR REPLACE INTO step(run, number, body) VALUES (?1, ?2, ?3)")?
        .execute(params![run, step.number, body])?;
    Ok(())
}

impl Store {
    /// Begins a run.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn begin_run(&mut self, request: &str) -> Result<i64, StoreError> {
        let started = i64::try_from(now()).unwrap_or(0);
        self.connection
            .execute("INSERT INTO run(request, started) VALUES (?1, ?2)", params![request, started])
            .map_err(|e| self.failed(&e))?;
        Ok(self.connection.last_insert_rowid())
    }

    /// Records a step whose row is known already.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn put_step(&mut self, run: i64, step: &Step) -> Result<(), StoreError> {
        record(&self.connection, run, step).map_err(|e| self.failed(&e))
    }

    /// Marks a run as finished.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn finish_run(&mut self, run: i64) -> Result<(), StoreError> {
        let finished = i64::try_from(now()).unwrap_or(0);
        self.connection
            .execute("UPDATE run SET finished = ?2 WHERE id = ?1", params![run, finished])
            .map(drop)
            .map_err(|e| self.failed(&e))
    }

    /// The run of a number, or the latest that has not come to its end.
    ///
    /// # Errors
    /// When there is none.
    pub fn run_to_resume(&self, id: Option<i64>) -> Result<Run, StoreError> {
        let sql = "SELECT id, request, started, finished FROM run WHERE CASE WHEN ?1 IS NULL THEN finished IS NULL ELSE id = ?1 END ORDER BY id DESC LIMIT 1";
        let found = self.connection.query_row(sql, params![id], |r| {
            Ok(Run { id: r.get(0)?, request: r.get(1)?, started: r.get(2)?, finished: r.get(3)? })
        });
        let what = id.map_or("no run is unfinished".to_string(), |id| format!("there is no run {id}"));
        found
            .optional()
            .map_err(|e| self.failed(&e))?
            .ok_or_else(|| StoreError::NoRun { path: self.path.clone(), what })
    }

    /// The steps of a run, in order.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn steps(&self, run: i64) -> Result<Vec<Step>, StoreError> {
        let read = || -> Result<Vec<String>, rusqlite::Error> {
            let mut statement = self.connection.prepare("SELECT body FROM step WHERE run = ?1 ORDER BY number")?;
            let rows = statement.query_map([run], |r| r.get(0))?;
            rows.collect()
        };
        let texts = read().map_err(|e| self.failed(&e))?;
        let damaged = |e: serde_json::Error| StoreError::Corrupt { path: self.path.clone(), what: e.to_string() };
        texts.iter().map(|t| serde_json::from_str(t).map_err(damaged)).collect()
    }
}
