//! Whether an interface is bridged already: a second bridge would forward every frame once more.
//!
//! Refuses nothing where the kernel does not tell who receives.

use std::time::Duration;

use super::interface::number;
use super::{Checked, system};
use crate::Error;
use crate::receivers::{self, Receiver};

/// How often, and how long apart, it is looked whether another bridge is over.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

impl Checked {
    /// A second bridge would forward every frame once more; that many look on does no harm.
    pub(super) fn refuse_bridged(&self) -> Result<(), Error> {
        if self.passive {
            return Ok(());
        }
        refuse_bridged(self.interfaces.iter().map(|interface| interface.name.as_str()))
    }

    /// As [`Self::refuse_bridged`]; one that has been killed, or taken over, may still be ending.
    pub(super) fn wait_until_free(&self) -> Result<(), Error> {
        for _ in 1..LOOKS {
            if self.refuse_bridged().is_ok() {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        self.refuse_bridged()
    }
}

/// Whether no bridge forwards by these interfaces of the calling thread's network namespace. Of two that start at the same
/// moment, and before they receive, neither is refused.
///
/// # Errors
/// [`Error::Bridged`].
pub fn refuse_bridged<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), Error> {
    let all = receivers::receivers();
    for name in names {
        let Some(number) = system::inet_socket().ok().and_then(|it| number(&it, name).ok()) else {
            continue;
        };
        let forwards = |it: &&Receiver| it.forwards && it.interface == number.cast_unsigned();
        let found: Vec<_> = all.iter().filter(forwards).copied().collect();
        if !found.is_empty() {
            let processes = receivers::processes(&found);
            return Err(Error::Bridged { interface: name.to_owned(), processes });
        }
    }
    Ok(())
}
