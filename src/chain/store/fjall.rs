//! fjall's private file formats, read before fjall reads them.
//!
//! fjall passes over some damage silently and panics at other damage, so the store and the payload
//! log check the files of a database first. The parsers follow the formats of exactly the versions
//! below, which `Cargo.toml` pins: after an update of either crate, compare the formats, then
//! change the versions here.

pub mod folder;
pub mod journal;
pub mod manifest;

/// Version of fjall whose journals and folders are parsed here.
#[cfg(test)]
const FJALL: &str = "3.1.13";
/// Version of lsm-tree whose manifests are parsed here.
#[cfg(test)]
const LSM_TREE: &str = "3.1.10";

#[cfg(test)]
mod tests {
    use super::*;

    /// The version of `package` in `Cargo.lock`.
    fn locked(package: &str) -> &'static str {
        let entry = format!("name = \"{package}\"\nversion = \"");
        let lock = include_str!("../../../Cargo.lock");
        let (_, rest) = lock.split_once(&entry).expect("the package is locked");
        rest.split_once('"').expect("a version in quotes").0
    }

    #[test]
    fn the_locked_versions_are_those_whose_files_are_parsed() {
        for (package, version) in [("fjall", FJALL), ("lsm-tree", LSM_TREE)] {
            assert_eq!(
                locked(package),
                version,
                "compare the file formats of {package} with the parsers, then change the version"
            );
            let pinned = include_str!("../../../Cargo.toml")
                .lines()
                .find(|line| line.starts_with(&format!("{package} = ")));
            assert!(
                pinned.is_some_and(|line| line.contains(&format!("\"={version}\""))),
                "{package} is not pinned to {version}: {pinned:?}"
            );
        }
    }
}
