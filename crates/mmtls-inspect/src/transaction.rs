//! Transactions: a request, its response, and what reports need of both.
//!
//! The one place where requests wait for their responses: in order for HTTP/1, under the number of
//! their stream for HTTP/2. Refuses to keep more than a cap of them, or of their text; of what is
//! beyond it only what the framing of responses depends on is kept.

use std::collections::VecDeque;

/// Most requests whose text is kept until the response comes.
pub const MAX_WAITING: usize = 256;
/// Most bytes of text in them together; long targets in a deep pipeline are an attack on memory.
pub const MAX_WAITING_BYTES: usize = 32 << 10;
/// Most runs of alike requests behind those. Ordinary pipelining is one run.
const MAX_FORGOTTEN_RUNS: usize = 768;
/// Most bytes of text that the streams of an HTTP/2 connection keep together.
pub(crate) const MAX_STREAM_TEXT: usize = 256 << 10;
const MAX_URL: usize = 4096;
const MAX_TEXT: usize = 512;
const MAX_METHOD: usize = 32;

/// A version of HTTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2.
    Http2,
}

impl Version {
    /// As in a start line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }

    pub(crate) const fn http1(minor: u8) -> Self {
        match minor {
            0 => Self::Http10,
            _ => Self::Http11,
        }
    }
}

/// A request and its response, as far as they were seen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    /// Which one of the connection, from 0. A response whose request is not known has none.
    pub id: Option<u64>,
    /// The stream of HTTP/2.
    pub stream_id: Option<u32>,
    /// Absent when the response was not asked for, or what was known of the request had to be
    /// forgotten.
    pub request: Option<Request>,
    /// Absent until the head of the final response was seen.
    pub response: Option<Response>,
    /// Its client has reset the stream; what the server has sent by then may still come.
    pub is_reset: bool,
}

impl Transaction {
    /// Bytes of text that are kept of the request.
    pub(crate) fn text_bytes(&self) -> usize {
        self.request.as_ref().map_or(0, Request::text_bytes)
    }
}

/// What is kept of a request. Text is cut where it is long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// As sent; methods are case-sensitive.
    pub method: Box<str>,
    /// The request target (RFC 9112, section 3.2), or `:path`.
    pub target: Box<str>,
    /// Host field, or `:authority`.
    pub host: Option<Box<str>>,
    /// User-Agent field.
    pub user_agent: Option<Box<str>>,
    /// Content-Type field.
    pub content_type: Option<Box<str>>,
    /// Content-Length, unless faulty or overridden.
    pub content_length: Option<u64>,
    /// Version.
    pub version: Version,
    /// Body bytes that were seen, transfer coding removed.
    pub body_bytes: u64,
    /// It was seen to its end.
    pub complete: bool,
}

/// What is kept of a final response. Text is cut where it is long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Reason phrase; may be empty.
    pub reason: Box<str>,
    /// Content-Type field.
    pub content_type: Option<Box<str>>,
    /// Content-Encoding field; the last one where there are several.
    pub content_encoding: Option<Box<str>>,
    /// Content-Length, unless faulty or overridden.
    pub content_length: Option<u64>,
    /// Version.
    pub version: Version,
    /// Body bytes that were seen or skipped, transfer coding removed.
    pub body_bytes: u64,
    /// It was seen to its end.
    pub complete: bool,
    /// A request was waiting for it.
    pub solicited: bool,
}

impl Request {
    pub(crate) fn new(method: &str, target: &str, version: Version) -> Self {
        Self {
            method: cut(method, MAX_METHOD).into(),
            target: cut(target, MAX_URL).into(),
            host: None,
            user_agent: None,
            content_type: None,
            content_length: None,
            version,
            body_bytes: 0,
            complete: false,
        }
    }

    fn text_bytes(&self) -> usize {
        let optional = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        self.method.len()
            + self.target.len()
            + optional(&self.host)
            + optional(&self.user_agent)
            + optional(&self.content_type)
    }
}

impl Response {
    pub(crate) fn new(status: u16, reason: &str, version: Version) -> Self {
        Self {
            status,
            reason: cut(reason, MAX_TEXT).into(),
            content_type: None,
            content_encoding: None,
            content_length: None,
            version,
            body_bytes: 0,
            complete: false,
            solicited: false,
        }
    }
}

/// What a request means for its response (RFC 9112, section 6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expects {
    Ordinary,
    Upgrade,
    Head,
    Connect,
}

/// Requests without a final response, oldest first.
#[derive(Default)]
pub(crate) struct Transactions {
    waiting: VecDeque<(Box<Transaction>, Expects)>,
    /// Bytes of text in them.
    text_bytes: usize,
    /// Requests behind them of which nothing else is kept, alike neighbours counted together.
    forgotten: VecDeque<(Expects, u32)>,
    /// There were too many: responses belong to nobody.
    unmatched: bool,
    next_id: u64,
}

/// Where a request went.
pub(crate) enum Queued {
    /// It waits, at the end of the queue.
    Kept,
    /// Its response will be told apart, but not known as its.
    Forgotten(Box<Transaction>),
    /// From here on responses are not matched to requests any more.
    TooDeep(Box<Transaction>),
}

/// Whom a response answers.
pub(crate) struct Answered {
    pub(crate) transaction: Box<Transaction>,
    pub(crate) expects: Expects,
    pub(crate) solicited: bool,
}

impl Transactions {
    /// Goes on behind a transaction that changed the protocol.
    pub(crate) fn behind(last: &Transaction) -> Self {
        Self { next_id: last.id.map_or(0, |id| id + 1), ..Self::default() }
    }

    /// Numbers a request.
    pub(crate) fn begin(&mut self, request: Request) -> Transaction {
        let id = self.next_id;
        self.next_id += 1;
        let request = Some(request);
        Transaction { id: Some(id), request, ..Transaction::default() }
    }

    /// A request waits for its response, behind those that do already.
    pub(crate) fn queue(&mut self, transaction: Box<Transaction>, expects: Expects) -> Queued {
        let text_bytes = self.text_bytes + transaction.text_bytes();
        let room = self.waiting.is_empty()
            || self.waiting.len() < MAX_WAITING && text_bytes <= MAX_WAITING_BYTES;
        // Behind a forgotten request everything is, or responses would go to the wrong ones.
        if room && self.forgotten.is_empty() && !self.unmatched {
            self.text_bytes = text_bytes;
            self.waiting.push_back((transaction, expects));
            return Queued::Kept;
        }
        if self.unmatched {
            return Queued::Forgotten(transaction);
        }
        if let Some((last, count)) = self.forgotten.back_mut()
            && *last == expects
            && *count < u32::MAX
        {
            *count += 1;
        } else if self.forgotten.len() < MAX_FORGOTTEN_RUNS {
            self.forgotten.push_back((expects, 1));
        } else {
            self.unmatched = true;
            self.forgotten = VecDeque::new();
            return Queued::TooDeep(transaction);
        }
        Queued::Forgotten(transaction)
    }

    /// The oldest request that waits.
    pub(crate) fn oldest(&self) -> Option<&Transaction> {
        self.waiting.front().filter(|_| !self.unmatched).map(|(transaction, _)| &**transaction)
    }

    /// The youngest request that waits.
    pub(crate) fn youngest(&mut self) -> Option<&mut Transaction> {
        self.waiting.back_mut().map(|(transaction, _)| &mut **transaction)
    }

    /// A final response came: for the oldest request.
    pub(crate) fn answer(&mut self) -> Answered {
        let nobody = Box::<Transaction>::default;
        if self.unmatched {
            return Answered {
                transaction: nobody(),
                expects: Expects::Ordinary,
                solicited: false,
            };
        }
        if let Some((transaction, expects)) = self.waiting.pop_front() {
            self.text_bytes -= transaction.text_bytes();
            return Answered { transaction, expects, solicited: true };
        }
        let Some((expects, count)) = self.forgotten.front_mut() else {
            return Answered {
                transaction: nobody(),
                expects: Expects::Ordinary,
                solicited: false,
            };
        };
        let expects = *expects;
        *count -= 1;
        if *count == 0 {
            self.forgotten.pop_front();
        }
        Answered { transaction: nobody(), expects, solicited: true }
    }

    /// Nothing more comes: those that waited, oldest first.
    pub(crate) fn give_up(&mut self) -> impl Iterator<Item = Box<Transaction>> + use<> {
        self.text_bytes = 0;
        self.forgotten.clear();
        core::mem::take(&mut self.waiting).into_iter().map(|(transaction, _)| transaction)
    }
}

/// Bytes of a field as text, cut to a limit.
pub(crate) fn text(bytes: &[u8]) -> Box<str> {
    let bytes = &bytes[..bytes.len().min(MAX_TEXT)];
    String::from_utf8_lossy(bytes).into()
}

fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(transactions: &mut Transactions, target: &str, expects: Expects) -> Queued {
        let transaction =
            Box::new(transactions.begin(Request::new("GET", target, Version::Http11)));
        transactions.queue(transaction, expects)
    }

    #[test]
    fn accepts_requests_in_order_and_forgets_those_beyond_the_cap() {
        let mut transactions = Transactions::default();
        for at in 0..MAX_WAITING + 2 {
            let queued = request(&mut transactions, "/", Expects::Ordinary);
            assert_eq!(matches!(queued, Queued::Kept), at < MAX_WAITING);
        }
        for at in 0..MAX_WAITING + 3 {
            let answered = transactions.answer();
            let kept = (at < MAX_WAITING).then_some(at as u64);
            assert_eq!(answered.transaction.id, kept);
            assert_eq!(answered.solicited, at < MAX_WAITING + 2);
        }
        assert!(matches!(request(&mut transactions, "/", Expects::Head), Queued::Kept));
        let id = transactions.oldest().unwrap().id;
        assert_eq!(id, Some(MAX_WAITING as u64 + 2));
    }

    #[test]
    fn refuses_to_keep_long_targets_of_a_deep_pipeline() {
        let mut transactions = Transactions::default();
        let target = format!("/{}", "x".repeat(4000));
        let kept = (0..20)
            .filter(|_| {
                matches!(request(&mut transactions, &target, Expects::Ordinary), Queued::Kept)
            })
            .count();
        assert!(transactions.text_bytes <= MAX_WAITING_BYTES && transactions.waiting.len() == 8);
        assert_eq!(kept, 8);
        for _ in 0..20 {
            assert!(transactions.answer().solicited);
        }
        assert!(!transactions.answer().solicited);
        assert_eq!((transactions.text_bytes, transactions.forgotten.len()), (0, 0));
    }

    #[test]
    fn refuses_endless_alternation() {
        let mut transactions = Transactions::default();
        let mut too_deep = 0;
        for at in 0..3000 {
            let expects = if at % 2 == 0 { Expects::Head } else { Expects::Ordinary };
            let queued = request(&mut transactions, "/", expects);
            too_deep += u32::from(matches!(queued, Queued::TooDeep(_)));
        }
        assert_eq!(too_deep, 1);
        assert!(!transactions.answer().solicited);
        assert_eq!(transactions.give_up().count(), MAX_WAITING);
    }

    #[test]
    fn refuses_long_text() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(text(&[0xff; 600]).chars().count(), 512);
        let request = Request::new(&"M".repeat(99), &"/".repeat(9999), Version::Http10);
        assert_eq!((request.method.len(), request.target.len()), (MAX_METHOD, MAX_URL));
    }
}
