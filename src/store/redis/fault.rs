//! What went wrong in Redis: in the words of [`StoreError`], and what follows for the connection, the breaker and the
//! map of a Cluster.

use super::RedisUrl;
use crate::store::StoreError;
use deadpool_redis::redis::{ErrorKind, RedisError, ServerErrorKind};
use std::fmt::Display;
use std::time::Duration;

/// Why a call to one server has no reply.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server, or the way to it.
    Redis(RedisError),
    Timeout,
    /// Not answered in time, which tells nothing of the server: others were answered on the same connection, or this
    /// process was late.
    Late,
    /// Not sent: the server failed before, and did not answer a probe since.
    BreakerOpen,
    /// Not sent: as many calls as are allowed were on their way until there was no time left.
    Overloaded,
}

use Failure::{BreakerOpen, Late, Overloaded, Redis, Timeout};

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        if error.is_timeout() { Timeout } else { Redis(error) }
    }
}

impl Failure {
    fn server(&self) -> Option<ServerErrorKind> {
        match self {
            Redis(error) => match error.kind() {
                ErrorKind::Server(kind) => Some(kind),
                _ => None,
            },
            _ => None,
        }
    }

    fn is(&self, kind: ErrorKind) -> bool {
        matches!(self, Redis(error) if error.kind() == kind)
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.server() == Some(ServerErrorKind::ReadOnly)
    }

    /// Whether the connection on which it happened is better not used again. No answer in time counts, since the way to
    /// the server may be cut; so does a read-only answer, since what stands there is no master any more, and behind a
    /// fixed name a new connection finds the new one.
    pub(super) fn spoils_connection(&self) -> bool {
        matches!(self, Timeout) || self.is(ErrorKind::Io) || self.is(ErrorKind::Parse) || self.is_read_only()
    }

    /// Whether it tells against the server, so that other calls are likely to fail as well. Not so what is wrong with one
    /// key, one slot or one command: else one client with a damaged bucket, or a user of Redis who may not read API keys,
    /// would open the breaker for all.
    pub(super) fn tells_against_server(&self) -> bool {
        if matches!(self, Timeout) || self.is(ErrorKind::Io) || self.is(ErrorKind::Parse) {
            return true;
        }
        let Redis(error) = self else { return false };
        if error.kind() == ErrorKind::AuthenticationFailed {
            return true;
        }
        let (code, text) = (error.code().unwrap_or_default(), one_line(error));
        let one_command = code == "NOPERM" || text.contains(FORBIDDEN_IN_SCRIPT);
        let one_slot = text.contains("Hash slot not served");
        use StoreError::{Auth, ClusterDown, Loading, OutOfMemory, ReadOnly};
        let sorted = from_code(code, text);
        !one_command
            && !one_slot
            && matches!(sorted, Auth(_) | ClusterDown(_) | Loading(_) | OutOfMemory(_) | ReadOnly(_))
    }

    /// Whether the map of a Cluster may be out of date.
    pub(super) fn doubts_slots(&self) -> bool {
        use ServerErrorKind::{ClusterDown, MasterDown, ReadOnly};
        matches!(self, Timeout | BreakerOpen)
            || self.is(ErrorKind::Io)
            || matches!(self.server(), Some(ClusterDown | MasterDown | ReadOnly))
    }

    /// In the words of the port. `url` is that of the server, `timeout` what the call was given.
    pub(super) fn told(&self, url: &RedisUrl, timeout: Duration) -> StoreError {
        match self {
            Timeout | Late => StoreError::Timeout(timeout),
            BreakerOpen => StoreError::BreakerOpen(url.to_string()),
            Overloaded => StoreError::Overloaded(url.to_string()),
            Redis(error) => store_error(error, url),
        }
    }
}

/// What Redis says, with no word of its own in front, when a script calls what its user may not call.
const FORBIDDEN_IN_SCRIPT: &str = "can't run this command";

/// Whether the server does not know the script whose digest it was sent: it restarted, failed over, or was flushed.
pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

fn store_error(error: &RedisError, url: &RedisUrl) -> StoreError {
    let text = url.redact(one_line(error));
    match error.kind() {
        ErrorKind::Io => StoreError::Connection(format!("{url}: {text}")),
        ErrorKind::AuthenticationFailed => StoreError::Auth(text),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => StoreError::Protocol(text),
        _ => from_code(error.code().unwrap_or_default(), text),
    }
}

/// Sorts an error by the word Redis starts it with. Before version 7 an error inside a script starts with `ERR` and
/// names the true one later, so the text is searched as well.
fn from_code(code: &str, text: String) -> StoreError {
    let names = |word: &str| code == word || (code == "ERR" && text.contains(word));
    if names("WRONGTYPE") {
        StoreError::WrongType(text)
    } else if names("NOAUTH") || names("WRONGPASS") || names("NOPERM") || names(FORBIDDEN_IN_SCRIPT) {
        StoreError::Auth(text)
    } else if names("LOADING") || names("BUSY") || names("MASTERDOWN") {
        StoreError::Loading(text)
    } else if names("READONLY") {
        StoreError::ReadOnly(text)
    } else if names("OOM") {
        StoreError::OutOfMemory(text)
    } else if names("CLUSTERDOWN") {
        StoreError::ClusterDown(text)
    } else {
        StoreError::Refused(text)
    }
}

/// The text of an error, on one line and not endless.
pub(super) fn one_line(error: &impl Display) -> String {
    const LONGEST: usize = 300;
    let text = error.to_string();
    let words: Vec<&str> =
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()).collect();
    words.join(" ").chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_inside_a_script_of_redis_6_is_sorted_by_the_word_it_names() {
        let text = "Error running script (call to f_1): @user_script:8: WRONGTYPE Operation against a key".to_owned();
        assert_eq!(from_code("ERR", text).kind(), "wrong_type");
        assert_eq!(from_code("ERR", "value is not an integer".to_owned()).kind(), "refused");
    }

    #[test]
    fn an_error_with_line_breaks_takes_one_line() {
        assert_eq!(one_line(&"a\r\n b\t\u{1b}[31m c"), "a b [31m c");
        assert_eq!(one_line(&"x".repeat(1000)).len(), 300);
    }

    #[test]
    fn a_damaged_bucket_tells_nothing_against_the_server() {
        let wrong_type = RedisError::from((ErrorKind::Server(ServerErrorKind::ResponseError), "WRONGTYPE a key"));
        assert!(!Redis(wrong_type).tells_against_server());
        assert!(!BreakerOpen.tells_against_server() && !Overloaded.tells_against_server());
        assert!(!Late.tells_against_server() && !Late.spoils_connection());
        assert!(Timeout.tells_against_server());
        let read_only = RedisError::from((ErrorKind::Server(ServerErrorKind::ReadOnly), "a replica"));
        assert!(Redis(read_only).tells_against_server());
    }

    #[test]
    fn what_one_command_or_one_slot_meets_tells_nothing_against_the_server() {
        let met = |kind, text: &str| Redis(RedisError::from((ErrorKind::Server(kind), "", text.to_owned())));
        assert!(!met(ServerErrorKind::NoPerm, "no permissions to run 'hgetall'").tells_against_server());
        let script = "ERR The user executing the script can't run this command or subcommand";
        assert!(!met(ServerErrorKind::ResponseError, script).tells_against_server());
        assert!(!met(ServerErrorKind::ClusterDown, "Hash slot not served").tells_against_server());
        assert!(met(ServerErrorKind::ClusterDown, "The cluster is down").tells_against_server());
    }
}
