//! A regular expression that is searched within bounds, wherever in the subject it begins.
//!
//! PCRE2 counts the steps of each place anew where a match may begin (`LIMIT_MATCH`), so that a search over 64 KB may
//! take 65,536 times as many as a rule asks for: seconds. So a long subject is searched with few steps for each place
//! first. Where one place needs more, each is tried by itself, with as many as the rule asks for, until the time is up.
//!
//! Refuses to go on with that beyond [`MOST_TIME`]: such a search is given up, as one at PCRE2's own limits is.

use core::time::Duration;
use std::sync::OnceLock;

use pcre2::bytes::{CaptureLocations, Regex, RegexBuilder};
use rustix::time::{ClockId, clock_gettime};

use super::pattern::{self, Pattern};
use super::unusable::Unusable;
use crate::rules::pcre::Pcre;

/// Steps and depth of a search, as Suricata sets them unless its configuration says otherwise.
const LIMITS: &str = "(*LIMIT_MATCH=3500)(*LIMIT_DEPTH=1500)";
/// The same for each place of a subject that is longer than [`SHORT`]: no more than some 10 million in 64 KB.
const FEW: &str = "(*LIMIT_MATCH=150)(*LIMIT_DEPTH=150)";
/// Bytes that may be searched with all steps: no more than some 2 million.
const SHORT: usize = 600;
/// What is tied to a place fails there, if it does, before all that follows was searched for a byte that it needs.
const TIED: &str = "(*NO_START_OPT)";
/// How long places are tried one by one. Then a search has cost what an application of a rule may.
const MOST_TIME: Duration = Duration::from_millis(20);
/// Places that are tried before the clock is read again.
const PLACES: usize = 64;
/// How many nanoseconds count as one byte looked at: a search that looks at each byte once is faster.
const NS_PER_BYTE: u128 = 20;

/// An expression that was compiled, and what else it takes to search it within bounds.
#[derive(Debug)]
pub(super) struct Bounded {
    regex: Regex,
    /// Where it may begin at one place only, no others are tried.
    is_tied: bool,
    /// Each place by itself would be another search.
    is_of_search: bool,
    parts: Parts,
    few: OnceLock<Option<Regex>>,
    at_place: OnceLock<Option<Regex>>,
}

/// What it is compiled of.
#[derive(Debug)]
struct Parts {
    flags: Flags,
    limits: &'static str,
    /// What may only stand at the start of an expression, and the rest.
    settings: Box<str>,
    text: Box<str>,
}

#[derive(Clone, Copy, Debug)]
struct Flags {
    caseless: bool,
    multi_line: bool,
    dot_all: bool,
    extended: bool,
}

/// Of this thread: what other threads take must not make a rule late.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Where a search has found something.
pub(super) struct Found<'a> {
    pub(super) start: usize,
    pub(super) end: usize,
    /// What has found it, begun where.
    regex: &'a Regex,
    from: usize,
}

/// What came of a search.
pub(super) struct Searched<'a> {
    /// `Err`: it was given up.
    pub(super) found: Result<Option<Found<'a>>, GivenUp>,
    /// What it cost by the time that it took, in bytes looked at.
    pub(super) work: usize,
}

/// A search has reached a limit.
pub(super) struct GivenUp;

impl Bounded {
    pub(super) fn new(pcre: &Pcre, pattern: &Pattern) -> Result<Self, Unusable> {
        let (settings, text) = pattern::split_settings(&pattern.text);
        let flags = Flags {
            caseless: pcre.caseless,
            multi_line: pcre.multi_line,
            dot_all: pcre.dot_all,
            extended: pcre.extended,
        };
        let limits = if pcre.overrides_limit { "" } else { LIMITS };
        let is_bounded = pattern.tied.as_ref().is_some_and(|extent| !extent.is_everything());
        let tied = if is_bounded { TIED } else { "" };
        let text = format!("{}{text}", if pcre.ungreedy { "(?U)" } else { "" });
        let mut regex = flags.compile(&format!("{limits}{tied}{settings}{text}"))?;
        if pcre.anchored {
            // Compiled by itself first: in parentheses, a faulty expression could become a right one.
            regex = flags.compile(&format!("{limits}{tied}{settings}{}", flags.at_place(&text)))?;
        }
        let parts = Parts { flags, limits, settings: settings.into(), text: text.into() };
        Ok(Self {
            regex,
            is_tied: pattern.tied.is_some(),
            is_of_search: pattern.nature.is_of_search,
            parts,
            few: OnceLock::new(),
            at_place: OnceLock::new(),
        })
    }

    /// The first match that begins at `from` or behind it.
    pub(super) fn search(&self, subject: &[u8], from: usize) -> Searched<'_> {
        let rest = subject.len().saturating_sub(from);
        if self.is_tied || rest <= SHORT {
            return Searched { found: Found::by(&self.regex, subject, from), work: 0 };
        }
        let few =
            self.compiled(&self.few, |parts| format!("{FEW}{}{}", parts.settings, parts.text));
        let begun = processor_time();
        let mut found = few.ok_or(GivenUp).and_then(|few| Found::by(few, subject, from));
        if found.is_err() && !self.is_of_search {
            found = self.place_by_place(subject, from, begun);
        }
        let work = processor_time().saturating_sub(begun).as_nanos() / NS_PER_BYTE;
        Searched { found, work: usize::try_from(work).unwrap_or(usize::MAX) }
    }

    /// As [`Self::search`], with as many steps for each place as the rule asks for.
    fn place_by_place(
        &self,
        subject: &[u8],
        from: usize,
        begun: Duration,
    ) -> Result<Option<Found<'_>>, GivenUp> {
        let at_place = self.compiled(&self.at_place, |parts| {
            let Parts { flags, limits, settings, text } = parts;
            format!("{limits}{TIED}{settings}{}", flags.at_place(text))
        });
        let regex = at_place.ok_or(GivenUp)?;
        for place in from..=subject.len() {
            let is_due = (place - from).is_multiple_of(PLACES);
            if is_due && processor_time().saturating_sub(begun) > MOST_TIME {
                return Err(GivenUp);
            }
            if let Some(found) = Found::by(regex, subject, place)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn compiled<'a>(
        &'a self,
        place: &'a OnceLock<Option<Regex>>,
        text: impl Fn(&Parts) -> String,
    ) -> Option<&'a Regex> {
        place.get_or_init(|| self.parts.flags.compile(&text(&self.parts)).ok()).as_ref()
    }

    /// The names of its groups, the whole match first.
    pub(super) fn names(&self) -> &[Option<String>] {
        self.regex.capture_names()
    }
}

impl Found<'_> {
    fn by<'a>(regex: &'a Regex, subject: &[u8], from: usize) -> Result<Option<Found<'a>>, GivenUp> {
        let found = regex.find_at(subject, from).map_err(|_| GivenUp)?;
        Ok(found.map(|it| Found { start: it.start(), end: it.end(), regex, from }))
    }

    /// What its groups hold.
    pub(super) fn groups(&self, subject: &[u8]) -> Option<CaptureLocations> {
        let mut groups = self.regex.capture_locations();
        let read = self.regex.captures_read_at(&mut groups, subject, self.from);
        matches!(read, Ok(Some(_))).then_some(groups)
    }
}

impl Flags {
    fn compile(self, text: &str) -> Result<Regex, Unusable> {
        RegexBuilder::new()
            .caseless(self.caseless)
            .multi_line(self.multi_line)
            .dotall(self.dot_all)
            .extended(self.extended)
            .jit_if_available(true)
            .build(text)
            .map_err(|error| Unusable::Expression(error.to_string().into()))
    }

    /// An expression that begins where the search does.
    fn at_place(self, text: &str) -> String {
        // The line end ends a comment.
        format!("\\G(?:{text}{}", if self.extended { "\n)" } else { ")" })
    }
}
