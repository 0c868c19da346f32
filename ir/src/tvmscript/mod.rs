//! TVMScript: programs as the Python text that TensorIR's users write, and that TVM 0.27 prints.
mod error;
mod print;
mod read;
mod scan;

pub use error::ParseError;
pub use print::{expression, print, TAKEN};

use crate::Program;

/// Reads a program. Both dialects are understood (`T.block` and `T.sblock`, `T.alloc_buffer` and
/// `T.sblock_alloc_buffer`, `T.Buffer[...]` and `T.Buffer(...)`); a module may hold one function, or one of several
/// named `main`, and integer constants before it.
///
/// # Errors
/// [`ParseError`], with line, column and the text there.
pub fn parse(text: &str) -> Result<Program, Box<ParseError>> {
    parse_named("program.py", text)
}

/// [`parse`], with the file's name for errors. Behind the name may stand which function is meant, and what its scalar
/// parameters are: `file.py::name(n=128)`.
///
/// # Errors
/// [`ParseError`].
pub fn parse_named(file: &str, text: &str) -> Result<Program, Box<ParseError>> {
    apart(file, text, || read::program(text, &read::Choice::of(file)?))
}

/// A file's name without the choice of a function behind it ([`parse_named`]).
pub fn file_of(name: &str) -> &str {
    read::file_of(name)
}

/// Reads the tensor intrinsics that a file registers as TVM's users do, by
/// `TensorIntrin.register("name", description, implementation)` below its functions: name, description, implementation.
///
/// # Errors
/// [`ParseError`].
pub fn parse_intrinsics(file: &str, text: &str) -> Result<Vec<(String, Program, Program)>, Box<ParseError>> {
    apart(file, text, || read::intrinsics(text))
}

/// Reads in a thread with a stack that is deep enough.
fn apart<T: Send>(file: &str, text: &str, read: impl FnOnce() -> error::Res<T> + Send) -> Result<T, Box<ParseError>> {
    let parsed = scan::check(text).and_then(|()| {
        // Deeply nested text is refused above; what is left fits into this stack with room to spare.
        let reader = std::thread::Builder::new().stack_size(256 << 20);
        std::thread::scope(|scope| {
            let handle = reader.spawn_scoped(scope, read);
            match handle.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(error::Fail::at(0..0, "the reader failed").help("please report this program")),
                Err(e) => Err(error::Fail::at(0..0, format!("no thread to read in: {e}"))),
            }
        })
    });
    parsed.map_err(|fail| fail.located(file_of(file), text))
}

#[cfg(test)]
mod tests;
