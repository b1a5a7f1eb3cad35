//! The models alone, and what the target finds.

use super::*;

/// Both ends honest, nobody between that does anything.
fn honest(how: u8, who: u8) -> World {
    begin(&[3 | who, how, 0])
}

fn begin(choices: &[u8; 3]) -> World {
    let choices = Choices::read(&mut Input::new(choices));
    let mut world = World::new(choices);
    if choices.clear {
        world.speak_in_the_clear();
        let begun = |end: &network::End| end.app.stage == app::Stage::Hello;
        assert!(world.net.ends.iter().flatten().all(begun), "{}", world.net.script());
    }
    world
}

#[test]
fn accepts_an_honest_connection_by_any_rules() {
    for how in 0..=255u8 {
        // With keys; without, where policy lets it pass; whoever opens it.
        for who in [0x04, 0x84, 0x60, 0xe0, 0x68] {
            let mut world = honest(how & !0x20, who);
            assert!(world.choices.is_free());
            world.end();
            assert!(world.is_done(), "{how:#x} {who:#x}");
        }
    }
}

#[test]
fn refuses_honest_records_without_keys() {
    for who in [0x00, 0x20, 0x40, 0x08, 0x48] {
        let mut world = honest(0, who);
        assert!(world.choices.guard() == network::Guard::Everything);
        world.end();
        assert!(!world.is_done());
        let stages = world.net.ends.iter().flatten().map(|it| it.app.stage);
        // The client has shown its Finished to the engine alone.
        assert_eq!(stages.collect::<Vec<_>>(), [app::Stage::Data, app::Stage::Flight]);
    }
}

#[test]
fn accepts_a_hostile_end_where_nothing_is_guarded() {
    // What goes on behind the input brings every connection to its end, so that a way past the engine
    // is one that ends like this.
    for side in [0, 1] {
        for how in 0..=255u8 {
            for front in [0, 0x80, 0x08, 0x88] {
                let choices = [side | 0x60 | front, how, 0];
                let mut world = begin(&choices);
                world.end();
                let end = world.net.ends.iter().flatten().next().unwrap();
                assert!(!end.app.got.is_empty(), "{choices:x?} {}", world.net.script());
            }
        }
    }
}

#[test]
fn refuses_an_engine_that_lets_everything_pass() {
    for side in [0, 1] {
        for (guard, how) in [
            (network::Guard::Everything, 0),
            (network::Guard::Everything, 0x08),
            (network::Guard::Pattern, 0x0c),
        ] {
            let pattern = (1 - side) << 4;
            let mut world = begin(&[side | 0x60 | how | pattern, 0, 0]);
            world.net.guard = guard;
            let run = std::panic::AssertUnwindSafe(|| world.end());
            let found = std::panic::catch_unwind(run).is_err();
            assert!(found, "{side} {guard:?} {}", world.net.script());
        }
    }
}

fn replay(digits: &str) {
    openings(&base16ct::lower::decode_vec(digits.replace(' ', "")).unwrap());
}

/// Found by fuzzing. Not among its seeds: their neighbours are where the next test looks.
#[test]
fn notices_answers_that_began_before_their_hello_was_seen() {
    replay(
        "c9c0dfc94b3cfb489e000000019e9e1648004cc5419e9e9ed99e9e000000000000030000009e9e9e799e9e9e9e9eede9 \
             9e080eede99e080e00f8929292072b9392d22d2d9c9292ff020000003d010101f96d0100080e6d6d000a020303030001 \
             0d6d01016d6d",
    );
}

/// A neighbour of that one.
#[test]
fn notices_an_answer_that_goes_on_in_order_and_ends_out_of_order() {
    replay(
        "c9c0dfc94b3cfb489e000000019e9e1648004cc5959e9e9ed9ffffffffffffffff419e000000000000030000000a00fc \
             011e9e9e799e9e9e9e9eede99e080eed1648004cc59e9e9e9ed9c40022030e00283d0301c4f90e086d00c46d6d01c4c4 \
             c4c4c4c4c4c4c4c4c4c4c4c4f96d0100080e6d6d000a0203030300fff262020000c4c4c480430022030e00283d0301c4 \
             f90e086d00c48f6d6d01c4c4c4c4c4c4c4c4c4c4c4c4c4c4f96d0100080e6d6d000a0203030300fff262020000019e9e \
             1648005cc5499e9e64d2636d",
    );
}
