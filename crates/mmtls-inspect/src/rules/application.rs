//! Checks of what TLS and HTTP/2 negotiate: `tls.version` and the numbers of `http2.*`.

use super::compare::Comparison;
use super::fault::FaultKind;
use super::options;

/// Something about a frame of HTTP/2 in the transaction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Http2Check {
    /// The type of one.
    FrameType(u8),
    /// The error code of a GOAWAY or RST_STREAM.
    ErrorCode(u32),
    /// The weight in a PRIORITY or HEADERS, as it is sent.
    Priority(Comparison),
    /// The increment in a WINDOW_UPDATE.
    Window(Comparison),
    /// The size of the dynamic table that a header block sets.
    SizeUpdate(Comparison),
    /// The value of a setting.
    Settings(u16, Comparison),
}

/// A keyword for one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Http2Keyword {
    FrameType,
    ErrorCode,
    Priority,
    Window,
    SizeUpdate,
    Settings,
}

/// Names of RFC 9113, section 6; the place is the number.
const FRAME_TYPES: [&str; 10] = [
    "DATA",
    "HEADERS",
    "PRIORITY",
    "RSTSTREAM",
    "SETTINGS",
    "PUSHPROMISE",
    "PING",
    "GOAWAY",
    "WINDOWUPDATE",
    "CONTINUATION",
];

/// Names of RFC 9113, section 7; the place is the number.
const ERROR_CODES: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

/// Names of RFC 9113, section 6.5.2; the place is the number, less one.
const SETTINGS: [&str; 6] = [
    "SETTINGS_HEADER_TABLE_SIZE",
    "SETTINGS_ENABLE_PUSH",
    "SETTINGS_MAX_CONCURRENT_STREAMS",
    "SETTINGS_INITIAL_WINDOW_SIZE",
    "SETTINGS_MAX_FRAME_SIZE",
    "SETTINGS_MAX_HEADER_LIST_SIZE",
];

impl Http2Check {
    pub(super) fn parse(keyword: Http2Keyword, value: &str) -> Result<Self, FaultKind> {
        let compare = |most| Comparison::parse(value, most);
        Ok(match keyword {
            Http2Keyword::FrameType => {
                let number = named(&FRAME_TYPES, value, u64::from(u8::MAX))?;
                Self::FrameType(u8::try_from(number).map_err(|_| FaultKind::Number)?)
            }
            Http2Keyword::ErrorCode => {
                let number = named(&ERROR_CODES, value, u64::from(u32::MAX))?;
                Self::ErrorCode(u32::try_from(number).map_err(|_| FaultKind::Number)?)
            }
            Http2Keyword::Priority => Self::Priority(compare(u64::from(u8::MAX))?),
            Http2Keyword::Window => Self::Window(compare(u64::from(u32::MAX))?),
            Http2Keyword::SizeUpdate => Self::SizeUpdate(compare(u64::MAX)?),
            Http2Keyword::Settings => {
                let end = value.find(|char: char| !char.is_ascii_alphanumeric() && char != '_');
                let (name, comparison) = value.split_at(end.unwrap_or(value.len()));
                let place = SETTINGS.iter().position(|setting| setting.eq_ignore_ascii_case(name));
                let place = place.ok_or(FaultKind::Value)?;
                let number = u16::try_from(place + 1).map_err(|_| FaultKind::Number)?;
                let comparison = match comparison.trim() {
                    // That it is there is enough.
                    "" => Comparison::GreaterOrEqual(0),
                    given => Comparison::parse(given, u64::from(u32::MAX))?,
                };
                Self::Settings(number, comparison)
            }
        })
    }
}

/// A name from a list, or a number.
fn named(names: &[&str], value: &str, most: u64) -> Result<u64, FaultKind> {
    match names.iter().position(|name| name.eq_ignore_ascii_case(value)) {
        Some(place) => Ok(place as u64),
        None => options::unsigned(value, most).map_err(|_| FaultKind::Value),
    }
}

/// A version of TLS as it is negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TlsVersion {
    /// Its number.
    pub number: u16,
    /// Any other one is asked for.
    pub negated: bool,
}

impl TlsVersion {
    pub(super) fn parse(value: &str) -> Result<Self, FaultKind> {
        let (negated, value) = options::negation(value);
        let number = match value {
            "1.0" => 0x0301,
            "1.1" => 0x0302,
            "1.2" => 0x0303,
            "1.3" => 0x0304,
            hex if hex.starts_with("0x") => {
                let number = options::unsigned(hex, u64::from(u16::MAX))?;
                u16::try_from(number).map_err(|_| FaultKind::Number)?
            }
            _ => return Err(FaultKind::Value),
        };
        Ok(Self { number, negated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_check_of_http2() {
        let parse = |keyword, value| Http2Check::parse(keyword, value).unwrap();
        assert_eq!(parse(Http2Keyword::FrameType, "goaway"), Http2Check::FrameType(7));
        assert_eq!(parse(Http2Keyword::FrameType, "16"), Http2Check::FrameType(16));
        let security = Http2Check::ErrorCode(12);
        assert_eq!(parse(Http2Keyword::ErrorCode, "INADEQUATE_SECURITY"), security);
        let greater = Comparison::Greater(100);
        assert_eq!(parse(Http2Keyword::Priority, ">100"), Http2Check::Priority(greater));
        assert_eq!(parse(Http2Keyword::Window, ">100"), Http2Check::Window(greater));
        assert_eq!(parse(Http2Keyword::SizeUpdate, ">100"), Http2Check::SizeUpdate(greater));
        let setting = parse(Http2Keyword::Settings, "SETTINGS_ENABLE_PUSH=0");
        assert_eq!(setting, Http2Check::Settings(2, Comparison::Equal(0)));
        let any = Http2Check::Settings(2, Comparison::GreaterOrEqual(0));
        assert_eq!(parse(Http2Keyword::Settings, "SETTINGS_ENABLE_PUSH "), any);
    }

    #[test]
    fn refuses_faulty_checks_of_http2() {
        for (keyword, value) in [
            (Http2Keyword::FrameType, "256"),
            (Http2Keyword::FrameType, "FRAME"),
            (Http2Keyword::ErrorCode, "ERROR"),
            (Http2Keyword::Priority, "256"),
            (Http2Keyword::Window, "-1"),
            (Http2Keyword::SizeUpdate, "x"),
            (Http2Keyword::Settings, "SETTINGS_ENABLE_PUSH="),
            (Http2Keyword::Settings, "SETTINGS_X"),
            (Http2Keyword::Settings, "SETTINGS_X=1"),
            (Http2Keyword::Settings, "é=1"),
        ] {
            assert!(Http2Check::parse(keyword, value).is_err(), "{value}");
        }
    }

    #[test]
    fn accepts_and_refuses_versions_of_tls() {
        let version = |number, negated| Ok(TlsVersion { number, negated });
        assert_eq!(TlsVersion::parse("1.2"), version(0x0303, false));
        assert_eq!(TlsVersion::parse("!1.3"), version(0x0304, true));
        assert_eq!(TlsVersion::parse("0x7f12"), version(0x7f12, false));
        for faulty in ["", "1.4", "1", "0x10000", "tls1.2"] {
            assert!(TlsVersion::parse(faulty).is_err(), "{faulty}");
        }
    }
}
