//! Bounded reads of files that a user names. Devices and pipes have no length that could be checked
//! first.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Reads a file of at most `most` bytes. Returns `None` for a longer one.
pub(crate) fn read_at_most(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_bound_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ten");
        std::fs::write(&path, [7_u8; 10]).unwrap();
        assert_eq!(read_at_most(&path, 10).unwrap(), Some(vec![7; 10]));
        assert_eq!(read_at_most(&path, 9).unwrap(), None);
        assert_eq!(read_at_most(Path::new("/dev/zero"), 99).unwrap(), None);
        assert!(read_at_most(folder.path(), 9).is_err());
    }
}
