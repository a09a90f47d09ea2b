//! What went wrong in Redis, in the words of [`StoreError`].

use super::RedisUrl;
use crate::store::StoreError;
use deadpool::managed::PoolError;
use deadpool_redis::redis::{ErrorKind, RedisError, ServerErrorKind};
use std::fmt::Display;
use std::time::Duration;
use tokio::time::error::Elapsed;

/// Whether the server does not know the script whose digest it was sent: it restarted, failed over, or was flushed.
pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Whether a connection that ended a call so is better not used again. No answer in time counts, since the way to the
/// server may be cut; so does a read-only answer, since behind a fixed name a new connection finds the new primary.
pub(super) fn spoils_connection<T>(outcome: &Result<Result<T, PoolError<RedisError>>, Elapsed>) -> bool {
    let Ok(answer) = outcome else { return true };
    let Err(PoolError::Backend(error)) = answer else { return false };
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse | ErrorKind::Server(ServerErrorKind::ReadOnly))
}

/// The error of a call to `url`, which was given `timeout`.
pub(super) fn store_error(error: &RedisError, url: &RedisUrl, timeout: Duration) -> StoreError {
    if error.is_timeout() {
        return StoreError::Timeout(timeout);
    }
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
    } else if names("NOAUTH") || names("WRONGPASS") || names("NOPERM") || names("can't run this command") {
        StoreError::Auth(text)
    } else if names("LOADING") || names("BUSY") || names("MASTERDOWN") {
        StoreError::Loading(text)
    } else if names("READONLY") {
        StoreError::ReadOnly(text)
    } else if names("OOM") {
        StoreError::OutOfMemory(text)
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
}
