//! The store: one SQLite file that remembers every candidate that was tried, on which device, and what came of it.
//!
//! A row is one transaction, so that a process killed at any moment leaves a store that opens and lacks at most the row
//! that was being measured. Each row carries a hash of its text: a damaged row is found, never believed. Several
//! processes may write to one store (write-ahead log, one writer at a time, waiting for its turn); the file must lie on
//! a local disk, since the log needs shared memory. A power cut may lose the last rows, never the store.
mod error;
mod maintain;
mod ndjson;
mod row;
mod runs;

pub use error::StoreError;
pub use maintain::{repair, Health, Repaired};
pub use ndjson::Imported;
pub use row::{hash, median, now, Conditions, Key, Reason, Row, Timing, Verdict};
pub use runs::{Run, Step};

use rusqlite::{params, Connection, ErrorCode, OptionalExtension, TransactionBehavior};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Version of the tables. A change of them adds a step to [`MIGRATIONS`].
pub const VERSION: i64 = MIGRATIONS.len() as i64;

/// "satu": tells our files from other programs' databases.
const APPLICATION: i64 = 0x7361_7475;

/// What makes version n of version n - 1. The text of the first must stay as it is: a repair of a file whose first page
/// is lost counts on tables being made in the same places.
const MIGRATIONS: [&str; 1] = ["
CREATE TABLE measurement(
  id INTEGER PRIMARY KEY,
  program TEXT NOT NULL, trace TEXT NOT NULL, toolchain TEXT NOT NULL, device TEXT NOT NULL,
  outcome TEXT NOT NULL, median_ms REAL, at INTEGER NOT NULL,
  body TEXT NOT NULL, digest TEXT NOT NULL,
  CHECK ((outcome = 'measured') = (median_ms IS NOT NULL)),
  UNIQUE (program, trace, toolchain, device)) STRICT;
CREATE TABLE run(id INTEGER PRIMARY KEY, request TEXT NOT NULL, started INTEGER NOT NULL, finished INTEGER) STRICT;
CREATE TABLE step(
  run INTEGER NOT NULL REFERENCES run(id), number INTEGER NOT NULL, body TEXT NOT NULL,
  PRIMARY KEY (run, number)) STRICT, WITHOUT ROWID;
"];

/// How to open.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long to wait for another process that writes.
    pub busy: Duration,
    /// Largest size of the file, bytes; beyond it the store is full.
    pub most_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options { busy: Duration::from_secs(60), most_bytes: None }
    }
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
    busy: Duration,
}

impl Store {
    /// Opens a store, and makes it where there is none.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        Store::open_with(path, &Options::default())
    }

    /// Opens a store that must exist.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn existing(path: &Path) -> Result<Store, StoreError> {
        // What is no regular file is told as that.
        match path.exists() {
            true => Store::open(path),
            false => Err(StoreError::Unusable { path: path.into(), reason: "there is no such file".into() }),
        }
    }

    /// Opens a store in a given way.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open_with(path: &Path, options: &Options) -> Result<Store, StoreError> {
        let failed = |e: &rusqlite::Error| StoreError::of(path, options.busy.as_secs(), e);
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|e| StoreError::Unusable {
                path: path.into(),
                reason: format!("folder {}: {e}", folder.display()),
            })?;
        }
        if std::fs::metadata(path).is_ok_and(|about| !about.is_file()) {
            return Err(StoreError::Unusable { path: path.into(), reason: "this is no regular file".into() });
        }
        let connection = Connection::open(path).map_err(|e| failed(&e))?;
        let mut store = Store { connection, path: path.into(), busy: options.busy };
        store.prepare(options).map_err(|e| match e {
            Refused::Sqlite(e) => failed(&e),
            Refused::Store(e) => e,
        })?;
        Ok(store)
    }

    fn prepare(&mut self, options: &Options) -> Result<(), Refused> {
        let c = &mut self.connection;
        c.busy_timeout(options.busy)?;
        // Asked before anything is written, so that a newer or foreign file stays as it is.
        let (version, application) = (pragma(c, "user_version")?, pragma(c, "application_id")?);
        judge(&self.path, version, application, c)?;
        let mode = write_ahead(c, options.busy)?;
        if mode != "wal" {
            let reason =
                format!("no write-ahead log here (the journal mode is {mode}); the file must lie on a local disk");
            return Err(Refused::Store(StoreError::Unusable { path: self.path.clone(), reason }));
        }
        c.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;")?;
        if let Some(bytes) = options.most_bytes {
            let pages = bytes / u64::try_from(pragma(c, "page_size")?).unwrap_or(4096).max(1);
            c.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
        }
        if version == VERSION && !is_ours(c)? {
            let what = "its tables are not those of a store".into();
            return Err(Refused::Store(StoreError::Corrupt { path: self.path.clone(), what }));
        }
        if version < VERSION {
            // Another process may be doing the same: look again under the lock.
            let transaction = c.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let version = pragma(&transaction, "user_version")?;
            for step in &MIGRATIONS[usize::try_from(version).unwrap_or(0).min(MIGRATIONS.len())..] {
                transaction.execute_batch(step)?;
            }
            if version < VERSION {
                let head = format!("PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};");
                transaction.execute_batch(&head)?;
            }
            transaction.commit()?;
        }
        Ok(())
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, error: &rusqlite::Error) -> StoreError {
        StoreError::of(&self.path, self.busy.as_secs(), error)
    }

    /// What is known under a key.
    ///
    /// # Errors
    /// Where the row is damaged, or the store cannot be read.
    pub fn get(&self, key: &Key) -> Result<Option<Row>, StoreError> {
        let found = self
            .connection
            .prepare_cached(
                "SELECT body, digest FROM measurement WHERE program = ?1 AND trace = ?2 AND toolchain = ?3 AND device = ?4",
            )
            .and_then(|mut s| {
                s.query_row(params![key.program, key.trace, key.toolchain, key.device], |r| {
                    Ok((r.get::<_, String>(0)?, r.get::<_, String>(1)?))
                })
                .optional()
            })
            .map_err(|e| self.failed(&e))?;
        let Some((body, digest)) = found else { return Ok(None) };
        let row = read(&body, &digest).map_err(|what| StoreError::Corrupt { path: self.path.clone(), what })?;
        if row.key != *key {
            let what = "a row is filed under another key than its own".into();
            return Err(StoreError::Corrupt { path: self.path.clone(), what });
        }
        Ok(Some(row))
    }

    /// Records a row in a transaction of its own, unless what is known is worth more (see [`Verdict::replaces`]).
    /// Returns whether it was written.
    ///
    /// # Errors
    /// A full disk and the other ways in which a file fails; the store is then as it was.
    pub fn put(&mut self, row: &Row) -> Result<bool, StoreError> {
        self.put_with(row, None)
    }

    /// Records a row and the step of a run that it belongs to, both or neither.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn put_with(&mut self, row: &Row, step: Option<(i64, &Step)>) -> Result<bool, StoreError> {
        let bad = |reason: String| StoreError::Row { path: self.path.clone(), reason };
        check(row).map_err(bad)?;
        let (path, busy) = (self.path.clone(), self.busy.as_secs());
        let mut write = || -> Result<bool, rusqlite::Error> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let written = insert(&transaction, row)?;
            if let Some((run, step)) = step {
                runs::record(&transaction, run, step)?;
            }
            transaction.commit()?;
            Ok(written)
        };
        write().map_err(|e| StoreError::of(&path, busy, &e))
    }

    /// Number of rows.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn len(&self) -> Result<u64, StoreError> {
        self.connection
            .query_row("SELECT count(*) FROM measurement", [], |r| r.get::<_, i64>(0))
            .map(|n| u64::try_from(n).unwrap_or(0))
            .map_err(|e| self.failed(&e))
    }

    /// Whether there is no row.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn is_empty(&self) -> Result<bool, StoreError> {
        Ok(self.len()? == 0)
    }

    /// Every row, in the order of keys.
    ///
    /// # Errors
    /// When a row is damaged, or the store cannot be read.
    pub fn rows(&self) -> Result<Vec<Row>, StoreError> {
        let texts = || -> Result<Vec<(String, String)>, rusqlite::Error> {
            let mut statement = self
                .connection
                .prepare("SELECT body, digest FROM measurement ORDER BY program, trace, toolchain, device")?;
            let rows = statement.query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?;
            rows.collect()
        };
        let texts = texts().map_err(|e| self.failed(&e))?;
        let damaged = |what| StoreError::Corrupt { path: self.path.clone(), what };
        texts.iter().map(|(body, digest)| read(body, digest).map_err(damaged)).collect()
    }
}

enum Refused {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

impl From<rusqlite::Error> for Refused {
    fn from(error: rusqlite::Error) -> Refused {
        Refused::Sqlite(error)
    }
}

fn pragma(connection: &Connection, name: &str) -> Result<i64, rusqlite::Error> {
    connection.query_row(&format!("PRAGMA {name}"), [], |r| r.get(0))
}

/// Whether a file with these marks is ours to use.
fn judge(path: &Path, version: i64, application: i64, connection: &Connection) -> Result<(), Refused> {
    let path = path.to_path_buf();
    if application != APPLICATION {
        let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get(0))?;
        // Nothing in it: new, or made by a process that was killed before its first transaction ended.
        if tables > 0 || version != 0 || application != 0 {
            // Another process may have made the tables since the marks were read.
            if pragma(connection, "application_id")? != APPLICATION {
                return Err(Refused::Store(StoreError::Foreign { path }));
            }
        }
    } else if version > VERSION {
        return Err(Refused::Store(StoreError::Newer { path, found: version, known: VERSION }));
    }
    Ok(())
}

/// Whether a file's tables are those of a new store, word by word: what is read from others, a view for instance, may never
/// end.
fn is_ours(connection: &Connection) -> rusqlite::Result<bool> {
    type Entry = (String, String, Option<String>);
    let schema = |c: &Connection| -> rusqlite::Result<Vec<Entry>> {
        let mut statement = c.prepare("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name")?;
        let rows = statement.query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
        // More entries than a store has are enough to know.
        rows.take(100).collect()
    };
    let fresh = Connection::open_in_memory()?;
    for step in MIGRATIONS {
        fresh.execute_batch(step)?;
    }
    Ok(schema(connection)? == schema(&fresh)?)
}

/// Asks for a write-ahead log, and gives the mode that there is. Where several processes open a new file at once, SQLite does
/// not wait for the one that makes the log, whatever its timeout: so it is asked again.
fn write_ahead(connection: &Connection, busy: Duration) -> rusqlite::Result<String> {
    let start = Instant::now();
    loop {
        match connection.query_row("PRAGMA journal_mode = WAL", [], |r| r.get(0)) {
            Err(e) if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && start.elapsed() < busy => {
                std::thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

/// What must hold of a row before it is written.
fn check(row: &Row) -> Result<(), String> {
    if let Verdict::Measured(timing) = &row.verdict {
        if let Some(fault) = timing.fault() {
            return Err(fault);
        }
    }
    if !row.predicted_ms.is_finite() {
        return Err(format!("predicted time {}", row.predicted_ms));
    }
    Ok(())
}

/// Reads a row's text, if it is what was written.
fn read(body: &str, digest: &str) -> Result<Row, String> {
    if hash(body) != digest {
        return Err("a row's text does not have its hash".into());
    }
    let row: Row = serde_json::from_str(body).map_err(|e| format!("a row is malformed: {e}"))?;
    check(&row)?;
    Ok(row)
}

/// Inserts or replaces, inside a transaction; returns whether something was written.
fn insert(connection: &Connection, row: &Row) -> Result<bool, rusqlite::Error> {
    let Key { program, trace, toolchain, device } = &row.key;
    let old: Option<(String, String)> = connection
        .prepare_cached(
            "SELECT body, digest FROM measurement WHERE program = ?1 AND trace = ?2 AND toolchain = ?3 AND device = ?4",
        )?
        .query_row(params![program, trace, toolchain, device], |r| Ok((r.get(0)?, r.get(1)?)))
        .optional()?;
    // A damaged row is worth less than any.
    if old.is_some_and(|(body, digest)| read(&body, &digest).is_ok_and(|old| !row.verdict.replaces(&old.verdict))) {
        return Ok(false);
    }
    let body = serde_json::to_string(row).map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))?;
    connection
        .prepare_cached(
            "INSERT INTO measurement(program, trace, toolchain, device, outcome, median_ms, at, body, digest)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
             ON CONFLICT (program, trace, toolchain, device) DO UPDATE SET outcome = excluded.outcome,
             median_ms = excluded.median_ms, at = excluded.at, body = excluded.body, digest = excluded.digest",
        )?
        .execute(params![
            program,
            trace,
            toolchain,
            device,
            row.verdict.name(),
            row.verdict.median_ms(),
            i64::try_from(row.at).unwrap_or(0),
            body,
            hash(&body)
        ])?;
    Ok(true)
}
