//! Which interfaces are down or without a carrier, when that is told, and how often it has happened.
//!
//! A socket says that its interface is down; that nobody is at the other end of the cable it does not say, and takes frames all the
//! same. So links are looked at at each tick. Refuses to tell an outage twice.

use std::time::{Duration, Instant};

use mmtls_packet_io::{Error, Port, Ports};

/// An interface that was down less than so long ago is still in the same outage.
const DOWN_AGAIN: Duration = Duration::from_secs(1);

/// The interfaces of both ports.
#[derive(Default)]
pub struct Links {
    /// By port, what was down when it was looked at last.
    down: [Option<Down>; 2],
    /// When each interface was found down last.
    last: Vec<(String, Instant)>,
    downs: u64,
}

/// An interface that is down.
struct Down {
    interface: String,
    /// What was down from the beginning is not told, unless its socket says so.
    is_told: bool,
}

impl Links {
    /// What is down from the beginning says who opens the ports.
    pub fn new(ports: &impl Ports) -> Self {
        let down = Port::BOTH.map(|port| {
            let interface = interface(&ports.check_link(port).err()?)?;
            Some(Down { interface, is_told: false })
        });
        Self { down, ..Self::default() }
    }

    /// How often an interface went down.
    pub fn downs(&self) -> u64 {
        self.downs
    }

    /// By port, whether it is down.
    pub fn are_down(&self) -> [bool; 2] {
        self.down.each_ref().map(Option::is_some)
    }

    /// A socket says that its interface is down, as it does for every frame while that is so. What is to be told, if anything.
    pub fn found_down(&mut self, error: &Error, now: Instant) -> Option<String> {
        let name = interface(error)?;
        let mut is_known = false;
        for down in self.down.iter_mut().flatten().filter(|it| it.interface == name) {
            is_known |= std::mem::replace(&mut down.is_told, true);
        }
        let is_same = match self.last.iter_mut().find(|(it, _)| *it == name) {
            Some((_, last)) => {
                now.saturating_duration_since(std::mem::replace(last, now)) <= DOWN_AGAIN
            }
            None => {
                self.last.push((name, now));
                false
            }
        };
        if is_known || is_same {
            return None;
        }
        self.downs += 1;
        Some(format!("{error}; going on when it is up again"))
    }

    /// Looks at both ports. What is to be told.
    pub fn look(&mut self, ports: &impl Ports, now: Instant) -> Vec<String> {
        let mut told = Vec::new();
        for (at, port) in Port::BOTH.into_iter().enumerate() {
            match ports.check_link(port) {
                Err(error) => {
                    if self.down[at].is_none() {
                        told.extend(self.found_down(&error, now));
                        let interface = interface(&error);
                        self.down[at] =
                            interface.map(|interface| Down { interface, is_told: true });
                    }
                }
                Ok(()) => {
                    let Some(Down { interface, .. }) = self.down[at].take() else { continue };
                    // The next outage is another one, since that this is over is told.
                    self.last.retain(|(it, _)| *it != interface);
                    // Of a passive monitor both may be one.
                    if self.down.iter().flatten().all(|it| it.interface != interface) {
                        told.push(format!("{interface} is up again"));
                    }
                }
            }
        }
        told
    }
}

/// The interface that an error says to be down.
fn interface(error: &Error) -> Option<String> {
    match error {
        Error::InterfaceDown { interface } | Error::NoCarrier { interface } => {
            Some(interface.clone())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use mmtls_packet_io::memory::{self, Link};

    use super::*;

    /// What is told last is how it is.
    #[test]
    fn tells_of_an_outage_right_behind_another_one() {
        let (ports, network) = memory::pair(8, 8).unwrap();
        let (mut links, begun) = (Links::new(&ports), Instant::now());
        for (ms, link, told) in [
            (0, Link::Down, Some("left is down")),
            (250, Link::Down, None),
            (500, Link::Up, Some("left is up again")),
            (750, Link::Down, Some("left is down")),
            (1000, Link::Down, None),
        ] {
            network.set_link(Port::Left, link);
            let found = links.look(&ports, begun + Duration::from_millis(ms));
            let is_so = found.first().zip(told).is_some_and(|(it, told)| it.starts_with(told));
            assert!(is_so || found.is_empty() && told.is_none(), "{ms}: {found:?}");
        }
        assert_eq!((links.downs(), links.are_down()), (2, [true, false]));
    }
}
