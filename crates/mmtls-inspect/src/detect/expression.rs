//! `pcre`: regular expressions, compiled by PCRE2, and searched within the limits that Suricata sets.
//!
//! Refuses to report a match that more bytes could undo, and to search without a limit of steps,
//! except where a rule asks for that of PCRE2 itself.

use super::extent::Extent;
use super::memory::Memory;
use super::pattern::{Nature, Pattern, Reach};
use super::search_limit::{Bounded, Found};
use super::unusable::Unusable;
use super::view::View;
use crate::rules::pcre::{Pcre, Scope};

/// What a search costs that was given up, besides the bytes that it was started on.
const GIVEN_UP_WORK: usize = 3500;
/// What a search costs, besides the bytes looked at.
const SEARCH_WORK: usize = 64;

/// A regular expression, ready to be searched.
#[derive(Debug)]
pub(super) struct Expression {
    regex: Bounded,
    nature: Nature,
    negated: bool,
    relative: bool,
    /// Which group is kept, and as what.
    captures: Vec<(usize, Scope, Box<str>)>,
    /// The match must not become longer or shorter as more bytes follow: something depends on its end.
    needs_end: bool,
    /// What it extends over, where it is tied to a place.
    tied: Option<Extent>,
}

/// Where an expression matches.
pub(super) struct Match {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Expression {
    /// `is_followed`: the place where it matches counts for a check behind it.
    pub(super) fn new(pcre: &Pcre, is_followed: bool) -> Result<Self, Unusable> {
        let pattern = Pattern::new(pcre);
        if pcre.dollar_end_only && pattern.has_own_options {
            return Err(Unusable::DollarEndOnly);
        }
        let regex = Bounded::new(pcre, &pattern)?;
        let captures = captures(pcre, &regex)?;
        let needs_end = is_followed || !captures.is_empty();
        let (negated, relative) = (pcre.negated, pcre.relative);
        let Pattern { nature, tied, .. } = pattern;
        Ok(Self { regex, nature, negated, relative, captures, needs_end, tied })
    }

    pub(super) fn is_relative(&self) -> bool {
        self.relative
    }

    /// More bytes never undo a match.
    pub(super) fn is_monotone(&self) -> bool {
        let Nature { looks_ahead, is_variable, .. } = self.nature;
        !(self.negated || looks_ahead || self.needs_end && is_variable)
    }

    /// The first match, not before `not_before`, behind one that ended at `place`.
    pub(super) fn find(
        &self,
        place: u64,
        not_before: u64,
        view: View<'_>,
        memory: &mut Memory,
    ) -> Option<Match> {
        if !view.is_whole && !self.is_monotone() {
            return None;
        }
        let (base, from) = self.base(place, view)?;
        let from = from.max(not_before);
        let subject = view.tail(base)?;
        let offset = usize::try_from(from.checked_sub(base)?).ok()?;
        let (start, end) = self.search(subject, offset, memory)?;
        let at = |offset: usize| base.saturating_add(offset as u64);
        Some(Match { start: at(start), end: at(end) })
    }

    /// Whether it is certain that it matches nowhere behind a match that ended at `place`.
    pub(super) fn is_absent(&self, place: u64, view: View<'_>, memory: &mut Memory) -> bool {
        let Some((base, from)) = self.base(place, view) else {
            return false;
        };
        // A place where it may match could be among the bytes that are lost. Where those do not count, what stood before the
        // first byte still does.
        let looks_back = self.nature.looks_back != Reach::Nothing;
        let is_lost = view.start > 0 && (looks_back || !view.starts_here);
        let is_known = view.is_whole && (self.relative || !is_lost);
        let offset = usize::try_from(from.saturating_sub(base)).unwrap_or(usize::MAX);
        let subject = view.tail(base).filter(|subject| is_known && offset <= subject.len());
        let Some(subject) = subject else {
            return false;
        };
        let reach = self.reach(subject);
        // What would be behind these bytes comes still.
        if view.goes_on && self.relative && self.tied.is_some() && reach >= subject.len() {
            return false;
        }
        if !memory.spend(SEARCH_WORK + reach) {
            return false;
        }
        let searched = self.regex.search(subject, offset);
        let within = memory.spend(searched.work);
        match searched.found {
            Ok(found) => found.is_none() && within,
            Err(_) => {
                memory.limit_hit();
                memory.spend(GIVEN_UP_WORK);
                false
            }
        }
    }

    /// Where the subject starts, and the first byte where a match may start.
    fn base(&self, place: u64, view: View<'_>) -> Option<(u64, u64)> {
        if self.relative {
            return Some((place, place));
        }
        // The bytes at hand do not begin where the buffer does.
        match self.nature.looks_back {
            _ if view.start == 0 => Some((0, 0)),
            Reach::Nothing => Some((view.start, view.start)),
            Reach::Byte => Some((view.start, view.start.saturating_add(1))),
            Reach::Far => None,
        }
    }

    /// How many of these bytes a search that finds nothing has looked at, at most.
    fn reach(&self, subject: &[u8]) -> usize {
        self.tied.as_ref().map_or(subject.len(), |extent| extent.over(subject))
    }

    fn search(&self, subject: &[u8], from: usize, memory: &mut Memory) -> Option<(usize, usize)> {
        let rest = subject.get(from..)?;
        if !memory.spend(SEARCH_WORK) {
            return None;
        }
        // It is started on every byte up to the one where it matches.
        let searched = self.regex.search(subject, from);
        let (found, seen) = match searched.found {
            Ok(Some(found)) => {
                let seen = found.end.saturating_sub(from);
                (Some(found), seen)
            }
            Ok(None) => (None, self.reach(rest)),
            Err(_) => {
                memory.limit_hit();
                (None, self.reach(rest) + GIVEN_UP_WORK)
            }
        };
        let seen = seen.max(searched.work);
        if !memory.spend(seen) {
            return None;
        }
        let found = found?;
        if !self.captures.is_empty() {
            if !memory.spend(seen) {
                return None;
            }
            self.capture(&found, subject, memory);
        }
        Some((found.start, found.end))
    }

    fn capture(&self, found: &Found<'_>, subject: &[u8], memory: &mut Memory) {
        let Some(groups) = found.groups(subject) else {
            return;
        };
        for (group, scope, name) in &self.captures {
            let value = groups.get(*group).and_then(|(start, end)| subject.get(start..end));
            if let Some(value) = value {
                memory.capture(*scope, name, value);
            }
        }
    }
}

/// The numbers of the groups that are kept. An expression without any group keeps nothing, as in
/// Suricata.
fn captures(pcre: &Pcre, regex: &Bounded) -> Result<Vec<(usize, Scope, Box<str>)>, Unusable> {
    let names = regex.names();
    let there = names.len().saturating_sub(1);
    let wanted = pcre.captures.len();
    if there > 0 && there < wanted {
        return Err(Unusable::Groups { wanted, there });
    }
    let numbered = pcre.captures.iter().enumerate().filter_map(|(index, capture)| {
        let group = match &capture.group {
            Some(group) => names.iter().position(|name| name.as_deref() == Some(group))?,
            None => index + 1,
        };
        Some((group, capture.scope, capture.name.clone()))
    });
    Ok(numbered.filter(|(group, ..)| *group <= there).collect())
}
