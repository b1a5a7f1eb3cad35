//! What several connections of the key channel have delivered for the same thing: it is tried which
//! of it is right, and the senders look alike before.
//!
//! Refuses to let one connection displace what another has delivered, or one end of a session what the other end has; and to
//! try more than a fixed number of deliveries for one thing: each costs trials.

/// Most of them. One secret of early data may belong to eight suites, and so many come of one connection.
const MAX_ITEMS: usize = 16;

/// What one connection may deliver for one thing; an endpoint has no reason for more.
const MAX_OF_SOURCE: u8 = 8;

/// Connections of each of [`KeyEnd`] that may deliver for one thing.
const MAX_SOURCES: usize = 32;

/// Whose keys they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyEnd {
    Client,
    Server,
    /// Somebody else who is trusted, or a key log.
    Other,
}

impl KeyEnd {
    pub(crate) const COUNT: usize = 3;
}

/// Where keys came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeySource {
    /// Which connection of the key channel; 0 where there is none.
    pub(crate) connection: u64,
    pub(crate) end: KeyEnd,
}

/// What came, by connection, oldest first. One pointer where nothing has come: every session has several of these.
pub(crate) struct Candidates<T>(Option<Box<Came<T>>>);

struct Came<T> {
    items: Vec<(KeySource, T)>,
    /// How many came of whom, whether they are here still or not.
    delivered: Vec<(KeySource, u8)>,
}

impl<T> Default for Candidates<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Candidates<T> {
    fn items(&self) -> &[(KeySource, T)] {
        self.0.as_ref().map_or(&[], |came| &came.items)
    }

    fn items_mut(&mut self) -> Option<&mut Vec<(KeySource, T)>> {
        self.0.as_mut().map(|came| &mut came.items)
    }

    pub(crate) fn len(&self) -> usize {
        self.items().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items().is_empty()
    }

    /// Whether nothing has come.
    pub(crate) fn is_unused(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        self.items().get(at).map(|(_, item)| item)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.items_mut()?.get_mut(at).map(|(_, item)| item)
    }

    /// The connection that this one came over.
    pub(crate) fn source(&self, at: usize) -> Option<u64> {
        self.items().get(at).map(|(of, _)| of.connection)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items().iter().map(|(_, item)| item)
    }

    /// With where they came from.
    pub(crate) fn into_items(self) -> Vec<(KeySource, T)> {
        self.0.map_or_else(Vec::new, |came| came.items)
    }

    /// The connections whose deliveries are here, each once.
    pub(crate) fn sources(&self) -> impl Iterator<Item = u64> {
        let items = self.items();
        let first = |at: usize| items[..at].iter().all(|(of, _)| *of != items[at].0);
        (0..items.len()).filter(move |at| first(*at)).map(|at| items[at].0.connection)
    }

    /// Takes one out; the order of the others does not matter any more.
    pub(crate) fn take(&mut self, at: usize) -> Option<T> {
        let items = self.items_mut()?;
        (at < items.len()).then(|| items.swap_remove(at).1)
    }

    /// This one is the right one. Returns the others.
    pub(crate) fn keep_only(&mut self, at: usize) -> Vec<(KeySource, T)> {
        match self.items_mut() {
            Some(items) if at < items.len() => {
                items.swap(0, at);
                items.split_off(1)
            }
            _ => Vec::new(),
        }
    }

    /// Whether one more of this connection would be taken.
    pub(crate) fn takes(&self, source: KeySource) -> bool {
        self.0.as_ref().is_none_or(|came| came.takes(source))
    }

    /// Adds one at the end and returns the one that had to go for it: of the end that has the most of them, there of the
    /// connection that has the most, its oldest.
    ///
    /// # Errors
    /// The new one, where it is one too many.
    pub(crate) fn add(&mut self, source: KeySource, item: T) -> Result<Option<T>, T> {
        self.came().add(source, item, 0)
    }

    /// As [`Self::add`], but the first one, which is the right one, does not go for any other.
    pub(crate) fn add_behind_first(&mut self, source: KeySource, item: T) -> Result<Option<T>, T> {
        self.came().add(source, item, 1)
    }

    fn came(&mut self) -> &mut Came<T> {
        let none =
            || Box::new(Came { items: Vec::with_capacity(1), delivered: Vec::with_capacity(1) });
        self.0.get_or_insert_with(none)
    }
}

impl<T> Came<T> {
    fn takes(&self, source: KeySource) -> bool {
        match self.delivered.iter().find(|(of, _)| *of == source) {
            Some((_, count)) => *count < MAX_OF_SOURCE,
            None => {
                let of_end = |(of, _): &&(KeySource, u8)| of.end == source.end;
                self.delivered.iter().filter(of_end).count() < MAX_SOURCES
            }
        }
    }

    /// `staying`: so many in front do not go for any other.
    fn add(&mut self, source: KeySource, item: T, staying: usize) -> Result<Option<T>, T> {
        if !self.takes(source) {
            return Err(item);
        }
        match self.delivered.iter_mut().find(|(of, _)| *of == source) {
            Some((_, count)) => *count += 1,
            None => self.delivered.push((source, 1)),
        }
        let mut displaced = None;
        if self.items.len() >= MAX_ITEMS {
            // The new one counts: equals do not displace each other in turn.
            let count = |is_alike: &dyn Fn(&KeySource) -> bool| {
                let here = self.items.iter().filter(|(of, _)| is_alike(of)).count();
                here + usize::from(is_alike(&source))
            };
            let weight =
                |(of, _): &(KeySource, T)| (count(&|it| it.end == of.end), count(&|it| it == of));
            let may_go = || self.items.iter().enumerate().skip(staying);
            let most = may_go().map(|(_, item)| weight(item)).max();
            let oldest = may_go().find(|(_, item)| Some(weight(item)) == most).map(|(at, _)| at);
            displaced = oldest.map(|at| self.items.remove(at).1);
        }
        self.items.push((source, item));
        Ok(displaced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(connection: u64) -> KeySource {
        KeySource { connection, end: KeyEnd::Client }
    }

    #[test]
    fn refuses_to_let_one_connection_displace_another() {
        let mut all = Candidates::default();
        for number in 0..8 {
            assert_eq!(all.add(client(1), number), Ok(None));
        }
        assert_eq!(all.add(client(1), 8), Err(8));
        for number in 10..18 {
            assert_eq!(all.add(client(2), number), Ok(None));
        }
        // They have eight each: the third one's come all the same.
        assert_eq!(all.add(client(3), 20), Ok(Some(0)));
        assert_eq!(all.add(client(3), 21), Ok(Some(10)));
        // Others displace those that have more.
        for source in 4..10 {
            assert!(all.add(client(source), 100 + source as i32).is_ok());
        }
        assert!(all.iter().any(|it| *it == 20) && all.iter().any(|it| *it == 21));
        assert_eq!(all.len(), MAX_ITEMS);
    }

    #[test]
    fn refuses_more_than_trials_are_worth() {
        let mut all = Candidates::default();
        let mut taken = 0;
        for source in 0..1000 {
            for _ in 0..100 {
                taken += usize::from(all.add(client(source), ()).is_ok());
            }
        }
        assert_eq!(taken, 256);
        // The other end's are taken all the same.
        assert!(all.add(KeySource { connection: 0, end: KeyEnd::Server }, ()).is_ok());
    }

    #[test]
    fn refuses_to_let_one_end_displace_the_other() {
        let mut all = Candidates::default();
        let server = KeySource { connection: 100, end: KeyEnd::Server };
        for number in 0..3 {
            assert_eq!(all.add(server, number), Ok(None));
        }
        for connection in 0..32 {
            assert!(all.add(client(connection), 1000).is_ok());
        }
        assert_eq!(all.iter().filter(|it| **it < 3).count(), 3);
    }
}
