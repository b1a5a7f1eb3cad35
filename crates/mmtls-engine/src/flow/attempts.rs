//! Flows that only one side vouches for, in the order they came: of everybody and of each client.
//!
//! Refuses to search: flows name their neighbours, so that each can leave from where it stands.

use super::{Flow, FlowIndex};

/// The ends of a list.
#[derive(Clone, Copy, Default)]
pub(crate) struct List {
    pub(crate) first: Option<FlowIndex>,
    last: Option<FlowIndex>,
}

/// Who stands before and behind a flow.
#[derive(Clone, Copy, Default)]
pub(crate) struct Neighbours {
    before: Option<FlowIndex>,
    behind: Option<FlowIndex>,
}

/// Which list.
#[derive(Clone, Copy)]
pub(crate) enum Of {
    Everybody,
    Client,
}

type Slots<S> = [Option<Flow<S>>];

fn place<S>(slots: &mut Slots<S>, at: FlowIndex, of: Of) -> Option<&mut Neighbours> {
    let flow = slots.get_mut(at.0 as usize)?.as_mut()?;
    flow.attempt.as_mut()?.get_mut(of as usize)
}

impl List {
    /// Adds a flow at the end.
    pub(crate) fn push<S>(&mut self, slots: &mut Slots<S>, at: FlowIndex, of: Of) {
        let before = self.last;
        if let Some(own) = place(slots, at, of) {
            *own = Neighbours { before, behind: None };
        }
        match before.and_then(|it| place(slots, it, of)) {
            Some(last) => last.behind = Some(at),
            None => self.first = Some(at),
        }
        self.last = Some(at);
    }

    /// Takes a flow out.
    pub(crate) fn remove<S>(&mut self, slots: &mut Slots<S>, at: FlowIndex, of: Of) {
        let Some(&mut Neighbours { before, behind }) = place(slots, at, of) else {
            return;
        };
        match before.and_then(|it| place(slots, it, of)) {
            Some(other) => other.behind = behind,
            None => self.first = behind,
        }
        match behind.and_then(|it| place(slots, it, of)) {
            Some(other) => other.before = before,
            None => self.last = before,
        }
    }
}
