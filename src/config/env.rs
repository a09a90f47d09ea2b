//! The environment and the flags -> what overrides the file, with who said it.
//!
//! The process's environment is read once, here, and passed on as a value. Of secrets, only the source is ever shown.

use super::fault::{Report, nearest, quoted};
use super::files::FilesRead;
use super::raw::Secret;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// Starts the name of every variable.
const PREFIX: &str = "TIDEGATE_";
const CONFIG: &str = "TIDEGATE_CONFIG";
const LISTEN: &str = "TIDEGATE_LISTEN";
const ADMIN_LISTEN: &str = "TIDEGATE_ADMIN_LISTEN";
const ADMIN_TOKEN: &str = "TIDEGATE_ADMIN_TOKEN";
const ADMIN_TOKEN_FILE: &str = "TIDEGATE_ADMIN_TOKEN_FILE";
const REDIS_URL: &str = "TIDEGATE_REDIS_URL";
const REDIS_PASSWORD: &str = "TIDEGATE_REDIS_PASSWORD";
const REDIS_PASSWORD_FILE: &str = "TIDEGATE_REDIS_PASSWORD_FILE";
const SENTINEL_PASSWORD: &str = "TIDEGATE_REDIS_SENTINEL_PASSWORD";
const SENTINEL_PASSWORD_FILE: &str = "TIDEGATE_REDIS_SENTINEL_PASSWORD_FILE";
const KEY_PEPPER: &str = "TIDEGATE_KEY_PEPPER";
const KEY_PEPPER_FILE: &str = "TIDEGATE_KEY_PEPPER_FILE";
const KEY_PEPPER_PREVIOUS: &str = "TIDEGATE_KEY_PEPPER_PREVIOUS";
const KEY_PEPPER_PREVIOUS_FILE: &str = "TIDEGATE_KEY_PEPPER_PREVIOUS_FILE";
const REPLICA: &str = "TIDEGATE_REPLICA";
const LOG: &str = "TIDEGATE_LOG";
const LOG_FORMAT: &str = "TIDEGATE_LOG_FORMAT";

/// Every variable that is read.
pub const VARIABLES: [&str; 17] = [
    CONFIG,
    LISTEN,
    ADMIN_LISTEN,
    ADMIN_TOKEN,
    ADMIN_TOKEN_FILE,
    REDIS_URL,
    REDIS_PASSWORD,
    REDIS_PASSWORD_FILE,
    SENTINEL_PASSWORD,
    SENTINEL_PASSWORD_FILE,
    KEY_PEPPER,
    KEY_PEPPER_FILE,
    KEY_PEPPER_PREVIOUS,
    KEY_PEPPER_PREVIOUS_FILE,
    REPLICA,
    LOG,
    LOG_FORMAT,
];

/// The longest secret that is read from a file, in bytes.
const MAX_SECRET: usize = 64 << 10;

/// The variables that start with `TIDEGATE_`. An empty one counts as unset, as orchestrators write it.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, OsString>,
}

impl Environment {
    /// This process's.
    pub fn of_process() -> Self {
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect()
    }

    /// Where the config file is.
    pub fn config(&self) -> Option<PathBuf> {
        self.variables.get(CONFIG).map(PathBuf::from)
    }

    /// Where the service listens.
    pub fn listen(&self) -> Option<String> {
        self.variables.get(LISTEN)?.to_str().map(str::to_owned)
    }

    fn text(&self, name: &'static str, report: &mut Report) -> Option<Given> {
        let value = self.variables.get(name)?;
        match value.to_str() {
            Some(text) => Some(Given::new(name, text)),
            None => {
                report.fault(name, "holds bytes that are not UTF-8");
                None
            }
        }
    }

    /// A secret, as it is or from a file.
    fn secret(&self, name: &'static str, file: &'static str, report: &mut Report) -> Option<Given> {
        let given = self.secret_or_nothing(name, file, report)?;
        if given.text().is_empty() {
            let path = self.variables.get(file).map(|path| path.to_string_lossy()).unwrap_or_default();
            report.fault(file, format!("cannot read {}: is empty", quoted(&path)));
            return None;
        }
        Some(given)
    }

    /// The same; the file may be empty.
    fn secret_or_nothing(&self, name: &'static str, file: &'static str, report: &mut Report) -> Option<Given> {
        let direct = self.text(name, report);
        let Some(path) = self.variables.get(file) else {
            return direct;
        };
        if direct.is_some() {
            report.fault(file, format!("is set together with {name}; keep one"));
            return None;
        }
        match secret_in(Path::new(path), &mut report.files) {
            Ok(text) => Some(Given::new(file, &text)),
            Err(why) => {
                report.fault(file, format!("cannot read {}: {why}", quoted(&path.to_string_lossy())));
                None
            }
        }
    }

    fn warn_of_misspelt(&self, report: &mut Report) {
        for name in self.variables.keys().filter(|name| !VARIABLES.contains(&name.as_str())) {
            let suffix = name.trim_start_matches(PREFIX).to_lowercase();
            let known: Vec<String> = VARIABLES.iter().map(|known| known[PREFIX.len()..].to_lowercase()).collect();
            if let Some(near) = nearest(&suffix, known.iter().map(String::as_str)) {
                let meant = near.to_uppercase();
                report.warn(name, format!("is not read; did you mean {PREFIX}{meant}?"));
            }
        }
    }
}

impl FromIterator<(String, OsString)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, OsString)>>(variables: I) -> Self {
        let ours = variables.into_iter().filter(|(name, value)| name.starts_with(PREFIX) && !value.is_empty());
        Self { variables: ours.collect() }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

/// One line end at the end is not part of the secret: editors and `echo` write it.
fn secret_in(path: &Path, files: &mut FilesRead) -> Result<String, String> {
    let bytes = files.read(path, MAX_SECRET).map_err(|error| error.to_string())?;
    if bytes.len() > MAX_SECRET {
        return Err(format!("is longer than {MAX_SECRET} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|_| "holds bytes that are not UTF-8".to_owned())?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    Ok(text.into())
}

/// What this machine, or this container, is called.
pub(super) fn hostname() -> String {
    let from_file = |path: &str| String::from_utf8(super::files::read_at_most(Path::new(path), 256).ok()?).ok();
    let named = std::env::var("HOSTNAME").ok();
    let mut names = named
        .into_iter()
        .chain(["/proc/sys/kernel/hostname", "/etc/hostname"].iter().filter_map(|path| from_file(path)));
    let name = names.find_map(|name| Some(name.trim().to_owned()).filter(|name| !name.is_empty()));
    name.unwrap_or_else(|| "unknown".to_owned())
}

/// What the command line says.
#[derive(Clone, Default)]
pub struct Flags {
    pub config: Option<PathBuf>,
    pub listen: Option<String>,
    pub redis_url: Option<String>,
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.redis_url.as_deref().map(quoted);
        f.debug_struct("Flags")
            .field("config", &self.config)
            .field("listen", &self.listen)
            .field("redis_url", &url)
            .finish()
    }
}

/// A text, and who said it.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// A flag, a variable, or a path in the file.
    pub(super) path: String,
    text: Secret,
}

impl Given {
    pub(super) fn new(path: impl Into<String>, text: &str) -> Self {
        Self { path: path.into(), text: Secret(text.to_owned()) }
    }

    pub(super) fn text(&self) -> &str {
        &self.text.0
    }
}

/// What comes before the file: flags first, then the environment.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides {
    pub(super) listen: Option<Given>,
    pub(super) admin_listen: Option<Given>,
    pub(super) admin_token: Option<Given>,
    pub(super) redis_url: Option<Given>,
    pub(super) redis_password: Option<Given>,
    pub(super) sentinel_password: Option<Given>,
    pub(super) key_pepper: Option<Given>,
    pub(super) key_pepper_previous: Option<Given>,
    pub(super) replica: Option<Given>,
    pub(super) log_filter: Option<Given>,
    pub(super) log_format: Option<Given>,
    pub(super) files: Files,
}

/// Whether the files that a config names are read: not where it is only looked at, perhaps on another machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Files {
    #[default]
    LeaveAside,
    Read,
}

impl Overrides {
    pub(super) fn collect(flags: &Flags, env: &Environment, report: &mut Report) -> Self {
        let flag = |name: &str, text: &Option<String>| text.as_deref().map(|text| Given::new(name, text));
        env.warn_of_misspelt(report);
        // Each variable is read even where a flag comes before it, so that its faults are told.
        let (listen, redis_url) = (env.text(LISTEN, report), env.text(REDIS_URL, report));
        Self {
            listen: flag("--listen", &flags.listen).or(listen),
            admin_listen: env.text(ADMIN_LISTEN, report),
            admin_token: env.secret(ADMIN_TOKEN, ADMIN_TOKEN_FILE, report),
            redis_url: flag("--redis-url", &flags.redis_url).or(redis_url),
            redis_password: env.secret(REDIS_PASSWORD, REDIS_PASSWORD_FILE, report),
            sentinel_password: env.secret(SENTINEL_PASSWORD, SENTINEL_PASSWORD_FILE, report),
            key_pepper: env.secret(KEY_PEPPER, KEY_PEPPER_FILE, report),
            // Empty between rotations, so that the next one takes no restart.
            key_pepper_previous: env
                .secret_or_nothing(KEY_PEPPER_PREVIOUS, KEY_PEPPER_PREVIOUS_FILE, report)
                .filter(|given| !given.text().is_empty()),
            replica: env.text(REPLICA, report),
            log_filter: env.text(LOG, report),
            log_format: env.text(LOG_FORMAT, report),
            files: Files::Read,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), OsString::from(value))).collect()
    }

    #[test]
    fn a_flag_comes_before_a_variable_and_an_empty_variable_is_none() {
        let mut report = Report::default();
        let env = env(&[(LISTEN, "a"), (REDIS_URL, "")]);
        let flags = Flags { listen: Some("b".into()), ..Flags::default() };
        let overrides = Overrides::collect(&flags, &env, &mut report);
        assert_eq!(overrides.listen.as_ref().map(Given::text), Some("b"));
        assert!(overrides.redis_url.is_none());
        let overrides = Overrides::collect(&Flags::default(), &env, &mut report);
        assert_eq!(overrides.listen.map(|given| given.path), Some(LISTEN.into()));
    }

    #[test]
    fn a_secret_comes_from_a_file_without_its_line_end_and_never_from_two_places() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hunter2\r\n").unwrap();
        let path = file.path().to_str().unwrap();
        let mut report = Report::default();
        let overrides = Overrides::collect(&Flags::default(), &env(&[(REDIS_PASSWORD_FILE, path)]), &mut report);
        assert_eq!(overrides.redis_password.as_ref().map(Given::text), Some("hunter2"));
        assert!(!format!("{overrides:?}").contains("hunter2"));
        let both = env(&[(KEY_PEPPER_FILE, path), (KEY_PEPPER, "x"), (REDIS_PASSWORD_FILE, "/nowhere/at/all")]);
        Overrides::collect(&Flags::default(), &both, &mut report);
        assert!(report.faults.has(KEY_PEPPER_FILE) && report.faults.has(REDIS_PASSWORD_FILE));
    }

    #[test]
    fn a_misspelt_variable_is_warned_of_and_those_of_kubernetes_are_not() {
        let mut report = Report::default();
        let env = env(&[("TIDEGATE_REDISURL", "x"), ("TIDEGATE_SERVICE_HOST", "x"), ("TIDEGATE_PORT", "tcp://x")]);
        Overrides::collect(&Flags::default(), &env, &mut report);
        let told: Vec<&str> = report.warnings.iter().map(|warning| warning.path.as_str()).collect();
        assert_eq!(told, ["TIDEGATE_REDISURL"]);
    }
}
