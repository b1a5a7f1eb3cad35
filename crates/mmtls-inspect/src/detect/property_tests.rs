//! Random checks and buffers: a yes stays a yes as more bytes come, and for whole buffers the answer is
//! that of a reference that tries everything and knows no short cut.

use proptest::collection::vec;
use proptest::prelude::*;

use super::checks::Checks;
use super::dataset::Datasets;
use super::expression::Expression;
use super::memory::Memory;
use super::pattern::Pattern;
use super::transform;
use super::view::View;
use crate::rules::bytes::{
    ByteExtract, ByteJump, ByteTest, DataAt, Encoding, Field, JumpFrom, Operator, Value,
};
use crate::rules::compare::Comparison;
use crate::rules::content::{Amount, Content, Place};
use crate::rules::pcre::Pcre;
use crate::rules::slices::XorKey;
use crate::rules::{Buffer, BufferChecks, Check, Transform};

/// Enough for what is generated here.
const WORK: u64 = 1 << 30;
/// Without `\K` and the like: the reference enumerates where matches start.
const EXPRESSIONS: [&str; 15] = [
    "a",
    "ab|b",
    "a+",
    "^b",
    "b$",
    "(?<=a)b",
    "a(?!b)",
    r"\bb",
    "[ab].?",
    "a{2}",
    "[ab]c?",
    "b*",
    "a.",
    "(?>a|ab)c",
    "a++.?",
];
const NUMBERS: usize = 2;

fn amount(least: i32, most: i32) -> impl Strategy<Value = Amount> {
    prop_oneof![
        5 => (least..=most).prop_map(Amount::Number),
        1 => (0..NUMBERS as u8).prop_map(Amount::Extracted),
    ]
}

fn place() -> impl Strategy<Value = Place> {
    let maybe = |least, most| proptest::option::of(amount(least, most));
    prop_oneof![
        2 => Just(Place::ANYWHERE),
        1 => Just(Place::Start),
        2 => (maybe(0, 5), maybe(0, 6)).prop_map(|(offset, depth)| Place::Absolute { offset, depth }),
        5 => (maybe(-3, 3), maybe(0, 5))
            .prop_map(|(distance, within)| Place::Relative { distance, within }),
    ]
}

fn content() -> impl Strategy<Value = Check> {
    let bytes = vec(prop_oneof![Just(b'a'), Just(b'b'), Just(b'A'), Just(1_u8)], 1..3);
    (bytes, proptest::bool::weighted(0.25), any::<bool>(), place(), proptest::bool::weighted(0.15))
        .prop_map(|(bytes, negated, nocase, place, at_end)| {
            let bytes = bytes.into();
            let fast_pattern = None;
            Check::Content(Content { bytes, negated, nocase, place, at_end, fast_pattern })
        })
}

fn field() -> impl Strategy<Value = Field> {
    let encoding = prop_oneof![Just(Encoding::BigEndian), Just(Encoding::LittleEndian)];
    (amount(0, 2), amount(-2, 4), any::<bool>(), encoding).prop_map(
        |(len, offset, relative, encoding)| Field { len, offset, relative, encoding, mask: None },
    )
}

fn check() -> impl Strategy<Value = Check> {
    let comparison = prop_oneof![
        (0_u64..9).prop_map(Comparison::Equal),
        (0_u64..9).prop_map(Comparison::NotEqual),
        (0_u64..9).prop_map(Comparison::Less),
        (0_u64..9).prop_map(Comparison::GreaterOrEqual),
        (0_u64..9).prop_map(|low| Comparison::NotBetween(low, low + 2)),
    ];
    let operator = prop_oneof![Just(Operator::Less), Just(Operator::Equal), Just(Operator::And)];
    let value = prop_oneof![(0_u64..99).prop_map(Value::Number), Just(Value::Extracted(0))];
    let from = prop_oneof![Just(JumpFrom::Field), Just(JumpFrom::Beginning), Just(JumpFrom::End)];
    let align = prop_oneof![Just(None), Just(Some(2))];
    prop_oneof![
        8 => content(),
        2 => (amount(0, 6), any::<bool>(), any::<bool>())
            .prop_map(|(at, negated, relative)| Check::DataAt(DataAt { negated, at, relative })),
        1 => (field(), any::<bool>(), operator, value).prop_map(|(field, negated, operator, value)| {
            Check::ByteTest(ByteTest { field, negated, operator, value })
        }),
        1 => (field(), any::<bool>(), from, -3..4).prop_map(|(field, align, from, post_offset)| {
            Check::ByteJump(ByteJump { field, multiplier: 1, align, from, post_offset })
        }),
        2 => (field(), align, 0..NUMBERS as u8).prop_map(|(field, align, index)| {
            Check::ByteExtract(ByteExtract { field, multiplier: 1, align, index })
        }),
        1 => comparison.prop_map(Check::Size),
        3 => (0..EXPRESSIONS.len(), proptest::bool::weighted(0.2), any::<bool>(), any::<bool>())
            .prop_map(|(which, negated, relative, anchored)| {
                let expression = EXPRESSIONS[which].into();
                Check::Pcre(Box::new(Pcre { expression, negated, relative, anchored, ..Pcre::default() }))
            }),
    ]
}

/// A literal that counts from what is before it.
fn relative(number: impl Strategy<Value = Amount>) -> impl Strategy<Value = Check> {
    let bytes = prop_oneof![Just(b'a'), Just(b'b'), Just(1)].prop_map(|byte| Box::from([byte]));
    (bytes, number, proptest::option::of(amount(1, 3)), any::<bool>()).prop_map(
        |(bytes, distance, within, negated)| {
            let place = Place::Relative { distance: Some(distance), within };
            let (nocase, at_end, fast_pattern) = (false, false, None);
            Check::Content(Content { bytes, negated, nocase, place, at_end, fast_pattern })
        },
    )
}

/// Checks of which some belong together.
fn checks() -> impl Strategy<Value = Vec<Check>> {
    let measured = (0..EXPRESSIONS.len(), relative(amount(-2, 0))).prop_map(|(which, next)| {
        let expression = EXPRESSIONS[which].into();
        vec![Check::Pcre(Box::new(Pcre { expression, ..Pcre::default() })), next]
    });
    let extracted = (content(), content(), relative(Just(Amount::Extracted(0)))).prop_map(
        |(first, second, third)| {
            let (len, offset) = (Amount::Number(1), Amount::Number(0));
            let encoding = Encoding::BigEndian;
            let field = Field { len, offset, relative: true, encoding, mask: None };
            let extract = ByteExtract { field, multiplier: 1, align: None, index: 0 };
            vec![first, Check::ByteExtract(extract), second, third]
        },
    );
    let part = prop_oneof![
        6 => vec(check(), 1..4),
        1 => measured,
        1 => extracted,
    ];
    vec(part, 1..3).prop_map(|parts| as_rules_are(parts.concat()))
}

/// Without what the reader of rules refuses: a number that is extracted twice, or used before.
fn as_rules_are(mut checks: Vec<Check>) -> Vec<Check> {
    let mut known = [false; NUMBERS];
    checks.retain(|check| {
        if numbers_of(check).into_iter().flatten().any(|index| !known[usize::from(index)]) {
            return false;
        }
        match check {
            Check::ByteExtract(extract) => {
                !std::mem::replace(&mut known[usize::from(extract.index)], true)
            }
            _ => true,
        }
    });
    checks
}

/// The extracted numbers that a check uses.
fn numbers_of(check: &Check) -> [Option<u8>; 3] {
    let index = |amount: Amount| match amount {
        Amount::Extracted(index) => Some(index),
        Amount::Number(_) => None,
    };
    let in_field = |field: &Field| [index(field.len), index(field.offset), None];
    match check {
        Check::Content(content) => match content.place {
            Place::Start => [None; 3],
            Place::Absolute { offset: first, depth: second }
            | Place::Relative { distance: first, within: second } => {
                [first.and_then(index), second.and_then(index), None]
            }
        },
        Check::DataAt(check) => [index(check.at), None, None],
        Check::ByteTest(check) => {
            let value = match check.value {
                Value::Extracted(index) => Some(index),
                Value::Number(_) => None,
            };
            [index(check.field.len), index(check.field.offset), value]
        }
        Check::ByteJump(check) => in_field(&check.field),
        Check::ByteExtract(check) => in_field(&check.field),
        _ => [None; 3],
    }
}

/// Parts of expressions, and what may stand behind them.
const PARTS: [&str; 28] = [
    "a",
    "b",
    "ab",
    ".",
    "[^b]",
    "[a-b]",
    r"\x61",
    r"\w",
    r"\s",
    r"[\d\n]",
    "(ab)",
    "(?:a|bc)",
    "(a.*)",
    "(?#b)",
    "|",
    "$",
    r"\b",
    " ",
    "(?i)",
    r"\Qb\E",
    "{,}",
    "{1,2,3}",
    "\u{a0}",
    "[[:]",
    "[[=a:]",
    r"[\E]a]",
    "[[:alpha:]]",
    "[.[]",
];
const BEHIND: [&str; 10] = ["", "", "(?#x)*", "*", "+", "?", "{2}", "{0,2}", "{2,}", "+?"];

fn expression() -> impl Strategy<Value = String> {
    let part = (0..PARTS.len(), 0..BEHIND.len())
        .prop_map(|(part, behind)| format!("{}{}", PARTS[part], BEHIND[behind]));
    let group = vec(part, 1..4).prop_map(|parts| parts.concat());
    let group = (group, any::<bool>())
        .prop_map(|(inner, nested)| if nested { format!("({inner})+") } else { inner });
    vec(group, 1..4).prop_map(|groups| groups.concat())
}

fn buffer() -> impl Strategy<Value = Vec<u8>> {
    // Small numbers, so that what is extracted is of use.
    let small = 0_u8..4;
    let byte =
        prop_oneof![4 => Just(b'a'), 4 => Just(b'b'), 2 => Just(b'c'), 1 => Just(b'A'), 4 => small];
    vec(byte, 0..14)
}

fn group(checks: Vec<Check>) -> BufferChecks {
    BufferChecks { buffer: Buffer::Payload, transforms: Box::default(), checks }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn accepts_what_the_reference_accepts(checks in checks(), bytes in buffer()) {
        let ready = Checks::new(&group(checks.clone()), &Datasets::default()).unwrap();
        let mut memory = Memory::new(WORK);
        let holds = ready.apply(View::whole(&bytes), &mut memory);
        prop_assume!(!memory.over_cap && memory.limits_hit == 0);
        let expected = reference(&checks, &bytes, 0, [None; NUMBERS]);
        prop_assert_eq!(holds, expected, "{:?}", bytes.escape_ascii().to_string());
    }

    /// A search that found nothing depends on no byte beyond what it is charged for.
    #[test]
    fn accepts_any_bytes_behind_what_was_looked_at(
        text in expression(),
        is_anchored in any::<bool>(),
        (extended, dot_all) in any::<(bool, bool)>(),
        bytes in vec(prop_oneof![6 => Just(b'a'), 3 => Just(b'b'), 1 => Just(b'\n'), 1 => Just(b' ')], 0..24),
        other in prop_oneof![Just(b'a'), Just(b'b'), Just(b'\n'), any::<u8>()],
    ) {
        let start = if is_anchored { "" } else { "^" };
        let expression = format!("{start}{text}").into();
        let pcre = Pcre { expression, anchored: is_anchored, extended, dot_all, ..Pcre::default() };
        let (Ok(ready), Some(extent)) = (Expression::new(&pcre, false), Pattern::new(&pcre).tied) else {
            return Ok(());
        };
        let finds = |bytes: &[u8]| {
            ready.find(0, 0, View::whole(bytes), &mut Memory::new(WORK)).is_some()
        };
        let looked_at = extent.over(&bytes);
        if !finds(&bytes) {
            let mut changed = bytes.clone();
            changed[looked_at..].fill(other);
            prop_assert!(!finds(&changed), "{:?} {looked_at} {}", pcre.expression, bytes.escape_ascii());
        }
    }

    #[test]
    fn refuses_what_more_bytes_may_undo(checks in checks(), bytes in buffer()) {
        let ready = Checks::new(&group(checks), &Datasets::default()).unwrap();
        let whole = ready.apply(View::whole(&bytes), &mut Memory::new(WORK));
        for len in 0..=bytes.len() {
            let view = View { bytes: &bytes[..len], start: 0, is_whole: false, starts_here: false, goes_on: false };
            let early = ready.apply(view, &mut Memory::new(WORK));
            prop_assert!(whole || !early, "{} of {}", len, bytes.escape_ascii());
            // What is lost can only turn a yes into a no.
            for start in 0..=bytes.len() {
                let view = View { bytes: &bytes[start..], start: start as u64, is_whole: true, starts_here: false, goes_on: false };
                let late = ready.apply(view, &mut Memory::new(WORK));
                prop_assert!(whole || !late, "from {} of {}", start, bytes.escape_ascii());
            }
        }
        if ready.is_positive() && whole {
            let view = View { bytes: &bytes, start: 0, is_whole: false, starts_here: false, goes_on: false };
            prop_assert!(ready.apply(view, &mut Memory::new(WORK)));
        }
    }

    #[test]
    fn accepts_transformed_prefixes(bytes in vec(prop_oneof![Just(b'%'), Just(b'4'), Just(b'A'),
        Just(b' '), Just(b'\r'), Just(b'\n'), Just(b':'), Just(b'+'), any::<u8>()], 0..24), which in 0_usize..9)
    {
        let transforms = [
            Transform::ToLowercase, Transform::ToUppercase, Transform::StripWhitespace,
            Transform::CompressWhitespace, Transform::UrlDecode, Transform::DotPrefix,
            Transform::HeaderLowercase, Transform::StripPseudoHeaders, Transform::Xor { offset: 0, key: XorKey::Given(Box::new([1, 2, 3])) },
        ];
        let transforms = &transforms[which..=which];
        let whole = transform::apply(transforms, View::whole(&bytes)).unwrap();
        for len in 0..=bytes.len() {
            let view = View { bytes: &bytes[..len], start: 0, is_whole: false, starts_here: false, goes_on: false };
            let early = transform::apply(transforms, view).unwrap();
            prop_assert!(whole.view().bytes.starts_with(early.view().bytes));
        }
    }
}

/// Whether the checks hold behind a match that ended at `place`.
fn reference(
    checks: &[Check],
    bytes: &[u8],
    place: usize,
    numbers: [Option<u64>; NUMBERS],
) -> bool {
    let Some((check, behind)) = checks.split_first() else {
        return true;
    };
    let len = bytes.len() as i128;
    let amount = |amount: Amount| match amount {
        Amount::Number(number) => Some(i128::from(number)),
        Amount::Extracted(index) => numbers[usize::from(index)].map(i128::from),
    };
    let goes_on = |place: usize, numbers| reference(behind, bytes, place, numbers);
    let read = |field: &Field| {
        let base = if field.relative { place as i128 } else { 0 };
        let (at, size) = (base + amount(field.offset)?, amount(field.len)?);
        if at < 0 || at + size > len || size > 8 || len == 0 {
            return None;
        }
        let mut field_bytes = bytes[at as usize..(at + size) as usize].to_vec();
        if field.encoding == Encoding::LittleEndian {
            field_bytes.reverse();
        }
        let mut number = [0; 8];
        number[8 - field_bytes.len()..].copy_from_slice(&field_bytes);
        Some((u64::from_be_bytes(number), at, at + size))
    };
    match check {
        Check::Content(content) => {
            let range = match content.place {
                Place::Start => Some((0, Some(content.bytes.len() as i128))),
                Place::Absolute { offset, depth } => {
                    offset.map_or(Some(0), amount).and_then(|from| {
                        depth
                            .map_or(Some(None), |depth| amount(depth).map(|most| Some(from + most)))
                            .map(|to| (from, to))
                    })
                }
                Place::Relative { distance, within } => {
                    distance.map_or(Some(0), amount).and_then(|distance| {
                        let from = place as i128 + distance;
                        within
                            .map_or(Some(None), |within| {
                                amount(within).map(|most| Some(from + most))
                            })
                            .map(|to| (from, to))
                    })
                }
            };
            let Some((from, to)) = range else { return false };
            let mut ends = (content.bytes.len()..=bytes.len()).filter(|end| {
                let start = end - content.bytes.len();
                let found = &bytes[start..*end];
                let is_same = if content.nocase {
                    found.eq_ignore_ascii_case(&content.bytes)
                } else {
                    *found == *content.bytes
                };
                let is_within = start as i128 >= from && to.is_none_or(|to| *end as i128 <= to);
                is_same && is_within && (!content.at_end || *end == bytes.len())
            });
            if content.negated {
                return ends.next().is_none() && goes_on(place, numbers);
            }
            ends.any(|end| goes_on(end, numbers))
        }
        Check::Pcre(pcre) => {
            let base = if pcre.relative { place } else { 0 };
            let anchor = if pcre.anchored { r"\G" } else { "" };
            let regex =
                pcre2::bytes::Regex::new(&format!("{anchor}(?:{})", pcre.expression)).unwrap();
            let subject = &bytes[base..];
            let mut from = 0;
            while let Some(found) = Some(from)
                .filter(|from| *from <= subject.len())
                .and_then(|from| regex.find_at(subject, from).unwrap())
            {
                if pcre.negated {
                    return false;
                }
                if goes_on(base + found.end(), numbers) {
                    return true;
                }
                from = found.start() + 1;
            }
            pcre.negated && goes_on(place, numbers)
        }
        Check::DataAt(check) => {
            let Some(at) = amount(check.at) else { return false };
            let is_there = if check.relative { place as i128 + at <= len } else { at < len };
            is_there != check.negated && goes_on(place, numbers)
        }
        Check::ByteTest(check) => {
            let value = match check.value {
                Value::Number(value) => Some(value),
                Value::Extracted(index) => numbers[usize::from(index)],
            };
            let (Some((number, at, _)), Some(value)) = (read(&check.field), value) else {
                return false;
            };
            let holds = match check.operator {
                Operator::Less => number < value,
                Operator::Equal => number == value,
                Operator::And => number & value != 0,
                _ => unreachable!(),
            };
            let is_there = !check.field.relative || at < len;
            is_there && holds != check.negated && goes_on(place, numbers)
        }
        Check::ByteJump(check) => {
            let Some((number, _, end)) = read(&check.field) else { return false };
            let number =
                if check.align { i128::from(number.div_ceil(4)) * 4 } else { number.into() };
            let from = match check.from {
                JumpFrom::Field => end,
                JumpFrom::Beginning => 0,
                JumpFrom::End => len,
            };
            let to = (from + number + i128::from(check.post_offset)).max(0);
            to <= len && goes_on(to as usize, numbers)
        }
        Check::ByteExtract(check) => {
            let Some((number, at, end)) = read(&check.field) else { return false };
            let mut numbers = numbers;
            let number = if check.align.is_some() { number.div_ceil(2) * 2 } else { number };
            numbers[usize::from(check.index)] = Some(number);
            (!check.field.relative || at < len) && goes_on(end as usize, numbers)
        }
        Check::Size(comparison) => comparison.holds(bytes.len() as u64) && goes_on(place, numbers),
        _ => unreachable!(),
    }
}
