//! The guard: a program of the kernel that forwards between two interfaces for as long as no monitor does (Linux 6.6, TCX).
//!
//! ```text
//!  frame ─► packet sockets (monitor) ─► kernel's forwarding ─► guard: is every worker's deadline still to come?
//!                                                                 yes: the frame is the monitor's    no: out of the other port
//! ```
//! It is pinned, and so outlives every process: one that is killed, stopped or stuck renews nothing. A guard belongs to two
//! interfaces of one network namespace, and is kept under the namespace's cookie, which no other one has had since the
//! machine started: interface numbers alone are those of many.
//!
//! Refuses to be installed where somebody receives who would not renew its lease, a second monitor, and a second guard of an
//! interface.

mod error;
#[cfg(has_offload)]
mod kernel;
/// Where the program could not be built.
#[cfg(not(has_offload))]
#[path = "no_kernel.rs"]
mod kernel;
mod lease;
mod link;

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aya::maps::MapData;
use aya::programs::{SchedClassifier, TcAttachType};

use crate::Error;
use crate::af_packet::{Interface, Warning, inet_socket, interface_name, netns_cookie, number};
use crate::receivers::{Receiver, processes, receivers};
pub use error::GuardError;
use error::{at, system_error};
pub(crate) use lease::{Hold, LeaseMemory};
use lease::{PROGRAM, State, VERSION};

/// Where the kernel keeps what is pinned.
const BPFFS: &str = "/sys/fs/bpf";

/// Where guards are.
pub const DIRECTORY: &str = "/sys/fs/bpf/mmtls";

/// How long a monitor may be silent, unless said otherwise.
pub const DEFAULT_LEASE: Duration = Duration::from_millis(50);

/// Shorter ones are lost on any machine that is busy.
pub const MIN_LEASE: Duration = Duration::from_millis(10);

/// Longer ones are no lease.
pub const MAX_LEASE: Duration = Duration::from_secs(60);

/// The links of a guard, in its directory.
const LINKS: [&str; 2] = ["left", "right"];

/// The map of a guard.
const LEASE: &str = "lease";

/// Magic number of the kernel's file system for pinned objects (`linux/magic.h`).
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// Two interfaces of the calling thread's network namespace.
struct Pair {
    names: [String; 2],
    numbers: [u32; 2],
    netns: u64,
}

/// A guard that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardStatus {
    /// Its directory.
    pub path: PathBuf,
    /// What keeps it from being a guard: the numbers below are not known then.
    pub fault: Option<GuardFault>,
    /// Its interfaces; their numbers, where the names are not known, and empty where a directory is none of a guard.
    pub interfaces: [String; 2],
    /// They are in the calling thread's network namespace.
    pub is_here: bool,
    /// The cookie of their network namespace.
    pub netns: u64,
    /// An interface does not exist any more.
    pub is_gone: bool,
    /// How long a monitor may be silent.
    pub lease: Duration,
    /// Workers of the monitor that renews; `None`: there is none.
    pub workers: Option<usize>,
    /// The guard forwards: no monitor renews, or not all of its workers do.
    pub forwards: bool,
    /// Frames that came in by each interface, and that it has forwarded.
    pub forwarded_frames: [u64; 2],
    /// Their bytes.
    pub forwarded_bytes: [u64; 2],
}

/// Why what is in a directory is not a guard that a monitor can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuardFault {
    /// It is being installed or removed, or that was interrupted: what there is of it may forward, and nobody can keep it from that.
    Incomplete,
    /// It is of another version, or something else.
    Foreign,
    /// This user may not look at it.
    NotPermitted,
}

/// Installs a guard, unless it is there. It forwards from now on, until a monitor takes its lease. `owner`: user and group
/// that may do that.
///
/// # Errors
/// [`Error::Guard`]; [`Error::NoSuchInterface`], and what else is wrong with the interfaces.
pub fn install(names: [&str; 2], lease: Duration, owner: Option<(u32, u32)>) -> Result<(), Error> {
    let pair = Pair::find(names)?;
    Ok(pair.install(lease, owner)?)
}

/// Removes a guard; what became of the lease does not matter with `force`.
///
/// # Errors
/// [`Error::Guard`]: there is none, or a monitor holds its lease.
pub fn remove(names: [&str; 2], force: bool) -> Result<(), Error> {
    let pair = Pair::find(names)?;
    let path = pair.path();
    if !is_there(&path, &pair.told())? {
        return Err(GuardError::NotThere { names: pair.told() }.into());
    }
    // One of another version can be removed, too, and a part of one.
    if let Ok(memory) = open(&path)
        && memory.holder().is_some()
        && !force
    {
        return Err(GuardError::Held { names: pair.told() }.into());
    }
    Ok(remove_at(&path)?)
}

/// Removes the guards whose interfaces are gone; says of which.
///
/// # Errors
/// [`Error::Guard`]: of the first that cannot be removed, once all others are.
pub fn remove_gone() -> Result<Vec<[String; 2]>, Error> {
    let (mut removed, mut failed) = (Vec::new(), None);
    for status in list()?.into_iter().filter(|status| status.is_gone) {
        match remove_at(&status.path) {
            Ok(()) => removed.push(status.interfaces),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(removed), |error| Err(error.into()))
}

/// The guards that are there, of all network namespaces, and what else is in their place.
///
/// # Errors
/// [`Error::Guard`].
pub fn list() -> Result<Vec<GuardStatus>, Error> {
    let here = own_netns()?;
    let entries = match fs::read_dir(DIRECTORY) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at(Path::new(DIRECTORY))(error).into()),
    };
    let mut all = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let status = match open(&path) {
            Ok(memory) => status(path, &memory, here),
            // It has been removed meanwhile.
            Err(_) if path.symlink_metadata().is_err() => continue,
            Err(error) => faulty(path, &error, here),
        };
        all.push(status);
    }
    all.sort_by(|a, b| (a.netns, &a.interfaces, &a.path).cmp(&(b.netns, &b.interfaces, &b.path)));
    Ok(all)
}

fn status(path: PathBuf, memory: &LeaseMemory, here: u64) -> GuardStatus {
    let state = memory.state();
    let netns = state.netns.load(Ordering::Relaxed);
    let passed = [memory.passed(0), memory.passed(1)];
    GuardStatus {
        fault: None,
        interfaces: state.names(),
        is_here: netns == here,
        netns,
        lease: memory.lease(),
        workers: memory.holder(),
        forwards: !memory.is_held(),
        forwarded_frames: passed.map(|[frames, _]| frames),
        forwarded_bytes: passed.map(|[_, bytes]| bytes),
        is_gone: LINKS.iter().any(|link| !link::is_attached(&path.join(link))),
        path,
    }
}

/// What is known of one whose memory cannot be had.
fn faulty(path: PathBuf, error: &GuardError, here: u64) -> GuardStatus {
    let fault = match error {
        GuardError::System { error, .. } => match error.kind() {
            ErrorKind::NotFound => GuardFault::Incomplete,
            ErrorKind::PermissionDenied => GuardFault::NotPermitted,
            _ => GuardFault::Foreign,
        },
        _ => GuardFault::Foreign,
    };
    let place = path.file_name().and_then(|name| place(name.to_str()?));
    let (netns, interfaces) = place.unwrap_or_default();
    let is_here = netns == here;
    let socket = inet_socket().ok().filter(|_| is_here);
    let name =
        |number: u32| name_here(socket.as_ref(), number).unwrap_or_else(|| number.to_string());
    GuardStatus {
        fault: Some(if place.is_some() { fault } else { GuardFault::Foreign }),
        interfaces: if place.is_some() { interfaces.map(name) } else { Default::default() },
        is_here,
        netns,
        lease: Duration::ZERO,
        workers: None,
        forwards: true,
        forwarded_frames: [0; 2],
        forwarded_bytes: [0; 2],
        // One that is being installed has no link yet.
        is_gone: place.is_some() && is_left(&path, socket.as_ref(), interfaces),
        path,
    }
}

/// Whether a guard can be installed on this machine by this process, or why not.
///
/// # Errors
/// [`GuardError::Unsupported`].
pub fn is_possible() -> Result<(), GuardError> {
    let unsupported = |reason: &str| Err(GuardError::Unsupported { reason: reason.to_owned() });
    kernel::is_built()?;
    if !has_hook() {
        return unsupported("that needs Linux 6.6");
    }
    use rustix::thread::CapabilitySet;
    let needed = CapabilitySet::BPF | CapabilitySet::NET_ADMIN;
    match rustix::thread::capabilities(None) {
        Ok(held) if held.effective.contains(needed) => Ok(()),
        _ => unsupported("that needs CAP_BPF and CAP_NET_ADMIN"),
    }
}

/// Whether the kernel is new enough.
fn has_hook() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 6)
}

/// What a monitor finds that is to fail open: the guard, or whether it could install one. Another one may hold the lease where this
/// one takes over from it.
pub(crate) fn check(interfaces: &[Interface; 2], takes_over: bool) -> Result<(), Error> {
    let pair = Pair::of(interfaces)?;
    pair.others().iter().filter(|it| !it.is_gone()).try_for_each(|it| it.refuse(&pair))?;
    if exists(&pair.path(), &pair.told())? {
        let memory = pair.open()?;
        return match memory.holder() {
            Some(_) if !takes_over => Err(GuardError::Held { names: pair.told() }.into()),
            _ => Ok(()),
        };
    }
    let rights = is_possible().and_then(|()| {
        let access = rustix::fs::Access::WRITE_OK;
        rustix::fs::access(BPFFS, access).map_err(|error| at(Path::new(BPFFS))(error.into()))
    });
    match rights {
        Ok(()) => Ok(()),
        Err(error @ GuardError::Unsupported { .. }) => Err(error.into()),
        Err(_) => Err(GuardError::NotThere { names: pair.told() }.into()),
    }
}

/// Finds the guard of two interfaces, or installs one where this process may; its memory.
pub(crate) fn open_or_install(interfaces: &[Interface; 2]) -> Result<Arc<LeaseMemory>, Error> {
    let pair = Pair::of(interfaces)?;
    pair.make_way()?;
    if !exists(&pair.path(), &pair.told())? {
        pair.install(DEFAULT_LEASE, None).map_err(|error| match error {
            GuardError::System { error, .. }
                if matches!(error.kind(), ErrorKind::PermissionDenied) =>
            {
                GuardError::NotThere { names: pair.told() }
            }
            other => other,
        })?;
    }
    Ok(Arc::new(pair.open()?))
}

/// Finds a guard on an interface of a monitor that would not renew its lease, wherever it is kept. Whoever may not ask the kernel
/// (CAP_NET_ADMIN, and CAP_SYS_ADMIN where there are programs) looks where guards are kept, and is warned where that cannot be seen.
pub(crate) fn refuse(interfaces: &[Interface; 2]) -> Result<Option<Warning>, Error> {
    let fails_closed =
        |it: &Interface| Err(GuardError::FailsClosed { interface: it.name.clone() }.into());
    let mut is_unknown = false;
    for interface in interfaces {
        match SchedClassifier::query_tcx(&interface.name, TcAttachType::Ingress) {
            Ok((_, programs)) => {
                if programs.iter().any(|it| it.name_as_str() == Some(PROGRAM)) {
                    return fails_closed(interface);
                }
            }
            Err(_) => is_unknown = true,
        }
    }
    if !is_unknown || !has_hook() {
        return Ok(None);
    }
    let pair = Pair::of(interfaces)?;
    let entries = match fs::read_dir(DIRECTORY) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Ok(Some(Warning::UnseenGuard {
                names: pair.told(),
                reason: format!("{DIRECTORY}: {error}"),
            }));
        }
    };
    let places = entries.flatten().filter_map(|entry| place(entry.file_name().to_str()?));
    let guarded: Vec<u32> =
        places.filter(|(netns, _)| *netns == pair.netns).flat_map(|(_, both)| both).collect();
    let is_guarded = |it: &&Interface| guarded.contains(&it.index.cast_unsigned());
    interfaces.iter().find(is_guarded).map_or(Ok(None), fails_closed)
}

impl Pair {
    fn find(names: [&str; 2]) -> Result<Self, Error> {
        let socket = inet_socket().map_err(|error| Error::system("socket", "", error))?;
        let [left, right] = names.map(|name| number(&socket, name));
        let numbers = [left?, right?];
        if numbers[0] == numbers[1] {
            return Err(Error::SameInterface { interface: names[0].to_owned() });
        }
        Self::new([(numbers[0], names[0]), (numbers[1], names[1])])
    }

    fn of(interfaces: &[Interface; 2]) -> Result<Self, Error> {
        Self::new(interfaces.each_ref().map(|it| (it.index, it.name.as_str())))
    }

    fn new(both: [(i32, &str); 2]) -> Result<Self, Error> {
        let numbers = both.map(|(number, _)| number.cast_unsigned());
        Ok(Self { names: both.map(|(_, name)| name.to_owned()), numbers, netns: own_netns()? })
    }

    fn told(&self) -> String {
        self.names.join(" and ")
    }

    /// Its directory, whichever is the left one. The kernel allows no dots in such names.
    fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(directory(self.netns, self.numbers))
    }

    fn open(&self) -> Result<LeaseMemory, GuardError> {
        let path = self.path();
        let memory = open(&path).map_err(|error| match error {
            GuardError::System { path, error } if error.kind() == ErrorKind::PermissionDenied => {
                GuardError::NotPermitted { path, names: self.told() }
            }
            other => other,
        })?;
        let state = memory.state();
        let numbers = state.interfaces.each_ref().map(|it| it.load(Ordering::Relaxed));
        if sorted(numbers) != sorted(self.numbers)
            || state.netns.load(Ordering::Relaxed) != self.netns
        {
            return Err(GuardError::Foreign { path });
        }
        Ok(memory)
    }

    /// The guards of other pairs that share an interface with this one. They are ahead of its own, and nobody renews their
    /// leases: what comes by the shared interface would leave by their other one, uninspected. Whoever may not look where
    /// guards are kept uses one that was installed, which has looked.
    fn others(&self) -> Vec<Other> {
        let entries = fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
        let places = entries.filter_map(|it| Some((it.path(), place(it.file_name().to_str()?)?)));
        let others = places.filter(|(_, (netns, numbers))| {
            let shares = numbers.iter().any(|number| self.numbers.contains(number));
            *netns == self.netns && shares && *numbers != sorted(self.numbers)
        });
        others.map(|(path, (_, numbers))| Other { path, numbers }).collect()
    }

    /// Removes what is left of other pairs' guards on these interfaces, and refuses to be beside one that is whole.
    fn make_way(&self) -> Result<(), GuardError> {
        for other in self.others() {
            match other.is_gone() {
                true => remove_at(&other.path)?,
                false => other.refuse(self)?,
            }
        }
        Ok(())
    }

    fn install(&self, lease: Duration, owner: Option<(u32, u32)>) -> Result<(), GuardError> {
        is_possible()?;
        self.make_way()?;
        let path = self.path();
        if exists(&path, &self.told())? {
            let there = self.open()?.lease();
            if there != lease {
                let (names, lease_ms) = (self.told(), there.as_millis());
                return Err(GuardError::Installed { names, lease_ms });
            }
            return set_owner(&path.join(LEASE), owner);
        }
        self.refuse_receivers()?;
        mount()?;
        fs::create_dir_all(DIRECTORY).map_err(at(Path::new(DIRECTORY)))?;
        // Of two that install at the same time one does, and what another one has left is not mixed with this.
        fs::create_dir(&path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => GuardError::Incomplete { names: self.told() },
            _ => at(&path)(error),
        })?;
        let made = self.pin(&path, lease, owner);
        if made.is_err() {
            // Half a bridge is worse than none.
            let _ = remove_at(&path);
        }
        made
    }

    /// A monitor on one of them is enough: of the frames that it forwards one would leave twice. Others may look at one; what
    /// looks at both may be a monitor of another make.
    fn refuse_receivers(&self) -> Result<(), GuardError> {
        let all = receivers();
        let of = |number: u32| all.iter().copied().filter(move |it| it.interface == number);
        let some_forward = self.numbers.into_iter().flat_map(of).any(|it| it.forwards);
        let counts = |it: &Receiver| it.forwards == some_forward;
        let both = self.numbers.into_iter().zip(&self.names);
        let in_use: Vec<_> = both.filter(|(number, _)| of(*number).any(|it| counts(&it))).collect();
        if !some_forward && in_use.len() < 2 {
            return Ok(());
        }
        let found: Vec<_> =
            in_use.iter().flat_map(|(number, _)| of(*number)).filter(counts).collect();
        let names: Vec<_> = in_use.iter().map(|(_, name)| name.as_str()).collect();
        let (names, processes) = (names.join(" and "), processes(&found));
        Err(GuardError::InUse { names, processes })
    }

    fn pin(
        &self,
        path: &Path,
        lease: Duration,
        owner: Option<(u32, u32)>,
    ) -> Result<(), GuardError> {
        let file = path.join(LEASE);
        let mut loaded = kernel::Loaded::load(&self.numbers)?;
        let memory = LeaseMemory::map(loaded.map()?).map_err(at(&file))?;
        let state = memory.state();
        let words = self.names.each_ref().map(|name| name_words(name));
        let words = words.as_flattened();
        state.names.iter().zip(words).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
        let numbers = state.interfaces.iter().zip(self.numbers);
        numbers.for_each(|(to, number)| to.store(number, Ordering::Relaxed));
        state.netns.store(self.netns, Ordering::Relaxed);
        state.lease_ns.store(lease.as_nanos() as u64, Ordering::Relaxed);
        state.version.store(VERSION, Ordering::Release);
        // The map last: it is what is looked for, and then all is there.
        loaded.attach(&self.names, &LINKS.map(|link| path.join(link)))?;
        loaded.pin_map(&file)?;
        set_owner(&file, owner)
    }
}

/// A guard of another pair with an interface of this one.
struct Other {
    path: PathBuf,
    numbers: [u32; 2],
}

impl Other {
    /// An interface of it does not exist any more: it forwards into nothing, and nobody can want it.
    fn is_gone(&self) -> bool {
        is_left(&self.path, inet_socket().ok().as_ref(), self.numbers)
    }

    fn refuse(&self, pair: &Pair) -> Result<(), GuardError> {
        let shared = self.numbers.iter().find_map(|number| {
            let mut own = pair.numbers.iter().zip(&pair.names);
            own.find_map(|(it, name)| (it == number).then(|| name.clone()))
        });
        let socket = inet_socket().ok();
        // Its directory does not say which is the left one.
        let memory = open(&self.path).ok();
        let numbers = memory.as_ref().map_or(self.numbers, |memory| {
            memory.state().interfaces.each_ref().map(|it| it.load(Ordering::Relaxed))
        });
        let names = numbers.map(|number| name_here(socket.as_ref(), number));
        let remove = match names.each_ref().map(Option::as_deref) {
            [Some(one), Some(other)] => {
                // That of a run that is to be taken over from, too.
                let is_held = memory.is_some_and(|memory| memory.holder().is_some());
                format!("remove {}{one} {other}", if is_held { "--force " } else { "" })
            }
            // Not everybody may ask the links.
            _ => "remove --gone".to_owned(),
        };
        let told = |(name, number): (Option<String>, u32)| name.unwrap_or(number.to_string());
        let both: Vec<_> = names.into_iter().zip(numbers).map(told).collect();
        let interface = shared.unwrap_or_default();
        Err(GuardError::Shared { interface, names: both.join(" and "), remove })
    }
}

/// Whether an interface of the pair in a directory does not exist any more: a link says so, or, where that was never made, the network
/// namespace, if it is the calling thread's. Numbers do not come back there.
fn is_left(path: &Path, socket: Option<&OwnedFd>, numbers: [u32; 2]) -> bool {
    let is_absent = |number| {
        let found = socket.map(|socket| interface_name(socket, number));
        found.is_some_and(|it| it.is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV)))
    };
    LINKS.iter().any(|link| link::is_detached(&path.join(link)))
        || numbers.into_iter().any(is_absent)
}

/// The name of an interface of the calling thread's network namespace.
fn name_here(socket: Option<&OwnedFd>, number: u32) -> Option<String> {
    interface_name(socket?, number).ok()
}

/// Lets a user take the lease.
fn set_owner(file: &Path, owner: Option<(u32, u32)>) -> Result<(), GuardError> {
    owner.map_or(Ok(()), |(user, group)| {
        std::os::unix::fs::chown(file, Some(user), Some(group)).map_err(at(file))
    })
}

/// The name of a guard's directory.
fn directory(netns: u64, interfaces: [u32; 2]) -> String {
    let [one, other] = sorted(interfaces);
    format!("guard_{netns}_{one}_{other}")
}

/// The network namespace and interfaces that a directory is named after.
fn place(name: &str) -> Option<(u64, [u32; 2])> {
    let mut numbers = name.strip_prefix("guard_")?.split('_');
    let netns = numbers.next()?.parse().ok()?;
    let mut next = || numbers.next()?.parse().ok();
    let interfaces = [next()?, next()?];
    // Nothing but that: no other sign, no other order.
    (directory(netns, interfaces) == name).then_some((netns, interfaces))
}

fn sorted(mut numbers: [u32; 2]) -> [u32; 2] {
    numbers.sort_unstable();
    numbers
}

/// The memory of a guard.
fn open(path: &Path) -> Result<LeaseMemory, GuardError> {
    let file = path.join(LEASE);
    let map = MapData::from_pin(&file).map_err(|error| at(&file)(system_error(&error)))?;
    let is_known = map.info().is_ok_and(|it| it.value_size() as usize == size_of::<State>());
    let foreign = || GuardError::Foreign { path: path.to_owned() };
    if !is_known {
        return Err(foreign());
    }
    let memory = LeaseMemory::map(std::os::fd::AsFd::as_fd(map.fd())).map_err(at(&file))?;
    match memory.state().version.load(Ordering::Acquire) {
        VERSION => Ok(memory),
        _ => Err(foreign()),
    }
}

/// Whether there is a guard, all of it.
fn exists(path: &Path, names: &str) -> Result<bool, GuardError> {
    if is_there(&path.join(LEASE), names)? {
        return Ok(true);
    }
    match is_there(path, names)? {
        true => Err(GuardError::Incomplete { names: names.to_owned() }),
        false => Ok(false),
    }
}

fn is_there(path: &Path, names: &str) -> Result<bool, GuardError> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(_) => Err(GuardError::NotPermitted { path: path.to_owned(), names: names.to_owned() }),
    }
}

/// Links first: they are what forwards.
fn remove_at(path: &Path) -> Result<(), GuardError> {
    for file in LINKS.into_iter().chain([LEASE]) {
        let file = path.join(file);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(at(&file)(error)),
            _ => {}
        }
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

/// Makes the kernel's file system for pinned objects be there, as service managers do, and `ip`.
fn mount() -> Result<(), GuardError> {
    let found = rustix::fs::statfs(BPFFS).map_err(|error| at(Path::new(BPFFS))(error.into()))?;
    // Its type depends on the platform.
    if found.f_type as u64 == BPF_FS_MAGIC {
        return Ok(());
    }
    let flags = rustix::mount::MountFlags::NOSUID
        | rustix::mount::MountFlags::NODEV
        | rustix::mount::MountFlags::NOEXEC;
    rustix::mount::mount("bpf", BPFFS, "bpf", flags, Some(c"mode=700"))
        .map_err(|error| at(Path::new(BPFFS))(error.into()))
}

fn own_netns() -> Result<u64, Error> {
    let socket: OwnedFd = inet_socket().map_err(|error| Error::system("socket", "", error))?;
    netns_cookie(&socket).map_err(|_| Error::Unsupported { option: "SO_NETNS_COOKIE (Linux 5.14)" })
}

/// A name of an interface, which has 15 bytes at most.
fn name_words(name: &str) -> [u64; 2] {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte);
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    [word(0), word(8)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_names_as_they_are_kept() {
        for name in ["a", "eth0", "fifteen-letters"] {
            let bytes = name_words(name).map(u64::to_ne_bytes).concat();
            assert_eq!(bytes[..name.len()], *name.as_bytes());
            assert!(bytes[name.len()..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn accepts_the_names_of_directories_and_no_others() {
        assert_eq!(place(&directory(4026531840, [9, 3])), Some((4026531840, [3, 9])));
        for other in
            ["", "guard", "guard_1_2", "guard_1_3_2", "guard_1_2_3_4", "guard_1_+2_3", "map_1_2_3"]
        {
            assert_eq!(place(other), None, "{other}");
        }
    }

    #[test]
    fn errors_name_the_command_that_helps() {
        let error = GuardError::NotThere { names: "eth1 and eth2".to_owned() }.to_string();
        assert!(error.contains("`mmtls guard install eth1 eth2`"), "{error}");
        let path = PathBuf::from("/p");
        let error = GuardError::NotPermitted { path, names: "eth1 and eth2".to_owned() };
        assert!(error.to_string().contains("install eth1 eth2 --user USER"), "{error}");
    }
}
