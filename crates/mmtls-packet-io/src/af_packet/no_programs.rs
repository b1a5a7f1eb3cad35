//! In place of `programs.rs` where this crate was built without clang.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use super::{BridgeConfig, Forwarded, Interface, Key, OffloadSide, Port, Records};

/// Nobody gives any.
#[derive(Clone, Copy)]
pub(super) struct SlotId(Infallible);

/// There are none.
pub(super) struct Programs(Infallible);

impl Programs {
    pub(super) fn load(_: &BridgeConfig, _: &[Interface; 2]) -> Result<Self, String> {
        Err("this program was built without clang".to_owned())
    }

    pub(super) fn attach(&self, _: &OwnedFd) -> io::Result<()> {
        match self.0 {}
    }

    pub(super) fn key(&self, _: &OffloadSide) -> Key {
        match self.0 {}
    }

    pub(super) fn begin(&self, _: &Key, _: &OffloadSide) -> bool {
        match self.0 {}
    }

    pub(super) fn end(&self, _: &Key) -> io::Result<Forwarded> {
        match self.0 {}
    }

    pub(super) fn remove_rule(&self, _: IpAddr, _: u8) -> io::Result<()> {
        match self.0 {}
    }

    pub(super) fn take_slot(&self) -> Option<SlotId> {
        match self.0 {}
    }

    pub(super) fn give_slot(&self, _: SlotId) {
        match self.0 {}
    }

    pub(super) fn open_slot(&self, _: SlotId, _: &OffloadSide, _: &Records) {
        match self.0 {}
    }

    pub(super) fn close_slot(&self, _: SlotId, _: &Records) -> [Forwarded; 2] {
        match self.0 {}
    }

    pub(super) fn slot_frames(&self, _: SlotId) -> u64 {
        match self.0 {}
    }

    pub(super) fn begin_pause(&self, _: &Key, _: SlotId, _: bool) -> bool {
        match self.0 {}
    }

    pub(super) fn end_pause(&self, _: &Key) {
        match self.0 {}
    }

    pub(super) fn totals(&self, _: Port) -> [u64; 2] {
        match self.0 {}
    }
}
