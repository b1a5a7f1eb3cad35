//! Classes of what rules find (`classtype`), with their priority: what Suricata's and Snort's own
//! `classification.config` define. Refuses to know others: those have no description, and priority 3.

/// Name, priority, description.
type Class = (&'static str, u8, &'static str);

/// Sorted by name.
const CLASSES: [Class; 43] = [
    ("attempted-admin", 1, "Attempted Administrator Privilege Gain"),
    ("attempted-dos", 2, "Attempted Denial of Service"),
    ("attempted-recon", 2, "Attempted Information Leak"),
    ("attempted-user", 1, "Attempted User Privilege Gain"),
    ("bad-unknown", 2, "Potentially Bad Traffic"),
    ("coin-mining", 2, "Crypto Currency Mining Activity Detected"),
    ("command-and-control", 1, "Malware Command and Control Activity Detected"),
    ("credential-theft", 1, "Successful Credential Theft Detected"),
    ("default-login-attempt", 2, "Attempt to login by a default username and password"),
    ("denial-of-service", 2, "Detection of a Denial of Service Attack"),
    ("domain-c2", 1, "Domain Observed Used for C2 Detected"),
    ("exploit-kit", 1, "Exploit Kit Activity Detected"),
    ("external-ip-check", 2, "Device Retrieving External IP Address Detected"),
    ("icmp-event", 3, "Generic ICMP event"),
    ("inappropriate-content", 1, "Inappropriate Content was Detected"),
    ("misc-activity", 3, "Misc activity"),
    ("misc-attack", 2, "Misc Attack"),
    ("network-scan", 3, "Detection of a Network Scan"),
    ("non-standard-protocol", 2, "Detection of a non-standard protocol or event"),
    ("not-suspicious", 3, "Not Suspicious Traffic"),
    ("policy-violation", 1, "Potential Corporate Privacy Violation"),
    ("protocol-command-decode", 3, "Generic Protocol Command Decode"),
    ("pup-activity", 2, "Possibly Unwanted Program Detected"),
    ("rpc-portmap-decode", 2, "Decode of an RPC Query"),
    ("shellcode-detect", 1, "Executable code was detected"),
    ("social-engineering", 2, "Possible Social Engineering Attempted"),
    ("string-detect", 3, "A suspicious string was detected"),
    ("successful-admin", 1, "Successful Administrator Privilege Gain"),
    ("successful-dos", 2, "Denial of Service"),
    ("successful-recon-largescale", 2, "Large Scale Information Leak"),
    ("successful-recon-limited", 2, "Information Leak"),
    ("successful-user", 1, "Successful User Privilege Gain"),
    ("suspicious-filename-detect", 2, "A suspicious filename was detected"),
    ("suspicious-login", 2, "An attempted login using a suspicious username was detected"),
    ("system-call-detect", 2, "A system call was detected"),
    ("targeted-activity", 1, "Targeted Malicious Activity was Detected"),
    ("tcp-connection", 4, "A TCP connection was detected"),
    ("trojan-activity", 1, "A Network Trojan was detected"),
    ("unknown", 3, "Unknown Traffic"),
    ("unsuccessful-user", 1, "Unsuccessful User Privilege Gain"),
    ("unusual-client-port-connection", 2, "A client was using an unusual port"),
    ("web-application-activity", 2, "access to a potentially vulnerable web application"),
    ("web-application-attack", 1, "Web Application Attack"),
];
/// Of what has no class.
const DEFAULT_PRIORITY: u8 = 3;

fn find(name: &str) -> Option<&'static Class> {
    CLASSES.binary_search_by_key(&name, |class| class.0).ok().and_then(|at| CLASSES.get(at))
}

/// The priority of a class, 1 the most urgent.
pub(super) fn priority(class: Option<&str>) -> u8 {
    class.and_then(find).map_or(DEFAULT_PRIORITY, |class| class.1)
}

/// What a class is about; empty where it is not known.
pub(super) fn description(class: Option<&str>) -> &'static str {
    class.and_then(find).map_or("", |class| class.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_known_classes_and_no_others() {
        assert!(CLASSES.is_sorted_by_key(|class| class.0));
        assert_eq!(priority(Some("trojan-activity")), 1);
        assert_eq!(priority(Some("tcp-connection")), 4);
        assert_eq!(description(Some("misc-attack")), "Misc Attack");
        assert_eq!((priority(Some("other")), description(Some("other"))), (3, ""));
        assert_eq!((priority(None), description(None)), (3, ""));
    }
}
