//! Tests of the file of lines: disks that are full, that hang, or that get room again.

use std::fs::{File, OpenOptions};
use std::process::Command;

use rustix::fs::{OFlags, fcntl_getfl};

use super::*;

fn open(path: &Path) -> io::Result<LineFile> {
    LineFile::open(path, Rotation::default())
}

#[test]
fn refuses_to_grow_without_bound() {
    let mut file = open(Path::new("/dev/full")).unwrap();
    let line = [b'x'; 1 << 16];
    for _ in 0..512 {
        file.push(&line);
        file.flush();
    }
    let pending = {
        let state = file.shared.lock();
        state.pending.len() + state.in_hand
    };
    assert_eq!(pending, MAX_PENDING);
    assert_eq!(file.lost_lines(), 512);
    assert!(file.take_error().is_some() && file.take_error().is_none());
}

#[test]
fn accepts_a_file_that_was_renamed_with_a_thread_and_without() {
    for behind in [false, true] {
        let name = format!("mmtls-reopen-{behind}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        create_private_dir(&dir).unwrap();
        let (path, rotated) = (dir.join("a"), dir.join("b"));
        let mut file = open(&path).unwrap();
        if behind {
            file.write_behind().unwrap();
        }
        file.push(b"1\n");
        std::fs::rename(&path, &rotated).unwrap();
        file.reopen();
        file.finish(Instant::now());
        assert!(file.take_reopen_error().is_none());
        file.push(b"2\n");
        file.finish(Instant::now());
        assert_eq!(std::fs::read(&rotated).unwrap(), b"1\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"2\n");
        std::fs::remove_dir_all(&dir).unwrap();
        file.reopen();
        file.finish(Instant::now());
        assert!(file.take_reopen_error().is_some());
        file.push(b"3\n");
        file.finish(Instant::now());
        assert!(file.take_error().is_some(), "nobody could find the old file");
        assert_eq!(file.lost_lines(), 1);
    }
}

#[test]
fn refuses_nothing_when_the_device_is_full() {
    let mut file = open(Path::new("/dev/full")).unwrap();
    file.push(b"{}\n");
    file.flush();
    assert!(file.take_error().is_some());
    file.push(b"{}\n");
    file.flush();
    assert!(file.take_error().is_none());
    assert_eq!(file.lost_lines(), 2, "they are nowhere when the program ends now");
}

#[test]
fn refuses_to_wait_for_the_reader_of_a_fifo_when_it_opens_again() {
    let dir = std::env::temp_dir().join(format!("mmtls-reopen-fifo-{}", std::process::id()));
    create_private_dir(&dir).unwrap();
    let path = dir.join("eve.json");
    let mut file = open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    file.reopen();
    let error = file.take_reopen_error().unwrap();
    assert_eq!(error.to_string(), "nobody reads this FIFO");
    let error = open(&path).err().unwrap();
    assert_eq!(error.to_string(), "nobody reads this FIFO", "nor at the start");
    // With a reader it is a file like any other.
    let both = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.reopen();
    assert!(file.take_reopen_error().is_none());
    let flags = fcntl_getfl(open_at_once(&path).unwrap()).unwrap();
    assert!(!flags.contains(OFlags::NONBLOCK));
    drop(both);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn refuses_to_rename_a_fifo_that_somebody_reads() {
    let dir = std::env::temp_dir().join(format!("mmtls-rotate-fifo-{}", std::process::id()));
    create_private_dir(&dir).unwrap();
    let path = dir.join("eve.json");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let rotation = Rotation { bytes: Some(8 << 10), age: None, files: 2 };
    let mut file = LineFile::open(&path, rotation).unwrap();
    for _ in 0..32 {
        file.push(&LINE);
        file.flush();
    }
    read_lines(reader, 32);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "it has its name still");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A pipe as a log, and its reading end. Nobody reads: it hangs once it is full.
fn hanging(name: &str) -> (std::path::PathBuf, LineFile, File) {
    let dir = std::env::temp_dir().join(format!("mmtls-{name}-{}", std::process::id()));
    create_private_dir(&dir).unwrap();
    let path = dir.join("eve.json");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut file = LineFile::open_with(&path, Rotation::default(), Duration::from_secs(1)).unwrap();
    file.write_behind().unwrap();
    (dir, file, reader)
}

/// Reads so many lines.
fn read_lines(reader: File, count: u64) -> (File, u64) {
    let (mut reader, mut read) = (io::BufReader::new(reader), 0);
    let mut line = Vec::new();
    while read < count {
        line.clear();
        io::BufRead::read_until(&mut reader, b'\n', &mut line).unwrap();
        assert_eq!(line.len(), 1024);
        read += 1;
    }
    assert!(reader.buffer().is_empty());
    (reader.into_inner(), read)
}

const LINE: [u8; 1024] = {
    let mut line = [b'x'; 1024];
    line[1023] = b'\n';
    line
};

#[test]
fn refuses_to_let_anybody_wait_for_a_disk_that_hangs() {
    let (dir, mut file, reader) = hanging("behind");
    let mut other = file.share();
    other.write_behind().unwrap();
    // Would never come back if it waited: nobody reads.
    for _ in 0..1000 {
        file.push(&LINE);
        other.push(&LINE);
    }
    file.flush();
    other.flush();
    assert_eq!((file.lost_lines(), file.take_error().is_none()), (0, true));
    let reader = thread::spawn(move || read_lines(reader, 2000));
    file.finish(Instant::now());
    let (reader, _) = reader.join().unwrap();
    assert_eq!(file.lost_lines(), 0);
    // Whoever is left goes on, with the thread and without it.
    drop(file);
    let mut last = other.share();
    last.thread = None;
    other.push(&LINE);
    drop(other);
    last.push(&LINE);
    last.flush();
    assert!(last.shared.lock().pending.is_empty() && !last.shared.lock().behind);
    let (reader, _) = read_lines(reader, 2);
    drop((last, reader));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn names_what_a_disk_that_hangs_has_no_room_for() {
    let (dir, mut file, reader) = hanging("overflow");
    // The pipe, the thread's hand and the buffer are full.
    for _ in 0..40_000 {
        file.push(&LINE);
    }
    file.flush();
    let lost = file.lost_lines();
    assert!((1..40_000).contains(&lost), "{lost}");
    assert!(file.take_error().is_some(), "who does not keep up is told of");
    // The end does not wait for ever, and counts what it leaves behind.
    file.finish(Instant::now());
    let waited = file.shared.lock().waited;
    for _ in 0..30 {
        file.finish(Instant::now());
    }
    assert_eq!(file.shared.lock().waited, waited, "waited for once");
    let left = file.lost_lines();
    assert!(left > lost && left <= 40_000, "{left}");
    // When it works again, only what found no room is lost.
    let reader = thread::spawn(move || read_lines(reader, 40_000 - lost));
    while file.lost_lines() != lost {
        assert!(file.lost_lines() >= lost);
        file.finish(Instant::now());
    }
    file.finish(Instant::now());
    assert_eq!(file.lost_lines(), lost);
    let reader = reader.join().unwrap();
    drop((file, reader));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn refuses_to_wait_for_ever_for_a_reader_that_is_slow() {
    let (dir, mut file, mut reader) = hanging("slow");
    for _ in 0..1000 {
        file.push(&LINE);
    }
    // A page now and then: there is always progress.
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let slow = thread::spawn(move || {
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            io::Read::read_exact(&mut reader, &mut [0; 4096]).unwrap();
            thread::sleep(Duration::from_millis(50));
        }
        reader
    });
    let begun = Instant::now();
    file.finish(Instant::now());
    file.finish(Instant::now());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(file.lost_lines() > 0 && file.take_error().is_some(), "it is told");
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let reader = slow.join().unwrap();
    let reading = thread::spawn(move || {
        let mut reader = reader;
        while io::Read::read(&mut reader, &mut [0; 65536]).is_ok_and(|count| count > 0) {}
    });
    drop(file);
    drop(reading);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn accepts_a_file_that_was_removed() {
    let dir = std::env::temp_dir().join(format!("mmtls-removed-{}", std::process::id()));
    create_private_dir(&dir).unwrap();
    let path = dir.join("eve.json");
    let mut file = open(&path).unwrap();
    file.push(b"1\n");
    file.flush();
    std::fs::remove_file(&path).unwrap();
    file.push(b"2\n");
    file.flush();
    assert_eq!(std::fs::read(&path).unwrap(), b"2\n");
    std::fs::remove_dir_all(&dir).unwrap();
    file.push(b"3\n");
    file.flush();
    assert_eq!((file.lost_lines(), file.take_error().is_some()), (1, true), "no directory");
    create_private_dir(&dir).unwrap();
    file.flush();
    assert_eq!((file.lost_lines(), std::fs::read(&path).unwrap()), (0, b"3\n".to_vec()));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn accepts_as_many_files_as_it_was_told_and_no_half_lines() {
    for behind in [false, true] {
        let name = format!("mmtls-rotate-{behind}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        create_private_dir(&dir).unwrap();
        let path = dir.join("eve.json");
        let rotation = Rotation { bytes: Some(1 << 16), age: None, files: 3 };
        let mut file = LineFile::open(&path, rotation).unwrap();
        if behind {
            file.write_behind().unwrap();
        }
        for _ in 0..400 {
            file.push(&LINE);
            file.finish(Instant::now());
        }
        assert_eq!((file.lost_lines(), file.take_reopen_error().is_none()), (0, true));
        drop(file);
        let mut names: Vec<_> =
            std::fs::read_dir(&dir).unwrap().map(|it| it.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["eve.json", "eve.json.1", "eve.json.2"]);
        for name in names {
            let text = std::fs::read(dir.join(name)).unwrap();
            assert!(text.len() <= 1 << 16 && text.len().is_multiple_of(LINE.len()));
            assert_eq!(text.last(), Some(&b'\n'));
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn accepts_a_directory_in_which_nothing_can_be_renamed_and_tells_it() {
    let dir = std::env::temp_dir().join(format!("mmtls-rotate-not-{}", std::process::id()));
    create_private_dir(&dir).unwrap();
    let path = dir.join("eve.json");
    // What has the name already is a directory with something in it.
    create_private_dir(&dir.join("eve.json.1/x")).unwrap();
    let rotation = Rotation { bytes: Some(1 << 16), age: None, files: 2 };
    let mut file = LineFile::open(&path, rotation).unwrap();
    for _ in 0..100 {
        file.push(&LINE);
    }
    file.flush();
    assert!(file.take_reopen_error().is_some() && file.take_error().is_none());
    assert_eq!(file.lost_lines(), 0);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 100 << 10);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn names_each_trouble_once() {
    let mut state = State::new(Out::open(Path::new("/dev/null")).unwrap());
    let full = || Err(io::ErrorKind::StorageFull.into());
    assert!(!state.wrote(full()) && !state.wrote(full()));
    assert!(state.error.take().is_some() && state.error.is_none());
    assert!(state.wrote(Ok(Written::default())) && !state.failing);
    assert!(!state.wrote(full()) && state.error.is_some(), "another one");
}
