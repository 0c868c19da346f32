//! What can be wrong with a store: where, why, and the remedy.
use rusqlite::ErrorCode;
use std::path::{Path, PathBuf};

/// Why a store does not answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Written by a later version.
    #[error("store {path}: its schema is version {found}, this satune knows {known}; use a newer satune, or `db export` with that one and `db import` with this one")]
    Newer {
        /// File.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// SQLite, but not ours.
    #[error("store {path}: this is no store but a file of another kind; it is left as it is: name another file with --store")]
    Foreign {
        /// File.
        path: PathBuf,
    },
    /// Damaged.
    #[error("store {path}: damaged ({what}); `satune db repair --store {path}` saves every sound row and keeps the damaged file beside it")]
    Corrupt {
        /// File.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// No space.
    #[error("store {path}: no space left to write ({what}); all earlier rows are safe; free some space, then `satune resume --store {path}`")]
    Full {
        /// File.
        path: PathBuf,
        /// What the system says.
        what: String,
    },
    /// Another process holds it.
    #[error("store {path}: another process has been writing to it for {seconds} s; wait for it, or name another file with --store")]
    Busy {
        /// File.
        path: PathBuf,
        /// How long we waited.
        seconds: u64,
    },
    /// The file cannot be opened, read or written.
    #[error("store {path}: {reason}; check the path and its permissions, or name another file with --store")]
    Unusable {
        /// File.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// A line of an import.
    #[error("{origin}, line {line}: {reason}; nothing was imported")]
    Line {
        /// File.
        origin: String,
        /// From 1.
        line: usize,
        /// Why.
        reason: String,
    },
    /// A row that no store takes.
    #[error("store {path}: a row was refused: {reason}; this is a bug of satune")]
    Row {
        /// File.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Nothing to resume.
    #[error("store {path}: {what}; `satune explore PROGRAM --store {path}` starts a run")]
    NoRun {
        /// File.
        path: PathBuf,
        /// What was looked for.
        what: String,
    },
}

impl StoreError {
    pub(super) fn of(path: &Path, busy_s: u64, error: &rusqlite::Error) -> StoreError {
        let path = path.to_path_buf();
        let what = error.to_string();
        match error {
            rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
                ErrorCode::DiskFull => StoreError::Full { path, what },
                // A write that the system refuses for another reason than a full disk: a quota, a limit on file size.
                ErrorCode::SystemIoFailure if writing(failure.extended_code) => StoreError::Full { path, what },
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Corrupt { path, what },
                ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StoreError::Busy { path, seconds: busy_s },
                _ => StoreError::Unusable { path, reason: what },
            },
            rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::InvalidColumnType(..) => {
                StoreError::Corrupt { path, what }
            }
            _ => StoreError::Unusable { path, reason: what },
        }
    }
}

fn writing(code: i32) -> bool {
    use rusqlite::ffi::{SQLITE_IOERR_FSYNC, SQLITE_IOERR_SHMSIZE, SQLITE_IOERR_TRUNCATE, SQLITE_IOERR_WRITE};
    [SQLITE_IOERR_WRITE, SQLITE_IOERR_FSYNC, SQLITE_IOERR_TRUNCATE, SQLITE_IOERR_SHMSIZE].contains(&code)
}
