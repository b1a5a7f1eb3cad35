//! Who holds how much of what is shared: held frames, kept bytes, connection attempts, by client
//! address (of IPv6 the first 64 bits: a host has as many addresses of its network as it likes).
//!
//! Where a cap is reached, the largest flow of the largest client makes room, not the connection at hand: else one
//! client with many connections would decide about all others.
//!
//! What is added up is what is allocated, not what is filled: a kilobyte in a megabyte of memory is a megabyte.
//!
//! Refuses to decide: it says who holds the most, and the caller what that costs them.
//!
//! Amounts are exact. Ranks are not: they are by powers of two, and one that has
//! shrunk stays where it is until it is asked for. So a packet costs an addition, and only one in
//! many a change of order.

use core::net::IpAddr;
use core::num::NonZeroU32;
use std::collections::BTreeSet;

use super::index::{Index, room_to_reserve};
use super::links::{FlowIndex, List};

/// What is shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resource {
    /// Frames that wait for keys.
    HeldFrames,
    /// Bytes that are kept.
    KeptBytes,
    /// Of these, those of connections of which it is not known yet what they carry.
    UndecidedBytes,
    /// Flows that only one side vouches for.
    Attempts,
    /// Flows that both sides vouch for, and that are not over.
    Settled,
    /// Flows that were reset and are remembered.
    Tombstones,
}

const RESOURCES: usize = 6;

/// How many of them, the first ones, a flow may hold more than one of. Only by these flows have ranks.
const RANKED: usize = 3;

/// From which amount on clients have a rank, and flows, and below which amount ranks are by age alone.
struct Scale {
    least_of_client: usize,
    least_of_flow: usize,
    unit: usize,
}

const SCALES: [Scale; RESOURCES] = [
    // A few frames wait in every session whose keys come a little later.
    Scale { least_of_client: 1, least_of_flow: 1, unit: 64 },
    // What an ordinary connection keeps until it is acknowledged changes no order.
    Scale { least_of_client: 32 << 10, least_of_flow: 1 << 10, unit: 32 << 10 },
    Scale { least_of_client: 32 << 10, least_of_flow: 1 << 10, unit: 32 << 10 },
    // Flows need no ranks: the oldest attempt goes first.
    Scale { least_of_client: 16, least_of_flow: usize::MAX, unit: 16 },
    Scale { least_of_client: 16, least_of_flow: usize::MAX, unit: 16 },
    Scale { least_of_client: usize::MAX, least_of_flow: usize::MAX, unit: 16 },
];

/// Ranks that are put right in one question, at most.
const MAX_CORRECTIONS: usize = 256;

/// Whose amounts are added up. In halves, since a `u64` would be aligned to eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Client {
    v6: bool,
    network: [u32; 2],
}

impl Client {
    pub(crate) fn new(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(ip) => Self { v6: false, network: [0, ip.to_bits()] },
            // The lower half of the address goes.
            IpAddr::V6(ip) => {
                Self { v6: true, network: [96, 64].map(|at| (ip.to_bits() >> at) as u32) }
            }
        }
    }
}

/// One more than the place of its holder, so that an `Option` takes no more memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ClientIndex(NonZeroU32);

impl ClientIndex {
    fn new(at: usize) -> Option<Self> {
        NonZeroU32::new(u32::try_from(at.checked_add(1)?).ok()?).map(Self)
    }

    fn at(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Where an amount stands among others; the last one is the largest. Its class in the upper eight bits, zero without
/// a rank, then when it was given one, reversed: of the same class the oldest is taken for the largest, since who
/// has waited for a moment is not who fills the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
struct Rank(u64);

impl Rank {
    const NONE: Self = Self(0);
    const LAST: Self = Self(u64::MAX);
    const AGE_BITS: u32 = 56;

    /// Ranks that are given are counted, and are never as many as 56 bits have room for.
    fn new(class: u8, since: u64) -> Self {
        let age = (1 << Self::AGE_BITS) - 1 - since.min((1 << Self::AGE_BITS) - 1);
        Self(u64::from(class) << Self::AGE_BITS | age)
    }

    fn class(self) -> u8 {
        // Eight bits are left.
        (self.0 >> Self::AGE_BITS) as u8
    }

    /// In another class as of the same age.
    fn of_class(self, class: u8) -> Self {
        match class {
            0 => Self::NONE,
            _ => Self(u64::from(class) << Self::AGE_BITS | self.0 & ((1 << Self::AGE_BITS) - 1)),
        }
    }
}

/// An amount, and its rank.
#[derive(Clone, Copy, Default, Debug)]
struct Amount {
    amount: usize,
    rank: Rank,
}

/// What one flow holds, for its client. There are many, and most of them hold nothing.
#[derive(Default, Debug)]
pub(crate) struct Stake {
    client: Option<ClientIndex>,
    /// From 4 GiB on it is all the same how much it is.
    amounts: [u32; RANKED],
    /// Nothing while there is none.
    ranks: Option<Box<[Rank; RANKED]>>,
    /// Of the other resources one, or none.
    counted: [bool; RESOURCES - RANKED],
}

impl Stake {
    /// Whose it is.
    pub(super) fn client(&self) -> Option<ClientIndex> {
        self.client
    }

    pub(crate) fn amount(&self, resource: Resource) -> usize {
        self.amount_of(resource as usize)
    }

    fn amount_of(&self, number: usize) -> usize {
        match number.checked_sub(RANKED) {
            None => self.amounts[number] as usize,
            Some(at) => self.counted[at].into(),
        }
    }

    fn ranked(&self, number: usize) -> Amount {
        let rank = self.ranks.as_ref().map_or(Rank::NONE, |ranks| ranks[number]);
        Amount { amount: self.amount_of(number), rank }
    }

    fn set_rank(&mut self, number: usize, rank: Rank) {
        if rank != Rank::NONE || self.ranks.is_some() {
            self.ranks.get_or_insert_default()[number] = rank;
        }
    }

    /// The connection is idle: memory for ranks is given back where it has none.
    pub(super) fn rest(&mut self) {
        self.ranks.take_if(|ranks| **ranks == [Rank::NONE; RANKED]);
    }
}

struct Holder {
    client: Client,
    /// No more than can be numbered.
    flows: u32,
    amounts: [Amount; RESOURCES],
    /// Of its flows those that only one side vouches for.
    attempts: List,
    /// Those that both vouch for.
    settled: List,
}

/// The order of one resource.
#[derive(Default)]
struct Order {
    clients: BTreeSet<(Rank, ClientIndex)>,
    flows: BTreeSet<(ClientIndex, Rank, FlowIndex)>,
}

pub(crate) struct Shares {
    index: Index<ClientIndex>,
    holders: Vec<Option<Holder>>,
    free: Vec<ClientIndex>,
    orders: [Order; RESOURCES],
    serial: u64,
}

/// Who holds the most.
pub(crate) enum Largest {
    /// This flow, of the client that holds the most.
    Flow(FlowIndex),
    /// The flow has no such amount any more, or another client: bring it up to date and ask again.
    Outdated(FlowIndex),
    /// None of them holds a notable amount.
    None,
}

impl Shares {
    pub(crate) fn new(hasher: ahash::RandomState) -> Self {
        Self {
            index: Index::new(hasher),
            holders: Vec::new(),
            free: Vec::new(),
            orders: Default::default(),
            serial: 0,
        }
    }

    /// Room for all clients that may come, once there are more than a few.
    pub(crate) fn reserve(&mut self, max_flows: usize) {
        let holders = &mut self.holders;
        if let Some(more) = room_to_reserve(holders.len(), holders.capacity(), max_flows) {
            let _ = holders.try_reserve_exact(more);
        }
    }

    /// What the client of a flow holds, all its flows together.
    pub(crate) fn of_client(&self, stake: &Stake, resource: Resource) -> usize {
        self.holder(stake.client).map_or(0, |it| it.amounts[resource as usize].amount)
    }

    /// What a client holds.
    pub(crate) fn held_by(&self, client: Client, resource: Resource) -> usize {
        let at = self.find(client);
        self.holder(at).map_or(0, |it| it.amounts[resource as usize].amount)
    }

    /// Whether a flow counts as another client's.
    pub(crate) fn is_anothers(&self, stake: &Stake, client: Client) -> bool {
        self.holder(stake.client).is_none_or(|holder| holder.client != client)
    }

    /// Counts a flow as its client's, which may have become another one. It is no attempt.
    pub(crate) fn join(&mut self, flow: FlowIndex, stake: &mut Stake, client: Client) {
        if !self.is_anothers(stake, client) {
            return;
        }
        let amounts: [usize; RESOURCES] = core::array::from_fn(|it| stake.amount_of(it));
        self.leave(flow, stake);
        let at = match self.find(client) {
            Some(at) => at,
            None => {
                let holder = Holder {
                    client,
                    flows: 0,
                    amounts: Default::default(),
                    attempts: List::default(),
                    settled: List::default(),
                };
                let at = match self.free.pop() {
                    Some(at) => at,
                    None => {
                        // As many as flows, which are numbered in the same way.
                        let Some(at) = ClientIndex::new(self.holders.len()) else {
                            return;
                        };
                        self.holders.push(None);
                        at
                    }
                };
                if let Some(slot) = self.holders.get_mut(at.at()) {
                    *slot = Some(holder);
                }
                self.index.insert(&client, at);
                at
            }
        };
        if let Some(holder) = self.holders.get_mut(at.at()).and_then(Option::as_mut) {
            holder.flows += 1;
        }
        stake.client = Some(at);
        for (number, amount) in amounts.into_iter().enumerate() {
            self.set_number(flow, stake, number, amount);
        }
    }

    /// Takes a flow away from its client, with everything that it holds.
    pub(crate) fn leave(&mut self, flow: FlowIndex, stake: &mut Stake) {
        for number in 0..RESOURCES {
            self.set_number(flow, stake, number, 0);
        }
        let Some(at) = stake.client.take() else {
            return;
        };
        let Some(slot) = self.holders.get_mut(at.at()) else {
            return;
        };
        if let Some(holder) = slot {
            holder.flows -= 1;
            if holder.flows == 0 {
                self.index.remove(&holder.client, at);
                *slot = None;
                self.free.push(at);
            }
        }
    }

    /// Notes what a flow holds now.
    pub(crate) fn set(
        &mut self,
        flow: FlowIndex,
        stake: &mut Stake,
        resource: Resource,
        amount: usize,
    ) {
        self.set_number(flow, stake, resource as usize, amount);
    }

    fn set_number(&mut self, flow: FlowIndex, stake: &mut Stake, number: usize, amount: usize) {
        let amount = amount.min(u32::MAX as usize);
        let before = stake.amount_of(number);
        if before == amount {
            return;
        }
        let Some(at) = stake.client else {
            return;
        };
        let Some(holder) = self.holders.get_mut(at.at()).and_then(Option::as_mut) else {
            return;
        };
        let scale = &SCALES[number];
        let order = &mut self.orders[number];
        match number.checked_sub(RANKED) {
            Some(counted) => {
                debug_assert!(amount <= 1, "one, or none");
                stake.counted[counted] = amount > 0;
            }
            None => {
                let mut own = stake.ranked(number);
                let change = own.set(amount, scale.least_of_flow, scale.unit, &mut self.serial);
                stake.amounts[number] = own.amount as u32;
                if let Some(change) = change {
                    stake.set_rank(number, own.rank);
                    order.move_flow(at, flow, change);
                }
            }
        }
        let all = &mut holder.amounts[number];
        let sum = all.amount.saturating_sub(before).saturating_add(amount);
        if let Some(change) = all.set(sum, scale.least_of_client, scale.unit, &mut self.serial) {
            order.move_client(at, change);
        }
    }

    /// Who holds the most: of the client that holds the most, the flow that does. A few times at
    /// most it is found that a rank is not right any more.
    pub(crate) fn largest(
        &mut self,
        resource: Resource,
        held_by: impl Fn(FlowIndex) -> usize,
    ) -> Largest {
        let number = resource as usize;
        let scale = &SCALES[number];
        for _ in 0..MAX_CORRECTIONS {
            let Some(at) = self.largest_client(number) else {
                return Largest::None;
            };
            let order = &mut self.orders[number];
            let last = (at, Rank::LAST, FlowIndex::MAX);
            let flow = order.flows.range(..=last).next_back().filter(|(of, ..)| *of == at);
            let Some(&(_, rank, flow)) = flow else {
                // Each of its flows holds next to nothing.
                let Some(holder) = self.holders.get_mut(at.at()).and_then(Option::as_mut) else {
                    return Largest::None;
                };
                let all = &mut holder.amounts[number];
                let old = core::mem::take(&mut all.rank);
                order.move_client(at, [old, Rank::NONE]);
                continue;
            };
            return match class_of(held_by(flow), scale.least_of_flow, scale.unit) == rank.class() {
                true => Largest::Flow(flow),
                false => Largest::Outdated(flow),
            };
        }
        Largest::None
    }

    /// The client that holds the most.
    fn largest_client(&mut self, number: usize) -> Option<ClientIndex> {
        let scale = &SCALES[number];
        let order = &mut self.orders[number];
        for _ in 0..MAX_CORRECTIONS {
            let &(rank, at) = order.clients.last()?;
            let holder = self.holders.get_mut(at.at()).and_then(Option::as_mut)?;
            let all = &mut holder.amounts[number];
            let right = class_of(all.amount, scale.least_of_client, scale.unit);
            if right == rank.class() {
                return Some(at);
            }
            all.rank = rank.of_class(right);
            order.move_client(at, [rank, all.rank]);
        }
        None
    }

    /// The oldest attempt of the client that has the most, where one has notably many.
    pub(crate) fn largest_attempts(&mut self) -> Option<FlowIndex> {
        let at = self.largest_client(Resource::Attempts as usize)?;
        self.holder(Some(at)).and_then(|holder| holder.attempts.first)
    }

    /// The settled flows of the client that has the most, where that is notably many and more than a
    /// newcomer has.
    pub(crate) fn largest_settled(&mut self, newcomer: Client) -> Option<List> {
        let number = Resource::Settled as usize;
        let at = self.largest_client(number)?;
        let amount = |at| self.holder(at).map_or(0, |it| it.amounts[number].amount);
        let own = self.find(newcomer);
        let more = own != Some(at) && amount(Some(at)) > own.map_or(0, |own| amount(Some(own)));
        self.holder(Some(at)).filter(|_| more).map(|holder| holder.settled)
    }

    /// The settled flows of a client.
    pub(super) fn settled_of(&mut self, client: Option<ClientIndex>) -> Option<&mut List> {
        let holder = self.holders.get_mut(client?.at())?.as_mut()?;
        Some(&mut holder.settled)
    }

    /// The attempts of a client.
    pub(super) fn attempts_of(&mut self, client: Option<ClientIndex>) -> Option<&mut List> {
        let holder = self.holders.get_mut(client?.at())?.as_mut()?;
        Some(&mut holder.attempts)
    }

    /// Gives a flow its right rank, where it holds less than the one it has says.
    pub(crate) fn correct(&mut self, flow: FlowIndex, stake: &mut Stake, resource: Resource) {
        let number = resource as usize;
        let scale = &SCALES[number];
        if number >= RANKED {
            return;
        }
        let Amount { amount, rank: old } = stake.ranked(number);
        let new = old.of_class(class_of(amount, scale.least_of_flow, scale.unit));
        if let Some(at) = stake.client
            && old != new
        {
            stake.set_rank(number, new);
            self.orders[number].move_flow(at, flow, [old, new]);
        }
    }

    fn find(&self, client: Client) -> Option<ClientIndex> {
        self.index
            .find(&client, |at| self.holder(Some(at)).is_some_and(|holder| holder.client == client))
    }

    fn holder(&self, at: Option<ClientIndex>) -> Option<&Holder> {
        self.holders.get(at?.at())?.as_ref()
    }

    /// Clients that have a flow.
    #[cfg(test)]
    fn clients(&self) -> usize {
        self.index.len()
    }
}

impl Order {
    fn move_client(&mut self, at: ClientIndex, [old, new]: [Rank; 2]) {
        if old != Rank::NONE {
            self.clients.remove(&(old, at));
        }
        if new != Rank::NONE {
            self.clients.insert((new, at));
        }
    }

    fn move_flow(&mut self, at: ClientIndex, flow: FlowIndex, [old, new]: [Rank; 2]) {
        if old != Rank::NONE {
            self.flows.remove(&(at, old, flow));
        }
        if new != Rank::NONE {
            self.flows.insert((at, new, flow));
        }
    }
}

impl Amount {
    /// Sets the amount; where the rank changes with it, says from where to where. It changes
    /// upwards at once, and downwards only when next to nothing is left.
    fn set(
        &mut self,
        amount: usize,
        least: usize,
        unit: usize,
        serial: &mut u64,
    ) -> Option<[Rank; 2]> {
        let old = self.rank;
        self.amount = amount;
        let class = class_of(amount, least, unit);
        if class > old.class() {
            self.rank = match old {
                Rank::NONE => {
                    *serial += 1;
                    Rank::new(class, *serial)
                }
                _ => old.of_class(class),
            };
        } else if amount <= least / 8 {
            self.rank = Rank::NONE;
        }
        (self.rank != old).then_some([old, self.rank])
    }
}

/// Zero below `least`, one up to `unit`, and one more for each doubling.
fn class_of(amount: usize, least: usize, unit: usize) -> u8 {
    match amount < least {
        true => 0,
        // At most the bits of a number.
        false => 1 + (usize::BITS - (amount / unit).leading_zeros()) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Resource::HeldFrames;

    fn client(last: u8) -> Client {
        Client::new([10, 0, 0, last].into())
    }

    fn at(number: u32) -> FlowIndex {
        FlowIndex::new(number as usize).unwrap()
    }

    struct Flows(Shares, Vec<Stake>);

    impl Flows {
        fn new() -> Self {
            Self(Shares::new(ahash::RandomState::with_seeds(1, 2, 3, 4)), Vec::new())
        }
        fn add(&mut self, client: Client) -> u32 {
            let mut stake = Stake::default();
            let number = self.1.len() as u32;
            self.0.join(at(number), &mut stake, client);
            self.1.push(stake);
            number
        }
        fn set(&mut self, flow: u32, amount: usize) {
            self.0.set(at(flow), &mut self.1[flow as usize], HeldFrames, amount);
        }
        fn largest(&mut self) -> Option<u32> {
            loop {
                let Self(shares, stakes) = self;
                match shares.largest(HeldFrames, |it| stakes[it.slot()].amount(HeldFrames)) {
                    Largest::Flow(flow) => return Some(flow.slot() as u32),
                    Largest::None => return None,
                    Largest::Outdated(flow) => {
                        shares.correct(flow, &mut stakes[flow.slot()], HeldFrames);
                    }
                }
            }
        }
    }

    #[test]
    fn accepts_the_largest_flow_of_the_largest_client() {
        let mut flows = Flows::new();
        let (one, other, third) = (client(1), client(2), client(3));
        // Four flows of 100 are more than one of 300.
        let many: Vec<u32> = (0..4).map(|_| flows.add(one)).collect();
        let single = flows.add(other);
        assert_eq!(flows.largest(), None);
        flows.set(single, 500);
        for &flow in &many {
            flows.set(flow, 300);
        }
        flows.set(many[2], 600);
        assert_eq!(flows.largest(), Some(many[2]));
        // It shrinks, as do the others: ranks follow when they are asked for.
        flows.set(many[2], 3);
        assert_eq!(flows.largest(), Some(many[0]));
        for &flow in &many {
            flows.set(flow, 2);
        }
        assert_eq!(flows.largest(), Some(single));
        flows.set(single, 0);
        // Among those that hold little the oldest comes first.
        let young = flows.add(third);
        flows.set(young, 60);
        assert!(many.contains(&flows.largest().unwrap()));
        for &flow in &many {
            flows.set(flow, 0);
        }
        assert_eq!(flows.largest(), Some(young));
        flows.set(young, 0);
        assert_eq!(flows.largest(), None);
    }

    #[test]
    fn accepts_flows_that_turn_out_to_be_anothers() {
        let mut flows = Flows::new();
        let flow = flows.add(client(1));
        flows.set(flow, 7);
        flows.0.join(at(flow), &mut flows.1[0], client(2));
        assert_eq!(flows.largest(), Some(flow));
        assert_eq!(flows.0.clients(), 1);
        assert_eq!(flows.0.of_client(&flows.1[0], HeldFrames), 7);
        flows.0.leave(at(flow), &mut flows.1[0]);
        assert_eq!((flows.0.clients(), flows.largest()), (0, None));
        assert!(flows.0.orders.iter().all(|it| it.clients.is_empty() && it.flows.is_empty()));
    }

    #[test]
    fn names_networks_of_ipv6() {
        let of = |text: &str| Client::new(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_ne!(of("0:0:a00:1::"), of("10.0.0.1"));
    }
}
