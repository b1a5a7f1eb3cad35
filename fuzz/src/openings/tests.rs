//! The models alone, and what the target finds.

use super::*;

/// Both ends honest, nobody between that does anything.
fn honest(how: u8, who: u8) -> World {
    World::new(Choices::read(&mut Input::new(&[3 | who, how, 0])))
}

#[test]
fn accepts_an_honest_connection_by_any_rules() {
    for how in 0..=255u8 {
        // With keys; without, where policy lets it pass; whoever opens it.
        for who in [0x04, 0x84, 0x60, 0xe0] {
            let mut world = honest(how & !0x20, who);
            assert!(world.choices.is_free());
            world.end();
            assert!(world.is_done(), "{how:#x} {who:#x}");
        }
    }
}

#[test]
fn refuses_honest_records_without_keys() {
    for who in [0x00, 0x20, 0x40] {
        let mut world = honest(0, who);
        assert!(world.choices.guard() == network::Guard::Everything);
        world.end();
        assert!(!world.is_done());
        let stages = world.net.ends.iter().flatten().map(|it| it.app.stage);
        // The client has shown its Finished to the engine alone.
        assert_eq!(stages.collect::<Vec<_>>(), [app::Stage::Data, app::Stage::Flight]);
    }
}
