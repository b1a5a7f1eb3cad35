//! Groups of addresses and of ports, as rules and variables write them.
//!
//! They are resolved to sets while they are read: a group is the union of its members without its
//! negated ones, and everything without them if all are negated. Refuses groups that match nothing.

use core::net::{IpAddr, Ipv4Addr};

use super::fault::{FaultKind, Refused};
use super::ranges::{self, Addresses, Number, Ports, Ranges};

/// Most levels of groups in groups. Variables do not count: they are resolved before.
pub const MAX_GROUP_DEPTH: usize = 16;
/// Most ranges of one set, those of its members counted.
pub const MAX_RANGES: usize = 65_536;

/// Looks a variable up; the name is without its `$`.
type LookUp<'a, T> = &'a dyn Fn(&str) -> Option<&'a Ranges<T>>;

/// Reads a group of addresses, or a single one.
pub(super) fn addresses(text: &str, variable: LookUp<'_, u128>) -> Result<Addresses, Refused> {
    read(text, &Reader { variable, element: address })
}

/// Reads a group of ports, or a single one.
pub(super) fn ports(text: &str, variable: LookUp<'_, u16>) -> Result<Ports, Refused> {
    read(text, &Reader { variable, element: port })
}

struct Reader<'a, T> {
    variable: LookUp<'a, T>,
    element: fn(&str) -> Result<Ranges<T>, FaultKind>,
}

fn read<T: Number>(text: &str, reader: &Reader<'_, T>) -> Result<Ranges<T>, Refused> {
    let mut left = MAX_RANGES;
    // A list need not be in brackets.
    let set = reader.group(text.trim(), 0, &mut left)?;
    if set.as_slice().is_empty() {
        return Err(FaultKind::MatchesNothing.into());
    }
    Ok(set)
}

impl<T: Number> Reader<'_, T> {
    /// A member of a group: whether it is negated, and the set.
    fn member(
        &self,
        text: &str,
        depth: usize,
        left: &mut usize,
    ) -> Result<(bool, Ranges<T>), Refused> {
        let (negated, text) = super::options::negation(text);
        let set = if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(FaultKind::Missing("]"))?;
            self.group(inner, depth + 1, left)?
        } else if let Some(name) = text.strip_prefix('$') {
            (self.variable)(name).ok_or_else(|| Refused::Variable(text.into()))?.clone()
        } else if text.eq_ignore_ascii_case("any") {
            Ranges::all()
        } else {
            (self.element)(text)?
        };
        // An empty member is charged too.
        *left = left.checked_sub(set.as_slice().len().max(1)).ok_or(FaultKind::TooMany)?;
        Ok((negated, set))
    }

    fn group(&self, text: &str, depth: usize, left: &mut usize) -> Result<Ranges<T>, Refused> {
        if depth > MAX_GROUP_DEPTH {
            return Err(FaultKind::TooDeep.into());
        }
        let (mut positive, mut negative) = (None, Vec::new());
        let mut rest = Some(text);
        while let Some(text) = rest {
            let member;
            (member, rest) = first_member(text);
            let (negated, set) = self.member(member.trim(), depth, left)?;
            let list = if negated { &mut negative } else { positive.get_or_insert_with(Vec::new) };
            list.extend_from_slice(set.as_slice());
        }
        let set = positive.map_or_else(Ranges::all, Ranges::new);
        Ok(if negative.is_empty() { set } else { set.without(&Ranges::new(negative)) })
    }
}

/// Up to the first comma outside of inner brackets, and what is behind it.
fn first_member(text: &str) -> (&str, Option<&str>) {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' => depth += 1,
            b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => return (&text[..at], Some(&text[at + 1..])),
            _ => {}
        }
    }
    (text, None)
}

/// An address, a network or a range.
fn address(text: &str) -> Result<Addresses, FaultKind> {
    let parse = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| FaultKind::Address);
    if let Some((first, last)) = text.split_once('-') {
        let (first, last) = (parse(first)?, parse(last)?);
        if first.is_ipv4() != last.is_ipv4() || first > last {
            return Err(FaultKind::Address);
        }
        return Ok(Ranges::new(vec![(ranges::number(first), ranges::number(last))]));
    }
    let Some((network, len)) = text.split_once('/') else {
        let address = ranges::number(parse(text)?);
        return Ok(Ranges::new(vec![(address, address)]));
    };
    let network = parse(network)?;
    // Of the 128 bits that an address has in a set.
    let unused: u32 = if network.is_ipv4() { 96 } else { 0 };
    let fixed = match len.trim().parse::<u32>() {
        Ok(len) if len.checked_add(unused).is_some_and(|len| len <= 128) => len + unused,
        Ok(_) => return Err(FaultKind::Address),
        Err(_) => {
            unused + netmask_len(len.trim()).filter(|_| unused > 0).ok_or(FaultKind::Address)?
        }
    };
    let host = u128::MAX.checked_shr(fixed).unwrap_or(0);
    let first = ranges::number(network) & !host;
    let set = Ranges::new(vec![(first, first | host)]);
    // `::/0` is every IPv6 address.
    Ok(if unused == 0 && fixed < 96 { set.without(&ranges::all_ipv4()) } else { set })
}

fn netmask_len(text: &str) -> Option<u32> {
    let mask = text.parse::<Ipv4Addr>().ok()?.to_bits();
    (mask.leading_ones() + mask.trailing_zeros() == 32).then_some(mask.leading_ones())
}

/// A port or a range; either end of a range may be left out.
fn port(text: &str) -> Result<Ports, FaultKind> {
    let parse = |text: &str| {
        let number = super::options::unsigned(text.trim(), u64::from(u16::MAX));
        number.ok().and_then(|number| u16::try_from(number).ok()).ok_or(FaultKind::Port)
    };
    let (first, last) = match text.split_once(':') {
        None => {
            let port = parse(text)?;
            (port, port)
        }
        Some((first, last)) => {
            let first = if first.trim().is_empty() { 0 } else { parse(first)? };
            let last = if last.trim().is_empty() { u16::MAX } else { parse(last)? };
            (first, last)
        }
    };
    if first > last {
        return Err(FaultKind::Port);
    }
    Ok(Ranges::new(vec![(first, last)]))
}
