//! The cases: every pair of stacks in every version, every feature that both sides have, every
//! suite that both sides have.
//!
//! Refuses to leave anything out in silence: what is not here is in no stack's lists.

use super::case::{Case, Feature};
use super::stack::{Build, Role};
use super::stacks::STACKS;
use super::suite::{self, Suite, Version};

/// Which cases are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Set {
    /// All but those of stacks with a private tag.
    Full,
    /// Few of them, of few stacks.
    Quick,
    /// Those in which a side has the private tag.
    PrivateTag,
}

/// Makes the cases.
pub fn cases(set: Set) -> Vec<Case> {
    let mut cases = Vec::new();
    for (client, of_client) in STACKS.iter().enumerate() {
        for (server, of_server) in STACKS.iter().enumerate() {
            let private_tag = of_client.private_tag || of_server.private_tag;
            match set {
                Set::PrivateTag if private_tag => private_pair(client, server, &mut cases),
                Set::Full if !private_tag => pair(client, server, false, &mut cases),
                Set::Quick if of_client.quick && of_server.quick => {
                    pair(client, server, true, &mut cases);
                }
                _ => {}
            }
        }
    }
    cases
}

/// Whether the case can come about.
fn can_be(case: &Case) -> bool {
    let (client, server) = (&STACKS[case.client], &STACKS[case.server]);
    let both_wait = [client, server].iter().all(|stack| stack.passive.contains(&case.feature));
    let browser = client.build == Build::Chromium;
    !both_wait
        && browser == (case.feature == Feature::Http)
        && client.can(Role::Client, case)
        && server.can(Role::Server, case)
}

/// Two that have the private tag: everything, and what touches keys with every suite. One that has
/// it and one that has not: an ordinary suite, and TLS 1.2.
fn private_pair(client: usize, server: usize, cases: &mut Vec<Case>) {
    let mut add = |version: Version, suite: Option<Suite>, feature: Feature| {
        let case = Case { client, server, version, suite, feature };
        if feature.fits(version) && can_be(&case) {
            cases.push(case);
        }
    };
    let both = STACKS[client].private_tag && STACKS[server].private_tag;
    for feature in Feature::ALL {
        // A shared key belongs to a hash, with most stacks SHA-256.
        let suite = (feature == Feature::Psk).then(|| suite::private_tag().next()).flatten();
        if both || suite.is_none() {
            add(Version::V13, suite, feature);
        }
    }
    if both {
        for suite in suite::private_tag() {
            for feature in [Feature::Full, Feature::KeyUpdate, Feature::Ticket, Feature::EarlyData]
            {
                add(Version::V13, Some(suite), feature);
            }
        }
    }
    for feature in [Feature::Full, Feature::Http] {
        add(Version::V12, None, feature);
    }
}

fn pair(client: usize, server: usize, quick: bool, cases: &mut Vec<Case>) {
    let mut add = |case: Case| {
        if can_be(&case) {
            cases.push(case);
        }
    };
    let complete = |index: usize| matches!(STACKS[index].name, "openssl" | "gnutls");
    let close = client == server || complete(client) || complete(server);
    for version in Version::BOTH {
        for feature in Feature::ALL.into_iter().filter(|feature| feature.fits(version)) {
            let suite = match feature {
                // Means something only where there is a MAC.
                Feature::MacThenEncrypt => suite::all(version).into_iter().find(|it| it.is_cbc()),
                // A shared key belongs to a hash, with most stacks SHA-256.
                Feature::Psk => suite::all(version).into_iter().next(),
                _ => None,
            };
            // How data is cut matters less between two stacks that each did it with others.
            let is_cut =
                matches!(feature, Feature::Large | Feature::SmallRecords | Feature::Padding);
            if !(is_cut && !close || quick && feature == Feature::Large) {
                add(Case { client, server, version, suite, feature });
            }
        }
        // The suite is the client's and the server's alike: each stack as both, with the two
        // that have all suites and with itself.
        let names_enough = match version {
            Version::V12 => true,
            Version::V13 => STACKS[client].chooses_13 || STACKS[server].chooses_13,
        };
        if names_enough && close {
            // In the quick run one suite in three, others for each pair.
            let wanted = |number: usize| !quick || number % 3 == (client + server) % 3;
            for (number, suite) in suite::all(version).into_iter().enumerate() {
                if wanted(number) {
                    add(Case {
                        client,
                        server,
                        version,
                        suite: Some(suite),
                        feature: Feature::Full,
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_more_than_two_hundred_cases_once_each() {
        let all = cases(Set::Full);
        assert!(all.len() > 200, "{}", all.len());
        let quick = cases(Set::Quick);
        assert!(quick.len() < all.len());
        let private = cases(Set::PrivateTag);
        assert!(private.len() > 100, "{}", private.len());
        for cases in [&all, &private] {
            for (number, case) in cases.iter().enumerate() {
                assert!(!cases[..number].contains(case), "{case:?}");
            }
        }
        assert!(!all.iter().any(Case::knows_private_tag));
        assert!(private.iter().all(Case::knows_private_tag));
    }
}
