//! Free space on the disk: writes stop while less than a floor is free, since a full disk would
//! poison the database.

use crate::chain::store::{StoreError, StoreInner};
use std::path::Path;

/// Divisor of the disk's size: 1/32 of it must be free before a commit. A compaction needs free
/// space too, since it writes new tables before it removes the old ones.
const FREE_SPACE_PART: u64 = 32;
/// Smallest and largest floor in bytes, whatever the size of the disk.
const FREE_SPACE: std::ops::RangeInclusive<u64> = 64 << 20..=2 << 30;

impl StoreInner {
    /// Fails with [`StoreError::NoSpace`] if less than the floor is free, even after obsolete files
    /// are removed.
    pub(super) fn check_space(&self) -> Result<(), StoreError> {
        let free = || free_space(&self.path).map_err(StoreError::io(&self.path));
        if free()? >= self.floor {
            return Ok(());
        }
        self.remove_obsolete_files();
        let free = free()?;
        if free < self.floor {
            Err(StoreError::NoSpace {
                free,
                floor: self.floor,
            })
        } else {
            Ok(())
        }
    }
}

/// Bytes that must be free on the disk of `path`.
pub(in crate::chain) fn free_space_floor(path: &Path) -> std::io::Result<u64> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    let size = stat.blocks().saturating_mul(stat.fragment_size());
    Ok((size / FREE_SPACE_PART).clamp(*FREE_SPACE.start(), *FREE_SPACE.end()))
}

/// Bytes free on the disk of `path`.
pub(in crate::chain) fn free_space(path: &Path) -> std::io::Result<u64> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
}
