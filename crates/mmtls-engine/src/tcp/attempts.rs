//! Flows that only one side vouches for, in the order they came, of everybody and of each client; and of each
//! client those that both vouch for; and those that are over.
//!
//! Refuses to search: flows name their neighbours, so that each can leave from where it stands.

use super::connection::Flow;
use super::links::{FlowIndex, List, Neighbours, Standing};

/// Which list.
#[derive(Clone, Copy)]
pub(crate) enum Of {
    Everybody,
    Client,
    /// Of those for which both sides vouch, whichever it is in.
    Proven,
}

type Slots<P> = [Option<Flow<P>>];

fn neighbours<P>(slots: &mut Slots<P>, at: FlowIndex, of: Of) -> Option<&mut Neighbours> {
    let flow = slots.get_mut(at.slot())?.as_mut()?;
    match (of, &mut flow.standing) {
        (Of::Everybody | Of::Client, Standing::Attempt(own)) => own.get_mut(of as usize),
        (Of::Proven, Standing::Settled(own) | Standing::Closed(own)) => Some(own),
        _ => None,
    }
}

impl List {
    /// Adds a flow at the end.
    pub(crate) fn push<P>(&mut self, slots: &mut Slots<P>, at: FlowIndex, of: Of) {
        let before = self.last;
        if let Some(own) = neighbours(slots, at, of) {
            *own = Neighbours { before, behind: None };
        }
        match before.and_then(|it| neighbours(slots, it, of)) {
            Some(last) => last.behind = Some(at),
            None => self.first = Some(at),
        }
        self.last = Some(at);
    }

    /// The flows from the first one on.
    pub(crate) fn iter<P>(&self, slots: &Slots<P>, of: Of) -> impl Iterator<Item = FlowIndex> {
        core::iter::successors(self.first, move |at| {
            let flow = slots.get(at.slot())?.as_ref()?;
            match (of, &flow.standing) {
                (Of::Everybody | Of::Client, Standing::Attempt(own)) => {
                    own.get(of as usize)?.behind
                }
                (Of::Proven, Standing::Settled(own) | Standing::Closed(own)) => own.behind,
                _ => None,
            }
        })
    }

    /// Takes a flow out.
    pub(crate) fn remove<P>(&mut self, slots: &mut Slots<P>, at: FlowIndex, of: Of) {
        let Some(&mut Neighbours { before, behind }) = neighbours(slots, at, of) else {
            return;
        };
        match before.and_then(|it| neighbours(slots, it, of)) {
            Some(other) => other.behind = behind,
            None => self.first = behind,
        }
        match behind.and_then(|it| neighbours(slots, it, of)) {
            Some(other) => other.before = before,
            None => self.last = before,
        }
    }
}
