//! Live reload: what has the service read its files anew, what it then follows, and what it refuses.

mod figure;
mod followed;
mod restart;
mod rotation;

use crate::support::admin::get;
use crate::support::service::{Tidegate, block_on, check, client, told};
use crate::support::{eventually, redis::Server};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate::ext_authz::proto::CheckResponse;

/// How long nothing must happen to be believed not to: several times what a change takes to be seen.
const A_WHILE: Duration = Duration::from_millis(1200);

/// A configuration in which users have a burst of so many, and `more`.
fn config(max_tokens: u32, more: &str) -> String {
    format!(
        "identity: {{user: [{{header: x-user}}]}}\ndefault_tier: free\n\
         tiers: {{free: {{per_user: {{max_tokens: {max_tokens}, refill_rate: 1}}}}}}\n{more}"
    )
}

fn redis(server: &Server) -> String {
    format!("redis: {{urls: ['{}'], timeout: 10s}}\non_store_error: deny\n", server.url())
}

/// A directory with files that tests change under a running service.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file in place, and says where.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Puts a new file in the place of an old one, as most editors do.
    fn replace(&self, name: &str, text: &str) {
        let draft = self.write(&format!(".{name}.swp"), text);
        std::fs::rename(draft, self.path(name)).unwrap();
    }
}

/// A directory as Kubernetes mounts a ConfigMap: `tidegate.yaml -> ..data/tidegate.yaml`, `..data -> ..<a time>`.
struct ConfigMap {
    folder: Folder,
    swaps: u32,
}

impl ConfigMap {
    fn new(text: &str) -> Self {
        let mut map = Self { folder: Folder::new(), swaps: 0 };
        map.swap(text);
        std::os::unix::fs::symlink("..data/tidegate.yaml", map.file()).unwrap();
        map
    }

    fn file(&self) -> PathBuf {
        self.folder.path("tidegate.yaml")
    }

    /// As the kubelet does it: a new directory, a new symlink renamed over the old one, the old directory removed.
    fn swap(&mut self, text: &str) {
        let name = |swaps: u32| format!("..2026_12_07_09_00_{swaps:02}.123456");
        self.swaps += 1;
        let data = self.folder.path(&name(self.swaps));
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("tidegate.yaml"), text).unwrap();
        let draft = self.folder.path("..data_tmp");
        std::os::unix::fs::symlink(name(self.swaps), &draft).unwrap();
        std::fs::rename(draft, self.folder.path("..data")).unwrap();
        if self.swaps > 1 {
            std::fs::remove_dir_all(self.folder.path(&name(self.swaps - 1))).unwrap();
        }
    }
}

/// A metric's value, by its name and labels as they are written.
fn metric(service: &Tidegate, series: &str) -> u64 {
    get(service.admin, "/metrics").value(series)
}

/// Reloads that succeeded, and those that were refused.
fn reloads(service: &Tidegate) -> (u64, u64) {
    let of = |result| metric(service, &format!("tidegate_config_reloads_total{{result=\"{result}\"}}"));
    (of("success"), of("refused"))
}

fn until_reloads(service: &Tidegate, wanted: (u64, u64)) {
    eventually(&format!("there were {wanted:?} reloads and refusals"), || {
        let now = reloads(service);
        assert!(now.0 <= wanted.0 && now.1 <= wanted.1, "{now:?} are more than {wanted:?}:\n{}", service.log());
        (now == wanted).then_some(())
    });
}

/// Looks on for a while, in which nothing is reloaded.
fn reloads_stay(service: &Tidegate, wanted: (u64, u64)) {
    let end = Instant::now() + A_WHILE;
    while Instant::now() < end {
        assert_eq!(reloads(service), wanted, "{}", service.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ask(service: &Tidegate, headers: &[(&str, &str)]) -> CheckResponse {
    block_on(async { client(service).await.check(check(headers)).await.unwrap().into_inner() })
}

/// The limit that somebody new is told.
fn limit(service: &Tidegate) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let user = format!("u{}", COUNT.fetch_add(1, Ordering::Relaxed));
    told(&ask(service, &[("x-user", &user)]), "limit").unwrap()
}

fn hash(service: &Tidegate) -> String {
    let text = get(service.admin, "/metrics").body;
    let hashes: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("tidegate_config_info{hash=\"")).collect();
    assert_eq!(hashes.len(), 1, "{text}");
    hashes[0].trim_end_matches("\"} 1").to_owned()
}

fn sha256sum(path: &Path) -> String {
    let output = std::process::Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

#[test]
fn a_config_map_swapped_five_times_in_a_row_is_reloaded_five_times() {
    let mut map = ConfigMap::new(&config(100, ""));
    let service = Tidegate::start_at(&map.file(), &[]);
    assert_eq!((limit(&service).as_str(), reloads(&service)), ("100", (0, 0)));
    for swap in 1..=5 {
        map.swap(&config(100 + swap, ""));
        until_reloads(&service, (swap.into(), 0));
        assert_eq!(limit(&service), (100 + swap).to_string());
        assert_eq!(hash(&service), sha256sum(&map.file()));
    }
    reloads_stay(&service, (5, 0));
}

#[test]
fn a_bad_file_between_two_good_ones_is_refused_once_told_in_full_and_forgotten() {
    let mut map = ConfigMap::new(&config(100, ""));
    let service = Tidegate::start_at(&map.file(), &[]);
    let before = hash(&service);
    map.swap(&config(101, "mode: sometimes\ndrain: soon\n"));
    until_reloads(&service, (0, 1));
    let ready = eventually("the refusal is told", || {
        Some(get(service.admin, "/readyz?verbose")).filter(|page| page.body.contains("refused"))
    });
    assert_eq!(ready.status(), 200, "{ready:?}");
    assert!(ready.body.contains("\n[!] config warning: reload refused\n"), "{ready:?}");
    assert_eq!(metric(&service, "tidegate_config_last_reload_successful"), 0);
    assert_eq!((limit(&service), hash(&service)), ("100".to_owned(), before));
    for fault in ["config: mode: \\\"sometimes\\\"", "config: drain: \\\"soon\\\""] {
        service.wait_for_log(fault);
    }
    reloads_stay(&service, (0, 1));

    map.swap(&config(102, ""));
    until_reloads(&service, (1, 1));
    eventually("all is well", || {
        get(service.admin, "/readyz?verbose").body.contains("\n[+] config ok\n").then_some(())
    });
    assert_eq!(metric(&service, "tidegate_config_last_reload_successful"), 1);
    assert!(metric(&service, "tidegate_config_last_reload_success_timestamp_seconds") > 1_700_000_000);
    assert_eq!(limit(&service), "102");
}

#[test]
fn what_is_written_in_place_or_renamed_over_is_reloaded_and_what_is_only_touched_is_not() {
    let folder = Folder::new();
    let file = folder.write("tidegate.yaml", &config(100, ""));
    let service = Tidegate::start_at(&file, &[]);
    folder.write("tidegate.yaml", &config(101, ""));
    until_reloads(&service, (1, 0));
    folder.replace("tidegate.yaml", &config(102, ""));
    until_reloads(&service, (2, 0));
    assert_eq!(limit(&service), "102");
    let touched = std::process::Command::new("touch").arg(&file).status().unwrap();
    assert!(touched.success());
    folder.write("tidegate.yaml", &config(102, ""));
    folder.write("of-somebody-else", "x");
    reloads_stay(&service, (2, 0));
}

#[test]
fn a_file_that_is_away_is_refused_once_and_followed_when_it_is_back() {
    let folder = Folder::new();
    let file = folder.write("tidegate.yaml", &config(100, ""));
    let service = Tidegate::start_at(&file, &[]);
    std::fs::remove_file(&file).unwrap();
    until_reloads(&service, (0, 1));
    folder.write("of-somebody-else", "x");
    reloads_stay(&service, (0, 1));
    assert_eq!(limit(&service), "100");
    folder.write("tidegate.yaml", &config(101, ""));
    until_reloads(&service, (1, 1));
    assert_eq!(limit(&service), "101");
}

#[test]
fn a_directory_that_is_made_anew_is_watched_again() {
    let folder = Folder::new();
    let inner = folder.path("etc");
    std::fs::create_dir(&inner).unwrap();
    let file = folder.write("etc/tidegate.yaml", &config(100, ""));
    let service = Tidegate::start_at(&file, &[]);
    std::fs::remove_dir_all(&inner).unwrap();
    service.wait_for_log("cannot watch for changes");
    until_reloads(&service, (0, 1));
    std::fs::create_dir(&inner).unwrap();
    folder.write("etc/tidegate.yaml", &config(101, ""));
    eventually("it is reloaded", || (reloads(&service).0 >= 1).then_some(()));
    service.wait_for_log("watched for again");
    // It is the watch that sees this: looks alone would come much later.
    let before = (reloads(&service), Instant::now());
    folder.write("etc/tidegate.yaml", &config(102, ""));
    eventually("it is reloaded", || (reloads(&service).0 > before.0.0).then_some(()));
    assert!(before.1.elapsed() < Duration::from_secs(8), "{:?}", before.1.elapsed());
    eventually("it is in force", || (limit(&service) == "102").then_some(()));
}

#[test]
fn sighup_reloads_whether_or_not_anything_changed() {
    let folder = Folder::new();
    let file = folder.write("tidegate.yaml", &config(100, ""));
    let service = Tidegate::start_at(&file, &[]);
    service.signal("HUP");
    until_reloads(&service, (1, 0));
    service.wait_for_log("\"cause\":\"SIGHUP\"");
    assert_eq!(limit(&service), "100");
}
