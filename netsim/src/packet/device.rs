//! TUN devices: the end of a host's interface at which the router reads and writes IP packets.
//!
//! A device belongs to the network namespace of the thread that opens it, and disappears when its
//! file is closed.

use super::error::PacketRefusal;
use std::fs::File;

/// Name of the interface in every namespace.
pub(super) const INTERFACE: &str = "link0";

/// Opens a device called [`INTERFACE`] in the namespace of the calling thread. Reads and writes of
/// the file do not block, and carry one packet each.
#[cfg(target_os = "linux")]
pub(super) fn open() -> Result<File, PacketRefusal> {
    use nix::libc;
    use std::{
        fs::OpenOptions,
        io,
        os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    };

    /// The kernel's `struct ifreq`: the request that names an interface.
    #[repr(C)]
    struct InterfaceRequest {
        name: [u8; libc::IFNAMSIZ],
        flags: libc::c_short,
        rest: [u8; 22],
    }

    const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun");
    let device = device.map_err(|error| PacketRefusal::Device { error })?;
    let mut request = InterfaceRequest {
        name: [0; libc::IFNAMSIZ],
        // Packets come without a header of the driver's own.
        flags: (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short,
        rest: [0; 22],
    };
    request.name[..INTERFACE.len()].copy_from_slice(INTERFACE.as_bytes());
    // SAFETY: the descriptor is open for the duration of the call, and TUNSETIFF reads and writes
    // one `struct ifreq`, whose size `request` has.
    #[expect(unsafe_code, reason = "no safe function of our dependencies does this")]
    let result = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &mut request) };
    if result < 0 {
        let error = io::Error::last_os_error();
        return Err(PacketRefusal::Interface { error });
    }
    Ok(device)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn open() -> Result<File, PacketRefusal> {
    Err(PacketRefusal::Unsupported)
}
