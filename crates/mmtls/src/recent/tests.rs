//! Tests with sessions and alerts that no engine has seen.

use super::*;
use crate::eve::tests::session;
use crate::eve::{Alert, Metadata};

fn alert(signature: &str) -> Alert<'_> {
    Alert {
        tx_id: None,
        app_proto: "http",
        action: "allowed",
        verdict: "alert",
        gid: 1,
        signature_id: 7,
        rev: 1,
        signature,
        category: "",
        severity: 1,
        metadata: Metadata::default(),
        offset: None,
        http: None,
    }
}

fn recorder() -> (Recorder, Arc<Recent>) {
    let recorder = Recorder::new(Arc::default(), FlowIds::default());
    let recent = Arc::clone(recorder.shared());
    (recorder, recent)
}

fn end(recorder: &mut Recorder, info: &SessionInfo, ja4: Option<&str>, outcome: Outcome) {
    recorder.ended(5_000_000, info, ja4, EndReason::Closed, (outcome, None, None));
}

#[test]
fn keeps_the_last_rows_of_all_workers_and_counts_the_others() {
    let (mut first, recent) = recorder();
    let mut second = first.share();
    let info = session();
    for number in 0..MAX_ROWS + 50 {
        let recorder = if number % 2 == 0 { &mut first } else { &mut second };
        let signature = format!("<b>{number}</b>{}", "x".repeat(2 * MAX_TEXT));
        let from = Direction::ServerToClient;
        recorder.alert(3_000_000, FlowKey::from(&info), from, &alert(&signature));
    }
    assert_eq!(recent.told()["alerts"], json!([]), "not before a tick");
    first.publish();
    second.publish();
    let told = recent.told();
    let alerts = told["alerts"].as_array().unwrap();
    assert_eq!((alerts.len(), &told["alerts_before"]), (MAX_ROWS, &50.into()));
    let text = alerts[0]["signature"].as_str().unwrap();
    assert!(text.starts_with("<b>249</b>") && text.chars().count() == MAX_TEXT, "{text}");
    assert_eq!((&alerts[0]["time_ms"], &alerts[0]["direction"]), (&3.into(), &"to_client".into()));
}

#[test]
fn counts_what_became_of_the_sessions_of_each_client_and_program() {
    let (mut recorder, recent) = recorder();
    let info = session();
    let other = SessionInfo { client: "[2001:db8::7]:5".parse().unwrap(), ..session() };
    for (info, ja4, outcome) in [
        (&info, Some("t13"), Outcome::Decrypted),
        (&info, Some("t13"), Outcome::MissingKey),
        (&info, None, Outcome::Exempt),
        (&other, Some("t12"), Outcome::Failed),
    ] {
        end(&mut recorder, info, ja4, outcome);
    }
    recorder.publish();
    // Twice puts down nothing twice.
    recorder.publish();
    let told = recent.told();
    let clients = told["clients"]["rows"].as_array().unwrap();
    assert_eq!(clients[0]["name"], info.client.ip().to_string());
    assert_eq!(clients[0]["sessions"]["decrypted"], 1);
    assert_eq!(clients[0]["sessions"]["missing_key"], 1);
    assert_eq!(clients[0]["sessions"]["exempt"], 1);
    assert_eq!(
        (&clients[1]["name"], &clients[1]["sessions"]["failed"]),
        (&"2001:db8::/64".into(), &1.into())
    );
    let programs = told["programs"]["rows"].as_array().unwrap();
    let names: Vec<_> = programs.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names[0], "t13");
    assert!(names.contains(&"t12") && names.contains(&"unknown"), "{names:?}");
    assert_eq!(told["ended"].as_array().unwrap().len(), 4);
    assert_eq!(told["ended"][3]["why"], "It was decrypted.");
}

#[test]
fn refuses_to_keep_more_clients_than_its_cap() {
    let (mut recorder, recent) = recorder();
    let most = MAX_COUNTED.get() as u32;
    // More than fit between two ticks, and then more than fit at all.
    for (round, count) in [(0, most + 10), (1, most)] {
        for number in 0..count {
            let address = std::net::Ipv4Addr::from_bits(number + round * 2 * most);
            let info = SessionInfo { client: (address, 1).into(), ..session() };
            end(&mut recorder, &info, Some("t13"), Outcome::Decrypted);
        }
        recorder.publish();
    }
    let told = recent.told();
    let rows = told["clients"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), MAX_TOLD);
    let others = told["clients"]["others"]["decrypted"].as_u64().unwrap();
    assert_eq!(others + rows.len() as u64, u64::from(2 * most + 10), "none is lost");
    assert_eq!(recent.lock().clients.0.len(), MAX_COUNTED.get());
}

#[test]
fn refuses_to_wait_for_a_reader() {
    let (mut recorder, recent) = recorder();
    end(&mut recorder, &session(), None, Outcome::Decrypted);
    let reader = recent.lock();
    recorder.publish();
    drop(reader);
    assert_eq!(recent.told()["ended"], json!([]));
    recorder.publish();
    assert_eq!(recent.told()["ended"].as_array().unwrap().len(), 1);
}
