//! Advice for a path that this process is not permitted to use: its owner and mode, the user of the process,
//! and the next step. Every error that ends the program passes here, whichever module met the path.

use std::{
    fs::{self, Metadata},
    io::ErrorKind,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Entries of a directory that are searched for one of another user.
const SEARCHED: usize = 1_000;

/// The kernel's words for the two refusals, as they end a sentence of an error.
const DENIED: &str = "Permission denied";
const READ_ONLY: &str = "Read-only file system";

/// The advice for an error that says that a path may not be used; `None` for any other error.
pub fn advice(error: &str) -> Option<String> {
    let words = error.split_whitespace().map(|word| {
        let quotes = |letter: char| "\"'`()".contains(letter);
        word.trim_end_matches([':', ',', ';', '.'])
            .trim_matches(quotes)
    });
    let paths = words.filter(|word| word.contains('/') && !word.contains("://"));
    let paths = paths.map(Path::new).filter(|path| nearest(path).is_some());
    let path = paths.max_by_key(|path| path.as_os_str().len())?;
    if error.contains(READ_ONLY) {
        Some(format!(
            "the file system of {} is mounted read-only: mount it writable, or give another path",
            nearest(path)?.display()
        ))
    } else if error.contains(DENIED) {
        let user = fs::metadata("/proc/self").ok()?.uid();
        of_owner(&blocking(path, user)?, user)
    } else {
        None
    }
}

/// The path itself or, if it does not exist, the nearest folder above that exists.
fn nearest(path: &Path) -> Option<&Path> {
    let mut above = path.ancestors().filter(|path| !path.as_os_str().is_empty());
    above.find(|path| match fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    })
}

/// The file or folder whose owner or mode causes the refusal: the first folder on the way to the
/// path that may not be entered, or the path, or an entry in the user's folder that belongs to
/// another user.
fn blocking(path: &Path, user: u32) -> Option<PathBuf> {
    let mut on_the_way: Vec<&Path> = path.ancestors().collect();
    on_the_way.reverse();
    let closed = on_the_way.windows(2).find(|pair| {
        let entered = fs::symlink_metadata(pair[1]);
        entered.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    });
    if let Some([folder, _]) = closed {
        return Some(folder.to_path_buf());
    }
    let found = nearest(path)?;
    let is_own = fs::metadata(found).ok()?.uid() == user;
    let foreign = is_own.then(|| foreign_entry(found, user)).flatten();
    Some(foreign.unwrap_or_else(|| found.to_owned()))
}

/// An entry below the folder that does not belong to its owner: of a node that was once run by root,
/// for example.
fn foreign_entry(folder: &Path, owner: u32) -> Option<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    let mut searched = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).ok()?.flatten() {
            searched += 1;
            let metadata = entry.metadata().ok()?;
            if metadata.uid() != owner || searched > SEARCHED {
                return (metadata.uid() != owner).then(|| entry.path());
            }
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    None
}

fn of_owner(path: &Path, user: u32) -> Option<String> {
    let metadata: Metadata = fs::metadata(path).ok()?;
    let (path, mode) = (path.display(), metadata.mode() & 0o7777);
    let (owner, user) = (user_name(metadata.uid()), user_name(user));
    let next = if owner == user {
        format!("let its owner use it (`chmod u+rwX {path}`)")
    } else {
        format!("run the program as {owner}, or give the path to {user} (`chown -R {user} {path}`)")
    };
    Some(format!(
        "{path} belongs to the user {owner} and has the mode {mode:04o}, and this process runs as {user}: {next}"
    ))
}

/// The name of a user, or the number of one without a name.
fn user_name(uid: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut columns = line.split(':');
        let name = columns.next()?;
        (columns.nth(1)? == uid.to_string()).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| uid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_and_the_next_step_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key.txt");
        fs::write(&key, "").unwrap();
        let path = key.display();
        let owner = user_name(fs::metadata(&key).unwrap().uid());
        let denied = format!("the key file {path} cannot be read: {DENIED} (os error 13)");
        let said = advice(&denied).unwrap();
        assert!(
            said.starts_with(&format!(
                "{path} belongs to the user {owner} and has the mode 0"
            )),
            "{said}"
        );
        assert!(said.ends_with(&format!("`chmod u+rwX {path}`)")), "{said}");
        let other = of_owner(&key, u32::MAX - 1).unwrap();
        assert!(
            other.ends_with(&format!("this process runs as 4294967294: run the program as {owner}, or give the path to 4294967294 (`chown -R 4294967294 {path}`)")),
            "{other}"
        );
    }

    #[test]
    fn a_path_that_is_not_there_yet_is_its_folders_matter() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("data/LOCK");
        let said = advice(&format!("{}: {READ_ONLY} (os error 30)", missing.display())).unwrap();
        let folder = folder.path().display();
        assert_eq!(
            said,
            format!(
                "the file system of {folder} is mounted read-only: mount it writable, or give another path"
            )
        );
    }

    #[test]
    fn other_errors_have_no_advice() {
        for error in [
            "the key file /etc/passwd holds no key",
            "http://127.0.0.1:8545/x: Permission denied",
            "Permission denied",
        ] {
            assert_eq!(advice(error), None, "{error}");
        }
    }
}
