//! Reading what a user names: regular files of bounded size.
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// A file, to be read.
///
/// # Errors
/// What the system says; pipes, devices and folders, which may never end.
pub fn open(path: &Path) -> Result<File> {
    let about = std::fs::metadata(path)?;
    if about.is_dir() {
        return Err(Error::new(ErrorKind::IsADirectory, "this is a folder; name a file"));
    }
    if !about.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "this is no regular file but a pipe or a device; name a file"));
    }
    File::open(path)
}

/// The text of a file.
///
/// # Errors
/// Those of [`open`]; more than `most` bytes; what is no UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String> {
    let file = open(path)?;
    let large =
        || Error::new(ErrorKind::FileTooLarge, format!("the file has more than {most} bytes, the most that is read"));
    if file.metadata()?.len() > most {
        return Err(large());
    }
    let mut bytes = Vec::new();
    // It may have grown since.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(large());
    }
    String::from_utf8(bytes).map_err(|_| Error::new(ErrorKind::InvalidData, "the file is no text in UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_bounded_size_are_read() {
        let folder = std::env::temp_dir().join(format!("satune-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        assert_eq!(read_text(&path, 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read_text(&folder, 4).unwrap_err().kind(), ErrorKind::IsADirectory);
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert_eq!(read_text(&path, 4).unwrap_err().kind(), ErrorKind::InvalidData);
        #[cfg(unix)]
        assert_eq!(read_text(Path::new("/dev/zero"), 4).unwrap_err().kind(), ErrorKind::InvalidInput);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
