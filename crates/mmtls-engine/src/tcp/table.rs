//! The flow table: a slab of flows, an index over four-tuples, and their deadlines.
//!
//! Refuses flows beyond its cap; what flows hold is added up by client ([`Shares`]). Deadlines are checked lazily: a packet costs no timer work; an
//! entry whose flow has lived on is put back. Of the entries of a flow only the earliest counts,
//! and those that count for nothing are thrown out when they are the most.

use core::cmp::Reverse;
use core::net::IpAddr;
use std::collections::BinaryHeap;

use super::attempts::Of;
use super::connection::{Carried, Flow, Phase};
use super::index::{Index, room_to_reserve};
use super::key::{Ends, FlowKey};
use super::links::{FlowIndex, List, Neighbours, Standing};
use super::shares::{Client, Largest, Resource, Shares};
use crate::config::Limits;
use crate::session::{EndReason, SessionId};

/// Entries beyond two a flow that the deadlines may have before they are tidied up.
const SPARE: usize = 1024;

/// Connections of a client that are compared when one of them has to go.
const MAX_COMPARED: usize = 16;

/// An open connection that rests may have gone on: it is made to rest once more after so many times as long, if it has fallen
/// silent again.
const REST_AGAIN: u64 = 10;

/// A client may have one tombstone for so many places of the table, however full that is.
const TOMBSTONE_SHARE: usize = 16;

/// Flows whose amounts are put right in one question for the largest, at most.
const MAX_CORRECTIONS: usize = 256;

/// What becomes of a flow whose time is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    /// It ends.
    End(EndReason),
    /// It stays, and gives back what it can do without.
    Rest,
}

pub(crate) struct FlowTable<P> {
    slots: Vec<Option<Flow<P>>>,
    free: Vec<FlowIndex>,
    index: Index<FlowIndex>,
    /// What was found last: packets come in bursts.
    latest: Option<(FlowKey, FlowIndex)>,
    /// An entry counts where it is the flow's [`Flow::check_ns`].
    deadlines: BinaryHeap<Reverse<(u64, FlowIndex)>>,
    /// Flows that only one side vouches for, in the order they came; some have become connections
    /// since their last packet.
    attempts: List,
    attempt_count: usize,
    /// Connections that are over and remembered for what may still come of them, the first that ended in front. No client
    /// counts them as its own.
    closed: List,
    shares: Shares,
    next_id: u64,
    id_step: u64,
}

impl<P: Carried> FlowTable<P> {
    /// Flows are numbered from `first_id` on in steps: engines that share interfaces number
    /// theirs in turn.
    pub(crate) fn new(hasher: ahash::RandomState, first_id: u64, id_step: u64) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            index: Index::new(hasher.clone()),
            latest: None,
            deadlines: BinaryHeap::new(),
            attempts: List::default(),
            attempt_count: 0,
            closed: List::default(),
            shares: Shares::new(hasher),
            next_id: first_id,
            id_step,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// All places, those of flows that have gone included.
    pub(crate) fn slots(&self) -> &[Option<Flow<P>>] {
        &self.slots
    }

    /// The same, to change what they carry.
    pub(crate) fn slots_mut(&mut self) -> &mut [Option<Flow<P>>] {
        &mut self.slots
    }

    pub(crate) fn find(&mut self, key: &FlowKey) -> Option<FlowIndex> {
        if let Some((latest, index)) = &self.latest
            && latest == key
        {
            return Some(*index);
        }
        let has_it = |at: FlowIndex| self.look(at).is_some_and(|flow| flow.key() == *key);
        let index = self.index.find(key, has_it)?;
        self.latest = Some((*key, index));
        Some(index)
    }

    /// A flow. What it carries rests no more.
    pub(crate) fn get(&mut self, index: FlowIndex) -> Option<&mut Flow<P>> {
        let flow = self.peek(index)?;
        if flow.is_resting() {
            flow.wake();
        }
        Some(flow)
    }

    /// The flow, if the slot still holds that one.
    pub(crate) fn get_if(&mut self, index: FlowIndex, id: SessionId) -> Option<&mut Flow<P>> {
        self.get(index).filter(|flow| flow.id == id)
    }

    /// A flow as it is, perhaps at rest.
    pub(crate) fn look(&self, index: FlowIndex) -> Option<&Flow<P>> {
        self.slots.get(index.slot())?.as_ref()
    }

    /// The same, to change it.
    pub(crate) fn peek(&mut self, index: FlowIndex) -> Option<&mut Flow<P>> {
        self.slots.get_mut(index.slot())?.as_mut()
    }

    fn peek_if(&mut self, index: FlowIndex, id: SessionId) -> Option<&mut Flow<P>> {
        self.peek(index).filter(|flow| flow.id == id)
    }

    /// Adds a flow; `None` when the table is full.
    pub(crate) fn insert(&mut self, ends: Ends, now_ns: u64, limits: &Limits) -> Option<FlowIndex> {
        if self.index.len() >= limits.max_flows {
            return None;
        }
        self.reserve(limits.max_flows);
        let id = SessionId(self.next_id);
        self.next_id += self.id_step;
        let flow = Flow::new(id, ends, now_ns);
        let key = flow.key();
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = FlowIndex::new(self.slots.len())?;
                self.slots.push(None);
                index
            }
        };
        *self.slots.get_mut(index.slot())? = Some(flow);
        self.index.insert(&key, index);
        self.link(index);
        let first = limits.opening_timeout_ns.min(limits.rest_after_ns);
        self.check_at(now_ns.saturating_add(first), index, id);
        Some(index)
    }

    /// Room for all flows that may come, once there are more than a few.
    fn reserve(&mut self, max_flows: usize) {
        let Self { slots, deadlines, shares, .. } = self;
        if let Some(more) = room_to_reserve(slots.len(), slots.capacity(), max_flows) {
            let _ = slots.try_reserve_exact(more);
        }
        let max_deadlines = max_flows.saturating_mul(2).saturating_add(SPARE);
        if let Some(more) = room_to_reserve(deadlines.len(), deadlines.capacity(), max_deadlines) {
            let _ = deadlines.try_reserve_exact(more);
        }
        shares.reserve(max_flows);
    }

    /// How many flows only one side vouches for; a few of them may have become connections.
    pub(crate) fn attempt_count(&self) -> usize {
        self.attempt_count
    }

    /// The flow that has to go when there is no room: the oldest that only one side vouches for
    /// (an attempt that has not become a connection, or a segment out of nowhere), of the client
    /// that has the most of them. Anybody can make those in any number.
    pub(crate) fn oldest_opening(&mut self) -> Option<FlowIndex> {
        loop {
            let oldest = self.shares.largest_attempts().or(self.attempts.first)?;
            if self.peek(oldest).is_some_and(|flow| is_one_sided(flow)) {
                return Some(oldest);
            }
            self.settle(oldest);
        }
    }

    /// The flow that has to go for one of a client when there is no room and nothing but connections: of the
    /// client that has the most the one that has long been silent, among its oldest. A client that has the
    /// most itself has to wait.
    pub(crate) fn longest_idle(&mut self, newcomer: IpAddr) -> Option<FlowIndex> {
        let settled = self.shares.largest_settled(Client::new(newcomer))?;
        let oldest = settled.iter(&self.slots, Of::Proven).take(MAX_COMPARED);
        oldest.min_by_key(|at| {
            let flow = self.look(*at);
            // Of one that is not shown nobody knows here how long it has been silent.
            flow.map_or((false, 0), |flow| (flow.offload.is_on(), flow.last_ns))
        })
    }

    /// Notes whether both sides vouch for a flow by now: to be asked with each of its packets.
    pub(crate) fn settle_attempt(&mut self, index: FlowIndex) {
        if self.peek(index).is_some_and(|flow| flow.is_attempt() && !is_one_sided(flow)) {
            self.settle(index);
        }
    }

    /// A flow is an attempt no more but a connection, or one that is over; a tombstone is neither, and makes room for no other.
    fn settle(&mut self, index: FlowIndex) {
        self.unlink(index);
        let Some(flow) = self.slots.get_mut(index.slot()).and_then(Option::as_mut) else {
            return;
        };
        match flow.phase {
            Phase::Dead { .. } => {}
            Phase::Closed(_) => self.list_closed(index),
            Phase::Opening | Phase::Open => {
                self.shares.set(index, &mut flow.stake, Resource::Settled, 1);
                flow.standing = Standing::Settled(Neighbours::default());
                let client = flow.stake.client();
                if let Some(own) = self.shares.settled_of(client) {
                    own.push(&mut self.slots, index, Of::Proven);
                }
            }
        }
    }

    /// A connection is over. An attempt stays among those, since it is still to be told as one.
    pub(crate) fn close(&mut self, index: FlowIndex, reason: EndReason) {
        let Some(flow) = self.peek(index) else {
            return;
        };
        flow.phase = Phase::Closed(reason);
        if !flow.is_attempt() {
            self.unsettle(index);
            self.list_closed(index);
        }
    }

    fn list_closed(&mut self, index: FlowIndex) {
        if let Some(flow) = self.peek(index) {
            flow.standing = Standing::Closed(Neighbours::default());
            self.closed.push(&mut self.slots, index, Of::Proven);
        }
    }

    /// The connection that has been over for the longest time, and how it ended.
    pub(crate) fn oldest_closed(&mut self) -> Option<(FlowIndex, EndReason)> {
        let oldest = self.closed.first?;
        match self.peek(oldest)?.phase {
            Phase::Closed(reason) => Some((oldest, reason)),
            _ => None,
        }
    }

    /// A connection leaves the list in which it stands.
    fn unsettle(&mut self, index: FlowIndex) {
        let Some(flow) = self.slots.get_mut(index.slot()).and_then(Option::as_mut) else {
            return;
        };
        match flow.standing {
            Standing::Nowhere | Standing::Attempt(_) => return,
            Standing::Closed(_) => self.closed.remove(&mut self.slots, index, Of::Proven),
            Standing::Settled(_) => {
                self.shares.set(index, &mut flow.stake, Resource::Settled, 0);
                let client = flow.stake.client();
                if let Some(own) = self.shares.settled_of(client) {
                    own.remove(&mut self.slots, index, Of::Proven);
                }
            }
        }
        if let Some(flow) = self.peek(index) {
            flow.standing = Standing::Nowhere;
        }
    }

    /// A flow was reset: it makes room for nobody, and counts as one of its client's tombstones.
    pub(crate) fn bury(&mut self, index: FlowIndex) {
        self.unsettle(index);
        if let Some(flow) = self.slots.get_mut(index.slot()).and_then(Option::as_mut) {
            self.shares.set(index, &mut flow.stake, Resource::Tombstones, 1);
        }
    }

    /// Whether a client has more tombstones than are left for everybody else: as nobody makes room for
    /// others by them, it could take the whole table with connections that are reset.
    pub(crate) fn has_most_tombstones(&self, client: IpAddr, max_flows: usize) -> bool {
        let left = max_flows.saturating_sub(self.len());
        // With fewer no client has more than half of the table.
        left <= max_flows / 2
            && self.shares.held_by(Client::new(client), Resource::Tombstones)
                >= left.max(max_flows / TOMBSTONE_SHARE).max(1)
    }

    /// Counts a new flow as its client's, and as an attempt.
    fn link(&mut self, index: FlowIndex) {
        let Some(flow) = self.slots.get_mut(index.slot()).and_then(Option::as_mut) else {
            return;
        };
        self.shares.join(index, &mut flow.stake, Client::new(flow.ends.client().ip()));
        self.shares.set(index, &mut flow.stake, Resource::Attempts, 1);
        flow.standing = Standing::Attempt([Neighbours::default(); 2]);
        let client = flow.stake.client();
        self.attempt_count += 1;
        self.attempts.push(&mut self.slots, index, Of::Everybody);
        if let Some(own) = self.shares.attempts_of(client) {
            own.push(&mut self.slots, index, Of::Client);
        }
    }

    /// A flow is no attempt any more.
    fn unlink(&mut self, index: FlowIndex) {
        let Some(flow) = self.slots.get_mut(index.slot()).and_then(Option::as_mut) else {
            return;
        };
        if !flow.is_attempt() {
            return;
        }
        self.shares.set(index, &mut flow.stake, Resource::Attempts, 0);
        let client = flow.stake.client();
        self.attempt_count -= 1;
        self.attempts.remove(&mut self.slots, index, Of::Everybody);
        if let Some(own) = self.shares.attempts_of(client) {
            own.remove(&mut self.slots, index, Of::Client);
        }
        if let Some(flow) = self.peek(index) {
            flow.standing = Standing::Nowhere;
        }
    }

    /// Notes what a flow holds now.
    pub(crate) fn account(&mut self, index: FlowIndex, resource: Resource, amount: usize) {
        let Some(flow) = self.slots.get_mut(index.slot()).and_then(Option::as_mut) else {
            return;
        };
        if flow.stake.amount(resource) == amount {
            return;
        }
        let client = Client::new(flow.ends.client().ip());
        if self.shares.is_anothers(&flow.stake, client) {
            // Roles have turned out to be the other way round.
            let attempt = flow.is_attempt();
            let proven = matches!(flow.standing, Standing::Settled(_) | Standing::Closed(_));
            self.unlink(index);
            self.unsettle(index);
            if let Some(flow) = self.slots.get_mut(index.slot()).and_then(Option::as_mut) {
                self.shares.join(index, &mut flow.stake, client);
            }
            if attempt {
                self.link(index);
            } else if proven {
                self.settle(index);
            }
        }
        if let Some(flow) = self.slots.get_mut(index.slot()).and_then(Option::as_mut) {
            self.shares.set(index, &mut flow.stake, resource, amount);
        }
    }

    /// What the client of a flow holds, all its flows together.
    pub(crate) fn held_by_client(&self, index: FlowIndex, resource: Resource) -> usize {
        let flow = self.slots.get(index.slot()).and_then(Option::as_ref);
        flow.map_or(0, |flow| self.shares.of_client(&flow.stake, resource))
    }

    /// The flow that holds the most, of the client that holds the most.
    pub(crate) fn largest(&mut self, resource: Resource) -> Option<FlowIndex> {
        for _ in 0..MAX_CORRECTIONS {
            let Self { shares, slots, .. } = self;
            let held_by = |at: FlowIndex| {
                let flow = slots.get(at.slot()).and_then(Option::as_ref);
                flow.map_or(0, |flow| flow.stake.amount(resource))
            };
            match shares.largest(resource, held_by) {
                Largest::Flow(index) => return Some(index),
                Largest::None => return None,
                Largest::Outdated(index) => {
                    let flow = slots.get_mut(index.slot()).and_then(Option::as_mut)?;
                    shares.correct(index, &mut flow.stake, resource);
                }
            }
        }
        None
    }

    pub(crate) fn remove(&mut self, index: FlowIndex) -> Option<Flow<P>> {
        self.unlink(index);
        self.unsettle(index);
        let mut flow = self.slots.get_mut(index.slot())?.take()?;
        if flow.is_resting() {
            flow.wake();
        }
        self.shares.leave(index, &mut flow.stake);
        self.index.remove(&flow.key(), index);
        self.latest = None;
        self.free.push(index);
        Some(flow)
    }

    /// Asks for a check of a flow whose timeout has become shorter.
    pub(crate) fn check_at(&mut self, deadline_ns: u64, index: FlowIndex, id: SessionId) {
        let Some(flow) = self.peek_if(index, id) else {
            return;
        };
        if deadline_ns >= flow.check_ns {
            return;
        }
        flow.check_ns = deadline_ns;
        self.deadlines.push(Reverse((deadline_ns, index)));
        if self.deadlines.len() > 2 * self.index.len() + SPARE {
            let mut deadlines = core::mem::take(&mut self.deadlines);
            deadlines.retain(|&Reverse((deadline, index))| {
                self.look(index).is_some_and(|flow| flow.check_ns == deadline)
            });
            self.deadlines = deadlines;
        }
    }

    /// When [`FlowTable::pop_expired`] should be called next.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.deadlines.peek().map(|Reverse((deadline, ..))| *deadline)
    }

    /// The next flow whose time is up, and what becomes of it.
    pub(crate) fn pop_expired(&mut self, now_ns: u64, limits: &Limits) -> Option<(FlowIndex, Due)> {
        while self.next_deadline().is_some_and(|deadline| deadline <= now_ns) {
            let Reverse((deadline, index)) = self.deadlines.pop()?;
            let Some(flow) = self.peek(index) else {
                continue;
            };
            if flow.check_ns != deadline {
                // An earlier entry has taken this one's place, or another flow that flow's.
                continue;
            }
            let (timeout, reason) = match flow.phase {
                Phase::Opening => (limits.opening_timeout_ns, EndReason::TimedOut),
                Phase::Open if flow.one_sided => (limits.opening_timeout_ns, EndReason::TimedOut),
                Phase::Open => (limits.idle_timeout_ns, EndReason::TimedOut),
                // A RST that only the monitor saw must not make it forget the session early.
                Phase::Closed(reason @ EndReason::ResetByPeer(_)) if flow.is_tls() => {
                    (limits.tombstone_timeout_ns, reason)
                }
                Phase::Closed(reason) => (limits.closed_timeout_ns, reason),
                Phase::Dead { reason, .. } => (limits.tombstone_timeout_ns, reason),
            };
            let mut deadline = flow.last_ns.saturating_add(timeout);
            if deadline <= now_ns {
                // There is no entry any more, should it stay as a tombstone.
                flow.check_ns = u64::MAX;
                return Some((index, Due::End(reason)));
            }
            // One entry for each flow, and none that a packet makes: one that goes on is looked at again later.
            let rest_after_ns = limits.rest_after_ns.max(1);
            let rest_ns = flow.last_ns.saturating_add(rest_after_ns);
            let rests = flow.phase == Phase::Open && rest_ns <= now_ns;
            deadline = deadline.min(match flow.phase {
                Phase::Open if rests => {
                    now_ns.saturating_add(rest_after_ns.saturating_mul(REST_AGAIN))
                }
                Phase::Open => rest_ns,
                Phase::Opening => now_ns.saturating_add(rest_after_ns),
                Phase::Closed(_) | Phase::Dead { .. } => u64::MAX,
            });
            flow.check_ns = deadline;
            self.deadlines.push(Reverse((deadline, index)));
            if rests {
                return Some((index, Due::Rest));
            }
        }
        None
    }

    /// Every flow, oldest first, for the end of an engine.
    pub(crate) fn all(&self) -> Vec<FlowIndex> {
        let flows = self.slots.iter().enumerate();
        let of = |(slot, flow): (usize, &Option<Flow<P>>)| {
            Some((flow.as_ref()?.id, FlowIndex::new(slot)?))
        };
        let mut all: Vec<(SessionId, FlowIndex)> = flows.filter_map(of).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, index)| index).collect()
    }
}

/// A tombstone is none of these: what follows a reset connection must not pass.
fn is_one_sided<P: Carried>(flow: &Flow<P>) -> bool {
    match flow.phase {
        Phase::Opening => true,
        Phase::Open => {
            flow.one_sided || !flow.is_tls() && flow.halves.iter().any(|half| half.packets == 0)
        }
        Phase::Closed(_) | Phase::Dead { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::SessionInfo;
    use crate::tls::Direction;

    impl Carried for () {
        fn is_tls(&self) -> bool {
            false
        }

        fn is_resting(&self) -> bool {
            false
        }

        fn wake(self, _: SessionInfo) {}

        fn partial(&self, _: Direction, _: usize) -> &[u8] {
            &[]
        }
    }

    #[test]
    fn names_four_tuples_the_same_from_both_sides() {
        let key =
            |vlan, a: &str, b: &str| FlowKey::new(vlan, a.parse().unwrap(), b.parse().unwrap());
        let keys = [
            key(0, "10.0.0.1:1", "10.0.0.2:2"),
            key(0, "10.0.0.1:2", "10.0.0.2:1"),
            key(5, "10.0.0.1:1", "10.0.0.2:2"),
            key(5 << 16, "10.0.0.1:1", "10.0.0.2:2"),
            key(0, "[::10.0.0.1]:1", "[::10.0.0.2]:2"),
            key(0, "[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.2]:2"),
            key(0, "10.0.0.1:1", "10.0.0.1:2"),
            key(0, "10.0.0.1:1", "10.0.0.2:2").turned(true),
            key(5, "10.0.0.1:1", "10.0.0.2:2").turned(true),
            key(0, "[::10.0.0.1]:1", "[::10.0.0.2]:2").turned(true),
        ];
        for (at, one) in keys.iter().enumerate() {
            assert!(keys[..at].iter().all(|other| other != one), "{at}");
        }
        assert!(keys[0] == key(0, "10.0.0.2:2", "10.0.0.1:1"));
        assert!(keys[6] == key(0, "10.0.0.1:2", "10.0.0.1:1"));
    }

    #[test]
    fn refuses_to_move_many_flows_when_more_come() {
        let limits = Limits { max_flows: 100_000, ..Limits::default() };
        let mut table = FlowTable::<()>::new(ahash::RandomState::with_seeds(1, 2, 3, 4), 0, 1);
        let server = "10.0.0.2:2".parse().unwrap();
        let mut places = [0; 2];
        for number in 0..100_000_u32 {
            let client = (core::net::Ipv4Addr::from_bits(0x0a01_0000 + number), 1000).into();
            let ends = Ends::new(0, client, server, false);
            table.insert(ends, 0, &limits).unwrap();
            places[usize::from(number > 4096)] = table.slots.as_ptr().addr();
        }
        assert_eq!(places[0], places[1]);
        assert_eq!(table.slots.capacity(), 100_000);
        assert!(table.deadlines.capacity() >= 200_000);
    }

    #[test]
    fn refuses_to_pile_up_deadlines() {
        let limits = Limits { max_flows: 10, ..Limits::default() };
        let mut table = FlowTable::<()>::new(ahash::RandomState::with_seeds(1, 2, 3, 4), 0, 1);
        let [client, server] = ["10.0.0.1:1", "10.0.0.2:2"].map(|it| it.parse().unwrap());
        let ends = Ends::new(0, client, server, false);
        for now in 0..100_000 {
            let index = table.insert(ends, now, &limits).unwrap();
            let id = table.get(index).unwrap().id;
            table.check_at(now + 50, index, id);
            table.check_at(now + 70, index, id);
            table.check_at(now + 40, index, id);
            table.remove(index);
            assert!(table.deadlines.len() <= SPARE + 3);
        }
        let index = table.insert(ends, 0, &limits).unwrap();
        let id = table.get(index).unwrap().id;
        table.check_at(5, index, id);
        table.get(index).unwrap().phase = Phase::Closed(EndReason::Closed);
        // It was checked at its earliest time, and lives until its timeout.
        assert_eq!(table.pop_expired(6, &limits), None);
        let end = limits.closed_timeout_ns;
        assert_eq!(table.pop_expired(end, &limits), Some((index, Due::End(EndReason::Closed))));
    }
}
