//! The cases: every pair of stacks in every version, every feature that both sides have, every
//! suite that both sides have.
//!
//! Refuses to leave anything out in silence: what is not here is in no stack's lists.

use super::case::{Case, Feature};
use super::stack::{Build, Role};
use super::stacks::STACKS;
use super::suite::{self, Version};

/// Makes the cases. The quick run has few of them, of few stacks.
pub fn cases(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let taken = STACKS.iter().enumerate().filter(|(_, stack)| !quick || stack.quick);
    for (client, _) in taken.clone() {
        for (server, _) in taken.clone() {
            pair(client, server, quick, &mut cases);
        }
    }
    cases
}

fn pair(client: usize, server: usize, quick: bool, cases: &mut Vec<Case>) {
    let mut add = |case: Case| {
        let both_wait =
            [client, server].iter().all(|stack| STACKS[*stack].passive.contains(&case.feature));
        let browser = STACKS[client].build == Build::Chromium;
        if !both_wait
            && browser == (case.feature == Feature::Http)
            && STACKS[client].can(Role::Client, &case)
            && STACKS[server].can(Role::Server, &case)
        {
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
        let all = cases(false);
        assert!(all.len() > 200, "{}", all.len());
        let quick = cases(true);
        assert!(quick.len() < all.len());
        for (number, case) in all.iter().enumerate() {
            assert!(!all[..number].contains(case), "{case:?}");
        }
    }
}
