//! Whether a pinned link still has its interface. Refuses to change a link.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const BPF_OBJ_GET: libc::c_long = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;

/// The part of `union bpf_attr` for BPF_OBJ_GET.
#[repr(C)]
#[derive(Default)]
struct Named {
    path: u64,
    descriptor: u32,
    flags: u32,
}

/// The part for BPF_OBJ_GET_INFO_BY_FD.
#[repr(C)]
#[derive(Default)]
struct Asked {
    descriptor: u32,
    length: u32,
    info: u64,
}

/// `struct bpf_link_info` of a link of TCX, as long as all are.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    unused: u32,
    /// 0: it was deleted, or has moved to another namespace.
    interface: u32,
    attach_type: u32,
    rest: [u64; 6],
}

/// Whether the link is there and its interface is not.
pub(super) fn is_detached(file: &Path) -> bool {
    info(file).is_ok_and(|info| info.interface == 0)
}

/// Whether the interface is there. A kernel that does not tell is no reason to believe that it is not.
pub(super) fn is_attached(file: &Path) -> bool {
    match info(file) {
        Ok(info) => info.interface != 0,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

fn info(file: &Path) -> io::Result<LinkInfo> {
    let path = CString::new(file.as_os_str().as_bytes())?;
    let mut named = Named { path: path.as_ptr() as u64, ..Named::default() };
    let link = call(BPF_OBJ_GET, &mut named)?;
    // SAFETY: the call has made it, and nobody else knows its number.
    let link = unsafe { OwnedFd::from_raw_fd(link) };
    let mut info = LinkInfo::default();
    let mut asked = Asked {
        descriptor: link.as_raw_fd().cast_unsigned(),
        length: size_of::<LinkInfo>() as u32,
        info: &raw mut info as u64,
    };
    call(BPF_OBJ_GET_INFO_BY_FD, &mut asked)?;
    Ok(info)
}

fn call<T>(command: libc::c_long, attributes: &mut T) -> io::Result<i32> {
    let (at, length) = (std::ptr::from_mut(attributes), size_of::<T>());
    // SAFETY: the attributes are this call's alone, which writes to them (the length of the information), and live through it. So
    // does what they point to, which is as long as they say.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, at, length) };
    match i32::try_from(result) {
        Ok(result @ 0..) => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}
