//! Sessions with Encrypted Client Hello: from the random on the wire to that of the hello inside, which their secrets have.
//!
//! Refuses to keep more than so many of them, and of hellos that wait for their lines: the older half goes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ech;
use crate::log::KeyLog;

type Random = [u8; 32];

/// Hellos in one of two generations that wait for their lines; each has some kilobytes.
const MAX_HELLOS: usize = 512;

/// The randoms of hellos that were opened, and hellos that are yet to be.
pub struct InnerRandoms {
    opened: [Opened; 2],
    waiting: [HashMap<Random, Arc<[u8]>>; 2],
    max_opened: usize,
}

#[derive(Default)]
struct Opened {
    inner: HashMap<Random, Random>,
    outer: HashMap<Random, Random>,
}

impl InnerRandoms {
    /// None yet; for so many sessions in each of two generations.
    #[must_use]
    pub fn new(max_opened: usize) -> Self {
        Self { opened: Default::default(), waiting: Default::default(), max_opened }
    }

    /// The random inside the hello with this one.
    #[must_use]
    pub fn inner(&self, outer: &Random) -> Option<Random> {
        self.opened.iter().find_map(|it| it.inner.get(outer)).copied()
    }

    /// The random on the wire of the session with this one inside.
    pub(crate) fn outer(&self, inner: &Random) -> Option<Random> {
        self.opened.iter().find_map(|it| it.outer.get(inner)).copied()
    }

    /// A session whose first ClientHello is known: what is inside is found with the lines of these logs, or when they come.
    pub fn open(&mut self, logs: &[KeyLog], outer: Random, hello: &Arc<[u8]>) {
        if self.inner(&outer).is_some() {
            return;
        }
        match lines(logs, &outer) {
            Some((config, secret)) => {
                self.waiting.iter_mut().for_each(|it| drop(it.remove(&outer)));
                if let Some(inner) = ech::inner_random(hello, config, secret) {
                    self.note(outer, inner);
                }
            }
            None => {
                if self.waiting[0].len() >= MAX_HELLOS {
                    self.waiting[1] = core::mem::take(&mut self.waiting[0]);
                }
                self.waiting[0].insert(outer, Arc::clone(hello));
            }
        }
    }

    /// A line of that hello has come: the random inside, where that is news.
    pub(crate) fn open_waiting(&mut self, logs: &[KeyLog], outer: Random) -> Option<Random> {
        let hello = self.waiting.iter().find_map(|it| it.get(&outer)).cloned()?;
        self.open(logs, outer, &hello);
        self.inner(&outer)
    }

    /// The session has keys under the random on the wire: there is nothing inside, or the server does not open it.
    pub(crate) fn forget(&mut self, outer: &Random) {
        self.waiting.iter_mut().for_each(|it| drop(it.remove(outer)));
    }

    fn note(&mut self, outer: Random, inner: Random) {
        if self.opened[0].inner.len() >= self.max_opened {
            self.opened[1] = core::mem::take(&mut self.opened[0]);
        }
        self.opened[0].inner.insert(outer, inner);
        self.opened[0].outer.insert(inner, outer);
    }
}

/// Configuration and shared secret, where both are there.
fn lines<'a>(logs: &'a [KeyLog], outer: &Random) -> Option<(&'a [u8], &'a [u8])> {
    let of = |half: usize| logs.iter().find_map(|log| log.ech(outer)[half]);
    Some((of(0)?, of(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_to_keep_hellos_and_randoms_without_end() {
        let mut randoms = InnerRandoms::new(3);
        let random = |number: u32| {
            let mut random = [0; 32];
            random[..4].copy_from_slice(&number.to_be_bytes());
            random
        };
        let hello: Arc<[u8]> = mmtls_testkit::ech::hello().into();
        for number in 0..5000 {
            randoms.open(&[], random(number), &hello);
            randoms.note(random(number), random(number + 9000));
            assert!(randoms.waiting.iter().all(|it| it.len() <= MAX_HELLOS));
            assert!(randoms.opened.iter().all(|it| it.inner.len() <= 3 && it.outer.len() <= 3));
        }
        assert_eq!(randoms.inner(&random(4999)), Some(random(13_999)));
        assert_eq!(randoms.outer(&random(13_999)), Some(random(4999)));
        assert_eq!(randoms.inner(&random(1)), None);
        randoms.open(&[], random(7000), &hello);
        randoms.forget(&random(7000));
        assert!(randoms.waiting.iter().all(|it| !it.contains_key(&random(7000))));
    }
}
