//! The programs as they were compiled, loaded into the kernel, and their maps.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use aya::maps::lpm_trie::{self, LpmTrie};
use aya::maps::{HashMap, Map, MapData, MapError, PerCpuArray};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, SocketFilter, TcAttachType};
use aya::{Ebpf, EbpfLoader};

pub(super) use super::pause_slots::SlotId;
use super::pause_slots::Slots;
use super::{BridgeConfig, Forwarded, Interface, Key, OffloadSide, Port, Records};

/// As `struct flow` of the programs: position, frames, payload bytes; then the initial sequence number and whether it has begun.
type Entry = [u64; 4];

/// As `struct pause`: slot, generation, whether it is the other direction; nothing.
type Pause = [u32; 4];

/// As `struct rule`, behind the length.
pub(super) type Prefix = [u8; 20];

/// As `struct totals`: frames, their bytes.
type Totals = [u64; 2];

/// What is loaded. It is unloaded when this goes.
pub(super) struct Programs {
    /// Interface numbers, left first.
    interfaces: [u32; 2],
    flows: Mutex<HashMap<MapData, Key, Entry>>,
    pauses: Mutex<HashMap<MapData, Key, Pause>>,
    rules: Mutex<LpmTrie<MapData, Prefix, u32>>,
    slots: Slots,
    taken: PerCpuArray<MapData, Totals>,
    /// Owns the programs and what they are attached to.
    ebpf: Ebpf,
}

impl Programs {
    pub(super) fn load(config: &BridgeConfig, interfaces: &[Interface; 2]) -> Result<Self, String> {
        load(config, interfaces).map_err(|error| {
            let mut text = error.to_string();
            let mut source = error.source();
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            // A verifier's log has many lines.
            text.lines().next().unwrap_or_default().to_owned()
        })
    }

    pub(super) fn attach(&self, socket: &OwnedFd) -> io::Result<()> {
        let program = self.ebpf.program("admit").map(<&SocketFilter>::try_from);
        match program {
            Some(Ok(program)) => program.attach(socket).map_err(io::Error::other),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn key(&self, side: &OffloadSide) -> Key {
        key(self.interfaces, side)
    }

    /// Makes an entry, unless it is there and has begun: then the kernel is ahead. False where there is no room.
    ///
    /// Should it begin between the two steps, it is made again from its next segment in user space on, and what was counted
    /// is lost.
    pub(super) fn begin(&self, key: &Key, side: &OffloadSide) -> bool {
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        flows.get(key, 0).is_ok_and(|[.., last]| last >> 32 != 0)
            || flows.insert(key, [side.position, 0, 0, u64::from(side.initial)], 0).is_ok()
    }

    /// Removes an entry. Of frames that are under way meanwhile some may not be counted.
    ///
    /// # Errors
    /// It may still be there: then nothing is certain any more.
    pub(super) fn end(&self, key: &Key) -> io::Result<Forwarded> {
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        let known = flows.get(key, 0);
        match flows.remove(key) {
            Ok(()) => {}
            Err(MapError::SyscallError(error)) if error.io_error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io::Error::other(error)),
        }
        let [position, frames, payload_bytes, last] = known.unwrap_or_default();
        let position = if last >> 32 != 0 { position } else { 0 };
        Ok(Forwarded { frames, payload_bytes, position, ..Forwarded::default() })
    }

    /// Removes the rule of a network, which another bridge may have done.
    ///
    /// # Errors
    /// It may still be there.
    pub(super) fn remove_rule(&self, address: IpAddr, prefix_len: u8) -> io::Result<()> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        match rules.remove(&prefix(address, prefix_len)) {
            Ok(()) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.kind() == ErrorKind::NotFound => {
                Ok(())
            }
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// A slot that nobody uses, closed; `None` where there is none.
    pub(super) fn take_slot(&self) -> Option<SlotId> {
        self.slots.take()
    }

    /// Nobody uses a closed slot any more.
    pub(super) fn give_slot(&self, slot: SlotId) {
        self.slots.give(slot);
    }

    /// Opens a closed slot for a connection one side of which has these records.
    pub(super) fn open_slot(&self, slot: SlotId, side: &OffloadSide, records: &Records) {
        self.slots.open(slot, side, records);
    }

    /// Closes a slot; says what has come of the direction with the records, which it was opened with, and of the other one. From
    /// then on nothing more goes by it.
    pub(super) fn close_slot(&self, slot: SlotId, records: &Records) -> [Forwarded; 2] {
        self.slots.close(slot, records)
    }

    /// Frames that the kernel has forwarded by an open slot.
    pub(super) fn slot_frames(&self, slot: SlotId) -> u64 {
        self.slots.frames(slot)
    }

    /// Makes the entry of a direction that goes by a slot. False where there is no room.
    pub(super) fn begin_pause(&self, key: &Key, slot: SlotId, is_other: bool) -> bool {
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        pauses.insert(key, [slot.number, slot.generation, is_other.into(), 0], 0).is_ok()
    }

    /// Removes that entry.
    pub(super) fn end_pause(&self, key: &Key) {
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        // It may never have been made.
        let _ = pauses.remove(key);
    }

    pub(super) fn totals(&self, port: Port) -> Totals {
        let of_all = self.taken.get(&(port.index() as u32), 0);
        let add = |sum: Totals, of: &Totals| [sum[0] + of[0], sum[1] + of[1]];
        of_all.map_or([0; 2], |of_all| of_all.iter().fold([0; 2], add))
    }
}

fn load(
    config: &BridgeConfig,
    interfaces: &[Interface; 2],
) -> Result<Programs, Box<dyn std::error::Error>> {
    if std::fs::read_to_string("/sys/kernel/realtime").is_ok_and(|it| it.trim() == "1") {
        return Err("a PREEMPT_RT kernel may let two frames in at once on a processor".into());
    }
    // Interface numbers are positive.
    let numbers = interfaces.each_ref().map(|interface| interface.index as u32);
    let has_rules = u32::from(!config.left_alone.is_empty());
    let mut ebpf = EbpfLoader::new()
        .btf(None)
        .override_global("LEFT", &numbers[0], true)
        .override_global("RIGHT", &numbers[1], true)
        .override_global("HAS_RULES", &has_rules, true)
        .load(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/offload.o")))?;
    let mut rules: LpmTrie<_, Prefix, u32> =
        ebpf.take_map("rules").ok_or("no map of rules")?.try_into()?;
    for &(address, prefix_len) in &config.left_alone {
        rules.insert(&prefix(address, prefix_len), 1, 0)?;
    }
    let filter: &mut SocketFilter =
        ebpf.program_mut("admit").ok_or("no program of the sockets")?.try_into()?;
    filter.load()?;
    let redirect: &mut SchedClassifier =
        ebpf.program_mut("redirect").ok_or("no program of the interfaces")?.try_into()?;
    redirect.load()?;
    for interface in interfaces {
        // Attached so, it goes when this process does (Linux 6.6).
        // In front of others: what the sockets' filter has taken, nobody else may keep back.
        let order = TcAttachOptions::TcxOrder(LinkOrder::first());
        redirect.attach_with_options(&interface.name, TcAttachType::Ingress, order)?;
    }
    let flows = ebpf.take_map("flows").ok_or("no map of connections")?.try_into()?;
    let pauses = ebpf.take_map("pauses").ok_or("no map of pauses")?.try_into()?;
    let Some(Map::Array(slots)) = ebpf.take_map("slots") else {
        return Err("no map of slots".into());
    };
    let slots = Slots::map(slots.fd().as_fd())?;
    let taken = ebpf.take_map("taken").ok_or("no map of counters")?.try_into()?;
    let (flows, pauses, rules) = (Mutex::new(flows), Mutex::new(pauses), Mutex::new(rules));
    Ok(Programs { interfaces: numbers, flows, pauses, rules, slots, taken, ebpf })
}

/// The prefix of all addresses of a network: the family's number in front.
pub(super) fn prefix(address: IpAddr, prefix_len: u8) -> lpm_trie::Key<Prefix> {
    let mut data = [0; 20];
    let (family, before) = if address.is_ipv4() { (4, 32 + 96) } else { (6, 32) };
    data[3] = family;
    data[4..].copy_from_slice(&mapped(address));
    lpm_trie::Key::new(before + u32::from(prefix_len), data)
}

/// The key of a direction that comes in by a port.
pub(super) fn key(interfaces: [u32; 2], side: &OffloadSide) -> Key {
    let mut key = [0; 40];
    key[..4].copy_from_slice(&interfaces[side.ingress.index()].to_ne_bytes());
    key[4..6].copy_from_slice(&side.source.port().to_be_bytes());
    key[6..8].copy_from_slice(&side.destination.port().to_be_bytes());
    let address = |of: SocketAddr| mapped(of.ip());
    key[8..24].copy_from_slice(&address(side.source));
    key[24..].copy_from_slice(&address(side.destination));
    key
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
